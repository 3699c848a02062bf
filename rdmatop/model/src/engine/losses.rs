//! What was lost, and where.

use std::sync::Arc;

use rdmatop_common::counters::loss;

use super::{overlooked::Overlooked, qps::Qps};
use crate::{
    event::{BUDGET, Event, EventKind},
    input::{Flood, Now, SeenByPrograms, Skipped},
    snapshot::Loss,
    value::Shared,
};

/// Causes that the kernel side does not count: [`DECODE`] and [`CHANNEL`].
const OURS: [&str; 2] = ["decode", "channel"];
const CAUSES: usize = loss::COUNT as usize + OURS.len();
pub(super) const DECODE: usize = loss::COUNT as usize;
pub(super) const CHANNEL: usize = DECODE + 1;

/// Losses since start.
#[derive(Debug, Default)]
pub(super) struct Losses {
    seen: [u64; CAUSES],
    total: [u64; CAUSES],
    /// When it was last reported that a call of a verb may be in no count; `None`: never.
    pub(super) calls_ns: Option<u64>,
    /// When it was last reported that a record is missing; 0: never.
    pub(super) records_ns: u64,
    pub(super) overlooked: Overlooked,
    pub(super) floods: Shared<Flood>,
    pub(super) skipped: Option<Shared<Skipped>>,
}

/// Whether a cause loses records: those make the trace and the QP table incomplete.
fn loses_records(cause: usize) -> bool {
    const KERNEL: [u32; 3] = [loss::RING, loss::STASH, loss::RETURN];
    matches!(cause, DECODE | CHANNEL)
        || KERNEL.iter().any(|kernel| cause == *kernel as usize)
        || loses_work(cause)
}

/// Whether a cause loses records of work requests alone: of those the table of QPs does not depend.
fn loses_work(cause: usize) -> bool {
    cause == loss::WR_RING as usize || cause == loss::WR_MISSED as usize
}

/// Whether by a cause a call of a verb may be in no count: the counts of calls pass the channel, too.
fn loses_calls(cause: usize) -> bool {
    const KERNEL: [u32; 4] = [loss::STASH, loss::VERB, loss::RETURN, loss::MISSED];
    cause == CHANNEL || KERNEL.iter().any(|kernel| cause == *kernel as usize)
}

fn name(cause: usize) -> &'static str {
    loss::NAMES
        .get(cause)
        .or_else(|| OURS.get(cause.saturating_sub(DECODE)))
        .copied()
        .unwrap_or("other")
}

fn event(lost_where: &'static str, count: u64, now: Now) -> Event {
    Event {
        count: Some(count),
        lost_where: Some(lost_where),
        ..Event::new(EventKind::Lost, now.wall_ns, now.mono_ns)
    }
}

impl Losses {
    /// Cumulative counts of the kernel side. Hands out an event for each cause by which records are newly
    /// lost, as all here do.
    pub(super) fn kernel(
        &mut self,
        counts: &[u64; loss::COUNT as usize],
        qps: &mut Qps,
        now: Now,
        out: &mut dyn FnMut(Event),
    ) {
        for (cause, count) in counts.iter().enumerate() {
            self.cumulative(cause, *count, qps, now, out);
        }
    }

    /// What the programs have seen: on a kernel that does not count skipped runs of them, those are found
    /// by it, see [`super::overlooked`].
    pub(super) fn seen(&mut self, seen: SeenByPrograms) {
        let missed = loss::MISSED as usize;
        self.total[missed] = self.total[missed].saturating_add(self.overlooked.seen(seen));
    }

    /// Takes over which programs were skipped, unless a newer list has arrived before it: two threads read
    /// the counts of skips, which only grow.
    pub(super) fn skipped(&mut self, programs: Option<Vec<Skipped>>) {
        let sum = |list: &[Skipped]| list.iter().map(|program| program.count).sum::<u64>();
        let newer = match (&self.skipped, &programs) {
            (Some(known), Some(seen)) => sum(seen) >= sum(known),
            _ => true,
        };
        if newer {
            self.skipped = programs.map(Shared::from);
        }
    }

    /// Takes over what was left out of each process that made more events than one may, cumulative. Hands
    /// out an event for each process of which more failed calls were left out: those are in no other loss.
    /// Records that were refused are among those lost in the ring buffer.
    pub(super) fn flooded(&mut self, floods: Vec<Flood>, now: Now, out: &mut dyn FnMut(Event)) {
        let total = |floods: &[Flood]| {
            let counts = floods.iter().flat_map(|flood| [flood.failures, flood.records]);
            counts.fold(0_u64, u64::saturating_add)
        };
        // Two threads read the counts, and what the slower one read comes late.
        if total(&floods) <= total(&self.floods) {
            return;
        }
        for flood in &floods {
            let before = self
                .floods
                .iter()
                .find(|known| (known.pid, &known.comm) == (flood.pid, &flood.comm));
            let more = flood
                .failures
                .saturating_sub(before.map_or(0, |known| known.failures));
            if more > 0 {
                out(Event {
                    pid: flood.pid,
                    comm: flood.comm.as_deref().map(Arc::from),
                    ..event(BUDGET, more, now)
                });
            }
        }
        self.floods = floods.into();
    }

