//! TUN devices (Documentation/networking/tuntap.rst of the kernel): packets that the kernel sends
//! through the device are read from its file, and packets written to the file are received by the
//! kernel.

use std::{
    fs::{File, OpenOptions},
    io::{self, ErrorKind, Read, Write},
    mem,
    os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
};

use crate::Namespace;

/// A TUN device without offloads: every packet is complete, has its checksums and is no longer
/// than the MTU. Dropping it removes the device.
pub(super) struct Tun(File);

impl Tun {
    /// Creates a device of this name in a namespace.
    ///
    /// # Panics
    ///
    /// Panics if the kernel refuses, which it does without root or the TUN driver.
    pub(super) fn new(namespace: &Namespace, name: &str) -> Self {
        let created = namespace.within(|| {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
                .open("/dev/net/tun")?;
            create(&file, name)?;
            Ok::<_, io::Error>(file)
        });
        Self(created.unwrap_or_else(|error| panic!("the TUN device {name}: {error}")))
    }

    /// Reads the next packet that the kernel has sent, or `None` when none waits.
    pub(super) fn read(&self) -> Option<Vec<u8>> {
        let mut packet = vec![0; 1 << 16];
        match (&self.0).read(&mut packet) {
            Ok(length) => {
                packet.truncate(length);
                Some(packet)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(error) => panic!("reading from the TUN device: {error}"),
        }
    }

    /// Writes a packet. The kernel processes it before this returns (`tun_rx_batched`,
    /// drivers/net/tun.c, Linux 6.18).
    pub(super) fn write(&self, packet: &[u8]) {
        let written = (&self.0).write(packet);
        let written = written.unwrap_or_else(|error| panic!("writing to the TUN device: {error}"));
        assert_eq!(written, packet.len(), "packets are written whole");
    }
}

fn create(file: &File, name: &str) -> io::Result<()> {
    // SAFETY: ifreq consists of integers and bytes, for which zeros are valid.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one ifreq, which `request` is.
    if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
