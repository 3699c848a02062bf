//! Which device is asked next, which devices a round waits for, and which are reported as slow. No clock, no
//! threads.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rdmatop_base::text;
use rdmatop_model::cause::{Cause, CauseId, Concerns};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// After this time a thread may still wait for its driver: another thread serves the other devices.
const BEHIND: u64 = 250 * MS;
/// How long a round waits for a driver.
const AWAITED: u64 = 500 * MS;
/// How long a round waits for the kernel itself: it lists ten thousand queue pairs in seconds without a
/// driver.
const LISTED: u64 = 3 * SECOND;
/// The same in a mode that prints once: there, what is missing stays missing.
const ONCE: u64 = 8 * SECOND;
const LISTED_ONCE: u64 = 20 * SECOND;
/// A device that takes longer is reported as slow.
pub(super) const SLOW: u64 = SECOND;
/// A slow device is left alone as long as it took, at most this long: its driver must have time for other
/// work.
const REST: u64 = 10 * SECOND;
/// The largest number of threads that read devices. A node with sixteen ports on a dead fabric needs as many;
/// devices beyond that are virtual functions of a few cards, and wait for each other anyway.
pub(super) const MOST: usize = 16;
/// How many slow devices get a line of their own.
const LINES: usize = 3;
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// Not started: no thread has taken it.
    #[default]
    Queued,
    List,
    /// The identity of the device, for which the driver reports its firmware version.
    Identity,
    /// States of its ports, and its hardware counters.
    Ports,
    /// The counters of the device are read.
    Counters,
    /// Files that describe it.
    Facts,
    /// The queue pairs and memory regions of the device are read.
    Objects,
}

impl Stage {
    fn words(self) -> &'static str {
        match self {
            Self::Queued => "anything",
            Self::List => "which devices there are",
            Self::Identity => "its firmware version",
            Self::Ports => "the state of its ports",
            Self::Counters => "its counters",
            Self::Facts => "its files in /sys/class/infiniband",
            Self::Objects => "its queue pairs and memory regions",
        }
    }

    /// How long a round waits for this stage.
    fn patience(self, once: bool) -> u64 {
        match (self, once) {
            (Self::List | Self::Objects, false) => LISTED,
            (Self::List | Self::Objects, true) => LISTED_ONCE,
            (_, false) => AWAITED,
            (_, true) => ONCE,
        }
    }
}

/// The subject of a reading: the list, or one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    DeviceList,
    /// A device, by our own number.
    Device(u64),
}

/// Progress of a reading. The thread that reads writes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    stage: Stage,
    /// The beginning of the stage.
    since_ns: u64,
    /// The beginning of the reading.
    begun_ns: u64,
    longest: Option<(Stage, u64)>,
    ended_ns: Option<u64>,
}

impl Progress {
    fn longest(&self, now_ns: u64) -> (Stage, u64) {
        let current = (self.stage, self.end_ns(now_ns).saturating_sub(self.since_ns));
        self.longest
            .filter(|(_, took)| *took > current.1)
            .unwrap_or(current)
    }

    fn end_ns(&self, now_ns: u64) -> u64 {
        self.ended_ns.unwrap_or(now_ns)
    }

    fn for_ns(&self, now_ns: u64) -> u64 {
        self.end_ns(now_ns).saturating_sub(self.begun_ns)
    }
}

/// A [`Progress`] that two threads hold.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedProgress(Arc<Mutex<Progress>>);

impl SharedProgress {
    /// The reader begins with `stage`.
    pub(super) fn enter(&self, stage: Stage, now_ns: u64) {
        let mut progress = self.lock();
        if progress.stage == Stage::Queued {
            progress.begun_ns = now_ns;
        } else {
            progress.longest = Some(progress.longest(now_ns));
        }
        (progress.stage, progress.since_ns) = (stage, now_ns);
    }

    /// The reader has ended. Its answer may wait for the next round to take it.
    pub(super) fn end(&self, now_ns: u64) {
        self.lock().ended_ns = Some(now_ns);
    }

