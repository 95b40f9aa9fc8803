use proptest::prelude::*;
use rand::RngExt;

use super::*;
use crate::scenario::{
    Aqm, CoDel, Delay, DelayChange, Direction as Model, Discipline, DualPi2, FqCoDel, Loss, Pie,
    Policer, Queue as Limits, Rate, RatePoint, Service, Trace,
};

const MS: Nanos = 1_000_000;
const SECOND: Nanos = 1000 * MS;

/// The content of a packet. Packets of a flow are a connection and have the same codepoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Numbered {
    /// Number of the packet among the arrivals.
    number: usize,
    flow: u16,
}

impl Content for Numbered {
    fn ecn(&self) -> Ecn {
        [Ecn::NotEct, Ecn::Ect0, Ecn::Ect1, Ecn::Ce][usize::from(self.flow % 4)]
    }

    fn connection(&self) -> u32 {
        self.flow.into()
    }
}

impl Content for u64 {}

impl Content for i32 {}

/// The outcome of a packet in a form to compare: its time and its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Delivered { at: Nanos, queued: Nanos },
    Dropped { at: Nanos },
}

#[derive(Clone, Copy, Debug)]
struct Arrival {
    at: Nanos,
    bytes: u32,
    flow: u16,
}

// Differential tests

/// A reference model of mahimahi's link that advances by milliseconds. Arrivals within a
/// millisecond come after its opportunities.
fn mahimahi(times: &[u32], limits: Limits, arrivals: &[Arrival]) -> Vec<End> {
    let period = u64::from(*times.last().expect("a trace has times"));
    let mut ends = vec![None; arrivals.len()];
    let mut queue: Vec<usize> = Vec::new();
    let mut sending: Option<(usize, u32)> = None;
    let mut queued = vec![0; arrivals.len()];
    let mut arriving = 0;
    let mut ms = 0;
    while ends.iter().any(Option::is_none) {
        // The last time of a pass is time 0 of the next one.
        let this_round = if ms == 0 { 0 } else { (ms - 1) % period + 1 };
        let mut opportunities = times
            .iter()
            .filter(|&&time| u64::from(time) == this_round)
            .count();
        if ms > 0 && ms % period == 0 {
            opportunities += times.iter().filter(|&&time| time == 0).count();
        }
        for _ in 0..opportunities {
            let mut room = 1504;
            while room > 0 {
                if sending.is_none() && !queue.is_empty() {
                    let packet = queue.remove(0);
                    queued[packet] = ms * MS - arrivals[packet].at;
                    sending = Some((packet, arrivals[packet].bytes + 4));
                }
                let Some((packet, left)) = sending else { break };
                let sent = left.min(room);
                room -= sent;
                sending = Some((packet, left - sent)).filter(|_| left > sent);
                if left == sent {
                    ends[packet] = Some(End::Delivered {
                        at: ms * MS,
                        queued: queued[packet],
                    });
                }
            }
        }
        while arriving < arrivals.len() && arrivals[arriving].at < (ms + 1) * MS {
            enqueue(&mut queue, arriving, limits, arrivals, &mut ends);
            arriving += 1;
        }
        ms += 1;
    }
    ends.into_iter().flatten().collect()
}

/// A reference model of a link with a constant rate of a whole number of nanoseconds per byte,
/// which advances by events.
fn constant(ns_per_byte: u64, limits: Limits, arrivals: &[Arrival]) -> Vec<End> {
    let mut ends = vec![None; arrivals.len()];
    let mut queue: Vec<usize> = Vec::new();
    let mut free = 0;
    for (packet, arrival) in arrivals.iter().enumerate() {
        let now = arrival.at;
        while !queue.is_empty() && free <= now {
            let head = queue.remove(0);
            free = send(head, free, ns_per_byte, arrivals, &mut ends);
        }
        if free <= now {
            free = send(packet, now, ns_per_byte, arrivals, &mut ends);
        } else {
            enqueue(&mut queue, packet, limits, arrivals, &mut ends);
        }
    }
    for head in queue {
        free = send(head, free, ns_per_byte, arrivals, &mut ends);
    }
    ends.into_iter().flatten().collect()
}

