//! Files whose paths another user controls: below the root directory of a process, behind its mappings, and
//! logs that a job writes. Nothing else opens such paths (`clippy.toml`, `tests/layers.rs`).
//!
//! Opening has effects: a watchdog device starts to count, a FIFO makes the opener wait, an automount point
//! mounts, a FUSE file asks its daemon. A link decides what is opened, and rdmatop may be root. So the rules
//! are:
//!
//! * A path is walked name by name, with descriptors that open nothing (`O_PATH`). Links are followed inside
//!   the root directory of the process, and neither they nor `..` lead out of it. Of a magic link
//!   (/proc/PID/fd) only the text is followed.
//! * No other mount is entered. Directories that the kernel itself fills (/dev, /sys) are mounts in each
//!   container: for these alone, mounts of the types in `KERNELS` are entered. A process whose root directory
//!   is rdmatop's own has the machine's mounts, which only root can change: they are entered.
//! * Content is read from regular files alone, up to a limit, without waiting (`O_NONBLOCK`).
//! * Content is read, and names are listed, only if the user of the process could do so: the owner's, the
//!   group's or the others' bits of the file or directory allow that user to read, and those of each
//!   directory on the way allow a search. ACLs and capabilities of the process are not considered.
//!
//! A log is named by who runs rdmatop, and may lie in a directory of the user whose job wrote it. Its path is
//! walked as any other, on all mounts, but:
//!
//! * No magic link is followed, which would open what another process has open, a pipe included. Only where
//!   the path itself names a descriptor of rdmatop's own is that one opened (`/dev/fd/63`, as a shell makes
//!   of `<(zcat x)`).
//! * A link is followed if it is root's, or of the user who runs rdmatop, or if the file that it leads to
//!   belongs to the owner of the link.
//! * Files that the kernel makes are no logs: reading one may take its content from others (`trace_pipe`).
//!
//! A root directory may be a FUSE file system of the user. Then each of these calls may hang in the kernel:
//! the caller has a deadline and leaves the thread behind.
#![expect(clippy::disallowed_methods, reason = "it opens what is another user's")]

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read as _},
    os::{
        fd::{AsFd, AsRawFd as _, OwnedFd},
        unix::ffi::{OsStrExt as _, OsStringExt as _},
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{
        Access, AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags, access, fstatfs,
        lstat, open, openat, openat2, readlinkat, statx,
    },
    io::Errno,
    process::getuid,
};

use super::{
    proc::Status,
    root::{self, Root, parse_u64},
};
use rdmatop_base::{order::Ordered as _, text};

/// Types of mounts whose files the kernel alone serves, without a daemon.
const KERNELS: [&[u8]; 4] = [b"devtmpfs", b"tmpfs", b"sysfs", b"ramfs"];
/// The largest number of names and links on the way to a file.
const STEPS: usize = 256;
/// Types of file systems whose files the kernel makes.
const MADE: [i64; 4] = [
    libc::PROC_SUPER_MAGIC,
    libc::SYSFS_MAGIC,
    libc::TRACEFS_MAGIC,
    libc::DEBUGFS_MAGIC,
];
/// The largest number of links on the path of a log, as of the kernel's own (`MAXSYMLINKS`).
const LINKS: usize = 40;
/// The lines of /proc/PID/fdinfo that are wanted are the first.
const SMALL: usize = 4096;
/// The largest number of names in a directory.
const NAMES: usize = 4096;
/// A mount table is read up to here; the kernel allows a hundred thousand mounts.
pub(crate) const MOUNTS: usize = 16 << 20;

