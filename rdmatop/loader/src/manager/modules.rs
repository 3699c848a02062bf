//! Which of the modules with hooks are loaded.

use std::{collections::BTreeSet, fs, os::unix::fs::MetadataExt as _, path::Path, sync::LazyLock};

use crate::hooks::datapath;
use rdmatop_base::order::Gather as _;

/// The modules that have a hooked function or tracepoint.
static NAMES: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let names: BTreeSet<&str> = datapath::all_hooks().map(|hook| hook.module).gather();
    names.into_iter().collect()
});

/// The inode of each module's directory, `None` if it is not loaded. A reloaded module has a new inode.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Generations(Vec<Option<u64>>);

impl Generations {
    /// The modules that are loaded at present. `modules`: where the kernel has a directory for each.
    pub(super) fn read(modules: &Path) -> Self {
        let inode = |name: &&str| Some(fs::metadata(modules.join(name)).ok()?.ino());
        Self(NAMES.iter().map(inode).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_that_comes_goes_or_comes_anew_changes_the_generations() {
        let dir = tempfile::tempdir().unwrap();
        let (path, core) = (dir.path().join("module"), dir.path().join("module/ib_core"));
        let read = || Generations::read(&path);
        let none = read();
        std::fs::create_dir_all(&core).unwrap();
        let one = read();
        assert_ne!(none, one, "the directory was not there at the first reading");
        assert_eq!(one, read());
        // The old one is kept, so that the new one cannot have its inode.
        std::fs::rename(&core, dir.path().join("old")).unwrap();
        assert_eq!(read(), none);
        std::fs::create_dir(&core).unwrap();
        let anew = read();
        assert!(anew != one && anew != none);
    }
}
