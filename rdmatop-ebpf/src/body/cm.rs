//! rdma_cm: connections, from the `rdma_cma` tracepoints.
//!
//! A raw tracepoint passes the `struct rdma_id_private`. Its restrack entry names the owner, and its `id` the
//! device, so no program has to remember an id: the kernel numbers ids for each device separately and reuses
//! the numbers.
//!
//! Where the module has no BTF (Linux 5.10), the programs get the tracepoint's record, which names neither
//! the device nor a process. Then only a tracepoint in a process's own call has an owner: the caller. For an
//! event in a kernel worker the engine looks up what the record lacks (`model/engine/connections.rs`).

use crate::{
    emit::{send, send_for},
    offsets::{
        OFF_CM_EVENT, OFF_CM_STATUS, OFF_IDPRIV_DEVICE, OFF_IDPRIV_DST, OFF_IDPRIV_QPN, OFF_IDPRIV_RES,
        OFF_IDPRIV_SRC, OFF_RES_ID, OFF_RES_TASK, OFF_TASK_TGID, StructBuffer, get, get_or_zero, member,
        place_of, read, read_into,
    },
    share::caller,
    task::{device, entry, owner, stamp},
};
use aya_ebpf::{EbpfContext as _, programs::TracePointContext};
use rdmatop_common::{
    event::{CmRecord, UNKNOWN_U32, cm, flag, kind},
    offsets::UNKNOWN,
};

/// The process to whose share of the ring buffer a record counts: the id's owner, because events run in
/// kernel workers. If a kernel consumer owns the id, it is the current process.
#[inline(always)]
fn whose(res: u64) -> u32 {
    let owner = get_or_zero(get_or_zero(res, &OFF_RES_TASK), &OFF_TASK_TGID);
    if owner == 0 { caller() } else { owner }
}

/// The raw tracepoint `WHAT`, whose first argument is the `struct rdma_id_private *`. `event`: the second one
/// of `cm_event_handler`, the `struct rdma_cm_event *`; 0 elsewhere.
#[inline(always)]
pub(crate) fn raw<const WHAT: u32>(id_priv: u64, event: u64) -> Option<()> {
    let res = member(id_priv, &OFF_IDPRIV_RES)?;
    let cm_id: u32 = get(res, &OFF_RES_ID)?;
    send_for(
        false,
        || whose(res),
        |record: &mut CmRecord| {
            stamp(&mut record.prefix, kind::CM, id_priv);
            owner(&mut record.prefix, entry(&mut StructBuffer::uninit(), res));
            device(&mut record.prefix, get(id_priv, &OFF_IDPRIV_DEVICE).unwrap_or(0));
            record.what = WHAT;
            record.cm_id = cm_id;
            record.event = UNKNOWN_U32;
            record.qpn = UNKNOWN_U32;
            if WHAT == cm::EVENT {
                record.event = get(event, &OFF_CM_EVENT).unwrap_or(UNKNOWN_U32);
                record.status = get(event, &OFF_CM_STATUS).unwrap_or(0);
            }
            if WHAT == cm::CONNECT || WHAT == cm::ACCEPT {
                record.qpn = get(id_priv, &OFF_IDPRIV_QPN).unwrap_or(UNKNOWN_U32);
            }
            // If the offset is unknown, the address is 0, and the read fails and leaves zeroes.
            read_into(&mut record.src, place_of(id_priv, &OFF_IDPRIV_SRC));
            read_into(&mut record.dst, place_of(id_priv, &OFF_IDPRIV_DST));
        },
    );
    Some(())
}

/// Offsets of one tracepoint's fields; `UNKNOWN` where it has no such field.
pub(crate) struct Fields {
    pub(crate) cm_id: u32,
    pub(crate) event: u32,
    pub(crate) status: u32,
    pub(crate) qpn: u32,
    pub(crate) src: u32,
    pub(crate) dst: u32,
}

impl Fields {
    pub(crate) const NONE: Self = Self {
        cm_id: UNKNOWN,
        event: UNKNOWN,
        status: UNKNOWN,
        qpn: UNKNOWN,
        src: UNKNOWN,
        dst: UNKNOWN,
    };
}

/// Reads a field. Of a field that is wider than `T` (`event` is an unsigned long) this reads the low word,
/// which comes first: the object is built for little-endian machines only (bpfel).
#[inline(always)]
fn field<T>(ctx: &TracePointContext, offset: u32) -> Option<T> {
    if offset == UNKNOWN {
        None
    } else {
        read(ctx.as_ptr() as u64 + u64::from(offset))
    }
}

#[inline(always)]
pub(crate) fn traced(ctx: &TracePointContext, what: u32, fields: &Fields) -> Option<()> {
    let cm_id: u32 = field(ctx, fields.cm_id)?;
    send(|record: &mut CmRecord| {
        stamp(&mut record.prefix, kind::CM, 0);
        record.what = what;
        record.cm_id = cm_id;
        record.event = field(ctx, fields.event).unwrap_or(UNKNOWN_U32);
        record.status = field(ctx, fields.status).unwrap_or(0);
        record.qpn = field(ctx, fields.qpn).unwrap_or(UNKNOWN_U32);
        for (place, offset) in [(&mut record.src, fields.src), (&mut record.dst, fields.dst)] {
            if offset != UNKNOWN {
                read_into(place, ctx.as_ptr() as u64 + u64::from(offset));
            }
        }
        if record.prefix.flags & flag::KTHREAD == 0 {
            // rdma_connect, rdma_accept and rdma_disconnect run in the context of the process that calls
            // them.
            record.prefix.owner_pid = record.prefix.pid;
            record.prefix.owner_comm = record.prefix.comm;
            record.prefix.flags |= flag::OWNER_TASK;
        }
    });
    Some(())
}
