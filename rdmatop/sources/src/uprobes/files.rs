//! Files that may be probed.
#![expect(clippy::disallowed_methods, reason = "it refuses what others can write")]

use std::{
    fs::File,
    io,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::fs::{FileExt as _, MetadataExt as _},
    },
    path::{Path, PathBuf},
};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, open, openat, statat};

use super::pages;
use crate::{
    foreign::{self, Refusal, mounts},
    root,
};

/// How much of a function is looked at.
const HEAD: usize = 8;
/// Where the system keeps its libraries.
const SYSTEM: [&str; 4] = ["/usr/lib/", "/usr/lib64/", "/lib/", "/lib64/"];
/// File systems that ask no other machine and no program for a page.
const LOCAL: [&str; 15] = [
    "bcachefs", "btrfs", "erofs", "ext2", "ext3", "ext4", "f2fs", "iso9660", "overlay", "ramfs", "rootfs",
    "squashfs", "tmpfs", "xfs", "zfs",
];
/// Bits of the mode by which others than the owner may write.
const WRITABLE: u32 = 0o022;

/// A file that holds a function.
#[derive(Debug)]
pub struct Opened {
    file: File,
    /// Device and inode: the same for all names of it outside of overlays ([`Opened::is`]).
    pub identity: (u64, u64),
    /// The user that it belongs to.
    pub owner: u32,
}

impl Opened {
    fn of(file: File) -> io::Result<Self> {
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Self {
            identity: (meta.dev(), meta.ino()),
            owner: meta.uid(),
            file,
        })
    }

    /// Opens the regular file behind a mapping (`/proc/PID/map_files`); `None` if its mount does not answer
    /// by itself.
    pub(super) fn behind(
        mapping: &Path,
        answers: impl FnOnce(u64) -> io::Result<bool>,
    ) -> io::Result<Option<Self>> {
        match foreign::mapped(mapping, answers) {
            Ok(file) => Self::of(file).map(Some),
            Err(Refusal::Waits) => Ok(None),
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// The first bytes of a function; fewer at the end of the file.
    pub fn code(&self, offset: u64) -> Vec<u8> {
        let mut bytes = vec![0; HEAD];
        let read = self.file.read_at(&mut bytes, offset).unwrap_or(0);
        bytes.truncate(read);
        bytes
    }

    /// Whether it is this file by another name, which has other numbers where one of both is in an overlay:
    /// a probe in one is in the other. `offset` is that of a page that it has.
    pub fn is(&self, other: &File, offset: u64) -> bool {
        pages::are_one(&self.file, other, offset)
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// A path that leads to it and to no other file, as long as it is open.
    pub fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.file.as_raw_fd())
    }

    /// The same open file once more.
    pub fn again(&self) -> io::Result<Self> {
        Ok(Self {
            file: self.file.try_clone()?,
            ..*self
        })
    }

    /// Keeps it open.
    pub fn into_file(self) -> File {
        self.file
    }
}

/// The libraries that the machine's administrator has installed: those may be probed in all processes.
#[derive(Debug)]
pub struct Libraries {
    root: PathBuf,
    owner: u32,
}

impl Default for Libraries {
    fn default() -> Self {
        Self {
            root: "/".into(),
            owner: 0,
        }
    }
}

