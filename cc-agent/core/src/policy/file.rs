//! Decodes a policy file, and checks all that can be checked before any of its graph is run.

use std::collections::HashSet;
use std::path::Path;

use prost::Message;
use sha2::{Digest, Sha256};
use tract_onnx::pb::tensor_proto::{DataLocation, DataType};
use tract_onnx::pb::tensor_shape_proto::dimension;
use tract_onnx::pb::{GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, type_proto};

use super::bounds;
use super::file_error::{BITRATE_META_KEY, FileError, MAX_BYTES, META_KEY};
use super::meta::{PolicyMeta, Summary};
use super::ports::{Port, Widths, ports};
use super::wire;
use crate::ownership::exposure_to_root;
use crate::regular_file;

/// The most fields and packed numbers of the file's messages. Decoded, one takes a kilobyte at
/// most; a policy of cc-trainer has some hundreds.
const MAX_FIELDS: usize = 1 << 16;

/// The versions of the standard operators that the engine is tested against.
const OPSETS: std::ops::RangeInclusive<i64> = 9..=18;

/// The operators that a policy may use: dense, convolutional, recurrent and element-wise
/// arithmetic, and moving values about. None of them can loop, nest a graph, or have a shape that
/// depends on an observation, so what a graph takes can be found beforehand ([`bounds`]).
pub(super) const OPERATORS: [&str; 35] = [
    "Abs",
    "Add",
    "Cast",
    "Clip",
    "Concat",
    "Constant",
    "Conv",
    "Div",
    "Elu",
    "Exp",
    "Flatten",
    "GRU",
    "Gemm",
    "Identity",
    "LSTM",
    "LayerNormalization",
    "LeakyRelu",
    "Log",
    "MatMul",
    "Max",
    "Min",
    "Mul",
    "Neg",
    "RNN",
    "Relu",
    "Reshape",
    "Sigmoid",
    "Slice",
    "Softmax",
    "Softplus",
    "Split",
    "Squeeze",
    "Sub",
    "Tanh",
    "Unsqueeze",
];

/// The decoded and checked graph of a policy, whatever its actions are.
#[derive(Debug)]
pub struct PolicyGraph {
    pub(super) proto: ModelProto,
    /// The name of the batch dimension.
    pub(super) batch: String,
    pub(super) widths: Widths,
    parameters: usize,
}

impl PolicyGraph {
    /// Decodes and checks the bytes of a file. `meta` gets the file's metadata entries, as a
    /// function from key to value, and returns the metadata with the widths that they ask for.
    ///
    /// # Errors
    ///
    /// Returns the error of `meta`, or one that names what does not fit, with what was found and
    /// what is expected, as [`PolicyFile::parse`] does.
    pub fn parse<M, E: From<FileError>>(
        bytes: &[u8],
        meta: impl FnOnce(&dyn Fn(&str) -> Option<String>) -> Result<(M, Widths), E>,
    ) -> Result<(M, Self), E> {
        let proto = decode(bytes)?;
        let entries = &proto.metadata_props;
        let (meta, widths) = meta(&|key: &str| {
            let entry = entries.iter().find(|entry| entry.key == key);
            entry.map(|entry| entry.value.clone())
        })?;
        let (batch, parameters) = check_graph(&proto, &widths)?;
        let graph = Self {
            proto,
            batch,
            widths,
            parameters,
        };
        Ok((meta, graph))
    }

    /// Reads and checks a file, as [`parse`](Self::parse) does.
    ///
    /// # Errors
    ///
    /// Returns an error when the file cannot be read, is no regular file or too large, and in the
    /// cases of [`parse`](Self::parse).
    pub fn read<M, E: From<FileError>>(
        path: &Path,
        meta: impl FnOnce(&dyn Fn(&str) -> Option<String>) -> Result<(M, Widths), E>,
    ) -> Result<(M, Self), E> {
        Self::parse(&contents(path)?, meta)
    }

    /// The number of weights and biases.
    pub fn parameters(&self) -> usize {
        self.parameters
    }
}

/// A decoded and checked policy file.
#[derive(Debug)]
pub struct PolicyFile {
    pub(super) graph: PolicyGraph,
    summary: Summary,
}

