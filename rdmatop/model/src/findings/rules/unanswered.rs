//! QPs whose packets get no answer: what is known of their peers tells why.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{RuleContext, growing, receiver};
use crate::facts::{PortRow, ProcessRow, QpRow};
use crate::findings::{Finding, words};
use crate::ib::{Gid, QpState};
use crate::judgement::{Peer, StuckQp, address};
use rdmatop_base::order::Gather as _;
use rdmatop_base::step::{ShellWord, step};

/// What to do with QPs of a program whose peer is gone.
const ANEW: &str = "reconnect or restart that program: no QP finds a new peer by itself";

/// What is known of the other end of a QP that gets no answer.
enum End<'a> {
    /// Both ends are on this host and connected to each other.
    Connected(&'a QpRow),
    /// The peer's QP is on this host, in a state in which it does not answer.
    Deaf(&'a QpRow, QpState),
    /// The address is that of a port of this host, but no QP there is connected to this one.
    Destroyed(&'a PortRow),
    /// The end is on another host.
    At(Gid),
    Unknown,
}

impl<'a> End<'a> {
    fn of(ctx: &RuleContext<'a>, qp: &QpRow) -> Self {
        let answers = QpState::RTR..=QpState::RTS;
        match ctx.peer_of(qp) {
            Some(Peer::Here { qp, .. }) => match qp.state.filter(|state| !answers.contains(state)) {
                Some(state) => Self::Deaf(qp, state),
                None => Self::Connected(qp),
            },
            // At an address of this host, several QPs may fit. If none does, the peer is surely destroyed.
            Some(Peer::At(gid)) => match port_of(ctx, gid) {
                Some(port) if !has_peer(ctx, qp, port) => Self::Destroyed(port),
                _ => Self::At(gid),
            },
            None => Self::Unknown,
        }
    }
}

/// The port of this host with an address.
fn port_of<'a>(ctx: &RuleContext<'a>, gid: Gid) -> Option<&'a PortRow> {
    let has = |port: &&PortRow| port.known_gids().any(|own| own.gid == gid);
    ctx.facts.ports.iter().find(has)
}

/// Whether a live QP of that port's device may be the peer: it has the peer's number, and is not known to be
/// connected to another QP.
fn has_peer(ctx: &RuleContext<'_>, qp: &QpRow, port: &PortRow) -> bool {
    ctx.live_qps().any(|other| {
        Some(other.qpn) == qp.remote_qpn
            && other.device_uid == Some(port.device_uid)
            && other.remote_qpn.is_none_or(|remote| remote == qp.qpn)
    })
}

