//! What a queue pair, a process or a device moved.

use serde::Serialize;

use crate::{
    ib::{WcStatus, WrOpcode},
    value::Counter,
};

/// Work requests, bytes and completions of a QP or a process.
///
/// `None` is "not observable", which is what a NIC that bypasses the kernel gives.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Traffic {
    /// Send WRs finished.
    pub tx_wr: Option<Counter>,
    /// Send WRs posted.
    pub tx_wr_posted: Option<Counter>,
    /// Receive WRs completed.
    pub rx_wr: Option<Counter>,
    /// Receive WRs posted, as of the last receive completion or modify, or of destroy. `None` also where
    /// receives come from a shared receive queue (SRQ), which belongs to no QP.
    pub rx_wr_posted: Option<Counter>,
    /// Bytes of send-side WRs.
    pub tx_bytes: Option<Counter>,
    /// Bytes of receive completions.
    pub rx_bytes: Option<Counter>,
    /// CQEs.
    pub completions: Option<Counter>,
    /// CQEs with an error, flushes not counted.
    pub completion_errors: Option<Counter>,
    /// CQEs flushed because the QP went to ERR.
    pub flushes: Option<Counter>,
    /// Request packets sent again.
    pub retransmits: Option<Counter>,
    /// Waits for a receiver without buffers.
    pub rnr_waits: Option<Counter>,
    /// Calls of post_send that reached the kernel.
    pub doorbells: Option<Counter>,
    /// CQEs for which the CQ had no room.
    pub cq_overflows: Option<Counter>,
    /// Packets. Of a QP: an estimate from the movement of its send PSN, which a READ moves by the packets of
    /// its answer. Of a process: as the NIC counts them for its QPs.
    pub tx_packets: Option<Counter>,
    /// Send WRs by opcode; only those that happened.
    pub by_opcode: Vec<OpcodeTraffic>,
    /// CQEs by status, success too; only those that happened. Their sum is `completions`.
    pub by_status: Vec<StatusCount>,
    /// Post-to-completion time.
    pub latency: Option<Latency>,
}

impl Traffic {
    /// Bytes per second that its work requests send and receive. The bytes of a READ are among those of send
    /// WRs, and they are received.
    pub fn ways(&self) -> [Option<f64>; 2] {
        let reads = self.by_opcode.iter().filter(|o| matches!(o.opcode.0, 4 | 11));
        let read: f64 = reads.filter_map(|o| o.bytes.rate).sum();
        let [tx, rx] = [self.tx_bytes, self.rx_bytes].map(|c| c.and_then(Counter::certain_rate));
        [tx.map(|tx| (tx - read).max(0.0)), rx.map(|rx| rx + read)]
    }

    /// Marks all counters as lower bounds: some traffic was not counted.
    pub fn is_partial(&mut self) {
        let counters = [
            &mut self.tx_wr,
            &mut self.tx_wr_posted,
            &mut self.rx_wr,
            &mut self.rx_wr_posted,
            &mut self.tx_bytes,
            &mut self.rx_bytes,
            &mut self.completions,
            &mut self.completion_errors,
            &mut self.flushes,
            &mut self.retransmits,
            &mut self.rnr_waits,
            &mut self.doorbells,
            &mut self.cq_overflows,
            &mut self.tx_packets,
        ];
        let opcodes = self
            .by_opcode
            .iter_mut()
            .flat_map(|row| [&mut row.wr, &mut row.bytes]);
        let statuses = self.by_status.iter_mut().map(|row| &mut row.cqes);
        let counters = counters.into_iter().flatten().chain(opcodes).chain(statuses);
        counters.for_each(|counter| counter.partial = true);
    }
}

/// Send WRs of one opcode.
#[derive(Clone, Debug, Serialize)]
pub struct OpcodeTraffic {
    /// Opcode.
    pub opcode: WrOpcode,
    /// WRs.
    pub wr: Counter,
    /// Bytes.
    pub bytes: Counter,
}

/// CQEs of one status.
#[derive(Clone, Debug, Serialize)]
pub struct StatusCount {
    /// Status.
    pub status: WcStatus,
    /// CQEs.
    pub cqes: Counter,
}

/// A log2 histogram of times, and figures taken from it.
#[derive(Clone, Debug, Serialize)]
pub struct Latency {
    /// Samples.
    pub count: u64,
    /// Work requests that had finished before their doorbell was seen: they give no sample and are not lost.
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
