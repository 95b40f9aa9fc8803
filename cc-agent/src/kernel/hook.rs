//! Tracing programs and what they are attached to.

use std::fmt;

use aya::{
    Btf, Ebpf,
    programs::{BtfTracePoint, FEntry, FExit, KProbe, Program, ProgramError},
};

use super::{Error, btf, object::no_program};

/// A program and what it is attached to.
#[derive(Debug)]
pub(super) struct Hook {
    pub(super) program: &'static str,
    /// A function or a tracepoint.
    pub(super) target: &'static str,
    pub(super) kind: Kind,
}

/// How a program is attached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    /// To a function's entry, by a trampoline (fentry).
    Entry,
    /// To a function's exit, by a trampoline (fexit).
    Exit,
    /// To a tracepoint whose arguments BTF describes (`tp_btf`).
    Tracepoint,
    /// To a function's entry, by a breakpoint or ftrace.
    Kprobe,
}

impl Hook {
    /// Whether the kernel has the target, and BPF programs can be attached to such.
    pub(super) fn exists(&self, kernel: &btf::Kernel) -> bool {
        match self.kind {
            // What attaches them to functions (kernel/bpf/trampoline.c) where ftrace has patched
            // these.
            Kind::Entry | Kind::Exit => {
                kernel.has_function("register_ftrace_direct") && kernel.has_function(self.target)
            }
            Kind::Tracepoint => kernel.has_typedef(&format!("btf_trace_{}", self.target)),
            Kind::Kprobe => {
                kernel.has_function("register_kprobe") && kernel.has_function(self.target)
            }
        }
    }

    /// Has the kernel verify the program, and attaches it for as long as `programs` lives.
    ///
    /// # Errors
    ///
    /// Returns an error when the verifier refuses the program, or the host forbids it.
    pub(super) fn attach(&self, programs: &mut Ebpf, types: &Btf) -> Result<(), Error> {
        self.load(programs, self.target, types)?;
        let program = self.program(programs)?;
        let wrong = Error::aya("reading the BPF object");
        let attached = match self.kind {
            Kind::Entry => <&mut FEntry>::try_from(program).map(|p| p.attach().map(drop)),
            Kind::Exit => <&mut FExit>::try_from(program).map(|p| p.attach().map(drop)),
            Kind::Tracepoint => {
                <&mut BtfTracePoint>::try_from(program).map(|p| p.attach().map(drop))
            }
            Kind::Kprobe => {
                <&mut KProbe>::try_from(program).map(|p| p.attach(self.target, 0).map(drop))
            }
        };
        attached
            .map_err(wrong)?
            .map_err(Error::aya(format!("tracing {}", self.target)))
    }

    /// Has the kernel verify the program, for `target`.
    ///
    /// # Errors
    ///
    /// Returns an error when the verifier refuses the program, or the host forbids it.
    pub(super) fn load(&self, programs: &mut Ebpf, target: &str, types: &Btf) -> Result<(), Error> {
        let program = self.program(programs)?;
        let wrong = Error::aya("reading the BPF object");
        let loaded = match self.kind {
            Kind::Entry => <&mut FEntry>::try_from(program).map(|p| p.load(target, types)),
            Kind::Exit => <&mut FExit>::try_from(program).map(|p| p.load(target, types)),
            Kind::Tracepoint => {
                <&mut BtfTracePoint>::try_from(program).map(|p| p.load(target, types))
            }
            Kind::Kprobe => <&mut KProbe>::try_from(program).map(KProbe::load),
        };
        loaded.map_err(wrong)?.map_err(|error| match error {
            ProgramError::LoadError {
                io_error,
                verifier_log,
            } if io_error.raw_os_error() != Some(libc::EPERM) => Error::Verifier {
                program: self.program.into(),
                source: io_error,
                log: verifier_log.to_string(),
            },
            ProgramError::LoadError { io_error, .. } => {
                Error::system(format!("tracing {target}"))(io_error)
            }
            error => Error::aya(format!("tracing {target}"))(error),
        })
    }

    fn program<'a>(&self, programs: &'a mut Ebpf) -> Result<&'a mut Program, Error> {
        let program = programs.program_mut(self.program);
        program.ok_or_else(|| no_program(self.program))
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Entry => "fentry",
            Kind::Exit => "fexit",
            Kind::Tracepoint => "tracepoint",
            Kind::Kprobe => "kprobe",
        };
        write!(f, "{kind} of {}", self.target)
    }
}
