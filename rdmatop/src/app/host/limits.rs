//! Limits of RDMA cgroups that are reached.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use super::super::doctor::process::{LEVELS, limits_of};
use rdmatop_base::turns::in_turn;
use rdmatop_model::{
    cause::{Cause, CauseId, Concerns},
    input::{Input, LimitReached},
};
use rdmatop_sources::root::Root;

/// How long after a look limits are looked at again where there are any, ns: two rounds of a second, less the
/// look's own time.
const OFTEN: u64 = 1_900_000_000;
/// How long where no cgroup had a limit at the last look, ns.
const SELDOM: u64 = 30_000_000_000;
/// Different cgroups that are looked at in one round at most; the users take turns.
const CGROUPS: usize = 64;
/// Bytes of a process's list of cgroups.
const LIST: usize = 16 << 10;

/// Looks at the limits of processes, a cgroup at a time.
#[derive(Debug, Default)]
pub(super) struct Limits {
    /// When the last look had ended.
    looked_ns: Option<u64>,
    /// The cgroups that there were at the last look, by their paths, also those that were too many for it.
    seen: BTreeSet<String>,
    /// How many were, or have some limits that are unknown because they are too deep.
    left_out: usize,
    /// One of them has a limit.
    any: bool,
    /// What was sent last.
    sent: Vec<LimitReached>,
}

/// A process, its user, and the path that identifies its cgroup.
pub(super) type InCgroup<'a> = (u32, Option<u32>, &'a str);

