//! Values that the verifier is not to follow.
//!
//! The kernel's verifier explores every path of a program with the values that it knows, and takes
//! two paths together only where these agree. A flag that is set on one path and tested much later
//! keeps everything in between from being taken together: a handful of flags that are alive across
//! the loop over the features take a program past the verifier's limit of a million instructions.
//! What was written to a map is an unknown number when it is read again, so such flags are kept in
//! the flow's map value and read by [`read`].

/// Reads a place in a map value, as the number that it is and not as what was written last.
#[inline(always)]
pub(crate) fn read(place: &u32) -> u32 {
    // SAFETY: a valid, aligned reference; volatile so that the compiler reads memory as well.
    unsafe { core::ptr::read_volatile(place) }
}
