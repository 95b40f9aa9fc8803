//! The links that a policy is trained on: sets of scenarios, and families from which each episode draws one.

use std::sync::Arc;
use std::time::Duration;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, seq::IndexedRandom};
use serde::{Deserialize, Serialize};

use super::ConfigError;
use cc_sim::scenario::{
    self, Cellular, Delay, DelayChange, Direction, Flow, Loss, MAX_FLOWS, MTU, Poisson, Policer,
    Queue, Rate, RatePoint, Scenario, Service, Trace,
};

/// A kind of link, and how often it comes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// What share of the episodes it gets, relative to the other entries.
    #[serde(default = "one")]
    pub weight: f64,
    /// Scenarios as `--scenarios` names them: sets, their scenarios, files. Each episode takes one of them.
    pub scenarios: Option<String>,
    /// Or a family of random links.
    pub random: Option<Random>,
    /// The flows on it. Without this, a scenario has its own, and a random link has one.
    pub flows: Option<Flows>,
    /// The episode begins up to so many seconds into the scenario, drawn each time: a schedule or a trace that always
    /// began alike would be learned by heart, down to the first packets.
    #[serde(default)]
    pub shift_s: f64,
}

/// Two numbers, the least and the most.
pub type Range = [f64; 2];

/// A family of random links. Ranges of rates, delays, queues and probabilities are drawn from evenly by their
/// logarithm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Random {
    /// Mbit/s of IP packets. What a step costs grows with it.
    pub rate_mbps: Range,
    /// How the rate behaves.
    pub service: Kind,
    /// Propagation, ms one way; the same in both directions.
    pub delay_ms: Range,
    /// The queue, in products of rate and base RTT; at least one packet.
    pub queue_bdp: Range,
    /// The queue in packets, in place of that.
    pub queue_packets: Option<Range>,
    /// Random loss, a probability.
    pub loss: Option<Sometimes>,
    /// Standard deviation of the delay per packet, ms.
    pub jitter_ms: Option<Sometimes>,
    /// The delay changes once, by a factor.
    pub delay_factor: Option<Sometimes>,
    /// A policer of this share of the link's rate ahead of its queue; its bucket holds 3 kB to 100 kB.
    pub policer: Option<Sometimes>,
    /// ACKs are delivered together, once each such period of ms.
    pub ack_aggregation_ms: Option<Sometimes>,
    /// The way back sends one opportunity of 1504 bytes each such period of ms.
    pub ack_every_ms: Option<Sometimes>,
}

/// How a random link's rate behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// It stays.
    #[default]
    Constant,
    /// It stays, and packets leave at random times, as on the calibrated paths of Pantheon.
    Poisson,
    /// A generated cellular trace ([`Cellular`]), its parameters drawn.
    Cellular,
    /// It jumps every 1 to 10 s, to between a quarter and four times the drawn rate.
    Steps,
    /// It moves linearly between such rates.
    Ramps,
    /// It is interrupted every few seconds, for 0.1 to 2 s.
    Outages,
}

/// Something that only some links have.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sometimes {
    /// The share of links that have it.
    pub share: f64,
    /// Its range on those.
    pub range: Range,
}

/// The flows on a link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Flows {
    /// How many are learned, between the two.
    pub learned: [usize; 2],
    /// All but the first learned flow start within so many seconds.
    pub stagger_s: f64,
    /// Added to each flow's propagation in each direction: up to so many ms.
    pub extra_delay_ms: f64,
    /// The share of links that have other flows too.
    pub background_share: f64,
    /// How many of those.
    pub background: [usize; 2],
    /// What they run, each drawn from these.
    pub schemes: Vec<String>,
}

/// An episode's link.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) scenario: Arc<Scenario>,
    pub(super) task: usize,
    /// When the episode begins.
    pub(super) begins: Duration,
}

/// All entries, their scenarios read.
#[derive(Clone, Debug)]
pub(super) struct Links {
    entries: Vec<Loaded>,
    tasks: Vec<String>,
}

