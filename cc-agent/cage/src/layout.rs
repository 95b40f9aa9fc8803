//! How batches lie in the shared memory: first the queries, then the answers, each a row of words.
//!
//! ```text
//! query:   cwnd | reward | flags | observation… | h… | c…
//! answer:  kind | action or cwnd | probability | probabilities, 0 or all | all… | h… | c…
//! ```

use cc_core::policy::{Choice, Query, State};

use crate::region::Word;

/// Words of a query before its observation.
const QUERY_HEAD: usize = 3;
/// Words of an answer before its probabilities.
const ANSWER_HEAD: usize = 4;
/// Flag: the query has an observation of the right length.
const HAS_OBSERVATION: u32 = 1;
/// Flag: the query has a recurrent state. Without one it has that of a new flow.
const HAS_STATE: u32 = 2;

/// The first word of an answer says what the policy chose.
const INVALID: u32 = 0;
const ACTION: u32 = 1;
const CWND: u32 = 2;

/// Rounding may take a probability beyond 1 by this much.
const ROUNDING: f32 = 1e-3;

/// The sizes of a policy's queries and answers, and how many of each the memory holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    observation: usize,
    actions: usize,
    state: usize,
    rows: usize,
}

impl Layout {
    /// The layout for a policy with observations of this length, this many actions, and recurrent
    /// vectors of this width (0 for none), in a memory of `words` words, for `most` rows at most.
    /// `None` when not even one row has room.
    pub(crate) fn new(
        observation: usize,
        actions: usize,
        state: usize,
        words: usize,
        most: usize,
    ) -> Option<Self> {
        let mut layout = Self {
            observation,
            actions,
            state,
            rows: 0,
        };
        layout.rows = (words / (layout.query() + layout.answer())).min(most);
        (layout.rows > 0).then_some(layout)
    }

