//! The agent over the learned flows of a simulation: `cc_core::agent`, the code that serves the
//! live kernel, in virtual time.

mod delay;

use cc_core::ServedPolicy;
use cc_core::agent::{Agent, Batch};
use cc_core::canary::Arm;
use cc_core::interface::Interface;
use cc_core::policy::{Choice, Query, State};
use cc_core::rows::{Addresses, Episodes, FileHeader, Recorded};
use cc_core::status::{AgentCounts, FlowView};
use cc_ebpf::{Record, WindowRecord};
use serde::{Deserialize, Serialize};

pub use delay::AgentDelay;

use super::Simulation;
use crate::path::Nanos;
use delay::Delays;

/// Whether a sender waits for the decisions about its flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SenderMode {
    /// The sender goes on with its present cwnd.
    #[default]
    Asynchronous,
    /// The sender neither processes ACKs nor sends until the decision is published (figure 1 of the
    /// mvfst-rl paper, arXiv:1910.04054).
    Blocking,
}

/// A request for a decision about one flow.
#[derive(Clone, Debug, PartialEq)]
pub struct DecisionRequest {
    /// Place of the flow's connection: the flow's number in the scenario's order, but for flows
    /// with several connections ([`Simulation::flow_of`]).
    pub flow: usize,
    /// The arm whose policy is asked, while a canary runs; otherwise the incumbent's.
    pub arm: Arm,
    /// What the policy is asked, with the flow's observation and state.
    pub query: Query,
    /// The windows that ended since the flow's previous request, oldest first; the last one is the
    /// query's. There is more than one where a decision took longer than a window.
    pub windows: Vec<WindowRecord>,
}

/// A simulation whose learned flows are served by an agent.
///
/// Either [`serve`](Self::serve) it with a function that decides, or alternate [`next`](Self::next)
/// and [`answer`](Self::answer).
pub struct SimulatedAgent {
    simulation: Simulation,
    agent: Agent,
    delays: Delays,
    mode: SenderMode,
    /// For each place of a connection, the windows since its previous request.
    windows: Vec<Vec<WindowRecord>>,
    /// For each place, the generation of the flow and the number of its newest window.
    newest: Vec<(u32, u32)>,
    asked: Option<(usize, Batch)>,
    /// Decisions that wait for their delay to pass, the next one last.
    publications: Vec<Publication>,
}

struct Publication {
    at: Nanos,
    flow: usize,
    batch: Batch,
    choice: Choice,
}

impl SimulatedAgent {
    /// Creates an agent that serves every learned flow of the simulation. `seed` determines the
    /// delays.
    pub fn new(
        mut simulation: Simulation,
        interface: Interface,
        delay: AgentDelay,
        mode: SenderMode,
        seed: u64,
    ) -> Self {
        for place in 0..simulation.connections() {
            if let Some(control) = simulation.learned(place) {
                // Slots have the numbers of the connections' places.
                control.set_slot(place as u32);
            }
        }
        let slots = simulation.most_connections();
        Self {
            simulation,
            delays: Delays::new(delay, &interface, seed),
            agent: Agent::new(interface, slots),
            mode,
            windows: vec![Vec::new(); slots],
            newest: vec![(0, 0); slots],
            asked: None,
            publications: Vec::new(),
        }
    }

    /// Makes rows of every flow from now on, as `cc-agent run --record` does; to be called before
    /// the first flow begins. The header's interface is that of the policy that decides.
    pub fn start_recording(&mut self, header: FileHeader, episodes: Episodes) {
        self.agent.replace(ServedPolicy {
            interface: header.interface.clone(),
            header: Some(header.into()),
        });
        self.agent.start_recording(episodes, Addresses::Absent);
    }

    /// Takes the rows that became complete since the last call. Rows of all flows are mixed.
    pub fn take_rows(&mut self) -> Vec<Recorded> {
        self.agent.take_rows()
    }

    /// Stops making rows, and returns those that were not taken. The last row of a flow that has
    /// not stopped does not end it.
    pub fn stop_recording(&mut self) -> Vec<Recorded> {
        self.agent.stop_recording();
        self.agent.take_rows()
    }

    /// Runs until the time given and has `decide` answer the requests. It gets the number of the
    /// flow in the scenario's order, updates the query's state, and returns `None` for a flow that
    /// keeps its cwnd.
    pub fn serve(
        &mut self,
        until: Nanos,
        mut decide: impl FnMut(usize, &mut Query) -> Option<Choice>,
    ) {
        while let Some(mut asked) = self.next(until) {
            let flow = self.simulation.flow_of(asked.flow);
            let choice = decide(flow, &mut asked.query);
            self.answer_query(choice.unwrap_or(Choice::Invalid), asked.query);
        }
    }

