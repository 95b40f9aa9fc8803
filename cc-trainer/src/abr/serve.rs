//! Decisions over HTTP: each request has all that a decision needs, and the server keeps nothing.
//!
//! One thread serves all connections: a decision takes micro- to milliseconds.

use std::{
    io,
    net::TcpListener,
    sync::{Arc, atomic::AtomicBool},
};

use cc_abr::request::{self, ChooserFor, RequestError};
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header,
};

use super::http::{self, json, plain};

pub use super::http::Limits;

/// Answers requests on a listening socket until `stop` is true.
///
/// `POST /decide` takes a [`request::Request`] and returns a [`request::Decision`], both as JSON;
/// `GET /health` returns 200. Pages of any origin may ask.
///
/// # Errors
///
/// Returns an error when the socket cannot be used, not when a connection fails.
pub fn serve(
    listener: TcpListener,
    choosers: Arc<ChooserFor>,
    limits: Limits,
    stop: &AtomicBool,
) -> io::Result<()> {
    http::serve(listener, limits, stop, move |request| {
        let choosers = choosers.clone();
        async move { answer(request, &*choosers, limits).await }
    })
}

async fn answer(
    request: Request<Incoming>,
    choosers: &ChooserFor,
    limits: Limits,
) -> Response<Full<Bytes>> {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    match (path.as_str(), method) {
        ("/decide", Method::POST) => match http::body(request, limits).await {
            Ok(body) => match request::answer(&body, choosers) {
                Ok(decision) => json(StatusCode::OK, &decision),
                Err(error) => json(StatusCode::BAD_REQUEST, &error),
            },
            Err((status, error)) => json(status, &error),
        },
        ("/health", Method::GET) => json(StatusCode::OK, &serde_json::json!({"status": "ok"})),
        ("/decide" | "/health", Method::OPTIONS) => preflight(),
        ("/decide" | "/health", method) => {
            let right = if path == "/decide" { "POST" } else { "GET" };
            let remedy = format!("send {right} {path}");
            let error = RequestError::new("the method", method.as_str(), remedy);
            let mut response = json(StatusCode::METHOD_NOT_ALLOWED, &error);
            let allowed = header::HeaderValue::from_static(match right {
                "POST" => "POST, OPTIONS",
                _ => "GET, OPTIONS",
            });
            response.headers_mut().insert(header::ALLOW, allowed);
            response
        }
        _ => {
            let remedy = "send POST /decide or GET /health";
            json(
                StatusCode::NOT_FOUND,
                &RequestError::new("the path", path, remedy),
            )
        }
    }
}

