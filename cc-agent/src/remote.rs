//! A policy that decides on a server, with a local one that stands in for it: the options of
//! `run --policy grpcs://…`, and what the event loop does with the connection.
//!
//! Who decides on which query is [`Dispatcher`]'s matter; here are its connection, its clock and
//! its report.

use std::{future::pending, sync::Arc, time::Duration};

use cc_core::{
    agent::{Agent, Batch},
    interface::Interface,
    policy::{Choice, DEFAULT_POLICY, PolicyFile, PolicySpec, ServerAddress},
    remote::Dispatcher,
    rows::FileHeader,
    status::RemoteStatus,
};
use cc_remote::{Client, Event, RemotePolicy, TlsFiles, client::ClientOptions};
use tracing::{info, warn};

use crate::{
    deploy::{LoadedPolicy, PolicyLoader},
    kernel::privileges::{self, Capabilities},
    options::RemoteOptions,
    recording_setup::RecordingSession,
    remote_error::RemoteError,
};

/// Time that the server has, at the agent's start, to say which policy it serves.
const START: Duration = Duration::from_secs(6);

/// A policy server that an agent is to ask.
pub struct RemoteSettings {
    address: ServerAddress,
    client: Client,
    /// What came of the first attempt, when that is known.
    first: Option<Event>,
    /// How long an answer is waited for, from its window's end.
    patience: Duration,
}

impl RemoteSettings {
    /// How long an answer is waited for, from its window's end.
    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }
}

impl RemoteOptions {
    /// Refuses these options for a policy that no server decides.
    pub(crate) fn refuse(&self) -> Result<(), RemoteError> {
        let given = [
            ("--remote-ca", self.remote_ca.is_some()),
            ("--remote-cert", self.remote_cert.is_some()),
            ("--remote-key", self.remote_key.is_some()),
            ("--local-policy", self.local_policy.is_some()),
            ("--patience-ms", self.patience_ms.is_some()),
        ];
        match given.into_iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) => Err(RemoteError::NoServer { option }),
            None => Ok(()),
        }
    }

    /// Asks the server which policy it serves, and loads the local policy. The interface of
    /// policies without a file, which `loader` has, becomes that of the server's policy.
    ///
    /// A server that cannot be reached is no error: the agent begins with the local policy.
    ///
    /// # Errors
    ///
    /// Returns an error when the options contradict each other, when the server refuses the agent
    /// or answers what cannot be, and when no local policy fits.
    pub(crate) fn connect(
        &self,
        address: &ServerAddress,
        loader: &mut PolicyLoader,
    ) -> Result<(LoadedPolicy, RemoteSettings), RemoteError> {
        let tls = self.tls()?;
        let start = |interface: Option<Interface>| {
            let options = ClientOptions {
                address: address.clone(),
                tls: tls.clone(),
                version: env!("CARGO_PKG_VERSION").into(),
                interface,
            };
            Client::start(options, || {
                if let Err(error) = privileges::keep_only(Capabilities::NONE) {
                    warn!("the connection's thread keeps its capabilities: {error}");
                }
            })
            .map_err(|source| RemoteError::Client {
                address: address.clone(),
                source: source.into(),
            })
        };
        // A file states the interface that its flows are served with, and the server must fit it.
        let stated = match &self.local_policy {
            Some(
                spec @ (PolicySpec::Default | PolicySpec::Onnx(_) | PolicySpec::Pinned { .. }),
            ) => Some(loader.load(spec)?),
            _ => None,
        };
        let interface = stated.as_ref().map(|local| local.interface().clone());
        let mut client = start(interface)?;
        let first = client.wait(START).map_err(|error| RemoteError::Client {
            address: address.clone(),
            source: Box::new(error.into()),
        })?;
        let server = match &first {
            Some(Event::Up(policy)) => Some(policy.meta.interface.clone()),
            Some(Event::Down(down)) if down.refused => {
                return Err(RemoteError::Refused { down: down.clone() });
            }
            _ => None,
        };
        let local = match stated {
            Some(local) => local,
            None => {
                if let Some(interface) = &server {
                    loader.interface = interface.clone();
                }
                let local = self.stand_in(server.as_ref(), loader)?;
                if server.is_none() {
                    // Flows are served with this interface, whatever the server has when it comes.
                    client = start(Some(local.interface().clone()))?;
                }
                local
            }
        };
        let window_ms = u64::from(local.interface().window_ms);
        let remote = RemoteSettings {
            address: address.clone(),
            client,
            first,
            patience: Duration::from_millis(self.patience_ms.unwrap_or(window_ms)),
        };
        Ok((local, remote))
    }

    /// Loads a local policy for the interface of `server`, or for that of `loader` where no server
    /// has answered.
    fn stand_in(
        &self,
        server: Option<&Interface>,
        loader: &PolicyLoader,
    ) -> Result<LoadedPolicy, RemoteError> {
        if let Some(spec) = &self.local_policy {
            return Ok(loader.load(spec)?);
        }
        if server.is_none_or(is_of_default) {
            return Ok(loader.load(&PolicySpec::Default)?);
        }
        let heuristic = loader.load(&PolicySpec::Heuristic);
        heuristic.map_err(|source| {
            let source = Box::new(source);
            RemoteError::NoLocalPolicy { source }
        })
    }

    /// The files of TLS; `None` when none is given.
    fn tls(&self) -> Result<Option<TlsFiles>, RemoteError> {
        match (&self.remote_ca, &self.remote_cert, &self.remote_key) {
            (None, None, None) => Ok(None),
            (Some(ca), Some(cert), Some(key)) => Ok(Some(TlsFiles {
                ca: ca.clone(),
                cert: cert.clone(),
                key: key.clone(),
            })),
            (None, ..) => Err(RemoteError::Files {
                missing: "--remote-ca",
            }),
            (_, None, _) => Err(RemoteError::Files {
                missing: "--remote-cert",
            }),
            (.., None) => Err(RemoteError::Files {
                missing: "--remote-key",
            }),
        }
    }
}

