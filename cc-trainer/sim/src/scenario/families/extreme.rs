//! Links at the ends of what is found, by kinds.

mod managed;

use std::time::Duration;

use rand::{RngExt, rngs::Xoshiro256PlusPlus};

use super::{
    super::{
        App, DelayVariation, Flow, Loss, Policer, Queue, Rate, RatePoint, Rule, Scenario, Scoring,
        SenderQueue, Service, Shaper,
        app::{OnOff, ShortFlows, Sizes, Video},
    },
    Kind, Plain, Point, Ranges, logarithmic, three_digits,
};

/// The kinds. Each is sampled with a seed that follows from its place, so that the scenarios of all
/// others stay as they are when one is added at the end.
pub(super) const KINDS: [Kind; 24] = [
    ("slow", slow),
    ("fast", fast),
    ("near", near),
    ("far", far),
    ("tiny-buffer", tiny_buffer),
    ("bloated-buffer", bloated_buffer),
    ("policed", policed),
    ("bursty-loss", bursty_loss),
    ("asymmetric", asymmetric),
    ("lossy-acks", lossy_acks),
    ("aggregated-data", aggregated_data),
    ("aggregated-acks", aggregated_acks),
    ("crowd", crowd),
    ("among-cubics", among_cubics),
    ("priority-traffic", priority_traffic),
    ("limited-traffic", limited_traffic),
    ("short-traffic", short_traffic),
    ("codel", managed::codel),
    ("fq-codel", managed::fq_codel),
    ("pie", managed::pie),
    ("dualpi2", managed::dualpi2),
    ("shaped", shaped),
    ("low-orbit", low_orbit),
    ("host-queue", host_queue),
];

/// Ordinary links, on which most kinds have their speciality.
const ORDINARY: Ranges = Ranges::new([1.0, 100.0], [5.0, 200.0], [0.3, 4.0]);
/// Links that several flows share.
const SHARED: Ranges = Ranges::new([5.0, 100.0], [8.0, 120.0], [0.3, 8.0]);

/// Rates below those of today's access links.
fn slow(point: Point, _: &mut Xoshiro256PlusPlus) -> Scenario {
    let ranges = Ranges::new([0.2, 1.5], [10.0, 800.0], [0.3, 50.0]);
    described("slow", ranges.at(point))
}

/// Rates up to the fastest that the emulator carries.
fn fast(point: Point, _: &mut Xoshiro256PlusPlus) -> Scenario {
    let ranges = Ranges::new([200.0, 1000.0], [2.0, 100.0], [0.1, 4.0]);
    described("fast", ranges.at(point))
}

/// Hosts in one building or town.
fn near(point: Point, _: &mut Xoshiro256PlusPlus) -> Scenario {
    let ranges = Ranges::new([1.0, 400.0], [0.1, 3.0], [0.5, 50.0]);
    described("near", ranges.at(point))
}

/// Geostationary satellites, and paths around the world.
fn far(point: Point, _: &mut Xoshiro256PlusPlus) -> Scenario {
    let ranges = Ranges::new([0.5, 100.0], [250.0, 800.0], [0.1, 4.0]);
    described("far", ranges.at(point))
}

fn tiny_buffer(point: Point, _: &mut Xoshiro256PlusPlus) -> Scenario {
    let ranges = Ranges::new([5.0, 300.0], [20.0, 300.0], [0.02, 0.15]);
    described("a tiny buffer", ranges.at(point))
}

fn bloated_buffer(point: Point, _: &mut Xoshiro256PlusPlus) -> Scenario {
    let ranges = Ranges::new([0.5, 50.0], [5.0, 100.0], [8.0, 50.0]);
    described("a bloated buffer", ranges.at(point))
}

/// A token bucket ahead of a faster link.
fn policed(point: Point, random: &mut Xoshiro256PlusPlus) -> Scenario {
    let plain = ORDINARY.at(point);
    let share = logarithmic([0.1, 0.9], point[3]);
    // A bucket of 3 to 300 packets.
    let burst = logarithmic([4.5e3, 4.5e5], random.random()) as u64;
    let mbps = three_digits(share * plain.mbps);
    let mut scenario = described("a policer", plain);
    scenario.forward.policer = Some(Policer {
        bits_per_second: mbps * 1e6,
        burst,
    });
    scenario.description += &format!(", policed to {mbps} Mbit/s with a burst of {burst} bytes");
    scenario
}