fn send(
    packet: usize,
    start: Nanos,
    ns_per_byte: u64,
    arrivals: &[Arrival],
    ends: &mut [Option<End>],
) -> Nanos {
    let at = start + u64::from(arrivals[packet].bytes) * ns_per_byte;
    ends[packet] = Some(End::Delivered {
        at,
        queued: start - arrivals[packet].at,
    });
    at
}

fn enqueue(
    queue: &mut Vec<usize>,
    packet: usize,
    limits: Limits,
    arrivals: &[Arrival],
    ends: &mut [Option<End>],
) {
    let now = arrivals[packet].at;
    let fits = |queue: &[usize]| {
        let bytes: u64 = queue
            .iter()
            .chain([&packet])
            .map(|&packet| u64::from(arrivals[packet].bytes))
            .sum();
        limits
            .packets
            .is_none_or(|most| queue.len() < most as usize)
            && limits.bytes.is_none_or(|most| bytes <= most)
    };
    if limits.discipline == Discipline::DropHead && fits(&[]) {
        while !fits(queue) {
            ends[queue.remove(0)] = Some(End::Dropped { at: now });
        }
    }
    if fits(queue) {
        queue.push(packet);
    } else {
        ends[packet] = Some(End::Dropped { at: now });
    }
}

fn run(model: &Model, arrivals: &[Arrival]) -> Vec<End> {
    let mut ends = vec![None; arrivals.len()];
    for event in watch(model, &[], arrivals, Watch::AtTheEnd) {
        match event {
            Event::Delivered {
                at, queued, packet, ..
            } => {
                ends[packet.body.number] = Some(End::Delivered { at, queued });
            }
            Event::Dropped { at, packet, .. } => {
                ends[packet.body.number] = Some(End::Dropped { at });
            }
        }
    }
    ends.into_iter()
        .map(|end| end.expect("every packet comes to an end"))
        .collect()
}

#[test]
fn packets_that_waited_longer_than_the_threshold_are_marked_and_nothing_else_changes() {
    // 1500 bytes take a millisecond; eight packets arrive at once.
    let arrivals = [Arrival {
        at: 0,
        bytes: 1500,
        flow: 0,
    }; 8];
    let with = |ce_threshold| {
        let queue = Limits {
            packets: Some(6),
            ce_threshold,
            ..Limits::default()
        };
        let model = Model {
            queue,
            ..rate(12e6)
        };
        (run(&model, &arrivals), model)
    };
    let (unmarked, _) = with(None);
    let (ends, model) = with(Some(Duration::from_millis(3)));
    assert_eq!(ends, unmarked);
    let marks = watch(&model, &[], &arrivals, Watch::AtTheEnd);
    let mut marks: Vec<_> = (marks.into_iter())
        .filter_map(|event| match event {
            Event::Delivered { queued, marked, .. } => Some((queued / MS, marked)),
            Event::Dropped { .. } => None,
        })
        .collect();
    marks.sort_unstable();
    let expected = [0, 1, 2, 3, 4, 5, 6].map(|waited| (waited, waited > 3));
    assert_eq!(marks, expected);
}

proptest! {
    #[test]
    fn opportunities_are_mahimahis(
        times in trace(),
        limits in limits(),
        arrivals in arrivals(),
    ) {
        let expected = mahimahi(&times, limits, &arrivals);
        let model = Model { queue: limits, ..opportunities(times) };
        prop_assert_eq!(run(&model, &arrivals), expected);
    }

    #[test]
    fn a_rate_is_exact(
        // From 8 Gbit/s down to 80 kbit/s.
        ns_per_byte in prop::sample::select(vec![1, 7, 8, 667, 8000, 100_000u64]),
        limits in limits(),
        arrivals in arrivals(),
    ) {
        let expected = constant(ns_per_byte, limits, &arrivals);
        let model = Model { queue: limits, ..rate(8e9 / ns_per_byte as f64) };
        prop_assert_eq!(run(&model, &arrivals), expected);
    }
}

// Properties of every path

/// When a path is polled.
#[derive(Clone, Debug)]
enum Watch {
    /// At every time that `next` returns.
    Next,
    /// At regular intervals of this length, ns.
    Every(Nanos),
    /// At random times with this seed.
    Random(u64),
    /// Once, after all packets were offered.
    AtTheEnd,
}

