//! The open files of all processes, one after another.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ffi::OsStr,
    fs,
    io::{self, ErrorKind},
    iter,
    ops::ControlFlow,
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{
    clock, execs, foreign,
    proc::{Stat, Status},
    root::Root,
};
use rdmatop_base::order::Gather as _;

/// The largest number of open files that a search reads of the processes of one user: the search must end. It
/// then goes on with other users' processes, so that no user can hide them.
pub const MOST: usize = 200_000;
/// Why something is unknown where a search left files out.
pub const CUT: &str = "a user has more than 200,000 files open, a process that waits in execve(2), or \
                       processes whose groups are so many that asking whose they are takes too long, and no \
                       more of his were looked at";
/// For so long a search asks whose processes are, ns. Each may have 65,536 groups, all of which the kernel
/// writes for each answer: 20 ms and, where the machine is busy, 0.2 s. Those of 5,000 ordinary processes
/// take that together.
const ASKING: u64 = 1_000_000_000;
/// Stands for the user of a process who was not asked for (`INVALID_UID`): no user has this number.
const NOBODY: u32 = u32::MAX;

/// Says where a search need not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// The search is done with this process, and goes on with the next.
    Process,
    /// The search is done.
    Walk,
}

/// What a walk left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Walk {
    /// The open files of some processes were not readable.
    pub(crate) hidden: bool,
    /// It stopped at its limit, or a process did not answer: some files of some user were not read.
    pub cut: bool,
    /// Whose some files are was not asked for.
    pub(crate) unasked: bool,
}

/// An open file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenFile {
    /// The link in /proc (`of`).
    pub(super) link: PathBuf,
    /// What the link says.
    pub target: Vec<u8>,
    /// Of what is called as a verbs file: major and minor number, if it is a device that takes requests.
    pub(super) device: Option<(u32, u32)>,
}

/// The name of the verbs file that a link in /proc leads to, and whether it was deleted; `None` for any other
/// file. A container may have it in another directory.
pub(super) fn verbs_file(target: &[u8]) -> Option<(&OsStr, bool)> {
    let path = target.strip_suffix(b" (deleted)");
    let name = path.unwrap_or(target).rsplit(|b| *b == b'/').next()?;
    let number = name.strip_prefix(b"uverbs").filter(|number| !number.is_empty())?;
    let is_one = number.iter().all(u8::is_ascii_digit);
    is_one.then(|| (OsStr::from_bytes(name), path.is_some()))
}

/// The descriptors of a process, and `None` for each thread that was looked at: whoever bounds a search
/// counts these too.
///
/// The kernel lists those of one thread (`proc_readfd_common`, fs/proc/fd.c): the first thread of a process
/// may have ended while others go on, and then has none. Tables that threads have of their own are not looked
/// for: kcmp(2), which tells them, waits for a process that is in execve(2) as long as that likes.
pub(super) fn of(root: &Root, pid: u32) -> io::Result<impl Iterator<Item = Option<fs::DirEntry>>> {
    let mut files = list(&root.proc(format!("{pid}/fd")))?.peekable();
    let task = root.proc(format!("{pid}/task"));
    let mut found = files.peek().is_some();
    let others = if found {
        Vec::new()
    } else {
        let threads = root.list(&task).unwrap_or_default();
        let tids = threads
            .iter()
            .filter_map(|name| name.to_str()?.parse::<u32>().ok());
        tids.filter(|tid| *tid != pid).collect()
    };
    // Threads share their descriptors, and those that end have none.
    let of_thread = move |tid: u32| {
        let listed = (!found).then(|| list(&task.join(format!("{tid}/fd"))).ok());
        let mut files = listed?.into_iter().flatten().peekable();
        found = files.peek().is_some();
        Some(iter::once(None).chain(files.map(Some)))
    };
    let another = others.into_iter().map_while(of_thread).flatten();
    Ok(files.map(Some).chain(another))
}

/// The thread and the number of a descriptor, by its link in /proc: `PID/fd/N` or `PID/task/TID/fd/N`.
/// `/proc/TID/fd/N` is the same link.
pub(super) fn descriptor(link: &Path) -> Option<(u32, u32)> {
    let number = |path: &Path| path.file_name()?.to_str()?.parse().ok();
    Some((number(link.ancestors().nth(2)?)?, number(link)?))
}

#[expect(clippy::disallowed_methods, reason = "the kernel alone makes that directory")]
fn list(dir: &Path) -> io::Result<impl Iterator<Item = fs::DirEntry> + use<>> {
    Ok(fs::read_dir(dir)?.flatten())
}

/// Names a process whose open files the walk reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its number.
    pub pid: u32,
    /// Its real user; `u32::MAX` where that was not asked for.
    pub user: u32,
}

/// Whose the processes are that one search looks at.
#[derive(Debug, Default)]
pub struct Users {
    asked_ns: AtomicU64,
}

