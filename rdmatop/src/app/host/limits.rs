//! Limits of RDMA cgroups that are reached.

use std::collections::{BTreeMap, BTreeSet};

use super::super::doctor::process::limits_of;
use rdmatop_model::input::{Input, LimitReached};
use rdmatop_sources::root::Root;

/// How often limits are looked at where there are any, ns.
const OFTEN: u64 = 2_000_000_000;
/// How often where no cgroup had a limit at the last look, ns.
const SELDOM: u64 = 30_000_000_000;
/// Different cgroups that are looked at in one round at most.
const CGROUPS: usize = 64;
/// Bytes of a process's list of cgroups.
const LIST: usize = 16 << 10;

/// Looks at the limits of processes, a cgroup at a time.
#[derive(Debug, Default)]
pub(super) struct Limits {
    looked_ns: Option<u64>,
    /// The cgroups of the last look, by their paths.
    seen: BTreeSet<String>,
    /// One of them has a limit.
    any: bool,
    /// What was sent last.
    sent: Vec<LimitReached>,
}

impl Limits {
    /// Looks if it is time to; `processes`: each with the path that identifies its cgroup.
    pub(super) fn look<'a>(
        &mut self,
        root: &Root,
        now_ns: u64,
        processes: impl Iterator<Item = (u32, &'a str)> + Clone,
        out: &mut dyn FnMut(Input),
    ) {
        let since = self.looked_ns.map(|at| now_ns.saturating_sub(at));
        let every = if self.any { OFTEN } else { SELDOM };
        // A new cgroup is looked at at once, before a rule asks why calls of its processes fail.
        let is_due = since.is_none_or(|since| since >= every) || self.has_new(processes.clone());
        if !is_due {
            return;
        }
        let mut groups: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for (pid, path) in processes {
            if groups.len() < CGROUPS || groups.contains_key(path) {
                groups.entry(path).or_default().push(pid);
            }
        }
        let mut reached = Vec::new();
        self.any = false;
        for pids in groups.values() {
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
        self.seen = groups.into_keys().map(str::to_owned).collect();
        if reached != self.sent {
            self.sent.clone_from(&reached);
            out(Input::RdmaLimits(reached));
        }
    }

    /// Whether a process has a cgroup that the last look did not see, apart from those that were too many for
    /// it.
    fn has_new<'a>(&self, mut processes: impl Iterator<Item = (u32, &'a str)>) -> bool {
        self.seen.len() < CGROUPS && processes.any(|(_, path)| !self.seen.contains(path))
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
            let processes = [(7, "/job/a"), (8, "/job/a"), (9, "/")];
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
        let rounds: [&[(u32, &str)]; 4] = [
            &[],
            &[(8, "/free")],
            &[(8, "/free")],
            &[(8, "/free"), (7, "/job")],
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
                [(7, "/a/b/c")].into_iter(),
                &mut |_| panic!("nothing to say"),
            );
            opens.push(root.opens() - before);
        }
        assert_eq!(opens.iter().filter(|opens| **opens > 0).count(), 2, "{opens:?}");
    }
}
