//! How much memory the cgroup of rdmatop has left.
//!
//! The kernel charges a map to the cgroup of the process that makes it (Linux 5.11 and later). If a map takes
//! the last byte of the cgroup, the OOM killer ends rdmatop at its next page fault.

use std::path::Path;

use rdmatop_model::cause::{CauseId, Obstacle};
use rdmatop_sources::{limits, root::Root};

/// Bytes that loading the programs takes at most: the object, the maps, and the verifier's memory where the
/// kernel charges it to the cgroup (measured: Linux 7.2 does, 6.12 does not).
const START: u64 = 15 << 20;

/// Bytes of the maps for QPs that [`START`] includes: more than the smallest maps take.
const INCLUDED: u64 = 2 << 20;

/// Names in `memory.stat` of page cache, which the kernel frees before it refuses memory.
const CACHE: [&str; 2] = ["inactive_file", "active_file"];

/// The limit in one directory less the memory in use. `None` without a limit.
fn left_in(root: &Root, dir: &Path) -> Option<u64> {
    let limit = root.number(&dir.join("memory.max"))?;
    let usage = root.number(&dir.join("memory.current"))?;
    let stat = root.bytes(&dir.join("memory.stat"), 16 << 10).unwrap_or_default();
    let stat = String::from_utf8_lossy(&stat);
    let lines = stat.lines().filter_map(|line| line.split_once(' '));
    let cache: u64 = lines
        .filter(|(name, _)| CACHE.contains(name))
        .filter_map(|(_, bytes)| bytes.parse::<u64>().ok())
        .sum();
    Some(limit.saturating_sub(usage.saturating_sub(cache)))
}

/// Bytes left in rdmatop's cgroup and those above it; `None` without a limit, and with version 1 of cgroups.
fn left(root: &Root) -> Option<u64> {
    let own = root.bytes(&root.proc("self/cgroup"), 16 << 10)?;
    let own = String::from_utf8_lossy(&own);
    let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    // In a container with a cgroup namespace the path is `/`, and that is the directory mounted there.
    let dirs = Path::new(path.trim_start_matches('/')).ancestors();
    let dirs = dirs.map(|dir| root.sys("fs/cgroup").join(dir));
    dirs.filter_map(|dir| left_in(root, &dir)).min()
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
    }
}
