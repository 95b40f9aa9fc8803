//! Runs in the simulator: the same path and flows in virtual time, with policies served by a
//! simulated agent.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use cc_core::{interface::Interface, policy::Policy};
use cc_ebpf::Startup;

use super::{
    super::sample::{SAMPLE_PERIOD, Sample},
    LIVE_PERIOD, Live, Measured, RunError, Setup,
    measure::{self, FlowEnd, between},
};
use crate::{
    evaluate::scheme::ServedPolicy,
    summary::{DecisionDelay, Run, Validity},
};
use cc_sim::{
    path::{Observation, nanos},
    sim::{
        Control, Simulation,
        agent::{SenderMode, SimulatedAgent},
        control::learned::Learned,
    },
};

/// Carries out [`super::run`] in virtual time.
pub(super) fn run(
    setup: &Setup<'_>,
    cancel: &AtomicBool,
    mut live: impl FnMut(Live),
) -> Result<Option<Measured>, RunError> {
    let Policies {
        mut policies,
        of_flow,
        interface,
    } = Policies::of(setup)?;
    let settings = Learned::settings(&interface, Startup::SlowStart);
    let control = |(flow, policy): (usize, &Option<usize>)| match policy {
        Some(_) => Ok(Control::Learned(Box::new(Learned::new(settings)))),
        None => {
            let name = &setup.flows[flow].scheme.name;
            // Each flow draws from its own random stream.
            let seed = setup.seed.wrapping_add(flow as u64);
            Control::named(name, seed).ok_or_else(|| RunError::Unsimulated(name.clone()))
        }
    };
    let controls: Result<Vec<_>, _> = of_flow.iter().enumerate().map(control).collect();
    let simulation = Simulation::observed(setup.scenario, controls?, setup.seed);
    let mut served = SimulatedAgent::new(
        simulation,
        interface,
        setup.delay,
        SenderMode::Asynchronous,
        setup.seed,
    );
    let mut ends: Vec<_> = setup.flows.iter().map(|_| FlowEnd::default()).collect();
    let mut shown = (Duration::ZERO, observation(&served).forward);
    for at in moments(setup) {
        if cancel.load(Ordering::Relaxed) {
            return Ok(None);
        }
        served.serve(nanos(at), |flow, query| {
            // Only flows with a policy send queries.
            let policy = policies.get_mut(of_flow[flow]?)?;
            policy.decide(std::slice::from_mut(query)).pop()
        });
        for (number, end) in ends.iter_mut().enumerate() {
            look(&served, setup, number, at, end);
        }
        if at >= shown.0 + LIVE_PERIOD {
            let now = (at, observation(&served).forward);
            live(between(&shown, &now));
            shown = now;
        }
    }
    for (number, end) in ends.iter_mut().enumerate() {
        end.decision_delay = decision_delay(&served, number);
        end.session = served.simulation().finished_session(number);
    }
    let (run, series, messages) = measure::measure(setup, &observation(&served), &ends);
    let validity = Validity {
        attempts: 1,
        ..Validity::default()
    };
    Ok(Some((Run { validity, ..run }, series, messages)))
}

/// The policies of a run, loaded once per scheme.
struct Policies {
    policies: Vec<Box<dyn Policy>>,
    /// Index of each flow's policy; `None` for a flow without one.
    of_flow: Vec<Option<usize>>,
    /// The interface that all of the policies share.
    interface: Interface,
}

impl Policies {
    fn of(setup: &Setup<'_>) -> Result<Self, RunError> {
        let mut names: Vec<&str> = Vec::new();
        let mut policies: Vec<Box<dyn Policy>> = Vec::new();
        let mut of_flow = Vec::new();
        for flow in &setup.flows {
            let name = flow.scheme.name.as_str();
            let Some(served @ ServedPolicy { spec, serving, .. }) = flow.scheme.policy() else {
                of_flow.push(None);
                continue;
            };
            let place = names.iter().position(|known| *known == name);
            let place = match place {
                Some(place) => place,
                None => {
                    let policy = spec.load(&served.interface(), *serving, setup.seed);
                    policies.push(policy.map_err(|source| RunError::Policy {
                        scheme: name.to_owned(),
                        source: source.into(),
                    })?);
                    names.push(name);
                    names.len() - 1
                }
            };
            if policies[place].interface() != policies[0].interface() {
                return Err(RunError::Interfaces {
                    one: names[0].to_owned(),
                    other: name.to_owned(),
                });
            }
            of_flow.push(Some(place));
        }
        let interface = policies.first().map(|policy| policy.interface().clone());
        Ok(Self {
            policies,
            of_flow,
            interface: interface.unwrap_or_default(),
        })
    }
}

/// Scenario times at which flows are sampled: every [`SAMPLE_PERIOD`], at each flow's stop, and at
/// the end of the run.
fn moments(setup: &Setup<'_>) -> Vec<Duration> {
    let samples = setup.seconds.as_nanos() / SAMPLE_PERIOD.as_nanos();
    let mut moments: Vec<_> = (1..=samples as u32)
        .map(|sample| SAMPLE_PERIOD * sample)
        .collect();
    moments.extend(setup.flows.iter().map(|flow| flow.stop));
    moments.push(setup.seconds);
    moments.sort_unstable();
    moments.dedup();
    moments
}

/// Samples both ends of a flow while it runs.
fn look(
    served: &SimulatedAgent,
    setup: &Setup<'_>,
    number: usize,
    at: Duration,
    end: &mut FlowEnd,
) {
    let flow = &setup.flows[number];
    if at <= flow.start || at > flow.stop {
        return;
    }
    let totals = served.simulation().flow(number);
    end.payload = totals.payload_delivered;
    end.retransmissions = totals.retransmissions;
    if totals.srtt_us > 0 {
        end.samples.push(Sample {
            at,
            cwnd: totals.cwnd,
            rtt: Duration::from_micros(totals.srtt_us.into()),
        });
    }
}

fn observation(served: &SimulatedAgent) -> Observation {
    let observation = served.simulation().observation();
    observation.expect("it was made to be observed")
}

fn decision_delay(served: &SimulatedAgent, flow: usize) -> Option<DecisionDelay> {
    let view = served.view(flow).filter(|view| view.decisions > 0)?;
    Some(DecisionDelay {
        decisions: view.decisions,
        p50_us: view.decision_delay_p50_ms * 1e3,
        p99_us: view.decision_delay_p99_ms * 1e3,
        max_us: view.decision_delay_max_ms * 1e3,
    })
}
