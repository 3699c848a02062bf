//! Lists RDMA devices and network interfaces: those that `rdmatop lab` makes must be gone afterwards.

use std::{collections::BTreeSet, fs, os::unix::fs::MetadataExt};

use anyhow::Result;

/// Class, name and inode in sysfs; an inode is never reused.
pub type Things = BTreeSet<(&'static str, String, u64)>;

/// Returns all things that exist.
pub fn things() -> Result<Things> {
    let mut things = Things::new();
    for class in ["infiniband", "net"] {
        let dir = format!("/sys/class/{class}");
        for entry in fs::read_dir(&dir).into_iter().flatten() {
            let entry = entry?;
            // A thing that disappears at this moment does not exist.
            if let Ok(meta) = fs::metadata(entry.path()) {
                things.insert((
                    class,
                    entry.file_name().to_string_lossy().into_owned(),
                    meta.ino(),
                ));
            }
        }
    }
    Ok(things)
}
