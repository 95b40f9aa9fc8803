//! The kernel's own bbr behind a shell of BPF programs, so that its time is measured as that of any
//! other BPF congestion control.

use anyhow::{Context, Result};
use aya_obj::generated::bpf_insn;
use cc_agent::kernel::{
    btf,
    struct_ops::{self, Callback, StructOps},
};

/// The name of the shell's program for ACKs, for [`ProgramTime`](crate::ProgramTime).
pub const BBR_PROGRAM: &str = "lab_bbr_main";

/// The callbacks of bbr (`tcp_bbr_cong_ops`, net/ipv4/tcp_bbr.c, Linux 6.18): the member, the
/// function that serves it, which BPF congestion controls may call, and the number of its
/// parameters.
const CALLBACKS: [(&str, &str, u8); 8] = [
    ("init", "bbr_init", 1),
    ("cong_control", "bbr_main", 4),
    ("sndbuf_expand", "bbr_sndbuf_expand", 1),
    ("undo_cwnd", "bbr_undo_cwnd", 1),
    ("cwnd_event", "bbr_cwnd_event", 2),
    ("ssthresh", "bbr_ssthresh", 1),
    ("min_tso_segs", "bbr_min_tso_segs", 1),
    ("set_state", "bbr_set_state", 2),
];

/// Registers the kernel's bbr under another name, each of its callbacks called by a BPF program
/// that does nothing else. Dropping the result unregisters it.
///
/// # Errors
///
/// Returns an error where the kernel does not let BPF programs call its bbr, or has another one.
pub fn register_kernel_bbr(name: &str) -> Result<StructOps> {
    let kernel = btf::Kernel::running()?;
    let mut programs = Vec::new();
    for (member, function, parameters) in CALLBACKS {
        let id = kernel.function_id(function);
        let id = id.with_context(|| format!("this kernel shows no function {function}"))?;
        let program = match member {
            "cong_control" => BBR_PROGRAM.to_owned(),
            _ => format!("lab_{function}"),
        };
        programs.push((member, program, pass_on(parameters, id)));
    }
    let callbacks: Vec<Callback<'_>> = programs
        .iter()
        .map(|(member, program, instructions)| Callback {
            member,
            program,
            instructions,
        })
        .collect();
    Ok(struct_ops::register(name, &callbacks)?)
}

/// A program that calls the kernel's function with this BTF id with its own arguments, and returns
/// what that returns.
fn pass_on(parameters: u8, function: u32) -> Vec<bpf_insn> {
    // Documentation/bpf/standardization/instruction-set.rst
    const MOVE: u8 = 0xbf;
    const MOVE_VALUE: u8 = 0xb7;
    const LOAD: u8 = 0x79;
    const CALL: u8 = 0x85;
    const KERNEL_FUNCTION: u8 = 2;
    const EXIT: u8 = 0x95;
    let mut program = vec![
        // A function that returns nothing leaves no value behind.
        instruction(MOVE_VALUE, 0, 0, 0, 0),
        instruction(MOVE, 6, 1, 0, 0),
    ];
    program.extend((1..=parameters).map(|n| instruction(LOAD, n, 6, 8 * i16::from(n - 1), 0)));
    program.push(instruction(CALL, 0, KERNEL_FUNCTION, 0, function as i32));
    program.push(instruction(EXIT, 0, 0, 0, 0));
    program
}

fn instruction(code: u8, to: u8, from: u8, offset: i16, value: i32) -> bpf_insn {
    bpf_insn {
        code,
        _bitfield_align_1: [],
        _bitfield_1: bpf_insn::new_bitfield_1(to, from),
        off: offset,
        imm: value,
    }
}
