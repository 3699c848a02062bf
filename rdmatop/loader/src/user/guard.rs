//! How much the probes slow down the programs they are on, and when that is too much. Pure.

use std::{collections::BTreeMap, time::Duration};

/// Least time over which to measure hits per second.
const WINDOW: Duration = Duration::from_secs(1);
/// After how many windows in a row above the limit rdmatop removes the probes.
const PATIENCE: u32 = 2;

/// Watches how often probes are hit.
#[derive(Debug)]
pub(super) struct Guard {
    /// How much of a core the probes may take from all programs together.
    limit: f64,
    /// How long a hit delays the probed program, ns; `None` while it has not been measured.
    pub(super) hit_ns: Option<u64>,
    last: Option<(u64, Duration)>,
    /// Calls so far by process, at the end of the last window, and who made the most in it, with the number.
    calls: BTreeMap<u32, u64>,
    most: Option<(u32, u64)>,
    /// All calls of known QPs in that window.
    all: u64,
    speed: Option<f64>,
    above: u32,
}

impl Guard {
    /// `limit`: cores.
    pub(super) fn new(limit: f64) -> Self {
        Self {
            limit,
            hit_ns: None,
            last: None,
            calls: BTreeMap::new(),
            most: None,
            all: 0,
            speed: None,
            above: 0,
        }
    }

    /// Takes in the number of hits so far, that of calls by process, and the time. Returns true if the probes
    /// must be removed.
    pub(super) fn exceeds(&mut self, hits: u64, calls: BTreeMap<u32, u64>, at: Duration) -> bool {
        let Some((before, since)) = self.last else {
            (self.last, self.calls) = (Some((hits, at)), calls);
            return false;
        };
        let elapsed = at.saturating_sub(since);
        if elapsed < WINDOW {
            return false;
        }
        self.last = Some((hits, at));
        let before_of = |pid| self.calls.get(pid).copied().unwrap_or(0);
        let new = calls
            .iter()
            .map(|(pid, now)| (*pid, now.saturating_sub(before_of(pid))));
        let new: Vec<(u32, u64)> = new.collect();
        self.most = new.iter().copied().max_by_key(|(_, calls)| *calls);
        self.all = new.iter().map(|(_, calls)| calls).sum();
        self.calls = calls;
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
        let (pid, calls) = self.most.filter(|(_, calls)| *calls > 0)?;
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
        assert!(!guard.exceeds(0, BTreeMap::new(), s(0)));
        // 300 000 hits of 0.5 us: 15 % of a core.
        assert!(!guard.exceeds(300_000, BTreeMap::new(), s(1)));
        assert_eq!((guard.speed(), guard.cores()), (Some(300_000.0), Some(0.15)));
        assert!(!guard.exceeds(300_000, BTreeMap::new(), s(2)), "a pause");
        assert!(!guard.exceeds(600_000, BTreeMap::new(), s(3)));
        assert!(guard.exceeds(900_000, BTreeMap::new(), s(4)));
    }

    #[test]
    fn less_than_a_window_says_nothing_and_an_unknown_price_is_no_reason() {
        let mut guard = Guard::new(0.1);
        assert!(
            !guard.exceeds(0, BTreeMap::new(), s(1))
                && !guard.exceeds(1 << 40, BTreeMap::new(), s(1) + Duration::from_millis(999))
        );
        assert_eq!(guard.speed(), None);
        for second in 2..9 {
            assert!(!guard.exceeds(second << 40, BTreeMap::new(), s(second)));
        }
        assert!(guard.speed().is_some() && guard.cores().is_none());
    }

    #[test]
    fn who_made_most_of_the_calls_of_a_window_is_known() {
        let mut guard = Guard::new(0.1);
        let calls = |honest, hostile| BTreeMap::from([(7, honest), (8, hostile)]);
        assert!(!guard.exceeds(0, calls(1_000_000, 0), s(0)));
        assert_eq!(guard.most(), None);
        assert!(!guard.exceeds(10, calls(1_000_025, 75), s(1)));
        assert_eq!(guard.most(), Some((8, 0.75)));
        assert!(!guard.exceeds(20, calls(1_000_025, 75), s(2)));
        assert_eq!(guard.most(), None);
    }
}