/// Whether this is the interface of the embedded policy.
fn is_of_default(interface: &Interface) -> bool {
    PolicyFile::parse(DEFAULT_POLICY).is_ok_and(|file| file.meta().interface == *interface)
}

/// A policy server at work: its connection, and who decides on which query.
pub(crate) struct Remote {
    address: ServerAddress,
    client: Client,
    dispatcher: Dispatcher,
    first: Option<Event>,
    /// The policy of the last connection.
    policy: Option<Box<RemotePolicy>>,
    connections: u64,
    /// Why there is no connection; `None` while there is one.
    trouble: Option<String>,
}

impl Remote {
    /// Begins to ask the server of `settings`, beside this local policy.
    pub(crate) fn new(settings: RemoteSettings, local: &LoadedPolicy) -> Self {
        let RemoteSettings {
            address,
            client,
            first,
            patience,
        } = settings;
        let interval_ns = local.interface().datapath_settings().window_ns;
        let sha256 = local.loaded.file.as_ref().map(|file| file.sha256.clone());
        Self {
            address,
            client,
            dispatcher: Dispatcher::new(interval_ns, patience.as_nanos() as u64, sha256),
            first,
            policy: None,
            connections: 0,
            trouble: None,
        }
    }

    /// Waits for the next event. Nothing is lost when the future is dropped.
    pub(crate) async fn next(&mut self) -> Event {
        match self.first.take() {
            Some(event) => event,
            None => self.client.next().await,
        }
    }

    /// Takes note of an event. Returns the queries that the server has decided on, with its
    /// choices.
    pub(crate) fn on_event(&mut self, now_ns: u64, event: Event) -> (Batch, Vec<Choice>) {
        match event {
            Event::Up(policy) => {
                info!(
                    "{} decides: policy {}, {}, SHA-256 {}",
                    self.address, policy.meta.name, policy.meta.kind, policy.sha256
                );
                self.dispatcher.connected(&policy.sha256);
                self.connections += 1;
                self.trouble = None;
                self.policy = Some(policy);
            }
            Event::Down(down) => {
                self.dispatcher.disconnected();
                let news = down.reason;
                // Once, and not with each attempt.
                if self.trouble.as_ref() != Some(&news) {
                    warn!("the local policy decides: {news}");
                }
                self.trouble = Some(news);
            }
            Event::Replies(replies) => return self.dispatcher.on_replies(now_ns, replies),
        }
        (Batch::default(), Vec::new())
    }

    /// Asks the server about the flows that wait for a decision, or leaves them to the local
    /// policy.
    pub(crate) fn ask(&mut self, now_ns: u64, batch: Batch) {
        let questions = self.dispatcher.route(now_ns, batch);
        if !questions.is_empty() {
            let unsent = self.client.ask(questions);
            self.dispatcher.not_sent(unsent);
        }
    }

    /// Takes up to `most` queries for the local policy.
    pub(crate) fn take_local(&mut self, now_ns: u64, most: usize) -> Batch {
        self.dispatcher.expire(now_ns);
        self.dispatcher.take_local(most)
    }

    /// When a question's time is over next, ns; `None` while none is out.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        self.dispatcher.due_ns()
    }

    /// Whether a server is connected.
    pub(crate) fn is_connected(&self) -> bool {
        self.dispatcher.is_connected()
    }

    /// Forgets closed flows, as [`Agent::reconcile`] does.
    pub(crate) fn reconcile(&mut self, occupant: impl FnMut(u32) -> Option<u32>) {
        self.dispatcher.reconcile(occupant);
    }

    /// Ends the connection: gives back what nobody has decided.
    pub(crate) fn end(self, agent: &mut Agent) {
        agent.on_no_answer(self.dispatcher.into_batch());
    }

    /// The header of files with the server's decisions; `None` before the first connection.
    pub(crate) fn header(&self, session: &RecordingSession) -> Option<Arc<FileHeader>> {
        let RemotePolicy { sha256, meta } = &**self.policy.as_ref()?;
        let header = session.header(meta.interface.clone(), sha256, Some(meta.clone()));
        Some(Arc::new(FileHeader {
            server: Some(self.address.to_string()),
            ..header
        }))
    }

    /// The address of the server that is asked.
    pub(crate) fn address(&self) -> &ServerAddress {
        &self.address
    }

    /// What the status says of the server.
    pub(crate) fn status(&self) -> RemoteStatus {
        let policy = self.policy.as_ref();
        RemoteStatus {
            server: self.address.to_string(),
            connected: self.is_connected(),
            connections: self.connections,
            policy: policy.map(|policy| format!("{}, {}", policy.meta.name, policy.meta.kind)),
            sha256: policy.map(|policy| policy.sha256.clone()),
            counts: self.dispatcher.counts(),
            trouble: self.trouble.clone(),
        }
    }
}

/// Waits for the next event of a server, for ever where there is none.
pub(crate) async fn next_of(remote: &mut Option<Remote>) -> Event {
    match remote {
        Some(remote) => remote.next().await,
        None => pending().await,
    }
}
