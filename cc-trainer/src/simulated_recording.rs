//! Recordings of simulated flows, in the format of `cc-agent run --record` and `cc-agent observe
//! --record`: the rows of a host that never existed, for whatever reads recordings.
//!
//! The same code makes the rows as on a host: the datapath's windows, and the agent's or the
//! observer's rows of them ([`cc_sim::sim::agent`], [`cc_sim::sim::observer`]). A scenario, a
//! control and a seed determine them.
//!
//! ```
//! use std::{path::Path, time::Duration};
//!
//! use cc_core::interface::Interface;
//! use cc_sim::scenario;
//! use cc_trainer::simulated_recording::{SimulatedRun, record, write};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let text = "[[scenario]]\nname = \"link\"\nrate_mbps = 12\ndelay_ms = 30\nqueue = { bdp = 1 }";
//! let scenario = scenario::parse(text, Path::new("."))?.remove(0);
//! let run = SimulatedRun::new(Duration::from_secs(2), 1);
//! let rows = record(&scenario, "cubic", &Interface::default(), &run)?;
//! let directory = tempfile::tempdir()?;
//! let files = write(directory.path(), "link-cubic", &rows)?;
//! assert_eq!(files.len(), 1);
//! # Ok(())
//! # }
//! ```

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cc_core::{
    interface::Interface,
    policy::{ActionSelection, Policy, PolicyError, PolicySpec},
    rows::{AddressForm, Episodes, FileHeader, Recorded, Row},
};
use cc_ebpf::Startup;
use cc_recording::{FileWriter, RecordingError};
use cc_sim::{
    path::nanos,
    scenario::Scenario,
    sim::{
        Control, Simulation,
        agent::{AgentDelay, SenderMode, SimulatedAgent},
        control::{Observed, learned::Learned},
        observer::SimulatedObserver,
    },
};

/// One simulated run that is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimulatedRun {
    /// Length of the run, in virtual time.
    pub length: Duration,
    /// Seed of everything that is random in the run.
    pub seed: u64,
    /// When the run begins, ns since 1970 UTC. Readers that tell flows of one hour from others take
    /// it from here.
    pub started_ns: i64,
}

impl SimulatedRun {
    /// A run that begins at 1970.
    pub fn new(length: Duration, seed: u64) -> Self {
        Self {
            length,
            seed,
            started_ns: 0,
        }
    }

    /// The header of the rows; `policy` is that of a policy's flows.
    fn header(&self, interface: Interface, policy: &str) -> FileHeader {
        FileHeader {
            interface,
            policy: policy.to_owned(),
            policy_metadata: None,
            server: None,
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: "simulated".to_owned(),
            host: [].into(),
            started_ns: self.started_ns,
            // Simulated time begins at 0.
            utc_offset_ns: self.started_ns,
            addresses: AddressForm::Absent,
        }
    }

    /// Names for the flows of a run: others for another link, control or seed.
    fn episodes(&self, scenario: &Scenario, control: &str) -> Episodes {
        let Self {
            seed, started_ns, ..
        } = self;
        let link = &scenario.name;
        Episodes::named(&format!("{link} {control} {seed} {started_ns}"))
    }

    /// The control of flow number `flow`, which draws from a random stream of its own.
    fn control(&self, name: &str, flow: usize) -> Result<Control, UnknownControl> {
        let control = Control::named(name, self.seed.wrapping_add(flow as u64));
        control.ok_or_else(|| UnknownControl {
            name: name.to_owned(),
        })
    }
}

/// The simulator has no congestion control of this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the simulator has no congestion control `{name}`; it has {}", Control::NAMES.join(", "))]
pub struct UnknownControl {
    /// The name that was asked for.
    pub name: String,
}

/// Runs a congestion control on a link and returns the rows that `cc-agent observe` would make of
/// all flows, each flow's in order. Flows that name a scheme run that, the others `control`. Of the
/// interface, windows, actions and reward count.
///
/// # Errors
///
/// Returns an error when the simulator has no control of a name.
pub fn record(
    scenario: &Scenario,
    control: &str,
    interface: &Interface,
    run: &SimulatedRun,
) -> Result<Vec<Recorded>, UnknownControl> {
    let settings = interface.datapath_settings();
    let flows = scenario.flows.iter().enumerate();
    let controls: Result<Vec<_>, _> = flows
        .map(|(number, flow)| {
            let name = flow.scheme.as_deref().unwrap_or(control);
            let watched = Observed::new(run.control(name, number)?, name, settings);
            Ok(Control::Observed(Box::new(watched)))
        })
        .collect();
    let simulation = Simulation::new(scenario, controls?, run.seed);
    let header = run.header(interface.clone(), "");
    let episodes = run.episodes(scenario, control);
    let mut observer = SimulatedObserver::new(simulation, header, episodes);
    observer.run(nanos(run.length));
    let mut rows = observer.take_rows();
    rows.extend(observer.finish());
    rows.sort_by_key(|recorded| (recorded.row.flow, recorded.row.sequence));
    Ok(rows)
}

