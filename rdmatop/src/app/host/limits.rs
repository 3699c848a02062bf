//! Limits of RDMA cgroups that are reached.

use std::collections::{BTreeMap, BTreeSet};

use super::super::doctor::process::limits_of;
use rdmatop_base::turns::in_turn;
use rdmatop_model::{
    cause::{Cause, CauseId, Concerns},
    input::{Input, LimitReached},
};
use rdmatop_sources::root::Root;

/// How often limits are looked at where there are any, ns.
const OFTEN: u64 = 2_000_000_000;
/// How often where no cgroup had a limit at the last look, ns.
const SELDOM: u64 = 30_000_000_000;
/// Different cgroups that are looked at in one round at most; the users take turns.
const CGROUPS: usize = 64;
/// Bytes of a process's list of cgroups.
const LIST: usize = 16 << 10;

/// Looks at the limits of processes, a cgroup at a time.
#[derive(Debug, Default)]
pub(super) struct Limits {
    looked_ns: Option<u64>,
    /// The cgroups that there were at the last look, by their paths, also those that were too many for it.
    seen: BTreeSet<String>,
    /// How many were.
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
        let since = self.looked_ns.map(|at| now_ns.saturating_sub(at));
        let every = if self.any { OFTEN } else { SELDOM };
        // A new cgroup is looked at at once, before a rule asks why calls of its processes fail.
        let is_due = since.is_none_or(|since| since >= every) || self.has_new(processes.clone());
        if !is_due {
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
            for limit in list.map(|list| limits_of(root, &list)).unwrap_or_default() {
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
        self.looked_ns = Some(now_ns);
        if reached != self.sent {
            self.sent.clone_from(&reached);
            out(Input::RdmaLimits(reached));
        }
    }

    /// Whether a process has a cgroup that there was not at the last look.
    fn has_new<'a>(&self, mut processes: impl Iterator<Item = InCgroup<'a>>) -> bool {
        processes.any(|(_, _, path)| !self.seen.contains(path))
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
            why: format!("rdmatop looks at {CGROUPS} cgroups, of each user in turn"),
            remedy: "".into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmatop_sources::fake::Fake;

    #[test]
    fn a_limit_is_reported_when_it_is_reached_and_when_it_is_not_any_more() {
        let fake = Fake::new();
        fake.proc("7/cgroup", "0::/job/a\n")
            .proc("8/cgroup", "0::/job/a\n");
        fake.sys("fs/cgroup/job/rdma.max", "rxe0 hca_handle=max hca_object=5\n")
            .sys("fs/cgroup/job/rdma.current", "rxe0 hca_handle=1 hca_object=5\n");
        let (mut limits, mut sent) = (Limits::default(), Vec::new());
        let mut look = |limits: &mut Limits, at_s: u64| {
            let processes = [(7, None, "/job/a"), (8, None, "/job/a"), (9, None, "/")];
            limits.look(
                &fake.root(),
                at_s * 1_000_000_000,
                processes.into_iter(),
                &mut |input| {
                    if let Input::RdmaLimits(reached) = input {
                        sent.push(
                            reached
                                .iter()
                                .map(|r| (r.pid, r.cgroup.clone(), r.max))
                                .collect::<Vec<_>>(),
                        );
                    }
                },
            );
        };
        look(&mut limits, 1);
        look(&mut limits, 2);
        look(&mut limits, 4);
        fake.sys("fs/cgroup/job/rdma.current", "rxe0 hca_handle=1 hca_object=4\n");
        look(&mut limits, 7);
        let both = vec![(7, "/job".to_owned(), 5), (8, "/job".to_owned(), 5)];
        assert_eq!(sent, [both, Vec::new()]);
    }

    #[test]
    fn a_limit_of_a_process_that_comes_later_is_seen_at_once() {
        let fake = Fake::new();
        fake.proc("7/cgroup", "0::/job\n").proc("8/cgroup", "0::/free\n");
        fake.sys("fs/cgroup/job/rdma.max", "rxe0 hca_handle=max hca_object=5\n")
            .sys("fs/cgroup/job/rdma.current", "rxe0 hca_handle=1 hca_object=5\n");
        let (mut limits, mut sent) = (Limits::default(), Vec::new());
        let rounds: [&[InCgroup<'_>]; 4] = [
            &[],
            &[(8, None, "/free")],
            &[(8, None, "/free")],
            &[(8, None, "/free"), (7, None, "/job")],
        ];
        for (second, processes) in (1..).zip(rounds) {
            let processes = processes.iter().copied();
            limits.look(&fake.root(), second * 1_000_000_000, processes, &mut |input| {
                if let Input::RdmaLimits(reached) = input {
                    sent.push((second, reached.len()));
                }
            });
        }
        assert_eq!(sent, [(4, 1)]);
    }

    #[test]
    fn one_user_with_many_cgroups_hides_no_limit_of_another() {
        let fake = Fake::new();
        let paths: Vec<String> = (0..100).map(|at| format!("/a/{at:02}")).collect();
        for pid in 100..200_u32 {
            fake.proc(format!("{pid}/cgroup"), "0::/a\n");
        }
        fake.proc("7000/cgroup", "0::/job\n");
        fake.sys("fs/cgroup/job/rdma.max", "rxe0 hca_handle=max hca_object=5\n")
            .sys("fs/cgroup/job/rdma.current", "rxe0 hca_handle=1 hca_object=5\n");
        let hostile: Vec<InCgroup<'_>> = (100..)
            .zip(&paths)
            .map(|(pid, path)| (pid, Some(1000), path.as_str()))
            .collect();
        let (mut limits, mut sent) = (Limits::default(), Vec::new());
        let mut look = |second: u64, processes: &[InCgroup<'_>]| {
            let now_ns = second * 1_000_000_000;
            limits.look(&fake.root(), now_ns, processes.iter().copied(), &mut |input| {
                if let Input::RdmaLimits(reached) = input {
                    sent.extend(reached.iter().map(|limit| (second, limit.pid)));
                }
            });
            limits.note().map(|note| note.to_string())
        };
        assert_eq!(look(1, &hostile), None, "nobody has a limit");
        // It comes when there is no place, and is looked at at once.
        let job = (7000, Some(2000), "/job");
        let note = look(2, &[&hostile[..], &[job]].concat()).unwrap_or_default();
        assert!(note.starts_with("Unknown of 37 cgroups"), "{note}");
        assert_eq!(look(4, &[job]), None);
        assert_eq!(sent, [(2, 7000)]);
    }

    #[test]
    fn where_there_is_no_limit_it_is_looked_for_seldom() {
        let fake = Fake::new();
        fake.proc("7/cgroup", "0::/a/b/c\n");
        let mut limits = Limits::default();
        let root = fake.root();
        let mut opens = Vec::new();
        for second in 1..=31 {
            let before = root.opens();
            limits.look(
                &root,
                second * 1_000_000_000,
                [(7, None, "/a/b/c")].into_iter(),
                &mut |_| panic!("nothing to say"),
            );
            opens.push(root.opens() - before);
        }
        assert_eq!(opens.iter().filter(|opens| **opens > 0).count(), 2, "{opens:?}");
    }
}