    fn get(&self) -> Progress {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reading under way.
#[derive(Debug)]
struct Asked {
    progress: SharedProgress,
    /// The round waits for it.
    awaited: bool,
}

#[derive(Debug, Default)]
struct DeviceTurn {
    name: Arc<str>,
    asked: Option<Asked>,
    /// The last reading, which has ended.
    took: Option<Progress>,
}

/// The next step of the round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Wait this long for answers, ns.
    Wait(u64),
    /// Start another thread: all threads wait for a driver, and jobs are left.
    Grow,
    /// Stop waiting.
    Done,
}

/// When each subject is asked, and what the rounds wait for.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    all: BTreeMap<Subject, DeviceTurn>,
}

impl Schedule {
    /// Whether `subject` is to be asked now: not while its answer is outstanding, and not when it is slow and
    /// has just answered. A mode that prints once does not let it rest.
    pub(super) fn is_due(&self, subject: Subject, now_ns: u64, once: bool) -> bool {
        let Some(turn) = self.all.get(&subject) else {
            return true;
        };
        let rests = |took: Progress| {
            let (ns, since_ns) = (took.for_ns(now_ns), now_ns.saturating_sub(took.end_ns(now_ns)));
            // After a list of queue pairs only the next one rests (`Listed::dump_is_due`).
            ns > SLOW && took.longest(now_ns).0 != Stage::Objects && since_ns < ns.min(REST)
        };
        turn.asked.is_none() && (once || !turn.took.is_some_and(rests))
    }

    /// Whether the answer of `subject` is outstanding.
    pub(super) fn is_asked(&self, subject: Subject) -> bool {
        self.all.get(&subject).is_some_and(|turn| turn.asked.is_some())
    }

    /// How many answers the round waits for.
    pub(super) fn awaited(&self) -> usize {
        let asked = self.all.values().filter_map(|turn| turn.asked.as_ref());
        asked.filter(|asked| asked.awaited).count()
    }

    /// Records that `subject`, named `name`, is asked. Its reader writes its progress.
    pub(super) fn ask(
        &mut self,
        subject: Subject,
        name: &Arc<str>,
        now_ns: u64,
        once: bool,
    ) -> SharedProgress {
        let turn = self.all.entry(subject).or_default();
        turn.name = Arc::clone(name);
        // A round of the live view does not wait for a device that was late the last time: its answer goes to
        // a later round.
        let late = turn
            .took
            .is_some_and(|took| took.for_ns(now_ns) > took.longest(now_ns).0.patience(false));
        // It waits for a thread first.
        let progress = SharedProgress(Arc::new(Mutex::new(Progress {
            since_ns: now_ns,
            begun_ns: now_ns,
            ..Progress::default()
        })));
        turn.asked = Some(Asked {
            progress: progress.clone(),
            awaited: once || !late,
        });
        progress
    }

    /// Records the answer of `subject`. False when it was not asked, as for a device that is gone.
    pub(super) fn answered(&mut self, subject: Subject, now_ns: u64) -> bool {
        let Some(turn) = self.all.get_mut(&subject) else {
            return false;
        };
        let Some(asked) = turn.asked.take() else {
            return false;
        };
        let mut took = asked.progress.get();
        took.ended_ns.get_or_insert(now_ns);
        let ns = took.for_ns(now_ns);
        if ns > SLOW {
            let (stage, of_it_ns) = took.longest(now_ns);
            log::warn!(device:% = turn.name, ms = ns / MS, stage:? = stage, of_it_ms = of_it_ns / MS; "late");
        }
        turn.took = Some(took);
        true
    }

    /// Keeps the devices that still exist.
    pub(super) fn keep(&mut self, there: impl Fn(u64) -> bool) {
        self.all.retain(|subject, _| match subject {
            Subject::DeviceList => true,
            Subject::Device(id) => there(*id),
        });
    }

    /// Ends the round: later rounds do not wait for answers that are outstanding now.
    pub(super) fn give_up(&mut self) {
        for asked in self.all.values_mut().filter_map(|turn| turn.asked.as_mut()) {
            asked.awaited = false;
        }
    }

