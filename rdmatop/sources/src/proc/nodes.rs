//! The device files that a process finds.

use std::{io::ErrorKind, os::unix::ffi::OsStrExt as _};

use super::basic::dir;
use crate::{
    foreign::{Refusal, Tree},
    root::Root,
};

/// Whether a process finds a file `/dev/infiniband/uverbs*` below its root directory. `None`: that is not
/// known, because rdmatop may not look there, or because a read failed.
///
/// This asks the file systems of the process, which may be a container's: one that hangs makes this call
/// hang.
pub(super) fn verbs_files(root: &Root, pid: u32) -> Option<bool> {
    // A root directory that rdmatop may not enter makes the answer unknown, not `false`.
    match Tree::of(root, &dir(root, pid)).ok()?.names("dev/infiniband") {
        Ok(files) => Some(files.iter().any(|file| file.as_bytes().starts_with(b"uverbs"))),
        Err(Refusal::Kernel(error)) if error.kind() == ErrorKind::NotFound => Some(false),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    #[test]
    fn a_container_without_devices_is_seen_from_outside() {
        let fake = Fake::new();
        let seen = || verbs_files(&fake.root(), 7);
        assert_eq!(seen(), None, "its root directory cannot be read");
        fake.proc("7/root/etc/hostname", "a-pod\n");
        assert_eq!(seen(), Some(false));
        fake.proc("7/root/dev/infiniband/rdma_cm", "");
        assert_eq!(seen(), Some(false), "that one alone opens no device");
        fake.proc("7/root/dev/infiniband/uverbs0", "");
        assert_eq!(seen(), Some(true));
    }
}
