//! Applications in a simulation: carries out what the [`Session`] of each flow asks for, on
//! connections that it opens and closes.

use crate::app::{Action, End, Session};
use crate::path::Nanos;
use crate::scenario;
use crate::seed;

use super::control::Control;
use super::sender::FIRST_WRITE;
use super::{Endpoints, FlowTotals, MOST_CONNECTIONS, NEVER, Simulation};

/// Time after which it is tried again to open a connection for which there was no place, ns.
const RETRY: Nanos = 1_000_000;

/// The application of a flow, and its connections.
#[derive(Debug)]
pub(super) struct Application {
    /// What the ends do and when; `None` for a bulk flow.
    session: Option<Session>,
    /// A control like the flow's, for further connections; `None` where there is one connection.
    control: Option<Control>,
    /// The connections that are open, each with its place.
    open: Vec<(u32, usize)>,
    /// The connections that were closed and whose last data are not acknowledged, by their places.
    closing: Vec<usize>,
    /// Place of the latest connection.
    latest: usize,
    /// Whether the session knows that its first connection is established.
    established: bool,
    /// Totals of the connections that have ended, but of the latest; `None` without any.
    ended: Option<FlowTotals>,
    /// A connection that could not be opened, and when to try again.
    postponed: Option<(End, Action, Nanos)>,
    /// When the flow stops, and whether it has.
    stop: Nanos,
    stopped: bool,
    /// Seed of the next connection's control.
    seed: u64,
}

/// Seed of the application of flow number `flow` in a run with this seed, on the emulated link too.
pub fn application_seed(seed: u64, flow: usize) -> u64 {
    seed::fold(seed::output(seed, 2), flow as u64)
}

impl Application {
    /// Creates the application of flow `number`, whose first connection has the control given.
    pub(super) fn new(flow: &scenario::Flow, number: usize, control: &Control, seed: u64) -> Self {
        let seed = application_seed(seed, number);
        let several = flow.app.opens_several_connections();
        Self {
            session: Session::new(&flow.app, crate::path::nanos(flow.start), seed),
            control: several.then(|| {
                let another = control.another(seed);
                another.expect("the control of a flow with several connections serves several")
            }),
            open: Vec::new(),
            closing: Vec::new(),
            latest: number,
            established: false,
            ended: None,
            postponed: None,
            stop: flow.stop.map_or(NEVER, crate::path::nanos),
            stopped: false,
            seed,
        }
    }

    pub(super) fn is_bulk(&self) -> bool {
        self.session.is_none()
    }

    pub(super) fn has_several(&self) -> bool {
        self.control.is_some()
    }

    pub(super) fn session(&self) -> Option<&Session> {
        self.session.as_ref()
    }

    /// The connections that are open, each with its place.
    pub(super) fn open(&self) -> &[(u32, usize)] {
        &self.open
    }

    /// Place of the latest connection.
    pub(super) fn latest(&self) -> usize {
        self.latest
    }

    /// Totals of the connections that have ended and whose places are used again.
    pub(super) fn ended(&self) -> Option<&FlowTotals> {
        self.ended.as_ref()
    }

    /// When an end has something to do without a packet.
    #[inline]
    pub(super) fn due(&self) -> Nanos {
        let Some(session) = self.session.as_ref().filter(|_| !self.stopped) else {
            return NEVER;
        };
        let retry = self.postponed.map(|(.., at)| at);
        let due = || session.due(End::Near).min(session.due(End::Far));
        retry.unwrap_or_else(due).min(self.stop)
    }

    fn place(&self, connection: u32) -> Option<usize> {
        let mut open = self.open.iter();
        open.find(|(number, _)| *number == connection)
            .map(|(_, place)| *place)
    }
}

impl Simulation {
    /// Hands what has arrived over a connection to the flow's application, which may answer.
    #[inline]
    pub(super) fn hand_over(&mut self, place: usize) {
        let connection = &mut self.connections[place];
        let flow = usize::from(connection.flow);
        let application = &mut self.applications[flow];
        let Some(session) = application
            .session
            .as_mut()
            .filter(|_| !application.stopped)
        else {
            return;
        };
        let before = connection.counted.1;
        let total = connection.count_delivered();
        let messages = connection.sender.take_messages();
        let number = application.open.iter().find(|(_, open)| *open == place);
        if let Some(&(number, _)) = number {
            if !application.established && connection.sender.is_established() {
                application.established = true;
                session.established(self.now + FIRST_WRITE);
            }
            if total > before {
                session.delivered(self.now, number, total);
            }
            for _ in 0..messages {
                session.received(self.now, number);
            }
        } else if application.closing.contains(&place) && connection.sender.is_done() {
            application.closing.retain(|closing| *closing != place);
            self.end(place);
        }
        self.work(flow);
    }

