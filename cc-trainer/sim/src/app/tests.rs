use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::scenario;

const MS: Nanos = 1_000_000;
const SECOND: Nanos = 1_000 * MS;

fn app(text: &str) -> App {
    let text = format!(
        "[[scenario]]\nname = \"a\"\nrate_mbps = 24\ndelay_ms = 20\n[[scenario.flow]]\napp = {text}"
    );
    let mut scenarios = scenario::parse(&text, Path::new("a.toml")).expect("a good file");
    scenarios.remove(0).flows.remove(0).app
}

fn session(text: &str, seed: u64) -> Session {
    Session::new(&app(text), 0, seed).expect("not bulk")
}

/// Carries a session out over a network that delivers `rate` bytes per ns after `delay`, with no
/// losses, and returns the actions with their times. Messages of the far end take `delay`.
fn carry_out(session: &mut Session, until: Nanos, delay: Nanos, rate: f64) -> Vec<(Nanos, Action)> {
    let mut actions = Vec::new();
    // Bytes written, and deliveries: time, connection, total.
    let mut written: Vec<u64> = Vec::new();
    let mut deliveries: VecDeque<(Nanos, u32, u64)> = VecDeque::new();
    let mut replies: VecDeque<(Nanos, u32)> = VecDeque::new();
    let mut free_at = 0;
    let mut streaming: Option<Nanos> = None;
    loop {
        let delivery = deliveries.front().map_or(NEVER, |&(at, ..)| at);
        let reply = replies.front().map_or(NEVER, |&(at, _)| at);
        let due = session.due(End::Near).min(session.due(End::Far));
        let last = actions.last().map_or(0, |&(at, _)| at);
        let now = delivery.min(reply).min(due).max(last);
        if now > until {
            return actions;
        }
        if delivery <= now
            && let Some((_, connection, total)) = deliveries.pop_front()
        {
            session.delivered(now, connection, total);
        } else if reply <= now
            && let Some((_, connection)) = replies.pop_front()
        {
            session.received(now, connection);
        }
        for end in [End::Near, End::Far] {
            while let Some(action) = session.act(end, now) {
                actions.push((now, action));
                let mut send = |connection: u32, bytes: u64| {
                    let sent = &mut written[connection as usize];
                    *sent += bytes;
                    free_at = now.max(free_at) + (bytes as f64 / rate) as Nanos;
                    deliveries.push_back((free_at + delay, connection, *sent));
                };
                match action {
                    Action::Open { connection } => {
                        assert_eq!(connection as usize, written.len());
                        written.push(0);
                        session.established(now);
                    }
                    Action::Write { connection, bytes } => {
                        session.retransmitted(connection, 0);
                        send(connection, bytes);
                    }
                    Action::Stream { .. } => streaming = Some(now),
                    Action::Stop { connection } => {
                        if let Some(since) = streaming.take() {
                            send(connection, ((now - since) as f64 * rate) as u64);
                        }
                        session.stopped(now, connection, written[connection as usize]);
                    }
                    Action::Send { connection, .. } => replies.push_back((now + delay, connection)),
                    Action::Close { connection } => {
                        assert!(written.len() > connection as usize);
                    }
                }
            }
        }
    }
}

fn written(actions: &[(Nanos, Action)]) -> u64 {
    let bytes = |action: &(Nanos, Action)| match action.1 {
        Action::Write { bytes, .. } => bytes,
        _ => 0,
    };
    actions.iter().map(bytes).sum()
}

#[test]
fn bulk_has_no_session() {
    assert!(Session::new(&App::Bulk, 0, 1).is_none());
}

#[test]
fn a_script_writes_by_the_clock() {
    let mut session = session(
        "{ kind = \"script\", steps = [{ pause_s = 1 }, { name = \"trickle\", bytes = 6000, \
         every_ms = 50, for_s = 20 }, { pause_s = 5 }, { name = \"burst\", bytes = 3000000 }] }",
        1,
    );
    let actions = carry_out(&mut session, 60 * SECOND, 20 * MS, 3e-3);
    assert_eq!(session.names(), ["trickle", "burst"]);
    assert_eq!(session.messages().len(), 401);
    let [first, .., last] = session.messages() else {
        panic!("401 messages");
    };
    assert_eq!((first.start, last.start), (SECOND, 26 * SECOND));
    assert_eq!((last.name, last.bytes), (1, 3_000_000));
    assert_eq!(written(&actions), 400 * 6_000 + 3_000_000);
    // 3 MB at 24 Mbit/s after 20 ms.
    assert_eq!(last.completed, Some(26 * SECOND + 1_020 * MS));
}

