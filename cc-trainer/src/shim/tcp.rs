//! Relaying TCP connections, piece by piece.

use std::{
    io::{Error, ErrorKind, Result},
    net::TcpListener,
    rc::Rc,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use cc_remote::http::accept;
use cc_sim::shim::Medium;
use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        self, TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::Semaphore,
    task, time,
};

use super::{MAX_CONNECTIONS, Relay, alarm::Alarm, lane::Lane};
use crate::listening;

/// Most bytes of a piece, which is what one read returns.
const PIECE: usize = 16 << 10;

/// Longest time for connecting to the server.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Relays connections until `stop` is true.
pub(super) async fn serve(
    listener: TcpListener,
    relay: &Rc<Relay>,
    stop: &AtomicBool,
) -> Result<()> {
    listener.set_nonblocking(true)?;
    let listener = net::TcpListener::from_std(listener)?;
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        tokio::select! {
            () = listening::stopped(stop) => return Ok(()),
            (client, permit) = accept(&listener, &permits) => {
                let relay = relay.clone();
                task::spawn_local(async move {
                    connection(client, &relay).await;
                    drop(permit);
                });
            }
        }
    }
}

/// Relays one connection to its end. A side that fails or resets it resets the other.
async fn connection(mut client: TcpStream, relay: &Rc<Relay>) {
    let connect = TcpStream::connect(relay.settings.to);
    let server = match time::timeout(CONNECT_LIMIT, connect).await {
        Ok(server) => server,
        Err(_) => Err(ErrorKind::TimedOut.into()),
    };
    let mut server = match server {
        Ok(server) => server,
        Err(error) => {
            relay.tally.borrow_mut().refuse(&error);
            reset(&client);
            return;
        }
    };
    let (there, back) = relay.connect(Medium::Stream);
    // The delays are those of the model alone.
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let outcome = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        tokio::try_join!(
            pass(there, relay, from_client, to_server),
            pass(back, relay, from_server, to_client),
        )
    };
    if outcome.is_err() {
        reset(&client);
        reset(&server);
    }
}

/// Passes one direction on until its end.
async fn pass(
    mut lane: Lane,
    relay: &Rc<Relay>,
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
) -> Result<()> {
    let mut alarm = Alarm::default();
    let mut buffer = vec![0; PIECE];
    let mut has_ended = false;
    loop {
        let next = lane.next_at();
        if has_ended && next.is_none() {
            // The end was passed on below, or it never gets through.
            return Err(Error::new(
                ErrorKind::ConnectionReset,
                "the stream is broken",
            ));
        }
        tokio::select! {
            biased;
            () = alarm.until(next, &relay.clock) => {
                while let Some((at, piece)) = lane.take() {
                    if piece.is_empty() {
                        return to.shutdown().await;
                    }
                    to.write_all(&piece).await?;
                    lane.forwarded(at, piece.len());
                }
            }
            length = from.read(&mut buffer), if !has_ended && lane.has_room() => {
                let length = length?;
                let arrives = match length {
                    0 => lane.end(),
                    _ => lane.offer(lane.now(), &buffer[..length]),
                };
                has_ended = length == 0 || !arrives;
            }
        }
    }
}

/// Has the connection reset when it is closed.
fn reset(stream: &TcpStream) {
    // Without it, the connection only ends in good order.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}
