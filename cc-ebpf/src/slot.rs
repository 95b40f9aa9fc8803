//! How a slot of the flow map passes from one flow to the next: the protocol between the datapath,
//! which runs under the locks of many sockets, and the agent, which shares its maps.
//!
//! - The datapath takes a slot from the kernel's list of free ones ([`open`]), looks in each
//!   callback whether the slot is still the flow's ([`find`]), and gives it back ([`close`]). It
//!   runs under the lock of the socket.
//! - The agent writes decisions into the slot's cell ([`publish`]), each by one store and with the
//!   generation of its flow, and copies slots that the datapath may be changing ([`snapshot`]).
//! - The agent takes a slot away: it publishes a [revocation](Decision::revocation), waits until
//!   every callback has ended that had begun before, and frees the slot ([`free`]).
//!
//! Both sides reach the maps through traits, so that the tests can explore these very functions
//! under every order of accesses that the memory model allows.

use core::ops::DerefMut;

use crate::{Decision, SocketState};

/// The part of a slot by which it changes hands and by which others copy it.
pub trait Tenure {
    /// Odd while the slot is being changed.
    fn sequence(&self) -> u32;

    /// Replaces the sequence number by one store.
    fn set_sequence(&mut self, sequence: u32);

    /// Orders the stores before this one before those after it.
    fn order_stores(&self);

    /// Counts the flows that have had the slot.
    fn generation(&self) -> u32;

    /// Whether a flow has the slot.
    fn is_live(&self) -> bool;

    /// Marks the slot as no flow's.
    fn vacate(&mut self);

    /// Marks the start of a change: makes the sequence number odd.
    #[inline(always)]
    fn begin_change(&mut self) {
        self.set_sequence(self.sequence() | 1);
        self.order_stores();
    }

    /// Marks the end of a change: makes the sequence number even, and different from before.
    #[inline(always)]
    fn end_change(&mut self) {
        self.order_stores();
        self.set_sequence((self.sequence() | 1).wrapping_add(1));
    }
}

/// The maps as the datapath reaches them.
pub trait DatapathMaps {
    /// Access to a slot.
    type Slot: DerefMut<Target: Tenure>;

    /// The slot's cell in the cwnd map; 0, which is no decision, for a slot out of range.
    fn cell(&self, slot: u32) -> u64;

    /// The slot itself, of which only the flow that has it may use more than the generation; `None`
    /// for one out of range.
    fn slot(&self, slot: u32) -> Option<Self::Slot>;

    /// Takes a slot from the list of free ones.
    fn take_free(&self) -> Option<u32>;

    /// Puts a slot on the list of free ones; false when the list is full.
    fn give_back(&self, slot: u32) -> bool;
}

/// The slot of a socket's flow, if it has one. A flow whose slot the agent has revoked has none any
/// more: from then on it must not touch the slot.
#[inline(always)]
pub fn find<M: DatapathMaps>(maps: &M, state: &SocketState) -> Option<M::Slot> {
    if !state.has_flow() {
        return None;
    }
    if let Some(decision) = Decision::from_cell(maps.cell(state.slot))
        && decision.revokes(state.generation)
    {
        return None;
    }
    let slot = maps.slot(state.slot)?;
    (slot.generation() == state.generation).then_some(slot)
}

/// Takes a slot for a new flow and begins to change it; `None` when no slot is free. The caller
/// starts the flow in it, with what the slot's previous flow may have left in the cell, and then
/// ends the change.
#[inline(always)]
pub fn open<M: DatapathMaps>(maps: &M, state: &mut SocketState) -> Option<M::Slot> {
    let number = maps.take_free()?;
    let mut slot = maps.slot(number)?;
    let generation = Decision::next_generation(slot.generation());
    state.assign(number, generation);
    slot.begin_change();
    Some(slot)
}

/// Takes the slot of a socket's flow away from it; `None` for a socket without a flow. The caller
/// gives the slot back by [`DatapathMaps::give_back`] once it no longer needs it.
#[inline(always)]
pub fn close<M: DatapathMaps>(maps: &M, state: &SocketState) -> Option<M::Slot> {
    let mut slot = find(maps, state)?;
    if !slot.is_live() {
        return None;
    }
    slot.begin_change();
    slot.vacate();
    slot.end_change();
    Some(slot)
}

/// The cwnd map and the slots, as the agent reaches them. Slots out of range have no flow.
pub trait AgentMaps {
    /// The slot's cell in the cwnd map.
    fn cell(&self, slot: u32) -> u64;

    /// Replaces the cell by one store.
    fn set_cell(&self, slot: u32, cell: u64);

    /// The generation of the flow that is live in the slot; `None` when none is.
    fn occupant(&self, slot: u32) -> Option<u32>;

    /// Marks a slot as no flow's. The datapath must have left it alone.
    fn vacate(&self, slot: u32);
}

/// The slots, of which copies can be made at any time.
pub trait Copied {
    /// A copy of a slot.
    type Copy;

    /// The slot's sequence number ([`Tenure::sequence`]).
    fn sequence(&self, slot: u32) -> u32;

    /// Orders the loads before this one before those after it.
    fn order_loads(&self);

    /// A copy of the slot, which the datapath may be changing meanwhile; `None` for a slot out of
    /// range.
    fn copy(&self, slot: u32) -> Option<Self::Copy>;
}

/// Publishes a decision for the flow in a slot. A flow whose slot has been revoked gets none any
/// more: until it has seen that, nothing may take the place of the revocation.
pub fn publish(maps: &impl AgentMaps, slot: u32, decision: Decision) {
    let present = Decision::from_cell(maps.cell(slot));
    if present.is_none_or(|present| !present.revokes(decision.generation)) {
        maps.set_cell(slot, decision.to_cell());
    }
}

/// Frees the slot of a flow, which must have been revoked so long ago that no callback of it can be
/// running that has not seen that. `give_back` puts it on the list of free slots. Returns false
/// when the flow of this generation is not live in the slot.
///
/// # Errors
///
/// Returns the error of `give_back`; then the slot stays unused.
pub fn free<E>(
    maps: &impl AgentMaps,
    slot: u32,
    generation: u32,
    give_back: impl FnOnce(u32) -> Result<(), E>,
) -> Result<bool, E> {
    if maps.occupant(slot) != Some(generation) {
        return Ok(false);
    }
    // First: were the agent to end in between, the slot would be lost but never given twice.
    maps.vacate(slot);
    give_back(slot)?;
    Ok(true)
}

/// A copy of a slot between two changes ([`Tenure::begin_change`]); `None` when the datapath kept
/// changing it.
pub fn snapshot<M: Copied>(maps: &M, slot: u32) -> Option<M::Copy> {
    (0..4).find_map(|_| {
        let before = maps.sequence(slot);
        maps.order_loads();
        let copy = maps.copy(slot)?;
        maps.order_loads();
        let after = maps.sequence(slot);
        (before == after && after.is_multiple_of(2)).then_some(copy)
    })
}

#[cfg(test)]
mod models;
