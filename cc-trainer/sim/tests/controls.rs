//! A model of the sender drives every congestion control through [`CongestionControl`] with random
//! sequences of what happens to a connection. Whatever happens, the cwnd stays within its bounds,
//! and the same sequence gives the same cwnd.

use cc_core::interface::Interface;
use cc_ebpf::{AckSample, CaState, CwndState, Decision, Startup, Totals};
use cc_sim::{
    path::Nanos,
    sim::{
        Control,
        control::{
            Acked, CongestionControl, CwndEvent, RateSample, TransmitStart, learned::Learned,
        },
    },
};
use proptest::prelude::*;

/// Payload of a segment, bytes.
const MSS: u32 = 1448;
/// The cwnd that connections start with, segments.
const INITIAL_CWND: u32 = 10;

/// Controls that compute with integers as the kernel does, and a cwnd at which products of 32 bits
/// overflow.
const INTEGER: [&str; 6] = ["vegas", "westwood", "htcp", "bic", "illinois", "yeah"];
const LARGEST_CWND: u32 = 1 << 20;

/// What happens to the connection next.
#[derive(Clone, Debug)]
enum Operation {
    /// An ACK comes `gap_us` after the last one, for a part of what is in flight, with an RTT of
    /// `rtt_us`; 0 for an ACK without a sample, as those of retransmissions.
    Ack {
        gap_us: u32,
        part: u32,
        rtt_us: u32,
        app_limited: bool,
    },
    /// Loss detection marks some segments lost: fast recovery begins, or goes on.
    Loss { segments: u32 },
    /// All that was in flight when recovery began is acknowledged.
    Recovered,
    /// The retransmission timer fires.
    Timeout,
    /// The last reduction turns out to be spurious.
    Undo,
    /// Everything is acknowledged, and the sender pauses before it sends again.
    Idle { ms: u32 },
    /// The agent publishes a cwnd; only a learned control hears of it.
    Decide { cwnd: u32 },
}

/// Operations with RTTs of up to `longest_us`; an RTT below `shortest_us` becomes an ACK without
/// one.
fn operation(shortest_us: u32, longest_us: u32) -> impl Strategy<Value = Operation> {
    let ack = (1u32..200_000, 1u32..=64, 0..longest_us, any::<bool>());
    let ack = ack.prop_map(move |(gap_us, part, rtt_us, app_limited)| Operation::Ack {
        gap_us,
        part,
        rtt_us: if rtt_us < shortest_us { 0 } else { rtt_us },
        app_limited,
    });
    prop_oneof![
        20 => ack,
        2 => (1u32..20).prop_map(|segments| Operation::Loss { segments }),
        2 => Just(Operation::Recovered),
        1 => Just(Operation::Timeout),
        1 => Just(Operation::Undo),
        1 => (1u32..20_000).prop_map(|ms| Operation::Idle { ms }),
        2 => (0u32..5_000).prop_map(|cwnd| Operation::Decide { cwnd }),
    ]
}

/// Each control by name, with a fresh instance.
fn controls(seed: u64) -> Vec<(&'static str, Control)> {
    let learned = |pacing_gain| {
        let interface = Interface {
            pacing_gain,
            ..Interface::default()
        };
        let settings = Learned::settings(&interface, Startup::SlowStart);
        Control::Learned(Box::new(Learned::new(settings)))
    };
    let named = Control::NAMES.map(|name| {
        let control = Control::named(name, seed).expect("a name of the list");
        (name, control)
    });
    named
        .into_iter()
        .chain([("learned", learned(None)), ("paced", learned(Some(1.25)))])
        .collect()
}

/// A connection as far as its congestion control can see it.
struct Connection {
    control: Control,
    now: Nanos,
    cwnd: CwndState,
    state: CaState,
    /// The cwnd and the threshold before the last reduction, while it may be undone.
    prior: Option<(u32, u32)>,
    in_flight: u32,
    delivered: u32,
    next: u64,
    last_sent: Nanos,
    srtt_us: u32,
    min_rtt_us: u32,
    totals: Totals,
}

impl Connection {
    /// An established connection whose handshake took `rtt_us`.
    fn new(mut control: Control, clamp: u32, rtt_us: u32) -> Self {
        let now = 1_000_000_000;
        let mut cwnd = CwndState {
            cwnd: INITIAL_CWND.min(clamp),
            ssthresh: 0x7fff_ffff,
            cwnd_cnt: 0,
            clamp,
        };
        control.init(now, &mut cwnd, rtt_us);
        let mut connection = Self {
            control,
            now,
            cwnd,
            state: CaState::Open,
            prior: None,
            in_flight: 0,
            delivered: 1,
            next: 0,
            last_sent: now,
            srtt_us: rtt_us,
            min_rtt_us: rtt_us,
            totals: Totals::default(),
        };
        connection.send();
        connection
    }