impl Users {
    /// The real user of a process. Where asking for users has taken a second, all who must be asked for count
    /// as one, `u32::MAX`.
    pub fn of(&self, root: &Root, pid: u32) -> u32 {
        self.of_by(root, pid, clock::monotonic)
    }

    /// As [`Users::of`], by this clock, ns.
    fn of_by(&self, root: &Root, pid: u32, now: impl Fn() -> u64) -> u32 {
        let owner = owner(root, pid);
        if owner != 0 {
            return owner;
        }
        if self.asked_ns.load(Ordering::Relaxed) >= ASKING {
            return NOBODY;
        }
        let begun = now();
        let user = real_user(root, pid);
        let took_ns = now().saturating_sub(begun);
        self.asked_ns.fetch_add(took_ns, Ordering::Relaxed);
        user
    }
}

/// Calls `see` with each process, by number, and each of its open files whose target `is_wanted`; `Break`
/// ends the walk of that process alone, or all of it. Reads at most `most` files and threads of each user.
pub fn walk(
    root: &Root,
    most: usize,
    is_wanted: fn(&[u8]) -> bool,
    see: impl FnMut(Holder, &OpenFile) -> ControlFlow<Ends>,
) -> Walk {
    let users = Users::default();
    walk_by(root, most, is_wanted, move |root, pid| users.of(root, pid), see)
}

/// As [`walk`], of processes whose users `user` says.
fn walk_by(
    root: &Root,
    most: usize,
    is_wanted: fn(&[u8]) -> bool,
    user: impl Fn(&Root, u32) -> u32 + Send + Sync + 'static,
    mut see: impl FnMut(Holder, &OpenFile) -> ControlFlow<Ends>,
) -> Walk {
    let mut out = Walk::default();
    // How many files of each user were looked at.
    let looked: Mutex<HashMap<u32, usize>> = Mutex::default();
    let looked = Arc::new(looked);
    let work = move |root: &Root, pid| {
        let user = user(root, pid);
        let of_user = || looked.lock().unwrap_or_else(PoisonError::into_inner);
        let left = most.saturating_sub(of_user().get(&user).copied().unwrap_or_default());
        let read = read(root, pid, left, is_wanted);
        if let Ok(read) = &read {
            *of_user().entry(user).or_default() += read.looked;
        }
        (Holder { pid, user }, read)
    };
    execs::each(root, root.pids(), work, |_, answer| {
        let Some((holder, read)) = answer else {
            out.cut = true;
            return ControlFlow::Continue(());
        };
        match read {
            Err(error) => out.hidden |= error.kind() == ErrorKind::PermissionDenied,
            Ok(read) => {
                out.cut |= read.cut;
                out.unasked |= holder.user == NOBODY && read.looked > 0;
                for file in &read.wanted {
                    match see(holder, file) {
                        ControlFlow::Break(Ends::Process) => break,
                        ControlFlow::Break(Ends::Walk) => return ControlFlow::Break(()),
                        ControlFlow::Continue(()) => {}
                    }
                }
            }
        }
        ControlFlow::Continue(())
    });
    out
}

/// Those of these processes that another one of them has made by fork(2), with its open files, and that run
/// the same program since.
pub fn forks(root: &Root, pids: impl IntoIterator<Item = u32>) -> BTreeSet<u32> {
    let ask = |root: &Root, pid: u32| {
        let stat = Stat::parse(&root.bytes(&root.proc(format!("{pid}/stat")), 4096)?)?;
        Some((stat.ppid, stat.stack?))
    };
    let mut known = BTreeMap::new();
    execs::each(root, pids, ask, |pid, answer| {
        known.extend(answer.flatten().map(|found| (pid, found)));
        ControlFlow::Continue(())
    });
    let is_fork =
        |(_, (parent, stack)): &(&u32, &(u32, u64))| known.get(parent).is_some_and(|of| of.1 == *stack);
    known.iter().filter(is_fork).map(|(pid, _)| *pid).gather()
}

/// What was read of the open files of a process.
#[derive(Debug, Default)]
pub(super) struct Read {
    pub(super) wanted: Vec<OpenFile>,
    /// How many files and threads were looked at.
    pub(super) looked: usize,
    /// Others were left out.
    pub(super) cut: bool,
}

/// The open files of a process whose target `is_wanted`, at most `most` looked at.
pub(super) fn read(root: &Root, pid: u32, most: usize, is_wanted: fn(&[u8]) -> bool) -> io::Result<Read> {
    let mut out = Read::default();
    for file in of(root, pid)? {
        if out.looked == most {
            out.cut = true;
            break;
        }
        out.looked += 1;
        let Some(link) = file.map(|file| file.path()) else {
            continue;
        };
        // Without a target the file was closed meanwhile.
        if let Some(target) = root.link(&link).filter(|target| is_wanted(target)) {
            let device = verbs_file(&target).and_then(|_| foreign::character_device(&link));
            out.wanted.push(OpenFile { link, target, device });
        }
    }
    Ok(out)
}

