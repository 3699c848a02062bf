//! Maps of the programs that make records of work requests. The loader makes them only if a trace asks for
//! such records.

use aya_ebpf::{
    macros::map,
    maps::{Array, HashMap, RingBuf},
};
use rdmatop_common::{
    event::{COMM_LEN, DEVICE_NAME_LEN},
    wr::{WrFilter, count},
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::maps::{MMAPABLE, NO_PREALLOC, QpnKey};

/// How many QPs can be followed at one time.
const QPS: u32 = 65_536;
/// How many work requests on send queues can be remembered at one time. If one is not remembered, the record
/// of its end has no wr_id.
const OUTSTANDING: u32 = 65_536;
/// How many CQEs can be kept at one time. If one is not kept, the record of the WR's end has no status.
const KEPT: u32 = 16_384;

/// Records of work requests. The kernel side writes, user space reads; it sets the size at load.
#[map]
pub(crate) static WR_EVENTS: RingBuf = RingBuf::with_byte_size(4096, 0);

/// Which work requests make records. User space writes it before counting begins.
#[map]
pub(crate) static WR_FILTER: Array<WrFilter> = Array::with_max_entries(1, 0);

/// Counts by `wr::count`. The kernel side adds, user space reads through mmap.
#[map]
pub(crate) static WR_COUNTS: Array<u64> = Array::with_max_entries(count::COUNT, MMAPABLE);

/// QPs that are followed, by `struct ib_qp *`. An entry is written when a program first sees the QP, and
/// removed when its send queue is freed.
#[map]
pub(crate) static WR_QPS: HashMap<u64, WrQp> = HashMap::with_max_entries(QPS, NO_PREALLOC);

/// `struct ib_qp *` of the same QPs, by device and QP number: a user CQE holds only the number.
#[map]
pub(crate) static WR_QPNS: HashMap<QpnKey, u64> = HashMap::with_max_entries(QPS, NO_PREALLOC);

/// `struct ib_qp *` of the same QPs, by send queue.
#[map]
pub(crate) static WR_QUEUES: HashMap<u64, u64> = HashMap::with_max_entries(QPS, NO_PREALLOC);

/// What is on the send queues. A user program may overwrite a queue element as soon as the driver has
/// consumed it, so the programs copy at the post what the record of the end needs.
#[map]
pub(crate) static WR_OUTSTANDING: HashMap<WrKey, Outstanding> = HashMap::with_max_entries(OUTSTANDING, 0);

/// CQEs of sends that came while another CPU worked on the posts of their QP. The visit that finds by the
/// ring's index that the WR has ended takes the CQE from here.
#[map]
pub(crate) static WR_CQES: HashMap<WrKey, Kept> = HashMap::with_max_entries(KEPT, NO_PREALLOC);

/// A QP and the number of a WR of its send queue.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct WrKey {
    pub(crate) qp: u64,
    pub(crate) wr: u64,
}

/// A WR that was posted and has not ended.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Outstanding {
    pub(crate) wr_id: u64,
    /// When its doorbell was rung, 0 when not known.
    pub(crate) post_ns: u64,
    pub(crate) opcode: u32,
    pub(crate) bytes: u32,
    pub(crate) imm: u32,
    /// Destination of a UD request.
    pub(crate) dest_qpn: u32,
    /// Bits of `wr::flag`.
    pub(crate) flags: u32,
    pub(crate) tid: u32,
}

/// The fields of a CQE that end a work request, kept until the driver visits its QP again.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Kept {
    /// [`WrQp::born_ns`]: tells the QP from a later one at its address.
    pub(crate) born_ns: u64,
    pub(crate) status: u32,
    /// Bits of `wr::flag`.
    pub(crate) flags: u32,
}

/// Which QP work requests are of, and whose that is: the filter compares it, and the records have it.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct QpOwner {
    pub(crate) qpn: u32,
    pub(crate) qp_type: u32,
    pub(crate) device_index: u32,
    /// Valid with `flag::OWNER_TASK`.
    pub(crate) pid: u32,
    /// Bits of `wr::flag` about the owner.
    pub(crate) flags: u32,
    /// The peer's QP number, `UNKNOWN_U32` when not known.
    pub(crate) dest_qpn: u32,
    pub(crate) comm: [u8; COMM_LEN],
    pub(crate) device: [u8; DEVICE_NAME_LEN],
}

/// A QP that is followed. Counts begin when a program first saw it; index in the driver's ring = (count +
/// base) & mask.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct WrQp {
    /// 1 while a program works on the counts; more while other programs try to.
    pub(crate) claims: u64,
    /// `struct rxe_qp *`.
    pub(crate) rxe: u64,
    /// `struct rxe_queue *` of the send and the receive queue, 0 for none.
    pub(crate) sq: u64,
    pub(crate) rq: u64,
    /// `struct rxe_queue_buf *` of the send queue.
    pub(crate) ring: u64,
    /// Send WRs whose post a program has seen.
    pub(crate) seen: u64,
    /// Send WRs that the driver has consumed.
    pub(crate) consumed: u64,
    /// Send WRs whose end has been reported. This can be ahead of `consumed`, because in a flush Linux 6.12
    /// posts a CQE before it consumes the WR.
    pub(crate) done: u64,
    /// Receives whose end has been reported.
    pub(crate) received: u64,
    /// Receives that the driver has consumed.
    pub(crate) taken: u64,
    /// When a kernel consumer last called post_send, which puts its WRs on the ring.
    pub(crate) bell_ns: u64,
    pub(crate) born_ns: u64,
    pub(crate) device: u64,
    /// How many of its WRs are in [`WR_CQES`].
    pub(crate) kept: u64,
    /// The last RESET dropped the send WRs from this number up to, but not including, `dropped_to`, except
    /// those that have a CQE.
    pub(crate) dropped_from: u64,
    /// See `dropped_from`; [`IN_RESET`] while the QP is in that state.
    pub(crate) dropped_to: u64,
    /// 1 when a RESET may have emptied the receive queue since its last CQE.
    pub(crate) emptied: u64,
    pub(crate) mask: u32,
    pub(crate) rq_mask: u32,
    pub(crate) base: u32,
    pub(crate) rq_base: u32,
    pub(crate) shift: u32,
    /// Bits of [`qp_flag`].
    pub(crate) flags: u32,
    pub(crate) owner: QpOwner,
}

/// [`WrQp::dropped_to`] of a QP in RESET: the driver drops every WR on its queue.
pub(crate) const IN_RESET: u64 = u64::MAX;

/// Bits of [`WrQp::flags`].
pub(crate) mod qp_flag {
    /// The filter lets records of this QP through.
    pub(crate) const WANTED: u32 = 1;
    /// A kernel consumer owns the QP.
    pub(crate) const KERNEL: u32 = 2;
    /// Every WR is signaled.
    pub(crate) const SIGNALS_ALL: u32 = 4;
    /// Receives come from a shared queue.
    pub(crate) const SRQ: u32 = 8;
    /// Send and receive queue complete to the same CQ.
    pub(crate) const ONE_CQ: u32 = 16;
}
