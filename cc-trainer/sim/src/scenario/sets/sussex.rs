//! Experiments on fairness, convergence and handover of the University of Sussex, regenerated from
//! the scripts of its Mininet testbed.
//!
//! Sources: L. Giacomoni and G. Parisis, "Reinforcement Learning-based Congestion Control: A
//! Systematic Evaluation of Fairness, Efficiency and Responsiveness", INFOCOM 2024; arXiv
//! 2510.25105 and 2510.25498; github.com/giacomoni/mininettestbed (`experiments/fairness_*.py`) and
//! github.com/Aruuni/mininettestbed (`experiments/{fairness,friendly,handover}`,
//! `aggregate_plots`).
//!
//! As there, queues are sized with 2^20 bit/s for a Mbit/s while links have 10^6. The token
//! bucket's burst of the testbed is left out. Its parking lot needs a path of several hops, which a
//! [`Scenario`] does not have.

use std::{ops::Range, time::Duration};

use super::super::{
    Aqm, Delay, Direction, Flow, FqCoDel, Loss, Queue, Rate, RatePoint, Rule, Scenario, Scoring,
    Service,
};

/// Base RTTs of the experiments with two flows, in ms.
const RTTS: [u64; 10] = [20, 40, 60, 80, 100, 120, 140, 160, 180, 200];
/// Lengths of the queues, in bandwidth-delay products.
const QUEUES: [f64; 3] = [0.2, 1.0, 4.0];
/// Rate of most links, Mbit/s.
const MBPS: u64 = 100;

/// Two flows of one RTT, the second of which joins after a quarter of the run.
pub(super) fn intra_rtt() -> Vec<Scenario> {
    let link = |(rtt, queue)| {
        scenario(
            &format!("sussex-intra-{rtt}ms-q{queue}"),
            &format!("two flows, {MBPS} Mbit/s, RTT {rtt} ms, a queue of {queue} BDP"),
            constant(MBPS, rtt, queue_bytes(MBPS, rtt, queue)),
            pair(rtt, None, None),
            last_quarter(rtt, Rule::Balance, 0),
        )
    };
    grid().map(link).collect()
}

/// A flow with an RTT of 20 ms and one with a longer RTT, which determines queue and times. Equal
/// RTTs are in [`intra_rtt`].
pub(super) fn inter_rtt() -> Vec<Scenario> {
    let link = |(rtt, queue)| {
        let [first, second] = pair(rtt, None, None);
        let longer = Flow {
            extra_delay: Duration::from_millis((rtt - RTTS[0]) / 2),
            ..second
        };
        scenario(
            &format!("sussex-inter-{rtt}ms-q{queue}"),
            &format!(
                "two flows, {MBPS} Mbit/s, RTT {} and {rtt} ms, a queue of {queue} BDP of the \
                 longer",
                RTTS[0]
            ),
            constant(MBPS, RTTS[0], queue_bytes(MBPS, rtt, queue)),
            [first, longer],
            last_quarter(rtt, Rule::Balance, 0),
        )
    };
    let longer = grid().filter(|(rtt, _)| *rtt > RTTS[0]);
    longer.map(link).collect()
}

/// Two flows on links of different rates.
pub(super) fn bandwidth() -> Vec<Scenario> {
    const RTT: u64 = 40;
    let rates = (1..=10).map(|tens| 10 * tens);
    let pairs = rates.flat_map(|mbps| QUEUES.map(|queue| (mbps, queue)));
    let link = |(mbps, queue)| {
        scenario(
            &format!("sussex-bandwidth-{mbps}-q{queue}"),
            &format!("two flows, {mbps} Mbit/s, RTT {RTT} ms, a queue of {queue} BDP"),
            constant(mbps, RTT, queue_bytes(mbps, RTT, queue)),
            [Flow::default(), starting(25)],
            Scoring {
                length: Some(Duration::from_secs(100)),
                rule: Some(Rule::Balance),
                flow: Some(0),
                segments: vec![seconds(75, 100)],
            },
        )
    };
    pairs.map(link).collect()
}

/// The pairs of [`intra_rtt`] with a cubic in the place of the first flow, and then in that of the
/// second.
pub(super) fn friendliness() -> Vec<Scenario> {
    let orders = [("after", 1), ("before", 0)];
    let links = orders
        .into_iter()
        .flat_map(|order| grid().map(move |link| (order, link)));
    let link = |((order, scored), (rtt, queue))| {
        let cubic = || Some("cubic".to_owned());
        let flows = match scored {
            0 => pair(rtt, None, cubic()),
            _ => pair(rtt, cubic(), None),
        };
        scenario(
            &format!("sussex-{order}-cubic-{rtt}ms-q{queue}"),
            &format!(
                "a flow that comes {order} a cubic, {MBPS} Mbit/s, RTT {rtt} ms, a queue of \
                 {queue} BDP"
            ),
            constant(MBPS, rtt, queue_bytes(MBPS, rtt, queue)),
            flows,
            last_quarter(rtt, Rule::Share, scored),
        )
    };
    links.map(link).collect()
}