/// Why a file was not read.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The kernel refuses.
    #[error(transparent)]
    Kernel(#[from] io::Error),
    /// The path leads to something else than a regular file.
    #[error("it is {0}")]
    Kind(&'static str),
    /// The file lies on another mount than the root directory.
    #[error("it lies on another mount")]
    OtherMount,
    /// The file lies on a file system that asks a program, or another machine.
    #[error("it lies on a file system that may keep rdmatop waiting")]
    Waits,
    /// The mode of the file, or of a directory above it, forbids it.
    #[error("the user of the process may not read it")]
    NotTheirs,
    /// The file is larger than the limit.
    #[error("it is larger than {0}")]
    TooLarge(String),
    /// A link of a user leads to a file of another one.
    #[error("a link of user {link} leads there, to a file of user {file}: name that file itself")]
    OtherOwner {
        /// The number of the user whose link it is.
        link: u32,
        /// The number of the user whose file it is.
        file: u32,
    },
    /// The path leads through a link of /proc to what a process has open (a magic link).
    #[error("a link of /proc leads there, to what a process has open: name the file itself")]
    Magic,
    /// Too many names and links.
    #[error("the links on its path do not end")]
    Endless,
}

impl From<Errno> for Refusal {
    fn from(error: Errno) -> Self {
        Self::Kernel(error.into())
    }
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Kernel(error) => error,
            other => Self::new(io::ErrorKind::InvalidInput, other.to_string()),
        }
    }
}

/// What was found at a path, by an `O_PATH` descriptor: nothing has been opened.
#[derive(Debug)]
pub struct Found {
    fd: OwnedFd,
    facts: Statx,
}

impl Found {
    fn new(fd: OwnedFd) -> Result<Self, Refusal> {
        // Cached attributes are enough: with STATX_DONT_SYNC the kernel does not ask a FUSE daemon.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let facts = statx(&fd, "", flags, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID)?;
        Ok(Self { fd, facts })
    }

    /// Finds what is at `path`, whose last name may be a magic link.
    fn at(path: &Path) -> Result<Self, Refusal> {
        Self::new(open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// Finds a log. Of its path, the kernel follows no link: each is looked at first.
    fn log(path: &Path) -> Result<Self, Refusal> {
        if is_descriptor(path) {
            return Self::at(path);
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let inside = ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
        let mut path: PathBuf = path.components().collect();
        let mut owners = Vec::new();
        for _ in 0..LINKS {
            // The first link, or else what is at the end of the path.
            let prefixes = path.ancestors().filter(|at| !at.as_os_str().is_empty());
            let mut prefixes: Vec<&Path> = prefixes.collect();
            let (found, at) = loop {
                let at = prefixes.pop().ok_or(Errno::NOENT)?;
                let found = Self::new(openat2(CWD, at, flags, Mode::empty(), inside)?)?;
                if prefixes.is_empty() || found.kind() == FileType::Symlink {
                    break (found, at);
                }
            };
            if found.kind() != FileType::Symlink {
                let file = found.facts.stx_uid;
                let trusted = [0, getuid().as_raw(), file];
                return match owners.into_iter().find(|owner| !trusted.contains(owner)) {
                    Some(link) => Err(Refusal::OtherOwner { link, file }),
                    None => Ok(found),
                };
            }
            if found.is_made() {
                return Err(Refusal::Magic);
            }
            owners.push(found.facts.stx_uid);
            let target = OsString::from_vec(readlinkat(&found.fd, "", Vec::new())?.into_bytes());
            let rest = path.strip_prefix(at).unwrap_or(Path::new(""));
            let next = at.parent().unwrap_or(at).join(target);
            path = next.components().chain(rest.components()).collect();
        }
        Err(Refusal::Endless)
    }

    /// Whether it lies on a file system whose files the kernel makes.
    fn is_made(&self) -> bool {
        // These always answer. The type of one that does not is another.
        fstatfs(&self.fd).is_ok_and(|facts| MADE.contains(&facts.f_type))
    }

    fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.facts.stx_mode.into())
    }

    fn must_be(&self, wanted: &[FileType]) -> Result<(), Refusal> {
        let kind = self.kind();
        if wanted.contains(&kind) {
            return Ok(());
        }
        Err(Refusal::Kind(match kind {
            FileType::RegularFile => "a file, no directory",
            FileType::Directory => "a directory, no file",
            FileType::Symlink => "a link",
            FileType::Fifo => "a FIFO, no file",
            FileType::Socket => "a socket, no file",
            FileType::CharacterDevice | FileType::BlockDevice => "a device, no file",
            FileType::Unknown => "no file",
        }))
    }

    fn is_same(&self, other: &Self) -> bool {
        let key = |facts: &Statx| {
            let device = (facts.stx_dev_major, facts.stx_dev_minor);
            (facts.stx_mnt_id, device, facts.stx_ino)
        };
        key(&self.facts) == key(&other.facts)
    }

    fn link(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.fd.as_raw_fd()))
    }

    /// Opens exactly this file for reading. The caller has checked its kind.
    fn reopen(&self) -> Result<File, Refusal> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        Ok(open(self.link(), flags, Mode::empty())?.into())
    }

    /// The file's permission bits.
    pub fn mode(&self) -> u32 {
        self.facts.stx_mode.into()
    }

    /// Whether rdmatop may open it for reading and writing.
    pub fn may_open(&self) -> bool {
        access(self.link(), Access::READ_OK | Access::WRITE_OK).is_ok()
    }
}

