//! Services and policies on this host, with what a network may do between them.

use std::{
    io,
    net::{SocketAddr, TcpListener, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use cc_sim::{
    scenario::Loss,
    shim::{Conditions, Medium, OneWay},
};
use prost::Message;

use super::{
    wire::{
        Decided, FromPolicy, FromWorld, Hello, Nothing, Observation, decode, from_policy,
        from_world,
    },
    *,
};
use crate::{
    environment::{
        End, Environment, Turn,
        networked::{NetworkedConfig, SteppedWorld},
    },
    shim::{self, Settings, Socket},
};

/// A service, or a relay, on a thread of its own.
struct Running<T> {
    at: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<T>>,
}

impl<T: Send + 'static> Running<T> {
    fn start(
        medium: Medium,
        run: impl FnOnce(Socket, &AtomicBool) -> io::Result<T> + Send + 'static,
    ) -> Self {
        let (socket, at) = match medium {
            Medium::Datagrams => {
                let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback");
                let at = socket.local_addr().expect("bound");
                (Socket::Udp(socket), at)
            }
            Medium::Stream => {
                let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
                let at = listener.local_addr().expect("bound");
                (Socket::Tcp(listener), at)
            }
        };
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || run(socket, &stopped));
        Self { at, stop, thread }
    }

    fn finish(self) -> T {
        self.stop.store(true, Ordering::Relaxed);
        let outcome = self.thread.join().expect("it does not panic");
        outcome.expect("it ends in good order")
    }
}

fn service(medium: Medium) -> Running<ServiceSummary> {
    Running::start(medium, serve)
}

fn relay(to: SocketAddr, medium: Medium) -> Running<shim::Summary> {
    let one_way = OneWay::Drawn {
        delay: Duration::from_millis(3),
        jitter: Duration::from_millis(2),
        loss: Loss::Bernoulli(0.2),
    };
    let conditions = Conditions {
        there: one_way.clone(),
        back: one_way,
        retransmission: None,
    };
    let settings = Settings {
        to,
        conditions,
        seed: 5,
    };
    Running::start(medium, move |socket, stop| {
        shim::relay(socket, settings, None, stop)
    })
}

fn config(world: &str) -> NetworkedConfig {
    let world: SteppedWorld = toml::from_str(&format!("kind = \"{world}\"")).expect("a world");
    NetworkedConfig {
        interval_ms: 2.0,
        ..NetworkedConfig::plain(world)
    }
}

fn connect(at: SocketAddr, medium: Medium, world: &str) -> Result<RemoteWorld, LiveError> {
    RemoteWorld::connect(at, medium, config(world), 9, Arc::default())
}

/// Returns and lengths of the first episodes with one action throughout.
fn play(world: &mut dyn Environment, action: usize, episodes: usize) -> Vec<(f32, f32, End)> {
    let (mut turn, mut played) = (Turn::default(), Vec::new());
    world.next(&mut turn);
    assert_eq!(turn.first, Some(End::Truncated));
    let (mut total, mut steps) = (0.0, 0.0);
    while played.len() < episodes {
        world.act(action);
        world.next(&mut turn);
        total += turn.reward;
        steps += turn.intervals;
        if let Some(end) = turn.first {
            played.push(((total * 1e3).round(), steps, end));
            (total, steps) = (0.0, 0.0);
        }
    }
    played
}

/// The same action throughout makes an episode the same whatever is lost or late.
#[test]
fn an_episode_elsewhere_is_that_of_the_plain_world() {
    for medium in [Medium::Datagrams, Medium::Stream] {
        for (world, action) in [("cartpole", 1), ("gridworld", 1)] {
            let service = service(medium);
            let relay = relay(service.at, medium);
            let mut plain = config(world).world.environment(9);
            let mut remote = connect(relay.at, medium, world).expect("a world");
            let failure = remote.failure();
            let found = play(&mut remote, action, 6);
            assert!(failure.get().is_none(), "{:?}", failure.get());
            assert_eq!(found, play(&mut plain, action, 6), "{world}, {medium:?}");
            drop(remote);
            relay.finish();
            let summary = service.finish();
            let steps: f32 = found.iter().map(|(_, steps, _)| steps).sum();
            assert!(summary.steps as f32 >= steps && summary.sessions == 1);
            assert!(summary.observations > summary.steps && summary.decisions > 0);
            assert!(summary.lateness.is_some());
        }
    }
}

