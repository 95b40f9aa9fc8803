//! Runs the network of a policy file, for many flows at a time.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use rand::SeedableRng;
use rand::rngs::StdRng;
use tract_onnx::prelude::*;
use tract_onnx::tract_core::internal::bail;
use tract_onnx::tract_core::model::typed::TypedSimpleState;

use super::file::{PolicyFile, PolicyGraph};
use super::file_error::FileError;
use super::ports::ports;
use super::{ActionSelection, Choice, Policy, Query, State, Summary};
use crate::guarded;
use crate::interface::Interface;

/// A policy from an ONNX file.
///
/// The waiting flows are run in batches. A flow's decision does not depend on which other flows
/// share its batch: rows are independent, and a row with a value that is not finite spoils no
/// other.
pub struct OnnxPolicy {
    network: OnnxNetwork,
    summary: Summary,
    serving: ActionSelection,
    rng: StdRng,
}

impl OnnxPolicy {
    /// Loads a file. `serving` selects the actions; `None` takes what the file asks for.
    ///
    /// # Errors
    ///
    /// Returns an error when the file cannot be read, and in the cases of [`Self::from_bytes`].
    pub fn from_file(
        path: &Path,
        serving: Option<ActionSelection>,
        seed: u64,
    ) -> Result<Self, FileError> {
        Self::new(PolicyFile::read(path)?, serving, seed)
    }

    /// Loads a policy from the bytes of a file.
    ///
    /// # Errors
    ///
    /// Returns an error in the cases of [`PolicyFile::parse`], and when the engine cannot run the
    /// graph or its outputs differ from those that the file declares.
    pub fn from_bytes(
        bytes: &[u8],
        serving: Option<ActionSelection>,
        seed: u64,
    ) -> Result<Self, FileError> {
        Self::new(PolicyFile::parse(bytes)?, serving, seed)
    }

    /// The metadata, sizes and hash of the file.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    pub(super) fn new(
        file: PolicyFile,
        serving: Option<ActionSelection>,
        seed: u64,
    ) -> Result<Self, FileError> {
        let name = &file.summary().meta.name;
        Ok(Self {
            network: OnnxNetwork::new(&file.graph, name)?,
            summary: file.summary().clone(),
            serving: serving.unwrap_or(file.summary().meta.serving),
            rng: StdRng::seed_from_u64(seed),
        })
    }

    /// Runs the network on every query and moves each query's state on, as [`Policy::decide`] does.
    /// Returns `None` for a query without a usable answer.
    pub fn evaluate(&mut self, queries: &mut [Query]) -> Vec<Option<Answer>> {
        self.network.evaluate(queries)
    }
}

/// The network of a policy's graph, compiled to be run, whatever its actions are.
pub struct OnnxNetwork {
    engine: Engine,
    /// Name of the policy, for logs.
    name: String,
    /// Whether a failure of the engine has been logged: it would be the same at every window.
    failure_logged: bool,
}

impl OnnxNetwork {
    /// Compiles a graph. `name` is the policy's, for logs.
    ///
    /// # Errors
    ///
    /// Returns an error when the engine cannot run the graph or its outputs differ from those that
    /// the file declares.
    pub fn new(graph: &PolicyGraph, name: &str) -> Result<Self, FileError> {
        let engine =
            guarded(|| Engine::new(graph)).map_err(|reason| FileError::Engine { reason })?;
        let mut network = Self {
            engine,
            name: name.to_owned(),
            failure_logged: false,
        };
        network.try_out()?;
        Ok(network)
    }

    /// The same network with working memory of its own, for another thread.
    #[must_use]
    pub fn fork(&self) -> Self {
        let Engine {
            one,
            middle,
            any,
            observation,
            state,
        } = &self.engine;
        Self {
            engine: Engine {
                one: one.fork(),
                middle: middle.fork(),
                any: any.fork(),
                observation: *observation,
                state: *state,
            },
            name: self.name.clone(),
            failure_logged: self.failure_logged,
        }
    }

