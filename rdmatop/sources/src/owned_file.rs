//! Files in which root keeps what it has changed, in /run/rdmatop. Like the changes, they do not outlive the
//! boot.
//!
//! Root acts on such a file, so only the owner's file in the owner's directory counts: no link is followed,
//! and what others could have written is not read.
#![expect(clippy::disallowed_methods, reason = "nobody but root can write on the way")]
use std::io::{self, Read as _, Write as _};
use std::{fs::File, os::fd::OwnedFd, os::unix::fs::MetadataExt as _, path::Path};

use rustix::fs::{AtFlags, Mode, OFlags, fchmod, fstat, fsync, mkdir, open, openat, renameat, unlinkat};
use rustix::io::Errno;

/// The bits of those who can write beside the owner.
const WRITABLE: u32 = 0o022;

/// Why a directory or a file is not used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The kernel refused a call.
    #[error("{0}")]
    Kernel(#[from] Errno),
    /// It belongs to another user.
    #[error("belongs to uid {0}")]
    Owner(u32),
    /// It is not what its owner alone can have made.
    #[error("{0}")]
    Unfit(&'static str),
}

/// A directory whose files only its owner can have made. It is opened once, so that no later path leads
/// elsewhere.
#[derive(Debug)]
pub struct Directory {
    /// The open directory.
    pub fd: OwnedFd,
    owner: u32,
}

fn is_owned(owner: u32, uid: u32, mode: u32) -> Result<(), Refusal> {
    if uid != owner {
        return Err(Refusal::Owner(uid));
    }
    if mode & WRITABLE != 0 {
        return Err(Refusal::Unfit("can be written by others"));
    }
    Ok(())
}

impl Directory {
    /// Opens a directory that only `owner` can write.
    pub fn open(path: &Path, owner: u32) -> Result<Self, Refusal> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = open(path, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::LOOP | Errno::NOTDIR => Refusal::Unfit("is no directory"),
            errno => Refusal::Kernel(errno),
        })?;
        let stat = fstat(&fd)?;
        is_owned(owner, stat.st_uid, stat.st_mode)?;
        Ok(Self { fd, owner })
    }

    /// Opens a directory as [`Self::open`] does, and makes it if it is missing. Everybody can read a new one,
    /// whatever the umask is: `lab status` is for all users.
    pub fn make(path: &Path, owner: u32) -> Result<Self, Refusal> {
        let mode = Mode::from_raw_mode(0o755);
        let is_new = match mkdir(path, mode) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(errno.into()),
        };
        let dir = Self::open(path, owner)?;
        if is_new {
            fchmod(&dir.fd, mode)?;
        }
        Ok(dir)
    }

    /// Opens a file to lock, and makes it if it is missing. Only its owner can open it: whoever can open a
    /// file can also lock it (flock(2)). `flags`: whether programs that are started inherit it.
    pub fn open_lock(&self, name: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        openat(&self.fd, name, flags, Mode::from_raw_mode(0o600))
    }

    /// What is in a file of at most `largest` bytes; `None` if there is none.
    pub fn read(&self, name: &str, largest: u64) -> Result<Option<Vec<u8>>, Refusal> {
        // Without O_NONBLOCK, opening a FIFO would wait for a writer.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.fd, name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(Refusal::Unfit("is a symbolic link")),
            Err(errno) => return Err(Refusal::Kernel(errno)),
        };
        let errno = |error: io::Error| Refusal::Kernel(Errno::from_io_error(&error).unwrap_or(Errno::IO));
        let meta = file.metadata().map_err(errno)?;
        if !meta.is_file() {
            return Err(Refusal::Unfit("is no regular file"));
        }
        is_owned(self.owner, meta.uid(), meta.mode())?;
        let mut raw = Vec::new();
        file.take(largest + 1).read_to_end(&mut raw).map_err(errno)?;
        if raw.len() as u64 > largest {
            return Err(Refusal::Unfit("is larger than rdmatop makes it"));
        }
        Ok(Some(raw))
    }

    /// Writes a new file and renames it over the old one, so that one whole file is there whatever happens.
    /// When this returns it is there for good.
    pub fn write(&self, name: &str, bytes: &[u8], mode: u32) -> io::Result<()> {
        let new = unfinished(name);
        self.remove(&new)?;
        // O_EXCL follows no link.
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(openat(&self.fd, &new, flags, Mode::from_raw_mode(mode))?);
        // The umask may have taken bits of it.
        fchmod(&file, Mode::from_raw_mode(mode))?;
        file.write_all(bytes)?;
        file.sync_all()?;
        renameat(&self.fd, &new, &self.fd, name)?;
        Ok(fsync(&self.fd)?)
    }

    /// Removes a file, if there is one.
    pub fn remove(&self, name: &str) -> Result<(), Errno> {
        match unlinkat(&self.fd, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            done => done,
        }
    }
}

