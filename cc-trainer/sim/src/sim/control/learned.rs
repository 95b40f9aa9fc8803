//! The learned congestion control: the simulated sender's callbacks do what the BPF programs do on
//! the kernel's (`cc-ebpf/src/callbacks.rs`), by the same library code in the same order.

use bytemuck::Zeroable;
use cc_core::interface::Interface;
use cc_ebpf::{
    AckSample, CaState, CwndState, Decision, Flow, Heartbeat, Published, Record, Settings, Startup,
    Totals, first_flight_rate, reno, restart_after_idle,
};

use super::records::{AF_INET, Records, address};
use super::{CongestionControl, RateSample, TransmitStart};
use crate::path::Nanos;

/// Remote port of the flow in slot 0.
const FIRST_PORT: u16 = 5001;

/// A flow under the learned congestion control, and its slot of the BPF maps.
#[derive(Clone, Debug)]
pub struct Learned {
    settings: Settings,
    flow: Flow,
    /// The flow's entry in the cwnd map, which the agent published.
    cell: u64,
    /// Pacing rate in bytes/s; `None` before the first smoothed RTT.
    pacing: Option<u64>,
    /// The newest ACK and the cwnd after it, for the summary at the flow's end.
    last: Option<(AckSample, u32)>,
    delivered: u64,
    /// Whether the flow has begun.
    opened: bool,
    records: Records,
}

impl Learned {
    /// Creates a flow of a datapath with these settings, in slot 0.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            flow: Flow::zeroed(),
            cell: 0,
            pacing: None,
            last: None,
            delivered: 0,
            opened: false,
            records: Records::default(),
        }
    }

    /// A flow of the same datapath for another connection.
    pub(super) fn another(&self) -> Self {
        let mut another = Self::new(self.settings);
        another.flow.opened.identity = self.flow.opened.identity;
        another
    }

    /// Sets the number of the host at the far end, which the flow's records name by an address of
    /// its own. Must be called before its first ACK.
    pub(super) fn set_host(&mut self, host: usize) {
        self.flow.opened.identity.remote_addr = address(host);
    }

    /// Takes the slot of a flow that has ended: generations go on, so that a late decision for that
    /// flow is none for this one.
    pub(super) fn succeed(&mut self, former: &Self) {
        self.flow.generation = former.flow.generation;
        self.cell = former.cell;
    }

    /// The datapath's settings for policies with this interface. The simulated agent's heartbeat is
    /// never late.
    pub fn settings(interface: &Interface, startup: Startup) -> Settings {
        interface.datapath_settings().with_startup(startup)
    }

    /// Sets the slot that the flow's records name. Must be called before its first ACK.
    pub fn set_slot(&mut self, slot: u32) {
        debug_assert_eq!(self.flow.live, 0, "the flow is open");
        self.flow.opened.header.slot = slot;
    }

    /// Publishes a decision, which the next ACK takes up.
    pub fn publish(&mut self, decision: Decision) {
        self.cell = decision.to_cell();
    }

    /// Ends the flow and puts out its closing record. Later calls do nothing.
    pub fn release(&mut self, now: Nanos) {
        if self.flow.live == 0 {
            return;
        }
        self.flow.live = 0;
        if let Some((ack, cwnd)) = self.last {
            (self.records).closed(&self.flow, now, &ack, cwnd, self.delivered);
        }
    }

    /// Removes and returns the oldest record; `None` when all have been taken.
    pub fn take_record(&mut self) -> Option<Record> {
        self.records.take()
    }

    /// Whether a record waits to be taken by the agent.
    pub fn has_record(&self) -> bool {
        !self.records.is_empty()
    }

    /// The flow's state, which a real agent reads from the map of flows.
    pub fn flow(&self) -> &Flow {
        &self.flow
    }

    fn slot(&self) -> u32 {
        self.flow.opened.header.slot
    }

    fn open(&mut self, cwnd: &CwndState, ack: &AckSample) {
        let (slot, now) = (self.slot(), ack.now_ns);
        let generation = Decision::next_generation(self.flow.generation);
        // Simulated connections begin under this control, so their totals begin at 0.
        (self.flow).open(slot, generation, now, Totals::default(), self.cell);
        self.flow.opened.identity.family = AF_INET;
        // Tells the flows of a link apart, as those of an emulated one.
        self.flow.opened.identity.remote_port = FIRST_PORT.wrapping_add(slot as u16);
        self.flow.opened.identity.mss = ack.mss;
        self.flow.opened.identity.initial_cwnd = cwnd.cwnd;
        self.records.opened(&self.flow);
    }
}