    /// Runs the network on one observation and moves `state` on. Returns `None`, and leaves the
    /// state as it is, when there is no usable answer.
    pub fn answer(
        &mut self,
        observation: Vec<f32>,
        reward: f32,
        state: &mut State,
    ) -> Option<Answer> {
        let mut queries = [Query {
            observation,
            reward,
            cwnd: 0,
            state: std::mem::take(state),
            probabilities: Vec::new(),
        }];
        let answer = self.evaluate(&mut queries).pop().flatten();
        *state = std::mem::take(&mut queries[0].state);
        answer
    }

    /// Runs every plan once, so that a graph that cannot run is refused now and not at a flow's
    /// first window. A policy is not refused for values that are not finite: they depend on the
    /// observation, and the flow that meets them keeps its cwnd.
    fn try_out(&mut self) -> Result<(), FileError> {
        let zeros = Query {
            observation: vec![0.0; self.engine.observation],
            reward: 0.0,
            cwnd: 0,
            state: State::default(),
            probabilities: Vec::new(),
        };
        let mut finite = true;
        for rows in [1, 3, MIDDLE + 1] {
            let mut queries = vec![zeros.clone(); rows];
            let mut rows: Vec<&mut Query> = queries.iter_mut().collect();
            let answers = guarded(|| self.engine.run(&mut rows))
                .map_err(|reason| FileError::Engine { reason })?;
            finite &= answers.iter().all(Option::is_some);
        }
        if !finite {
            let policy = &self.name;
            tracing::warn!(
                policy,
                "the answer to an all-zero observation is not finite"
            );
        }
        Ok(())
    }

    /// Runs the network on every query and moves each query's state on. Returns `None` for a query
    /// without a usable answer.
    fn evaluate(&mut self, queries: &mut [Query]) -> Vec<Option<Answer>> {
        let mut answers = vec![None; queries.len()];
        let (indices, mut rows): (Vec<usize>, Vec<&mut Query>) = queries
            .iter_mut()
            .enumerate()
            .filter(|(_, query)| self.engine.takes(query))
            .unzip();
        for (indices, rows) in indices.chunks(LARGEST).zip(rows.chunks_mut(LARGEST)) {
            for (&i, answer) in indices.iter().zip(self.answers(rows)) {
                answers[i] = answer;
            }
        }
        answers
    }

    /// One batch: the answer to each row, or `None` where the row has no usable one.
    fn answers(&mut self, rows: &mut [&mut Query]) -> Vec<Option<Answer>> {
        guarded(|| self.engine.run(rows)).unwrap_or_else(|reason| {
            if !self.failure_logged {
                tracing::error!(reason, "the policy cannot be run; flows keep their cwnd");
                self.failure_logged = true;
            }
            self.engine.forget();
            vec![None; rows.len()]
        })
    }
}

/// The outputs of the network for one flow.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The logits of the actions, in their order.
    pub logits: Vec<f32>,
    /// The value estimate of the baseline head.
    pub baseline: f32,
}

impl Policy for OnnxPolicy {
    fn decide(&mut self, queries: &mut [Query]) -> Vec<Choice> {
        let answers = self.evaluate(queries);
        let (serving, interface) = (self.serving, &self.summary.meta.interface);
        let mut allowed = Vec::new();
        let choose = |(query, answer): (&mut Query, Option<Answer>)| match answer {
            Some(Answer { logits, .. }) => {
                interface.allowed(query.cwnd, &mut allowed);
                query.probabilities = serving.probabilities(&logits, &allowed);
                let (index, probability) = serving.choose(&logits, &allowed, &mut self.rng);
                Choice::Action { index, probability }
            }
            None => Choice::Invalid,
        };
        queries.iter_mut().zip(answers).map(choose).collect()
    }

    fn interface(&self) -> &Interface {
        &self.summary.meta.interface
    }

