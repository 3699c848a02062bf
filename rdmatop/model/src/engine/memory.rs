//! Bytes of the memory regions of one process.

use std::collections::VecDeque;

/// Changes kept apart from the base. A process that registers faster than MRs are dumped folds the oldest in.
const RECENT: usize = 1024;

/// Bytes registered now: the last dump, and the records after it.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// From a dump, or zero when records alone are known; `None` before either.
    base: Option<i128>,
    base_ns: u64,
    recent: VecDeque<(u64, i128)>,
    /// Bytes of all registrations that records told, whether or not they are still registered.
    pub(super) registered: u64,
    /// A region of unknown size was registered or deregistered since the last dump.
    unknown: bool,
}

impl Memory {
    /// A region was registered (positive) or deregistered (negative); `None` when its size is unknown.
    pub(super) fn change(&mut self, bytes: Option<i128>, ts_ns: u64) {
        self.base.get_or_insert(0);
        let more = bytes.and_then(|bytes| u64::try_from(bytes).ok());
        self.registered = self.registered.saturating_add(more.unwrap_or(0));
        if ts_ns <= self.base_ns {
            // The dump includes it.
            return;
        }
        let Some(bytes) = bytes else {
            self.unknown = true;
            return;
        };
        self.recent.push_back((ts_ns, bytes));
        if self.recent.len() > RECENT
            && let (Some(base), Some((_, oldest))) = (&mut self.base, self.recent.pop_front())
        {
            *base += oldest;
        }
    }

    /// A dump that began at `began_ns`.
    pub(super) fn dumped(&mut self, bytes: u64, began_ns: u64) {
        self.base = Some(bytes.into());
        self.base_ns = began_ns;
        self.recent.retain(|(ts_ns, _)| *ts_ns > began_ns);
        self.unknown = false;
    }

    /// Bytes now, `None` when unknown.
    pub(super) fn bytes(&self) -> Option<u64> {
        let sum = self.base? + self.recent.iter().map(|(_, bytes)| bytes).sum::<i128>();
        // Less than zero: a region was deregistered whose registration was not seen.
        u64::try_from(sum).ok().filter(|_| !self.unknown)
    }
}

/// A region whose registration was seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    pub(super) process: Option<u64>,
    pub(super) bytes: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_dump_or_a_record_memory_is_unknown_and_not_zero() {
        assert_eq!(Memory::default().bytes(), None);
    }

    #[test]
    fn records_count_from_the_last_dump() {
        let mut memory = Memory::default();
        memory.change(Some(100), 5);
        assert_eq!(memory.bytes(), Some(100));
        memory.dumped(8192, 10);
        memory.change(Some(50), 9);
        assert_eq!(memory.bytes(), Some(8192), "the dump has what happened before it");
        memory.change(Some(-8192), 11);
        memory.change(Some(1), 12);
        assert_eq!(memory.bytes(), Some(1));
    }

    #[test]
    fn a_region_of_unknown_size_makes_the_sum_unknown_until_a_dump() {
        let mut memory = Memory::default();
        memory.change(Some(4096), 1);
        memory.change(None, 2);
        assert_eq!(memory.bytes(), None);
        memory.dumped(5000, 3);
        assert_eq!(memory.bytes(), Some(5000));
    }

    #[test]
    fn more_deregistered_than_registered_is_unknown() {
        let mut memory = Memory::default();
        memory.change(Some(-4096), 1);
        assert_eq!(memory.bytes(), None);
    }

    #[test]
    fn churn_without_dumps_stays_bounded_and_exact() {
        let mut memory = Memory::default();
        for ts in 1..=10_000u64 {
            memory.change(Some(if ts % 2 == 1 { 4096 } else { -4096 }), ts);
        }
        assert_eq!(memory.bytes(), Some(0));
        assert!(memory.recent.len() <= RECENT);
    }
}
