//! Senders that wait for a receiver without receive buffers.

use std::collections::BTreeMap;

use super::{RuleContext, growing, link};
use crate::facts::{PortRow, ProcessRow, QpRow};
use crate::findings::{About, Finding, FindingId, Severity, words};
use crate::judgement::{Reason, Stuck, address};
use rdmatop_base::step::{NextStep, ShellWord, step};

/// The QPs of one process that wait for one receiver.
#[derive(Default)]
struct Wait<'a> {
    /// Waits per second.
    rate: f64,
    total: u64,
    qps: Vec<&'a QpRow>,
    /// The QP at the other end of the first of them.
    peer: Option<&'a QpRow>,
    /// One of the QPs finishes nothing at all.
    stopped: bool,
}

/// RNR: names the process that posts too few receives, not the process that waits.
pub(super) fn not_ready(ctx: &RuleContext<'_>, out: &mut Vec<Finding>) {
    // Most snapshots have no waits, and some have ten thousand QPs, so processes are looked at first.
    let mut senders = ctx.facts.processes.iter();
    if !senders.any(|row| !row.exited && growing(row.traffic.rnr_waits).is_some()) {
        return;
    }
    let mut waits: BTreeMap<(u64, Option<u64>), Wait<'_>> = BTreeMap::new();
    for qp in ctx.live_qps() {
        let (Some(sender), Some(rate)) = (qp.process_uid, growing(qp.traffic.rnr_waits)) else {
            continue;
        };
        let peer = ctx.peer(qp).filter(|peer| peer.process_uid.is_some());
        let wait = waits
            .entry((sender, peer.and_then(|peer| peer.process_uid)))
            .or_default();
        wait.peer = wait.peer.or(peer);
        wait.rate += rate;
        wait.total += qp.traffic.rnr_waits.map_or(0, |waits| waits.total);
        let stuck = Stuck::of(qp, ctx.facts.mono_ns);
        wait.stopped |= stuck.is_some_and(|stuck| stuck.reason == Reason::NoBuffers);
        wait.qps.push(qp);
    }
    for ((sender, receiver), wait) in waits {
        let Some(sender) = ctx.process(sender).filter(|row| !row.exited) else {
            continue;
        };
        let receiver = ctx.owner(receiver);
        out.push(symptom(ctx, sender, receiver, &wait));
    }
}

fn symptom(
    ctx: &RuleContext<'_>,
    sender: &ProcessRow,
    receiver: Option<&ProcessRow>,
    wait: &Wait<'_>,
) -> Finding {
    let first = wait.qps[0];
    // The two ends of a connection may be on different devices.
    let place = wait.peer.filter(|_| receiver.is_some()).unwrap_or(first);
    let (how, few) = if wait.stopped {
        ("posts no receives", "no")
    } else {
        ("posts receives too slowly", "few")
    };
    let waiter = words::process(sender);
    let (verdict, next, short) = match receiver {
        Some(row) => (
            format!(
                "{} on {} {how}: {waiter} waits",
                words::process(row),
                place.device
            ),
            // Nobody knows whose it is.
            if row.pid.is_none() && !row.kernel {
                "rdma resource show qp   # whose queue pairs are there".into()
            } else {
                look_at(row.pid.into_iter())
            },
            format!("posts {few} recv"),
        ),
        None => (
            format!("{} of {waiter} on {} {how}", peer_of(first), first.device),
            "sudo rdmatop check   # on the peer's host: it names the process that posts too few receives"
                .into(),
            format!("peer: {few} recv"),
        ),
    };
    let mut evidence = vec![format!(
        "{} RNR waits by {} of {waiter}, {} in all",
        words::per_s(wait.rate),
        words::count(wait.qps.len() as u64, "QP"),
        wait.total,
    )];
    if let Some(done) = sender.traffic.tx_wr.and_then(|wr| wr.rate) {
        evidence.push(format!("{} work requests finished by it", words::per_s(done)));
    }
    let about = About {
        process: Some(receiver.unwrap_or(sender).uid),
        device: place.device_uid,
        part: receiver.is_none().then(|| "peer".into()),
        ..About::default()
    };
    Finding {
        verdict,
        evidence,
        next,
        short,
        victims: vec![sender.uid],
        severity: Severity::critical_if(wait.stopped),
        ..ctx.finding(FindingId::ReceiverNotReady, about)
    }
}

