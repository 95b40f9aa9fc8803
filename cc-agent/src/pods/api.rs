//! The API server: lists the pods of a node and watches them.
//!
//! Only the metadata of pods is asked for, which the server cuts out of them itself
//! (`PartialObjectMetadata`): what they run, and with which secrets, is none of the agent's
//! business.

use std::{
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use cc_core::{error_chain, regular_file};
use cc_remote::{
    https::{HttpsClient, HttpsError},
    transport::Backoff,
};
use http_body_util::{BodyExt, Collected, Limited};
use hyper::{
    HeaderMap, Response, StatusCode,
    body::Incoming,
    header::{ACCEPT, AUTHORIZATION, HeaderValue, USER_AGENT},
};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use tracing::info;

use super::{
    lines::{Lines, TooLong},
    objects::{List, Refusal, WatchLine},
    selector::Event,
};
use crate::{metrics::Attempts, said::Said};

/// Length of the longest list, bytes: a node has some hundred pods, each with up to 256 KiB of
/// annotations.
const LONGEST_LIST: usize = 64 << 20;
/// Length of the longest line of a watch, bytes. An object has at most some 1.5 MiB, by the limit
/// of the server's store.
const LONGEST_LINE: usize = 4 << 20;
/// Length of the longest refusal that is read, bytes.
const LONGEST_REFUSAL: usize = 64 << 10;
/// Size limit of a token, bytes.
const LONGEST_TOKEN: u64 = 64 << 10;
/// Time after which the server is asked to end a watch, which is begun again then, s.
const WATCH_S: u64 = 290;
/// Time for a list, and for the rest of a watch's time, before the server counts as silent.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why the API server gave no answer that can be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApiError {
    /// There was no answer, or no connection.
    #[error(transparent)]
    Https(#[from] HttpsError),
    /// The token cannot be read.
    #[error(
        "reading the service account's token {}: {source}; mount it into the container, or name \
         its file with --token-file",
        path.display()
    )]
    Token {
        /// The file of the token.
        path: PathBuf,
        /// Answer of the system call.
        source: io::Error,
    },
    /// The server refuses to show pods.
    #[error("{server} refuses to show pods: {code} {message}{}", remedy(*.code))]
    Refused {
        /// URL of the server that was asked.
        server: String,
        /// Status code of its answer (HTTP).
        code: u16,
        /// What the server says about it.
        message: String,
    },
    /// The answer broke off before its end.
    #[error("{server}: the answer broke off: {reason}")]
    Broken {
        /// URL of the server that was asked.
        server: String,
        /// What went wrong, with its causes.
        reason: String,
    },
    /// The answer is no list of pods, or no watch of them.
    #[error(
        "{server} is no API server of Kubernetes, or one that this version does not know: \
             {reason}"
    )]
    Nonsense {
        /// URL of the server that was asked.
        server: String,
        /// What is wrong with the answer.
        reason: String,
    },
}

fn remedy(code: u16) -> &'static str {
    match code {
        401 => "; is the token of this cluster, and still valid? It is read again each time",
        403 => {
            "; the service account needs the verbs `list` and `watch` of `pods` in all namespaces \
             (examples/kubernetes/agent.yaml)"
        }
        _ => "",
    }
}

impl ApiError {
    /// Whether changes can only be known from another list on.
    fn needs_list(&self) -> bool {
        match self {
            Self::Refused { code, .. } => *code == StatusCode::GONE.as_u16(),
            Self::Nonsense { .. } => true,
            _ => false,
        }
    }
}

/// What goes wrong with lists, or with watches.
#[derive(Default)]
struct Trouble {
    said: Said,
    backoff: Backoff,
}

/// The API server, asked for the pods of one node.
#[derive(Debug)]
pub(super) struct Api {
    /// The server, with the authority that must have signed its certificate.
    pub client: HttpsClient,
    /// Name of the node whose pods are asked for.
    pub node: String,
    /// The file of the token that is sent; `None` where none is needed.
    pub token_file: Option<PathBuf>,
    /// Counts the lists and the watches.
    pub attempts: Attempts,
}

