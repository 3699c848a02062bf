//! rdma_cm: connections, from the `rdma_cma` tracepoints.
//!
//! The tracepoints name no process, and most events run in workers. The programs learn the owner in two ways: from the
//! restrack entry inside `rdma_id_private` (if the module has BTF), and from calls that the owner itself makes. Both fill
//! `CM_OWNERS` by the id's number.

use core::mem::MaybeUninit;

use crate::{
    emit::send,
    maps::{CM_OWNERS, CmOwner},
    offsets::{OFF_IDPRIV_DEVICE, OFF_IDPRIV_RES, OFF_RES_ID, Pane, get, member, read, read_into},
    task::{device, entry, owner, stamp},
    words::{copy, zeroed},
};
use aya_ebpf::{EbpfContext as _, programs::TracePointContext};
use rdmatop_common::{
    event::{CmRecord, Prefix, UNKNOWN_U32, flag, kind},
    offsets::UNKNOWN,
};

/// Offsets of one tracepoint's fields; `UNKNOWN` where it has no such field.
pub(crate) struct Fields {
    pub(crate) cm_id: u32,
    pub(crate) event: u32,
    pub(crate) status: u32,
    pub(crate) qpn: u32,
    pub(crate) src: u32,
    pub(crate) dst: u32,
}

/// Entry of `cma_cm_event_handler(id_priv, event)`, which fires the tracepoint of the same event.
#[inline(always)]
pub(crate) fn handler_entered(id_priv: u64) -> Option<()> {
    let res = member(id_priv, &OFF_IDPRIV_RES)?;
    let cm_id: u32 = get(res, &OFF_RES_ID)?;
    let mut prefix = MaybeUninit::uninit();
    let prefix = zeroed::<Prefix>(&mut prefix);
    owner(prefix, entry(&mut Pane::uninit(), res));
    device(prefix, get(id_priv, &OFF_IDPRIV_DEVICE).unwrap_or(0));
    // A listener on any address has no id and no owner yet.
    if cm_id != 0 {
        remember(cm_id, prefix);
    }
    Some(())
}

#[inline(always)]
fn remember(cm_id: u32, prefix: &Prefix) {
    let owner = CmOwner {
        pid: prefix.owner_pid,
        flags: u32::from(prefix.flags & (flag::OWNER_TASK | flag::OWNER_KERNEL | flag::DEVICE)),
        device_index: u64::from(prefix.device_index),
        comm: prefix.owner_comm,
        device: prefix.device,
    };
    let _ = CM_OWNERS.insert(&cm_id, &owner, 0);
}

/// Reads a field. Of a wider field (`event` is an unsigned long) it reads the low word, which comes first: the object is built
/// for little-endian machines only (bpfel).
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
    send(|record: &mut CmRecord| fill(record, ctx, what, cm_id, fields));
    Some(())
}

#[inline(always)]
fn fill(record: &mut CmRecord, ctx: &TracePointContext, what: u32, cm_id: u32, fields: &Fields) {
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
    if let Some(known) = CM_OWNERS.get_ptr(&cm_id) {
        // SAFETY: the map checked the pointer; the value is plain integers.
        let known = unsafe { &*known };
        record.prefix.owner_pid = known.pid;
        // SAFETY: the names are multiples of 8 long and at one in both structs.
        unsafe {
            copy(&raw const known.comm, &raw mut record.prefix.owner_comm);
            copy(&raw const known.device, &raw mut record.prefix.device);
        }
        record.prefix.device_index = known.device_index as u32;
        record.prefix.flags |= known.flags as u16;
    } else if record.prefix.flags & flag::KTHREAD == 0 {
        // The owner itself is calling: rdma_connect, rdma_accept and rdma_disconnect run in its context.
        record.prefix.owner_pid = record.prefix.pid;
        record.prefix.owner_comm = record.prefix.comm;
        record.prefix.flags |= flag::OWNER_TASK;
        remember(cm_id, &record.prefix);
    }
}
