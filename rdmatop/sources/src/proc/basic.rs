//! The first tier: what every row of a process shows.
use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use super::{cgroup::Cgroup, delegated::named_by_root, stat::Stat, status::Status, users::Users};
use crate::{execs, root::Root};
use rdmatop_base::order::Gather as _;

/// Identity of a process: its number, and its start in clock ticks after boot, because numbers are reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcKey {
    /// Process number.
    pub pid: u32,
    /// `starttime`, field 22 of stat.
    pub start: u64,
}

/// One process. All text is safe to print.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcBasic {
    /// Name and parent as of the last read, which was when the process was new or changed
    /// its name.
    pub stat: Stat,
    /// Real user.
    pub uid: Option<u32>,
    /// The user's name, if it is in `/etc/passwd`.
    pub user: Option<String>,
    /// Cgroup and workload.
    pub cgroup: Option<Cgroup>,
}

impl ProcBasic {
    /// Identity.
    pub fn key(&self) -> ProcKey {
        self.stat.key()
    }
}

/// The identity of the process that has this number now; `None` also where it does not answer.
pub fn key(root: &Root, pid: u32) -> Option<ProcKey> {
    Some(stats(root, [pid]).remove(&pid)??.key())
}

/// Those of these processes that have ended. One that does not answer has not.
pub fn ended(root: &Root, processes: impl IntoIterator<Item = ProcKey>) -> Vec<ProcKey> {
    let of: BTreeMap<u32, ProcKey> = processes.into_iter().map(|key| (key.pid, key)).gather();
    let stats = stats(root, of.keys().copied());
    let has_ended = |key: &ProcKey| {
        let stat = stats.get(&key.pid);
        stat.is_some_and(|stat| stat.as_ref().is_none_or(|stat| stat.start != key.start))
    };
    of.into_values().filter(has_ended).collect()
}

/// `stat` of those of these processes that answer; `None`: there is no such process.
pub(super) fn stats(root: &Root, pids: impl IntoIterator<Item = u32>) -> BTreeMap<u32, Option<Stat>> {
    let mut out = BTreeMap::new();
    execs::each(
        root,
        pids,
        |root, pid| read_stat(root, &dir(root, pid)),
        |pid, stat| {
            out.extend(stat.map(|stat| (pid, stat)));
            ControlFlow::Continue(())
        },
    );
    out
}

/// Reads one process. `None`: there is no such process, hidepid hides it, or it does not answer.
pub fn read_basic(root: &Root, users: &Users, pid: u32) -> Option<ProcBasic> {
    let mut process = execs::one(root, pid, read_all)??;
    process.user = process.uid.and_then(|uid| users.name(uid)).map(str::to_owned);
    Some(process)
}

/// As [`read_basic`], without the name of the user.
fn read_all(root: &Root, pid: u32) -> Option<ProcBasic> {
    let dir = dir(root, pid);
    let stat = read_stat(root, &dir)?;
    let status = Status::read(root, &dir).unwrap_or_default();
    let cgroup = read_cgroup(root, &dir, stat.ended);
    // The process may have ended in between and a new one have its number: then these facts belong to two
    // processes. The next refresh reads the new one completely.
    let still = read_stat(root, &dir).is_some_and(|now| now.start == stat.start);
    still.then_some(ProcBasic {
        stat,
        uid: status.uid,
        user: None,
        cgroup,
    })
}

pub(super) fn dir(root: &Root, pid: u32) -> PathBuf {
    root.proc(pid.to_string())
}

pub(super) fn read_stat(root: &Root, dir: &Path) -> Option<Stat> {
    Stat::parse(&root.bytes(&dir.join("stat"), 4096)?)
}

/// The cgroup of a process by its directory in /proc, and what root named in it. `ended`: it is a zombie.
pub fn read_cgroup(root: &Root, dir: &Path, ended: bool) -> Option<Cgroup> {
    const LIMIT: usize = 64 << 10;
    Cgroup::parse_with(
        &root.bytes(&dir.join("cgroup"), LIMIT)?,
        ended,
        |controllers, path| named_by_root(root, controllers, path),
    )
}

#[cfg(test)]
mod tests {
    use super::super::stat::line;
    use super::*;
    use crate::fake::Fake;

    #[test]
    fn a_process_is_read_whole() {
        let fake = Fake::new();
        fake.proc("231/stat", line(231, b"ib send\nbw", 4711))
            .proc("231/status", "Tgid:\t231\nUid:\t1000\t1000\t1000\t1000\n");
        fake.proc(
            "231/cgroup",
            "0::/system.slice/slurmstepd.scope/job_211/step_0/user/task_0\n",
        );
        fake.etc("passwd", "alice:x:1000:1000::/home/alice:/bin/sh\n");
        let root = fake.root();
        let p = read_basic(&root, &Users::read(&root), 231).unwrap();
        assert_eq!(
            p.key(),
            ProcKey {
                pid: 231,
                start: 4711
            }
        );
        assert_eq!(p.stat.comm, "ib send\\x0abw");
        assert_eq!((p.uid, p.user.as_deref()), (Some(1000), Some("alice")));
        assert_eq!(p.cgroup.and_then(|c| c.workload.slurm).map(|s| s.job), Some(211));
    }

    #[test]
    fn a_process_of_which_only_stat_is_readable_is_still_a_process() {
        let fake = Fake::new();
        fake.proc("9/stat", line(9, b"x", 1));
        let p = read_basic(&fake.root(), &Users::default(), 9).unwrap();
        assert_eq!((p.uid, p.user, p.cgroup), (None, None, None));
    }

    #[test]
    fn an_absent_process_is_none() {
        assert_eq!(read_basic(&Fake::new().root(), &Users::default(), 1), None);
    }

    #[test]
    fn the_running_test_reads_itself() {
        let root = Root::default();
        let me = std::process::id();
        let p = read_basic(&root, &Users::read(&root), me).expect("our own process is readable");
        assert_eq!(p.stat.pid, me);
    }
}
