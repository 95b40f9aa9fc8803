//! Aurora's recipe (Jay, Rotman, Godfrey, Schapira and Tamar: "A Deep Reinforcement Learning
//! Perspective on Internet Congestion Control", ICML 2019): a small network changes the rate by a
//! part after each monitor interval. State, action, reward and architecture are those of the paper
//! and of its code (github.com/PCCproject/PCC-RL); the weights are of our own training, on its
//! distribution of links but in this simulator, by `examples/train_aurora.rs`.
//!
//! Intervals are those of Vivace, as in the authors' implementation: the segments sent in about a
//! round trip, whose results are known a round trip later. Their training environment takes what
//! happens in half a round trip instead.

mod network;

use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use cc_ebpf::{AckSample, CwndState};
use rand::{RngExt, SeedableRng, rngs::Xoshiro256PlusPlus};
use rand_distr::StandardNormal;

use super::{
    CongestionControl, LostSegment, RateSample,
    monitor::{Interval, Monitor},
};
use crate::path::Nanos;

pub use network::{Activations, Layer, Network, Observation};

/// Number of intervals in an observation (η, section 4.1).
const HISTORY: usize = 10;
/// Part of the rate by which an action of 1 changes it (α, section 4.1).
const STEP: f64 = 0.025;
/// The rate at which a connection begins, and the bounds of the rate, Mbit/s: those of the authors'
/// client (`loaded_client.py`). There is no slow start.
const FIRST_RATE: f64 = 6.0;
const RATES: (f64, f64) = (0.5, 300.0);
/// What an interval without any ACK shows (`sender_obs.py`).
const NOTHING: [f32; 3] = [0.0, 0.0, 1.0];

/// The policy that `examples/train_aurora.rs` has trained.
static TRAINED: LazyLock<Arc<Network>> = LazyLock::new(|| {
    let network = Network::parse(include_str!("aurora/weights.txt"));
    Arc::new(network.expect("the weights are complete, which a test checks"))
});

/// The state of Aurora for one connection.
#[derive(Clone, Debug)]
pub struct Aurora {
    network: Arc<Network>,
    explorer: Option<Explorer>,
    /// The rate of payload in Mbit/s.
    rate: f64,
    /// Whether an interval has results: the first action waits for them.
    has_results: bool,
    /// Latency gradient, latency ratio and send ratio of the last intervals, the oldest first.
    history: [[f32; 3]; HISTORY],
    /// Smallest mean RTT of an interval, s.
    least_rtt: Option<f64>,
    /// The purpose of an interval is whether an action chose its rate.
    monitor: Monitor<bool>,
}

/// What a training episode has seen. The reward of a step is known a round trip after its action.
#[derive(Clone, Debug, Default)]
pub struct Experience {
    /// What the network saw before each action.
    pub observations: Vec<Observation>,
    /// The actions drawn, one for each observation.
    pub actions: Vec<f32>,
    /// The rewards of the first steps.
    pub rewards: Vec<f32>,
}

/// Draws actions around the network's, and keeps what came of them.
#[derive(Clone, Debug)]
struct Explorer {
    random: Xoshiro256PlusPlus,
    deviation: f32,
    experience: Arc<Mutex<Experience>>,
}

impl Aurora {
    /// Creates the control with the trained policy.
    pub fn new() -> Self {
        Self::with(TRAINED.clone(), None, FIRST_RATE)
    }

    /// Creates a control for training. It begins at `rate` Mbit/s, draws actions with this standard
    /// deviation around the network's, and appends to `experience`.
    pub fn exploring(
        network: Arc<Network>,
        rate: f64,
        deviation: f32,
        seed: u64,
        experience: Arc<Mutex<Experience>>,
    ) -> Self {
        let explorer = Explorer {
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            deviation,
            experience,
        };
        Self::with(network, Some(explorer), rate)
    }

