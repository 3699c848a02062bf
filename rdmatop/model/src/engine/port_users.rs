//! Who may be a user of a port: who alone can have moved what it counted, and which others can have.
//!
//! Users are those whose queue pairs can carry data, and those who may have queue pairs that the kernel does
//! not list (`unlisted.rs`). What each user has of the port's bytes is `shares.rs`'s.

use rdmatop_base::order::Gather as _;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    processes::Processes,
    psn_batches::{Place, changed_ns},
    unlisted::{Makers, Tenant, Told},
};
use crate::{
    input::ProcessFacts,
    judgement::is_of_the_core,
    snapshot::{DeviceRow, PortRow, QpRow, Unlisted},
};

/// Who was last seen able to move data less than this ago may have moved what a counter shows, ns: a rate is
/// shown that long after its reading (`is_stale`, for a second between two readings).
const LINGER: u64 = 5_000_000_000;
/// The same in snapshots: counters and queue pairs are not read at one time.
const SNAPSHOTS: u64 = 3;
/// The largest number of processes that have a device open and are asked about.
const ASKED: usize = 256;
/// A process is asked about again after so long at the earliest, ns: whoever has calls lost must not have
/// others read all the time.
const ASKED_AGAIN_NS: u64 = 10_000_000_000;

/// Whose a queue pair is, or may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum User {
    /// A process or a kernel consumer, by its uid.
    Process(u64),
    /// A process that has a device open and has no row, by its PID.
    Stranger(u32),
    /// Nobody knows whose it is.
    Unknown,
}

/// When somebody was last seen able to use a port.
#[derive(Clone, Copy, Debug)]
struct Last {
    snapshot: u64,
    at_ns: u64,
}

impl Last {
    /// Whether a counter may still show what was moved then.
    fn is_recent(self, now: Self) -> bool {
        now.snapshot - self.snapshot < SNAPSHOTS || now.at_ns - self.at_ns < LINGER
    }
}

/// The users of a port, from one snapshot to the next.
#[derive(Debug, Default)]
struct Port {
    /// The users whose queue pairs can carry data.
    users: BTreeMap<User, Last>,
    /// The users who may have queue pairs that the kernel does not list, and why.
    hidden: BTreeMap<User, (Last, Unlisted)>,
}

impl Port {
    /// Forgets who was last seen long ago, and returns the others.
    fn lately(&mut self, now: Last) -> BTreeSet<User> {
        self.users.retain(|_, seen| seen.is_recent(now));
        self.hidden.retain(|_, (seen, _)| seen.is_recent(now));
        self.users.keys().chain(self.hidden.keys()).copied().gather()
    }

    /// Notes who may have queue pairs that the kernel does not list. Of whom this was only not known, it is
    /// over once it is known.
    fn may_hide(&mut self, openers: &[Opener], now: Last, processes: &Processes) {
        // While nobody says who has the device open, no process is known to have closed it. Others are any of
        // whom nobody knows.
        if openers.iter().any(|opener| opener.user == User::Unknown) {
            for (user, (last, _)) in &mut self.hidden {
                if matches!(user, User::Process(uid) if !processes.has_ended(Some(*uid))) {
                    *last = now;
                }
            }
        }
        for opener in openers {
            match (opener.unlisted, self.hidden.get(&opener.user)) {
                (Some(why), _) => _ = self.hidden.insert(opener.user, (now, why)),
                (None, Some((_, Unlisted::Unknown))) => _ = self.hidden.remove(&opener.user),
                _ => {}
            }
        }
    }

    /// The process that alone can have moved what the port counted. Whose queue pairs nobody lists may be any
    /// process that has the device open and of which not each call was seen, of whatever library.
    fn sole(&self, users: &BTreeSet<User>, openers: &[Opener]) -> Option<u64> {
        let mut all = users.iter();
        let (Some(user @ User::Process(process)), None) = (all.next(), all.next()) else {
            return None;
        };
        let mut others = openers.iter().filter(|opener| opener.user != *user);
        (self.users.contains_key(user) || others.all(|opener| opener.all_seen)).then_some(*process)
    }
}

/// Who can have moved what a port counted.
#[derive(Debug)]
pub(super) struct PortUsers {
    pub(super) all: BTreeSet<User>,
    /// The process that alone can have.
    pub(super) sole: Option<u64>,
    /// A process has queue pairs that can carry data.
    pub(super) has_process: bool,
    /// Somebody may have queue pairs that the kernel does not list.
    pub(super) may_hide: bool,
}

