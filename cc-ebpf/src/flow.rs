//! One slot of the flow map: everything that the datapath keeps of a flow.

use core::sync::atomic::{Ordering, compiler_fence};

use bytemuck::{Pod, Zeroable};

use crate::{
    AckSample, Controller, CwndState, Events, Extractor, Feature, Features, Header, OpenedRecord,
    Published, Settings, Totals, WindowEnd, WindowRecord, slot::Tenure,
};

/// Where the records of a flow go: ring buffers in the kernel, a queue in the simulator.
pub trait RecordSink {
    /// Takes the record of a window that an ACK has closed.
    fn window(&mut self, record: &WindowRecord);

    /// Takes one ACK's features. `window` is the number of the window that they were added to, and
    /// `cwnd` the cwnd in segments that the ACK found. Does nothing by default.
    #[inline(always)]
    fn ack(&mut self, window: u32, ack: &AckSample, cwnd: u32, features: &Features) {
        let _ = (window, ack, cwnd, features);
    }
}

/// A flow's state, as it lies in its slot of the flow map.
///
/// The agent maps the slots read-only. It adopts the flows that a former agent left behind, and
/// closes the windows of flows that have fallen silent ([`Flow::silent_window`]).
///
/// [`Flow::on_ack`] is the definition of what an ACK does to a flow under this congestion control.
/// Flows of other congestion controls are only observed, by [`Flow::measure`].
///
/// ```
/// use cc_ebpf::{Flow, Heartbeat, Published, RecordSink, Settings, Totals, WindowRecord};
/// # use cc_ebpf::{AckSample, CaState, CwndState};
/// # let sample = |now_ns| AckSample {
/// #     now_ns, rtt_us: 30_000, srtt_us: 30_000, rttvar_us: 0, mss: 1448,
/// #     header_len: 32, in_flight: 8, acked: 2, lost: 0, delivered: 0, interval_us: 0,
/// #     retransmits: 0, cwnd_limited: true, max_packets_out: 20, app_limited: false, idle: false,
/// #     decays_unused: true,
/// #     ca_state: CaState::Open, totals: Totals::default(),
/// # };
/// struct Print;
///
/// impl RecordSink for Print {
///     fn window(&mut self, record: &WindowRecord) {
///         println!("window {}: {} ACKs", record.index, record.acks);
///     }
/// }
///
/// let settings = Settings { window_ns: 100_000_000, ..Settings::default() };
/// let mut cwnd = CwndState { cwnd: 10, ssthresh: u32::MAX, cwnd_cnt: 0, clamp: u32::MAX };
/// let mut flow: Flow = bytemuck::Zeroable::zeroed();
/// flow.open(0, 1, 1_000_000, Totals::default(), 0);
/// for ms in 1..=150 {
///     let ack = sample(ms * 1_000_000);
///     let heartbeat = Heartbeat { at_ns: ack.now_ns, pid: 1 };
///     let published = Published { cell: 0, heartbeat: &heartbeat };
///     flow.on_ack(&mut cwnd, &ack, || published, &settings, &mut Print);
/// }
/// // The first window had 100 ACKs; the second one has begun.
/// assert_eq!((flow.window.index, flow.window.acks), (2, 50));
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Flow {
    /// Odd while the datapath is changing the state: a reader that finds it odd, or changed after
    /// copying, copies again.
    pub sequence: u32,
    /// Counts the flows that have had this slot (modulo 2^20, never 0 for a flow).
    pub generation: u32,
    /// 1 from when the flow is opened until it is closed, otherwise 0.
    pub live: u32,
    /// The number of the [`WindowEnd`] of the last ACK.
    pub window_end: u32,
    /// The record that announced the flow: its identity and the time when it was opened.
    pub opened: OpenedRecord,
    /// The observation window that ACKs are added to.
    pub window: WindowRecord,
    /// Turns the flow's ACKs into features.
    pub extractor: Extractor,
    /// Sets the flow's cwnd. Unused for flows that are only observed.
    pub controller: Controller,
}

