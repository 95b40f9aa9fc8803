//! Server and client over the loopback network, with the embedded policy, and servers and agents
//! that do not keep to the protocol.

use std::{
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use cc_core::{
    flows::FlowId,
    interface::Interface,
    policy::{
        ActionSelection, Choice, DEFAULT_POLICY, Fixed, OnnxPolicy, Policy, Query, ServerAddress,
        State,
    },
    remote::{Question, Reply},
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use tokio::{sync::oneshot, task::JoinHandle, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, Streaming, transport::Endpoint};

use crate::{
    Client, ClientError, Event, Server, ServerError, TlsFiles,
    client::{ClientOptions, Down},
    rpc::{self, Outgoing, Serve},
    transport::{ConnectError, ListenError, Listener, Plaintext},
    wire::{
        Answers, FromAgent, FromServer, Hello, PATH, PROTOCOL, Questions, Welcome, from_agent,
        from_server,
    },
};

/// No wait in these tests may outlast this.
const DEADLINE: Duration = Duration::from_secs(60);

fn policy() -> Box<OnnxPolicy> {
    let policy = OnnxPolicy::from_bytes(DEFAULT_POLICY, Some(ActionSelection::Greedy), 0);
    Box::new(policy.expect("the embedded policy is accepted"))
}

fn interface() -> Interface {
    policy().interface().clone()
}

/// Two authorities, of which each has signed a certificate for this host.
struct Certificates {
    directory: TempDir,
}

impl Certificates {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        for authority in ["own", "other"] {
            write(directory.path(), authority);
        }
        Self { directory }
    }

    /// The files of a side with the certificate of `own`, which trusts the authority `ca`.
    fn files(&self, own: &str, ca: &str) -> TlsFiles {
        let path = |name: String| self.directory.path().join(name);
        TlsFiles {
            ca: path(format!("{ca}-ca.pem")),
            cert: path(format!("{own}.pem")),
            key: path(format!("{own}.key")),
        }
    }
}

/// Writes the certificate of an authority, and a certificate and a key that it has signed.
fn write(directory: &Path, authority: &str) {
    let ca_key = KeyPair::generate().expect("a key");
    let mut ca = CertificateParams::new(Vec::new()).expect("no names");
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_pem = ca.self_signed(&ca_key).expect("signed").pem();
    let issuer = Issuer::new(ca, ca_key);
    let key = KeyPair::generate().expect("a key");
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let signed = CertificateParams::new(names)
        .expect("names")
        .signed_by(&key, &issuer)
        .expect("signed");
    for (name, content) in [
        (format!("{authority}-ca.pem"), ca_pem),
        (format!("{authority}.pem"), signed.pem()),
        (format!("{authority}.key"), key.serialize_pem()),
    ] {
        std::fs::write(directory.join(name), content).expect("written");
    }
}

/// A server that runs until it is dropped or stopped.
struct Running {
    server: Arc<Server>,
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), ServerError>>,
}

impl Running {
    fn start(address: SocketAddr, tls: Option<&TlsFiles>) -> Self {
        let server = Arc::new(Server::start(policy()).expect("a policy of a file"));
        let listener = server.listen(address, tls).expect("a free port");
        let address = listener.address();
        let (stop, stopped) = oneshot::channel::<()>();
        let running = server.clone();
        let task = tokio::spawn(async move {
            let stopped = async { drop(stopped.await) };
            running.serve(listener, stopped).await
        });
        Self {
            server,
            address,
            stop,
            task,
        }
    }

    async fn stop(self) {
        drop(self.stop);
        let ended = timeout(DEADLINE, self.task).await.expect("in time");
        ended.expect("no panic").expect("no failure");
    }
}

fn anywhere() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

fn options(address: SocketAddr, tls: Option<TlsFiles>) -> ClientOptions {
    ClientOptions {
        address: ServerAddress {
            tls: tls.is_some(),
            host: "127.0.0.1".into(),
            port: address.port(),
        },
        tls,
        version: "test".into(),
        interface: Some(interface()),
    }
}

fn connect(address: SocketAddr, tls: Option<TlsFiles>) -> Client {
    Client::start(options(address, tls), || {}).expect("started")
}

async fn next(client: &mut Client) -> Event {
    timeout(DEADLINE, client.next()).await.expect("in time")
}

async fn down(client: &mut Client) -> Down {
    match next(client).await {
        Event::Down(down) => down,
        event => panic!("{event:?}"),
    }
}

async fn up(client: &mut Client) {
    loop {
        match next(client).await {
            Event::Up(policy) => {
                assert_eq!(policy.meta.interface, interface());
                return;
            }
            Event::Down(_) => {}
            Event::Replies(replies) => panic!("{replies:?}"),
        }
    }
}

