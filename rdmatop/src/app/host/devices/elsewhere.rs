//! Devices of other network namespaces, in mode exclusive of `rdma system`: there netlink and /sys show each
//! device in one namespace alone.
//!
//! Which devices there are is known all the same: the class of verbs files lists those of every namespace
//! (`uverbs_class`, drivers/infiniband/core/uverbs_main.c, has no `ns_type`). Those that netlink does not
//! list here are looked for in the namespaces of processes. Names and indices are unique over all namespaces
//! (`devices`, drivers/infiniband/core/device.c), so that a device is one row wherever it is.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::super::processes::spell;
use super::job::{DeviceList, Open};
use rdmatop_base::order::{Gather as _, Ordered as _};
use rdmatop_base::{step::NextStep, text, turns::in_turn};
use rdmatop_model::{
    cause::{Cause, CauseId, Concerns},
    input::NetnsReading,
};
use rdmatop_sources::{
    clock::now,
    netlink::{
        client::Nldev, error::NetlinkError, name::Name, record::Summary, sample::Dump, transport::Transport,
    },
    netns::{Netns, others},
    open_files::Users,
    proc::read_cgroup,
    root::Root,
    sysfs::verbs_files,
};

/// Namespaces that one search enters, at most; the users take turns, and the next search enters others.
const MOST: usize = 64;
/// Time between two searches for the same devices, ns.
const SEARCH_EVERY: u64 = if cfg!(test) { 1 } else { 5_000_000_000 };

/// A namespace with devices.
#[derive(Debug)]
pub(super) struct Place {
    netns: Netns,
    /// With the sysfs of the namespace.
    root: Root,
    /// Pod, container, job or name of the process by which it was found, safe to print.
    holder: Option<String>,
}

impl PartialEq for Place {
    fn eq(&self, other: &Self) -> bool {
        self.netns == other.netns
    }
}

impl Place {
    fn new(root: &Root, netns: Netns) -> Result<Self, NetlinkError> {
        let dir = root.proc(netns.pid.to_string());
        let workload = read_cgroup(root, &dir, false).and_then(|cgroup| spell(&cgroup.workload));
        Ok(Self {
            netns,
            root: netns.root(root).map_err(|error| failed(&error))?,
            holder: workload.or_else(|| {
                let comm = root.line(&dir.join("comm"))?;
                // It may be called as a job is.
                Some(format!("PID {}, {comm}", netns.pid))
            }),
        })
    }

    /// One whose sysfs is another made-up tree.
    #[cfg(test)]
    pub(super) fn made_up(netns: Netns, root: Root) -> Self {
        Self {
            netns,
            root,
            holder: None,
        }
    }

    pub(super) fn root(&self) -> Root {
        self.root.clone()
    }

    /// Opens a connection to the kernel there. Whoever has it keeps the namespace from ending.
    pub(super) fn open<T: Transport + Send>(&self, open: &Open<T>) -> Result<Nldev<T>, NetlinkError> {
        inside(&self.root, self.netns, || open())
    }

    pub(super) fn reading(&self) -> NetnsReading {
        NetnsReading {
            inode: self.netns.inode,
            pid: self.netns.pid,
            holder: self.holder.clone(),
        }
    }
}

fn inside<R: Send>(
    root: &Root,
    netns: Netns,
    work: impl FnOnce() -> Result<R, NetlinkError> + Send,
) -> Result<R, NetlinkError> {
    netns.inside(root, work).map_err(|error| failed(&error))?
}

fn failed(error: &std::io::Error) -> NetlinkError {
    NetlinkError::Open {
        errno: error.raw_os_error().unwrap_or(libc::EIO),
    }
}

/// Whether the process has ended, or is in another namespace.
fn is_gone(error: &NetlinkError) -> bool {
    matches!(error.errno(), Some(libc::ENOENT | libc::ESRCH))
}

/// What is known of other namespaces.
#[derive(Debug, Default)]
pub(super) struct Elsewhere {
    /// Namespaces with devices, and the names of these, safe to print.
    known: Vec<(Arc<Place>, Vec<String>)>,
    /// When namespaces without a device were asked last, ns.
    asked: BTreeMap<u64, u64>,
    /// What the last search looked for, and when.
    searched: (Vec<String>, u64),
    /// What is said of devices that were not found.
    missing: Option<Cause>,
}

impl Elsewhere {
    /// Adds the devices of other namespaces to those of the own one.
    pub(super) fn add_to<T: Transport + Send>(&mut self, list: &mut DeviceList, root: &Root, open: &Open<T>) {
        let mut silent = BTreeSet::new();
        self.known
            .retain_mut(|(place, names)| match ask(root, place.netns, open) {
                Ok(found) => {
                    *names = take(list, place, found);
                    !names.is_empty()
                }
                Err(error) if is_gone(&error) => false,
                // Its devices are not gone, and those of others are to be read.
                Err(error) => {
                    list.silent.push(Arc::clone(place));
                    list.notes.push(unread(place, names, &error));
                    silent.extend(names.iter().cloned());
                    true
                }
            });
        let absent = |list: &DeviceList| {
            let mut names = absent(root, list);
            names.retain(|name| !silent.contains(name));
            names
        };
        let names = absent(list);
        let other = self.searched.0 != names;
        let now_ns = now().mono_ns;
        if names.is_empty() {
            (self.searched, self.missing) = (Default::default(), None);
        } else if other || now_ns.saturating_sub(self.searched.1) >= SEARCH_EVERY {
            if other {
                self.asked.clear();
            }
            self.missing = self.search(list, root, open, &absent);
            self.searched = (absent(list), now_ns);
        }
        list.absent.clone_from(&self.searched.0);
        list.notes.extend(self.missing.clone());
    }

