//! The file of what `lab up` made: /run/rdmatop/lab.json. Like the devices, it does not outlive the boot.
//!
//! A lock on a file beside it lets one `rdmatop lab` work at a time.
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io::Read, os::fd::OwnedFd, os::unix::fs::MetadataExt, thread};

use rustix::fs::{FlockOperation, OFlags, flock, fstat};
use rustix::io::Errno;

use super::state::Made;
use super::{LabError, cannot};
use rdmatop_sources::owned_file::{self, Directory, Refusal};

const FILE: &str = "lab.json";
const LOCK: &str = "lab.lock";
/// A list of 64 devices has some 30 KiB.
const LARGEST: u64 = 1 << 20;

/// Where the file is, and which user has to own it.
#[derive(Debug)]
pub(super) struct Store {
    dir: PathBuf,
    owner: u32,
    /// How long to wait for another `rdmatop lab`.
    patience: Duration,
}

/// The right to change the file and what it lists, until this is dropped.
#[derive(Debug)]
pub(super) struct Locked<'a> {
    store: &'a Store,
    dir: Directory,
    _lock: OwnedFd,
}

impl Store {
    pub(super) fn new(dir: &Path, owner: u32, patience: Duration) -> Self {
        Self {
            dir: dir.into(),
            owner,
            patience,
        }
    }

    fn path(&self) -> PathBuf {
        self.dir.join(FILE)
    }

    fn failed(&self, action: &str, reason: &dyn ToString) -> LabError {
        cannot(format!("{action} {}", self.path().display()), reason)
    }

    fn broken(&self, why: String) -> LabError {
        LabError::Broken(self.path().display().to_string(), why)
    }

    fn refused(&self, action: &str, refusal: &Refusal) -> LabError {
        match refusal {
            Refusal::Kernel(errno) => self.failed(action, errno),
            refusal => LabError::Foreign(self.dir.display().to_string(), refusal.to_string()),
        }
    }

    /// Waits until no other `rdmatop lab` is at work.
    pub(super) fn lock(&self) -> Result<Locked<'_>, LabError> {
        let begin = Instant::now();
        loop {
            let dir = match Directory::make(&self.dir, self.owner) {
                // Root may have removed it between the two calls.
                Err(Refusal::Kernel(Errno::NOENT)) if begin.elapsed() < self.patience => {
                    thread::sleep(Duration::from_millis(50));
                    continue;
                }
                made => made.map_err(|refusal| self.refused("write", &refusal))?,
            };
            // Without `O_CLOEXEC`: modprobe inherits the file, and the lock with it. When `lab up` is killed
            // meanwhile, the next `rdmatop lab` waits until that module is loaded or not. The programs of
            // `lab run` inherit it too: when that is killed, the next one waits until they have ended.
            let lock = dir.open_lock(LOCK, OFlags::empty());
            let lock = lock.map_err(|errno| self.failed("lock", &errno))?;
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                // Root may have removed the file or put another directory in place of this one meanwhile.
                Ok(()) if self.is_current(&dir) && fstat(&lock).is_ok_and(|stat| stat.st_nlink > 0) => {
                    // Only the holder of the lock writes it, so a killed `rdmatop lab` left it. If it cannot
                    // be removed, `save` reports that.
                    let _ = dir.remove(&owned_file::unfinished(FILE));
                    return Ok(Locked {
                        store: self,
                        dir,
                        _lock: lock,
                    });
                }
                Ok(()) => {}
                Err(Errno::WOULDBLOCK | Errno::INTR) if begin.elapsed() < self.patience => {
                    thread::sleep(Duration::from_millis(50));
                }
                Err(Errno::WOULDBLOCK) => return Err(LabError::Busy(holder(&lock))),
                Err(errno) => return Err(self.failed("lock", &errno)),
            }
        }
    }

    fn is_current(&self, dir: &Directory) -> bool {
        let now = fs::symlink_metadata(&self.dir);
        now.is_ok_and(|now| {
            fstat(&dir.fd).is_ok_and(|dir| (dir.st_dev, dir.st_ino) == (now.dev(), now.ino()))
        })
    }

    /// What was made, without a lock: the file is always whole.
    pub(super) fn read(&self) -> Result<Option<Made>, LabError> {
        match Directory::open(&self.dir, self.owner) {
            Ok(dir) => self.load(&dir),
            Err(Refusal::Kernel(Errno::NOENT)) => Ok(None),
            Err(refusal) => Err(self.refused("read", &refusal)),
        }
    }

    /// None if there is no file. One that does not parse is an error: to take it for nothing would orphan
    /// what it lists.
    fn load(&self, dir: &Directory) -> Result<Option<Made>, LabError> {
        let raw = dir.read(FILE, LARGEST).map_err(|refusal| match refusal {
            Refusal::Kernel(errno) => self.failed("read", &errno),
            refusal => self.broken(format!("it {refusal}")),
        })?;
        let made = raw.map(|raw| Made::parse(&raw)).transpose();
        made.map_err(|why| self.broken(why))
    }
}

