//! What limits a sender beside losses: the peer's window, the application, congestion marks and
//! the path's MTU.

use std::{thread, time::Duration};

use cc_lab::{
    TcpInfo,
    peer::{Ack, Arrival, Host, Options, SEGMENT, Sent},
};
use etherparse::IpEcn;
use socket2::TcpKeepalive;

use crate::stage::{Both, DECISION, Stage, Story, Talk, play};

/// The peer's window is closed: the sender probes it at growing intervals, and goes on when it
/// opens.
pub(crate) fn zero_window() {
    let host = || Host::new().with_timeout(200);
    let both = play("zero window", host, |stage| {
        let mut talk = stage.connect(Options::default());
        talk.write(2);
        talk.expect(1..=2);
        talk.rtt();
        let closed = || Ack::upto(2).window(0);
        talk.reply(closed());
        talk.write(4);
        assert_eq!(talk.peer.sent().data().count(), 0);
        for backoff in 1..=3 {
            let probe = talk.wait();
            assert_is_probe(&probe, 2 * SEGMENT);
            assert_eq!(talk.info().backoff, backoff);
            assert!(talk.reply(closed()).0.is_empty());
        }
        assert_eq!(talk.reply(Ack::upto(2)).fresh(), [3, 4, 5, 6]);
        talk.deliver(6);
        talk.info().assert_repairs(0, 0);
        Ok(())
    });
    assert!(both.rlcc.cwnds().iter().all(|&cwnd| cwnd == DECISION));
    assert_eq!(both.reno.last_cwnd(), DECISION);
}

/// Asserts that a single segment without data was sent, of an old sequence number: that of the last
/// byte acknowledged. The peer has to answer it.
fn assert_is_probe(sent: &Sent, acknowledged: u32) {
    let [probe] = &sent.0[..] else {
        panic!("not one probe: {sent:?}");
    };
    let last = acknowledged - 1;
    assert_eq!(probe.bytes, (last, last));
}

/// A silent peer is probed, and the connection ends when it answers no more.
pub(crate) fn keepalive() {
    let both = play("keepalive", Host::new, |stage| {
        let mut talk = stage.connect(Options::default());
        let second = Duration::from_secs(1);
        let keepalive = TcpKeepalive::new()
            .with_time(second)
            .with_interval(second)
            .with_retries(2);
        talk.socket
            .set_tcp_keepalive(&keepalive)
            .expect("a TCP socket");
        talk.write(1);
        talk.expect(1..=1);
        talk.rtt();
        talk.reply(Ack::upto(1));
        assert_is_probe(&talk.wait(), SEGMENT);
        talk.reply(Ack::upto(1));
        for _ in 1..=2 {
            assert_is_probe(&talk.wait(), SEGMENT);
        }
        let reset = talk.wait();
        assert!(reset.0[0].segment.header.rst);
        let error = talk.socket.take_error().expect("a socket");
        let error = error.and_then(|error| error.raw_os_error());
        assert_eq!(error, Some(libc::ETIMEDOUT));
        Ok(())
    });
    // When the connection has ended, TCP_INFO has no cwnd any more.
    let alive = both.rlcc.steps.len() - 1;
    assert!(
        both.rlcc.cwnds()[..alive]
            .iter()
            .all(|&cwnd| cwnd == DECISION)
    );
}

/// A cwnd of four times the initial one, in segments, which a script fills before it pauses.
const FILLED: u32 = 40;

/// The segments that a flow sends at once when its cwnd says nothing about the path: the initial
/// cwnd.
const INITIAL: u32 = 10;

/// After several RTOs of idle time both senders start again from the initial cwnd, as
/// `net.ipv4.tcp_slow_start_after_idle` asks.
pub(crate) fn restart_after_idle() {
    let host = || Host::new().with_timeout(200);
    let both = play("restart after idle", host, |stage| {
        let mut talk = stage.connect(Options::default());
        talk.decide(2, FILLED);
        let mut number = 0;
        while talk.info().snd_cwnd < FILLED {
            talk.write(FILLED);
            number += FILLED;
            talk.deliver(number);
        }
        // Each RTO of idle time halves reno's cwnd, down to the initial one.
        thread::sleep(5 * Duration::from_micros(talk.info().rto.into()));
        talk.peer.mark();
        note_first_flight(stage, &mut talk);
        talk.deliver(2 * FILLED);
        assert_eq!(talk.info().total_retrans, 0);
        Ok(())
    });
    assert_eq!(first_flight(&both), (INITIAL, INITIAL));
}

