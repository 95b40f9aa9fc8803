//! The agent over the learned flows of a simulation: `cc_core::agent`, the very code, on virtual time.

use cc_core::agent::{Agent, Batch};
use cc_core::interface::Interface;
use cc_core::policy::{Choice, Query, State};
use cc_core::status::{AgentCounts, FlowView};
use cc_ebpf::{Record, WindowRecord};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use rand_distr::LogNormal;
use serde::{Deserialize, Serialize};

use super::Simulation;
use crate::path::Nanos;

/// How long the agent takes for a decision: from the moment that it has a window, closed by an ACK or by itself, to
/// the publication. What goes by from the window's end to that ACK is the simulated connection's own.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum AgentDelay {
    /// None.
    None,
    /// Always the same.
    Fixed {
        /// ms.
        ms: f64,
    },
    /// Log-normal, cut off.
    LogNormal {
        /// Median, ms.
        median_ms: f64,
        /// Standard deviation of the logarithm.
        sigma: f64,
        /// The longest, ms.
        max_ms: f64,
    },
}

/// Whether a sender waits for its decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SenderMode {
    /// It goes on with the window that it has.
    #[default]
    Asynchronous,
    /// It neither takes an ACK nor sends until the decision is there (figure 1 of the mvfst-rl paper).
    Blocking,
}

/// A flow that waits for a decision.
#[derive(Clone, Debug, PartialEq)]
pub struct DecisionRequest {
    /// The flow, in the scenario's order.
    pub flow: usize,
    /// What the policy gets.
    pub query: Query,
    /// The windows since the flow was asked last, oldest first; the last one is the query's. More than one where a
    /// decision took longer than a window.
    pub windows: Vec<WindowRecord>,
}

/// A simulation whose learned flows are served by an agent.
pub struct SimulatedAgent {
    simulation: Simulation,
    agent: Agent,
    delay: AgentDelay,
    mode: SenderMode,
    random: Xoshiro256PlusPlus,
    /// Of each flow, since it was asked last.
    windows: Vec<Vec<WindowRecord>>,
    /// The learned flows: those that an agent has slots for.
    learned: Vec<usize>,
    asked: Option<(usize, Batch)>,
    /// By time, the next one last.
    publications: Vec<Publication>,
}

struct Publication {
    at: Nanos,
    flow: usize,
    batch: Batch,
    choice: Choice,
}

impl SimulatedAgent {
    /// An agent that serves every learned flow of the simulation. The seed fixes the delays.
    pub fn new(
        mut simulation: Simulation,
        interface: Interface,
        delay: AgentDelay,
        mode: SenderMode,
        seed: u64,
    ) -> Self {
        let flows = simulation.flows();
        let mut learned = Vec::new();
        for flow in 0..flows {
            if let Some(control) = simulation.learned(flow) {
                // Slots and flows have the same numbers.
                control.set_slot(flow as u32);
                learned.push(flow);
            }
        }
        Self {
            simulation,
            agent: Agent::new(interface, flows),
            delay,
            mode,
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            windows: vec![Vec::new(); flows],
            learned,
            asked: None,
            publications: Vec::new(),
        }
    }

    /// Runs until the time given, and lets `decide` choose for each flow that asks, moving the query's state on; one that
    /// it has no choice for keeps its window.
    pub fn serve(
        &mut self,
        until: Nanos,
        mut decide: impl FnMut(usize, &mut Query) -> Option<Choice>,
    ) {
        while let Some(mut asked) = self.next(until) {
            let choice = decide(asked.flow, &mut asked.query);
            self.answer(choice.unwrap_or(Choice::Invalid), asked.query.state);
        }
    }