    /// The largest number of queries in a batch.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    fn query(&self) -> usize {
        QUERY_HEAD + self.observation + 2 * self.state
    }

    fn answer(&self) -> usize {
        ANSWER_HEAD + self.actions + 2 * self.state
    }

    fn queries<'a, W>(&self, words: &'a [W]) -> std::slice::ChunksExact<'a, W> {
        words[..self.rows * self.query()].chunks_exact(self.query())
    }

    fn answers<'a, W>(&self, words: &'a [W]) -> std::slice::ChunksExact<'a, W> {
        let start = self.rows * self.query();
        words[start..start + self.rows * self.answer()].chunks_exact(self.answer())
    }

    /// Writes queries, of which there are at most [`Self::rows`].
    pub(crate) fn write_queries(&self, words: &[impl Word], queries: &[Query]) {
        for (row, query) in self.queries(words).zip(queries) {
            let (head, values) = row.split_at(QUERY_HEAD);
            let (observation, states) = values.split_at(self.observation);
            let (h, c) = states.split_at(self.state);
            let mut flags = 0;
            if query.observation.len() == self.observation {
                flags |= HAS_OBSERVATION;
                write(observation, &query.observation);
            }
            let state = &query.state;
            if self.state > 0 && [&state.h, &state.c].iter().all(|v| v.len() == self.state) {
                flags |= HAS_STATE;
                write(h, &state.h);
                write(c, &state.c);
            }
            for (word, value) in head.iter().zip([query.cwnd, query.reward.to_bits(), flags]) {
                word.set(value);
            }
        }
    }

    /// Reads the first `count` queries.
    pub(crate) fn read_queries(&self, words: &[impl Word], count: usize) -> Vec<Query> {
        let rows = self.queries(words).take(count);
        rows.map(|row| self.read_query(row)).collect()
    }

    fn read_query(&self, row: &[impl Word]) -> Query {
        let (head, values) = row.split_at(QUERY_HEAD);
        let [cwnd, reward, flags] = [0, 1, 2].map(|i| head[i].get());
        let (observation, states) = values.split_at(self.observation);
        let (h, c) = states.split_at(self.state);
        let if_flag = |flag, words| match flags & flag {
            0 => Vec::new(),
            _ => read(words),
        };
        Query {
            observation: if_flag(HAS_OBSERVATION, observation),
            reward: f32::from_bits(reward),
            cwnd,
            state: State {
                h: if_flag(HAS_STATE, h),
                c: if_flag(HAS_STATE, c),
            },
            probabilities: Vec::new(),
        }
    }

    /// Writes the answers to queries: the choices, and what the policy has put into the queries.
    pub(crate) fn write_answers(&self, words: &[impl Word], queries: &[Query], choices: &[Choice]) {
        for ((row, query), choice) in self.answers(words).zip(queries).zip(choices) {
            let (head, values) = row.split_at(ANSWER_HEAD);
            let (probabilities, states) = values.split_at(self.actions);
            let (h, c) = states.split_at(self.state);
            let (kind, value, probability) = match *choice {
                Choice::Action { index, probability } => (ACTION, index as u32, probability),
                Choice::Cwnd(cwnd) => (CWND, cwnd, 0.0),
                Choice::Invalid => (INVALID, 0, 0.0),
            };
            let all = query.probabilities.len();
            for (word, value) in head
                .iter()
                .zip([kind, value, probability.to_bits(), all as u32])
            {
                word.set(value);
            }
            write(probabilities, &query.probabilities);
            write(h, &query.state.h);
            write(c, &query.state.c);
        }
    }

    /// Reads the answers to `queries` and moves each query on, as the policy did in the child.
    ///
    /// Nothing is taken for granted: an answer that no policy of this layout can give, with an
    /// unknown action or with a value that is not finite, is [`Choice::Invalid`], and leaves its
    /// query as it was.
    pub(crate) fn read_answers(&self, words: &[impl Word], queries: &mut [Query]) -> Vec<Choice> {
        let rows = self.answers(words).zip(queries);
        let read = rows.map(|(row, query)| self.read_answer(row, query));
        read.map(|choice| choice.unwrap_or(Choice::Invalid))
            .collect()
    }

    fn read_answer(&self, row: &[impl Word], query: &mut Query) -> Option<Choice> {
        let (head, values) = row.split_at(ANSWER_HEAD);
        let [kind, value, probability, all] = [0, 1, 2, 3].map(|i| head[i].get());
        let probability = f32::from_bits(probability);
        let is_probability = |p: &f32| (0.0..=1.0 + ROUNDING).contains(p);
        let choice = match kind {
            ACTION if (value as usize) < self.actions && is_probability(&probability) => {
                Choice::Action {
                    index: value as usize,
                    probability,
                }
            }
            CWND if value > 0 => Choice::Cwnd(value),
            _ => return None,
        };
        let (probabilities, states) = values.split_at(self.actions);
        let probabilities = match all as usize {
            0 => Vec::new(),
            all if all == self.actions => read(probabilities),
            _ => return None,
        };
        let states = read(states);
        if !probabilities.iter().all(is_probability) || !states.iter().all(|v| v.is_finite()) {
            return None;
        }
        if self.state > 0 {
            let (h, c) = states.split_at(self.state);
            query.state = State {
                h: h.to_vec(),
                c: c.to_vec(),
            };
        }
        query.probabilities = probabilities;
        Some(choice)
    }
}

fn write(words: &[impl Word], values: &[f32]) {
    for (word, value) in words.iter().zip(values) {
        word.set(value.to_bits());
    }
}

