//! The second tier: all that the detail pane and the insights ask of one process.
use std::io::BufReader;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::basic::{ProcKey, dir, read_stat};
use super::environ::relevant;
use super::limits::Memlock;
use super::maps::{MappedLibrary, libraries};
use super::status::{Memory, Status};
use crate::source::root::Root;
use crate::text;

/// An environment larger than this is read up to here.
const ENVIRON_LIMIT: usize = 1 << 20;

/// What is known of one process on request. Each part needs rights of its own (`ptrace_may_access` for
/// environment, maps, descriptors and namespaces): a part that is not readable is `None`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcDetail {
    /// Memory.
    pub memory: Memory,
    /// How much it may pin.
    pub memlock: Option<Memlock>,
    /// The process numbers from our PID namespace to its own.
    pub ns_pid: Vec<u32>,
    /// Variables that steer RDMA stacks, by order of the environment.
    pub environ: Option<Vec<(String, String)>>,
    /// Loaded libraries of interest.
    pub libraries: Option<Vec<MappedLibrary>>,
    /// Open files below `/dev/infiniband`, one per path.
    pub rdma_fds: Option<Vec<RdmaFd>>,
    /// Has an open `/dev/nvidia*` or `/dev/kfd`: works on a GPU.
    pub gpu: Option<bool>,
    /// Whether the process can see a `/dev/infiniband` with anything in it.
    pub sees_dev_infiniband: Option<bool>,
    /// Namespaces.
    pub namespaces: Namespaces,
}

/// Open descriptors of one RDMA device file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaFd {
    /// Path, such as `/dev/infiniband/uverbs0`.
    pub path: String,
    /// The device file is gone: the device is being removed and waits for this process to close it.
    pub deleted: bool,
    /// How many descriptors.
    pub count: u32,
}

/// Namespace numbers (inodes) of a process, and whether they are the ones of rdmatop.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespaces {
    /// PID namespace.
    pub pid: Option<u64>,
    /// Network namespace.
    pub net: Option<u64>,
    /// PID namespace is ours.
    pub same_pid: Option<bool>,
    /// Network namespace is ours.
    pub same_net: Option<bool>,
}

/// Reads the details of exactly this process; `None` when it ended, also when its number lives on.
pub fn read_detail(root: &Root, key: ProcKey) -> Option<ProcDetail> {
    const SMALL: usize = 16 << 10;
    let dir = dir(root, key.pid);
    let is_alive = || read_stat(root, &dir).is_some_and(|stat| stat.start == key.start);
    if !is_alive() {
        return None;
    }
    let status = Status::parse(&root.bytes(&dir.join("status"), SMALL).unwrap_or_default());
    let fds = read_fds(root, &dir);
    let detail = ProcDetail {
        memory: status.memory,
        memlock: root
            .bytes(&dir.join("limits"), SMALL)
            .and_then(|raw| Memlock::parse(&raw)),
        ns_pid: status.ns_pid,
        environ: root
            .bytes(&dir.join("environ"), ENVIRON_LIMIT)
            .map(|raw| relevant(&raw)),
        libraries: root
            .open(&dir.join("maps"))
            .map(|maps| libraries(BufReader::new(maps))),
        gpu: fds.as_ref().map(|fds| fds.gpu),
        rdma_fds: fds.map(|fds| fds.rdma),
        sees_dev_infiniband: sees_dev_infiniband(root, &dir),
        namespaces: read_namespaces(root, &dir),
    };
    // As in read_basic: facts of two processes are not mixed.
    is_alive().then_some(detail)
}

struct Fds {
    rdma: Vec<RdmaFd>,
    gpu: bool,
}

fn read_fds(root: &Root, dir: &Path) -> Option<Fds> {
    let dir = dir.join("fd");
    let mut out = Fds {
        rdma: Vec::new(),
        gpu: false,
    };
    for fd in root.list(&dir)? {
        let Some(target) = root.link(&dir.join(fd)) else {
            continue;
        };
        out.gpu |= target.starts_with(b"/dev/nvidia") || target == b"/dev/kfd";
        if !target.starts_with(b"/dev/infiniband/") {
            continue;
        }
        let (path, deleted) = target
            .strip_suffix(b" (deleted)")
            .map_or((&target[..], false), |path| (path, true));
        let path = text::sanitize(path);
        match out
            .rdma
            .iter_mut()
            .find(|known| known.path == path && known.deleted == deleted)
        {
            Some(known) => known.count += 1,
            None => out.rdma.push(RdmaFd {
                path,
                deleted,
                count: 1,
            }),
        }
    }
    out.rdma.sort_by(|a, b| a.path.cmp(&b.path));
    Some(out)
}

/// Looks through the process's own root: a container without the device files is the usual reason for a fall
/// back to TCP. Without the right to follow `root` this is unknown, not "no".
fn sees_dev_infiniband(root: &Root, dir: &Path) -> Option<bool> {
    let dev = dir.join("root/dev");
    root.list(&dev)?;
    Some(
        root.list(&dev.join("infiniband"))
            .is_some_and(|names| names.iter().any(|name| name.as_bytes().starts_with(b"uverbs"))),
    )
}