    fn apply(&mut self, operation: &Operation) {
        match *operation {
            Operation::Ack {
                gap_us,
                part,
                rtt_us,
                app_limited,
            } => {
                self.now += Nanos::from(gap_us) * 1_000;
                let acked = (self.in_flight * part / 64).max(1);
                self.acknowledge(acked, rtt_us, app_limited);
            }
            Operation::Loss { segments } => self.lose(segments),
            Operation::Recovered => self.recovered(),
            Operation::Timeout => {
                self.now += 300_000_000;
                self.time_out();
            }
            Operation::Undo => self.undo(),
            Operation::Idle { ms } => {
                self.acknowledge(self.in_flight.max(1), self.min_rtt_us, true);
                self.in_flight = 0;
                self.now += Nanos::from(ms) * 1_000_000;
                let start = TransmitStart {
                    app_limited: true,
                    idle: ms / 4,
                    rto: 55,
                    outstanding: false,
                    snd_nxt: self.next,
                };
                (self.control).on_transmit_start(self.now, &mut self.cwnd, &start);
            }
            Operation::Decide { cwnd } => {
                if let Control::Learned(learned) = &mut self.control {
                    learned.publish(Decision {
                        generation: 1,
                        window: self.next as u32,
                        cwnd,
                    });
                }
            }
        }
        self.send();
        if let Control::Learned(learned) = &mut self.control {
            while learned.take_record().is_some() {}
        }
    }

    fn acknowledge(&mut self, acked: u32, rtt_us: u32, app_limited: bool) {
        let prior_in_flight = self.in_flight;
        let prior_delivered = self.delivered.saturating_sub(prior_in_flight).max(1);
        let acked = acked.min(self.in_flight);
        self.in_flight -= acked;
        self.delivered += acked;
        self.totals.segs_in += 1;
        if rtt_us > 0 {
            self.srtt_us = (7 * self.srtt_us + rtt_us) / 8;
            self.min_rtt_us = self.min_rtt_us.min(rtt_us);
        }
        let interval_us = self.srtt_us.max(self.min_rtt_us);
        let ack = AckSample {
            now_ns: self.now,
            rtt_us,
            srtt_us: self.srtt_us,
            rttvar_us: self.srtt_us / 4,
            mss: MSS,
            header_len: 32,
            in_flight: self.in_flight,
            acked,
            lost: 0,
            delivered: self.delivered - prior_delivered,
            interval_us,
            retransmits: 0,
            cwnd_limited: !app_limited,
            max_packets_out: 10,
            app_limited,
            idle: false,
            decays_unused: true,
            ca_state: self.state,
            totals: self.totals,
        };
        let rate = RateSample {
            prior_delivered: prior_delivered.into(),
            delivered: Some(self.delivered - prior_delivered).filter(|&delivered| delivered > 0),
            interval_us,
            prior_in_flight,
            app_limited,
            total_delivered: self.delivered.into(),
            snd_una: self.next - u64::from(self.in_flight),
            snd_nxt: self.next,
            min_rtt_us: self.min_rtt_us,
            last_sent: self.last_sent,
            next_send: self.last_sent,
            ..RateSample::default()
        };
        let acknowledged = Acked {
            now: self.now,
            segments: acked,
            rtt_us,
            snd_nxt: self.next,
            mss: MSS,
            state: self.state,
            slow_path: acked == 0,
        };
        self.control.on_acked(&self.cwnd, &acknowledged);
        if self.control.sets_cwnd_in_recovery() || !self.state.is_reducing() {
            self.control.on_ack(&mut self.cwnd, &ack, &rate);
        } else {
            self.control.on_measurement(&mut self.cwnd, &ack, &rate);
            // Proportional rate reduction, roughly.
            let reduced = self.in_flight + (acked / 2).max(1);
            self.cwnd.cwnd = self.cwnd.cwnd.min(reduced);
        }
    }

    fn lose(&mut self, segments: u32) {
        let lost = segments.min(self.in_flight);
        self.in_flight -= lost;
        self.totals.lost += lost;
        if !self.state.is_reducing() && self.state != CaState::Loss {
            self.reduce();
            self.change(CaState::Recovery);
        }
    }

    fn recovered(&mut self) {
        if self.state >= CaState::Recovery {
            let reduces = self.state.is_reducing() && !self.control.sets_cwnd_in_recovery();
            if reduces && self.cwnd.ssthresh < 0x7fff_ffff {
                self.cwnd.cwnd = self.cwnd.ssthresh.min(self.cwnd.clamp);
            }
            if !self.control.sets_cwnd_in_recovery() {
                (self.control).on_event(&mut self.cwnd, CwndEvent::ReductionComplete);
                self.cwnd.cwnd = self.cwnd.cwnd.min(self.cwnd.clamp);
            }
            self.change(CaState::Open);
            self.prior = None;
        }
    }

