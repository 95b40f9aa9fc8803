//! Rebuilds the observations of a policy from the rows of a flow.

use crate::{
    interface::Interface,
    observation::{History, Windows, observe},
    rows::Row,
};

/// Rebuilds the observations of one episode from its rows, which must come in their order and from
/// the first.
///
/// After a gap in [`Row::sequence`] the history lacks the decisions of the lost rows; observations
/// are right again after [`Interface::history`] further decisions and [`Interface::series`] further
/// windows; the [`Aspect`](crate::interface::Aspect)s of the flow's situation, only if none of the
/// lost windows had an extreme.
#[derive(Clone, Debug)]
pub struct Replay {
    /// What the rows before have left; `None` before the first.
    before: Option<(History, Windows)>,
}

impl Replay {
    /// Creates the state before the first row of an episode.
    pub fn new() -> Self {
        Self { before: None }
    }

    /// Returns the observation of the row's window, [`Interface::observation_len`] values, bit for
    /// bit as the policy got it. Then adds the row's decision to the history.
    pub fn next(&mut self, interface: &Interface, row: &Row) -> Vec<f32> {
        let (history, windows) = self.before.get_or_insert_with(|| {
            let history = History::new(interface, row.initial_cwnd_bytes);
            (history, Windows::new(interface))
        });
        windows.push(interface, &row.window, row.path);
        let observation = observe(interface, &row.window, history, windows);
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
