//! Explores the protocol with loom: every interleaving of callbacks and agent, and every value that
//! each load may return.
//!
//! The maps are the model's, the functions under test are the real ones. The agent's accesses are
//! relaxed, as volatile ones are, and ordered by fences alone. The datapath's loads acquire, as
//! every load does on x86, the only processor that is supported. Its stores are relaxed and ordered
//! by [`Tenure::order_stores`]: there that is a fence of the compiler, because x86 keeps the order
//! of stores, and here one of the processor.
//!
//! What a flow keeps in its slot for itself lies in a cell of loom's, which fails the test when two
//! threads use it at once, or one after the other with nothing that orders them.
//!
//! Each property has a second test, in which one part of the protocol is left out, and which has to
//! fail.

extern crate std;

use std::{boxed::Box, collections::VecDeque};

use loom::{
    cell::UnsafeCell,
    model::Builder,
    sync::{
        Arc, Mutex,
        atomic::{
            AtomicU32, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
            fence,
        },
    },
    thread,
};

use super::*;
use crate::{
    Controller, CwndState, Heartbeat, Mode, Published, Settings, Totals, WindowEnd,
    feature::tests::ack,
};

/// The cwnd that is decided for the flow of each generation, segments.
const CWNDS: [u32; 3] = [0, 100, 200];

/// The parts of the protocol that a test can leave out.
#[derive(Clone, Copy)]
struct Parts {
    /// The writer's order of stores.
    order_stores: bool,
    /// The reader's order of loads.
    order_loads: bool,
    /// The check that nothing takes the place of a revocation.
    keep_revocation: bool,
    /// The wait for running callbacks between a revocation and the freeing of the slot.
    wait: bool,
}

const ALL: Parts = Parts {
    order_stores: true,
    order_loads: true,
    keep_revocation: true,
    wait: true,
};

/// The only slot there is, the cell of its decision, and the list of free slots.
struct Memory {
    parts: Parts,
    cell: AtomicU64,
    sequence: AtomicU32,
    generation: AtomicU32,
    live: AtomicU32,
    /// Two words that are always changed together.
    window: [AtomicU32; 2],
    /// Used by the flow alone that has the slot.
    controller: UnsafeCell<Controller>,
    free: Mutex<VecDeque<u32>>,
}

/// Access to the memory, for each thread of its own.
#[derive(Clone)]
struct Slot(Arc<Memory>);

impl Slot {
    /// A slot that no flow has had yet.
    fn new(parts: Parts) -> Self {
        Self(Arc::new(Memory {
            parts,
            cell: AtomicU64::new(0),
            sequence: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            live: AtomicU32::new(0),
            window: [AtomicU32::new(0), AtomicU32::new(0)],
            controller: UnsafeCell::new(Controller::default()),
            free: Mutex::new(VecDeque::from([0])),
        }))
    }

    fn with_controller<T>(&self, work: impl FnOnce(&mut Controller) -> T) -> T {
        // SAFETY: the cell checks that nothing else uses it meanwhile.
        (self.0.controller).with_mut(|controller| unsafe { work(&mut *controller) })
    }

    /// Changes the two words, as a callback that measures an ACK does.
    fn measure(&mut self) {
        let next = self.0.window[0].load(Relaxed) + 1;
        self.begin_change();
        for word in &self.0.window {
            word.store(next, Relaxed);
        }
        self.end_change();
    }

    /// Handles an ACK of the flow with this state, which follows no decision but its own.
    fn ack(&self, state: &SocketState) {
        let Some(slot) = find(self, state) else {
            return;
        };
        let heartbeat = Heartbeat {
            at_ns: ack().now_ns,
            pid: 1,
        };
        let published = Published {
            cell: DatapathMaps::cell(&*slot, 0),
            heartbeat: &heartbeat,
        };
        let mut cwnd = CwndState {
            cwnd: 300,
            ssthresh: u32::MAX,
            cwnd_cnt: 0,
            clamp: u32::MAX,
        };
        let (generation, settings) = (state.generation, Settings::default());
        slot.with_controller(|controller| {
            let end = WindowEnd::None;
            controller.on_ack(&mut cwnd, &ack(), published, generation, end, &settings);
            if controller.mode() == Mode::Decided {
                assert_eq!(cwnd.cwnd, CWNDS[generation as usize], "another's decision");
            }
        });
    }

