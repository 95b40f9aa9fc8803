//! What running a graph takes, found before any of it is run: the shape of every value, and from
//! these the memory and the arithmetic of one batch.
//!
//! The engine evaluates constants while it loads a file, so a small file can ask for any amount of
//! memory then: forty times `Concat(x, x)` are a million million values. The shapes follow from the
//! graph alone, because policies may use few operators ([`super::file::OPERATORS`]), and because
//! those that take a shape, axes or places as an input have to take constants here.

use std::collections::HashMap;

use tract_onnx::pb::tensor_proto::DataType;
use tract_onnx::pb::{AttributeProto, GraphProto, NodeProto, TensorProto};

use super::file_error::FileError;
use super::ports::{Widths, ports};

/// The batch for which the bounds hold: the agent's is never larger.
const BATCH: u64 = 256;
/// The most nodes of a graph: the engine takes time for each when it loads, and at every batch.
const MAX_NODES: u64 = 1_024;
/// The most dimensions of a value.
const MAX_RANK: u64 = 8;
/// The most elements of a value, 32 MiB as `float`.
const MAX_ELEMENTS: u64 = 1 << 23;
/// The most elements that all nodes take and give, 256 MiB as `float`.
const MAX_TRAFFIC: u64 = 1 << 26;
/// The most multiplications, or operations of like cost: a quarter of a second or so of one core.
/// Dense layers cannot exceed it, for their weights would exceed the limit of a file.
const MAX_WORK: u64 = 1 << 32;
/// What one step in time of a recurrent operator costs beside its products.
const STEP: u64 = 1 << 19;
/// The most elements of a constant whose values are followed: axes, places and shapes are short.
const FOLLOWED: usize = 64;

/// A value's shape for a batch of [`BATCH`], and its elements where they are constants of use.
#[derive(Clone, Debug)]
struct Value {
    dims: Vec<u64>,
    /// The elements in order, for short constants of integers.
    known: Option<Vec<i64>>,
}

impl Value {
    fn computed(dims: Vec<u64>) -> Self {
        Self { dims, known: None }
    }

    fn elements(&self) -> u64 {
        product(&self.dims)
    }
}

/// The total demands of a graph.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Demands {
    /// Elements that the nodes take and give.
    pub(super) traffic: u64,
    /// Multiplications, or operations of like cost.
    pub(super) work: u64,
}

/// Returns what one batch takes.
///
/// # Errors
///
/// Returns an error when a shape cannot be known beforehand or does not fit its operator, and when
/// a bound is exceeded.
pub(super) fn check(graph: &GraphProto, widths: &Widths) -> Result<Demands, FileError> {
    let bounded = |what: &dyn Fn() -> String, found: u64, most: u64| {
        if found <= most {
            return Ok(());
        }
        Err(FileError::Bound {
            what: what(),
            found,
            most,
        })
    };
    bounded(
        &|| "the number of nodes".to_owned(),
        graph.node.len() as u64,
        MAX_NODES,
    )?;
    let mut values: HashMap<&str, Value> = HashMap::new();
    for (name, width) in ports(widths).0 {
        let width = width.map(|width| width as u64);
        let dims = [Some(BATCH), width].into_iter().flatten().collect();
        values.insert(name, Value::computed(dims));
    }
    for tensor in &graph.initializer {
        values.insert(&tensor.name, constant(tensor));
    }
    let mut total = Demands::default();
    for node in &graph.node {
        let wrong = |problem: String| FileError::Shape {
            node: format!("`{}` ({})", node.name, node.op_type),
            problem,
        };
        // Checked before: every input is defined earlier.
        let inputs: Vec<Option<&Value>> = node
            .input
            .iter()
            .map(|name| values.get(name.as_str()))
            .collect();
        let (outputs, work) = Operation { node, inputs }.infer().map_err(wrong)?;
        let taken = node
            .input
            .iter()
            .filter_map(|name| values.get(name.as_str()));
        let taken: u64 = taken.map(Value::elements).fold(0, u64::saturating_add);
        let mut given = 0u64;
        for output in &outputs {
            let place = || format!("of node `{}` ({})", node.name, node.op_type);
            bounded(
                &|| format!("the number of dimensions {}", place()),
                output.dims.len() as u64,
                MAX_RANK,
            )?;
            bounded(
                &|| format!("the size {}, in values for {BATCH} flows,", place()),
                output.elements(),
                MAX_ELEMENTS,
            )?;
            given = given.saturating_add(output.elements());
        }
        total.traffic = total.traffic.saturating_add(taken).saturating_add(given);
        total.work = total.work.saturating_add(work).saturating_add(given);
        bounded(
            &|| format!("the size of all values together, for {BATCH} flows,"),
            total.traffic,
            MAX_TRAFFIC,
        )?;
        bounded(
            &|| format!("the number of multiplications for {BATCH} flows"),
            total.work,
            MAX_WORK,
        )?;
        for (name, output) in node.output.iter().zip(outputs) {
            values.insert(name, output);
        }
    }
    Ok(total)
}

