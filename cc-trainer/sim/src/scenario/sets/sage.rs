//! The two sets of Sage's league, regenerated from the scripts of its benchmark.
//!
//! Sources: C.-Y. Yen, S. Abbasloo and H. J. Chao, "Computers Can Learn from the Heuristic Designs
//! and Master Internet Congestion Control", SIGCOMM 2023; S. Abbasloo, "Internet Congestion Control
//! Benchmarking", arXiv 2307.10054; github.com/Soheil-ab/ccBench,
//! `pantheon-modified/src/experiments/{solo_runall,cc_solo,multi_runall,cc_multi}.sh`.
//!
//! Two details differ from the scripts. There, links are mahimahi traces with opportunities on a
//! grid of 1 ms; here they serve in continuous time. And a flow of Set I starts 10 s after its
//! trace there; here it starts with the scenario, 7 s before the first step, as it does there.

use std::time::Duration;

use super::super::{Delay, Direction, Flow, Loss, Queue, Rate, Scenario, Service, sage};

/// Rates of the links, Mbit/s.
const RATES: [u32; 5] = [12, 24, 48, 96, 192];
/// Propagation delays of one direction in both sets, in ms.
const DELAYS: [u32; 5] = [5, 10, 20, 40, 80];

/// How the rate of a link of Set I changes: its name, and numerator and denominator of the other
/// rate over the first one.
const PATTERNS: [(&str, u32, u32); 5] = [
    ("flat", 1, 1),
    ("up2", 2, 1),
    ("up4", 4, 1),
    ("down2", 1, 2),
    ("down4", 1, 4),
];

/// Set I: a single flow for 24 s on a link whose rate is constant or changes every 7 s; 660 links.
pub(super) fn single() -> Vec<Scenario> {
    let mut scenarios = Vec::new();
    for rate in RATES {
        for (pattern, times, over) in PATTERNS {
            // The ranking has no link faster than 192 Mbit/s.
            if rate * times > 192 {
                continue;
            }
            let other = f64::from(rate * times) / f64::from(over);
            for delay in DELAYS {
                // Queues in halves of a bandwidth-delay product.
                for halves in [1, 2, 4, 8, 16, 32] {
                    let queue = product(rate, delay) * halves / 2;
                    let service = sage::steps(f64::from(rate), other);
                    let multiple = f64::from(halves) / 2.0;
                    let description = match pattern {
                        "flat" => format!("{rate} Mbit/s"),
                        _ => format!("{rate} Mbit/s and {other} Mbit/s in turns of 7 s"),
                    };
                    scenarios.push(Scenario {
                        name: format!("sage-1-{rate}-{pattern}-{delay}ms-q{multiple}"),
                        description: format!(
                            "{description}, RTT {} ms, a queue of {queue} packets",
                            2 * delay
                        ),
                        sender: None,
                        forward: direction(service.clone(), delay, queue),
                        reverse: direction(service, delay, queue),
                        flows: vec![Flow::default()],
                        scoring: sage::alone(),
                    });
                }
            }
        }
    }
    scenarios
}

/// Set II: the scheme joins a cubic flow 5 s after its start, on a link with a constant rate, in a
/// run of 120 s; 125 links. The last of its four windows of 30 s ends with the run.
pub(super) fn beside_cubic() -> Vec<Scenario> {
    let mut scenarios = Vec::new();
    for rate in RATES {
        for delay in DELAYS {
            for multiple in [1, 2, 4, 8, 16] {
                let queue = product(rate, delay) * multiple;
                let service = Service::Rate(Rate::constant(f64::from(rate) * 1e6));
                scenarios.push(Scenario {
                    name: format!("sage-2-{rate}-{delay}ms-q{multiple}"),
                    description: format!(
                        "5 s after a cubic, {rate} Mbit/s, RTT {} ms, a queue of {queue} packets",
                        2 * delay
                    ),
                    sender: None,
                    forward: direction(service.clone(), delay, queue),
                    reverse: direction(service, delay, queue),
                    flows: sage::after_a_cubic(),
                    scoring: sage::beside(),
                });
            }
        }
    }
    scenarios
}

/// Bandwidth-delay product in packets, as the scripts compute it: a packet per ms is 12 Mbit/s.
fn product(rate: u32, delay: u32) -> u32 {
    2 * rate * delay / 12
}

/// A direction with a drop-tail queue. The scripts give both directions the same rate and limit.
fn direction(service: Service, delay: u32, packets: u32) -> Direction {
    Direction {
        policer: None,
        queue: Queue {
            packets: Some(packets),
            ..Queue::default()
        },
        service,
        loss: Loss::None,
        aggregation: None,
        delay: Delay {
            base: Duration::from_millis(delay.into()),
            changes: Vec::new(),
            variation: None,
            jitter: Duration::ZERO,
        },
    }
}