/// The user of a process, as the kernel compares it with the mode of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct User {
    /// `None`: unknown. Then only files that everybody may read are read.
    uid: Option<u32>,
    groups: Vec<u32>,
}

impl User {
    const READ: u16 = 4;
    const SEARCH: u16 = 1;

    fn may(&self, wanted: u16, file: &Found) -> bool {
        let facts = &file.facts;
        let shift = if self.uid == Some(facts.stx_uid) {
            6
        } else if self.groups.contains(&facts.stx_gid) {
            3
        } else {
            0
        };
        (facts.stx_mode >> shift) & wanted == wanted
    }
}

/// All below the root directory of a process.
#[derive(Debug)]
pub struct Tree {
    top: Found,
    user: User,
    /// The tree's mount table.
    mounts: PathBuf,
    /// The tree's root directory is rdmatop's own.
    own: bool,
    kernel: Root,
}

impl Tree {
    /// The tree of a process, by its directory in /proc.
    pub fn of(root: &Root, dir: &Path) -> Result<Self, Refusal> {
        let top = Found::at(&dir.join("root"))?;
        top.must_be(&[FileType::Directory])?;
        let own = root.is_live() && Found::at(Path::new("/"))?.is_same(&top);
        let status = Status::read(root, dir).unwrap_or_default();
        Ok(Self {
            top,
            user: User {
                uid: status.uids.get(3).copied(),
                groups: status.groups,
            },
            mounts: dir.join("mountinfo"),
            own,
            kernel: root.clone(),
        })
    }

    /// The content of a file that the user of the process may read, if it has no more than `most` bytes.
    pub fn content(&self, path: &str, most: u64) -> Result<Vec<u8>, Refusal> {
        let file = self.walk(path, false)?;
        file.must_be(&[FileType::RegularFile])?;
        if !self.user.may(User::READ, &file) {
            return Err(Refusal::NotTheirs);
        }
        let mut out = Vec::new();
        file.reopen()?
            .take(most.saturating_add(1))
            .read_to_end(&mut out)?;
        if u64::try_from(out.len()).is_ok_and(|length| length > most) {
            return Err(Refusal::TooLarge(text::bytes(most)));
        }
        Ok(out)
    }