impl PolicyFile {
    /// Reads and checks a file.
    ///
    /// # Errors
    ///
    /// Returns an error when the file cannot be read, is no regular file or too large, and in the
    /// cases of [`Self::parse`].
    pub fn read(path: &Path) -> Result<Self, FileError> {
        Self::parse(&contents(path)?)
    }

    /// Reads the bytes of a file for an agent to serve, for [`Self::parse`]. `sha256` is the hash
    /// in hexadecimal that the file must have, `None` for any.
    ///
    /// # Errors
    ///
    /// Returns an error when the file cannot be read, is no regular file or too large, when the
    /// hash is another one, and when there is none but this process is root and another user could
    /// change the file.
    pub fn bytes_to_serve(path: &Path, sha256: Option<&str>) -> Result<Vec<u8>, FileError> {
        if sha256.is_none() {
            let exposure = exposure_to_root(path).map_err(|source| FileError::Read {
                path: path.to_owned(),
                source,
            })?;
            if let Some(exposure) = exposure {
                return Err(FileError::Exposed { exposure });
            }
        }
        let bytes = contents(path)?;
        if let Some(expected) = sha256 {
            let found = format!("{:x}", Sha256::digest(&bytes));
            if !found.eq_ignore_ascii_case(expected) {
                return Err(FileError::Pin {
                    found,
                    expected: expected.to_owned(),
                });
            }
        }
        Ok(bytes)
    }

    /// Decodes and checks the bytes of a file.
    ///
    /// # Errors
    ///
    /// Returns an error that names what does not fit, with what was found and what is expected: the
    /// encoding, data outside the file, the operators, the metadata, the inputs and outputs, the
    /// size of a tensor, the shapes of values, and the memory and time that a batch would take.
    pub fn parse(bytes: &[u8]) -> Result<Self, FileError> {
        let (meta, graph) = PolicyGraph::parse(bytes, read_meta)?;
        let summary = Summary {
            observation: meta.interface.observation_len(),
            meta,
            parameters: graph.parameters,
            bytes: bytes.len(),
            sha256: format!("{:x}", Sha256::digest(bytes)),
            producer: format!(
                "{} {}",
                graph.proto.producer_name, graph.proto.producer_version
            )
            .trim()
            .to_owned(),
            description: graph.proto.doc_string.clone(),
        };
        Ok(Self { graph, summary })
    }

    /// The policy's description of itself.
    pub fn meta(&self) -> &PolicyMeta {
        &self.summary.meta
    }

    /// The file's metadata, sizes and hash.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }
}

/// Decodes a file of a permissible size, and checks that all of it is in the file and of known
/// operators.
fn decode(bytes: &[u8]) -> Result<ModelProto, FileError> {
    if bytes.len() as u64 > MAX_BYTES {
        return Err(FileError::TooLarge {
            bytes: bytes.len() as u64,
        });
    }
    if let Some(found) = wire::fields(bytes).filter(|found| *found > MAX_FIELDS) {
        return Err(FileError::Bound {
            what: "the number of the file's fields".to_owned(),
            found: found as u64,
            most: MAX_FIELDS as u64,
        });
    }
    let proto = ModelProto::decode(bytes)?;
    let graph = proto.graph.as_ref().ok_or(FileError::NoGraph)?;
    check_contained(graph)?;
    check_operators(&proto, graph)?;
    Ok(proto)
}

/// Checks the graph for these widths. Returns the name of the batch dimension and the number of
/// weights and biases.
fn check_graph(proto: &ModelProto, widths: &Widths) -> Result<(String, usize), FileError> {
    let graph = proto.graph.as_ref().ok_or(FileError::NoGraph)?;
    let batch = check_ports(graph, widths)?;
    check_values(graph)?;
    let mut parameters = 0;
    for tensor in &graph.initializer {
        let elements = check_tensor(tensor)?;
        if tensor.data_type == DataType::Float as i32 {
            parameters += elements;
        }
    }
    for attribute in graph.node.iter().flat_map(|node| &node.attribute) {
        attribute
            .t
            .iter()
            .chain(&attribute.tensors)
            .try_for_each(|t| check_tensor(t).map(drop))?;
    }
    bounds::check(graph, widths)?;
    Ok((batch, parameters))
}

