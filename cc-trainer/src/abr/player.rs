//! A real player: dash.js in a browser, the servers that it needs, and what it saw.
//!
//! The [video](serve_video) comes from one server, over the link under test. The
//! [page](serve_page) with dash.js comes from another one beside the browser, which also takes the
//! result. Decisions come from [`super::serve`], or from dash.js's own rules. What sessions were
//! worth is kept as [`records`].

pub mod records;

use std::{
    fmt, io,
    net::{SocketAddrV4, TcpListener},
    path::Path,
    str::FromStr,
    sync::{Arc, atomic::AtomicBool, mpsc},
    time::Duration,
};

use cc_abr::{
    dash,
    request::RequestError,
    session::{Download, Rules},
    trace::Trace,
    video::Video,
};
use cc_sim::scenario::{self, Rate, RatePoint, Scenario, ScenarioError, Service};
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
};
use serde::{Deserialize, Serialize};

use super::{
    http::{self, Limits, json, typed},
    schemes::{Scheme, SchemeError},
};

/// Version of dash.js that the page was written for.
pub const DASH_VERSION: &str = include_str!("player/dash.version").trim_ascii();

/// Names of the browser's program, separated by spaces.
pub const BROWSERS: &str = include_str!("player/browsers").trim_ascii();

/// Beginning of the names of dash.js's own rules.
const OWN: &str = "dash:";

/// What separates them from the buffer.
const AT: char = '@';

const PAGE: &str = include_str!("player/page.html");
const SCRIPT: &str = include_str!("player/page.js");

/// What selects the bitrates of a real player.
#[derive(Clone, Debug)]
pub enum Selection {
    /// A scheme, which a server decides by.
    Served(Scheme),
    /// The player's own rules, which ask no server.
    Own(Own),
}

/// Rules of dash.js, and the buffer that it plays with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Own {
    /// What selects the bitrates then.
    pub rule: OwnRule,
    /// Buffer above which the player waits, s; `None` for dash.js's own buffer, which is smaller
    /// below the highest quality than with it.
    pub buffer_s: Option<u32>,
}

/// The rules of dash.js for video on demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OwnRule {
    /// BOLA with a full buffer and throughput with an empty one: what dash.js does by itself.
    Dynamic,
    /// BOLA-E alone, whatever the buffer is.
    Bola,
    /// The throughput rule alone, whatever the buffer is.
    Throughput,
}

impl OwnRule {
    const NAMED: [(&'static str, Self); 3] = [
        ("dynamic", Self::Dynamic),
        ("bola", Self::Bola),
        ("throughput", Self::Throughput),
    ];
}

impl fmt::Display for OwnRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Self::NAMED.iter().find(|(_, rule)| rule == self);
        f.write_str(named.map_or("", |(name, _)| name))
    }
}

/// Nothing selects bitrates under this name.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnknownSelection {
    /// dash.js has no such rule.
    #[error(
        "`{OWN}{0}` is no rule of dash.js: take dash:dynamic, dash:bola or dash:throughput, with \
         {AT}SECONDS (from 1) for a buffer other than its own"
    )]
    Own(String),
    /// There is no such scheme.
    #[error("{0}; a rule of dash.js is dash:dynamic, dash:bola or dash:throughput")]
    Scheme(#[from] SchemeError),
}

impl FromStr for Selection {
    type Err = UnknownSelection;

    fn from_str(text: &str) -> Result<Self, UnknownSelection> {
        let Some(own) = text.strip_prefix(OWN) else {
            return Ok(Self::Served(text.parse()?));
        };
        let unknown = || UnknownSelection::Own(own.to_owned());
        let (rule, buffer_s) = match own.split_once(AT) {
            None => (own, None),
            Some((rule, seconds)) => {
                let seconds = seconds.parse().ok().filter(|seconds| *seconds > 0);
                (rule, Some(seconds.ok_or_else(unknown)?))
            }
        };
        let named = OwnRule::NAMED.into_iter().find(|(name, _)| *name == rule);
        let (_, rule) = named.ok_or_else(unknown)?;
        Ok(Self::Own(Own { rule, buffer_s }))
    }
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Served(scheme) => scheme.fmt(f),
            Self::Own(own) => {
                write!(f, "{OWN}{}", own.rule)?;
                match own.buffer_s {
                    Some(seconds) => write!(f, "{AT}{seconds}"),
                    None => Ok(()),
                }
            }
        }
    }
}

