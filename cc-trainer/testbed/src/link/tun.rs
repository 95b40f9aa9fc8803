//! TUN devices (Documentation/networking/tuntap.rst of the kernel): packets that the kernel sends
//! through the device are read from its file, and packets written to the file are received by the
//! kernel.

use std::{
    ffi::CStr,
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    mem,
    net::Ipv4Addr,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd},
        unix::fs::{FileExt, OpenOptionsExt},
    },
};

use super::{LinkError, Namespace, namespace};
use cc_sim::scenario::{MTU, SenderQueue};

/// Packets that may wait in the device for the emulator: 200 ms at 1 Gbit/s. The default of 500
/// would drop bursts before the emulator reads them.
const RING: u32 = 20_000;

/// A TUN device that is up and has an address. Dropping it removes the device.
#[derive(Debug)]
pub(super) struct Tun {
    file: File,
    name: String,
    /// /proc/net/dev of the device's namespace, which the open file keeps showing.
    statistics: File,
}

impl Tun {
    /// Creates a device in `namespace` with an address of a /30.
    ///
    /// # Errors
    ///
    /// Returns an error when the device cannot be created or configured.
    pub(super) fn new(namespace: &Namespace, address: Ipv4Addr) -> Result<Self, LinkError> {
        namespace.within(|| {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
                .open("/dev/net/tun")
                .map_err(LinkError::Driver)?;
            let name = create(&file).map_err(|error| LinkError::Device { error })?;
            // IPv6 neighbour discovery would be noise on the link.
            namespace::set(&format!("net/ipv6/conf/{name}/disable_ipv6"), "1")?;
            namespace::ip(&format!(
                "address add {address}/30 dev {name}\nlink set {name} mtu {MTU} txqueuelen {RING} \
                 up\n"
            ))?;
            let statistics = File::open("/proc/thread-self/net/dev")
                .map_err(|error| LinkError::Device { error })?;
            Ok(Self {
                file,
                name,
                statistics,
            })
        })?
    }

    /// Adds another address, with no network around it.
    ///
    /// # Errors
    ///
    /// Returns an error when `ip` refuses it.
    pub(super) fn add(&self, namespace: &Namespace, address: Ipv4Addr) -> Result<(), LinkError> {
        let command = format!("address add {address}/32 dev {}\n", self.name);
        namespace.within(|| namespace::ip(&command))?
    }

    /// Makes the device lead to another address, too.
    ///
    /// # Errors
    ///
    /// Returns an error when `ip` refuses it.
    pub(super) fn lead(&self, namespace: &Namespace, to: Ipv4Addr) -> Result<(), LinkError> {
        let command = format!("route add {to}/32 dev {}\n", self.name);
        namespace.within(|| namespace::ip(&command))?
    }

    /// Makes packets pass a queue before they leave through the device: `tbf` over `pfifo`
    /// (net/sched/sch_tbf.c, Linux 6.18). TCP's memory is released when `tbf` lets a packet go, so
    /// that TCP Small Queues hold back what would make the queue long.
    ///
    /// # Errors
    ///
    /// Returns an error when `tc` cannot be started or the kernel has no `tbf`.
    pub(super) fn queue_behind(
        &self,
        namespace: &Namespace,
        queue: &SenderQueue,
    ) -> Result<(), LinkError> {
        let SenderQueue {
            bits_per_second,
            burst,
            packets,
        } = queue;
        let name = &self.name;
        // `tc` wants a limit in bytes as well, which the FIFO of packets then replaces.
        let commands = format!(
            "qdisc replace dev {name} root handle 1: tbf rate {bits_per_second:.0}bit burst \
             {burst} limit 1000000000\nqdisc add dev {name} parent 1: pfifo limit {packets}\n"
        );
        let failed = |error| LinkError::SenderQueue {
            error: Box::new(error),
        };
        namespace
            .within(|| namespace::tc(&commands))?
            .map_err(failed)
    }

    /// Reads the next packet that the kernel sends and returns its length.
    ///
    /// # Errors
    ///
    /// Returns `WouldBlock` when no packet waits, and other errors of the device.
    pub(super) fn read(&self, packet: &mut [u8]) -> io::Result<usize> {
        (&self.file).read(packet)
    }

    /// Writes a packet, which the kernel then receives.
    ///
    /// # Errors
    ///
    /// Returns an error when the kernel refuses the packet.
    pub(super) fn write(&self, packet: &[u8]) -> io::Result<()> {
        (&self.file).write(packet).map(drop)
    }

    /// Number of packets that the kernel sent and the device had no room for.
    ///
    /// # Errors
    ///
    /// Returns an error when /proc/net/dev cannot be read or lacks the device.
    pub(super) fn ring_drops(&self) -> io::Result<u64> {
        let mut text = vec![0; 1 << 16];
        let mut length = 0;
        // The kernel returns the file in pieces.
        loop {
            match self
                .statistics
                .read_at(&mut text[length..], length as u64)?
            {
                0 => break,
                more => length += more,
            }
        }
        dropped(&String::from_utf8_lossy(&text[..length]), &self.name)
            .ok_or_else(|| io::Error::other(format!("{} is not in /proc/net/dev", self.name)))
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Creates the device in the calling thread's namespace and returns its name. Offloads are off, so
/// that all packets are complete, have checksums and are no longer than the MTU.
fn create(file: &File) -> io::Result<String> {
    // SAFETY: ifreq consists of integers and bytes, for which zeros are valid.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    // The kernel replaces %d by the first free number.
    for (to, from) in request.ifr_name.iter_mut().zip(b"cclink%d") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one ifreq, which `request` is.
    if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel terminates names with a zero (IFNAMSIZ includes it), and `request`
    // outlives the borrow.
    let name = unsafe { CStr::from_ptr(request.ifr_name.as_ptr()) };
    Ok(name.to_string_lossy().into_owned())
}

/// The number of dropped transmissions of a device, from the text of /proc/net/dev.
fn dropped(text: &str, device: &str) -> Option<u64> {
    const TRANSMIT_DROP: usize = 11;
    let columns = text.lines().find_map(|line| {
        let (name, columns) = line.split_once(':')?;
        (name.trim() == device).then_some(columns)
    })?;
    columns
        .split_ascii_whitespace()
        .nth(TRANSMIT_DROP)?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_found_in_the_kernels_table() {
        let text = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo \
 colls carrier compressed
    lo:       0       0    0    0    0     0          0         0        0       0    0    0    \
    0     0       0          0
cclink0: 1 2 3 4 5 6 7 8 9 10 11 1234 13 14 15 16
cclink01: 1 2 3 4 5 6 7 8 9 10 11 99 13 14 15 16
";
        assert_eq!(dropped(text, "cclink0"), Some(1234));
        assert_eq!(dropped(text, "lo"), Some(0));
        assert_eq!(dropped(text, "cclink"), None);
    }
}