impl Locked<'_> {
    /// Reads the list as [`Store::read`] does.
    pub(super) fn load(&self) -> Result<Option<Made>, LabError> {
        self.store.load(&self.dir)
    }

    /// Writes the list. If nothing was made, it removes the file.
    pub(super) fn save(&self, made: &Made) -> Result<(), LabError> {
        if made.is_nothing() {
            let removed = self.dir.remove(FILE);
            return removed.map_err(|errno| self.store.failed("remove", &errno));
        }
        let written = self.dir.write(FILE, &made.bytes(), 0o644);
        written.map_err(|error| self.store.failed("write", &error))
    }
}

/// Who holds the lock on a file, by /proc/locks (proc_locks(5)).
fn holder(lock: &OwnedFd) -> String {
    let inode = fstat(lock).map(|stat| stat.st_ino).unwrap_or_default();
    // Between two reads the kernel finds its place in the list by counting, and misses a lock when one before
    // it has gone. With this room each read returns a page, some 60 locks, and not the first 32 bytes.
    let mut locks = String::with_capacity(16 << 10);
    let read = fs::File::open("/proc/locks").and_then(|mut file| file.read_to_string(&mut locks));
    if let Err(error) = read {
        return format!("another process, /proc/locks: {error}");
    }
    match holder_in(&locks, inode) {
        Some(pid) => format!("process {pid}"),
        None => "another process".into(),
    }
}

