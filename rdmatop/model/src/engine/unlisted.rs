//! Which processes may have queue pairs that the kernel does not list.
//!
//! On mlx5 a library can make them as objects of the device, by a call that no table of ib_core remembers
//! (`devx_obj_create`). Of a process that started after programs saw each call, its calls tell, and their
//! records what it made: a process with completion queues or memory keys alone is no user of a port. Of one
//! that ran before, the names of its libraries are all there is: a program that has such a library linked
//! into it, or that calls libmlx5 itself, is not recognized by them. Names are its own word, as what its
//! objects are is in its own memory: they are believed where they concern its own tenant alone.

use std::collections::{BTreeMap, BTreeSet};

use rdmatop_common::{
    devx::{CREATE, DESTROY, MODIFY},
    verb,
};

use super::{
    devx::Devx,
    losses::Losses,
    processes::{Process, Processes},
    programs::Programs,
    verbs::Verbs,
};
use crate::{
    input::ProcessFacts,
    snapshot::{DeviceRow, Unlisted},
};

/// Libraries that make queue pairs past the kernel, by the beginnings of their names. UCX does so in the
/// module that opens verbs devices (`libuct_ib.so`, since 1.18 `libuct_ib_mlx5.so`), which it loads later
/// than libuct; that one alone is mapped for shared memory and TCP, too.
const MAKES_ITS_OWN: [&str; 3] = ["libnvshmem", "libdoca_", "libuct_ib"];

/// Whether a process with these libraries may make queue pairs past the kernel; one whose libraries are not
/// known may.
fn makes_its_own(libraries: Option<&[String]>) -> bool {
    let own = |library: &String| MAKES_ITS_OWN.iter().any(|name| library.starts_with(name));
    libraries.is_none_or(|libraries| libraries.iter().any(own))
}

/// The container or pod of a workload that root named. Jobs of Slurm are none: each has the user of whoever
/// submits it.
fn place(workload: Option<&str>, claimed: bool) -> Option<&str> {
    workload.filter(|name| !claimed && !name.starts_with("slurm "))
}

/// Whose a process is: a user, in a container or pod of root's or outside of any. Those of two containers are
/// not one, though users there may have one number.
pub(super) type Tenant<'a> = (&'a str, Option<&'a str>);

impl<'a> Told<'a> {
    /// `None` if that is not known: a root that may be in a container of a user's own.
    pub(super) fn tenant(&self) -> Option<Tenant<'a>> {
        let user = self.user?;
        (!self.claims || user != "root").then_some((user, self.place))
    }

    /// Whether it can deceive one of these: root outside of containers does not, and nobody himself.
    pub(super) fn may_deceive(&self, others: &BTreeSet<Option<Tenant<'_>>>) -> bool {
        let own = self.tenant();
        own != Some(("root", None)) && others.iter().any(|other| own.is_none() || own != *other)
    }
}

/// What is known from /proc of a process: its user, when it started, when it was read, and its libraries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told<'a> {
    /// Its uid, if it has a row. One that makes a call gets one.
    pub(super) process: Option<u64>,
    pub(super) user: Option<&'a str>,
    /// Its container or pod, as root named it.
    place: Option<&'a str>,
    /// A user may have named what it is in.
    claims: bool,
    born_ns: u64,
    read_ns: u64,
    libraries: Option<&'a [String]>,
}

impl<'a> From<&'a Process> for Told<'a> {
    fn from(process: &'a Process) -> Self {
        let libraries = process.facts.libraries.as_ref();
        let row = &process.facts;
        Self {
            process: Some(process.uid),
            user: row.user.as_deref(),
            place: place(row.workload.as_deref(), row.workload_claimed),
            claims: row.workload_claimed,
            born_ns: process.born_ns,
            read_ns: process.read_ns,
            libraries: libraries.map(|libraries| libraries.as_slice()),
        }
    }
}

impl<'a> From<&'a ProcessFacts> for Told<'a> {
    fn from(facts: &'a ProcessFacts) -> Self {
        Self {
            process: None,
            user: facts.user.as_deref(),
            place: place(facts.workload.as_deref(), facts.workload_claimed),
            claims: facts.workload_claimed,
            born_ns: facts.born_ns,
            read_ns: facts.read_ns,
            libraries: facts.libraries.as_deref(),
        }
    }
}

/// The processes that registered memory and no DMA-BUF, and how often.
fn without_dmabuf(verbs: &Verbs, processes: &Processes) -> BTreeMap<u64, u64> {
    let mut regions = BTreeMap::new();
    for verb in verb::REG_MR {
        for (process, calls) in verbs.callers_of(verb, false, processes) {
            *regions.entry(process).or_default() += calls;
        }
    }
    for process in verbs.callers_of(verb::DMABUF, true, processes).into_keys() {
        regions.remove(&process);
    }
    regions
}