    /// Runs until a flow requests a decision, or until the time given, when it returns `None`. A
    /// flow whose previous request was not answered keeps its cwnd.
    pub fn next(&mut self, until: Nanos) -> Option<DecisionRequest> {
        if let Some((flow, batch)) = self.asked.take() {
            self.decide(flow, batch, Choice::Invalid);
        }
        loop {
            let mut batch = self.agent.take_batch(1);
            if let (Some(flow), Some(query)) = (batch.slot(0), batch.queries.first_mut()) {
                let flow = flow as usize;
                // The state leaves with the query and comes back with the answer.
                let query = Query {
                    observation: std::mem::take(&mut query.observation),
                    state: std::mem::take(&mut query.state),
                    probabilities: std::mem::take(&mut query.probabilities),
                    ..*query
                };
                let arm = batch.arm();
                self.asked = Some((flow, batch));
                let windows = std::mem::take(&mut self.windows[flow]);
                return Some(DecisionRequest {
                    flow,
                    arm,
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

    /// Answers the last request: with the choice, and the policy's new state of the flow. The
    /// decision is published when its delay has passed.
    pub fn answer(&mut self, choice: Choice, state: State) {
        self.reply(choice, state, Vec::new());
    }

    /// Answers the last request as [`answer`](Self::answer) does, with the query as the policy
    /// left it: its state, and the probabilities of all actions, which rows have.
    pub fn answer_query(&mut self, choice: Choice, query: Query) {
        self.reply(choice, query.state, query.probabilities);
    }

    fn reply(&mut self, choice: Choice, state: State, probabilities: Vec<f32>) {
        let Some((flow, mut batch)) = self.asked.take() else {
            return;
        };
        if let Some(query) = batch.queries.first_mut() {
            query.state = state;
            query.probabilities = probabilities;
        }
        let (delay, is_lost) = self.delays.draw(self.simulation.now());
        let choice = if is_lost { Choice::Invalid } else { choice };
        if delay == 0 {
            return self.decide(flow, batch, choice);
        }
        let at = self.simulation.now() + delay;
        if self.mode == SenderMode::Blocking {
            // The decision is published before the sender goes on.
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

    /// The simulation that the agent serves.
    pub fn simulation(&self) -> &Simulation {
        &self.simulation
    }

    /// The agent's core, for what an agent does beside serving: recording its flows, and canaries.
    /// A canary by blocks of time must be turned several times in a block.
    pub fn agent(&mut self) -> &mut Agent {
        &mut self.agent
    }

    /// The agent's counters, over all flows.
    pub fn counts(&self) -> AgentCounts {
        self.agent.counts()
    }

    /// The agent's view of the flow whose connection is in a place; `None` before its first record.
    pub fn view(&self, flow: usize) -> Option<FlowView> {
        let mut views = self.agent.views(usize::MAX).into_iter();
        views.find(|view| view.slot as usize == flow)
    }

    /// Delays from a window's end to the publication of its decision, µs.
    pub fn delays(&self) -> &hdrhistogram::Histogram<u64> {
        self.agent.delays()
    }

    fn take_records(&mut self) {
        let now = self.simulation.now();
        for flow in 0..self.simulation.connections() {
            let Some(control) = self.simulation.learned(flow) else {
                continue;
            };
            while let Some(record) = control.take_record() {
                if let Record::Window(window) = &record {
                    remember(&mut self.windows[flow], &mut self.newest[flow], window);
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
            let place = window.header.slot as usize;
            remember(&mut self.windows[place], &mut self.newest[place], &window);
        }
    }
}

/// A window that the agent has closed comes again with the next ACK, also after its request.
fn remember(windows: &mut Vec<WindowRecord>, newest: &mut (u32, u32), window: &WindowRecord) {
    let (generation, index) = *newest;
    if window.header.generation != generation || window.index > index {
        *newest = (window.header.generation, window.index);
        windows.push(*window);
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

    /// Answers every request with the same cwnd.
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
        // It is taken up by the first ACK after it; ACKs are some milliseconds apart.
        assert!(
            (at + 30 * MS..at + 40 * MS).contains(&taken),
            "{}",
            taken - at
        );
        // Slow start had overflowed the queue, so the flow has come down from the decision since.
        let cwnd = asked.windows[0].cwnd;
        assert!(cwnd < 40 && asked.query.cwnd == cwnd, "{cwnd}");
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
    fn a_lost_decision_leaves_the_flow_as_it_is() {
        let scenario = link("rate_mbps = 12\ndelay_ms = 10");
        let counts = |lost: f64| {
            let delay = AgentDelay::Hosts {
                median_ms: [1.0, 1.0],
                sigma: 0.0,
                max_ms: 5.0,
                lost: [lost, lost],
            };
            let mut served = served(&scenario, delay, SenderMode::Asynchronous);
            let asked = run(&mut served, 20_000 * MS, 20).len() as u64;
            let counts = served.counts();
            // Each request ends as a decision or is lost; the last may still be on its way.
            assert!(asked - counts.decisions - counts.answers_invalid <= 1);
            (asked, counts.decisions)
        };
        let (asked, decided) = counts(0.0);
        assert!(asked - decided <= 1, "{decided} of {asked}");
        assert_eq!(counts(1.0).1, 0);
        let (asked, decided) = counts(0.5);
        let share = decided as f64 / asked as f64;
        assert!((0.35..0.65).contains(&share), "{decided} of {asked}");
    }
}
