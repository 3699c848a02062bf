//! One process: its settings, its limits, and the devices it can open.

use std::{ffi::OsString, os::unix::ffi::OsStrExt, path::Path};

use super::read;
use rdmatop_base::text;
use rdmatop_doctor::MEMLOCK_WARN;
use rdmatop_doctor::facts::{Process, RdmaLimit, Reading, Sharers};
use rdmatop_sources::{
    foreign::{Refusal, Tree},
    proc::{
        Status,
        cgroup::{ancestors, hierarchies},
        locked, mapped, read_cgroup, relevant, sharers,
    },
    root::Root,
};

/// An environment larger than this is read up to here.
const ENVIRON: usize = 1 << 20;
const SMALL: usize = 64 << 10;
/// Libraries are unknown where the list of mappings is longer.
const MAPS: usize = 16 << 20;
/// A larger /etc/nccl.conf is not read.
const CONF: u64 = 64 << 10;
/// The limits of so many cgroups are read, each within the one before. Nothing nests jobs as deep, but any
/// user to whom a cgroup is delegated can make 2,000 within each other.
pub(in crate::app) const LEVELS: usize = 32;

/// Which process to read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Subject {
    /// rdmatop itself.
    Own,
    /// A process.
    Pid(u32),
    /// The process of `--pid`.
    Asked(u32),
}

impl Subject {
    pub(super) fn pid(self) -> u32 {
        match self {
            Self::Own => std::process::id(),
            Self::Pid(pid) | Self::Asked(pid) => pid,
        }
    }

    /// Whether the checks need to know what its job finds.
    fn has_job(self) -> bool {
        !matches!(self, Self::Own)
    }
}

/// What is found below the root directory of a process, which another user controls. A part that is not asked
/// for is absent.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RootFiles {
    /// Settings in /etc/nccl.conf.
    conf: Reading<Vec<(String, String)>>,
    nodes: Reading<Vec<(String, Option<bool>)>>,
    sees: Reading<Vec<(String, bool)>>,
}

/// Reads what the kernel says of a process.
pub(super) fn read(root: &Root, subject: Subject) -> Process {
    let dir = match subject {
        Subject::Own => root.proc("self"),
        Subject::Pid(pid) | Subject::Asked(pid) => root.proc(pid.to_string()),
    };
    let pid = subject.pid();
    let is_asked = matches!(subject, Subject::Asked(_));
    let status = Status::read(root, &dir);
    let exempt = status.map(|status| locked::exempt(&status, || root.link(&dir.join("ns/user"))));
    Process {
        pid,
        comm: comm(&dir),
        environ: read::bytes(&dir.join("environ"), ENVIRON).parse(|raw| Some(relevant(&raw))),
        memlock: match memlock(&dir) {
            // Where nobody knows whether a low limit counts, it must be called neither too low nor enough.
            Reading::Known(Some(limit)) if limit < MEMLOCK_WARN && exempt == Some(None) => {
                Reading::Unreadable("whether CAP_IPC_LOCK counts for it is not readable".to_owned())
            }
            known => known,
        },
        may_lock: exempt == Some(Some(true)),
        cgroup: cgroup(root, &dir),
        rdma_limits: rdma_limits(root, &dir),
        interfaces: interfaces(&dir),
        libraries: if is_asked {
            read::bytes(&dir.join("maps"), MAPS).parse(|raw| {
                let whole = mapped(&*raw)
                    .ok()
                    .filter(|found| raw.len() < MAPS && found.count.is_some());
                whole.map(|found| found.libraries)
            })
        } else {
            Reading::Absent
        },
        // `RootFiles::join` and `collect` set the others.
        ..Process::default()
    }
}

/// Reads what is below the root directory of a process, as far as the checks of this subject need it. The
/// file systems there may hang.
pub(super) fn below(root: &Root, subject: Subject) -> RootFiles {
    // rdmatop itself stands for the machine: in a container that has the host's PID namespace, as a
    // DaemonSet's with hostPID, the machine's /dev is that of PID 1.
    let of_init = |tree: &Tree| tree.find("dev").is_ok();
    let tree = match subject {
        Subject::Own => match Tree::of(root, &root.proc("1")) {
            Ok(tree) if of_init(&tree) => Ok(tree),
            _ => Tree::of(root, &root.proc("self")),
        },
        Subject::Pid(pid) | Subject::Asked(pid) => Tree::of(root, &root.proc(pid.to_string())),
    };
    let tree = match tree {
        Ok(tree) => tree,
        Err(refusal) => return RootFiles::unread(subject, &read::not_read(&refusal)),
    };
    let job = subject.has_job();
    RootFiles {
        conf: if job { conf(&tree) } else { Reading::Absent },
        nodes: nodes(&tree, !job),
        sees: if job { sees(&tree) } else { Reading::Absent },
    }
}

