use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpListener, TcpStream, UdpSocket},
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use cc_sim::{
    path::nanos,
    scenario::Loss,
    shim::{Fate, OneWay, Preset, recording::Recording},
};

use super::*;

/// Longest silence that a test waits for what must come.
const PATIENCE: Duration = Duration::from_secs(60);

/// A relay on a thread of its own.
struct Running {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<Summary>>,
}

impl Running {
    fn start(udp: bool, to: SocketAddr, conditions: Conditions, record: Option<PathBuf>) -> Self {
        let (socket, address) = if udp {
            let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback");
            let address = socket.local_addr().expect("bound");
            (Socket::Udp(socket), address)
        } else {
            let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
            let address = listener.local_addr().expect("bound");
            (Socket::Tcp(listener), address)
        };
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let settings = Settings {
            to,
            conditions,
            seed: 7,
        };
        let thread = thread::spawn(move || {
            let recording = record.map(|path| {
                let file = File::create(path).expect("a scratch file");
                Box::new(file) as Box<dyn Write>
            });
            relay(socket, settings, recording, &stopped)
        });
        Self {
            address,
            stop,
            thread,
        }
    }

    fn finish(self) -> Summary {
        self.stop.store(true, Ordering::Relaxed);
        let outcome = self.thread.join().expect("the relay does not panic");
        outcome.expect("the relay ends in good order")
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("the relay listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream
    }
}

fn drawn(delay_ms: u64, jitter_ms: u64, loss: Loss) -> OneWay {
    OneWay::Drawn {
        delay: Duration::from_millis(delay_ms),
        jitter: Duration::from_millis(jitter_ms),
        loss,
    }
}

fn conditions(there: OneWay, back: OneWay) -> Conditions {
    Conditions {
        there,
        back,
        retransmission: None,
    }
}

/// Answers each of `connections` with what it sends, and says goodbye after its end.
fn echo(connections: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || {
        for stream in listener.incoming().take(connections) {
            let mut stream = stream.expect("a connection");
            thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(length @ 1..) = stream.read(&mut buffer) {
                    stream.write_all(&buffer[..length]).expect("it reads");
                }
                let _ = stream.write_all(b"bye");
            });
        }
    });
    address
}

#[test]
fn streams_arrive_whole_in_order_and_late() {
    const CLIENTS: usize = 5;
    let lossy = drawn(15, 5, Loss::Bernoulli(0.2));
    let to = echo(CLIENTS);
    let running = Running::start(false, to, conditions(lossy, drawn(10, 0, Loss::None)), None);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let mut stream = running.connect();
            thread::spawn(move || {
                for round in 0..20 {
                    let message = format!("{client}:{round};").repeat(1 + 97 * round);
                    let begun = Instant::now();
                    stream.write_all(message.as_bytes()).expect("sent");
                    let mut answer = vec![0; message.len()];
                    stream.read_exact(&mut answer).expect("an answer");
                    assert!(answer == message.as_bytes(), "{client}:{round} is intact");
                    assert!(begun.elapsed() >= Duration::from_millis(10));
                }
                stream.shutdown(Shutdown::Write).expect("connected");
                let mut rest = String::new();
                stream.read_to_string(&mut rest).expect("the end");
                assert_eq!(rest, "bye", "one direction may end before the other");
            })
        })
        .collect();
    for client in clients {
        client.join().expect("the client's assertions hold");
    }
    let summary = running.finish();
    assert_eq!((summary.connections, summary.refused), (CLIENTS as u64, 0));
    let Summary { there, back, .. } = summary;
    assert!(there.resent > 0 && there.lost == 0 && back.resent == 0);
    for way in [there, back] {
        assert_eq!(way.forwarded, way.messages, "streams lose nothing");
        assert!(way.messages >= 20 * CLIENTS as u64);
    }
    assert_eq!(back.bytes, there.bytes + 3 * CLIENTS as u64);
    let delays = back.delays.expect("there were some");
    assert!(delays.p5_ms >= 9.9 && there.lateness.is_some());
}

#[test]
fn a_stream_that_never_gets_through_is_reset() {
    let mut none = conditions(drawn(1, 0, Loss::Bernoulli(1.0)), OneWay::PERFECT);
    none.retransmission = Some(Duration::from_millis(1));
    let running = Running::start(false, echo(1), none, None);
    let mut stream = running.connect();
    stream.write_all(b"anyone?").expect("the relay takes it");
    let error = stream.read(&mut [0]).expect_err("no answer");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let summary = running.finish();
    assert_eq!((summary.there.messages, summary.there.lost), (1, 1));
    assert_eq!((summary.there.forwarded, summary.there.delays), (0, None));
}