/// The command that shows what processes do instead of posting receives. Without processes it is a module of
/// the kernel, which posts them when it has completions.
fn look_at(pids: impl Iterator<Item = u32>) -> NextStep {
    const SHOWN: usize = 8;
    let pids: Vec<String> = pids.take(SHOWN).map(|pid| pid.to_string()).collect();
    if pids.is_empty() {
        return "top   # ksoftirqd or kworker near 100 % of a CPU -> the NIC's interrupts are on too few: rdmatop doctor   # none -> its peers send \
                more than it has receives for: a longer queue where it is set up (nvmet, nfsd, Lustre)"
            .into();
    }
    let all = Some(pids.join(","));
    let only = pids.first().filter(|_| pids.len() == 1);
    step!(
        "ps -L -o stat,wchan:30,comm -p {} | sort | uniq -c   # all T -> it is stopped: sudo kill -CONT {}   # S, D -> its threads wait; R -> they \
         compute or poll   # it runs, and goes on so -> its author: more receives, posted earlier",
        ShellWord::or(all.as_deref(), "PID"),
        ShellWord::or(only.map(String::as_str), "PID")
    )
}

/// The same for ports whose work requests are not counted, as on most NICs.
pub(super) fn of_port(ctx: &RuleContext<'_>, port: &PortRow) -> Option<Finding> {
    let dropped = growing(port.out_of_buffer).map(|rate| (rate, "out_of_buffer"));
    let here = dropped.or(growing(port.rnr_naks_sent).map(|rate| (rate, "RNR NAKs sent")));
    let (rate, counter) = here.or(growing(port.rnr_naks).map(|rate| (rate, "RNR NAKs")))?;
    // If QPs are counted, the other rule names the very process.
    let is_counted = |qp: &QpRow| qp.traffic.rnr_waits.is_some();
    if ctx.qps_on(port.device_uid).any(is_counted) {
        return None;
    }
    let place = link::name(port);
    let users: Vec<_> = ctx.users(&port.device).chain(ctx.consumers(port)).collect();
    let (verdict, evidence, next, part) = if here.is_some() {
        let how = "posts receives too slowly";
        let who = match users.as_slice() {
            // The QPs may be some that the kernel does not list, or those of IPoIB.
            [] => format!("it is not known who {how}"),
            [one] => format!("{} {how}", words::process(one)),
            [one, more @ ..] => format!("{} or one of {} more {how}", words::process(one), more.len()),
        };
        let packets = if rate >= 10.0 {
            format!("{} packets a second", words::number(rate))
        } else {
            "Packets".to_owned()
        };
        let next = if users.is_empty() {
            step!(
                "rdma resource show qp link {}/{}   # whose queue pairs are there; there rdmatop shows who has the device open",
                ShellWord::device(&port.device),
                port.port
            )
        } else {
            look_at(users.iter().filter_map(|row| row.pid))
        };
        (
            format!("{packets} find no receive buffer on {place}, and make their senders wait: {who}"),
            format!("{counter} {}", words::per_s(rate)),
            next,
            "here",
        )
    } else {
        (
            format!("Receivers behind {place} post receives too slowly: senders wait (RNR)"),
            format!("{} {counter}", words::per_s(rate)),
            "sudo rdmatop check   # on the peers' hosts: it names the process that posts too few receives"
                .into(),
            "peers",
        )
    };
    let about = About {
        process: users.first().filter(|_| users.len() == 1).map(|row| row.uid),
        ..About::of_port(port).part(part)
    };
    Some(Finding {
        verdict,
        evidence: vec![evidence],
        next,
        short: "posts few recv".to_owned(),
        ..ctx.finding(FindingId::ReceiverNotReady, about)
    })
}

/// The peer of a QP by what is known of it; by IPv4 address if its GID maps one.
pub(super) fn peer_of(qp: &QpRow) -> String {
    match (qp.remote_gid, qp.remote_qpn) {
        (Some(gid), Some(qpn)) => {
            format!("The peer (QP {qpn} at {})", address(gid))
        }
        (None, Some(qpn)) => format!("The peer (QP {qpn})"),
        _ => "The peer".to_owned(),
    }
}