/// A chain of two states: none is lost in the good one, and most are in the bad one (E. Gilbert
/// 1960).
fn bursty_loss(point: Point, random: &mut Xoshiro256PlusPlus) -> Scenario {
    const BAD: f64 = 0.8;
    let share = logarithmic([1e-3, 0.08], point[3]);
    let burst = logarithmic([2.0, 40.0], random.random());
    let mut scenario = described("bursty loss", ORDINARY.at(point));
    let to_good = three_digits(1.0 / burst);
    // The share of time in the bad state is to_bad / (to_bad + to_good).
    let bad = share / BAD;
    scenario.forward.loss = Loss::GilbertElliott {
        to_bad: three_digits(to_good * bad / (1.0 - bad)),
        to_good,
        good: 0.0,
        bad: BAD,
    };
    scenario.description += &format!(
        ", loss {} % in bursts of {burst} packets",
        three_digits(100.0 * share)
    );
    scenario
}

/// A slow link for ACKs, with a buffer of its own.
fn asymmetric(point: Point, random: &mut Xoshiro256PlusPlus) -> Scenario {
    let ranges = Ranges::new([10.0, 300.0], [5.0, 100.0], [0.3, 4.0]);
    let plain = ranges.at(point);
    let ratio = logarithmic([15.0, 150.0], point[3]);
    let mbps = three_digits((plain.mbps / ratio).max(0.1));
    let packets = logarithmic([10.0, 1000.0], random.random()).round() as u32;
    let mut scenario = described("asymmetric", plain);
    scenario.reverse.service = Service::Rate(Rate::constant(mbps * 1e6));
    scenario.reverse.queue = Queue {
        packets: Some(packets),
        ..Queue::default()
    };
    scenario.description += &format!(", ACKs at {mbps} Mbit/s with a queue of {packets} packets");
    scenario
}

fn lossy_acks(point: Point, _: &mut Xoshiro256PlusPlus) -> Scenario {
    let loss = logarithmic([0.01, 0.4], point[3]);
    let mut scenario = described("lossy ACKs", ORDINARY.at(point));
    scenario.reverse.loss = Loss::Bernoulli(loss);
    scenario.description += &format!(", {} % of the ACKs lost", three_digits(100.0 * loss));
    scenario
}

/// Data that leave the link together, as on Wi-Fi and on mobile links.
fn aggregated_data(point: Point, random: &mut Xoshiro256PlusPlus) -> Scenario {
    let data = logarithmic([2.0, 40.0], point[3]);
    let mut scenario = described("aggregated data", ORDINARY.at(point));
    scenario.forward.aggregation = Some(milliseconds(data));
    scenario.description += &format!(", data every {data} ms");
    // Half of such links hold ACKs back as well.
    if random.random::<bool>() {
        let acks = logarithmic([2.0, 40.0], random.random());
        scenario.reverse.aggregation = Some(milliseconds(acks));
        scenario.description += &format!(", ACKs every {acks} ms");
    }
    scenario
}

fn aggregated_acks(point: Point, _: &mut Xoshiro256PlusPlus) -> Scenario {
    let acks = logarithmic([2.0, 150.0], point[3]);
    let mut scenario = described("aggregated ACKs", ORDINARY.at(point));
    scenario.reverse.aggregation = Some(milliseconds(acks));
    scenario.description += &format!(", ACKs every {acks} ms");
    scenario
}

/// Flows of the scheme under test, which come within a few seconds.
fn crowd(point: Point, random: &mut Xoshiro256PlusPlus) -> Scenario {
    let count = logarithmic([2.0, 64.99], point[3]) as usize;
    let plain = SHARED.at(point);
    Scenario {
        description: format!("{count} flows: {plain}"),
        flows: flows(count, None, random),
        scoring: shared(Rule::Balance, 0),
        ..plain.scenario()
    }
}

