//! What is said once, however often it is found.

use tracing::warn;

/// The last trouble that was said of something.
#[derive(Debug, Default)]
pub(crate) struct Said(String);

impl Said {
    /// Logs a trouble, unless it was the last that was said.
    pub(crate) fn warn(&mut self, what: &impl ToString) {
        let what = what.to_string();
        if self.0 != what {
            warn!("{what}");
            self.0 = what;
        }
    }

    /// The trouble is over. Returns whether there was one.
    pub(crate) fn clear(&mut self) -> bool {
        !std::mem::take(&mut self.0).is_empty()
    }
}
