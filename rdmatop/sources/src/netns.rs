//! Other network namespaces. In mode exclusive (`rdma system`) an RDMA device belongs to one of them, and
//! netlink and /sys show it there alone.
//!
//! A thread enters a namespace by way of a process in it, opens what is wanted there, and ends: no other
//! thread is ever in one. A socket keeps its namespace alive, and the kernel takes the devices of a namespace
//! back only when that ends (`rdma_dev_exit_net`, drivers/infiniband/core/device.c): so a socket is opened
//! for one reading and closed after it. A mounted sysfs keeps nothing but the memory of its namespace
//! (`kobj_ns_grab_current`, fs/sysfs/mount.c), and is kept.

use std::{
    collections::BTreeSet,
    io,
    ops::ControlFlow,
    os::fd::{AsFd as _, OwnedFd},
    thread,
};

use rustix::{
    fs::fstat,
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

use super::{
    execs,
    platform::namespace,
    privileges::Raised,
    root::{self, Root},
};

/// How a sysfs of another namespace is mounted; the seccomp filter refuses any other way.
pub(super) const MOUNTED: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_RDONLY
    .union(MountAttrFlags::MOUNT_ATTR_NOSUID)
    .union(MountAttrFlags::MOUNT_ATTR_NODEV)
    .union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

/// A network namespace, by a process that is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Netns {
    /// Its number, as `lsns -t net` and the links of /proc have it: unique while it lives.
    pub inode: u64,
    /// The process.
    pub pid: u32,
}

/// The network namespaces of processes, except rdmatop's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// Each with its process of the lowest number: that of a container's manager is the oldest.
    pub found: Vec<Netns>,
    /// Those of some processes are hidden.
    pub hidden: bool,
}

/// Finds the network namespaces of all processes, in the order of their processes.
pub fn others(root: &Root) -> Others {
    let own = inode(root, "self").ok().flatten();
    let (mut out, mut seen) = (Others::default(), BTreeSet::new());
    let of = |root: &Root, pid: u32| inode(root, &pid.to_string());
    execs::each(root, root.pids(), of, |pid, answer| {
        match answer {
            // A note names it.
            None => {}
            Some(Err(error)) => out.hidden |= error.kind() == io::ErrorKind::PermissionDenied,
            Some(Ok(inode)) => {
                let inode = inode.filter(|inode| Some(*inode) != own && seen.insert(*inode));
                out.found.extend(inode.map(|inode| Netns { inode, pid }));
            }
        }
        ControlFlow::Continue(())
    });
    out
}

/// The number of the namespace of a process; `None` if the kernel's link has none.
fn inode(root: &Root, dir: &str) -> io::Result<Option<u64>> {
    let link = root::target(&root.proc(dir).join("ns/net"))?;
    Ok(namespace(link.as_os_str().as_encoded_bytes()))
}

impl Netns {
    /// Does `work` in the namespace, in a thread of its own that is named after it. Fails with `ESRCH` when
    /// the process is in another one by now. In a made-up tree, nothing is entered.
    pub fn inside<R: Send>(self, root: &Root, work: impl FnOnce() -> R + Send) -> io::Result<R> {
        let enter = || {
            let gone = || io::Error::from_raw_os_error(libc::ESRCH);
            if !root.has_own_proc() {
                let is_there = inode(root, &self.pid.to_string())? == Some(self.inode);
                return if is_there { Ok(work()) } else { Err(gone()) };
            }
            // A magic link of the kernel's, which leads to a namespace and nothing else.
            let open = |root: &Root, pid| root::open(&root.proc(format!("{pid}/ns/net")));
            let there = execs::one(root, self.pid, open).unwrap_or_else(|| Err(gone()))?;
            if fstat(&there)?.st_ino != self.inode {
                return Err(gone());
            }
            let raised = Raised::for_namespace();
            move_into_link_name_space(there.as_fd(), Some(LinkNameSpaceType::Network))?;
            drop(raised);
            Ok(work())
        };
        thread::scope(|scope| {
            let thread = thread::Builder::new()
                .name(format!("netns-{}", self.inode))
                .spawn_scoped(scope, enter)?;
            thread
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
        })
    }

    /// The same machine, whose sysfs shows what belongs to the namespace. It is mounted nowhere.
    pub fn root(self, root: &Root) -> io::Result<Root> {
        if !root.is_live() {
            return Ok(root.clone());
        }
        Ok(root.elsewhere(self.inside(root, sysfs)??, self))
    }
}

