//! Events as views see them: decoded, owner and state filled in from what the engine knows.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};

use serde::Serialize;

use super::facts::{DevxKind, named_kinds};
use super::findings::{Change, Finding};
use super::ib::{AsyncEvent, CmEvent, Gid, QpState, QpType, WcStatus, WrRequest};

named_kinds! {
    /// What happened.
    #[derive(Default)]
    EventKind:
    /// A QP was created.
    QpCreate = "qp_create",
    /// A QP was modified: its state if `to` is set, otherwise attributes only.
    QpModify = "qp_modify",
    /// A QP was destroyed.
    QpDestroy = "qp_destroy",
    /// An asynchronous QP event (`async_event` names it).
    QpError = "qp_error",
    /// An MR was registered (`bytes`).
    MrReg = "mr_reg",
    /// An MR was deregistered (`bytes`).
    MrDereg = "mr_dereg",
    /// A CQ was created (`cqe` entries).
    CqCreate = "cq_create",
    /// A CQ was destroyed.
    CqDestroy = "cq_destroy",
    /// An object was made past ib_core, on mlx5 (`devx` says what it is).
    DevxCreate = "devx_create",
    /// An object was destroyed that had been made past ib_core.
    DevxDestroy = "devx_destroy",
    /// rdma_cm: the active side asked for a connection.
    CmConnect = "cm_connect",
    /// rdma_cm: the passive side accepted.
    CmAccept = "cm_accept",
    /// rdma_cm: this side refused.
    CmReject = "cm_reject",
    /// rdma_cm: this side ended the connection.
    CmDisconnect = "cm_disconnect",
    /// rdma_cm: the process was given an event (`cm_event` names it).
    CmEvent = "cm_event",
    /// A verb returned an errno (`verb`, `rc`).
    VerbError = "verb_error",
    /// A work request was posted (`wr_id`, `opcode`, `bytes`). Only where asked for.
    WrPost = "wr_post",
    /// A work request has ended (`wc_status`, `duration_ns` since its post). Only where asked for.
    WrDone = "wr_done",
    /// Records were lost (`count`, `where`), or failed calls were left out whose process makes too many
    /// ([`BUDGET`]).
    #[default]
    Lost = "lost",
    /// Something is wrong from now on (`finding`).
    FindingRaise = "finding_raise",
    /// A finding no longer holds (`finding`).
    FindingClear = "finding_clear",
}

/// [`Event::lost_where`] of failed calls beyond those that become events:
/// [`crate::input::Flood::failures`].
pub const BUDGET: &str = "budget";

impl EventKind {
    /// Whether it comes only where it is asked for by name: there are as many as there are work requests.
    pub const fn is_on_request(self) -> bool {
        matches!(self, Self::WrPost | Self::WrDone)
    }

    /// Whether rdmatop concludes it from what it has read, as opposed to what happened in the kernel, which
    /// is counted: printed and lost ones are all there were.
    pub const fn is_concluded(self) -> bool {
        matches!(self, Self::Lost | Self::FindingRaise | Self::FindingClear)
    }

    /// Whether it is about a finding.
    pub const fn is_finding(self) -> bool {
        matches!(self, Self::FindingRaise | Self::FindingClear)
    }
}

