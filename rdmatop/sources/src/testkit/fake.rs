//! A fake procfs, sysfs and /etc for tests.
#![allow(clippy::missing_panics_doc, reason = "what it cannot make fails the test")]
#![allow(clippy::disallowed_methods, reason = "it writes and reads a tree of its own")]
pub mod recording;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::root::Root;

/// A tree that is built line by line and removed when dropped.
pub struct Fake {
    dir: TempDir,
    root: Root,
}

impl Fake {
    /// Empty trees.
    #[expect(clippy::new_without_default, reason = "it makes directories")]
    pub fn new() -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        for tree in ["proc", "sys", "etc"] {
            fs::create_dir(dir.path().join(tree)).expect("a new tree");
        }
        let root = Root::under(dir.path());
        Self { dir, root }
    }

    /// The root over this tree; clones share the counter of opens.
    pub fn root(&self) -> Root {
        self.root.clone()
    }

    /// The directory that has the trees.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// A file of procfs.
    pub fn proc(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> &Self {
        self.write(&Path::new("proc").join(path), content)
    }

    /// A file of sysfs.
    pub fn sys(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> &Self {
        self.write(&Path::new("sys").join(path), content)
    }

    /// A file of /etc.
    pub fn etc(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> &Self {
        self.write(&Path::new("etc").join(path), content)
    }

    /// A symbolic link below the base (`proc/..` or `sys/..`); the target need not exist.
    pub fn link(&self, path: impl AsRef<Path>, target: impl AsRef<Path>) -> &Self {
        let path = self.parented(path.as_ref());
        let _ = fs::remove_file(&path);
        symlink(target, path).expect("a symbolic link");
        self
    }

    /// A directory.
    pub fn dir(&self, path: impl AsRef<Path>) -> &Self {
        fs::create_dir_all(self.dir.path().join(path)).expect("a directory");
        self
    }

    /// Removes a file or a directory with all that is in it.
    pub fn remove(&self, path: impl AsRef<Path>) -> &Self {
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
