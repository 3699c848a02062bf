//! The file of changes: /run/rdmatop/hw-counters.json. Like the changes, it does not outlive the boot.
//!
//! Root acts on this file, so only root's file in root's directory counts: no link is followed, and a file
//! that others could have written is not read. A second file is locked as long as a rdmatop has something
//! changed.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FlockOperation, Mode, OFlags, flock, fstat, mkdir, open, openat, renameat, unlinkat,
};
use rustix::io::Errno;

use super::state::Changes;

const DIR: &str = "/run/rdmatop";
const FILE: &str = "hw-counters.json";
const NEW: &str = "hw-counters.json.new";
const LOCK: &str = "hw-counters.lock";
/// Thousands of ports have less.
const LARGEST: u64 = 1 << 22;
/// Others can write.
const WRITABLE: u32 = 0o022;

/// The right to change the file and what it lists, until this is dropped or the process ends.
#[derive(Debug)]
pub struct Locked {
    dir: OwnedFd,
    path: PathBuf,
    _lock: OwnedFd,
}

/// Why [`Locked`] was not given.
#[derive(Debug, PartialEq, Eq)]
pub enum Denied {
    /// Nobody has changed anything: there is no file.
    Nothing,
    /// Another rdmatop has it.
    Busy,
    /// Only another user may do this.
    NotPermitted,
    /// The file cannot be used; one line, safe to print.
    Unusable(String),
}

fn unusable(path: &Path, why: impl std::fmt::Display) -> Denied {
    Denied::Unusable(format!("{}: {why}", path.display()))
}

fn failed(path: &Path, errno: Errno) -> Denied {
    match errno {
        Errno::NOENT => Denied::Nothing,
        Errno::ACCESS | Errno::PERM => Denied::NotPermitted,
        errno => unusable(path, errno),
    }
}

impl Locked {
    /// Takes the right, to change something.
    pub fn take() -> Result<Self, Denied> {
        Self::at(Path::new(DIR), true)
    }

    /// Takes the right if a file of changes is there; makes neither the directory nor that file.
    pub fn left() -> Result<Self, Denied> {
        Self::at(Path::new(DIR), false)
    }

    /// Takes the right in the directory `path`; tests have one of their own.
    pub fn at(path: &Path, make: bool) -> Result<Self, Denied> {
        let owner = rustix::process::geteuid().as_raw();
        if make && let Err(errno) = mkdir(path, Mode::from_raw_mode(0o755)) {
            match errno {
                Errno::EXIST => {}
                errno => return Err(failed(path, errno)),
            }
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = match open(path, flags, Mode::empty()) {
            Ok(dir) => dir,
            Err(errno) => return Err(failed(path, errno)),
        };
        let stat = fstat(&dir).map_err(|errno| unusable(path, errno))?;
        if stat.st_uid != owner && owner != 0 {
            return Err(Denied::NotPermitted);
        }
        if stat.st_uid != owner {
            return Err(unusable(path, format!("it belongs to uid {}", stat.st_uid)));
        }
        if stat.st_mode & WRITABLE != 0 {
            return Err(unusable(path, "others can write in it"));
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        if !make && openat(&dir, FILE, flags, Mode::empty()).is_err() {
            return Err(Denied::Nothing);
        }
        let path = path.join(FILE);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let lock = openat(&dir, LOCK, flags, Mode::from_raw_mode(0o600))
            .map_err(|errno| failed(&path.with_file_name(LOCK), errno))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self {
                dir,
                path,
                _lock: lock,
            }),
            Err(Errno::WOULDBLOCK) => Err(Denied::Busy),
            Err(errno) => Err(unusable(&path, errno)),
        }
    }

    /// What is in the file; `None` where there is none.
    pub fn load(&self) -> Result<Option<Changes>, String> {
        let failed = |why: &dyn std::fmt::Display| format!("{}: {why}", self.path.display());
        // Without O_NONBLOCK, opening a FIFO would wait for a writer.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.dir, FILE, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(failed(&errno)),
        };
        let stat = fstat(&file).map_err(|errno| failed(&errno))?;
        if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & WRITABLE != 0 {
            return Err(failed(&"others could have written it"));
        }
        let mut raw = Vec::new();
        let read = fs::File::from(file).take(LARGEST).read_to_end(&mut raw);
        read.map_err(|error| failed(&error))?;
        Changes::parse(&raw).map(Some).map_err(|why| failed(&why))
    }

    /// Writes a new file and renames it over the old one, so that one whole file is there whatever happens.
    /// Without changes it removes the file.
    pub fn save(&self, changes: &Changes) -> io::Result<()> {
        if changes.ports.is_empty() {
            return self.remove(FILE);
        }
        self.remove(NEW)?;
        // O_EXCL follows no link.
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = fs::File::from(openat(&self.dir, NEW, flags, Mode::from_raw_mode(0o600))?);
        file.write_all(&changes.bytes())?;
        file.sync_all()?;
        Ok(renameat(&self.dir, NEW, &self.dir, FILE)?)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match unlinkat(&self.dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::super::state::Changed;
    use super::*;

    fn some() -> Changes {
        let mut changes = Changes::new("b");
        changes.ports.push(Changed {
            device: "mlx5_0".to_owned(),
            index: 1,
            node_guid: None,
            inode: None,
            port: 1,
            bind_optional: false,
            optional: None,
        });
        changes
    }

    #[test]
    fn what_is_saved_is_found_by_the_next_and_by_nobody_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("run");
        assert_eq!(Locked::at(&at, false).unwrap_err(), Denied::Nothing);
        let locked = Locked::at(&at, true).unwrap();
        assert_eq!(locked.load(), Ok(None));
        locked.save(&some()).unwrap();
        assert_eq!(Locked::at(&at, true).unwrap_err(), Denied::Busy);
        assert_eq!(Locked::at(&at, false).unwrap_err(), Denied::Busy);
        drop(locked);
        let next = Locked::at(&at, false).unwrap();
        assert_eq!(next.load(), Ok(Some(some())));
        next.save(&Changes::new("b")).unwrap();
        drop(next);
        assert_eq!(Locked::at(&at, false).unwrap_err(), Denied::Nothing);
    }

    #[test]
    fn what_others_could_have_written_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("run");
        let locked = Locked::at(&at, true).unwrap();
        locked.save(&some()).unwrap();
        let file = at.join(FILE);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(locked.load().is_err());
        fs::rename(&file, at.join("x")).unwrap();
        symlink(at.join("x"), &file).unwrap();
        assert!(locked.load().is_err());
        drop(locked);
        fs::set_permissions(&at, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(Locked::at(&at, true), Err(Denied::Unusable(_))));
    }
}
