use cc_core::policy::{DEFAULT_POLICY, PolicyFile};
use proptest::prelude::*;
use prost::Message;

use super::*;

const WIDTHS: Widths = Widths {
    observation: 7,
    actions: 3,
    state: 4,
};

fn numbers(len: usize) -> impl Strategy<Value = Vec<f32>> {
    prop::collection::vec(-1e6_f32..1e6, len)
}

fn state() -> impl Strategy<Value = State> {
    let filled = (numbers(WIDTHS.state), numbers(WIDTHS.state)).prop_map(|(h, c)| State { h, c });
    prop_oneof![filled, Just(State::default())]
}

fn flow() -> impl Strategy<Value = FlowId> {
    any::<(u32, u32)>().prop_map(|(slot, generation)| FlowId { slot, generation })
}

fn questions() -> impl Strategy<Value = Vec<Question>> {
    let observation = numbers(WIDTHS.observation);
    let question = (
        any::<u64>(),
        flow(),
        observation,
        -1e6_f32..1e6,
        1..u32::MAX,
        state(),
    );
    let question =
        question.prop_map(
            |(sequence, flow, observation, reward, cwnd, state)| Question {
                sequence,
                flow,
                deadline_ns: 0,
                query: Query {
                    observation,
                    reward,
                    cwnd,
                    state,
                    probabilities: Vec::new(),
                },
            },
        );
    prop::collection::vec(question, 1..20)
}

fn replies() -> impl Strategy<Value = Vec<Reply>> {
    let choice = prop_oneof![
        (0..WIDTHS.actions, 0.0_f32..=1.0)
            .prop_map(|(index, probability)| Choice::Action { index, probability }),
        Just(Choice::Invalid),
    ];
    let given = prop::collection::vec(0.0_f32..=1.0, WIDTHS.actions);
    let state = (numbers(WIDTHS.state), numbers(WIDTHS.state)).prop_map(|(h, c)| State { h, c });
    let reply = (any::<u64>(), flow(), choice, given, state);
    let reply = reply.prop_map(|(sequence, flow, choice, probabilities, state)| Reply {
        sequence,
        flow,
        choice,
        probabilities,
        state,
    });
    prop::collection::vec(reply, 1..20)
}

fn answers(replies: &[Reply]) -> Answers {
    let queries: Vec<Query> = replies
        .iter()
        .map(|reply| Query {
            observation: Vec::new(),
            reward: 0.0,
            cwnd: 1,
            state: reply.state.clone(),
            probabilities: reply.probabilities.clone(),
        })
        .collect();
    let answers = replies.iter().zip(&queries);
    let answers = answers.map(|(reply, query)| (reply.sequence, reply.flow, query, reply.choice));
    Answers::of(answers, &WIDTHS)
}

/// Whether every value that reaches a policy or a flow's memory is finite.
fn is_finite<'a>(values: impl IntoIterator<Item = &'a f32>) -> bool {
    values.into_iter().all(|value| value.is_finite())
}

proptest! {
    #[test]
    fn questions_arrive_as_they_were_asked(asked in questions()) {
        let bytes = Questions::of(&asked, &WIDTHS).encode_to_vec();
        prop_assert!(bytes.len() <= message_bytes(&WIDTHS));
        let message = Questions::decode(&*bytes).expect("what was written");
        let found = message.check(&WIDTHS).expect("within the limits");
        prop_assert_eq!(found.len(), asked.len());
        for ((sequence, flow, query), question) in found.into_iter().zip(asked) {
            prop_assert_eq!((sequence, flow), (question.sequence, question.flow));
            let mut expected = question.query;
            // No state stands for zeros.
            expected.state.h.resize(WIDTHS.state, 0.0);
            expected.state.c.resize(WIDTHS.state, 0.0);
            prop_assert_eq!(query, expected);
        }
    }

    #[test]
    fn replies_arrive_as_they_were_given(replies in replies()) {
        let bytes = answers(&replies).encode_to_vec();
        let message = Answers::decode(&*bytes).expect("what was written");
        prop_assert_eq!(message.check(&WIDTHS).expect("within the limits"), replies);
    }

    #[test]
    fn damaged_messages_are_refused_or_whole(
        asked in questions(),
        replies in replies(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0..8_u8), 0..6),
        cut in any::<prop::sample::Index>(),
        is_cut: bool,
    ) {
        let damage = |mut bytes: Vec<u8>| {
            for (index, bit) in &flips {
                let index = index.index(bytes.len());
                bytes[index] ^= 1 << bit;
            }
            if is_cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            bytes
        };
        let content = Some(from_agent::Content::Questions(Questions::of(&asked, &WIDTHS)));
        let bytes = damage(FromAgent { content }.encode_to_vec());
        if let Ok(FromAgent { content: Some(from_agent::Content::Questions(message)) }) =
            FromAgent::decode(&*bytes)
            && let Ok(found) = message.check(&WIDTHS)
        {
            for (_, _, query) in found {
                prop_assert_eq!(query.observation.len(), WIDTHS.observation);
                prop_assert_eq!(query.state.h.len(), WIDTHS.state);
                prop_assert!(is_finite(&query.observation) && query.reward.is_finite());
                prop_assert!(is_finite(query.state.h.iter().chain(&query.state.c)));
                prop_assert!(query.cwnd > 0);
            }
        }
        let content = Some(from_server::Content::Answers(answers(&replies)));
        let bytes = damage(FromServer { content }.encode_to_vec());
        if let Ok(FromServer { content: Some(from_server::Content::Answers(message)) }) =
            FromServer::decode(&*bytes)
            && let Ok(found) = message.check(&WIDTHS)
        {
            for reply in found {
                prop_assert!(is_finite(reply.state.h.iter().chain(&reply.state.c)));
                prop_assert_eq!(reply.state.h.len(), WIDTHS.state);
                match reply.choice {
                    Choice::Action { index, probability } => {
                        prop_assert!(index < WIDTHS.actions);
                        prop_assert!((0.0..=1.0).contains(&probability));
                    }
                    choice => prop_assert_eq!(choice, Choice::Invalid),
                }
            }
        }
    }

    #[test]
    fn any_bytes_are_refused_or_within_the_limits(
        bytes in prop::collection::vec(any::<u8>(), 0..2_000),
    ) {
        // Decoding allocates at most eight bytes for each byte of a message.
        if let Ok(message) = Questions::decode(&*bytes) {
            let n = message.sequences.len() + message.slots.len() + message.cwnds.len();
            prop_assert!(n <= bytes.len());
            if let Ok(found) = message.check(&WIDTHS) {
                prop_assert!((1..=MOST).contains(&found.len()));
            }
        }
        if let Ok(message) = Answers::decode(&*bytes)
            && let Ok(found) = message.check(&WIDTHS)
        {
            prop_assert!((1..=MOST).contains(&found.len()));
        }
    }
}

