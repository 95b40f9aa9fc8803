//! The time that a datapath's `cong_control` takes.

use std::os::fd::OwnedFd;

use aya::programs::{ProgramInfo, loaded_programs};

/// Has the kernel measure BPF programs (`kernel.bpf_stats_enabled`) while it lives.
pub struct ProgramTime {
    _enabled: OwnedFd,
    programs: Vec<(u32, u64, u64)>,
}

impl ProgramTime {
    /// From now on. Only one datapath is loaded at a time here, so all its programs are meant.
    pub fn start() -> Self {
        let enabled = aya::sys::enable_stats(aya::sys::Stats::RunTime).expect("root may measure");
        let programs = cong_controls().map(|info| (info.id(), runs(&info), nanos(&info)));
        Self {
            programs: programs.collect(),
            _enabled: enabled,
        }
    }

    /// Mean time of an ACK since the start, in ns, over however many there were.
    pub fn ns_per_run(&self) -> f64 {
        let (mut all_runs, mut all_nanos) = (0, 0);
        for info in cong_controls() {
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

fn cong_controls() -> impl Iterator<Item = ProgramInfo> {
    loaded_programs()
        .flatten()
        .filter(|info| info.name_as_str() == Some("cc_cong_control"))
}

fn runs(info: &ProgramInfo) -> u64 {
    info.run_count()
}

fn nanos(info: &ProgramInfo) -> u64 {
    info.run_time().as_nanos() as u64
}
