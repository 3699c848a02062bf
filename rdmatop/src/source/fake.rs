//! A fake procfs, sysfs and /etc for tests.
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::root::Root;

/// A tree that is built line by line and removed when dropped.
pub(crate) struct Fake {
    dir: TempDir,
    root: Root,
}

impl Fake {
    pub(crate) fn new() -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        for tree in ["proc", "sys", "etc"] {
            fs::create_dir(dir.path().join(tree)).expect("a new tree");
        }
        let root = Root::under(dir.path());
        Self { dir, root }
    }

    /// The root over this tree; clones share the counter of opens.
    pub(crate) fn root(&self) -> Root {
        self.root.clone()
    }

    pub(crate) fn proc(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> &Self {
        self.write(&Path::new("proc").join(path), content)
    }

    pub(crate) fn sys(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> &Self {
        self.write(&Path::new("sys").join(path), content)
    }

    pub(crate) fn etc(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> &Self {
        self.write(&Path::new("etc").join(path), content)
    }

    /// A symbolic link below the base (`proc/..` or `sys/..`); the target need not exist.
    pub(crate) fn link(&self, path: impl AsRef<Path>, target: impl AsRef<Path>) -> &Self {
        let path = self.parented(path.as_ref());
        let _ = fs::remove_file(&path);
        symlink(target, path).expect("a symbolic link");
        self
    }

    pub(crate) fn dir(&self, path: impl AsRef<Path>) -> &Self {
        fs::create_dir_all(self.dir.path().join(path)).expect("a directory");
        self
    }

    pub(crate) fn remove(&self, path: impl AsRef<Path>) -> &Self {
        let path = self.dir.path().join(path);
        if path.is_dir() {
            fs::remove_dir_all(path)
        } else {
            fs::remove_file(path)
        }
        .expect("a removal");
        self
    }

    fn write(&self, path: &Path, content: impl AsRef<[u8]>) -> &Self {
        fs::write(self.parented(path), content).expect("a file");
        self
    }

    fn parented(&self, path: &Path) -> PathBuf {
        let full = self.dir.path().join(path);
        if let Some(parent) = full.parent() {
            fs::create_dir_all(parent).expect("parent directories");
        }
        full
    }
}