/// The bytes of a file that is not too large.
fn contents(path: &Path) -> Result<Vec<u8>, FileError> {
    regular_file::read(path, MAX_BYTES).map_err(|source| FileError::Read {
        path: path.to_owned(),
        source,
    })
}

/// Refuses data outside the file, in nested graphs too: an agent that runs as root reads no file
/// because another file says so.
fn check_contained(graph: &GraphProto) -> Result<(), FileError> {
    let check = |tensor: &TensorProto| {
        let external = tensor.data_location == Some(DataLocation::External as i32)
            || !tensor.external_data.is_empty();
        if external {
            Err(FileError::External {
                tensor: tensor.name.clone(),
            })
        } else {
            Ok(())
        }
    };
    graph.initializer.iter().try_for_each(check)?;
    for sparse in &graph.sparse_initializer {
        sparse
            .values
            .iter()
            .chain(&sparse.indices)
            .try_for_each(check)?;
    }
    for attribute in graph.node.iter().flat_map(|node| &node.attribute) {
        attribute
            .t
            .iter()
            .chain(&attribute.tensors)
            .try_for_each(check)?;
        for sparse in attribute
            .sparse_tensor
            .iter()
            .chain(&attribute.sparse_tensors)
        {
            sparse
                .values
                .iter()
                .chain(&sparse.indices)
                .try_for_each(check)?;
        }
        attribute
            .g
            .iter()
            .chain(&attribute.graphs)
            .try_for_each(check_contained)?;
    }
    Ok(())
}

fn check_operators(proto: &ModelProto, graph: &GraphProto) -> Result<(), FileError> {
    let standard = |domain: &str| domain.is_empty() || domain == "ai.onnx";
    let opsets: Vec<i64> = proto
        .opset_import
        .iter()
        .filter(|import| standard(&import.domain))
        .map(|import| import.version)
        .collect();
    match opsets[..] {
        [version] if OPSETS.contains(&version) => {}
        [version] => {
            return Err(FileError::Opset {
                found: version.to_string(),
            });
        }
        _ => {
            return Err(FileError::Opset {
                found: format!("stated {} times", opsets.len()),
            });
        }
    }
    let refuse = |what: String| Err(FileError::Operator { what });
    if !proto.functions.is_empty() {
        return refuse("a function of the model's own".to_owned());
    }
    if let Some(sparse) = graph.sparse_initializer.first() {
        let name = sparse.values.as_ref().map_or("", |values| &values.name);
        return refuse(format!("the sparse tensor `{name}`"));
    }
    for node in &graph.node {
        let NodeProto {
            op_type,
            domain,
            name,
            ..
        } = node;
        if !standard(domain) || !OPERATORS.contains(&op_type.as_str()) {
            let domain = if standard(domain) {
                String::new()
            } else {
                format!("{domain}.")
            };
            return refuse(format!("operator `{domain}{op_type}` (node `{name}`)"));
        }
    }
    Ok(())
}

fn read_meta(entry: &dyn Fn(&str) -> Option<String>) -> Result<(PolicyMeta, Widths), FileError> {
    let Some(json) = entry(META_KEY) else {
        return Err(match entry(BITRATE_META_KEY) {
            Some(_) => FileError::Bitrates,
            None => FileError::NoMeta,
        });
    };
    let meta = PolicyMeta::from_json(&json)?;
    let widths = meta.widths();
    Ok((meta, widths))
}

/// Compares names, types and shapes with the metadata; gives the batch dimension's name back.
fn check_ports(graph: &GraphProto, widths: &Widths) -> Result<String, FileError> {
    // Old exporters list constants among the inputs.
    let constants: HashSet<&str> = graph.initializer.iter().map(|t| t.name.as_str()).collect();
    let inputs: Vec<_> = graph
        .input
        .iter()
        .filter(|input| !constants.contains(input.name.as_str()))
        .collect();
    let outputs: Vec<_> = graph.output.iter().collect();
    let (expected_inputs, expected_outputs) = ports(widths);
    let batch = inputs
        .first()
        .map_or("N", |input| batch_name(input).unwrap_or("N"));
    check_side("input", &inputs, &expected_inputs, batch)?;
    check_side("output", &outputs, &expected_outputs, batch)?;
    Ok(batch.to_owned())
}

