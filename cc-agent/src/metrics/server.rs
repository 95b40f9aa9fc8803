//! The HTTP side of the metrics: connections, paths, and limits on both.

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Context;
use cc_client::{StatusError, fetch};
use cc_core::status::{Health, Snapshot};
use cc_remote::http::{self, Limits, plain};
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
};
use prometheus_client::registry::Registry;
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
    task,
};
use tracing::info;

use super::{
    exposition,
    observed::{self, Question},
    page::rendered,
};

/// The agent that is asked, and what it said last.
struct Subject {
    socket: PathBuf,
    /// The state at the last question about its health.
    before: Mutex<Option<Snapshot>>,
}

/// Answers requests about an agent on a listening socket for ever.
pub(super) async fn serve(listener: TcpListener, socket: PathBuf) {
    let subject = Arc::new(Subject {
        socket,
        before: Mutex::new(None),
    });
    http::serve(listener, Limits::OF_A_PAGE, move |request| {
        let subject = Arc::clone(&subject);
        async move { answer(&request, subject).await }
    })
    .await;
}

/// Answers requests about what an observer has seen on a listening socket for ever. The observer is
/// asked at each.
pub(crate) async fn serve_observed(listener: TcpListener, observer: mpsc::Sender<Question>) {
    http::serve(listener, Limits::OF_A_PAGE, move |request| {
        let observer = observer.clone();
        async move {
            if let Some(refusal) = refusal(&request, &["/metrics"]) {
                return refusal;
            }
            let (question, answer) = oneshot::channel();
            // Without an observer that takes it, the question is dropped, and no answer comes.
            let _ = observer.send(question).await;
            match answer.await {
                Ok(seen) => http::open_metrics(observed::encode(seen)),
                Err(_) => plain(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "the observer has ended\n".to_owned(),
                ),
            }
        }
    })
    .await;
}

/// Answers requests for the page of this process's own metrics on `address` from now on, in the
/// background; on none where there is no address.
///
/// # Errors
///
/// Returns an error when the address is not a loopback one, unless it is `exposed` on purpose, and
/// when it cannot be listened on.
pub(crate) fn serve_own(
    address: Option<SocketAddr>,
    exposed: bool,
    registry: Registry,
) -> anyhow::Result<()> {
    let Some(address) = address else {
        return Ok(());
    };
    let listener = http::listen(address, exposed).context("--metrics, --expose-metrics")?;
    let listener = TcpListener::from_std(listener)?;
    info!(
        "serving metrics on http://{}/metrics",
        listener.local_addr()?
    );
    let registry = Arc::new(registry);
    tokio::spawn(http::serve(listener, Limits::OF_A_PAGE, move |request| {
        let registry = Arc::clone(&registry);
        async move {
            refusal(&request, &["/metrics"])
                .unwrap_or_else(|| http::open_metrics(rendered(&registry)))
        }
    }));
    Ok(())
}

/// What to answer to a request for something else than one of these pages.
fn refusal(request: &Request<Incoming>, pages: &[&str]) -> Option<Response<Full<Bytes>>> {
    let path = request.uri().path();
    if !pages.contains(&path) {
        let text = format!("this is no page; ask for {}\n", pages.join(" or "));
        return Some(plain(StatusCode::NOT_FOUND, text));
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let text = format!("{path} is asked for by GET\n");
        return Some(plain(StatusCode::METHOD_NOT_ALLOWED, text));
    }
    None
}

async fn answer(request: &Request<Incoming>, subject: Arc<Subject>) -> Response<Full<Bytes>> {
    if let Some(refusal) = refusal(request, &["/metrics", "/health"]) {
        return refusal;
    }
    // The agent is asked over a blocking socket, for at most three seconds.
    let asked = Arc::clone(&subject);
    let state = task::spawn_blocking(move || fetch(&asked.socket)).await;
    let Ok(state) = state else {
        return plain(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the question to the agent failed\n".to_owned(),
        );
    };
    match request.uri().path() {
        "/metrics" => http::open_metrics(exposition::encode(state.as_ref().ok())),
        _ => health(state, &subject),
    }
}