    fn with(network: Arc<Network>, explorer: Option<Explorer>, rate: f64) -> Self {
        Self {
            network,
            explorer,
            rate,
            has_results: false,
            history: [NOTHING; HISTORY],
            least_rtt: None,
            monitor: Monitor::new(),
        }
    }

    /// Begins the next monitor interval, at a new rate as soon as there are results to act on.
    fn begin(&mut self) {
        if self.has_results {
            let mut observation = [0.0; 3 * HISTORY];
            let values = self.history.iter().flatten();
            (observation.iter_mut().zip(values)).for_each(|(to, from)| *to = *from);
            let action = self.network.activations(&observation).output;
            let action = match &mut self.explorer {
                None => action,
                Some(explorer) => explorer.draw(&observation, action),
            };
            self.act(f64::from(action));
        }
        self.monitor.begin(self.has_results, self.rate);
    }

    /// Changes the rate so that opposite actions cancel out (equation 1).
    fn act(&mut self, action: f64) {
        let change = STEP * action;
        self.rate = match change >= 0.0 {
            true => self.rate * (1.0 + change),
            false => self.rate / (1.0 - change),
        };
        self.rate = self.rate.clamp(RATES.0, RATES.1);
    }

    /// Takes the results of an interval into the history.
    fn learn(&mut self, interval: &Interval<bool>) {
        self.has_results = true;
        let shown = match interval.mean_rtt() {
            None => NOTHING,
            Some(rtt) => {
                let least = self.least_rtt.map_or(rtt, |least| least.min(rtt));
                self.least_rtt = Some(least);
                let sent = interval.sent_rate() * 1e6 / self.monitor.segment;
                let send_ratio = match interval.received_rate() {
                    Some(received) if received > 0.0 && sent > 0.0 => sent / received,
                    _ => 1.0,
                };
                [interval.rtt_growth(), rtt / least, send_ratio].map(|value| value as f32)
            }
        };
        self.history.rotate_left(1);
        self.history[HISTORY - 1] = shown;
        if let (true, Some(explorer)) = (interval.purpose, &self.explorer) {
            explorer.reward(reward(interval));
        }
    }
}

/// The reward of an interval: 10 · throughput in segments/s - 1000 · latency in s - 2000 · loss
/// (section 4.2), in thousands as in `network_sim.py`.
fn reward(interval: &Interval<bool>) -> f32 {
    let throughput = interval.received_rate().unwrap_or(0.0);
    let latency = interval.mean_rtt().unwrap_or(0.0);
    (1e-3 * (10.0 * throughput - 1e3 * latency - 2e3 * interval.loss())) as f32
}

impl Explorer {
    fn draw(&mut self, observation: &Observation, mean: f32) -> f32 {
        let noise: f32 = self.random.sample(StandardNormal);
        let action = mean + self.deviation * noise;
        let mut experience = lock(&self.experience);
        experience.observations.push(*observation);
        experience.actions.push(action);
        action
    }

    fn reward(&self, reward: f32) {
        lock(&self.experience).rewards.push(reward);
    }
}

fn lock(experience: &Mutex<Experience>) -> std::sync::MutexGuard<'_, Experience> {
    experience.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for Aurora {
    fn default() -> Self {
        Self::new()
    }
}

impl CongestionControl for Aurora {
    fn sets_cwnd_in_recovery(&self) -> bool {
        true
    }

    fn init(&mut self, now: Nanos, cwnd: &mut CwndState, rtt_us: u32) {
        self.monitor.init(now, rtt_us);
        cwnd.ssthresh = u32::MAX;
        self.begin();
    }

    fn on_ack(&mut self, cwnd: &mut CwndState, ack: &AckSample, rate: &RateSample) {
        self.monitor.acknowledge(ack, rate);
        while let Some(interval) = self.monitor.pop_complete(rate.sent) {
            self.learn(&interval);
        }
        if self.monitor.is_due() {
            self.begin();
        }
        cwnd.cwnd = self.monitor.cwnd(cwnd.clamp);
    }