/// What a snapshot shows of ports and of who may use them.
pub(super) struct Seen<'a> {
    pub(super) devices: &'a [DeviceRow],
    pub(super) ports: &'a [PortRow],
    pub(super) qps: &'a [Arc<QpRow>],
    pub(super) processes: &'a Processes,
    pub(super) makers: &'a Makers<'a>,
    /// Records say of each queue pair when it came and went, and none of them was lost.
    pub(super) records: bool,
    /// Records say of each queue pair when it came and went, but for those that were lost.
    pub(super) follows: bool,
    /// No record was lost since then, ns.
    pub(super) told_ns: u64,
    /// Programs are being attached.
    pub(super) starts: bool,
    pub(super) now_ns: u64,
}

impl Seen<'_> {
    /// Whether the bytes of a port say something of those of its users. Where programs count work requests,
    /// or will in a moment, nobody asks.
    pub(super) fn is_of_use(&self, port: &PortRow, device: &DeviceRow) -> bool {
        let counts = port.all_of_rdma && port.tx_bytes.or(port.rx_bytes).is_some();
        counts && device.datapath.is_none() && !(device.followed && self.starts)
    }

    /// Whether it is known since when a process has queue pairs that the kernel does not list, or that it has
    /// none.
    pub(super) fn knows_all_of(&self, process: u64) -> bool {
        let row = self.processes.get(process).filter(|row| !row.kernel);
        row.map(Told::from).is_none_or(|told| {
            let none_made = || self.makers.since_ns.is_some() && self.makers.of(told, None).is_none();
            self.makers.saw_all_of(told) || none_made()
        })
    }
}

/// A process that has a device open.
#[derive(Clone, Copy, Debug)]
struct Opener {
    user: User,
    unlisted: Option<Unlisted>,
    /// Each call of it was seen, and none made an object.
    all_seen: bool,
}

impl Opener {
    const UNKNOWN: Self = Self {
        user: User::Unknown,
        unlisted: Some(Unlisted::Unknown),
        all_seen: false,
    };
}

/// Keeps from one snapshot to the next who may be a user of which port.
#[derive(Debug, Default)]
pub(super) struct Users {
    ports: BTreeMap<Place, Port>,
    /// The processes that made objects past the kernel that are not known: how many, and since when so many
    /// are known.
    makers: BTreeMap<u64, (u64, Last)>,
    /// What /proc said of processes that have a device open and have no row.
    strangers: BTreeMap<u32, ProcessFacts>,
    /// When each process with a device open was asked about last, ns, by its PID.
    asked: BTreeMap<u32, u64>,
    wanted: BTreeSet<u32>,
    snapshot: u64,
    last_ns: u64,
    /// The processes that have a device open on which there may be queue pairs that the kernel does not list.
    open: BTreeSet<u32>,
}

impl Users {
    /// Keeps what /proc said of a process without a row that was asked for; returns the facts of others.
    pub(super) fn learn(&mut self, mut facts: ProcessFacts, processes: &Processes) -> Option<ProcessFacts> {
        if processes.holder(facts.pid).is_some() || !self.asked.contains_key(&facts.pid) {
            return Some(facts);
        }
        // As rows have it.
        facts.user = facts.user.or_else(|| Some(facts.uid?.to_string()));
        self.strangers.insert(facts.pid, facts);
        None
    }

    /// A process is gone from /proc.
    pub(super) fn gone(&mut self, pid: u32) {
        self.strangers.remove(&pid);
        self.asked.remove(&pid);
    }

    /// The facts of processes that have a row now.
    pub(super) fn take_met(&mut self, processes: &Processes) -> Vec<ProcessFacts> {
        let has_row = |pid: &u32, _: &mut ProcessFacts| processes.holder(*pid).is_some();
        let met = self.strangers.extract_if(.., has_row);
        met.map(|(_, facts)| facts).collect()
    }

    /// Processes whose facts are wanted.
    pub(super) fn take_wanted(&mut self) -> BTreeSet<u32> {
        std::mem::take(&mut self.wanted)
    }

    /// Forgets the users of all ports.
    pub(super) fn forget(&mut self) {
        *self = Self {
            strangers: std::mem::take(&mut self.strangers),
            asked: std::mem::take(&mut self.asked),
            ..Self::default()
        };
    }

    /// Takes over who can use which of these ports, as of a snapshot. Returns the processes that have a queue
    /// pair on a port that is not known.
    pub(super) fn look(&mut self, seen: &Seen<'_>, places: &BTreeSet<Place>) -> BTreeSet<u64> {
        let last_ns = std::mem::replace(&mut self.last_ns, seen.now_ns);
        self.snapshot += 1;
        self.ports.retain(|place, _| places.contains(place));
        for place in places {
            self.ports.entry(*place).or_default();
        }
        let elsewhere = self.users_of_qps(seen, last_ns);
        self.users_of_devx(seen);
        self.open = open(seen);
        self.note_makers(seen);
        elsewhere
    }

