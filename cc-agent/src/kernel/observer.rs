//! The observer: the measuring half of the datapath, attached to the kernel's own TCP. Records of
//! flows of any congestion control come out of it; nothing goes in.

use std::{fmt, fs, os::fd::AsRawFd};

use aya::{Btf, Ebpf, EbpfLoader, programs::ProgramInfo};
use cc_ebpf::{ABSENT, AckFilter, Flow, KernelLayout, Selection, Settings};

use super::{
    Error, btf,
    hook::{Hook, Kind},
    object::{
        ACKS, Counters, DECISIONS, FLOWS, FREE_SLOTS, Maps, OBJECT, OBSERVED, RECORDS, Ring,
        SAMPLES, SELECTION, SETTINGS, as_words,
    },
    shared::Shared,
};

/// Sockets that can be followed, selected or not. Each takes some 100 bytes, allocated as needed.
const SOCKETS: u32 = 1 << 18;

/// Where one way of observing sees connections.
struct Hooks {
    /// Where a connection ends.
    end: Hook,
    /// Where it begins.
    init: Hook,
    /// Where a timeout is seen, on kernels that do not count them.
    loss: Hook,
    /// Where an ACK is seen: the first of these that there is.
    acks: &'static [Hook],
}

const fn hook(program: &'static str, kind: Kind, target: &'static str) -> Hook {
    Hook {
        program,
        target,
        kind,
    }
}

/// ACKs are seen by tracing functions; connections begin and end at the tracepoints.
const BY_FENTRY: Hooks = Hooks {
    acks: &[
        hook("cc_observe_ack", Kind::Exit, "tcp_rate_gen"),
        hook("cc_observe_cc", Kind::Entry, "tcp_cong_control"),
    ],
    ..BY_TRACEPOINT
};

const BY_TRACEPOINT: Hooks = Hooks {
    end: hook("cc_observe_end", Kind::Tracepoint, "tcp_destroy_sock"),
    init: hook("cc_observe_init", Kind::Tracepoint, "inet_sock_set_state"),
    loss: hook("cc_observe_loss", Kind::Tracepoint, "tcp_cong_state_set"),
    acks: &[hook("cc_observe_seg", Kind::Tracepoint, "tcp_probe")],
};

/// At the functions that contain those tracepoints.
const BY_KPROBE: Hooks = Hooks {
    end: hook("cc_probe_end", Kind::Kprobe, "tcp_v4_destroy_sock"),
    init: hook("cc_probe_init", Kind::Kprobe, "tcp_set_state"),
    loss: hook("cc_probe_loss", Kind::Kprobe, "tcp_set_ca_state"),
    acks: &[hook("cc_probe_seg", Kind::Kprobe, "tcp_rcv_established")],
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
    /// How the kernel's TCP is to be observed; the best way that there is by default.
    pub by: Option<Way>,
}

/// How the programs are attached to the kernel's TCP, which decides how exact their features are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Way {
    /// By tracing functions: each ACK with the rate sample that the congestion control is given, so
    /// that features are exact.
    Fentry,
    /// By tracepoints alone: each ACK by the socket before each segment, one ACK late, in state
    /// ESTABLISHED only, and not exact around losses and where the application has little to send.
    Tracepoint,
    /// By probes at the functions with these tracepoints: the same, for hosts that forbid
    /// tracepoints to BPF programs.
    Kprobe,
}

impl Way {
    /// Every way, the best one first.
    pub const ALL: [Self; 3] = [Self::Fentry, Self::Tracepoint, Self::Kprobe];

    /// Whether each ACK is seen as the congestion control would see it.
    pub fn has_rate_samples(self) -> bool {
        self == Self::Fentry
    }

    fn hooks(self) -> &'static Hooks {
        match self {
            Self::Fentry => &BY_FENTRY,
            Self::Tracepoint => &BY_TRACEPOINT,
            Self::Kprobe => &BY_KPROBE,
        }
    }

    /// Whether this kernel has what the way needs, by its types; otherwise, what it lacks. Whether
    /// a host permits it shows when it is tried.
    fn exists(self, kernel: &btf::Kernel) -> Result<(), String> {
        let hooks = self.hooks();
        let missing = [&hooks.end, &hooks.init]
            .into_iter()
            .find(|hook| !hook.exists(kernel));
        if let Some(hook) = missing {
            return Err(format!("this kernel has no {hook}"));
        }
        if !hooks.acks.iter().any(|hook| hook.exists(kernel)) {
            let names: Vec<String> = hooks.acks.iter().map(Hook::to_string).collect();
            return Err(format!("this kernel has no {}", names.join(" and no ")));
        }
        let is_known = kernel.layout().is_ok_and(|layout| {
            layout.first_argument != ABSENT && layout.second_argument != ABSENT
        });
        if self == Self::Kprobe && !is_known {
            return Err("kprobes are used on x86-64 only".into());
        }
        Ok(())
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fentry => "fentry",
            Self::Tracepoint => "tracepoint",
            Self::Kprobe => "kprobe",
        })
    }
}