impl Libraries {
    /// Opens the library of this name, if it belongs to the system: it lies below the system's directories of
    /// libraries, it is root's, and nobody else may write to it or to a directory above it. No link is
    /// followed: the kernel names a mapped file by its real path.
    pub fn open(&self, path: &str) -> Option<Opened> {
        if !SYSTEM.iter().any(|directory| path.starts_with(directory)) {
            return None;
        }
        let mut names: Vec<&str> = path.split('/').skip(1).collect();
        let last = names.pop()?;
        let steps = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut directory = open(&self.root, steps, Mode::empty()).ok()?;
        self.is_its_owner_s(&fstat(&directory).ok()?).then_some(())?;
        for name in names {
            is_plain(name).then_some(())?;
            directory = openat(&directory, name, steps, Mode::empty()).ok()?;
            self.is_its_owner_s(&fstat(&directory).ok()?).then_some(())?;
        }
        is_plain(last).then_some(())?;
        // Nobody but the owner of the directory can replace the file between this check and the open.
        let there = statat(&directory, last, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let is_file = FileType::from_raw_mode(there.st_mode) == FileType::RegularFile;
        (is_file && self.is_its_owner_s(&there)).then_some(())?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file: OwnedFd = openat(&directory, last, flags, Mode::empty()).ok()?;
        Opened::of(file.into()).ok()
    }

    fn is_its_owner_s(&self, stat: &Stat) -> bool {
        stat.st_uid == self.owner && stat.st_mode & WRITABLE == 0
    }
}

fn is_plain(name: &str) -> bool {
    !matches!(name, "" | "." | "..")
}

/// A list of mounts, as far as it was read.
#[derive(Debug)]
pub(super) struct Mounts {
    pub(super) text: Vec<u8>,
    /// It was read to its end.
    pub(super) is_whole: bool,
}

impl Mounts {
    /// Reads the first bytes of a list. A last line of which a part is missing is left out.
    pub(super) fn read(path: &Path, most: usize) -> io::Result<Self> {
        let mut text = root::read(path, most + 1)?;
        let is_whole = text.len() <= most;
        if !is_whole {
            let end = text.iter().rposition(|byte| *byte == b'\n');
            text.truncate(end.map_or(0, |end| end + 1));
        }
        Ok(Self { text, is_whole })
    }
}

/// Whether a file answers by itself: the file system of its mount is mounted here, where only an
/// administrator mounts, and is of a kind that asks nobody else for a page. So is `device`, on which it is by
/// the list of mappings: of a file in an overlay some kernels say there where its pages are. `here` is
/// /proc/self/mountinfo, `there` reads that of the process that has mapped the file. Its user decides how
/// long that one is, so it is read only where nothing else gives the answer, and only up to a bound: then the
/// answer may be unknown.
pub(super) fn answers(
    mount: u64,
    device: (u32, u32),
    here: &[u8],
    there: impl FnOnce() -> io::Result<Mounts>,
) -> io::Result<bool> {
    let answers = |device: &[u8]| {
        mounts(here)
            .any(|known| known.device == device && LOCAL.iter().any(|kind| kind.as_bytes() == known.kind))
    };
    if !answers(format!("{}:{}", device.0, device.1).as_bytes()) {
        return Ok(false);
    }
    let by_table = |table: &[u8]| {
        let its = mounts(table).find(|known| known.id == mount);
        its.map(|its| answers(its.device))
    };
    if let Some(known) = by_table(here) {
        return Ok(known);
    }
    let there = there()?;
    match by_table(&there.text) {
        None if !there.is_whole => Err(io::Error::other("the list of its mounts is too long")),
        known => Ok(known.unwrap_or(false)),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, Permissions},
        os::unix::fs::{PermissionsExt as _, symlink},
    };

    use super::*;

    const LIBRARY: &str = "/usr/lib/x/libibverbs/libnic-rdmav34.so";

    /// A machine whose administrator is the user of the test.
    fn machine() -> (tempfile::TempDir, Libraries, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let library = root.path().join(LIBRARY.trim_start_matches('/'));
        fs::create_dir_all(library.parent().unwrap()).unwrap();
        fs::write(&library, "code").unwrap();
        let libraries = Libraries {
            root: root.path().into(),
            owner: rustix::process::geteuid().as_raw(),
        };
        let mode = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        mode(&library, 0o644);
        for directory in library.ancestors().skip(1).take(5) {
            mode(directory, 0o755);
        }
        (root, libraries, library)
    }

    #[test]
    fn a_library_of_the_system_is_opened() {
        let (_root, libraries, library) = machine();
        let opened = libraries.open(LIBRARY).unwrap();
        assert_eq!(opened.identity.1, fs::metadata(&library).unwrap().ino());
        assert_eq!(opened.code(0), b"code");
        for _ in 0..2 {
            let other = Libraries {
                root: libraries.root.clone(),
                owner: libraries.owner + 1,
            };
            assert!(other.open(LIBRARY).is_none(), "another user's");
        }
    }