/// A node, and what is known of its inputs: `None` for one that is left out.
struct Operation<'a> {
    node: &'a NodeProto,
    inputs: Vec<Option<&'a Value>>,
}

/// The outputs' shapes, and the work beside that of writing each output.
type Inferred = Result<(Vec<Value>, u64), String>;

impl<'a> Operation<'a> {
    fn infer(&self) -> Inferred {
        let free = |value: Value| Ok((vec![value], 0));
        match self.node.op_type.as_str() {
            "Abs" | "Clip" | "LeakyRelu" | "Neg" | "Relu" => {
                free(Value::computed(self.input(0)?.dims.clone()))
            }
            "Elu" | "Exp" | "Log" | "Sigmoid" | "Softplus" | "Tanh" | "Softmax" => {
                let dims = self.input(0)?.dims.clone();
                let work = product(&dims).saturating_mul(8);
                Ok((vec![Value::computed(dims)], work))
            }
            "Identity" | "Cast" => free(self.input(0)?.clone()),
            "Add" | "Sub" | "Mul" | "Div" | "Max" | "Min" => {
                let mut dims = self.input(0)?.dims.clone();
                for i in 1..self.inputs.len() {
                    dims = broadcast(&dims, &self.input(i)?.dims)?;
                }
                free(Value::computed(dims))
            }
            "Concat" => free(self.concat()?),
            "Constant" => free(self.constant()?),
            "Conv" => self.conv(),
            "Flatten" => {
                let dims = &self.input(0)?.dims;
                let axis = axis(self.int("axis").unwrap_or(1), dims.len() + 1)?;
                let (before, after) = dims.split_at(axis);
                free(Value::computed(vec![product(before), product(after)]))
            }
            "Gemm" => self.gemm(),
            "MatMul" => matmul(&self.input(0)?.dims, &self.input(1)?.dims),
            "LSTM" => self.recurrent(4, 3),
            "GRU" => self.recurrent(3, 2),
            "RNN" => self.recurrent(1, 2),
            "LayerNormalization" => self.layer_normalization(),
            "Reshape" => free(self.reshape()?),
            "Slice" => free(self.slice()?),
            "Split" => Ok((self.split()?, 0)),
            "Squeeze" => free(self.squeeze()?),
            "Unsqueeze" => free(self.unsqueeze()?),
            // The operators are checked before.
            other => Err(format!("its shape cannot be known: operator {other}")),
        }
    }