impl RootFiles {
    /// A result in which nothing was read, and why.
    fn unread(subject: Subject, why: &Reading<()>) -> Self {
        let of_job = || {
            if subject.has_job() {
                why.clone()
            } else {
                Reading::Absent
            }
        };
        Self {
            conf: of_job().parse(|()| None),
            nodes: why.clone().parse(|()| None),
            sees: of_job().parse(|()| None),
        }
    }

    /// A result in which nothing was read in time.
    pub(super) fn late(subject: Subject, why: &str) -> Self {
        Self::unread(subject, &Reading::Unknown(why.to_owned()))
    }

    /// Adds this to what the kernel says of the process. NCCL reads its file, too; the environment takes
    /// precedence.
    pub(super) fn join(self, process: &mut Process) {
        let Self { conf, nodes, sees } = self;
        (process.nodes, process.sees) = (nodes, sees);
        process.conf = conf.parse(|settings| {
            if let Reading::Known(all) = &mut process.environ {
                let own = all.len();
                for (name, value) in settings {
                    if all.iter().all(|(known, _)| *known != name) {
                        all.push((name, value));
                    }
                }
                process.from_conf = all.len() - own;
            }
            Some(())
        });
    }
}

/// Which processes share its verbs files. The search compares with all processes.
pub(super) fn shared(root: &Root, pid: u32) -> Reading<Sharers> {
    match sharers(root, pid) {
        Ok(sharers) => Reading::from(sharers.map(|sharers| Sharers {
            partial: sharers.hidden > 0 || sharers.cut,
            found: sharers.found,
        })),
        Err(error) => read::refused(&error),
    }
}

/// Its name; empty when it is gone.
pub(super) fn comm(dir: &Path) -> String {
    read::line(&dir.join("comm")).known().cloned().unwrap_or_default()
}

fn conf(tree: &Tree) -> Reading<Vec<(String, String)>> {
    let file = match tree.content("etc/nccl.conf", CONF) {
        Ok(file) => file,
        Err(refusal) => return read::not_read(&refusal),
    };
    let mut entries = Vec::new();
    for line in file.split(|byte| *byte == b'\n') {
        let line = line.trim_ascii();
        if !line.starts_with(b"#") {
            entries.extend_from_slice(line);
            entries.push(0);
        }
    }
    Reading::Known(relevant(&entries))
}

/// The soft limit of locked memory, `None` for unlimited.
pub(super) fn memlock(dir: &Path) -> Reading<Option<u64>> {
    read::bytes(&dir.join("limits"), SMALL).parse(|raw| locked::memlock(&raw))
}

/// The path of its cgroup, as far as that tells what it runs in.
pub(super) fn cgroup(root: &Root, dir: &Path) -> Option<String> {
    let cgroup = read_cgroup(root, dir, false)?;
    Some(rdmatop_base::locked::believed(&cgroup.path, cgroup.workload.claimed).to_owned())
}

/// Limits of its RDMA cgroup and of those above it.
fn rdma_limits(root: &Root, dir: &Path) -> Reading<Vec<RdmaLimit>> {
    match read::bytes(&dir.join("cgroup"), SMALL).parse(|raw| Some(limits_of(root, &raw))) {
        Reading::Known((_, true)) => {
            Reading::Unknown(format!("its cgroup is more than {LEVELS} levels deep"))
        }
        whole_or_not_read => whole_or_not_read.parse(|(found, _)| Some(found)),
    }
}

/// The limits of the cgroups that a process's `cgroup` file lists, and whether there may be others because
/// one of them is too deep.
pub(in crate::app) fn limits_of(root: &Root, raw: &[u8]) -> (Vec<RdmaLimit>, bool) {
    let (mut found, mut cut) = (Vec::new(), false);
    for (_, controllers, path) in hierarchies(raw) {
        let base = if controllers.is_empty() {
            root.sys("fs/cgroup")
        } else if controllers
            .split(|byte| *byte == b',')
            .any(|name| name == b"rdma")
        {
            root.sys("fs/cgroup/rdma")
        } else {
            continue;
        };
        cut |= limits_above(root, &base, path, &mut found);
    }
    (found, cut)
}

