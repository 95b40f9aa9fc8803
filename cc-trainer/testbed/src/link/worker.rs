//! The thread of one direction of a link: it reads packets from one device, passes them through the
//! path model and writes them to the other device when they are due.

use std::{
    collections::VecDeque,
    io,
    os::fd::AsFd,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, ppoll},
    sys::{
        eventfd::{EfdFlags, EventFd},
        time::{TimeSpec, TimeValLike},
    },
};

use super::{
    Classifier, LinkError, Way, carried::Carried, classify::Class, ecn, lateness::ContentionMeter,
    tun::Tun,
};
use cc_sim::{
    path::{Content, Ecn, Event, Nanos, OneWayPath, Packet, Volume},
    scenario::{self, MTU},
};

/// Longest time by which a packet may leave before it is due, and therefore the time by which the
/// model delivers packets early.
///
/// A waiting thread wakes up late, by 20 to 130 µs on the hosts measured, depending on how deep the
/// processor sleeps. This delays a packet twice: when it is read and when it is due. The thread
/// therefore measures the lateness of its timer and sets the timer earlier by twice that
/// ([`Alarm`]). All packets due within this time are written when the thread wakes, so that the
/// errors cancel on average without busy waiting.
const LEAD: Duration = Duration::from_micros(300);

/// Packets read before the thread writes due packets again.
const BATCH: usize = 16;

/// Highest rate at which a thread runs with real-time priority. At higher rates it would starve the
/// host, and the kernel's throttling of real-time threads would stop it for 50 ms at a time.
const REAL_TIME_BITS_PER_SECOND: f64 = 200e6;

/// Settings of the thread of one direction.
pub(super) struct WorkerConfig {
    /// Path model for packets that come out early by `lead`; see [`with_lead`].
    pub(super) path: OneWayPath<Body>,
    /// Time by which the model delivers packets early.
    pub(super) lead: Duration,
    pub(super) from: Arc<Tun>,
    pub(super) to: Arc<Tun>,
    pub(super) classifier: Classifier,
    pub(super) way: Way,
    /// Expected mean rate, bit/s; `None` when the link is unlimited.
    pub(super) bits_per_second: Option<f64>,
}

/// Content of a packet on the path.
pub(super) struct Body {
    content: Box<[u8; MTU as usize]>,
    payload: u32,
    /// Number that packets of the same connection share.
    connection: u32,
    ecn: Ecn,
}

impl Body {
    fn new() -> Self {
        Self {
            content: Box::new([0; MTU as usize]),
            payload: 0,
            connection: 0,
            ecn: Ecn::NotEct,
        }
    }
}

impl Content for Body {
    fn ecn(&self) -> Ecn {
        self.ecn
    }

    fn connection(&self) -> u32 {
        self.connection
    }
}

/// Handle of a running thread.
pub(super) struct Worker {
    thread: Option<JoinHandle<Result<Carried, io::Error>>>,
    commands: mpsc::Sender<Command>,
    /// Event file descriptor, readable while commands wait.
    wakeup: Arc<EventFd>,
}

enum Command {
    Start(Instant),
    Report(mpsc::Sender<Carried>),
    Stop,
}

/// A model of a direction that delivers packets earlier than `model` by the returned lead, so that
/// the thread can wake up in time. The lead is subtracted from the propagation delay and never
/// exceeds it.
pub(super) fn with_lead(model: &scenario::Direction) -> (scenario::Direction, Duration) {
    let mut model = model.clone();
    let delays = || model.delay.changes.iter().map(|change| change.delay);
    let lead = delays().fold(LEAD.min(model.delay.base), Duration::min);
    model.delay.base -= lead;
    for change in &mut model.delay.changes {
        change.delay -= lead;
    }
    (model, lead)
}