fn encoded(session: u64, content: from_policy::Content) -> Vec<u8> {
    FromPolicy {
        session,
        content: Some(content),
    }
    .encode_to_vec()
}

fn hello() -> Hello {
    Hello {
        protocol: PROTOCOL,
        world: "{\"kind\":\"cartpole\"}".to_owned(),
        interval_ms: 2.0,
        grace_ms: 1.0,
        seed: 1,
    }
}

#[test]
fn what_is_no_message_changes_nothing_and_is_counted() {
    let service = service(Medium::Datagrams);
    let mut remote = connect(service.at, Medium::Datagrams, "cartpole").expect("a world");
    play(&mut remote, 1, 1);
    let stranger = UdpSocket::bind("127.0.0.1:0").expect("loopback");
    let decision = Decided {
        episode: 1,
        interval: 0,
        action: 0,
    };
    let whole = encoded(7, from_policy::Content::Decision(decision));
    let bad = [
        Vec::new(),
        vec![0xff; 40],
        vec![0; 60_000],
        whole[..whole.len() - 1].to_vec(),
        // Whole, and about no session of this peer.
        whole,
        encoded(7, from_policy::Content::Bye(Nothing {})),
        encoded(0, from_policy::Content::Ready(Nothing {})),
    ];
    for message in &bad {
        stranger.send_to(message, service.at).expect("sent");
    }
    let mut plain = config("cartpole").world.environment(9);
    // The session goes on, from the second episode.
    let all = play(&mut plain, 1, 4);
    let mut turn = Turn::default();
    remote.act(1);
    let mut steps = 0.0;
    while {
        remote.next(&mut turn);
        steps += turn.intervals;
        turn.first.is_none()
    } {
        remote.act(1);
    }
    assert_eq!(steps, all[1].1);
    drop(remote);
    let summary = service.finish();
    // A goodbye may be said more than once.
    assert_eq!(summary.faults, bad.len() as u64 - 1, "{summary:?}");
}

#[test]
fn decisions_about_what_has_not_been_and_of_actions_that_are_none_are_not_taken() {
    let service = service(Medium::Datagrams);
    let policy = UdpSocket::bind("127.0.0.1:0").expect("loopback");
    policy.connect(service.at).expect("an address");
    let patience = Some(Duration::from_secs(10));
    policy.set_read_timeout(patience).expect("a timeout");
    let mut buffer = [0; 2_000];
    let mut receive = || {
        let length = policy.recv(&mut buffer).expect("an answer");
        decode::<FromWorld>(&buffer[..length]).expect("a message")
    };
    let send = |session, content| {
        policy.send(&encoded(session, content)).expect("sent");
    };
    send(0, from_policy::Content::Hello(hello()));
    let session = receive().session;
    // Without being ready there are no observations, so nothing to answer.
    for (episode, interval, action) in [(1, 0, 1), (1, 0, 2), (9, 0, 1), (1, u64::MAX, 1)] {
        let decision = Decided {
            episode,
            interval,
            action,
        };
        send(session, from_policy::Content::Decision(decision));
    }
    send(session, from_policy::Content::Ready(Nothing {}));
    for number in 0..20 {
        let content = receive().content;
        let Some(from_world::Content::Observation(one)) = content else {
            panic!("{content:?}");
        };
        assert_eq!((one.episode, one.interval, one.steps), (1, number, 0));
    }
    send(session, from_policy::Content::Bye(Nothing {}));
    let summary = service.finish();
    assert_eq!(
        (summary.faults, summary.decisions, summary.steps),
        (4, 0, 0)
    );
}