    /// Losses do not change the cwnd.
    fn ssthresh(&mut self, cwnd: &CwndState) -> u32 {
        cwnd.cwnd.max(2)
    }

    fn tracks_transmissions(&self) -> bool {
        true
    }

    fn on_lost(&mut self, _cwnd: &CwndState, lost: &LostSegment) {
        self.monitor.lose(lost.sent);
    }

    fn pacing_rate(&self) -> Option<u64> {
        self.monitor.pacing_rate()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        monitor::Delivery,
        tests::{MS, Path},
    };
    use super::*;

    #[test]
    fn opposite_actions_cancel_out() {
        let mut aurora = Aurora::new();
        aurora.act(4.0);
        assert!((aurora.rate - 6.6).abs() < 1e-9, "{}", aurora.rate);
        aurora.act(-4.0);
        assert!((aurora.rate - 6.0).abs() < 1e-9, "{}", aurora.rate);
        aurora.act(-1e9);
        assert_eq!(aurora.rate, 0.5);
        aurora.act(1e9);
        assert_eq!(aurora.rate, 300.0);
    }

    #[test]
    fn an_interval_shows_gradient_ratio_and_send_ratio() {
        let mut aurora = Aurora::new();
        aurora.monitor.segment = 12_000.0;
        // 100 segments of 1,500 bytes in 100 ms; the half of them arrives in 200 ms.
        let mut interval = Interval::new(true, 12.0, 0, 100 * MS, 0);
        interval.close(100 * MS, 150_000);
        for number in 0..51 {
            interval.acknowledge(&Delivery {
                now: 200 * MS + number * 4 * MS,
                acked: 1,
                sent: number * 2 * MS,
                rtt_us: 40_000 + 200 * number as u32,
                limited: false,
            });
        }
        aurora.least_rtt = Some(0.03);
        aurora.learn(&interval);
        let [gradient, latency_ratio, send_ratio] = aurora.history[HISTORY - 1];
        assert!((gradient - 0.1).abs() < 1e-5, "{gradient}");
        assert!((latency_ratio - 1.5).abs() < 1e-5, "{latency_ratio}");
        assert!((send_ratio - 4.0).abs() < 1e-5, "{send_ratio}");
        assert_eq!(aurora.history[HISTORY - 2], NOTHING);
        // 250 segments/s and 45 ms without loss.
        assert!((reward(&interval) - (2.5 - 0.045)).abs() < 1e-5);
        (0..51).for_each(|_| interval.lose());
        assert!((reward(&interval) - (2.5 - 0.045 - 1.0)).abs() < 1e-5);
    }

    #[test]
    fn an_exploring_control_keeps_steps_in_order() {
        let experience = Arc::new(Mutex::new(Experience::default()));
        let mut aurora = Aurora::exploring(TRAINED.clone(), 6.0, 1.0, 7, Arc::clone(&experience));
        Path::new(2 * MS, 100 * MS).run(&mut aurora, 20_000 * MS);
        let experience = lock(&experience);
        let (steps, rewards) = (experience.actions.len(), experience.rewards.len());
        assert_eq!(experience.observations.len(), steps);
        assert!(rewards > 50 && rewards < steps, "{rewards} of {steps}");
        // The newest interval of an observation comes last.
        let late = experience.observations[steps - 1];
        assert_ne!(late[..3], late[27..]);
    }

    #[test]
    fn the_trained_policy_fills_a_link_like_those_it_was_trained_on() {
        // 400 segments/s and 100 ms.
        let mut aurora = Aurora::new();
        let mut path = Path::new(MS * 5 / 2, 100 * MS);
        path.run(&mut aurora, 60_000 * MS);
        let before = path.delivered();
        path.run(&mut aurora, 60_000 * MS);
        let delivered = path.delivered() - before;
        assert!(delivered > 18_000, "{delivered} of 24,000");
        let queue = path.longest_queue(60_000 * MS);
        assert!(queue < 400, "{queue}");
    }
}
