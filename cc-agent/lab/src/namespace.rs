//! One network namespace.

use std::{
    fs::{self, File},
    io, mem,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::Command,
    thread::{self, JoinHandle},
};

use nix::sched::{CloneFlags, setns};

use super::{belongs_to_the_dead, unique_place};

/// Where `ip netns` keeps them.
const DIRECTORY: &str = "/run/netns";

/// A network namespace that goes when this does.
pub struct Namespace {
    name: String,
    handle: File,
}

impl Namespace {
    /// A new one, with its loopback up. The name ends with `role`.
    pub fn new(role: &str) -> Self {
        let name = unique_place(role);
        execute(Command::new("ip").args(["netns", "add", &name]));
        let handle = File::open(PathBuf::from(DIRECTORY).join(&name)).expect("it was just made");
        let namespace = Self { name, handle };
        namespace.ip("link set lo up");
        // What one connection learnt must not shape the next.
        namespace.set_sysctl("net/ipv4/tcp_no_metrics_save", "1");
        namespace
    }

    /// Its name, for `ip -n`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Does `work` in a thread that is in this namespace. Sockets made there stay in it wherever
    /// they are used afterwards.
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

    /// Starts a thread in this namespace.
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

    /// Has a program start in this namespace.
    pub fn hold(&self, command: &mut Command) {
        let handle = self.handle.try_clone().expect("a free descriptor");
        // SAFETY: between fork and exec only the system call setns is made.
        unsafe {
            command.pre_exec(move || {
                setns(&handle, CloneFlags::CLONE_NEWNET).map_err(io::Error::from)
            });
        }
    }

    /// `ip` in this namespace.
    pub fn ip(&self, arguments: &str) {
        let words = arguments.split_whitespace();
        execute(Command::new("ip").args(["-n", &self.name]).args(words));
    }

    /// `tc` in this namespace.
    pub fn tc(&self, arguments: &str) {
        let words = arguments.split_whitespace();
        execute(Command::new("tc").args(["-n", &self.name]).args(words));
    }

    /// Sets a sysctl, named by its path below /proc/sys.
    pub fn set_sysctl(&self, key: &str, value: &str) {
        let path = format!("/proc/sys/{key}");
        self.within(|| fs::write(&path, value))
            .unwrap_or_else(|error| panic!("{path} = {value}: {error}"));
    }

    /// Reads a sysctl.
    pub fn sysctl(&self, key: &str) -> String {
        let path = format!("/proc/sys/{key}");
        let value = self.within(|| fs::read_to_string(&path));
        let value = value.unwrap_or_else(|error| panic!("{path}: {error}"));
        value.trim().to_owned()
    }

    /// Switches TSO, GSO and GRO of a device: off, so that every segment is a packet of its own.
    pub fn set_offloads(&self, device: &str, on: bool) {
        self.within(|| set_offloads(device, on))
            .unwrap_or_else(|error| panic!("offloads of {device} in {}: {error}", self.name));
    }

    /// Packets that a device has sent; a bundle of segments counts as one.
    pub fn packets_sent(&self, device: &str) -> u64 {
        /// Of a line of the table: after the name, eight columns of what was received, and the bytes sent.
        const SENT: usize = 9;
        // What /proc/net shows is the first thread's.
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

/// Removes the namespaces of programs that are no more.
pub(super) fn sweep() {
    let Ok(entries) = fs::read_dir(DIRECTORY) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if belongs_to_the_dead(&name) {
            let _ = Command::new("ip").args(["netns", "del", &name]).status();
        }
    }
}

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

/// `ETHTOOL_STSO`, `ETHTOOL_SGSO` and `ETHTOOL_SGRO`, as `ethtool -K` sends them.
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
