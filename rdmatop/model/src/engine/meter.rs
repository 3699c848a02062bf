//! One counter that is read now and then: its total and its honest speed.

use crate::{
    input::ReadAt,
    value::{Counter, RateIs, Source},
};

pub(super) const SECOND: u64 = 1_000_000_000;

/// Two readings closer than this give no rate, ns: the error of the clock would be most of it.
pub(super) const MIN_INTERVAL_NS: u64 = 50_000_000;

/// A reading does not end an interval when its own duration differs by more than this part of the interval
/// from that of the reading before. Reads of one kind take equally long, so the middles of two reads are as
/// far apart as the moments at which the kernel read the counter, unless a read was delayed (SIGSTOP,
/// preemption) at an unknown point.
const HELD_UP: u64 = 20;

/// A counter between two readings.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Meter {
    raw: u64,
    total: u64,
    at_ns: u64,
    /// What was counted since `from`.
    counted: u64,
    from: ReadAt,
    elapsed_ns: u64,
    rate: Option<f64>,
    /// Some of what it counted is not in the total, and how much is not known.
    short: bool,
}

/// How wide the counter behind a reading is, and what it does when it is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    /// Goes on at 0 after 2^32 - 1.
    Bits32,
    /// Stays at its largest value, which is this.
    StopsAt(u64),
    /// Is not full in a lifetime.
    Bits64,
}

impl Meter {
    /// The first reading of a counter that may be full already.
    pub(super) fn first(raw: u64, at: ReadAt, width: Width) -> Self {
        Self {
            short: is_full(raw, width),
            ..Self::new(raw, at)
        }
    }

    /// The first reading: a total, no speed.
    pub(super) fn new(raw: u64, at: impl Into<ReadAt>) -> Self {
        let at = at.into();
        Self {
            raw,
            total: raw,
            at_ns: at.mono_ns,
            from: at,
            ..Self::default()
        }
    }

    /// A later reading. One that is not later is ignored: sources are threads.
    ///
    /// A value that went down is a wrap when the counter is known to have 32 bits, or was near the end of 64,
    /// and the step is the smaller half; otherwise the counter was reset: it goes on from there, and this
    /// interval has no rate. A counter that is full has counted more than it says, and no rate.
    pub(super) fn read(&mut self, raw: u64, at: impl Into<ReadAt>, width: Width) {
        let at = at.into();
        if at.mono_ns <= self.at_ns {
            return;
        }
        let full = is_full(raw, width);
        let wrapped_unseen = self.wraps_unseen(width, at.mono_ns);
        let delta = raw.checked_sub(self.raw).or_else(|| self.wrapped(raw, width));
        self.raw = raw;
        let Some(delta) = delta.filter(|_| !full && !wrapped_unseen) else {
            self.short |= full || wrapped_unseen;
            self.total = self.total.saturating_add(delta.unwrap_or(raw));
            self.restart(at);
            return;
        };
        self.add(delta, at);
    }

    /// What was counted up to `raw`, which is less than the value before, if that was a wrap.
    fn wrapped(&self, raw: u64, width: Width) -> Option<u64> {
        const WRAP: u64 = 1 << 32;
        match width {
            Width::Bits32 if self.raw < WRAP => {
                Some(raw + (WRAP - self.raw)).filter(|delta| *delta < WRAP / 2)
            }
            Width::StopsAt(_) => None,
            // No counter gets so far by counting: it started near its maximum, as some drivers' counters do
            // to uncover such defects.
            Width::Bits32 | Width::Bits64 => {
                Some(raw.wrapping_sub(self.raw)).filter(|delta| *delta < 1 << 62)
            }
        }
    }

    /// Whether it may have passed all 32 bits since the last reading, more than once: at the earlier speed,
    /// or, as nobody looked for longer than people measure, at 3.6 million a second.
    fn wraps_unseen(&self, width: Width, at_ns: u64) -> bool {
        const UNWATCHED: f64 = 1200.0;
        let seconds = (at_ns - self.at_ns) as f64 / SECOND as f64;
        let most = self.rate.map_or(0.0, |rate| rate * seconds);
        width == Width::Bits32 && (seconds > UNWATCHED || most >= (1u64 << 31) as f64)
    }

