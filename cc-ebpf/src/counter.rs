//! What can go wrong in the datapath, counted.

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $variant:ident => $name:literal,)+) => {
        /// Index into the datapath's per-CPU counters, each named for what it means.
        #[repr(u32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Counter {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Counter {
            /// Every counter, in index order.
            pub const ALL: &[Counter] = &[$(Self::$variant,)+];

            /// Its name in status reports.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// What it means, in a sentence.
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+),)+ }
            }
        }
    };
}

counters! {
    /// Flows that got a slot.
    FlowsOpened => "flows_opened",
    /// Flows that gave their slot back.
    FlowsClosed => "flows_closed",
    /// Flows that found no free slot and run on the fallback for life.
    FlowsWithoutSlot => "flows_without_slot",
    /// Window, opened or closed records lost because the ring buffer was full.
    RecordsDropped => "records_dropped",
    /// Per-ACK records lost because their ring buffer was full.
    AckRecordsDropped => "ack_records_dropped",
    /// Decisions taken up.
    DecisionsTaken => "decisions_taken",
    /// Decisions for a flow that no longer had the slot.
    DecisionsStale => "decisions_stale",
    /// Decisions outside the guard rails, taken up after clamping.
    DecisionsClamped => "decisions_clamped",
    /// Times that a flow fell back because the agent's heartbeat was too old.
    FallbacksEntered => "fallbacks_entered",
    /// Times that a flow left the fallback for a fresh decision.
    FallbacksLeft => "fallbacks_left",
    /// Retransmission timeouts that sent a flow back to slow start.
    Timeouts => "timeouts",
    /// Slots that could not be given back to the free list: should always be 0.
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
