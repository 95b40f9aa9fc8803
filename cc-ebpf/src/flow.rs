//! One slot of the flow map: everything that the datapath keeps of a flow.

use bytemuck::{Pod, Zeroable};

use crate::{AckSample, Controller, Extractor, Header, OpenedRecord, Totals, WindowRecord};

/// A flow's state. The agent maps these read-only: it finds flows that another agent left behind,
/// and closes the window of a flow that has fallen silent.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Flow {
    /// Odd while the datapath is changing the state: a reader that finds it odd, or changed after
    /// copying, copies again.
    pub sequence: u32,
    /// Counts the flows that have had this slot (modulo 2^20, never 0 for a flow).
    pub generation: u32,
    /// 1 from opened to closed.
    pub live: u32,
    #[doc(hidden)]
    pub reserved: u32,
    /// Who it is and when it was opened: the record that announced it.
    pub opened: OpenedRecord,
    /// The current window.
    pub window: WindowRecord,
    /// What its ACKs are compared with.
    pub extractor: Extractor,
    /// What sets its window.
    pub controller: Controller,
}

impl Flow {
    /// Starts a flow in its slot: the first window begins at `now_ns`, features count from `base`, and `cell` is what the
    /// slot's previous owner may have left in the cwnd map. Who it is remains to be filled in.
    #[inline(always)]
    pub fn open(&mut self, slot: u32, generation: u32, now_ns: u64, base: Totals, cell: u64) {
        self.generation = generation;
        self.live = 1;
        self.opened.header = Header::of::<OpenedRecord>(slot, generation, now_ns);
        self.window.header = Header::of::<WindowRecord>(slot, generation, now_ns);
        self.window.acks = 0;
        self.window.restart(now_ns);
        self.window.index = 1;
        self.extractor.start(base);
        self.controller.start(cell);
    }

    /// Completes the window's record, to be emitted: an ACK that finds the window at `cwnd` segments has closed it.
    #[inline(always)]
    pub fn complete_window(&mut self, ack: &AckSample, cwnd: u32) {
        let (decision, taken_ns) = self.controller.taken();
        let record = &mut self.window;
        record.header.time_ns = ack.now_ns;
        record.decision = decision;
        record.decision_taken_ns = taken_ns;
        record.cwnd = cwnd;
        record.mode = self.controller.mode() as u32;
        record.mss = ack.mss;
    }

    /// Marks the start of a change.
    #[inline(always)]
    pub fn begin_change(&mut self) {
        let odd = self.sequence | 1;
        // SAFETY: a valid, aligned field of `self`; volatile so that the store is made, in order
        // with the other volatile one.
        unsafe { core::ptr::write_volatile(&mut self.sequence, odd) };
        core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
    }

    /// Marks the end of a change.
    #[inline(always)]
    pub fn end_change(&mut self) {
        core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
        let even = (self.sequence | 1).wrapping_add(1);
        // SAFETY: as above.
        unsafe { core::ptr::write_volatile(&mut self.sequence, even) };
    }
}

/// What the datapath keeps in the socket itself (`icsk_ca_priv`, 104 bytes): which slot it has.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct SocketState {
    /// Generation of the flow, 0 while it has no slot.
    pub generation: u32,
    /// Slot of the flow.
    pub slot: u32,
    /// How far the flow has come: [`Self::NEW`], [`Self::READY`] or [`Self::OPENED`].
    pub stage: u32,
    /// Timeouts counted by ourselves, for kernels without `total_rto`.
    pub rtos: u32,
    /// Totals when the congestion control was attached.
    pub base: Totals,
}

impl SocketState {
    /// Before `init`. The SYN-ACK of a connection that we open is processed in this stage
    /// (`tcp_rcv_synsent_state_process` before `tcp_init_transfer`, net/ipv4/tcp_input.c).
    pub const NEW: u32 = 0;
    /// After `init`: the next ACK opens the flow.
    pub const READY: u32 = 1;
    /// The flow has asked for a slot, with or without success.
    pub const OPENED: u32 = 2;

    /// Whether the ACK at hand opens the flow: the first one after `init`, or after the handshake where `init` was not
    /// called. A kernel may leave single calls of BPF programs out (a hardened 6.18 does, of all that happens while
    /// process 1 is interrupted), and such a flow would go without decisions for life. `totals` are the socket's.
    #[inline(always)]
    pub fn opens(&mut self, is_synchronised: bool, totals: Totals) -> bool {
        match self.stage {
            Self::READY => {}
            Self::NEW if is_synchronised => self.base = totals,
            _ => return false,
        }
        self.stage = Self::OPENED;
        true
    }
}

const _: () = assert!(size_of::<SocketState>() <= 104);

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(segs_in: u32) -> Totals {
        Totals {
            segs_in,
            ..Totals::default()
        }
    }

    #[test]
    fn a_flow_opens_once_with_the_first_ack_after_init() {
        let mut state = SocketState {
            stage: SocketState::READY,
            base: totals(1),
            ..SocketState::default()
        };
        assert!(state.opens(true, totals(2)));
        assert_eq!(state.base, totals(1), "what init saw");
        assert!(!state.opens(true, totals(3)));
    }

    #[test]
    fn without_init_it_opens_after_the_handshake() {
        let mut state = SocketState::default();
        assert!(!state.opens(false, totals(1)), "the SYN-ACK");
        assert!(state.opens(true, totals(2)));
        assert_eq!(state.base, totals(2));
        assert!(!state.opens(true, totals(3)));
    }
}