    /// Runs until a flow waits for a decision, or until the time given. A flow asked before and not answered keeps
    /// its window.
    pub fn next(&mut self, until: Nanos) -> Option<DecisionRequest> {
        if let Some((flow, batch)) = self.asked.take() {
            self.decide(flow, batch, Choice::Invalid);
        }
        loop {
            let mut batch = self.agent.take_batch(1);
            if let (Some(flow), Some(query)) = (batch.slot(0), batch.queries.first_mut()) {
                let flow = flow as usize;
                // The state goes with the query, and comes back with its answer.
                let query = Query {
                    observation: std::mem::take(&mut query.observation),
                    state: std::mem::take(&mut query.state),
                    probabilities: std::mem::take(&mut query.probabilities),
                    ..*query
                };
                self.asked = Some((flow, batch));
                let windows = std::mem::take(&mut self.windows[flow]);
                return Some(DecisionRequest {
                    flow,
                    query,
                    windows,
                });
            }
            let now = self.simulation.now();
            if now >= until {
                return None;
            }
            let publication = self.publications.last().map_or(until, |next| next.at);
            let silence = self.agent.silence_due_ns().unwrap_or(until);
            let due = until.min(publication).min(silence).max(now);
            let recorded = self.simulation.run(due);
            if recorded {
                self.take_records();
            }
            self.publish();
            self.close_silent_windows();
        }
    }

    /// Answers for the flow asked last: what was chosen, and the policy's memory of the flow from now on. The decision
    /// is published when its delay is over.
    pub fn answer(&mut self, choice: Choice, state: State) {
        let Some((flow, mut batch)) = self.asked.take() else {
            return;
        };
        if let Some(query) = batch.queries.first_mut() {
            query.state = state;
        }
        let delay = self.delay.draw(&mut self.random);
        if delay == 0 {
            return self.decide(flow, batch, choice);
        }
        let at = self.simulation.now() + delay;
        if self.mode == SenderMode::Blocking {
            // The decision lies in the map when it goes on.
            self.simulation.block(flow, at + 1);
        }
        let place = self.publications.partition_point(|other| other.at > at);
        let publication = Publication {
            at,
            flow,
            batch,
            choice,
        };
        self.publications.insert(place, publication);
    }

    /// The simulation.
    pub fn simulation(&self) -> &Simulation {
        &self.simulation
    }

    /// What the agent has counted.
    pub fn counts(&self) -> AgentCounts {
        self.agent.counts()
    }

    /// What the agent knows of a flow; none before its first record.
    pub fn view(&self, flow: usize) -> Option<FlowView> {
        let mut views = self.agent.views(usize::MAX).into_iter();
        views.find(|view| view.slot as usize == flow)
    }

    /// AgentDelays from a window's end to its decision's publication, µs.
    pub fn delays(&self) -> &hdrhistogram::Histogram<u64> {
        self.agent.delays()
    }

    fn take_records(&mut self) {
        let now = self.simulation.now();
        for &flow in &self.learned {
            let Some(control) = self.simulation.learned(flow) else {
                continue;
            };
            while let Some(record) = control.take_record() {
                if let Record::Window(window) = &record {
                    remember(&mut self.windows[flow], window);
                }
                let state = *control.flow();
                self.agent.on_record(now, &record, |_| Some(state));
            }
        }
    }

    fn publish(&mut self) {
        let now = self.simulation.now();
        while let Some(publication) = self.publications.pop_if(|next| next.at <= now) {
            let Publication {
                flow,
                batch,
                choice,
                ..
            } = publication;
            self.decide(flow, batch, choice);
        }
    }

    fn decide(&mut self, flow: usize, batch: Batch, choice: Choice) {
        let now = self.simulation.now();
        let simulation = &mut self.simulation;
        self.agent.on_choices(now, batch, &[choice], |_, decision| {
            if let Some(control) = simulation.learned(flow) {
                control.publish(decision);
            }
        });
    }

    fn close_silent_windows(&mut self) {
        let now = self.simulation.now();
        let simulation = &mut self.simulation;
        let read = |slot: u32| Some(*simulation.learned(slot as usize)?.flow());
        for window in self.agent.close_silent(now, read) {
            remember(&mut self.windows[window.header.slot as usize], &window);
        }
    }
}

