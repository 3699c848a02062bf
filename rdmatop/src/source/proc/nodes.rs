//! The device files that a process finds.

use std::{fs, io::ErrorKind, os::unix::ffi::OsStrExt as _};

use super::basic::dir;
use crate::source::root::Root;

/// Whether a process finds a file `/dev/infiniband/uverbs*` below its root directory. `None`: that is not known, because rdmatop may
/// not look there, or because a read failed.
///
/// This asks the file systems of the process, which may be a container's: one that hangs makes this call hang.
pub fn verbs_files(root: &Root, pid: u32) -> Option<bool> {
    let of_process = dir(root, pid).join("root");
    // Without this, a root directory that may not be entered would look like one without the files.
    fs::metadata(of_process.join(".")).ok()?;
    let files = match fs::read_dir(of_process.join("dev/infiniband")) {
        Ok(files) => files,
        Err(error) => return (error.kind() == ErrorKind::NotFound).then_some(false),
    };
    for file in files {
        if file.ok()?.file_name().as_bytes().starts_with(b"uverbs") {
            return Some(true);
        }
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::fake::Fake;

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
