//! The rules: each looks at one snapshot and names symptoms.

mod direct;
mod far;
mod flaps;
mod growth;
mod headroom;
mod lag;
mod latency;
mod link;
mod loss;
mod nic;
mod objects;
mod pauses;
mod qps;
mod rails;
mod receiver;
mod requests;
mod share;
mod tcp;
mod unanswered;
mod verbs;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{About, Finding, FindingId, Limits};
use crate::facts::{DeviceRow, Facts, PortRow, ProcessRow, QpRow, Unlisted, VerbRow};
use crate::ib::QpType;
use crate::judgement::{Judgement, Peer, is_of_the_core};
use crate::value::{Counter, Known};
use rdmatop_base::order::Gather as _;
use rdmatop_base::step::{NextStep, ShellWord, step};

pub(super) use growth::RuleHistory;
pub(super) use latency::LATENCIES_S;
pub(super) use link::LINK_DOWNED;

pub(super) struct RuleContext<'a> {
    pub(super) facts: &'a Facts,
    pub(super) judgement: &'a Judgement,
    pub(super) limits: &'a Limits,
    pub(super) history: &'a RuleHistory,
}

impl<'a> RuleContext<'a> {
    pub(super) fn process(&self, uid: u64) -> Option<&'a ProcessRow> {
        self.facts.processes.iter().find(|row| row.uid == uid)
    }

    pub(super) fn device(&self, uid: u64) -> Option<&'a DeviceRow> {
        self.facts.devices.iter().find(|row| row.uid == uid)
    }

    fn port(&self, device_uid: u64, number: u32) -> Option<&'a PortRow> {
        let is_it = |row: &&PortRow| (row.device_uid, row.port) == (device_uid, number);
        self.facts.ports.iter().find(is_it)
    }

    fn driver(&self, port: &PortRow) -> Option<&'a str> {
        self.device(port.device_uid)?.driver.as_deref()
    }

    /// Processes with QPs on a device now, without those that only used it before.
    fn users(&self, device: &str) -> impl Iterator<Item = &'a ProcessRow> {
        self.holders(device).filter(|row| row.qps > 0)
    }

    /// Processes that have a device open and make QPs past the kernel (DEVX), which are in no list, or have a
    /// library for it.
    fn openers(&self, device_uid: u64) -> impl Iterator<Item = &'a ProcessRow> {
        let device = self.device(device_uid).filter(|device| device.may_hide_qps());
        let pids = device
            .and_then(|device| device.contexts.as_deref())
            .unwrap_or_default();
        let makes_own = |row: &ProcessRow| matches!(row.unlisted, Some(Unlisted::Made | Unlisted::Library));
        live(self.facts)
            .filter(move |row| row.pid.is_some_and(|pid| pids.contains(&pid)))
            .filter(move |row| makes_own(row))
    }

    fn holders(&self, device: &str) -> impl Iterator<Item = &'a ProcessRow> {
        live(self.facts).filter(move |row| row.devices.iter().any(|name| &**name == device))
    }

    /// Modules of the kernel with connected QPs on a port.
    fn consumers(&self, port: &PortRow) -> Vec<&'a ProcessRow> {
        let uids = self.history.consumers.get(&(port.device_uid, port.port));
        uids.into_iter()
            .flatten()
            .filter_map(|uid| self.process(*uid))
            .collect()
    }

    /// Whose packets a port carries: processes with QPs on its device, else what the kernel has there.
    fn carried(&self, port: &PortRow) -> Vec<&'a ProcessRow> {
        let holders: Vec<_> = self.holders(&port.device).collect();
        if holders.is_empty() {
            return self.consumers(port);
        }
        holders
    }

    /// Other ranks of the jobs of `users`, which use a port that is down: those that are seen to move
    /// nothing. What started them tells which processes are of one job. Of these a rank is one that has QPs,
    /// and runs the program of a user with a library of collectives or is connected to a user's QP on
    /// `device_uid`.
    fn ranks_behind(&self, device_uid: u64, users: &[&ProcessRow]) -> Vec<&'a ProcessRow> {
        let jobs: BTreeSet<_> = users.iter().filter_map(|row| row.job()).gather();
        if jobs.is_empty() {
            return Vec::new();
        }
        let user_uids: BTreeSet<_> = users.iter().map(|row| row.uid).gather();
        // What is not known to be 0 may move; at most 0 is 0.
        let is_zero = |counter: Option<Counter>| {
            counter.is_some_and(|c| c.rate == Some(0.0) && c.rate_known() != Known::AtLeast)
        };
        let is_still = |row: &ProcessRow| {
            let traffic = &row.traffic;
            is_zero(traffic.tx_bytes) && is_zero(traffic.rx_bytes) && growing(traffic.tx_wr).is_none()
        };
        let is_like = |row: &ProcessRow, user: &ProcessRow| {
            row.comm == user.comm && is_collective(row) && is_collective(user) && row.job() == user.job()
        };
        let connected = self.connected_to(device_uid, &user_uids);
        live(self.facts)
            .filter(|row| row.qps > 0 && !user_uids.contains(&row.uid) && is_still(row))
            .filter(|row| row.job().is_some_and(|job| jobs.contains(job)))
            .filter(|row| users.iter().any(|user| is_like(row, user)) || connected.contains(&row.uid))
            .collect()
    }

    /// Processes with a QP whose peer is surely a QP of one of `users` on a device of this host.
    fn connected_to(&self, device_uid: u64, users: &BTreeSet<u64>) -> BTreeSet<u64> {
        let leads_there = |qp: &&QpRow| match self.peer_of(qp) {
            Some(Peer::Here { qp: peer, sure: true }) => {
                peer.device_uid == Some(device_uid)
                    && peer.process_uid.is_some_and(|uid| users.contains(&uid))
            }
            _ => false,
        };
        let qps = self.live_qps().filter(leads_there);
        qps.filter_map(|qp| qp.process_uid).gather()
    }

    /// The process of a row in which the uid may be unknown.
    fn owner(&self, uid: Option<u64>) -> Option<&'a ProcessRow> {
        self.process(uid?)
    }

    fn calls_of(&self, verb: &'static str) -> impl Iterator<Item = &'a VerbRow> {
        self.facts.verbs.iter().filter(move |row| &*row.verb == verb)
    }

    fn qps_on(&self, device_uid: u64) -> impl Iterator<Item = &'a QpRow> {
        let qps = self.facts.qps.iter().map(|qp| &**qp);
        qps.filter(move |qp| qp.device_uid == Some(device_uid))
    }

    fn live_qps(&self) -> impl Iterator<Item = &'a QpRow> {
        let qps = self.facts.qps.iter().map(|qp| &**qp);
        qps.filter(|qp| !qp.exited)
    }

    fn qps_of(&self, process_uid: u64) -> impl Iterator<Item = &'a QpRow> + Clone {
        let qps = self.facts.qps.iter().map(|qp| &**qp);
        qps.filter(move |qp| qp.process_uid == Some(process_uid))
    }

    fn active_ports(&self) -> impl Iterator<Item = &'a PortRow> {
        self.facts.ports.iter().filter(|port| port.is_active())
    }

    /// ACTIVE ports of the same kind of fabric as a port, of devices in the network namespace `netns`: a
    /// program finds no others. `None` is rdmatop's own, and that of the shell that a command is typed into.
    fn active_ports_like(&self, port: &PortRow, netns: Option<u64>) -> impl Iterator<Item = &'a PortRow> {
        self.active_ports().filter(move |other| {
            let device = self.device(other.device_uid);
            other.link_layer == port.link_layer && device.is_some_and(|device| device.netns == netns)
        })
    }

    /// Who is at the other end of a QP.
    fn peer_of(&self, qp: &QpRow) -> Option<Peer<'a>> {
        self.judgement.peer(self.facts, qp)
    }

    /// The QP at the other end, if it is on this host.
    fn peer(&self, qp: &QpRow) -> Option<&'a QpRow> {
        match self.peer_of(qp)? {
            Peer::Here { qp, .. } => Some(qp),
            Peer::At(_) => None,
        }
    }

    /// Whether all ports of these devices are of InfiniBand, where the kernel resolves no address by ARP.
    fn only_infiniband<'b>(&self, devices: impl Iterator<Item = &'b str>) -> bool {
        let devices: BTreeSet<&str> = devices.gather();
        let ports = self.facts.ports.iter();
        let mut ports = ports.filter(|port| devices.contains(&*port.device)).peekable();
        ports.peek().is_some() && ports.all(link::is_infiniband)
    }

    /// The same of the devices of a process.
    fn is_on_infiniband(&self, row: &ProcessRow) -> bool {
        self.only_infiniband(row.devices.iter().map(|name| &**name))
    }

    /// A symptom that rates of this snapshot show; its words are still empty.
    fn finding(&self, id: FindingId, about: About) -> Finding {
        Finding::of(id, about, self.interval_begin())
    }

    /// Begin of the interval for which rates are computed, ns.
    fn interval_begin(&self) -> u64 {
        let interval = self.facts.interval_ns.unwrap_or(0);
        self.facts.mono_ns.saturating_sub(interval)
    }
}

