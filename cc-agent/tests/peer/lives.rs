//! Lives of sockets that are not one connection under one congestion control.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread::{self, ScopedJoinHandle},
    time::Duration,
};

use cc_ebpf::Counter;
use cc_lab::{
    Outcome, eventually,
    peer::{Ack, Host, Options, Peer, disconnect},
};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::{
    loss::fast_recovery,
    served::{SLOTS, Served, with_datapath},
    stage::{DECISION, Talk, assert_all_slots_are_free, connect, play},
};

/// One connection, of which several threads switch the congestion control while it sends.
pub(crate) fn a_hundred_thousand_switches() {
    with_datapath(switch_under_traffic);
}

fn switch_under_traffic(served: &Served) {
    const SWITCHES: usize = 100_000;
    const OTHERS: [&str; 4] = ["cubic", "reno", "cubic", "reno"];
    let Served { agent, name } = served;
    let opened_before = agent.counter(Counter::FlowsOpened);
    let host = Host::new();
    let (listener, sender) = host.namespace.within(|| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        (listener, TcpStream::connect(address).expect("it listens"))
    });
    let (mut receiver, _) = listener.accept().expect("a connection");

    let (running, sent) = (AtomicBool::new(true), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut data = vec![0; 1 << 16];
            while receiver.read(&mut data).is_ok_and(|read| read > 0) {}
        });
        scope.spawn(|| {
            let data = [0; 1 << 14];
            while running.load(Ordering::Relaxed) {
                (&sender).write_all(&data).expect("an open connection");
                sent.fetch_add(data.len() as u64, Ordering::Relaxed);
            }
            let ended = sender.shutdown(Shutdown::Write);
            ended.expect("an open connection");
        });
        let sender = &sender;
        let switching = OTHERS.map(|other| {
            scope.spawn(move || {
                for pair in 0..SWITCHES / OTHERS.len() / 2 {
                    for control in [other, name] {
                        SockRef::from(sender)
                            .set_tcp_congestion(control.as_bytes())
                            .unwrap_or_else(|error| panic!("choosing {control}: {error}"));
                    }
                    // ACKs wait while the socket is locked, and several become one.
                    if pair % 100 == 0 {
                        thread::sleep(Duration::from_millis(1));
                    }
                }
            })
        });
        let outcomes = switching.map(ScopedJoinHandle::join);
        running.store(false, Ordering::Relaxed);
        for outcome in outcomes {
            outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
    let opened = agent.counter(Counter::FlowsOpened) - opened_before;
    let bytes = sent.into_inner();
    println!("{SWITCHES} switches, {opened} flows opened, {bytes} bytes sent meanwhile");
    assert!(opened > 2 * u64::from(SLOTS), "slots were used again");
    drop((sender, receiver, listener));
    assert_all_slots_are_free(served, &host);
}

/// A socket is disconnected (`AF_UNSPEC`), connected to another peer, disconnected again, and then
/// listens: each of its lives begins anew.
pub(crate) fn one_socket_connects_twice_and_listens() {
    let both = play("connect, connect again, listen", Host::new, |stage| {
        let mut talk = stage.connect(Options::default());
        talk.write(10);
        talk.expect(1..=10);
        disconnect(&talk.socket).expect("a connected socket");
        assert!(talk.peer.wait().0[0].segment.header.rst);
        let socket = talk.socket.try_clone().expect("a free descriptor");
        drop(talk);

        let peer = Peer::v4(stage.host, Options::default());
        connect(&socket, peer.address());
        let mut talk = stage.answer(peer, socket);
        talk.warm_up(DECISION);
        fast_recovery(&mut talk, stage, true)?;
        disconnect(&talk.socket).expect("a connected socket");
        let socket = talk.socket.try_clone().expect("a free descriptor");
        drop(talk);

        socket.listen(8).expect("a disconnected socket");
        let address = socket.local_addr().expect("the kernel chose a port");
        let port = address.as_socket().expect("an IP socket").port();
        let mut peer = Peer::v4(stage.host, Options::default());
        peer.send_syn(port, &[]);
        stage.rtt();
        peer.reply(Ack::upto(0));
        let (child, _) = eventually("a connection was accepted", || socket.accept().ok());
        stage.prepare(&child);
        let mut talk = Talk::new(stage, peer, child);
        talk.warm_up(DECISION);
        fast_recovery(&mut talk, stage, true)
    });
    assert_eq!(both.rlcc.last_cwnd(), DECISION);
}

/// Two sockets of Multipath TCP: the subflow of their connection runs under the datapath, and gives
/// its slot back.
pub(crate) fn multipath_tcp_between_two_sockets() -> Outcome {
    with_datapath(connect_multipath)
}

fn connect_multipath(served: &Served) -> Outcome {
    let Served { agent, name } = served;
    let opened_before = agent.counter(Counter::FlowsOpened);
    let host = Host::new();
    let multipath = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP))?;
        socket.set_tcp_congestion(name.as_bytes())?;
        Ok::<_, io::Error>(socket)
    };
    let socket = |_| host.namespace.within(multipath);
    let (listener, sender) = match (socket(0), socket(1)) {
        (Ok(listener), Ok(sender)) => (listener, sender),
        (Err(error), _) | (_, Err(error)) => {
            return Outcome::Undecided(format!("this kernel has no MPTCP: {error}"));
        }
    };
    host.namespace.ip("mptcp limits set subflow 1");
    host.namespace
        .ip("mptcp endpoint add 127.0.0.2 dev lo subflow");
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    listener.bind(&any_port.into()).expect("a free port");
    listener.listen(8).expect("a bound socket");
    let address = listener.local_addr().expect("a bound socket");
    sender.connect(&address).expect("it listens");
    let (receiver, _) = listener.accept().expect("a connection");
    // These threads end with the connection, also when the test fails.
    let reader = thread::spawn(move || {
        let mut data = vec![0; 1 << 16];
        while (&receiver).read(&mut data).is_ok_and(|read| read > 0) {}
    });
    let writing = sender.try_clone().expect("a free descriptor");
    let writer = thread::spawn(move || {
        let data = vec![0; 1 << 20];
        while (&writing).write(&data).is_ok_and(|written| written > 0) {}
    });
    eventually("the subflow has a slot", || {
        (agent.counter(Counter::FlowsOpened) > opened_before).then_some(())
    });
    sender.shutdown(Shutdown::Both).expect("an open connection");
    for thread in [reader, writer] {
        thread.join().expect("it does not panic");
    }
    drop((sender, listener));
    assert_all_slots_are_free(served, &host);
    Outcome::Passed
}
