//! RDMA devices and network interfaces that there are: what `rdmatop lab` makes has to be gone afterwards.

use std::{collections::BTreeSet, fs, os::unix::fs::MetadataExt};

use anyhow::Result;

/// Class, name, inode in sysfs, which is given once.
pub type Things = BTreeSet<(&'static str, String, u64)>;

/// All there are.
pub fn things() -> Result<Things> {
    let mut things = Things::new();
    for class in ["infiniband", "net"] {
        let dir = format!("/sys/class/{class}");
        for entry in fs::read_dir(&dir).into_iter().flatten() {
            let entry = entry?;
            // One that goes at this moment is not there.
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