/// Whether a process has loaded a library by which ranks wait for one another.
fn is_collective(row: &ProcessRow) -> bool {
    has_one_of(row, &["libnccl", "librccl", "libmpi", "libnvshmem", "libsharp"])
}

/// Whether a process has loaded a library whose name begins so.
fn has_one_of(row: &ProcessRow, names: &[&str]) -> bool {
    let libraries = row.libraries.iter().flat_map(|all| all.iter());
    libraries
        .into_iter()
        .any(|library| names.iter().any(|known| library.starts_with(known)))
}

/// Modules of the kernel with connected QPs, as NVMe-oF, NFS and Lustre have, by device and port. QPs for
/// management and those of IPoIB, in mode `connected` of this type too, are for other things than RDMA.
type Consumers = BTreeMap<(u64, u32), BTreeSet<u64>>;

fn consumers(facts: &Facts) -> Consumers {
    let is_of_use = |qp: &&Arc<QpRow>| {
        qp.kernel
            && !qp.exited
            && matches!(qp.qp_type, Some(QpType::RC | QpType::UC))
            && !is_of_the_core(qp)
            && qp.comm.as_deref() != Some("[ib_ipoib]")
    };
    let mut all = Consumers::new();
    for qp in facts.qps.iter().filter(is_of_use) {
        if let (Some(device), Some(port), Some(uid)) = (qp.device_uid, qp.port, qp.process_uid) {
            all.entry((device, port)).or_default().insert(uid);
        }
    }
    all
}

