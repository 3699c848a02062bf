//! One counter that is read now and then: its total and its honest speed.

use crate::model::value::{Counter, Source};

/// Nanoseconds in a second.
pub(super) const SECOND: u64 = 1_000_000_000;

/// A counter between two readings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meter {
    raw: u64,
    total: u64,
    at_ns: u64,
    from_total: u64,
    from_ns: u64,
    elapsed_ns: u64,
    rate: Option<f64>,
}

/// How wide the counter behind a reading is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    /// Wraps at 2^32.
    Bits32,
    /// Does not wrap in a lifetime.
    Bits64,
}

impl Meter {
    /// The first reading: a total, no speed.
    pub(super) fn new(raw: u64, at_ns: u64) -> Self {
        Self {
            raw,
            total: raw,
            at_ns,
            from_total: raw,
            from_ns: at_ns,
            elapsed_ns: 0,
            rate: None,
        }
    }

    /// A later reading. One that is not later is ignored: sources are threads.
    ///
    /// A value that went down is a wrap when the counter is known to have 32 bits and the step is the smaller
    /// half; otherwise the counter was reset: it goes on from there, and this interval has no rate.
    pub(super) fn read(&mut self, raw: u64, at_ns: u64, width: Width, min_interval_ns: u64) {
        const WRAP: u64 = 1 << 32;
        if at_ns <= self.at_ns {
            return;
        }
        let delta = match raw.checked_sub(self.raw) {
            Some(delta) => Some(delta),
            None if width == Width::Bits32 && self.raw < WRAP => {
                Some(raw + (WRAP - self.raw)).filter(|delta| *delta < WRAP / 2)
            }
            None => None,
        };
        self.raw = raw;
        let Some(delta) = delta else {
            self.total = self.total.saturating_add(raw);
            self.at_ns = at_ns;
            self.restart();
            return;
        };
        self.add(delta, at_ns, min_interval_ns);
    }

    /// What was counted since the last call.
    pub(super) fn add(&mut self, delta: u64, at_ns: u64, min_interval_ns: u64) {
        self.total = self.total.saturating_add(delta);
        if at_ns <= self.at_ns {
            return;
        }
        self.at_ns = at_ns;
        let elapsed = at_ns - self.from_ns;
        if elapsed >= min_interval_ns.max(1) {
            self.rate = Some(per_second(self.total - self.from_total, elapsed));
            self.elapsed_ns = elapsed;
            self.from_total = self.total;
            self.from_ns = at_ns;
        }
    }

    /// Takes over what turned out to be the same thing: its total, not its speed.
    pub(super) fn join(&mut self, other: &Self) {
        self.total = self.total.saturating_add(other.total);
        self.restart();
    }

    fn restart(&mut self) {
        self.rate = None;
        self.from_total = self.total;
        self.from_ns = self.at_ns;
    }

    /// The counter at `now_ns`. A speed from long ago is not the speed now.
    pub(super) fn counter(&self, source: Source, now_ns: u64) -> Counter {
        Counter {
            total: self.total,
            rate: self
                .rate
                .filter(|_| !is_stale(self.at_ns, self.elapsed_ns, now_ns)),
            source,
        }
    }
}

/// True when the last reading is so old, by the pace of readings, that its speed says nothing about now.
pub(super) fn is_stale(at_ns: u64, elapsed_ns: u64, now_ns: u64) -> bool {
    now_ns.saturating_sub(at_ns) > elapsed_ns.saturating_mul(3).saturating_add(2 * SECOND)
}

/// Events in nanoseconds as events a second.
pub(super) fn per_second(count: u64, elapsed_ns: u64) -> f64 {
    count as f64 * (SECOND as f64 / elapsed_ns as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: u64 = 50_000_000;

    fn rate(meter: &Meter, now: u64) -> Option<f64> {
        meter.counter(Source::Netlink, now).rate
    }

    #[test]
    fn a_rate_uses_the_real_time_between_readings() {
        let mut meter = Meter::new(100, SECOND);
        assert_eq!(rate(&meter, SECOND), None);
        meter.read(600, 3 * SECOND, Width::Bits64, MIN);
        assert_eq!(rate(&meter, 3 * SECOND), Some(250.0));
        meter.read(700, 3 * SECOND + SECOND / 2, Width::Bits64, MIN);
        assert_eq!(rate(&meter, 4 * SECOND), Some(200.0));
    }

    #[test]
    fn readings_too_close_keep_the_last_rate_and_lose_no_count() {
        let mut meter = Meter::new(0, SECOND);
        meter.read(1000, 2 * SECOND, Width::Bits64, MIN);
        meter.read(1010, 2 * SECOND + 1, Width::Bits64, MIN);
        assert_eq!(rate(&meter, 2 * SECOND), Some(1000.0));
        meter.read(2000, 3 * SECOND, Width::Bits64, MIN);
        assert_eq!(rate(&meter, 3 * SECOND), Some(1000.0));
    }

    #[test]
    fn a_32_bit_counter_wraps_without_a_spike() {
        let mut meter = Meter::new(u64::from(u32::MAX) - 9, SECOND);
        meter.read(10, 2 * SECOND, Width::Bits32, MIN);
        assert_eq!(rate(&meter, 2 * SECOND), Some(20.0));
        assert_eq!(
            meter.counter(Source::Netlink, 2 * SECOND).total,
            u64::from(u32::MAX) + 11
        );
    }

    #[test]
    fn a_reset_has_no_rate_and_the_total_goes_on() {
        for width in [Width::Bits32, Width::Bits64] {
            let mut meter = Meter::new(1_000_000, SECOND);
            meter.read(5, 2 * SECOND, width, MIN);
            assert_eq!(rate(&meter, 2 * SECOND), None);
            assert_eq!(meter.counter(Source::Netlink, 2 * SECOND).total, 1_000_005);
            meter.read(15, 3 * SECOND, width, MIN);
            assert_eq!(rate(&meter, 3 * SECOND), Some(10.0));
        }
    }

    #[test]
    fn a_speed_from_long_ago_is_not_shown() {
        let mut meter = Meter::new(0, SECOND);
        meter.read(10, 2 * SECOND, Width::Bits64, MIN);
        assert_eq!(rate(&meter, 4 * SECOND), Some(10.0));
        assert_eq!(rate(&meter, 60 * SECOND), None);
    }

    #[test]
    fn an_older_reading_that_comes_late_is_ignored() {
        let mut meter = Meter::new(100, 2 * SECOND);
        meter.read(50, SECOND, Width::Bits64, MIN);
        assert_eq!(meter.counter(Source::Netlink, 2 * SECOND).total, 100);
    }

    proptest::proptest! {
        #[test]
        fn a_total_never_goes_down(readings in proptest::collection::vec((0u64.., 0u64..100 * SECOND), 1..50)) {
            let mut meter = Meter::new(0, 0);
            let mut last = 0;
            for (raw, at) in readings {
                meter.read(raw, at, Width::Bits32, MIN);
                let counter = meter.counter(Source::Netlink, at);
                proptest::prop_assert!(counter.total >= last);
                proptest::prop_assert!(counter.rate.is_none_or(|rate| rate >= 0.0 && rate.is_finite()));
                last = counter.total;
            }
        }
    }
}