fn check_side(
    side: &str,
    found: &[&ValueInfoProto],
    expected: &[Port],
    batch: &str,
) -> Result<(), FileError> {
    let names = |names: Vec<&str>| format!("`{}`", names.join("`, `"));
    let accepted = |value: &ValueInfoProto, name: &str| {
        value.name == name || name.strip_suffix("_out") == Some(&value.name)
    };
    let same_names = found.len() == expected.len()
        && found
            .iter()
            .zip(expected)
            .all(|(value, (name, _))| accepted(value, name));
    if !same_names {
        return Err(FileError::Port {
            port: format!("the list of {side}s"),
            found: names(found.iter().map(|value| value.name.as_str()).collect()),
            expected: names(expected.iter().map(|(name, _)| *name).collect()),
        });
    }
    for (value, (name, width)) in found.iter().zip(expected) {
        let wanted = match width {
            Some(width) => format!("float [{batch}, {width}]"),
            None => format!("float [{batch}]"),
        };
        let found = describe(value);
        if found != wanted {
            return Err(FileError::Port {
                port: format!("{side} `{name}`"),
                found,
                expected: format!("{wanted} ({batch} any name of a free dimension)"),
            });
        }
    }
    Ok(())
}

/// The name of a value's first dimension, if that is free and named as an identifier.
fn batch_name(value: &ValueInfoProto) -> Option<&str> {
    let type_proto::Value::TensorType(tensor) = value.r#type.as_ref()?.value.as_ref()?;
    match tensor.shape.as_ref()?.dim.first()?.value.as_ref()? {
        dimension::Value::DimParam(name)
            if name.starts_with(|c: char| c.is_ascii_alphabetic())
                && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') =>
        {
            Some(name)
        }
        _ => None,
    }
}

/// A value's type and shape: `float [N, 220]`.
fn describe(value: &ValueInfoProto) -> String {
    let tensor = value.r#type.as_ref().and_then(|t| t.value.as_ref());
    let Some(type_proto::Value::TensorType(tensor)) = tensor else {
        return "of no tensor type".to_owned();
    };
    let element = DataType::try_from(tensor.elem_type)
        .map_or("unknown".to_owned(), |t| t.as_str_name().to_lowercase());
    let Some(shape) = &tensor.shape else {
        return format!("{element} of no shape");
    };
    let dims: Vec<_> = shape
        .dim
        .iter()
        .map(|dim| match &dim.value {
            Some(dimension::Value::DimValue(n)) => n.to_string(),
            Some(dimension::Value::DimParam(name)) => name.clone(),
            None => "?".to_owned(),
        })
        .collect();
    format!("{element} [{}]", dims.join(", "))
}

/// Every value is defined once, before it is used.
fn check_values(graph: &GraphProto) -> Result<(), FileError> {
    let problem = |value: &str, problem| {
        Err(FileError::Graph {
            value: value.to_owned(),
            problem,
        })
    };
    let mut defined: HashSet<&str> = graph
        .input
        .iter()
        .map(|input| input.name.as_str())
        .collect();
    if defined.len() != graph.input.len() {
        return problem("input", "defined twice");
    }
    let inputs = defined.clone();
    for tensor in &graph.initializer {
        // An initializer may be listed among the inputs as well.
        if !defined.insert(&tensor.name) && !inputs.contains(tensor.name.as_str()) {
            return problem(&tensor.name, "defined twice");
        }
    }
    for node in &graph.node {
        for input in node.input.iter().filter(|input| !input.is_empty()) {
            if !defined.contains(input.as_str()) {
                return problem(input, "used before it is defined");
            }
        }
        for output in node.output.iter().filter(|output| !output.is_empty()) {
            if !defined.insert(output) {
                return problem(output, "defined twice");
            }
        }
    }
    for output in &graph.output {
        if !defined.contains(output.name.as_str()) {
            return problem(&output.name, "never defined");
        }
    }
    Ok(())
}