    /// The next step of the round, given the number of free threads and whether another may be started.
    pub(super) fn step(&self, now_ns: u64, free: usize, may_grow: bool, once: bool) -> Step {
        let asked = self.all.values().filter_map(|turn| turn.asked.as_ref());
        let asked: Vec<(bool, Progress)> = asked.map(|asked| (asked.awaited, asked.progress.get())).collect();
        let awaited = asked.iter().filter(|(awaited, _)| *awaited);
        let awaited = awaited.map(|(_, progress)| progress);
        if awaited.clone().any(|progress| progress.stage == Stage::Queued) {
            if free > 0 {
                // A thread is about to take it.
                return Step::Wait(BEHIND);
            }
            let all = asked.iter().map(|(_, progress)| progress);
            let begun = all.filter(|progress| progress.stage != Stage::Queued);
            let until_behind = begun.map(|progress| BEHIND.saturating_sub(progress.for_ns(now_ns)));
            match until_behind.max() {
                Some(ns) if ns > 0 => return Step::Wait(ns),
                _ if may_grow => return Step::Grow,
                _ => {}
            }
        }
        let left = |progress: &Progress| {
            let spent = now_ns.saturating_sub(progress.since_ns);
            progress.stage.patience(once).saturating_sub(spent)
        };
        match awaited.map(left).max() {
            None | Some(0) => Step::Done,
            Some(ns) => Step::Wait(ns),
        }
    }

    /// A line for each slow device, given the number of threads.
    pub(super) fn notes(&self, now_ns: u64, threads: usize) -> Vec<Cause> {
        let mut slow: Vec<(&str, Cause)> = self
            .all
            .iter()
            .filter_map(|(subject, turn)| Some((&*turn.name, turn.note(*subject, now_ns, threads)?)))
            .collect();
        let lines = if slow.len() > LINES { LINES - 1 } else { LINES };
        let more = slow.split_off(lines.min(slow.len()));
        let mut notes: Vec<Cause> = slow.into_iter().map(|(_, note)| note).collect();
        if !more.is_empty() {
            notes.push(Cause {
                id: CauseId::SlowDevice,
                concerns: Concerns::Host,
                what: format!("{} more devices are slow", more.len()),
                why: text::names(more.iter().map(|(name, _)| name)),
                remedy: "Their values are old; devices that are not named are read meanwhile".into(),
            });
        }
        notes
    }
}

impl DeviceTurn {
    /// The note about it, if it is slow.
    fn note(&self, subject: Subject, now_ns: u64, threads: usize) -> Option<Cause> {
        let asked = self.asked.as_ref().map(|asked| asked.progress.get());
        let waits = asked.filter(|progress| progress.for_ns(now_ns) > SLOW);
        let waits = waits.map(|progress| progress.longest(now_ns));
        let took = self.took.filter(|took| took.for_ns(now_ns) > SLOW);
        let (stage, why) = match (waits, took) {
            (Some((Stage::Queued, _)), _) => return Some(self.starved(subject, threads)),
            (Some((stage, ns)), _) => (
                stage,
                format!("no answer about {} for {}", stage.words(), seconds(ns)),
            ),
            (None, Some(took)) => {
                let (stage, ns) = took.longest(now_ns);
                (stage, format!("reading {} took {}", stage.words(), seconds(ns)))
            }
            (None, None) => return None,
        };
        let remedy = match (subject, stage) {
            (Subject::DeviceList, _) => {
                "Added and removed devices show late; a driver may hold the kernel's lock of devices, see dmesg"
            }
            (_, Stage::Objects) => {
                "The kernel lists many queue pairs slowly, with eBPF only at the start and after a loss; until then its \
                 values may be older than those of other devices"
            }
            _ => {
                "Its values may be older than those of other devices, which are read meanwhile; dmesg may say why its \
                 driver or firmware is late"
            }
        };
        Some(Cause {
            id: CauseId::SlowDevice,
            concerns: self.concerns(subject),
            what: format!("{} is slow", self.name),
            why,
            remedy: remedy.into(),
        })
    }

    fn concerns(&self, subject: Subject) -> Concerns {
        match subject {
            Subject::DeviceList => Concerns::Host,
            Subject::Device(_) => Concerns::Device(self.name.to_string()),
        }
    }

    fn starved(&self, subject: Subject, threads: usize) -> Cause {
        let remedy = if threads < MOST {
            rdmatop_sources::limits::threads()
        } else {
            "It is read when one of those answers; dmesg may say why they are late"
        };
        Cause {
            id: CauseId::NoThread,
            concerns: self.concerns(subject),
            what: format!("{} is not read", self.name),
            why: format!(
                "all {threads} threads that read devices wait for slow ones, and no more can be started"
            ),
            remedy: remedy.into(),
        }
    }
}