fn read_namespaces(root: &Root, dir: &Path) -> Namespaces {
    let of = |dir: &Path, kind: &str| namespace(&root.link(&dir.join("ns").join(kind))?);
    let own = root.proc("self");
    let (pid, net) = (of(dir, "pid"), of(dir, "net"));
    Namespaces {
        pid,
        net,
        same_pid: pid.zip(of(&own, "pid")).map(|(theirs, ours)| theirs == ours),
        same_net: net.zip(of(&own, "net")).map(|(theirs, ours)| theirs == ours),
    }
}

/// The inode in "net:[4026531840]".
pub(crate) fn namespace(link: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(link).ok()?;
    text.split_once(":[")?.1.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::limits::Limit;
    use super::super::stat::line;
    use super::*;
    use crate::source::fake::Fake;

    const KEY: ProcKey = ProcKey { pid: 7, start: 100 };

    fn fake() -> Fake {
        let fake = Fake::new();
        fake.proc("7/stat", line(7, b"python3", 100));
        fake
    }

    #[test]
    fn every_part_is_read() {
        let fake = fake();
        fake.proc("7/status", "VmPin:\t 4 kB\nNSpid:\t7\t1\n");
        fake.proc(
            "7/limits",
            "Max locked memory         65536                65536                bytes\n",
        );
        fake.proc("7/environ", b"HOME=/x\0NCCL_IB_GID_INDEX=3\0");
        fake.proc("7/maps", "1-2 r-xp 0 08:01 3 /usr/lib/libnccl.so.2\n");
        for (fd, target) in [
            ("0", "/dev/infiniband/uverbs0"),
            ("1", "/dev/infiniband/uverbs0"),
            ("2", "/dev/nvidia0"),
        ] {
            fake.link(format!("proc/7/fd/{fd}"), target);
        }
        fake.link("proc/7/fd/3", "/dev/infiniband/uverbs1 (deleted)")
            .link("proc/7/fd/4", "socket:[5]");
        fake.proc("7/root/dev/infiniband/uverbs0", "");
        fake.link("proc/7/ns/net", "net:[4026532001]")
            .link("proc/self/ns/net", "net:[4026531840]");
        fake.link("proc/7/ns/pid", "pid:[4026531836]")
            .link("proc/self/ns/pid", "pid:[4026531836]");
        let d = read_detail(&fake.root(), KEY).unwrap();
        assert_eq!((d.memory.pinned, d.memory.rss), (Some(4096), None));
        assert_eq!(d.memlock.map(|m| m.soft), Some(Limit::Bytes(65536)));
        assert_eq!(d.ns_pid, [7, 1]);
        assert_eq!(d.environ, Some(vec![("NCCL_IB_GID_INDEX".into(), "3".into())]));
        assert_eq!(d.libraries.map(|l| l.len()), Some(1));
        let fds: Vec<_> = d
            .rdma_fds
            .unwrap()
            .into_iter()
            .map(|f| (f.path, f.deleted, f.count))
            .collect();
        let want = [
            ("/dev/infiniband/uverbs0".into(), false, 2),
            ("/dev/infiniband/uverbs1".into(), true, 1),
        ];
        assert_eq!(fds, want);
        assert_eq!((d.gpu, d.sees_dev_infiniband), (Some(true), Some(true)));
        assert_eq!(
            (d.namespaces.same_net, d.namespaces.same_pid),
            (Some(false), Some(true))
        );
        assert_eq!(d.namespaces.net, Some(4_026_532_001));
    }

    #[test]
    fn what_may_not_be_read_is_unknown_and_not_empty() {
        let d = read_detail(&fake().root(), KEY).unwrap();
        assert_eq!(
            (d.environ, d.libraries, d.rdma_fds, d.gpu),
            (None, None, None, None)
        );
        assert_eq!(
            (d.sees_dev_infiniband, d.namespaces, d.memlock),
            (None, Namespaces::default(), None)
        );
    }

    #[test]
    fn a_container_without_device_files_is_told_from_an_unreadable_one() {
        let fake = fake();
        fake.dir("proc/7/root/dev").dir("proc/7/fd");
        let d = read_detail(&fake.root(), KEY).unwrap();
        assert_eq!(d.sees_dev_infiniband, Some(false));
        assert_eq!(d.rdma_fds, Some(vec![]));
    }

    #[test]
    fn a_reused_number_is_not_the_process_that_was_asked_for() {
        assert_eq!(read_detail(&fake().root(), ProcKey { start: 99, ..KEY }), None);
        assert_eq!(read_detail(&fake().root(), ProcKey { pid: 8, start: 1 }), None);
    }

    #[test]
    fn odd_namespace_links_are_unknown() {
        for link in ["net:[]", "net:[x]", "net", "net:[5", ""] {
            assert_eq!(namespace(link.as_bytes()), None, "{link:?}");
        }
    }
}
