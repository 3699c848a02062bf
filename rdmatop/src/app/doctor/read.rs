//! One small file: its content, that it is absent, or why it could not be read.

use std::{collections::BTreeSet, io, path::Path};

use rdmatop_base::text;
use rdmatop_doctor::Reading;
use rdmatop_sources::{foreign::Refusal, root};

/// One sysfs attribute is one page at most.
const SMALL: usize = 4096;

pub(super) fn refused<T>(error: &io::Error) -> Reading<T> {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR | libc::ENODEV | libc::ESRCH | libc::ENXIO) => Reading::Absent,
        Some(libc::EACCES | libc::EPERM) => Reading::Unreadable(forbidden().to_owned()),
        _ => {
            let words = error.to_string();
            let words = words.split(" (os error").next().unwrap_or_default();
            Reading::Unreadable(text::sanitize(format!("reading fails: {words}").as_bytes()))
        }
    }
}

/// Why a file that another user controls was not read.
pub(super) fn not_read<T>(refusal: &Refusal) -> Reading<T> {
    match refusal {
        Refusal::Kernel(error) => refused(error),
        other => Reading::Unknown(format!("not read: {other}")),
    }
}

/// Why this user may not read a file.
pub(super) fn forbidden() -> &'static str {
    if rustix::process::geteuid().is_root() {
        "not even root may read it here (a container or a sandbox)"
    } else {
        "only root may read it"
    }
}

/// Up to `limit` bytes.
pub(super) fn bytes(path: &Path, limit: usize) -> Reading<Vec<u8>> {
    match root::read(path, limit) {
        Ok(bytes) => Reading::Known(bytes),
        Err(error) => refused(&error),
    }
}

/// A value without what a driver puts around it: blanks, a newline, the NUL at the end of its buffer.
pub(super) fn value(raw: &[u8]) -> &[u8] {
    let is_inside = |byte: &u8| *byte != 0 && !byte.is_ascii_whitespace();
    let ends = (raw.iter().position(is_inside), raw.iter().rposition(is_inside));
    match ends {
        (Some(first), Some(last)) => &raw[first..=last],
        _ => &[],
    }
}

/// The content of a one-value file, safe to print; an empty one counts as absent.
pub(super) fn line(path: &Path) -> Reading<String> {
    bytes(path, SMALL).and_then(|raw| {
        let line = text::sanitize_bounded(value(&raw), 256);
        Reading::from(Some(line).filter(|line| !line.is_empty() && !line.starts_with("N/A")))
    })
}

/// CPUs from the kernel's list format, `0-3,8`, each once and in order; `None` if it is no such list or a
/// number is 8192 (the largest `CONFIG_NR_CPUS`) or more.
pub(super) fn cpus(list: &str) -> Option<Vec<u32>> {
    const MOST: u32 = 8192;
    let mut all = BTreeSet::new();
    for part in list.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if last >= MOST {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmatop_sources::fake::Fake;

    #[test]
    fn what_is_absent_and_what_cannot_be_read_differ() {
        let fake = Fake::new();
        fake.sys("a", "x\x1b\n")
            .sys("empty", "")
            .sys("na", "N/A (no PMA)\n");
        let root = fake.root();
        assert_eq!(line(&root.sys("a")), Reading::Known("x\\x1b".to_owned()));
        for absent in ["empty", "na", "none", "a/b"] {
            assert_eq!(line(&root.sys(absent)), Reading::Absent, "{absent}");
        }
        // Page 0 of any process is not mapped: EIO.
        fake.link("sys/broken", "/proc/self/mem");
        assert_eq!(
            line(&root.sys("broken")),
            Reading::Unreadable("reading fails: Input/output error".to_owned())
        );
        let denied = io::Error::from_raw_os_error(libc::EACCES);
        assert_eq!(
            refused::<()>(&denied),
            Reading::Unreadable(forbidden().to_owned())
        );
    }

    #[test]
    fn what_a_driver_puts_around_a_value_is_no_part_of_it() {
        let fake = Fake::new();
        for (at, raw) in [
            "28.39.1002\n",
            "28.39.1002\n\0",
            " 28.39.1002\0\0\n",
            "28.39.1002",
        ]
        .into_iter()
        .enumerate()
        {
            fake.sys(at.to_string(), raw);
            let read = line(&fake.root().sys(at.to_string()));
            assert_eq!(read, Reading::Known("28.39.1002".to_owned()), "{raw:?}");
        }
        fake.sys("inside", "1\x002\n").sys("nothing", "\0\n");
        assert_eq!(
            line(&fake.root().sys("inside")),
            Reading::Known("1\\x002".to_owned())
        );
        assert_eq!(line(&fake.root().sys("nothing")), Reading::Absent);
    }

    #[test]
    fn lists_of_cpus_are_read_and_odd_ones_are_not() {
        assert_eq!(cpus("0-3,8"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(cpus(""), Some(vec![]));
        assert_eq!(cpus("3-1"), Some(vec![]));
        for odd in ["x", "0-", "0-4294967295", "-1"] {
            assert_eq!(cpus(odd), None, "{odd}");
        }
    }
}
