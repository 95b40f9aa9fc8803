//! A relay between two programs that does to their messages what a network would.
//!
//! [`cc_sim::shim`] is the model: delay, jitter and loss per message. The relay runs it in real
//! time between a listening socket and a server. A message is a datagram of UDP, or what one read
//! returns of a TCP connection. Every connection, and every peer of UDP, has a network of its own,
//! with a seed of its own.

mod alarm;
mod lane;
mod summary;
mod tcp;
#[cfg(test)]
mod tests;
mod udp;

use std::{
    cell::{Cell, RefCell},
    io::{self, Write},
    net::{SocketAddr, TcpListener, UdpSocket},
    rc::Rc,
    sync::atomic::AtomicBool,
};

use cc_sim::{
    path::Nanos,
    seed,
    shim::{Conditions, Medium, Way, recording::Recorder},
};
use tokio::task::LocalSet;

use crate::listening;
use alarm::Clock;
use lane::Lane;
use summary::Tally;

pub use summary::{Delays, Summary, WaySummary};

/// Most connections, or peers of UDP, at the same time. Each takes two descriptors.
pub const MAX_CONNECTIONS: usize = 200;

/// A relay's far end and its network.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The server that the relay connects to.
    pub to: SocketAddr,
    /// What happens to the messages.
    pub conditions: Conditions,
    /// Seed of the delays and losses of all connections.
    pub seed: u64,
}

/// The socket at which a relay is reached.
#[derive(Debug)]
pub enum Socket {
    /// Connections, whose bytes are pieces of a stream.
    Tcp(TcpListener),
    /// Datagrams; all of one address and port belong together.
    Udp(UdpSocket),
}

/// What all connections of a relay share.
struct Relay {
    settings: Settings,
    clock: Clock,
    tally: RefCell<Tally>,
    /// Number of connections so far.
    connections: Cell<u64>,
}

/// Relays what arrives at a socket until `stop` is true. What is in flight then is dropped. The
/// recording gets the delay of every message, in the order in which they came.
///
/// # Errors
///
/// Returns an error when the socket cannot be used or the recording cannot be written, not when a
/// connection fails.
pub fn relay(
    socket: Socket,
    settings: Settings,
    recording: Option<Box<dyn Write>>,
    stop: &AtomicBool,
) -> io::Result<Summary> {
    let recorder = recording.map(Recorder::new).transpose()?;
    let relay = Rc::new(Relay {
        settings,
        clock: Clock::start()?,
        tally: RefCell::new(Tally::new(recorder)),
        connections: Cell::new(0),
    });
    let tasks = LocalSet::new();
    let runtime = listening::runtime()?;
    let serve = async {
        match socket {
            Socket::Tcp(listener) => tcp::serve(listener, &relay, stop).await,
            Socket::Udp(socket) => udp::serve(socket, &relay, stop).await,
        }
    };
    runtime.block_on(tasks.run_until(serve))?;
    // With the tasks, the sockets of all connections are closed.
    drop(tasks);
    relay.tally.borrow_mut().finish(relay.connections.get())
}

impl Relay {
    /// Time since the relay began, ns.
    fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// The two ways of a new connection.
    fn connect(self: &Rc<Self>, medium: Medium) -> (Lane, Lane) {
        let number = self.connections.get() + 1;
        self.connections.set(number);
        let seed = seed::output(self.settings.seed, number);
        let (there, back) = self.settings.conditions.channels(medium, seed);
        (
            Lane::new(Way::There, there, self.clone()),
            Lane::new(Way::Back, back, self.clone()),
        )
    }
}
