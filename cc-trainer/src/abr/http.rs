//! What this module's HTTP servers have in common: limits, bodies and answers.
//!
//! One thread serves all connections of a server. Requests that are too long, too slow or malformed
//! are answered with what is wrong, and cost no other connection anything.

use std::{io, net::TcpListener, sync::atomic::AtomicBool, time::Duration};

use cc_abr::request::RequestError;
use cc_remote::http;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::{
    Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header,
};
use tokio::time;

use crate::listening;

/// What a client may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest body of a request, bytes.
    pub body_bytes: usize,
    /// Most connections at the same time; further ones wait.
    pub connections: usize,
    /// Time within which a request's head must arrive, also the longest silence of a connection
    /// that is kept open.
    pub head: Duration,
    /// Time within which a request's body must arrive.
    pub body: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 1 << 20,
            connections: 256,
            head: Duration::from_secs(30),
            body: Duration::from_secs(10),
        }
    }
}

/// Has `answer` answer the requests on a listening socket until `stop` is true.
///
/// # Errors
///
/// Returns an error when the socket cannot be used, not when a connection fails.
pub(super) fn serve<A, F>(
    listener: TcpListener,
    limits: Limits,
    stop: &AtomicBool,
    answer: A,
) -> io::Result<()>
where
    A: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    listener.set_nonblocking(true)?;
    let Limits {
        connections, head, ..
    } = limits;
    listening::runtime()?.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        tokio::select! {
            () = listening::stopped(stop) => Ok(()),
            () = http::serve(listener, http::Limits { connections, head }, answer) => Ok(()),
        }
    })
}

/// The whole body of a request, within the limits; otherwise the status and error to answer.
pub(super) async fn body(
    request: Request<Incoming>,
    limits: Limits,
) -> Result<Bytes, (StatusCode, RequestError)> {
    let body = Limited::new(request.into_body(), limits.body_bytes).collect();
    match time::timeout(limits.body, body).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err((
            StatusCode::PAYLOAD_TOO_LARGE,
            RequestError::new(
                "the body",
                format!("more than {} bytes", limits.body_bytes),
                "send fewer chunks of history and future",
            ),
        )),
        Ok(Err(error)) => Err((
            StatusCode::BAD_REQUEST,
            RequestError::new("the body", error.to_string(), "send it whole"),
        )),
        Err(_) => Err((
            StatusCode::REQUEST_TIMEOUT,
            RequestError::new(
                "the body",
                format!("not there after {} s", limits.body.as_secs_f64()),
                "send it at once",
            ),
        )),
    }
}

/// An answer with a value in JSON.
pub(super) fn json(status: StatusCode, value: &impl serde::Serialize) -> Response<Full<Bytes>> {
    let text = serde_json::to_vec(value)
        .unwrap_or_else(|error| unreachable!("plain data serialises: {error}"));
    typed(status, "application/json", text.into())
}

/// An answer of a media type.
pub(super) fn typed(
    status: StatusCode,
    media_type: &'static str,
    body: Bytes,
) -> Response<Full<Bytes>> {
    let mut response = plain(status, body);
    let kind = header::HeaderValue::from_static(media_type);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// An answer that pages of any origin may read, and that nothing keeps.
pub(super) fn plain(status: StatusCode, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    for (name, value) in [
        (header::ACCESS_CONTROL_ALLOW_ORIGIN, "*"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        let value = header::HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    response
}
