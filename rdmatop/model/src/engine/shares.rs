//! Bytes of ports that one process alone can have moved.
//!
//! What a program posts to a NIC bypasses the kernel, and nothing counts it; the NIC's ports count. Where one
//! process alone has queue pairs that can carry data on a port, what the port counted is its. Where several
//! have, each moved at most that, or a part by the PSNs of its queue pairs (`psn_shares.rs`).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    devices::Devices,
    losses::Losses,
    processes::Processes,
    programs::Programs,
    psn_batches::{Batches, Place},
    psn_shares::Way,
    unlisted::{Makers, Tenant, Told},
};
use crate::{
    input::{EbpfState, ProcessFacts, PsnReading},
    judgement::{are_known, is_of_the_core},
    snapshot::{DeviceRow, DeviceState, PortRow, QpRow, Unlisted},
    value::{Counter, RateIs, Source},
};
use rdmatop_base::order::Gather as _;

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
enum User {
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

/// A port, from one snapshot to the next.
#[derive(Debug, Default)]
struct Port {
    /// Bytes sent and received, as the last snapshot had them.
    totals: [Option<u64>; 2],
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
            let lives = |uid: u64| {
                processes
                    .get(uid)
                    .is_some_and(|process| process.ended_ns.is_none())
            };
            for (user, (last, _)) in &mut self.hidden {
                if matches!(user, User::Process(uid) if lives(*uid)) {
                    *last = now;
                }
            }
        }
        for opener in openers {
            match opener.unlisted {
                Some(why) => {
                    self.hidden.insert(opener.user, (now, why));
                }
                None if self
                    .hidden
                    .get(&opener.user)
                    .is_some_and(|(_, why)| *why == Unlisted::Unknown) =>
                {
                    self.hidden.remove(&opener.user);
                }
                None => {}
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
        let alone = || {
            openers
                .iter()
                .all(|opener| opener.user == *user || opener.all_seen)
        };
        (self.users.contains_key(user) || alone()).then_some(*process)
    }
}

/// What a process moved through a port.
#[derive(Clone, Copy, Debug, Default)]
struct Moved {
    /// Bytes sent and received while it alone can have moved them.
    bytes: [u64; 2],
    /// More may be its.
    short: [bool; 2],
    /// Packets sent, by PSN.
    packets: u64,
}

impl Moved {
    /// Adds what PSNs say of so many seconds.
    fn add(&mut self, way: usize, shown: &Way, process: u64, seconds: f64) {
        let part = shown.part(process);
        self.bytes[way] = self.bytes[way].saturating_add(whole(part.bytes[0] * seconds));
        if way == 0 {
            self.packets = self.packets.saturating_add(whole(part.packets * seconds));
        }
    }
}

/// By how much of its rate a port may have changed since its PSNs were read.
const CHANGED: f64 = 0.1;

/// What is known of a process by its ports.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    /// Bytes sent and received.
    pub(super) bytes: [Counter; 2],
    /// Packets sent, if PSNs say something of them.
    pub(super) packets: Option<Counter>,
    /// The part of its ports' packets that PSNs explain, where bytes are known by them.
    pub(super) explained: Option<f64>,
    /// How much more than the middles of close bounds it may be.
    above: [f64; 2],
}

impl Share {
    /// The sum over no port, to which shares are added.
    const NOTHING: Self = Self {
        bytes: [Counter {
            rate_is: RateIs::Exact,
            ..Counter::whole(0, Some(0.0), Source::Port)
        }; 2],
        packets: None,
        explained: None,
        above: [0.0; 2],
    };

    /// Adds what PSNs say of a process, and returns whether its bytes are known better by that than by the
    /// port, of which they are `rate` at most.
    fn add(&mut self, way: usize, shown: &Way, process: u64, rate: f64) -> bool {
        let part = shown.part(process);
        if way == 0 {
            let before = self.packets.and_then(|packets| packets.rate).unwrap_or_default();
            // Queue pairs that nobody lists have more.
            self.packets = Some(Counter {
                partial: true,
                ..Counter::whole(0, Some(before + part.packets), Source::Psn)
            });
        }
        let (close, most) = (part.close(), part.bytes[1]);
        // The port's rate has changed since: nobody knows by whom.
        let changed = (rate - shown.bytes).abs() > CHANGED * rate;
        if changed || close.is_none() && most >= rate {
            return false;
        }
        let sum = &mut self.bytes[way];
        sum.rate = sum.rate.map(|sum| sum + close.unwrap_or(most));
        sum.source = sum.source.max(Source::Psn);
        match close {
            Some(close) => self.above[way] += most - close,
            None => sum.rate_is = RateIs::AtMost,
        }
        self.explained = Some(self.explained.unwrap_or(1.0).min(shown.explained));
        true
    }
}

