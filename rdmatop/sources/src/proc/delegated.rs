//! Who may make directories in a cgroup: the mode of its directory in the cgroup file system says it. systemd
//! hands a unit with `Delegate=` to its `User=`, and container managers do the same with a container's.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};

use crate::root::{Dir, Root, is_component};

/// How many names of a cgroup's path were given by root: those up to the first directory in which others may
/// make some, that one included. All, where the directories cannot be seen: in another cgroup namespace (the
/// path begins with `/..`), or where the hierarchy is not mounted at its usual place. A directory that was
/// removed meanwhile ends the search.
pub(super) fn named_by_root(root: &Root, controllers: &[u8], path: &[u8]) -> usize {
    by_root(root, controllers, path).unwrap_or(usize::MAX)
}

fn by_root(root: &Root, controllers: &[u8], path: &[u8]) -> Option<usize> {
    let mut dir = mounted(root, controllers)?;
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    for (at, name) in names.map(OsStr::from_bytes).enumerate() {
        if !is_component(name) {
            return None;
        }
        dir = dir.child(name)?;
        if !dir.is_roots()? {
            return Some(at + 1);
        }
    }
    None
}

/// Where systemd and container managers mount a hierarchy: version 2 alone at the top, or beside version 1 in
/// `unified`; one of version 1 by its name, or by that of any of its controllers.
fn mounted(root: &Root, controllers: &[u8]) -> Option<Dir> {
    let top = root.sys("fs/cgroup");
    let first = controllers.split(|byte| *byte == b',').next()?;
    if first.is_empty() {
        return root.dir(&top.join("unified")).or_else(|| root.dir(&top));
    }
    let name = OsStr::from_bytes(first.strip_prefix(b"name=").unwrap_or(first));
    is_component(name).then(|| root.dir(&top.join(name)))?
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, chown};

    use super::super::cgroup::Cgroup;
    use super::*;
    use crate::fake::Fake;

    const JOB: &str = "system.slice/x.service/slurmstepd.scope/job_7/step_0";

    /// What the paths name, in a tree that has the directories of the first.
    fn job(fake: &Fake, lines: &str) -> (Option<u64>, bool) {
        let by_root = |controllers: &[u8], path: &[u8]| named_by_root(&fake.root(), controllers, path);
        let workload = Cgroup::parse_with(lines.as_bytes(), false, by_root)
            .unwrap()
            .workload;
        (workload.slurm.map(|slurm| slurm.job), workload.claimed)
    }

    fn is_root() -> bool {
        let is_root = rustix::process::geteuid().is_root();
        if !is_root {
            println!("skipped: only root can make directories of other users");
        }
        is_root
    }

    #[test]
    fn a_directory_in_which_others_may_make_some_is_a_boundary() {
        if !is_root() {
            return;
        }
        for (mount, controllers) in [
            ("", ""),
            ("unified", ""),
            ("systemd", "name=systemd"),
            ("cpu", "cpu,cpuacct"),
        ] {
            let fake = Fake::new();
            let top = format!("sys/fs/cgroup/{mount}");
            fake.dir(format!("{top}/{JOB}"));
            let at = |dir: &str| fake.path().join(&top).join(dir);
            let hierarchy = if controllers.is_empty() { 0 } else { 4 };
            let line = format!("{hierarchy}:{controllers}:/{JOB}\n");
            let says = |claimed| assert_eq!(job(&fake, &line), (Some(7), claimed), "{line}");
            says(false);
            let unit = at("system.slice/x.service");
            chown(&unit, Some(1000), None).unwrap();
            says(true);
            chown(&unit, Some(0), Some(1000)).unwrap();
            says(false);
            for (mode, group, claimed) in [(0o775, 1000, true), (0o775, 0, false), (0o777, 0, true)] {
                chown(&unit, None, Some(group)).unwrap();
                fs::set_permissions(&unit, fs::Permissions::from_mode(mode)).unwrap();
                says(claimed);
            }
            fs::set_permissions(&unit, fs::Permissions::from_mode(0o755)).unwrap();
            says(false);
            // Root named the job, and handed its step over.
            chown(at(JOB), Some(1000), None).unwrap();
            says(false);
        }
    }

    #[test]
    fn where_directories_cannot_be_seen_names_alone_tell() {
        let fake = Fake::new();
        fake.dir("sys/fs/cgroup/a");
        fake.link("sys/fs/cgroup/link", "a");
        if is_root() {
            chown(fake.path().join("sys/fs/cgroup/a"), Some(1000), None).unwrap();
            assert_eq!(job(&fake, "0::/a/slurmstepd.scope/job_7\n"), (Some(7), true));
        }
        for line in [
            "0::/../a/slurmstepd.scope/job_7\n",
            "0::/removed/slurmstepd.scope/job_7\n",
            "0::/link/slurmstepd.scope/job_7\n",
            "3:freezer:/a/slurmstepd.scope/job_7\n",
            "3:name=..:/a/slurmstepd.scope/job_7\n",
        ] {
            assert_eq!(job(&fake, line), (Some(7), false), "{line}");
        }
        assert_eq!(
            job(&fake, "0::/user@1000.service/slurmstepd.scope/job_7\n"),
            (Some(7), true)
        );
    }

    #[test]
    fn only_what_names_a_workload_is_looked_at() {
        let fake = Fake::new();
        fake.dir("sys/fs/cgroup/system.slice/x.service");
        let root = fake.root();
        for line in [
            "0::/system.slice/x.service\n",
            "0::/user@1.service/slurmstepd.scope/job_7\n",
        ] {
            job(&fake, line);
        }
        assert_eq!(root.opens(), 0);
    }
}