#[derive(Clone, Debug)]
struct Loaded {
    /// Sum of the weights up to this one.
    until: f64,
    first_task: usize,
    source: Source,
    flows: Option<Flows>,
    shift_s: f64,
}

#[derive(Clone, Debug)]
enum Source {
    Scenarios(Vec<Arc<Scenario>>),
    Random(Box<Random>),
}

/// What other flows may run.
pub const SCHEMES: [&str; 4] = ["bbr", "copa", "cubic", "reno"];

/// The fastest random link, Mbit/s: a step of 100 ms on it is some 10,000 packets.
const MAX_MBPS: f64 = 1000.0;

impl Links {
    /// Reads and checks the entries.
    pub(super) fn new(entries: &[Entry]) -> Result<Self, ConfigError> {
        let mut links = Self {
            entries: Vec::new(),
            tasks: Vec::new(),
        };
        let mut until = 0.0;
        for (index, entry) in entries.iter().enumerate() {
            let place = |field: &str| format!("links[{index}].{field}");
            check(entry.weight, [f64::MIN_POSITIVE, 1e6], || place("weight"))?;
            check(entry.shift_s, [0.0, 1e5], || place("shift_s"))?;
            if let Some(flows) = &entry.flows {
                flows.check(|field| place(&format!("flows.{field}")))?;
            }
            let first_task = links.tasks.len();
            let source = match (&entry.scenarios, &entry.random) {
                (Some(spec), None) => {
                    let scenarios = scenario::load(spec)?;
                    for scenario in &scenarios {
                        check_scenario(scenario, entry.flows.is_some())?;
                        links.tasks.push(scenario.name.clone());
                    }
                    Source::Scenarios(scenarios.into_iter().map(Arc::new).collect())
                }
                (None, Some(random)) => {
                    random.check(|field| place(&format!("random.{field}")))?;
                    links.tasks.push(format!("random-{index}"));
                    Source::Random(Box::new(random.clone()))
                }
                _ => {
                    return Err(ConfigError::Entry { index });
                }
            };
            until += entry.weight;
            links.entries.push(Loaded {
                until,
                first_task,
                source,
                flows: entry.flows.clone(),
                shift_s: entry.shift_s,
            });
        }
        if links.entries.is_empty() {
            return Err(ConfigError::NoLinks);
        }
        Ok(links)
    }

    /// Names of the tasks.
    pub(super) fn tasks(&self) -> &[String] {
        &self.tasks
    }

    /// The most learned flows that a link may have.
    pub(super) fn most_learned(&self) -> usize {
        let most = |entry: &Loaded| match (&entry.flows, &entry.source) {
            (Some(flows), _) => flows.learned[1],
            (None, Source::Scenarios(scenarios)) => {
                let learned = |scenario: &Arc<Scenario>| {
                    let flows = scenario.flows.iter();
                    flows.filter(|flow| flow.scheme.is_none()).count()
                };
                scenarios.iter().map(learned).max().unwrap_or(1)
            }
            (None, Source::Random(_)) => 1,
        };
        self.entries.iter().map(most).max().unwrap_or(1)
    }

    /// A link for an episode of so many seconds.
    pub(super) fn draw(&self, seconds: f64, random: &mut Xoshiro256PlusPlus) -> Link {
        let total = self.entries.last().map_or(0.0, |entry| entry.until);
        let place = random.random::<f64>() * total;
        let index = self.entries.partition_point(|entry| entry.until <= place);
        let entry = &self.entries[index.min(self.entries.len() - 1)];
        let (scenario, offset) = match &entry.source {
            Source::Scenarios(scenarios) => {
                let index = random.random_range(0..scenarios.len());
                (Arc::clone(&scenarios[index]), index)
            }
            Source::Random(family) => (Arc::new(family.draw(seconds, random)), 0),
        };
        let mut link = Link {
            scenario,
            task: entry.first_task + offset,
            begins: Duration::from_secs_f64(random.random::<f64>() * entry.shift_s),
        };
        if entry.flows.is_some() || !link.begins.is_zero() {
            let scenario = Arc::make_mut(&mut link.scenario);
            if let Some(flows) = &entry.flows {
                scenario.flows = flows.draw(seconds, random);
            }
            for flow in &mut scenario.flows {
                flow.start += link.begins;
                flow.stop = flow.stop.map(|stop| stop + link.begins);
            }
        }
        link
    }
}

