//! Objects that processes make past ib_core (DEVX), by the records of their calls.
//!
//! A destroy names only the object's number in its file, so the table keeps what each number is. The kernel
//! destroys the objects of a file with it, without a call: they are gone when their process has ended, or has
//! been among those that have the device open and is no more. A file that another process has got from it
//! outlives it: the kernel then lists a context without a process, and `port_users.rs` takes the device for
//! one that anybody may use. Where it lists no contexts, only a search of open files after the end tells.
//!
//! A call can also change queue pairs that the kernel lists, whosever: from then on the states, PSNs and path
//! MTUs of all queue pairs of the device may be others than records say.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use rdmatop_common::event::{DevxRecord, kind};

use super::{
    devices::Devices,
    machine::Machine,
    programs::Programs,
    records::{attribute, call_ns, event_of, known},
    reused::{self, Reused},
};
use crate::{
    event::{Event, EventKind},
    input::Now,
    snapshot::{DevxCounts, DevxKind, DevxObjects},
};

/// Objects that are remembered. Of those beyond them it is known that they were made, and not what a destroy
/// is of.
const OBJECTS: usize = 65_536;
/// Objects of one process that are remembered, at most.
const OF_ONE: u64 = OBJECTS as u64 / 4;

/// A process and a device, by their uids; 0: the device is not known.
type Maker = (u64, u64);

#[derive(Clone, Copy, Debug)]
struct Object {
    maker: Maker,
    kind: DevxKind,
}

/// Numbers of objects, by kind.
type Tally = [u64; DevxKind::ALL.len()];

/// What a process did on a device.
#[derive(Debug, Default)]
struct Counts {
    made: Tally,
    destroyed: Tally,
    there: Tally,
    /// Changes that it asked for.
    modified: u64,
    /// An object that is not remembered was made: `there` is a lower bound.
    short: bool,
    /// Data can move through one of these, or through what was modified, until the process ends or closes the
    /// device.
    unremembered: bool,
    /// Data could move since [`Devx::carriers`] was last asked.
    carried: bool,
    /// Since it made its last object the process was among those that have the device open.
    listed: bool,
}

impl Counts {
    /// Whether there is an object through which data can move.
    fn carries(&self) -> bool {
        let mut all = DevxKind::ALL.into_iter().zip(self.there);
        self.unremembered || all.any(|(kind, count)| kind.carries() && count > 0)
    }
}

/// All objects that are known.
#[derive(Debug, Default)]
pub(super) struct Devx {
    /// By file, and number in it.
    objects: Reused<(u64, u32), Object>,
    counts: BTreeMap<Maker, Counts>,
    /// Devices on which there were some through which data can move.
    used: BTreeSet<u64>,
    /// Devices on which something was modified; 0: any.
    pub(super) modified: BTreeSet<u64>,
    /// Processes that asked for more changes than records told of, at the last snapshot.
    pub(super) untold: BTreeSet<u64>,
}

impl Devx {
    /// Folds in the record of an object that was made or destroyed, which is an event, or of a change.
    pub(super) fn apply(&mut self, record: &DevxRecord, machine: &mut Machine, now: Now) -> Option<Event> {
        let prefix = &record.prefix;
        let made = prefix.kind == kind::DEVX_CREATE;
        let what = if made {
            EventKind::DevxCreate
        } else {
            EventKind::DevxDestroy
        };
        let mut event = event_of(what, prefix, now);
        event.rc = Some(prefix.rc);
        let device = machine.device_in(prefix, call_ns(prefix));
        let caller = machine.owner_in(prefix, record.owner_start_ns);
        let mut owner = machine.processes.of(caller, prefix.ts_ns);
        if let Some(process) = owner.process {
            machine.named_by_its_first_thread(process, prefix);
        }
        let maker = (
            owner.process.unwrap_or(0),
            device.as_ref().map_or(0, |(uid, _)| *uid),
        );
        if prefix.kind == kind::DEVX_MODIFY {
            self.modified.insert(maker.1);
            let counts = self.counts.entry(maker).or_default();
            counts.modified += 1;
            (counts.unremembered, counts.carried, counts.listed) = (true, true, false);
            return None;
        }
        let place = (prefix.object, record.handle);
        let kind = if made {
            let kind = DevxKind::of(known(record.opcode));
            self.made(place, maker, kind, prefix.ts_ns);
            kind
        } else {
            let ended = self.destroyed(place, maker, call_ns(prefix));
            // A file may have come from another process.
            let other = ended.filter(|object| object.maker.0 != maker.0);
            if let Some(process) = other.and_then(|object| machine.processes.get(object.maker.0)) {
                owner.pid = process.pid;
                owner.comm = Some(Arc::clone(&process.comm));
            }
            ended.map_or(DevxKind::Unknown, |object| object.kind)
        };
        event.devx = Some(kind).filter(|kind| *kind != DevxKind::Unknown);
        event.device = device.map(|(_, name)| name);
        attribute(&mut event, owner, prefix);
        Some(event)
    }

