//! The observer: the datapath's measuring half, attached to the kernel's own TCP. Records of flows of any congestion
//! control come out of it; nothing goes in.

use std::{fs, os::fd::AsRawFd};

use aya::{
    Btf, Ebpf, EbpfLoader,
    programs::{
        BtfTracePoint, FEntry, FExit, ProgramError, ProgramInfo,
    },
};
use cc_ebpf::{ABSENT, AckFilter, Flow, LAYOUT_VERSION, Selection, Settings};

use super::{
    Error, btf,
    object::{
        ACKS, Counters, DECISIONS, FLOWS, FREE_SLOTS, Maps, OBJECT, OBSERVED, RECORDS, Ring,
        SELECTION, SETTINGS, as_words, no_program,
    },
    shared::Shared,
};

/// Sockets that can be told apart, selected or not; what is kept of one is some 100 bytes, taken as needed.
const SOCKETS: u32 = 1 << 18;

/// Where an ACK is seen: the program and the function that it traces, in the order of preference.
const ACK_HOOKS: [Hook; 2] = [
    Hook {
        program: "cc_observe_ack",
        function: "tcp_rate_gen",
        kind: Kind::Exit,
    },
    Hook {
        program: "cc_observe_cc",
        function: "tcp_cong_control",
        kind: Kind::Entry,
    },
];

/// Where a connection begins. Without it a flow begins with its second ACK.
const INIT_HOOK: Hook = Hook {
    program: "cc_observe_init",
    function: "tcp_init_congestion_control",
    kind: Kind::Exit,
};

/// Where a connection ends.
const END_HOOK: Hook = Hook {
    program: "cc_observe_end",
    function: "tcp_destroy_sock",
    kind: Kind::Tracepoint,
};

/// Where a timeout is seen, on kernels that do not count them.
const LOSS_HOOK: Hook = Hook {
    program: "cc_observe_loss",
    function: "tcp_cong_state_set",
    kind: Kind::Tracepoint,
};

/// What is to be observed, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Flows that can be observed at once.
    pub slots: u32,
    /// Length of the observation window, ns.
    pub window_ns: u64,
    /// Window of the minimum-RTT filter, ns.
    pub min_rtt_window_ns: u64,
    /// Whose ACKs are recorded one by one.
    pub ack_filter: AckFilter,
    /// Which flows.
    pub selection: Selection,
}

/// The attached observer. Dropping it detaches it, and nothing of it is left in the kernel.
pub struct Observer {
    programs: Ebpf,
    hooks: Vec<&'static Hook>,
    flows: Shared<Flow>,
    records: Ring,
    acks: Ring,
    counters: Counters,
}

impl Observer {
    /// Loads the programs and attaches them. Connections that are there already are observed from their second ACK on.
    ///
    /// # Errors
    ///
    /// The host lacks what is needed, which the error names, or refuses it.
    pub fn attach(options: &Options) -> Result<Self, Error> {
        if OBJECT.is_empty() {
            return Err(Error::NoObject);
        }
        let kernel = btf::Kernel::running()?;
        let layout = kernel.layout()?;
        let types = Btf::from_sys_fs().map_err(Error::aya("reading the kernel's BTF"))?;
        let ack = ACK_HOOKS.iter().find(|hook| kernel.has_function(hook.function));
        let ack = ack.ok_or_else(|| Error::NotTraceable {
            reason: "this kernel's BTF lists neither tcp_rate_gen nor tcp_cong_control, as the compiler has inlined \
                     both"
                .into(),
        })?;

        let mut programs = EbpfLoader::new()
            .override_global("KERNEL", as_words(&layout), true)
            .map_max_entries(DECISIONS, 1)
            .map_max_entries(FLOWS, options.slots)
            .map_max_entries(FREE_SLOTS, options.slots)
            .map_max_entries(OBSERVED, SOCKETS)
            .load(OBJECT)
            .map_err(Error::aya("creating the BPF maps"))?;
        // Ends first and ACKs last, so that nothing is seen of which the end could be missed.
        let mut hooks = vec![&END_HOOK];
        if layout.total_rto == ABSENT {
            hooks.push(&LOSS_HOOK);
        }
        if kernel.has_function(INIT_HOOK.function) {
            hooks.push(&INIT_HOOK);
        }
        hooks.push(ack);
        for hook in &hooks {
            hook.load(&mut programs, hook.function, &types)?;
        }
        let mut maps = Maps::of(&mut programs);
        maps.free_slots(options.slots)?;
        let settings: Shared<Settings> = Shared::map(maps.fd_of(SETTINGS)?, 1)?;
        settings.write(0, options.settings());
        let selection: Shared<Selection> = Shared::map(maps.fd_of(SELECTION)?, 1)?;
        selection.write(0, options.selection);
        let mut observer = Self {
            flows: Shared::map(maps.fd_of(FLOWS)?, options.slots)?,
            records: Ring::take(&mut maps, RECORDS)?,
            acks: Ring::take(&mut maps, ACKS)?,
            counters: Counters::take(&mut maps)?,
            programs,
            hooks,
        };
        for hook in &observer.hooks {
            hook.attach(&mut observer.programs)?;
        }
        Ok(observer)
    }

