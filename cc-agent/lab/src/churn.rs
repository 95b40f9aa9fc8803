//! A crowd of senders that come and go, in one thread.

use std::{
    collections::HashMap,
    io::{ErrorKind, Write},
    net::SocketAddr,
    os::fd::AsRawFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use socket2::Socket;

use super::{
    Namespace, eventually,
    tcp::{Worker, for_each_event, raise_descriptor_limit, start_connecting},
};

/// Connections that send as much as they can. Some last; each of the others sends a number of bytes
/// of its own, closes, and is replaced at once. Dropping it resets them all.
pub struct Churn {
    shared: Arc<Shared>,
    _worker: Worker,
}

#[derive(Default)]
struct Shared {
    paused: AtomicBool,
    connected: AtomicU64,
    completed: AtomicU64,
    failed: AtomicU64,
}

/// The fewest bytes that a connection sends before it is replaced, and by how many octaves more the
/// largest has.
const LEAST: u64 = 10_000;
const OCTAVES: u64 = 7;

/// A connection that sends, and how far it has come.
struct Member {
    socket: Socket,
    is_connected: bool,
    /// Bytes that it has still to send; `None` where it lasts.
    left: Option<u64>,
}

impl Churn {
    /// Connects `lasting` senders from a namespace that last, and `passing` that are replaced when
    /// each has sent 10 kB to 1.3 MB, and waits until all of them are connected. They run under the
    /// named congestion control, or with `None` under the kernel's choice.
    ///
    /// # Panics
    ///
    /// Panics if one of them fails, or not all are connected within 60 s.
    pub fn start(
        from: &Namespace,
        to: SocketAddr,
        congestion_control: Option<&str>,
        lasting: usize,
        passing: usize,
    ) -> Self {
        let shared = Arc::<Shared>::default();
        let ours = Arc::clone(&shared);
        let name = congestion_control.map(str::to_owned);
        let worker = Worker::start(from, move |stop| {
            raise_descriptor_limit();
            let target = (to, name.as_deref());
            send(target, lasting, passing, &ours, stop);
        });
        let churn = Self {
            shared,
            _worker: worker,
        };
        eventually("all senders were connected", || {
            assert_eq!(churn.failed(), 0, "connections failed");
            (churn.connected() >= (lasting + passing) as u64).then_some(())
        });
        churn
    }

    /// While paused, connections send on and none ends, so that none is replaced.
    pub fn pause(&self, paused: bool) {
        self.shared.paused.store(paused, Ordering::Relaxed);
    }

    /// Returns the number of connections that were made so far.
    pub fn connected(&self) -> u64 {
        self.shared.connected.load(Ordering::Relaxed)
    }

    /// Returns the number of connections that have sent all of their bytes.
    pub fn completed(&self) -> u64 {
        self.shared.completed.load(Ordering::Relaxed)
    }

    /// Returns the number of connections that could not be made or were broken.
    pub fn failed(&self) -> u64 {
        self.shared.failed.load(Ordering::Relaxed)
    }
}

/// Keeps the connections to an address, under a congestion control, up until `stop` is set.
fn send(
    (to, name): (SocketAddr, Option<&str>),
    lasting: usize,
    passing: usize,
    shared: &Shared,
    stop: &AtomicBool,
) {
    let data = vec![0; 1 << 14];
    let epoll = Epoll::new(EpollCreateFlags::empty()).expect("a free descriptor");
    let mut members: HashMap<u64, Member> = HashMap::new();
    // The same sizes at each start.
    let mut random = StdRng::seed_from_u64(0);
    let join = |members: &mut HashMap<u64, Member>, left| match start_connecting(to, name) {
        Ok(socket) => {
            let token = socket.as_raw_fd() as u64;
            let writable = EpollEvent::new(EpollFlags::EPOLLOUT, token);
            epoll.add(&socket, writable).expect("a socket");
            let member = Member {
                socket,
                is_connected: false,
                left,
            };
            members.insert(token, member);
        }
        Err(error) => {
            eprintln!("connecting to {to}: {error}");
            shared.failed.fetch_add(1, Ordering::Relaxed);
        }
    };
    for _ in 0..lasting {
        join(&mut members, None);
    }
    for _ in 0..passing {
        join(&mut members, Some(size(&mut random)));
    }
    for_each_event(&epoll, stop, |token| {
        let Some(member) = members.get_mut(&token) else {
            return;
        };
        let paused = shared.paused.load(Ordering::Relaxed);
        let chunk = match member.left {
            Some(left) if !paused => data.len().min(left as usize),
            _ => data.len(),
        };
        match (&member.socket).write(&data[..chunk]) {
            Ok(written) => {
                if !member.is_connected {
                    member.is_connected = true;
                    shared.connected.fetch_add(1, Ordering::Relaxed);
                }
                // What is sent while paused does not count.
                if !paused && let Some(left) = &mut member.left {
                    *left -= written as u64;
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => {
                eprintln!("a sender was disconnected: {error}");
                shared.failed.fetch_add(1, Ordering::Relaxed);
                members.remove(&token);
                return;
            }
        }
        if member.left == Some(0) {
            // The kernel sends the rest, then closes.
            let _ = member.socket.set_linger(None);
            members.remove(&token);
            shared.completed.fetch_add(1, Ordering::Relaxed);
            join(&mut members, Some(size(&mut random)));
        }
    });
}

/// Draws how many bytes a connection is to send, uniformly in their logarithm.
fn size(random: &mut StdRng) -> u64 {
    (LEAST as f64 * (random.random::<f64>() * OCTAVES as f64).exp2()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_spread_over_the_octaves() {
        let mut random = StdRng::seed_from_u64(0);
        let mut counts = [0; OCTAVES as usize];
        for _ in 0..7_000 {
            let octaves = (size(&mut random) / LEAST).max(1).ilog2();
            counts[octaves as usize] += 1;
        }
        assert!(
            counts.iter().all(|&count| (800..1_200).contains(&count)),
            "{counts:?}"
        );
    }
}
