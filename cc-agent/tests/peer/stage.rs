//! The same script under the datapath and under the kernel's reno, side by side.

use std::{
    cell::RefCell,
    net::SocketAddr,
    ops::RangeInclusive,
    thread,
    time::{Duration, Instant},
};

use cc_ebpf::Counter;
use cc_lab::{
    TcpInfo, eventually,
    peer::{Ack, Host, Options, Peer, SEGMENT, Sent},
};
use socket2::{Domain, Socket, Type};

use crate::served::{SLOTS, Served, with_datapath};

/// The decision of these tests' policy, in segments: the initial cwnd, so that a flow under the
/// datapath and one under reno start alike.
pub(crate) const DECISION: u32 = 10;

/// The RTT of scripts. The reordering window of loss detection (RACK) is a quarter of it.
const RTT: Duration = Duration::from_millis(100);

/// The longest that the machine may take for steps within [`Stage::quickly`]: well below the
/// reordering window.
const QUICK: Duration = Duration::from_millis(12);

/// How often a script is played at most when the machine disturbs it.
const ATTEMPTS: usize = 20;

/// The machine took longer for some steps than the script allows, so that timers of the kernel may
/// have come between. The script says nothing then, and is played again.
#[derive(Debug)]
pub(crate) struct Disturbed;

/// What a script returns: its measurements, or why it could not run.
pub(crate) type Played = Result<(), Disturbed>;

/// The first byte of a segment's data and the one after the last.
type Bytes = (u32, u32);

/// One step of a script, and what the sender did then.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    action: String,
    sent: String,
    /// The segments that were retransmitted.
    again: Vec<Bytes>,
    /// How many segments of new data were sent.
    pub(crate) fresh: u32,
    ca_state: u8,
    /// The cwnd after the step, in segments.
    pub(crate) cwnd: u32,
}

/// A script's course under one congestion control.
#[derive(Debug, Default)]
pub(crate) struct Story {
    pub(crate) steps: Vec<Step>,
    /// TCP_INFO of the last connection that the script ended with [`Talk::deliver`].
    pub(crate) last: Option<TcpInfo>,
}

impl Story {
    /// Returns each step with what it retransmitted and the state of recovery after it.
    fn recovery(&self) -> Vec<(&str, &[Bytes], u8)> {
        let steps = self.steps.iter();
        let steps = steps.map(|step| (&*step.action, &*step.again, step.ca_state));
        steps.collect()
    }

    /// Returns what was retransmitted, in order.
    fn retransmitted(&self) -> Vec<Bytes> {
        let steps = self.steps.iter();
        steps.flat_map(|step| step.again.iter().copied()).collect()
    }

    /// Returns the numbers of retransmissions, timeouts and reported duplicates at the end; `None`
    /// if the script did not end with [`Talk::deliver`].
    fn totals(&self) -> Option<(u32, u16, u32)> {
        let last = self.last.as_ref();
        last.map(|info| (info.total_retrans, info.total_rto, info.dsack_dups))
    }

    /// Returns the cwnd in segments after each step.
    pub(crate) fn cwnds(&self) -> Vec<u32> {
        self.steps.iter().map(|step| step.cwnd).collect()
    }

    /// Returns the cwnd in segments after the step with this number, counted from 0.
    pub(crate) fn cwnd(&self, step: usize) -> u32 {
        self.steps[step].cwnd
    }

    /// Returns the cwnd in segments when everything was delivered.
    ///
    /// # Panics
    ///
    /// Panics if the script did not end with [`Talk::deliver`].
    pub(crate) fn last_cwnd(&self) -> u32 {
        self.last.expect("the script delivered its data").snd_cwnd
    }
}

/// The courses of a script under both congestion controls.
pub(crate) struct Both {
    pub(crate) reno: Story,
    pub(crate) rlcc: Story,
}

