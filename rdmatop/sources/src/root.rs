//! The trees that the readers read, and a tolerant way to read one small kernel file.
//!
//! Rule of every reader: a file that is missing, forbidden (EPERM, EACCES), refused (EINVAL, EIO, ENOTSUP,
//! ENODEV, ESRCH), empty or contains `N/A` is one unknown value; it does not affect other values.
#![expect(clippy::disallowed_methods, reason = "it opens files of the kernel")]
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags};

use super::netns::Netns;
use rdmatop_base::exclude::Excluded;
use rdmatop_base::order::{Gather as _, Ordered as _};
use rdmatop_base::text;

/// One sysfs attribute is one page at most; procfs files of that size come in one read too.
const SMALL: usize = 4096;

/// The base paths of the kernel's file systems, and what below them is left alone. Tests use a tree of their
/// own.
#[derive(Debug, Clone)]
pub struct Root {
    proc: PathBuf,
    sys: PathBuf,
    etc: PathBuf,
    opens: Arc<AtomicU64>,
    excluded: Excluded,
    /// The sysfs is of another network namespace, and mounted nowhere.
    elsewhere: Option<(Arc<OwnedFd>, Netns)>,
}

/// The path without links of what the kernel has in /sys: of a device the place that tells where it is
/// plugged. Paths that another user controls are none for this.
pub fn place(path: &Path) -> Option<PathBuf> {
    fs::canonicalize(path).ok()
}

impl Default for Root {
    fn default() -> Self {
        Self::new("/proc", "/sys", "/etc")
    }
}

impl Root {
    /// A root with the given places of procfs, sysfs and the configuration files.
    pub fn new(proc: impl Into<PathBuf>, sys: impl Into<PathBuf>, etc: impl Into<PathBuf>) -> Self {
        Self {
            proc: proc.into(),
            sys: sys.into(),
            etc: etc.into(),
            opens: Arc::default(),
            excluded: Excluded::default(),
            elsewhere: None,
        }
    }

    /// The same root with the sysfs of another network namespace.
    pub(crate) fn elsewhere(&self, sysfs: OwnedFd, netns: Netns) -> Self {
        Self {
            sys: format!("/proc/self/fd/{}", sysfs.as_raw_fd()).into(),
            elsewhere: Some((Arc::new(sysfs), netns)),
            ..self.clone()
        }
    }

    /// The same root, with RDMA devices that are left alone: nothing asks their drivers for anything.
    #[must_use]
    pub fn without(mut self, excluded: Excluded) -> Self {
        self.excluded = excluded;
        self
    }

    /// Whether the device of this name, safe to print, is left alone.
    pub fn excludes(&self, device: &str) -> bool {
        self.excluded.has(device)
    }

    /// A root whose three trees are `proc`, `sys` and `etc` below `base`: a fixture, or a host mounted
    /// elsewhere.
    pub fn under(base: &Path) -> Self {
        Self::new(base.join("proc"), base.join("sys"), base.join("etc"))
    }

    /// True when procfs is this process's own, and sysfs that of its network namespace: then system calls
    /// refer to the same processes and network interfaces.
    pub fn is_live(&self) -> bool {
        self.has_own_proc() && self.elsewhere.is_none()
    }

    /// Does `work` in the network namespace whose interfaces its sysfs has, and keeps nothing of it open.
    /// `None` where that cannot be entered, and for a made-up tree.
    pub fn in_netns<R: Send>(&self, work: impl FnOnce() -> Option<R> + Send) -> Option<R> {
        match &self.elsewhere {
            _ if !self.has_own_proc() => None,
            None => work(),
            Some((_, netns)) => netns.inside(self, work).ok()?,
        }
    }

    /// True when procfs is this process's own.
    pub(crate) fn has_own_proc(&self) -> bool {
        self.proc == Path::new("/proc")
    }

    /// As [`place`], of what is below this root's sysfs.
    pub(crate) fn place(&self, path: &Path) -> Option<PathBuf> {
        if self.elsewhere.is_none() {
            return place(path);
        }
        // A file system that is mounted nowhere has no path to follow by its names: the kernel follows it.
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let there = rustix::fs::open(path, flags, Mode::empty()).ok()?;
        let place = target(format!("/proc/self/fd/{}", there.as_raw_fd()).as_ref()).ok()?;
        Some(self.sys.join(place.strip_prefix("/").ok()?))
    }

    /// A path below procfs.
    pub fn proc(&self, rest: impl AsRef<Path>) -> PathBuf {
        self.proc.join(rest)
    }

    /// A path below sysfs.
    pub fn sys(&self, rest: impl AsRef<Path>) -> PathBuf {
        self.sys.join(rest)
    }