/// Who has the directory of a process in /proc: its effective user, dumpable or not (`task_dump_owner`,
/// fs/proc/base.c, makes root the owner of what is in it alone).
fn owner(root: &Root, pid: u32) -> u32 {
    fs::metadata(root.proc(pid.to_string())).map_or(0, |dir| dir.uid())
}

/// The real user of a process. Anybody may start a setuid program, whose effective user is root; only for
/// root's the longer file is read. A process that has ended has no more files, so that its user does not
/// matter.
pub(super) fn real_user(root: &Root, pid: u32) -> u32 {
    let owner = owner(root, pid);
    if owner != 0 {
        return owner;
    }
    Status::whose(root, &root.proc(pid.to_string()))
        .and_then(|(_, user)| user)
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    #[test]
    fn each_process_is_seen_until_it_is_known_and_the_walk_ends_at_its_limit() {
        let fake = Fake::new();
        for (pid, fd) in [(7, 3), (7, 4), (9, 3), (9, 4)] {
            fake.dir(format!("proc/{pid}/fd"));
            fake.link(format!("proc/{pid}/fd/{fd}"), "/dev/null");
        }
        let seen = |most, how: ControlFlow<Ends>| {
            let mut seen = Vec::new();
            let walk = walk(
                &fake.root(),
                most,
                |_| true,
                |holder, file| {
                    assert_eq!(file.target, b"/dev/null");
                    seen.push(holder.pid);
                    how
                },
            );
            seen.sort_unstable();
            (seen, walk.cut)
        };
        assert_eq!(seen(9, ControlFlow::Continue(())), (vec![7, 7, 9, 9], false));
        assert_eq!(seen(9, ControlFlow::Break(Ends::Process)), (vec![7, 9], false));
        assert_eq!(seen(9, ControlFlow::Break(Ends::Walk)), (vec![7], false));
        let (some, cut) = seen(3, ControlFlow::Continue(()));
        assert_eq!((some.len(), cut), (3, true));
        // Its first thread has ended.
        fake.dir("proc/11/fd")
            .dir("proc/11/task/11/fd")
            .dir("proc/11/task/12/fd");
        fake.link("proc/11/task/12/fd/3", "/dev/null")
            .link("proc/11/task/13/fd/3", "/dev/null");
        assert_eq!(
            seen(9, ControlFlow::Break(Ends::Process)),
            (vec![7, 9, 11], false)
        );
        std::fs::remove_dir_all(fake.root().proc("11")).unwrap();
        // Of another user, whoever has its directory.
        fake.proc("9/status", "Tgid:\t9\nUid:\t1000\t0\t0\t0\n");
        assert_eq!(seen(2, ControlFlow::Continue(())), (vec![7, 7, 9, 9], false));
    }

    #[test]
    fn processes_with_very_many_groups_end_no_search_and_share_one_bound() {
        let fake = Fake::new();
        fake.link("proc/500/fd/3", "/dev/infiniband/uverbs0")
            .link("proc/501/fd/3", "/dev/infiniband/uverbs1");
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can make directories of other users");
            return;
        }
        std::os::unix::fs::chown(fake.root().proc("500"), Some(2000), None).unwrap();
        for pid in 20..120_u32 {
            fake.proc(format!("{pid}/status"), "Tgid:\t20\nUid:\t1000\t0\t0\t0\n")
                .link(format!("proc/{pid}/fd/3"), "/dev/null");
        }
        let search = |most, millis: u64| {
            let (root, mut seen) = (fake.root(), Vec::new());
            let (clock, users) = (root.clone(), Users::default());
            // So long does each status take.
            let now = move || clock.opens() * millis * 1_000_000;
            let before = root.opens();
            let walk = walk_by(
                &root,
                most,
                |target| verbs_file(target).is_some(),
                move |root, pid| users.of_by(root, pid, &now),
                |holder, _| {
                    seen.push((holder.pid, holder.user));
                    ControlFlow::Continue(())
                },
            );
            (seen, (walk.cut, walk.unasked), root.opens() - before)
        };
        // The list of processes, and the status of each but 500.
        let all = (vec![(500, 2000), (501, 0)], (false, false), 102);
        assert_eq!(search(1000, 1), all);
        let unasked = (vec![(500, 2000), (501, NOBODY)], (false, true), 6);
        assert_eq!(search(1000, 200), unasked);
        // The files of those who were not asked for are too many for one user.
        let cut = (vec![(500, 2000)], (true, true), 6);
        assert_eq!(search(50, 200), cut);
    }

    #[test]
    fn each_thread_that_is_looked_at_counts_as_a_file() {
        let fake = Fake::new();
        fake.dir("proc/11/fd");
        for tid in 11..20 {
            fake.dir(format!("proc/11/task/{tid}/fd"));
        }
        let cut = |most| walk(&fake.root(), most, |_| true, |_, _| ControlFlow::Continue(())).cut;
        assert!(cut(7) && !cut(8));
    }
}
