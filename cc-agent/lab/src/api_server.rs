//! An API server of Kubernetes that knows pods only, and misbehaves when it is told to.

use std::{
    collections::{BTreeMap, VecDeque},
    io::{self, BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use serde_json::{Value, json};

/// How the server misbehaves, once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It refuses the next request with this code of HTTP.
    Refuse(u16),
    /// It answers the next request with a line that is no JSON.
    Nonsense,
    /// It answers the next request with a line that never ends.
    Endless,
    /// It closes the connection of the next watch in the middle of a line.
    Cut,
    /// It keeps the next request waiting for this long.
    Slow(Duration),
}

/// A server of one node's pods on a port of this host, in plain HTTP.
pub struct ApiServer {
    address: String,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    pods: BTreeMap<String, Value>,
    version: u64,
    /// The changes so far, with their versions, as lines of watches.
    changes: Vec<(u64, String)>,
    /// The version before which changes are forgotten.
    oldest: u64,
    faults: VecDeque<Fault>,
    /// The heads of the requests so far.
    requests: Vec<String>,
    /// Whether all watches are to end.
    epoch: u64,
    ended: bool,
}

impl State {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // What is kept is whole also after a panic.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for ApiServer {
    fn default() -> Self {
        Self::new()
    }
}

impl ApiServer {
    /// Starts a server without pods.
    ///
    /// # Panics
    ///
    /// Panics if no port is free.
    pub fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let state = Arc::new(State::default());
        state.lock().version = 1;
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if shared.lock().ended {
                    return;
                }
                let shared = Arc::clone(&shared);
                // A client that is gone concerns nobody else.
                thread::spawn(move || drop(answer(stream, &shared)));
            }
        });
        Self {
            address: address.to_string(),
            state,
        }
    }

    /// Returns its URL, for `cc-agent pods --server`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Puts a pod there, or other annotations on one that is there.
    pub fn put(&self, uid: &str, annotations: &[(&str, &str)]) {
        let mut inner = self.state.lock();
        inner.version += 1;
        let version = inner.version;
        let annotations: BTreeMap<_, _> = annotations.iter().copied().collect();
        // As the server has it: null where there are none.
        let annotations = (!annotations.is_empty()).then_some(annotations);
        let pod = json!({
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": {
                "name": format!("pod-{uid}"),
                "namespace": "default",
                "uid": uid,
                "resourceVersion": version.to_string(),
                "annotations": annotations,
            },
        });
        let before = inner.pods.insert(uid.to_owned(), pod.clone());
        let kind = if before.is_some() {
            "MODIFIED"
        } else {
            "ADDED"
        };
        self.change(&mut inner, kind, &pod);
    }

    /// Removes a pod, which watches are told.
    ///
    /// # Panics
    ///
    /// Panics if it is not there.
    pub fn delete(&self, uid: &str) {
        let mut inner = self.state.lock();
        inner.version += 1;
        let version = inner.version.to_string();
        let mut pod = inner.pods.remove(uid).expect("it is there");
        pod["metadata"]["resourceVersion"] = version.into();
        self.change(&mut inner, "DELETED", &pod);
    }

    /// Tells watches that nothing has changed up to a new version.
    pub fn bookmark(&self) {
        let mut inner = self.state.lock();
        inner.version += 1;
        let mark = json!({
            "kind": "PartialObjectMetadata",
            "metadata": {
                "resourceVersion": inner.version.to_string(), "creationTimestamp": null,
            },
        });
        self.change(&mut inner, "BOOKMARK", &mark);
    }

    /// Forgets all changes so far: who watches from an older version is told that it is gone.
    pub fn forget(&self) {
        let mut inner = self.state.lock();
        inner.version += 1;
        inner.oldest = inner.version;
        inner.changes.clear();
    }

    /// Ends all watches, in order.
    pub fn end_watches(&self) {
        self.state.lock().epoch += 1;
        self.state.changed.notify_all();
    }

    /// Misbehaves once, after the faults before it.
    pub fn fail(&self, fault: Fault) {
        self.state.lock().faults.push_back(fault);
    }

    /// Returns the faults that nobody has met yet.
    pub fn faults_left(&self) -> usize {
        self.state.lock().faults.len()
    }

    /// Returns the heads of the requests so far.
    pub fn requests(&self) -> Vec<String> {
        self.state.lock().requests.clone()
    }

    fn change(&self, inner: &mut Inner, kind: &str, object: &Value) {
        let line = json!({ "type": kind, "object": object }).to_string();
        let version = inner.version;
        inner.changes.push((version, line));
        self.state.changed.notify_all();
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        {
            let mut inner = self.state.lock();
            inner.ended = true;
            inner.epoch += 1;
        }
        self.state.changed.notify_all();
        // So that its thread ends.
        let _ = TcpStream::connect(&self.address);
    }
}

