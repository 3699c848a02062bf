//! How much memory the cgroup of rdmatop has left.
//!
//! The kernel charges a map to the cgroup of the process that makes it (Linux 5.11 and later). If a map takes
//! the last byte of the cgroup, the OOM killer ends rdmatop at its next page fault.

use std::path::{Path, PathBuf};

use rdmatop_model::cause::{CauseId, Obstacle};
use rdmatop_sources::{
    limits,
    proc::cgroup::{ancestors, hierarchies},
    root::Root,
};

/// Bytes that loading the programs takes at most: the object, the maps, and the verifier's memory where the
/// kernel charges it to the cgroup (measured: Linux 7.2 does, 6.12 does not).
const START: u64 = 15 << 20;

/// Bytes of the maps for QPs that [`START`] includes: more than the smallest maps take.
const INCLUDED: u64 = 2 << 20;

/// A limit from here on means "no limit": version 1 of cgroups writes that as a large number.
const NO_LIMIT: u64 = 1 << 60;

/// The files of a version of cgroups (cgroups(7)).
struct Files {
    /// Whether a line of `/proc/self/cgroup` with these controllers is about this version.
    is_of: fn(&[u8]) -> bool,
    mount: &'static str,
    limit: &'static str,
    usage: &'static str,
    /// Names in `memory.stat` of page cache, which the kernel frees before it refuses memory.
    cache: [&'static str; 2],
}

const VERSIONS: [Files; 2] = [
    Files {
        is_of: <[u8]>::is_empty,
        mount: "fs/cgroup",
        limit: "memory.max",
        usage: "memory.current",
        cache: ["inactive_file", "active_file"],
    },
    Files {
        is_of: |controllers| controllers.split(|b| *b == b',').any(|name| name == b"memory"),
        mount: "fs/cgroup/memory",
        limit: "memory.limit_in_bytes",
        usage: "memory.usage_in_bytes",
        cache: ["total_inactive_file", "total_active_file"],
    },
];

/// The limit in one directory less the memory in use. `None` without a limit.
fn left_in(root: &Root, dir: &Path, files: &Files) -> Option<u64> {
    let limit = root.line(&dir.join(files.limit))?.parse::<u64>().ok()?;
    if limit >= NO_LIMIT {
        return None;
    }
    let usage = root.number(&dir.join(files.usage))?;
    let stat = root.bytes(&dir.join("memory.stat"), 16 << 10).unwrap_or_default();
    let stat = String::from_utf8_lossy(&stat);
    let cache: u64 = stat
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, _)| files.cache.contains(name))
        .filter_map(|(_, bytes)| bytes.parse::<u64>().ok())
        .sum();
    Some(limit.saturating_sub(usage.saturating_sub(cache)))
}

/// Bytes left in rdmatop's cgroup and those above it; `None` without a limit.
fn left(root: &Root) -> Option<u64> {
    let own = root.bytes(&root.proc("self/cgroup"), 16 << 10)?;
    let mut least = None;
    for (_, controllers, path) in hierarchies(&own) {
        let Some(files) = VERSIONS.iter().find(|files| (files.is_of)(controllers)) else {
            continue;
        };
        // In a container with a cgroup namespace the path is `/`, and that is the directory mounted there.
        for dir in ancestors(path) {
            let dir: PathBuf = root.sys(files.mount).join(dir);
            let here = left_in(root, &dir, files);
            least = match (least, here) {
                (Some(least), Some(here)) => Some(u64::min(least, here)),
                (least, here) => least.or(here),
            };
        }
    }
    least
}

