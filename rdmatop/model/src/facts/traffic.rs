//! What a queue pair, a process or a device moved.

use std::mem::offset_of;

use rdmatop_common::counters::{QpSlot, slot_flag};
use serde::Serialize;

use crate::{
    ib::{WcStatus, WrOpcode},
    value::Counter,
};

/// Where a slot has a counter, and which flags of the slot make that counter unknown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Count {
    /// Its place among the [`WORDS`] of a slot.
    pub(crate) place: usize,
    /// Bits of `slot_flag`, each of which makes it unknown.
    pub(crate) unless: u32,
}

/// Offset of the first counter in a slot. Only counters of one word each follow it.
pub(crate) const FIRST: usize = offset_of!(QpSlot, doorbells);
/// Words of a slot that are counters.
pub(crate) const WORDS: usize = (size_of::<QpSlot>() - FIRST) / size_of::<u64>();
/// `IB_WC_WR_FLUSH_ERR`: after an error, each WR that was still queued ends with such a CQE.
pub(crate) const FLUSH: usize = 5;

/// The place of a member of the slot among its counters.
macro_rules! place {
    ($member:ident) => {
        (std::mem::offset_of!(QpSlot, $member) - $crate::facts::FIRST) / size_of::<u64>()
    };
}

pub(crate) use place;

