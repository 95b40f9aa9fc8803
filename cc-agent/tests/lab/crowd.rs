//! Thousands of senders in one thread.

use std::{
    net::SocketAddr,
    os::fd::{FromRawFd, IntoRawFd},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};
use tokio::{io::AsyncWriteExt, net::TcpSocket, sync::watch};

use super::{
    Namespace, eventually,
    tcp::{own_descriptors, runtime},
};

/// Many connections that all send as much as they can, until the crowd is dropped.
pub(crate) struct Crowd {
    connected: Arc<AtomicUsize>,
    failed: Arc<AtomicUsize>,
    stop: Option<watch::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Crowd {
    /// Connects `flows` senders from a namespace, one each `gap`, and waits until all are connected.
    pub(crate) fn connect(
        from: &Namespace,
        to: SocketAddr,
        congestion_control: &str,
        flows: usize,
        gap: Duration,
    ) -> Self {
        let connected = Arc::new(AtomicUsize::new(0));
        let failed = Arc::new(AtomicUsize::new(0));
        let (stop, stopped) = watch::channel(());
        let member = Member {
            to,
            congestion_control: congestion_control.to_owned(),
            connected: connected.clone(),
            failed: failed.clone(),
            stopped,
        };
        let thread = from.spawn(move || {
            own_descriptors();
            raise_descriptor_limit();
            runtime().block_on(async {
                let mut members = tokio::task::JoinSet::new();
                for _ in 0..flows {
                    members.spawn(member.clone().send());
                    if !gap.is_zero() {
                        tokio::time::sleep(gap).await;
                    }
                }
                drop(member);
                while members.join_next().await.is_some() {}
            });
        });
        let crowd = Self {
            connected,
            failed,
            stop: Some(stop),
            thread: Some(thread),
        };
        eventually("the whole crowd was connected", || {
            assert_eq!(crowd.failed(), 0, "connections of the crowd failed");
            (crowd.connected() == flows).then_some(())
        });
        crowd
    }

    /// Senders that are connected.
    pub(crate) fn connected(&self) -> usize {
        self.connected.load(Ordering::Relaxed)
    }

    /// Senders that could not connect, or were disconnected.
    pub(crate) fn failed(&self) -> usize {
        self.failed.load(Ordering::Relaxed)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[derive(Clone)]
struct Member {
    to: SocketAddr,
    congestion_control: String,
    connected: Arc<AtomicUsize>,
    failed: Arc<AtomicUsize>,
    stopped: watch::Receiver<()>,
}

impl Member {
    async fn send(mut self) {
        let mut stopped = self.stopped.clone();
        tokio::select! {
            _ = stopped.changed() => {}
            () = self.send_until_disconnected() => {
                self.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    async fn send_until_disconnected(&mut self) {
        static DATA: [u8; 1 << 14] = [0; 1 << 14];
        let Ok(socket) = self.socket() else { return };
        let Ok(mut stream) = socket.connect(self.to).await else {
            return;
        };
        self.connected.fetch_add(1, Ordering::Relaxed);
        while stream.write(&DATA).await.is_ok() {}
    }

    fn socket(&self) -> std::io::Result<TcpSocket> {
        let socket = Socket::new(Domain::for_address(self.to), Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_congestion(self.congestion_control.as_bytes())?;
        // Reset at the end, so that thousands of full buffers delay nobody; small, for their memory.
        socket.set_linger(Some(Duration::ZERO))?;
        socket.set_send_buffer_size(1 << 16)?;
        // SAFETY: the descriptor is a socket and is handed over.
        Ok(unsafe { TcpSocket::from_raw_fd(socket.into_raw_fd()) })
    }
}

/// As many descriptors as the host allows: a crowd needs one for each member.
fn raise_descriptor_limit() {
    let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return;
    };
    // Not granted: connecting then fails and says so.
    let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
}