/// Four flows that join and leave 25 s apart. Every time between two changes is a segment.
pub(super) fn convergence() -> Vec<Scenario> {
    let links = [20, 200]
        .into_iter()
        .flat_map(|rtt| QUEUES.map(|queue| (rtt, queue)));
    let link = |(rtt, queue)| {
        let flows = [0, 25, 50, 75].map(|start| Flow {
            stop: Some(Duration::from_secs(start + 100)),
            ..starting(start)
        });
        let segments = [25, 50, 75, 100, 125].map(|from| seconds(from, from + 25));
        Scenario {
            scoring: Scoring {
                length: Some(Duration::from_secs(175)),
                rule: Some(Rule::Balance),
                flow: Some(0),
                segments: segments.into(),
            },
            flows: flows.into(),
            ..plain(
                &format!("sussex-convergence-{rtt}ms-q{queue}"),
                &format!(
                    "four flows 25 s apart, {MBPS} Mbit/s, RTT {rtt} ms, a queue of {queue} BDP"
                ),
                constant(MBPS, rtt, queue_bytes(MBPS, rtt, queue)),
            )
        }
    };
    links.map(link).collect()
}

/// The links of [`convergence`] with fq_codel in its default settings. The size of the queue stays
/// its limit.
pub(super) fn convergence_fq_codel() -> Vec<Scenario> {
    let mut scenarios = convergence();
    for scenario in &mut scenarios {
        scenario.name = scenario.name.replace("convergence", "fq-codel");
        scenario.description += " under fq_codel";
        scenario.forward.queue.aqm = Some(Aqm::FqCoDel(FqCoDel::default()));
    }
    scenarios
}

/// One flow on a link that is cut every 5 s. The scripts take the link down, which loses what it
/// holds; here its rate is 0, and packets wait. That the cuts are 5 s apart is our reading of the
/// argument 5 of `cut_link`, whose definition is not in the repository.
pub(super) fn handover() -> Vec<Scenario> {
    const RTT: u64 = 50;
    const PERIOD: u64 = 5000;
    let link = |cut: u64| {
        let point = |at, mbps: u64| RatePoint {
            at: Duration::from_millis(at),
            bits_per_second: mbps as f64 * 1e6,
            ramp: false,
        };
        let service = Service::Rate(Rate {
            points: vec![point(0, MBPS), point(PERIOD - cut, 0)],
            repeat: Some(Duration::from_millis(PERIOD)),
        });
        let path = both(service, RTT, queue_bytes(MBPS, RTT, 1.0));
        Scenario {
            scoring: Scoring {
                length: Some(Duration::from_secs(100)),
                rule: Some(Rule::Power),
                flow: Some(0),
                segments: vec![seconds(75, 100)],
            },
            ..plain(
                &format!("sussex-handover-{cut}ms"),
                &format!(
                    "{MBPS} Mbit/s, RTT {RTT} ms, a queue of 1 BDP, cut for {cut} ms every 5 s"
                ),
                path,
            )
        }
    };
    (1..=10).map(|twenties| link(20 * twenties)).collect()
}

/// All pairs of an RTT and a queue.
fn grid() -> impl Iterator<Item = (u64, f64)> {
    RTTS.into_iter()
        .flat_map(|rtt| QUEUES.map(|queue| (rtt, queue)))
}

/// Two flows in a run of twice as many seconds as the RTT has milliseconds. The second one joins
/// after a quarter of it.
fn pair(rtt: u64, first: Option<String>, second: Option<String>) -> [Flow; 2] {
    [
        Flow {
            scheme: first,
            ..Flow::default()
        },
        Flow {
            scheme: second,
            ..starting(rtt / 2)
        },
    ]
}

/// The scoring of a [`pair`]: the last quarter of the run, as in `aggregate_plots`.
fn last_quarter(rtt: u64, rule: Rule, flow: usize) -> Scoring {
    let start = if flow == 0 { 0 } else { rtt / 2 };
    Scoring {
        length: Some(Duration::from_secs(2 * rtt)),
        rule: Some(rule),
        flow: Some(flow),
        segments: vec![seconds(3 * rtt / 2 - start, 2 * rtt - start)],
    }
}

fn starting(second: u64) -> Flow {
    Flow {
        start: Duration::from_secs(second),
        ..Flow::default()
    }
}

/// A queue in bytes, as the scripts compute it.
fn queue_bytes(mbps: u64, rtt: u64, multiple: f64) -> u64 {
    let product = mbps * (1 << 20) * rtt / 8000;
    ((multiple * product as f64) as u64).max(1500)
}

fn constant(mbps: u64, rtt: u64, queue: u64) -> [Direction; 2] {
    both(Service::Rate(Rate::constant(mbps as f64 * 1e6)), rtt, queue)
}

/// Both directions of a path whose queue is in the direction of the data.
fn both(service: Service, rtt: u64, queue: u64) -> [Direction; 2] {
    let direction = |bytes| Direction {
        policer: None,
        queue: Queue {
            bytes,
            ..Queue::default()
        },
        service: service.clone(),
        loss: Loss::None,
        aggregation: None,
        delay: Delay {
            base: Duration::from_millis(rtt / 2),
            changes: Vec::new(),
            variation: None,
            jitter: Duration::ZERO,
        },
    };
    [direction(Some(queue)), direction(None)]
}

fn scenario(
    name: &str,
    description: &str,
    path: [Direction; 2],
    flows: [Flow; 2],
    scoring: Scoring,
) -> Scenario {
    Scenario {
        flows: flows.into(),
        scoring,
        ..plain(name, description, path)
    }
}

fn plain(name: &str, description: &str, [forward, reverse]: [Direction; 2]) -> Scenario {
    Scenario {
        name: name.to_owned(),
        description: description.to_owned(),
        sender: None,
        forward,
        reverse,
        flows: vec![Flow::default()],
        scoring: Scoring::default(),
    }
}

fn seconds(from: u64, to: u64) -> Range<Duration> {
    Duration::from_secs(from)..Duration::from_secs(to)
}
