//! A congestion control that is observed as `cc-agent observe` observes the kernel's: each ACK is
//! measured before the control sees it, by the code that observes a socket (`cc-ebpf`), and the
//! control is left as it is.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytemuck::Zeroable;
use cc_ebpf::{
    AckSample, CaState, ClosedRecord, CwndState, Decision, Flow, Header, Identity, Record,
    RecordSink, Settings, Totals, WindowRecord,
};

use super::{Acked, CongestionControl, Control, CwndEvent, LostSegment, RateSample, TransmitStart};
use crate::path::Nanos;

/// A control of one connection, with what measures it.
///
/// ```
/// use bytemuck::Zeroable;
/// use cc_ebpf::{Identity, Record, Settings};
/// use cc_sim::{
///     scenario,
///     sim::{Control, Simulation, control::observed::Observed},
/// };
///
/// let text = "[[scenario]]\nname = \"link\"\nrate_mbps = 12\ndelay_ms = 30\nqueue = { bdp = 1 }";
/// let scenario = scenario::parse(text, "links.toml".as_ref())?.remove(0);
/// let cubic = Control::named("cubic", 1).expect("a known control");
/// let settings = Settings { window_ns: 100_000_000, ..Settings::default() };
/// let (control, observer) = Observed::new(cubic, settings, Identity::zeroed());
/// let mut simulation = Simulation::new(&scenario, vec![Control::Custom(Box::new(control))], 1);
/// simulation.run(1_000_000_000);
/// let windows = std::iter::from_fn(|| observer.take_record())
///     .filter(|record| matches!(record, Record::Window(_)))
///     .count();
/// assert!((7..=9).contains(&windows), "those of a second, less the handshake: {windows}");
/// # Ok::<(), cc_sim::scenario::ScenarioError>(())
/// ```
#[derive(Debug)]
pub struct Observed {
    control: Control,
    settings: Settings,
    identity: Identity,
    watched: Arc<Mutex<Watched>>,
}

/// The other end of an [`Observed`]: takes what was measured.
#[derive(Clone, Debug)]
pub struct Observer {
    watched: Arc<Mutex<Watched>>,
}

/// The slot of the flow, and the records that wait to be taken, the oldest first.
#[derive(Debug)]
struct Watched {
    flow: Flow,
    records: Records,
}

#[derive(Debug, Default)]
struct Records(VecDeque<Record>);

impl RecordSink for Records {
    fn window(&mut self, record: &WindowRecord) {
        self.0.push_back(Record::Window(*record));
    }
}

impl Observed {
    /// Wraps a control. Windows are as long as the settings say; the identity is that of the
    /// flow's opening record, with the MSS and the initial cwnd filled in.
    pub fn new(control: Control, settings: Settings, identity: Identity) -> (Self, Observer) {
        let watched = Arc::new(Mutex::new(Watched {
            flow: Flow::zeroed(),
            records: Records::default(),
        }));
        let observer = Observer {
            watched: watched.clone(),
        };
        let observed = Self {
            control,
            settings,
            identity,
            watched,
        };
        (observed, observer)
    }

    /// Measures an ACK that found the cwnd as given.
    fn measure(&self, cwnd: &CwndState, ack: &AckSample) {
        let Watched { flow, records } = &mut *lock(&self.watched);
        if flow.live == 0 {
            let generation = Decision::next_generation(flow.generation);
            flow.open(0, generation, ack.now_ns, Totals::default(), 0);
            flow.opened.identity = Identity {
                mss: ack.mss,
                initial_cwnd: cwnd.cwnd,
                ..self.identity
            };
            records.0.push_back(Record::Opened(flow.opened));
        }
        flow.measure(ack, cwnd.cwnd, &self.settings, records);
    }
}

impl Observer {
    /// Removes and returns the oldest record; `None` when all have been taken.
    pub fn take_record(&self) -> Option<Record> {
        lock(&self.watched).records.0.pop_front()
    }

    /// The flow's state, which a real observer reads from the map of flows.
    pub fn flow(&self) -> Flow {
        lock(&self.watched).flow
    }

    /// Ends the flow at `now` with a closing record, as when its socket is destroyed. Does nothing
    /// for a flow that had no ACK yet.
    pub fn close(&self, now: Nanos) {
        let Watched { flow, records } = &mut *lock(&self.watched);
        if flow.live == 0 {
            return;
        }
        flow.live = 0;
        let mut closed = ClosedRecord::zeroed();
        closed.header = Header::of::<ClosedRecord>(0, flow.generation, now);
        closed.windows = flow.window.index;
        records.0.push_back(Record::Closed(closed));
    }
}

