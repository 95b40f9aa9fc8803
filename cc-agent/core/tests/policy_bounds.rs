//! Policy files take bounded memory, whatever is in them: this program counts what it allocates.
//!
//! The counts are the process's, so that the threads of one test would disturb another's: there is
//! one test, which runs the cases one after the other.

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use cc_core::interface::Interface;
use cc_core::policy::export::{ActorCritic, Branch, Dense};
use cc_core::policy::{
    DEFAULT_POLICY, FileError, OnnxPolicy, Policy, PolicyKind, PolicyMeta, Query, State,
    heuristic_file,
};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestRunner};
use prost::Message;
use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::tensor_proto::DataType;
use tract_onnx::pb::{AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto};

/// The most that a file may take at once, bytes: what the bounds of `policy/bounds.rs` leave to a
/// batch, and the engine's copies of the weights.
const MOST: usize = 256 << 20;

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.dealloc(place, layout) }
    }
}

fn count(bytes: usize) {
    let now = NOW.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(now, Ordering::Relaxed);
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs `work` and returns the most memory that was allocated at once beyond what was before.
fn peak<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let outcome = work();
    (outcome, PEAK.load(Ordering::Relaxed).saturating_sub(before))
}

/// Loads a file and, where that succeeds, decides for a large batch.
fn serve(bytes: &[u8]) -> Result<(), FileError> {
    let mut policy = OnnxPolicy::from_bytes(bytes, None, 0)?;
    let query = Query {
        observation: vec![0.5; policy.interface().observation_len()],
        reward: 0.0,
        cwnd: 10,
        state: State::default(),
        probabilities: Vec::new(),
    };
    let choices = policy.decide(&mut vec![query; 256]);
    assert_eq!(choices.len(), 256);
    Ok(())
}

fn network(hidden: &[usize], state: usize) -> Vec<u8> {
    let meta = PolicyMeta {
        name: "test".to_owned(),
        kind: PolicyKind::Trained,
        interface: Interface::default(),
        hidden: hidden.to_vec(),
        state,
        serving: Default::default(),
        provenance: BTreeMap::new(),
    };
    ActorCritic::random(&meta, 1).export(&meta, "")
}

/// A network with a convolution of this width and number of filters over all inputs.
fn convolutional(width: usize, filters: usize) -> Vec<u8> {
    let meta = PolicyMeta {
        name: "test".to_owned(),
        kind: PolicyKind::Trained,
        interface: Interface::default(),
        hidden: vec![16],
        state: 8,
        serving: Default::default(),
        provenance: BTreeMap::new(),
    };
    let length = meta.interface.observation_len();
    let inputs = filters * (length + 1 - width);
    ActorCritic {
        branches: vec![Branch {
            from: 0,
            length,
            width,
            filters,
            weights: vec![0.25; filters * width],
            bias: vec![0.5; filters],
        }],
        trunk: vec![Dense {
            inputs,
            outputs: 16,
            weights: vec![0.01; inputs * 16],
            bias: vec![0.0; 16],
        }],
        ..ActorCritic::random(&meta, 1)
    }
    .export(&meta, "")
}

fn node(operator: &str, inputs: &[&str], output: &str) -> NodeProto {
    NodeProto {
        op_type: operator.to_owned(),
        name: format!("bomb of {operator} to {output}"),
        input: inputs.iter().map(|&name| name.to_owned()).collect(),
        output: vec![output.to_owned()],
        ..NodeProto::default()
    }
}

fn with(mut node: NodeProto, name: &str, value: i64) -> NodeProto {
    node.attribute.push(AttributeProto {
        name: name.to_owned(),
        r#type: AttributeType::Int as i32,
        i: value,
        ..AttributeProto::default()
    });
    node
}

fn with_all(mut node: NodeProto, name: &str, values: &[i64]) -> NodeProto {
    node.attribute.push(AttributeProto {
        name: name.to_owned(),
        r#type: AttributeType::Ints as i32,
        ints: values.to_vec(),
        ..AttributeProto::default()
    });
    node
}

fn ints(name: &str, values: &[i64]) -> TensorProto {
    TensorProto {
        name: name.to_owned(),
        dims: vec![values.len() as i64],
        data_type: DataType::Int64 as i32,
        int64_data: values.to_vec(),
        ..TensorProto::default()
    }
}

fn floats(name: &str, dims: &[i64]) -> TensorProto {
    TensorProto {
        name: name.to_owned(),
        dims: dims.to_vec(),
        data_type: DataType::Float as i32,
        raw_data: vec![0; 4 * dims.iter().product::<i64>() as usize],
        ..TensorProto::default()
    }
}