/// What the page is to do, its `session.json`.
#[derive(Clone, Debug, Serialize)]
pub struct Session {
    manifest: String,
    decide: Option<String>,
    rule: Option<OwnRule>,
    kbps: Vec<f64>,
    chunks: usize,
    chunk_s: f64,
    sizes: Vec<Vec<u32>>,
    first_quality: usize,
    /// Buffer above which the player waits; `None` for dash.js's own.
    buffer_cap_s: Option<f64>,
}

impl Session {
    /// A session that plays `video` from a server at `server`. `decide` is the address of the
    /// server that decides, `own` the player's own rules otherwise, which bring a buffer of their
    /// own. First quality and largest buffer are those of `rules`.
    pub fn new(
        video: &Video,
        rules: &Rules,
        server: SocketAddrV4,
        decide: Option<SocketAddrV4>,
        own: Option<Own>,
    ) -> Self {
        Self {
            manifest: format!("http://{server}/{}", dash::MANIFEST),
            decide: decide.map(|address| format!("http://{address}/decide")),
            rule: own.map(|own| own.rule),
            kbps: video.kbps().to_vec(),
            chunks: video.chunks(),
            chunk_s: video.chunk_s(),
            sizes: video.sizes()[..video.chunks()].to_vec(),
            first_quality: rules.first_quality(video.levels()),
            buffer_cap_s: match own {
                None => Some(rules.buffer_cap_s),
                Some(own) => own.buffer_s.map(f64::from),
            },
        }
    }
}

/// What the page saw, as it sends it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// Version that dash.js says it has.
    pub dash: String,
    /// What the browser calls itself.
    pub browser: String,
    /// Time from the page's start until playback, ms; `None` when it never began.
    pub startup_ms: Option<f64>,
    /// Interruptions of playback that the browser reported.
    pub stalls: u32,
    /// Downloads that dash.js broke off for the same chunk in another quality.
    pub abandoned: u32,
    /// Time of each decision, from question to answer, ms. Empty with the player's own rules.
    pub decisions: Vec<f64>,
    /// The chunks that arrived, in order.
    pub chunks: Vec<Arrived>,
    /// What went wrong. A session with an error ended at it.
    pub errors: Vec<String>,
}

/// What the page's server has to say.
#[derive(Debug)]
pub enum Report {
    /// The page has been loaded and begins.
    Begun,
    /// The session is over; `Err` with what is wrong with the page's report.
    Over(Result<Outcome, String>),
}

/// A chunk that arrived, as the page saw it.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Arrived {
    /// Number of its quality, from 0; -1 for a bitrate that the video does not have.
    pub quality: i64,
    /// Size that it has in the video, bytes.
    pub bytes: u32,
    /// Bytes that the browser counted.
    pub received: u64,
    /// Time from the request to the last byte, ms.
    pub ms: f64,
    /// Time by which playback was behind the clock when it arrived, ms.
    pub behind_ms: f64,
    /// Buffer before it arrived, s.
    pub buffer_before_s: f64,
    /// Buffer when it had arrived, s.
    pub buffer_s: f64,
    /// Time of its request since the page's start, ms.
    pub requested_ms: f64,
}