/// A decision far above what the flow uses, in segments.
const UNUSED: u32 = 100;

/// A flow sends one segment per RTT under a decision of [`UNUSED`]: its cwnd stays what it was, and
/// so does reno's (RFC 7661).
pub(crate) fn an_unused_window_is_not_raised() {
    let both = play("application-limited", Host::new, |stage| {
        let mut talk = stage.connect(Options::default());
        talk.decide(2, UNUSED);
        for segment in 1..=5 {
            talk.write(1);
            talk.expect(segment..=segment);
            talk.rtt();
            talk.reply(Ack::upto(segment));
        }
        talk.peer.mark();
        note_first_flight(stage, &mut talk);
        talk.deliver(2 * FILLED);
        assert_eq!(talk.info().total_retrans, 0);
        Ok(())
    });
    assert_eq!(first_flight(&both), (INITIAL, INITIAL));
}

/// Writes more than the cwnd, and notes what is sent at once.
fn note_first_flight(stage: &Stage<'_>, talk: &mut Talk<'_>) {
    talk.write_bytes(2 * FILLED * SEGMENT);
    let sent = talk.peer.sent();
    stage.note("first flight", &sent, &talk.info());
}

/// How many segments the last steps of reno and of the datapath sent.
fn first_flight(both: &Both) -> (u32, u32) {
    let segments = |story: &Story| {
        let last = story.steps.last().expect("the script has steps");
        last.fresh
    };
    (segments(&both.reno), segments(&both.rlcc))
}

/// The cwnd of reno after each of three round trips in which every segment was marked: half of it
/// per round trip, down to 2 (RFC 3168, section 6.1.2).
const RENO_WHILE_MARKED: [u32; 3] = [5, 2, 2];
/// The datapath's: 0.7 per round trip (RFC 9438, section 4.6).
const DECIDED_WHILE_MARKED: [u32; 3] = [7, 4, 2];

/// The receiver echoes congestion marks (RFC 3168): once per round trip the sender says that it has
/// reduced its cwnd, and it does not grow it.
pub(crate) fn congestion_marks() {
    let host = || Host::new().with_sysctl("net/ipv4/tcp_ecn", "1");
    let both = play("congestion marks (ECN)", host, |stage| {
        let mut talk = stage.connect(Options {
            ecn: true,
            ..Options::default()
        });
        talk.write(100);
        let mut flight = talk.peer.expect_data(1..=10);
        for round in 1..=3 {
            assert!(flight.data().all(|data| data.segment.ecn == IpEcn::Ect0));
            talk.rtt();
            let mut next = Sent::default();
            for segment in flight.fresh() {
                let sent = talk.peer.reply(Ack::upto(segment).echo_mark());
                next.0.extend(sent.0);
            }
            stage.note(format!("marked, round {round}"), &next, &talk.info());
            let cwr = next.data().filter(|data| data.segment.header.cwr).count();
            assert_eq!(cwr, 1, "segments with CWR in {next:?}");
            flight = next;
        }
        assert_eq!(talk.info().ca_state, TcpInfo::CA_CWR);
        assert_eq!(talk.info().total_retrans, 0);
        Ok(())
    });
    assert_eq!(both.reno.cwnds(), RENO_WHILE_MARKED);
    assert_eq!(both.rlcc.cwnds(), DECIDED_WHILE_MARKED);
}

/// The host looks for larger segments (RFC 4821): a probe arrives, and segments grow to its size.
pub(crate) fn an_mtu_probe_arrives() {
    play("MTU probe arrives", probing, |stage| {
        let mut talk = mtu_probe(stage);
        talk.rtt();
        let everything = talk.peer.received();
        talk.peer.reply(Ack::upto_byte(everything));
        assert_eq!(talk.info().snd_mss, PROBED);
        assert_eq!(talk.info().total_retrans, 0);
        Ok(())
    });
}

