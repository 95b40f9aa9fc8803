//! The two directions of a link.

use std::fmt;

/// Direction in which packets cross the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the near end, which sends the data, to the far end.
    Forward,
    /// From the far end, which acknowledges the data, to the near end.
    Reverse,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Forward => "forward",
            Self::Reverse => "reverse",
        })
    }
}