/// Answers one request and closes the connection.
fn answer(mut stream: TcpStream, state: &State) -> io::Result<()> {
    let mut head = String::new();
    let mut reader = BufReader::new(stream.try_clone()?);
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Ok(());
        }
    }
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let is_watch = path.contains("watch=true");
    let (fault, epoch) = {
        let mut inner = state.lock();
        inner.requests.push(head);
        let is_due = |fault: &Fault| is_watch || *fault != Fault::Cut;
        let fault = match inner.faults.front() {
            Some(fault) if is_due(fault) => inner.faults.pop_front(),
            _ => None,
        };
        (fault, inner.epoch)
    };
    match fault {
        Some(Fault::Refuse(code)) => {
            let body = json!({ "kind": "Status", "message": "as the test asks", "code": code });
            let body = body.to_string();
            return write!(
                stream,
                "HTTP/1.1 {code} No\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
        }
        Some(Fault::Nonsense) => {
            return stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 16\r\n\r\n<html>no</html>\n");
        }
        Some(Fault::Endless) => {
            stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
            loop {
                chunk(&mut stream, &"x".repeat(1 << 16))?;
            }
        }
        Some(Fault::Cut) => {
            stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
            return chunk(&mut stream, "{\"type\":\"ADDED\",\"obj");
        }
        Some(Fault::Slow(time)) => thread::sleep(time),
        None => {}
    }
    match is_watch {
        true => watch(stream, state, version_of(&path), epoch),
        false => {
            let list = {
                let inner = state.lock();
                let items: Vec<_> = inner.pods.values().cloned().collect();
                json!({
                    "kind": "PartialObjectMetadataList",
                    "metadata": { "resourceVersion": inner.version.to_string() },
                    "items": items,
                })
            };
            let body = list.to_string();
            write!(
                stream,
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            )
        }
    }
}

/// Writes the changes after a version as they come, until the watches of this epoch end.
fn watch(mut stream: TcpStream, state: &State, mut from: u64, epoch: u64) -> io::Result<()> {
    stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
    loop {
        let lines: Vec<(u64, String)> = {
            let mut inner = state.lock();
            loop {
                if inner.epoch != epoch {
                    return stream.write_all(b"0\r\n\r\n");
                }
                if from < inner.oldest {
                    let gone = json!({ "type": "ERROR", "object": {
                        "kind": "Status", "reason": "Expired", "code": 410,
                        "message": "too old resource version",
                    }});
                    return chunk(&mut stream, &format!("{gone}\n"));
                }
                let new = inner.changes.iter().filter(|(version, _)| *version > from);
                let new: Vec<_> = new.cloned().collect();
                if !new.is_empty() {
                    break new;
                }
                inner = (state.changed.wait(inner)).unwrap_or_else(PoisonError::into_inner);
            }
        };
        for (version, line) in lines {
            // In two pieces, as a network may have it.
            let (first, second) = line.split_at(line.len() / 2);
            chunk(&mut stream, first)?;
            chunk(&mut stream, &format!("{second}\n"))?;
            from = version;
        }
    }
}

fn chunk(stream: &mut TcpStream, text: &str) -> io::Result<()> {
    write!(stream, "{:x}\r\n{text}\r\n", text.len())
}

fn version_of(path: &str) -> u64 {
    let after = path.rsplit_once("resourceVersion=").map(|(_, after)| after);
    let digits = after.map(|after| after.split('&').next().unwrap_or_default());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}
