//! Recording simulated flows of classical controls, with the columns of `cc-agent observe`.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use cc_core::rows::{AddressForm, FileHeader, Row};
use cc_recording::FileWriter;
use cc_sim::{scenario::Scenario, seed};
use rayon::prelude::*;
use serde::Serialize;

use super::{PoolConfig, PoolError};
use crate::simulated_recording::{self, SimulatedRun};

/// Keeps the seed of flows apart from others that are made of the same numbers.
const FLOWS: u64 = 0x666c_6f77;
/// Rows in a row group.
const GROUP: usize = 8_192;

/// What was recorded of one control.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Recorded {
    /// Name of the congestion control among the simulator's.
    pub scheme: String,
    /// Number of flows over all links.
    pub flows: usize,
    /// Number of rows, one per window.
    pub rows: u64,
    /// Path of the file with these flows.
    pub file: PathBuf,
}

/// Simulates every control of the configuration on every link, and writes what an observer sees to
/// one file per control in `directory`. `watch` is called with the number of flows done.
///
/// The remote address of a flow names its link, 10.x.y.1 for link 256 x + y, so that what is held
/// out of learning are whole links.
///
/// # Errors
///
/// Returns an error when a setting is out of its range, a file exists or cannot be written, or
/// `cancel` is set.
pub fn record(
    config: &PoolConfig,
    links: &[Scenario],
    directory: &Path,
    cancel: &AtomicBool,
    watch: &(dyn Fn(u64) + Sync),
) -> Result<Vec<Recorded>, PoolError> {
    config.validate()?;
    let write = |source| PoolError::Write {
        path: directory.to_owned(),
        source,
    };
    std::fs::create_dir_all(directory).map_err(write)?;
    let done = AtomicU64::new(0);
    let mut all = Vec::new();
    for (place, scheme) in config.schemes.iter().enumerate() {
        let path = directory.join(format!("observed-{scheme}.parquet"));
        let mut writer = FileWriter::create(&path, header(config, scheme))?;
        let runs = config.runs as usize;
        let jobs = links.iter().enumerate();
        let jobs = jobs.flat_map(|(number, link)| (0..runs).map(move |run| (number, link, run)));
        let jobs: Vec<_> = jobs.collect();
        let mut waiting: Vec<Row> = Vec::new();
        // Some at a time, so that memory does not grow with the pool.
        for jobs in jobs.chunks(4 * rayon::current_num_threads()) {
            let flows: Vec<Vec<Row>> = jobs
                .par_iter()
                .map(|&(number, link, run)| {
                    if cancel.load(Ordering::Relaxed) {
                        return Err(PoolError::Cancelled);
                    }
                    // The links' losses are the same for all controls.
                    let seed = [config.seed, number as u64, run as u64]
                        .into_iter()
                        .fold(FLOWS, seed::fold);
                    let name = seed::fold(seed, place as u64);
                    let rows = flow(config, link, number, scheme, seed, name);
                    watch(done.fetch_add(1, Ordering::Relaxed) + 1);
                    Ok(rows)
                })
                .collect::<Result<_, _>>()?;
            waiting.extend(flows.into_iter().flatten());
            while waiting.len() >= GROUP {
                let rest = waiting.split_off(GROUP);
                writer.write(&waiting)?;
                waiting = rest;
            }
        }
        writer.write(&waiting)?;
        all.push(Recorded {
            scheme: scheme.clone(),
            flows: jobs.len(),
            rows: writer.rows(),
            file: writer.finish()?,
        });
    }
    Ok(all)
}

/// The header of the recordings of a control. Times count from the start of each simulation, as if
/// that had been in 1970.
fn header(config: &PoolConfig, scheme: &str) -> FileHeader {
    FileHeader {
        interface: config.policy.clone(),
        policy: format!("observed:{scheme}"),
        policy_metadata: None,
        server: None,
        agent_version: env!("CARGO_PKG_VERSION").into(),
        kernel: "simulated".into(),
        host: BTreeMap::new(),
        started_ns: 0,
        utc_offset_ns: 0,
        addresses: AddressForm::Plain,
    }
}

/// The rows of one flow of a control on a link. `name` is the flow's, unique in the pool.
fn flow(
    config: &PoolConfig,
    link: &Scenario,
    number: usize,
    scheme: &str,
    seed: u64,
    name: u64,
) -> Vec<Row> {
    let run = SimulatedRun::new(config.length(), seed);
    let Ok(recorded) = simulated_recording::record(link, scheme, &config.policy, &run) else {
        unreachable!("the settings were checked");
    };
    let [local, remote] = addresses(number);
    let mut rows: Vec<Row> = recorded
        .into_iter()
        .map(|recorded| Row {
            flow: name,
            local: Some(local.clone()),
            remote: Some(remote.clone()),
            ..*recorded.row
        })
        .collect();
    // The connection closes with the run.
    if let Some(last) = rows.last_mut() {
        last.end = true;
    }
    rows
}

/// Local and remote address and port of the flows on a link.
fn addresses(number: usize) -> [Arc<str>; 2] {
    let [.., high, low] = (number as u32).to_be_bytes();
    [(2, 40_000), (1, 443)].map(|(last, port)| format!("10.{high}.{low}.{last}:{port}").into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        dataset::Recordings,
        pool::{PARTS, PartSizes},
    };

    fn small() -> PoolConfig {
        PoolConfig {
            seconds: 6.0,
            links: PartSizes {
                training: 3,
                validation: 1,
                test: 1,
            },
            ..PoolConfig::default()
        }
    }

    /// What is recorded reads like recordings of `cc-agent observe`: with rewards, outcomes and the
    /// actions nearest to what the controls did, and without probabilities.
    #[test]
    fn simulated_flows_are_recorded_as_observed_ones_are() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let config = small();
        let links = config.draw().expect("valid");
        let never = AtomicBool::new(false);
        let found = record(&config, &links.parts[0], scratch.path(), &never, &|_| {});
        let found = found.expect("recorded");
        assert_eq!(PARTS[0], "training");
        assert!(found.iter().all(|recorded| recorded.flows == 3));
        let recordings = Recordings::open(&[scratch.path().to_owned()]).expect("recordings");
        assert_eq!(
            recordings.policies(),
            ["observed:bbr", "observed:cubic", "observed:reno"]
        );
        let partitions = recordings
            .partition(scratch.path(), 1 << 20, &|_| {})
            .expect("sorted");
        let (mut flows, mut steps, mut paths) = (0, 0, std::collections::BTreeSet::new());
        for index in 0..partitions.len() {
            partitions
                .visit(index, |trajectory| {
                    flows += 1;
                    steps += trajectory.steps.len();
                    paths.insert(trajectory.origin.path);
                    assert!(trajectory.ended);
                    for step in &trajectory.steps {
                        assert_eq!(step.probability, None);
                        assert!(step.observation.iter().all(|value| value.is_finite()));
                    }
                    Ok(())
                })
                .expect("readable");
        }
        assert_eq!((flows, paths.len()), (9, 3));
        // About one a window of 100 ms, but for slow starts on long links.
        assert!((9 * 45..9 * 60).contains(&steps), "{steps}");
    }

    #[test]
    fn a_seed_determines_the_rows() {
        let config = small();
        let link = &config.draw().expect("valid").parts[0][0];
        let rows = || flow(&config, link, 0, "bbr", 7, 9);
        assert_eq!(rows(), rows());
        assert_ne!(rows(), flow(&config, link, 0, "bbr", 8, 9));
    }
}