/// The attached observer. Dropping it detaches it, and nothing of it is left in the kernel.
pub struct Observer {
    programs: Ebpf,
    way: Way,
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
    /// Returns an error when the host lacks what is needed, which the error names, or refuses it.
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
        let mut refusals = Vec::new();
        for way in Way::ALL {
            if options.by.is_some_and(|by| by != way) {
                continue;
            }
            let refusal = match way.exists(&kernel) {
                Ok(()) => match Self::attach_by(way, options, &layout, &kernel, &types) {
                    Ok(observer) => return Ok(observer),
                    Err(error) if options.by.is_some() => return Err(error),
                    Err(error) => {
                        tracing::debug!("{error}");
                        error.to_string().lines().next().unwrap_or_default().into()
                    }
                },
                Err(missing) => missing,
            };
            refusals.push(format!("by {way}: {refusal}"));
        }
        Err(Error::NotTraceable {
            reason: refusals.join("; "),
        })
    }

    /// Loads and attaches the programs of one way. Where that fails, nothing of them is left.
    fn attach_by(
        way: Way,
        options: &Options,
        layout: &KernelLayout,
        kernel: &btf::Kernel,
        types: &Btf,
    ) -> Result<Self, Error> {
        let mut programs = EbpfLoader::new()
            .override_global("KERNEL", as_words(layout), true)
            .map_max_entries(DECISIONS, 1)
            .map_max_entries(FLOWS, options.slots)
            .map_max_entries(SAMPLES, 1)
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
            way,
        };
        // Ends first and ACKs last, so that nothing is seen of which the end could be missed.
        let hooks = way.hooks();
        hooks.end.attach(&mut observer.programs, types)?;
        hooks.init.attach(&mut observer.programs, types)?;
        if layout.total_rto == ABSENT {
            hooks.loss.attach(&mut observer.programs, types)?;
        }
        let mut refusal = None;
        for hook in hooks.acks.iter().filter(|hook| hook.exists(kernel)) {
            match hook.attach(&mut observer.programs, types) {
                Ok(()) => return Ok(observer),
                Err(error) => refusal = Some(error),
            }
        }
        Err(refusal.unwrap_or_else(|| Error::NotTraceable {
            reason: "there is nothing by which to see ACKs".into(),
        }))
    }

    /// How the programs are attached.
    pub fn way(&self) -> Way {
        self.way
    }

    /// The state of the flow in `slot`, or `None` while the datapath is changing it.
    pub fn flow(&self, slot: u32) -> Option<Flow> {
        self.flows.snapshot(slot)
    }

    /// The generation of the flow that is live in `slot`; `None` when none is, or the datapath is
    /// changing it.
    pub fn occupant(&self, slot: u32) -> Option<u32> {
        let flow = self.flow(slot).filter(|flow| flow.live != 0);
        flow.map(|flow| flow.generation)
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

/// The best way to observe that this kernel has by its types, or what is missing for each.
pub(super) fn possible_way(kernel: &btf::Kernel) -> Result<Way, String> {
    let mut missing = Vec::new();
    for way in Way::ALL {
        match way.exists(kernel) {
            Ok(()) => return Ok(way),
            Err(reason) => missing.push(format!("by {way}: {reason}")),
        }
    }
    Err(missing.join("; "))
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
        let [rate_gen, cong_control] = BY_FENTRY.acks else {
            panic!("one of them has a hook for each");
        };
        let mut all = vec![(rate_gen, rate_gen.target), (cong_control, rate_gen.target)];
        for hooks in [&BY_TRACEPOINT, &BY_KPROBE] {
            let rare = [&hooks.end, &hooks.init, &hooks.loss];
            let hooks = rare.into_iter().chain(hooks.acks);
            all.extend(hooks.map(|hook| (hook, hook.target)));
        }
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