/// The calls that make objects past the kernel.
#[derive(Debug)]
pub(super) struct Makers<'a> {
    /// Since when each call is seen; `None` while calls are not seen.
    pub(super) since_ns: Option<u64>,
    /// The processes that made objects of which no record tells what they are, or changed something of which
    /// none tells where, and in how many calls.
    pub(super) made: BTreeMap<u64, u64>,
    /// The processes with objects through which data can move, and the devices of these; 0: not known.
    pub(super) carriers: BTreeSet<(u64, u64)>,
    /// The processes that destroyed objects of which no record tells.
    destroyed: BTreeSet<u64>,
    /// What records tell of the objects.
    pub(super) devx: &'a Devx,
    /// The processes that registered memory and no DMA-BUF since all of this is seen, and how often.
    without_dmabuf: BTreeMap<u64, u64>,
}

impl<'a> Makers<'a> {
    /// Collects who has made objects so far, and since when each call is seen.
    pub(super) fn seen(
        verbs: &Verbs,
        devx: &'a mut Devx,
        processes: &Processes,
        programs: &Programs,
        losses: &Losses,
    ) -> Self {
        // A call makes its record before it is counted.
        let mut made = verbs.callers_of(CREATE, false, processes);
        made.retain(|process, calls| *calls > devx.calls_of(*process)[0]);
        let mut destroyed = verbs.callers_of(DESTROY, false, processes);
        destroyed.retain(|process, calls| *calls > devx.calls_of(*process)[1]);
        // Counts of calls are swept while records are on the way.
        let mut untold = verbs.callers_of(MODIFY, true, processes);
        untold.retain(|process, calls| *calls > devx.calls_of(*process)[2]);
        let before = std::mem::replace(&mut devx.untold, untold.keys().copied().collect());
        for (process, calls) in untold {
            *made.entry(process).or_default() += calls;
            // The record did not come since the last snapshot, and will not come.
            if before.contains(&process) {
                devx.modified.insert(0);
            }
        }
        let since_ns = programs.calls_ns.filter(|_| verbs.are_read());
        Self {
            since_ns: since_ns.max(since_ns.and(losses.calls_ns)),
            made,
            destroyed: destroyed.into_keys().collect(),
            carriers: devx.take_carriers().into_iter().collect(),
            devx,
            without_dmabuf: if programs.see_dmabufs() {
                without_dmabuf(verbs, processes)
            } else {
                BTreeMap::new()
            },
        }
    }

    /// How many regions a process registered; `None` where one may be of a DMA-BUF, or was not seen.
    pub(super) fn without_dmabuf(&self, process: Told<'_>) -> Option<u64> {
        let regions = self.without_dmabuf.get(&process.process?)?;
        self.saw_all_of(process).then_some(*regions)
    }

    /// Whether each call of a process was seen.
    pub(super) fn saw_all_of(&self, process: Told<'_>) -> bool {
        self.since_ns.is_some_and(|since_ns| process.born_ns > since_ns)
    }

    /// Whether it is known of each object that a process made what it is, and of each one that it destroyed.
    pub(super) fn saw_each_of(&self, process: Told<'_>) -> bool {
        let untold = |uid| self.made.contains_key(&uid) || self.destroyed.contains(&uid);
        self.saw_all_of(process) && !process.process.is_some_and(untold)
    }

    /// Whether queue pairs of a device may be in other states than records say.
    pub(super) fn modified_some_of(&self, device: &DeviceRow) -> bool {
        let modified = [0, device.uid].iter().any(|uid| self.devx.modified.contains(uid));
        modified && device.may_hide_qps()
    }

    /// Whether a process has objects through which data can move, on this device or anywhere.
    fn carries(&self, process: u64, device: Option<u64>) -> bool {
        let of_it = self.carriers.range((process, 0)..=(process, u64::MAX));
        let mut devices = of_it.map(|(_, on)| *on);
        devices.any(|on| on == 0 || device.is_none_or(|device| device == on))
    }

    /// Whether anybody has objects through which data can move on a device.
    pub(super) fn carry(&self, device: u64) -> bool {
        self.carriers.iter().any(|(_, on)| *on == 0 || *on == device)
    }

    /// Why a process may have queue pairs that the kernel does not list, on this device or anywhere.
    pub(super) fn of(&self, process: Told<'_>, device: Option<u64>) -> Option<Unlisted> {
        let made = |uid| self.made.contains_key(&uid) || self.carries(uid, device);
        if process.process.is_some_and(made) {
            return Some(Unlisted::Made);
        }
        if self.saw_all_of(process) {
            return None;
        }
        if makes_its_own(process.libraries) {
            let known = process.libraries.is_some();
            return Some(if known {
                Unlisted::Library
            } else {
                Unlisted::Unknown
            });
        }
        self.is_outdated(process).then_some(Unlisted::Unknown)
    }

    /// Whether a process can have loaded a library after its libraries were read, and made queue pairs before
    /// calls were seen.
    pub(super) fn is_outdated(&self, process: Told<'_>) -> bool {
        self.since_ns.is_some_and(|since_ns| process.read_ns < since_ns)
    }
}
