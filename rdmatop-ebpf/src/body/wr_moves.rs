//! SoftRoCE: what a modify or a destroy of a QP says about its work requests.
//!
//! Before Linux 6.4 the driver flushes receives in softirqs. A softirq that interrupts a program of ours
//! posts all CQEs of the flush where the kernel skips every program. The ring's index shows the missing
//! receives at the QP's next receive, but after a flush none comes. So these programs compare the index once
//! more when the QP is about to leave ERR, before RESET empties the ring without CQEs.

use core::ptr::{read_volatile, write_volatile};

use rdmatop_common::{counters::loss, ib::state::RESET, wr::count};

use super::{
    qp::mask,
    wr::{consumed_now, counted, taken_now},
};
use crate::{
    emit::lost_many,
    offsets::{OFF_ATTR_STATE, get},
    wr_maps::{IN_RESET, WR_QPS, WrQp, qp_flag},
};

/// Entry of `_ib_modify_qp(qp, attr, attr_mask, udata)`.
#[inline(always)]
pub(crate) fn modifying(qp: u64, attr: u64, attr_mask: u32) -> Option<()> {
    let followed = WR_QPS.get_ptr_mut(&qp)?;
    compare(followed);
    if attr_mask & mask::STATE == 0 {
        return None;
    }
    let to = get::<u32>(attr, &OFF_ATTR_STATE)?;
    // SAFETY: the map checked the pointer; words are read and written whole. `consumed` is read before the
    // index, as `advance` demands.
    unsafe {
        let consumed = consumed_now(followed)?;
        let dropped_to = read_volatile(&raw const (*followed).dropped_to);
        // During a modify to RESET the driver drops all WRs that are on the queue.
        if to == RESET {
            // If visits have not yet reported all ends of an earlier RESET, keep where its dropped WRs begin.
            if read_volatile(&raw const (*followed).done) >= dropped_to {
                write_volatile(&raw mut (*followed).dropped_from, consumed);
            }
            write_volatile(&raw mut (*followed).dropped_to, IN_RESET);
        } else if dropped_to == IN_RESET {
            write_volatile(&raw mut (*followed).dropped_to, consumed);
        }
    }
    Some(())
}

/// Entry of `ib_destroy_qp_user(qp, udata)`.
#[inline(always)]
pub(crate) fn destroying(qp: u64) -> Option<()> {
    compare(WR_QPS.get_ptr_mut(&qp)?);
    Some(())
}

/// Counts the receives whose CQEs no program saw. (If another CPU has consumed a receive and is about to
/// place its CQE at this moment, that receive counts twice: here as lost, and again when its CQE is seen.)
#[inline(always)]
fn compare(qp: *mut WrQp) {
    // SAFETY: the map checked the pointer; the words are read and written whole.
    unsafe {
        let Some(taken) = taken_now(qp) else {
            return;
        };
        let received = read_volatile(&raw const (*qp).received);
        let emptied = read_volatile(&raw const (*qp).emptied) != 0;
        if taken <= received && !emptied {
            return;
        }
        write_volatile(&raw mut (*qp).taken, taken);
        write_volatile(&raw mut (*qp).received, taken);
        // RESET has emptied the queue, so these receives were dropped and not received.
        if emptied {
            write_volatile(&raw mut (*qp).emptied, 0);
            return;
        }
        let missing = taken - received;
        counted(count::HAPPENED, missing);
        if (*qp).flags & qp_flag::WANTED == 0 {
            counted(count::FILTERED, missing);
        } else {
            counted(count::INDEXED, missing);
            lost_many(loss::WR_MISSED, missing);
        }
    }
}
