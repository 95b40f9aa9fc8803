//! Rows: one per ended window of a flow, with the decision that answered it. Recordings are made of them.

mod addresses;
pub(crate) mod buffer;
mod episode;
mod header;
mod replay;
mod row;

use std::sync::Arc;

pub use addresses::{AddressKey, Addresses, Form as AddressForm};
pub use episode::Episodes;
pub use header::FileHeader;
pub use replay::Replay;
pub use row::{Decided, NO_MODE, Row};

/// A row, and the header of the file that it belongs into.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// Rows of one header, by identity, go into one file.
    pub header: Arc<FileHeader>,
    /// The row, some 800 bytes that stay where they are on their way to the file.
    pub row: Box<Row>,
}