fn one() -> Questions {
    let query = Query {
        observation: vec![1.0; WIDTHS.observation],
        reward: 0.0,
        cwnd: 10,
        state: State::default(),
        probabilities: Vec::new(),
    };
    let question = Question {
        sequence: 1,
        flow: FlowId {
            slot: 0,
            generation: 1,
        },
        deadline_ns: 0,
        query,
    };
    Questions::of(&[question], &WIDTHS)
}

#[test]
fn what_is_wrong_with_questions_is_named() {
    type Change = fn(&mut Questions);
    let changes: [(&str, Change); 6] = [
        ("0 in one message", |q| *q = Questions::default()),
        ("257 in one message", |q| q.sequences = vec![0; MOST + 1]),
        ("slots has 2 values; expected 1", |q| q.slots.push(0)),
        ("observations has 8 values; expected 7", |q| {
            q.observations.push(0.0);
        }),
        ("h has the value NaN", |q| q.h[2] = f32::NAN),
        ("cwnds has the value 0; expected at least 1", |q| {
            q.cwnds[0] = 0;
        }),
    ];
    for (expected, change) in changes {
        let mut message = one();
        change(&mut message);
        let error = message.check(&WIDTHS).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn what_is_wrong_with_answers_is_named() {
    type Change = fn(&mut Answers);
    let changes: [(&str, Change); 5] = [
        ("actions has the value 3; expected the index", |a| {
            a.actions[0] = 3;
        }),
        ("chances has the value 1.5; expected 0 to 1", |a| {
            a.chances[0] = 1.5;
        }),
        ("probabilities has the value NaN", |a| {
            a.probabilities[1] = f32::NAN;
        }),
        ("c has the value inf", |a| a.c[0] = f32::INFINITY),
        ("h has 3 values; expected 4", |a| a.h.truncate(3)),
    ];
    for (expected, change) in changes {
        let mut message = answers(&[Reply {
            sequence: 1,
            flow: FlowId {
                slot: 0,
                generation: 1,
            },
            choice: Choice::Action {
                index: 1,
                probability: 0.5,
            },
            probabilities: vec![0.25, 0.5, 0.25],
            state: State {
                h: vec![0.0; 4],
                c: vec![0.0; 4],
            },
        }]);
        change(&mut message);
        let error = message.check(&WIDTHS).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn versions_and_interfaces_must_be_the_same() {
    let file = PolicyFile::parse(DEFAULT_POLICY).expect("accepted");
    let policy = &file.meta().interface;
    assert_eq!(Hello::new("1", None).check(policy), Ok(()));
    assert_eq!(Hello::new("1", Some(policy)).check(policy), Ok(()));
    let other = Interface {
        history: policy.history + 1,
        ..policy.clone()
    };
    let error = Hello::new("1", Some(&other))
        .check(policy)
        .expect_err("refused");
    let error = error.to_string();
    assert!(
        error.starts_with("the policy was made for history"),
        "{error}"
    );
    let newer = Hello {
        protocol: PROTOCOL + 1,
        ..Hello::new("1", None)
    };
    let error = newer.check(policy).expect_err("refused").to_string();
    assert!(
        error.starts_with("protocol version 2; this side has 1"),
        "{error}"
    );
    let nonsense = Hello {
        interface: "{\"window_ms\": 0}".into(),
        ..Hello::new("1", None)
    };
    let error = nonsense.check(policy).expect_err("refused").to_string();
    assert!(error.contains("window_ms is 0"), "{error}");

    let sha256 = &file.summary().sha256;
    let welcome = Welcome::new(sha256, file.meta());
    let (found, meta) = welcome.clone().check(Some(policy)).expect("fits");
    assert_eq!((&found, &meta), (sha256, file.meta()));
    assert!(welcome.clone().check(Some(&other)).is_err());
    for (broken, expected) in [
        (
            Welcome {
                sha256: "00".into(),
                ..welcome.clone()
            },
            "sha256 is refused",
        ),
        (
            Welcome {
                metadata: "{}".into(),
                ..welcome.clone()
            },
            "metadata is refused",
        ),
        (
            Welcome {
                protocol: 9,
                ..welcome
            },
            "protocol version 9",
        ),
    ] {
        let error = broken.check(None).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
}
