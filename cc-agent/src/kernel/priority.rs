//! The agent's share of the processors.

use std::io;

/// Sets the niceness of this thread, and so of those that it starts later.
///
/// The agent needs little time but needs it soon: with an ordinary priority a busy host answers its
/// windows late.
///
/// # Errors
///
/// Returns the kernel's error; lowering the niceness needs CAP_SYS_NICE.
pub fn set_niceness(niceness: i32) -> io::Result<()> {
    // SAFETY: has no pointers.
    match unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, niceness) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