    fn input(&self, i: usize) -> Result<&'a Value, String> {
        let input = self.inputs.get(i).copied().flatten();
        input.ok_or_else(|| format!("input {i} is missing"))
    }

    fn attribute(&self, name: &str) -> Option<&'a AttributeProto> {
        self.node.attribute.iter().find(|a| a.name == name)
    }

    fn int(&self, name: &str) -> Option<i64> {
        self.attribute(name).map(|attribute| attribute.i)
    }

    /// Integers from an attribute, or else from an input, as newer operator versions have it;
    /// `None` where neither is given.
    fn ints(&self, name: &str, input: usize) -> Result<Option<Vec<i64>>, String> {
        if let Some(attribute) = self.attribute(name) {
            return Ok(Some(attribute.ints.clone()));
        }
        let Some(value) = self.inputs.get(input).copied().flatten() else {
            return Ok(None);
        };
        let known = value.known.clone();
        known.map(Some).ok_or_else(|| {
            format!(
                "its input {input} ({name}) is computed, or has more than {FOLLOWED} elements; \
                 expected a constant"
            )
        })
    }

    fn constant(&self) -> Result<Value, String> {
        let scalar = |known| Value {
            dims: vec![],
            known,
        };
        for attribute in &self.node.attribute {
            return Ok(match attribute.name.as_str() {
                "value" => constant(attribute.t.as_ref().ok_or("it has no value")?),
                "value_float" => scalar(None),
                "value_int" => scalar(Some(vec![attribute.i])),
                "value_floats" => Value::computed(vec![attribute.floats.len() as u64]),
                "value_ints" => Value {
                    dims: vec![attribute.ints.len() as u64],
                    known: followed(attribute.ints.iter().copied()),
                },
                _ => continue,
            });
        }
        Err("it has no value that is a tensor of numbers".to_owned())
    }

    fn concat(&self) -> Result<Value, String> {
        let first = self.input(0)?;
        let axis = axis(self.int("axis").unwrap_or(0), first.dims.len())?;
        let mut dims = first.dims.clone();
        let mut known = first.known.clone();
        for i in 1..self.inputs.len() {
            let next = self.input(i)?;
            let fits = next.dims.len() == dims.len()
                && (0..dims.len()).all(|d| d == axis || next.dims[d] == dims[d]);
            if !fits {
                return Err(format!("{dims:?} and {:?} cannot be joined", next.dims));
            }
            dims[axis] = dims[axis].saturating_add(next.dims[axis]);
            known = match (known, &next.known) {
                (Some(mut all), Some(more)) => {
                    all.extend(more);
                    followed(all)
                }
                _ => None,
            };
        }
        // The order of elements is that of the inputs for lists only.
        let known = known.filter(|_| dims.len() == 1);
        Ok(Value { dims, known })
    }

    /// A convolution of `[batch, channels, …]` with the weights `[filters, channels, …]`, as
    /// policies need it: with stride 1, and without padding, dilation and groups.
    fn conv(&self) -> Inferred {
        let (x, weights) = (&self.input(0)?.dims, &self.input(1)?.dims);
        if x.len() < 3 || weights.len() != x.len() {
            return Err(format!(
                "its input 0 is {x:?} and its weights are {weights:?}; expected three dimensions \
                 or more, and equally many"
            ));
        }
        let ints = |name: &str| self.attribute(name).map_or(&[][..], |found| &found.ints);
        for (name, usual) in [("strides", 1), ("dilations", 1), ("pads", 0)] {
            let found = ints(name);
            if found.iter().any(|&value| value != usual) {
                return Err(format!(
                    "its {name} are {found:?}; expected {usual} throughout"
                ));
            }
        }
        if self.int("group").unwrap_or(1) != 1 {
            return Err("its channels are in groups; expected one group".to_owned());
        }
        if let Some(pad) = self.attribute("auto_pad")
            && pad.s != b"NOTSET"
        {
            return Err("its padding is computed; expected none".to_owned());
        }
        let kernel = &weights[2..];
        let stated = ints("kernel_shape").iter().map(|dim| dim.cast_unsigned());
        if self.attribute("kernel_shape").is_some() && !stated.eq(kernel.iter().copied()) {
            return Err(format!(
                "its kernel_shape is not that of its weights, {kernel:?}"
            ));
        }
        if x[1] != weights[1] {
            return Err(differ(x[1], weights[1]));
        }
        let mut dims = vec![x[0], weights[0]];
        for (&length, &width) in x[2..].iter().zip(kernel) {
            match width {
                1.. if width <= length => dims.push(length - width + 1),
                _ => return Err(format!("its filters {kernel:?} do not fit into {x:?}")),
            }
        }
        if let Some(bias) = self.inputs.get(2).copied().flatten()
            && bias.dims != weights[..1]
        {
            return Err(format!(
                "its bias is {:?}; expected {:?}",
                bias.dims,
                &weights[..1]
            ));
        }
        // The engine may write out what the filters take at each position.
        let taken = product(&weights[1..]);
        let written = product(&dims[2..])
            .saturating_mul(taken)
            .saturating_mul(x[0]);
        if written > MAX_ELEMENTS {
            return Err(format!(
                "its filters take {written} values for {BATCH} flows; expected at most \
                 {MAX_ELEMENTS}"
            ));
        }
        let work = product(&dims).saturating_mul(taken).saturating_add(written);
        Ok((vec![Value::computed(dims)], work))
    }

    fn gemm(&self) -> Inferred {
        let matrix = |i: usize, turned: &str| -> Result<[u64; 2], String> {
            match (&self.input(i)?.dims[..], self.int(turned).unwrap_or(0)) {
                (&[rows, columns], 0) => Ok([rows, columns]),
                (&[rows, columns], _) => Ok([columns, rows]),
                (dims, _) => Err(format!("input {i} is {dims:?}; expected two dimensions")),
            }
        };
        let ([rows, k], [inner, columns]) = (matrix(0, "transA")?, matrix(1, "transB")?);
        if k != inner {
            return Err(differ(k, inner));
        }
        let mut dims = vec![rows, columns];
        if let Some(bias) = self.inputs.get(2).copied().flatten() {
            dims = broadcast(&dims, &bias.dims)?;
        }
        let work = product(&dims).saturating_mul(k);
        Ok((vec![Value::computed(dims)], work))
    }

    /// A recurrent operator with this many gates and outputs. Its weights are `[directions, gates ·
    /// hidden, inputs]` and `[directions, gates · hidden, hidden]`.
    fn recurrent(&self, gates: u64, outputs: usize) -> Inferred {
        let three = |i: usize| -> Result<[u64; 3], String> {
            let dims = &self.input(i)?.dims;
            <[u64; 3]>::try_from(&dims[..])
                .map_err(|_| format!("input {i} is {dims:?}; expected three dimensions"))
        };
        let [x, weights, recurrent] = [three(0)?, three(1)?, three(2)?];
        let batch_first = self.int("layout").unwrap_or(0) != 0;
        let [steps, batch, inputs] = match (batch_first, x) {
            (false, x) => x,
            (true, [batch, steps, inputs]) => [steps, batch, inputs],
        };
        let [directions, rows, columns] = weights;
        let hidden = recurrent[2];
        if columns != inputs {
            return Err(differ(inputs, columns));
        }
        if rows != gates.saturating_mul(hidden) || recurrent[..2] != weights[..2] {
            return Err(format!(
                "the weights {weights:?} and {recurrent:?} do not fit each other"
            ));
        }
        let products = product(&[directions, batch, rows]);
        let step = products.saturating_mul(inputs.saturating_add(hidden));
        let work = step.saturating_add(STEP).saturating_mul(steps);
        let (all, last) = match batch_first {
            false => (
                vec![steps, directions, batch, hidden],
                vec![directions, batch, hidden],
            ),
            true => (
                vec![batch, steps, directions, hidden],
                vec![batch, directions, hidden],
            ),
        };
        let mut values = vec![Value::computed(all)];
        values.resize(outputs, Value::computed(last));
        Ok((values, work))
    }

    fn layer_normalization(&self) -> Inferred {
        let dims = self.input(0)?.dims.clone();
        let axis = axis(self.int("axis").unwrap_or(-1), dims.len())?;
        for i in 1..self.inputs.len().min(3) {
            if broadcast(&dims, &self.input(i)?.dims)? != dims {
                return Err(format!("input {i} is larger than the input 0"));
            }
        }
        let mut moments = dims.clone();
        moments[axis..].fill(1);
        let work = product(&dims).saturating_mul(8);
        let moments = Value::computed(moments);
        Ok((vec![Value::computed(dims), moments.clone(), moments], work))
    }

    fn reshape(&self) -> Result<Value, String> {
        let value = self.input(0)?;
        let shape = self.ints("shape", 1)?.ok_or("it has no shape")?;
        let zero_is_kept = self.int("allowzero").unwrap_or(0) == 0;
        let mut dims = Vec::new();
        let mut rest = None;
        for (i, &dim) in shape.iter().enumerate() {
            dims.push(match dim {
                -1 if rest.is_none() => {
                    rest = Some(i);
                    1
                }
                0 if zero_is_kept => *value
                    .dims
                    .get(i)
                    .ok_or_else(|| format!("{:?} has no dimension {i}", value.dims))?,
                dim => u64::try_from(dim).map_err(|_| format!("its shape is {shape:?}"))?,
            });
        }
        let (found, elements) = (product(&dims), value.elements());
        match rest {
            Some(i) if found > 0 && elements.is_multiple_of(found) => dims[i] = elements / found,
            None if found == elements => {}
            _ => return Err(format!("{:?} cannot become {shape:?}", value.dims)),
        }
        Ok(Value {
            dims,
            known: value.known.clone(),
        })
    }

    fn slice(&self) -> Result<Value, String> {
        let value = self.input(0)?;
        let starts = self.ints("starts", 1)?.ok_or("it has no starts")?;
        let ends = self.ints("ends", 2)?.ok_or("it has no ends")?;
        let axes = self.ints("axes", 3)?;
        let axes = axes.unwrap_or_else(|| (0..).take(starts.len()).collect());
        let steps = self.ints("steps", 4)?;
        let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
        if [ends.len(), axes.len(), steps.len()] != [starts.len(); 3] {
            return Err("its starts, ends, axes and steps are not equally many".to_owned());
        }
        let mut dims = value.dims.clone();
        for (((start, end), at), step) in starts.into_iter().zip(ends).zip(axes).zip(steps) {
            let at = axis(at, dims.len())?;
            dims[at] = sliced(dims[at], start, end, step)?;
        }
        let whole = dims == value.dims;
        let known = value.known.clone().filter(|_| whole);
        Ok(Value { dims, known })
    }

    fn split(&self) -> Result<Vec<Value>, String> {
        let dims = &self.input(0)?.dims;
        let axis = axis(self.int("axis").unwrap_or(0), dims.len())?;
        let parts = self.node.output.len() as u64;
        let sizes = match self.ints("split", 1)? {
            Some(sizes) => sizes
                .iter()
                .map(|&size| u64::try_from(size).map_err(|_| format!("it has a part of {size}")))
                .collect::<Result<Vec<_>, _>>()?,
            None => {
                // Equal parts, of which the last may be smaller.
                let each = dims[axis].div_ceil(parts.max(1));
                (0..parts)
                    .map(|i| dims[axis].saturating_sub(i * each).min(each))
                    .collect()
            }
        };
        let total = sizes
            .iter()
            .fold(0u64, |all, &size| all.saturating_add(size));
        if total != dims[axis] || sizes.len() as u64 != parts {
            return Err(format!("{dims:?} cannot be split into {sizes:?}"));
        }
        let part = |size| {
            let mut dims = dims.clone();
            dims[axis] = size;
            Value::computed(dims)
        };
        Ok(sizes.into_iter().map(part).collect())
    }

    fn squeeze(&self) -> Result<Value, String> {
        let value = self.input(0)?;
        let rank = value.dims.len();
        let removed: Vec<usize> = match self.ints("axes", 1)? {
            Some(axes) => axes
                .into_iter()
                .map(|at| axis(at, rank))
                .collect::<Result<_, _>>()?,
            None => (0..rank).filter(|&d| value.dims[d] == 1).collect(),
        };
        if let Some(d) = removed.iter().find(|&&d| value.dims[d] != 1) {
            return Err(format!("dimension {d} of {:?} is not 1", value.dims));
        }
        let kept = (0..rank).filter(|d| !removed.contains(d));
        Ok(Value {
            dims: kept.map(|d| value.dims[d]).collect(),
            known: value.known.clone(),
        })
    }

    fn unsqueeze(&self) -> Result<Value, String> {
        let value = self.input(0)?;
        let axes = self.ints("axes", 1)?.ok_or("it has no axes")?;
        let rank = value.dims.len() + axes.len();
        let mut added = vec![false; rank];
        for at in axes {
            let at = axis(at, rank)?;
            if std::mem::replace(&mut added[at], true) {
                return Err(format!("it adds dimension {at} twice"));
            }
        }
        let mut own = value.dims.iter().copied();
        let dims = added.into_iter().map(|new| match new {
            true => 1,
            false => own.next().unwrap_or(1),
        });
        Ok(Value {
            dims: dims.collect(),
            known: value.known.clone(),
        })
    }
}