/// All events of a path that is offered `arrivals`, in the order in which `poll` returns them.
fn watch(
    model: &Model,
    extra_delay: &[Duration],
    arrivals: &[Arrival],
    watch: Watch,
) -> Vec<Event<Numbered>> {
    let mut path = OneWayPath::new(model, extra_delay, 7);
    let mut events = Vec::new();
    let mut random = match watch {
        Watch::Random(seed) => StdRng::seed_from_u64(seed),
        _ => StdRng::seed_from_u64(0),
    };
    let mut polled = 0;
    // Polls at the chosen times before `until`.
    let mut poll_before = |path: &mut OneWayPath<Numbered>, events: &mut Vec<_>, until: Nanos| {
        loop {
            let next = match watch {
                Watch::Next => path.next().unwrap_or(until),
                Watch::Every(interval) => polled + interval,
                Watch::Random(_) => polled + random.random_range(1..20 * MS),
                Watch::AtTheEnd => until,
            };
            if next >= until || path.next().is_none() {
                return;
            }
            polled = next;
            while let Some(event) = path.poll(next) {
                if matches!(watch, Watch::Next) && matches!(event, Event::Delivered { .. }) {
                    assert_eq!(event.at(), next, "next() was late");
                }
                events.push(event);
            }
        }
    };
    for (number, arrival) in arrivals.iter().enumerate() {
        poll_before(&mut path, &mut events, arrival.at);
        let Arrival { at, bytes, flow } = *arrival;
        let body = Numbered { number, flow };
        path.offer(at, Packet { bytes, flow, body });
        let (packets, bytes) = path.backlog();
        assert!(model.queue.packets.is_none_or(|most| packets <= most));
        assert!(model.queue.bytes.is_none_or(|most| bytes <= most));
    }
    poll_before(&mut path, &mut events, 100_000 * SECOND);
    while let Some(event) = path.poll(100_000 * SECOND) {
        events.push(event);
    }
    assert_eq!((path.next(), path.backlog()), (None, (0, 0)));
    events
}

proptest! {
    #[test]
    fn it_does_not_matter_when_it_is_polled(
        model in model(),
        extra in prop::collection::vec((0..50u64).prop_map(Duration::from_millis), 0..4),
        arrivals in arrivals(),
        interval in MS..10 * SECOND,
        seed: u64,
    ) {
        let events = watch(&model, &extra, &arrivals, Watch::Next);
        prop_assert_eq!(&events, &watch(&model, &extra, &arrivals, Watch::AtTheEnd));
        prop_assert_eq!(&events, &watch(&model, &extra, &arrivals, Watch::Every(interval)));
        prop_assert_eq!(&events, &watch(&model, &extra, &arrivals, Watch::Random(seed)));
    }

    #[test]
    fn every_packet_ends_once_and_flows_keep_their_order(
        model in model(),
        extra in prop::collection::vec((0..50u64).prop_map(Duration::from_millis), 0..4),
        arrivals in arrivals(),
    ) {
        let events = watch(&model, &extra, &arrivals, Watch::AtTheEnd);
        prop_assert!(events.is_sorted_by_key(Event::at));
        let mut ended = vec![false; arrivals.len()];
        let mut latest = std::collections::HashMap::new();
        for event in events {
            let (Event::Delivered { packet, .. } | Event::Dropped { packet, .. }) = &event;
            prop_assert!(!std::mem::replace(&mut ended[packet.body.number], true));
            let Arrival { at: offered, bytes, flow } = arrivals[packet.body.number];
            prop_assert_eq!((packet.bytes, packet.flow), (bytes, flow));
            prop_assert!(event.at() >= offered);
            if let Event::Delivered { arrived, packet, .. } = event {
                prop_assert_eq!(arrived, offered);
                let number = packet.body.number;
                let before = latest.insert(flow, number);
                prop_assert!(before.is_none_or(|before| before < number));
            }
        }
        prop_assert!(ended.into_iter().all(|ended| ended));
    }
}

// Loss

#[test]
fn bernoulli_loss_has_the_given_rate() {
    for probability in [0.0, 0.01, 0.3, 1.0] {
        let losses = losses(Loss::Bernoulli(probability), 1_000_000);
        let lost = losses.iter().filter(|&&lost| lost).count() as f64;
        let deviation = (1e6 * probability * (1.0 - probability)).sqrt();
        assert!(
            (lost - 1e6 * probability).abs() <= 4.0 * deviation,
            "{lost} at {probability}"
        );
    }
}