/// Plays a script under reno and under the datapath, at the same time, each on a host of its own
/// made by `host`. Asserts that in each step the same bytes were retransmitted and that recovery
/// was in the same state, and that no slot was leaked, and prints both courses.
pub(crate) fn play(
    title: &str,
    host: impl Fn() -> Host + Sync,
    script: impl Fn(&Stage<'_>) -> Played + Sync,
) -> Both {
    let both = play_paced(title, host, script);
    assert_eq!(both.reno.recovery(), both.rlcc.recovery());
    both
}

/// Plays a script as [`play`] does, where the cwnd decides in which step a segment is
/// retransmitted: asserts only that the same bytes were, in the same order.
pub(crate) fn play_paced(
    title: &str,
    host: impl Fn() -> Host + Sync,
    script: impl Fn(&Stage<'_>) -> Played + Sync,
) -> Both {
    with_datapath(|served| {
        for _ in 0..ATTEMPTS {
            let (reno, rlcc) = thread::scope(|scope| {
                let reno = scope.spawn(|| play_once(&host(), None, &script));
                let rlcc = scope.spawn(|| {
                    let host = host();
                    let story = play_once(&host, Some(served), &script);
                    assert_all_slots_are_free(served, &host);
                    story
                });
                (joined(reno), joined(rlcc))
            });
            if let (Ok(reno), Ok(rlcc)) = (reno, rlcc) {
                let both = Both { reno, rlcc };
                both.print(title);
                assert_eq!(both.reno.retransmitted(), both.rlcc.retransmitted());
                assert_eq!(both.reno.totals(), both.rlcc.totals());
                return both;
            }
        }
        panic!("{title}: the machine disturbed the script {ATTEMPTS} times");
    })
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn play_once(
    host: &Host,
    served: Option<&Served>,
    script: &impl Fn(&Stage<'_>) -> Played,
) -> Result<Story, Disturbed> {
    let stage = Stage::new(host, served);
    script(&stage)?;
    Ok(stage.story.into_inner())
}

impl Both {
    fn print(&self, title: &str) {
        println!("{title}");
        for (name, story) in [("reno", &self.reno), ("rlcc", &self.rlcc)] {
            println!("  {name}:");
            for step in &story.steps {
                let state = ["open", "disorder", "cwr", "recovery", "loss"];
                let state = state.get(usize::from(step.ca_state)).unwrap_or(&"?");
                let Step {
                    action, sent, cwnd, ..
                } = step;
                println!("    {action:<24} ->{sent:<24} {state}, cwnd {cwnd}");
            }
            if let Some(info) = story.last {
                println!(
                    "    delivered: cwnd {}, {} retransmitted, {} timeouts",
                    info.snd_cwnd, info.total_retrans, info.total_rto
                );
            }
        }
    }
}

/// Asserts that every flow that was opened has been closed, and that the free list holds each slot
/// exactly once: as many flows as there are slots find one, and one more does not.
pub(crate) fn assert_all_slots_are_free(served: &Served, host: &Host) {
    let agent = &served.agent;
    let live = || agent.with_datapath(|datapath| datapath.live_flows().len());
    let assert_all_closed = || {
        eventually("every flow opened was closed", || {
            let opened = agent.counter(Counter::FlowsOpened);
            (agent.counter(Counter::FlowsClosed) == opened).then_some(())
        });
        assert_eq!(live(), 0);
    };
    assert_all_closed();
    let (opened, without) = (
        agent.counter(Counter::FlowsOpened),
        agent.counter(Counter::FlowsWithoutSlot),
    );
    let stage = Stage::new(host, Some(served));
    let talks: Vec<_> = (0..=SLOTS)
        .map(|_| {
            let peer = Peer::v4(host, Options::default());
            let mut talk = stage.connect_after(Duration::ZERO, peer);
            talk.write(1);
            talk.peer.reply(Ack::upto(1));
            talk
        })
        .collect();
    let slots = u64::from(SLOTS);
    assert_eq!(agent.counter(Counter::FlowsOpened), opened + slots);
    assert_eq!(agent.counter(Counter::FlowsWithoutSlot), without + 1);
    assert_eq!(live(), SLOTS as usize);
    drop(talks);
    assert_all_closed();
    assert_eq!(agent.counter(Counter::SlotsLeaked), 0);
}

/// Where a script is played: a host, and the congestion control of its sockets.
pub(crate) struct Stage<'a> {
    pub(crate) host: &'a Host,
    /// `None` for reno.
    served: Option<&'a Served>,
    /// Flows that the datapath had announced before.
    announced: usize,
    story: RefCell<Story>,
}

impl<'a> Stage<'a> {
    fn new(host: &'a Host, served: Option<&'a Served>) -> Self {
        Self {
            host,
            served,
            announced: served.map_or(0, Served::announced),
            story: RefCell::default(),
        }
    }

    /// Returns a socket of the host under the stage's congestion control that does not block.
    pub(crate) fn socket(&self, domain: Domain) -> Socket {
        let namespace = &self.host.namespace;
        let socket = namespace.within(|| Socket::new(domain, Type::STREAM, None));
        let socket = socket.expect("a free descriptor");
        self.prepare(&socket);
        socket
    }

    /// Gives a socket the stage's congestion control, and makes it send at once and never block.
    pub(crate) fn prepare(&self, socket: &Socket) {
        let control = self.served.map_or("reno", |served| &served.name);
        socket
            .set_tcp_congestion(control.as_bytes())
            .unwrap_or_else(|error| panic!("choosing {control}: {error}"));
        socket.set_tcp_nodelay(true).expect("a TCP socket");
        socket.set_nonblocking(true).expect("a socket");
        socket.set_send_buffer_size(1 << 20).expect("a socket");
    }

    /// Connects to a peer with these options, and warms the connection up ([`Talk::warm_up`]).
    pub(crate) fn connect(&self, options: Options) -> Talk<'_> {
        self.connect_to(Peer::v4(self.host, options))
    }

    /// Connects to a peer, and warms the connection up ([`Talk::warm_up`]).
    pub(crate) fn connect_to<'s>(&'s self, peer: Peer<'s>) -> Talk<'s> {
        let mut talk = self.connect_after(RTT, peer);
        talk.warm_up(DECISION);
        talk
    }

    /// Connects to a peer that answers the SYN after that time.
    fn connect_after<'s>(&'s self, time: Duration, peer: Peer<'s>) -> Talk<'s> {
        let socket = self.socket(Domain::for_address(peer.address()));
        connect(&socket, peer.address());
        self.answer_after(time, peer, socket)
    }

    /// Lets a peer answer a socket's SYN after an RTT.
    pub(crate) fn answer<'s>(&'s self, peer: Peer<'s>, socket: Socket) -> Talk<'s> {
        self.answer_after(RTT, peer, socket)
    }

    fn answer_after<'s>(&'s self, time: Duration, mut peer: Peer<'s>, socket: Socket) -> Talk<'s> {
        peer.expect_syn();
        thread::sleep(time);
        peer.send_syn_ack(0);
        Talk {
            peer,
            socket,
            stage: self,
        }
    }

    /// Does steps that no timer of the kernel may come between, and returns their result.
    pub(crate) fn quickly<T>(&self, steps: impl FnOnce() -> T) -> Result<T, Disturbed> {
        let start = Instant::now();
        let result = steps();
        (start.elapsed() < QUICK).then_some(result).ok_or(Disturbed)
    }

    /// Adds a step to the story.
    pub(crate) fn note(&self, action: impl Into<String>, sent: &Sent, info: &TcpInfo) {
        let again = sent.data().filter(|arrival| arrival.again);
        self.story.borrow_mut().steps.push(Step {
            action: action.into(),
            sent: sent.to_string(),
            again: again.map(|arrival| arrival.bytes).collect(),
            fresh: sent.data().filter(|arrival| !arrival.again).count() as u32,
            ca_state: info.ca_state,
            cwnd: info.snd_cwnd,
        });
    }

    /// Waits for one RTT.
    pub(crate) fn rtt(&self) {
        thread::sleep(RTT);
    }
}

/// Starts to connect a socket that does not block.
pub(crate) fn connect(socket: &Socket, address: SocketAddr) {
    match socket.connect(&address.into()) {
        Ok(()) => panic!("nobody has answered yet"),
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        Err(error) => panic!("connecting to {address}: {error}"),
    }
}

/// A socket under test, and the peer that it is connected to. Dropping it resets the connection.
pub(crate) struct Talk<'a> {
    pub(crate) peer: Peer<'a>,
    pub(crate) socket: Socket,
    stage: &'a Stage<'a>,
}

impl<'a> Talk<'a> {
    /// Joins a socket of the host to the peer that it is connected to.
    pub(crate) fn new(stage: &'a Stage<'a>, peer: Peer<'a>, socket: Socket) -> Self {
        Self {
            peer,
            socket,
            stage,
        }
    }

    /// Lets the flow be opened by the first segment's ACK, and take the decision with the second
    /// one's. Both ACKs take an RTT. The script's segments are counted from here.
    pub(crate) fn warm_up(&mut self, decision: u32) {
        self.peer.mark();
        for segment in 1..=2 {
            self.write(1);
            self.peer.expect_data(segment..=segment);
            self.stage.rtt();
            self.peer.reply(Ack::upto(segment));
            if segment == 1 {
                self.decide(1, decision);
            }
        }
        self.peer.mark();
    }

    /// Publishes a decision, which the flow takes at its next ACK; does nothing under reno. Each
    /// decision needs another number.
    pub(crate) fn decide(&self, number: u32, cwnd: u32) {
        let Stage {
            served, announced, ..
        } = self.stage;
        let Some(served) = served else { return };
        let local = self.socket.local_addr().expect("a connected socket");
        let local = local.as_socket().expect("an IP socket").port();
        let ports = (local, self.peer.address().port());
        served.decide(*announced, ports, number, cwnd);
    }

    /// Writes that many segments of data, each a packet of its own.
    pub(crate) fn write(&self, segments: u32) {
        for _ in 0..segments {
            // The end of a record keeps the kernel from joining what was written separately.
            let written = self
                .socket
                .send_with_flags(&[0; SEGMENT as usize], libc::MSG_EOR);
            assert_eq!(
                written.expect("room in the send buffer"),
                SEGMENT as usize,
                "the send buffer takes a whole segment"
            );
        }
    }

    /// Writes that many bytes at once, for the kernel to divide into segments.
    pub(crate) fn write_bytes(&self, bytes: u32) {
        let written = self.socket.send(&vec![0; bytes as usize]);
        let written = written.expect("room in the send buffer");
        assert_eq!(written, bytes as usize, "the send buffer takes it whole");
    }

    /// Takes the next segments, which are new data, as a step of the story.
    pub(crate) fn expect(&mut self, segments: RangeInclusive<u32>) {
        let action = format!("write {}", segments.clone().count());
        let sent = self.peer.expect_data(segments);
        self.stage.note(action, &sent, &self.info());
    }

    /// Sends an acknowledgement as a step of the story, and returns what the sender did then.
    pub(crate) fn reply(&mut self, ack: Ack) -> Sent {
        let action = ack.to_string();
        let sent = self.peer.reply(ack);
        self.stage.note(action, &sent, &self.info());
        sent
    }

    /// Waits for what a timer sends, as a step of the story.
    pub(crate) fn wait(&mut self) -> Sent {
        let sent = self.peer.wait();
        self.stage.note("(timer)", &sent, &self.info());
        sent
    }

    /// Waits for one RTT.
    pub(crate) fn rtt(&self) {
        self.stage.rtt();
    }

    /// Acknowledges everything, an RTT after it was sent, until that many segments have arrived.
    /// These steps are not part of the story, but their end is.
    pub(crate) fn deliver(&mut self, segments: u32) {
        eventually("everything was delivered", || {
            self.rtt();
            let bytes = self.peer.received();
            self.peer.reply(Ack::upto_byte(bytes));
            (bytes == segments * SEGMENT && self.info().unacked == 0).then_some(())
        });
        self.stage.story.borrow_mut().last = Some(self.info());
    }

    /// Reads the socket's TCP_INFO.
    pub(crate) fn info(&self) -> TcpInfo {
        TcpInfo::of(&self.socket).expect("a TCP socket")
    }
}

impl Drop for Talk<'_> {
    fn drop(&mut self) {
        // A test that has failed must not fail twice.
        if !thread::panicking() {
            self.peer.reset();
        }
    }
}
