//! The BPF entry points: struct_ops callbacks and tracing programs.
//!
//! The callbacks of a `tcp_congestion_ops` fill the shared library's types from kernel structures
//! and write its results back. Tracing programs on the kernel's own TCP do the first half of that
//! for flows of any congestion control. There is no arithmetic here.
//!
//! The callbacks lie in `fentry` sections only because aya's parser knows no `struct_ops`; the
//! agent relocates them itself and loads them as struct_ops programs.
//!
//! Modules, each using only those before it: `layout` (offsets of kernel structure members),
//! `structure` and `maps`; `socket`; `arguments`; `follow` (a flow's slot and records) and `leave`
//! (connections that are not served); `callbacks`, `observer`, `choose` and `cookies` (the
//! programs).
#![no_std]
#![no_main]

mod arguments;
mod callbacks;
mod choose;
mod cookies;
mod follow;
mod layout;
mod leave;
mod maps;
mod observer;
mod socket;
mod structure;

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // Nothing in this program panics, but the compiler asks for a handler.
    loop {}
}

/// The kernel loads only programs that declare a GPL-compatible licence
/// (`bpf_struct_ops`, kernel/bpf/syscall.c).
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 4] = *b"GPL\0";