/// Adds the limits of a cgroup and of those above it, the innermost first. Returns whether it is too deep for
/// that.
fn limits_above(root: &Root, base: &Path, path: &[u8], found: &mut Vec<RdmaLimit>) -> bool {
    let all: Vec<&Path> = ancestors(path).collect();
    let (mut with_limits, mut cut) = (Vec::new(), false);
    for (level, cgroup) in all.into_iter().rev().enumerate() {
        cut = level > LEVELS;
        if cut {
            break;
        }
        match root.bytes(&base.join(cgroup).join("rdma.max"), 4096) {
            Some(max) => with_limits.push((cgroup, max)),
            // The root cgroup has no limits.
            None if level == 0 => {}
            // Where the controller is off, it is off in all cgroups within (cgroup.subtree_control).
            None => break,
        }
    }
    for (cgroup, max) in with_limits.into_iter().rev() {
        let current = base.join(cgroup).join("rdma.current");
        let current = root.bytes(&current, 4096).unwrap_or_default();
        let now = entries(&current);
        for (device, resource, max) in entries(&max) {
            // "max" means no limit.
            let Some(max) = max else { continue };
            let current = now
                .iter()
                .find(|(of, what, _)| *of == device && *what == resource)
                .and_then(|(_, _, current)| *current);
            found.push(RdmaLimit {
                cgroup: format!("/{}", text::sanitize(cgroup.as_os_str().as_bytes())),
                device,
                resource,
                max,
                current,
            });
        }
    }
    cut
}

/// `mlx5_0 hca_handle=2 hca_object=max`, a line for each device.
pub(super) fn entries(raw: &[u8]) -> Vec<(String, String, Option<u64>)> {
    let text = text::sanitize(
        &raw.iter()
            .map(|b| if *b == b'\n' { b'|' } else { *b })
            .collect::<Vec<u8>>(),
    );
    let mut all = Vec::new();
    for line in text.split('|') {
        let mut words = line.split_whitespace();
        let Some(device) = words.next() else { continue };
        for (resource, value) in words.filter_map(|word| word.split_once('=')) {
            all.push((device.to_owned(), resource.to_owned(), value.parse().ok()));
        }
    }
    all
}

fn interfaces(dir: &Path) -> Reading<Vec<String>> {
    read::bytes(&dir.join("net/dev"), 1 << 20).parse(|raw| {
        let lines = raw.split(|byte| *byte == b'\n').skip(2);
        let name = |line: &[u8]| {
            let colon = line.iter().position(|byte| *byte == b':')?;
            Some(text::sanitize(line[..colon].trim_ascii()))
        };
        Some(lines.filter_map(name).collect())
    })
}

fn names(tree: &Tree, dir: &str) -> Reading<Vec<OsString>> {
    tree.names(dir)
        .map_or_else(|refusal| read::not_read(&refusal), Reading::Known)
}

/// Files of devices, each with whether the process may open it for reading and writing, as far as the file's
/// mode shows.
fn nodes(tree: &Tree, own: bool) -> Reading<Vec<(String, Option<bool>)>> {
    const DIR: &str = "dev/infiniband";
    names(tree, DIR).parse(|names| {
        let may_open = |name: &OsString| {
            let file = tree.find(Path::new(DIR).join(name)).ok()?;
            // Groups of another process are not compared: a mode for a group was set on purpose.
            let by_mode = || file.mode() & 0o006 == 0o006 || file.mode() & 0o060 == 0o060;
            Some(if own { file.may_open() } else { by_mode() })
        };
        let all = names
            .iter()
            .map(|name| (text::sanitize(name.as_bytes()), may_open(name)));
        Some(all.collect())
    })
}

