//! The observer: the measuring half of the datapath, attached to the kernel's own TCP. Records of
//! flows of any congestion control come out of it; nothing goes in.

use std::{fs, os::fd::AsRawFd};

use aya::{
    Btf, Ebpf, EbpfLoader,
    programs::{BtfTracePoint, FEntry, FExit, Program, ProgramError, ProgramInfo},
};
use cc_ebpf::{ABSENT, AckFilter, Flow, KernelLayout, Selection, Settings};

use super::{
    Error, btf,
    object::{
        ACKS, Counters, DECISIONS, FLOWS, FREE_SLOTS, Maps, OBJECT, OBSERVED, RECORDS, Ring,
        SELECTION, SETTINGS, as_words, no_program,
    },
    shared::Shared,
};

/// Sockets that can be followed, selected or not. Each takes some 100 bytes, allocated as needed.
const SOCKETS: u32 = 1 << 18;

/// Where an ACK is seen, in the order of preference.
const ACK_HOOKS: [Hook; 3] = [
    Hook {
        program: "cc_observe_ack",
        target: "tcp_rate_gen",
        kind: Kind::Exit,
    },
    Hook {
        program: "cc_observe_cc",
        target: "tcp_cong_control",
        kind: Kind::Entry,
    },
    Hook {
        program: "cc_observe_seg",
        target: "tcp_probe",
        kind: Kind::Tracepoint,
    },
];

/// The program that runs where a connection begins.
const INIT_HOOK: Hook = Hook {
    program: "cc_observe_init",
    target: "inet_sock_set_state",
    kind: Kind::Tracepoint,
};

/// The program that runs where a connection ends.
const END_HOOK: Hook = Hook {
    program: "cc_observe_end",
    target: "tcp_destroy_sock",
    kind: Kind::Tracepoint,
};

/// Where a timeout is seen, on kernels that do not count them.
const LOSS_HOOK: Hook = Hook {
    program: "cc_observe_loss",
    target: "tcp_cong_state_set",
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
    /// The flows to observe; others are passed over.
    pub selection: Selection,
    /// How ACKs are to be seen; the best way that there is by default.
    pub source: Option<Source>,
}

/// The hook at which the programs see ACKs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// With the rate sample that the congestion control is given: features are exact.
    RateSample,
    /// By the socket before each segment ([`cc_ebpf::Glimpse`]): one ACK late, in state ESTABLISHED
    /// only, and not exact around losses and where the application has little to send.
    Segments,
}

/// The attached observer. Dropping it detaches it, and nothing of it is left in the kernel.
pub struct Observer {
    programs: Ebpf,
    source: Source,
    flows: Shared<Flow>,
    records: Ring,
    acks: Ring,
    counters: Counters,
}