/// A window that the agent closed itself comes again when the next ACK does.
fn remember(windows: &mut Vec<WindowRecord>, window: &WindowRecord) {
    if windows.last().is_none_or(|last| last.index < window.index) {
        windows.push(*window);
    }
}

impl AgentDelay {
    /// What the agent was seen to take in evaluations on the real kernel: a window of a flow with frequent ACKs is
    /// answered 1.3 ms after its end in the median, with the wait for the ACK that closes it; one without after 5.3,
    /// of which the agent waits 5; the latest after 11 to 20 (docs/results.md).
    pub const MEASURED: Self = Self::LogNormal {
        median_ms: 0.3,
        sigma: 1.2,
        max_ms: 15.0,
    };

    /// Checks the parameters.
    ///
    /// # Errors
    ///
    /// Says which is out of range.
    pub fn validate(&self) -> Result<(), String> {
        let check = |name: &str, value: f64, least: f64| {
            if value.is_finite() && value >= least && value <= 60_000.0 {
                Ok(())
            } else {
                Err(format!(
                    "{name} of the decision delay is {value}; expected {least} to 60000"
                ))
            }
        };
        match *self {
            Self::None => Ok(()),
            Self::Fixed { ms } => check("ms", ms, 0.0),
            Self::LogNormal {
                median_ms,
                sigma,
                max_ms,
            } => {
                check("median_ms", median_ms, 1e-3)?;
                check("sigma", sigma, 0.0)?;
                check("max_ms", max_ms, 0.0)
            }
        }
    }

    /// One, ns.
    fn draw(&self, random: &mut Xoshiro256PlusPlus) -> Nanos {
        let ms = match *self {
            Self::None => 0.0,
            Self::Fixed { ms } => ms,
            Self::LogNormal {
                median_ms,
                sigma,
                max_ms,
            } => match LogNormal::new(median_ms.ln(), sigma) {
                Ok(delays) => random.sample::<f64, _>(delays).min(max_ms),
                Err(_) => median_ms,
            },
        };
        (ms.max(0.0) * 1e6) as Nanos
    }
}

impl Default for AgentDelay {
    fn default() -> Self {
        Self::MEASURED
    }
}

#[cfg(test)]
mod tests {
    use cc_ebpf::{Decision, Startup};

    use super::*;
    use crate::scenario::{self, Scenario};
    use crate::sim::Control;
    use crate::sim::control::learned::Learned;

    const MS: Nanos = 1_000_000;

    fn link(text: &str) -> Scenario {
        let head = "[[scenario]]\nname = \"link\"\nqueue = { bdp = 2 }\n";
        scenario::parse(&format!("{head}{text}"), "test.toml".as_ref())
            .expect("a valid scenario")
            .remove(0)
    }

    fn served(scenario: &Scenario, delay: AgentDelay, mode: SenderMode) -> SimulatedAgent {
        let interface = Interface::default();
        let settings = Learned::settings(&interface, Startup::SlowStart);
        let control = || Control::Learned(Box::new(Learned::new(settings)));
        let controls = scenario.flows.iter().map(|_| control()).collect();
        let simulation = Simulation::new(scenario, controls, 1);
        SimulatedAgent::new(simulation, interface, delay, mode, 1)
    }

    /// Always the window given.
    fn run(served: &mut SimulatedAgent, until: Nanos, cwnd: u32) -> Vec<DecisionRequest> {
        let mut all = Vec::new();
        while let Some(asked) = served.next(until) {
            served.answer(Choice::Cwnd(cwnd), State::default());
            all.push(asked);
        }
        all
    }

