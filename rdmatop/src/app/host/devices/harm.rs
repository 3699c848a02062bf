//! Whether reading the counters of a device does harm to its driver, and for how long they are left alone
//! then. No clock, no device.

use rdmatop_base::step::{ShellWord, step};
use rdmatop_model::cause::{Cause, CauseId, Concerns};

const SECOND: u64 = 1_000_000_000;
/// After so many readings in a row that do harm, the counters are left alone: first for a minute, then for
/// ten after each further one.
const STRIKES: u32 = 3;
const PAUSES: [u64; 2] = [60 * SECOND, 600 * SECOND];

/// What reading the counters of one generation of a device does to its driver.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Harm {
    /// The counters were read since the log was last looked at.
    was_read: bool,
    /// Readings in a row at which the driver or its firmware failed, and those after which it logged.
    failed: u32,
    logged: u32,
    /// Since the last reading without harm, this many pauses were made.
    pauses: usize,
    /// The counters are left alone until then.
    until_ns: Option<u64>,
}

impl Harm {
    /// Whether the counters are left alone.
    pub(super) fn is_paused(self, now_ns: u64) -> bool {
        self.until_ns.is_some_and(|until_ns| now_ns < until_ns)
    }

    /// Records that the counters were read, and whether the driver or its firmware failed at them.
    pub(super) fn counted(&mut self, failed: bool, now_ns: u64) {
        self.was_read = true;
        self.failed = if failed { self.failed + 1 } else { 0 };
        self.weigh(self.failed, now_ns);
    }

    /// Records whether the driver logged something since the last look at the log. With `amid` that was just
    /// before the devices were read; otherwise a line may be of any time. Returns whether the readings are
    /// the reason.
    pub(super) fn logged(&mut self, amid: bool, logged: bool, now_ns: u64) -> bool {
        let was_read = std::mem::take(&mut self.was_read) && amid;
        if logged || was_read {
            // A driver that logs while nothing is read does so for another reason.
            self.logged = if logged && was_read { self.logged + 1 } else { 0 };
        }
        if was_read {
            self.weigh(self.logged, now_ns);
        }
        self.logged >= STRIKES
    }

    /// After a reading: begins a pause, unless the readings were harmful too few times, or the same one has
    /// begun it: a driver may fail and log at once. One without harm ends all pauses.
    fn weigh(&mut self, strikes: u32, now_ns: u64) {
        if self.failed == 0 && self.logged == 0 {
            (self.pauses, self.until_ns) = (0, None);
        } else if strikes >= STRIKES && !self.is_paused(now_ns) {
            let pause = PAUSES[self.pauses.min(PAUSES.len() - 1)];
            self.until_ns = Some(now_ns + pause);
            self.pauses += 1;
        }
    }
}

/// The cause that the counters of a device are left alone.
pub(super) fn pause(device: &str) -> Cause {
    Cause {
        id: CauseId::CountersPaused,
        concerns: Concerns::Device(device.to_owned()),
        what: format!("Counters of {device} are not read for now"),
        why: "reading them made the driver fail or log errors, three times running".into(),
        remedy: step!(
            "they are tried again after a minute, then every ten; to leave the device alone for good: --exclude-device {}, or exclude_device \
             in the settings",
            ShellWord::device(device)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has the counters read in a second, with what the log has before and after that; returns whether they
    /// were read.
    fn second(harm: &mut Harm, second: u64, failed: bool, before: bool, after: bool) -> bool {
        let now_ns = second * SECOND;
        harm.logged(false, before, now_ns);
        let reads = !harm.is_paused(now_ns);
        if reads {
            harm.counted(failed, now_ns);
        }
        harm.logged(true, after && reads, now_ns + SECOND / 10);
        reads
    }

    #[test]
    fn counters_that_do_harm_are_left_alone_for_a_minute_and_then_for_ten() {
        for (failed, logs) in [(true, false), (false, true), (true, true)] {
            let mut harm = Harm::default();
            let read: Vec<u64> = (1..=2000)
                .filter(|at| second(&mut harm, *at, failed, false, logs))
                .collect();
            // A pause begins with the look at the log.
            let first = read[3];
            assert!(read[..3] == [1, 2, 3] && (63..=64).contains(&first), "{read:?}");
            let mut later = read[4..].iter().zip(&read[3..]);
            assert!(later.all(|(at, last)| (600..=601).contains(&(at - last))));
            assert_eq!(read.len(), 7, "{read:?}");
        }
        let note = pause("mlx5_1").to_string();
        assert!(
            note.contains("of mlx5_1 are") && note.contains("--exclude-device mlx5_1,"),
            "{note}"
        );
    }

    #[test]
    fn a_failure_now_and_then_and_lines_without_a_reading_pause_nothing() {
        let mut harm = Harm::default();
        let every = |at: u64, n: u64| !at.is_multiple_of(n);
        assert!((1..100).all(|at| second(&mut harm, at, every(at, 3), false, false)));
        assert!((100..200).all(|at| second(&mut harm, at, false, false, every(at, 3))));
        assert!(
            (200..300).all(|at| second(&mut harm, at, false, true, true)),
            "it logs all the time"
        );
    }

    #[test]
    fn after_a_reading_without_harm_the_next_pause_is_short_again() {
        // Without a log, as in a container, success alone tells it.
        for has_log in [true, false] {
            let mut harm = Harm::default();
            let mut read = |at: u64, failed: bool| {
                if has_log {
                    return second(&mut harm, at, failed, false, false);
                }
                let reads = !harm.is_paused(at * SECOND);
                if reads {
                    harm.counted(failed, at * SECOND);
                }
                reads
            };
            assert!((1..=3).all(|at| read(at, true)) && !read(62, true));
            assert!(read(64, false), "{has_log}");
            assert!((65..=67).all(|at| read(at, true)) && !read(126, true));
            assert!(read(128, true), "a minute, {has_log}");
            assert!(!read(700, true) && read(729, true), "ten, {has_log}");
        }
    }

    #[test]
    fn a_reading_that_a_mode_asks_for_in_a_pause_ends_it_by_success() {
        let mut harm = Harm::default();
        (1..=3).for_each(|at| harm.counted(true, at));
        assert!(harm.is_paused(4));
        harm.counted(false, 4);
        assert!(!harm.is_paused(5));
    }

    #[test]
    fn lines_are_taken_for_ours_from_the_third_reading_on() {
        let mut harm = Harm::default();
        let mut ours = |amid: bool, read: bool| {
            harm.logged(false, false, 0);
            if read {
                harm.counted(false, 0);
            }
            harm.logged(amid, true, 0)
        };
        assert_eq!([(); 4].map(|()| ours(true, true)), [false, false, true, true]);
        assert!(!ours(true, false), "nothing was read, as in a pause");
        assert_eq!([(); 3].map(|()| ours(true, true)), [false, false, true]);
        assert!(!ours(false, true), "the line may have come at any time");
    }

    #[test]
    fn a_reading_before_the_last_look_explains_no_line() {
        let mut harm = Harm::default();
        for _ in 0..9 {
            harm.counted(false, 0);
            // It took too long, so this look showed nothing; the next one is of another round.
            harm.logged(false, false, 0);
            assert!(!harm.logged(true, true, 0));
        }
    }
}