/// The heuristic's file with these constants and nodes beside its own.
fn bomb(constants: Vec<TensorProto>, nodes: Vec<NodeProto>) -> Vec<u8> {
    let mut proto = ModelProto::decode(&heuristic_file()[..]).expect("it decodes");
    let graph = proto.graph.as_mut().expect("it has a graph");
    graph.initializer.extend(constants);
    graph.node.extend(nodes);
    proto.encode_to_vec()
}

/// Forty nodes that join a value with itself: a million million elements of a few kilobytes.
fn doublings(first: &str) -> Vec<NodeProto> {
    let name = |i: usize| match i {
        0 => first.to_owned(),
        i => format!("doubled.{i}"),
    };
    (0..40)
        .map(|i| {
            let concat = node("Concat", &[&name(i), &name(i)], &name(i + 1));
            with(concat, "axis", 0)
        })
        .collect()
}

/// The heuristic's file with a thousand nodes between its baseline and the output.
fn long_chain() -> Vec<u8> {
    let mut proto = ModelProto::decode(&heuristic_file()[..]).expect("it decodes");
    let graph = proto.graph.as_mut().expect("it has a graph");
    let outputs = graph.node.iter_mut().flat_map(|node| &mut node.output);
    for output in outputs.filter(|output| *output == "baseline") {
        *output = "chain.0".to_owned();
    }
    let name = |i: usize| match i {
        1_000 => "baseline".to_owned(),
        i => format!("chain.{i}"),
    };
    let link = |i| node("Tanh", &[&name(i)], &name(i + 1));
    graph.node.extend((0..1_000).map(link));
    proto.encode_to_vec()
}

/// What it is, the file, and a part of the error for it.
fn bombs() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let size = "the size of node `bomb of";
    let together = "the size of all values together";
    let outer = || {
        vec![
            floats("row", &[1, 100_000]),
            floats("column", &[100_000, 1]),
        ]
    };
    let sequence = vec![
        ints("sequence", &[-1, 1, 1]),
        floats("w", &[1, 4 * 30, 1]),
        floats("r", &[1, 4 * 30, 30]),
    ];
    // The engine arranges the weights anew for each use, whatever they multiply.
    let first = ["observation", "nought", "one", "nought"];
    let mut products = vec![node("Slice", &first, "row")];
    products.extend((0..100).map(|i| node("MatMul", &["row", "weights"], &format!("use.{i}"))));
    let weights = vec![
        floats("weights", &[220, 8_000]),
        ints("nought", &[0]),
        ints("one", &[1]),
    ];
    vec![
        (
            "doublings of an observation",
            bomb(vec![], doublings("observation")),
            size,
        ),
        (
            "doublings of a constant",
            bomb(vec![floats("seed", &[8])], doublings("seed")),
            size,
        ),
        (
            "an outer product by broadcasting",
            bomb(outer(), vec![node("Add", &["row", "column"], "all")]),
            size,
        ),
        (
            "an outer product by a matrix product",
            bomb(outer(), vec![node("MatMul", &["column", "row"], "all")]),
            size,
        ),
        (
            "an observation times itself",
            bomb(
                vec![ints("flat", &[-1, 1]), ints("turned", &[1, -1])],
                vec![
                    node("Reshape", &["observation", "flat"], "a"),
                    node("Reshape", &["observation", "turned"], "b"),
                    node("Mul", &["a", "b"], "square"),
                ],
            ),
            size,
        ),
        (
            "a hundred uses of large weights",
            bomb(weights, products),
            together,
        ),
        (
            "a value of sixty dimensions",
            bomb(
                vec![ints("axes", &(1..=60).collect::<Vec<_>>())],
                vec![node("Unsqueeze", &["reward", "axes"], "spread")],
            ),
            "the number of dimensions of node `bomb of Unsqueeze",
        ),
        (
            "a shape that is computed",
            bomb(
                vec![],
                vec![
                    with(node("Cast", &["reward"], "whole"), "to", 7),
                    node("Reshape", &["observation", "whole"], "shaped"),
                ],
            ),
            "its input 1 (shape) is computed",
        ),
        (
            "a convolution with many positions",
            bomb(
                vec![ints("rows", &[1, 1, -1]), floats("filter", &[1, 1, 20_000])],
                vec![
                    node("Reshape", &["observation", "rows"], "row"),
                    node("Conv", &["row", "filter"], "filtered"),
                ],
            ),
            "its filters take",
        ),
        (
            "a convolution with padding",
            bomb(
                vec![ints("channel", &[1]), floats("filter", &[1, 1, 3])],
                vec![
                    node("Unsqueeze", &["observation", "channel"], "row"),
                    with_all(node("Conv", &["row", "filter"], "y"), "pads", &[1 << 40; 2]),
                ],
            ),
            "its pads are",
        ),
        (
            "a long sequence",
            bomb(
                sequence,
                vec![
                    node("Reshape", &["observation", "sequence"], "x"),
                    with(node("LSTM", &["x", "w", "r"], "y"), "hidden_size", 30),
                ],
            ),
            "the number of multiplications",
        ),
        (
            "empty messages",
            bomb(vec![], vec![NodeProto::default(); 1_000_000]),
            "the number of the file's fields",
        ),
    ]
}

