//! Which process has a socket open: `/proc/PID/fd`.

use std::collections::{BTreeMap, BTreeSet};

use crate::root::Root;

/// The processes that have these sockets open, by inode. With several (a fork), the one with the lowest
/// number.
pub(super) fn find(root: &Root, inodes: &BTreeSet<u32>) -> BTreeMap<u32, u32> {
    let mut found = BTreeMap::new();
    let names = root.list(&root.proc("")).unwrap_or_default();
    let pids = names.iter().filter_map(|name| name.to_str()?.parse::<u32>().ok());
    for pid in pids.collect::<BTreeSet<u32>>() {
        let dir = root.proc(format!("{pid}/fd"));
        for fd in root.list(&dir).unwrap_or_default() {
            let inode = root.link(&dir.join(fd)).and_then(|target| socket(&target));
            if let Some(inode) = inode.filter(|inode| inodes.contains(inode)) {
                found.entry(inode).or_insert(pid);
            }
        }
        if found.len() == inodes.len() {
            break;
        }
    }
    found
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
            (9, 5, "socket:[11]"),
            (9, 6, "socket:[12]"),
            (9, 7, "socket:[x]"),
        ] {
            let dir = base.path().join(format!("proc/{pid}/fd"));
            std::fs::create_dir_all(&dir).unwrap();
            symlink(target, dir.join(fd.to_string())).unwrap();
        }
        std::fs::create_dir_all(base.path().join("proc/sys")).unwrap();
        let root = Root::under(base.path());
        assert_eq!(
            find(&root, &BTreeSet::from([11, 12, 13])),
            BTreeMap::from([(11, 7), (12, 9)])
        );
    }
}