impl CongestionControl for Learned {
    fn sets_cwnd_in_recovery(&self) -> bool {
        true
    }

    fn on_ack(&mut self, cwnd: &mut CwndState, ack: &AckSample, rate: &RateSample) {
        if !self.opened {
            self.opened = true;
            self.open(cwnd, ack);
        }
        let published = Published {
            cell: self.cell,
            heartbeat: &Heartbeat {
                at_ns: ack.now_ns,
                pid: 0,
            },
        };
        (self.flow).on_ack(cwnd, ack, || published, &self.settings, &mut self.records);
        let pacing = (self.flow.controller).pacing_rate(cwnd, ack, &self.settings);
        self.pacing = pacing.or(self.pacing);
        self.delivered = rate.total_delivered;
        self.last = Some((*ack, cwnd.cwnd));
    }

    fn ssthresh(&mut self, cwnd: &CwndState) -> u32 {
        if self.flow.live == 0 {
            return reno::ssthresh(cwnd.cwnd);
        }
        self.flow.controller.ssthresh(cwnd.cwnd)
    }

    fn undo(&mut self, cwnd: &CwndState, prior: u32) -> u32 {
        if self.flow.live == 0 {
            return reno::undo(cwnd.cwnd, prior);
        }
        self.flow.controller.undo(cwnd.cwnd, prior)
    }

    fn on_state(&mut self, _: Nanos, _: &mut CwndState, state: CaState) {
        if self.flow.live != 0 {
            self.flow.controller.on_state(state);
        }
    }

    fn on_transmit_start(&mut self, _now: Nanos, cwnd: &mut CwndState, start: &TransmitStart) {
        if self.flow.live == 0 {
            restart_after_idle(cwnd, start.idle, start.rto);
        } else {
            (self.flow.controller).on_transmission(cwnd, start.idle, start.rto);
        }
        if start.outstanding {
            return;
        }
        let first_flight =
            (self.last).and_then(|(ack, _)| first_flight_rate(cwnd.cwnd, ack.srtt_us, ack.mss));
        self.pacing = self.pacing.max(first_flight);
    }

    fn pacing_rate(&self) -> Option<u64> {
        self.pacing.filter(|_| self.settings.pacing_gain_1024 != 0)
    }

    fn min_burst(&self) -> u32 {
        self.settings.min_burst()
    }
}

#[cfg(test)]
mod tests {
    use cc_ebpf::Feature;
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;

    const MS: u64 = 1_000_000;

    fn learned(pacing_gain: Option<f32>) -> Learned {
        let interface = Interface {
            pacing_gain,
            ..Interface::default()
        };
        Learned::new(Learned::settings(&interface, Startup::SlowStart))
    }

    fn ack(now_ns: u64, rtt_us: u32, totals: Totals) -> AckSample {
        AckSample {
            now_ns,
            rtt_us,
            srtt_us: 30_000,
            rttvar_us: 500,
            mss: 1448,
            header_len: 32,
            in_flight: 8,
            acked: 2,
            lost: 0,
            delivered: 10,
            interval_us: 30_000,
            retransmits: 0,
            cwnd_limited: true,
            max_packets_out: 10,
            app_limited: false,
            idle: false,
            decays_unused: true,
            ca_state: CaState::Open,
            totals,
        }
    }

    fn cwnd() -> CwndState {
        CwndState {
            cwnd: 10,
            ssthresh: u32::MAX,
            cwnd_cnt: 0,
            clamp: u32::MAX,
        }
    }

