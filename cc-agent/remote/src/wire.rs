//! The messages between agent and server, their limits, and what is refused.
//!
//! The queries of a message are stored field by field, `[N]` and `[N, width]` as the policy's own
//! inputs are: decoding allocates little more than the message's size, whatever its bytes.

use cc_core::{
    flows::FlowId,
    interface::Interface,
    policy::{Choice, PolicyMeta, Query, State, Widths},
    remote::{Question, Reply},
};

/// Version of the protocol. Agent and server must have the same.
pub const PROTOCOL: u32 = 1;

/// The path of the service's one method.
pub const PATH: &str = "/cc.PolicyServer/Decide";

/// Questions or answers in one message, at most.
pub const MOST: usize = 256;

/// Size limit of a message before the policy is known, bytes: enough for the metadata of any policy
/// file.
pub const HANDSHAKE_BYTES: usize = 1 << 20;

/// The `action` of an answer without a choice.
const NO_CHOICE: u32 = u32::MAX;

/// A message from the agent.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FromAgent {
    /// The one message that this is; `None` from a release with others.
    #[prost(oneof = "from_agent::Content", tags = "1, 2")]
    pub content: Option<from_agent::Content>,
}

/// What a message from the agent holds.
pub mod from_agent {
    /// One of the messages that an agent sends.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Content {
        /// The first message of a stream: who asks.
        #[prost(message, tag = "1")]
        Hello(super::Hello),
        /// All other messages: queries of some flows.
        #[prost(message, tag = "2")]
        Questions(super::Questions),
    }
}

/// A message from the server.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FromServer {
    /// The one message that this is; `None` from a release with others.
    #[prost(oneof = "from_server::Content", tags = "1, 2")]
    pub content: Option<from_server::Content>,
}

/// What a message from the server holds.
pub mod from_server {
    /// One of the messages that a server sends.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Content {
        /// The first message of a stream: which policy answers.
        #[prost(message, tag = "1")]
        Welcome(super::Welcome),
        /// All other messages: choices for some flows.
        #[prost(message, tag = "2")]
        Answers(super::Answers),
    }
}

/// Who the agent is, and the interface that its flows are served with.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Hello {
    /// Version of the protocol, [`PROTOCOL`].
    #[prost(uint32, tag = "1")]
    pub protocol: u32,
    /// Version of the agent's package.
    #[prost(string, tag = "2")]
    pub agent: String,
    /// The [`Interface`] as JSON; empty from an agent that takes the server's.
    #[prost(string, tag = "3")]
    pub interface: String,
}

/// Which policy the server serves.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Welcome {
    /// Version of the protocol, [`PROTOCOL`].
    #[prost(uint32, tag = "1")]
    pub protocol: u32,
    /// SHA-256 of the policy's file, 64 hexadecimal digits.
    #[prost(string, tag = "2")]
    pub sha256: String,
    /// The metadata of the policy's file, as the file has them ([`PolicyMeta::to_json`]).
    #[prost(string, tag = "3")]
    pub metadata: String,
}

/// What an agent asks: N queries, of observations of D values and a state of H.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Questions {
    /// Numbers of the questions, `[N]`.
    #[prost(uint64, repeated, tag = "1")]
    pub sequences: Vec<u64>,
    /// Slots of the flows, `[N]`.
    #[prost(uint32, repeated, tag = "2")]
    pub slots: Vec<u32>,
    /// Generations of the flows, `[N]`.
    #[prost(uint32, repeated, tag = "3")]
    pub generations: Vec<u32>,
    /// The cwnds that actions are applied to, segments, `[N]`.
    #[prost(uint32, repeated, tag = "4")]
    pub cwnds: Vec<u32>,
    /// The rewards of the observed windows, `[N]`.
    #[prost(float, repeated, tag = "5")]
    pub rewards: Vec<f32>,
    /// The observations of the flows, `[N, D]`.
    #[prost(float, repeated, tag = "6")]
    pub observations: Vec<f32>,
    /// The recurrent states h, `[N, H]`.
    #[prost(float, repeated, tag = "7")]
    pub h: Vec<f32>,
    /// The recurrent states c, `[N, H]`.
    #[prost(float, repeated, tag = "8")]
    pub c: Vec<f32>,
}

