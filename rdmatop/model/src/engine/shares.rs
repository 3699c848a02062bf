//! Bytes of ports that one process alone can have moved.
//!
//! What a program posts to a NIC bypasses the kernel, and nothing counts it; the NIC's ports count. Where one
//! process alone has queue pairs that can carry data on a port, what the port counted is its. Where several
//! have, each moved at most that.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    driver_verbs::DEVX_CREATE, losses::Losses, processes::Processes, programs::Programs, verbs::Verbs,
};
use crate::{
    input::EbpfState,
    judgement::{are_known, is_of_the_core},
    snapshot::{DeviceRow, DeviceState, PortRow, QpRow},
    value::{Counter, RateIs, Source},
};

/// Who was last seen able to move data less than this ago may have moved what a counter shows, ns: a rate is
/// shown that long after its reading (`is_stale`, for a second between two readings).
const LINGER: u64 = 5_000_000_000;
/// The same in snapshots: counters and queue pairs are not read at one time.
const SNAPSHOTS: u64 = 3;
/// Libraries that make queue pairs past the kernel on mlx5 (DEVX), by the beginnings of their names.
const MAKES_ITS_OWN: [&str; 3] = ["libnvshmem", "libdoca_", "libuct"];

/// A device's uid and the number of a port.
type Place = (u64, u32);

/// Whose a queue pair is, or may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum User {
    /// A process or a kernel consumer, by its uid.
    Process(u64),
    /// Nobody knows whose it is.
    Unknown,
}

/// When somebody was last seen able to use a port.
#[derive(Clone, Copy, Debug)]
struct Last {
    snapshot: u64,
    at_ns: u64,
}

/// A port, from one snapshot to the next.
#[derive(Debug, Default)]
struct Port {
    /// Bytes sent and received, as the last snapshot had them.
    totals: [Option<u64>; 2],
    /// The users whose queue pairs can carry data.
    users: BTreeMap<User, Last>,
    /// The users who may have queue pairs that the kernel does not list.
    hidden: BTreeMap<User, Last>,
}

impl Port {
    /// Forgets who was last seen long ago, and returns the others.
    fn lately(&mut self, now: Last) -> BTreeSet<User> {
        let is_late = |_: &User, seen: &mut Last| {
            now.snapshot - seen.snapshot < SNAPSHOTS || now.at_ns - seen.at_ns < LINGER
        };
        self.users.retain(is_late);
        self.hidden.retain(is_late);
        self.users.keys().chain(self.hidden.keys()).copied().collect()
    }

    /// The process that alone can have moved what the port counted. Whose queue pairs nobody lists may be any
    /// process that has the device open, of whatever library: only where that is one process is it certain.
    fn sole(&self, users: &BTreeSet<User>, device: &DeviceRow) -> Option<u64> {
        let mut all = users.iter();
        let (Some(User::Process(process)), None) = (all.next(), all.next()) else {
            return None;
        };
        let listed = self.users.contains_key(&User::Process(*process));
        let alone = device
            .contexts
            .as_ref()
            .is_some_and(|contexts| contexts.len() == 1);
        (listed || alone).then_some(*process)
    }
}

/// What a process moved through a port.
#[derive(Clone, Copy, Debug, Default)]
struct Moved {
    /// Bytes sent and received while it alone can have moved them.
    bytes: [u64; 2],
    /// More may be its.
    short: [bool; 2],
}

/// What is known of the bytes that a process sent and received, by its ports.
pub(super) type Share = [Counter; 2];

/// Returns the sum over no port, to which shares are added.
const NOTHING: Counter = Counter {
    rate_is: RateIs::Exact,
    ..Counter::whole(0, Some(0.0), Source::Port)
};

/// What a snapshot shows of the users of ports.
struct Seen<'a> {
    devices: &'a [DeviceRow],
    ports: &'a [PortRow],
    qps: &'a [Arc<QpRow>],
    /// Returns the uid of a process, and whether its libraries make queue pairs that the kernel does not
    /// list.
    process: &'a dyn Fn(u32) -> Option<(u64, bool)>,
    /// The processes that were seen to make objects past the kernel, on whatever device; `None` where such a
    /// call may have been missed.
    devx: Option<Vec<u64>>,
    /// Records say of each queue pair when it came and went, and none of them was lost.
    records: bool,
    /// Programs are being attached.
    starts: bool,
    now_ns: u64,
}

impl Seen<'_> {
    /// Whether the bytes of a port say something of those of its users. Where programs count work requests,
    /// or will in a moment, nobody asks.
    fn is_of_use(&self, port: &PortRow, device: &DeviceRow) -> bool {
        let counts = port.all_of_rdma && port.tx_bytes.or(port.rx_bytes).is_some();
        counts && device.datapath.is_none() && !(device.followed && self.starts)
    }
}

/// Keeps from one snapshot to the next which bytes of ports are whose.
#[derive(Debug, Default)]
pub(super) struct Shares {
    ports: BTreeMap<Place, Port>,
    moved: BTreeMap<(u64, Place), Moved>,
    snapshot: u64,
    last_ns: u64,
    /// Records lost at the last snapshot.
    lost: Option<u64>,
}

