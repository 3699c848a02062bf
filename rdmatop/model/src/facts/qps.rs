//! Queue pairs.

use std::sync::Arc;

use serde::{Serialize, Serializer};

#[cfg(doc)]
use super::{DeviceRow, Facts, ProcessRow};
use super::{History, Traffic};
use crate::{
    ib::{Gid, QpState, QpType},
    value::Source,
};

/// A queue pair.
#[derive(Clone, Debug, Default, Serialize)]
pub struct QpRow {
    /// Unique in this run: a reused QPN is another QP.
    pub uid: u64,
    /// [`DeviceRow::uid`].
    pub device_uid: Option<u64>,
    /// Device name.
    pub device: Arc<str>,
    /// The port of the device that it uses.
    pub port: Option<u32>,
    /// QP number; [`Self::number`] if the kernel knows it.
    #[serde(serialize_with = "numbered")]
    pub qpn: u32,
    /// The type of transport that it was made for.
    pub qp_type: Option<QpType>,
    /// The state in which it was last seen.
    pub state: Option<QpState>,
    /// Source of `state`.
    pub state_source: Option<Source>,
    /// Process id of its owner.
    pub pid: Option<u32>,
    /// [`ProcessRow::uid`] of the owner.
    pub process_uid: Option<u64>,
    /// Owner's name, or the kernel consumer's in brackets.
    pub comm: Option<Arc<str>>,
    /// Owned by a kernel consumer.
    pub kernel: bool,
    /// Its owner exited while another process still holds it; or its process is unknown, because the thread
    /// that made it has ended.
    pub orphan: bool,
    /// Destroyed; the row stays for some seconds.
    pub exited: bool,
    /// Totals count from the attach, or from when the QP got a counter slot, and not from its creation.
    pub since_attach: bool,
    /// The QP moves data without a counter slot: its traffic is not known, and a note says why.
    pub uncounted: bool,
    /// Peer's QP number.
    pub remote_qpn: Option<u32>,
    /// GID of the peer's port.
    pub remote_gid: Option<Gid>,
    /// Source of `remote_gid`.
    pub remote_gid_source: Option<Source>,
    /// Path MTU, bytes.
    pub path_mtu: Option<u16>,
    /// Index of the QP's own address in the port's GID table.
    #[serde(skip)]
    pub sgid_index: Option<u8>,
    /// Time of its creation (`CLOCK_MONOTONIC`, ns); `None` when older than rdmatop. See [`QpRow::age_ns`].
    pub born_mono_ns: Option<u64>,
    /// Send PSN.
    pub sq_psn: Option<u32>,
    /// Receive PSN.
    pub rq_psn: Option<u32>,
    /// States and when they began (`mono_ns`), oldest first. Shared with the QP's rows in other snapshots.
    pub timeline: Arc<Vec<Step>>,
    /// Traffic. All QPs that have been idle from the start share one.
    #[serde(flatten)]
    pub traffic: Arc<Traffic>,
    /// Tx and Rx bytes/s (or WRs/s).
    #[serde(skip)]
    pub history: Arc<History>,
}

/// Stands for the number of a QP that has none in the kernel: mlx5's DCTs and its QPs that spread raw packets
/// have 0 there. A device has several of them, and only their addresses tell one from another.
pub const NO_NUMBER: u32 = u32::MAX;

/// Writes a number, null for [`NO_NUMBER`].
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
pub(crate) fn numbered<S: Serializer>(qpn: &u32, to: S) -> Result<S::Ok, S::Error> {
    Some(*qpn).filter(|qpn| *qpn != NO_NUMBER).serialize(to)
}

/// Returns a QP's device and number, with `-` for [`NO_NUMBER`].
pub fn qp_name(device: &str, qpn: u32) -> String {
    if qpn == NO_NUMBER {
        return format!("{device}/-");
    }
    format!("{device}/{qpn}")
}

impl QpRow {
    /// Its number, if the kernel knows it.
    pub fn number(&self) -> Option<u32> {
        Some(self.qpn).filter(|qpn| *qpn != NO_NUMBER)
    }

    /// Returns its device and number, as [`qp_name`] writes them.
    pub fn name(&self) -> String {
        qp_name(&self.device, self.qpn)
    }

    /// Age at a time of `CLOCK_MONOTONIC` ([`Facts::mono_ns`]), ns. It is no field: an age would change
    /// the row at every snapshot, and the rows of ten thousand idle QPs could not be shared.
    pub fn age_ns(&self, mono_ns: u64) -> Option<u64> {
        mono_ns.checked_sub(self.born_mono_ns?)
    }
}

/// A step of a QP's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// `CLOCK_MONOTONIC`, ns.
    pub mono_ns: u64,
    /// State entered.
    pub state: QpState,
    /// Time in the kernel's modify, ns; `None` for creation and initial sync.
    pub duration_ns: Option<u64>,
}