/// 200 while flows are decided about, and 503 otherwise, with the reasons. Counters count from the
/// last question of this kind on.
fn health(state: Result<Snapshot, StatusError>, subject: &Subject) -> Response<Full<Bytes>> {
    let state = match state {
        Ok(state) => state,
        Err(error) => return plain(StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
    };
    // What is kept is whole also after a panic.
    let mut before = (subject.before.lock()).unwrap_or_else(PoisonError::into_inner);
    let health = Health::of(&state, before.as_ref());
    *before = Some(state);
    let status = match health.is_good() {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    plain(status, format!("{health}\n"))
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader, Write},
        os::unix::net::UnixListener,
        path::Path,
        thread,
    };

    use cc_core::status::samples::busy;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
    };

    use super::*;

    /// A socket that answers each question with the next of these states, and then ends.
    fn agent(socket: &Path, states: Vec<Snapshot>) -> thread::JoinHandle<()> {
        let listener = UnixListener::bind(socket).expect("a socket");
        thread::spawn(move || {
            for state in states {
                let (mut stream, _) = listener.accept().expect("a question");
                let mut question = String::new();
                let mut reader = BufReader::new(stream.try_clone().expect("another descriptor"));
                reader.read_line(&mut question).expect("a line");
                let mut line = serde_json::to_vec(&state).expect("JSON");
                line.push(b'\n');
                stream.write_all(&line).expect("an answer");
            }
        })
    }

    /// Asks a server for a path, as a monitoring system would, and returns status and body.
    async fn get(address: SocketAddr, request: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        stream
            .write_all(
                format!("{request} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").as_bytes(),
            )
            .await
            .expect("it reads");
        let mut text = String::new();
        stream.read_to_string(&mut text).await.expect("an answer");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        (status.expect("a status"), body.to_owned())
    }

    async fn start(socket: PathBuf) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(serve(listener, socket));
        address
    }

    #[tokio::test]
    async fn each_scrape_asks_the_agent() {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("agent.sock");
        let address = start(socket.clone()).await;
        let (status, body) = get(address, "GET /metrics").await;
        assert_eq!(status, 200);
        assert!(body.contains("\nrlcc_up 0\n"), "no agent: {body}");
        let agent = agent(&socket, vec![busy(2), busy(3)]);
        for flows in [2, 3] {
            let (_, body) = get(address, "GET /metrics").await;
            assert!(body.contains("\nrlcc_up 1\n"));
            assert!(
                body.contains(&format!("\nrlcc_live_flows {flows}\n")),
                "{body}"
            );
            assert!(body.ends_with("# EOF\n"));
        }
        agent.join().expect("it has answered");
    }

    #[tokio::test]
    async fn health_is_a_status_code() {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("agent.sock");
        let address = start(socket.clone()).await;
        let (status, body) = get(address, "GET /health").await;
        assert_eq!(status, 503);
        assert!(body.contains("cc-agent run"), "the remedy: {body}");
        let mut hung = busy(2);
        hung.heartbeat_age_ms = Some(9_000.0);
        let agent = agent(&socket, vec![busy(2), hung]);
        assert_eq!(get(address, "GET /health").await, (200, "healthy\n".into()));
        let (status, body) = get(address, "GET /health").await;
        assert_eq!(status, 503);
        assert!(body.contains("heartbeat"), "{body}");
        agent.join().expect("it has answered");
    }

    #[tokio::test]
    async fn other_requests_are_told_what_there_is() {
        let address = start("/nowhere".into()).await;
        let (status, body) = get(address, "GET /").await;
        assert!(status == 404 && body.contains("/metrics"));
        assert_eq!(get(address, "POST /metrics").await.0, 405);
        let (status, _) = get(address, "nonsense").await;
        assert_eq!(status, 400);
    }

    #[tokio::test]
    async fn each_scrape_asks_the_observer() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let (asks, mut asked) = mpsc::channel::<Question>(1);
        tokio::spawn(serve_observed(listener, asks));
        let observer = tokio::spawn(async move {
            for live in [2, 3] {
                let seen = observed::Observed {
                    live,
                    ..observed::tests::observed(&[("/web", "cubic")])
                };
                let question = asked.recv().await.expect("a scrape");
                question.send(seen).expect("it waits");
            }
        });
        for flows in [2, 3] {
            let (status, body) = get(address, "GET /metrics").await;
            assert_eq!(status, 200);
            let line = format!("\nrlcc_observer_live_flows {flows}\n");
            assert!(body.contains(&line) && body.ends_with("# EOF\n"), "{body}");
        }
        observer.await.expect("it has answered");
        let (status, body) = get(address, "GET /metrics").await;
        assert!(status == 503 && body.contains("has ended"), "{body}");
        let (status, body) = get(address, "GET /health").await;
        assert!(status == 404 && body.contains("/metrics"), "{body}");
    }
}
