//! A TUN device: packets that the kernel sends there are read here, and what is written here it receives
//! (Documentation/networking/tuntap.rst of the kernel).

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
use cc_sim::scenario::MTU;

/// Packets that may wait in the device for the emulator: 200 ms at a Gbit/s. The default of 500 would drop bursts
/// before the emulator sees them.
const RING: u32 = 20_000;

/// A TUN device, up and with its address. It goes when this does.
#[derive(Debug)]
pub(super) struct Tun {
    file: File,
    name: String,
    /// /proc/net/dev of its namespace; a file opened there keeps showing it.
    statistics: File,
}

impl Tun {
    /// Makes one that has an address of a /30.
    pub(super) fn new(namespace: &Namespace, address: Ipv4Addr) -> Result<Self, LinkError> {
        namespace.within(|| {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
                .open("/dev/net/tun")
                .map_err(LinkError::Driver)?;
            let name = create(&file).map_err(|error| LinkError::Device { error })?;
            // Its neighbour discovery would be noise on the link.
            namespace::set(&format!("net/ipv6/conf/{name}/disable_ipv6"), "1")?;
            namespace::ip(&format!(
                "address add {address}/30 dev {name}\nlink set {name} mtu {MTU} txqueuelen {RING} up\n"
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

    /// Takes the next packet that the kernel sends; its length. `WouldBlock` when there is none.
    pub(super) fn read(&self, packet: &mut [u8]) -> io::Result<usize> {
        (&self.file).read(packet)
    }

    /// Lets the kernel receive a packet.
    pub(super) fn write(&self, packet: &[u8]) -> io::Result<()> {
        (&self.file).write(packet).map(drop)
    }

    /// Packets that the kernel sent and the device had no room for.
    pub(super) fn ring_drops(&self) -> io::Result<u64> {
        let mut text = vec![0; 1 << 16];
        let mut length = 0;
        // The kernel hands the file over in pieces.
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

/// Makes the device in the calling thread's namespace; its name. Without offloads, so that what comes is whole
/// packets with their checksums, no longer than the MTU.
fn create(file: &File) -> io::Result<String> {
    // SAFETY: a plain record of integers and bytes, for which zeros are valid.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    // The kernel puts the first free number for %d.
    for (to, from) in request.ifr_name.iter_mut().zip(b"cclink%d") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one ifreq, which `request` is.
    if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel ends names with a zero (IFNAMSIZ counts it), and `request` outlives the borrow.
    let name = unsafe { CStr::from_ptr(request.ifr_name.as_ptr()) };
    Ok(name.to_string_lossy().into_owned())
}

/// The column of dropped transmissions of a device, in the text of /proc/net/dev.
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
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:       0       0    0    0    0     0          0         0        0       0    0    0    0     0       0          0
cclink0: 1 2 3 4 5 6 7 8 9 10 11 1234 13 14 15 16
cclink01: 1 2 3 4 5 6 7 8 9 10 11 99 13 14 15 16
";
        assert_eq!(dropped(text, "cclink0"), Some(1234));
        assert_eq!(dropped(text, "lo"), Some(0));
        assert_eq!(dropped(text, "cclink"), None);
    }
}