    /// The users of a port of the last snapshot.
    pub(super) fn of(&mut self, place: Place, device: &DeviceRow, seen: &Seen<'_>) -> PortUsers {
        let openers = self.openers(device, seen);
        let last = self.last(seen);
        let port = self.ports.entry(place).or_default();
        port.may_hide(&openers, last, seen.processes);
        let all = port.lately(last);
        let mut users = port.users.keys();
        PortUsers {
            sole: port.sole(&all, &openers),
            has_process: users.any(|user| matches!(user, User::Process(_))),
            may_hide: !port.hidden.is_empty(),
            all,
        }
    }

    /// Whether nobody knows who may have queue pairs on a port that the kernel does not list.
    pub(super) fn is_open_to_anybody(&self, place: &Place) -> bool {
        let port = self.ports.get(place);
        port.is_some_and(|port| port.hidden.contains_key(&User::Unknown))
    }

    fn last(&self, seen: &Seen<'_>) -> Last {
        Last {
            snapshot: self.snapshot,
            at_ns: seen.now_ns,
        }
    }

    /// Notes whose queue pairs can carry data, or could since the last snapshot. Returns the processes with
    /// one on a port that is not known.
    fn users_of_qps(&mut self, seen: &Seen<'_>, last_ns: u64) -> BTreeSet<u64> {
        let last = self.last(seen);
        let modified = seen
            .devices
            .iter()
            .filter(|device| seen.makers.modified_some_of(device));
        let modified: BTreeSet<Option<u64>> = modified.map(|device| Some(device.uid)).gather();
        let carries = |qp: &&Arc<QpRow>| could_carry(qp, last_ns, modified.contains(&qp.device_uid));
        let mut elsewhere = BTreeSet::new();
        for qp in seen.qps.iter().filter(carries) {
            let Some(device) = qp.device_uid else {
                continue;
            };
            let user = qp.process_uid.map_or(User::Unknown, User::Process);
            let ports = match qp.port {
                Some(port) => port..=port,
                None => 0..=u32::MAX,
            };
            let ports = (device, *ports.start())..=(device, *ports.end());
            let mut known = self.ports.range_mut(ports).peekable();
            if let (None, User::Process(process)) = (known.peek(), user) {
                elsewhere.insert(process);
            }
            for (_, port) in known {
                port.users.insert(user, last);
            }
        }
        elsewhere
    }

    /// Notes who has queue pairs that the kernel does not list and whose making was seen. The port of such a
    /// queue pair is not known.
    fn users_of_devx(&mut self, seen: &Seen<'_>) {
        let last = self.last(seen);
        for (process, device) in &seen.makers.carriers {
            for (_, port) in self.ports.range_mut((*device, 0)..=(*device, u32::MAX)) {
                port.users.insert(User::Process(*process), last);
            }
        }
    }

    /// Notes who makes objects past the kernel, and asks about processes that have a device open: about each
    /// without a row once, and again where it may have loaded a library since.
    fn note_makers(&mut self, seen: &Seen<'_>) {
        let open = &self.open;
        let last = self.last(seen);
        self.makers
            .retain(|process, _| seen.makers.made.contains_key(process));
        for (process, made) in &seen.makers.made {
            let known = self.makers.entry(*process).or_insert((*made, last));
            if known.0 != *made {
                *known = (*made, last);
            }
        }
        self.asked.retain(|pid, _| open.contains(pid));
        self.strangers.retain(|pid, _| open.contains(pid));
        let since_ns = seen.makers.since_ns.unwrap_or(0);
        for &pid in open {
            let is_due = self.told(pid, seen).is_none_or(|told| {
                seen.makers.of(told, None) == Some(Unlisted::Unknown) && seen.makers.is_outdated(told)
            });
            let asked_ns = self.asked.get(&pid).copied();
            let is_new = asked_ns.is_none_or(|asked_ns| {
                asked_ns < since_ns && seen.now_ns.saturating_sub(asked_ns) >= ASKED_AGAIN_NS
            });
            let has_room = asked_ns.is_some() || self.asked.len() < ASKED;
            if is_due && is_new && has_room {
                self.asked.insert(pid, seen.now_ns);
                self.wanted.insert(pid);
            }
        }
    }

