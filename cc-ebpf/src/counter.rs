//! Event counters of the datapath: its successes and whatever can go wrong.

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $variant:ident => $name:literal,)+) => {
        /// An event that the datapath counts, as an index into its per-CPU counters.
        #[repr(u32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Counter {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Counter {
            /// Every counter, in index order.
            pub const ALL: &[Counter] = &[$(Self::$variant,)+];

            /// The counter's name in status reports.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// The meaning of the counter in a sentence.
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+),)+ }
            }
        }
    };
}

counters! {
    /// Flows that were given a slot.
    FlowsOpened => "flows_opened",
    /// Flows that gave their slot back.
    FlowsClosed => "flows_closed",
    /// Flows that found no free slot. They run on Reno and ask again every 100 ms.
    FlowsWithoutSlot => "flows_without_slot",
    /// Window, opened or closed records lost because the ring buffer was full.
    RecordsDropped => "records_dropped",
    /// Per-ACK records lost because their ring buffer was full.
    AckRecordsDropped => "ack_records_dropped",
    /// Decisions that set a flow's cwnd.
    DecisionsTaken => "decisions_taken",
    /// Decisions ignored because they were for a flow that no longer had the slot.
    DecisionsStale => "decisions_stale",
    /// Decisions outside the cwnd bounds, clamped to them.
    DecisionsClamped => "decisions_clamped",
    /// Times that a flow fell back, because the agent's heartbeat was too old or because too many
    /// of the flow's windows had ended without a decision.
    FallbacksEntered => "fallbacks_entered",
    /// Times that a flow left the fallback for a new decision.
    FallbacksLeft => "fallbacks_left",
    /// Times that a flow fell back because too many of its windows had ended without a decision,
    /// although the agent's heartbeat was fresh.
    FlowsUnanswered => "flows_unanswered",
    /// Times that heavy loss halved a flow's cwnd before the next decision.
    LossAnswered => "loss_answered",
    /// Times that congestion-experienced marks (ECN) halved a flow's cwnd.
    MarksAnswered => "marks_answered",
    /// Times that a flow began to transmit again after idle time with a smaller cwnd.
    IdleRestarts => "idle_restarts",
    /// Flows that found at an ACK that the agent had taken their slot away while they were idle.
    SlotsRevoked => "slots_revoked",
    /// Retransmission timeouts that sent a decided flow back to slow start.
    Timeouts => "timeouts",
    /// Connections that came under this congestion control and were left to another one, as the
    /// lists of networks and devices ask.
    ConnectionsLeft => "connections_left",
    /// Connections that the lists leave to another congestion control, and that the kernel kept
    /// under this one.
    ConnectionsKept => "connections_kept",
    /// Slots that could not be given back to the free list; should always be 0.
    SlotsLeaked => "slots_leaked",
}

#[cfg(test)]
mod tests {
    use super::Counter;

    #[test]
    fn all_is_in_index_order() {
        for (index, counter) in Counter::ALL.iter().enumerate() {
            assert_eq!(*counter as usize, index);
            assert!(!counter.name().is_empty() && !counter.meaning().is_empty());
        }
    }
}