/// Why a session has no score.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OutcomeError {
    /// The page reported an error.
    #[error("the player failed: {0}")]
    Failed(String),
    /// Playback never began, or ended early.
    #[error("{found} of {expected} chunks arrived")]
    Short {
        /// Number of chunks that arrived.
        found: usize,
        /// Number of chunks of the session.
        expected: usize,
    },
    /// A chunk is not what the video has.
    #[error("chunk {chunk} arrived in quality {quality} with {received} bytes, not {bytes}")]
    Chunk {
        /// Number of the chunk, from 0.
        chunk: usize,
        /// Number of the quality, from 0.
        quality: i64,
        /// Number of bytes that arrived.
        received: u64,
        /// Bytes that the video has for it.
        bytes: u32,
    },
}

impl Outcome {
    /// The chunks as downloads of a session with `video`. The first one's rebuffering is 0: its
    /// delay is the startup.
    ///
    /// # Errors
    ///
    /// Returns an error when the player failed, or what arrived is not the video.
    pub fn downloads(&self, video: &Video) -> Result<Vec<Download>, OutcomeError> {
        if let Some(error) = self.errors.first() {
            return Err(OutcomeError::Failed(error.clone()));
        }
        let (found, expected) = (self.chunks.len(), video.chunks());
        if found != expected || self.startup_ms.is_none() {
            return Err(OutcomeError::Short { found, expected });
        }
        // Positions of playback are interpolated and go back by fractions of a millisecond.
        let mut behind_ms: f64 = 0.0;
        let download = |(chunk, arrived): (usize, &Arrived)| {
            let quality = usize::try_from(arrived.quality).ok();
            let quality = quality.filter(|&quality| quality < video.levels());
            let bytes = quality.map_or(0, |quality| video.sizes()[chunk][quality]);
            let Some(quality) = quality.filter(|_| arrived.received == u64::from(bytes)) else {
                return Err(OutcomeError::Chunk {
                    chunk,
                    quality: arrived.quality,
                    received: arrived.received,
                    bytes,
                });
            };
            let rebuffer_ms = match chunk {
                0 => 0.0,
                _ => (arrived.behind_ms - behind_ms).max(0.0),
            };
            behind_ms = behind_ms.max(arrived.behind_ms);
            Ok(Download {
                chunk,
                quality,
                bytes,
                delay_ms: arrived.ms,
                sleep_ms: 0.0,
                rebuffer_ms,
                buffer_ms: arrived.buffer_s * 1e3,
            })
        };
        self.chunks.iter().enumerate().map(download).collect()
    }
}

/// Serves a video's manifest and segments on a listening socket until `stop` is true.
///
/// # Errors
///
/// Returns an error when the socket cannot be used, not when a connection fails.
pub fn serve_video(listener: TcpListener, video: Arc<Video>, stop: &AtomicBool) -> io::Result<()> {
    // A player that waits with a full buffer keeps its connection.
    let limits = Limits {
        head: Duration::from_secs(300),
        ..Limits::default()
    };
    http::serve(listener, limits, stop, move |request| {
        let answer = part(&request, &video);
        async move { answer }
    })
}

/// A part of the video.
fn part(request: &Request<Incoming>, video: &Video) -> Response<Full<Bytes>> {
    let path = request.uri().path().trim_start_matches('/');
    if request.method() != Method::GET {
        return no_such(request);
    }
    match path {
        dash::MANIFEST => typed(
            StatusCode::OK,
            "application/dash+xml",
            dash::manifest(video).into(),
        ),
        dash::INITIALIZATION => typed(StatusCode::OK, "video/mp4", dash::initialization().into()),
        path => {
            let there = dash::parse_segment(path)
                .filter(|&(quality, chunk)| quality < video.levels() && chunk < video.chunks());
            let Some((quality, chunk)) = there else {
                return no_such(request);
            };
            match dash::segment(video, chunk, quality) {
                Ok(segment) => typed(StatusCode::OK, "video/mp4", segment.into()),
                Err(error) => {
                    let error = RequestError::new("the video", error.to_string(), "replace it");
                    json(StatusCode::INTERNAL_SERVER_ERROR, &error)
                }
            }
        }
    }
}