    /// What was counted since the last call.
    pub(super) fn add(&mut self, delta: u64, at: impl Into<ReadAt>) {
        let at = at.into();
        self.total = self.total.saturating_add(delta);
        self.counted = self.counted.saturating_add(delta);
        if at.mono_ns <= self.at_ns {
            return;
        }
        self.at_ns = at.mono_ns;
        let elapsed = at.mono_ns - self.from.mono_ns;
        if elapsed < MIN_INTERVAL_NS {
            return;
        }
        if was_held_up(self.from, at, elapsed) {
            // The delayed reading ends no interval; the other one ends this interval or begins the next.
            if at.within_ns < self.from.within_ns {
                self.restart(at);
            }
            return;
        }
        self.rate = Some(per_second(self.counted, elapsed));
        self.elapsed_ns = elapsed;
        self.counted = 0;
        self.from = at;
    }

    /// When the last reading was made, ns.
    pub(super) fn at_ns(&self) -> u64 {
        self.at_ns
    }

    /// The same, if that reading was not held up.
    pub(super) fn read_at(&self) -> Option<ReadAt> {
        Some(self.from).filter(|at| at.mono_ns == self.at_ns)
    }

    /// Takes over the total, not the speed, of a row that turned out to be the same object.
    pub(super) fn join(&mut self, other: &Self) {
        self.total = self.total.saturating_add(other.total);
        self.short |= other.short;
    }

    /// In the time up to `at` it may have counted, and how much is not known.
    pub(super) fn skip(&mut self, at: impl Into<ReadAt>) {
        let at = at.into();
        if at.mono_ns > self.at_ns {
            self.short = true;
            self.restart(at);
        }
    }

    fn restart(&mut self, at: ReadAt) {
        self.at_ns = at.mono_ns;
        self.rate = None;
        self.counted = 0;
        self.from = at;
    }

    /// The counter at `now_ns`. A speed from long ago is not the speed now.
    pub(super) fn counter(&self, source: Source, now_ns: u64) -> Counter {
        Counter {
            total: self.total,
            rate: self
                .rate
                .filter(|_| !is_stale(self.from.mono_ns, self.elapsed_ns, now_ns)),
            source,
            partial: self.short,
            rate_is: RateIs::AsTotal,
        }
    }
}

/// Whether one of the two readings at the ends of an interval was delayed for a time that matters.
pub(super) fn was_held_up(from: ReadAt, to: ReadAt, elapsed_ns: u64) -> bool {
    to.within_ns.abs_diff(from.within_ns).saturating_mul(HELD_UP) > elapsed_ns
}