    /// A path below the configuration directory.
    pub fn etc(&self, rest: impl AsRef<Path>) -> PathBuf {
        self.etc.join(rest)
    }

    /// How many files and directories were opened through this root and its clones. The cost of a tick is
    /// mostly this number, so tests hold it down.
    pub fn opens(&self) -> u64 {
        self.opens.load(Ordering::Relaxed)
    }

    /// Opens a file for reading, `None` when that fails for any reason.
    pub fn open(&self, path: &Path) -> Option<File> {
        self.opens.fetch_add(1, Ordering::Relaxed);
        open(path).ok()
    }

    /// At most `limit` bytes of a file; `None` when it cannot be opened or a read fails.
    pub fn bytes(&self, path: &Path, limit: usize) -> Option<Vec<u8>> {
        self.opens.fetch_add(1, Ordering::Relaxed);
        read(path, limit).ok()
    }

    /// The trimmed content of a one-value file, raw; `None` when it is empty or `N/A`.
    pub fn value(&self, path: &Path) -> Option<Vec<u8>> {
        meaningful(&self.bytes(path, SMALL)?).map(<[u8]>::to_vec)
    }

    /// The trimmed content of a one-value file, safe to print.
    pub fn line(&self, path: &Path) -> Option<String> {
        self.value(path).map(|raw| text::sanitize(&raw))
    }

    /// The id of this boot, safe to print; empty where it cannot be read.
    pub fn boot_id(&self) -> String {
        self.line(&self.proc("sys/kernel/random/boot_id"))
            .unwrap_or_default()
    }

    /// The processes in procfs, by number.
    pub fn pids(&self) -> BTreeSet<u32> {
        let names = self.list(&self.proc("")).unwrap_or_default();
        names
            .iter()
            .filter_map(|name| name.to_str()?.parse::<u32>().ok())
            .gather()
    }

    /// The name of a process or thread, safe to print; empty when it has ended.
    pub(crate) fn comm(&self, pid: u32) -> String {
        let comm = self.bytes(&self.proc(format!("{pid}/comm")), 64);
        text::sanitize(comm.unwrap_or_default().trim_ascii_end())
    }

    /// The kernel's release.
    pub fn kernel_release(&self) -> Option<String> {
        self.line(&self.proc("sys/kernel/osrelease"))
    }

    /// Major and minor number of it.
    pub fn kernel_version(&self) -> Option<(u32, u32)> {
        kernel_version(&self.kernel_release()?)
    }

    /// An unsigned number, decimal or with `0x`.
    pub fn number(&self, path: &Path) -> Option<u64> {
        parse_u64(&self.value(path)?)
    }

    /// A signed decimal number (`numa_node`, `speed` and some sysctls use -1).
    pub fn signed(&self, path: &Path) -> Option<i64> {
        std::str::from_utf8(&self.value(path)?).ok()?.parse().ok()
    }

    /// The target of a symbolic link as it is written, raw.
    pub fn link(&self, path: &Path) -> Option<Vec<u8>> {
        fs::read_link(path)
            .ok()
            .map(|target| target.into_os_string().into_vec())
    }

    /// The last component of a symbolic link's target, safe to print: how sysfs names drivers and parents.
    pub fn link_name(&self, path: &Path) -> Option<String> {
        let target = fs::read_link(path).ok()?;
        target.file_name().map(|name| text::sanitize(name.as_bytes()))
    }

    /// Opens a directory of attributes, `None` when that fails for any reason.
    pub fn dir(&self, path: &Path) -> Option<Dir> {
        self.opens.fetch_add(1, Ordering::Relaxed);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).ok()?;
        let opens = Arc::clone(&self.opens);
        Some(Dir { fd, opens })
    }

    /// The names in a directory, sorted; `None` when the directory cannot be read.
    pub fn list(&self, path: &Path) -> Option<Vec<OsString>> {
        self.try_list(path).ok()
    }

    /// As [`Root::list`], with the reason when the directory cannot be read.
    pub fn try_list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        self.opens.fetch_add(1, Ordering::Relaxed);
        let entries = fs::read_dir(path)?.flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
        names.order_by(Ord::cmp);
        Ok(names)
    }
}

/// A directory of sysfs of which many attributes are read: the path to it is looked up once. In sysfs a path
/// of ten names costs more than the rest of a reading.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    opens: Arc<AtomicU64>,
}