#[test]
fn a_repeated_script_begins_again() {
    let mut session = session(
        "{ kind = \"script\", repeat = true, steps = [{ bytes = 10 }, { pause_s = 1 }] }",
        1,
    );
    carry_out(&mut session, 5 * SECOND, MS, 1.0);
    let starts: Vec<Nanos> = session
        .messages()
        .iter()
        .map(|message| message.start)
        .collect();
    assert_eq!(starts, [0, 1, 2, 3, 4, 5].map(|second| second * SECOND));
}

#[test]
fn the_next_request_comes_after_the_pause() {
    let mut session = session(
        "{ kind = \"request-response\", bytes = [1000, 5000], think_ms = 100, count = 5 }",
        1,
    );
    carry_out(&mut session, 60 * SECOND, 20 * MS, 1.0);
    assert_eq!(session.names(), ["response-1000", "response-5000"]);
    let sizes: Vec<u64> = session
        .messages()
        .iter()
        .map(|message| message.bytes)
        .collect();
    assert_eq!(sizes, [1_000, 5_000, 1_000, 5_000, 1_000]);
    for pair in session.messages().windows(2) {
        let completed = pair[0].completed.expect("it arrived");
        assert_eq!(pair[1].start - completed, 100 * MS);
        assert!(completed - pair[0].start >= 40 * MS, "request and response");
    }
    assert_eq!(session.connections(), 1);
}

#[test]
fn a_request_may_have_a_connection_of_its_own() {
    let app = "{ kind = \"request-response\", bytes = 1000, connection = \"new\", count = 3 }";
    let mut session = session(app, 1);
    let actions = carry_out(&mut session, 60 * SECOND, 20 * MS, 1.0);
    let closed = |action: &&(Nanos, Action)| matches!(action.1, Action::Close { .. });
    assert_eq!(actions.iter().filter(closed).count(), 3);
    let connections: Vec<u32> = (session.messages().iter())
        .map(|message| message.connection)
        .collect();
    assert_eq!(connections, [0, 1, 2]);
}

#[test]
fn a_player_keeps_its_buffer_full_and_chooses_what_the_path_carries() {
    let text = "{ kind = \"video\", bitrates_mbps = [1, 2, 4, 8], chunk_s = 2, buffer_s = 10 }";
    let mut player = session(text, 1);
    // 6 Mbit/s of payload.
    carry_out(&mut player, 60 * SECOND, 20 * MS, 0.75e-3);
    let playback = player.playback(60 * SECOND).expect("a video");
    assert_eq!((playback.stalls, playback.stalled), (0, 0));
    let startup = playback.startup.expect("it plays");
    assert!((300 * MS..500 * MS).contains(&startup), "{startup}");
    // 60 s of video, and 10 s in the buffer.
    assert!((34..=35).contains(&playback.chunks), "{playback:?}");
    let bytes = |message: &Message| message.bytes;
    let last = player.messages().last().map(bytes);
    assert_eq!(last, Some(1_000_000), "4 Mbit/s for 2 s");
    // 0.8 Mbit/s: it pauses for a fifth of the time.
    let mut starved = session(text, 1);
    carry_out(&mut starved, 100 * SECOND, 20 * MS, 0.1e-3);
    let playback = starved.playback(100 * SECOND).expect("a video");
    assert!(playback.stalls > 30, "{playback:?}");
    assert!(
        (18 * SECOND..24 * SECOND).contains(&playback.stalled),
        "{playback:?}"
    );
}

#[test]
fn keystrokes_are_echoed() {
    let mut session = session("{ kind = \"keystrokes\", mean_ms = 100 }", 1);
    carry_out(&mut session, 60 * SECOND, 20 * MS, 1.0);
    let messages = session.messages();
    assert!((500..700).contains(&messages.len()), "{}", messages.len());
    for message in &messages[..messages.len() - 5] {
        let echoed = message.echoed.expect("an echo");
        assert!((40 * MS..42 * MS).contains(&(echoed - message.start)));
    }
}

#[test]
fn short_flows_arrive_at_the_load_of_the_link() {
    let text = "{ kind = \"short-flows\", load = 0.6, sizes = { pareto = 1.2, least_bytes = \
                1000, most_bytes = 1000000 } }";
    let mut session = session(text, 3);
    let actions = carry_out(&mut session, 2_000 * SECOND, 20 * MS, 3e-3);
    let load = written(&actions) as f64 * 8.0 * 1500.0 / 1448.0 / 2_000.0 / 24e6;
    assert!((0.55..0.65).contains(&load), "{load}");
    let opened = |action: &&(Nanos, Action)| matches!(action.1, Action::Open { .. });
    assert_eq!(
        actions.iter().filter(opened).count(),
        session.messages().len()
    );
}

