//! `rdma_restrack_add`: the kernel calls it for each new object of every provider.
//!
//! At its entry the QP number and the MR length are set, but `res->id` is not. It is not called for a create
//! that failed earlier. Entries of type CM_ID come repeatedly and from workers; this program ignores them.

use super::{
    object::{self, Object},
    qp,
};
use crate::{
    offsets::{OFF_CQ_RES, OFF_MR_RES, OFF_QP_RES, OFF_RES_TYPE, StructBuffer},
    task::entry,
};
use rdmatop_common::offsets::UNKNOWN;

/// `enum rdma_restrack_type`, include/rdma/restrack.h: these three are the same on 5.10 to 7.2.
const CQ: u32 = 1;
pub(super) const QP: u32 = 2;
const MR: u32 = 4;

/// The object that contains this entry, `None` when the offset is unknown.
#[inline(always)]
fn holder(res: u64, offset: u32) -> Option<u64> {
    if offset == UNKNOWN {
        None
    } else {
        Some(res - u64::from(offset))
    }
}

#[inline(always)]
pub(crate) fn added(res: u64) -> Option<()> {
    let mut buffer = StructBuffer::uninit();
    let entry = entry(&mut buffer, res);
    match entry.get::<u32>(&OFF_RES_TYPE)? {
        QP => qp::created(holder(res, OFF_QP_RES.load())?, entry),
        MR => object::created(Object::Mr, holder(res, OFF_MR_RES.load())?, entry),
        CQ => object::created(Object::Cq, holder(res, OFF_CQ_RES.load())?, entry),
        _ => {}
    }
    Some(())
}