impl Observer {
    /// Loads the programs and attaches them. Connections that are there already are observed from
    /// their second ACK on.
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
        let mut members = KernelLayout::MEMBERS.iter().zip(as_words(&layout));
        let missing = members.find(|((_, member), offset)| {
            **offset == ABSENT && KernelLayout::OBSERVER.contains(member)
        });
        if let Some(((structure, member), _)) = missing {
            return Err(Error::MissingMember {
                structure: (*structure).into(),
                member: (*member).into(),
            });
        }
        let types = Btf::from_sys_fs().map_err(Error::aya("reading the kernel's BTF"))?;
        let mut programs = EbpfLoader::new()
            .override_global("KERNEL", as_words(&layout), true)
            .map_max_entries(DECISIONS, 1)
            .map_max_entries(FLOWS, options.slots)
            .map_max_entries(FREE_SLOTS, options.slots)
            .map_max_entries(OBSERVED, SOCKETS)
            .load(OBJECT)
            .map_err(Error::aya("creating the BPF maps"))?;
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
            source: Source::RateSample,
        };
        // Ends first and ACKs last, so that nothing is seen of which the end could be missed.
        let mut hooks = vec![&END_HOOK, &INIT_HOOK];
        if layout.total_rto == ABSENT {
            hooks.push(&LOSS_HOOK);
        }
        for hook in hooks {
            hook.attach(&mut observer.programs, &types)?;
        }
        observer.source = observer.attach_to_acks(options.source, &kernel, &types)?;
        Ok(observer)
    }

    /// Attaches the first of [`ACK_HOOKS`] that this kernel has and permits.
    fn attach_to_acks(
        &mut self,
        wanted: Option<Source>,
        kernel: &btf::Kernel,
        types: &Btf,
    ) -> Result<Source, Error> {
        let mut refusals = Vec::new();
        for hook in &ACK_HOOKS {
            let source = hook.source();
            if wanted.is_some_and(|wanted| wanted != source) {
                continue;
            }
            if !hook.exists(kernel) {
                refusals.push(format!("this kernel has no {} to trace", hook.target));
                continue;
            }
            match hook.attach(&mut self.programs, types) {
                Ok(()) => return Ok(source),
                Err(error @ Error::Verifier { .. }) if source == Source::Segments => {
                    return Err(error);
                }
                Err(error) => {
                    tracing::debug!("{error}");
                    refusals.extend(error.to_string().lines().next().map(str::to_owned));
                }
            }
        }
        Err(Error::NotTraceable {
            reason: refusals.join("; "),
        })
    }

    /// The hook at which the programs see ACKs.
    pub fn source(&self) -> Source {
        self.source
    }

    /// The state of the flow in `slot`, or `None` while the datapath is changing it.
    pub fn flow(&self, slot: u32) -> Option<Flow> {
        self.flows.snapshot(slot)
    }

    /// Number of slots for flows in the maps.
    pub fn slots(&self) -> usize {
        self.flows.entries()
    }

    /// The counters, summed over the CPUs, in the order of [`cc_ebpf::Counter::ALL`].
    ///
    /// # Errors
    ///
    /// Returns an error when the kernel refuses to read the map.
    pub fn counters(&self) -> Result<Vec<u64>, Error> {
        self.counters.read()
    }

    /// Events that no program saw, because another was interrupted on the same CPU: the kernel lets
    /// a traced program run once at a time there. What such an ACK brought is in the next one's
    /// features.
    pub fn missed(&self) -> u64 {
        let infos = self
            .programs
            .programs()
            .filter_map(|(_, program)| program.info().ok());
        infos.map(|info| missed(&info)).sum()
    }

    /// Opened, window and closed records. Its descriptor becomes readable when there are some.
    pub fn records(&mut self) -> &mut Ring {
        &mut self.records
    }

    /// Per-ACK records. They do not make its descriptor readable.
    pub fn acks(&mut self) -> &mut Ring {
        &mut self.acks
    }
}

/// How ACKs can be seen by what the kernel's types say, or what is missing for that. Whether a host
/// permits it shows when it is tried.
pub(super) fn possible_source(kernel: &btf::Kernel) -> Result<Source, String> {
    let missing = [END_HOOK, INIT_HOOK]
        .into_iter()
        .find(|hook| !hook.exists(kernel));
    if let Some(hook) = missing {
        return Err(format!("this kernel has no tracepoint {}", hook.target));
    }
    let hook = ACK_HOOKS.iter().find(|hook| hook.exists(kernel));
    hook.map(Hook::source)
        .ok_or_else(|| "this kernel has neither tcp_rate_gen nor tcp_probe to trace".into())
}

impl Options {
    fn settings(&self) -> Settings {
        Settings {
            slots: self.slots,
            window_ns: self.window_ns,
            min_rtt_window_ns: self.min_rtt_window_ns,
            name: name(),
            ..Settings::default()
        }
        .with_ack_filter(self.ack_filter)
    }
}

/// What this process's observer calls its settings, where a datapath's have the name of its
/// congestion control; NUL-padded.
fn name() -> [u8; 16] {
    let name = format!("observe{}", std::process::id());
    let mut padded = [0; 16];
    // At most 7 digits (PID_MAX_LIMIT, include/linux/threads.h).
    padded[..name.len()].copy_from_slice(name.as_bytes());
    padded
}