    /// Opens a flow, if the slot is free.
    fn open(&self) -> Option<SocketState> {
        let mut state = SocketState::default();
        let mut slot = open(self, &mut state)?;
        slot.0.generation.store(state.generation, Relaxed);
        slot.0.live.store(1, Relaxed);
        let cell = DatapathMaps::cell(self, 0);
        slot.with_controller(|controller| controller.start(cell, Totals::default()));
        slot.end_change();
        Some(state)
    }

    /// Closes the flow with this state, if it still has the slot.
    fn close(&self, state: &SocketState) {
        if let Some(slot) = close(self, state) {
            slot.with_controller(|controller| controller.taken());
            assert!(self.give_back(0));
        }
    }

    /// The agent's decision for the flow of this generation.
    fn decide(&self, generation: u32) {
        let decision = Decision {
            generation,
            window: 1,
            cwnd: CWNDS[generation as usize],
        };
        if self.0.parts.keep_revocation {
            publish(self, 0, decision);
        } else {
            self.set_cell(0, decision.to_cell());
        }
    }

    /// Whether at most one flow has the slot or can get it.
    fn is_sound(&self) -> bool {
        let free = self.0.free.lock().expect("no thread has panicked").len();
        free + self.0.live.load(Relaxed) as usize <= 1
    }
}

impl Tenure for Slot {
    fn sequence(&self) -> u32 {
        self.0.sequence.load(Relaxed)
    }

    fn set_sequence(&mut self, sequence: u32) {
        self.0.sequence.store(sequence, Relaxed);
    }

    fn order_stores(&self) {
        if self.0.parts.order_stores {
            fence(Release);
        }
    }

    fn generation(&self) -> u32 {
        self.0.generation.load(Acquire)
    }

    fn is_live(&self) -> bool {
        self.0.live.load(Acquire) == 1
    }

    fn vacate(&mut self) {
        self.0.live.store(0, Relaxed);
    }
}

impl DatapathMaps for Slot {
    type Slot = Box<Slot>;

    fn cell(&self, _: u32) -> u64 {
        self.0.cell.load(Acquire)
    }

    fn slot(&self, _: u32) -> Option<Box<Slot>> {
        Some(Box::new(self.clone()))
    }

    fn take_free(&self) -> Option<u32> {
        self.0
            .free
            .lock()
            .expect("no thread has panicked")
            .pop_front()
    }

    fn give_back(&self, slot: u32) -> bool {
        let mut free = self.0.free.lock().expect("no thread has panicked");
        free.push_back(slot);
        true
    }
}

impl AgentMaps for Slot {
    fn cell(&self, _: u32) -> u64 {
        self.0.cell.load(Relaxed)
    }

    fn set_cell(&self, _: u32, cell: u64) {
        self.0.cell.store(cell, Release);
    }

    fn occupant(&self, _: u32) -> Option<u32> {
        let live = self.0.live.load(Relaxed);
        let generation = self.0.generation.load(Relaxed);
        (live == 1).then_some(generation)
    }

    fn vacate(&self, _: u32) {
        self.0.live.store(0, Relaxed);
    }
}

impl Copied for Slot {
    type Copy = [u32; 2];

    fn sequence(&self, _: u32) -> u32 {
        self.0.sequence.load(Relaxed)
    }

    fn order_loads(&self) {
        if self.0.parts.order_loads {
            fence(Acquire);
        }
    }

    fn copy(&self, _: u32) -> Option<[u32; 2]> {
        Some([0, 1].map(|i| self.0.window[i].load(Relaxed)))
    }
}

/// Explores a test with at most `switches` switches away from a thread that could have gone on.
fn explore(switches: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(switches);
    builder.check(test);
}

