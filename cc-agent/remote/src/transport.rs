//! Connections of all services alike: what a server listens with, how a client connects, and the
//! pauses between a client's attempts.

use std::{future::Future, net::SocketAddr, time::Duration};

use cc_core::{error_chain, policy::ServerAddress};
use tonic::transport::{self, Endpoint, server::TcpIncoming};

use crate::{
    rpc::{Method, Serve},
    tls::{TlsError, TlsFiles},
};

/// Time that a client has for its first message, and both sides for a TLS handshake.
pub const HANDSHAKE: Duration = Duration::from_secs(5);
/// Time between a server's probes of a silent connection, and for the answer to one.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// Time between a client's probes of the connection, and for the answer to one: a server that is
/// gone without a word is noticed within their sum.
const CLIENT_KEEPALIVE: Duration = Duration::from_secs(2);
/// Bytes that one side may send before the other has read them: a path with a delay needs them.
const WINDOW: u32 = 4 << 20;
/// Streams of one connection; a client needs one.
const STREAMS: u32 = 4;
/// The pause after the first failure in a row; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// The longest pause, which also follows a refusal.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// A connection that has lived for this long was no failure.
const LASTING: Duration = Duration::from_secs(10);

/// Where plain text may go: what a connection without TLS carries, everybody on its way can read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Plaintext {
    /// Between processes of this host alone.
    #[default]
    Loopback,
    /// Wherever the address is, because somebody has asked for it.
    Anywhere,
}

/// Why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// A server without TLS is for this host only.
    #[error(
        "{address} can be reached from other hosts: give certificates and a key, or listen on a \
         loopback address"
    )]
    Plaintext {
        /// The address that was to be listened on.
        address: SocketAddr,
    },
    /// What the server says is for this host only, unless somebody asks for more.
    #[error(
        "{address} can be reached from other hosts: listen on a loopback address, or expose it on \
         purpose"
    )]
    Exposed {
        /// The address that was to be listened on.
        address: SocketAddr,
    },
    /// The address cannot be listened on.
    #[error("{address}: {source}")]
    Address {
        /// The address that was to be listened on.
        address: SocketAddr,
        /// Answer of the system call.
        source: std::io::Error,
    },
    /// The certificates or the key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Why a connection cannot even be tried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// What the connection carries would go over a network as plain text.
    #[error(
        "{address} is another host: give the authorities' certificates, a certificate and a key, \
         or ask a server on this host"
    )]
    Plaintext {
        /// The address of the server, which is not tried.
        address: ServerAddress,
    },
    /// The address asks for TLS.
    #[error("{address} needs the authorities' certificates, a certificate and a key")]
    NoCertificates {
        /// The address of the server, which is not tried.
        address: ServerAddress,
    },
    /// The certificates or the key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// A socket that clients connect to, and how it is served.
pub struct Listener {
    builder: transport::Server,
    incoming: TcpIncoming,
    address: SocketAddr,
}

impl Listener {
    /// Listens for clients, with TLS by the certificates and the key of `tls`; without these, on
    /// an address that `plaintext` allows. Must be called within a runtime of tokio.
    ///
    /// # Errors
    ///
    /// Returns an error when the address or the files cannot be used.
    pub fn bind(
        address: SocketAddr,
        tls: Option<&TlsFiles>,
        plaintext: Plaintext,
    ) -> Result<Self, ListenError> {
        let mut builder = transport::Server::builder()
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .max_concurrent_streams(STREAMS)
            .http2_keepalive_interval(Some(KEEPALIVE))
            .http2_keepalive_timeout(Some(KEEPALIVE));
        match tls {
            None if plaintext == Plaintext::Loopback && !address.ip().is_loopback() => {
                return Err(ListenError::Plaintext { address });
            }
            None => {}
            Some(files) => {
                let config = files.read()?.of_server().timeout(HANDSHAKE);
                builder = builder.tls_config(config).map_err(|error| {
                    let reason = error_chain(&error);
                    TlsError::Refused { reason }
                })?;
            }
        }
        let failed = |source| ListenError::Address { address, source };
        let incoming = TcpIncoming::bind(address)
            .map_err(failed)?
            .with_nodelay(Some(true));
        let address = incoming.local_addr().map_err(failed)?;
        Ok(Self {
            builder,
            incoming,
            address,
        })
    }

    /// The address that is listened on, with its port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves clients until `stopped` is ready and their streams have ended.
    ///
    /// # Errors
    ///
    /// Returns why connections cannot be served.
    pub async fn serve(
        self,
        streams: impl Serve,
        stopped: impl Future<Output = ()>,
    ) -> Result<(), String> {
        let Self {
            builder, incoming, ..
        } = self;
        builder
            .serve_with_incoming_shutdown(Method(streams), incoming, stopped)
            .await
            .map_err(|error| error_chain(&error))
    }
}

/// Returns how a client connects to `address`, with the certificates and the key of `tls`; without
/// these, where `plaintext` allows it.
///
/// # Errors
///
/// Returns an error when the certificates cannot be used, when there are none and the address asks
/// for them, and when plain text is not allowed there.
pub fn endpoint(
    address: &ServerAddress,
    tls: Option<&TlsFiles>,
    plaintext: Plaintext,
) -> Result<Endpoint, ConnectError> {
    let address = address.clone();
    let pem = match tls {
        Some(files) => Some(files.read()?),
        None if address.tls => return Err(ConnectError::NoCertificates { address }),
        None if plaintext == Plaintext::Loopback && !address.is_loopback() => {
            return Err(ConnectError::Plaintext { address });
        }
        None => None,
    };
    let scheme = if pem.is_some() { "https" } else { "http" };
    let refused = |error: transport::Error| TlsError::Refused {
        reason: error_chain(&error),
    };
    let mut endpoint = Endpoint::from_shared(format!("{scheme}://{}", address.authority()))
        .map_err(refused)?
        .connect_timeout(HANDSHAKE)
        .tcp_nodelay(true)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .http2_keep_alive_interval(CLIENT_KEEPALIVE)
        .keep_alive_timeout(CLIENT_KEEPALIVE);
    if let Some(pem) = pem {
        let config = pem.of_client(&address.host);
        endpoint = endpoint.tls_config(config).map_err(refused)?;
    }
    Ok(endpoint)
}

/// The pauses between a client's attempts: they double with each failure in a row.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: FIRST_PAUSE }
    }
}

impl Backoff {
    /// Returns the pause before the next attempt, after a connection that has lived for `lived`:
    /// 0 for one that was never made. One that was `refused` is followed by the longest pause.
    pub fn pause(&mut self, lived: Duration, refused: bool) -> Duration {
        let pause = match (refused, lived < LASTING) {
            (true, _) => LONGEST_PAUSE,
            (false, true) => self.next,
            (false, false) => FIRST_PAUSE,
        };
        self.next = (pause * 2).min(LONGEST_PAUSE);
        pause
    }
}