    #[test]
    fn what_others_can_write_or_reach_by_another_way_is_not_opened() {
        let (root, libraries, library) = machine();
        for (path, before) in [(library.as_path(), 0o644)]
            .into_iter()
            .chain(library.ancestors().skip(1).take(5).map(|above| (above, 0o755)))
        {
            for writable in [0o020, 0o002] {
                fs::set_permissions(path, Permissions::from_mode(before | writable)).unwrap();
                assert!(
                    libraries.open(LIBRARY).is_none(),
                    "{} {writable:o}",
                    path.display()
                );
            }
            fs::set_permissions(path, Permissions::from_mode(before)).unwrap();
            assert!(libraries.open(LIBRARY).is_some());
        }
        let name = |path: &str| root.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(name("/home/u")).unwrap();
        fs::copy(&library, name("/home/u/libnic.so")).unwrap();
        symlink(name("/home/u/libnic.so"), name("/usr/lib/x/link.so")).unwrap();
        symlink(name("/home/u"), name("/usr/lib/linked")).unwrap();
        rustix::fs::mkfifoat(
            rustix::fs::CWD,
            name("/usr/lib/pipe.so"),
            Mode::from_raw_mode(0o644),
        )
        .unwrap();
        for path in [
            "/home/u/libnic.so",
            "/usr/lib/../../home/u/libnic.so",
            "/usr/lib/x/link.so",
            "/usr/lib/linked/libnic.so",
            "/usr/lib/pipe.so",
            "/usr/lib/x",
            "/usr/lib//x/libibverbs/libnic-rdmav34.so",
            "usr/lib/x/libibverbs/libnic-rdmav34.so",
            "/usr/lib/x/libibverbs/libnic-rdmav34.so (deleted)",
            "/usr/lib/",
            "",
        ] {
            assert!(libraries.open(path).is_none(), "{path}");
        }
    }

    #[test]
    fn only_local_file_systems_of_this_mount_namespace_answer() {
        const MOUNTS: &str = "22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n\
            30 22 0:44 / /home/u/slow rw,nosuid - fuse.sshfs u@x: rw\n\
            31 22 0:45 / /home rw shared:7 master:2 - nfs4 server:/home rw\n\
            32 22 0:46 /a\\040- /mnt rw - overlay overlay rw,lowerdir=/x\n\
            33 22 0:47 / /mnt/ext4 rw -\n";
        const THEIRS: &[u8] = b"70 1 254:1 /lib /lib rw - ext4 /dev/vda1 rw\n\
            71 70 0:44 / /mnt rw - ext4 x rw\n72 70 0:99 / /x rw - tmpfs x rw\n\xff 1\n";
        let table = |text: &[u8], is_whole| {
            let text = text.to_vec();
            move || Ok(Mounts { text, is_whole })
        };
        let own = |mount, device| answers(mount, device, MOUNTS.as_bytes(), table(b"", true)).unwrap();
        assert!(own(22, (254, 1)) && own(32, (0, 46)) && own(32, (254, 1)));
        for mount in [30, 31, 33, 254, 1] {
            assert!(!own(mount, (254, 1)), "{mount}");
        }
        for device in [(0, 44), (0, 45), (0, 47), (0, 48), (254, 2), (25, 1)] {
            assert!(!own(22, device), "{device:?}");
        }
        // Of another mount namespace only the device counts: its user may mount there himself.
        let theirs = |mount| answers(mount, (254, 1), MOUNTS.as_bytes(), table(THEIRS, true)).unwrap();
        assert!(theirs(70));
        assert!(!theirs(71) && !theirs(72) && !theirs(73));
        // Their table, of whatever length, is not read for a mount of this one, nor for a device of none.
        let unread = || unreachable!("their table is read");
        assert!(answers(22, (254, 1), MOUNTS.as_bytes(), unread).unwrap());
        assert!(!answers(70, (0, 44), MOUNTS.as_bytes(), unread).unwrap());
        // Of one that is longer than what is read it is not known what it lacks.
        let long = |mount| answers(mount, (254, 1), MOUNTS.as_bytes(), table(THEIRS, false));
        assert!(long(70).unwrap() && !long(71).unwrap());
        assert!(long(74).unwrap_err().to_string().contains("too long"));
        assert!(!theirs(74));
    }

    #[test]
    fn of_a_long_list_of_mounts_only_whole_lines_are_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "70 1 a\n71 70 b\n").unwrap();
        for (most, text, is_whole) in [
            (15, "70 1 a\n71 70 b\n", true),
            (14, "70 1 a\n71 70 b\n", false),
            (13, "70 1 a\n", false),
            (6, "70 1 a\n", false),
            (5, "", false),
        ] {
            let read = Mounts::read(file.path(), most).unwrap();
            assert_eq!(
                (read.text.as_slice(), read.is_whole),
                (text.as_bytes(), is_whole),
                "{most}"
            );
        }
        assert!(Mounts::read(Path::new("/proc/0/mountinfo"), 9).is_err());
    }
}
