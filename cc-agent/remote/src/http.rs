//! Connections of the project's HTTP servers: an accept loop with limits, and answers.

use std::{
    convert::Infallible,
    net::{self, SocketAddr},
    sync::Arc,
    time::Duration,
};

use http_body_util::Full;
use hyper::{
    Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{self, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time,
};

use crate::transport::ListenError;

/// Pause after the operating system refused a connection, for instance for want of descriptors.
pub const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// What the clients of a server may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most connections at the same time; further ones wait.
    pub connections: usize,
    /// Time within which a request's head must arrive, also the longest silence of a connection
    /// that is kept open.
    pub head: Duration,
}

impl Limits {
    /// Limits of a page that monitoring systems scrape.
    pub const OF_A_PAGE: Self = Self {
        connections: 16,
        head: Duration::from_secs(30),
    };
}

/// Listens on an address, which must be a loopback one unless it is `exposed` on purpose: everybody
/// who reaches it may ask.
///
/// # Errors
///
/// Returns an error when other hosts would reach the address, and when it cannot be listened on.
pub fn listen(address: SocketAddr, exposed: bool) -> Result<net::TcpListener, ListenError> {
    if !address.ip().is_loopback() && !exposed {
        return Err(ListenError::Exposed { address });
    }
    let bound = net::TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    bound.map_err(|source| ListenError::Address { address, source })
}

/// Has `answer` answer the requests on a listening socket, for ever. Each connection is a task: one
/// that fails costs no other anything.
pub async fn serve<A, F>(listener: TcpListener, limits: Limits, answer: A)
where
    A: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    let permits = Arc::new(Semaphore::new(limits.connections));
    loop {
        let (stream, permit) = accept(&listener, &permits).await;
        tokio::spawn(connection(stream, answer.clone(), limits, permit));
    }
}

/// Waits for a free place and then for a connection. Dropped in between, it loses neither.
pub async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> (TcpStream, OwnedSemaphorePermit) {
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else {
            unreachable!("the semaphore is never closed");
        };
        match listener.accept().await {
            Ok((stream, _)) => return (stream, permit),
            Err(_) => time::sleep(REFUSED_PAUSE).await,
        }
    }
}

async fn connection<A, F>(
    stream: TcpStream,
    answer: A,
    limits: Limits,
    _permit: OwnedSemaphorePermit,
) where
    A: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    // An answer that is small is urgent, and one that is large is written at once.
    let _ = stream.set_nodelay(true);
    let answer = service_fn(move |request| {
        let answer = answer(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    // What a client broke off concerns nobody else.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .serve_connection(TokioIo::new(stream), answer)
        .await;
}

/// An answer of this status whose body is plain text.
pub fn plain(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    typed(status, "text/plain; charset=utf-8", text.into())
}

/// An answer with a page of metrics in the text format of OpenMetrics 1.0.
pub fn open_metrics(page: String) -> Response<Full<Bytes>> {
    let media_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    typed(StatusCode::OK, media_type, page.into())
}

/// An answer of a media type.
pub fn typed(status: StatusCode, media_type: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let media_type = HeaderValue::from_static(media_type);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, media_type);
    response
}