#[test]
fn a_server_that_is_not_there_is_reported() {
    let nobody = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = nobody.local_addr().expect("bound");
    drop(nobody);
    let running = Running::start(false, address, Preset::Ethernet.into(), None);
    let mut stream = running.connect();
    let error = stream.read(&mut [0]).expect_err("no server");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let summary = running.finish();
    assert_eq!((summary.connections, summary.refused), (0, 1));
    assert!(
        summary
            .to_string()
            .starts_with("0 connections, 1 refused (last: ")
    );
}

#[test]
fn a_relay_ends_while_connections_last() {
    let running = Running::start(false, echo(1), Preset::Wan.into(), None);
    let mut stream = running.connect();
    stream.write_all(b"x").expect("sent");
    stream.read_exact(&mut [0]).expect("an answer");
    running.finish();
    assert!(!matches!(stream.read(&mut [0]), Ok(1..)), "it is closed");
}

/// Sends numbered datagrams through a relay to an echo, and returns the numbers of the `answers`
/// that come back, in their order.
fn exchange(running: &Running, server: UdpSocket, count: u32, answers: usize) -> Vec<u32> {
    thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((length, from)) = server.recv_from(&mut buffer) {
            server.send_to(&buffer[..length], from).expect("sent");
        }
    });
    let client = UdpSocket::bind("127.0.0.1:0").expect("loopback");
    client.connect(running.address).expect("an address");
    client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    for number in 0..count {
        client.send(&number.to_be_bytes()).expect("sent");
    }
    let mut number = [0; 64];
    let mut receive = || {
        assert_eq!(client.recv(&mut number).expect("an answer"), 4);
        u32::from_be_bytes(number[..4].try_into().expect("four bytes"))
    };
    (0..answers).map(|_| receive()).collect()
}

fn server() -> (UdpSocket, SocketAddr) {
    let server = UdpSocket::bind("127.0.0.1:0").expect("loopback");
    let address = server.local_addr().expect("bound");
    (server, address)
}

#[test]
fn datagrams_get_through_as_the_model_says() {
    const COUNT: u32 = 200;
    let network = conditions(drawn(40, 30, Loss::Bernoulli(0.3)), OneWay::PERFECT);
    // The first peer's seed; delays do not depend on when a message comes.
    let (mut there, _) = network.channels::<_, ()>(Medium::Datagrams, seed::output(7, 1));
    let fates: Vec<Fate> = (0..COUNT).map(|number| there.offer(0, number)).collect();
    let arrive: BTreeSet<u32> = (0..COUNT)
        .filter(|&number| fates[number as usize] != Fate::Lost)
        .collect();
    let dir = tempfile::tempdir().expect("a scratch directory");
    let file = dir.path().join("recording");

    let (socket, to) = server();
    let running = Running::start(true, to, network, Some(file.clone()));
    let begun = Instant::now();
    let answers = exchange(&running, socket, COUNT, arrive.len());
    let took = nanos(begun.elapsed());
    let summary = running.finish();
    assert_eq!(BTreeSet::from_iter(answers.iter().copied()), arrive);
    assert!(!answers.is_sorted(), "some overtake others");
    let latest = fates.iter().filter_map(|fate| match fate {
        Fate::Arrives { at, .. } => Some(*at),
        Fate::Lost => None,
    });
    assert!(took >= latest.max().unwrap_or_default());
    let Summary { there, back, .. } = &summary;
    assert_eq!(there.messages, u64::from(COUNT));
    assert_eq!(there.lost, u64::from(COUNT) - arrive.len() as u64);
    assert_eq!(
        (there.forwarded, back.forwarded),
        (arrive.len() as u64, arrive.len() as u64)
    );
    assert_eq!(back.bytes, 4 * back.messages);
    let table = summary.to_string();
    assert!(table.contains("1 connections, 0 refused\n") && table.contains("\nthere       200 "));

    // The recording is the same network once more, for any seed.
    let recording = fs::read_to_string(&file).expect("just written");
    let recording: Recording = recording.parse().expect("a recording");
    let way = |way| OneWay::Replayed(recording.way(way).into());
    let replayed = conditions(way(Way::There), way(Way::Back));
    let (mut there, _) = replayed.channels::<_, ()>(Medium::Datagrams, 99);
    let again: Vec<Fate> = (0..COUNT).map(|number| there.offer(0, number)).collect();
    assert_eq!(again, fates);
    let (socket, to) = server();
    let running = Running::start(true, to, replayed, None);
    let answers = exchange(&running, socket, COUNT, arrive.len());
    assert_eq!(BTreeSet::from_iter(answers), arrive);
    assert_eq!(running.finish().there.delays, summary.there.delays);
}

#[test]
fn peers_have_networks_of_their_own() {
    let (socket, to) = server();
    let running = Running::start(true, to, Preset::Ethernet.into(), None);
    let other = socket.try_clone().expect("a descriptor");
    assert_eq!(exchange(&running, socket, 1, 1), [0]);
    assert_eq!(exchange(&running, other, 1, 1), [0]);
    let summary = running.finish();
    assert_eq!((summary.connections, summary.back.forwarded), (2, 2));
}