    /// The names in a directory, sorted. The directory may lie on a mount that the kernel fills.
    pub fn names(&self, path: &str) -> Result<Vec<OsString>, Refusal> {
        let dir = self.walk(path, true)?;
        dir.must_be(&[FileType::Directory])?;
        if !self.user.may(User::READ, &dir) {
            return Err(Refusal::NotTheirs);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut names = Vec::new();
        for entry in Dir::new(openat(&dir.fd, ".", flags, Mode::empty())?)? {
            let name = OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned();
            if name == "." || name == ".." {
                continue;
            }
            if names.len() == NAMES {
                return Err(Refusal::TooLarge(format!("{NAMES} names")));
            }
            names.push(name);
        }
        names.order_by(Ord::cmp);
        Ok(names)
    }

    /// What is at a path, unopened. It may lie on a mount that the kernel fills.
    pub fn find(&self, path: impl AsRef<Path>) -> Result<Found, Refusal> {
        self.walk(path, true)
    }

    /// `enters`: also mounts whose files the kernel fills.
    fn walk(&self, path: impl AsRef<Path>, enters: bool) -> Result<Found, Refusal> {
        // The names still to walk, the next one at the end.
        let mut left: Vec<OsString> = names(path.as_ref().as_os_str());
        let mut below: Vec<Found> = Vec::new();
        for _ in 0..STEPS {
            let Some(name) = left.pop() else {
                return below.pop().ok_or(Refusal::Kind("a directory, no file"));
            };
            if name == ".." {
                below.pop();
                continue;
            }
            let here = below.last().unwrap_or(&self.top);
            if here.kind() == FileType::Directory && !self.user.may(User::SEARCH, here) {
                return Err(Refusal::NotTheirs);
            }
            let found = self.step(here, &name, enters)?;
            if found.kind() != FileType::Symlink {
                below.push(found);
                continue;
            }
            let target = OsString::from_vec(readlinkat(&found.fd, "", Vec::new())?.into_bytes());
            if Path::new(&target).is_absolute() {
                below.clear();
            }
            left.extend(names(&target));
        }
        Err(Refusal::Endless)
    }

    /// Walks from `here` to `name` in it.
    fn step(&self, here: &Found, name: &OsStr, enters: bool) -> Result<Found, Refusal> {
        let next = |also| {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let inside = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
            openat2(&here.fd, name, flags, Mode::empty(), inside | also)
        };
        match next(ResolveFlags::NO_XDEV) {
            Ok(fd) => Found::new(fd),
            Err(Errno::XDEV) if self.own => Found::new(next(ResolveFlags::empty())?),
            Err(Errno::XDEV) if enters => {
                let found = Found::new(next(ResolveFlags::empty())?)?;
                let table = self.kernel.bytes(&self.mounts, MOUNTS).unwrap_or_default();
                if kind_of_mount(&table, found.facts.stx_mnt_id).is_some_and(|kind| KERNELS.contains(&kind)) {
                    Ok(found)
                } else {
                    Err(Refusal::OtherMount)
                }
            }
            Err(Errno::XDEV) => Err(Refusal::OtherMount),
            Err(error) => Err(error.into()),
        }
    }
}

/// The names of a path, the last one first.
fn names(path: &OsStr) -> Vec<OsString> {
    let parts = path.as_bytes().rsplit(|byte| *byte == b'/');
    parts
        .filter(|part| !part.is_empty() && *part != b".")
        .map(|part| OsStr::from_bytes(part).to_owned())
        .collect()
}

/// A mount, by a line of `/proc/PID/mountinfo`.
pub(crate) struct Mount<'a> {
    pub(crate) id: u64,
    /// Major and minor number of its file system, as text.
    pub(crate) device: &'a [u8],
    /// Type of its file system.
    pub(crate) kind: &'a [u8],
}

pub(crate) fn mounts(table: &[u8]) -> impl Iterator<Item = Mount<'_>> {
    table.split(|byte| *byte == b'\n').filter_map(|line| {
        // "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw"; a blank in a name is written
        // \040.
        let mut words = line.split(|byte| *byte == b' ');
        let (id, device) = (words.next().and_then(parse_u64)?, words.nth(1)?);
        let kind = words.skip(3).skip_while(|word| *word != b"-").nth(1)?;
        Some(Mount { id, device, kind })
    })
}

