//! How much the probes slow down the programs they are on, and when that is too much. Pure.

use std::{collections::BTreeMap, time::Duration};

/// Least time over which to measure hits per second.
const WINDOW: Duration = Duration::from_secs(1);
/// After how many windows in a row above the limit rdmatop removes the probes.
const PATIENCE: u32 = 2;

/// Watches how often probes are hit.
#[derive(Debug, Default)]
pub(super) struct Guard {
    /// How much of a core the probes may take from all programs together.
    limit: f64,
    /// How long a hit delays the probed program, ns; `None` while it has not been measured.
    pub(super) hit_ns: Option<u64>,
    last: Option<(u64, Duration)>,
    /// Calls of known QPs by process, since the last window ended.
    calls: BTreeMap<u32, u64>,
    /// Who made the most of them in the last window, with the number.
    most: Option<(u32, u64)>,
    /// All calls of known QPs in that window.
    all: u64,
    speed: Option<f64>,
    above: u32,
}

impl Guard {
    pub(super) fn new(limit: f64) -> Self {
        Self {
            limit,
            ..Self::default()
        }
    }

    /// Takes in how many more calls a QP of a process has made. They count also if it is destroyed at once.
    pub(super) fn called(&mut self, pid: u32, more: u64) {
        if more > 0 {
            *self.calls.entry(pid).or_default() += more;
        }
    }

    /// Takes in the number of hits so far, and the time. Returns true if the probes must be removed.
    pub(super) fn exceeds(&mut self, hits: u64, at: Duration) -> bool {
        let Some((before, since)) = self.last else {
            self.last = Some((hits, at));
            self.calls.clear();
            return false;
        };
        let elapsed = at.saturating_sub(since);
        if elapsed < WINDOW {
            return false;
        }
        self.last = Some((hits, at));
        let calls = std::mem::take(&mut self.calls);
        self.all = calls.values().sum();
        self.most = calls.into_iter().max_by_key(|(_, calls)| *calls);
        self.speed = Some(hits.saturating_sub(before) as f64 / elapsed.as_secs_f64());
        if self.cores().is_some_and(|cores| cores > self.limit) {
            self.above += 1;
        } else {
            self.above = 0;
        }
        self.above >= PATIENCE
    }

    /// Hits per second in the last window.
    pub(super) fn speed(&self) -> Option<f64> {
        self.speed
    }

    /// The process that made most of the calls for known QPs in the last window, and its share of them.
    pub(super) fn most(&self) -> Option<(u32, f64)> {
        let (pid, calls) = self.most?;
        Some((pid, calls as f64 / self.all as f64))
    }

    /// Cores that the probes take.
    pub(super) fn cores(&self) -> Option<f64> {
        Some(self.speed? * self.hit_ns? as f64 / 1e9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn probes_go_when_they_cost_too_much_for_two_windows_in_a_row() {
        let mut guard = Guard::new(0.1);
        guard.hit_ns = Some(500);
        assert!(!guard.exceeds(0, s(0)));
        // 300 000 hits of 0.5 us: 15 % of a core.
        assert!(!guard.exceeds(300_000, s(1)));
        assert_eq!((guard.speed(), guard.cores()), (Some(300_000.0), Some(0.15)));
        assert!(!guard.exceeds(300_000, s(2)), "a pause");
        assert!(!guard.exceeds(600_000, s(3)));
        assert!(guard.exceeds(900_000, s(4)));
    }

    #[test]
    fn less_than_a_window_says_nothing_and_an_unknown_price_is_no_reason() {
        let mut guard = Guard::new(0.1);
        assert!(!guard.exceeds(0, s(1)) && !guard.exceeds(1 << 40, s(1) + Duration::from_millis(999)));
        assert_eq!(guard.speed(), None);
        for second in 2..9 {
            assert!(!guard.exceeds(second << 40, s(second)));
        }
        assert!(guard.speed().is_some() && guard.cores().is_none());
    }

    #[test]
    fn who_made_most_of_the_calls_of_a_window_is_known() {
        let mut guard = Guard::new(0.1);
        guard.called(7, 1_000_000);
        assert!(!guard.exceeds(0, s(0)));
        assert_eq!(guard.most(), None);
        // The second one has a new queue pair for each few calls.
        for window in 1..3 {
            guard.called(7, 25);
            for _ in 0..5 {
                guard.called(8, 15);
            }
            assert!(!guard.exceeds(10, s(window)));
            assert_eq!(guard.most(), Some((8, 0.75)));
        }
        guard.called(7, 0);
        assert!(!guard.exceeds(20, s(3)));
        assert_eq!(guard.most(), None);
    }
}