impl Random {
    fn check(&self, place: impl Fn(&str) -> String) -> Result<(), ConfigError> {
        let logarithmic = |name: &str, range: Range, least: f64, most: f64| {
            ordered(range, least, most, || place(name))
        };
        logarithmic("rate_mbps", self.rate_mbps, 0.01, MAX_MBPS)?;
        logarithmic("delay_ms", self.delay_ms, 0.01, 10_000.0)?;
        logarithmic("queue_bdp", self.queue_bdp, 1e-3, 1e3)?;
        if let Some(range) = self.queue_packets {
            logarithmic("queue_packets", range, 1.0, 1e6)?;
        }
        for (name, sometimes, least, most) in [
            ("loss", self.loss, 1e-9, 0.9),
            ("jitter_ms", self.jitter_ms, 1e-3, 1e3),
            ("delay_factor", self.delay_factor, 0.01, 100.0),
            ("policer", self.policer, 0.01, 10.0),
            ("ack_aggregation_ms", self.ack_aggregation_ms, 0.1, 1e3),
            ("ack_every_ms", self.ack_every_ms, 1.0, 1e3),
        ] {
            if let Some(Sometimes { share, range }) = sometimes {
                check(share, [0.0, 1.0], || place(&format!("{name}.share")))?;
                logarithmic(&format!("{name}.range"), range, least, most)?;
            }
        }
        Ok(())
    }

    fn draw(&self, seconds: f64, random: &mut Xoshiro256PlusPlus) -> Scenario {
        let mbps = logarithmic(self.rate_mbps, random);
        let base = milliseconds(logarithmic(self.delay_ms, random));
        let service = self.service.draw(mbps, seconds, random);
        let queue = match self.queue_packets {
            Some(range) => Queue {
                packets: Some(logarithmic(range, random).round() as u32),
                ..Queue::default()
            },
            None => {
                let product = mbps * 1e6 / 8.0 * 2.0 * base.as_secs_f64();
                let bytes = product * logarithmic(self.queue_bdp, random);
                Queue {
                    bytes: Some(bytes.max(f64::from(MTU)) as u64),
                    ..Queue::default()
                }
            }
        };
        let jitter = draw(self.jitter_ms, random).map_or(Duration::ZERO, milliseconds);
        let change = draw(self.delay_factor, random).map(|factor| DelayChange {
            at: Duration::from_secs_f64(random.random_range(0.2..0.8) * seconds),
            delay: base.mul_f64(factor),
        });
        let delay = Delay {
            base,
            changes: change.into_iter().collect(),
            jitter,
        };
        let policer = draw(self.policer, random).map(|share| Policer {
            bits_per_second: mbps * 1e6 * share,
            burst: logarithmic([3e3, 1e5], random) as u64,
        });
        let forward = Direction {
            policer,
            queue,
            service,
            loss: draw(self.loss, random).map_or(Loss::None, Loss::Bernoulli),
            aggregation: None,
            delay: delay.clone(),
        };
        let ack_service = draw(self.ack_every_ms, random)
            .and_then(|ms| Trace::from_times(vec![ms.round().max(1.0) as u32]).ok())
            .map_or(Service::Rate(Rate::constant(mbps * 1e6)), |trace| {
                Service::Opportunities(Arc::new(trace))
            });
        let reverse = Direction {
            policer: None,
            queue: Queue::default(),
            service: ack_service,
            loss: Loss::None,
            aggregation: draw(self.ack_aggregation_ms, random).map(milliseconds),
            delay,
        };
        Scenario {
            name: "random".to_owned(),
            description: String::new(),
            forward,
            reverse,
            flows: vec![Flow::default()],
        }
    }
}