impl Dir {
    /// Opens a directory in it; `None` also for a link.
    pub(crate) fn child(&self, name: &OsStr) -> Option<Self> {
        self.opens.fetch_add(1, Ordering::Relaxed);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::empty()).ok()?;
        let opens = Arc::clone(&self.opens);
        Some(Self { fd, opens })
    }

    /// Whether root alone may make names in it, by its owner and mode.
    pub(crate) fn is_roots(&self) -> Option<bool> {
        let facts = rustix::fs::fstat(&self.fd).ok()?;
        let may = Mode::from_raw_mode(facts.st_mode);
        let group_may = facts.st_gid != 0 && may.contains(Mode::WGRP);
        Some(facts.st_uid == 0 && !group_may && !may.contains(Mode::WOTH))
    }

    /// Reads a line as [`Root::line`] does.
    pub fn line(&self, name: &str) -> Option<String> {
        self.opens.fetch_add(1, Ordering::Relaxed);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.fd, name, flags, Mode::empty()).ok()?;
        // The first read has all of an attribute.
        let mut page = [0; SMALL];
        let length = rustix::io::read(&file, &mut page).ok()?;
        meaningful(page.get(..length)?).map(text::sanitize)
    }
}

/// Opens a file of the kernel.
pub fn open(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// The target of a link that the kernel made.
pub(crate) fn target(path: &Path) -> io::Result<PathBuf> {
    std::fs::read_link(path)
}

/// At most `limit` bytes of a file of the kernel.
pub fn read(path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    let mut out = Vec::with_capacity(limit.min(SMALL));
    let limit = u64::try_from(limit).unwrap_or(u64::MAX);
    open(path)?.take(limit).read_to_end(&mut out)?;
    Ok(out)
}

/// Trims a one-value file; `None` for an empty one and for `N/A`, as in "N/A (no PMA)".
pub(crate) fn meaningful(raw: &[u8]) -> Option<&[u8]> {
    let trimmed = raw.trim_ascii();
    (!trimmed.is_empty() && !trimmed.starts_with(b"N/A")).then_some(trimmed)
}

/// A hexadecimal number without `0x`.
pub(crate) fn hex(digits: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// Major and minor number of a kernel's release.
pub(crate) fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// A whole trimmed text as an unsigned number, decimal or with `0x`; a sign, a unit or an overflow is `None`.
pub(crate) fn parse_u64(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text.trim_ascii()).ok()?;
    let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |hex| (hex, 16));
    // from_str_radix would take a leading plus, which no kernel file prints.
    if !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u64::from_str_radix(digits, radix).ok()
}

/// True when `name` is one plain path component: names that come from the kernel or the user are joined to
/// paths, and `..` or a slash must not lead out of the directory.
pub fn is_component(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    !bytes.is_empty() && bytes != b"." && bytes != b".." && !bytes.iter().any(|b| matches!(b, b'/' | 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;
    use proptest::prelude::*;

    #[test]
    fn a_file_that_says_nothing_is_none_and_the_others_are_read() {
        let fake = Fake::new();
        fake.sys("a", "")
            .sys("b", "N/A (no PMA)\n")
            .sys("c", "12\n")
            .sys("d", "0x1f\n")
            .sys("e", "-1\n");
        let root = fake.root();
        assert_eq!(root.number(&root.sys("a")), None);
        assert_eq!(root.line(&root.sys("b")), None);
        assert_eq!(root.number(&root.sys("c")), Some(12));
        assert_eq!(root.number(&root.sys("d")), Some(31));
        assert_eq!(root.number(&root.sys("e")), None);
        assert_eq!(root.signed(&root.sys("e")), Some(-1));
        assert_eq!(root.line(&root.sys("absent")), None);
        assert_eq!(root.bytes(&root.sys(""), 10), None, "a directory is not a file");
    }

    #[test]
    fn every_open_is_counted_across_clones() {
        let fake = Fake::new();
        fake.sys("c", "1");
        let root = fake.root();
        let clone = root.clone();
        clone.line(&root.sys("c"));
        clone.line(&root.sys("absent"));
        clone.list(&root.sys(""));
        assert_eq!(root.opens(), 3);
    }

    #[test]
    fn a_huge_file_is_read_up_to_its_limit() {
        let fake = Fake::new();
        fake.proc("big", vec![b'x'; 100_000]);
        assert_eq!(
            fake.root().bytes(&fake.root().proc("big"), 5000).map(|b| b.len()),
            Some(5000)
        );
    }

    #[test]
    fn only_plain_names_are_components() {
        for bad in ["", ".", "..", "a/b", "/etc", "a\0b"] {
            assert!(!is_component(OsStr::new(bad)), "{bad:?}");
        }
        assert!(is_component(OsStr::new("foo!bar")));
    }

    proptest! {
        #[test]
        fn any_number_survives_and_any_bytes_do_not_panic(n: u64, junk: Vec<u8>) {
            prop_assert_eq!(parse_u64(format!(" {n}\n").as_bytes()), Some(n));
            prop_assert_eq!(parse_u64(format!("{n:#x}").as_bytes()), Some(n));
            let _ = parse_u64(&junk);
        }
    }
}
