//! The records that a simulated flow puts out, as the datapath does through its ring buffer.

use std::collections::VecDeque;

use cc_ebpf::{AckSample, ClosedRecord, Feature, Flow, Header, Record, RecordSink, WindowRecord};

use crate::{path::Nanos, scenario::Scenario};

/// `AF_INET`, the address family of [`cc_ebpf::Identity`] for IPv4.
pub(super) const AF_INET: u16 = 2;

/// The address of host number `host` in an identity. The first one has none, as in earlier
/// simulations: a canary chooses its flows by it.
pub(super) fn address(host: usize) -> [u32; 4] {
    let address = Scenario::host_address(host).map_or(0, u32::from);
    [address.to_be(), 0, 0, 0]
}

/// Records that wait to be taken, the oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Records(VecDeque<Record>);

impl Records {
    /// Removes and returns the oldest record; `None` when all have been taken.
    pub(super) fn take(&mut self) -> Option<Record> {
        self.0.pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Announces a flow that has begun.
    pub(super) fn opened(&mut self, flow: &Flow) {
        self.0.push_back(Record::Opened(flow.opened));
    }

    /// Summarises a flow that ends at `now`: after its newest ACK, which left the cwnd at `cwnd`
    /// segments and `delivered` segments delivered.
    pub(super) fn closed(
        &mut self,
        flow: &Flow,
        now: Nanos,
        ack: &AckSample,
        cwnd: u32,
        delivered: u64,
    ) {
        // A bulk sender sends only data.
        let segments = (ack.totals.bytes_sent / u64::from(ack.mss.max(1))) as u32;
        self.0.push_back(Record::Closed(ClosedRecord {
            header: Header::of::<ClosedRecord>(flow.opened.header.slot, flow.generation, now),
            totals: ack.totals,
            bytes_acked: delivered * u64::from(ack.mss),
            segs_out: segments,
            data_segs_out: segments,
            delivered: delivered as u32,
            min_rtt_us: flow.window.features.min[Feature::RttMin as usize],
            windows: flow.window.index,
            cwnd,
        }));
    }
}

impl RecordSink for Records {
    fn window(&mut self, record: &WindowRecord) {
        self.0.push_back(Record::Window(*record));
    }
}
