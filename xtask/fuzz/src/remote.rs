//! What a policy server and its agents tell each other ([`cc_remote::wire`]).
//!
//! An input is a message, as it arrives within the limit of its size, and is read as either side
//! would read it: as the server reads an agent's, and as an agent reads the server's.

use std::sync::LazyLock;

use cc_core::{
    flows::FlowId,
    interface::Interface,
    policy::{Choice, DEFAULT_POLICY, PolicyFile, Query, State, Widths},
    remote::Question,
};
use cc_remote::wire::{
    Answers, FromAgent, FromServer, Hello, MOST, Questions, Welcome, from_agent, from_server,
};
use prost::Message;

/// A policy with rows so small that an input can hold as many as a message may.
const WIDTHS: Widths = Widths {
    observation: 3,
    actions: 2,
    state: 1,
};

/// The policy that the server has, and whose interface the agent's flows are served with.
static POLICY: LazyLock<PolicyFile> =
    LazyLock::new(|| PolicyFile::parse(DEFAULT_POLICY).expect("the embedded policy is accepted"));

/// Reads the message as the server, then as an agent.
pub(crate) fn read(bytes: &[u8]) {
    let interface = &POLICY.meta().interface;
    if let Ok(message) = FromAgent::decode(bytes) {
        from_agent(message, interface);
    }
    if let Ok(message) = FromServer::decode(bytes) {
        from_server(message, interface);
    }
}

/// Checks that what the server accepts can be asked of a policy.
fn from_agent(message: FromAgent, interface: &Interface) {
    match message.content {
        Some(from_agent::Content::Hello(hello)) => {
            hello.check(interface).ok();
        }
        Some(from_agent::Content::Questions(questions)) => {
            let Ok(questions) = questions.check(&WIDTHS) else {
                return;
            };
            assert!((1..=MOST).contains(&questions.len()));
            for (_, _, query) in questions {
                assert_eq!(query.observation.len(), WIDTHS.observation);
                assert_whole(&query.state);
                let mut inputs = query.observation.iter().chain([&query.reward]);
                assert!(inputs.all(|value| value.is_finite()), "{query:?}");
                assert!(query.cwnd > 0, "{query:?}");
            }
        }
        None => {}
    }
}

/// Checks that what an agent accepts can be applied to its flows.
fn from_server(message: FromServer, interface: &Interface) {
    match message.content {
        Some(from_server::Content::Welcome(welcome)) => {
            if let Ok((sha256, meta)) = welcome.check(Some(interface)) {
                assert_eq!(sha256.len(), 64);
                assert_eq!(meta.interface, *interface);
            }
        }
        Some(from_server::Content::Answers(answers)) => {
            let Ok(replies) = answers.check(&WIDTHS) else {
                return;
            };
            assert!((1..=MOST).contains(&replies.len()));
            for reply in replies {
                assert_whole(&reply.state);
                let given = reply.probabilities.len();
                assert!(given == 0 || given == WIDTHS.actions, "{reply:?}");
                match reply.choice {
                    Choice::Action { index, probability } => {
                        assert!(index < WIDTHS.actions, "{reply:?}");
                        assert!((0.0..=1.0).contains(&probability), "{reply:?}");
                    }
                    choice => assert_eq!(choice, Choice::Invalid),
                }
            }
        }
        None => {}
    }
}

/// Asserts that a state can be given to a policy.
fn assert_whole(state: &State) {
    for values in [&state.h, &state.c] {
        assert_eq!(values.len(), WIDTHS.state);
        assert!(values.iter().all(|value| value.is_finite()), "{state:?}");
    }
}

/// All four messages; those of many flows with one flow and with as many as there may be.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let interface = &POLICY.meta().interface;
    let hello = |interface| from_agent::Content::Hello(Hello::new("1.0.0", interface));
    let ask = |n| from_agent::Content::Questions(Questions::of(&questions(n), &WIDTHS));
    let welcome = Welcome::new(&POLICY.summary().sha256, POLICY.meta());
    let asked = [hello(None), hello(Some(interface)), ask(1), ask(MOST)];
    let answered = [
        from_server::Content::Welcome(welcome),
        from_server::Content::Answers(answers(1)),
        from_server::Content::Answers(answers(MOST)),
    ];
    let asked = asked.map(|content| {
        let content = Some(content);
        FromAgent { content }.encode_to_vec()
    });
    let answered = answered.map(|content| {
        let content = Some(content);
        FromServer { content }.encode_to_vec()
    });
    asked.into_iter().chain(answered).collect()
}

fn questions(n: usize) -> Vec<Question> {
    let question = |slot| Question {
        sequence: u64::from(slot) + 1,
        flow: flow(slot),
        deadline_ns: 0,
        query: query(),
    };
    (0..n as u32).map(question).collect()
}

/// Answers to as many questions; the last has no choice.
fn answers(n: usize) -> Answers {
    let query = query();
    let answer = |slot: u32| {
        let choice = match slot as usize + 1 == n {
            true => Choice::Invalid,
            false => Choice::Action {
                index: 1,
                probability: 0.75,
            },
        };
        (u64::from(slot) + 1, flow(slot), &query, choice)
    };
    Answers::of((0..n as u32).map(answer), &WIDTHS)
}

fn query() -> Query {
    Query {
        observation: vec![0.5; WIDTHS.observation],
        reward: -1.0,
        cwnd: 10,
        state: State {
            h: vec![0.25; WIDTHS.state],
            c: vec![-0.25; WIDTHS.state],
        },
        probabilities: vec![0.25, 0.75],
    }
}

fn flow(slot: u32) -> FlowId {
    FlowId {
        slot,
        generation: 1,
    }
}