    fn search<T: Transport + Send>(
        &mut self,
        list: &mut DeviceList,
        root: &Root,
        open: &Open<T>,
        absent: &impl Fn(&DeviceList) -> Vec<String>,
    ) -> Option<Cause> {
        let others = others(root);
        let is_known = |inode: u64| self.known.iter().any(|(place, _)| place.netns.inode == inode);
        let unknown = others.found.into_iter();
        let mut unknown: Vec<Netns> = unknown.filter(|netns| !is_known(netns.inode)).collect();
        let inodes: BTreeSet<u64> = unknown.iter().map(|netns| netns.inode).gather();
        self.asked.retain(|inode, _| inodes.contains(inode));
        // Those that nobody has asked come first, then those whose answer is the oldest.
        unknown.order_by_key(|netns| self.asked.get(&netns.inode).copied());
        let mut failed = None;
        let users = Users::default();
        for netns in in_turn(unknown, MOST, |netns| users.of(root, netns.pid)) {
            if absent(list).is_empty() {
                break;
            }
            let found = ask(root, netns, open).and_then(|found| {
                let some = !found.items.is_empty();
                some.then(|| Ok((Arc::new(Place::new(root, netns)?), found)))
                    .transpose()
            });
            match found {
                Ok(Some((place, found))) => {
                    let names = take(list, &place, found);
                    self.known.push((place, names));
                    continue;
                }
                Ok(None) => {}
                // It may live on with another process.
                Err(error) if is_gone(&error) => continue,
                Err(error) => failed = Some(error),
            }
            self.asked.insert(netns.inode, now().mono_ns);
        }
        let names = absent(list);
        let found = |inode: &u64| self.known.iter().any(|(place, _)| place.netns.inode == *inode);
        let left = inodes
            .iter()
            .filter(|inode| !self.asked.contains_key(inode) && !found(inode));
        let left = left.count();
        (!names.is_empty()).then(|| missing(&names, failed, others.hidden, left))
    }
}

/// The devices that a namespace has, and whether their list may lack one.
fn ask<T: Transport + Send>(
    root: &Root,
    netns: Netns,
    open: &Open<T>,
) -> Result<Dump<(Name, Summary)>, NetlinkError> {
    inside(root, netns, || open()?.named_summaries())
}

/// Adds what a namespace has, and returns the names. A device that was listed before has come here since.
fn take(list: &mut DeviceList, place: &Arc<Place>, found: Dump<(Name, Summary)>) -> Vec<String> {
    if found.interrupted {
        list.silent.push(Arc::clone(place));
    }
    let names = found.items.iter().map(|(name, _)| name.to_string()).collect();
    for (name, counts) in found.items {
        let index = counts.device_index;
        list.devices.retain(|(_, before)| before.device_index != index);
        list.devices.push((name, counts));
        list.places.insert(index, Arc::clone(place));
    }
    names
}

/// Names of the devices that are not in the list, safe to print.
fn absent(root: &Root, list: &DeviceList) -> Vec<String> {
    let files = verbs_files(root).unwrap_or_default().into_iter();
    let listed = |name: &[u8]| list.devices.iter().any(|(listed, _)| listed.as_bytes() == name);
    let names = files.filter(|(_, name)| !listed(name));
    let names = names.map(|(_, name)| text::sanitize(&name));
    let mut names: Vec<String> = names.filter(|name| !root.excludes(name)).collect();
    names.sort_unstable();
    names
}

/// The note about the devices of a namespace that could not be read.
fn unread(place: &Place, names: &[String], error: &NetlinkError) -> Cause {
    let Netns { inode, pid } = place.netns;
    let whose = place.holder.as_deref().unwrap_or("a process");
    Cause {
        id: CauseId::OtherNamespace,
        concerns: Concerns::Host,
        what: format!("{} not read", text::names(names)),
        why: format!(
            "the network namespace of {whose} (PID {pid}, net:[{inode}]) cannot be read: {error}; values are from \
             the last reading"
        ),
        remedy: "see dmesg".into(),
    }
}

/// The note about devices that were not found.
fn missing(names: &[String], failed: Option<NetlinkError>, hidden: bool, left: usize) -> Cause {
    let (why, remedy): (String, NextStep) = match failed {
        Some(error) if matches!(error.errno(), Some(libc::EPERM | libc::EACCES)) => (
            "which rdmatop may not enter".into(),
            "run with sudo; in a container: --pid=host --cap-add=SYS_ADMIN --cap-add=SYS_PTRACE".into(),
        ),
        _ if hidden => (
            "and the namespaces of other users' processes are hidden".into(),
            "run with sudo; in a container: --pid=host --cap-add=SYS_ADMIN --cap-add=SYS_PTRACE".into(),
        ),
        _ if left > 0 => (
            format!("of which {left} were not looked at yet"),
            NextStep::default(),
        ),
        Some(error) => (format!("which cannot be read: {error}"), "see dmesg".into()),
        None => (
            "in which no process is that is seen from here".into(),
            "run rdmatop on the host, and see that the container has its PID namespace; ip netns lists namespaces without a process: \
             sudo ip netns exec NAME rdmatop"
                .into(),
        ),
    };
    Cause {
        id: CauseId::OtherNamespace,
        concerns: Concerns::Host,
        what: format!("{} not shown", text::names(names)),
        why: format!("in another network namespace (mode exclusive of rdma system), {why}"),
        remedy,
    }
}