fn sees(tree: &Tree) -> Reading<Vec<(String, bool)>> {
    const DIR: &str = "sys/class/infiniband";
    let listed = match names(tree, DIR) {
        Reading::Known(names) => names,
        other => return other.parse(|_| None),
    };
    let mut all = Vec::new();
    for name in listed {
        let whole = match tree.find(Path::new(DIR).join(&name)) {
            Ok(_) => true,
            Err(Refusal::Kernel(_)) => false,
            Err(refusal) => return read::not_read(&refusal),
        };
        all.push((text::sanitize(name.as_bytes()), whole));
    }
    Reading::Known(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rdmatop_sources::fake::Fake;

    const LIMITS: &str = "Limit                     Soft Limit           Hard Limit           Units     \n\
        Max locked memory         8388608              unlimited            bytes     \n";

    fn whole(root: &Root, subject: Subject) -> Process {
        let mut process = read(root, subject);
        below(root, subject).join(&mut process);
        process
    }

    #[test]
    fn who_shares_its_files_is_searched_apart_because_others_can_delay_that() {
        let fake = Fake::new();
        fake.link("proc/7/fd/3", "/dev/infiniband/uverbs0");
        assert_eq!(read(&fake.root(), Subject::Asked(7)).sharers, Reading::Absent);
        let alone = Reading::Known(Sharers::default());
        assert_eq!(shared(&fake.root(), 7), alone);
        assert_eq!(super::super::collect(&fake.root(), Some(7)).view.sharers, alone);
    }

    #[test]
    fn a_process_is_read() {
        let fake = Fake::new();
        fake.proc("7/comm", "python3\n")
            .proc("7/environ", "NCCL_IB_HCA=mlx5\0HOME=/x\0")
            .proc(
                "7/root/etc/nccl.conf",
                "# c\nNCCL_IB_HCA=other\nNCCL_SOCKET_IFNAME=eth0\n",
            )
            .proc("7/limits", LIMITS)
            .proc("7/status", "CapEff:\t0000000000004000\n")
            .proc("7/cgroup", "0::/a/b\n")
            .proc("7/net/dev", "h\nh\n    lo: 1 2\n  eth0: 1\n")
            .proc("7/root/dev/infiniband/uverbs0", "");
        fake.link("proc/7/ns/user", "user:[4026531837]")
            .dir("proc/7/root/sys/class/infiniband/mlx5_7");
        fake.sys(
            "fs/cgroup/a/rdma.max",
            "mlx5_0 hca_handle=max hca_object=10\nmlx5_1 hca_object=5\n",
        )
        .sys("fs/cgroup/a/rdma.current", "mlx5_0 hca_handle=1 hca_object=10\n");
        let got = whole(&fake.root(), Subject::Asked(7));
        assert_eq!(got.comm, "python3");
        assert_eq!(
            got.environ.known().unwrap()[..],
            [
                ("NCCL_IB_HCA".to_owned(), "mlx5".to_owned()),
                ("NCCL_SOCKET_IFNAME".to_owned(), "eth0".to_owned())
            ]
        );
        assert_eq!(got.from_conf, 1);
        assert_eq!(got.memlock, Reading::Known(Some(8 << 20)));
        assert!(got.may_lock);
        let limits = got.rdma_limits.known().unwrap();
        assert_eq!(limits.len(), 2);
        assert_eq!(
            (
                limits[0].cgroup.as_str(),
                limits[0].max,
                limits[0].current,
                limits[1].current
            ),
            ("/a", 10, Some(10), None)
        );
        assert_eq!(got.interfaces.known().unwrap()[..], ["lo", "eth0"]);
        assert_eq!(got.nodes.known().unwrap().len(), 1);
        assert_eq!(whole(&fake.root(), Subject::Pid(8)).environ, Reading::Absent);
        let other = whole(&fake.root(), Subject::Pid(7));
        assert_eq!(
            (other.environ, other.nodes, other.sees),
            (
                got.environ,
                got.nodes,
                Reading::Known(vec![("mlx5_7".to_owned(), true)])
            )
        );
    }

    #[test]
    fn of_a_job_below_a_directory_of_a_user_only_the_unit_is_believed() {
        let fake = Fake::new();
        let unit = "sys/fs/cgroup/system.slice/x.service";
        fake.dir(format!("{unit}/slurmstepd.scope/job_7/step_0"));
        fake.proc(
            "7/cgroup",
            "0::/system.slice/x.service/slurmstepd.scope/job_7/step_0\n",
        );
        if std::os::unix::fs::chown(fake.path().join(unit), Some(1000), None).is_err() {
            println!("skipped: only root can make directories of other users");
            return;
        }
        let path = read(&fake.root(), Subject::Asked(7)).cgroup;
        assert_eq!(path.as_deref(), Some("/system.slice/x.service"));
    }

    #[test]
    fn a_limit_that_may_not_count_is_called_neither_low_nor_enough() {
        let fake = Fake::new();
        fake.proc("7/limits", LIMITS)
            .proc("7/status", "CapEff:\t0000000000004000\n");
        let read = || read(&fake.root(), Subject::Pid(7));
        assert!(read().memlock.unreadable().is_some() && !read().may_lock);
        fake.link("proc/7/ns/user", "user:[4026532999]");
        assert_eq!(
            (read().memlock, read().may_lock),
            (Reading::Known(Some(8 << 20)), false)
        );
    }

    #[test]
    fn a_setting_that_was_not_read_is_unknown_and_the_others_are_known() {
        let fake = Fake::new();
        fake.proc("7/environ", "NCCL_IB_HCA=mlx5\0")
            .dir("proc/7/root/etc/nccl.conf");
        let got = whole(&fake.root(), Subject::Pid(7));
        assert_eq!(got.conf.unknown(), Some("not read: it is a directory, no file"));
        assert_eq!(got.environ.known().map(Vec::len), Some(1));
        fake.remove("proc/7/root/etc/nccl.conf");
        assert_eq!(whole(&fake.root(), Subject::Pid(7)).conf, Reading::Absent);
        let mut late = read(&fake.root(), Subject::Asked(7));
        RootFiles::late(Subject::Asked(7), "late").join(&mut late);
        let late_facts = [late.conf.unknown(), late.nodes.unknown(), late.sees.unknown()];
        assert_eq!(late_facts, [Some("late"); 3]);
        assert_eq!(late.environ.known().map(Vec::len), Some(1));
    }

    #[test]
    fn in_a_pod_that_sees_the_host_the_machine_has_the_devices_of_pid_1() {
        let fake = Fake::new();
        fake.proc("self/root/dev/null", "")
            .proc("1/root/dev/infiniband/uverbs0", "");
        let nodes = |subject| whole(&fake.root(), subject).nodes;
        assert_eq!(nodes(Subject::Own).known().unwrap()[0].0, "uverbs0");
        assert_eq!(nodes(Subject::Asked(7)), Reading::Absent);
        fake.remove("proc/1/root/dev");
        assert_eq!(nodes(Subject::Own), Reading::Absent);
        fake.proc("self/root/dev/infiniband/uverbs1", "");
        assert_eq!(nodes(Subject::Own).known().unwrap()[0].0, "uverbs1");
    }

    #[test]
    fn a_cgroup_of_another_namespace_leads_nowhere() {
        let fake = Fake::new();
        fake.sys("fs/rdma.max", "x hca_object=1\n")
            .sys("fs/cgroup/rdma.max", "x hca_object=2\n");
        let mut found = Vec::new();
        limits_above(&fake.root(), &fake.root().sys("fs/cgroup"), b"/../", &mut found);
        assert_eq!(found, []);
    }

    #[test]
    fn a_deep_cgroup_costs_little_and_says_what_is_unknown() {
        let (fake, max) = (Fake::new(), "mlx5_0 hca_object=10\n");
        let list = format!("0::{}\n", "/a".repeat(1900));
        fake.proc("7/cgroup", &list);
        let (root, most) = (fake.root(), u64::try_from(LEVELS).unwrap());
        let look = || {
            let before = root.opens();
            let (found, cut) = limits_of(&root, list.as_bytes());
            (found.len(), cut, root.opens() - before)
        };
        let (none, one) = (Reading::Known(0), Reading::Known(1));
        let known = || rdma_limits(&root, &root.proc("7")).parse(|found| Some(found.len()));
        // The controller is off, and then on at the first level alone.
        assert_eq!((look(), known()), ((0, false, 2), none));
        fake.sys("fs/cgroup/a/rdma.max", max);
        assert_eq!((look(), known()), ((1, false, 4), one));
        // It is on at each level.
        for level in 1..=LEVELS + 9 {
            fake.sys(format!("fs/cgroup{}/rdma.max", "/a".repeat(level)), max);
        }
        assert_eq!(look(), (LEVELS, true, 1 + 2 * most));
        assert!(known().unknown().is_some(), "{:?}", known());
    }

    proptest! {
        #[test]
        fn no_file_panics(raw: Vec<u8>, line in "\\PC{0,60}") {
            let fake = Fake::new();
            for file in ["environ", "limits", "status", "cgroup", "net/dev", "root/etc/nccl.conf"] {
                fake.proc(format!("7/{file}"), &raw);
            }
            let _ = whole(&fake.root(), Subject::Asked(7));
            let _ = (entries(&raw), entries(line.as_bytes()));
            fake.proc("7/limits", format!("Max locked memory {line}\n"));
            let _ = memlock(&fake.root().proc("7"));
        }
    }
}