/// One event. Text fields are already safe to print (see `rdmatop_base::text`).
///
/// `None` is unknown or not applicable to the kind; JSON leaves such fields out except the six that every
/// object has (`device`, `qpn`, `pid`, `tid`, `comm`, `rc`: null when unknown).
#[derive(Clone, Debug, Default, Serialize)]
pub struct Event {
    /// Version of this object: 1.
    pub schema: u32,
    /// `CLOCK_REALTIME` nanoseconds since the epoch, made from the kernel's monotonic stamp.
    pub ts_ns: u64,
    /// The kernel's own `CLOCK_MONOTONIC` stamp, ns: gives order and intervals.
    pub mono_ns: u64,
    /// What happened.
    pub event: EventKind,
    /// Device name.
    pub device: Option<Arc<str>>,
    /// Port number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u32>,
    /// QP number.
    pub qpn: Option<u32>,
    /// QP type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qp_type: Option<QpType>,
    /// Owner: the process that created the object; `None` for kernel consumers and when unknown.
    pub pid: Option<u32>,
    /// Thread that made the call, when it belongs to the owner.
    pub tid: Option<u32>,
    /// Owner's name at the time, or the kernel consumer's name in brackets.
    pub comm: Option<Arc<str>>,
    /// The object belongs to a kernel consumer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub kernel: bool,
    /// Process that made the call when it is not the owner (a holder of an inherited verbs file).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_pid: Option<u32>,
    /// State before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<QpState>,
    /// State after; with a negative `rc` the state that was requested and not reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<QpState>,
    /// Attribute mask of the modify, `IB_QP_*` bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attr_mask: Option<u32>,
    /// Destination QPN set by the modify.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dest_qpn: Option<u32>,
    /// GID of the peer's port set by the modify.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dest_gid: Option<Gid>,
    /// Path MTU set by the modify, bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_mtu: Option<u16>,
    /// GID index set by the modify.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sgid_index: Option<u8>,
    /// Local ACK timeout exponent set by the modify (4.096 us * 2^timeout).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u8>,
    /// Retry count set by the modify.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_cnt: Option<u8>,
    /// RNR retry count set by the modify.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rnr_retry: Option<u8>,
    /// Asynchronous event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub async_event: Option<AsyncEvent>,
    /// What events of rdma_cm have beside this; in a place of its own, because few events are and a log keeps
    /// thousands.
    #[serde(flatten)]
    pub cm: Option<Box<Cm>>,
    /// The work request that was posted or has ended; in a place of its own for the same reason.
    #[serde(flatten)]
    pub work: Option<Box<Work>>,
    /// Bytes of the MR, or of the work request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Entries of the CQ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cqe: Option<u64>,
    /// What an object made past ib_core is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub devx: Option<DevxKind>,
    /// Verb that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verb: Option<Arc<str>>,
    /// Return code: 0 or a negative errno.
    pub rc: Option<i32>,
    /// Time in the traced kernel function, or from the post of a work request to its end, ns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ns: Option<u64>,
    /// Records lost, or failed calls left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Where they were lost; [`BUDGET`] of calls that were left out.
    #[serde(rename = "where", skip_serializing_if = "Option::is_none")]
    pub lost_where: Option<&'static str>,
    /// Identity of the QP across reuse of its number: unique within a run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qp_uid: Option<u64>,
    /// What was raised or cleared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finding: Option<Arc<Finding>>,
}

/// What only events of rdma_cm have.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Cm {
    /// rdma_cm event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cm_event: Option<CmEvent>,
    /// Status of the rdma_cm event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<i32>,
    /// rdma_cm id number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cm_id: Option<u32>,
    /// Local address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub src: Option<SocketAddr>,
    /// Peer's address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dst: Option<SocketAddr>,
}

/// What `cm` is of an event that is not about connections.
static NO_CM: LazyLock<Cm> = LazyLock::new(Cm::default);

/// What only events of work requests have.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Work {
    /// The program's number of the work request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wr_id: Option<u64>,
    /// What the work request asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opcode: Option<WrRequest>,
    /// A completion was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signaled: Option<bool>,
    /// Immediate data, in the host's order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub imm: Option<u32>,
    /// How the work request ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wc_status: Option<WcStatus>,
    /// Its queue was emptied without a completion, by RESET or with the QP.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dropped: bool,
    /// The CQ had no room for its completion: the program does not learn of it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cq_full: bool,
}

/// Of an event without a work request.
static NO_WORK: LazyLock<Work> = LazyLock::new(Work::default);

impl Event {
    /// What rdma_cm says; nothing of it is known where the event is of something else.
    pub fn cm(&self) -> &Cm {
        self.cm.as_deref().unwrap_or(&NO_CM)
    }

    /// The work request; nothing of it is known where the event has none.
    pub fn work(&self) -> &Work {
        self.work.as_deref().unwrap_or(&NO_WORK)
    }

    /// An event of `kind` in which everything else is unknown.
    pub fn new(kind: EventKind, ts_ns: u64, mono_ns: u64) -> Self {
        Self {
            schema: 1,
            ts_ns,
            mono_ns,
            event: kind,
            ..Self::default()
        }
    }

    /// A finding that the snapshot of this time raised or cleared.
    pub fn of_change(change: Change, ts_ns: u64, mono_ns: u64) -> Self {
        let (kind, finding) = match change {
            Change::Raised(finding) => (EventKind::FindingRaise, finding),
            Change::Cleared(finding) => (EventKind::FindingClear, finding),
        };
        Self {
            device: finding.device.clone(),
            port: finding.port,
            pid: finding.pid,
            comm: finding.comm.clone(),
            finding: Some(Arc::new(finding)),
            ..Self::new(kind, ts_ns, mono_ns)
        }
    }
}