/// The answer to a browser that asks whether a page of another origin may ask.
fn preflight() -> Response<Full<Bytes>> {
    let mut response = plain(StatusCode::NO_CONTENT, Bytes::new());
    for (name, value) in [
        (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, OPTIONS"),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, "content-type"),
        (header::ACCESS_CONTROL_MAX_AGE, "3600"),
    ] {
        let value = header::HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    response
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{SocketAddr, TcpStream},
        sync::atomic::Ordering,
        thread::{self, JoinHandle},
        time::Duration,
    };

    use cc_abr::{Chooser, baseline::RateBased};

    use super::*;

    const GOOD: &str = r#"{"kbps": [300, 750, 1200], "chunk_s": 4, "buffer_s": 8,
        "history": [{"quality": 0, "bytes": 150000, "ms": 1000}]}"#;

    struct Running {
        address: SocketAddr,
        stop: Arc<AtomicBool>,
        thread: Option<JoinHandle<io::Result<()>>>,
    }

    impl Running {
        fn new(limits: Limits) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let address = listener.local_addr().expect("it is bound");
            let stop = Arc::new(AtomicBool::new(false));
            let flag = stop.clone();
            let choosers = |_: &[f64]| -> Result<Box<dyn Chooser>, String> {
                Ok(Box::new(RateBased::PENSIEVE))
            };
            let thread = thread::spawn(move || serve(listener, Arc::new(choosers), limits, &flag));
            Self {
                address,
                stop,
                thread: Some(thread),
            }
        }

        fn connect(&self) -> TcpStream {
            let stream = TcpStream::connect(self.address).expect("the server listens");
            let limit = Some(Duration::from_secs(20));
            stream.set_read_timeout(limit).expect("a limit above 0");
            stream
        }

        /// Sends text and returns all that comes until the server closes the connection.
        fn exchange(&self, text: &str) -> String {
            let mut stream = self.connect();
            // The server may answer and close before it has read everything.
            let _ = stream.write_all(text.as_bytes());
            let mut reply = Vec::new();
            let _ = stream.read_to_end(&mut reply);
            String::from_utf8_lossy(&reply).into_owned()
        }
    }

    impl Drop for Running {
        fn drop(&mut self) {
            self.stop.store(true, Ordering::Relaxed);
            let ended = self.thread.take().map(JoinHandle::join);
            assert!(matches!(ended, Some(Ok(Ok(())))), "{ended:?}");
        }
    }

    fn post(body: &str) -> String {
        let length = body.len();
        format!(
            "POST /decide HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        )
    }

    #[test]
    fn requests_are_answered_and_faults_explained() {
        let server = Running::new(Limits::default());
        let reply = server.exchange(&post(GOOD));
        assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
        // 150 kB in a second carry 1200 kbit/s.
        assert!(reply.ends_with(r#"{"quality":2,"kbps":1200.0}"#), "{reply}");
        assert!(reply.contains("access-control-allow-origin: *"), "{reply}");
        let close = "HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        for (request, status, said) in [
            (post("{"), 400, r#""where":"line 1"#),
            (post(&GOOD.replace('4', "0")), 400, r#""where":"chunk_s""#),
            (post(""), 400, "EOF"),
            (format!("GET /decide {close}"), 405, "send POST /decide"),
            (format!("POST /health {close}"), 405, "send GET /health"),
            (format!("GET /nowhere {close}"), 404, "/nowhere"),
            (format!("GET /health {close}"), 200, "ok"),
            (
                format!("OPTIONS /decide {close}"),
                204,
                "access-control-allow-methods",
            ),
            ("no http at all\r\n\r\n".to_owned(), 400, ""),
        ] {
            let reply = server.exchange(&request);
            assert!(
                reply.starts_with(&format!("HTTP/1.1 {status}")),
                "{request}: {reply}"
            );
            assert!(reply.contains(said), "{request}: {reply}");
        }
    }

    #[test]
    fn a_connection_serves_many_requests() {
        let server = Running::new(Limits::default());
        let mut stream = server.connect();
        let request = post(GOOD).replace("Connection: close\r\n", "");
        for _ in 0..3 {
            stream.write_all(request.as_bytes()).expect("it is open");
            let mut reply = [0; 4096];
            let mut read = 0;
            while !reply[..read].ends_with(b"1200.0}") {
                let more = stream.read(&mut reply[read..]).expect("an answer");
                assert!(more > 0, "closed");
                read += more;
            }
        }
    }

    #[test]
    fn long_and_slow_requests_are_cut_off_while_others_are_served() {
        let server = Running::new(Limits {
            body_bytes: 1000,
            connections: 8,
            head: Duration::from_millis(300),
            body: Duration::from_millis(300),
        });
        let reply = server.exchange(&post(&" ".repeat(1001)));
        assert!(reply.starts_with("HTTP/1.1 413"), "{reply}");
        let mut silent = server.connect();
        let mut halved = server.connect();
        let text = post(GOOD);
        halved
            .write_all(&text.as_bytes()[..text.len() - 5])
            .expect("it is open");
        assert!(server.exchange(&text).starts_with("HTTP/1.1 200"));
        let mut reply = String::new();
        halved
            .read_to_string(&mut reply)
            .expect("the server closes");
        assert!(reply.starts_with("HTTP/1.1 408"), "{reply}");
        let mut nothing = Vec::new();
        silent.read_to_end(&mut nothing).expect("the server closes");
        assert!(server.exchange(&text).starts_with("HTTP/1.1 200"));
    }

    #[test]
    fn connections_beyond_the_limit_wait_their_turn() {
        let server = Running::new(Limits {
            connections: 2,
            head: Duration::from_millis(300),
            ..Limits::default()
        });
        let held: Vec<TcpStream> = (0..2).map(|_| server.connect()).collect();
        assert!(server.exchange(&post(GOOD)).starts_with("HTTP/1.1 200"));
        drop(held);
    }
}