/// A probe that is lost is sent again in smaller segments, and does not count as congestion.
pub(crate) fn an_mtu_probe_is_lost() {
    let both = play("MTU probe is lost", probing, |stage| {
        let mut talk = mtu_probe(stage);
        talk.rtt();
        let (lost, after) = (10 * BASE, 10 * BASE + PROBED);
        let third = stage.quickly(|| {
            [1, 2, 3].map(|count| {
                talk.reply(Ack::upto_byte(lost).sack_bytes(after, after + count * BASE))
            })
        })?;
        let again = third.iter().flat_map(Sent::data).filter(|data| data.again);
        let again: Vec<_> = again.map(|data| data.bytes).collect();
        assert_eq!(again, [(lost, lost + BASE), (lost + BASE, after)]);
        assert_eq!(talk.info().snd_mss, BASE);
        Ok(())
    });
    // Reno, too, keeps its cwnd.
    let last = both.reno.steps.len() - 1;
    assert!(both.reno.cwnd(last) >= 2 * DECISION);
    assert_eq!(both.rlcc.cwnd(last), 2 * DECISION);
}

/// Bytes in the segments with which MTU probing begins (`net.ipv4.tcp_base_mss`).
const BASE: u32 = 1_024;

/// Bytes in the first probe: an MTU half-way from that of [`BASE`] to the link's.
const PROBED: u32 = (1_064 + 1_500) / 2 - 40;

fn probing() -> Host {
    Host::new().with_sysctl("net/ipv4/tcp_mtu_probing", "2")
}

/// Lets a flow grow to the cwnd from which on the kernel probes, and takes the flight that begins
/// with the probe.
fn mtu_probe<'a>(stage: &'a Stage<'a>) -> Talk<'a> {
    let mut talk = stage.connect(Options {
        mss: 1_460,
        ..Options::default()
    });
    talk.decide(2, 2 * DECISION);
    talk.write_bytes(100 * BASE);
    let lengths = |sent: &Sent| sent.data().map(Arrival::length).collect::<Vec<_>>();
    let first = talk.peer.sent();
    assert_eq!(lengths(&first), [BASE; 10]);
    talk.rtt();
    let second = talk.reply(Ack::upto_byte(10 * BASE));
    let lengths = lengths(&second);
    assert_eq!(lengths[0], PROBED);
    assert!(lengths[1..].iter().all(|&length| length == BASE));
    talk
}

/// Large segments vanish on the path, and no router says so: after some timeouts the sender tries
/// smaller ones.
pub(crate) fn a_path_swallows_large_segments() {
    let host = || {
        Host::new()
            .with_timeout(200)
            .with_sysctl("net/ipv4/tcp_mtu_probing", "1")
            .with_sysctl("net/ipv4/tcp_retries1", "1")
    };
    let both = play("black hole for large segments", host, |stage| {
        let mut talk = stage.connect(Options {
            mss: 1_460,
            ..Options::default()
        });
        talk.write_bytes(2 * 1_460);
        assert_eq!(talk.peer.sent().data().count(), 2);
        let small = loop {
            let sent = talk.wait();
            let [segment] = &sent.0[..] else {
                panic!("more than one segment: {sent:?}");
            };
            if segment.length() < 1_460 {
                break segment.length();
            }
        };
        assert_eq!(small, BASE);
        let mut acknowledged = small;
        while acknowledged < 2 * 1_460 {
            let sent = talk.reply(Ack::upto_byte(acknowledged));
            assert!(sent.data().all(|data| data.length() <= BASE));
            let ends = sent.data().map(|data| data.bytes.1);
            acknowledged = ends.max().unwrap_or(2 * 1_460);
        }
        talk.reply(Ack::upto_byte(acknowledged));
        assert_eq!(talk.info().unacked, 0);
        Ok(())
    });
    assert!(both.rlcc.cwnds().iter().all(|&cwnd| cwnd <= DECISION));
}