    /// Does what is due at the ends of a flow.
    pub(super) fn work(&mut self, flow: usize) {
        let now = self.now;
        loop {
            let application = &mut self.applications[flow];
            let Some(session) = application
                .session
                .as_mut()
                .filter(|_| !application.stopped)
            else {
                return;
            };
            if application.stop <= now {
                return self.stop_application(flow);
            }
            let action = match application.postponed.take_if(|(.., at)| *at <= now) {
                Some((end, action, _)) => Some((end, action)),
                None if application.postponed.is_some() => None,
                None => [End::Near, End::Far].into_iter().find_map(|end| {
                    let action = session.act(end, now)?;
                    Some((end, action))
                }),
            };
            let Some((end, action)) = action else {
                self.next_timer = self.next_timer.min(self.applications[flow].due());
                return;
            };
            self.perform(flow, end, action);
        }
    }

    fn perform(&mut self, flow: usize, end: End, action: Action) {
        let (now, ticks) = (self.now, self.ticks);
        let (Action::Open { connection }
        | Action::Write { connection, .. }
        | Action::Stream { connection }
        | Action::Stop { connection }
        | Action::Send { connection, .. }
        | Action::Close { connection }) = action;
        if let Action::Open { .. } = action {
            let Some(place) = self.free_place(flow) else {
                self.applications[flow].postponed = Some((end, action, now + RETRY));
                return;
            };
            let application = &mut self.applications[flow];
            application.open.push((connection, place));
            application.latest = place;
            match end {
                End::Near => self.connections[place].sender.open(now),
                End::Far => self.connections[place].receiver.connect(now, ticks),
            }
            return self.settle(place);
        }
        let Some(place) = self.applications[flow].place(connection) else {
            return;
        };
        let application = &mut self.applications[flow];
        let ends = &mut self.connections[place];
        let retransmissions = u64::from(ends.sender.retransmissions());
        if let Some(session) = &mut application.session {
            match action {
                Action::Open { .. } => {}
                Action::Write { bytes, .. } => {
                    session.retransmitted(connection, retransmissions);
                    ends.sender.write(now, bytes);
                }
                Action::Stream { .. } => {
                    session.retransmitted(connection, retransmissions);
                    ends.sender.stream(now);
                }
                Action::Stop { .. } => {
                    session.stopped(now, connection, ends.sender.end_stream());
                }
                Action::Send { bytes, .. } => ends.receiver.send(now, bytes as u16, ticks),
                Action::Close { .. } => {
                    session.retransmitted(connection, retransmissions);
                    application.open.retain(|(number, _)| *number != connection);
                    match ends.sender.is_done() {
                        true => self.end(place),
                        false => application.closing.push(place),
                    }
                }
            }
        }
        self.settle(place);
    }

    /// A place for a new connection of the flow; `None` when all are in use.
    fn free_place(&mut self, flow: usize) -> Option<usize> {
        let most = self.applications.len() + MOST_CONNECTIONS;
        let application = &mut self.applications[flow];
        if application
            .session
            .as_ref()
            .is_some_and(|session| session.connections() == 1)
        {
            return Some(flow);
        }
        let own = |connection: &Endpoints| usize::from(connection.flow) == flow;
        let free = |connection: &Endpoints| {
            own(connection)
                && connection.sender.is_closed()
                && !connection.sender.control.has_record()
        };
        let place = self.connections.iter().position(free);
        if place.is_none() && self.connections.len() >= most {
            return None;
        }
        application.seed = seed::output(application.seed, 1);
        let control = application.control.as_ref()?.another(application.seed)?;
        let place = place.unwrap_or(self.connections.len());
        let mut new = Endpoints::new(flow as u16, control, self.ticks, self.ecn).of_application();
        if self.host_queue.is_some() {
            new = new.behind_queue();
        }
        match self.connections.get_mut(place) {
            Some(old) => {
                new.serial = old.serial.wrapping_add(1);
                new.sender.control.succeed(&old.sender.control, place);
                let totals = old.totals(self.now, false);
                match &mut application.ended {
                    Some(ended) => ended.add(&totals),
                    None => application.ended = Some(totals),
                }
                *old = new;
            }
            None => {
                new.sender.control.set_place(place);
                self.connections.push(new);
            }
        }
        Some(place)
    }

    /// Ends a connection.
    fn end(&mut self, place: usize) {
        let connection = &mut self.connections[place];
        connection.close(self.now);
        connection.receiver.close();
        self.recorded |= connection.sender.control.has_record();
        connection.wake = connection.next();
    }

    /// Ends the flow with all of its connections.
    fn stop_application(&mut self, flow: usize) {
        let application = &mut self.applications[flow];
        application.stopped = true;
        let open = std::mem::take(&mut application.open);
        for &(number, place) in &open {
            let total = u64::from(self.connections[place].sender.retransmissions());
            if let Some(session) = &mut application.session {
                session.retransmitted(number, total);
            }
        }
        let closing = std::mem::take(&mut application.closing);
        let open = open.into_iter().map(|(_, place)| place);
        for place in open.chain(closing) {
            self.end(place);
        }
    }
}
