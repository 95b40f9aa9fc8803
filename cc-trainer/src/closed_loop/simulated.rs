//! Recording and canaries in the simulator: the agent's own code serves the flows of a link in
//! virtual time.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use cc_core::{
    ServedPolicy,
    canary::{Arm, CanaryBy, CanaryPlan, CanaryReport, Finding, GuardRails},
    policy::{ActionSelection, Policy, PolicySpec},
    rows::{AddressForm, Addresses, Episodes, FileHeader, Recorded, Row},
    status::CanaryStatus,
};
use cc_ebpf::Startup;
use cc_recording::FileWriter;
use cc_sim::{
    path::nanos,
    scenario::Scenario,
    seed,
    sim::{
        Control, Simulation,
        agent::{AgentDelay, SenderMode, SimulatedAgent},
        control::learned::Learned,
    },
};

use super::{LoopError, config::Canary};

/// Virtual time between two looks at a canary; blocks are at least a second long.
const LOOK: Duration = Duration::from_millis(200);

/// A policy as a simulated agent serves it.
pub(super) struct Served {
    policy: Box<dyn Policy>,
    spec: PolicySpec,
}

impl Served {
    /// Loads a policy's file. `seed` determines the actions that are sampled.
    pub(super) fn load(
        file: &Path,
        serving: ActionSelection,
        seed: u64,
    ) -> Result<Self, LoopError> {
        let spec = PolicySpec::Onnx(file.to_owned());
        let policy = spec
            .load(&Default::default(), Some(serving), seed)
            .map_err(|error| LoopError::Run(format!("{spec}: {error}")))?;
        Ok(Self { policy, spec })
    }

    /// The policy as the agent's core refers to it, with the header of the rows that it decides on.
    fn served(&self) -> ServedPolicy {
        let interface = self.policy.interface().clone();
        let file = self.policy.file();
        let header = FileHeader {
            interface: interface.clone(),
            policy: file.map_or_else(|| self.spec.to_string(), |file| file.sha256.clone()),
            policy_metadata: file.map(|file| file.meta.clone()),
            server: None,
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: "simulated".to_owned(),
            host: BTreeMap::new(),
            started_ns: 0,
            utc_offset_ns: 0,
            addresses: AddressForm::Absent,
        };
        ServedPolicy {
            interface,
            header: Some(Arc::new(header)),
        }
    }

    /// An agent that serves the learned flows of a link.
    fn agent(&self, link: &Scenario, seed: u64) -> Result<SimulatedAgent, LoopError> {
        let interface = self.policy.interface();
        let settings = Learned::settings(interface, Startup::SlowStart);
        let control = |(number, flow): (usize, &cc_sim::scenario::Flow)| match &flow.scheme {
            None => Ok(Control::Learned(Box::new(Learned::new(settings)))),
            Some(name) => Control::named(name, seed.wrapping_add(number as u64))
                .ok_or_else(|| LoopError::Run(format!("the simulator has no `{name}`"))),
        };
        let controls: Result<Vec<_>, _> = link.flows.iter().enumerate().map(control).collect();
        let mut agent = SimulatedAgent::new(
            Simulation::new(link, controls?, seed),
            interface.clone(),
            AgentDelay::MEASURED,
            SenderMode::Asynchronous,
            seed,
        );
        agent.agent().replace(self.served());
        Ok(agent)
    }
}

/// Records a policy on links, `runs` times on each, to a file in a directory that is created.
/// Ends with [`LoopError::Interrupted`] when `cancel` becomes true.
pub(super) fn record(
    served: &mut Served,
    links: &[Scenario],
    runs: u32,
    length: Duration,
    seed: u64,
    directory: &Path,
    cancel: &AtomicBool,
) -> Result<(), LoopError> {
    std::fs::create_dir_all(directory)
        .map_err(LoopError::system("making the directory", directory))?;
    let header = served.served().header;
    let Some(header) = header else { return Ok(()) };
    let mut writer = FileWriter::create(&directory.join("simulated.parquet"), (*header).clone())?;
    let mut flows = 0;
    for run in 0..runs {
        for (number, link) in links.iter().enumerate() {
            if cancel.load(Ordering::Relaxed) {
                return Err(LoopError::Interrupted);
            }
            let seed = [u64::from(run), number as u64]
                .into_iter()
                .fold(seed, seed::fold);
            let mut agent = served.agent(link, seed)?;
            let name = format!("simulated/{}/{seed}", link.name);
            agent
                .agent()
                .start_recording(Episodes::new(&name, 0), Addresses::Absent);
            agent.serve(nanos(length), |_, query| {
                served.policy.decide(std::slice::from_mut(query)).pop()
            });
            agent.agent().stop_recording();
            let rows = agent.agent().take_rows();
            writer.write(&renamed(rows, seed, &mut flows))?;
        }
    }
    writer.finish()?;
    Ok(())
}