impl Limits {
    /// Looks if it is time to.
    pub(super) fn look<'a>(
        &mut self,
        root: &Root,
        now_ns: u64,
        processes: impl Iterator<Item = InCgroup<'a>> + Clone,
        out: &mut dyn FnMut(Input),
    ) {
        let begun = Instant::now();
        let since = self.looked_ns.map(|at| now_ns.saturating_sub(at));
        let every = if self.any { OFTEN } else { SELDOM };
        // A new cgroup is looked at at once, before a rule asks why calls of its processes fail.
        let is_new = |(_, _, path): InCgroup<'_>| !self.seen.contains(path);
        if since.is_some_and(|since| since < every) && !processes.clone().any(is_new) {
            return;
        }
        let mut groups: BTreeMap<&str, (Option<u32>, Vec<u32>)> = BTreeMap::new();
        for (pid, user, path) in processes {
            let (_, pids) = groups.entry(path).or_insert_with(|| (user, Vec::new()));
            pids.push(pid);
        }
        self.seen = groups.keys().map(|path| (*path).to_owned()).collect();
        let groups = in_turn(groups.into_values(), CGROUPS, |(user, _)| *user);
        self.left_out = self.seen.len() - groups.len();
        let mut reached = Vec::new();
        self.any = false;
        for (_, pids) in &groups {
            let list = pids
                .first()
                .and_then(|pid| root.bytes(&root.proc(format!("{pid}/cgroup")), LIST));
            let (limits, cut) = list.map(|list| limits_of(root, &list)).unwrap_or_default();
            self.left_out += usize::from(cut);
            for limit in limits {
                self.any = true;
                if limit.current.is_none_or(|current| current < limit.max) {
                    continue;
                }
                reached.extend(pids.iter().map(|pid| LimitReached {
                    pid: *pid,
                    cgroup: limit.cgroup.clone(),
                    device: limit.device.clone(),
                    resource: limit.resource.clone(),
                    max: limit.max,
                }));
            }
        }
        let took_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.looked_ns = Some(now_ns.saturating_add(took_ns));
        if reached != self.sent {
            self.sent.clone_from(&reached);
            out(Input::RdmaLimits(reached));
        }
    }

    /// A note that cgroups were too many for the last look. Where not one cgroup of any user has a limit,
    /// those that were left out have none either, as a rule.
    pub(super) fn note(&self) -> Option<Cause> {
        (self.any && self.left_out > 0).then(|| Cause {
            id: CauseId::SlowProcess,
            concerns: Concerns::Host,
            what: format!(
                "Unknown of {} cgroups: whether their RDMA limits are reached",
                self.left_out
            ),
            why: format!(
                "rdmatop looks at {CGROUPS} cgroups, of each user in turn, and at {LEVELS} levels of each"
            ),
            remedy: "".into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmatop_sources::fake::Fake;

    /// A look in this second; the limits that it sends, if it sends any: process, cgroup and maximum.
    fn look(
        limits: &mut Limits,
        fake: &Fake,
        second: u64,
        processes: &[InCgroup<'_>],
    ) -> Option<Vec<(u32, String, u64)>> {
        let (mut sent, now_ns) = (None, second * 1_000_000_000);
        limits.look(&fake.root(), now_ns, processes.iter().copied(), &mut |input| {
            let Input::RdmaLimits(reached) = input else {
                panic!("{input:?}");
            };
            let limits = reached.into_iter();
            sent = Some(limits.map(|limit| (limit.pid, limit.cgroup, limit.max)).collect());
        });
        sent
    }

    fn job(fake: &Fake, objects: u32) {
        fake.sys("fs/cgroup/job/rdma.max", "rxe0 hca_handle=max hca_object=5\n")
            .sys(
                "fs/cgroup/job/rdma.current",
                format!("rxe0 hca_handle=1 hca_object={objects}\n"),
            );
    }

    #[test]
    fn a_limit_is_reported_when_it_is_reached_and_when_it_is_not_any_more() {
        let (fake, mut limits) = (Fake::new(), Limits::default());
        fake.proc("7/cgroup", "0::/job/a\n")
            .proc("8/cgroup", "0::/job/a\n");
        job(&fake, 5);
        let processes = [(7, None, "/job/a"), (8, None, "/job/a"), (9, None, "/")];
        let both = [7, 8].map(|pid| (pid, "/job".to_owned(), 5)).to_vec();
        assert_eq!(look(&mut limits, &fake, 1, &processes), Some(both));
        assert_eq!(look(&mut limits, &fake, 2, &processes), None);
        assert_eq!(look(&mut limits, &fake, 4, &processes), None);
        job(&fake, 4);
        assert_eq!(look(&mut limits, &fake, 7, &processes), Some(Vec::new()));
    }

    #[test]
    fn a_limit_of_a_process_that_comes_later_is_seen_at_once() {
        let (fake, mut limits) = (Fake::new(), Limits::default());
        fake.proc("7/cgroup", "0::/job\n").proc("8/cgroup", "0::/free\n");
        job(&fake, 5);
        let both = [(8, None, "/free"), (7, None, "/job")];
        for (second, processes) in (1..).zip([&both[..0], &both[..1], &both[..1]]) {
            assert_eq!(look(&mut limits, &fake, second, processes), None);
        }
        let sent = look(&mut limits, &fake, 4, &both);
        assert_eq!(sent, Some(vec![(7, "/job".to_owned(), 5)]));
    }

    #[test]
    fn one_user_with_many_cgroups_hides_no_limit_of_another() {
        let (fake, mut limits) = (Fake::new(), Limits::default());
        let paths: Vec<String> = (0..100).map(|at| format!("/a/{at:02}")).collect();
        for pid in 100..200_u32 {
            fake.proc(format!("{pid}/cgroup"), "0::/a\n");
        }
        fake.proc("7000/cgroup", "0::/job\n");
        job(&fake, 5);
        let hostile: Vec<InCgroup<'_>> = (100..)
            .zip(&paths)
            .map(|(pid, path)| (pid, Some(1000), path.as_str()))
            .collect();
        assert_eq!(look(&mut limits, &fake, 1, &hostile), None);
        assert_eq!(limits.note(), None, "nobody has a limit");
        // It comes when there is no place, and is looked at at once.
        let of_job = (7000, Some(2000), "/job");
        let sent = look(&mut limits, &fake, 2, &[&hostile[..], &[of_job]].concat());
        assert_eq!(sent, Some(vec![(7000, "/job".to_owned(), 5)]));
        let note = limits.note().map(|note| note.to_string()).unwrap_or_default();
        assert!(note.starts_with("Unknown of 37 cgroups"), "{note}");
        assert_eq!(look(&mut limits, &fake, 4, &[of_job]), None);
        assert_eq!(limits.note(), None);
    }

    #[test]
    fn of_a_deep_cgroup_the_limits_above_are_seen_and_a_note_says_so() {
        let (fake, mut limits) = (Fake::new(), Limits::default());
        let deep = format!("/job{}", "/a".repeat(1900));
        fake.proc("7/cgroup", format!("0::{deep}\n"));
        job(&fake, 5);
        for level in 1..=LEVELS {
            let max = format!("fs/cgroup/job{}/rdma.max", "/a".repeat(level));
            fake.sys(max, "rxe0 hca_handle=max hca_object=max\n");
        }
        let sent = look(&mut limits, &fake, 1, &[(7, None, &deep)]);
        assert_eq!(sent, Some(vec![(7, "/job".to_owned(), 5)]));
        let note = limits.note().map(|note| note.to_string()).unwrap_or_default();
        assert!(note.starts_with("Unknown of 1 cgroups"), "{note}");
    }

    #[test]
    fn where_there_is_no_limit_it_is_looked_for_seldom() {
        let (fake, mut limits) = (Fake::new(), Limits::default());
        fake.proc("7/cgroup", "0::/a/b/c\n");
        let mut opens = Vec::new();
        for second in 1..=32 {
            let before = fake.root().opens();
            assert_eq!(look(&mut limits, &fake, second, &[(7, None, "/a/b/c")]), None);
            opens.push(fake.root().opens() - before);
        }
        assert_eq!(opens.iter().filter(|opens| **opens > 0).count(), 2, "{opens:?}");
    }
}
