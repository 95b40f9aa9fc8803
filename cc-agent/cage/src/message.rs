//! The messages over the socket pair: 16 bytes each, so that a longer or shorter one is an error.

/// Length of every message, bytes.
pub(crate) const LENGTH: usize = 16;

/// A message, from either side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// From the agent: queries are in the shared memory, to be answered under this number.
    Ask { rows: u32, number: u64 },
    /// From the child: the policy is loaded; a report of this length is in the shared memory.
    Loaded { length: u32 },
    /// From the child: the policy is refused; a text of this length says why.
    Refused { length: u32 },
    /// From the child: the answers are in the shared memory.
    Answered { rows: u32, number: u64 },
}

impl Message {
    /// The bytes of the message.
    pub(crate) fn encode(self) -> [u8; LENGTH] {
        let (kind, count, number) = match self {
            Self::Ask { rows, number } => (1u32, rows, number),
            Self::Loaded { length } => (2, length, 0),
            Self::Refused { length } => (3, length, 0),
            Self::Answered { rows, number } => (4, rows, number),
        };
        let mut bytes = [0; LENGTH];
        bytes[..4].copy_from_slice(&kind.to_ne_bytes());
        bytes[4..8].copy_from_slice(&count.to_ne_bytes());
        bytes[8..].copy_from_slice(&number.to_ne_bytes());
        bytes
    }

    /// The message of these bytes; `None` when they are none.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; LENGTH] = bytes.try_into().ok()?;
        let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|i| bytes[at + i]));
        let (count, number) = (
            word(4),
            u64::from_ne_bytes(std::array::from_fn(|i| bytes[8 + i])),
        );
        match (word(0), number) {
            (1, number) => Some(Self::Ask {
                rows: count,
                number,
            }),
            (2, 0) => Some(Self::Loaded { length: count }),
            (3, 0) => Some(Self::Refused { length: count }),
            (4, number) => Some(Self::Answered {
                rows: count,
                number,
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip_and_nothing_else_is_one() {
        let (rows, number, length) = (3, u64::MAX, 7);
        for message in [
            Message::Ask { rows, number },
            Message::Loaded { length },
            Message::Refused { length },
            Message::Answered { rows, number },
        ] {
            let bytes = message.encode();
            assert_eq!(Message::decode(&bytes), Some(message));
            assert_eq!(Message::decode(&bytes[1..]), None);
        }
        assert_eq!(Message::decode(&[9; LENGTH]), None);
        assert_eq!(Message::decode(&[]), None);
    }
}