fn read(words: &[impl Word]) -> Vec<f32> {
    words
        .iter()
        .map(|word| f32::from_bits(word.get()))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;

    const ACTION_2: Choice = Choice::Action {
        index: 2,
        probability: 0.5,
    };

    fn layout() -> (Layout, Vec<AtomicU32>) {
        let words: Vec<AtomicU32> = (0..200).map(|_| AtomicU32::new(u32::MAX)).collect();
        let layout = Layout::new(5, 3, 2, words.len(), 256).expect("room");
        // 3 + 5 + 4 words of a query, and 4 + 3 + 4 of an answer.
        assert_eq!(layout.rows(), 200 / 23);
        (layout, words)
    }

    fn query(value: f32) -> Query {
        Query {
            observation: vec![value; 5],
            reward: -value,
            cwnd: 10,
            state: State {
                h: vec![value; 2],
                c: vec![-value; 2],
            },
            probabilities: Vec::new(),
        }
    }

    #[test]
    fn queries_arrive_as_they_are() {
        let (layout, words) = layout();
        let mut new = query(2.0);
        new.state = State::default();
        let mut foreign = query(3.0);
        foreign.state.h.push(0.0);
        let mut short = query(4.0);
        short.observation.pop();
        let sent = [query(1.0), new, foreign, short];
        layout.write_queries(&words, &sent);
        let mut expected = sent.clone();
        // A state of another width is that of a new flow, as for a policy in this process.
        expected[2].state = State::default();
        expected[3].observation.clear();
        assert_eq!(layout.read_queries(&words, 4), expected);
    }

    #[test]
    fn answers_arrive_as_they_are() {
        let (layout, words) = layout();
        let mut decided = [query(1.0), query(2.0), query(3.0)];
        decided[0].probabilities = vec![0.25, 0.25, 0.5];
        let choices = [ACTION_2, Choice::Cwnd(7), Choice::Invalid];
        layout.write_answers(&words, &decided, &choices);
        let mut asked = [query(0.0), query(0.0), query(9.0)];
        assert_eq!(layout.read_answers(&words, &mut asked), choices);
        assert_eq!(asked[0].state, decided[0].state);
        assert_eq!(asked[0].probabilities, decided[0].probabilities);
        assert_eq!(asked[1].state, decided[1].state);
        assert_eq!(asked[2], query(9.0), "without an answer nothing moves on");
    }

    #[test]
    fn answers_that_no_policy_gives_are_unusable() {
        let (layout, words) = layout();
        let answer = layout.rows() * 12;
        // Word of the answer, and what a hostile child puts there.
        for (word, value) in [
            (0, 3),
            (0, u32::MAX),
            (1, 3),
            (1, u32::MAX),
            (2, f32::NAN.to_bits()),
            (2, 1.5f32.to_bits()),
            (3, 1),
            (3, u32::MAX),
            (4, f32::INFINITY.to_bits()),
            (5, (-0.5f32).to_bits()),
            (7, f32::NAN.to_bits()),
            (10, f32::NEG_INFINITY.to_bits()),
        ] {
            let mut decided = [query(1.0)];
            decided[0].probabilities = vec![0.25, 0.25, 0.5];
            layout.write_answers(&words, &decided, &[ACTION_2]);
            words[answer + word].store(value, Relaxed);
            let mut asked = [query(0.0)];
            let found = layout.read_answers(&words, &mut asked);
            assert_eq!(found, [Choice::Invalid], "{word}: {value:#x}");
            assert_eq!(asked[0], query(0.0), "{word}: {value:#x}");
        }
        layout.write_answers(&words, &[query(1.0)], &[Choice::Cwnd(0)]);
        assert_eq!(
            layout.read_answers(&words, &mut [query(0.0)]),
            [Choice::Invalid]
        );
    }

    #[test]
    fn a_policy_without_states_leaves_them_alone() {
        let (_, words) = layout();
        let layout = Layout::new(5, 3, 0, words.len(), 2).expect("room");
        assert_eq!(layout.rows(), 2, "no more than asked for");
        layout.write_answers(&words, &[query(1.0)], &[Choice::Cwnd(4)]);
        let mut asked = [query(2.0)];
        assert_eq!(layout.read_answers(&words, &mut asked), [Choice::Cwnd(4)]);
        assert_eq!(asked[0].state, query(2.0).state);
    }

    #[test]
    fn what_has_no_room_has_no_layout() {
        assert_eq!(Layout::new(1_000, 3, 2, 200, 256), None);
    }
}
