//! Which process has a socket open: `/proc/PID/fd`.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
};

use crate::{
    open_files::{self, Ends},
    root::Root,
};

/// Where a process has a socket open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptor {
    pub(super) pid: u32,
    pub(super) fd: u32,
}

impl Descriptor {
    /// Whether it is that socket.
    pub(super) fn is(self, root: &Root, inode: u32) -> bool {
        let link = root.link(&root.proc(format!("{}/fd/{}", self.pid, self.fd)));
        link.is_some_and(|target| socket(&target) == Some(inode))
    }
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
    let walk = open_files::walk(root, most, |pid, link, target| {
        let fd = link.file_name().and_then(|name| name.to_str()?.parse().ok());
        let of_any = |inode: &u32| sockets.range((*inode, 0)..=(*inode, u32::MAX)).next().is_some();
        if let Some((fd, inode)) = fd.zip(socket(target).filter(of_any)) {
            let own = (inode, open_files::real_user(root, pid));
            if sockets.contains(&own) {
                found.entry(own).or_insert(Descriptor { pid, fd });
            } else if sockets.contains(&(inode, 0)) {
                of_root.entry((inode, 0)).or_insert(Descriptor { pid, fd });
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
    let cut = walk.cut && found.len() < sockets.len();
    (found, cut)
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
        let (first, second) = (Descriptor { pid: 7, fd: 3 }, Descriptor { pid: 10, fd: 6 });
        let both = BTreeMap::from([((11, me), first), ((12, me), second)]);
        assert_eq!(found(9), (both, false));
        assert_eq!(found(2), (BTreeMap::from([((11, me), first)]), true));
        // A socket of another user that has the inode is not its.
        let anothers = find(&root, &BTreeSet::from([(11, me + 1)]), 9);
        assert_eq!(anothers.0, BTreeMap::new());
        assert!(first.is(&root, 11) && !first.is(&root, 12));
        assert!(!Descriptor { pid: 7, fd: 9 }.is(&root, 11));
    }
}