/// What a snapshot shows of the users of ports.
struct PortUsers<'a> {
    devices: &'a [DeviceRow],
    ports: &'a [PortRow],
    qps: &'a [Arc<QpRow>],
    processes: &'a Processes,
    makers: &'a Makers,
    /// Records say of each queue pair when it came and went, and none of them was lost.
    records: bool,
    /// Records say of each queue pair when it came and went, but for those that were lost.
    follows: bool,
    /// No record was lost since then, ns.
    told_ns: u64,
    /// Programs are being attached.
    starts: bool,
    now_ns: u64,
}

impl PortUsers<'_> {
    /// Whether the bytes of a port say something of those of its users. Where programs count work requests,
    /// or will in a moment, nobody asks.
    fn is_of_use(&self, port: &PortRow, device: &DeviceRow) -> bool {
        let counts = port.all_of_rdma && port.tx_bytes.or(port.rx_bytes).is_some();
        counts && device.datapath.is_none() && !(device.followed && self.starts)
    }

    /// Whether it is known since when a process has queue pairs that the kernel does not list, or that it has
    /// none.
    fn knows_all_of(&self, process: u64) -> bool {
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

/// Keeps from one snapshot to the next which bytes of ports are whose.
#[derive(Debug, Default)]
pub(super) struct Shares {
    ports: BTreeMap<Place, Port>,
    moved: BTreeMap<(u64, Place), Moved>,
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
    /// Records lost at the last snapshot.
    lost: Option<u64>,
    /// See [`Self::wants_contexts`].
    wants_contexts: bool,
    /// PSNs of ports that several users share.
    batches: Batches,
}

impl Shares {
    /// Two rows turned out to be one process.
    pub(super) fn rename(&mut self, from: u64, to: u64) {
        self.batches.forget();
        for port in self.ports.values_mut() {
            if let Some(last) = port.users.remove(&User::Process(from)) {
                port.users.insert(User::Process(to), last);
            }
            if let Some(last) = port.hidden.remove(&User::Process(from)) {
                port.hidden.insert(User::Process(to), last);
            }
        }
        let of_it: Vec<_> = self.moved.range((from, (0, 0))..(from + 1, (0, 0))).collect();
        let of_it: Vec<_> = of_it.into_iter().map(|(key, moved)| (*key, *moved)).collect();
        for (key, moved) in of_it {
            self.moved.remove(&key);
            let sum = self.moved.entry((to, key.1)).or_default();
            for way in [0, 1] {
                sum.bytes[way] = sum.bytes[way].saturating_add(moved.bytes[way]);
                sum.short[way] |= moved.short[way];
            }
            sum.packets = sum.packets.saturating_add(moved.packets);
        }
    }

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
        let met = self
            .strangers
            .keys()
            .filter(|pid| processes.holder(**pid).is_some());
        let met: Vec<u32> = met.copied().collect();
        met.iter().filter_map(|pid| self.strangers.remove(pid)).collect()
    }

    /// Whether who has devices open decides if bytes are those of a process, as of the last snapshot.
    pub(super) fn wants_contexts(&self) -> bool {
        self.wants_contexts
    }

    /// Takes over PSNs, with what their ports have counted.
    pub(super) fn psns(&mut self, read: Vec<PsnReading>, devices: &mut Devices, now_ns: u64) {
        let mut ports: BTreeMap<Place, BTreeMap<u32, PsnReading>> = BTreeMap::new();
        for qp in read {
            let device = devices.resolve(qp.device_index, None, qp.at_ns);
            if let Some(port) = qp.port {
                ports.entry((device, port)).or_default().insert(qp.qpn, qp);
            }
        }
        for (place, qps) in ports {
            if let Some(totals) = devices.totals(place.0, place.1, now_ns) {
                self.batches.read(place, totals, qps);
            }
        }
    }

    /// Queue pairs whose PSNs are wanted.
    pub(super) fn psns_wanted(&self) -> Arc<BTreeMap<u32, Vec<u32>>> {
        Arc::clone(&self.batches.plan)
    }

    /// Processes whose facts are wanted.
    pub(super) fn take_wanted(&mut self) -> BTreeSet<u32> {
        std::mem::take(&mut self.wanted)
    }

    /// Whether no record was lost since this was last asked.
    fn lost_none(&mut self, lost: u64) -> bool {
        self.lost.replace(lost) == Some(lost)
    }

    /// What is known of each process by its ports, as of a snapshot with these rows.
    pub(super) fn apply(
        &mut self,
        (devices, ports, qps): (&[DeviceRow], &[PortRow], &[Arc<QpRow>]),
        processes: &Processes,
        makers: &Makers,
        programs: &Programs,
        losses: &Losses,
        now_ns: u64,
    ) -> BTreeMap<u64, Share> {
        let records = self.lost_none(losses.records()) && programs.follow_qps();
        self.moved
            .retain(|(process, _), _| processes.get(*process).is_some());
        self.look(&PortUsers {
            devices,
            ports,
            qps,
            processes,
            makers,
            records,
            follows: programs.follow_qps(),
            told_ns: losses.of_records_ns(),
            starts: matches!(programs.ebpf().state, EbpfState::Starting),
            now_ns,
        })
    }

    fn look(&mut self, seen: &PortUsers<'_>) -> BTreeMap<u64, Share> {
        let last_ns = std::mem::replace(&mut self.last_ns, seen.now_ns);
        self.snapshot += 1;
        self.wants_contexts = false;
        if !seen.records {
            self.batches.forget();
        }
        let device = |uid: u64| seen.devices.iter().find(|device| device.uid == uid);
        let ports: Vec<(&PortRow, &DeviceRow)> = seen
            .ports
            .iter()
            .filter_map(|port| Some((port, device(port.device_uid)?)))
            .collect();
        let is_of_use = |(port, device): &(&PortRow, &DeviceRow)| seen.is_of_use(port, device);
        if !ports.iter().any(is_of_use) {
            *self = Self {
                lost: self.lost,
                strangers: std::mem::take(&mut self.strangers),
                asked: std::mem::take(&mut self.asked),
                ..Self::default()
            };
            return BTreeMap::new();
        }
        self.ports.retain(|place, _| {
            let is = |(port, _): &(&PortRow, &DeviceRow)| (port.device_uid, port.port) == *place;
            ports.iter().any(is)
        });
        self.batches.keep(|place| self.ports.contains_key(place));
        for (port, _) in &ports {
            self.ports.entry((port.device_uid, port.port)).or_default();
        }
        let mut sums: BTreeMap<u64, Share> = BTreeMap::new();
        self.users_of_qps(seen, last_ns, &mut sums);
        self.users_of_devx(seen);
        let open = open(seen);
        self.note_makers(seen, &open);
        let mut shared = BTreeMap::new();
        for (port, device) in ports {
            let openers = self.openers(device, seen, &open);
            let asks = self.port(seen, (port, device), &openers, &mut sums);
            if let Some((index, moves)) = device.index.zip(asks) {
                shared.insert((port.device_uid, port.port), (index, moves));
            }
        }
        self.batches.plan(&shared, seen.qps, seen.now_ns);
        let users: BTreeSet<u64> = sums.keys().copied().gather();
        for ((process, place), moved) in &self.moved {
            // Before its first queue pair that is listed it may have had others.
            let may_hide =
                device(place.0).is_some_and(DeviceRow::may_hide_qps) && !seen.knows_all_of(*process);
            let port = self.ports.get(place);
            let is_open_to_anybody = port.is_some_and(|port| port.hidden.contains_key(&User::Unknown));
            let sums = sums.entry(*process).or_insert(Share::NOTHING);
            for way in [0, 1] {
                let sum = &mut sums.bytes[way];
                if may_hide && is_open_to_anybody && !users.contains(process) {
                    sum.rate = None;
                }
                sum.total = sum.total.saturating_add(moved.bytes[way]);
                sum.partial |= moved.short[way] || may_hide;
            }
            if let Some(packets) = &mut sums.packets {
                packets.total = packets.total.saturating_add(moved.packets);
            }
        }
        for (sum, above) in sums
            .values_mut()
            .flat_map(|share| share.bytes.iter_mut().zip(share.above))
        {
            match sum.rate {
                None => sum.rate_is = RateIs::Exact,
                Some(rate) if sum.rate_is == RateIs::AtMost => sum.rate = Some(rate + above),
                Some(_) => {}
            }
        }
        sums
    }

    /// Notes whose queue pairs can carry data, or could since the last snapshot. Of a process with one on a
    /// port that is not known, nothing is known.
    fn users_of_qps(&mut self, seen: &PortUsers<'_>, last_ns: u64, sums: &mut BTreeMap<u64, Share>) {
        let last = Last {
            snapshot: self.snapshot,
            at_ns: seen.now_ns,
        };
        let modified = seen
            .devices
            .iter()
            .filter(|device| seen.makers.modified_some_of(device));
        let modified: BTreeSet<Option<u64>> = modified.map(|device| Some(device.uid)).gather();
        let carries = |qp: &&Arc<QpRow>| could_carry(qp, last_ns, modified.contains(&qp.device_uid));
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
                for sum in &mut sums.entry(process).or_insert(Share::NOTHING).bytes {
                    (sum.rate, sum.partial) = (None, true);
                }
            }
            for (_, port) in known {
                port.users.insert(user, last);
            }
        }
    }

    /// Notes who has queue pairs that the kernel does not list and whose making was seen. The port of such a
    /// queue pair is not known.
    fn users_of_devx(&mut self, seen: &PortUsers<'_>) {
        let last = Last {
            snapshot: self.snapshot,
            at_ns: seen.now_ns,
        };
        for (process, device) in &seen.makers.carriers {
            for (_, port) in self.ports.range_mut((*device, 0)..=(*device, u32::MAX)) {
                port.users.insert(User::Process(*process), last);
            }
        }
    }

    /// Notes who makes objects past the kernel, and asks about processes that have a device open: about each
    /// without a row once, and again where it may have loaded a library since.
    fn note_makers(&mut self, seen: &PortUsers<'_>, open: &BTreeSet<u32>) {
        let last = Last {
            snapshot: self.snapshot,
            at_ns: seen.now_ns,
        };
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

    fn told<'a>(&'a self, pid: u32, seen: &PortUsers<'a>) -> Option<Told<'a>> {
        match seen.processes.holder(pid) {
            Some(uid) => seen.processes.get(uid).map(Told::from),
            None => self.strangers.get(&pid).map(Told::from),
        }
    }

    /// Who has a device open on which there may be queue pairs that the kernel does not list, and who made
    /// objects there.
    fn openers(&self, device: &DeviceRow, seen: &PortUsers<'_>, open: &BTreeSet<u32>) -> Vec<Opener> {
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
        let now = Last {
            snapshot: self.snapshot,
            at_ns: seen.now_ns,
        };
        for (process, (_, last)) in &self.makers {
            let Some(row) = seen.processes.get(*process) else {
                continue;
            };
            let has_none_open = !row.pid.is_some_and(|pid| open.contains(&pid));
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
        seen: &PortUsers<'_>,
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
        let made = told
            .process
            .is_some_and(|process| seen.makers.all.contains(&process));
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

    /// Adds what a port says to the sums of its users. Where PSNs would say more, because several users share
    /// it, returns whether it moves.
    fn port(
        &mut self,
        seen: &PortUsers<'_>,
        (row, device): (&PortRow, &DeviceRow),
        openers: &[Opener],
        sums: &mut BTreeMap<u64, Share>,
    ) -> Option<bool> {
        let place = (row.device_uid, row.port);
        let port = self.ports.get_mut(&place)?;
        let last = Last {
            snapshot: self.snapshot,
            at_ns: seen.now_ns,
        };
        port.may_hide(openers, last, seen.processes);
        let users = port.lately(last);
        let all_known = seen.records
            && row.rdma_alone
            && device.state == Some(DeviceState::Registered)
            && are_known(seen.qps, device);
        let sole = port.sole(&users, openers).filter(|_| all_known);
        let of_use = seen.is_of_use(row, device);
        let processes = port.users.keys().filter(|user| matches!(user, User::Process(_)));
        self.wants_contexts |= of_use
            && all_known
            && seen.makers.since_ns.is_some()
            && device.may_hide_qps()
            && processes.count() >= 1;
        let may_ask = of_use && seen.follows && sole.is_none() && users.len() > 1 && row.ib_packets;
        // Path MTUs and PSNs may be others than modifies said.
        let may_ask = may_ask && !seen.makers.modified_some_of(device);
        let batches = Some(&mut self.batches).filter(|_| may_ask);
        let all_listed = all_known && port.hidden.is_empty() && !seen.makers.carry(device.uid);
        let knows = (seen.told_ns, all_listed);
        let shown = batches.and_then(|batches| batches.look(place, seen.qps, knows, seen.now_ns));
        let new_seconds = shown
            .as_ref()
            .filter(|shown| shown.is_new)
            .map(|shown| shown.seconds);
        let mut moves = false;
        for (way, counter) in [row.tx_bytes, row.rx_bytes].into_iter().enumerate() {
            let whole = counter.filter(|counter| of_use && !counter.partial);
            let now = whole.map(|counter| counter.total);
            let before = std::mem::replace(&mut port.totals[way], now);
            let delta = now.zip(before).and_then(|(now, before)| now.checked_sub(before));
            for user in &users {
                let User::Process(process) = *user else { continue };
                let moved = self.moved.entry((process, place)).or_default();
                match delta {
                    Some(delta) if sole.is_some() => {
                        moved.bytes[way] = moved.bytes[way].saturating_add(delta);
                    }
                    Some(0) => {}
                    _ => moved.short[way] = true,
                }
                let share = sums.entry(process).or_insert(Share::NOTHING);
                let rate = whole.and_then(|counter| counter.rate);
                moves |= rate != Some(0.0);
                if let Some((shown, rate)) = shown
                    .as_deref()
                    .and_then(|shown| shown.ways[way].as_ref())
                    .zip(rate.filter(|rate| *rate > 0.0))
                {
                    if let Some(seconds) = new_seconds {
                        moved.add(way, shown, process, seconds);
                    }
                    if share.add(way, shown, process, rate) {
                        continue;
                    }
                }
                let sum = &mut share.bytes[way];
                sum.rate = sum.rate.zip(rate).map(|(sum, rate)| sum + rate);
                if sole.is_none() && rate != Some(0.0) {
                    sum.rate_is = RateIs::AtMost;
                }
            }
        }
        if let Some(shown) = shown {
            shown.is_new = false;
        }
        (may_ask && row.tx_packets.is_some()).then_some(moves)
    }
}

/// Cuts a count to a whole number; one that is too large becomes the largest.
fn whole(count: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a cast from float to integer saturates"
    )]
    let whole = count as u64;
    whole
}