#[test]
fn an_on_off_source_at_a_rate_writes_what_it_should() {
    let app = "{ kind = \"on-off\", on_s = 2, off_s = 1, rate_mbps = 3 }";
    let mut session = session(app, 1);
    let actions = carry_out(&mut session, 9 * SECOND - 1, MS, 1.0);
    assert_eq!(session.messages().len(), 3);
    for (number, message) in session.messages().iter().enumerate() {
        assert_eq!(message.start, 3 * SECOND * number as Nanos);
        assert_eq!(message.bytes, 750_000);
        let completed = message.completed.expect("the period is over");
        assert!(completed >= message.start + 2 * SECOND - 10 * MS);
    }
    assert_eq!(written(&actions), 3 * 750_000);
}

#[test]
fn an_on_off_source_without_a_rate_sends_what_the_connection_takes() {
    let mut session = session("{ kind = \"on-off\", on_s = 2, off_s = 1 }", 1);
    carry_out(&mut session, 9 * SECOND - 1, MS, 1e-3);
    let sizes: Vec<u64> = session
        .messages()
        .iter()
        .map(|message| message.bytes)
        .collect();
    assert_eq!(sizes, [2_000_000; 3]);
}

/// Applications of every kind, with some random parameters.
fn any_app() -> impl Strategy<Value = String> {
    let random = any::<bool>();
    prop_oneof![
        (1u32..3_000, 1u32..500, random).prop_map(|(bytes, think, random)| format!(
            "{{ kind = \"request-response\", bytes = [{bytes}, 40000], think_ms = {think}, random \
             = {random}, connection = \"{}\" }}",
            if bytes % 2 == 0 { "new" } else { "keep-alive" }
        )),
        (100u32..3_000, random).prop_map(|(on, random)| format!(
            "{{ kind = \"on-off\", on_s = 0.{on:04}1, off_s = 0.5, rate_mbps = 2, random = \
             {random} }}"
        )),
        (100u32..3_000).prop_map(|on| format!(
            "{{ kind = \"on-off\", on_s = 0.{on:04}1, off_s = 0.5, random = true }}"
        )),
        (1u32..40).prop_map(|load| format!(
            "{{ kind = \"short-flows\", load = 0.{load:02}1, sizes = {{ median_bytes = 5000, \
             sigma = 1.5, most_bytes = 500000 }} }}"
        )),
        (10u32..300).prop_map(|mean| format!("{{ kind = \"keystrokes\", mean_ms = {mean} }}")),
        (1u32..9).prop_map(|rate| format!(
            "{{ kind = \"video\", bitrates_mbps = [0.5, {rate}], chunk_s = 1, buffer_s = 3 }}"
        )),
        (1u32..5_000, 1u32..60).prop_map(|(bytes, every)| format!(
            "{{ kind = \"script\", repeat = true, steps = [{{ bytes = {bytes}, every_ms = {every}, \
             for_s = 1 }}, {{ bytes = 9 }}, {{ pause_s = 0.3 }}] }}"
        )),
    ]
}

proptest! {
    /// Whatever the application: every byte belongs to one message, messages of a connection are
    /// complete in the order in which they began, each after its start, and what could arrive has.
    #[test]
    fn bytes_are_conserved_and_messages_keep_their_order(text in any_app(), seed in 0u64..1000) {
        let mut session = session(&text, seed);
        let until = 20 * SECOND;
        let actions = carry_out(&mut session, until, 10 * MS, 3e-3);
        let opens = |action: &&(Nanos, Action)| matches!(action.1, Action::Open { .. });
        prop_assert_eq!(actions.iter().filter(opens).count() as u32, session.connections());
        let messages = session.messages();
        for connection in 0..session.connections() {
            let own = || messages.iter().filter(|message| message.connection == connection);
            let total: u64 = own().map(|message| message.bytes).sum();
            prop_assert_eq!(total, session.streams[connection as usize].written);
            let done = || own().map(|message| message.completed);
            let complete: Vec<_> = done().map_while(|done| done).collect();
            prop_assert!(complete.is_sorted());
            prop_assert_eq!(done().flatten().count(), complete.len(), "no gaps");
            for message in own() {
                if let (Some(first), Some(done)) = (message.first_byte, message.completed) {
                    prop_assert!(message.start < first && first <= done && done <= until);
                }
            }
        }
    }

    /// The seed determines the course, and the steps in which time passes do not matter.
    #[test]
    fn the_seed_determines_what_is_sent(text in any_app(), seed in 0u64..1000) {
        let mut sessions = [session(&text, seed), session(&text, seed)];
        let [one, other] = &mut sessions;
        let first = carry_out(one, 5 * SECOND, 10 * MS, 3e-3);
        prop_assert_eq!(first, carry_out(other, 5 * SECOND, 10 * MS, 3e-3));
        prop_assert_eq!(one.messages(), other.messages());
    }
}