    fn time_out(&mut self) {
        self.totals.lost += self.in_flight;
        self.totals.rtos += 1;
        self.in_flight = 0;
        self.reduce();
        (self.control).on_event(&mut self.cwnd, CwndEvent::Loss);
        self.cwnd.cwnd = 1;
        self.cwnd.cwnd_cnt = 0;
        self.change(CaState::Loss);
    }

    fn undo(&mut self) {
        if let Some((cwnd, ssthresh)) = self.prior.take() {
            self.cwnd.cwnd = self.control.undo(&self.cwnd, cwnd);
            self.cwnd.ssthresh = self.cwnd.ssthresh.max(ssthresh);
            self.change(CaState::Open);
            // The ACK that shows it then sets the cwnd, as every other does.
            self.acknowledge(1, 0, false);
        }
    }

    fn reduce(&mut self) {
        self.prior = Some((self.cwnd.cwnd, self.cwnd.ssthresh));
        self.cwnd.ssthresh = self.control.ssthresh(&self.cwnd);
    }

    fn change(&mut self, state: CaState) {
        (self.control).on_state(self.now, &mut self.cwnd, state);
        self.state = state;
    }

    /// Sends as much as the cwnd allows.
    fn send(&mut self) {
        let segments = self.cwnd.cwnd.saturating_sub(self.in_flight);
        if segments > 0 {
            self.in_flight += segments;
            self.next += u64::from(segments);
            self.totals.bytes_sent += u64::from(segments * MSS);
            self.last_sent = self.now;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn every_control_keeps_its_cwnd_within_bounds(
        operations in proptest::collection::vec(operation(1_000, 2_000_000), 1..300),
        clamp in 4u32..3_000,
        rtt_us in 1_000u32..500_000,
        seed in any::<u64>(),
    ) {
        for ((name, control), (_, again)) in controls(seed).into_iter().zip(controls(seed)) {
            let connection = Connection::new(control, clamp, rtt_us);
            let repetition = Connection::new(again, clamp, rtt_us);
            stays_within_bounds(name, connection, repetition, &operations)?;
        }
    }

    /// RTTs from a µs to half a minute and cwnds of a million segments, for those controls that
    /// compute with integers as the kernel does.
    #[test]
    fn extreme_paths_overflow_nothing(
        operations in proptest::collection::vec(
            prop_oneof![operation(1, 30_000_000), operation(1, 100)],
            1..300,
        ),
        large in any::<bool>(),
        rtt_us in prop_oneof![1u32..100, 1u32..30_000_000],
    ) {
        for name in INTEGER {
            let new = || {
                let control = Control::named(name, 1).expect("a name of the list");
                let mut connection = Connection::new(control, LARGEST_CWND, rtt_us);
                if large {
                    connection.cwnd.cwnd = LARGEST_CWND;
                    connection.send();
                }
                connection
            };
            stays_within_bounds(name, new(), new(), &operations)?;
        }
    }
}

/// Applies the operations to two equal connections, whose cwnd has to stay within its bounds and
/// to be the same for both.
fn stays_within_bounds(
    name: &str,
    mut connection: Connection,
    mut repetition: Connection,
    operations: &[Operation],
) -> Result<(), TestCaseError> {
    for (step, operation) in operations.iter().enumerate() {
        connection.apply(operation);
        let CwndState {
            cwnd,
            ssthresh,
            clamp,
            ..
        } = connection.cwnd;
        let place = format!("{name} after operation {step}, {operation:?}");
        prop_assert!(cwnd >= 1, "a cwnd of {cwnd}: {place}");
        prop_assert!(cwnd <= clamp, "a cwnd of {cwnd} above {clamp}: {place}");
        // Vegas takes that of a cwnd of 1 over, as in the kernel.
        let least = if name == "vegas" { 1 } else { 2 };
        prop_assert!(ssthresh >= least, "a threshold of {ssthresh}: {place}");
        let pacing = connection.control.pacing_rate();
        prop_assert!(pacing != Some(0), "no pacing rate: {place}");
        prop_assert!(connection.control.min_burst() >= 1, "no burst: {place}");
        repetition.apply(operation);
        prop_assert_eq!(connection.cwnd, repetition.cwnd, "repeated: {}", place);
        prop_assert_eq!(
            pacing,
            repetition.control.pacing_rate(),
            "repeated: {}",
            place
        );
    }
    Ok(())
}