impl Flow {
    /// Starts a flow in its slot: its first window begins at `now_ns`, its features count from
    /// `base`, and `cell` is what the slot's previous flow may have left in the cwnd map. The
    /// caller fills in the identity of [`Flow::opened`].
    #[inline(always)]
    pub fn open(&mut self, slot: u32, generation: u32, now_ns: u64, base: Totals, cell: u64) {
        self.generation = generation;
        self.live = 1;
        self.opened.header = Header::of::<OpenedRecord>(slot, generation, now_ns);
        self.window.header = Header::of::<WindowRecord>(slot, generation, now_ns);
        self.window.acks = 0;
        self.window.restart(now_ns);
        self.window.index = 1;
        self.extractor.start(base);
        self.controller.start(cell, base);
    }

    /// Handles an ACK of a flow under this congestion control: measures it, then sets the cwnd.
    ///
    /// `published` reads what the agent has published. It is called when the ACK has been measured,
    /// as late as possible, so that it finds the newest decision.
    #[inline(always)]
    pub fn on_ack<'a>(
        &mut self,
        cwnd: &mut CwndState,
        ack: &AckSample,
        published: impl FnOnce() -> Published<'a>,
        settings: &Settings,
        sink: &mut impl RecordSink,
    ) -> Events {
        let ended = self.measure(ack, cwnd.cwnd, settings, sink);
        self.controller
            .on_ack(cwnd, ack, published(), self.generation, ended, settings)
    }

    /// Adds an ACK, which found the cwnd at `cwnd` segments, to the flow's window. When the
    /// window's time is up, the window is closed and emitted first, and the ACK is the first of the
    /// next window. Returns whether a window was emitted, and what limited the flow in it.
    ///
    /// A window without an ACK is not emitted. An ACK without features, before the first RTT is
    /// known, is not counted. Where the application pauses for an eighth of a window, in the window
    /// or at its end, the next ACK makes all of the window's ACKs before it application-limited:
    /// their rate over the window says nothing about the path.
    #[inline(always)]
    pub fn measure(
        &mut self,
        ack: &AckSample,
        cwnd: u32,
        settings: &Settings,
        sink: &mut impl RecordSink,
    ) -> WindowEnd {
        self.begin_change();
        self.window_end = WindowEnd::None as u32;
        // The first segment after a pause was sent an RTT ago.
        let rtt_us = if ack.rtt_us > 0 {
            ack.rtt_us
        } else {
            ack.srtt_us
        };
        let sent_ns = ack.now_ns.saturating_sub(u64::from(rtt_us) * 1_000);
        if ack.app_limited && self.has_paused(sent_ns, settings.window_ns) {
            self.window.app_limited_acks = self.window.acks;
        }
        if self.window.is_over(ack.now_ns, settings.window_ns) {
            if self.window.acks > 0 {
                self.close_window(ack.now_ns, cwnd, ack.mss);
                sink.window(&self.window);
                self.window_end = if self.window.is_application_limited() {
                    WindowEnd::ApplicationLimited as u32
                } else {
                    WindowEnd::NetworkLimited as u32
                };
            }
            self.window.restart(ack.now_ns);
        }
        let features = self
            .extractor
            .extract(ack, cwnd, settings.min_rtt_window_ns);
        if let Some(features) = features {
            // Before the loop over the features, which the verifier would otherwise follow with
            // each value of the flag.
            self.window.app_limited_acks += u32::from(ack.app_limited);
            self.window.marked = self.window.marked.saturating_add(self.extractor.marked());
            self.window.add(&features);
            sink.ack(self.window.index, ack, cwnd, &features);
        }
        self.end_change();
        WindowEnd::from_raw(self.window_end)
    }

    /// Whether the application has had nothing to send, at `now_ns`, for an eighth of a window.
    #[inline(always)]
    fn has_paused(&self, now_ns: u64, window_ns: u64) -> bool {
        self.extractor.idle_ns(now_ns) > window_ns / 8
    }

    /// Fills in what a window's record says of its end: the time, the decision in force, the cwnd
    /// in segments and the MSS in bytes.
    #[inline(always)]
    pub fn close_window(&mut self, now_ns: u64, cwnd: u32, mss: u32) {
        let (decision, taken_ns) = self.controller.taken();
        let record = &mut self.window;
        record.header.time_ns = now_ns;
        record.decision = decision;
        record.decision_taken_ns = taken_ns;
        record.cwnd = cwnd;
        record.mode = self.controller.mode() as u32;
        record.slow_start = u32::from(self.controller.slow_starts());
        record.mss = mss;
    }

    /// The record of the current window, closed at `now_ns` by a reader because no ACK comes to
    /// close it. `None` when the flow is closed, or the window, of length `window_ns`, is not over
    /// or has no ACK.
    ///
    /// The flow itself stays as it is: the datapath closes the window too, at the next ACK, and
    /// since nothing can have been added in between, that record repeats this one. The cwnd lies in
    /// the socket, out of the reader's sight, so the record has its mean over the window's ACKs.
    pub fn silent_window(&self, now_ns: u64, window_ns: u64) -> Option<WindowRecord> {
        let window = &self.window;
        let is_over = now_ns > window.start_ns + window_ns;
        if self.live != 1 || window.acks == 0 || !is_over {
            return None;
        }
        // The window that is still open has the MSS with which the one before it was closed.
        let mss = if window.mss == 0 {
            self.opened.identity.mss
        } else {
            window.mss
        };
        let mean_bytes = window.features.mean(Feature::Cwnd as usize, window.acks);
        let cwnd = mean_bytes as u64 / u64::from(mss.max(1));
        let mut closed = *self;
        closed.close_window(now_ns, cwnd as u32, mss);
        if self.has_paused(now_ns, window_ns) {
            closed.window.app_limited_acks = closed.window.acks;
        }
        Some(closed.window)
    }
}