/// Rows with names of flows that depend on the seed alone, so that a recording can be repeated.
fn renamed(rows: Vec<Recorded>, seed: u64, flows: &mut u64) -> Vec<Row> {
    let mut names = BTreeMap::new();
    let rows = rows.into_iter().map(|recorded| {
        let mut row = *recorded.row;
        row.flow = *names.entry(row.flow).or_insert_with(|| {
            *flows += 1;
            seed::fold(seed, *flows)
        });
        row
    });
    rows.collect()
}

/// How a phase of a canary ended in the simulator.
pub(super) struct Phased {
    /// The guard rail that withdrew the candidate, if one did.
    pub(super) breach: Option<String>,
    /// What the canary's comparison found last.
    pub(super) finding: Finding,
    /// Virtual time until it ended, s.
    pub(super) seconds: f64,
    /// What the canary came to.
    pub(super) status: Option<CanaryStatus>,
}

/// Tries `candidate` beside `policy` on the flows of one link, for `length` at most. Each link has
/// a canary of its own.
pub(super) fn canary(
    [policy, candidate]: [&mut Served; 2],
    link: &Scenario,
    settings: &Canary,
    percent: f64,
    length: Duration,
    seed: u64,
    cancel: &AtomicBool,
) -> Result<Phased, LoopError> {
    let mut agent = policy.agent(link, seed)?;
    let plan = CanaryPlan {
        percent,
        by: CanaryBy::Time,
        block: Duration::from_secs_f64(settings.block_s),
        salt: seed,
    };
    let rails = GuardRails {
        units: settings.units,
        ..GuardRails::default()
    };
    agent
        .agent()
        .start_canary(candidate.served(), plan, rails, 0);
    let mut at = Duration::ZERO;
    loop {
        if cancel.load(Ordering::Relaxed) {
            return Err(LoopError::Interrupted);
        }
        at += LOOK;
        while let Some(mut asked) = agent.next(nanos(at)) {
            let decider = match asked.arm {
                Arm::Incumbent => &mut *policy,
                Arm::Candidate => &mut *candidate,
            };
            let choice = decider
                .policy
                .decide(std::slice::from_mut(&mut asked.query))
                .pop();
            let choice = choice.unwrap_or(cc_core::policy::Choice::Invalid);
            agent.answer_query(choice, asked.query);
        }
        let now = nanos(at);
        let agent = agent.agent();
        agent.turn_canary(now);
        let breach = agent.breach(now).map(|breach| breach.to_string());
        let report = agent.canary(now);
        let finding = report
            .as_ref()
            .map_or(Finding::Open, |report| report.finding);
        if breach.is_some() || finding != Finding::Open || at >= length {
            return Ok(Phased {
                finding,
                breach,
                seconds: at.as_secs_f64(),
                status: report.map(|report| status(candidate, &report)),
            });
        }
    }
}

/// A report as an agent's status shows it.
fn status(candidate: &Served, report: &CanaryReport) -> CanaryStatus {
    CanaryStatus {
        candidate: candidate.spec.to_string(),
        by: report.plan.by,
        percent: report.plan.percent,
        block_s: report.plan.block.as_secs_f64(),
        units_needed: report.units_needed,
        finding: report.finding,
        metrics: report.metrics.clone(),
        neighbours: report.neighbours.clone(),
        shift: report.shift,
        incumbent_flows: report.incumbent,
        candidate_flows: report.candidate,
    }
}