    /// The kernel function or tracepoint at which each of the programs runs.
    pub fn hooks(&self) -> impl Iterator<Item = &'static str> {
        self.hooks.iter().map(|hook| hook.function)
    }

    /// The state of the flow in `slot`, or `None` while the datapath is changing it.
    pub fn flow(&self, slot: u32) -> Option<Flow> {
        self.flows.snapshot(slot as usize)
    }

    /// Slots for flows.
    pub fn slots(&self) -> usize {
        self.flows.entries()
    }

    /// The counters, summed over the CPUs, in the order of [`cc_ebpf::Counter::ALL`].
    pub fn counters(&self) -> Result<Vec<u64>, Error> {
        self.counters.read()
    }

    /// Events that no program saw, because another was interrupted on the same CPU: the kernel lets a traced program
    /// run once at a time there. What such an ACK brought is in the next one's features.
    pub fn missed(&self) -> u64 {
        let infos = self.programs.programs().filter_map(|(_, program)| program.info().ok());
        infos.map(|info| missed(&info)).sum()
    }

    /// Opened, window and closed records. Its descriptor becomes readable when there are some.
    pub fn records(&mut self) -> &mut Ring {
        &mut self.records
    }

    /// Per-ACK records. They wake nobody.
    pub fn acks(&mut self) -> &mut Ring {
        &mut self.acks
    }
}

impl Options {
    fn settings(&self) -> Settings {
        let (ack_filter, ack_filter_argument) = self.ack_filter.encode();
        Settings {
            layout: LAYOUT_VERSION,
            slots: self.slots,
            window_ns: self.window_ns,
            min_rtt_window_ns: self.min_rtt_window_ns,
            ack_filter,
            ack_filter_argument,
            name: padded(&footprint_name()),
            ..bytemuck::Zeroable::zeroed()
        }
    }
}

/// What the settings of this process's observer are called, where a datapath's have the name of its congestion control.
pub fn footprint_name() -> String {
    format!("observe{}", std::process::id())
}

/// NUL-padded.
fn padded(name: &str) -> [u8; 16] {
    let mut padded = [0; 16];
    padded[..name.len()].copy_from_slice(name.as_bytes());
    padded
}

/// A program and what it is attached to.
#[derive(Debug)]
struct Hook {
    program: &'static str,
    function: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Entry,
    Exit,
    Tracepoint,
}

impl Hook {
    /// Has the kernel verify the program, for `function`.
    fn load(&self, programs: &mut Ebpf, function: &str, types: &Btf) -> Result<(), Error> {
        let program = programs
            .program_mut(self.program)
            .ok_or_else(|| no_program(self.program))?;
        let wrong = Error::aya("reading the BPF object");
        let loaded = match self.kind {
            Kind::Entry => <&mut FEntry>::try_from(program).map(|p| p.load(function, types)),
            Kind::Exit => <&mut FExit>::try_from(program).map(|p| p.load(function, types)),
            Kind::Tracepoint => {
                <&mut BtfTracePoint>::try_from(program).map(|p| p.load(function, types))
            }
        };
        loaded.map_err(wrong)?.map_err(|error| self.refused(error))
    }