/// No call panics while it holds the lock, so that the state is whole even in a poisoned one.
fn lock(watched: &Mutex<Watched>) -> MutexGuard<'_, Watched> {
    watched.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CongestionControl for Observed {
    fn sets_cwnd_in_recovery(&self) -> bool {
        self.control.sets_cwnd_in_recovery()
    }

    fn init(&mut self, now: Nanos, cwnd: &mut CwndState, rtt_us: u32) {
        self.control.init(now, cwnd, rtt_us);
    }

    fn on_acked(&mut self, cwnd: &CwndState, acked: &Acked) {
        self.control.on_acked(cwnd, acked);
    }

    fn on_ack(&mut self, cwnd: &mut CwndState, ack: &AckSample, rate: &RateSample) {
        self.measure(cwnd, ack);
        self.control.on_ack(cwnd, ack, rate);
    }

    fn on_measurement(&mut self, cwnd: &mut CwndState, ack: &AckSample, rate: &RateSample) {
        self.measure(cwnd, ack);
        self.control.on_measurement(cwnd, ack, rate);
    }

    fn ssthresh(&mut self, cwnd: &CwndState) -> u32 {
        self.control.ssthresh(cwnd)
    }

    fn undo(&mut self, cwnd: &CwndState, prior: u32) -> u32 {
        self.control.undo(cwnd, prior)
    }

    fn on_state(&mut self, now: Nanos, cwnd: &mut CwndState, state: CaState) {
        self.control.on_state(now, cwnd, state);
    }

    fn tracks_transmissions(&self) -> bool {
        self.control.tracks_transmissions()
    }

    fn on_lost(&mut self, cwnd: &CwndState, lost: &LostSegment) {
        self.control.on_lost(cwnd, lost);
    }

    fn on_transmit_start(&mut self, now: Nanos, cwnd: &mut CwndState, start: &TransmitStart) {
        self.control.on_transmit_start(now, cwnd, start);
    }

    fn on_event(&mut self, cwnd: &mut CwndState, event: CwndEvent) {
        self.control.on_event(cwnd, event);
    }

    fn pacing_rate(&self) -> Option<u64> {
        self.control.pacing_rate()
    }

    fn min_burst(&self) -> u32 {
        self.control.min_burst()
    }
}

#[cfg(test)]
mod tests {
    use cc_ebpf::Feature;

    use super::*;
    use crate::{
        scenario::{self, Scenario},
        sim::Simulation,
    };

    const SECOND: Nanos = 1_000_000_000;

    fn link() -> Scenario {
        let text = "[[scenario]]\nname = \"link\"\nrate_mbps = 12\ndelay_ms = 20\nloss = 0.001\n\
                    queue = { bdp = 1 }";
        let found = scenario::parse(text, "test.toml".as_ref());
        found.expect("a valid scenario").remove(0)
    }

    /// Observing changes nothing, and the acknowledged bytes of all windows are those that the
    /// sender counts.
    #[test]
    fn an_observed_control_does_what_it_does_alone() {
        let settings = Settings {
            window_ns: 100_000_000,
            ..Settings::default()
        };
        for name in ["reno", "cubic", "bbr"] {
            let control = || Control::named(name, 5).expect("a known control");
            let mut alone = Simulation::new(&link(), vec![control()], 3);
            alone.run(10 * SECOND);
            let (observed, observer) = Observed::new(control(), settings, Identity::zeroed());
            let controls = vec![Control::Custom(Box::new(observed))];
            let mut watched = Simulation::new(&link(), controls, 3);
            watched.run(10 * SECOND);
            assert_eq!(alone.flow(0), watched.flow(0), "{name}");
            observer.close(watched.now());
            let mut windows = Vec::new();
            let mut ends = (0, 0);
            while let Some(record) = observer.take_record() {
                match record {
                    Record::Opened(opened) => {
                        ends.0 += 1;
                        assert_eq!(opened.identity.initial_cwnd, 10, "{name}");
                    }
                    Record::Window(window) => windows.push(window),
                    _ => ends.1 += 1,
                }
            }
            assert_eq!(ends, (1, 1), "{name}");
            assert!((90..=100).contains(&windows.len()), "{}", windows.len());
            let open = observer.flow().window;
            let acked = |window: &WindowRecord| window.features.sum[Feature::Acked as usize];
            let bytes: u64 = windows.iter().map(acked).sum::<u64>() + acked(&open);
            // The SYN counts as delivered and is no payload.
            let delivered = (watched.flow(0).delivered - 1) * u64::from(windows[0].mss);
            assert_eq!(bytes, delivered, "{name}");
            let losses = |window: &WindowRecord| window.features.sum[Feature::Lost as usize];
            assert!(windows.iter().map(losses).sum::<u64>() > 0, "{name}");
        }
    }
}
