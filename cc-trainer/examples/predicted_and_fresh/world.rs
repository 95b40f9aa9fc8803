//! Simulated runs that are recorded as an agent would record them.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, bail, ensure};
use cc_core::{
    interface::Interface,
    policy::{Choice, OnnxPolicy, Policy, PolicyFile, Query, State},
    reward::Terms,
    rows::{AddressForm, Decided, FileHeader, Row},
};
use cc_ebpf::{Startup, WindowRecord};
use cc_recording::FileWriter;
use cc_sim::{
    scenario::{self, Scenario},
    seed,
    sim::{
        Control, Simulation,
        agent::{AgentDelay, SenderMode, SimulatedAgent},
        control::learned::Learned,
    },
};
use rayon::prelude::*;

/// Which simulated runs to do.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Runs {
    /// Scenarios with one flow each, as for `cc-trainer evaluate`.
    #[arg(long, default_value = "jitter")]
    scenarios: String,
    /// Number of runs on each of them.
    #[arg(long, default_value_t = 40)]
    runs: u64,
    /// The length of each run, s.
    #[arg(long, default_value_t = 20)]
    pub(crate) seconds: u64,
    /// Seed of the links' luck and of the policies' draws.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// One run: a link and its luck.
pub(crate) struct Run {
    /// Identifier of the run and of its flow.
    pub(crate) id: u64,
    /// The link and its one flow.
    pub(crate) scenario: Scenario,
}

impl Runs {
    /// Returns the runs on all scenarios.
    pub(crate) fn all(&self) -> anyhow::Result<Vec<Run>> {
        let mut all = Vec::new();
        for (index, scenario) in scenario::load(&self.scenarios)?.into_iter().enumerate() {
            if scenario.flows.len() != 1 || scenario.flows[0].scheme.is_some() {
                bail!(
                    "{}: {} flows; expected one, without a scheme of its own",
                    scenario.name,
                    scenario.flows.len()
                );
            }
            all.extend((0..self.runs).map(|run| Run {
                id: seed::fold(seed::fold(self.seed, index as u64), run) | 1,
                scenario: scenario.clone(),
            }));
        }
        Ok(all)
    }
}

/// A policy's answer to a query about a flow, with the query as the policy left it.
pub(crate) type Decide<'a> = dyn FnMut(&mut Query, &[WindowRecord]) -> Choice + 'a;

/// Runs one flow and returns its rows. It ends after `seconds`, or before the decision number
/// `most`.
pub(crate) fn rows(
    run: &Run,
    interface: &Interface,
    seconds: u64,
    most: usize,
    decide: &mut Decide<'_>,
) -> Vec<Row> {
    let settings = Learned::settings(interface, Startup::SlowStart);
    let control = Control::Learned(Box::new(Learned::new(settings)));
    let simulation = Simulation::new(&run.scenario, vec![control], run.id);
    let mut served = SimulatedAgent::new(
        simulation,
        interface.clone(),
        AgentDelay::MEASURED,
        SenderMode::Asynchronous,
        seed::fold(run.id, 1),
    );
    let mut rows: Vec<Row> = Vec::new();
    let mut decisions = 0;
    while let Some(mut asked) = served.next(seconds * 1_000_000_000) {
        let choice = decide(&mut asked.query, &asked.windows);
        for (place, window) in asked.windows.iter().enumerate() {
            let newest = place + 1 == asked.windows.len();
            let terms = Terms::of(window, &interface.reward);
            rows.push(Row {
                flow: run.id,
                sequence: rows.len() as u32,
                window: *window,
                path: None,
                initial_cwnd_bytes: 14_480,
                decision: newest
                    .then(|| decided(interface, &asked.query, choice))
                    .flatten(),
                terms,
                reward: terms.reward(&interface.reward) as f32,
                end: false,
                local: None,
                remote: None,
                cgroup: 0,
                cookie: 0,
                netns: 0,
            });
        }
        decisions += 1;
        if decisions == most {
            break;
        }
        let state = std::mem::take(&mut asked.query.state);
        served.answer(choice, state);
    }
    rows
}

fn decided(interface: &Interface, query: &Query, choice: Choice) -> Option<Decided> {
    let Choice::Action { index, probability } = choice else {
        return None;
    };
    Some(Decided {
        action: Some(index as u8),
        probability: Some(probability),
        probabilities: Some(query.probabilities.clone()),
        base_cwnd: query.cwnd,
        cwnd: interface.actions.apply(index, query.cwnd, interface.cwnd),
        delay_ns: None,
    })
}

/// A policy that follows a flow with a state of its own.
pub(crate) struct Follower {
    policy: OnnxPolicy,
    state: State,
}

impl Follower {
    /// Loads a policy. `seed` is that of its draws.
    pub(crate) fn new(path: &Path, seed: u64) -> anyhow::Result<Self> {
        let policy = OnnxPolicy::from_file(path, None, seed);
        Ok(Self {
            policy: policy.with_context(|| path.display().to_string())?,
            state: State::default(),
        })
    }

    /// Returns the interface of the policy.
    pub(crate) fn interface(&self) -> &Interface {
        self.policy.interface()
    }

    /// Decides with its own state, whatever is in the query, and its own reward of the windows.
    pub(crate) fn decide(&mut self, query: &mut Query, windows: &[WindowRecord]) -> Choice {
        let reward = self.policy.interface().reward;
        if let Some(newest) = windows.last() {
            query.reward = Terms::of(newest, &reward).reward(&reward) as f32;
        }
        query.state = std::mem::take(&mut self.state);
        let choice = self.policy.decide(std::slice::from_mut(query)).pop();
        self.state = query.state.clone();
        choice.unwrap_or(Choice::Invalid)
    }
}

/// Records runs of a policy to a new directory.
pub(crate) fn record(to: &Path, policy: &Path, runs: &Runs) -> anyhow::Result<()> {
    let interface = Follower::new(policy, 0)?.interface().clone();
    let all = runs.all()?.into_par_iter().map(|run| {
        let mut follower = Follower::new(policy, seed::fold(run.id, 2))?;
        let decide = &mut |query: &mut Query, windows: &[_]| follower.decide(query, windows);
        Ok(rows(&run, &interface, runs.seconds, usize::MAX, decide))
    });
    let all: Vec<Vec<Row>> = all.collect::<anyhow::Result<_>>()?;
    ensure!(!to.exists(), "{} exists already", to.display());
    fs::create_dir_all(to).with_context(|| format!("creating {}", to.display()))?;
    write(&to.join("0.parquet"), policy, interface, &all)
}

/// Writes the rows of flows to a recording.
pub(crate) fn write(
    path: &Path,
    policy: &Path,
    interface: Interface,
    flows: &[Vec<Row>],
) -> anyhow::Result<()> {
    let file = PolicyFile::read(policy).with_context(|| policy.display().to_string())?;
    let header = FileHeader {
        interface,
        policy: file.summary().sha256.clone(),
        policy_metadata: None,
        server: None,
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: "simulated".to_owned(),
        host: BTreeMap::new(),
        started_ns: 0,
        utc_offset_ns: 0,
        addresses: AddressForm::Absent,
    };
    let mut writer = FileWriter::create(path, header)?;
    for flow in flows {
        writer.write(flow)?;
    }
    writer.finish()?;
    Ok(())
}