/// The scheme under test among cubic flows.
fn among_cubics(point: Point, random: &mut Xoshiro256PlusPlus) -> Scenario {
    let count = logarithmic([1.0, 32.0], point[3]) as usize;
    let plain = SHARED.at(point);
    let mut all = vec![Flow::default()];
    all.extend(flows(count, Some("cubic"), random));
    Scenario {
        description: format!("beside {}: {plain}", cubics(count)),
        flows: all,
        scoring: shared(Rule::Share, 0),
        ..plain.scenario()
    }
}

fn cubics(count: usize) -> String {
    match count {
        1 => "a cubic".to_owned(),
        _ => format!("{count} cubics"),
    }
}

/// Traffic that does not respond to congestion and has priority: what counts is the rate that it
/// leaves. It comes and goes after exponentially distributed times.
fn priority_traffic(point: Point, random: &mut Xoshiro256PlusPlus) -> Scenario {
    /// The pattern repeats after this time, s.
    const PERIOD: f64 = 60.0;
    let plain = ORDINARY.at(point);
    let share = logarithmic([0.1, 0.95], point[3]);
    let mean_s = logarithmic([0.3, 6.0], random.random());
    let rest = three_digits(plain.mbps * (1.0 - share));
    let (mut points, mut at, mut busy) = (Vec::new(), 0.0, false);
    while at < PERIOD {
        points.push(RatePoint {
            at: milliseconds(f64::round(at * 1e3)),
            bits_per_second: 1e6 * if busy { rest } else { plain.mbps },
            ramp: false,
        });
        // At least a tenth of a second, so that no two points fall together.
        at += 0.1 - (1.0 - random.random::<f64>()).ln() * mean_s;
        busy = !busy;
    }
    let mut scenario = described("priority traffic", plain);
    scenario.forward.service = Service::Rate(Rate {
        points,
        repeat: Some(Duration::from_secs_f64(PERIOD)),
    });
    scenario.description += &format!(", {rest} Mbit/s are left for {mean_s} s at a time");
    scenario
}

/// Cross traffic that its application limits: a steady stream, or video.
fn limited_traffic(point: Point, random: &mut Xoshiro256PlusPlus) -> Scenario {
    let plain = SHARED.at(point);
    let bits_per_second = 1e6 * three_digits(plain.mbps * logarithmic([0.1, 0.8], point[3]));
    let (name, app) = match random.random::<bool>() {
        true => (
            "a stream that comes and goes",
            App::OnOff(OnOff {
                on: Duration::from_secs(4),
                off: Duration::from_secs(2),
                bits_per_second: Some(bits_per_second),
                random: true,
            }),
        ),
        false => (
            "a video",
            App::Video(Video {
                bitrates: [0.25, 0.5, 1.0].map(|part| part * bits_per_second).into(),
                chunk: Duration::from_secs(4),
                buffer: Duration::from_secs(20),
                request_bytes: 200,
            }),
        ),
    };
    beside(
        plain,
        app,
        &format!("{name} of {} Mbit/s", bits_per_second / 1e6),
    )
}

/// Cross traffic of short connections.
fn short_traffic(point: Point, _: &mut Xoshiro256PlusPlus) -> Scenario {
    let plain = SHARED.at(point);
    let load = logarithmic([0.1, 0.7], point[3]);
    let sizes = Sizes::Pareto {
        shape: 1.2,
        least: 5_000,
        most: 5_000_000,
    };
    let app = App::ShortFlows(ShortFlows {
        per_second: three_digits(load * plain.mbps * 1e6 / (8.0 * sizes.mean())),
        sizes,
        count: None,
    });
    let load = three_digits(100.0 * load);
    beside(plain, app, &format!("short connections at {load} % load"))
}

/// A token bucket that serves the queue, as providers shape the lines of their customers.
fn shaped(point: Point, random: &mut Xoshiro256PlusPlus) -> Scenario {
    let plain = ORDINARY.at(point);
    // A bucket of 2 to 2000 packets.
    let burst = logarithmic([3e3, 3e6], point[3]) as u64;
    // Half of the lines are not much faster than they are sold.
    let peak = (random.random::<bool>())
        .then(|| three_digits(plain.mbps * logarithmic([1.5, 20.0], random.random())));
    let mut scenario = described("a shaper", plain);
    scenario.forward.service = Service::Shaper(Shaper {
        bits_per_second: plain.mbps * 1e6,
        burst,
        peak_bits_per_second: peak.map(|mbps| mbps * 1e6),
    });
    scenario.description += &format!(", bursts of {burst} bytes");
    if let Some(peak) = peak {
        scenario.description += &format!(" at {peak} Mbit/s");
    }
    scenario
}

