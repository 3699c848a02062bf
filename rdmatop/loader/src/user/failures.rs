//! Which processes' failures are reported: few, each in a line of its own, and no user pushes out another.
//! One more line says how many are left out. Pure.

use rdmatop_base::{order::Ordered as _, text, turns::in_turn};
use rdmatop_model::cause::{Cause, CauseId, Concerns, Obstacle};

/// The most failures to report.
const MOST: usize = 4;
/// What has fewer programs probed.
pub(super) const ONE: &str = "--uprobes=PID probes one process";

/// Why QPs of a process are not counted.
#[derive(Debug)]
struct Failure {
    pid: u32,
    user: Option<u32>,
    /// A later try may succeed.
    passes: bool,
    cause: Cause,
}

/// One failure of each process, the first one first.
#[derive(Debug, Default)]
pub(super) struct Failures(Vec<Failure>);

impl Failures {
    /// Adds a failure of a process, which takes the place of one that may pass. Returns false if that says
    /// nothing new.
    pub(super) fn add(&mut self, pid: u32, user: Option<u32>, cause: Cause, passes: bool) -> bool {
        let Some(known) = self.0.iter_mut().find(|known| known.pid == pid) else {
            self.0.push(Failure {
                pid,
                user,
                passes,
                cause,
            });
            return true;
        };
        let is_new = known.passes && known.cause != cause;
        if known.passes {
            (known.passes, known.cause) = (passes, cause);
        }
        is_new
    }

    /// Keeps those for which `stays` holds of the process, and of whether the failure may pass.
    pub(super) fn retain(&mut self, stays: impl Fn(u32, bool) -> bool) {
        self.0.retain(|known| stays(known.pid, known.passes));
    }

    /// The lines: users take turns.
    pub(super) fn causes(&self) -> Vec<Cause> {
        let mut shown = in_turn(&self.0, MOST, |known| known.user);
        shown.order_by_key(|known| known.pid);
        let left_out = self.0.len() - shown.len();
        let rest = (left_out > 0).then(|| {
            let why = format!("only {MOST} processes are named");
            let what = text::count(left_out, "more process");
            Obstacle::new(CauseId::NotProbed, why, ONE)
                .takes(format!("Not counted: work requests of {what}"), Concerns::Host)
        });
        let causes = shown.into_iter().map(|known| known.cause.clone());
        causes.chain(rest).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cause(what: &str) -> Cause {
        Obstacle::new(CauseId::NotProbed, "x", "").takes(what, Concerns::Host)
    }

    fn lines(failures: &Failures) -> Vec<String> {
        failures.causes().into_iter().map(|cause| cause.what).collect()
    }

    #[test]
    fn the_failures_of_one_user_hide_none_of_another() {
        let mut failures = Failures::default();
        let mut add = |pid: u32, user| {
            failures.add(pid, user, cause(&pid.to_string()), false);
            let mut lines = lines(&failures);
            lines.truncate(MOST);
            lines
        };
        for pid in 1..9 {
            add(pid, Some(1000));
        }
        assert_eq!(add(9, Some(1000)), ["1", "2", "3", "4"]);
        assert_eq!(add(20, Some(1001)), ["1", "2", "3", "20"]);
        assert_eq!(add(21, None), ["1", "2", "20", "21"]);
        assert_eq!(add(5, Some(1000)), ["1", "2", "20", "21"]);
        assert_eq!(add(22, Some(1002)), ["1", "20", "21", "22"]);
        assert_eq!(add(23, Some(1003)), ["1", "20", "21", "22"], "each has one");
    }

    #[test]
    fn the_number_of_those_left_out_is_said_and_they_move_up() {
        let mut failures = Failures::default();
        for pid in 1..6 {
            failures.add(pid, Some(1000 + pid), cause(&pid.to_string()), false);
        }
        let last = "Not counted: work requests of 1 more process";
        assert_eq!(lines(&failures), ["1", "2", "3", "4", last]);
        failures.add(6, Some(1001), cause("6"), false);
        assert_eq!(
            lines(&failures).last().unwrap(),
            &last.replace("1 more process", "2 more processes")
        );
        failures.retain(|pid, _| pid > 2);
        assert_eq!(lines(&failures), ["3", "4", "5", "6"]);
    }

    #[test]
    fn what_may_pass_goes_when_it_has_and_gives_way_to_what_does_not() {
        let mut failures = Failures::default();
        assert!(failures.add(7, None, cause("late"), true) && failures.add(8, None, cause("late"), true));
        assert!(!failures.add(7, None, cause("late"), true), "nothing new");
        assert!(failures.add(8, None, cause("unfit"), false));
        assert!(!failures.add(8, None, cause("late"), true));
        assert_eq!(lines(&failures), ["late", "unfit"]);
        failures.retain(|_, passes| !passes);
        assert_eq!(lines(&failures), ["unfit"]);
    }
}