fn seconds(ns: u64) -> String {
    if ns < 10 * SECOND {
        format!("{:.1} s", ns as f64 / SECOND as f64)
    } else {
        format!("{} s", ns / SECOND)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Subject = Subject::Device(1);
    const TWO: Subject = Subject::Device(2);

    /// A reading of `subject` that began at `at_ns`, and its progress.
    fn begun(schedule: &mut Schedule, subject: Subject, stage: Stage, at_ns: u64) -> SharedProgress {
        let name = format!("mlx5_{}", if subject == ONE { 1 } else { 2 });
        let progress = schedule.ask(subject, &name.into(), at_ns, false);
        if stage != Stage::Queued {
            progress.enter(stage, at_ns);
        }
        progress
    }

    #[test]
    fn a_device_with_an_outstanding_answer_is_not_asked_again() {
        let mut schedule = Schedule::default();
        assert!(schedule.is_due(ONE, 0, false));
        begun(&mut schedule, ONE, Stage::Counters, 0);
        for at in [0, SECOND, 1000 * SECOND] {
            assert!(!schedule.is_due(ONE, at, false) && !schedule.is_due(ONE, at, true));
            assert!(schedule.is_due(TWO, at, false));
        }
        assert!(schedule.answered(ONE, SECOND / 2));
        assert!(schedule.is_due(ONE, SECOND / 2, false), "not slow");
        assert!(!schedule.answered(ONE, SECOND), "nobody asked");
    }

    #[test]
    fn a_slow_device_rests_as_long_as_it_took_except_before_a_print() {
        let mut schedule = Schedule::default();
        begun(&mut schedule, ONE, Stage::Counters, 0);
        schedule.answered(ONE, 5 * SECOND);
        assert!(!schedule.is_due(ONE, 9 * SECOND, false));
        assert!(schedule.is_due(ONE, 9 * SECOND, true) && schedule.is_due(ONE, 10 * SECOND, false));
        begun(&mut schedule, ONE, Stage::Counters, 10 * SECOND);
        schedule.answered(ONE, 100 * SECOND);
        assert!(!schedule.is_due(ONE, 109 * SECOND, false) && schedule.is_due(ONE, 110 * SECOND, false));
    }

    #[test]
    fn a_round_waits_a_while_for_a_driver_that_was_not_late_before() {
        let mut schedule = Schedule::default();
        assert_eq!(schedule.step(0, 1, true, false), Step::Done, "nobody was asked");
        begun(&mut schedule, ONE, Stage::Counters, 0);
        assert_eq!(schedule.step(100 * MS, 1, true, false), Step::Wait(400 * MS));
        assert_eq!(schedule.step(500 * MS, 1, true, false), Step::Done);
        assert_eq!(
            schedule.step(500 * MS, 1, true, true),
            Step::Wait(ONCE - 500 * MS)
        );
        // The next rounds do not wait for it and do not ask it.
        schedule.give_up();
        assert_eq!(schedule.step(600 * MS, 1, true, true), Step::Done);
        schedule.answered(ONE, 5 * SECOND);
        begun(&mut schedule, ONE, Stage::Counters, 10 * SECOND);
        assert_eq!(schedule.step(10 * SECOND, 1, true, false), Step::Done);
        schedule.answered(ONE, 10 * SECOND + MS);
        begun(&mut schedule, ONE, Stage::Counters, 11 * SECOND);
        assert_eq!(
            schedule.step(11 * SECOND, 1, true, false),
            Step::Wait(AWAITED),
            "it is quick again"
        );
    }

    #[test]
    fn what_takes_long_without_a_driver_is_waited_for() {
        let mut schedule = Schedule::default();
        begun(&mut schedule, ONE, Stage::Objects, 0);
        assert_eq!(schedule.step(SECOND, 1, true, false), Step::Wait(LISTED - SECOND));
        assert_eq!(
            schedule.step(SECOND, 1, true, true),
            Step::Wait(LISTED_ONCE - SECOND)
        );
    }

    #[test]
    fn another_thread_is_started_only_when_all_threads_wait_and_jobs_are_left() {
        let mut schedule = Schedule::default();
        begun(&mut schedule, ONE, Stage::Counters, 0);
        begun(&mut schedule, TWO, Stage::Queued, 0);
        assert_eq!(schedule.step(50 * MS, 0, true, false), Step::Wait(200 * MS));
        assert_eq!(schedule.step(250 * MS, 0, true, false), Step::Grow);
        assert_eq!(
            schedule.step(250 * MS, 1, true, false),
            Step::Wait(BEHIND),
            "it comes"
        );
        // No thread can be started: the round does not wait for ever.
        assert_eq!(schedule.step(250 * MS, 0, false, false), Step::Wait(250 * MS));
        assert_eq!(schedule.step(500 * MS, 0, false, false), Step::Done);
        let mut schedule = Schedule::default();
        begun(&mut schedule, TWO, Stage::Queued, 0);
        assert_eq!(schedule.step(0, 0, true, false), Step::Grow, "the first one");
    }

    #[test]
    fn a_slow_device_is_reported_with_its_stage_and_time_until_it_is_quick() {
        let mut schedule = Schedule::default();
        let progress = begun(&mut schedule, ONE, Stage::Ports, 0);
        begun(&mut schedule, TWO, Stage::Counters, 0);
        schedule.answered(TWO, 5 * MS);
        assert_eq!(schedule.notes(SECOND, 1), []);
        progress.enter(Stage::Counters, 100 * MS);
        let said = |schedule: &Schedule, at| -> Vec<String> {
            schedule.notes(at, 1).iter().map(ToString::to_string).collect()
        };
        let lines = said(&schedule, 4 * SECOND);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(
            lines[0].starts_with("mlx5_1 is slow: no answer about its counters for 3.9 s. "),
            "{lines:?}"
        );
        schedule.answered(ONE, 5 * SECOND);
        let lines = said(&schedule, 7 * SECOND);
        assert!(
            lines[0].starts_with("mlx5_1 is slow: reading its counters took 4.9 s. "),
            "{lines:?}"
        );
        begun(&mut schedule, ONE, Stage::Counters, 10 * SECOND);
        assert_eq!(said(&schedule, 10 * SECOND).len(), 1, "not yet known to be quick");
        schedule.answered(ONE, 10 * SECOND + MS);
        assert_eq!(said(&schedule, 10 * SECOND + MS), [""; 0]);
    }

    #[test]
    fn slow_devices_share_a_line_and_one_that_no_thread_reads_has_one() {
        let mut schedule = Schedule::default();
        for id in 0..16 {
            let progress = schedule.ask(Subject::Device(id), &format!("mlx5_{id}").into(), 0, false);
            progress.enter(Stage::Facts, 0);
        }
        let notes = schedule.notes(2 * SECOND, 16);
        assert_eq!(notes.len(), 3);
        assert!(notes[2].what.starts_with("14 more") && notes[2].why == "mlx5_2 to mlx5_15");
        let mut schedule = Schedule::default();
        begun(&mut schedule, ONE, Stage::Queued, 0);
        let why = |threads| schedule.notes(2 * SECOND, threads)[0].to_string();
        assert!(
            why(1).contains("mlx5_1 is not read") && why(1).contains("ulimit -u"),
            "{}",
            why(1)
        );
        assert!(!why(MOST).contains("ulimit"), "{}", why(MOST));
    }

    #[test]
    fn an_answer_that_waits_for_the_next_round_makes_no_device_slow() {
        let mut schedule = Schedule::default();
        let progress = begun(&mut schedule, ONE, Stage::Counters, 0);
        progress.end(600 * MS);
        assert_eq!(schedule.notes(30 * SECOND, 1), []);
        schedule.answered(ONE, 30 * SECOND);
        assert_eq!(schedule.notes(30 * SECOND, 1), []);
        assert!(schedule.is_due(ONE, 30 * SECOND, false));
    }

    #[test]
    fn a_device_that_is_gone_is_forgotten_and_its_late_answer_is_dropped() {
        let mut schedule = Schedule::default();
        begun(&mut schedule, ONE, Stage::Counters, 0);
        schedule.keep(|id| id != 1);
        assert!(schedule.notes(9 * SECOND, 1).is_empty());
        assert!(!schedule.answered(ONE, 9 * SECOND));
    }
}
