//! Rows: one per ended window of a flow, with the decision that answered it. Recordings consist of
//! rows.

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

/// A row with the header of the file that it goes to.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// The header of the file. Rows that share this `Arc` go to the same file.
    pub header: Arc<FileHeader>,
    /// The row; boxed, so that its 800 bytes are not moved on their way to the file.
    pub row: Box<Row>,
}