impl Default for Random {
    /// Constant rates of 0.5 to 100 Mbit/s, RTTs of 4 to 200 ms, queues of 0.2 to 4 BDPs.
    fn default() -> Self {
        Self {
            rate_mbps: [0.5, 100.0],
            service: Kind::Constant,
            delay_ms: [2.0, 100.0],
            queue_bdp: [0.2, 4.0],
            queue_packets: None,
            loss: None,
            jitter_ms: None,
            delay_factor: None,
            policer: None,
            ack_aggregation_ms: None,
            ack_every_ms: None,
        }
    }
}

impl Kind {
    fn draw(self, mbps: f64, seconds: f64, random: &mut Xoshiro256PlusPlus) -> Service {
        let trace = match self {
            Self::Constant => return Service::Rate(Rate::constant(mbps * 1e6)),
            Self::Steps | Self::Ramps => {
                return Service::Rate(changing(mbps, seconds, self == Self::Ramps, random));
            }
            Self::Outages => return Service::Rate(interrupted(mbps, seconds, random)),
            Self::Poisson => Poisson {
                mbps,
                seconds,
                ramp_s: 0.0,
                seed: random.random(),
            }
            .trace(),
            Self::Cellular => Cellular {
                mbps,
                variation: random.random_range(0.2..0.9),
                correlation_s: logarithmic([1.0, 8.0], random),
                outage_share: random.random_range(0.0..0.06),
                outage_s: logarithmic([0.1, 0.6], random),
                batch: random.random_range(1.0..4.0),
                seconds,
                seed: random.random(),
            }
            .trace(),
        };
        match trace {
            Ok(trace) => Service::Opportunities(Arc::new(trace)),
            // Longer than a trace may be.
            Err(_) => Service::Rate(Rate::constant(mbps * 1e6)),
        }
    }
}

/// A rate that changes every few seconds.
fn changing(mbps: f64, seconds: f64, ramp: bool, random: &mut Xoshiro256PlusPlus) -> Rate {
    let period = [1.0, 10.0];
    let mut points = Vec::new();
    let mut at = 0.0;
    while at < seconds {
        points.push(RatePoint {
            at: Duration::from_secs_f64(at),
            bits_per_second: mbps * 1e6 * logarithmic([0.25, 4.0], random),
            ramp,
        });
        at += logarithmic(period, random);
    }
    Rate {
        points,
        repeat: None,
    }
}

/// A rate that is 0 for a while, again and again.
fn interrupted(mbps: f64, seconds: f64, random: &mut Xoshiro256PlusPlus) -> Rate {
    let point = |at: f64, mbps: f64| RatePoint {
        at: Duration::from_secs_f64(at),
        bits_per_second: mbps * 1e6,
        ramp: false,
    };
    let mut points = vec![point(0.0, mbps)];
    let mut at = 0.0;
    loop {
        at += random.random_range(1.0..8.0);
        if at >= seconds {
            break;
        }
        points.push(point(at, 0.0));
        at += logarithmic([0.1, 2.0], random);
        points.push(point(at, mbps));
    }
    Rate {
        points,
        repeat: None,
    }
}

impl Flows {
    fn check(&self, place: impl Fn(&str) -> String) -> Result<(), ConfigError> {
        let counts = |name: &str, [least, most]: [usize; 2], from: usize| {
            let bounds = [from as f64, MAX_FLOWS as f64 / 2.0];
            check(least as f64, bounds, || place(name))?;
            check(most as f64, [least as f64, bounds[1]], || place(name))
        };
        counts("learned", self.learned, 1)?;
        counts("background", self.background, 1)?;
        check(self.stagger_s, [0.0, 1e5], || place("stagger_s"))?;
        check(self.extra_delay_ms, [0.0, 1e4], || place("extra_delay_ms"))?;
        check(self.background_share, [0.0, 1.0], || {
            place("background_share")
        })?;
        for scheme in &self.schemes {
            check_scheme(scheme, || place("schemes"))?;
        }
        if self.background_share > 0.0 && self.schemes.is_empty() {
            return Err(ConfigError::Scheme {
                place: place("schemes"),
                found: String::new(),
            });
        }
        Ok(())
    }

