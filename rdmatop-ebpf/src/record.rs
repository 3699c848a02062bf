//! Records of QPs, filled in from `QpKnown`.

use rdmatop_common::event::{QpRecord, UNKNOWN_U8, UNKNOWN_U32, kind};

use crate::{
    emit::send_quietly,
    maps::QpKnown,
    share::caller,
    task::{now, stamp_known},
    words::clear,
};

/// The process to whose share of the ring buffer a QP's records count: its owner, because asynchronous events
/// run in kernel workers. If a kernel consumer owns the QP, it is the current process.
#[inline(always)]
pub(crate) fn owner(known: &QpKnown) -> u32 {
    if known.owner_pid == 0 {
        caller()
    } else {
        known.owner_pid
    }
}

/// Fills in what `known` has about a QP, and marks the other fields as unknown.
#[inline(always)]
pub(crate) fn describe(record: &mut QpRecord, kind: u16, qp: u64, known: &QpKnown) {
    stamp_known(&mut record.prefix, (kind, qp), known, now(), false);
    fill(record, known);
}

/// As [`describe`], without the prefix. Writes every byte. The pattern has no `..`, so that the compiler asks
/// for a new field here.
#[inline(always)]
pub(crate) fn fill(record: &mut QpRecord, known: &QpKnown) {
    let QpRecord {
        prefix: _,
        qpn,
        qp_type,
        attr_mask,
        dest_qpn,
        rq_psn,
        sq_psn,
        slot,
        event,
        from_state,
        to_state,
        path_mtu,
        port,
        timeout,
        retry_cnt,
        rnr_retry,
        sgid_index,
        dest_gid,
        born_ns,
        owner_start_ns,
    } = record;
    *qpn = known.qpn;
    *qp_type = known.qp_type;
    *attr_mask = 0;
    *dest_qpn = UNKNOWN_U32;
    *rq_psn = UNKNOWN_U32;
    *sq_psn = UNKNOWN_U32;
    *slot = known.slot;
    *event = UNKNOWN_U32;
    *from_state = known.state;
    *to_state = UNKNOWN_U8;
    *path_mtu = UNKNOWN_U8;
    *port = known.port;
    *timeout = UNKNOWN_U8;
    *retry_cnt = UNKNOWN_U8;
    *rnr_retry = UNKNOWN_U8;
    *sgid_index = UNKNOWN_U8;
    // SAFETY: the GID is two whole words, at a multiple of 8 in the record.
    unsafe { clear(&raw mut *dest_gid) };
    *born_ns = known.born_ns;
    *owner_start_ns = known.owner_start_ns;
}

/// Reports that a QP moves and no slot is left for it. Called on the data path, so it does not wake the
/// reader.
#[inline(always)]
pub(crate) fn uncounted(qp: u64, known: &QpKnown) {
    send_quietly(
        || owner(known),
        |record: &mut QpRecord| {
            describe(record, kind::QP_UNCOUNTED, qp, known);
        },
    );
}