impl Worker {
    /// Starts the thread. The scenario's clock stands at 0 until [`start`](Self::start).
    ///
    /// # Errors
    ///
    /// Returns an error when the thread or its event file descriptor cannot be created.
    pub(super) fn spawn(config: WorkerConfig) -> Result<Self, LinkError> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let wakeup = EventFd::from_value_and_flags(0, flags)
            .map(Arc::new)
            .map_err(|error| LinkError::Thread(error.into()))?;
        let (commands, incoming) = mpsc::channel();
        let thread_wakeup = Arc::clone(&wakeup);
        let thread = thread::Builder::new()
            .name(format!("link {}", config.way))
            .spawn(move || {
                prefer_this_thread(config.bits_per_second);
                Emulator::new(config, incoming, thread_wakeup).run()
            })
            .map_err(LinkError::Thread)?;
        Ok(Self {
            thread: Some(thread),
            commands,
            wakeup,
        })
    }

    pub(super) fn start(&self, origin: Instant) {
        self.command(Command::Start(origin));
    }

    pub(super) fn snapshot(&self) -> Carried {
        let (answer, report) = mpsc::channel();
        self.command(Command::Report(answer));
        report
            .recv()
            .expect("the thread answers until it is stopped")
    }

    pub(super) fn stop(&self) {
        self.command(Command::Stop);
    }

    pub(super) fn finish(mut self) -> Result<Carried, LinkError> {
        self.stop();
        let thread = self.thread.take().expect("only this and drop take it");
        match thread.join() {
            Ok(result) => result.map_err(LinkError::Broken),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    fn command(&self, command: Command) {
        // A thread that has ended needs no commands.
        if self.commands.send(command).is_ok() {
            // Writing fails only when the counter is full, and then the descriptor is readable
            // already.
            let _ = self.wakeup.write(1);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            // The devices must be gone when the handle is. The result is of no use any more.
            let _ = thread.join();
        }
    }
}

/// State of the thread that carries one direction.
struct Emulator {
    config: WorkerConfig,
    lead: Nanos,
    commands: mpsc::Receiver<Command>,
    wakeup: Arc<EventFd>,
    meter: Option<ContentionMeter>,
    carried: Carried,
    /// Packets that the model has delivered, with their due times and times of arrival.
    ready: VecDeque<(Nanos, Nanos, Packet<Body>)>,
    alarm: Alarm,
    /// Packet buffers kept for reuse, so that carrying packets does not allocate.
    spare: Vec<Body>,
}

impl Emulator {
    fn new(config: WorkerConfig, commands: mpsc::Receiver<Command>, wakeup: Arc<EventFd>) -> Self {
        Self {
            lead: config.lead.as_nanos() as Nanos,
            carried: Carried::new(usize::from(config.classifier.flows) + 1),
            commands,
            wakeup,
            // Where the kernel keeps no such figures, a run is judged by its lateness alone.
            meter: ContentionMeter::of_this_thread().ok(),
            ready: VecDeque::new(),
            alarm: Alarm { lateness: 0 },
            spare: Vec::new(),
            config,
        }
    }

    /// Carries packets until the command to stop. When a device fails, the thread only waits for
    /// that command and then returns the error.
    fn run(mut self) -> io::Result<Carried> {
        let Some(origin) = self.wait_for_start() else {
            return Ok(self.carried);
        };
        let clock = move || origin.elapsed().as_nanos() as Nanos;
        let contention_before = self.contention();
        let (drops_before, mut failure) = match self.config.from.ring_drops() {
            Ok(drops) => (drops, None),
            Err(error) => (0, Some(error)),
        };
        loop {
            let more = match failure {
                None => self.carry(&clock).unwrap_or_else(|error| {
                    failure = Some(error);
                    false
                }),
                Some(_) => false,
            };
            if !self.wait_for_command(more, failure.is_some(), &clock)? {
                continue;
            }
            let stop = loop {
                let report = match self.commands.try_recv() {
                    Ok(Command::Start(_)) => continue,
                    Ok(Command::Report(report)) => Some(report),
                    Ok(Command::Stop) | Err(mpsc::TryRecvError::Disconnected) => None,
                    Err(mpsc::TryRecvError::Empty) => break false,
                };
                let now = clock();
                let (packets, bytes) = self.config.path.backlog();
                self.carried.packets.backlog = Volume {
                    packets: u64::from(packets),
                    bytes,
                };
                self.carried.packets.elapsed = Duration::from_nanos(now);
                self.carried.host.contention = self.contention().since(contention_before);
                match self.config.from.ring_drops() {
                    Ok(drops) => self.carried.host.ring_drops = drops - drops_before,
                    Err(error) => failure = failure.or(Some(error)),
                }
                let Some(report) = report else {
                    self.carried.packets.close(now);
                    break true;
                };
                // The receiver may have been dropped in the meantime.
                let _ = report.send(self.carried.counters());
            };
            if stop {
                return match failure {
                    None => Ok(self.carried),
                    Some(error) => Err(error),
                };
            }
        }
    }

    /// Waits for the start and returns the instant of scenario time 0; `None` when stopped before.
    fn wait_for_start(&mut self) -> Option<Instant> {
        loop {
            match self.commands.recv() {
                Ok(Command::Start(origin)) => return Some(origin),
                Ok(Command::Report(report)) => {
                    let _ = report.send(self.carried.counters());
                }
                Ok(Command::Stop) | Err(mpsc::RecvError) => return None,
            }
        }
    }

    /// Writes due packets and reads arriving ones. Returns whether more packets may have arrived.
    fn carry(&mut self, clock: &impl Fn() -> Nanos) -> io::Result<bool> {
        self.deliver(clock);
        for _ in 0..BATCH {
            let mut body = self.spare.pop().unwrap_or_else(Body::new);
            let length = match self.config.from.read(&mut body.content[..]) {
                Ok(length) => length,
                Err(error) => {
                    self.spare.push(body);
                    return match error.kind() {
                        io::ErrorKind::WouldBlock => Ok(false),
                        io::ErrorKind::Interrupted => Ok(true),
                        _ => Err(error),
                    };
                }
            };
            let now = clock();
            let Class {
                flow,
                payload,
                connection,
            } = self
                .config
                .classifier
                .classify(&body.content[..length], self.config.way);
            let bytes = length as u32;
            body.payload = payload;
            body.connection = connection;
            body.ecn = ecn::codepoint(&body.content[..length]);
            self.carried
                .packets
                .arrived(usize::from(flow), bytes, payload);
            self.config.path.offer(now, Packet { bytes, flow, body });
            self.carried
                .packets
                .queued(now, self.config.path.backlog().1);
        }
        Ok(true)
    }

    /// Writes due packets and counts dropped ones.
    fn deliver(&mut self, clock: &impl Fn() -> Nanos) {
        let mut now = clock();
        while let Some(event) = self.config.path.poll(now) {
            match event {
                Event::Delivered {
                    at,
                    arrived,
                    marked,
                    mut packet,
                    ..
                } => {
                    if marked {
                        ecn::mark(&mut packet.body.content[..packet.bytes as usize]);
                    }
                    self.ready.push_back((at + self.lead, arrived, packet));
                }
                Event::Dropped { at, cause, packet } => {
                    let (flow, payload) = (usize::from(packet.flow), packet.body.payload);
                    self.carried
                        .packets
                        .dropped(at, flow, packet.bytes, payload, cause);
                    self.spare.push(packet.body);
                }
            }
        }
        let early = self.alarm.early(self.lead);
        while let Some((due, arrived, packet)) =
            self.ready.pop_front_if(|(due, ..)| *due <= now + early)
        {
            let bytes = &packet.body.content[..packet.bytes as usize];
            now = clock();
            match self.config.to.write(bytes) {
                Ok(()) => {
                    self.carried.host.lateness.record(due, now);
                    let (flow, payload) = (usize::from(packet.flow), packet.body.payload);
                    let delay = now.saturating_sub(arrived);
                    self.carried
                        .packets
                        .delivered(now, flow, packet.bytes, payload, delay);
                }
                Err(_) => self.carried.host.refused += 1,
            }
            self.spare.push(packet.body);
        }
    }

    /// Time of the thread's next action, if no packet or command arrives before.
    fn next(&self) -> Option<Nanos> {
        let early = self.alarm.early(self.lead);
        let ready = self.ready.front().map(|(due, ..)| due - early);
        // Packets that the model delivers early only wait in `ready`, so the thread need not wake
        // for them either.
        let coming = self
            .config
            .path
            .next()
            .map(|at| at.saturating_add(self.lead - early));
        [ready, coming].into_iter().flatten().min()
    }

    /// Waits until there is something to do, or only polls if there is `more` to read. Returns
    /// whether a command has arrived.
    fn wait_for_command(
        &mut self,
        more: bool,
        broken: bool,
        clock: &impl Fn() -> Nanos,
    ) -> io::Result<bool> {
        let next = self.next();
        let wait = match (more, broken, next) {
            (true, ..) => Some(0),
            (_, true, _) | (_, _, None) => None,
            (_, _, Some(next)) => Some(next.saturating_sub(clock())),
        };
        // A wait of years does not fit the kernel's type and counts as no limit.
        let wait = wait
            .and_then(|ns| i64::try_from(ns).ok())
            .map(TimeSpec::nanoseconds);
        let mut events = [
            PollFd::new(self.wakeup.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.config.from.as_fd(), PollFlags::POLLIN),
        ];
        let watched = if broken { 1 } else { 2 };
        match ppoll(&mut events[..watched], wait, None) {
            Ok(0) => {
                if let Some(next) =
                    next.filter(|_| wait.is_some_and(|wait| wait.num_nanoseconds() > 0))
                {
                    self.alarm.record(clock().saturating_sub(next));
                }
            }
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let rang = events[0].any().unwrap_or(false);
        if rang {
            // Reading cannot fail: the descriptor was readable and has no other reader.
            let _ = self.wakeup.read();
        }
        Ok(rang)
    }

    fn contention(&self) -> super::Contention {
        self.meter
            .as_ref()
            .and_then(|meter| meter.read().ok())
            .unwrap_or_default()
    }
}

/// Tracks how late the thread wakes up when its timer expires.
struct Alarm {
    /// Moving average of the lateness, ns.
    lateness: Nanos,
}

impl Alarm {
    /// Time by which to set the timer early: twice the average lateness, at most `most`.
    fn early(&self, most: Nanos) -> Nanos {
        (2 * self.lateness).min(most)
    }

    /// Records a late wake-up. Longer delays than [`LEAD`] count as [`LEAD`], because they come
    /// from other load on the processor.
    fn record(&mut self, late: Nanos) {
        let late = late.min(LEAD.as_nanos() as Nanos);
        self.lateness = (15 * self.lateness + late) / 16;
    }
}

/// Requests timers accurate to the nanosecond, and priority over ordinary threads. A refused
/// request is ignored, as its effect shows in the lateness.
fn prefer_this_thread(bits_per_second: Option<f64>) {
    // SAFETY: prctl takes integers only.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64) };
    if bits_per_second.is_some_and(|rate| rate <= REAL_TIME_BITS_PER_SECOND) {
        let priority = libc::sched_param { sched_priority: 10 };
        // SAFETY: sched_setscheduler reads one sched_param; 0 is the calling thread.
        if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &priority) } == 0 {
            return;
        }
    }
    // SAFETY: setpriority takes integers only; 0 is the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
}