/// Whether data can have moved through it since `last_ns`; `modified`: in whatever state it seems to be.
fn could_carry(qp: &QpRow, last_ns: u64, modified: bool) -> bool {
    if is_of_the_core(qp) {
        return false;
    }
    // RESET, INIT, ERR.
    let able = modified || qp.state.is_none_or(|state| !matches!(state.0, 0 | 1 | 6));
    let step = qp.timeline.last().map(|step| step.mono_ns);
    let changed = step.max(qp.born_mono_ns).is_some_and(|at_ns| at_ns >= last_ns);
    changed || (able && !qp.exited)
}

/// The processes that have a device open on which there may be queue pairs that the kernel does not list.
fn open(seen: &PortUsers<'_>) -> BTreeSet<u32> {
    let devices = seen.devices.iter().filter(|device| device.may_hide_qps());
    let contexts = devices.filter_map(|device| device.contexts.as_deref());
    contexts.flatten().copied().gather()
}

#[cfg(test)]
mod tests {
    use super::{
        super::psn_shares::{PortRates, QpRates, ways},
        *,
    };

    #[test]
    fn a_share_holds_while_the_port_moves_as_much_as_when_psns_were_read() {
        let qp = |user| QpRates {
            user: Some(user),
            psns: [50_000.0, 0.0],
            path_mtu: Some(4096),
            is_ipv4: false,
            may_read: false,
        };
        let port = PortRates {
            packets: [100_000.0, 0.0],
            bytes: [4.17e8, 0.0],
            no_reads: true,
            answers: [false; 2],
            has_ethernet: true,
            between: [0.0; 2],
        };
        let [Some(way), _] = ways(&port, &[qp(1), qp(2)]) else {
            panic!("the packets are explained")
        };
        let holds = |rate: f64| {
            let mut share = Share::NOTHING;
            share.add(0, &way, 1, rate)
        };
        assert!(holds(4.17e8) && holds(4.4e8) && holds(4.0e8));
        assert!(!holds(5e8) && !holds(3.5e8));
    }
}
