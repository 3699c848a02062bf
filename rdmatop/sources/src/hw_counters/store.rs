//! The file of changes: /run/rdmatop/hw-counters.json. A second file is locked as long as a rdmatop has
//! something changed.

use std::path::{Path, PathBuf};
use std::{io, os::fd::OwnedFd};

use rustix::fs::{AtFlags, FlockOperation, OFlags, flock, statat};
use rustix::io::Errno;

use super::state::Changes;
use crate::owned_file::{Directory, Refusal};

/// Where root keeps what it has changed.
pub const DIR: &str = "/run/rdmatop";
const FILE: &str = "hw-counters.json";
const LOCK: &str = "hw-counters.lock";
/// Thousands of ports have less.
const LARGEST: u64 = 1 << 22;

/// The right to change the file and what it lists, until this is dropped or the process ends.
#[derive(Debug)]
pub struct Locked {
    dir: Directory,
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

fn failed(path: &Path, refusal: &Refusal) -> Denied {
    match refusal {
        Refusal::Kernel(Errno::NOENT) => Denied::Nothing,
        Refusal::Kernel(Errno::ACCESS | Errno::PERM) => Denied::NotPermitted,
        Refusal::Owner(_) if !rustix::process::geteuid().is_root() => Denied::NotPermitted,
        refusal => Denied::Unusable(format!("{}: {refusal}", path.display())),
    }
}

impl Locked {
    /// Takes the right in the directory `path`. Unless it is to `make` what is missing, to change something,
    /// it makes neither the directory nor the file of changes, and is denied without these.
    pub fn at(path: &Path, make: bool) -> Result<Self, Denied> {
        let open = if make { Directory::make } else { Directory::open };
        let owner = rustix::process::geteuid().as_raw();
        let dir = open(path, owner).map_err(|refusal| failed(path, &refusal))?;
        if !make && statat(&dir.fd, FILE, AtFlags::SYMLINK_NOFOLLOW).is_err_and(|errno| errno == Errno::NOENT)
        {
            return Err(Denied::Nothing);
        }
        let path = path.join(FILE);
        let lock = dir.open_lock(LOCK, OFlags::CLOEXEC);
        let lock = lock.map_err(|errno| failed(&path.with_file_name(LOCK), &Refusal::Kernel(errno)))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self {
                dir,
                path,
                _lock: lock,
            }),
            Err(Errno::WOULDBLOCK) => Err(Denied::Busy),
            Err(errno) => Err(Denied::Unusable(format!("{}: {errno}", path.display()))),
        }
    }

    /// What is in the file; `None` where there is none.
    pub fn load(&self) -> Result<Option<Changes>, String> {
        let raw = self
            .dir
            .read(FILE, LARGEST)
            .map_err(|refusal| refusal.to_string());
        let changes = raw.and_then(|raw| raw.map(|raw| Changes::parse(&raw)).transpose());
        changes.map_err(|why| format!("{}: {why}", self.path.display()))
    }

    /// Writes the file. Without changes it removes the file.
    pub fn save(&self, changes: &Changes) -> io::Result<()> {
        if changes.ports.is_empty() {
            return Ok(self.dir.remove(FILE)?);
        }
        self.dir.write(FILE, &changes.bytes(), 0o600)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
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
        // Such a file is no reason to say that there is none.
        for make in [false, true] {
            let why = Locked::at(&at, make).unwrap().load().unwrap_err();
            assert_eq!(why, format!("{}: is a symbolic link", file.display()));
        }
        fs::set_permissions(&at, fs::Permissions::from_mode(0o777)).unwrap();
        for make in [false, true] {
            let why = format!("{}: can be written by others", at.display());
            assert_eq!(Locked::at(&at, make).unwrap_err(), Denied::Unusable(why));
        }
    }
}
