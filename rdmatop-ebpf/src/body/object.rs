//! Memory regions and completion queues.

use core::mem::MaybeUninit;

use super::{Hook, enter, not_entered};
use crate::{
    emit::send,
    maps::OBJECT_CALLS,
    offsets::{
        OFF_CQ_CQE, OFF_CQ_DEVICE, OFF_CQ_RES, OFF_DEV_MAX_CQ, OFF_DEV_MAX_MR, OFF_DEV_MAX_PD,
        OFF_DEV_MAX_SRQ, OFF_MR_DEVICE, OFF_MR_LENGTH, OFF_MR_RES, StructBuffer, get, get_or_unknown, member,
    },
    task::{Entry, call_key, device, entry, now, owner, stamp},
    words::{copy, zeroed},
};
use aya_ebpf::Global;
use rdmatop_common::{
    counters::loss,
    event::{ObjectRecord, kind},
};

/// The kinds of object, which the caller names.
#[derive(Clone, Copy)]
pub(crate) enum Object {
    Mr,
    Cq,
}

/// What differs between them.
struct Layout {
    created: u16,
    destroyed: u16,
    destroy: Hook,
    device: &'static Global<u32>,
    res: &'static Global<u32>,
    /// How many the device may have, and how many of a kind that has no records.
    limits: [&'static Global<u32>; 2],
}

#[inline(always)]
fn layout(of: Object) -> Layout {
    match of {
        Object::Mr => Layout {
            created: kind::MR_REG,
            destroyed: kind::MR_DEREG,
            destroy: Hook::DeregMr,
            device: &OFF_MR_DEVICE,
            res: &OFF_MR_RES,
            limits: [&OFF_DEV_MAX_MR, &OFF_DEV_MAX_SRQ],
        },
        Object::Cq => Layout {
            created: kind::CQ_CREATE,
            destroyed: kind::CQ_DESTROY,
            destroy: Hook::DestroyCq,
            device: &OFF_CQ_DEVICE,
            res: &OFF_CQ_RES,
            limits: [&OFF_DEV_MAX_CQ, &OFF_DEV_MAX_PD],
        },
    }
}

/// Returns the object's device, 0 when it is not known.
#[inline(always)]
fn describe(record: &mut ObjectRecord, of: Object, kind: u16, object: u64, entry: Entry<'_>) -> u64 {
    stamp(&mut record.prefix, kind, object);
    let on = get(object, layout(of).device).unwrap_or(0);
    device(&mut record.prefix, on);
    record.owner_start_ns = owner(&mut record.prefix, entry);
    record.size = match of {
        Object::Mr => get::<u64>(object, &OFF_MR_LENGTH),
        // ib_cq.cqe is an int; on some providers it is one less than the number of entries. Report the
        // kernel's value.
        Object::Cq => get::<u32>(object, &OFF_CQ_CQE).map(u64::from),
    }
    .unwrap_or(u64::MAX);
    on
}

#[inline(always)]
pub(crate) fn created(of: Object, object: u64, entry: Entry<'_>) {
    send(|record: &mut ObjectRecord| {
        let device = describe(record, of, layout(of).created, object, entry);
        record.limits = layout(of).limits.map(|limit| get_or_unknown(device, limit));
    });
}

/// Entry of a destroy, which frees the object if it succeeds: so read it now, and report it at the return.
#[inline(always)]
pub(crate) fn destroying(of: Object, object: u64) {
    let Layout {
        destroyed,
        destroy,
        res,
        ..
    } = layout(of);
    let res = member(object, res).unwrap_or(0);
    let mut record = MaybeUninit::uninit();
    let record = zeroed::<ObjectRecord>(&mut record);
    let mut buffer = StructBuffer::uninit();
    describe(record, of, destroyed, object, entry(&mut buffer, res));
    enter(&OBJECT_CALLS, destroy, record, loss::RETURN);
}

#[inline(always)]
pub(crate) fn destroyed(of: Object, rc: i32) -> Option<()> {
    let key = call_key(layout(of).destroy);
    let Some(call) = OBJECT_CALLS.get_ptr(&key) else {
        not_entered(loss::STASH);
        return None;
    };
    send(|record: &mut ObjectRecord| {
        // SAFETY: the map checked the pointer; no other program writes this thread's entry while the thread
        // is inside the call, and none frees it before the end of this program.
        unsafe { copy(call, &raw mut *record) };
        let now = now();
        record.prefix.duration_ns = now - record.prefix.ts_ns;
        record.prefix.ts_ns = now;
        record.prefix.rc = rc;
    });
    let _ = OBJECT_CALLS.remove(&key);
    Some(())
}

/// A destroy that cannot fail (`ib_free_cq`) and therefore needs no return probe.
#[inline(always)]
pub(crate) fn freed(of: Object, object: u64) {
    let Layout { destroyed, res, .. } = layout(of);
    let res = member(object, res).unwrap_or(0);
    send(|record| {
        let mut buffer = StructBuffer::uninit();
        describe(record, of, destroyed, object, entry(&mut buffer, res));
    });
}
