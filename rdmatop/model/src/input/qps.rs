//! Queue pairs, and what the eBPF programs have counted of them and of verbs.

use rdmatop_common::counters::{QpSlot, VerbErrorKey, VerbKey, VerbStats};

use super::ReadAt;
use crate::{
    cause::Cause,
    ib::{Gid, QpState, QpType},
};

/// Dump of QPs.
#[derive(Clone, Debug, Default)]
pub struct QpsSample {
    /// `CLOCK_MONOTONIC` **before** the dump began, ns: events after this time win over the dump.
    pub mono_ns: u64,
    /// Indices of the devices that were dumped completely; a QP of theirs that is not listed is gone.
    pub complete: Vec<u32>,
    /// The QPs.
    pub qps: Vec<QpReading>,
    /// What could not be read.
    pub errors: Vec<Cause>,
}

/// One QP of a dump.
#[derive(Clone, Debug)]
pub struct QpReading {
    /// Device index.
    pub device_index: u32,
    /// Port, when the kernel gave one.
    pub port: Option<u32>,
    /// QP number.
    pub qpn: u32,
    /// The type of transport that it was made for.
    pub qp_type: Option<QpType>,
    /// The state that the kernel gave.
    pub state: Option<QpState>,
    /// Peer's QP number.
    pub remote_qpn: Option<u32>,
    /// Send PSN, 24 bits.
    pub sq_psn: Option<u32>,
    /// Receive PSN, 24 bits.
    pub rq_psn: Option<u32>,
    /// Owner; `None` for kernel QPs and for orphans.
    pub pid: Option<u32>,
    /// Kernel consumer's name.
    pub kern_name: Option<String>,
}

/// The PSNs of a queue pair that was asked for.
#[derive(Clone, Copy, Debug)]
pub struct PsnReading {
    /// Device index.
    pub device_index: u32,
    /// Port, when the kernel gave one.
    pub port: Option<u32>,
    /// QP number.
    pub qpn: u32,
    /// The state that the kernel gave.
    pub state: Option<QpState>,
    /// Send PSN, 24 bits.
    pub sq_psn: Option<u32>,
    /// Receive PSN, 24 bits.
    pub rq_psn: Option<u32>,
    /// `CLOCK_MONOTONIC` in the middle of the request, ns.
    pub at_ns: u64,
}

/// Whom a queue pair sends to, as its device's firmware says, or that it does not say.
#[derive(Clone, Copy, Debug)]
pub struct PathReading {
    /// Device index.
    pub device_index: u32,
    /// QP number.
    pub qpn: u32,
    /// QP number of the peer, GID of its port, and the index of the queue pair's own GID; `None`: asking
    /// again is of no use.
    pub path: Option<(u32, Gid, u8)>,
    /// `CLOCK_MONOTONIC` before the request, ns.
    pub at_ns: u64,
}

/// Slots in use.
#[derive(Clone, Debug, Default)]
pub struct SlotsSample {
    /// `CLOCK_MONOTONIC` when the sweep began, ns.
    pub mono_ns: u64,
    /// When the slots of this sample were copied, which may be later: between two samples of one sweep the
    /// reader may have waited for the engine. `None`: when the sweep began.
    pub at: Option<ReadAt>,
    /// Slot number and copy, only slots in use.
    pub slots: Vec<(u32, QpSlot)>,
    /// Slots unchanged since the sweep before are left out. If false, a slot that is left out is free.
    pub partial: bool,
    /// The same sweep goes on in the next sample.
    pub more: bool,
    /// Number of slots, taken or free; 0 if not known.
    pub capacity: u32,
    /// QPs may exist that found no room in the tables of the kernel side; they are not counted.
    pub lacks_some: bool,
}

/// Verb counters, summed over CPUs, cumulative since attach.
#[derive(Clone, Debug, Default)]
pub struct VerbsSample {
    /// `CLOCK_MONOTONIC` in the middle of the reading, ns.
    pub mono_ns: u64,
    /// `verbs` and `errors` have only entries that changed since the sample before; entries that are left out
    /// are unchanged.
    pub partial: bool,
    /// Process and verb of the entries that the kernel side has dropped since the sample before.
    pub gone: Vec<(u32, u32)>,
    /// What is counted of each process and verb.
    pub verbs: Vec<(VerbKey, VerbStats)>,
    /// Calls of which only the number is known, always all of them. No key is also in `verbs`.
    pub calls_only: Vec<(VerbKey, u64)>,
    /// When `calls_only` was read, which differs from the time of `verbs`; `None`: at the same time.
    pub calls_only_ns: Option<u64>,
    /// Failures by errno.
    pub errors: Vec<(VerbErrorKey, u64)>,
}