/// A tensor's number of elements, where shape, type and data agree.
fn check_tensor(tensor: &TensorProto) -> Result<usize, FileError> {
    let problem = |problem: String| {
        Err(FileError::Tensor {
            tensor: tensor.name.clone(),
            problem,
        })
    };
    let elements = tensor.dims.iter().try_fold(1usize, |product, &dim| {
        product.checked_mul(usize::try_from(dim).ok()?)
    });
    let Some(elements) = elements else {
        return problem(format!("has the impossible shape {:?}", tensor.dims));
    };
    let (size, listed) = match DataType::try_from(tensor.data_type) {
        Ok(DataType::Float) => (4, tensor.float_data.len()),
        Ok(DataType::Int32) => (4, tensor.int32_data.len()),
        Ok(DataType::Int64) => (8, tensor.int64_data.len()),
        _ => {
            return problem(format!(
                "is of type {}; expected FLOAT (1), INT32 (6) or INT64 (7)",
                tensor.data_type
            ));
        }
    };
    let stored = if tensor.raw_data.is_empty() {
        listed
    } else if tensor.raw_data.len().is_multiple_of(size) {
        tensor.raw_data.len() / size
    } else {
        return problem(format!(
            "has {} bytes, not a multiple of {size}",
            tensor.raw_data.len()
        ));
    };
    if stored != elements {
        return problem(format!(
            "has {stored} values for the shape {:?}",
            tensor.dims
        ));
    }
    Ok(elements)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tract_onnx::pb::{
        AttributeProto, FunctionProto, OperatorSetIdProto, SparseTensorProto,
        StringStringEntryProto, TypeProto,
    };

    use super::*;
    use crate::policy::heuristic_file;

    /// The error for the heuristic's file after a change.
    fn refusal(change: impl FnOnce(&mut ModelProto)) -> String {
        let mut proto = ModelProto::decode(&heuristic_file()[..]).expect("it decodes");
        change(&mut proto);
        PolicyFile::parse(&proto.encode_to_vec())
            .expect_err("refused")
            .to_string()
    }

    fn graph(proto: &mut ModelProto) -> &mut GraphProto {
        proto.graph.as_mut().expect("the file has a graph")
    }

    fn external() -> TensorProto {
        TensorProto {
            name: "secret".to_owned(),
            data_location: Some(DataLocation::External as i32),
            ..TensorProto::default()
        }
    }

    #[test]
    fn a_file_is_summarised() {
        let bytes = heuristic_file();
        let file = PolicyFile::parse(&bytes).expect("accepted");
        let text = file.summary().to_string();
        for line in [
            "name          delay-target",
            "kind          heuristic (set by hand, not trained)",
            "observation   220 values: features version 1, the last 20 decisions",
            "actions       0,/2,-10,+10,*2",
            "cwnd          2 to 2000 segments",
            "file          ",
            "  origin: weights set by hand",
        ] {
            assert!(text.contains(line), "{text}");
        }
        let json = serde_json::to_value(file.summary()).expect("serialises");
        assert_eq!(json["observation"], 220);
        assert_eq!(json["environment"]["window_ms"], 100);
        assert_eq!(json["bytes"], bytes.len());
        assert_eq!(json["sha256"].as_str().map(str::len), Some(64));
        // 220 inputs, 30 signals, 31 strengths, 5 logits, with biases, and the zero of the
        // baseline.
        let [signals, strengths] = file.meta().hidden[..] else {
            panic!("two layers")
        };
        let parameters = 221 * signals + (signals + 1) * strengths + (strengths + 1) * 5 + 1;
        assert_eq!(json["parameters"], parameters);
    }

    #[test]
    fn damage_to_the_encoding_is_refused() {
        let error = |bytes: &[u8]| PolicyFile::parse(bytes).expect_err("refused").to_string();
        assert!(error(&[]).starts_with("the file holds no ONNX graph"));
        let whole = heuristic_file();
        let truncated = error(&whole[..whole.len() / 2]);
        assert!(
            truncated.starts_with("not an ONNX file, or a truncated one"),
            "{truncated}"
        );
        assert!(error(b"#!/bin/sh\n").starts_with("not an ONNX file"));
    }

    #[test]
    fn what_is_no_file_of_a_policys_size_is_refused_at_once() {
        let directory = tempfile::tempdir().expect("a scratch directory");
        let path = directory.path().join("large.onnx");
        let file = std::fs::File::create(&path).expect("a temporary file");
        file.set_len(MAX_BYTES + 1).expect("a sparse file");
        let error = |path: &Path| PolicyFile::read(path).expect_err("refused").to_string();
        let text = error(&path);
        assert!(
            text.ends_with("large.onnx: it has more than 33554432 bytes, which is the limit"),
            "{text}"
        );
        let zero = error(Path::new("/dev/zero"));
        assert!(
            zero.starts_with("/dev/zero: it is a character device"),
            "{zero}"
        );
        let fifo = directory.path().join("fifo.onnx");
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0)
            .expect("a FIFO");
        assert!(error(&fifo).contains("it is a FIFO; expected a regular file"));
    }

    #[test]
    fn a_file_to_serve_has_the_hash_that_was_asked_for() {
        use std::os::unix::fs::PermissionsExt;

        let directory = tempfile::tempdir().expect("a scratch directory");
        let path = directory.path().join("policy.onnx");
        std::fs::write(&path, heuristic_file()).expect("there is space");
        let bytes = PolicyFile::bytes_to_serve(&path, None).expect("root's or the user's own");
        let file = PolicyFile::parse(&bytes).expect("a policy");
        let hash = file.summary().sha256.clone();
        let open = std::fs::Permissions::from_mode(0o666);
        std::fs::set_permissions(&path, open).expect("it is ours");
        let exposed = PolicyFile::bytes_to_serve(&path, None);
        if rustix::process::geteuid().is_root() {
            let error = exposed.expect_err("refused").to_string();
            assert!(
                error.contains("policy.onnx can be written by everybody, so another user decides"),
                "{error}"
            );
        } else {
            assert!(exposed.is_ok());
        }
        // Nobody can change what has a hash.
        assert!(PolicyFile::bytes_to_serve(&path, Some(&hash)).is_ok());
        assert!(PolicyFile::bytes_to_serve(&path, Some(&hash.to_uppercase())).is_ok());
        let other = hash.replace(['0', '1'], "2");
        let error = PolicyFile::bytes_to_serve(&path, Some(&other)).expect_err("another");
        assert!(error.to_string().starts_with("its SHA-256 is "), "{error}");
    }

    #[test]
    fn small_files_that_decode_to_large_ones_are_refused() {
        // Two bytes a node, of which each takes some hundred bytes once it is decoded.
        let error = refusal(|p| graph(p).node.resize(70_000, NodeProto::default()));
        assert!(
            error.starts_with("the number of the file's fields is 70")
                && error.contains("at most 65536"),
            "{error}"
        );
        let error = refusal(|p| {
            let relu = graph(p).node[1].clone();
            for i in 0..1_100 {
                let mut relu = relu.clone();
                relu.output = vec![format!("more.{i}")];
                graph(p).node.push(relu);
            }
        });
        assert!(error.starts_with("the number of nodes is 11"), "{error}");
    }

    #[test]
    fn data_outside_the_file_is_refused_wherever_it_is() {
        let in_attribute = |attribute| NodeProto {
            op_type: "If".to_owned(),
            attribute: vec![attribute],
            ..NodeProto::default()
        };
        let nested = GraphProto {
            initializer: vec![external()],
            ..GraphProto::default()
        };
        let nested = AttributeProto {
            g: Some(nested),
            ..AttributeProto::default()
        };
        let constant = AttributeProto {
            t: Some(external()),
            ..AttributeProto::default()
        };
        let sparse = SparseTensorProto {
            values: Some(external()),
            ..SparseTensorProto::default()
        };
        let location = StringStringEntryProto {
            key: "location".to_owned(),
            value: "/etc/shadow".to_owned(),
        };
        let only_listed = TensorProto {
            name: "secret".to_owned(),
            external_data: vec![location],
            ..TensorProto::default()
        };
        type Change = Box<dyn FnOnce(&mut GraphProto)>;
        let changes: [Change; 5] = [
            Box::new(|g| g.initializer.push(external())),
            Box::new(|g| g.initializer.push(only_listed)),
            Box::new(|g| g.sparse_initializer.push(sparse)),
            Box::new(move |g| g.node.push(in_attribute(constant))),
            Box::new(move |g| g.node.push(in_attribute(nested))),
        ];
        for change in changes {
            let error = refusal(|proto| change(graph(proto)));
            assert!(
                error.starts_with("tensor `secret` keeps its values outside the file"),
                "{error}"
            );
        }
    }

    #[test]
    fn what_the_engine_does_not_know_is_refused() {
        for (expected, change) in [
            (
                "the standard operators are of version 22; expected 9 to 18",
                (|p| p.opset_import[0].version = 22) as fn(&mut ModelProto),
            ),
            (
                "the standard operators are of version stated 0 times",
                |p| p.opset_import.clear(),
            ),
            (
                "the standard operators are of version stated 2 times",
                |p| {
                    p.opset_import.push(OperatorSetIdProto {
                        version: 13,
                        ..OperatorSetIdProto::default()
                    });
                },
            ),
            ("operator `Loop` (node `Relu.1`) is not supported", |p| {
                graph(p).node[1].op_type = "Loop".to_owned();
            }),
            ("operator `com.example.Relu` (node", |p| {
                graph(p).node[1].domain = "com.example".to_owned();
            }),
            ("a function of the model's own is not supported", |p| {
                p.functions.push(FunctionProto::default());
            }),
            ("the sparse tensor `` is not supported", |p| {
                graph(p)
                    .sparse_initializer
                    .push(SparseTensorProto::default());
            }),
        ] {
            let error = refusal(change);
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn metadata_are_needed_and_checked() {
        let error = refusal(|p| p.metadata_props.clear());
        assert!(
            error.starts_with("the metadata entry `rlcc` is missing"),
            "{error}"
        );
        let error = refusal(|p| p.metadata_props[0].key = BITRATE_META_KEY.to_owned());
        assert!(
            error.starts_with("it is a policy that selects the bitrates of videos")
                && error.contains("cc-trainer abr serve"),
            "{error}"
        );
        let mend = |from: &'static str, to: &'static str| {
            refusal(move |p| {
                p.metadata_props[0].value = p.metadata_props[0].value.replace(from, to);
            })
        };
        let error = mend(r#""features_version":1"#, r#""features_version":3"#);
        assert!(
            error.contains(
                "`rlcc`: environment.features_version is 3, but this build computes versions 1 to 2"
            ),
            "{error}"
        );
        let error = mend(r#""window_ms""#, r#""window""#);
        assert!(
            error.contains("environment.window_ms is missing"),
            "{error}"
        );
        let error = mend(r#""history":20"#, r#""history":2"#);
        assert!(
            error.contains(
                "input `observation` is float [N, 220]; its metadata ask for float [N, 112]"
            ),
            "{error}"
        );
        let error = mend("0,/2,-10,+10,*2", "0,*2,/2,+10,-10,+1");
        assert!(
            error.contains(
                "input `observation` is float [N, 220]; its metadata ask for float [N, 240]"
            ),
            "{error}"
        );
        let error = mend(r#""state":1"#, r#""state":2"#);
        assert!(
            error.contains("input `h` is float [N, 1]; its metadata ask for float [N, 2]"),
            "{error}"
        );
    }

    #[test]
    fn inputs_and_outputs_are_compared_with_the_metadata() {
        fn dims(
            value: &mut ValueInfoProto,
        ) -> &mut Vec<tract_onnx::pb::tensor_shape_proto::Dimension> {
            let tensor = value
                .r#type
                .as_mut()
                .and_then(|t| t.value.as_mut())
                .expect("typed");
            let type_proto::Value::TensorType(tensor) = tensor;
            &mut tensor.shape.as_mut().expect("shaped").dim
        }
        for (expected, change) in [
            (
                "the list of inputs is `obs`, `reward`, `h`, `c`; its metadata ask for \
                 `observation`, `reward`, `h`, `c`",
                (|g| g.input[0].name = "obs".to_owned()) as fn(&mut GraphProto),
            ),
            (
                "the list of inputs is `reward`, `observation`, `h`, `c`;",
                |g| g.input.swap(0, 1),
            ),
            (
                "the list of outputs is `logits`, `baseline`, `h_out`; its",
                |g| drop(g.output.pop()),
            ),
            (
                "input `reward` is float [N, 1]; its metadata ask for float [N]",
                |g| {
                    let extra = dims(&mut g.input[1])[0].clone();
                    let one = Some(dimension::Value::DimValue(1));
                    dims(&mut g.input[1]).push(tract_onnx::pb::tensor_shape_proto::Dimension {
                        value: one,
                        ..extra
                    });
                },
            ),
            (
                "input `observation` is float [1, 220]; its metadata ask for float [N, 220] \
                 (N any name",
                |g| {
                    dims(&mut g.input[0])[0].value = Some(dimension::Value::DimValue(1));
                },
            ),
            (
                "input `h` is float [M, 1]; its metadata ask for float [N, 1]",
                |g| {
                    dims(&mut g.input[2])[0].value =
                        Some(dimension::Value::DimParam("M".to_owned()));
                },
            ),
            ("input `observation` is float [N*2, 220]", |g| {
                dims(&mut g.input[0])[0].value = Some(dimension::Value::DimParam("N*2".to_owned()));
            }),
            (
                "output `logits` is float [N, 7]; its metadata ask for float [N, 5]",
                |g| {
                    dims(&mut g.output[0])[1].value = Some(dimension::Value::DimValue(7));
                },
            ),
            ("output `baseline` is of no tensor type; its", |g| {
                g.output[1].r#type = Some(TypeProto::default());
            }),
            ("input `c` is double [N, 1];", |g| {
                let Some(type_proto::Value::TensorType(tensor)) =
                    g.input[3].r#type.as_mut().and_then(|t| t.value.as_mut())
                else {
                    return;
                };
                tensor.elem_type = DataType::Double as i32;
            }),
        ] {
            let error = refusal(|proto| change(graph(proto)));
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn a_state_may_be_handed_through_under_its_own_name() {
        let mut proto = ModelProto::decode(&heuristic_file()[..]).expect("decodes");
        let graph = graph(&mut proto);
        graph.node.retain(|node| node.op_type != "Identity");
        graph.output[2].name = "h".to_owned();
        graph.output[3].name = "c".to_owned();
        assert!(PolicyFile::parse(&proto.encode_to_vec()).is_ok());
    }

    #[test]
    fn values_are_defined_once_and_before_use() {
        for (expected, change) in [
            (
                "value `nowhere` is used before it is defined",
                (|g| g.node[0].input[0] = "nowhere".to_owned()) as fn(&mut GraphProto),
            ),
            ("value `signals` is used before it is defined", |g| {
                g.node.swap(1, 2);
            }),
            ("value `h` is defined twice", |g| {
                g.node[0].output[0] = "h".to_owned();
            }),
            ("value `zero` is defined twice", |g| {
                let zero = g.initializer.last().cloned();
                g.initializer.extend(zero);
            }),
            ("value `logits` is never defined", |g| {
                g.node.retain(|n| n.output != ["logits"]);
            }),
        ] {
            let error = refusal(|proto| change(graph(proto)));
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn tensors_have_the_data_that_their_shape_asks_for() {
        for (expected, change) in [
            (
                "tensor `signals.weights` has 1 values for the shape [220, ",
                (|t| t.raw_data.truncate(4)) as fn(&mut TensorProto),
            ),
            (
                "tensor `signals.weights` has 3 bytes, not a multiple of 4",
                |t| t.raw_data.truncate(3),
            ),
            (
                "tensor `signals.weights` has the impossible shape [-1]",
                |t| t.dims = vec![-1],
            ),
            ("tensor `signals.weights` has the impossible shape", |t| {
                t.dims = vec![i64::MAX; 2];
            }),
            (
                "tensor `signals.weights` is of type 11; expected FLOAT (1)",
                |t| t.data_type = DataType::Double as i32,
            ),
            (
                "tensor `signals.weights` is of type 99; expected FLOAT (1)",
                |t| t.data_type = 99,
            ),
        ] {
            let error = refusal(|proto| change(&mut graph(proto).initializer[0]));
            assert!(error.starts_with(expected), "{error}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
            let _ = PolicyFile::parse(&bytes);
        }

        #[test]
        fn no_truncation_is_accepted(at: prop::sample::Index) {
            let whole = heuristic_file();
            prop_assert!(PolicyFile::parse(&whole[..at.index(whole.len())]).is_err());
        }
    }
}