/// Satellites in low orbits: every 15 s another delay and a short outage, and losses at any time.
fn low_orbit(point: Point, random: &mut Xoshiro256PlusPlus) -> Scenario {
    /// Period of the assignment of terminals to satellites, s.
    const PERIOD: f64 = 15.0;
    let ranges = Ranges::new([10.0, 300.0], [20.0, 100.0], [0.5, 8.0]);
    let plain = ranges.at(point);
    let spread = logarithmic([2.0, 30.0], point[3]);
    let outage = logarithmic([10.0, 300.0], random.random());
    let loss = logarithmic([1e-4, 0.01], random.random());
    let mut scenario = described("low orbit", plain);
    let variation = DelayVariation {
        every: Duration::from_secs_f64(PERIOD),
        spread: milliseconds(spread),
        drift: milliseconds(spread / 4.0),
        seed: random.random_range(1..1_000_000),
    };
    for direction in [&mut scenario.forward, &mut scenario.reverse] {
        direction.delay.variation = Some(variation);
        direction.delay.jitter = milliseconds(1.0);
    }
    let outage_at = PERIOD - outage / 1e3;
    let point = |at_s, mbps| RatePoint {
        at: Duration::from_secs_f64(at_s),
        bits_per_second: 1e6 * mbps,
        ramp: false,
    };
    scenario.forward.service = Service::Rate(Rate {
        points: vec![point(0.0, plain.mbps), point(outage_at, 0.0)],
        repeat: Some(Duration::from_secs_f64(PERIOD)),
    });
    scenario.forward.loss = Loss::Bernoulli(loss);
    scenario.description += &format!(
        ", a delay that moves by {spread} ms, outages of {outage} ms, loss {} %",
        three_digits(100.0 * loss)
    );
    scenario
}

/// A queue of the sending host itself, on most of these links the slowest part.
fn host_queue(point: Point, _: &mut Xoshiro256PlusPlus) -> Scenario {
    let plain = ORDINARY.at(point);
    let mbps = three_digits(plain.mbps * logarithmic([0.2, 1.3], point[3]));
    let mut scenario = described("a host's queue", plain);
    scenario.sender = Some(SenderQueue {
        bits_per_second: mbps * 1e6,
        burst: SenderQueue::default_burst(mbps * 1e6),
        packets: SenderQueue::PACKETS,
    });
    scenario.description += &format!(", a host that sends at {mbps} Mbit/s");
    scenario
}

/// A flow under test beside a cubic flow with an application.
fn beside(plain: Plain, app: App, name: &str) -> Scenario {
    let other = Flow {
        scheme: Some("cubic".to_owned()),
        app,
        ..Flow::default()
    };
    Scenario {
        description: format!("beside {name}: {plain}"),
        flows: vec![Flow::default(), other],
        // A fair share is not defined beside a flow that wants less.
        scoring: shared(Rule::Power, 0),
        ..plain.scenario()
    }
}

fn described(kind: &str, plain: Plain) -> Scenario {
    Scenario {
        description: format!("{kind}: {plain}"),
        ..plain.scenario()
    }
}

/// Flows that start within 4 s, and differ in RTT by up to 40 ms.
fn flows(count: usize, scheme: Option<&str>, random: &mut Xoshiro256PlusPlus) -> Vec<Flow> {
    let flow = |_| Flow {
        start: milliseconds(f64::from(random.random_range(0_u32..4_000))),
        scheme: scheme.map(str::to_owned),
        extra_delay: milliseconds(f64::from(random.random_range(0_u32..20))),
        ..Flow::default()
    };
    (0..count).map(flow).collect()
}

/// A run of 60 s, of which the time from 10 s on is scored.
fn shared(rule: Rule, flow: usize) -> Scoring {
    Scoring {
        length: Some(Duration::from_secs(60)),
        rule: Some(rule),
        flow: Some(flow),
        segments: vec![Duration::from_secs(10)..Duration::from_secs(60)],
    }
}

fn milliseconds(ms: f64) -> Duration {
    Duration::from_nanos((ms * 1e6).round() as u64)
}
