//! The statics that the loader fills in before the kernel sees the programs.

use cc_ebpf::{KernelLayout, Scope};

/// Offsets of the running kernel's structure members, frozen with `.rodata`. Read with [`offset!`].
#[unsafe(no_mangle)]
pub(crate) static KERNEL: KernelLayout = KernelLayout::EMPTY;

/// The number of this load of the programs ([`cc_ebpf::Identity::programs`]).
#[unsafe(no_mangle)]
static LOAD: u32 = 0;

/// The number of this load of the programs.
#[inline(always)]
pub(crate) fn load_number() -> u32 {
    // SAFETY: a valid, aligned static; volatile because the loader rewrites it in the object.
    unsafe { core::ptr::read_volatile(&raw const LOAD) }
}

/// Name of the congestion control, NUL-padded.
#[unsafe(no_mangle)]
pub(crate) static NAME: [u32; 4] = [0; 4];

/// Which connections are served. Read with [`scope!`].
#[unsafe(no_mangle)]
pub(crate) static SCOPE: Scope = Scope::ALL;

/// A member of the scope: a constant to the verifier.
macro_rules! scope {
    ($member:ident) => {{
        // SAFETY: a valid, aligned field; volatile because the loader rewrites it in the object.
        unsafe { core::ptr::read_volatile(&raw const $crate::layout::SCOPE.$member) }
    }};
}

pub(crate) use scope;

/// The running kernel's offset of a member: a constant to the verifier.
macro_rules! offset {
    ($member:ident) => {{
        // SAFETY: a valid, aligned field; volatile because the loader rewrites it in the object.
        unsafe { core::ptr::read_volatile(&raw const $crate::layout::KERNEL.$member) }
    }};
}

pub(crate) use offset;
