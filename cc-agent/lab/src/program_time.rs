//! The run time of BPF programs.

use std::os::fd::OwnedFd;

use aya::programs::{ProgramInfo, loaded_programs};

/// A measurement of how long the program for ACKs of a congestion control runs.
///
/// The kernel measures all BPF programs while this value exists (`kernel.bpf_stats_enabled`), which
/// itself takes some 40 ns per run.
pub struct ProgramTime {
    name: &'static str,
    _enabled: OwnedFd,
    /// Per program at the start: its id, its runs so far, and their time in ns.
    programs: Vec<(u32, u64, u64)>,
}

impl ProgramTime {
    /// The name of a datapath's program for ACKs.
    pub const DATAPATH: &str = "cc_cong_control";

    /// Starts to measure all programs of that name that are loaded now. Benchmarks load one
    /// datapath at a time.
    ///
    /// # Panics
    ///
    /// Panics if the kernel refuses to measure.
    pub fn start(name: &'static str) -> Self {
        let enabled = aya::sys::enable_stats(aya::sys::Stats::RunTime).expect("root may measure");
        let programs = named(name).map(|info| (info.id(), runs(&info), nanos(&info)));
        Self {
            name,
            programs: programs.collect(),
            _enabled: enabled,
        }
    }

    /// Returns the mean time per ACK since the start in ns, or NaN if there were no ACKs.
    pub fn ns_per_run(&self) -> f64 {
        let (mut all_runs, mut all_nanos) = (0, 0);
        for info in named(self.name) {
            if let Some((_, runs_before, nanos_before)) =
                self.programs.iter().find(|(id, ..)| *id == info.id())
            {
                all_runs += runs(&info) - runs_before;
                all_nanos += nanos(&info) - nanos_before;
            }
        }
        all_nanos as f64 / all_runs as f64
    }
}

fn named(name: &'static str) -> impl Iterator<Item = ProgramInfo> {
    loaded_programs()
        .flatten()
        .filter(move |info| info.name_as_str() == Some(name))
}

fn runs(info: &ProgramInfo) -> u64 {
    info.run_count()
}

fn nanos(info: &ProgramInfo) -> u64 {
    info.run_time().as_nanos() as u64
}