/// Processes that have not ended, without kernel consumers.
fn live(facts: &Facts) -> impl Iterator<Item = &ProcessRow> {
    let rows = facts.processes.iter();
    rows.filter(|row| !row.kernel && !row.exited)
}

/// The rate of a counter if it is certain that the counter grows.
fn growing(counter: Option<Counter>) -> Option<f64> {
    counter.and_then(Counter::certain_rate).filter(|rate| *rate > 0.0)
}

/// A rule, by what it looks at.
enum Rule {
    Port(for<'a> fn(&RuleContext<'a>, &'a PortRow) -> Option<Finding>),
    /// A process, also one that has ended, or a module of the kernel.
    Process(for<'a> fn(&RuleContext<'a>, &'a ProcessRow) -> Option<Finding>),
    Device(for<'a> fn(&RuleContext<'a>, &'a DeviceRow) -> Option<Finding>),
    /// Calls of this verb by a process.
    Calls(&'static str, fn(&RuleContext<'_>, &VerbRow) -> Option<Finding>),
    Whole(fn(&RuleContext<'_>, &mut Vec<Finding>)),
}

const RULES: &[Rule] = &[
    Rule::Whole(receiver::not_ready),
    Rule::Port(receiver::of_port),
    Rule::Whole(qps::stuck),
    Rule::Whole(qps::completions),
    Rule::Process(qps::overflows),
    Rule::Whole(verbs::fail),
    Rule::Calls("reg_mr", verbs::churn),
    Rule::Calls("create_qp", verbs::reconnects),
    Rule::Process(objects::leak),
    Rule::Process(objects::growth),
    Rule::Process(objects::nearly_all),
    Rule::Whole(headroom::devices),
    Rule::Device(objects::removal),
    Rule::Port(link::state),
    Rule::Whole(link::errors),
    Rule::Whole(requests::failed),
    Rule::Port(requests::unresponsive),
    Rule::Port(flaps::flaps),
    Rule::Port(loss::loss),
    Rule::Port(link::congestion),
    Rule::Whole(pauses::storm),
    Rule::Port(pauses::class),
    Rule::Port(link::waits),
    Rule::Port(link::mtu),
    Rule::Whole(link::path_mtu),
    Rule::Process(qps::full),
    Rule::Process(latency::rises),
    Rule::Port(link::commands),
    Rule::Device(nic::pcie),
    Rule::Device(nic::logged),
    Rule::Whole(nic::roce_v1),
    Rule::Calls("modify_qp", nic::setup),
    Rule::Whole(rails::slow),
    Rule::Whole(rails::load),
    Rule::Whole(share::queue_pairs),
    Rule::Process(far::nic),
    Rule::Process(direct::none),
    Rule::Port(lag::sends),
    Rule::Port(lag::receives),
    Rule::Port(lag::without_link),
    Rule::Process(tcp::fallback),
];

pub(super) fn all(ctx: &RuleContext<'_>) -> Vec<Finding> {
    let (facts, mut out) = (ctx.facts, Vec::new());
    for rule in RULES {
        match rule {
            Rule::Port(rule) => out.extend(facts.ports.iter().filter_map(|row| rule(ctx, row))),
            Rule::Process(rule) => out.extend(facts.processes.iter().filter_map(|row| rule(ctx, row))),
            Rule::Device(rule) => out.extend(facts.devices.iter().filter_map(|row| rule(ctx, row))),
            Rule::Calls(verb, rule) => out.extend(ctx.calls_of(verb).filter_map(|row| rule(ctx, row))),
            Rule::Whole(rule) => rule(ctx, &mut out),
        }
    }
    for symptom in &mut out {
        if let Some(next) = there(ctx, symptom) {
            symptom.next = next;
        }
    }
    out
}

/// What to do about a device of another network namespace: its commands find it there alone. `sminfo` is not
/// of them: it names a port of the own namespace.
fn there(ctx: &RuleContext<'_>, symptom: &Finding) -> Option<NextStep> {
    const OF_NETNS: &str = "dcb ethtool iblinkinfo ibstat ibv_devinfo ip mlnx_qos nft rdma tc";
    let mut words = symptom.next.split_whitespace();
    if !words.any(|word| OF_NETNS.split(' ').any(|command| command == word)) {
        return None;
    }
    let process = symptom.about.process.and_then(|uid| ctx.process(uid));
    let named = |device: &&DeviceRow| process.is_some_and(|row| row.devices.contains(&device.name));
    let device = match symptom.about.device {
        Some(uid) => ctx.device(uid),
        None => ctx.facts.devices.iter().find(named),
    }?;
    let pid = device.netns_pid?;
    Some(step!(
        "{}   # {} is in the network namespace of PID {}: run each command behind sudo nsenter -t {} -n, and ibstat, ibv_devinfo and iblinkinfo, which read /sys, in its container",
        symptom.next,
        ShellWord::said(&device.name),
        pid,
        pid
    ))
}
