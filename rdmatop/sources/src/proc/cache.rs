//! Processes that hold RDMA resources, kept across ticks.
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};

use super::basic::{ProcBasic, ProcKey, dir, read_basic, read_cgroup, stats};
use super::{stat::Stat, users::Users};
use crate::root::Root;
use rdmatop_base::order::Gather as _;

/// What a refresh changed, sorted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Refreshed {
    /// Processes seen for the first time, and those whose name has changed: an exec, or a new thread name.
    pub new: Vec<ProcKey>,
    /// Processes that ended or are no longer asked for. A reused number is in both lists.
    pub gone: Vec<ProcKey>,
}

/// The cache. A new process costs some opens. Later a refresh opens one file (`stat`).
#[derive(Debug, Default)]
pub struct ProcCache {
    users: Option<Users>,
    known: HashMap<u32, ProcBasic>,
}

impl ProcCache {
    /// Brings the cache to exactly those of `pids` that are alive now.
    ///
    /// The start time in `stat` shows a reused number. A changed comm means exec (or a new thread name): then
    /// the cgroup is read again, because launchers move a task to its cgroup before they exec it.
    pub fn refresh(&mut self, root: &Root, pids: impl IntoIterator<Item = u32>) -> Refreshed {
        let wanted: BTreeSet<u32> = pids.into_iter().gather();
        let mut out = Refreshed::default();
        let mut stats = stats(
            root,
            self.known.keys().copied().filter(|pid| wanted.contains(pid)),
        );
        self.known.retain(|pid, process| {
            let change = match stats.remove(pid) {
                Some(stat) => stat.and_then(|stat| update(root, process, stat)),
                // One that does not answer stays as it is.
                None => wanted.contains(pid).then_some(false),
            };
            match change {
                Some(true) => out.new.push(process.key()),
                Some(false) => {}
                None => out.gone.push(process.key()),
            }
            change.is_some()
        });
        for pid in wanted {
            let Entry::Vacant(slot) = self.known.entry(pid) else {
                continue;
            };
            let users = self.users.get_or_insert_with(|| Users::read(root));
            if let Some(process) = read_basic(root, users, pid) {
                out.new.push(process.key());
                slot.insert(process);
            }
        }
        out.new.sort_unstable();
        out.gone.sort_unstable();
        out
    }

    /// The process of this number as of the last refresh.
    pub fn get(&self, pid: u32) -> Option<&ProcBasic> {
        self.known.get(&pid)
    }
}

/// Refreshes one process and returns whether its name changed; `None` when it ended, even if its number
/// belongs to another one now.
fn update(root: &Root, process: &mut ProcBasic, stat: Stat) -> Option<bool> {
    let stat = Some(stat).filter(|stat| stat.start == process.stat.start)?;
    let renamed = stat.comm != process.stat.comm;
    if renamed {
        process.cgroup = read_cgroup(root, &dir(root, stat.pid), stat.ended);
    }
    process.stat = stat;
    Some(renamed)
}

#[cfg(test)]
mod tests {
    use super::super::stat::line;
    use super::*;
    use crate::fake::Fake;

    fn process(fake: &Fake, pid: u32, comm: &str, start: u64) {
        fake.proc(format!("{pid}/stat"), line(pid, comm.as_bytes(), start));
        fake.proc(format!("{pid}/status"), "Uid:\t0\t0\t0\t0\n")
            .proc(format!("{pid}/cgroup"), "0::/\n");
    }

    fn key(pid: u32, start: u64) -> ProcKey {
        ProcKey { pid, start }
    }

    #[test]
    fn a_known_process_costs_one_open_and_repeated_pids_cost_nothing() {
        let fake = Fake::new();
        fake.etc("passwd", "root:x:0:\n");
        for pid in 1..=20 {
            process(&fake, pid, "app", 5);
        }
        let root = fake.root();
        let mut cache = ProcCache::default();
        assert_eq!(cache.refresh(&root, 1..=20).new.len(), 20);
        assert_eq!(root.opens(), 20 * 4 + 1, "passwd is read once");
        let before = root.opens();
        // As for a QP table: two thousand QPs with the same owners.
        assert_eq!(
            cache.refresh(&root, (1..=20).cycle().take(2000)),
            Refreshed::default()
        );
        assert_eq!(root.opens() - before, 20);
        assert_eq!(cache.get(7).and_then(|p| p.user.clone()), Some("root".into()));
    }

    #[test]
    fn a_reused_number_is_a_new_process() {
        let fake = Fake::new();
        process(&fake, 7, "old", 100);
        let mut cache = ProcCache::default();
        cache.refresh(&fake.root(), [7]);
        process(&fake, 7, "new", 200);
        let got = cache.refresh(&fake.root(), [7]);
        assert_eq!((got.gone, got.new), (vec![key(7, 100)], vec![key(7, 200)]));
        assert_eq!(cache.get(7).map(|p| p.stat.comm.as_str()), Some("new"));
    }

    #[test]
    fn dead_and_unwanted_processes_leave_the_cache() {
        let fake = Fake::new();
        process(&fake, 1, "a", 1);
        process(&fake, 2, "b", 2);
        process(&fake, 3, "c", 3);
        let mut cache = ProcCache::default();
        cache.refresh(&fake.root(), [1, 2, 3, 99]);
        fake.remove("proc/2");
        assert_eq!(cache.refresh(&fake.root(), [1, 2]).gone, [key(2, 2), key(3, 3)]);
        assert_eq!(cache.known.keys().collect::<Vec<_>>(), [&1]);
    }

    #[test]
    fn an_exec_is_seen_by_its_new_comm() {
        let fake = Fake::new();
        process(&fake, 7, "bash", 100);
        let mut cache = ProcCache::default();
        cache.refresh(&fake.root(), [7]);
        process(&fake, 7, "ib_send_bw", 100);
        fake.proc("7/cgroup", "0::/system.slice/slurmstepd.scope/job_1\n");
        let got = cache.refresh(&fake.root(), [7]);
        assert_eq!((got.new, got.gone), (vec![key(7, 100)], vec![]));
        assert_eq!(cache.refresh(&fake.root(), [7]), Refreshed::default());
        let p = cache.get(7).unwrap();
        assert!(p.cgroup.as_ref().is_some_and(|c| c.workload.slurm.is_some()));
    }

    #[test]
    fn a_process_that_ends_while_it_is_read_is_not_half_a_process() {
        let fake = Fake::new();
        fake.proc("7/stat", "7 (x) garbage");
        let mut cache = ProcCache::default();
        assert_eq!(cache.refresh(&fake.root(), [7]), Refreshed::default());
        assert_eq!(cache.get(7), None);
    }
}