    fn file(&self) -> Option<&Summary> {
        Some(&self.summary)
    }
}

/// Batches up to this size are padded to it: a plan for a known size is faster than one for any.
const MIDDLE: usize = 8;

/// Larger batches are cut: a decision takes no less time in a larger one, and the first would wait
/// for the last.
const LARGEST: usize = 64;

/// The graph, compiled for batches of one, of up to [`MIDDLE`], and of any size.
struct Engine {
    one: Plan,
    middle: Plan,
    any: Plan,
    observation: usize,
    state: usize,
}

impl Engine {
    fn new(graph: &PolicyGraph) -> TractResult<Self> {
        let typed = tract_onnx::onnx()
            .with_ignore_value_info(true)
            .model_for_proto_model(&graph.proto)?
            .into_typed()?
            .into_decluttered()?;
        let batch = typed.symbols.sym(&graph.batch);
        check_outputs(&typed, graph, &batch)?;
        let sized = |n: usize| {
            Plan::new(
                typed.set_symbols(&HashMap::from([(batch.clone(), n.to_dim())]))?,
                Some(n),
            )
        };
        Ok(Self {
            one: sized(1)?,
            middle: sized(MIDDLE)?,
            any: Plan::new(typed.clone(), None)?,
            observation: graph.widths.observation,
            state: graph.widths.state,
        })
    }

    /// Whether a query can be answered: of the right length, and finite, for what is not may be
    /// lost on its way through a network (ReLU makes 0 of NaN).
    fn takes(&self, query: &Query) -> bool {
        query.observation.len() == self.observation
            && query.reward.is_finite()
            && query.observation.iter().all(|value| value.is_finite())
    }

    /// Runs one batch of at most [`LARGEST`] rows that [`Self::takes`] lets through. Moves the
    /// state of each row with a finite answer on, and returns that answer.
    fn run(&mut self, rows: &mut [&mut Query]) -> TractResult<Vec<Option<Answer>>> {
        let Self {
            observation, state, ..
        } = *self;
        let plan = match rows.len() {
            0 => return Ok(vec![]),
            1 => &mut self.one,
            2..=MIDDLE => &mut self.middle,
            _ => &mut self.any,
        };
        let n = plan.rows.unwrap_or(rows.len());
        let inputs = tvec![
            column(n, observation, rows, |row| &row.observation)?.into_tvalue(),
            column(n, 1, rows, |row| std::slice::from_ref(&row.reward))?
                .into_shape(&[n])?
                .into_tvalue(),
            column(n, state, rows, |row| &row.state.h)?.into_tvalue(),
            column(n, state, rows, |row| &row.state.c)?.into_tvalue(),
        ];
        let outputs = plan.run(inputs)?;
        let [logits, baseline, h, c] = &outputs[..] else {
            bail!("{} outputs instead of 4", outputs.len());
        };
        let views = [
            values(logits, n)?,
            values(baseline, n)?,
            values(h, n)?,
            values(c, n)?,
        ];
        Ok(rows
            .iter_mut()
            .enumerate()
            .map(|(i, row)| {
                let [logits, baseline, h, c] =
                    views.map(|(all, width)| &all[i * width..(i + 1) * width]);
                let finite = [logits, baseline, h, c]
                    .iter()
                    .all(|v| v.iter().all(|x| x.is_finite()));
                finite.then(|| {
                    row.state = State {
                        h: h.to_vec(),
                        c: c.to_vec(),
                    };
                    Answer {
                        logits: logits.to_vec(),
                        baseline: baseline[0],
                    }
                })
            })
            .collect())
    }

    /// Drops what a failed run may have left behind in the engine.
    fn forget(&mut self) {
        for plan in [&mut self.one, &mut self.middle, &mut self.any] {
            plan.session = None;
        }
    }
}

/// The graph compiled for one batch size, or for any.
struct Plan {
    /// The batch size, if it is fixed.
    rows: Option<usize>,
    runnable: Arc<TypedRunnableModel>,
    /// The engine's working memory, kept between runs.
    session: Option<TypedSimpleState>,
}

