//! The open files of all processes, one after another.

use std::{
    collections::{BTreeSet, HashMap},
    fs,
    io::{self, ErrorKind},
    ops::ControlFlow,
    os::unix::fs::MetadataExt as _,
    path::Path,
};

use super::{proc::Status, root::Root};
use rdmatop_base::order::Gather as _;

/// The largest number of open files that a search reads of the processes of one user: the search must end. It
/// then goes on with other users' processes, so that no user can hide them.
pub const MOST: usize = 200_000;
/// Why something is unknown where a search stopped at [`MOST`].
pub const CUT: &str = "a user has more than 200,000 files open, and no more were looked at";

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
    /// It stopped at its limit: some files of some user were not read.
    pub cut: bool,
}

/// The descriptors of a process.
///
/// The kernel lists those of one thread (`proc_readfd_common`, fs/proc/fd.c): the first thread of a process
/// may have ended while others go on, and then has none.
pub(super) fn of(root: &Root, pid: u32) -> io::Result<impl Iterator<Item = fs::DirEntry>> {
    let mut files = list(&root.proc(format!("{pid}/fd")))?.peekable();
    let others = if files.peek().is_some() {
        Vec::new()
    } else {
        let threads = root.list(&root.proc(format!("{pid}/task"))).unwrap_or_default();
        threads
            .iter()
            .filter_map(|name| name.to_str()?.parse::<u32>().ok())
            .filter(|tid| *tid != pid)
            .collect()
    };
    let of_thread = move |tid: u32| list(&root.proc(format!("{pid}/task/{tid}/fd"))).ok();
    // Threads share their descriptors, and those that end have none.
    let another = others.into_iter().filter_map(of_thread).find_map(|files| {
        let mut files = files.peekable();
        files.peek().is_some().then_some(files)
    });
    Ok(files.chain(another.into_iter().flatten()))
}

#[expect(clippy::disallowed_methods, reason = "the kernel alone makes that directory")]
fn list(dir: &Path) -> io::Result<impl Iterator<Item = fs::DirEntry> + use<>> {
    Ok(fs::read_dir(dir)?.flatten())
}

/// Calls `see` with each process, by number, and for each of its open files with the link in /proc/PID/fd and
/// that link's target; `Break` ends the walk of that process alone, or all of it. Reads at most `most` files
/// of each user.
pub fn walk(root: &Root, most: usize, mut see: impl FnMut(u32, &Path, &[u8]) -> ControlFlow<Ends>) -> Walk {
    let mut out = Walk::default();
    let mut looked: HashMap<u32, usize> = HashMap::new();
    let names = root.list(&root.proc("")).unwrap_or_default();
    let pids = names.iter().filter_map(|name| name.to_str()?.parse::<u32>().ok());
    for pid in pids.gather::<BTreeSet<u32>>() {
        let files = match of(root, pid) {
            Ok(files) => files,
            Err(error) => {
                out.hidden |= error.kind() == ErrorKind::PermissionDenied;
                continue;
            }
        };
        let user = real_user(root, pid);
        let looked = looked.entry(user).or_default();
        for file in files {
            if *looked == most {
                out.cut = true;
                break;
            }
            *looked += 1;
            // Without a target the file was closed meanwhile.
            let link = file.path();
            let target = root.link(&link);
            match target.map(|target| see(pid, &link, &target)) {
                Some(ControlFlow::Break(Ends::Process)) => break,
                Some(ControlFlow::Break(Ends::Walk)) => return out,
                Some(ControlFlow::Continue(())) | None => {}
            }
        }
    }
    out
}

/// The real user of a process. The directory in /proc of one that is not dumpable is root's, and any user's
/// can be so; only for those the longer file is read. A process that has ended has no more files, so that its
/// user does not matter.
pub(super) fn real_user(root: &Root, pid: u32) -> u32 {
    let dir = root.proc(pid.to_string());
    let owner = fs::metadata(&dir).map_or(0, |dir| dir.uid());
    if owner != 0 {
        return owner;
    }
    Status::read(root, &dir)
        .and_then(|status| status.uid)
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
            let walk = walk(&fake.root(), most, |pid, _, target| {
                assert_eq!(target, b"/dev/null");
                seen.push(pid);
                how
            });
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
}