/// Whether rdmatop's cgroup has enough memory left to load the programs, with maps that take `bytes`. Without
/// this check the OOM killer would end rdmatop.
pub(super) fn can_start(root: &Root, bytes: u64) -> Result<(), Obstacle> {
    let takes = START.saturating_add(bytes.saturating_sub(INCLUDED));
    match left(root) {
        Some(left) if left < takes => Err(Obstacle::new(
            CauseId::NoMemory,
            format!(
                "the memory limit of rdmatop's cgroup leaves {:.1} MiB, and loading the eBPF programs may take {} MiB",
                left as f64 / f64::from(1 << 20),
                takes.div_ceil(1 << 20)
            ),
            limits::memory(),
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn machine(own: &str, files: &[(&str, String)]) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        let all = [("proc/self/cgroup", own.to_owned())]
            .into_iter()
            .chain(files.iter().cloned());
        for (path, text) in all {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let root = Root::under(dir.path());
        (dir, root)
    }

    #[test]
    fn the_smallest_remainder_of_the_own_cgroup_and_those_above_counts() {
        let (_dir, root) = machine(
            "0::/pod/container\n",
            &[
                ("sys/fs/cgroup/pod/memory.max", (100 * MIB).to_string()),
                ("sys/fs/cgroup/pod/memory.current", (90 * MIB).to_string()),
                (
                    "sys/fs/cgroup/pod/memory.stat",
                    format!("anon 1\ninactive_file {}\nactive_file {MIB}\n", 8 * MIB),
                ),
                ("sys/fs/cgroup/pod/container/memory.max", "max".to_owned()),
                ("sys/fs/cgroup/pod/container/memory.current", MIB.to_string()),
            ],
        );
        assert_eq!(left(&root), Some(19 * MIB), "page cache gives way");
    }

    #[test]
    fn programs_are_not_loaded_into_a_cgroup_that_is_too_small() {
        let small = |used: u64| {
            machine(
                "0::/pod\n",
                &[
                    ("sys/fs/cgroup/pod/memory.max", (20 * MIB).to_string()),
                    ("sys/fs/cgroup/pod/memory.current", used.to_string()),
                ],
            )
        };
        assert!(can_start(&small(5 * MIB).1, INCLUDED).is_ok());
        let more = can_start(&small(5 * MIB).1, INCLUDED + 1).unwrap_err();
        assert!(more.why.contains("may take 16 MiB"), "{more}");
        let refused = can_start(&small(5 * MIB + 1).1, 0).unwrap_err();
        assert_eq!(refused.id, CauseId::NoMemory);
        assert!(refused.why.contains("leaves 15.0 MiB"), "{refused}");
    }

    #[test]
    fn without_a_limit_nothing_is_held_back() {
        let (_dir, root) = machine("0::/\n", &[]);
        assert_eq!(left(&root), None);
        assert!(can_start(&root, u64::MAX).is_ok());
        let (_dir, root) = machine(
            "4:cpu,memory:/\n0::/\n",
            &[
                (
                    "sys/fs/cgroup/memory/memory.limit_in_bytes",
                    (i64::MAX - 4095).to_string(),
                ),
                ("sys/fs/cgroup/memory/memory.usage_in_bytes", MIB.to_string()),
            ],
        );
        assert_eq!(left(&root), None);
    }

    #[test]
    fn a_path_of_another_cgroup_namespace_leads_to_no_file_outside() {
        let (_dir, root) = machine(
            "0::/../pod\n",
            &[
                ("sys/fs/cgroup/cgroup.procs", String::new()),
                ("sys/fs/pod/memory.max", MIB.to_string()),
                ("sys/fs/pod/memory.current", MIB.to_string()),
            ],
        );
        assert_eq!(left(&root), None);
    }

    #[test]
    fn version_one_is_read_too() {
        let (_dir, root) = machine(
            "7:devices:/x\n4:cpu,memory:/job\n",
            &[
                (
                    "sys/fs/cgroup/memory/job/memory.limit_in_bytes",
                    (64 * MIB).to_string(),
                ),
                (
                    "sys/fs/cgroup/memory/job/memory.usage_in_bytes",
                    (60 * MIB).to_string(),
                ),
                (
                    "sys/fs/cgroup/memory/job/memory.stat",
                    format!("total_inactive_file {MIB}\n"),
                ),
            ],
        );
        assert_eq!(left(&root), Some(5 * MIB));
    }
}