/// Whether the process of the destroyed peer still lives, in words; empty once the peer's row is gone.
fn was_of(ctx: &RuleContext<'_>, qp: &QpRow) -> &'static str {
    let ended = |other: &&Arc<QpRow>| {
        other.exited && Some(other.qpn) == qp.remote_qpn && other.remote_qpn == Some(qp.qpn)
    };
    match ctx.facts.qps.iter().find(ended) {
        None => "",
        Some(was) if ctx.owner(was.process_uid).is_some_and(|owner| !owner.exited) => ", its process lives",
        Some(_) => ", its process has ended",
    }
}

/// Names the peer of the first of these QPs as far as it is known, and says what to do.
pub(super) fn tell(ctx: &RuleContext<'_>, owner: &ProcessRow, qps: &[&StuckQp], out: &mut Finding) {
    let (first, who) = (qps[0], words::process(owner));
    let many = words::count(qps.len() as u64, "QP");
    let mut rows = ctx.facts.qps.iter();
    let row = rows.find(|row| row.uid == first.uid);
    let whose = |qp: &QpRow| {
        let owner = ctx.owner(qp.process_uid);
        owner.map_or_else(|| format!("QP {}/{}", qp.device, qp.qpn), words::process)
    };
    let on = words::on(qps.iter().map(|qp| &*qp.device));
    let place = if qps.iter().all(|qp| qp.device == first.device) {
        format!("{many} of {who}{on}")
    } else {
        // Only the peer of the first is looked up.
        format!("a QP of {who} on {} ({many} wait{on})", first.device)
    };
    "no answer".clone_into(&mut out.short);
    out.since_mono_ns = ctx.interval_begin();
    out.victims = vec![owner.uid];
    // What the kernel talks to (NVMe-oF, NFS, Lustre) may be in the other kernel, without a process.
    let (ended, again) = if owner.kernel {
        (
            "the server or target there is not running",
            "start it: the kernel connects anew by its timeouts; given up -> mount or connect it anew",
        )
    } else {
        ("its process there has ended", "restart the job")
    };
    let reconnect = || {
        let (list, then) = match owner.pid {
            _ if owner.kernel => (
                "rdma resource show qp".into(),
                "the kernel gives them up by its timeouts and connects anew; given up for good -> mount or connect it anew",
            ),
            Some(pid) => (step!("rdma resource show qp pid {}", pid), ANEW),
            None => ("rdma resource show qp".into(), ANEW),
        };
        step!("{}   # lists the QPs that still wait -> {}", list, then)
    };
    let elsewhere = || {
        step!(
            "sudo rdmatop check   # on the peer's host: {} -> {}   # it runs -> look for drops at both ports",
            ended,
            again
        )
    };
    (out.verdict, out.next) = match row.map_or(End::Unknown, |row| End::of(ctx, row)) {
        End::Connected(peer) => {
            let netdev = ctx.facts.ports.iter().find(|port| port.device == first.device);
            let netdev = ShellWord::or(netdev.and_then(|port| port.netdev.as_deref()), "NETDEV");
            (
                format!(
                    "No answer from {} for {place}: both live and are connected, so packets between them are lost",
                    whose(peer)
                ),
                step!(
                    "tc -s qdisc show dev {}; sudo nft list ruleset   # a qdisc that drops, or a rule against UDP 4791 -> take it away   \
                     # neither -> ip -s link (dropped grows there)",
                    netdev
                ),
            )
        }
        End::Deaf(peer, state) => (
            format!(
                "No answer from {} for {place}: the peer's QP is in {state} and answers nothing",
                whose(peer)
            ),
            reconnect(),
        ),
        End::Destroyed(port) => {
            let number = row.and_then(|row| row.remote_qpn).unwrap_or(0);
            let was = row.map_or("", |row| was_of(ctx, row));
            (
                format!(
                    "No answer for {place}: the peer, QP {number} of {} on this host, was destroyed{was}",
                    port.device
                ),
                reconnect(),
            )
        }
        End::At(gid) => (
            format!(
                "No answer from {} for {place}: the peer is gone or packets are lost",
                address(gid)
            ),
            gid.ipv4().map_or_else(elsewhere, |address| {
                step!(
                    "ping -c 3 {}   # no answer -> that host is down, or cable, route, firewall   # answers, \
                     and {} -> {}   # it runs -> a firewall drops UDP 4791, or an MTU is smaller",
                    address,
                    ended,
                    again
                )
            }),
        ),
        End::Unknown => (
            format!("No answer for {place}: the peer is gone or packets are lost"),
            elsewhere(),
        ),
    };
    out.evidence.extend(no_answer(ctx, qps));
}

/// The evidence: the peer of the first QP, and how much the QPs send again.
fn no_answer(ctx: &RuleContext<'_>, qps: &[&StuckQp]) -> Vec<String> {
    let uids: BTreeSet<u64> = qps.iter().map(|qp| qp.uid).gather();
    let rows = ctx.facts.qps.iter();
    let rows: Vec<_> = rows.filter(|row| uids.contains(&row.uid)).collect();
    let mut out = Vec::new();
    if let Some(row) = rows.iter().find(|row| row.uid == qps[0].uid) {
        out.push(format!("{} does not answer", receiver::peer_of(row)));
    }
    let again = rows.iter().filter_map(|row| growing(row.traffic.retransmits));
    let again: f64 = again.sum();
    out.push(format!("{} packets sent again, 0 finished", words::per_s(again)));
    out
}
