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

/// The processes that have these sockets open, by inode, and whether some socket was not found because the
/// search reads `most` files of one user. With several processes (a fork), the one with the lowest number.
pub(super) fn find(root: &Root, inodes: &BTreeSet<u32>, most: usize) -> (BTreeMap<u32, Descriptor>, bool) {
    let mut found = BTreeMap::new();
    let walk = open_files::walk(root, most, |pid, link, target| {
        let fd = link.file_name().and_then(|name| name.to_str()?.parse().ok());
        let inode = socket(target).filter(|inode| inodes.contains(inode));
        if let Some((fd, inode)) = fd.zip(inode) {
            found.entry(inode).or_insert(Descriptor { pid, fd });
        }
        if found.len() == inodes.len() {
            return ControlFlow::Break(Ends::Walk);
        }
        ControlFlow::Continue(())
    });
    let cut = walk.cut && found.len() < inodes.len();
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
        let found = |most| find(&root, &BTreeSet::from([11, 12, 13]), most);
        let (first, second) = (Descriptor { pid: 7, fd: 3 }, Descriptor { pid: 10, fd: 6 });
        assert_eq!(found(9), (BTreeMap::from([(11, first), (12, second)]), false));
        assert_eq!(found(2), (BTreeMap::from([(11, first)]), true));
        assert!(first.is(&root, 11) && !first.is(&root, 12));
        assert!(!Descriptor { pid: 7, fd: 9 }.is(&root, 11));
    }
}