impl Plan {
    fn new(model: TypedModel, rows: Option<usize>) -> TractResult<Self> {
        // Where one convolution feeds a layer of one unit, tract's optimiser (0.23.9) fails on a
        // model that tract can run.
        let fastest = match model.clone().into_optimized() {
            Ok(optimized) => optimized,
            Err(error) => {
                let reason = format!("{error:#}");
                tracing::warn!(
                    reason,
                    "the policy cannot be optimised; decisions take longer"
                );
                model
            }
        };
        Ok(Self {
            rows,
            runnable: fastest.into_runnable()?,
            session: None,
        })
    }

    /// The same plan with working memory of its own.
    fn fork(&self) -> Self {
        Self {
            rows: self.rows,
            runnable: Arc::clone(&self.runnable),
            session: None,
        }
    }

    fn run(&mut self, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        match &mut self.session {
            Some(session) => session.run(inputs),
            None => self.session.insert(self.runnable.spawn()?).run(inputs),
        }
    }
}

/// Compares the outputs' true types and shapes with those declared: a file may declare anything.
fn check_outputs(model: &TypedModel, graph: &PolicyGraph, batch: &Symbol) -> TractResult<()> {
    let (_, expected) = ports(&graph.widths);
    for ((name, width), outlet) in expected.iter().zip(model.output_outlets()?) {
        let fact = model.outlet_fact(*outlet)?;
        let mut shape = tvec![batch.to_dim()];
        shape.extend(width.map(|width| width.to_dim()));
        if fact.datum_type != DatumType::F32 || fact.shape.dims() != &shape[..] {
            let wanted = TypedFact::dt_shape(DatumType::F32, shape);
            bail!("output `{name}` is computed as {fact:?}; its metadata ask for {wanted:?}");
        }
    }
    Ok(())
}

/// A tensor `[n, width]`: a row for each query, zeros below for padding. A query whose slice has
/// another width gets zeros.
fn column(
    n: usize,
    width: usize,
    rows: &[&mut Query],
    slice: impl Fn(&Query) -> &[f32],
) -> TractResult<Tensor> {
    let mut tensor = Tensor::zero::<f32>(&[n, width])?;
    let mut view = tensor.try_as_plain_ram_mut()?;
    for (target, row) in view
        .as_slice_mut::<f32>()?
        .chunks_exact_mut(width)
        .zip(rows)
    {
        let source = slice(row);
        if source.len() == width {
            target.copy_from_slice(source);
        }
    }
    Ok(tensor)
}