#[test]
fn gilbert_elliott_loss_has_the_given_rate_and_comes_in_bursts() {
    let (to_bad, to_good, good, bad) = (0.01, 0.2, 0.001, 0.5);
    let losses = losses(
        Loss::GilbertElliott {
            to_bad,
            to_good,
            good,
            bad,
        },
        1_000_000,
    );
    let lost = losses.iter().filter(|&&lost| lost).count() as f64;
    let share_bad = to_bad / (to_bad + to_good);
    let share = share_bad * bad + (1.0 - share_bad) * good;
    // The chain's memory, 1 / (1 - to_bad - to_good) packets, widens the binomial interval.
    let memory = 1.0 - to_bad - to_good;
    let deviation = (1e6 * share * (1.0 - share) * (1.0 + memory) / (1.0 - memory)).sqrt();
    assert!(
        (lost - 1e6 * share).abs() <= 4.0 * deviation,
        "{lost}, not {}",
        1e6 * share
    );
    // After a loss the chain was bad with this probability, so the next packet is lost more often.
    let was_bad = share_bad * bad / share;
    let is_bad = was_bad * (1.0 - to_good) + (1.0 - was_bad) * to_bad;
    let expected = is_bad * bad + (1.0 - is_bad) * good;
    let pairs = losses.windows(2).filter(|pair| pair[0] && pair[1]).count() as f64;
    assert!(
        (pairs / lost - expected).abs() < 0.02,
        "{} not {expected}",
        pairs / lost
    );
}

fn losses(loss: Loss, packets: u64) -> Vec<bool> {
    let arrivals: Vec<_> = (0..packets)
        .map(|packet| Arrival {
            at: packet * 1000,
            bytes: 1500,
            flow: 0,
        })
        .collect();
    let model = Model {
        loss,
        ..unlimited()
    };
    run(&model, &arrivals)
        .iter()
        .map(|end| matches!(end, End::Dropped { .. }))
        .collect()
}

// Single parts

#[test]
fn a_rate_is_exact_over_an_hour() {
    // 7.3 Mbit/s, at which a packet does not take a whole number of nanoseconds.
    assert_carries_all_of(Rate::constant(7.3e6));
    let point = |ms, bits_per_second, ramp| RatePoint {
        at: Duration::from_millis(ms),
        bits_per_second,
        ramp,
    };
    assert_carries_all_of(Rate {
        points: vec![
            point(0, 7.3e6, false),
            point(70, 0.0, false),
            point(110, 1.7e6, true),
            point(190, 9.1e6, false),
        ],
        repeat: Some(Duration::from_millis(300)),
    });
}

/// Keeps a link busy for an hour and counts its packets.
fn assert_carries_all_of(rate: Rate) {
    let bits = rate.bits(Duration::ZERO, Duration::from_secs(3600));
    let service = Service::Rate(rate);
    let mut path = OneWayPath::new(
        &Model {
            service,
            ..unlimited()
        },
        &[],
        0,
    );
    let mut delivered = 0;
    let mut now = 0;
    while now <= 3600 * SECOND {
        while path.backlog().0 < 2 {
            path.offer(
                now,
                Packet {
                    bytes: 1500,
                    flow: 0,
                    body: (),
                },
            );
        }
        now = path.next().expect("the link is busy");
        while let Some(event) = path.poll(now) {
            delivered += u64::from(event.at() <= 3600 * SECOND);
        }
    }
    assert_eq!(delivered, (bits / 12_000.0) as u64);
}

#[test]
fn five_opportunities_per_millisecond_carry_one_packet_of_a_one_packet_queue() {
    let limits = Limits {
        packets: Some(1),
        ..Limits::default()
    };
    // 24 Mbit/s offered for ten seconds: one packet every 0.5 ms.
    let arrivals: Vec<_> = (0..20_000)
        .map(|packet| Arrival {
            at: packet * MS / 2 + MS / 4,
            bytes: 1500,
            flow: 0,
        })
        .collect();
    let ends = run(
        &Model {
            queue: limits,
            ..opportunities(vec![1; 5])
        },
        &arrivals,
    );
    let delivered = ends
        .iter()
        .filter(|end| matches!(end, End::Delivered { .. }))
        .count();
    assert_eq!(delivered, 10_000, "12 Mbit/s of a nominal 60");
}