/// The agent copies a slot while a callback changes it, twice.
fn copying(parts: Parts) {
    explore(2, move || {
        let slot = Slot::new(parts);
        let mut theirs = slot.clone();
        let datapath = thread::spawn(move || {
            theirs.measure();
            theirs.measure();
        });
        if let Some([first, second]) = snapshot(&slot, 0) {
            assert_eq!(first, second, "a torn copy");
        }
        datapath.join().expect("it has not panicked");
        assert_eq!(snapshot(&slot, 0), Some([2, 2]));
    });
}

#[test]
fn copies_are_not_torn() {
    copying(ALL);
}

#[test]
#[should_panic(expected = "a torn copy")]
fn copies_are_torn_if_loads_are_not_ordered() {
    copying(Parts {
        order_loads: false,
        ..ALL
    });
}

#[test]
#[should_panic(expected = "a torn copy")]
fn copies_are_torn_if_stores_are_not_ordered() {
    copying(Parts {
        order_stores: false,
        ..ALL
    });
}

/// A flow closes, and the slot's next one opens, while the agent decides for both.
#[test]
fn a_late_decision_does_not_reach_the_slots_next_flow() {
    explore(3, || {
        let slot = Slot::new(ALL);
        let first = slot.open().expect("the slot is free");
        let theirs = slot.clone();
        let closing = thread::spawn(move || {
            theirs.ack(&first);
            theirs.close(&first);
        });
        let theirs = slot.clone();
        let opening = thread::spawn(move || {
            if let Some(second) = theirs.open() {
                theirs.ack(&second);
                theirs.ack(&second);
            }
        });
        slot.decide(1);
        slot.decide(2);
        closing.join().expect("it has not panicked");
        opening.join().expect("it has not panicked");
        assert!(slot.is_sound(), "the slot was given twice");
    });
}

/// The agent takes the slot of an idle flow away just when that flow becomes active, or closes; an
/// answer for the flow is still on its way. Another flow takes the slot as soon as it can, and the
/// agent decides for it once it knows of it.
fn revoking(parts: Parts, closes: bool) {
    explore(3, move || {
        let slot = Slot::new(parts);
        let first = slot.open().expect("the slot is free");
        // What waiting for running callbacks comes to: none runs while the agent holds this.
        let running = Arc::new(Mutex::new(()));

        let (theirs, callback) = (slot.clone(), running.clone());
        let idle = thread::spawn(move || {
            {
                let _callback = callback.lock();
                theirs.ack(&first);
            }
            let _callback = callback.lock();
            match closes {
                true => theirs.close(&first),
                false => theirs.ack(&first),
            }
        });
        let announced = Arc::new(Mutex::new(false));
        let (theirs, record) = (slot.clone(), announced.clone());
        let opening = thread::spawn(move || {
            if let Some(second) = theirs.open() {
                *record.lock().expect("no thread has panicked") = true;
                theirs.ack(&second);
            }
        });

        publish(&slot, 0, Decision::revocation(1));
        slot.decide(1);
        if parts.wait {
            drop(running.lock());
        }
        let give_back = |number| slot.give_back(number).then_some(()).ok_or(());
        free(&slot, 0, 1, give_back).expect("the list has room");
        if *announced.lock().expect("no thread has panicked") {
            // From now on the cell does not tell the first flow that its slot is gone.
            slot.decide(2);
        }
        idle.join().expect("it has not panicked");
        opening.join().expect("it has not panicked");
        assert!(slot.is_sound(), "the slot was given twice");
    });
}

#[test]
fn a_revoked_slot_has_one_flow() {
    revoking(ALL, false);
}

#[test]
fn a_slot_that_is_revoked_and_closed_is_freed_once() {
    revoking(ALL, true);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_revoked_slot_has_two_flows_if_a_late_answer_replaces_the_revocation() {
    let parts = Parts {
        keep_revocation: false,
        ..ALL
    };
    revoking(parts, false);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_revoked_slot_has_two_flows_if_nobody_waits_for_callbacks() {
    revoking(Parts { wait: false, ..ALL }, false);
}