    #[test]
    fn a_decision_is_in_force_after_its_delay() {
        let scenario = link("rate_mbps = 12\ndelay_ms = 10");
        let mut served = served(
            &scenario,
            AgentDelay::Fixed { ms: 30.0 },
            SenderMode::Asynchronous,
        );
        let asked = served.next(1_000 * MS).expect("a window is over");
        let at = served.simulation().now();
        assert!((100 * MS..200 * MS).contains(&at), "{at}");
        assert_eq!(asked.query.observation.len(), 220);
        assert_eq!((asked.windows.len(), asked.windows[0].index), (1, 1));
        served.answer(Choice::Cwnd(40), State::default());
        let asked = served.next(1_000 * MS).expect("another");
        let decision = Decision::from_cell(asked.windows[0].decision).expect("decided");
        assert_eq!((decision.window, decision.cwnd), (1, 40));
        let taken = asked.windows[0].decision_taken_ns;
        // At the first ACK after it; they are some milliseconds apart.
        assert!(
            (at + 30 * MS..at + 40 * MS).contains(&taken),
            "{}",
            taken - at
        );
        assert_eq!(asked.query.cwnd, 40, "the next action works on it");
        assert_eq!(served.counts().decisions, 1);
    }

    #[test]
    fn windows_that_end_meanwhile_are_skipped_and_handed_over() {
        let scenario = link("rate_mbps = 12\ndelay_ms = 10");
        let mut served = served(
            &scenario,
            AgentDelay::Fixed { ms: 250.0 },
            SenderMode::Asynchronous,
        );
        let all = run(&mut served, 3_000 * MS, 30);
        assert!(served.counts().windows_skipped > 5);
        let mut next = 1;
        for asked in &all {
            for window in &asked.windows {
                assert_eq!(window.index, next);
                next += 1;
            }
        }
        assert_eq!(all[1].windows.len(), 2);
    }

    #[test]
    fn every_flow_is_asked_and_a_seed_repeats_a_run() {
        let flows =
            "rate_mbps = 12\ndelay_ms = 10\n[[scenario.flow]]\n[[scenario.flow]]\nstart_s = 1\n";
        let scenario = link(flows);
        let run = || {
            let mut served = served(&scenario, AgentDelay::MEASURED, SenderMode::Asynchronous);
            let all = run(&mut served, 3_000 * MS, 20);
            (all, served.counts().decisions)
        };
        let (all, decisions) = run();
        assert!(decisions > 30);
        for flow in 0..2 {
            assert!(all.iter().any(|asked| asked.flow == flow));
        }
        assert!(run() == (all, decisions));
    }

    #[test]
    fn a_blocked_sender_sends_less() {
        let scenario = link("rate_mbps = 12\ndelay_ms = 10");
        let acked = |delay, mode| {
            let mut served = served(&scenario, delay, mode);
            run(&mut served, 5_000 * MS, 20);
            served.simulation().flow(0).bytes_acked
        };
        let none = acked(AgentDelay::None, SenderMode::Blocking);
        let late = AgentDelay::Fixed { ms: 50.0 };
        assert!(acked(late, SenderMode::Blocking) < none * 8 / 10);
        assert!(acked(late, SenderMode::Asynchronous) > none * 98 / 100);
    }

    #[test]
    fn the_measured_delay_is_what_the_agent_showed() {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(7);
        let mut delays: Vec<_> = (0..10_000)
            .map(|_| AgentDelay::MEASURED.draw(&mut random))
            .collect();
        delays.sort_unstable();
        let ms = |quantile: usize| delays[quantile] as f64 / 1e6;
        assert!((ms(5_000) - 0.3).abs() < 0.02);
        assert!((3.0..8.0).contains(&ms(9_900)));
        assert!(ms(9_999) <= 15.0);
    }

    #[test]
    fn delays_out_of_range_are_refused_by_name() {
        let bad = AgentDelay::Fixed { ms: -1.0 };
        let error = bad.validate().expect_err("negative");
        assert!(
            error.starts_with("ms of the decision delay is -1"),
            "{error}"
        );
        AgentDelay::MEASURED.validate().expect("valid");
    }
}
