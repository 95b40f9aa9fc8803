//! What scripts do with sockets beyond the standard library and socket2.

use std::{
    io, mem,
    os::fd::{AsFd, AsRawFd},
};

/// Ends a socket's connection so that it can be connected again, or listen: connect(2) to an
/// address of the family `AF_UNSPEC`.
///
/// # Errors
///
/// Returns the error of connect(2) when the kernel refuses.
pub fn disconnect(socket: &impl AsFd) -> io::Result<()> {
    // SAFETY: sockaddr consists of integers, for which zeros are valid; AF_UNSPEC is 0.
    let nowhere: libc::sockaddr = unsafe { mem::zeroed() };
    let length = mem::size_of_val(&nowhere) as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the address lives through the call and is `length` bytes long.
    let status = unsafe { libc::connect(fd, &raw const nowhere, length) };
    if status == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Lets that many connections of a listening socket deliver data before their handshake is complete
/// (tcp(7): `TCP_FASTOPEN`).
///
/// # Errors
///
/// Returns the error of setsockopt(2) when the kernel refuses.
pub fn allow_fast_open(listener: &impl AsFd, connections: i32) -> io::Result<()> {
    let length = mem::size_of_val(&connections) as libc::socklen_t;
    let fd = listener.as_fd().as_raw_fd();
    let value = (&raw const connections).cast();
    // SAFETY: the value lives through the call and is `length` bytes long.
    let status =
        unsafe { libc::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_FASTOPEN, value, length) };
    if status == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