/// A program and what it is attached to.
#[derive(Debug)]
struct Hook {
    program: &'static str,
    /// A function or a tracepoint.
    target: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Entry,
    Exit,
    Tracepoint,
}

impl Hook {
    fn source(&self) -> Source {
        match self.kind {
            Kind::Entry | Kind::Exit => Source::RateSample,
            Kind::Tracepoint => Source::Segments,
        }
    }

    /// Whether the kernel has the target, and BPF programs can be attached to such.
    fn exists(&self, kernel: &btf::Kernel) -> bool {
        match self.kind {
            // What attaches them to functions (kernel/bpf/trampoline.c) where ftrace has patched
            // these.
            Kind::Entry | Kind::Exit => {
                kernel.has_function("register_ftrace_direct") && kernel.has_function(self.target)
            }
            Kind::Tracepoint => kernel.has_typedef(&format!("btf_trace_{}", self.target)),
        }
    }

    /// Has the kernel verify the program, and attaches it.
    fn attach(&self, programs: &mut Ebpf, types: &Btf) -> Result<(), Error> {
        self.load(programs, self.target, types)?;
        let program = self.program(programs)?;
        let wrong = Error::aya("reading the BPF object");
        let attached = match self.kind {
            Kind::Entry => <&mut FEntry>::try_from(program).map(|p| p.attach().map(drop)),
            Kind::Exit => <&mut FExit>::try_from(program).map(|p| p.attach().map(drop)),
            Kind::Tracepoint => {
                <&mut BtfTracePoint>::try_from(program).map(|p| p.attach().map(drop))
            }
        };
        attached
            .map_err(wrong)?
            .map_err(Error::aya(format!("tracing {}", self.target)))
    }

    /// Has the kernel verify the program, for `target`.
    fn load(&self, programs: &mut Ebpf, target: &str, types: &Btf) -> Result<(), Error> {
        let program = self.program(programs)?;
        let wrong = Error::aya("reading the BPF object");
        let loaded = match self.kind {
            Kind::Entry => <&mut FEntry>::try_from(program).map(|p| p.load(target, types)),
            Kind::Exit => <&mut FExit>::try_from(program).map(|p| p.load(target, types)),
            Kind::Tracepoint => {
                <&mut BtfTracePoint>::try_from(program).map(|p| p.load(target, types))
            }
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

/// What a program's entry in /proc tells of `recursion_misses` (`bpf_prog_show_fdinfo`,
/// kernel/bpf/syscall.c).
fn missed(program: &ProgramInfo) -> u64 {
    let count = || {
        let fd = program.fd().ok()?;
        let path = format!(
            "/proc/self/fdinfo/{}",
            std::os::fd::AsFd::as_fd(&fd).as_raw_fd()
        );
        let text = fs::read_to_string(path).ok()?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("recursion_misses:"));
        line?.trim().parse().ok()
    };
    count().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those programs, too, that this kernel has no use for: where the functions take the same
    /// arguments, the verifier judges them as it would elsewhere.
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
        let [rate_gen, cong_control, segments] = &ACK_HOOKS;
        let all = [
            (rate_gen, rate_gen.target),
            (cong_control, rate_gen.target),
            (segments, segments.target),
            (&INIT_HOOK, INIT_HOOK.target),
            (&END_HOOK, END_HOOK.target),
            (&LOSS_HOOK, LOSS_HOOK.target),
        ];
        for (hook, target) in all {
            let mut programs = EbpfLoader::new()
                .override_global("KERNEL", as_words(&layout), true)
                .map_max_entries(FLOWS, 1)
                .load(OBJECT)
                .expect("the object of this build");
            match hook.load(&mut programs, target, &types) {
                Ok(()) => {}
                Err(Error::System { source, .. })
                    if hook.kind != Kind::Tracepoint
                        && source.raw_os_error() == Some(libc::EPERM) =>
                {
                    eprintln!(
                        "SKIPPED: {}: this host forbids to trace functions",
                        hook.program
                    );
                }
                Err(error) => panic!("{} for {target}: {error}", hook.program),
            }
        }
    }
}