#[test]
fn ten_opportunities_every_200_ms_carry_batches() {
    // One acknowledgement of 52 bytes per millisecond: a batch of 200 takes 200 * 56 bytes, 7.4
    // opportunities.
    let arrivals: Vec<_> = (0..1000)
        .map(|packet| Arrival {
            at: packet * MS + MS / 2,
            bytes: 52,
            flow: 0,
        })
        .collect();
    for (end, arrival) in run(&opportunities(vec![200; 10]), &arrivals)
        .into_iter()
        .zip(&arrivals)
    {
        let at = arrival.at.next_multiple_of(200 * MS);
        assert_eq!(
            end,
            End::Delivered {
                at,
                queued: at - arrival.at
            }
        );
    }
    // Ten full packets leave at a time.
    let arrivals: Vec<_> = (0..30)
        .map(|packet| Arrival {
            at: packet + 1,
            bytes: 1500,
            flow: 0,
        })
        .collect();
    for (packet, end) in run(&opportunities(vec![200; 10]), &arrivals)
        .into_iter()
        .enumerate()
    {
        let at = (packet as u64 / 10 + 1) * 200 * MS;
        assert_eq!(
            end,
            End::Delivered {
                at,
                queued: at - packet as u64 - 1
            }
        );
    }
}

#[test]
fn an_idle_trace_loses_its_opportunities() {
    // Hours without packets, then one just before, one at and one just after an opportunity.
    let hours = 7200 * SECOND;
    let times = vec![3, 3, 10];
    for (at, expected) in [
        (hours + 3 * MS - 1, hours + 3 * MS),
        (hours + 3 * MS, hours + 10 * MS),
        (hours + 3 * MS + 1, hours + 10 * MS),
        (hours + 10 * MS, hours + 13 * MS),
    ] {
        let ends = run(
            &opportunities(times.clone()),
            &[Arrival {
                at,
                bytes: 1500,
                flow: 0,
            }],
        );
        assert_eq!(
            ends,
            [End::Delivered {
                at: expected,
                queued: expected - at
            }]
        );
    }
}

#[test]
fn the_packet_in_transmission_is_outside_the_queue() {
    let limits = Limits {
        packets: Some(2),
        ..Limits::default()
    };
    let burst = [Arrival {
        at: 0,
        bytes: 1500,
        flow: 0,
    }; 5];
    let tail = Model {
        queue: limits,
        ..rate(12e6)
    };
    let delivered = |packet: u64| End::Delivered {
        at: packet * MS,
        queued: (packet - 1) * MS,
    };
    let dropped = End::Dropped { at: 0 };
    assert_eq!(
        run(&tail, &burst),
        [delivered(1), delivered(2), delivered(3), dropped, dropped]
    );
    let limits = Limits {
        discipline: Discipline::DropHead,
        ..limits
    };
    let head = Model {
        queue: limits,
        ..tail
    };
    assert_eq!(
        run(&head, &burst),
        [delivered(1), dropped, dropped, delivered(2), delivered(3)]
    );
}

#[test]
fn nothing_happens_in_an_endless_outage() {
    let points = vec![
        RatePoint {
            at: Duration::ZERO,
            bits_per_second: 12e6,
            ramp: false,
        },
        RatePoint {
            at: Duration::from_millis(1),
            bits_per_second: 0.0,
            ramp: false,
        },
    ];
    let service = Service::Rate(Rate {
        points,
        repeat: None,
    });
    let mut path = OneWayPath::new(
        &Model {
            service,
            ..unlimited()
        },
        &[],
        0,
    );
    for body in 0..3 {
        path.offer(
            0,
            Packet {
                bytes: 1500,
                flow: 0,
                body,
            },
        );
    }
    assert_eq!(path.poll(MS).map(|event| event.at()), Some(MS));
    assert_eq!((path.next(), path.backlog()), (None, (1, 1500)));
    assert_eq!(path.poll(Nanos::MAX), None);
}

