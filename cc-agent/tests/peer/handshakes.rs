//! Ways in which a connection begins: TCP Fast Open, SYN cookies, IPv6, and Multipath TCP.

use std::net::SocketAddr;

use cc_lab::{
    Outcome, TcpInfo, eventually,
    peer::{Ack, Host, Options, Peer, SEGMENT, Sent, allow_fast_open},
};
use socket2::{Domain, Protocol, Socket, Type};

use crate::{
    loss::fast_recovery,
    stage::{DECISION, Played, Stage, Talk, connect, play},
};

/// A cookie that a peer gives.
const COOKIE: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

/// Connects with data (`MSG_FASTOPEN`), and returns how many bytes went into the SYN; `None` when
/// the kernel has no cookie yet and asks for one.
fn open_with_data(socket: &Socket, to: SocketAddr) -> Option<usize> {
    let data = [0; SEGMENT as usize];
    match socket.send_to_with_flags(&data, &to.into(), libc::MSG_FASTOPEN) {
        Ok(sent) => Some(sent),
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => None,
        Err(error) => panic!("sending to {to}: {error}"),
    }
}

/// The client has no cookie and asks for one; the next connection sends data with its SYN.
pub(crate) fn fast_open_client() {
    let both = play("Fast Open, client", Host::new, |stage| {
        ask_for_a_cookie(stage);
        let mut talk = talk_with_data(stage, SEGMENT);
        // The SYN's data were taken: nothing is sent again.
        talk.write(10);
        talk.expect(2..=11);
        fast_open_rest(&mut talk)
    });
    assert_eq!(both.rlcc.last_cwnd(), DECISION);
}

/// The peer has forgotten the cookie, and acknowledges the SYN without its data.
pub(crate) fn fast_open_client_with_a_stale_cookie() {
    let both = play(
        "Fast Open, client with a stale cookie",
        Host::new,
        |stage| {
            ask_for_a_cookie(stage);
            let mut talk = talk_with_data(stage, 0);
            talk.write(9);
            talk.deliver(10);
            assert_eq!(talk.info().total_retrans, 1, "the SYN's data");
            Ok(())
        },
    );
    assert_eq!(both.rlcc.steps.len(), both.reno.steps.len());
}

fn fast_open_rest(talk: &mut Talk<'_>) -> Played {
    talk.rtt();
    talk.reply(Ack::upto(2));
    talk.decide(1, DECISION);
    talk.reply(Ack::upto(4));
    talk.deliver(11);
    assert_eq!(talk.info().total_retrans, 0);
    Ok(())
}

fn ask_for_a_cookie(stage: &Stage<'_>) {
    // The host remembers the segment size as well, and leaves room for 40 bytes of options
    // (`tcp_send_syn_data`, net/ipv4/tcp_output.c, Linux 6.18).
    let mut peer = Peer::v4(
        stage.host,
        Options {
            mss: SEGMENT + 40,
            ..Options::default()
        },
    );
    let socket = stage.socket(Domain::IPV4);
    assert_eq!(open_with_data(&socket, peer.address()), None);
    let syn = peer.expect_syn();
    assert_eq!(syn.options.cookie.as_deref(), Some(&[][..]));
    assert!(syn.payload.is_empty());
    peer.options().cookie = Some(COOKIE.to_vec());
    stage.rtt();
    peer.send_syn_ack(0);
    let mut talk = Talk::new(stage, peer, socket);
    talk.write(1);
    talk.peer.expect_data(1..=1);
    talk.peer.reply(Ack::upto(1));
}

/// Opens a connection whose SYN carries the cookie and a segment of data, of which the peer takes
/// that many bytes, and notes what the host sent then.
fn talk_with_data<'a>(stage: &'a Stage<'a>, taken: u32) -> Talk<'a> {
    let mut peer = Peer::v4(stage.host, Options::default());
    let socket = stage.socket(Domain::IPV4);
    let sent = open_with_data(&socket, peer.address());
    assert_eq!(sent, Some(SEGMENT as usize));
    let syn = peer.expect_syn();
    assert_eq!(syn.options.cookie.as_deref(), Some(&COOKIE[..]));
    assert_eq!(syn.payload.len(), SEGMENT as usize);
    stage.rtt();
    let sent = peer.send_syn_ack(taken);
    let expected: &[u32] = if taken == 0 { &[1] } else { &[] };
    assert_eq!(sent.again(), expected);
    let talk = Talk::new(stage, peer, socket);
    stage.note("syn-ack", &sent, &talk.info());
    talk
}

/// The port of the host's listening sockets.
const PORT: u16 = 80;

/// Returns a listening socket of the host, whose connections have the stage's congestion control.
fn listener(stage: &Stage<'_>) -> Socket {
    let listener = stage.socket(Domain::IPV4);
    let any = SocketAddr::from(([0, 0, 0, 0], PORT));
    listener.bind(&any.into()).expect("a free port");
    listener
}

/// Waits for a connection, and joins it to the peer that opened it.
fn accepted<'a>(stage: &'a Stage<'a>, listener: &Socket, peer: Peer<'a>) -> Talk<'a> {
    let (socket, _) = eventually("a connection was accepted", || listener.accept().ok());
    stage.prepare(&socket);
    Talk::new(stage, peer, socket)
}