    /// Sums, means, deviations and extremes are recomputed from what each ACK held.
    #[test]
    fn the_features_of_a_window_are_those_of_its_acks() {
        let mut random = StdRng::seed_from_u64(1);
        let mut flow = learned(None);
        let mut cwnd = cwnd();
        let mut totals = Totals::default();
        let (mut rtts, mut sent, mut cwnds) = (vec![], vec![], vec![]);
        let (mut least, mut now, mut start) = (u32::MAX, 5 * MS, 5 * MS);
        let mut windows = 0;
        while windows < 20 {
            let over = now - start >= 100 * MS;
            let bytes = 1448 * random.random_range(1..5);
            totals.bytes_sent += bytes;
            totals.segs_in += 1;
            let rtt = random.random_range(20_000..60_000);
            let before = cwnd.cwnd;
            flow.on_ack(&mut cwnd, &ack(now, rtt, totals), &RateSample::default());
            if windows == 0 && rtts.is_empty() {
                assert!(matches!(flow.take_record(), Some(Record::Opened(_))));
            }
            if over {
                let Some(Record::Window(record)) = flow.take_record() else {
                    panic!("a window is over at {now}");
                };
                windows += 1;
                assert_eq!((record.index, record.acks as usize), (windows, rtts.len()));
                assert_eq!((record.start_ns, record.header.time_ns), (start, now));
                let check = |feature: Feature, values: &[f64]| {
                    let (i, n) = (feature as usize, values.len() as f64);
                    let mean = values.iter().sum::<f64>() / n;
                    let square = |v: &f64| (v - mean).powi(2);
                    let variance = values.iter().map(square).sum::<f64>() / (n - 1.0);
                    let statistics = &record.features;
                    assert_eq!(statistics.sum[i] as f64, values.iter().sum::<f64>());
                    assert!((statistics.mean(i, record.acks) - mean).abs() < 1e-9 * mean);
                    let found = statistics.variance(i, record.acks);
                    assert!((found - variance).abs() <= 1e-6 * variance);
                    let largest = values.iter().copied().fold(f64::MIN, f64::max);
                    assert_eq!(f64::from(statistics.max[i]), largest);
                };
                check(Feature::LatestRtt, &rtts);
                check(Feature::Sent, &sent);
                check(Feature::Cwnd, &cwnds);
                let i = Feature::RttMin as usize;
                assert_eq!(record.features.min[i], least);
                (rtts, sent, cwnds) = (vec![], vec![], vec![]);
                start = now;
            }
            least = least.min(rtt);
            rtts.push(f64::from(rtt));
            sent.push(bytes as f64);
            cwnds.push(f64::from(before) * 1448.0);
            assert!(!flow.has_record(), "one record per window");
            now += random.random_range(1..9) * MS;
        }
        let open = &flow.flow().window;
        assert_eq!((open.index, open.acks as usize), (windows + 1, rtts.len()));
    }

    #[test]
    fn a_published_decision_is_taken_up_by_the_next_ack() {
        let mut flow = learned(Some(1.25));
        flow.set_slot(3);
        let mut cwnd = cwnd();
        let mut totals = Totals::default();
        let rate = RateSample::default();
        flow.on_ack(&mut cwnd, &ack(MS, 30_000, totals), &rate);
        assert_eq!(cwnd.cwnd, 12, "slow start");
        let opened = flow.take_record().expect("the flow is open");
        assert_eq!((opened.header().slot, opened.header().generation), (3, 1));
        flow.publish(Decision {
            generation: 1,
            window: 1,
            cwnd: 18,
        });
        assert_eq!(cwnd.cwnd, 12);
        totals.bytes_sent = 5;
        flow.on_ack(&mut cwnd, &ack(2 * MS, 30_000, totals), &rate);
        assert_eq!(cwnd.cwnd, 18);
        assert!(
            flow.ssthresh(&cwnd) > 1 << 30,
            "losses leave a decision alone"
        );
        // 1.25 × 18 segments in 30 ms.
        assert_eq!(
            flow.pacing_rate(),
            Some(1448 * 18 * 1_000_000 / 30_000 * 5 / 4)
        );
        assert_eq!((flow.min_burst(), learned(None).min_burst()), (1, 2));
        assert_eq!(learned(None).pacing_rate(), None);
        flow.release(9 * MS);
        let Some(Record::Closed(closed)) = flow.take_record() else {
            panic!("closed");
        };
        assert_eq!((closed.header.time_ns, closed.cwnd), (9 * MS, 18));
        flow.release(10 * MS);
        assert!(!flow.has_record(), "closed once");
    }

    #[test]
    fn a_timeout_starts_slowly_up_to_the_decision() {
        let mut flow = learned(None);
        let mut cwnd = cwnd();
        let rate = RateSample::default();
        flow.on_ack(&mut cwnd, &ack(MS, 30_000, Totals::default()), &rate);
        flow.publish(Decision {
            generation: 1,
            window: 1,
            cwnd: 6,
        });
        flow.on_ack(&mut cwnd, &ack(2 * MS, 30_000, Totals::default()), &rate);
        flow.on_state(3 * MS, &mut cwnd, CaState::Loss);
        cwnd.cwnd = 1;
        flow.on_ack(&mut cwnd, &ack(4 * MS, 30_000, Totals::default()), &rate);
        assert_eq!(cwnd.cwnd, 3);
        flow.on_ack(&mut cwnd, &ack(5 * MS, 30_000, Totals::default()), &rate);
        flow.on_ack(&mut cwnd, &ack(6 * MS, 30_000, Totals::default()), &rate);
        assert_eq!(cwnd.cwnd, 6);
    }
}