impl Shares {
    /// Two rows turned out to be one process.
    pub(super) fn rename(&mut self, from: u64, to: u64) {
        let ports = self.ports.values_mut();
        for seen in ports.flat_map(|port| [&mut port.users, &mut port.hidden]) {
            if let Some(last) = seen.remove(&User::Process(from)) {
                seen.insert(User::Process(to), last);
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
        }
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
        verbs: &Verbs,
        programs: &Programs,
        losses: &Losses,
        now_ns: u64,
    ) -> BTreeMap<u64, Share> {
        let records = self.lost_none(losses.records()) && programs.follow_qps();
        self.moved
            .retain(|(process, _), _| processes.get(*process).is_some());
        let process = |pid: u32| {
            let uid = processes.holder(pid)?;
            let libraries = processes.get(uid)?.facts.libraries.as_ref();
            let libraries = libraries.map(|libraries| libraries.as_slice());
            Some((uid, makes_its_own(libraries)))
        };
        let all_verbs = !losses.verbs_incomplete();
        self.look(&Seen {
            devices,
            ports,
            qps,
            process: &process,
            devx: all_verbs.then(|| verbs.callers_of(DEVX_CREATE).collect()),
            records,
            starts: matches!(programs.ebpf().state, EbpfState::Starting),
            now_ns,
        })
    }

    fn look(&mut self, seen: &Seen<'_>) -> BTreeMap<u64, Share> {
        let last_ns = std::mem::replace(&mut self.last_ns, seen.now_ns);
        self.snapshot += 1;
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
                ..Self::default()
            };
            return BTreeMap::new();
        }
        self.ports.retain(|place, _| {
            let is = |(port, _): &(&PortRow, &DeviceRow)| (port.device_uid, port.port) == *place;
            ports.iter().any(is)
        });
        for (port, _) in &ports {
            self.ports.entry((port.device_uid, port.port)).or_default();
        }
        let mut sums: BTreeMap<u64, Share> = BTreeMap::new();
        self.users_of_qps(seen, last_ns, &mut sums);
        for (port, device) in ports {
            self.port(seen, port, device, &mut sums);
        }
        for ((process, _), moved) in &self.moved {
            let sums = sums.entry(*process).or_insert([NOTHING; 2]);
            for way in [0, 1] {
                sums[way].total = sums[way].total.saturating_add(moved.bytes[way]);
                sums[way].partial |= moved.short[way];
            }
        }
        for sum in sums.values_mut().flatten().filter(|sum| sum.rate.is_none()) {
            sum.rate_is = RateIs::Exact;
        }
        sums
    }

    /// Notes whose queue pairs can carry data, or could since the last snapshot. Of a process with one on a
    /// port that is not known, nothing is known.
    fn users_of_qps(&mut self, seen: &Seen<'_>, last_ns: u64, sums: &mut BTreeMap<u64, Share>) {
        let last = Last {
            snapshot: self.snapshot,
            at_ns: seen.now_ns,
        };
        for qp in seen.qps.iter().filter(|qp| could_carry(qp, last_ns)) {
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
                for sum in sums.entry(process).or_insert([NOTHING; 2]) {
                    (sum.rate, sum.partial) = (None, true);
                }
            }
            for (_, port) in known {
                port.users.insert(user, last);
            }
        }
    }

    /// Adds what a port says to the sums of its users.
    fn port(&mut self, seen: &Seen<'_>, row: &PortRow, device: &DeviceRow, sums: &mut BTreeMap<u64, Share>) {
        let place = (row.device_uid, row.port);
        let Some(port) = self.ports.get_mut(&place) else {
            return;
        };
        let last = Last {
            snapshot: self.snapshot,
            at_ns: seen.now_ns,
        };
        port.hidden
            .extend(hidden_users(device, seen).into_iter().map(|user| (user, last)));
        let users = port.lately(last);
        let all_known = seen.records
            && row.rdma_alone
            && device.state == Some(DeviceState::Registered)
            && are_known(seen.qps, device);
        let sole = port.sole(&users, device).filter(|_| all_known);
        let of_use = seen.is_of_use(row, device);
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
                let sum = &mut sums.entry(process).or_insert([NOTHING; 2])[way];
                let rate = whole.and_then(|counter| counter.rate);
                sum.rate = sum.rate.zip(rate).map(|(sum, rate)| sum + rate);
                if sole.is_none() && rate != Some(0.0) {
                    sum.rate_is = RateIs::AtMost;
                }
            }
        }
    }
}

/// Whether data can have moved through it since `last_ns`.
fn could_carry(qp: &QpRow, last_ns: u64) -> bool {
    if is_of_the_core(qp) {
        return false;
    }
    // RESET, INIT, ERR.
    let able = qp.state.is_none_or(|state| !matches!(state.0, 0 | 1 | 6));
    let step = qp.timeline.last().map(|step| step.mono_ns);
    let changed = step.max(qp.born_mono_ns).is_some_and(|at_ns| at_ns >= last_ns);
    changed || (able && !qp.exited)
}

/// Who may have queue pairs on a device that the kernel does not list.
fn hidden_users(device: &DeviceRow, seen: &Seen<'_>) -> Vec<User> {
    if !device.may_hide_qps() {
        return Vec::new();
    }
    let (Some(contexts), Some(devx)) = (&device.contexts, &seen.devx) else {
        return vec![User::Unknown];
    };
    let user = |pid: &u32| match (seen.process)(*pid) {
        None => Some(User::Unknown),
        Some((process, hides)) => hides.then_some(User::Process(process)),
    };
    // One that made objects may have closed the device again between two readings.
    let made = devx.iter().map(|process| User::Process(*process));
    contexts.iter().filter_map(user).chain(made).collect()
}

/// Whether a process with these libraries may make queue pairs past the kernel; one whose libraries are not
/// known may.
pub(crate) fn makes_its_own(libraries: Option<&[String]>) -> bool {
    let own = |library: &String| MAKES_ITS_OWN.iter().any(|name| library.starts_with(name));
    libraries.is_none_or(|libraries| libraries.iter().any(own))
}
