//! A flow's rows on their way out: each is held back until the decision on its window is known, and
//! whether it is the flow's last.

use std::{collections::VecDeque, sync::Arc};

use cc_ebpf::{Identity, WindowRecord};

use super::{Addresses, Decided, Episodes, FileHeader, Recorded, Row};
use crate::{paths::PathView, reward::Reward};

/// Upper bound on the rows of one flow that are held back, so that a policy that hangs does not
/// fill the memory.
const HELD: usize = 64;

/// Makes the rows of all flows, and keeps those that are complete until they are taken.
#[derive(Debug)]
pub(crate) struct RowBuffer {
    episodes: Episodes,
    addresses: Addresses,
    ready: Vec<Recorded>,
    dropped: u64,
}

impl RowBuffer {
    pub(crate) fn new(episodes: Episodes, addresses: Addresses) -> Self {
        Self {
            episodes,
            addresses,
            ready: Vec::new(),
            dropped: 0,
        }
    }

    /// Takes the complete rows, in the order in which they became complete.
    pub(crate) fn take(&mut self) -> Vec<Recorded> {
        std::mem::take(&mut self.ready)
    }

    /// Rows dropped because the policy did not answer their flow for too long.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }
}

/// The rows of one episode of a flow.
#[derive(Debug)]
pub(crate) struct EpisodeRows {
    name: u64,
    sequence: u32,
    initial_cwnd_bytes: u64,
    local: Option<Arc<str>>,
    remote: Option<Arc<str>>,
    cgroup: u64,
    cookie: u64,
    netns: u32,
    held: VecDeque<Held>,
}

#[derive(Debug)]
struct Held {
    recorded: Recorded,
    /// The decision on its window, or that there is none, is final.
    settled: bool,
}

impl EpisodeRows {
    /// Begins an episode, whose history of decisions starts from `initial_cwnd_bytes`.
    pub(crate) fn begin(
        buffer: &mut RowBuffer,
        identity: &Identity,
        initial_cwnd_bytes: u64,
    ) -> Self {
        let (local, remote) = identity.endpoints();
        Self {
            name: buffer.episodes.next_name(),
            sequence: 0,
            initial_cwnd_bytes,
            local: buffer.addresses.write(local),
            remote: buffer.addresses.write(remote),
            cgroup: identity.cgroup_id,
            cookie: identity.cookie,
            netns: identity.netns,
            held: VecDeque::new(),
        }
    }

    /// Adds the row of a window that has ended, with what was known of its path then; the
    /// decision on it may still come.
    pub(crate) fn on_window(
        &mut self,
        buffer: &mut RowBuffer,
        header: &Arc<FileHeader>,
        window: &WindowRecord,
        path: Option<PathView>,
        reward: Reward,
    ) {
        if self.held.len() >= HELD && self.held.back().is_some_and(|newest| newest.settled) {
            self.held.pop_back();
            buffer.dropped += 1;
        }
        let row = Box::new(Row {
            flow: self.name,
            sequence: self.sequence,
            window: *window,
            path,
            initial_cwnd_bytes: self.initial_cwnd_bytes,
            decision: None,
            terms: reward.terms,
            reward: reward.value as f32,
            end: false,
            local: self.local.clone(),
            remote: self.remote.clone(),
            cgroup: self.cgroup,
            cookie: self.cookie,
            netns: self.netns,
        });
        self.sequence = self.sequence.wrapping_add(1);
        self.held.push_back(Held {
            recorded: Recorded {
                header: header.clone(),
                row,
            },
            settled: false,
        });
        self.release(buffer);
    }

    /// Completes the row of window number `window` with the decision on it, made by the policy of
    /// `header`; `None` when there will be no decision.
    pub(crate) fn settle(
        &mut self,
        buffer: &mut RowBuffer,
        header: Option<&Arc<FileHeader>>,
        window: u32,
        decision: Option<Decided>,
    ) {
        let of = |held: &&mut Held| held.recorded.row.window.index == window;
        if let Some(held) = self.held.iter_mut().find(of) {
            if let (Some(header), Some(_)) = (header, &decision) {
                held.recorded.header = header.clone();
            }
            held.recorded.row.decision = decision;
            held.settled = true;
        }
        self.release(buffer);
    }

    /// Ends the episode, because the flow `closed` or because the recording of it stops.
    pub(crate) fn finish(mut self, buffer: &mut RowBuffer, closed: bool) {
        if let Some(last) = self.held.back_mut() {
            last.recorded.row.end = closed;
        }
        buffer
            .ready
            .extend(self.held.into_iter().map(|held| held.recorded));
    }

    /// Lets complete rows go in their order, up to the first that is not; the newest stays, as it
    /// may be the last.
    fn release(&mut self, buffer: &mut RowBuffer) {
        while self.held.len() > 1
            && let Some(held) = self.held.pop_front_if(|held| held.settled)
        {
            buffer.ready.push(held.recorded);
        }
    }
}