#[test]
fn aggregation_releases_at_the_end_of_a_period() {
    let aggregation = Some(Duration::from_millis(10));
    let delay = Delay {
        base: Duration::from_millis(3),
        ..no_delay()
    };
    let model = Model {
        aggregation,
        delay,
        ..unlimited()
    };
    let at = [0, 1, 10 * MS - 1, 10 * MS, 10 * MS + 1, 25 * MS];
    let ends = run(
        &model,
        &at.map(|at| Arrival {
            at,
            bytes: 52,
            flow: 0,
        }),
    );
    let released = [0, 10, 10, 10, 20, 30];
    assert_eq!(
        ends,
        released.map(|ms| End::Delivered {
            at: (ms + 3) * MS,
            queued: 0
        })
    );
}

#[test]
fn a_delay_change_counts_from_the_moment_of_leaving_the_link() {
    let change = |at, delay| DelayChange {
        at: Duration::from_millis(at),
        delay: Duration::from_millis(delay),
    };
    let delay = Delay {
        base: Duration::from_millis(20),
        changes: vec![change(10, 50), change(12, 5)],
        ..no_delay()
    };
    let model = Model {
        delay,
        ..rate(12e6)
    };
    // The first two leave the link at 9 and 10 ms. The third leaves at 13 ms and would overtake the
    // second.
    let at = [8 * MS, 8 * MS + 1, 12 * MS, 60 * MS];
    let arrivals = at.map(|at| Arrival {
        at,
        bytes: 1500,
        flow: 0,
    });
    let at = |ends: Vec<End>| {
        ends.into_iter()
            .map(|end| match end {
                End::Delivered { at, .. } => at,
                End::Dropped { .. } => panic!("nothing drops here"),
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(
        at(run(&model, &arrivals)),
        [29 * MS, 60 * MS, 60 * MS, 66 * MS]
    );
    // Packets of different flows may overtake each other.
    let mut path = OneWayPath::new(&model, &[Duration::ZERO, Duration::from_millis(1)], 0);
    for (flow, arrival) in [0, 0, 1].into_iter().zip(arrivals) {
        path.offer(
            arrival.at,
            Packet {
                bytes: 1500,
                flow,
                body: (),
            },
        );
    }
    let order: Vec<_> = std::iter::from_fn(|| path.poll(SECOND))
        .map(|event| event.at())
        .collect();
    assert_eq!(order, [19 * MS, 29 * MS, 60 * MS]);
}

#[test]
fn jitter_has_its_mean_and_deviation() {
    let delay = Delay {
        base: Duration::from_millis(20),
        jitter: Duration::from_millis(2),
        ..no_delay()
    };
    let model = Model {
        delay,
        ..unlimited()
    };
    // Packets far apart, so that keeping the order changes nothing.
    let count = 100_000;
    let arrivals: Vec<_> = (0..count)
        .map(|packet| Arrival {
            at: packet * 100 * MS,
            bytes: 100,
            flow: 0,
        })
        .collect();
    let delays: Vec<f64> = watch(&model, &[Duration::ZERO], &arrivals, Watch::AtTheEnd)
        .iter()
        .map(|event| match event {
            Event::Delivered { at, arrived, .. } => (at - arrived) as f64 / 1e6,
            Event::Dropped { .. } => panic!("nothing drops here"),
        })
        .collect();
    let count = count as f64;
    let mean = delays.iter().sum::<f64>() / count;
    let variance = delays
        .iter()
        .map(|delay| (delay - mean).powi(2))
        .sum::<f64>()
        / count;
    assert!((mean - 20.0).abs() < 4.0 * 2.0 / count.sqrt(), "{mean}");
    assert!(
        (variance.sqrt() - 2.0).abs() < 4.0 * 2.0 / (2.0 * count).sqrt(),
        "{variance}"
    );
}

#[test]
fn jitter_never_makes_a_delay_negative() {
    let delay = Delay {
        jitter: Duration::from_millis(2),
        ..no_delay()
    };
    let model = Model {
        delay,
        ..unlimited()
    };
    let arrivals: Vec<_> = (0..10_000)
        .map(|packet| Arrival {
            at: packet * 100 * MS,
            bytes: 100,
            flow: 0,
        })
        .collect();
    let at_once = run(&model, &arrivals)
        .into_iter()
        .zip(&arrivals)
        .filter(|(end, arrival)| {
            *end == End::Delivered {
                at: arrival.at,
                queued: 0,
            }
        })
        .count();
    assert!(at_once.abs_diff(5000) < 4 * 50, "{at_once} of 10000");
}

#[test]
fn the_policer_passes_its_burst_and_then_its_rate() {
    let policer = Some(Policer {
        bits_per_second: 12e6,
        burst: 15_000,
    });
    let model = Model {
        policer,
        ..rate(100e6)
    };
    // 24 Mbit/s offered.
    let arrivals: Vec<_> = (0..20_001)
        .map(|packet| Arrival {
            at: packet * MS / 2,
            bytes: 1500,
            flow: 0,
        })
        .collect();
    let ends = run(&model, &arrivals);
    let passed = ends
        .iter()
        .filter(|end| matches!(end, End::Delivered { .. }))
        .count();
    assert_eq!(passed, 10_000 + 10);
}

#[test]
fn a_seed_determines_all_events_and_jitter_does_not_change_losses() {
    let model = |jitter| Model {
        loss: Loss::Bernoulli(0.1),
        delay: Delay {
            jitter: Duration::from_millis(jitter),
            ..no_delay()
        },
        ..unlimited()
    };
    let lost = |model: &Model, seed| {
        let mut path = OneWayPath::new(model, &[], seed);
        for body in 0..1000 {
            path.offer(
                body,
                Packet {
                    bytes: 100,
                    flow: 0,
                    body,
                },
            );
        }
        let events = std::iter::from_fn(|| path.poll(10 * SECOND));
        let mut lost: Vec<_> = events
            .filter_map(|event| match event {
                Event::Dropped { packet, .. } => Some(packet.body),
                Event::Delivered { .. } => None,
            })
            .collect();
        lost.sort_unstable();
        lost
    };
    assert_eq!(lost(&model(0), 1), lost(&model(5), 1));
    assert_ne!(lost(&model(0), 1), lost(&model(0), 2));
}

// Models and arrivals

fn no_delay() -> Delay {
    Delay {
        base: Duration::ZERO,
        changes: Vec::new(),
        variation: None,
        jitter: Duration::ZERO,
    }
}

fn unlimited() -> Model {
    Model {
        policer: None,
        queue: Limits::default(),
        service: Service::Unlimited,
        loss: Loss::None,
        aggregation: None,
        delay: no_delay(),
    }
}

fn rate(bits_per_second: f64) -> Model {
    Model {
        service: Service::Rate(Rate::constant(bits_per_second)),
        ..unlimited()
    }
}

fn opportunities(times: Vec<u32>) -> Model {
    let trace = Trace::from_times(times).expect("a valid trace");
    Model {
        service: Service::Opportunities(trace.into()),
        ..unlimited()
    }
}

/// Bursts and pauses: gaps of zero, of less than a millisecond, of a few milliseconds, and of
/// seconds.
fn arrivals() -> impl Strategy<Value = Vec<Arrival>> {
    let gap = prop_oneof![
        2 => Just(0),
        4 => 0..MS,
        2 => (0..5u64).prop_map(|ms| ms * MS),
        2 => 0..5 * MS,
        1 => 0..SECOND,
    ];
    let bytes = prop_oneof![Just(1500), 20..1500u32, Just(52), 1500..4000u32];
    prop::collection::vec((gap, bytes, 0..5u16), 1..150).prop_map(|packets| {
        let mut at = 0;
        let arrival = |(gap, bytes, flow)| {
            at += gap;
            Arrival { at, bytes, flow }
        };
        packets.into_iter().map(arrival).collect()
    })
}

fn trace() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(prop_oneof![0..3u32, 0..100u32], 1..30).prop_map(|mut times| {
        times.sort_unstable();
        if let Some(last) = times.last_mut() {
            *last = (*last).max(1);
        }
        times
    })
}

fn limits() -> impl Strategy<Value = Limits> {
    let discipline = prop::sample::select(vec![Discipline::DropTail, Discipline::DropHead]);
    (
        prop::option::of(0..20u32),
        prop::option::of(0..20_000u64),
        discipline,
    )
        .prop_map(|(packets, bytes, discipline)| Limits {
            packets,
            bytes,
            discipline,
            ce_threshold: None,
            aqm: None,
        })
}

/// Kinds of active queue management that act soon.
fn aqm() -> impl Strategy<Value = Aqm> {
    let ms = |range: std::ops::Range<u64>| range.prop_map(Duration::from_millis);
    let codel = (ms(0..10), ms(10..50), any::<bool>()).prop_map(|(target, interval, ecn)| CoDel {
        target,
        interval,
        ecn,
    });
    let fq_codel =
        (codel.clone(), 256..4000u32, 1..8u32).prop_map(|(codel, quantum, queues)| FqCoDel {
            codel,
            quantum,
            queues,
        });
    let pie = (ms(1..20), ms(1..20), any::<bool>()).prop_map(|(target, update, ecn)| Pie {
        target,
        update,
        ecn,
    });
    let dual = (ms(1..20), ms(1..20), ms(1..5), 1..4u32, 1..99u32).prop_map(
        |(target, update, step, coupling, classic_percent)| DualPi2 {
            target,
            update,
            step,
            coupling,
            classic_percent,
        },
    );
    prop_oneof![
        codel.prop_map(Aqm::CoDel),
        fq_codel.prop_map(Aqm::FqCoDel),
        pie.prop_map(Aqm::Pie),
        dual.prop_map(Aqm::DualPi2),
    ]
}

fn model() -> impl Strategy<Value = Model> {
    let service = prop_oneof![
        1 => Just(Service::Unlimited),
        2 => (1e5..1e9).prop_map(|rate| Service::Rate(Rate::constant(rate))),
        2 => schedule().prop_map(Service::Rate),
        2 => trace().prop_map(|times| opportunities(times).service),
    ];
    let loss = prop_oneof![
        Just(Loss::None),
        (0.0..1.0).prop_map(Loss::Bernoulli),
        Just(Loss::GilbertElliott {
            to_bad: 0.1,
            to_good: 0.3,
            good: 0.01,
            bad: 0.7
        }),
    ];
    let policer = (1e5..1e8, 1500..20_000u64).prop_map(|(bits_per_second, burst)| Policer {
        bits_per_second,
        burst,
    });
    let aggregation = prop_oneof![Just(0), 1..20 * MS].prop_map(Duration::from_nanos);
    (
        prop::option::of(policer),
        (limits(), prop::option::of(aqm())).prop_map(|(limits, aqm)| Limits { aqm, ..limits }),
        service,
        loss,
        prop::option::of(aggregation),
        delay(),
    )
        .prop_map(
            |(policer, queue, service, loss, aggregation, delay)| Model {
                policer,
                queue,
                service,
                loss,
                aggregation,
                delay,
            },
        )
}

/// Steps, ramps and outages of up to 20 ms, repeated.
fn schedule() -> impl Strategy<Value = Rate> {
    let bits_per_second = || prop_oneof![1 => Just(0.0), 3 => 1e6..1e9];
    let later = prop::collection::vec((1..20u64, bits_per_second(), any::<bool>()), 0..5);
    (1e6..1e9, later).prop_map(|(first, later)| {
        let mut at = Duration::ZERO;
        let mut points = vec![RatePoint {
            at,
            bits_per_second: first,
            ramp: false,
        }];
        for (ms, bits_per_second, ramp) in later {
            at += Duration::from_millis(ms);
            points.push(RatePoint {
                at,
                bits_per_second,
                ramp,
            });
        }
        Rate {
            points,
            repeat: Some(at + Duration::from_millis(10)),
        }
    })
}

fn delay() -> impl Strategy<Value = Delay> {
    let duration = || prop_oneof![Just(0), 0..100 * MS].prop_map(Duration::from_nanos);
    let change = (0..1000u64, duration());
    (
        duration(),
        prop::collection::vec(change, 0..4),
        prop_oneof![Just(0), 0..10 * MS],
    )
        .prop_map(|(base, mut changes, jitter)| {
            changes.sort_unstable();
            let change = |(at, delay)| DelayChange {
                at: Duration::from_millis(at),
                delay,
            };
            Delay {
                base,
                changes: changes.into_iter().map(change).collect(),
                variation: None,
                jitter: Duration::from_nanos(jitter),
            }
        })
}