/// What the server answers: N choices among A actions, and states of H values.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Answers {
    /// Numbers of the questions, `[N]`.
    #[prost(uint64, repeated, tag = "1")]
    pub sequences: Vec<u64>,
    /// Slots of the flows, `[N]`.
    #[prost(uint32, repeated, tag = "2")]
    pub slots: Vec<u32>,
    /// Generations of the flows, `[N]`.
    #[prost(uint32, repeated, tag = "3")]
    pub generations: Vec<u32>,
    /// Indices of the chosen actions, `[N]`; 2^32 - 1 where the policy gave no usable answer.
    #[prost(uint32, repeated, tag = "4")]
    pub actions: Vec<u32>,
    /// The probabilities of the chosen actions, `[N]`.
    #[prost(float, repeated, tag = "5")]
    pub chances: Vec<f32>,
    /// The probabilities of all actions, `[N, A]`; empty when the policy gives none.
    #[prost(float, repeated, tag = "6")]
    pub probabilities: Vec<f32>,
    /// The recurrent states h, `[N, H]`.
    #[prost(float, repeated, tag = "7")]
    pub h: Vec<f32>,
    /// The recurrent states c, `[N, H]`.
    #[prost(float, repeated, tag = "8")]
    pub c: Vec<f32>,
}

/// Why a message is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The other side speaks another version of the protocol.
    #[error("protocol version {found}; this side has {PROTOCOL}: use the same release on both")]
    Protocol {
        /// The version of the other side.
        found: u32,
    },
    /// The message is not the one that is due.
    #[error("expected {expected}, found another message")]
    Unexpected {
        /// The message that is due.
        expected: &'static str,
    },
    /// There are too many questions or answers in a message.
    #[error("{found} in one message; expected 1 to {MOST}")]
    Count {
        /// The number of questions or answers.
        found: usize,
    },
    /// A field has another length than the number of questions and the policy's widths say.
    #[error("{field} has {found} values; expected {expected}")]
    Length {
        /// Name of the field in the message.
        field: &'static str,
        /// The number of values that the field has.
        found: usize,
        /// The number of values that it must have.
        expected: usize,
    },
    /// A value is NaN, infinite, or out of its range.
    #[error("{field} has the value {found}; expected {expected}")]
    Value {
        /// Name of the field in the message.
        field: &'static str,
        /// The first such value in the field.
        found: String,
        /// What all values of the field must be.
        expected: &'static str,
    },
    /// A number is above what the other side can mean.
    #[error("{field} has {found}; expected at most {most}")]
    TooLarge {
        /// Name of the field in the message.
        field: &'static str,
        /// The number that was found.
        found: String,
        /// The largest that it may be.
        most: String,
    },
    /// What the agent sent as its interface is none.
    #[error("the interface is refused: {reason}")]
    Interface {
        /// What is wrong with it.
        reason: String,
    },
    /// The agent's flows are served with another interface than that of the server's policy.
    #[error(
        "the policy was made for {field} {policy}, but the agent's flows are served with {agent}: \
         start the agent with a local policy of the same interface, or ask another server"
    )]
    Misfit {
        /// The first setting that differs.
        field: String,
        /// Its value in the policy's interface.
        policy: String,
        /// Its value in the agent's interface.
        agent: String,
    },
    /// The identity of the policy is none.
    #[error("the policy's {field} is refused: {reason}")]
    Policy {
        /// What is wrong, `sha256` or `metadata`.
        field: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

/// Size limit of messages about a policy of these widths, bytes.
pub fn message_bytes(widths: &Widths) -> usize {
    // Per question 8 scalars of at most 10 bytes.
    let floats = widths.observation + widths.actions + 2 * widths.state;
    HANDSHAKE_BYTES.max(MOST * (4 * floats + 80) + 1_024)
}

impl Hello {
    /// The first message of this release's agents.
    pub fn new(agent: &str, interface: Option<&Interface>) -> Self {
        Self {
            protocol: PROTOCOL,
            agent: agent.into(),
            interface: interface.map_or_else(String::new, to_json),
        }
    }

    /// Checks that the agent can be served with a policy of this interface.
    ///
    /// # Errors
    ///
    /// Returns an error for another version of the protocol and for another interface.
    pub fn check(&self, policy: &Interface) -> Result<(), WireError> {
        check_protocol(self.protocol)?;
        if self.interface.is_empty() {
            return Ok(());
        }
        let agent: Interface = serde_json::from_str(&self.interface)
            .map_err(|error| error.to_string())
            .and_then(|interface: Interface| {
                let checked = interface.validate().map_err(|error| error.to_string());
                checked.map(|()| interface)
            })
            .map_err(|reason| WireError::Interface { reason })?;
        fits(policy, &agent)
    }
}

impl Welcome {
    /// The answer to an agent's hello.
    pub fn new(sha256: &str, metadata: &PolicyMeta) -> Self {
        Self {
            protocol: PROTOCOL,
            sha256: sha256.into(),
            metadata: metadata.to_json(),
        }
    }

    /// Checks the answer, and returns the policy's hash and metadata.
    ///
    /// # Errors
    ///
    /// Returns an error for another version of the protocol, for metadata that are refused, and for
    /// an interface other than `agent`'s.
    pub fn check(self, agent: Option<&Interface>) -> Result<(String, PolicyMeta), WireError> {
        check_protocol(self.protocol)?;
        let is_hash = self.sha256.len() == 64
            && (self.sha256.bytes()).all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if !is_hash {
            return Err(WireError::Policy {
                field: "sha256",
                reason: "expected 64 hexadecimal digits".into(),
            });
        }
        let metadata =
            PolicyMeta::from_json(&self.metadata).map_err(|error| WireError::Policy {
                field: "metadata",
                reason: error.to_string(),
            })?;
        if let Some(agent) = agent {
            fits(&metadata.interface, agent)?;
        }
        Ok((self.sha256, metadata))
    }
}

fn check_protocol(found: u32) -> Result<(), WireError> {
    match found {
        PROTOCOL => Ok(()),
        found => Err(WireError::Protocol { found }),
    }
}

/// Checks that both interfaces are the same.
///
/// # Errors
///
/// Returns an error that names the first setting that differs.
pub fn fits(policy: &Interface, agent: &Interface) -> Result<(), WireError> {
    if policy == agent {
        return Ok(());
    }
    let value = |interface| serde_json::from_str::<serde_json::Value>(&to_json(interface));
    let absent = || "none".to_owned();
    let (mut field, mut values) = ("interface".to_owned(), (absent(), absent()));
    if let (Ok(policy), Ok(agent)) = (value(policy), value(agent)) {
        let keys = [&policy, &agent].map(|value| value.as_object().into_iter().flatten());
        let key = keys.into_iter().flatten().map(|(key, _)| key);
        let of = |value: &serde_json::Value, key| {
            value.get(key).map_or_else(absent, ToString::to_string)
        };
        if let Some(key) = key
            .into_iter()
            .find(|key| policy.get(key) != agent.get(key))
        {
            field.clone_from(key);
            values = (of(&policy, key), of(&agent, key));
        }
    }
    Err(WireError::Misfit {
        field,
        policy: values.0,
        agent: values.1,
    })
}

fn to_json(interface: &Interface) -> String {
    serde_json::to_string(interface).unwrap_or_else(|e| unreachable!("plain data serialises: {e}"))
}

impl Questions {
    /// A message with these questions, at most [`MOST`] of them. Empty states are written as zeros,
    /// and so are those of another width.
    pub fn of(questions: &[Question], widths: &Widths) -> Self {
        let mut message = Self::default();
        for question in questions {
            let query = &question.query;
            message.sequences.push(question.sequence);
            message.slots.push(question.flow.slot);
            message.generations.push(question.flow.generation);
            message.cwnds.push(query.cwnd);
            message.rewards.push(query.reward);
            message.observations.extend(&query.observation);
            push_state(&mut message.h, &query.state.h, widths.state);
            push_state(&mut message.c, &query.state.c, widths.state);
        }
        message
    }

    /// Checks the message, and returns each question's number, flow and query.
    ///
    /// # Errors
    ///
    /// Returns an error when there are none or too many, when a length does not fit the widths, and
    /// when a value is not finite.
    pub fn check(self, widths: &Widths) -> Result<Vec<(u64, FlowId, Query)>, WireError> {
        let n = self.sequences.len();
        check_count(n)?;
        check_length("slots", self.slots.len(), n)?;
        check_length("generations", self.generations.len(), n)?;
        check_length("cwnds", self.cwnds.len(), n)?;
        check_length("rewards", self.rewards.len(), n)?;
        let observations = n * widths.observation;
        check_length("observations", self.observations.len(), observations)?;
        check_length("h", self.h.len(), n * widths.state)?;
        check_length("c", self.c.len(), n * widths.state)?;
        check_finite("rewards", &self.rewards)?;
        check_finite("observations", &self.observations)?;
        check_finite("h", &self.h)?;
        check_finite("c", &self.c)?;
        if self.cwnds.contains(&0) {
            return Err(WireError::Value {
                field: "cwnds",
                found: "0".into(),
                expected: "at least 1 segment",
            });
        }
        let questions = (0..n).map(|i| {
            let query = Query {
                observation: row(&self.observations, i, widths.observation),
                reward: self.rewards[i],
                cwnd: self.cwnds[i],
                state: State {
                    h: row(&self.h, i, widths.state),
                    c: row(&self.c, i, widths.state),
                },
                probabilities: Vec::new(),
            };
            let flow = FlowId {
                slot: self.slots[i],
                generation: self.generations[i],
            };
            (self.sequences[i], flow, query)
        });
        Ok(questions.collect())
    }
}

impl Answers {
    /// A message with these answers, each of a question's number and flow, the query as the policy
    /// has moved it on, and its choice.
    pub fn of<'a>(
        answers: impl IntoIterator<Item = (u64, FlowId, &'a Query, Choice)>,
        widths: &Widths,
    ) -> Self {
        let mut message = Self::default();
        for (sequence, flow, query, choice) in answers {
            let (action, chance) = match choice {
                Choice::Action { index, probability } => (index as u32, probability),
                // A policy file chooses actions; a cwnd has no place in a message.
                Choice::Cwnd(_) | Choice::Invalid => (NO_CHOICE, 0.0),
            };
            message.sequences.push(sequence);
            message.slots.push(flow.slot);
            message.generations.push(flow.generation);
            message.actions.push(action);
            message.chances.push(chance);
            message.probabilities.extend(&query.probabilities);
            push_state(&mut message.h, &query.state.h, widths.state);
            push_state(&mut message.c, &query.state.c, widths.state);
        }
        let n = message.sequences.len();
        if message.probabilities.len() != n * widths.actions {
            // Some have none, such as those without a choice.
            message.probabilities.clear();
        }
        message
    }

    /// Checks the message, and returns the replies.
    ///
    /// # Errors
    ///
    /// Returns an error when there are none or too many, when a length does not fit the widths,
    /// when a state is not finite, and for an action or a probability that cannot be.
    pub fn check(self, widths: &Widths) -> Result<Vec<Reply>, WireError> {
        let n = self.sequences.len();
        check_count(n)?;
        check_length("slots", self.slots.len(), n)?;
        check_length("generations", self.generations.len(), n)?;
        check_length("actions", self.actions.len(), n)?;
        check_length("chances", self.chances.len(), n)?;
        let given = match self.probabilities.is_empty() {
            true => 0,
            false => widths.actions,
        };
        check_length("probabilities", self.probabilities.len(), n * given)?;
        check_length("h", self.h.len(), n * widths.state)?;
        check_length("c", self.c.len(), n * widths.state)?;
        check_finite("h", &self.h)?;
        check_finite("c", &self.c)?;
        let chance = |field, values: &[f32]| {
            let wrong = values.iter().find(|value| !(0.0..=1.0).contains(*value));
            wrong.map_or(Ok(()), |found| {
                Err(WireError::Value {
                    field,
                    found: found.to_string(),
                    expected: "0 to 1",
                })
            })
        };
        chance("chances", &self.chances)?;
        chance("probabilities", &self.probabilities)?;
        let is_choice = |&action: &u32| action == NO_CHOICE || (action as usize) < widths.actions;
        if let Some(found) = self.actions.iter().find(|&action| !is_choice(action)) {
            return Err(WireError::Value {
                field: "actions",
                found: found.to_string(),
                expected: "the index of an action",
            });
        }
        let replies = (0..n).map(|i| Reply {
            sequence: self.sequences[i],
            flow: FlowId {
                slot: self.slots[i],
                generation: self.generations[i],
            },
            choice: match self.actions[i] {
                NO_CHOICE => Choice::Invalid,
                index => Choice::Action {
                    index: index as usize,
                    probability: self.chances[i],
                },
            },
            probabilities: row(&self.probabilities, i, given),
            state: State {
                h: row(&self.h, i, widths.state),
                c: row(&self.c, i, widths.state),
            },
        });
        Ok(replies.collect())
    }
}

/// Row `i` of a matrix whose rows have `width` values. The caller has checked the matrix's length.
fn row(matrix: &[f32], i: usize, width: usize) -> Vec<f32> {
    matrix[i * width..(i + 1) * width].to_vec()
}

fn push_state(matrix: &mut Vec<f32>, state: &[f32], width: usize) {
    match state.len() == width {
        true => matrix.extend(state),
        false => matrix.resize(matrix.len() + width, 0.0),
    }
}

fn check_count(found: usize) -> Result<(), WireError> {
    match found {
        1..=MOST => Ok(()),
        found => Err(WireError::Count { found }),
    }
}

/// Checks the number of values of a field.
///
/// # Errors
///
/// Returns [`WireError::Length`] when it is not the expected one.
pub fn check_length(field: &'static str, found: usize, expected: usize) -> Result<(), WireError> {
    if found == expected {
        return Ok(());
    }
    Err(WireError::Length {
        field,
        found,
        expected,
    })
}

/// Checks that all values of a field are finite.
///
/// # Errors
///
/// Returns [`WireError::Value`] with the first that is not.
pub fn check_finite(field: &'static str, values: &[f32]) -> Result<(), WireError> {
    let wrong = values.iter().find(|value| !value.is_finite());
    wrong.map_or(Ok(()), |found| {
        Err(WireError::Value {
            field,
            found: found.to_string(),
            expected: "a finite number",
        })
    })
}

#[cfg(test)]
mod tests;