/// The server gives a cookie; with it, the next client's data are delivered before the handshake is
/// complete, and answered. With a wrong one they are not.
pub(crate) fn fast_open_server() {
    let host = || Host::new().with_sysctl("net/ipv4/tcp_fastopen", "3");
    let both = play("Fast Open, server", host, |stage| {
        let listener = listener(stage);
        listener.listen(8).expect("a bound socket");
        allow_fast_open(&listener, 8).expect("a listening socket");

        let with = |cookie: Vec<u8>| Options {
            cookie: Some(cookie),
            ..Options::default()
        };
        let mut peer = Peer::v4(stage.host, with(Vec::new()));
        let cookie = peer.send_syn(PORT, &[]).options.cookie;
        let cookie = cookie.expect("the server gives a cookie");
        peer.reply(Ack::upto(0));
        drop(accepted(stage, &listener, peer));

        // The wrong cookie: only the SYN is acknowledged, and there is nothing to accept yet.
        let mut peer = Peer::v4(stage.host, with(COOKIE.to_vec()));
        let answer = peer.send_syn(PORT, &[0; 500]);
        assert!(answer.options.cookie.is_some());
        assert_eq!(peer.acknowledged(), 0);
        assert!(listener.accept().is_err());
        stage.rtt();
        peer.send_data(Ack::upto(0), 500);
        let mut talk = accepted(stage, &listener, peer);
        talk.warm_up(DECISION);
        fast_recovery(&mut talk, stage, true)?;
        drop(talk);

        // The right one: the data are acknowledged, and the server answers at once.
        let mut peer = Peer::v4(stage.host, with(cookie));
        peer.send_syn(PORT, &[0; 500]);
        assert_eq!(peer.acknowledged(), 500);
        let mut talk = accepted(stage, &listener, peer);
        talk.write(5);
        talk.expect(1..=5);
        stage.rtt();
        talk.reply(Ack::upto(1));
        talk.decide(1, DECISION);
        talk.reply(Ack::upto(2));
        talk.deliver(5);
        assert_eq!(talk.info().total_retrans, 0);
        Ok(())
    });
    assert_eq!(both.rlcc.last_cwnd(), DECISION);
}

/// The server keeps no state for connections that are not complete: the ACK's cookie makes the
/// socket, which loses as any other does.
pub(crate) fn syn_cookies() {
    let host = || Host::new().with_sysctl("net/ipv4/tcp_syncookies", "2");
    let both = play("SYN cookies", host, |stage| {
        let listener = listener(stage);
        listener.listen(8).expect("a bound socket");
        // Only with timestamps does a cookie hold the other options.
        let mut peer = Peer::v4(
            stage.host,
            Options {
                mss: 1_460,
                timestamps: true,
                ..Options::default()
            },
        );
        peer.send_syn(PORT, &[]);
        peer.reply(Ack::upto(0));
        let mut talk = accepted(stage, &listener, peer);
        talk.warm_up(DECISION);
        fast_recovery(&mut talk, stage, true)
    });
    assert_eq!(both.rlcc.last_cwnd(), DECISION);
}

pub(crate) fn ipv6() {
    let both = play("IPv6", Host::new, |stage| {
        let peer = Peer::v6(stage.host, Options::default());
        fast_recovery(&mut stage.connect_to(peer), stage, true)
    });
    assert_eq!(both.rlcc.last_cwnd(), DECISION);
}

/// An IPv6 socket that is connected to an IPv4 address (RFC 4291, 2.5.5.2).
pub(crate) fn ipv4_mapped_addresses() {
    let both = play("IPv4-mapped", Host::new, |stage| {
        let peer = Peer::v4(stage.host, Options::default());
        let SocketAddr::V4(address) = peer.address() else {
            panic!("an IPv4 peer");
        };
        let socket = stage.socket(Domain::IPV6);
        let mapped = address.ip().to_ipv6_mapped();
        connect(&socket, SocketAddr::from((mapped, address.port())));
        let mut talk = stage.answer(peer, socket);
        talk.warm_up(DECISION);
        fast_recovery(&mut talk, stage, true)
    });
    assert_eq!(both.rlcc.last_cwnd(), DECISION);
}

/// A socket of Multipath TCP whose peer does not speak it goes on as TCP, under its congestion
/// control. Returns without a result where the kernel has no Multipath TCP.
pub(crate) fn multipath_tcp_falls_back() -> Outcome {
    let multipath = Some(Protocol::MPTCP);
    if let Err(error) = Socket::new(Domain::IPV4, Type::STREAM, multipath) {
        return Outcome::Undecided(format!("this kernel has no MPTCP: {error}"));
    }
    let both = play("MPTCP, the peer has only TCP", Host::new, |stage| {
        let peer = Peer::v4(stage.host, Options::default());
        let namespace = &stage.host.namespace;
        let socket = namespace.within(|| Socket::new(Domain::IPV4, Type::STREAM, multipath));
        let socket = socket.expect("the kernel has MPTCP");
        stage.prepare(&socket);
        connect(&socket, peer.address());
        let mut talk = stage.answer(peer, socket);
        talk.write_bytes(SEGMENT);
        talk.peer.expect_data(1..=1);
        talk.rtt();
        talk.peer.reply(Ack::upto(1));
        talk.decide(1, DECISION);
        talk.write_bytes(SEGMENT);
        talk.peer.expect_data(2..=2);
        talk.rtt();
        talk.peer.reply(Ack::upto(2));
        talk.peer.mark();

        talk.write_bytes(10 * SEGMENT);
        talk.expect(1..=10);
        talk.rtt();
        let sent: [Sent; 3] =
            stage.quickly(|| [2, 3, 4].map(|last| talk.reply(Ack::upto(0).sack(2..=last))))?;
        assert_eq!(sent[2].again(), [1]);
        assert_eq!(talk.info().ca_state, TcpInfo::CA_RECOVERY);
        talk.deliver(10);
        Ok(())
    });
    assert_eq!(both.rlcc.last_cwnd(), DECISION);
    Outcome::Passed
}
