//! When a program that could not be read is asked again: each time later, up to a bound. Pure.

use std::collections::BTreeMap;

use super::probed::Process;

/// The first time to wait, ns. It doubles with each time, [`DOUBLES`] times at most.
const REST_NS: u64 = 10_000_000_000;
const DOUBLES: u32 = 4;

/// How long to wait after a question without an answer, ns, with so many before it.
pub(super) fn rest_ns(before: u32) -> u64 {
    REST_NS << before.min(DOUBLES)
}

/// Processes whose memory did not answer in time. A question costs the whole time limit, so none of their QPs
/// is asked about before its process may be asked again.
#[derive(Debug, Default)]
pub(super) struct Silent(BTreeMap<Process, Rest>);

#[derive(Debug, Default)]
struct Rest {
    until_ns: u64,
    /// Questions in a row without an answer.
    times: u32,
}

impl Silent {
    /// Until when a process is not asked, `None` if it may be asked now. `keeps_a_reader`: whether a reader
    /// of the process with this number, which could not be killed, still waits. Another one would wait, too.
    pub(super) fn rests(
        &mut self,
        process: Process,
        now_ns: u64,
        keeps_a_reader: impl FnOnce(u32) -> bool,
    ) -> Option<u64> {
        let rest = self.0.get_mut(&process)?;
        if rest.until_ns <= now_ns && keeps_a_reader(process.pid) {
            rest.until_ns = now_ns + REST_NS;
        }
        (rest.until_ns > now_ns).then_some(rest.until_ns)
    }

    /// Notes that a process did not answer. Returns when to ask it again.
    pub(super) fn was_late(&mut self, process: Process, now_ns: u64) -> u64 {
        let rest = self.0.entry(process).or_default();
        rest.until_ns = now_ns + rest_ns(rest.times);
        rest.times += 1;
        rest.until_ns
    }

    pub(super) fn answered(&mut self, process: Process) {
        self.0.remove(&process);
    }

    pub(super) fn retain(&mut self, lives: impl Fn(&Process) -> bool) {
        self.0.retain(|process, _| lives(process));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const STUCK: Process = Process { pid: 7, start_ns: 5 };

    /// When a process that never answers is asked in half an hour, in seconds.
    fn asked(keeps_a_reader: impl Fn(u64) -> bool) -> Vec<u64> {
        let mut silent = Silent::default();
        let mut asked = Vec::new();
        for second in 0..1800 {
            let now_ns = second * SECOND;
            if silent.rests(STUCK, now_ns, |_| keeps_a_reader(second)).is_none() {
                asked.push(second);
                silent.was_late(STUCK, now_ns);
            }
        }
        asked
    }

    #[test]
    fn who_does_not_answer_is_asked_again_and_ever_less_often() {
        let asked = asked(|_| false);
        assert_eq!(asked[..6], [0, 10, 30, 70, 150, 310]);
        assert!(
            asked.windows(2).skip(5).all(|two| two[1] - two[0] == 160),
            "{asked:?}"
        );
        let mut silent = Silent::default();
        silent.was_late(STUCK, 0);
        let other = Process { start_ns: 6, ..STUCK };
        assert_eq!(
            silent.rests(other, 0, |_| false),
            None,
            "a later process of its number"
        );
        silent.answered(STUCK);
        assert_eq!(silent.rests(STUCK, 0, |_| false), None);
        assert_eq!(silent.was_late(STUCK, 0), 10 * SECOND, "it begins anew");
    }

    #[test]
    fn while_a_reader_of_it_waits_it_is_not_asked_by_another() {
        assert_eq!(asked(|_| true), [0]);
        let asked = asked(|second| (1..100).contains(&second));
        assert_eq!(asked[..2], [0, 100]);
    }
}
