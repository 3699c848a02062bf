//! Which process has a socket open: `/proc/PID/fd`.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
};

use crate::{
    execs,
    open_files::{self, Ends},
    root::Root,
};

/// Where a process has a socket open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Descriptor {
    pub(super) pid: u32,
    /// One of its threads, which may have a table of its own.
    pub(super) thread: u32,
    pub(super) fd: u32,
}

impl Descriptor {
    /// Whether it is that socket.
    pub(super) fn is(self, root: &Root, inode: u32) -> bool {
        let link = root.link(&root.proc(format!("{}/fd/{}", self.thread, self.fd)));
        link.is_some_and(|target| socket(&target) == Some(inode))
    }
}

/// Those of these descriptors and inodes that do not belong together any more. Of a process that does not
/// answer, none is known.
pub(super) fn closed(
    root: &Root,
    all: impl Iterator<Item = (Descriptor, u32)>,
) -> BTreeSet<(Descriptor, u32)> {
    let mut of: BTreeMap<u32, Vec<(Descriptor, u32)>> = BTreeMap::new();
    for one in all {
        of.entry(one.0.pid).or_default().push(one);
    }
    let (pids, mut out): (Vec<u32>, _) = (of.keys().copied().collect(), BTreeSet::new());
    let gone = move |root: &Root, pid| -> Vec<_> {
        let of = of.get(&pid).into_iter().flatten().copied();
        of.filter(|(descriptor, inode)| !descriptor.is(root, *inode))
            .collect()
    };
    execs::each(root, pids, gone, |_, gone| {
        out.extend(gone.into_iter().flatten());
        ControlFlow::Continue(())
    });
    out
}

/// Inode and user of a socket. The kernel gives inodes away again after 2^32 sockets, whatever is still open
/// (`get_next_ino`, fs/inode.c): a socket of another user may have the same.
pub(super) type SocketKey = (u32, u32);

/// The processes that have these sockets open, and whether some socket was not found because the search reads
/// `most` files of one user. A process has those of its own user, and of root. With several processes (a
/// fork), the one with the lowest number.
pub(super) fn find(
    root: &Root,
    sockets: &BTreeSet<SocketKey>,
    most: usize,
) -> (BTreeMap<SocketKey, Descriptor>, bool) {
    let mut found = BTreeMap::new();
    // A daemon of root's may hand a socket to a program of another user.
    let mut of_root = BTreeMap::new();
    let walk = open_files::walk(root, most, is_socket, |holder, file| {
        let of_any = |inode: &u32| sockets.range((*inode, 0)..=(*inode, u32::MAX)).next().is_some();
        let inode = socket(&file.target).filter(of_any);
        if let Some((inode, (thread, fd))) = inode.zip(open_files::descriptor(&file.link)) {
            let descriptor = Descriptor {
                pid: holder.pid,
                thread,
                fd,
            };
            if sockets.contains(&(inode, holder.user)) {
                found.entry((inode, holder.user)).or_insert(descriptor);
            } else if sockets.contains(&(inode, 0)) {
                of_root.entry((inode, 0)).or_insert(descriptor);
            }
        }
        if found.len() == sockets.len() {
            return ControlFlow::Break(Ends::Walk);
        }
        ControlFlow::Continue(())
    });
    for (socket, handed) in of_root {
        found.entry(socket).or_insert(handed);
    }
    let cut = (walk.cut || walk.unasked) && found.len() < sockets.len();
    (found, cut)
}

fn is_socket(target: &[u8]) -> bool {
    socket(target).is_some()
}

/// The inode in `socket:[4242]`.
fn socket(target: &[u8]) -> Option<u32> {
    let number = target.strip_prefix(b"socket:[")?.strip_suffix(b"]")?;
    std::str::from_utf8(number).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::fake::Fake;

    #[test]
    fn sockets_are_found_by_their_links() {
        let base = tempfile::tempdir().unwrap();
        for (pid, fd, target) in [
            (7, 3, "socket:[11]"),
            (7, 4, "/dev/null"),
            (10, 5, "socket:[11]"),
            (10, 6, "socket:[12]"),
            (10, 7, "socket:[x]"),
        ] {
            let dir = base.path().join(format!("proc/{pid}/fd"));
            std::fs::create_dir_all(&dir).unwrap();
            symlink(target, dir.join(fd.to_string())).unwrap();
        }
        std::fs::create_dir_all(base.path().join("proc/sys")).unwrap();
        let root = Root::under(base.path());
        let me = open_files::real_user(&root, 7);
        let found = |most| {
            find(
                &root,
                &BTreeSet::from([11, 12, 13].map(|inode| (inode, me))),
                most,
            )
        };
        let of = |pid, fd| Descriptor { pid, thread: pid, fd };
        let (first, second) = (of(7, 3), of(10, 6));
        let both = BTreeMap::from([((11, me), first), ((12, me), second)]);
        assert_eq!(found(9), (both, false));
        assert_eq!(found(2), (BTreeMap::from([((11, me), first)]), true));
        // A socket of another user that has the inode is not its.
        let anothers = find(&root, &BTreeSet::from([(11, me + 1)]), 9);
        assert_eq!(anothers.0, BTreeMap::new());
        assert!(first.is(&root, 11) && !first.is(&root, 12));
        assert!(!of(7, 9).is(&root, 11));
    }

    #[test]
    fn a_socket_of_a_thread_stays_its_process_s() {
        let fake = Fake::new();
        // The first thread has ended. /proc finds threads by their numbers, and does not list them.
        fake.dir("proc/11/fd").link("proc/11/task/12/fd/3", "socket:[21]");
        let me = open_files::real_user(&fake.root(), 11);
        let (found, _) = find(&fake.root(), &BTreeSet::from([(21, me)]), 9);
        let descriptor = found[&(21, me)];
        assert_eq!(descriptor.pid, 11);
        fake.link("proc/12/fd/3", "socket:[21]");
        assert!(descriptor.is(&fake.root(), 21));
    }

    #[test]
    fn whose_a_process_is_is_asked_once_however_often_it_has_the_socket() {
        let fake = Fake::new();
        fake.proc("7/status", "Tgid:\t7\nUid:\t1000\t0\t0\t0\n");
        for fd in 0..500 {
            fake.link(format!("proc/7/fd/{fd}"), "socket:[11]");
        }
        let root = fake.root();
        let user = open_files::real_user(&root, 7);
        let before = root.opens();
        let (found, _) = find(&root, &BTreeSet::from([(11, user), (12, user)]), 1000);
        let opens = root.opens() - before;
        assert!(found.len() == 1 && opens < 10, "{opens}");
    }
}
