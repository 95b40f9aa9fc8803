//! The BPF entry points: a `tcp_congestion_ops` whose callbacks fill the shared library's types from
//! kernel structures and write its results back, and programs that trace the kernel's own TCP to do the first half of
//! that for flows of any congestion control. No arithmetic of its own.
//!
//! The callbacks lie in an `fentry` section only because aya's parser knows no `struct_ops`; the
//! agent relocates and loads them itself as struct_ops programs.
#![no_std]
#![no_main]

mod arguments;
mod callbacks;
mod choose;
mod follow;
mod layout;
mod maps;
mod observer;
mod socket;

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // Nothing in this program panics; the compiler asks for the handler all the same.
    loop {}
}

/// The kernel loads only programs that declare a GPL-compatible licence
/// (`bpf_struct_ops`, kernel/bpf/syscall.c).
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 4] = *b"GPL\0";