/// Runs a policy on a link and returns the rows that `cc-agent run --record` would make, each
/// flow's in order. Flows that name a scheme run that, and are not recorded.
///
/// `serving` selects the actions; `None` takes what the policy's file asks for.
///
/// # Errors
///
/// Returns an error when the policy cannot be loaded, or when the simulator has no control of a
/// flow's name.
pub fn record_policy(
    scenario: &Scenario,
    policy: &PolicySpec,
    serving: Option<ActionSelection>,
    run: &SimulatedRun,
) -> Result<Vec<Recorded>, RecordPolicyError> {
    let mut loaded = policy.load(&Interface::default(), serving, run.seed)?;
    let interface = loaded.interface().clone();
    let settings = Learned::settings(&interface, Startup::SlowStart);
    let flows = scenario.flows.iter().enumerate();
    let controls: Result<Vec<_>, UnknownControl> = flows
        .map(|(number, flow)| match &flow.scheme {
            Some(name) => run.control(name, number),
            None => Ok(Control::Learned(Box::new(Learned::new(settings)))),
        })
        .collect();
    let simulation = Simulation::new(scenario, controls?, run.seed);
    let mut served = SimulatedAgent::new(
        simulation,
        interface.clone(),
        AgentDelay::MEASURED,
        SenderMode::Asynchronous,
        run.seed,
    );
    let name = identity(policy, loaded.as_ref());
    let header = FileHeader {
        policy_metadata: loaded.file().map(|file| file.meta.clone()),
        ..run.header(interface, &name)
    };
    served.start_recording(header, run.episodes(scenario, &name));
    served.serve(nanos(run.length), |_, query| {
        loaded.decide(std::slice::from_mut(query)).pop()
    });
    let mut rows = served.take_rows();
    rows.extend(served.stop_recording());
    rows.sort_by_key(|recorded| (recorded.row.flow, recorded.row.sequence));
    Ok(rows)
}

/// The identifier of a policy in recordings: the SHA-256 of its file, or its name.
pub fn identity(spec: &PolicySpec, loaded: &dyn Policy) -> String {
    (loaded.file()).map_or_else(|| spec.to_string(), |file| file.sha256.clone())
}

/// Why a policy cannot be recorded in the simulator.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordPolicyError {
    /// The policy cannot be loaded.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A flow beside the policy's names a control that the simulator does not have.
    #[error(transparent)]
    Control(#[from] UnknownControl),
}

