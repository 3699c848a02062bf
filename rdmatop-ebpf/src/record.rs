//! Records of QPs, filled in from `QpKnown`.

use rdmatop_common::event::{QpRecord, UNKNOWN_U8, UNKNOWN_U32, kind};

use crate::{
    emit::send_quietly,
    maps::QpKnown,
    task::{now, stamp_known},
};

/// Fills in what `known` has about a QP, and marks the other fields as unknown.
#[inline(always)]
pub(crate) fn describe(record: &mut QpRecord, kind: u16, qp: u64, known: &QpKnown) {
    stamp_known(&mut record.prefix, (kind, qp), known, now(), false);
    fill(record, known);
}

/// As [`describe`], without the prefix.
#[inline(always)]
pub(crate) fn fill(record: &mut QpRecord, known: &QpKnown) {
    record.born_ns = known.born_ns;
    record.owner_start_ns = known.owner_start_ns;
    record.qpn = known.qpn;
    record.qp_type = known.qp_type;
    record.slot = known.slot;
    record.dest_qpn = UNKNOWN_U32;
    record.rq_psn = UNKNOWN_U32;
    record.sq_psn = UNKNOWN_U32;
    record.event = UNKNOWN_U32;
    record.from_state = known.state;
    record.to_state = UNKNOWN_U8;
    record.path_mtu = UNKNOWN_U8;
    record.port = known.port;
    record.timeout = UNKNOWN_U8;
    record.retry_cnt = UNKNOWN_U8;
    record.rnr_retry = UNKNOWN_U8;
    record.sgid_index = UNKNOWN_U8;
}

/// Reports that a QP moves and no slot is left for it. Called on the data path, so it does not wake the reader.
#[inline(always)]
pub(crate) fn uncounted(qp: u64, known: &QpKnown) {
    send_quietly(|record: &mut QpRecord| {
        describe(record, kind::QP_UNCOUNTED, qp, known);
    });
}
