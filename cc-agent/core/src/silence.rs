//! Windows of flows that have fallen silent: no ACK comes to close them, so whoever reads the flows does.

use std::collections::VecDeque;

use cc_ebpf::{Flow, WindowRecord};

use crate::agent::FlowId;

/// How long after a window's end an ACK is waited for that closes it, ns.
const PATIENCE_NS: u64 = 5_000_000;

/// The windows whose ends are awaited, the earliest first.
#[derive(Debug)]
pub(crate) struct Silences {
    window_ns: u64,
    due: VecDeque<Due>,
}

#[derive(Clone, Copy, Debug)]
struct Due {
    at_ns: u64,
    flow: FlowId,
    window: u32,
}

impl Silences {
    /// None yet, of windows of this length.
    pub(crate) fn new(window_ns: u64) -> Self {
        Self {
            window_ns,
            due: VecDeque::new(),
        }
    }

    /// The flow's window of that number begins at `start_ns`. Windows all have the same length, so what becomes due is
    /// in the order in which it began.
    pub(crate) fn expect(&mut self, flow: FlowId, window: u32, start_ns: u64) {
        self.due.push_back(Due {
            at_ns: start_ns + self.window_ns + PATIENCE_NS,
            flow,
            window,
        });
    }

    /// A flow whose window should have been closed by now; `newest` tells the last window that was, and nothing where
    /// the flow is gone. Its state is to be read and handed to [`Self::close`].
    pub(crate) fn next(
        &mut self,
        now_ns: u64,
        newest: impl Fn(FlowId) -> Option<u32>,
    ) -> Option<FlowId> {
        while let Some(due) = self.due.pop_front_if(|due| due.at_ns <= now_ns) {
            if newest(due.flow).is_some_and(|newest| newest < due.window) {
                return Some(due.flow);
            }
        }
        None
    }

    /// When the next is due, ns.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        self.due.front().map(|due| due.at_ns)
    }

    /// The window of a silent flow, closed now; `None` where it is not over, or is empty. The datapath will close it
    /// too, at the next ACK; as nothing can have been added in between, that record repeats this one.
    pub(crate) fn close(&self, now_ns: u64, flow: &Flow) -> Option<WindowRecord> {
        flow.silent_window(now_ns, self.window_ns)
    }
}
