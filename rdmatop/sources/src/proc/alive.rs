//! Detects at little cost, by descriptors that are kept open, whether processes are unchanged.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open, test_kill_process};

use super::basic::dir;
use crate::root::Root;

/// Whether a process with this number exists. /proc may not be mounted, or hide processes of other users
/// (hidepid); then kill(2) with signal 0 answers: EPERM for another user's process, ESRCH for none.
pub fn lives(root: &Root, pid: u32) -> bool {
    let signalled = || {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        root.is_live() && number.is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
    };
    dir(root, pid).exists() || signalled()
}

/// The largest number of watched processes. Each takes two descriptors of the 1024 that a program may have by
/// default. A process that is not watched costs a read of `stat` at each refresh.
const WATCHED: usize = 192;
/// `TASK_COMM_LEN`, and the newline that `comm` ends with.
const COMM: usize = 17;

/// A process that is watched.
#[derive(Debug)]
struct Watch {
    /// Reports that the process has ended, and never refers to another process.
    pidfd: OwnedFd,
    /// Its name, which changes with an exec.
    file: File,
    comm: [u8; COMM],
}

/// The watched processes, by number.
#[derive(Debug, Default)]
pub(super) struct Watches {
    all: HashMap<u32, Watch>,
}

impl Watches {
    /// Watches a process. The caller reads its facts after this, so that no change in between is missed.
    /// Where watching is impossible (a tree that is not this machine's, no room), the process is not watched.
    pub(super) fn add(&mut self, root: &Root, pid: u32) {
        if !root.is_live() || self.all.len() >= WATCHED {
            return;
        }
        let open = || {
            let number = Pid::from_raw(i32::try_from(pid).ok()?)?;
            let pidfd = pidfd_open(number, PidfdFlags::empty()).ok()?;
            let file = root.open(&dir(root, pid).join("comm"))?;
            let comm = read(&file)?;
            Some(Watch { pidfd, file, comm })
        };
        if let Some(watch) = open() {
            self.all.insert(pid, watch);
        }
    }

    /// Stops watching a process.
    pub(super) fn remove(&mut self, pid: u32) {
        self.all.remove(&pid);
    }

    /// Records the present name of a process.
    pub(super) fn renamed(&mut self, pid: u32) {
        if let Some(watch) = self.all.get_mut(&pid)
            && let Some(comm) = read(&watch.file)
        {
            watch.comm = comm;
        }
    }

    /// Watched processes that live and have the same name as before, in order.
    pub(super) fn unchanged(&self) -> Vec<u32> {
        let (pids, watches): (Vec<u32>, Vec<&Watch>) = self.all.iter().unzip();
        let mut fds: Vec<PollFd<'_>> = watches
            .iter()
            .map(|watch| PollFd::new(&watch.pidfd, PollFlags::IN))
            .collect();
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        if poll(&mut fds, Some(&at_once)).is_err() {
            return Vec::new();
        }
        let mut same: Vec<u32> = pids
            .into_iter()
            .zip(watches)
            .zip(&fds)
            .filter(|((_, watch), fd)| fd.revents().is_empty() && read(&watch.file) == Some(watch.comm))
            .map(|((pid, _), _)| pid)
            .collect();
        same.sort_unstable();
        same
    }
}

/// Reads `comm` at offset zero, where the kernel prints the present name; ESRCH if the process is gone.
fn read(file: &File) -> Option<[u8; COMM]> {
    let mut comm = [0; COMM];
    let got = file.read_at(&mut comm, 0).ok()?;
    (got > 0).then_some(comm)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_that_proc_hides_is_asked_for_by_signal() {
        let live = Root::default();
        assert!(lives(&live, std::process::id()) && lives(&live, 1));
        assert!(!lives(&live, u32::MAX) && !lives(&live, 0));
        let other = crate::fake::Fake::new();
        assert!(!lives(&other.root(), 1), "another machine's");
        other.proc("7/comm", "x\n");
        assert!(lives(&other.root(), 7));
    }

    #[test]
    fn a_process_is_unchanged_until_it_execs_and_until_it_ends() {
        let root = Root::default();
        let mut watches = Watches::default();
        let mut child = Command::new("sh")
            .args(["-c", "read line; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let pid = child.id();
        watches.add(&root, pid);
        assert_eq!(watches.unchanged(), [pid]);
        child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while watches.unchanged() == [pid] {
            assert!(std::time::Instant::now() < end, "the exec is not seen");
        }
        watches.renamed(pid);
        assert_eq!(watches.unchanged(), [pid]);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(watches.unchanged().is_empty());
    }

    #[test]
    fn processes_of_a_tree_that_is_not_this_machines_are_not_watched() {
        let fake = crate::fake::Fake::new();
        let mut watches = Watches::default();
        watches.add(&fake.root(), std::process::id());
        assert!(watches.unchanged().is_empty());
    }
}