/// Serves the page of a session on a listening socket until `stop` is true, and sends to `reports`
/// when the page begins and what it saw. `dash` is the program text of dash.js.
///
/// # Errors
///
/// Returns an error when the socket cannot be used, not when a connection fails.
pub fn serve_page(
    listener: TcpListener,
    session: Session,
    dash: Bytes,
    reports: mpsc::Sender<Report>,
    stop: &AtomicBool,
) -> io::Result<()> {
    let limits = Limits::default();
    let session = Arc::new(session);
    http::serve(listener, limits, stop, move |request| {
        let (session, dash, reports) = (session.clone(), dash.clone(), reports.clone());
        async move { page(request, &session, dash, reports, limits).await }
    })
}

async fn page(
    request: Request<Incoming>,
    session: &Session,
    dash: Bytes,
    reports: mpsc::Sender<Report>,
    limits: Limits,
) -> Response<Full<Bytes>> {
    let ok = StatusCode::OK;
    // Whoever waited for a report may have given up.
    let report = |report| drop(reports.send(report));
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/") => typed(ok, "text/html", PAGE.into()),
        (&Method::GET, "/page.js") => typed(ok, "text/javascript", SCRIPT.into()),
        (&Method::GET, "/dash.js") => typed(ok, "text/javascript", dash),
        (&Method::GET, "/session.json") => {
            report(Report::Begun);
            json(ok, session)
        }
        (&Method::POST, "/result") => {
            let body = match http::body(request, limits).await {
                Ok(body) => body,
                Err((status, error)) => return json(status, &error),
            };
            let outcome = serde_json::from_slice(&body).map_err(|error| error.to_string());
            report(Report::Over(outcome));
            json(ok, &serde_json::json!({}))
        }
        _ => no_such(&request),
    }
}

fn no_such(request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let asked = format!("{} {}", request.method(), request.uri().path());
    let error = RequestError::new("the path", asked, "ask for what the manifest or page names");
    json(StatusCode::NOT_FOUND, &error)
}

/// The scenario of a link whose rate follows a trace, from its beginning and over again, in bits of
/// IP packets. The time before the trace's first point has the throughput of the interval after it,
/// and the way back has no limit. `rtt_ms` is the round-trip time without a queue, `queue_packets`
/// the number of packets that the queue holds.
///
/// # Errors
///
/// Returns an error when round-trip time or queue are out of the range that scenarios have.
pub fn link_of(
    trace: &Trace,
    rtt_ms: f64,
    queue_packets: u32,
) -> Result<Scenario, Box<ScenarioError>> {
    let points = trace.times().iter().zip(&trace.mbps()[1..]).enumerate();
    let points = points.map(|(place, (&time, mbps))| RatePoint {
        at: match place {
            0 => Duration::ZERO,
            _ => Duration::from_secs_f64(time),
        },
        bits_per_second: mbps * 1e6,
        ramp: false,
    });
    let mut scenario = constant_link(1.0, rtt_ms, queue_packets)?;
    scenario.forward.service = Service::Rate(Rate {
        points: points.collect(),
        repeat: Some(Duration::from_secs_f64(trace.period_s())),
    });
    Ok(scenario)
}