impl Api {
    /// The server has answered as it should.
    fn answers(&self, trouble: &mut Trouble) {
        self.attempts.goes_well();
        trouble.backoff = Backoff::default();
        if trouble.said.clear() {
            info!("{} answers again", self.client.url());
        }
    }

    /// Tells of the node's pods until nobody listens. What fails is tried again, ever more seldom.
    pub(super) async fn follow(self, events: mpsc::Sender<Event>) {
        let mut listing = Trouble::default();
        let mut watching = Trouble::default();
        // The version from which on changes are known.
        let mut version: Option<String> = None;
        // The first list may be an old one of the server's cache, which the watch mends.
        let mut cached = true;
        loop {
            let begun = Instant::now();
            let was_list = version.is_none();
            let (outcome, trouble) = match &mut version {
                None => (
                    self.list(cached, &events).await.map(|listed| {
                        self.answers(&mut listing);
                        version = Some(listed);
                    }),
                    &mut listing,
                ),
                Some(version) => (
                    self.watch(version, &events, &mut watching).await,
                    &mut watching,
                ),
            };
            if events.is_closed() {
                return;
            }
            // A watch that has slept for too long is no failure: it is begun anew.
            if !matches!(outcome, Err(ApiError::Refused { code: 410, .. })) {
                self.attempts.count(&outcome);
            }
            if outcome.is_ok() && was_list {
                continue;
            }
            if let Err(error) = outcome {
                if error.needs_list() {
                    version = None;
                    cached = false;
                }
                match &error {
                    // It happens to every watch that has slept for too long.
                    ApiError::Refused { code: 410, .. } => info!("{error}; listing again"),
                    error => {
                        (trouble.said).warn(&format!("{error}; what is served stays as it is"));
                    }
                }
            }
            sleep(trouble.backoff.pause(begun.elapsed(), false)).await;
        }
    }

    /// Tells of all pods of the node, and returns their version.
    async fn list(&self, cached: bool, events: &mpsc::Sender<Event>) -> Result<String, ApiError> {
        let version = if cached { "&resourceVersion=0" } else { "" };
        let answer = self.get("List", version).await?;
        let body = Limited::new(answer.into_body(), LONGEST_LIST).collect();
        let broken = |reason| ApiError::Broken {
            server: self.client.url(),
            reason,
        };
        let body = match timeout(PATIENCE, body).await {
            Err(_) => Err(format!("no end of it within {} s", PATIENCE.as_secs())),
            Ok(Err(error)) => Err(error_chain(&*error)),
            Ok(Ok(body)) => Ok(body.to_bytes()),
        };
        let list = serde_json::from_slice(&body.map_err(broken)?);
        let list: List = list.map_err(|error| self.nonsense(&error))?;
        let pods = list.items.into_iter().map(|pod| pod.metadata).collect();
        // Whether anybody listens is looked at afterwards.
        let _ = events.send(Event::Listed(pods)).await;
        Ok(list.metadata.resource_version)
    }