/// Writes rows to a directory that exists: one file for each policy or control in them, called
/// `NAME.parquet`, and `NAME-1.parquet` and so on for further ones. Returns the paths.
///
/// # Errors
///
/// Returns an error when a file exists already, or cannot be written.
pub fn write(
    directory: &Path,
    name: &str,
    rows: &[Recorded],
) -> Result<Vec<PathBuf>, RecordingError> {
    let mut groups: Vec<(&Arc<FileHeader>, Vec<&Row>)> = Vec::new();
    for Recorded { header, row } in rows {
        let of_same = |(other, _): &&mut (&Arc<FileHeader>, _)| Arc::ptr_eq(other, header);
        match groups.iter_mut().find(of_same) {
            Some((_, group)) => group.push(row),
            None => groups.push((header, vec![row])),
        }
    }
    let mut paths = Vec::new();
    for (number, (header, rows)) in groups.into_iter().enumerate() {
        let file = match number {
            0 => format!("{name}.parquet"),
            number => format!("{name}-{number}.parquet"),
        };
        let path = directory.join(file);
        let mut writer = FileWriter::create(&path, FileHeader::clone(header))?;
        writer.write(&rows)?;
        writer.finish()?;
        paths.push(path);
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use cc_core::objective::Measured;
    use cc_sim::scenario;

    use super::*;

    fn link(more: &str) -> Scenario {
        let text = format!("[[scenario]]\nname = \"link\"\nrate_mbps = 12\ndelay_ms = 30\n{more}");
        scenario::parse(&text, Path::new("test.toml"))
            .expect("a scenario")
            .remove(0)
    }

    fn run() -> SimulatedRun {
        SimulatedRun::new(Duration::from_secs(10), 3)
    }

    /// The rows hold what the simulation itself counted, but for the window that is still open.
    #[test]
    fn rows_account_for_what_a_flow_delivered_and_lost() {
        for more in ["queue = { bdp = 1 }", "queue = { bdp = 1 }\nloss = 0.01"] {
            for control in ["cubic", "bbr", "reno"] {
                let scenario = link(more);
                let rows = record(&scenario, control, &Interface::default(), &run());
                let rows = rows.expect("a known control");
                let mut total = Measured::default();
                for (number, recorded) in rows.iter().enumerate() {
                    assert_eq!(recorded.row.sequence as usize, number);
                    total += Measured::of(&recorded.row.window);
                }
                let inner = Control::named(control, 3).expect("a known control");
                let mut plain = Simulation::new(&scenario, vec![inner], 3);
                plain.run(nanos(run().length));
                let flow = plain.flow(0);
                let delivered = flow.delivered * 1448;
                // At most a window and a half of 12 Mbit/s are still open.
                let open = delivered - total.acked_bytes;
                assert!(
                    open < 230_000,
                    "{control}, {more}: {open} of {delivered} bytes"
                );
                let lost = flow.lost * 1448;
                assert!(total.lost_bytes <= lost, "{control}, {more}");
                assert!(lost - total.lost_bytes <= 200 * 1448, "{control}, {more}");
                assert_eq!(rows[0].header.policy, format!("observed:{control}"));
            }
        }
    }

    #[test]
    fn a_run_that_is_repeated_has_the_same_rows_and_another_seed_has_others() {
        let scenario = link("queue = { bdp = 1 }\nloss = 0.01");
        let of = |seed| {
            let run = SimulatedRun { seed, ..run() };
            record(&scenario, "cubic", &Interface::default(), &run).expect("a known control")
        };
        assert_eq!(of(1), of(1));
        assert_ne!(of(1)[0].row.flow, of(2)[0].row.flow);
    }

    #[test]
    fn flows_with_schemes_of_their_own_are_recorded_under_these() {
        let flows = "queue = { bdp = 1 }\n[[scenario.flow]]\n[[scenario.flow]]\n\
                     scheme = \"reno\"\nstart_s = 2\nstop_s = 6";
        let scenario = link(flows);
        let rows = record(&scenario, "bbr", &Interface::default(), &run());
        let rows = rows.expect("known controls");
        let of = |policy: &str| rows.iter().filter(|r| r.header.policy == policy).count();
        assert!(of("observed:bbr") > 90, "{}", of("observed:bbr"));
        assert!(
            (30..=41).contains(&of("observed:reno")),
            "{}",
            of("observed:reno")
        );
        let ended: Vec<_> = rows.iter().filter(|r| r.row.end).collect();
        assert_eq!(ended.len(), 1, "only the flow that stopped");
        assert_eq!(ended[0].header.policy, "observed:reno");
        let directory = tempfile::tempdir().expect("a directory");
        let files = write(directory.path(), "both", &rows).expect("written");
        assert_eq!(files.len(), 2);
        for file in files {
            let (header, read) = cc_recording::read(&file).expect("a recording");
            let read: Vec<_> = read.map(|row| row.expect("a row")).collect();
            let ours = rows.iter().filter(|r| r.header.policy == header.policy);
            assert!(ours.map(|r| &*r.row).eq(read.iter()));
        }
    }

    #[test]
    fn a_policy_is_recorded_with_its_decisions() {
        let scenario = link("queue = { bdp = 1 }");
        let policy = PolicySpec::Default;
        let rows = record_policy(&scenario, &policy, None, &run()).expect("the policy runs");
        let decided = rows.iter().filter(|r| r.row.decision.is_some()).count();
        assert!(decided > 80, "{decided} of {}", rows.len());
        let loaded = policy
            .load(&Interface::default(), None, 1)
            .expect("embedded");
        assert_eq!(rows[0].header.policy, identity(&policy, loaded.as_ref()));
        assert_eq!(rows[0].header.policy.len(), 64);
    }

    #[test]
    fn an_unknown_control_is_named_with_those_that_there_are() {
        let error =
            record(&link(""), "cubik", &Interface::default(), &run()).expect_err("there is none");
        let text = error.to_string();
        assert!(text.starts_with("the simulator has no congestion control `cubik`; it has reno,"));
    }
}