    fn made(&mut self, place: (u64, u32), maker: Maker, kind: DevxKind, since_ns: u64) {
        let has_room = self.objects.len() < OBJECTS || self.objects.contains_key(&place);
        let counts = self.counts.entry(maker).or_default();
        counts.made[kind as usize] += 1;
        counts.carried |= kind.carries();
        // The file may be a new one.
        counts.listed = false;
        if kind.carries() {
            self.used.insert(maker.1);
        }
        if known(place.1).is_none() || !has_room || counts.there.iter().sum::<u64>() >= OF_ONE {
            counts.short = true;
            counts.unremembered |= kind.carries();
            return;
        }
        counts.there[kind as usize] += 1;
        if let Some(ended) = reused::give(&mut self.objects, place, Object { maker, kind }, since_ns) {
            self.leaves(ended);
        }
    }

    /// An object is no more there.
    fn leaves(&mut self, object: Object) {
        if let Some(counts) = self.counts.get_mut(&object.maker) {
            let there = &mut counts.there[object.kind as usize];
            *there = there.saturating_sub(1);
        }
    }

    /// A call that began at `call_ns` destroyed an object; returns which one, if its making was seen.
    fn destroyed(&mut self, place: (u64, u32), by: Maker, call_ns: u64) -> Option<Object> {
        let Some((object, is_there)) = reused::end(&mut self.objects, place, call_ns) else {
            self.counts.entry(by).or_default().destroyed[DevxKind::Unknown as usize] += 1;
            return None;
        };
        if is_there {
            self.leaves(object);
        }
        let counts = self.counts.entry(object.maker).or_default();
        counts.destroyed[object.kind as usize] += 1;
        Some(object)
    }

    /// Takes away what ended without a call: with its process, its device or its file.
    pub(super) fn forget(&mut self, machine: &Machine, programs: &Programs) {
        let mut over = BTreeSet::new();
        self.counts.retain(|maker, counts| {
            let (process, device) = maker;
            let Some(process) = machine.processes.get(*process) else {
                over.insert(*maker);
                return false;
            };
            let on = machine.devices.get(*device);
            let contexts = on.and_then(|on| on.contexts());
            let contexts = contexts.filter(|_| !programs.has_foreign_pids());
            let pid = process.pid.unwrap_or(0);
            let is_listed = contexts.map(|pids| pids.contains(&pid));
            let closed = counts.listed && is_listed == Some(false);
            counts.listed |= is_listed == Some(true);
            let gone = *device != 0 && on.is_none();
            if process.ended_ns.is_some() || gone || closed {
                if std::mem::take(&mut counts.there) != Tally::default() {
                    over.insert(*maker);
                }
                (counts.listed, counts.unremembered) = (false, false);
            }
            true
        });
        if !over.is_empty() {
            self.objects
                .retain(|_, owners| owners.keep(|object| !over.contains(&object.maker)));
        }
        let is_there = |device: &u64| machine.devices.get(*device).is_some();
        self.used.retain(is_there);
        self.modified.retain(|device| *device == 0 || is_there(device));
    }

    /// The processes and devices with objects through which data can have moved since this was last asked.
    pub(super) fn take_carriers(&mut self) -> Vec<Maker> {
        let carriers = self.counts.iter_mut().filter_map(|(maker, counts)| {
            let carries = counts.carries();
            (std::mem::take(&mut counts.carried) || carries).then_some(*maker)
        });
        carriers.collect()
    }

    /// What a process did, by device.
    fn of(&self, process: u64) -> impl Iterator<Item = (&Maker, &Counts)> {
        self.counts.range((process, 0)..=(process, u64::MAX))
    }

    /// Whether a process made objects, or asked for changes.
    pub(super) fn has(&self, process: u64) -> bool {
        self.of(process).next().is_some()
    }

    /// How many objects a process was seen to make, how many of its objects to be destroyed, and how many
    /// changes to ask for.
    pub(super) fn calls_of(&self, process: u64) -> [u64; 3] {
        self.of(process)
            .fold([0; 3], |[made, destroyed, modified], (_, counts)| {
                let [more, less]: [u64; 2] = [counts.made, counts.destroyed].map(|tally| tally.iter().sum());
                [made + more, destroyed + less, modified + counts.modified]
            })
    }

    /// Whether there were objects on a device through which data can move: the driver may count nothing of
    /// them but bytes and packets.
    pub(super) fn were_used_on(&self, device: u64) -> bool {
        self.used.contains(&device)
    }

    /// What a process made, by device. `whole`: each of its calls was seen. `None`: nothing is known.
    pub(super) fn rows(&self, process: u64, devices: &Devices, whole: bool) -> Option<Vec<DevxObjects>> {
        let tally = |tally: Tally| -> DevxCounts {
            let kinds = DevxKind::ALL.into_iter().zip(tally);
            kinds.filter(|(_, count)| *count > 0).collect()
        };
        let of_it = self
            .of(process)
            .filter(|(_, counts)| [counts.made, counts.destroyed] != [Tally::default(); 2]);
        let rows = of_it.map(|((_, device), counts)| DevxObjects {
            device: devices.get(*device).map(|device| Arc::clone(&device.name)),
            device_uid: Some(*device).filter(|uid| *uid != 0),
            whole: whole && !counts.short,
            made: tally(counts.made),
            destroyed: tally(counts.destroyed),
            now: tally(counts.there),
        });
        let rows: Vec<DevxObjects> = rows.collect();
        (whole || !rows.is_empty()).then_some(rows)
    }
}
