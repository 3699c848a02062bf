//! Two processes on one port that get shares by their numbers of queue pairs.

use std::collections::BTreeMap;

use super::{RuleContext, growing, link};
use crate::facts::{PortRow, ProcessRow, QpRow};
use crate::findings::{About, Finding, FindingId, Limits, words};
use crate::ib::QpState;
use crate::value::{Counter, Known, Source};
use rdmatop_base::order::{Gather as _, Ordered as _};
use rdmatop_base::step::{NextStep, ShellWord, step};
use rdmatop_common::provider::Counted;

/// The process that gets more must have this many times the QPs; with fewer they are not the reason.
const QPS: f64 = 4.0;
/// QPs of both count as served alike if one sends at most this many times as much as the other.
const ALIKE: f64 = 4.0;
/// The same on a full port of a NIC, which serves its QPs in turn and does not say how many work requests
/// wait. A process that wants less than its QPs could have is rarely so near.
const ALIKE_IF_FULL: f64 = 1.25;
/// Share of its link's rate that a full port sends.
const FULL: f64 = 0.9;
/// Fewest work requests that wait in each QP. A program that posts the next request only when one is done has
/// fewer: it waits for answers, not for the port.
const DEEP: u64 = 4;

/// The QPs of one process that send on a port.
#[derive(Clone, Copy, Debug, Default)]
struct Sender {
    process: u64,
    qps: u32,
    /// An upper bound where `at_most`.
    bytes_per_s: f64,
    at_most: bool,
    /// Packets per second by PSNs, where `bytes_per_s` is a share.
    packets_per_s: Option<f64>,
    /// Lower bound of the work requests that are posted and not finished, of all these QPs together.
    waiting: u64,
    /// The port is full: whoever sends there is taken to wait.
    full: bool,
    /// Some of its QPs are not counted, or wait for a receiver; other rules report those.
    unsure: bool,
}

impl Sender {
    fn add(&mut self, qp: &QpRow, bytes_per_s: f64) {
        let total = |counter: Option<Counter>| counter.map_or(0, |counter| counter.total);
        let waiting = total(qp.traffic.tx_wr_posted).saturating_sub(total(qp.traffic.tx_wr));
        self.qps += 1;
        self.bytes_per_s += bytes_per_s;
        self.waiting = self.waiting.saturating_add(waiting);
    }

    fn of_a_qp(&self) -> f64 {
        self.bytes_per_s / f64::from(self.qps.max(1))
    }

    /// How many times as much as a QP of the other one each QP sends; packets are known better than bytes.
    fn times(&self, other: &Self) -> f64 {
        match (self.packets_per_s, other.packets_per_s) {
            (Some(one), Some(two)) => one / f64::from(self.qps.max(1)) * f64::from(other.qps) / two,
            _ => self.of_a_qp() / other.of_a_qp(),
        }
    }

    /// What it sends, in words.
    fn sent(&self, bytes_per_s: f64) -> String {
        let bound = match (self.at_most, self.packets_per_s) {
            (true, _) => "at most ",
            (false, Some(_)) => "about ",
            (false, None) => "",
        };
        format!("{bound}{}", words::bits(bytes_per_s))
    }

    /// Whether the process would send more if it could.
    fn waits(&self) -> bool {
        !self.unsure && (self.full || self.waiting >= DEEP * u64::from(self.qps))
    }

    /// Whether the other process gets less only because it has fewer QPs.
    fn crowds(&self, other: &Self, limits: &Limits) -> bool {
        let alike = self.times(other);
        let most = if self.full { ALIKE_IF_FULL } else { ALIKE };
        f64::from(self.qps) >= QPS * f64::from(other.qps)
            && self.bytes_per_s >= limits.crowd_ratio * other.bytes_per_s
            && (1.0 / most..=most).contains(&alike)
    }
}

/// Which processes send on each port (device uid, number): of a provider whose work requests are counted, and
/// of a NIC if the port is full.
fn senders(ctx: &RuleContext<'_>) -> BTreeMap<(u64, u32), BTreeMap<u64, Sender>> {
    let devices = ctx.facts.devices.iter();
    let counted = devices.filter(|device| device.driver.as_deref().and_then(Counted::of_driver).is_some());
    let counted: Vec<u64> = counted.map(|device| device.uid).collect();
    let mut ports: BTreeMap<_, BTreeMap<u64, Sender>> = BTreeMap::new();
    for qp in &ctx.facts.qps {
        // `ways` leaves out the bytes of READs, which are received. Nothing is added up of an idle QP.
        let sends = growing(qp.traffic.tx_bytes).and_then(|_| qp.traffic.ways()[0]);
        let sends = sends.filter(|bytes| *bytes > 0.0);
        let unsure = qp.uncounted || growing(qp.traffic.rnr_waits).is_some();
        if qp.exited || !(unsure || sends.is_some()) {
            continue;
        }
        let (Some(device), Some(port), Some(process)) = (qp.device_uid, qp.port, qp.process_uid) else {
            continue;
        };
        if !counted.contains(&device) {
            continue;
        }
        let sender = ports.entry((device, port)).or_default().entry(process);
        let sender = sender.or_default();
        sender.process = process;
        sender.unsure |= unsure;
        if let Some(bytes) = sends {
            sender.add(qp, bytes);
        }
    }
    for port in ctx.active_ports() {
        let sent = growing(port.tx_bytes);
        let is_full = port
            .capacity()
            .zip(sent)
            .is_some_and(|(link, sent)| sent >= FULL * link);
        if is_full && !counted.contains(&port.device_uid) {
            ports.insert((port.device_uid, port.port), on_full_port(ctx, port));
        }
    }
    ports
}