/// A sysfs of the network namespace of this thread.
fn sysfs() -> io::Result<OwnedFd> {
    let _raised = Raised::for_namespace();
    let context = fsopen(c"sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(context.as_fd())?;
    Ok(fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MOUNTED)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    #[test]
    fn each_other_namespace_is_found_by_its_first_process() {
        let fake = Fake::new();
        fake.link("proc/self/ns/net", "net:[1]");
        for (pid, link) in [
            (20, "net:[7]"),
            (3, "net:[7]"),
            (4, "net:[1]"),
            (5, "net:[9]"),
            (6, "odd"),
        ] {
            fake.link(format!("proc/{pid}/ns/net"), link);
        }
        // A process that ends meanwhile hides nothing.
        fake.dir("proc/8");
        let got = others(&fake.root());
        let found: Vec<_> = got.found.iter().map(|ns| (ns.inode, ns.pid)).collect();
        assert_eq!((found, got.hidden), (vec![(7, 3), (9, 5)], false));
    }

    #[test]
    fn who_has_left_a_namespace_leads_to_no_other() {
        let own = others(&Root::default());
        let inode = fstat(root::open("/proc/self/ns/net".as_ref()).unwrap())
            .unwrap()
            .st_ino;
        assert!(own.found.iter().all(|ns| ns.inode != inode));
        let pid = std::process::id();
        let other = Netns {
            inode: inode + 1,
            pid,
        };
        let error = other.inside(&Root::default(), || ()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    }

    /// A process in a namespace of its own, which has one end of a pair of interfaces.
    struct There {
        process: std::process::Child,
        netns: Netns,
    }

    impl There {
        const NEAR: &str = "rdmatop-near";

        /// `None`, and why, where a test may make none.
        fn new() -> Option<Self> {
            let root = Root::default();
            let mut unshare = std::process::Command::new("unshare");
            let process = unshare.args(["--net", "sleep", "60"]).spawn().ok()?;
            let pid = process.id();
            let found = || others(&root).found.into_iter().find(|netns| netns.pid == pid);
            let netns = (0..100).find_map(|_| {
                thread::sleep(std::time::Duration::from_millis(20));
                found()
            });
            let words = [
                "link",
                "add",
                Self::NEAR,
                "type",
                "veth",
                "peer",
                "name",
                "rdmatop-far",
                "netns",
            ];
            let mut ip = std::process::Command::new("ip");
            let made = netns.is_some()
                && ip
                    .args(words)
                    .arg(pid.to_string())
                    .status()
                    .is_ok_and(|s| s.success());
            let there = Self {
                process,
                netns: netns.unwrap_or(Netns { inode: 0, pid }),
            };
            if !made {
                println!("skipped: no namespace or no veth can be made here");
            }
            made.then_some(there)
        }
    }

    impl Drop for There {
        fn drop(&mut self) {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }

    #[test]
    fn its_sys_is_read_and_keeps_no_namespace_from_ending() {
        let Some(there) = There::new() else { return };
        let root = Root::default();
        let seen = there.netns.root(&root).unwrap();
        assert!(!seen.is_live());
        let names = seen.list(&seen.sys("class/net")).unwrap();
        assert!(
            names.contains(&"rdmatop-far".into()) && !names.contains(&There::NEAR.into()),
            "{names:?}"
        );
        let link = seen.sys("class/net/rdmatop-far");
        let place = seen.place(&link).unwrap();
        assert!(place.ends_with("devices/virtual/net/rdmatop-far"), "{place:?}");
        assert_eq!(
            seen.line(&place.join("ifindex")),
            seen.line(&link.join("ifindex"))
        );
        assert!(seen.line(&link.join("ifindex")).is_some());
        let file = seen.open(&link.join("ifindex")).unwrap();
        // This thread has stayed where it was.
        assert_eq!(
            inode(&root, "thread-self").unwrap(),
            inode(&root, "self").unwrap()
        );
        let netns = there.netns;
        drop(there);
        // The other end goes when the namespace ends.
        let near = root.sys("class/net").join(There::NEAR);
        let ends = || {
            thread::sleep(std::time::Duration::from_millis(50));
            !near.exists()
        };
        assert!((0..200).any(|_| ends()), "it has not ended");
        assert!(netns.inside(&root, || ()).is_err());
        drop((seen, file));
    }
}
