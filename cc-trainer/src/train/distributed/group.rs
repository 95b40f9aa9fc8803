//! The learner and its replicas, as the learner sees them: who takes part in an update, what their
//! parts are, and who is waited for.
//!
//! A replica that has rollouts says so. The next update of the learner begins with all replicas
//! that have said so, and waits for those that took part in the one before, but for no longer than
//! [`PATIENCE`]. Parameters, optimiser and everything else that is learnt are the learner's: each
//! update begins by sending them, so that a replica can come, go, or fall behind at any time and
//! has nothing that could be lost or drift.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::mpsc;
use tonic::Status;

use super::wire::{Begin, FromLearner, Policy, Start, Sums, from_learner, to_bytes, to_json};
use crate::{
    learner::{
        LearnerState, Reduction, SchedulePosition,
        partners::{Beginning, Part, Partners, PartnersError, combine},
    },
    model::{Device, RmsProp},
};

/// Time that a replica has for its part of an update that it has begun, and until it is no longer
/// waited for.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The replicas of a learner, and what they have sent for the present update.
#[derive(Debug)]
pub struct Group {
    /// Number of replicas that there can be, all of which the first update waits for.
    most: usize,
    /// Largest number of updates between the policy that began a rollout and the update that learns
    /// from it; `None` for no bound.
    max_lag: Option<u64>,
    /// Time that a replica has for its part of an update; [`PATIENCE`] but for tests.
    patience: Duration,
    state: Mutex<State>,
    /// Notified when a replica comes, goes, or sends anything.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The replicas by the order in which they came.
    members: BTreeMap<u64, Member>,
    next: u64,
    /// Whether the first update has waited long enough.
    complete: bool,
    /// Rollouts of replicas that were learnt from for the first time, since they were last asked
    /// for.
    fresh: u64,
}

/// A replica that is connected.
struct Member {
    to_replica: mpsc::Sender<Result<FromLearner, Status>>,
    /// What it has said of the rollouts that it has; `None` while it has none.
    begun: Option<Begin>,
    /// Whether the next update waits for it.
    awaited: bool,
    /// The update that it takes part in: number of updates before it, and its fresh rollouts.
    within: Option<(u64, u32)>,
    sums: Option<Vec<f64>>,
    /// The gradient of its part, and its fresh rollouts.
    part: Option<(Part, u32)>,
    /// It has left, and is here for its part alone.
    gone: bool,
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member")
            .field("begun", &self.begun)
            .field("awaited", &self.awaited)
            .field("within", &self.within)
            .finish_non_exhaustive()
    }
}

impl Member {
    /// Sends a message; false when the replica does not read or is gone.
    fn send(&self, content: from_learner::Content) -> bool {
        let message = FromLearner {
            content: Some(content),
        };
        self.to_replica.try_send(Ok(message)).is_ok()
    }
}