    fn draw(&self, seconds: f64, random: &mut Xoshiro256PlusPlus) -> Vec<Flow> {
        let stagger = self.stagger_s.min(seconds * 0.8);
        let extra = |random: &mut Xoshiro256PlusPlus| {
            milliseconds(random.random::<f64>() * self.extra_delay_ms)
        };
        let start = |random: &mut Xoshiro256PlusPlus| {
            Duration::from_secs_f64(random.random::<f64>() * stagger)
        };
        let mut flows = vec![Flow {
            extra_delay: extra(random),
            ..Flow::default()
        }];
        for _ in 1..random.random_range(self.learned[0]..=self.learned[1]) {
            flows.push(Flow {
                start: start(random),
                extra_delay: extra(random),
                ..Flow::default()
            });
        }
        if random.random::<f64>() < self.background_share {
            for _ in 0..random.random_range(self.background[0]..=self.background[1]) {
                let start = start(random);
                // Half of them leave before the end.
                let rest = (seconds - start.as_secs_f64()).max(0.0);
                let stop = random
                    .random::<bool>()
                    .then(|| start + Duration::from_secs_f64(rest * random.random_range(0.2..1.0)));
                flows.push(Flow {
                    start,
                    stop,
                    scheme: self.schemes.choose(random).cloned(),
                    extra_delay: extra(random),
                });
            }
        }
        flows
    }
}

impl Default for Flows {
    /// One learned flow alone.
    fn default() -> Self {
        Self {
            learned: [1, 1],
            stagger_s: 0.0,
            extra_delay_ms: 0.0,
            background_share: 0.0,
            background: [1, 1],
            schemes: vec!["cubic".to_owned()],
        }
    }
}

fn check_scenario(scenario: &Scenario, own_flows: bool) -> Result<(), ConfigError> {
    let name = || format!("the scenario `{}`", scenario.name);
    if scenario.forward.service.mean_bits_per_second().is_none() {
        return Err(ConfigError::Unlimited {
            scenario: scenario.name.clone(),
        });
    }
    if own_flows {
        return Ok(());
    }
    for scheme in scenario.flows.iter().filter_map(|f| f.scheme.as_ref()) {
        check_scheme(scheme, name)?;
    }
    Ok(())
}

fn check_scheme(scheme: &str, place: impl Fn() -> String) -> Result<(), ConfigError> {
    if SCHEMES.contains(&scheme) {
        return Ok(());
    }
    Err(ConfigError::Scheme {
        place: place(),
        found: scheme.to_owned(),
    })
}

/// A range within limits, the smaller end first.
pub(super) fn ordered(
    range: Range,
    least: f64,
    most: f64,
    place: impl Fn() -> String,
) -> Result<(), ConfigError> {
    check(range[0], [least, most], &place)?;
    check(range[1], [range[0], most], &place)
}

fn check(value: f64, range: Range, place: impl Fn() -> String) -> Result<(), ConfigError> {
    if value >= range[0] && value <= range[1] {
        return Ok(());
    }
    Err(ConfigError::Range {
        place: place(),
        found: value,
        least: range[0],
        most: range[1],
    })
}

fn draw(sometimes: Option<Sometimes>, random: &mut Xoshiro256PlusPlus) -> Option<f64> {
    let Sometimes { share, range } = sometimes?;
    (random.random::<f64>() < share).then(|| logarithmic(range, random))
}

/// Drawn from a range evenly by its logarithm.
pub(super) fn logarithmic([least, most]: Range, random: &mut Xoshiro256PlusPlus) -> f64 {
    let (least, most) = (least.ln(), most.ln());
    (least + (most - least) * random.random::<f64>()).exp()
}

fn milliseconds(ms: f64) -> Duration {
    Duration::from_secs_f64(ms / 1e3)
}

fn one() -> f64 {
    1.0
}