/// The type of a mount by its number.
fn kind_of_mount(table: &[u8], id: u64) -> Option<&[u8]> {
    mounts(table).find(|mount| mount.id == id).map(|mount| mount.kind)
}

/// Opens the file behind a mapping by its magic link below `/proc/PID/map_files`. The link leads to exactly
/// that file, even if it lies in a container or was deleted or replaced. A mapping of a device is refused,
/// and a file on a mount that does not answer by itself. `answers` is asked with the number of the mount that
/// is opened: what a list of mappings said before may be another one by now.
pub(crate) fn mapped(link: &Path, answers: impl FnOnce(u64) -> io::Result<bool>) -> Result<File, Refusal> {
    let found = Found::at(link)?;
    found.must_be(&[FileType::RegularFile])?;
    if !answers(found.facts.stx_mnt_id)? {
        return Err(Refusal::Waits);
    }
    found.reopen()
}

/// Opens a log by a path from the command line. A job's user may have put anything there: only a file or a
/// pipe is opened. A pipe without data refuses a read (`WouldBlock`); one without a writer is at its end.
pub fn log(path: &Path) -> Result<File, Refusal> {
    let found = Found::log(path)?;
    found.must_be(&[FileType::RegularFile, FileType::Fifo])?;
    if found.is_made() && !is_descriptor(path) {
        return Err(Refusal::Kind("a file that the kernel makes, no log"));
    }
    found.reopen()
}

/// Whether a path names a descriptor of rdmatop's own, and nothing below it.
fn is_descriptor(path: &Path) -> bool {
    let is_number = |name: &OsStr| name.as_bytes().iter().all(u8::is_ascii_digit);
    let dirs = [Path::new("/dev/fd"), Path::new("/proc/self/fd")];
    let is_in = path.parent().is_some_and(|parent| dirs.contains(&parent));
    path == Path::new("/dev/stdin") || is_in && path.file_name().is_some_and(is_number)
}

/// The path of an open file, as the links of processes that have it open read in `/proc/PID/fd`. No file
/// system is asked.
pub fn path_of(file: &impl AsFd) -> Option<PathBuf> {
    let link = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let path = readlinkat(CWD, link, Vec::new()).ok()?;
    Some(OsString::from_vec(path.into_bytes()).into())
}

/// Major and minor number of the character device that a link below `/proc/PID/fd` leads to; `None` for any
/// other file, and for one that was closed meanwhile. What the link reads as is what the user of the process
/// calls the file, in a mount namespace of his own too. Nothing is opened, and no file system is asked.
///
/// `None` also for a descriptor of the path alone (`O_PATH`): anybody may have one, whatever the mode of the
/// file, and on a file system of his own of a file that says it is any device. It takes no request.
pub fn character_device(link: &Path) -> Option<(u32, u32)> {
    let found = Found::at(link).ok()?;
    let numbers = (found.facts.stx_rdev_major, found.facts.stx_rdev_minor);
    (found.kind() == FileType::CharacterDevice && takes_requests(link)).then_some(numbers)
}

/// Whether a descriptor is more than one of a path.
fn takes_requests(link: &Path) -> bool {
    // `tid_fd_update_inode`, fs/proc/fd.c: the link of one that is to be read or written has such bits.
    if lstat(link).is_ok_and(|link| link.st_mode & 0o700 != 0) {
        return true;
    }
    // One of access mode 3, which is for requests alone, has none either.
    let flags = || {
        let info = link.ancestors().nth(2)?.join("fdinfo").join(link.file_name()?);
        let info = String::from_utf8(root::read(&info, SMALL).ok()?).ok()?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
        i32::from_str_radix(flags.trim(), 8).ok()
    };
    flags().is_none_or(|flags| flags & libc::O_PATH == 0)
}

#[cfg(test)]
mod tests;
