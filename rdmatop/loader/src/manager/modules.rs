//! Which of the modules with hooks are loaded.

use std::{collections::BTreeSet, path::PathBuf, sync::LazyLock};

use rustix::{
    fd::OwnedFd,
    fs::{AtFlags, Mode, OFlags, open, statat},
};

use crate::hooks::datapath;
use rdmatop_base::order::Gather as _;

/// Where the kernel has a directory for each loaded module.
const LOADED: &str = "/sys/module";

/// The modules that have a hooked function or tracepoint.
static NAMES: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let names: BTreeSet<&str> = datapath::all_hooks().map(|hook| hook.module).gather();
    names.into_iter().collect()
});

/// The inode of each module's directory, `None` if it is not loaded. A reloaded module has a new inode.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Generations(Vec<Option<u64>>);

/// The directory of modules, kept open: the manager reads it once a second, and a path from the root costs
/// twice as much as one from here. While it is open, the file system at /sys cannot be unmounted.
#[derive(Debug)]
pub(crate) struct Modules {
    path: PathBuf,
    dir: Option<OwnedFd>,
}

impl Modules {
    /// The modules of the running kernel.
    pub(crate) fn new() -> Self {
        Self::of(PathBuf::from(LOADED))
    }

    const fn of(path: PathBuf) -> Self {
        Self { path, dir: None }
    }

    /// The modules that are loaded at present.
    pub(crate) fn read(&mut self) -> Generations {
        if self.dir.is_none() {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            self.dir = open(&self.path, flags, Mode::empty()).ok();
        }
        let inode = |name: &&str| {
            let stat = statat(self.dir.as_ref()?, *name, AtFlags::empty());
            stat.ok().map(|stat| stat.st_ino)
        };
        Generations(NAMES.iter().map(inode).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_that_comes_goes_or_comes_anew_changes_the_generations() {
        let dir = tempfile::tempdir().unwrap();
        let (path, core) = (dir.path().join("module"), dir.path().join("module/ib_core"));
        let mut modules = Modules::of(path);
        let none = modules.read();
        std::fs::create_dir_all(&core).unwrap();
        let one = modules.read();
        assert_ne!(none, one, "the directory was not there at the first reading");
        assert_eq!(one, modules.read());
        // The old one is kept, so that the new one cannot have its inode.
        std::fs::rename(&core, dir.path().join("old")).unwrap();
        assert_eq!(modules.read(), none);
        std::fs::create_dir(&core).unwrap();
        let anew = modules.read();
        assert!(anew != one && anew != none);
    }
}