    fn told<'a>(&'a self, pid: u32, seen: &Seen<'a>) -> Option<Told<'a>> {
        match seen.processes.holder(pid) {
            Some(uid) => seen.processes.get(uid).map(Told::from),
            None => self.strangers.get(&pid).map(Told::from),
        }
    }

    /// Who has a device open on which there may be queue pairs that the kernel does not list, and who made
    /// objects there.
    fn openers(&self, device: &DeviceRow, seen: &Seen<'_>) -> Vec<Opener> {
        if !device.may_hide_qps() {
            return Vec::new();
        }
        let contexts = device.contexts.as_deref();
        let contexts = contexts.filter(|_| seen.makers.since_ns.is_some());
        let known = contexts.unwrap_or_default().iter();
        let mut users: BTreeSet<_> = known.map(|pid| self.told(*pid, seen)?.user).gather();
        if contexts.is_none() {
            users.insert(None);
        }
        let ports = self.ports.range((device.uid, 0)..=(device.uid, u32::MAX));
        // Beside the kernel's own queue pairs, as of storage, who has the device open is believed: libraries
        // open every device.
        let tenant = |user: &User| match user {
            User::Process(process) => {
                let process = seen.processes.get(*process)?;
                (!process.facts.kernel).then(|| Told::from(process).tenant())
            }
            _ => Some(None),
        };
        let tenants = ports.flat_map(|(_, port)| port.users.keys()).filter_map(tenant);
        let tenants: BTreeSet<Option<Tenant<'_>>> = tenants.gather();
        let opener = |pid: &u32| self.opener(*pid, device, seen, &tenants);
        let mut openers: Vec<Opener> = match contexts {
            Some(contexts) => contexts.iter().map(opener).collect(),
            None => vec![Opener::UNKNOWN],
        };
        let now = self.last(seen);
        for (process, (_, last)) in &self.makers {
            let Some(row) = seen.processes.get(*process) else {
                continue;
            };
            let has_none_open = !row.pid.is_some_and(|pid| self.open.contains(&pid));
            // What a process of its user has open it may use, too: it may be its child, or get the
            // descriptor.
            let user = row.facts.user.as_deref();
            let shares = user.is_none() || users.contains(&None) || users.contains(&user);
            let may_use = row.ended_ns.is_none() && (has_none_open || shares);
            // It may have closed the device again between two readings.
            if may_use || last.is_recent(now) {
                openers.push(Opener {
                    user: User::Process(*process),
                    unlisted: Some(Unlisted::Made),
                    all_seen: false,
                });
            }
        }
        openers
    }

    /// What is known of a process that has a device open of which these are the users. Other tenants' bytes
    /// do not depend on its word: neither on what its objects are, nor on the names of its libraries.
    fn opener(
        &self,
        pid: u32,
        device: &DeviceRow,
        seen: &Seen<'_>,
        users: &BTreeSet<Option<Tenant<'_>>>,
    ) -> Opener {
        let user = seen
            .processes
            .holder(pid)
            .map_or(User::Stranger(pid), User::Process);
        let Some(told) = self.told(pid, seen) else {
            return Opener {
                user,
                ..Opener::UNKNOWN
            };
        };
        let made = told.process.is_some_and(|process| seen.makers.devx.has(process));
        // What was made in a file that it got is no call of its own.
        let all_seen = !made && !device.searched && seen.makers.saw_all_of(told);
        let doubt = (!all_seen).then_some(if made { Unlisted::Made } else { Unlisted::Unknown });
        let doubt = doubt.filter(|_| told.may_deceive(users));
        let unlisted = seen.makers.of(told, Some(device.uid)).or(doubt);
        Opener {
            user,
            unlisted,
            all_seen: all_seen && unlisted.is_none(),
        }
    }
}

/// Whether data can have moved through it since `last_ns`; `modified`: in whatever state it seems to be.
fn could_carry(qp: &QpRow, last_ns: u64, modified: bool) -> bool {
    if is_of_the_core(qp) {
        return false;
    }
    // RESET, INIT, ERR.
    let able = modified || qp.state.is_none_or(|state| !matches!(state.0, 0 | 1 | 6));
    let changed = changed_ns(qp).is_some_and(|at_ns| at_ns >= last_ns);
    changed || (able && !qp.exited)
}

/// The processes that have a device open on which there may be queue pairs that the kernel does not list.
fn open(seen: &Seen<'_>) -> BTreeSet<u32> {
    let devices = seen.devices.iter().filter(|device| device.may_hide_qps());
    let contexts = devices.filter_map(|device| device.contexts.as_deref());
    contexts.flatten().copied().gather()
}