impl Tenure for Flow {
    #[inline(always)]
    fn sequence(&self) -> u32 {
        self.sequence
    }

    #[inline(always)]
    fn set_sequence(&mut self, sequence: u32) {
        // SAFETY: a valid, aligned field of `self`; volatile so that the store is made, in order
        // with other volatile ones.
        unsafe { core::ptr::write_volatile(&mut self.sequence, sequence) };
    }

    #[inline(always)]
    fn order_stores(&self) {
        // The processor keeps the order of stores itself, as x86 does.
        compiler_fence(Ordering::SeqCst);
    }

    #[inline(always)]
    fn generation(&self) -> u32 {
        self.generation
    }

    #[inline(always)]
    fn is_live(&self) -> bool {
        self.live != 0
    }

    #[inline(always)]
    fn vacate(&mut self) {
        self.live = 0;
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;
    use crate::{CaState, Decision, FEATURES, Heartbeat, Mode, feature::tests::ack};

    const MS: u64 = 1_000_000;
    const WINDOW_NS: u64 = 100 * MS;

    /// Keeps every record.
    #[derive(Default)]
    struct Kept {
        windows: Vec<WindowRecord>,
        acks: Vec<(u32, u32, Features)>,
    }

    impl RecordSink for Kept {
        fn window(&mut self, record: &WindowRecord) {
            self.windows.push(*record);
        }

        fn ack(&mut self, window: u32, _: &AckSample, cwnd: u32, features: &Features) {
            self.acks.push((window, cwnd, *features));
        }
    }

    fn settings() -> Settings {
        Settings {
            window_ns: WINDOW_NS,
            heartbeat_limit_ns: 1_000 * MS,
            cwnd_max: 2_000,
            ..Settings::default()
        }
    }

    fn opened() -> Flow {
        let mut flow = Flow::zeroed();
        flow.open(3, 7, ack().now_ns, Totals::default(), 0);
        flow.opened.identity.mss = 1_000;
        flow
    }

    #[test]
    fn an_ack_after_the_windows_end_closes_it_and_begins_the_next() {
        let (mut flow, mut kept) = (opened(), Kept::default());
        let mut sample = ack();
        flow.measure(&sample, 10, &settings(), &mut kept);
        sample.now_ns += WINDOW_NS - 1;
        flow.measure(&sample, 11, &settings(), &mut kept);
        assert!(kept.windows.is_empty());
        sample.now_ns += 1;
        flow.measure(&sample, 12, &settings(), &mut kept);
        let window = kept.windows[0];
        assert_eq!((window.index, window.acks, window.cwnd), (1, 2, 12));
        assert_eq!((window.header.slot, window.header.generation), (3, 7));
        assert_eq!(window.header.time_ns, sample.now_ns);
        assert_eq!(
            (flow.window.index, flow.window.acks, flow.window.start_ns),
            (2, 1, sample.now_ns)
        );
        let seen: Vec<_> = kept.acks.iter().map(|ack| (ack.0, ack.1)).collect();
        assert_eq!(seen, [(1, 10), (1, 11), (2, 12)]);
    }

    #[test]
    fn a_window_without_acks_is_not_emitted() {
        let (mut flow, mut kept) = (opened(), Kept::default());
        let mut sample = ack();
        sample.rtt_us = 0;
        sample.srtt_us = 0;
        for _ in 0..3 {
            sample.now_ns += WINDOW_NS;
            flow.measure(&sample, 10, &settings(), &mut kept);
        }
        assert!(kept.windows.is_empty() && kept.acks.is_empty());
        assert_eq!(
            (flow.window.index, flow.window.start_ns),
            (1, sample.now_ns)
        );
    }

    /// Ten ACKs, of which the last acknowledges all that was written, and then, after a pause of
    /// `gap_ns` and the RTT, one that is or is not application-limited.
    fn ten_and(gap_ns: u64, app_limited: bool) -> (Flow, Kept) {
        let (mut flow, mut kept) = (opened(), Kept::default());
        let mut sample = ack();
        for left in (0..10).rev() {
            sample.now_ns += MS;
            sample.in_flight = left;
            sample.idle = left == 0;
            flow.measure(&sample, 10, &settings(), &mut kept);
        }
        sample.now_ns += gap_ns + u64::from(sample.rtt_us) * 1_000;
        (sample.in_flight, sample.idle) = (9, false);
        sample.app_limited = app_limited;
        flow.measure(&sample, 10, &settings(), &mut kept);
        (flow, kept)
    }

    #[test]
    fn what_comes_before_a_pause_of_the_application_is_application_limited() {
        // In the window: all ACKs so far, and those of segments that the application limited.
        let (mut flow, mut kept) = ten_and(13 * MS, true);
        assert_eq!((flow.window.acks, flow.window.app_limited_acks), (11, 11));
        let mut sample = ack();
        sample.now_ns += 61 * MS;
        for _ in 0..12 {
            flow.measure(&sample, 10, &settings(), &mut kept);
        }
        assert_eq!((flow.window.acks, flow.window.app_limited_acks), (23, 11));
        assert!(!flow.window.is_application_limited());

        // At its end: the ACK itself is the next window's.
        let (flow, kept) = ten_and(WINDOW_NS, true);
        assert_eq!(kept.windows[0].acks, 10);
        assert!(kept.windows[0].is_application_limited());
        assert_eq!(flow.window_end, WindowEnd::ApplicationLimited as u32);
        assert_eq!((flow.window.acks, flow.window.app_limited_acks), (1, 1));
    }

    #[test]
    fn a_sender_that_writes_soon_after_all_is_acknowledged_has_not_paused() {
        let (flow, _) = ten_and(12 * MS, true);
        assert_eq!((flow.window.acks, flow.window.app_limited_acks), (11, 1));
        let (flow, _) = ten_and(50 * MS, false);
        assert_eq!((flow.window.acks, flow.window.app_limited_acks), (11, 0));
        let (flow, kept) = ten_and(WINDOW_NS, false);
        assert!(!kept.windows[0].is_application_limited());
        assert_eq!(flow.window_end, WindowEnd::NetworkLimited as u32);
    }

    #[test]
    fn a_silent_window_is_application_limited_where_all_is_acknowledged() {
        for idle in [false, true] {
            let (mut flow, mut kept) = (opened(), Kept::default());
            let mut sample = ack();
            (sample.in_flight, sample.idle) = (0, idle);
            flow.measure(&sample, 10, &settings(), &mut kept);
            let silent = flow.silent_window(sample.now_ns + 2 * WINDOW_NS, WINDOW_NS);
            let silent = silent.expect("it is over");
            assert_eq!(silent.is_application_limited(), idle);
        }
    }

    #[test]
    fn a_silent_window_is_what_the_next_ack_will_repeat() {
        let (mut flow, mut kept) = (opened(), Kept::default());
        let mut sample = ack();
        flow.measure(&sample, 10, &settings(), &mut kept);
        let end = sample.now_ns + WINDOW_NS;
        assert_eq!(flow.silent_window(end, WINDOW_NS), None, "not over");
        let silent = flow
            .silent_window(end + 5 * MS, WINDOW_NS)
            .expect("it is over");
        assert_eq!(silent.header.time_ns, end + 5 * MS);
        // 10 segments of 1,448 bytes, by the MSS of the identity.
        assert_eq!((silent.cwnd, silent.mss), (14, 1_000));
        sample.now_ns = end + 50 * MS;
        flow.measure(&sample, 10, &settings(), &mut kept);
        let closed = kept.windows[0];
        assert_eq!((closed.index, closed.acks), (silent.index, silent.acks));
        assert_eq!(closed.features, silent.features);

        assert_eq!(closed.mss, sample.mss);
        let silent = flow.silent_window(end + 500 * MS, WINDOW_NS);
        assert_eq!(silent.map(|window| window.cwnd), Some(10));
        flow.live = 0;
        assert_eq!(flow.silent_window(end + 500 * MS, WINDOW_NS), None);
    }

    proptest! {
        /// Whatever ACKs, decisions, losses and pauses of the agent come in whatever order: every
        /// ACK with features is in exactly one window, windows are numbered without a gap and none
        /// is emitted before its time, and a record's decision, mode and cwnd are those that the
        /// ACK which closed it found.
        #[test]
        fn every_ack_is_in_one_window(
            steps in proptest::collection::vec(
                (0u64..60, any::<bool>(), 0u32..300, 0u32..6, 0u32..4, 0u32..3_000), 1..300),
        ) {
            let (mut flow, mut kept, settings) = (opened(), Kept::default(), settings());
            let mut cwnd = CwndState { cwnd: 10, ssthresh: u32::MAX, cwnd_cnt: 0, clamp: u32::MAX };
            let mut sample = ack();
            let mut heartbeat = Heartbeat { at_ns: sample.now_ns, pid: 1 };
            let mut cell = 0;
            let (mut start, mut counted) = (sample.now_ns, 0);
            for (ms, measured, acked, state, event, decided) in steps {
                sample.now_ns += ms * MS;
                sample.rtt_us = if measured { 20_000 + acked } else { 0 };
                sample.acked = acked;
                sample.totals.bytes_sent += u64::from(acked) * 1_448;
                match event {
                    0 => heartbeat.at_ns = sample.now_ns,
                    1 => {
                        let window = flow.window.index;
                        cell = Decision { generation: 7, window, cwnd: decided }.to_cell();
                    }
                    2 => sample.now_ns += 500 * MS,
                    _ => {}
                }
                let state = CaState::from_raw(state);
                if state != sample.ca_state {
                    cwnd.ssthresh = flow.controller.ssthresh(cwnd.cwnd);
                    flow.controller.on_state(state);
                }
                sample.ca_state = state;

                let (found, before) = (cwnd.cwnd, flow);
                let published = Published { cell, heartbeat: &heartbeat };
                let (windows, acks) = (kept.windows.len(), kept.acks.len());
                flow.on_ack(&mut cwnd, &sample, || published, &settings, &mut kept);

                prop_assert!((1..=2_000).contains(&cwnd.cwnd));
                prop_assert_eq!(kept.acks.len(), acks + 1, "the RTT is known from srtt");
                if kept.windows.len() > windows {
                    let window = kept.windows[windows];
                    prop_assert!(sample.now_ns - start >= WINDOW_NS);
                    prop_assert_eq!(window.index as usize, kept.windows.len());
                    prop_assert_eq!(window.acks as usize, acks - counted);
                    prop_assert_eq!(window.start_ns, start);
                    prop_assert_eq!(window.header.time_ns, sample.now_ns);
                    prop_assert_eq!((window.cwnd, window.mss), (found, sample.mss));
                    prop_assert_eq!(
                        (window.decision, window.decision_taken_ns),
                        before.controller.taken()
                    );
                    prop_assert_eq!(Mode::from_raw(window.mode), before.controller.mode());
                    for feature in 0..FEATURES {
                        let values = kept.acks[counted..acks].iter().map(|ack| ack.2[feature]);
                        let sum: u64 = values.clone().map(u64::from).sum();
                        prop_assert_eq!(window.features.sum[feature], sum);
                        prop_assert_eq!(Some(window.features.max[feature]), values.max());
                    }
                    counted = acks;
                }
                start = flow.window.start_ns;
                prop_assert_eq!(kept.acks[acks].0, flow.window.index);
                prop_assert_eq!(flow.window.acks as usize, kept.acks.len() - counted);
            }
        }
    }
}