/// Whether what a file says of a thing is true of one that is there. A value that is not known on one side
/// speaks neither for nor against.
pub fn agree<T: PartialEq>(listed: Option<T>, found: Option<T>) -> bool {
    listed.zip(found).is_none_or(|(listed, found)| listed == found)
}

/// The name of a file while it is written.
pub fn unfinished(name: &str) -> String {
    format!("{name}.new")
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use rustix::fs::{CWD, FileType, mknodat};

    use super::*;

    const LARGEST: u64 = 4;

    fn uid() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    #[test]
    fn a_file_counts_only_if_its_owner_alone_can_have_made_it() {
        let at = tempfile::tempdir().unwrap();
        let mut dir = Directory::open(at.path(), uid()).unwrap();
        assert_eq!(dir.read("f", LARGEST), Ok(None));
        let file = at.path().join("f");
        let why = |dir: &Directory| dir.read("f", LARGEST).unwrap_err().to_string();

        dir.write("f", b"1234", 0o644).unwrap();
        assert_eq!(dir.read("f", LARGEST), Ok(Some(b"1234".to_vec())));
        dir.write("f", b"12345", 0o644).unwrap();
        assert_eq!(why(&dir), "is larger than rdmatop makes it");
        dir.write("f", b"1234", 0o644).unwrap();
        for mode in [0o664, 0o646] {
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            assert_eq!(why(&dir), "can be written by others");
        }
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        dir.owner = uid() + 1;
        assert_eq!(why(&dir), format!("belongs to uid {}", uid()));
        dir.owner = uid();

        fs::rename(&file, at.path().join("to")).unwrap();
        symlink("to", &file).unwrap();
        assert_eq!(why(&dir), "is a symbolic link");
        dir.remove("f").unwrap();
        mknodat(CWD, &file, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        assert_eq!(why(&dir), "is no regular file");
        dir.remove("f").unwrap();
        fs::create_dir(&file).unwrap();
        assert_eq!(why(&dir), "is no regular file");
    }

    #[test]
    fn everybody_can_read_a_directory_that_is_made_under_any_umask() {
        let at = tempfile::tempdir().unwrap();
        let (new, old) = (at.path().join("new"), at.path().join("old"));
        fs::create_dir(&old).unwrap();
        fs::set_permissions(&old, Permissions::from_mode(0o700)).unwrap();
        // A process has one umask, and other tests make files meanwhile.
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let before = rustix::process::umask(Mode::from_raw_mode(0o077));
        let made = Directory::make(&new, uid());
        rustix::process::umask(before);
        assert_eq!((made.is_ok(), mode(&new)), (true, 0o755));
        // One that is there stays as its owner made it.
        Directory::make(&old, uid()).unwrap();
        assert_eq!(mode(&old), 0o700);
    }

    #[test]
    fn a_directory_counts_only_if_its_owner_alone_can_write_it() {
        let at = tempfile::tempdir().unwrap();
        let (dir, link) = (at.path().join("d"), at.path().join("l"));
        fs::create_dir(&dir).unwrap();
        symlink("d", &link).unwrap();
        let why = |path: &Path, owner| Directory::open(path, owner).unwrap_err().to_string();
        assert_eq!(why(&link, uid()), "is no directory");
        assert_eq!(why(&dir, uid() + 1), format!("belongs to uid {}", uid()));
        fs::set_permissions(&dir, Permissions::from_mode(0o775)).unwrap();
        assert_eq!(why(&dir, uid()), "can be written by others");
    }
}