    /// A cumulative count of what was lost by a cause.
    pub(super) fn cumulative(
        &mut self,
        cause: usize,
        count: u64,
        qps: &mut Qps,
        now: Now,
        out: &mut dyn FnMut(Event),
    ) {
        // Less than before: two threads read the counts, and what the slower one read comes late.
        let delta = count.saturating_sub(self.seen[cause]);
        self.seen[cause] += delta;
        self.lost(cause, delta, qps, now, out);
    }

    pub(super) fn lost(
        &mut self,
        cause: usize,
        delta: u64,
        qps: &mut Qps,
        now: Now,
        out: &mut dyn FnMut(Event),
    ) {
        self.total[cause] = self.total[cause].saturating_add(delta);
        if delta > 0 && loses_calls(cause) {
            self.calls_ns = Some(now.mono_ns);
        }
        if delta == 0 || !loses_records(cause) {
            return;
        }
        if !loses_work(cause) {
            qps.want_repair(now.mono_ns);
        }
        self.records_ns = now.mono_ns.max(1);
        out(event(name(cause), delta, now));
    }

    /// Records lost, all causes that lose records.
    pub(super) fn records(&self) -> u64 {
        self.total
            .iter()
            .enumerate()
            .filter(|(cause, _)| loses_records(*cause))
            .fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// How often a QP began to be without a counter slot.
    pub(super) fn without_slot(&self) -> u64 {
        self.total[loss::SLOT as usize]
    }

    /// How often a QP was seen to have no room in the tables of QPs.
    pub(super) fn without_place(&self) -> u64 {
        self.total[loss::PLACE as usize]
    }

    /// Whether calls of some process were not counted.
    pub(super) fn verbs_incomplete(&self) -> bool {
        self.total[loss::VERB as usize] > 0
    }

    /// Every cause that happened.
    pub(super) fn rows(&self) -> Vec<Loss> {
        self.total
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
            .map(|(cause, count)| Loss {
                at: name(cause),
                count: *count,
                records: loses_records(cause),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(mono_ns: u64) -> Now {
        Now { mono_ns, wall_ns: 0 }
    }

    type Tables = (Losses, Qps);

    fn kernel((losses, qps): &mut Tables, counts: [u64; 11], mono_ns: u64) -> Vec<(&'static str, u64)> {
        let mut lost = Vec::new();
        losses.kernel(&counts, qps, at(mono_ns), &mut |event| {
            lost.extend(event.lost_where.zip(event.count));
        });
        lost
    }

    #[test]
    fn every_cause_has_its_documented_word() {
        let names: Vec<_> = (0..CAUSES).map(name).collect();
        assert_eq!(
            names,
            [
                "ring",
                "stash",
                "slot",
                "verb",
                "walk",
                "stamp",
                "return",
                "missed",
                "wr_ring",
                "wr_missed",
                "place",
                "decode",
                "channel"
            ]
        );
    }

    #[test]
    fn a_missing_counter_slot_loses_no_record() {
        let mut tables = Tables::default();
        assert!(kernel(&mut tables, [0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0], 1).is_empty());
        assert_eq!((tables.0.records(), tables.1.wants_repair()), (0, false));
        let slot = Loss {
            at: "slot",
            count: 7,
            records: false,
        };
        assert_eq!(tables.0.rows(), [slot]);
    }

    #[test]
    fn a_lost_work_request_is_a_lost_event_and_needs_no_dump() {
        let mut tables = Tables::default();
        assert_eq!(
            kernel(&mut tables, [0, 0, 0, 0, 0, 0, 0, 0, 7, 2, 0], 1),
            [("wr_ring", 7), ("wr_missed", 2)]
        );
        assert_eq!((tables.0.records(), tables.1.wants_repair()), (9, false));
    }

    #[test]
    fn counts_that_come_late_are_no_new_losses() {
        let mut tables = Tables::default();
        assert_eq!(
            kernel(&mut tables, [5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 1),
            [("ring", 5)]
        );
        // The ring's reader and the sampler both read them, and the one may overtake the other.
        assert_eq!(
            kernel(&mut tables, [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0], 2),
            [("stash", 1)]
        );
        assert_eq!(kernel(&mut tables, [5, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0], 3), []);
        assert_eq!(
            kernel(&mut tables, [6, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0], 4),
            [("ring", 1)]
        );
        assert_eq!(tables.0.records(), 7);
    }

    #[test]
    fn only_a_dump_that_began_after_the_loss_repairs() {
        let (mut losses, mut qps) = Tables::default();
        losses.lost(DECODE, 1, &mut qps, at(10), &mut |_| ());
        qps.repaired(9);
        assert!(qps.wants_repair());
        qps.repaired(10);
        assert!(!qps.wants_repair());
    }
}
