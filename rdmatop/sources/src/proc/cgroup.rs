//! `/proc/PID/cgroup` (cgroups(7)): lines of `hierarchy:controllers:path`.
use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt as _,
    path::{Component, Path},
};

use rdmatop_base::{text, workload::Workload};

/// The hierarchies that the file lists: number, controllers and path. Version 2 has the number 0 and no
/// controllers.
pub fn hierarchies(raw: &[u8]) -> impl Iterator<Item = (&[u8], &[u8], &[u8])> {
    raw.split(|b| *b == b'\n').filter_map(|line| {
        let mut fields = line.splitn(3, |b| *b == b':');
        Some((fields.next()?, fields.next()?, fields.next()?))
    })
}

/// The cgroup of this path and those above it, as directories below the mount of their hierarchy. None in
/// another cgroup namespace: there the path begins with `..`, and would lead out of the tree.
pub fn ancestors(path: &[u8]) -> impl Iterator<Item = &Path> {
    let path = Path::new(OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(path)));
    let mut parts = path.components();
    let stays = parts.all(|part| matches!(part, Component::Normal(_)));
    path.ancestors().filter(move |_| stays)
}

/// The cgroup of a process, and the job that its path names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroup {
    /// The most informative path, safe to print: of version 2 unless that is `/` and a version 1 hierarchy
    /// has more.
    pub path: String,
    /// Job, pod, container or machine, as far as the paths name one.
    pub workload: Workload,
}

impl Cgroup {
    /// As [`Self::parse_with`], where root has given each name.
    #[cfg(any(test, feature = "testkit"))]
    pub fn parse(raw: &[u8], ended: bool) -> Option<Self> {
        Self::parse_with(raw, ended, |_, _| usize::MAX)
    }

    /// Parses the file. On hybrid machines every hierarchy counts, version 2 first: a container manager may
    /// use only one of them. `None` when the file has no line.
    ///
    /// `ended`: the process is a zombie. A cgroup that has no other processes can be removed, and the kernel
    /// then adds ` (deleted)` to its path in version 2. Anywhere else this is part of a name.
    ///
    /// `by_root` says of controllers and path how many of the path's names root has
    /// given. It is asked only about paths that name a workload as if root had.
    pub(super) fn parse_with(
        raw: &[u8],
        ended: bool,
        by_root: impl Fn(&[u8], &[u8]) -> usize,
    ) -> Option<Self> {
        let mut paths: Vec<(&[u8], &[u8])> = Vec::new();
        for (hierarchy, controllers, path) in hierarchies(raw) {
            if hierarchy == b"0" {
                let removed = path.strip_suffix(b" (deleted)").filter(|_| ended);
                paths.insert(0, (controllers, removed.unwrap_or(path)));
            } else {
                paths.push((controllers, path));
            }
        }
        let telling = paths.iter().find(|(_, path)| *path != b"/");
        let (_, telling) = telling.or(paths.first())?;
        let mut workload = Workload::default();
        for (controllers, path) in &paths {
            let text = text::sanitize(path);
            let mut named = Workload::from_path(&text);
            if named.names_any() && !named.claimed {
                named = Workload::named(&text, by_root(controllers, path));
            }
            workload.fill_from(&named);
        }
        Some(Self {
            path: text::sanitize(telling),
            workload,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn version_two_is_shown_unless_only_version_one_says_something() {
        let hybrid = b"12:pids:/slurm/uid_1000/job_211/step_0/task_0\n1:name=systemd:/\n0::/\n";
        let got = Cgroup::parse(hybrid, false).unwrap();
        assert_eq!(got.path, "/slurm/uid_1000/job_211/step_0/task_0");
        assert_eq!(got.workload.slurm.map(|s| s.job), Some(211));
        let pure = b"0::/user.slice/a:b\n";
        assert_eq!(
            Cgroup::parse(pure, false).unwrap().path,
            "/user.slice/a:b",
            "a path may hold colons"
        );
    }

    #[test]
    fn a_zombie_at_the_root_has_no_workload() {
        let got = Cgroup::parse(b"0::/\n", true).unwrap();
        assert_eq!((got.path.as_str(), got.workload), ("/", Workload::default()));
    }

    #[test]
    fn a_removed_cgroup_still_names_its_job() {
        let path = "/system.slice/slurmstepd.scope/job_7/step_batch";
        let removed = format!("0::{path} (deleted)\n");
        let got = Cgroup::parse(removed.as_bytes(), true).unwrap();
        assert_eq!(got.path, path);
        assert_eq!(
            got.workload.slurm.map(|s| (s.job, s.step)),
            Some((7, Some("batch".into())))
        );
    }

    #[test]
    fn a_name_that_ends_like_a_removed_cgroup_is_kept_whole() {
        let named = b"0::/user.slice/a (deleted)\n";
        assert_eq!(
            Cgroup::parse(named, false).unwrap().path,
            "/user.slice/a (deleted)"
        );
        // Version 1 says of no cgroup that it was removed.
        let one = b"1:name=systemd:/a (deleted)\n0::/\n";
        assert_eq!(Cgroup::parse(one, true).unwrap().path, "/a (deleted)");
    }

    #[test]
    fn a_file_without_lines_is_unknown() {
        assert_eq!(Cgroup::parse(b"", false), None);
        assert_eq!(Cgroup::parse(b"nonsense\n1:2", false), None);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(raw: Vec<u8>, ended: bool, path in "(/(job_|step_|pod|kubepods|docker-|libpod-|\\PC|\\\\x2d|\\.\\.){0,4}){0,6}") {
            let _ = Cgroup::parse(&raw, ended);
            let _ = Cgroup::parse(format!("0::{path}").as_bytes(), ended);
        }
    }
}