impl Group {
    /// A learner and its replicas, `learners` in all, of which none has come yet.
    pub fn new(learners: usize, max_lag: Option<u64>) -> Self {
        Self {
            most: learners.saturating_sub(1),
            max_lag,
            patience: PATIENCE,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Takes in a replica, which gets its messages by `to_replica`. It has to leave by dropping the
    /// result. `None` when there is no place for another.
    pub(super) fn join(
        self: &Arc<Self>,
        to_replica: mpsc::Sender<Result<FromLearner, Status>>,
    ) -> Option<Membership> {
        let mut state = self.lock();
        if state.present().count() >= self.most {
            return None;
        }
        let index = state.next;
        state.next += 1;
        let member = Member {
            to_replica,
            begun: None,
            awaited: !state.complete,
            within: None,
            sums: None,
            part: None,
            gone: false,
        };
        state.members.insert(index, member);
        drop(state);
        self.changed.notify_all();
        Some(Membership {
            group: self.clone(),
            index,
        })
    }

    /// Returns the number of replicas that are there, and of those that there can be.
    pub fn replicas(&self) -> (usize, usize) {
        (self.lock().present().count(), self.most)
    }

    /// Waits for at most `patience` until no replica is waited for any more, and returns whether
    /// that is so.
    pub fn wait(&self, patience: Duration) -> bool {
        let is_awaited = |state: &mut State| {
            let missing = !state.complete && state.present().count() < self.most;
            let is_awaited = |member: &Member| member.awaited && member.begun.is_none();
            missing || state.present().any(is_awaited)
        };
        let (mut state, waited) = self
            .changed
            .wait_timeout_while(self.lock(), patience, is_awaited)
            .unwrap_or_else(PoisonError::into_inner);
        state.complete |= !waited.timed_out();
        !waited.timed_out()
    }

    /// Waits for no replica any more that has no rollouts yet. It is waited for again once it has
    /// taken part in an update.
    pub fn go_on(&self) {
        let mut state = self.lock();
        state.complete = true;
        for member in state.members.values_mut() {
            member.awaited = false;
        }
    }

    /// Returns the number of rollouts that replicas learnt from for the first time since the last
    /// call.
    pub fn take_fresh(&self) -> u64 {
        std::mem::take(&mut self.lock().fresh)
    }

    /// Begins an update with all replicas that have rollouts for it, and returns them.
    fn start(&self, start: &Start) -> Vec<u64> {
        let mut state = self.lock();
        let mut within = Vec::new();
        state.members.retain(|&index, member| {
            let Some(begun) = member.begun.take() else {
                return !member.gone;
            };
            member.awaited = true;
            let lag = start.updates.saturating_sub(begun.oldest);
            if self.max_lag.is_some_and(|most| lag > most) {
                return member.send(from_learner::Content::Policy(Policy {
                    version: start.updates,
                    parameters: start.parameters.clone(),
                }));
            }
            (member.sums, member.part) = (None, None);
            member.within = Some((start.updates, begun.fresh));
            let is_there = member.send(from_learner::Content::Start(start.clone()));
            if is_there {
                within.push(index);
            }
            is_there
        });
        within
    }

    /// Waits until each of the replicas `within` the update has sent its piece, and returns the
    /// pieces. Replicas without one after [`PATIENCE`], and those whose piece is not `fitting`, are
    /// cut off; they and those that have gone are `within` no more.
    fn collect<T>(
        &self,
        within: &mut Vec<u64>,
        piece: impl Fn(&mut Member) -> &mut Option<T>,
        fitting: impl Fn(&T) -> bool,
    ) -> Vec<T> {
        let since = Instant::now();
        let mut state = self.lock();
        loop {
            let left = self.patience.saturating_sub(since.elapsed());
            let mut is_missing = |index: &u64| {
                let member = state.members.get_mut(index);
                member.is_some_and(|member| piece(member).is_none())
            };
            if left.is_zero() || !within.iter().any(&mut is_missing) {
                break;
            }
            let waited = self.changed.wait_timeout(state, left);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        let mut pieces = Vec::new();
        within.retain(|index| {
            let Some(member) = state.members.get_mut(index) else {
                return false;
            };
            let reason = match piece(member).take() {
                Some(own) if fitting(&own) => {
                    pieces.push(own);
                    if member.gone {
                        state.members.remove(index);
                    }
                    return true;
                }
                Some(_) => "the part of the update has other sizes than the learner's",
                None => "the part of the update has not come in time",
            };
            // The replica may not read, but then its stream ends with its connection.
            let _ = (member.to_replica).try_send(Err(Status::unavailable(reason)));
            state.members.remove(index);
            false
        });
        pieces
    }

    /// Tells the replicas within an update the sums over the whole batch.
    fn tell(&self, within: &mut Vec<u64>, totals: &Sums) {
        let mut state = self.lock();
        within.retain(|index| {
            let totals = from_learner::Content::Totals(totals.clone());
            let is_there = state.members.get(index).is_some_and(|own| own.send(totals));
            if !is_there {
                state.members.remove(index);
            }
            is_there
        });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The replicas that have not left.
    fn present(&self) -> impl Iterator<Item = &Member> {
        self.members.values().filter(|member| !member.gone)
    }
}

/// A replica's place in the group, which it leaves when this is dropped.
#[derive(Debug)]
pub(super) struct Membership {
    group: Arc<Group>,
    index: u64,
}

impl Membership {
    /// Takes note of what the replica says of its rollouts.
    pub(super) fn begin(&self, begin: Begin) -> Result<(), &'static str> {
        self.change(|member| {
            // The end of an update is nothing that the learner tells.
            member.begun = Some(begin);
            Ok(())
        })
    }

    /// Takes note of the sums over the replica's part of an update.
    pub(super) fn sums(&self, sums: Sums) -> Result<(), &'static str> {
        self.within(sums.updates, |member, _| member.sums = Some(sums.values))
    }

    /// Takes note of the gradient of the replica's part of an update.
    pub(super) fn part(&self, updates: u64, part: Part) -> Result<(), &'static str> {
        self.within(updates, |member, fresh| member.part = Some((part, fresh)))
    }

    /// Changes something of the update that the replica takes part in, with its fresh rollouts.
    fn within(
        &self,
        updates: u64,
        change: impl FnOnce(&mut Member, u32),
    ) -> Result<(), &'static str> {
        self.change(|member| match member.within {
            Some((own, fresh)) if own == updates => {
                change(member, fresh);
                Ok(())
            }
            _ => Err("a part of an update that the replica does not take part in"),
        })
    }