/// Which processes send on a full port, as far as it is known how much: by their work requests (`--uprobes`),
/// or by their shares of the port. What a process with QPs on other devices sends may not be sent here.
fn on_full_port(ctx: &RuleContext<'_>, port: &PortRow) -> BTreeMap<u64, Sender> {
    let ports = ctx.facts.ports.iter();
    if ports.filter(|other| other.device_uid == port.device_uid).count() > 1 {
        return BTreeMap::new();
    }
    let of = |row: &ProcessRow| {
        let sent = row.traffic.tx_bytes;
        let sent = sent.filter(|sent| sent.rate_known() != Known::AtLeast)?;
        let at_most = sent.rate_known() == Known::AtMost;
        let is_share = sent.source == Source::Psn;
        // Work requests count the bytes of READs, too, which are received.
        let rate = if is_share {
            sent.rate
        } else {
            row.traffic.ways()[0]
        };
        let bytes_per_s = rate.filter(|rate| *rate > 0.0);
        let packets_per_s = growing(row.traffic.tx_packets.filter(|_| is_share));
        // Nothing is known of a bound that is not by PSNs.
        if row.devices.len() != 1 || packets_per_s.is_some() != is_share || (at_most && !is_share) {
            return None;
        }
        let qps = ctx.qps_of(row.uid).filter(|qp| {
            let is_idle = qp.traffic.ways()[0].is_some_and(|bytes| bytes <= 0.0);
            qp.device_uid == Some(port.device_uid) && !qp.exited && qp.state == Some(QpState::RTS) && !is_idle
        });
        let sender = Sender {
            process: row.uid,
            qps: u32::try_from(qps.count()).ok().filter(|qps| *qps > 0)?,
            bytes_per_s: bytes_per_s?,
            at_most,
            packets_per_s,
            full: true,
            ..Sender::default()
        };
        Some((row.uid, sender))
    };
    ctx.users(&port.device).filter_map(of).gather()
}

/// Whether two processes work together: they are of one job, or one sends to the other. Then one is the hub
/// of a job, and neither is in the other's way. A job that a user may have made up decides nothing: who takes
/// another one's bandwidth could give himself the name of that one's job.
fn are_one(ctx: &RuleContext<'_>, one: &ProcessRow, other: &ProcessRow) -> bool {
    let is_of_a_job = one.workload.is_some() && !one.workload_claimed && !other.workload_claimed;
    let mut peers = ctx.qps_of(one.uid).filter_map(|qp| ctx.peer(qp));
    is_of_a_job && one.workload == other.workload || peers.any(|peer| peer.process_uid == Some(other.uid))
}

/// Says what each QP of a process gets, and how many work requests wait.
fn said(sender: &Sender, row: &ProcessRow) -> String {
    let (who, each) = (words::process(row), sender.sent(sender.of_a_qp()));
    if sender.full {
        return format!("{who}: {each} by each QP; the port is full");
    }
    format!(
        "{who}: {each} by each QP, {} work requests or more wait",
        sender.waiting
    )
}

/// Finds processes with few queue pairs, each of which gets only as much as each of another process's many.
pub(super) fn queue_pairs(ctx: &RuleContext<'_>, out: &mut Vec<Finding>) {
    for ((device, number), senders) in senders(ctx) {
        let Some(port) = ctx.port(device, number) else {
            continue;
        };
        let waiting = || senders.values().filter(|sender| sender.waits());
        let most = waiting().max_by(|a, b| a.bytes_per_s.total_cmp(&b.bytes_per_s));
        let is_much = |most: &&Sender| !most.at_most && most.bytes_per_s >= ctx.limits.rail_bytes_per_s;
        let Some(most) = most.filter(is_much).filter(|_| port.is_active()) else {
            continue;
        };
        let Some(many) = ctx.process(most.process).filter(|row| !row.kernel) else {
            continue;
        };
        let mut few: Vec<(&Sender, &ProcessRow)> = waiting()
            .filter(|sender| most.crowds(sender, ctx.limits))
            .filter_map(|sender| Some((sender, ctx.process(sender.process)?)))
            .filter(|(_, row)| !row.kernel && !are_one(ctx, row, many))
            .collect();
        few.order_by_key(|(_, row)| row.pid);
        let Some((first, row)) = few.first() else { continue };
        let more = match few.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more alike)"),
        };
        let (who, taker) = (words::process(row), words::process(many));
        let (place, load) = (link::name(port), link::load(port));
        let [sent, most_sent] = [first, most].map(|sender| sender.sent(sender.bytes_per_s));
        let few_qps = words::count(first.qps, "QP");
        out.push(Finding {
            verdict: format!(
                "{who} sends {sent} with {few_qps} on {place}{load}{more}, {taker} {most_sent} with {}: shared per QP, not per process",
                most.qps
            ),
            evidence: vec![said(first, row), said(most, many)],
            next: row.pid.map_or_else(NextStep::default, |pid| {
                let netns = ctx.device(device).and_then(|row| row.netns);
                let beside = ctx.active_ports_like(port, netns).any(|other| other.device_uid != device);
                step!(
                    "Nothing is to be done unless it is too slow for PID {}. Then start it with more QPs, or PID {} with fewer{}.",
                    pid,
                    ShellWord::or(many.pid.map(|pid| pid.to_string()).as_deref(), "PID"),
                    NextStep::from(if beside { ", or one of them on another NIC" } else { "" })
                )
            }),
            short: "few QPs".to_owned(),
            taker: Some(many.uid),
            victims: few.iter().map(|(_, row)| row.uid).collect(),
            ..ctx.finding(FindingId::PortContention, About::of_port(port))
        });
    }
}
