//! What was lost, where, and whether the QP table needs repair.

use rdmatop_common::counters::loss;

use crate::snapshot::Loss;

/// Causes that the kernel side does not count: [`DECODE`] and [`CHANNEL`].
const OURS: [&str; 2] = ["decode", "channel"];
const CAUSES: usize = loss::COUNT as usize + OURS.len();
const DECODE: usize = loss::COUNT as usize;
const CHANNEL: usize = DECODE + 1;

/// Losses since start.
#[derive(Debug, Default)]
pub(super) struct Losses {
    seen: [u64; CAUSES],
    total: [u64; CAUSES],
    /// When a record was last found lost, until a dump that began later.
    repair_since: Option<u64>,
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

fn name(cause: usize) -> &'static str {
    loss::NAMES
        .get(cause)
        .or_else(|| OURS.get(cause.saturating_sub(DECODE)))
        .copied()
        .unwrap_or("other")
}

impl Losses {
    /// Cumulative counts of the kernel side. Returns cause and count of records that are newly lost.
    pub(super) fn kernel(
        &mut self,
        counts: &[u64; loss::COUNT as usize],
        now_ns: u64,
    ) -> Vec<(&'static str, u64)> {
        let mut news = Vec::new();
        for (cause, count) in counts.iter().enumerate() {
            news.extend(self.cumulative(cause, *count, now_ns));
        }
        news
    }

    /// Cumulative count of messages that found the channel full.
    pub(super) fn channel(&mut self, count: u64, now_ns: u64) -> Option<(&'static str, u64)> {
        self.cumulative(CHANNEL, count, now_ns)
    }

    /// Runs of counting programs that were skipped on a kernel that does not count them, see
    /// [`super::overlooked`].
    pub(super) fn overlooked(&mut self, count: u64) {
        let missed = loss::MISSED as usize;
        self.total[missed] = self.total[missed].saturating_add(count);
    }

    /// One record that could not be decoded.
    pub(super) fn undecodable(&mut self, now_ns: u64) -> Option<(&'static str, u64)> {
        self.lost(DECODE, 1, now_ns)
    }

    fn cumulative(&mut self, cause: usize, count: u64, now_ns: u64) -> Option<(&'static str, u64)> {
        // Less than before: two threads read the counts, and what the slower one read comes late.
        let delta = count.saturating_sub(self.seen[cause]);
        self.seen[cause] += delta;
        self.lost(cause, delta, now_ns)
    }

    fn lost(&mut self, cause: usize, delta: u64, now_ns: u64) -> Option<(&'static str, u64)> {
        self.total[cause] = self.total[cause].saturating_add(delta);
        if delta == 0 || !loses_records(cause) {
            return None;
        }
        if !loses_work(cause) {
            self.want_repair(now_ns);
        }
        Some((name(cause), delta))
    }

    /// The QP table may be wrong about a time up to now.
    pub(super) fn want_repair(&mut self, now_ns: u64) {
        self.repair_since = Some(now_ns);
    }

    /// A dump that began at `began_ns` was folded in.
    pub(super) fn repaired(&mut self, began_ns: u64) {
        if self.repair_since.is_some_and(|since| began_ns >= since) {
            self.repair_since = None;
        }
    }

    pub(super) fn wants_repair(&self) -> bool {
        self.repair_since.is_some()
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
        let mut losses = Losses::default();
        assert!(losses.kernel(&[0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0], 1).is_empty());
        assert_eq!((losses.records(), losses.wants_repair()), (0, false));
        let slot = Loss {
            at: "slot",
            count: 7,
            records: false,
        };
        assert_eq!(losses.rows(), [slot]);
    }

    #[test]
    fn a_lost_work_request_is_a_lost_event_and_needs_no_dump() {
        let mut losses = Losses::default();
        assert_eq!(
            losses.kernel(&[0, 0, 0, 0, 0, 0, 0, 0, 7, 2, 0], 1),
            [("wr_ring", 7), ("wr_missed", 2)]
        );
        assert_eq!((losses.records(), losses.wants_repair()), (9, false));
    }

    #[test]
    fn counts_that_come_late_are_no_new_losses() {
        let mut losses = Losses::default();
        assert_eq!(
            losses.kernel(&[5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 1),
            [("ring", 5)]
        );
        // The ring's reader and the sampler both read them, and the one may overtake the other.
        assert_eq!(
            losses.kernel(&[2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0], 2),
            [("stash", 1)]
        );
        assert_eq!(losses.kernel(&[5, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0], 3), []);
        assert_eq!(
            losses.kernel(&[6, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0], 4),
            [("ring", 1)]
        );
        assert_eq!(losses.records(), 7);
    }

    #[test]
    fn only_a_dump_that_began_after_the_loss_repairs() {
        let mut losses = Losses::default();
        losses.undecodable(10);
        losses.repaired(9);
        assert!(losses.wants_repair());
        losses.repaired(10);
        assert!(!losses.wants_repair());
    }
}