fn bombs_are_refused_before_they_take_memory() {
    for (what, bytes, expected) in bombs() {
        let (outcome, most) = peak(|| serve(&bytes));
        let error = outcome.expect_err(what).to_string();
        assert!(error.contains(expected), "{what}: {error}");
        // The decoded file and little else.
        let bound = (4 << 20) + 4 * bytes.len();
        assert!(most < bound, "{what}: {} bytes took {most}", bytes.len());
    }
}

fn networks_are_accepted_within_the_bound() {
    for (what, bytes) in [
        ("the default policy", DEFAULT_POLICY.to_vec()),
        ("the rule", heuristic_file()),
        ("a usual network", network(&[512, 512], 512)),
        // About as large as a file may be: 6.8 million weights.
        ("a large network", network(&[1_024, 1_024], 768)),
        ("a convolution", convolutional(4, 96)),
        ("a long chain", long_chain()),
    ] {
        let (outcome, most) = peak(|| serve(&bytes));
        outcome.expect(what);
        assert!(most < MOST, "{what} took {most} bytes");
    }
}

/// Larger valid files with nodes, constants and wires exchanged, and with chains of doublings.
fn changed_networks_stay_within_the_bound() {
    let files = [
        network(&[256, 128], 64),
        convolutional(8, 24),
        DEFAULT_POLICY.to_vec(),
        heuristic_file(),
    ];
    let change = (0..8usize, any::<Index>(), any::<Index>(), any::<i64>());
    let changes = (0..files.len(), prop::collection::vec(change, 1..4));
    let config = Config {
        failure_persistence: None,
        ..Config::with_cases(150)
    };
    let (accepted, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    TestRunner::new(config)
        .run(&changes, |(file, changes)| {
            let mut proto = ModelProto::decode(&files[file][..]).expect("it decodes");
            let graph = proto.graph.as_mut().expect("it has a graph");
            for (what, one, other, value) in changes {
                apply(graph, what, one, other, value);
            }
            let bytes = proto.encode_to_vec();
            let (outcome, most) = peak(|| serve(&bytes));
            let outcomes = if outcome.is_ok() { &accepted } else { &refused };
            outcomes.fetch_add(1, Ordering::Relaxed);
            prop_assert!(most < MOST, "{most} bytes");
            Ok(())
        })
        .expect("bounded");
    let outcomes = [accepted, refused].map(AtomicUsize::into_inner);
    assert!(outcomes.iter().all(|&count| count > 0), "{outcomes:?}");
}

fn apply(graph: &mut GraphProto, what: usize, one: Index, other: Index, value: i64) {
    let (a, b) = (one.index(graph.node.len()), other.index(graph.node.len()));
    let constants = graph.initializer.len();
    let (c, d) = (one.index(constants), other.index(constants));
    match what {
        0 => graph.node[a].op_type = graph.node[b].op_type.clone(),
        1 => graph.node[a].input = graph.node[b].input.clone(),
        2 => graph.node[a].attribute = graph.node[b].attribute.clone(),
        3 => graph.node[a].input.push(graph.initializer[c].name.clone()),
        4 => graph.initializer[c].dims.reverse(),
        5 => {
            let name = graph.initializer[c].name.clone();
            graph.initializer[c] = TensorProto {
                name,
                ..graph.initializer[d].clone()
            };
        }
        6 => {
            // Other axes, places and shapes.
            let tensor = &mut graph.initializer[c];
            if tensor.data_type == DataType::Int64 as i32 {
                let count = tensor.raw_data.len() / 8;
                tensor.raw_data = (value % 300).to_le_bytes().repeat(count);
            }
        }
        _ => {
            let operator = ["Add", "Concat", "MatMul"][value.unsigned_abs() as usize % 3];
            let mut last = graph.node[a].output.last().cloned().unwrap_or_default();
            for _ in 0..value.unsigned_abs() % 40 {
                let next = format!("again.{}", graph.node.len());
                let again = node(operator, &[&last, &last], &next);
                graph.node.push(with(again, "axis", 1));
                last = next;
            }
        }
    }
}

#[test]
fn a_policy_file_takes_bounded_memory() {
    bombs_are_refused_before_they_take_memory();
    networks_are_accepted_within_the_bound();
    changed_networks_stay_within_the_bound();
}