    fn attach(&self, programs: &mut Ebpf) -> Result<(), Error> {
        let program = programs
            .program_mut(self.program)
            .ok_or_else(|| no_program(self.program))?;
        let wrong = Error::aya("reading the BPF object");
        let attached = match self.kind {
            Kind::Entry => <&mut FEntry>::try_from(program).map(|p| p.attach().map(drop)),
            Kind::Exit => <&mut FExit>::try_from(program).map(|p| p.attach().map(drop)),
            Kind::Tracepoint => {
                <&mut BtfTracePoint>::try_from(program).map(|p| p.attach().map(drop))
            }
        };
        attached.map_err(wrong)?.map_err(|error| self.refused(error))
    }

    fn refused(&self, error: ProgramError) -> Error {
        match error {
            ProgramError::LoadError {
                io_error,
                verifier_log,
            } if io_error.raw_os_error() != Some(libc::EPERM) => Error::Verifier {
                program: self.program.into(),
                source: io_error,
                log: verifier_log.to_string(),
            },
            ProgramError::SyscallError(error)
                if !matches!(error.io_error.raw_os_error(), Some(libc::EPERM | libc::EACCES)) =>
            {
                Error::NotTraceable {
                    reason: format!(
                        "the kernel does not let a BPF program trace {} ({}); it must be built with \
                         CONFIG_FUNCTION_TRACER and CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS, as distribution kernels \
                         are",
                        self.function, error.io_error
                    ),
                }
            }
            error => Error::aya(format!("tracing {}", self.function))(error),
        }
    }
}

/// What a program's entry in /proc tells of `recursion_misses` (`bpf_prog_show_fdinfo`, kernel/bpf/syscall.c).
fn missed(program: &ProgramInfo) -> u64 {
    let count = || {
        let fd = program.fd().ok()?;
        let path = format!("/proc/self/fdinfo/{}", std::os::fd::AsFd::as_fd(&fd).as_raw_fd());
        let text = fs::read_to_string(path).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("recursion_misses:"));
        line?.trim().parse().ok()
    };
    count().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those programs, too, that this kernel has no use for: where the functions take the same arguments, the verifier
    /// judges them as it would elsewhere.
    #[test]
    fn the_kernel_accepts_every_program() {
        let missing = if OBJECT.is_empty() {
            Some("built without the BPF object")
        // SAFETY: a system call without arguments.
        } else if unsafe { libc::geteuid() } != 0 {
            Some("not root")
        } else if btf::Kernel::running().is_err() {
            Some("the kernel shows no BTF")
        } else {
            None
        };
        if let Some(missing) = missing {
            eprintln!("SKIPPED: {missing}");
            return;
        }
        let kernel = btf::Kernel::running().expect("it is there");
        let layout = kernel.layout().expect("it has every member");
        let types = Btf::from_sys_fs().expect("it is there");
        let [rate_gen, cong_control] = &ACK_HOOKS;
        let all = [
            (rate_gen, rate_gen.function),
            (cong_control, rate_gen.function),
            (&INIT_HOOK, INIT_HOOK.function),
            (&END_HOOK, END_HOOK.function),
            (&LOSS_HOOK, LOSS_HOOK.function),
        ];
        for (hook, function) in all {
            let mut programs = EbpfLoader::new()
                .override_global("KERNEL", as_words(&layout), true)
                .map_max_entries(FLOWS, 1)
                .load(OBJECT)
                .expect("the object of this build");
            if let Err(error) = hook.load(&mut programs, function, &types) {
                panic!("{} for {function}: {error}", hook.program);
            }
        }
    }
}