#[test]
fn a_greeting_of_no_use_is_refused_with_the_reason() {
    type Change = fn(&mut Hello);
    let changes: [(Change, &str); 6] = [
        (|one| one.protocol = 99, "protocol 99 is asked for"),
        (
            |one| one.world = "{}".to_owned(),
            "a world that this service does not know",
        ),
        (
            |one| one.world = "{\"kind\":\"gridworld\",\"length\":4294967295}".to_owned(),
            "length of the world is 4294967295",
        ),
        (|one| one.interval_ms = f64::NAN, "interval_ms is NaN"),
        (|one| one.interval_ms = 0.5, "grace_ms is 1"),
        (
            |one| (one.interval_ms, one.grace_ms) = (0.5, 0.0),
            "in real time has to be at least 1",
        ),
    ];
    let service = service(Medium::Datagrams);
    let policy = UdpSocket::bind("127.0.0.1:0").expect("loopback");
    let patience = Some(Duration::from_secs(10));
    policy.set_read_timeout(patience).expect("a timeout");
    for (change, reason) in changes {
        let mut bad = hello();
        change(&mut bad);
        let message = encoded(0, from_policy::Content::Hello(bad));
        policy.send_to(&message, service.at).expect("sent");
        let mut buffer = [0; 2_000];
        let length = policy.recv(&mut buffer).expect("an answer");
        let answer = decode::<FromWorld>(&buffer[..length]).expect("a message");
        let Some(from_world::Content::Refusal(refusal)) = answer.content else {
            panic!("{answer:?}");
        };
        assert!(refusal.reason.contains(reason), "{}", refusal.reason);
    }
    assert_eq!(service.finish().refused, 6);
}

#[test]
fn a_world_is_one_policys_at_a_time() {
    let service = service(Medium::Stream);
    let first = connect(service.at, Medium::Stream, "cartpole").expect("a world");
    let second = connect(service.at, Medium::Stream, "cartpole");
    let error = second.map(drop).expect_err("it is taken").to_string();
    assert!(error.contains("another policy has the world"), "{error}");
    drop(first);
    // The service learns of the end as soon as it reads it.
    let begun = Instant::now();
    while connect(service.at, Medium::Stream, "cartpole").is_err() {
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
    assert_eq!(service.finish().sessions, 2);
}

/// Answers each message by what `answer` makes of it, once for each of its results.
fn pretend(answer: fn(FromPolicy) -> Vec<Vec<u8>>) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback");
    let at = socket.local_addr().expect("bound");
    thread::spawn(move || {
        let mut buffer = [0; 2_000];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let message = decode(&buffer[..length]).expect("of this crate");
            for answer in answer(message) {
                let _ = socket.send_to(&answer, from);
            }
        }
    });
    at
}

fn from_world(content: from_world::Content) -> Vec<u8> {
    FromWorld {
        session: 3,
        content: Some(content),
    }
    .encode_to_vec()
}

#[test]
fn a_service_that_says_nothing_of_use_is_given_up() {
    let silent = || connect(pretend(|_| Vec::new()), Medium::Datagrams, "cartpole");
    let nonsense = || {
        let at = pretend(|_| vec![vec![0xff; 40], Vec::new(), vec![0; 5_000]]);
        connect(at, Medium::Datagrams, "cartpole")
    };
    // It opens a session, and then tells of a world of another size, and of another session.
    let strange = || {
        let at = pretend(|message| match message.content {
            Some(from_policy::Content::Hello(_)) => {
                vec![from_world(from_world::Content::Welcome(Nothing {}))]
            }
            _ => {
                let observation = Observation {
                    episode: 1,
                    values: vec![0.0; 3],
                    ..Observation::default()
                };
                vec![from_world(from_world::Content::Observation(observation))]
            }
        });
        let mut world = connect(at, Medium::Datagrams, "cartpole")?;
        let mut turn = Turn::default();
        for _ in 0..3 {
            world.next(&mut turn);
            assert_eq!(
                (turn.first, turn.observation.len()),
                (Some(End::Truncated), 4)
            );
            world.act(0);
        }
        let failure = world.failure();
        drop(world);
        match Arc::into_inner(failure).and_then(std::sync::OnceLock::into_inner) {
            Some(failure) => Err(failure),
            None => panic!("it has failed"),
        }
    };
    type Try = fn() -> Result<RemoteWorld, LiveError>;
    let tries: [(Try, u64); 3] = [(silent, 0), (nonsense, 1), (strange, 1)];
    let threads = tries.map(|(one, least)| (thread::spawn(one), least));
    for (thread, least) in threads {
        let outcome = thread.join().expect("no panic");
        match outcome.map(drop) {
            Err(LiveError::Silent { faults, .. }) => assert!(faults >= least, "{faults}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_wait_ends_when_it_is_told_to() {
    let at = pretend(|_| Vec::new());
    let stop = Arc::new(AtomicBool::new(true));
    let world = RemoteWorld::connect(at, Medium::Datagrams, config("gridworld"), 1, stop);
    assert!(matches!(world.map(drop), Err(LiveError::Stopped)));
}