/// Makes [`Traffic`] from the table of counters, in the order of JSON: constant, name, place in a slot, and
/// the bits of `slot_flag` that make the counter unknown.
macro_rules! counters {
    ($($(#[$doc:meta])* $count:ident $name:ident: $place:expr, $unless:expr;)*) => {
        /// Where slots have the counters of [`Traffic`].
        pub(crate) mod count {
            use super::*;
            $(pub(crate) const $count: Count = Count { place: $place, unless: $unless };)*
        }

        /// Work requests, bytes and completions of a QP or a process.
        ///
        /// `None` is "not observable", as with a NIC whose work requests bypass the kernel.
        #[derive(Clone, Debug, Default, Serialize)]
        pub struct Traffic {
            $($(#[$doc])* pub $name: Option<Counter>,)*
            /// Packets. Of a QP: an estimate from the movement of its send PSN; a READ moves the PSN by the
            /// number of packets of its answer. Of a process: as the NIC counts them for its QPs, or the sum
            /// of what such PSNs moved by.
            pub tx_packets: Option<Counter>,
            /// Send WRs by opcode; only those that happened.
            pub by_opcode: Vec<OpcodeTraffic>,
            /// CQEs by status, also of success; only those that happened. Their sum is `completions`.
            pub by_status: Vec<StatusCount>,
            /// Post-to-completion time.
            pub latency: Option<Latency>,
        }

        impl Traffic {
            /// The counters that `of` knows, and nothing else.
            pub(crate) fn of(of: impl Fn(Count) -> Option<Counter>) -> Self {
                Self { $($name: of(count::$count),)* ..Self::default() }
            }

            fn counters(&mut self) -> impl Iterator<Item = &mut Counter> {
                [$(&mut self.$name,)* &mut self.tx_packets].into_iter().flatten()
            }
        }
    };
}

counters! {
    /// Send WRs finished.
    TX_WR tx_wr: place!(tx_done), slot_flag::NO_SENDS;
    /// Send WRs posted.
    TX_WR_POSTED tx_wr_posted: place!(tx_posted), slot_flag::NO_SENDS;
    /// Receive WRs completed.
    RX_WR rx_wr: place!(rx_done), slot_flag::NO_CQES;
    /// Receive WRs posted, as of the last receive completion, modify or destroy. `None` also if the QP
    /// receives from a shared receive queue (SRQ), which belongs to no single QP.
    RX_WR_POSTED rx_wr_posted: place!(rx_posted), 0;
    /// Bytes of send-side WRs.
    TX_BYTES tx_bytes: place!(tx_bytes), slot_flag::NO_SENDS;
    /// Bytes of receive completions.
    RX_BYTES rx_bytes: place!(rx_bytes), slot_flag::NO_CQES;
    /// CQEs.
    COMPLETIONS completions: place!(cqes), slot_flag::NO_CQES;
    /// CQEs with an error, flushes not counted.
    COMPLETION_ERRORS completion_errors: WORDS, slot_flag::NO_CQES;
    /// CQEs flushed because the QP went to ERR.
    FLUSHES flushes: place!(wc) + FLUSH, slot_flag::NO_CQES;
    /// Request packets sent again.
    RETRANSMITS retransmits: place!(retransmits), slot_flag::NO_RETRANSMITS;
    /// Waits for a receiver without buffers.
    RNR_WAITS rnr_waits: place!(rnr_waits), slot_flag::NO_RNR;
    /// Calls of post_send that reached the kernel.
    DOORBELLS doorbells: place!(doorbells), slot_flag::NO_DOORBELLS;
    /// CQEs for which the CQ had no room.
    CQ_OVERFLOWS cq_overflows: place!(cq_overflows), slot_flag::NO_CQES;
}

impl Traffic {
    /// Bytes per second that its work requests send and receive. A READ's bytes are counted among those of
    /// send WRs, but they are received, so they are moved to the other direction. Where the rate of READs is
    /// unknown, so are both.
    pub fn ways(&self) -> [Option<f64>; 2] {
        let reads = self.by_opcode.iter().filter(|o| matches!(o.opcode.0, 4 | 11));
        let Some(read) = reads.map(|o| o.bytes.rate).sum::<Option<f64>>() else {
            return [None, None];
        };
        let [tx, rx] = [self.tx_bytes, self.rx_bytes].map(|c| c.and_then(Counter::certain_rate));
        [tx.map(|tx| (tx - read).max(0.0)), rx.map(|rx| rx + read)]
    }

    /// Marks all counters as lower bounds, because some traffic was not counted.
    pub fn is_partial(&mut self) {
        self.counters().for_each(|counter| counter.partial = true);
        for row in &mut self.by_opcode {
            (row.wr.partial, row.bytes.partial) = (true, true);
        }
        for row in &mut self.by_status {
            row.cqes.partial = true;
        }
    }
}

/// Send WRs of one opcode.
#[derive(Clone, Debug, Serialize)]
pub struct OpcodeTraffic {
    /// What the work requests ask for.
    pub opcode: WrOpcode,
    /// WRs.
    pub wr: Counter,
    /// The bytes that they moved.
    pub bytes: Counter,
}

/// CQEs of one status.
#[derive(Clone, Debug, Serialize)]
pub struct StatusCount {
    /// The status with which the work requests ended.
    pub status: WcStatus,
    /// CQEs.
    pub cqes: Counter,
}

/// A log2 histogram of times, and figures taken from it.
#[derive(Clone, Debug, Serialize)]
pub struct Latency {
    /// How many times were measured.
    pub count: u64,
    /// Work requests that had finished before their doorbell was seen: they give no sample, and are not lost.
    pub early: u64,
    /// Mean, ns.
    pub mean_ns: Option<u64>,
    /// Upper edge of the bucket that holds the median, ns.
    pub p50_ns: Option<u64>,
    /// Upper edge of the bucket that holds the 99th percentile, ns.
    pub p99_ns: Option<u64>,
    /// Largest, ns, exact.
    pub max_ns: Option<u64>,
    /// Samples by bucket: `i` holds `[2^i, 2^(i+1))` ns.
    pub buckets: Vec<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::Source;

    #[test]
    fn reads_of_an_unknown_rate_are_not_taken_for_none() {
        let counter = |rate| Counter::whole(1, rate, Source::Ebpf);
        let moved = |read| {
            let traffic = Traffic {
                tx_bytes: Some(counter(Some(100.0))),
                rx_bytes: Some(counter(Some(10.0))),
                by_opcode: vec![OpcodeTraffic {
                    opcode: WrOpcode(4),
                    wr: counter(read),
                    bytes: counter(read),
                }],
                ..Traffic::default()
            };
            traffic.ways()
        };
        assert_eq!(moved(Some(40.0)), [Some(60.0), Some(50.0)]);
        assert_eq!(moved(None), [None, None]);
    }
}