/// The value of a tensor whose data fit its shape.
fn constant(tensor: &TensorProto) -> Value {
    let dims: Vec<u64> = tensor.dims.iter().map(|d| d.cast_unsigned()).collect();
    let chunks = |size| tensor.raw_data.chunks_exact(size);
    let known = if product(&dims) > FOLLOWED as u64 {
        None
    } else if tensor.data_type == DataType::Int64 as i32 {
        let raw = chunks(8).map(|b| i64::from_le_bytes(b.try_into().unwrap_or_default()));
        followed(tensor.int64_data.iter().copied().chain(raw))
    } else if tensor.data_type == DataType::Int32 as i32 {
        let raw = chunks(4).map(|b| i32::from_le_bytes(b.try_into().unwrap_or_default()));
        let listed = tensor.int32_data.iter().copied();
        followed(listed.chain(raw).map(i64::from))
    } else {
        None
    };
    Value { dims, known }
}

/// The elements of a constant, if they are few.
fn followed(elements: impl IntoIterator<Item = i64>) -> Option<Vec<i64>> {
    let elements: Vec<i64> = elements.into_iter().take(FOLLOWED + 1).collect();
    (elements.len() <= FOLLOWED).then_some(elements)
}

/// The number of elements of a shape; at most `u64::MAX`.
fn product(dims: &[u64]) -> u64 {
    if dims.contains(&0) {
        return 0;
    }
    dims.iter().fold(1, |all, &dim| all.saturating_mul(dim))
}

