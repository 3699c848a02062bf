//! Records of QPs, filled in from `QpKnown`.

use rdmatop_common::event::{QpRecord, UNKNOWN_U8, UNKNOWN_U32, kind};

use crate::{
    emit::{NO_WAKEUP, send_with},
    maps::QpKnown,
    share::caller,
    task::stamp_known,
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

/// Fills in what `known` has about a QP, and marks the other fields of an empty record as unknown.
#[inline(always)]
pub(crate) fn describe(record: &mut QpRecord, kind: u16, qp: u64, known: &QpKnown) {
    stamp_known(&mut record.prefix, kind, qp, known);
    record.qpn = known.qpn;
    record.qp_type = known.qp_type;
    record.dest_qpn = UNKNOWN_U32;
    record.rq_psn = UNKNOWN_U32;
    record.sq_psn = UNKNOWN_U32;
    record.slot = known.slot;
    record.event = UNKNOWN_U32;
    record.from_state = known.state;
    record.to_state = UNKNOWN_U8;
    record.path_mtu = UNKNOWN_U8;
    record.port = known.port;
    record.timeout = UNKNOWN_U8;
    record.retry_cnt = UNKNOWN_U8;
    record.rnr_retry = UNKNOWN_U8;
    record.sgid_index = UNKNOWN_U8;
    record.born_ns = known.born_ns;
    record.owner_start_ns = known.owner_start_ns;
}

/// Reports that a QP moves and no slot is left for it. Called on the data path, so it does not wake the
/// reader.
#[inline(always)]
pub(crate) fn uncounted(qp: u64, known: &QpKnown) {
    send_with(
        || NO_WAKEUP,
        || owner(known),
        |record: &mut QpRecord| {
            describe(record, kind::QP_UNCOUNTED, qp, known);
        },
    );
}
