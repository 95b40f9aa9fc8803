//! Observations rebuilt from rows.

use crate::{
    interface::Interface,
    observation::{History, observe},
    rows::Row,
};

/// Follows one episode's rows, from its first and in their order, and says what the policy saw at each.
///
/// After a gap in [`Row::sequence`] the history lacks the decisions of the lost rows, so that observations are
/// right again only [`Interface::history`] decisions later.
#[derive(Clone, Debug)]
pub struct Replay {
    history: Option<History>,
}

impl Replay {
    /// Before the first row of an episode.
    pub fn new() -> Self {
        Self { history: None }
    }

    /// The observation of the row's window, [`Interface::observation_len`] values: what the policy was asked, if
    /// it was. Then takes the row's decision into the history.
    pub fn next(&mut self, interface: &Interface, row: &Row) -> Vec<f32> {
        let history = self
            .history
            .get_or_insert_with(|| History::new(interface, row.initial_cwnd_bytes));
        let observation = observe(interface, &row.window, history);
        if let Some(decision) = &row.decision {
            let action = decision.action.map_or(0, usize::from);
            let bytes = u64::from(decision.cwnd) * u64::from(row.window.mss);
            history.push(interface, action, bytes);
        }
        observation
    }
}

impl Default for Replay {
    fn default() -> Self {
        Self::new()
    }
}
