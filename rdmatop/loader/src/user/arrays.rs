//! The mapped arrays of probed QPs: which QP is in which slot, and what the kernel side counted of it.

use std::{
    ptr::{read_volatile, write_volatile},
    sync::atomic::{Ordering, fence},
};

use rdmatop_common::counters::{QpSlot, UserHits, UserQp, slot_flag};
use zerocopy::FromZeros as _;

use super::{owners::Owners, probed::Process};
use crate::maps::mapped::{Mapped, UsedRanges};

#[derive(Clone, Copy, Debug)]
pub(super) struct SlotQp {
    /// Of the slot.
    pub(super) number: u32,
    pub(super) born_ns: u64,
    pub(super) owner: Process,
    pub(super) qpn: u32,
    pub(super) lives: bool,
}

impl SlotQp {
    pub(super) fn key(&self) -> (u32, u64) {
        (self.number, self.born_ns)
    }
}

pub(super) struct Arrays {
    slots: Mapped<QpSlot>,
    /// More counters of the QPs in `slots`.
    qps: Mapped<UserQp>,
    hits: Mapped<UserHits>,
    used_ranges: UsedRanges,
}

impl Arrays {
    pub(super) fn new(slots: Mapped<QpSlot>, qps: Mapped<UserQp>, hits: Mapped<UserHits>) -> Self {
        let used_ranges = UsedRanges::of(slots.count());
        Self {
            slots,
            qps,
            hits,
            used_ranges,
        }
    }

    /// The QPs in slots, including destroyed ones whose last counts have not been read yet: those of one
    /// process, or all. `owners` gets the owner of each that lives.
    pub(super) fn qps_with_slots(&mut self, of: Option<u32>, owners: &mut Owners) -> Vec<SlotQp> {
        let slots = &self.slots;
        owners.look();
        let read = |number| {
            let place = slots.at(number);
            // SAFETY: the number is inside the mapping; the kernel side writes each word whole.
            let (qp, slot_qp) = unsafe {
                let slot_qp = SlotQp {
                    number,
                    born_ns: read_volatile(&raw const (*place).born_ns),
                    owner: Process {
                        pid: read_volatile(&raw const (*place).owner_pid),
                        start_ns: read_volatile(&raw const (*place).owner_start_ns),
                    },
                    qpn: read_volatile(&raw const (*place).qpn),
                    lives: read_volatile(&raw const (*place).flags) & slot_flag::DESTROYED == 0,
                };
                (read_volatile(&raw const (*place).qp), slot_qp)
            };
            if qp != 0 && slot_qp.lives {
                owners.sees(slot_qp.owner);
            }
            (qp != 0 && of.is_none_or(|pid| pid == slot_qp.owner.pid)).then_some(slot_qp)
        };
        let qps = self
            .used_ranges
            .ranges(|number| slots.in_use(number))
            .into_iter()
            .flatten()
            .filter_map(read)
            .collect();
        owners.seen();
        qps
    }

    /// What the kernel side counts of a QP beside its slot.
    pub(super) fn counts(&self, qp: &SlotQp) -> UserQp {
        self.qps.read(qp.number)
    }

    /// Tells the kernel side the time since when all functions of a QP have been probed.
    pub(super) fn publish(&self, (number, born_ns): (u32, u64), since_ns: u64) {
        let place = self.qps.at(number);
        // SAFETY: the number is inside the mapping; the kernel side reads `probed_ns` only after it has found
        // this birth.
        unsafe {
            write_volatile(&raw mut (*place).probed_ns, since_ns);
            fence(Ordering::Release);
            write_volatile(&raw mut (*place).probed_birth_ns, born_ns);
        }
    }

    pub(super) fn hits(&self) -> UserHits {
        let mut sum = UserHits::new_zeroed();
        for cpu in 0..self.hits.count() {
            let hits = self.hits.read(cpu);
            sum.hits = sum.hits.saturating_add(hits.hits);
            sum.unmatched = sum.unmatched.saturating_add(hits.unmatched);
            sum.missed = sum.missed.saturating_add(hits.missed);
        }
        sum
    }
}