/// Whether a counter stands at its maximum. One of 64 bits under the same name passes the value and goes on.
fn is_full(raw: u64, width: Width) -> bool {
    width == Width::StopsAt(raw)
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

    fn rate(meter: &Meter, now: u64) -> Option<f64> {
        meter.counter(Source::Netlink, now).rate
    }

    #[test]
    fn a_rate_uses_the_real_time_between_readings() {
        let mut meter = Meter::new(100, SECOND);
        assert_eq!(rate(&meter, SECOND), None);
        meter.read(600, 3 * SECOND, Width::Bits64);
        assert_eq!(rate(&meter, 3 * SECOND), Some(250.0));
        meter.read(700, 3 * SECOND + SECOND / 2, Width::Bits64);
        assert_eq!(rate(&meter, 4 * SECOND), Some(200.0));
    }

    #[test]
    fn readings_too_close_keep_the_last_rate_and_lose_no_count() {
        let mut meter = Meter::new(0, SECOND);
        meter.read(1000, 2 * SECOND, Width::Bits64);
        meter.read(1010, 2 * SECOND + 1, Width::Bits64);
        assert_eq!(rate(&meter, 2 * SECOND), Some(1000.0));
        meter.read(2000, 3 * SECOND, Width::Bits64);
        assert_eq!(rate(&meter, 3 * SECOND), Some(1000.0));
    }

    #[test]
    fn a_32_bit_counter_wraps_without_a_spike() {
        let mut meter = Meter::new(u64::from(u32::MAX) - 9, SECOND);
        meter.read(10, 2 * SECOND, Width::Bits32);
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
            meter.read(5, 2 * SECOND, width);
            assert_eq!(rate(&meter, 2 * SECOND), None);
            assert_eq!(meter.counter(Source::Netlink, 2 * SECOND).total, 1_000_005);
            meter.read(15, 3 * SECOND, width);
            assert_eq!(rate(&meter, 3 * SECOND), Some(10.0));
        }
    }

    #[test]
    fn a_speed_from_long_ago_is_not_shown() {
        let mut meter = Meter::new(0, SECOND);
        meter.read(10, 2 * SECOND, Width::Bits64);
        assert_eq!(rate(&meter, 4 * SECOND), Some(10.0));
        assert_eq!(rate(&meter, 60 * SECOND), None);
    }

    #[test]
    fn a_64_bit_counter_that_began_near_its_end_wraps_without_a_spike() {
        let mut meter = Meter::new(u64::MAX - 9, SECOND);
        meter.read(10, 2 * SECOND, Width::Bits64);
        assert_eq!(rate(&meter, 2 * SECOND), Some(20.0));
        meter.read(30, 3 * SECOND, Width::Bits64);
        assert_eq!(rate(&meter, 3 * SECOND), Some(20.0));
    }

    #[test]
    fn a_counter_at_its_maximum_has_no_rate_and_its_total_is_a_bound() {
        let width = Width::StopsAt(0xffff);
        let mut meter = Meter::first(0xfff0, SECOND.into(), width);
        meter.read(0xfffa, 2 * SECOND, width);
        assert_eq!(rate(&meter, 2 * SECOND), Some(10.0));
        meter.read(0xffff, 3 * SECOND, width);
        meter.read(0xffff, 4 * SECOND, width);
        let counter = meter.counter(Source::Sysfs, 4 * SECOND);
        assert_eq!(
            (counter.total, counter.rate, counter.partial),
            (0xffff, None, true)
        );
        assert!(Meter::first(0xffff, SECOND.into(), width).short);
        // Reset by a tool: it counts again, from what it was.
        meter.read(1, 5 * SECOND, width);
        meter.read(6, 6 * SECOND, width);
        assert_eq!(rate(&meter, 6 * SECOND), Some(5.0));
    }

    #[test]
    fn a_32_bit_counter_that_may_have_wrapped_twice_has_no_rate() {
        let mut meter = Meter::new(0, SECOND);
        meter.read(100_000_000, 2 * SECOND, Width::Bits32);
        // Stopped for a minute: six billion, of which the counter shows the remainder.
        meter.read(1_800_000_000, 62 * SECOND, Width::Bits32);
        let counter = meter.counter(Source::Netlink, 62 * SECOND);
        assert_eq!((counter.rate, counter.partial), (None, true));
        meter.read(1_900_000_000, 63 * SECOND, Width::Bits32);
        assert_eq!(rate(&meter, 63 * SECOND), Some(1e8));
    }

    #[test]
    fn a_32_bit_counter_at_rest_that_nobody_watched_for_long_may_have_wrapped() {
        let after = |seconds: u64, width| {
            let mut meter = Meter::new(0, SECOND);
            meter.read(0, 2 * SECOND, width);
            meter.read(5, (2 + seconds) * SECOND, width);
            let counter = meter.counter(Source::Netlink, (2 + seconds) * SECOND);
            (counter.rate.is_some(), counter.partial)
        };
        assert_eq!(after(600, Width::Bits32), (true, false), "--once --delay 600");
        assert_eq!(after(3600, Width::Bits32), (false, true));
        assert_eq!(after(3600, Width::Bits64), (true, false));
    }

    #[test]
    fn stopped_for_a_minute_the_first_rate_is_the_average_of_that_minute() {
        let mut meter = Meter::new(0, SECOND);
        meter.read(100, 2 * SECOND, Width::Bits64);
        // The stop came between two reads.
        meter.read(6200, 63 * SECOND, Width::Bits64);
        assert_eq!(rate(&meter, 63 * SECOND), Some(100.0));
        meter.read(6300, 64 * SECOND, Width::Bits64);
        // And within one: when in that minute the kernel read the counter is not known, so the next reading
        // gives the rate.
        let at = ReadAt::between(65 * SECOND, 125 * SECOND);
        meter.read(6400, at, Width::Bits64);
        assert_eq!(rate(&meter, 125 * SECOND), None);
        meter.read(12_500, 126 * SECOND, Width::Bits64);
        assert_eq!(rate(&meter, 126 * SECOND), Some(6200.0 / 62.0));
    }

    #[test]
    fn a_first_reading_that_was_held_up_begins_no_interval() {
        let mut meter = Meter::new(0, ReadAt::between(SECOND, 61 * SECOND));
        meter.read(6100, 62 * SECOND, Width::Bits64);
        assert_eq!(rate(&meter, 62 * SECOND), None);
        meter.read(6200, 63 * SECOND, Width::Bits64);
        assert_eq!(rate(&meter, 63 * SECOND), Some(100.0));
    }

    #[test]
    fn a_slow_driver_has_rates() {
        // Each read takes 300 ms, as firmware does that is asked for each counter.
        let mut meter = Meter::new(0, ReadAt::between(0, 300 * MIN_INTERVAL_NS / 50));
        for second in 1..5 {
            let begin = second * SECOND;
            let at = ReadAt::between(begin, begin + 300 * MIN_INTERVAL_NS / 50);
            meter.read(second * 1000, at, Width::Bits64);
            assert_eq!(rate(&meter, begin + SECOND), Some(1000.0));
        }
    }

    #[test]
    fn an_older_reading_that_comes_late_is_ignored() {
        let mut meter = Meter::new(100, 2 * SECOND);
        meter.read(50, SECOND, Width::Bits64);
        assert_eq!(meter.counter(Source::Netlink, 2 * SECOND).total, 100);
    }

    proptest::proptest! {
        #[test]
        fn a_constant_speed_read_at_any_times_is_shown_as_it_is(
            steps in proptest::collection::vec(60u64..90_000, 2..60),
            speed in 1u64..100_000_000,
            start in 0u64..1 << 40,
            width in 0..3,
        ) {
            // A whole number each microsecond, read at whole microseconds: the expected value is exact.
            let width = match width {
                0 => Width::Bits64,
                1 => Width::Bits32,
                _ => Width::StopsAt(0xffff_ffff),
            };
            let of = |micros: u64| match width {
                Width::Bits32 => (start + micros * (speed % 1000)) & 0xffff_ffff,
                _ => start + micros * speed,
            };
            let truth = 1e6 * if width == Width::Bits32 { speed % 1000 } else { speed } as f64;
            let mut micros = 1_000_000;
            let mut meter = Meter::first(of(micros), (micros * 1000).into(), width);
            for step in steps {
                micros += step;
                meter.read(of(micros), micros * 1000, width);
                if let Some(shown) = rate(&meter, micros * 1000) {
                    proptest::prop_assert!((shown - truth).abs() <= truth * 1e-9, "{} for {}", shown, truth);
                }
            }
        }

        #[test]
        fn a_total_never_goes_down(readings in proptest::collection::vec((0u64.., 0u64..100 * SECOND), 1..50)) {
            let mut meter = Meter::new(0, 0);
            let mut last = 0;
            for (raw, at) in readings {
                meter.read(raw, at, Width::Bits32);
                let counter = meter.counter(Source::Netlink, at);
                proptest::prop_assert!(counter.total >= last);
                proptest::prop_assert!(counter.rate.is_none_or(|rate| rate >= 0.0 && rate.is_finite()));
                last = counter.total;
            }
        }
    }
}
