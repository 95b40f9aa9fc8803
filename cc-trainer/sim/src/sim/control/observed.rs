//! A congestion control that is watched as `cc-agent observe` watches flows on a host: its ACKs are
//! measured in windows by the datapath's own code ([`Flow::measure`]), and nothing else changes.

use bytemuck::Zeroable;
use cc_ebpf::{AckSample, CaState, CwndState, Decision, Flow, Record, Settings, Totals};

use super::records::{AF_INET, Records, address};
use super::{Acked, CongestionControl, Control, CwndEvent, LostSegment, RateSample, TransmitStart};
use crate::path::Nanos;

/// A congestion control, and the windows that an observer makes of its ACKs.
///
/// Its records wait until they are [taken](Self::take_record); unlike a learned control's they do
/// not stop [`Simulation::run`](crate::sim::Simulation::run).
#[derive(Debug)]
pub struct Observed {
    control: Control,
    name: [u32; 4],
    settings: Settings,
    flow: Flow,
    /// The newest ACK and the cwnd after it, for the summary at the flow's end.
    last: Option<(AckSample, u32)>,
    delivered: u64,
    /// Whether the flow has begun.
    opened: bool,
    records: Records,
}

impl Observed {
    /// Watches `control`, whose flows are recorded under `name`, of which 15 bytes are kept as in
    /// the kernel. Of the settings those of windows and of the minimum-RTT filter count.
    pub fn new(control: Control, name: &str, settings: Settings) -> Self {
        let mut bytes = [0; 16];
        let kept = &name.as_bytes()[..name.len().min(15)];
        bytes[..kept.len()].copy_from_slice(kept);
        Self::of(control, bytemuck::cast(bytes), settings)
    }

    fn of(control: Control, name: [u32; 4], settings: Settings) -> Self {
        Self {
            control,
            name,
            settings,
            flow: Flow::zeroed(),
            last: None,
            delivered: 0,
            opened: false,
            records: Records::default(),
        }
    }

    /// A control of the same kind, watched too, for another connection; `None` where the control
    /// serves one only. `seed` determines what is random in it.
    pub(super) fn another(&self, seed: u64) -> Option<Self> {
        let control = self.control.another(seed)?;
        let mut another = Self::of(control, self.name, self.settings);
        another.flow.opened.identity = self.flow.opened.identity;
        Some(another)
    }

    /// Sets the number of the host at the far end, as of a [learned](super::learned::Learned) flow.
    pub(super) fn set_host(&mut self, host: usize) {
        self.flow.opened.identity.remote_addr = address(host);
    }

    /// Takes the slot of a flow that has ended, and the records of it that were not taken.
    pub(super) fn succeed(&mut self, former: &Self) {
        self.flow.generation = former.flow.generation;
        self.records = former.records.clone();
    }

    /// Sets the slot that the flow's records name. Must be called before its first ACK.
    pub fn set_slot(&mut self, slot: u32) {
        debug_assert!(!self.opened, "the flow is open");
        self.flow.opened.header.slot = slot;
    }

    /// Removes and returns the oldest record; `None` when all have been taken.
    pub fn take_record(&mut self) -> Option<Record> {
        self.records.take()
    }

    /// The flow's state, which a real observer reads from the map of flows.
    pub fn flow(&self) -> &Flow {
        &self.flow
    }

    /// Ends the flow and puts out its closing record. Later calls do nothing.
    pub(super) fn release(&mut self, now: Nanos) {
        if self.flow.live == 0 {
            return;
        }
        self.flow.live = 0;
        if let Some((ack, cwnd)) = self.last {
            (self.records).closed(&self.flow, now, &ack, cwnd, self.delivered);
        }
    }

    /// Adds an ACK to the window, before the control does anything about it.
    fn measure(&mut self, cwnd: &CwndState, ack: &AckSample, rate: &RateSample) {
        if !self.opened {
            self.opened = true;
            self.open(cwnd, ack);
        }
        (self.flow).measure(ack, cwnd.cwnd, &self.settings, &mut self.records);
        self.delivered = rate.total_delivered;
        self.last = Some((*ack, cwnd.cwnd));
    }

    fn open(&mut self, cwnd: &CwndState, ack: &AckSample) {
        let slot = self.flow.opened.header.slot;
        let generation = Decision::next_generation(self.flow.generation);
        // A simulated connection is watched from its beginning, so its totals begin at 0.
        (self.flow).open(slot, generation, ack.now_ns, Totals::default(), 0);
        let identity = &mut self.flow.opened.identity;
        identity.family = AF_INET;
        identity.mss = ack.mss;
        identity.initial_cwnd = cwnd.cwnd;
        identity.congestion_control = self.name;
        self.records.opened(&self.flow);
    }
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
        self.measure(cwnd, ack, rate);
        self.control.on_ack(cwnd, ack, rate);
    }

    fn on_measurement(&mut self, cwnd: &mut CwndState, ack: &AckSample, rate: &RateSample) {
        self.measure(cwnd, ack, rate);
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