fn holder_in(locks: &str, inode: u64) -> Option<u32> {
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        // In a line of a process that waits, an arrow comes first: such a line does not match.
        let (kind, _, _, pid, place) = (
            words.next()?,
            words.next()?,
            words.next()?,
            words.next()?,
            words.next()?,
        );
        let found = kind == "FLOCK" && place.rsplit(':').next()?.parse() == Ok(inode);
        found.then(|| pid.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// Waits for its lock: a process that another test starts inherits it for a moment.
    fn store(dir: &Path) -> Store {
        with_patience(dir, Duration::from_mins(1))
    }

    fn with_patience(dir: &Path, patience: Duration) -> Store {
        Store::new(&dir.join("lab"), rustix::process::geteuid().as_raw(), patience)
    }

    /// With a module, so that there is something to keep.
    fn something() -> Made {
        let mut made = Made::new("b");
        made.module = Some(super::super::state::MadeModule { inode: Some(7) });
        made
    }

    #[test]
    fn what_is_saved_is_loaded_and_nothing_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path());
        assert_eq!(store.read().unwrap(), None);
        let locked = store.lock().unwrap();
        locked.save(&something()).unwrap();
        assert_eq!(store.read().unwrap(), Some(something()));
        locked.save(&Made::new("b")).unwrap();
        let left = fs::read_dir(&store.dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name());
        assert_eq!(left.collect::<Vec<_>>(), [LOCK]);
    }

    #[test]
    fn a_second_lock_names_who_holds_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (store(dir.path()), store(dir.path()));
        let locked = first.lock().unwrap();
        let error = with_patience(dir.path(), Duration::ZERO).lock().unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains(&format!("process {} ", std::process::id())),
            "{error}"
        );
        drop(locked);
        second.lock().unwrap();
    }

    /// Everybody can open the directory, and with it lock it: that is not the lock.
    #[test]
    fn what_others_can_lock_keeps_nobody_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let store = with_patience(dir.path(), Duration::ZERO);
        drop(store.lock().unwrap());
        for entry in [store.dir.clone(), store.dir.join(LOCK)] {
            let mode = fs::metadata(&entry).unwrap().mode();
            let others = fs::File::open(&entry).unwrap();
            if mode & 0o044 == 0 {
                continue;
            }
            flock(&others, FlockOperation::NonBlockingLockExclusive).unwrap();
            store.lock().unwrap();
        }
        assert_eq!(fs::metadata(store.dir.join(LOCK)).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn links_fifos_strangers_and_what_others_can_write_are_refused_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path());
        store.lock().unwrap().save(&something()).unwrap();
        let path = store.path();
        let why = |wanted: &str| {
            let error = store.read().unwrap_err().to_string();
            assert!(
                error.contains(wanted) && error.contains(path.to_str().unwrap()),
                "{error}"
            );
            assert!(!error.contains('\n'), "{error}");
        };
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        why("it can be written by others");
        fs::rename(&path, dir.path().join("elsewhere")).unwrap();
        symlink(dir.path().join("elsewhere"), &path).unwrap();
        why("a symbolic link");
        // Saving replaces the link and does not follow it.
        store.lock().unwrap().save(&something()).unwrap();
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        fs::remove_file(&path).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success(), "mkfifo");
        why("no regular file");
        fs::remove_file(&path).unwrap();
        fs::write(&path, vec![b' '; usize::try_from(LARGEST).unwrap() + 1]).unwrap();
        why("larger than rdmatop makes it");
        for (text, wanted) in [
            ("{", "EOF"),
            ("null", "invalid type"),
            ("{\"\\u001b[2J\":1}", "\\x1b[2J"),
            (
                r#"{"version":1,"boot":"","module":null,"interfaces":[],"devices":[]}"#,
                "version 1",
            ),
        ] {
            fs::write(&path, text).unwrap();
            why(wanted);
        }
    }

    #[test]
    fn the_next_lock_removes_a_new_file_that_a_killed_writer_left() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path());
        store.lock().unwrap().save(&something()).unwrap();
        let left = store.dir.join(owned_file::unfinished(FILE));
        fs::write(&left, "{").unwrap();
        drop(store.lock().unwrap());
        assert!(!left.exists());
        assert_eq!(store.read().unwrap(), Some(something()));
    }

    #[test]
    fn a_link_that_waits_at_the_new_file_is_not_written_through() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path());
        let victim = dir.path().join("victim");
        fs::write(&victim, "kept").unwrap();
        let locked = store.lock().unwrap();
        symlink(&victim, store.dir.join(owned_file::unfinished(FILE))).unwrap();
        locked.save(&something()).unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "kept");
        assert_eq!(store.read().unwrap(), Some(something()));
    }

    #[test]
    fn a_directory_that_others_can_write_or_that_is_a_link_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path());
        fs::create_dir(&store.dir).unwrap();
        fs::set_permissions(&store.dir, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(
            store
                .lock()
                .unwrap_err()
                .to_string()
                .contains("can be written by others")
        );
        fs::remove_dir(&store.dir).unwrap();
        symlink("/tmp", &store.dir).unwrap();
        assert!(store.lock().unwrap_err().to_string().contains("is no directory"));
    }

    #[test]
    fn a_holder_is_found_among_other_locks() {
        let locks = "1: POSIX  ADVISORY  WRITE 12 00:19:77 0 EOF\n2: FLOCK  ADVISORY  WRITE 231 00:19:77 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 232 00:19:77 0 EOF\n3: FLOCK  ADVISORY  WRITE 9 00:19:78 0 EOF\n";
        assert_eq!(holder_in(locks, 77), Some(231));
        assert_eq!(holder_in(locks, 79), None);
        assert_eq!(holder_in("junk\n", 0), None);
    }
}
