//! Memory regions and completion queues.

use core::mem::MaybeUninit;

use super::{enter, hook, not_entered};
use crate::{
    emit::{finish, send},
    maps::OBJECT_CALLS,
    offsets::{
        OFF_CQ_CQE, OFF_CQ_DEVICE, OFF_CQ_RES, OFF_DEV_MAX_CQ, OFF_DEV_MAX_MR, OFF_MR_DEVICE, OFF_MR_LENGTH,
        OFF_MR_RES, OFF_RES_ID, StructBuffer, get, get_or_unknown, member,
    },
    task::{Depth, Entry, call_key, device, entry, owner, stamp},
    words::zeroed,
};
use aya_ebpf::Global;
use rdmatop_common::{
    counters::loss,
    event::{ObjectRecord, UNKNOWN_U32, kind},
};

/// Offsets of the members that both kinds of object have.
struct Layout {
    device: &'static Global<u32>,
    res: &'static Global<u32>,
    /// How many the device may have.
    limit: &'static Global<u32>,
}

#[inline(always)]
fn layout(kind: u16) -> Layout {
    match kind {
        kind::MR_REG | kind::MR_DEREG => Layout {
            device: &OFF_MR_DEVICE,
            res: &OFF_MR_RES,
            limit: &OFF_DEV_MAX_MR,
        },
        _ => Layout {
            device: &OFF_CQ_DEVICE,
            res: &OFF_CQ_RES,
            limit: &OFF_DEV_MAX_CQ,
        },
    }
}

/// Returns the object's device, 0 when it is not known.
#[inline(always)]
fn describe(record: &mut ObjectRecord, kind: u16, object: u64, entry: Entry<'_>) -> u64 {
    stamp(&mut record.prefix, kind, object);
    let on = get(object, layout(kind).device).unwrap_or(0);
    device(&mut record.prefix, on);
    record.owner_start_ns = owner(&mut record.prefix, entry, Depth::Whole);
    record.res_id = UNKNOWN_U32;
    record.size = match kind {
        kind::MR_REG | kind::MR_DEREG => get::<u64>(object, &OFF_MR_LENGTH),
        // ib_cq.cqe is an int; on some providers it is one less than the number of entries. Report the
        // kernel's value.
        _ => get::<u32>(object, &OFF_CQ_CQE).map(u64::from),
    }
    .unwrap_or(u64::MAX);
    on
}

#[inline(always)]
pub(crate) fn created(kind: u16, object: u64, entry: Entry<'_>) {
    send(|record: &mut ObjectRecord| {
        let device = describe(record, kind, object, entry);
        record.limit = get_or_unknown(device, layout(kind).limit);
    });
}

/// Entry of a destroy, which frees the object if it succeeds: so read it now, and report it at the return.
#[inline(always)]
pub(crate) fn destroying(kind: u16, object: u64, hook: u32) {
    let res = member(object, layout(kind).res).unwrap_or(0);
    let mut record = MaybeUninit::uninit();
    let record = zeroed::<ObjectRecord>(&mut record);
    describe(record, kind, object, entry(&mut StructBuffer::uninit(), res));
    record.res_id = get(res, &OFF_RES_ID).unwrap_or(UNKNOWN_U32);
    enter(&OBJECT_CALLS, hook, record);
}

#[inline(always)]
pub(crate) fn destroyed(hook: u32, rc: i32) -> Option<()> {
    let key = call_key(hook);
    let Some(call) = OBJECT_CALLS.get_ptr(&key) else {
        not_entered(loss::STASH);
        return None;
    };
    // SAFETY: the map checked the pointer; no other program writes this thread's entry while the thread is
    // inside the call, and none frees it before the end of this program.
    unsafe { finish(call, rc) };
    let _ = OBJECT_CALLS.remove(&key);
    Some(())
}

/// A destroy that cannot fail (`ib_free_cq`) and therefore needs no return probe.
#[inline(always)]
pub(crate) fn freed(kind: u16, object: u64) {
    let res = member(object, layout(kind).res).unwrap_or(0);
    send(|record| {
        describe(record, kind, object, entry(&mut StructBuffer::uninit(), res));
    });
}

/// The hook number for the destroy of a kind of object.
pub(crate) const fn hook_of(kind: u16) -> u32 {
    if kind == kind::MR_DEREG {
        hook::DEREG_MR
    } else {
        hook::DESTROY_CQ
    }
}
