//! Counts what a file would make the protobuf decoder allocate, before anything is decoded.
//!
//! An empty message takes two bytes of a file and some hundred bytes to a kilobyte of memory once
//! it is decoded. This counts the fields of all messages in one pass that allocates nothing.

/// The messages of `onnx.proto` that have other messages or packed numbers inside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Model,
    Graph,
    Node,
    Attribute,
    Tensor,
    SparseTensor,
    Value,
    Type,
    TensorType,
    Shape,
    Annotation,
    Training,
    Function,
    /// A message of scalars and strings.
    Plain,
}

/// What a length-delimited field holds.
enum Content {
    Message(Message),
    /// Numbers that take one byte each at least, and up to eight once they are decoded.
    Numbers,
    /// Bytes that are copied as they are.
    Bytes,
}

/// Messages that may lie within each other. ONNX needs nine.
const DEPTH: usize = 32;

impl Message {
    /// The content of a length-delimited field of this message, by its number in `onnx.proto`.
    fn content(self, field: u64) -> Content {
        use Content::{Bytes, Numbers};
        let inner = match (self, field) {
            (Self::Model, 7) | (Self::Attribute, 6 | 11) | (Self::Training, 1 | 2) => Self::Graph,
            (Self::Model, 20) => Self::Training,
            (Self::Model, 25) => Self::Function,
            (Self::Graph, 1) | (Self::Function, 7) => Self::Node,
            (Self::Graph, 5) | (Self::Attribute, 5 | 10) | (Self::SparseTensor, 1 | 2) => {
                Self::Tensor
            }
            (Self::Graph, 15) | (Self::Attribute, 22 | 23) => Self::SparseTensor,
            (Self::Graph, 11..=13) => Self::Value,
            (Self::Graph, 14) => Self::Annotation,
            (Self::Node, 5) => Self::Attribute,
            (Self::Attribute, 15) | (Self::Value, 2) => Self::Type,
            (Self::Type, 1) => Self::TensorType,
            (Self::TensorType, 2) => Self::Shape,
            (Self::Model, 8 | 14)
            | (Self::Tensor, 3 | 13)
            | (Self::Shape, 1)
            | (Self::Annotation, 2)
            | (Self::Training, 3 | 4)
            | (Self::Function, 9) => Self::Plain,
            (Self::Tensor, 1 | 5 | 7 | 11) | (Self::Attribute, 8) | (Self::SparseTensor, 3) => {
                return Numbers;
            }
            _ => return Bytes,
        };
        Content::Message(inner)
    }
}

/// Returns the number of fields and packed numbers in a file, those of all messages in it included;
/// `None` if it is not protobuf.
pub(super) fn fields(bytes: &[u8]) -> Option<usize> {
    count(bytes, Message::Model, DEPTH)
}

fn count(mut bytes: &[u8], message: Message, depth: usize) -> Option<usize> {
    let mut fields = 0;
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        fields += 1;
        match key & 7 {
            0 => drop(varint(&mut bytes)?),
            1 => bytes = bytes.get(8..)?,
            5 => bytes = bytes.get(4..)?,
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                let (inside, rest) = bytes.split_at_checked(length)?;
                bytes = rest;
                fields += match message.content(key >> 3) {
                    Content::Message(inner) => count(inside, inner, depth.checked_sub(1)?)?,
                    Content::Numbers => length,
                    Content::Bytes => 0,
                };
            }
            // Groups, which ONNX does not use.
            _ => return None,
        }
    }
    Some(fields)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for place in 0..10 {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use tract_onnx::pb::{
        AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto,
    };

    use super::*;
    use crate::policy::{DEFAULT_POLICY, heuristic_file};

    #[test]
    fn every_message_and_packed_number_counts() {
        let attribute = AttributeProto {
            t: Some(TensorProto {
                int64_data: vec![1; 100],
                ..TensorProto::default()
            }),
            ints: vec![2; 10],
            ..AttributeProto::default()
        };
        let graph = GraphProto {
            node: vec![NodeProto {
                attribute: vec![attribute],
                ..NodeProto::default()
            }],
            input: vec![ValueInfoProto::default(); 7],
            ..GraphProto::default()
        };
        let model = ModelProto {
            graph: Some(graph),
            ..ModelProto::default()
        };
        // Graph, node, attribute; tensor with a list of 100; a list of 10; 7 inputs.
        let expected = 3 + 1 + 1 + 100 + 1 + 10 + 7;
        assert_eq!(fields(&model.encode_to_vec()), Some(expected));
    }

    #[test]
    fn policies_have_few_fields_and_other_files_none() {
        for file in [DEFAULT_POLICY, &heuristic_file()] {
            assert!(fields(file).is_some_and(|n| (100..10_000).contains(&n)));
        }
        assert_eq!(fields(b"#!/bin/sh\n"), None);
        // A graph within an attribute within a node within a graph, and so on.
        let deep = (0..100).fold(Vec::new(), |inner, _| {
            let wrap = |key: u8, inner: Vec<u8>| {
                let mut outer = vec![key << 3 | 2];
                let mut length = inner.len();
                while length > 127 {
                    outer.push(length as u8 | 0x80);
                    length >>= 7;
                }
                outer.push(length as u8);
                outer.extend(inner);
                outer
            };
            wrap(1, wrap(5, wrap(6, inner)))
        });
        let mut file = vec![
            7 << 3 | 2,
            deep.len() as u8 & 0x7f | 0x80,
            (deep.len() >> 7) as u8,
        ];
        file.extend(deep);
        assert_eq!(fields(&file), None);
    }
}
