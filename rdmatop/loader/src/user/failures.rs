//! Which processes' failures are reported: few, each in a line of its own, and no user pushes out another. Pure.

use std::collections::BTreeMap;

use rdmatop_model::cause::Cause;

/// The most failures to report.
const MOST: usize = 4;

/// Failures by process, with the process's user.
#[derive(Debug, Default)]
pub(super) struct Failures(BTreeMap<u32, (Option<u32>, Cause)>);

impl Failures {
    /// Adds the first failure of a process. Where there is no room, it takes the place of another process's
    /// whose user has more lines than this one.
    pub(super) fn add(&mut self, pid: u32, user: Option<u32>, cause: Cause) {
        if self.0.contains_key(&pid) {
            return;
        }
        if self.0.len() >= MOST {
            let lines = |of| self.0.values().filter(|(user, _)| *user == of).count();
            let most = self.0.iter().max_by_key(|(pid, (user, _))| (lines(*user), **pid));
            let Some((gives_way, _)) = most.filter(|(_, (of, _))| lines(*of) > lines(user) + 1) else {
                return;
            };
            let gives_way = *gives_way;
            self.0.remove(&gives_way);
        }
        self.0.insert(pid, (user, cause));
    }

    /// Keeps those of the processes for which `stays` holds.
    pub(super) fn retain(&mut self, stays: impl Fn(u32) -> bool) {
        self.0.retain(|pid, _| stays(*pid));
    }

    pub(super) fn causes(&self) -> impl Iterator<Item = &Cause> {
        self.0.values().map(|(_, cause)| cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmatop_model::cause::{CauseId, Concerns, Obstacle};

    #[test]
    fn the_failures_of_one_user_hide_none_of_another() {
        let mut failures = Failures::default();
        let mut add = |pid: u32, user| {
            let obstacle = Obstacle::new(CauseId::NotProbed, "x", "");
            failures.add(pid, user, obstacle.takes(format!("{pid}"), Concerns::Host));
            failures
                .causes()
                .map(|cause| cause.what.clone())
                .collect::<Vec<_>>()
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
}