/// The scenario of a link of a constant rate, as [`link_of`] otherwise.
///
/// # Errors
///
/// Returns an error when a setting is out of the range that scenarios have.
pub fn constant_link(
    mbps: f64,
    rtt_ms: f64,
    queue_packets: u32,
) -> Result<Scenario, Box<ScenarioError>> {
    let text = format!(
        "[[scenario]]\nname = \"player\"\nrate_mbps = {mbps:?}\ndelay_ms = {:?}\n\
         queue = {{ packets = {queue_packets} }}\n",
        rtt_ms / 2.0
    );
    let scenarios = scenario::parse(&text, Path::new("the player's link")).map_err(Box::new)?;
    match scenarios.into_iter().next() {
        Some(scenario) => Ok(scenario),
        None => unreachable!("the text has one scenario"),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{Ipv4Addr, SocketAddr, TcpStream},
        sync::atomic::Ordering,
        thread,
    };

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_of_selections_are_read_back() {
        for name in [
            "dash:dynamic",
            "dash:bola",
            "dash:throughput",
            "dash:throughput@60",
            "robust-mpc",
            "fixed:0",
        ] {
            let selection: Selection = name.parse().expect("a known name");
            assert_eq!(selection.to_string(), name);
        }
        for unknown in ["dash:", "dash:mpc", "dash:bola@", "dash:bola@0", "pensieve"] {
            let error = unknown.parse::<Selection>().expect_err(unknown);
            assert!(error.to_string().contains("dash:throughput"), "{error}");
        }
    }

    /// Answers of a server for `GET` of each path, as they came.
    fn answers(
        paths: &[&str],
        serve: impl FnOnce(TcpListener, &AtomicBool) -> io::Result<()> + Send,
    ) -> Vec<Vec<u8>> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let server = scope.spawn(|| serve(listener, &stop));
            let one = |path: &&str| exchange(address, &format!("GET {path} HTTP/1.1"), "");
            let answers = paths.iter().map(one).collect();
            stop.store(true, Ordering::Relaxed);
            server.join().expect("no panic").expect("the socket works");
            answers
        })
    }

    fn exchange(address: SocketAddr, line: &str, body: &str) -> Vec<u8> {
        let mut stream = TcpStream::connect(address).expect("the server listens");
        let length = body.len();
        write!(
            stream,
            "{line}\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .expect("it is open");
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).expect("an answer");
        reply
    }

    #[test]
    fn the_video_is_served_part_by_part() {
        let video = Arc::new(Video::envivio());
        let paths = [
            "/manifest.mpd",
            "/init.mp4",
            "/5/47.m4s",
            "/6/0.m4s",
            "/0/48.m4s",
            "/x",
        ];
        let served = video.clone();
        let answers = answers(&paths, |listener, stop| serve_video(listener, served, stop));
        let said = |place: usize| String::from_utf8_lossy(&answers[place]).into_owned();
        assert!(
            said(0).contains("urn:mpeg:dash:schema:mpd:2011"),
            "{}",
            said(0)
        );
        assert!(answers[1].ends_with(&dash::initialization()));
        let segment = dash::segment(&video, 47, 5).expect("room enough");
        assert!(answers[2].ends_with(&segment));
        assert!(said(2).contains("access-control-allow-origin: *"));
        for place in 3..6 {
            assert!(said(place).starts_with("HTTP/1.1 404"), "{}", said(place));
        }
    }

    #[test]
    fn the_page_gets_its_session_and_its_result_arrives() {
        let video = Video::envivio();
        let at = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 80);
        let own = Own {
            rule: OwnRule::Dynamic,
            buffer_s: Some(25),
        };
        let session = Session::new(&video, &Rules::PENSIEVE, at, None, Some(own));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let (reports, received) = mpsc::channel();
        let outcome = || match received.recv() {
            Ok(Report::Over(outcome)) => outcome,
            other => panic!("the page is over, not {other:?}"),
        };
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let dash = Bytes::from_static(b"// dash.js");
            scope.spawn(|| serve_page(listener, session, dash, reports, &stop));
            let get = |path: &str| {
                let reply = exchange(address, &format!("GET {path} HTTP/1.1"), "");
                String::from_utf8(reply).expect("text")
            };
            assert!(get("/").contains("page.js"));
            assert!(get("/page.js").ends_with(SCRIPT));
            assert!(get("/dash.js").ends_with("// dash.js"));
            assert!(received.try_recv().is_err(), "it has not begun");
            let session = get("/session.json");
            for part in [
                r#""rule":"dynamic""#,
                r#""buffer_cap_s":25.0"#,
                r#""chunks":48"#,
                "http://192.0.2.1:80/manifest.mpd",
            ] {
                assert!(session.contains(part), "{part}: {session}");
            }
            assert!(matches!(received.try_recv(), Ok(Report::Begun)));
            let post = |body: &str| exchange(address, "POST /result HTTP/1.1", body);
            post(r#"{"dash": "5"}"#);
            let error = outcome().expect_err("keys are missing");
            assert!(error.contains("missing field"), "{error}");
            let body = r#"{"dash": "5", "browser": "b", "startup_ms": 1.5, "stalls": 0,
                "abandoned": 0, "decisions": [], "chunks": [], "errors": ["no video"]}"#;
            post(body);
            let outcome = outcome().expect("it is complete");
            let error = outcome.downloads(&video).expect_err("it failed");
            assert_eq!(error, OutcomeError::Failed("no video".into()));
            stop.store(true, Ordering::Relaxed);
        });
    }

    fn outcome(arrived: Vec<Arrived>) -> Outcome {
        Outcome {
            dash: DASH_VERSION.into(),
            browser: "a browser".into(),
            startup_ms: Some(900.0),
            stalls: 1,
            abandoned: 0,
            decisions: Vec::new(),
            chunks: arrived,
            errors: Vec::new(),
        }
    }

    fn arrived(quality: i64, received: u64, behind_ms: f64) -> Arrived {
        Arrived {
            quality,
            bytes: received as u32,
            received,
            ms: 500.0,
            behind_ms,
            buffer_before_s: 0.0,
            buffer_s: 4.0,
            requested_ms: 0.0,
        }
    }

    #[test]
    fn rebuffering_is_what_playback_fell_behind_since_the_chunk_before() {
        let sizes = [vec![10, 20, 30, 40]];
        let video = Video::new("v", vec![300.0], 4.0, None, &sizes).expect("valid");
        let behind = [0.0, 250.0, 249.5, 251.5];
        let chunks: Vec<Arrived> = (1..)
            .map(|n| n * 10)
            .zip(behind)
            .map(|(bytes, behind)| arrived(0, bytes, behind))
            .collect();
        let downloads = outcome(chunks.clone())
            .downloads(&video)
            .expect("all arrived");
        let rebuffering: Vec<f64> = downloads.iter().map(|one| one.rebuffer_ms).collect();
        assert_eq!(rebuffering, [0.0, 250.0, 0.0, 1.5]);

        let short = outcome(chunks[..3].to_vec()).downloads(&video);
        assert_eq!(
            short,
            Err(OutcomeError::Short {
                found: 3,
                expected: 4
            })
        );
        for wrong in [
            arrived(1, 20, 0.0),
            arrived(-1, 20, 0.0),
            arrived(0, 19, 0.0),
        ] {
            let mut chunks = chunks.clone();
            chunks[1] = wrong;
            let found = outcome(chunks).downloads(&video);
            assert!(
                matches!(found, Err(OutcomeError::Chunk { chunk: 1, .. })),
                "{found:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn a_link_carries_what_its_trace_does(
            steps in prop::collection::vec((0.1..20.0_f64, 0.1..9.0_f64), 1..20),
            periods in 1..4_u32,
        ) {
            let (mut times, mut mbps) = (vec![0.0], vec![1.0]);
            for (length, rate) in &steps {
                times.push(times[times.len() - 1] + length);
                mbps.push(*rate);
            }
            let trace = Trace::new("t", times, mbps).expect("valid");
            let link = link_of(&trace, 80.0, 100).expect("in range");
            prop_assert_eq!(link.base_rtt(), Duration::from_millis(80));
            let bits: f64 = steps.iter().map(|(length, rate)| length * rate * 1e6).sum();
            let whole = Duration::from_secs_f64(trace.period_s()) * periods;
            let found = link.forward.service.capacity_bits(Duration::ZERO, whole).expect("a rate");
            prop_assert!((found / bits / f64::from(periods) - 1.0).abs() < 1e-6);
        }
    }
}
