//! Network namespaces with unique names, deleted when they are dropped.

use std::{
    fs::{self, File},
    io, mem,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::Command,
    thread::{self, JoinHandle},
};

use nix::sched::{CloneFlags, setns};

use super::unique_place;

/// Where `ip netns` keeps the namespaces that have names.
const DIRECTORY: &str = "/run/netns";

/// A network namespace with a name, removed when it is dropped.
///
/// # Panics
///
/// All functions panic, with the command or file at fault, if the system refuses what they do:
/// trials need root, which [`unmet_requirement`](crate::unmet_requirement) checks beforehand.
pub struct Namespace {
    name: String,
    handle: File,
}

impl Namespace {
    /// Creates a namespace with its loopback device up and without a cache of TCP metrics. The name
    /// ends with `role`, for `ip netns list`.
    pub fn new(role: &str) -> Self {
        let name = unique_place(role);
        execute(Command::new("ip").args(["netns", "add", &name]));
        let handle = File::open(PathBuf::from(DIRECTORY).join(&name)).expect("it was just made");
        let namespace = Self { name, handle };
        namespace.ip("link set lo up");
        // Otherwise the kernel starts a connection with ssthresh and RTT of an earlier one.
        namespace.set_sysctl("net/ipv4/tcp_no_metrics_save", "1");
        namespace
    }

    /// Returns its name, for `ip -n`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Calls `work` on a thread in this namespace and waits for its result. Sockets made there stay
    /// in the namespace, wherever they are used afterwards.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.enter();
                work()
            });
            match thread.join() {
                Ok(value) => value,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Starts a thread in this namespace and returns its handle.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let handle = self.handle.try_clone().expect("a free descriptor");
        thread::spawn(move || {
            setns(&handle, CloneFlags::CLONE_NEWNET).expect("root may change the namespace");
            drop(handle);
            work()
        })
    }

    /// Makes a command start its program in this namespace.
    pub fn hold(&self, command: &mut Command) {
        let handle = self.handle.try_clone().expect("a free descriptor");
        // SAFETY: between fork and exec only the system call setns is made.
        unsafe {
            command.pre_exec(move || {
                setns(&handle, CloneFlags::CLONE_NEWNET).map_err(io::Error::from)
            });
        }
    }

    /// Runs `ip` in this namespace, with arguments separated by spaces.
    pub fn ip(&self, arguments: &str) {
        let words = arguments.split_whitespace();
        execute(Command::new("ip").args(["-n", &self.name]).args(words));
    }

    /// Runs `tc` in this namespace, with arguments separated by spaces.
    pub fn tc(&self, arguments: &str) {
        let words = arguments.split_whitespace();
        execute(Command::new("tc").args(["-n", &self.name]).args(words));
    }

    /// Sets a sysctl of this namespace, named by its path below /proc/sys.
    pub fn set_sysctl(&self, key: &str, value: &str) {
        let path = format!("/proc/sys/{key}");
        self.within(|| fs::write(&path, value))
            .unwrap_or_else(|error| panic!("{path} = {value}: {error}"));
    }

    /// Reads a sysctl of this namespace, named by its path below /proc/sys.
    pub fn sysctl(&self, key: &str) -> String {
        let path = format!("/proc/sys/{key}");
        let value = self.within(|| fs::read_to_string(&path));
        let value = value.unwrap_or_else(|error| panic!("{path}: {error}"));
        value.trim().to_owned()
    }

    /// Switches TSO, GSO and GRO of a device on or off. When they are off, every segment is a
    /// packet of its own.
    pub fn set_offloads(&self, device: &str, on: bool) {
        self.within(|| set_offloads(device, on))
            .unwrap_or_else(|error| panic!("offloads of {device} in {}: {error}", self.name));
    }

    /// Returns the number of packets that a device has sent; segments bundled by TSO or GSO count
    /// as one.
    pub fn packets_sent(&self, device: &str) -> u64 {
        /// The column of packets sent: after the name come eight columns about reception, then
        /// bytes sent (proc_pid_net(5)).
        const SENT: usize = 9;
        // /proc/net is the main thread's namespace; this thread's own is below thread-self.
        let table = self.within(|| fs::read_to_string("/proc/thread-self/net/dev"));
        let table = table.expect("the kernel lists its devices");
        let columns = table
            .lines()
            .find_map(|line| line.trim().strip_prefix(device)?.strip_prefix(':'))
            .unwrap_or_else(|| panic!("{} has no device {device}", self.name));
        let sent = columns.split_whitespace().nth(SENT);
        sent.and_then(|sent| sent.parse().ok())
            .expect("a table of numbers")
    }

    fn enter(&self) {
        setns(&self.handle, CloneFlags::CLONE_NEWNET).expect("root may change the namespace");
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip")
            .args(["netns", "del", &self.name])
            .status();
    }
}

/// Removes the namespaces whose names `selected` accepts.
pub(super) fn remove_all(selected: impl Fn(&str) -> bool) {
    let Ok(entries) = fs::read_dir(DIRECTORY) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if selected(&name) {
            let _ = Command::new("ip").args(["netns", "del", &name]).status();
        }
    }
}

/// Runs a command, and panics with its standard error if it fails.
fn execute(command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// `struct ethtool_value` (include/uapi/linux/ethtool.h).
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

/// `ETHTOOL_STSO`, `ETHTOOL_SGSO` and `ETHTOOL_SGRO` (include/uapi/linux/ethtool.h).
const OFFLOADS: [u32; 3] = [0x1f, 0x24, 0x2c];

fn set_offloads(device: &str, on: bool) -> io::Result<()> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
    for command in OFFLOADS {
        let mut value = EthtoolValue {
            command,
            data: u32::from(on),
        };
        // SAFETY: all-zero bytes are a valid ifreq.
        let mut request: libc::ifreq = unsafe { mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = (&raw mut value).cast();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
        // SAFETY: the request and the value it points to live through the call.
        if unsafe { libc::ioctl(fd, libc::SIOCETHTOOL as _, &raw mut request) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