/// `n` questions of different flows, from the number `first` on.
fn questions(first: u64, n: u32, state: &State) -> Vec<Question> {
    let len = interface().observation_len();
    (0..n)
        .map(|i| Question {
            sequence: first + u64::from(i),
            flow: FlowId {
                slot: i,
                generation: 1,
            },
            deadline_ns: 0,
            query: Query {
                observation: vec![0.01 * i as f32; len],
                reward: 0.5,
                cwnd: 10 + i,
                state: state.clone(),
                probabilities: Vec::new(),
            },
        })
        .collect()
}

async fn replies(client: &mut Client, n: usize) -> Vec<Reply> {
    let mut all = Vec::new();
    while all.len() < n {
        match next(client).await {
            Event::Replies(replies) => all.extend(replies),
            event => panic!("{event:?}"),
        }
    }
    all
}

/// Waits until `check` holds, and fails when it never does.
async fn eventually(check: impl Fn() -> bool) {
    let poll = async {
        while !check() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(DEADLINE, poll).await.expect("in time");
}

#[tokio::test]
async fn two_agents_are_answered_as_the_policy_itself_answers() {
    let certificates = Certificates::new();
    let files = certificates.files("own", "own");
    let running = Running::start(anywhere(), Some(&files));
    let mut agents = [
        connect(running.address, Some(files.clone())),
        connect(running.address, Some(files)),
    ];
    let mut policy = policy();
    for agent in &mut agents {
        up(agent).await;
        let mut state = State::default();
        // More than one message, and a state that goes there and back.
        for round in 0..2 {
            let asked = questions(1_000 * round, 300, &state);
            assert!(agent.ask(asked.clone()).is_empty());
            let replies = replies(agent, asked.len()).await;
            for (question, reply) in asked.into_iter().zip(replies) {
                let mut query = [question.query];
                let choice = policy.decide(&mut query);
                let [query] = query;
                assert_eq!(
                    (reply.sequence, reply.flow),
                    (question.sequence, question.flow)
                );
                let (
                    Choice::Action { index, .. },
                    Choice::Action {
                        index: expected, ..
                    },
                ) = (reply.choice, choice[0])
                else {
                    panic!("{reply:?}");
                };
                assert_eq!(index, expected);
                assert_eq!(reply.probabilities.len(), query.probabilities.len());
                // A row is summed in another order in a batch of another size.
                for (a, b) in reply.state.h.iter().zip(&query.state.h) {
                    assert!((a - b).abs() < 1e-4, "{a} {b}");
                }
                state = reply.state;
            }
        }
    }
    let counts = running.server.counts();
    assert_eq!((counts.agents, counts.connected, counts.refused), (2, 2, 0));
    assert_eq!(counts.queries, 1_200);
    assert!(counts.batches <= counts.queries && counts.mean_batch() >= 1.0);
    drop(agents);
    eventually(|| running.server.counts().connected == 0).await;
    running.stop().await;
}

#[tokio::test]
async fn a_certificate_of_another_authority_is_refused_by_either_side() {
    let certificates = Certificates::new();
    let running = Running::start(anywhere(), Some(&certificates.files("own", "own")));
    for (own, ca) in [("other", "own"), ("own", "other")] {
        let mut client = connect(running.address, Some(certificates.files(own, ca)));
        let down = down(&mut client).await;
        assert!(down.reason.contains("grpcs://127.0.0.1:"), "{down}");
    }
    // Nor does a server with TLS talk to an agent without.
    let mut client = connect(running.address, None);
    down(&mut client).await;
    assert_eq!(running.server.counts().agents, 0);
    // The right certificate is still welcome.
    let mut client = connect(running.address, Some(certificates.files("own", "own")));
    up(&mut client).await;
    running.stop().await;
}

#[tokio::test]
async fn the_agent_connects_again_to_a_server_that_returns() {
    let running = Running::start(anywhere(), None);
    let address = running.address;
    let mut client = connect(address, None);
    up(&mut client).await;
    running.stop().await;
    let down = down(&mut client).await;
    assert!(!down.refused, "{down}");
    // What is asked meanwhile is not asked of the next server.
    client.ask(questions(7, 1, &State::default()));
    let running = Running::start(address, None);
    up(&mut client).await;
    assert!(client.ask(questions(8, 1, &State::default())).is_empty());
    assert_eq!(replies(&mut client, 1).await[0].sequence, 8);
    running.stop().await;
}

#[tokio::test]
async fn an_agent_made_for_another_interface_is_refused_with_the_setting() {
    let running = Running::start(anywhere(), None);
    let mut options = options(running.address, None);
    let mut other = interface();
    other.history += 1;
    options.interface = Some(other);
    let mut client = Client::start(options, || {}).expect("started");
    let down = down(&mut client).await;
    let expected = "the policy was made for history";
    assert!(down.refused && down.reason.contains(expected), "{down}");
    assert_eq!(running.server.counts().agents, 0);
    eventually(|| running.server.counts().refused == 1).await;
    running.stop().await;
}

/// An agent that sends these messages, and what the server says in the end.
async fn raw_agent(address: SocketAddr, messages: Vec<FromAgent>) -> Status {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    let channel = endpoint.connect().await.expect("connected");
    let (send, outgoing) = tokio::sync::mpsc::channel(8);
    for message in messages {
        send.send(message).await.expect("room");
    }
    let talk = async {
        let mut from_server: Streaming<FromServer> =
            rpc::open(channel, PATH, outgoing, 1 << 20).await?;
        while from_server.message().await?.is_some() {}
        Ok::<_, Status>(())
    };
    let outcome = timeout(DEADLINE, talk).await.expect("in time");
    outcome.expect_err("it is refused")
}

fn hello(hello: Hello) -> FromAgent {
    FromAgent {
        content: Some(from_agent::Content::Hello(hello)),
    }
}

#[tokio::test]
async fn agents_that_break_the_protocol_are_refused_and_others_served() {
    let running = Running::start(anywhere(), None);
    let welcome = || hello(Hello::new("raw", None));
    let asks = |questions| FromAgent {
        content: Some(from_agent::Content::Questions(questions)),
    };
    let widths = {
        let policy = policy();
        policy.file().expect("a file").meta.widths()
    };
    let whole = || Questions::of(&questions(0, 2, &State::default()), &widths);
    let newer = Hello {
        protocol: PROTOCOL + 1,
        ..Hello::new("raw", None)
    };
    let mut short = whole();
    short.observations.pop();
    let mut nan = whole();
    nan.h[0] = f32::NAN;
    let huge = Questions {
        observations: vec![0.0; 1 << 20],
        ..whole()
    };
    for (messages, expected) in [
        (vec![hello(newer)], "protocol version 2; this side has 1"),
        (vec![asks(whole())], "expected the agent's hello"),
        (vec![FromAgent::default()], "expected the agent's hello"),
        (vec![welcome(), welcome()], "expected questions"),
        (vec![welcome(), asks(short)], "observations has"),
        (vec![welcome(), asks(nan)], "h has the value NaN"),
        (vec![welcome(), asks(huge)], "too large"),
    ] {
        let status = raw_agent(running.address, messages).await;
        assert!(status.message().contains(expected), "{expected}: {status}");
    }
    eventually(|| running.server.counts().refused == 7).await;
    let mut client = connect(running.address, None);
    up(&mut client).await;
    assert!(client.ask(questions(0, 1, &State::default())).is_empty());
    assert_eq!(replies(&mut client, 1).await.len(), 1);
    running.stop().await;
}

/// A server that answers as a test says; `None` answers nothing.
type Script = Arc<dyn Fn(FromAgent) -> Option<FromServer> + Send + Sync>;

#[derive(Clone)]
struct Scripted(Script);

impl Serve for Scripted {
    const PATH: &'static str = PATH;
    type Up = FromAgent;
    type Down = FromServer;

    fn message_bytes(&self) -> usize {
        1 << 24
    }

    fn serve(&self, agent: Request<Streaming<FromAgent>>) -> Result<Outgoing<FromServer>, Status> {
        let (out, outgoing) = tokio::sync::mpsc::channel(8);
        let script = self.0.clone();
        let mut agent = agent.into_inner();
        tokio::spawn(async move {
            while let Ok(Some(message)) = agent.message().await {
                if let Some(answer) = script(message)
                    && out.send(Ok(answer)).await.is_err()
                {
                    return;
                }
            }
        });
        Ok(ReceiverStream::new(outgoing))
    }
}

fn scripted(
    script: impl Fn(FromAgent) -> Option<FromServer> + Send + Sync + 'static,
) -> SocketAddr {
    let listener = Listener::bind(anywhere(), None, Plaintext::Loopback).expect("a free port");
    let address = listener.address();
    tokio::spawn(listener.serve(Scripted(Arc::new(script)), std::future::pending()));
    address
}

fn welcome() -> FromServer {
    let policy = policy();
    let file = policy.file().expect("a file");
    FromServer {
        content: Some(from_server::Content::Welcome(Welcome::new(
            &file.sha256,
            &file.meta,
        ))),
    }
}

/// What the policy answers to a message, as the server would send it.
fn answered(message: Questions) -> Answers {
    let mut policy = policy();
    let widths = policy.file().expect("a file").meta.widths();
    let questions = message.check(&widths).expect("whole");
    let mut queries: Vec<Query> = questions.iter().map(|(.., query)| query.clone()).collect();
    let choices = policy.decide(&mut queries);
    let answers = questions.iter().zip(&queries).zip(choices);
    let answers =
        answers.map(|(((sequence, flow, _), query), choice)| (*sequence, *flow, query, choice));
    Answers::of(answers, &widths)
}

#[tokio::test]
async fn a_server_that_answers_nonsense_is_left() {
    type Change = fn(&mut Answers);
    let changes: [(&str, Change); 4] = [
        ("h has the value NaN", |a| a.h[3] = f32::NAN),
        ("actions has the value 200", |a| a.actions[0] = 200),
        ("chances has the value -1", |a| a.chances[0] = -1.0),
        ("0 in one message", |a| *a = Answers::default()),
    ];
    for (expected, change) in changes {
        let address = scripted(move |message| match message.content? {
            from_agent::Content::Hello(_) => Some(welcome()),
            from_agent::Content::Questions(questions) => {
                let mut answers = answered(questions);
                change(&mut answers);
                Some(FromServer {
                    content: Some(from_server::Content::Answers(answers)),
                })
            }
        });
        let mut client = connect(address, None);
        up(&mut client).await;
        client.ask(questions(0, 1, &State::default()));
        let down = down(&mut client).await;
        assert!(down.refused && down.reason.contains(expected), "{down}");
    }
}

#[tokio::test]
async fn a_server_of_another_version_or_policy_is_left() {
    type Change = fn(&mut Welcome);
    let changes: [(&str, Change); 3] = [
        ("protocol version 3; this side has 1", |w| w.protocol = 3),
        ("the policy's sha256 is refused", |w| w.sha256.clear()),
        ("the policy was made for history", |w| {
            let history = interface().history;
            let (old, new) = (
                format!("\"history\":{history}"),
                format!("\"history\":{}", history + 1),
            );
            w.metadata = w.metadata.replace(&old, &new);
        }),
    ];
    for (expected, change) in changes {
        let address = scripted(move |_| {
            let mut message = welcome();
            if let Some(from_server::Content::Welcome(welcome)) = &mut message.content {
                change(welcome);
            }
            Some(message)
        });
        let mut client = connect(address, None);
        let down = down(&mut client).await;
        assert!(down.refused && down.reason.contains(expected), "{down}");
    }
}

#[tokio::test]
async fn a_server_that_never_answers_takes_neither_time_nor_memory() {
    let asked = Arc::new(Mutex::new(0));
    let count = asked.clone();
    let address = scripted(move |message| match message.content? {
        from_agent::Content::Hello(_) => Some(welcome()),
        from_agent::Content::Questions(questions) => {
            *count.lock().expect("no panic") += questions.sequences.len();
            None
        }
    });
    let mut client = connect(address, None);
    up(&mut client).await;
    assert!(client.ask(questions(0, 5, &State::default())).is_empty());
    eventually(|| *asked.lock().expect("no panic") == 5).await;
    // Messages that nobody takes find no room, and `ask` returns at once all the same.
    let unsent = (0..1_000).any(|i| !client.ask(questions(i, 256, &State::default())).is_empty());
    assert!(unsent);
}

#[tokio::test]
async fn what_cannot_be_tried_is_an_error_at_once() {
    let mut elsewhere = options(anywhere(), None);
    elsewhere.address.host = "192.0.2.1".into();
    let error = Client::start(elsewhere, || {}).expect_err("plain text");
    assert!(
        matches!(error, ClientError::Connect(ConnectError::Plaintext { .. })),
        "{error}"
    );
    let mut encrypted = options(anywhere(), None);
    encrypted.address.tls = true;
    let error = Client::start(encrypted, || {}).expect_err("no key");
    assert!(
        matches!(
            error,
            ClientError::Connect(ConnectError::NoCertificates { .. })
        ),
        "{error}"
    );
    let server = Server::start(policy()).expect("a policy of a file");
    let error = server.listen(([0, 0, 0, 0], 0).into(), None).err();
    assert!(matches!(
        error,
        Some(ServerError::Listen(ListenError::Plaintext { .. }))
    ));
    let error = Server::start(Box::new(Fixed::new(9, interface()))).err();
    assert!(matches!(error, Some(ServerError::NoFile)));
}