/// An axis of a value with `rank` dimensions; a negative one counts from the end.
fn axis(at: i64, rank: usize) -> Result<usize, String> {
    let from_end = if at < 0 { rank as i64 } else { 0 };
    at.checked_add(from_end)
        .and_then(|at| usize::try_from(at).ok())
        .filter(|&at| at < rank)
        .ok_or_else(|| format!("it has no dimension {at}, only {rank}"))
}

/// The common shape of two operands, as NumPy and ONNX broadcast them.
fn broadcast(one: &[u64], other: &[u64]) -> Result<Vec<u64>, String> {
    let rank = one.len().max(other.len());
    let dim = |dims: &[u64], i: usize| (i + dims.len()).checked_sub(rank).map_or(1, |i| dims[i]);
    (0..rank)
        .map(|i| match (dim(one, i), dim(other, i)) {
            (1, n) | (n, 1) => Ok(n),
            (a, b) if a == b => Ok(a),
            _ => Err(format!("{one:?} and {other:?} do not fit each other")),
        })
        .collect()
}

/// The shape and work of a matrix product, as NumPy and ONNX define it.
fn matmul(one: &[u64], other: &[u64]) -> Inferred {
    let (Some(&k), Some(&last)) = (one.last(), other.last()) else {
        return Err("it multiplies a scalar".to_owned());
    };
    let inner = if other.len() == 1 {
        last
    } else {
        other[other.len() - 2]
    };
    if k != inner {
        return Err(differ(k, inner));
    }
    let batch = |dims: &[u64]| dims[..dims.len().saturating_sub(2)].to_vec();
    let mut dims = broadcast(&batch(one), &batch(other))?;
    if one.len() > 1 {
        dims.push(one[one.len() - 2]);
    }
    if other.len() > 1 {
        dims.push(last);
    }
    let work = product(&dims).saturating_mul(k);
    Ok((vec![Value::computed(dims)], work))
}

fn differ(k: u64, inner: u64) -> String {
    format!("it multiplies {k} values of each row with {inner} weights")
}

/// The length of a slice, as ONNX defines it.
fn sliced(length: u64, start: i64, end: i64, step: i64) -> Result<u64, String> {
    if length == 0 {
        return Ok(0);
    }
    let length = i64::try_from(length).map_err(|_| "its input is too large".to_owned())?;
    let place = |at: i64, least, most| {
        let at = if at < 0 {
            at.saturating_add(length)
        } else {
            at
        };
        at.clamp(least, most)
    };
    let span = match step {
        0 => return Err("its step is 0".to_owned()),
        1.. => place(end, 0, length) - place(start, 0, length),
        ..0 => place(start, 0, length - 1) - place(end, -1, length - 1),
    };
    Ok(span.max(0).unsigned_abs().div_ceil(step.unsigned_abs()))
}