/// An output's values and how many of them belong to each of the `n` rows.
fn values(output: &TValue, n: usize) -> TractResult<(&[f32], usize)> {
    let all = output.try_as_plain_ram()?.as_slice::<f32>()?;
    if !all.len().is_multiple_of(n) {
        bail!("an output of {} values for {n} rows", all.len());
    }
    Ok((all, all.len() / n))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use prost::Message;
    use rand::RngExt;
    use tract_onnx::pb::ModelProto;

    use super::*;
    use crate::policy::export::{ActorCritic, Dense, GraphBuilder};
    use crate::policy::file::OPERATORS;
    use crate::policy::{PolicyKind, PolicyMeta, heuristic_file};

    fn meta(history: usize, hidden: &[usize], state: usize) -> PolicyMeta {
        PolicyMeta {
            name: "test".to_owned(),
            kind: PolicyKind::Trained,
            interface: Interface {
                history,
                ..Interface::default()
            },
            hidden: hidden.to_vec(),
            state,
            serving: Default::default(),
            provenance: BTreeMap::new(),
        }
    }

    fn small_net() -> (PolicyMeta, ActorCritic) {
        let meta = meta(2, &[24, 16], 12);
        let net = ActorCritic::random(&meta, 3);
        (meta, net)
    }

    fn policy(meta: &PolicyMeta, net: &ActorCritic) -> OnnxPolicy {
        OnnxPolicy::from_bytes(&net.export(meta, ""), None, 0).expect("a valid policy")
    }

    fn random_queries(n: usize, length: usize, seed: u64) -> Vec<Query> {
        let mut rng = StdRng::seed_from_u64(seed);
        (0..n)
            .map(|_| Query {
                observation: (0..length).map(|_| rng.random_range(-2.0..2.0)).collect(),
                reward: rng.random_range(-3.0..3.0),
                cwnd: 10,
                state: State::default(),
                probabilities: Vec::new(),
            })
            .collect()
    }

    fn logits(policy: &mut OnnxPolicy, queries: &mut [Query]) -> Vec<Vec<f32>> {
        policy
            .evaluate(queries)
            .into_iter()
            .map(|answer| answer.expect("finite").logits)
            .collect()
    }

    /// One step of the network in f64, straight from its definition; gives the logits and moves
    /// the state on.
    fn reference(net: &ActorCritic, query: &Query, state: &mut (Vec<f64>, Vec<f64>)) -> Vec<f64> {
        let dense = |layer: &Dense, x: &[f64]| -> Vec<f64> {
            (0..layer.outputs)
                .map(|o| {
                    let weight = |i: usize| f64::from(layer.weights[i * layer.outputs + o]);
                    let sum: f64 = x.iter().enumerate().map(|(i, x)| x * weight(i)).sum();
                    sum + f64::from(layer.bias[o])
                })
                .collect()
        };
        let mut x: Vec<f64> = query.observation.iter().map(|&v| f64::from(v)).collect();
        for layer in &net.trunk {
            x = dense(layer, &x).into_iter().map(|v| v.max(0.0)).collect();
        }
        x.push(f64::from(query.reward));
        let cell = net.lstm.as_ref().expect("it has one");
        let size = cell.hidden;
        let (h, c) = std::mem::take(state);
        let gate = |row: usize| -> f64 {
            let dot = |w: &[f32], x: &[f64]| -> f64 {
                w[row * x.len()..][..x.len()]
                    .iter()
                    .zip(x)
                    .map(|(w, x)| f64::from(*w) * x)
                    .sum()
            };
            dot(&cell.input_weights, &x)
                + dot(&cell.recurrent_weights, &h)
                + f64::from(cell.bias[row])
                + f64::from(cell.bias[4 * size + row])
        };
        let sigmoid = |v: f64| 1.0 / (1.0 + (-v).exp());
        for (j, c) in c.into_iter().enumerate() {
            let [input, output, forget, new] = [0, 1, 2, 3].map(|g| gate(g * size + j));
            let c = sigmoid(forget) * c + sigmoid(input) * new.tanh();
            state.0.push(sigmoid(output) * c.tanh());
            state.1.push(c);
        }
        dense(&net.policy, &state.0)
    }

    #[test]
    fn the_lstm_matches_an_independent_reference_over_several_steps() {
        let (meta, net) = small_net();
        let mut policy = policy(&meta, &net);
        // One flow alone, a padded batch, and one batch that is cut.
        for n in [1, 5, 8, 9, 70] {
            let mut states = vec![(vec![0.0; 12], vec![0.0; 12]); n];
            let mut carried = vec![State::default(); n];
            for step in 0..6 {
                let mut queries = random_queries(n, 112, 100 + step);
                for (query, state) in queries.iter_mut().zip(&carried) {
                    query.state = state.clone();
                }
                let found = logits(&mut policy, &mut queries);
                for (i, query) in queries.iter().enumerate() {
                    let expected = reference(&net, query, &mut states[i]);
                    let close = |a: &[f64], b: &[f32]| {
                        a.iter()
                            .zip(b)
                            .all(|(a, b)| (a - f64::from(*b)).abs() < 1e-5)
                    };
                    assert!(
                        close(&expected, &found[i]),
                        "{n} flows, step {step}, flow {i}"
                    );
                    assert!(
                        close(&states[i].0, &query.state.h) && close(&states[i].1, &query.state.c)
                    );
                }
                carried = queries.into_iter().map(|query| query.state).collect();
            }
        }
    }

    #[test]
    fn a_flow_gets_the_same_decision_in_any_company() {
        let (meta, net) = small_net();
        let mut policy = policy(&meta, &net);
        let mut alone = random_queries(150, 112, 5);
        let expected: Vec<_> = alone
            .iter_mut()
            .map(|query| logits(&mut policy, std::slice::from_mut(query)))
            .collect();
        for n in [2, 3, 8, 9, 63, 64, 65, 150] {
            let mut queries = random_queries(150, 112, 5);
            queries.truncate(n);
            let found = logits(&mut policy, &mut queries);
            for i in 0..n {
                let pairs = expected[i][0].iter().zip(&found[i]);
                let states = alone[i].state.h.iter().zip(&queries[i].state.h);
                for (a, b) in pairs.chain(states) {
                    assert!(
                        (a - b).abs() < 1e-5,
                        "flow {i} of {n}: {a} alone, {b} in company"
                    );
                }
            }
        }
    }

    #[test]
    fn values_that_are_not_finite_spoil_their_own_row_only() {
        // A policy whose baseline is the logarithm of the reward: NaN where that is negative.
        let meta = meta(2, &[], 3);
        let mut graph = GraphBuilder::default();
        let layer = ActorCritic::random(
            &PolicyMeta {
                hidden: vec![5],
                ..meta.clone()
            },
            0,
        );
        graph.dense_into("logits", "observation", &layer.trunk[0], "logits");
        graph.node("Log", &["reward"], "baseline", vec![]);
        let one = graph.floats("one", &[1], &[1.0]);
        graph.node("Add", &["h", &one], "h_out", vec![]);
        graph.node("Add", &["c", &one], "c_out", vec![]);
        let bytes = graph.finish(&meta, "");
        let mut policy = OnnxPolicy::from_bytes(&bytes, None, 0).expect("valid");
        for n in [1, 3, 8, 40] {
            let mut queries = random_queries(n, 112, 9);
            let rewards: Vec<f32> = queries.iter().map(|query| query.reward).collect();
            let choices = policy.decide(&mut queries);
            for ((choice, query), reward) in choices.iter().zip(&queries).zip(rewards) {
                if reward < 0.0 {
                    assert_eq!(
                        (*choice, &query.state),
                        (Choice::Invalid, &State::default())
                    );
                } else {
                    assert!(matches!(choice, Choice::Action { .. }));
                    assert_eq!(
                        query.state,
                        State {
                            h: vec![1.0; 3],
                            c: vec![1.0; 3]
                        }
                    );
                }
            }
        }
    }

    #[test]
    fn an_observation_that_is_not_finite_is_invalid() {
        // ReLU makes 0 of NaN, so the outputs alone would not show it.
        let (meta, net) = small_net();
        let mut policy = policy(&meta, &net);
        let mut clean = random_queries(20, 112, 9);
        let expected = policy.decide(&mut clean);
        let mut queries = random_queries(20, 112, 9);
        queries[1].observation[7] = f32::NAN;
        queries[2].reward = f32::INFINITY;
        queries[19].observation[0] = f32::NEG_INFINITY;
        let found = policy.decide(&mut queries);
        for i in 0..20 {
            if [1, 2, 19].contains(&i) {
                assert_eq!(
                    (found[i], &queries[i].state),
                    (Choice::Invalid, &State::default())
                );
            } else {
                let close =
                    |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5);
                assert_eq!(found[i], expected[i]);
                assert!(close(&queries[i].state.h, &clean[i].state.h));
            }
        }
    }

    #[test]
    fn a_policy_that_yields_nan_loads_and_answers_invalid() {
        let (meta, mut net) = small_net();
        net.policy.bias[2] = f32::NAN;
        let mut policy = policy(&meta, &net);
        let mut queries = random_queries(11, 112, 1);
        assert_eq!(policy.decide(&mut queries), [Choice::Invalid; 11]);
        assert_eq!(queries, random_queries(11, 112, 1));
    }

    #[test]
    fn an_observation_of_another_length_is_invalid_and_another_state_is_new() {
        let (meta, net) = small_net();
        let mut policy = policy(&meta, &net);
        let mut queries = random_queries(4, 112, 2);
        let expected = policy.decide(&mut queries.clone());
        queries[0].observation.pop();
        queries[3].state = State {
            h: vec![1.0; 5],
            c: vec![1.0; 5],
        };
        let found = policy.decide(&mut queries);
        assert_eq!(found[0], Choice::Invalid);
        assert_eq!(found[1..], expected[1..]);
        assert_eq!(policy.decide(&mut []), []);
    }

    #[test]
    fn softmax_serving_is_seeded_and_reports_probabilities() {
        let (meta, net) = small_net();
        let bytes = net.export(&meta, "");
        let decide = |seed| {
            OnnxPolicy::from_bytes(
                &bytes,
                Some(ActionSelection::Softmax { temperature: 1.0 }),
                seed,
            )
            .expect("a valid policy")
            .decide(&mut random_queries(100, 112, 4))
        };
        assert_eq!(decide(1), decide(1));
        assert_ne!(decide(1), decide(2));
        let expected = logits(&mut policy(&meta, &net), &mut random_queries(100, 112, 4));
        for (choice, logits) in decide(1).into_iter().zip(expected) {
            let Choice::Action { index, probability } = choice else {
                panic!("{choice:?}")
            };
            let total: f32 = logits.iter().map(|l| l.exp()).sum();
            assert!((probability - logits[index].exp() / total).abs() < 1e-5);
        }
    }

    /// A file that asks for masks is served with them, one that does not as before.
    #[test]
    fn masked_actions_are_never_served() {
        let (mut meta, net) = small_net();
        let decide = |meta: &PolicyMeta, serving| {
            let bytes = net.export(meta, "");
            let mut policy = OnnxPolicy::from_bytes(&bytes, Some(serving), 1).expect("valid");
            let mut queries = random_queries(200, 112, 4);
            for (query, at) in queries.iter_mut().zip(0_u32..) {
                query.cwnd = if at.is_multiple_of(2) { 2 } else { 100 };
            }
            let choices = policy.decide(&mut queries);
            (queries, choices)
        };
        let softmax = ActionSelection::Softmax { temperature: 1.0 };
        let (without, _) = decide(&meta, softmax);
        meta.interface.mask_actions = true;
        for serving in [softmax, ActionSelection::Greedy] {
            let (queries, choices) = decide(&meta, serving);
            for ((query, choice), without) in queries.iter().zip(choices).zip(&without) {
                let Choice::Action { index, probability } = choice else {
                    panic!("{choice:?}")
                };
                let own = &query.probabilities;
                assert!(probability > 0.0, "{index} of {own:?}");
                assert!((own.iter().sum::<f32>() - 1.0).abs() < 1e-5);
                if query.cwnd == 2 {
                    // `/2` and `-10` lead to what `0` leads to.
                    assert_eq!(own[1..3], [0.0; 2]);
                    assert!(![1, 2].contains(&index));
                }
                if serving == softmax {
                    assert_eq!(own[index], probability);
                    // The allowed ones are to each other as they are without a mask.
                    let ratio = |all: &[f32]| f64::from(all[3]) / f64::from(all[4]);
                    let expected = ratio(&without.probabilities);
                    assert!((ratio(own) / expected - 1.0).abs() < 1e-4);
                    assert_eq!(query.cwnd == 100, *own == without.probabilities);
                }
            }
        }
    }

    #[test]
    fn a_file_is_served_as_it_asks_unless_told_otherwise() {
        let (mut meta, net) = small_net();
        meta.serving = ActionSelection::Softmax { temperature: 0.5 };
        let bytes = net.export(&meta, "");
        let decide = |serving| {
            OnnxPolicy::from_bytes(&bytes, serving, 1)
                .expect("a valid policy")
                .decide(&mut random_queries(100, 112, 4))
        };
        assert_eq!(decide(None), decide(Some(meta.serving)));
        assert_ne!(decide(None), decide(Some(ActionSelection::Greedy)));
    }

    #[test]
    fn a_network_without_history_works() {
        let meta = meta(0, &[16], 8);
        let mut policy = policy(&meta, &ActorCritic::random(&meta, 1));
        let choices = policy.decide(&mut random_queries(3, 100, 1));
        assert!(
            choices
                .iter()
                .all(|choice| matches!(choice, Choice::Action { .. }))
        );
    }

    #[test]
    fn a_graph_that_computes_other_shapes_than_it_declares_is_refused() {
        let (meta, mut net) = small_net();
        net.policy = ActorCritic::random(
            &PolicyMeta {
                interface: Interface {
                    actions: "0,*2".parse().expect("an action list"),
                    ..meta.interface.clone()
                },
                ..meta.clone()
            },
            0,
        )
        .policy;
        let error = OnnxPolicy::from_bytes(&net.export(&meta, ""), None, 0).err();
        let error = error.expect("refused").to_string();
        assert!(
            error.contains("output `logits` is computed as N,2,F32"),
            "{error}"
        );

        let (_, mut net) = small_net();
        net.trunk[1].inputs = 20;
        net.trunk[1].weights.truncate(20 * 16);
        let error = OnnxPolicy::from_bytes(&net.export(&meta, ""), None, 0).err();
        let error = error.expect("refused").to_string();
        assert!(
            error.contains("it multiplies 24 values of each row with 20 weights"),
            "{error}"
        );
    }

    /// Loads and, where that succeeds, decides: neither may panic or take long.
    fn exercise(bytes: &[u8]) {
        if let Ok(mut policy) = OnnxPolicy::from_bytes(bytes, None, 0) {
            let length = policy.interface().observation_len();
            let choices = policy.decide(&mut random_queries(9, length, 0));
            assert_eq!(choices.len(), 9);
        }
    }

    fn tiny_file() -> Vec<u8> {
        let meta = meta(0, &[3], 2);
        ActorCritic::random(&meta, 1).export(&meta, "tiny")
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn no_flipped_bits_panic(
            flips in prop::collection::vec((any::<prop::sample::Index>(), 0u32..8), 1..4),
        ) {
            for mut bytes in [tiny_file(), heuristic_file()] {
                for (at, bit) in &flips {
                    let at = at.index(bytes.len());
                    bytes[at] ^= 1u8 << bit;
                }
                exercise(&bytes);
            }
        }

        #[test]
        fn no_rewiring_panics(
            node: prop::sample::Index,
            other: prop::sample::Index,
            op in 0usize..OPERATORS.len(),
            what in 0..5,
        ) {
            let mut proto = ModelProto::decode(&tiny_file()[..]).expect("decodes");
            let graph = proto.graph.as_mut().expect("a graph");
            let (node, other) = (node.index(graph.node.len()), other.index(graph.node.len()));
            match what {
                0 => graph.node[node].op_type = OPERATORS[op].to_owned(),
                1 => graph.node[node].input = graph.node[other].input.clone(),
                2 => graph.node[node].attribute = graph.node[other].attribute.clone(),
                3 => drop(graph.node[node].input.pop()),
                _ => {
                    let (a, b) = (node % graph.initializer.len(), other % graph.initializer.len());
                    let name = graph.initializer[a].name.clone();
                    graph.initializer[a] = graph.initializer[b].clone();
                    graph.initializer[a].name = name;
                }
            }
            exercise(&proto.encode_to_vec());
        }
    }
}