    /// Tells of the changes since a version, which becomes that of the last one, until the server
    /// ends the watch.
    async fn watch(
        &self,
        version: &mut String,
        events: &mpsc::Sender<Event>,
        trouble: &mut Trouble,
    ) -> Result<(), ApiError> {
        let query = format!(
            "&watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_S}&resourceVersion={}",
            percent_encoded(version)
        );
        let mut body = self.get("", &query).await?.into_body();
        let mut lines = Lines::new(LONGEST_LINE);
        let silent = Duration::from_secs(WATCH_S) + PATIENCE;
        let broken = |reason| ApiError::Broken {
            server: self.client.url(),
            reason,
        };
        loop {
            let next = timeout(silent, body.frame()).await;
            let next = next.map_err(|_| broken(format!("nothing for {} s", silent.as_secs())))?;
            let Some(frame) = next else {
                return match lines.is_within_one() {
                    true => Err(broken("it ended within a line".into())),
                    false => Ok(()),
                };
            };
            let frame = frame.map_err(|error| broken(error_chain(&error)))?;
            let Ok(piece) = frame.into_data() else {
                continue;
            };
            lines.push(&piece);
            let too_long = |TooLong| ApiError::Nonsense {
                server: self.client.url(),
                reason: format!("a line of a watch is longer than {LONGEST_LINE} bytes"),
            };
            while let Some(line) = lines.next().map_err(too_long)? {
                let line = serde_json::from_slice(&line);
                let (event, latest) = match line.map_err(|error| self.nonsense(&error))? {
                    WatchLine::Added(pod) | WatchLine::Modified(pod) => {
                        let latest = pod.metadata.resource_version.clone();
                        (Some(Event::Is(pod.metadata)), latest)
                    }
                    WatchLine::Deleted(pod) => {
                        let latest = pod.metadata.resource_version.clone();
                        (Some(Event::Gone(pod.metadata)), latest)
                    }
                    WatchLine::Bookmark(mark) => (None, mark.metadata.resource_version),
                    WatchLine::Error(refusal) => return Err(self.refused(refusal)),
                };
                self.answers(trouble);
                if let Some(event) = event
                    && events.send(event).await.is_err()
                {
                    return Ok(());
                }
                *version = latest;
            }
        }
    }

    /// Asks for the pods of the node, as metadata in a `list` or one by one.
    async fn get(&self, list: &str, query: &str) -> Result<Response<Incoming>, ApiError> {
        let mut headers = HeaderMap::new();
        let accept = format!(
            "application/json;as=PartialObjectMetadata{list};g=meta.k8s.io;v=v1,application/json"
        );
        let agent = concat!("cc-agent/", env!("CARGO_PKG_VERSION"));
        headers.insert(USER_AGENT, HeaderValue::from_static(agent));
        if let Ok(accept) = HeaderValue::from_str(&accept) {
            headers.insert(ACCEPT, accept);
        }
        if let Some(path) = &self.token_file {
            headers.insert(AUTHORIZATION, token(path)?);
        }
        let node = percent_encoded(&self.node);
        let path = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}{query}");
        let answer = self.client.get(&path, headers).await?;
        match answer.status() {
            StatusCode::OK => Ok(answer),
            status => {
                let body = Limited::new(answer.into_body(), LONGEST_REFUSAL).collect();
                let body = timeout(PATIENCE, body).await.ok().and_then(Result::ok);
                let said = body.map(Collected::to_bytes).unwrap_or_default();
                let refusal: Refusal = serde_json::from_slice(&said).unwrap_or_default();
                Err(self.refused(Refusal {
                    code: status.as_u16(),
                    ..refusal
                }))
            }
        }
    }

    fn refused(&self, refusal: Refusal) -> ApiError {
        ApiError::Refused {
            server: self.client.url(),
            code: refusal.code,
            message: refusal.message,
        }
    }

    fn nonsense(&self, error: &serde_json::Error) -> ApiError {
        ApiError::Nonsense {
            server: self.client.url(),
            reason: error.to_string(),
        }
    }
}

/// The header with the token that is in a file, which the kubelet replaces from time to time.
fn token(path: &Path) -> Result<HeaderValue, ApiError> {
    let failed = |source| ApiError::Token {
        path: path.to_owned(),
        source,
    };
    let token = regular_file::read_to_string(path, LONGEST_TOKEN).map_err(failed)?;
    let header = HeaderValue::from_str(&format!("Bearer {}", token.trim()));
    let mut header = header.map_err(|_| failed(io::ErrorKind::InvalidData.into()))?;
    header.set_sensitive(true);
    Ok(header)
}

/// A value of a query.
fn percent_encoded(text: &str) -> String {
    let encoded = text.bytes().map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            char::from(byte).to_string()
        }
        byte => format!("%{byte:02X}"),
    });
    encoded.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_queries_are_encoded() {
        assert_eq!(percent_encoded("node-1.example"), "node-1.example");
        assert_eq!(percent_encoded("a&b=c d"), "a%26b%3Dc%20d");
    }
}
