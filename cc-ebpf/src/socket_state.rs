//! The part of a flow's state that is kept with its socket.

use bytemuck::{Pod, Zeroable};

use crate::Totals;

/// Which slot a socket's flow has, and how far the flow has come.
///
/// The datapath keeps it in the socket itself (`icsk_ca_priv`, 104 bytes), the observer in its map
/// of sockets ([`Observed`](crate::Observed)). [`stage`](Self::stage) and
/// [`generation`](Self::generation) together say where the flow stands:
///
/// ```text
///                stage    generation
///  new           NEW      0            before `init`
///     |  init: `ready`
///     v
///  ready         READY    0            the next ACK opens the flow
///     |  first ACK: `opens`
///     v
///  opened        OPENED   of the flow  has a slot: `has_flow`
///     |  release: `release`         |  the slot was taken away: `wait`
///     v                             v
///  passed over   OPENED   0     waiting   WAITING  0   asks again: `opens`
/// ```
///
/// A flow that finds no free slot waits as well. A socket is passed over for good when the observer
/// does not select it. A flow can skip `ready`: where the kernel left `init` out, the first ACK
/// after the handshake opens it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct SocketState {
    /// Generation of the flow in its slot; 0 while the socket has no slot.
    pub generation: u32,
    /// Slot of the flow; meaningless while the socket has none.
    pub slot: u32,
    /// How far the flow has come: [`Self::NEW`], [`Self::READY`], [`Self::OPENED`] or
    /// [`Self::WAITING`].
    pub stage: u32,
    /// Retransmission timeouts that the BPF programs have counted, for kernels without `total_rto`.
    pub rtos: u32,
    /// The connection's totals from which the flow's features count.
    pub base: Totals,
    /// When a waiting flow last asked for a slot, ms of the monotonic clock modulo 2^32.
    pub asked_ms: u32,
    #[doc(hidden)]
    pub reserved: u32,
}

impl SocketState {
    /// Before `init`. The SYN-ACK of a connection that this host opens is processed in this stage
    /// (`tcp_rcv_synsent_state_process` before `tcp_init_transfer`, net/ipv4/tcp_input.c).
    pub const NEW: u32 = 0;
    /// After `init`: the next ACK opens the flow.
    pub const READY: u32 = 1;
    /// The flow has a slot, had one until its release, or is passed over.
    pub const OPENED: u32 = 2;
    /// The flow found no free slot, or lost its own to another flow while it was idle: an ACK asks
    /// again after [`Self::RETRY_MS`].
    pub const WAITING: u32 = 3;
    /// Time between two attempts of a waiting flow, ms.
    pub const RETRY_MS: u32 = 100;

    /// The state of a socket whose next ACK opens a flow, and whose totals stand at `base`.
    #[inline(always)]
    pub fn ready(base: Totals) -> Self {
        Self {
            stage: Self::READY,
            base,
            ..Self::default()
        }
    }

    /// Whether the flow has a slot.
    #[inline(always)]
    pub fn has_flow(&self) -> bool {
        self.generation != 0
    }

    /// Whether the next ACK opens the flow.
    #[inline(always)]
    pub fn is_ready(&self) -> bool {
        self.stage == Self::READY
    }

    /// Whether the socket has no slot and will get none, so that nothing is measured.
    #[inline(always)]
    pub fn is_passed_over(&self) -> bool {
        self.stage == Self::OPENED && !self.has_flow()
    }

    /// Marks a socket without a slot as passed over, which it is unless it is given one now.
    #[inline(always)]
    pub fn pass_over(&mut self) {
        self.stage = Self::OPENED;
    }

    /// Records that the flow in `slot`, with this generation, is the socket's.
    #[inline(always)]
    pub fn assign(&mut self, slot: u32, generation: u32) {
        self.slot = slot;
        self.generation = generation;
    }

    /// Records at `now_ns` that the flow has no slot and waits for one. Returns whether it begins
    /// to wait now.
    #[inline(always)]
    pub fn wait(&mut self, now_ns: u64) -> bool {
        let begins = self.asked_ms == 0;
        self.generation = 0;
        self.stage = Self::WAITING;
        // 0 stands for a flow that has not waited.
        self.asked_ms = (now_ns / 1_000_000) as u32 | 1;
        begins
    }

    /// Records that the flow has given its slot back.
    #[inline(always)]
    pub fn release(&mut self) {
        self.generation = 0;
    }

    /// Whether the ACK at hand opens the flow: the first one after `init`, or after the handshake
    /// where `init` was not called. A kernel may leave out single calls of BPF programs (a hardened
    /// 6.18 leaves out those that happen while process 1 is interrupted), and such a flow would go
    /// without decisions for its whole life. The flow that waits for a slot asks again with the
    /// first ACK after [`Self::RETRY_MS`]. `totals` reads those of the socket, `now_ns` is the time
    /// of the ACK.
    #[inline(always)]
    pub fn opens(
        &mut self,
        is_synchronised: bool,
        now_ns: u64,
        totals: impl FnOnce() -> Totals,
    ) -> bool {
        match self.stage {
            Self::READY => {}
            Self::NEW if is_synchronised => self.base = totals(),
            Self::WAITING => {
                let now_ms = (now_ns / 1_000_000) as u32;
                if now_ms.wrapping_sub(self.asked_ms) < Self::RETRY_MS {
                    return false;
                }
                self.base = totals();
            }
            _ => return false,
        }
        self.pass_over();
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
        let mut state = SocketState::ready(totals(1));
        assert!(state.is_ready() && !state.is_passed_over());
        assert!(state.opens(true, 0, || totals(2)));
        assert_eq!(state.base, totals(1), "what init saw");
        assert!(!state.opens(true, u64::MAX, || totals(3)));
    }

    #[test]
    fn without_init_it_opens_after_the_handshake() {
        let mut state = SocketState::default();
        assert!(!state.opens(false, 0, || totals(1)), "the SYN-ACK");
        assert!(state.opens(true, 0, || totals(2)));
        assert_eq!(state.base, totals(2));
        assert!(!state.opens(true, u64::MAX, || totals(3)));
    }

    #[test]
    fn a_socket_without_a_slot_is_passed_over() {
        let mut state = SocketState::ready(totals(1));
        state.opens(true, 0, || totals(2));
        assert!(state.is_passed_over() && !state.has_flow(), "no slot yet");
        state.assign(9, 4);
        assert!(state.has_flow() && !state.is_passed_over());
        state.release();
        assert!(state.is_passed_over());
    }

    #[test]
    fn a_flow_without_a_slot_asks_again() {
        const MS: u64 = 1_000_000;
        let mut state = SocketState::ready(totals(1));
        assert!(state.opens(true, 5_000 * MS, || totals(2)));
        assert!(state.wait(5_000 * MS), "it begins to wait");
        assert!(!state.opens(true, 5_099 * MS, || totals(3)));
        assert!(!state.has_flow() && !state.is_passed_over());
        assert!(state.opens(true, 5_102 * MS, || totals(4)));
        assert_eq!(state.base, totals(4), "it counts from here");
        assert!(!state.wait(5_102 * MS), "it has waited before");
        assert!(state.opens(true, 5_300 * MS, || totals(5)));
        state.assign(3, 9);
        assert!(state.has_flow());
    }
}