    fn change(
        &self,
        change: impl FnOnce(&mut Member) -> Result<(), &'static str>,
    ) -> Result<(), &'static str> {
        let mut state = self.group.lock();
        let changed = match state.members.get_mut(&self.index) {
            Some(member) => change(member),
            None => Err("the learner goes on without this replica"),
        };
        drop(state);
        self.group.changed.notify_all();
        changed
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let mut state = self.group.lock();
        match state.members.get_mut(&self.index) {
            // What it has computed is of use even so.
            Some(member) if member.part.is_some() => {
                member.gone = true;
                member.begun = None;
            }
            _ => {
                state.members.remove(&self.index);
            }
        }
        drop(state);
        self.group.changed.notify_all();
    }
}

/// The replicas as the learner's [`Partners`].
#[derive(Debug)]
pub struct Leader {
    group: Arc<Group>,
    /// The replicas that take part in the update.
    within: Vec<u64>,
    /// Number of updates before it.
    updates: u64,
}

impl Leader {
    /// The learner that a group's replicas learn with.
    pub fn new(group: Arc<Group>) -> Self {
        Self {
            group,
            within: Vec::new(),
            updates: 0,
        }
    }
}

impl Partners for Leader {
    fn begin(&mut self, beginning: Beginning<'_>) -> Result<(), PartnersError> {
        self.within.clear();
        self.updates = *beginning.updates;
        if self.group.replicas().0 == 0 {
            return Ok(());
        }
        let mut parameters = Vec::new();
        beginning.device.parameters(&mut parameters)?;
        let SchedulePosition {
            learning_rate,
            entropy,
        } = *beginning.position;
        let state: &LearnerState = beginning.state;
        let start = Start {
            updates: self.updates,
            learning_rate,
            entropy,
            parameters: to_bytes(parameters),
            state: to_json(state),
        };
        self.within = self.group.start(&start);
        Ok(())
    }

    fn sum(&mut self, sums: &mut [f64]) -> Result<(), PartnersError> {
        if self.within.is_empty() {
            return Ok(());
        }
        let length = sums.len();
        let pieces = (self.group).collect(
            &mut self.within,
            |member| &mut member.sums,
            |piece| piece.len() == length,
        );
        for piece in pieces {
            for (sum, value) in sums.iter_mut().zip(piece) {
                *sum += value;
            }
        }
        let totals = Sums {
            updates: self.updates,
            values: sums.to_vec(),
        };
        self.group.tell(&mut self.within, &totals);
        Ok(())
    }

    fn step(
        &mut self,
        device: &mut dyn Device,
        rollouts: usize,
        loss: Reduction,
        optimiser: &RmsProp,
    ) -> Result<f32, PartnersError> {
        if !self.within.is_empty() {
            let mut own = Part {
                rollouts,
                gradient: Vec::new(),
            };
            device.gradient(&mut own.gradient)?;
            let length = own.gradient.len();
            let others = (self.group).collect(
                &mut self.within,
                |member| &mut member.part,
                |(part, _)| part.gradient.len() == length,
            );
            let (others, fresh): (Vec<_>, Vec<_>) = others.into_iter().unzip();
            self.group.lock().fresh += fresh.into_iter().map(u64::from).sum::<u64>();
            combine(&mut own, &others, loss);
            device.set_gradient(&own.gradient)?;
        }
        Ok(device.step(optimiser)?)
    }
}

#[cfg(test)]
mod tests;
