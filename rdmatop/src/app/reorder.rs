//! Events in the order of their times.
//!
//! The ring buffer hands records over in the order in which space was reserved, and each is stamped some
//! instructions before or after that. When two CPUs reserve at once the later stamp may come first, and a
//! program that is interrupted in between is later still. So an event waits until one arrives that is younger
//! by [`HOLD_NS`], or for that time when nothing follows. The engine gets the kernel's order all the same,
//! because that order decides who owns a reused address.

/// How long an event may wait, ns. An interrupt between the stamp and the reservation runs softirqs for 2 ms
/// or a little more (`MAX_SOFTIRQ_TIME`, kernel/softirq.c); this is several times as long, and too short to
/// be seen.
pub(super) const HOLD_NS: u64 = 10_000_000;

/// Keeps the youngest; the rest leaves in the order of times. Of equal times the first to arrive leaves
/// first.
#[derive(Debug)]
pub(super) struct Reorder<T> {
    held: Vec<(u64, T)>,
    newest_ns: u64,
    /// `held` is in order, which is nearly always.
    sorted: bool,
}

impl<T> Default for Reorder<T> {
    fn default() -> Self {
        Self {
            held: Vec::new(),
            newest_ns: 0,
            sorted: true,
        }
    }
}

impl<T> Reorder<T> {
    pub(super) fn push(&mut self, mono_ns: u64, item: T) {
        self.sorted &= self.held.last().is_none_or(|(last, _)| *last <= mono_ns);
        self.newest_ns = self.newest_ns.max(mono_ns);
        self.held.push((mono_ns, item));
    }

    /// Adds an item without a time of the kernel: it stays behind all earlier items.
    pub(super) fn push_behind(&mut self, item: T) {
        self.push(self.newest_ns, item);
    }

    /// The youngest time so far.
    pub(super) fn newest_ns(&self) -> u64 {
        self.newest_ns
    }

    /// Takes what happened up to `until_ns`, in order.
    pub(super) fn take(&mut self, until_ns: u64) -> impl Iterator<Item = T> {
        if !self.sorted {
            // A stable sort of a nearly ordered list: it merges runs.
            self.held.sort_by_key(|(mono_ns, _)| *mono_ns);
            self.sorted = true;
        }
        let ready = self.held.partition_point(|(mono_ns, _)| *mono_ns <= until_ns);
        self.held.drain(..ready).map(|(_, item)| item)
    }

    /// How many items wait.
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn events_late_by_less_than_the_hold_leave_in_order_and_once(
            // Time until the next event, how late its record arrives, and whether the reader looks then.
            events in prop::collection::vec((0u64..4_000_000, 0..HOLD_NS, any::<bool>()), 1..300),
        ) {
            let mut at = 0;
            let mut arrivals: Vec<(u64, u64, usize, bool)> = Vec::new();
            for (number, (pause, late, look)) in events.iter().enumerate() {
                at += pause;
                arrivals.push((at + late, at, number, *look));
            }
            arrivals.sort_unstable();
            let (mut reorder, mut out) = (Reorder::default(), Vec::new());
            for (now, mono_ns, number, look) in arrivals {
                reorder.push(mono_ns, (mono_ns, number));
                if look {
                    let until_ns = reorder.newest_ns().saturating_sub(HOLD_NS);
                    out.extend(reorder.take(until_ns));
                    // And by the clock, for what had arrived at its start.
                    out.extend(reorder.take(now.saturating_sub(HOLD_NS)));
                }
            }
            out.extend(reorder.take(u64::MAX));
            prop_assert_eq!(reorder.len(), 0);
            prop_assert!(out.is_sorted_by_key(|(mono_ns, _)| *mono_ns));
            let mut numbers: Vec<usize> = out.iter().map(|(_, number)| *number).collect();
            numbers.sort_unstable();
            prop_assert_eq!(numbers, (0..events.len()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn equal_times_keep_their_order_and_what_is_too_late_follows() {
        let mut reorder = Reorder::default();
        for (mono_ns, item) in [(5, 'b'), (5, 'c'), (3, 'a'), (9, 'e'), (7, 'd')] {
            reorder.push(mono_ns, item);
        }
        assert_eq!(reorder.take(7).collect::<String>(), "abcd");
        assert_ne!(reorder.len(), 0);
        reorder.push(4, 'x');
        reorder.push_behind('f');
        assert_eq!(reorder.take(9).collect::<String>(), "xef");
    }
}
