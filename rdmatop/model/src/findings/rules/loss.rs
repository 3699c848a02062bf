//! Packets that are lost on the way.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use super::link::{interface, is_infiniband, name, rate_of, rising, used_by, who};
use super::pauses::is_outside;
use super::{RuleContext, growing};
use crate::facts::{PortRow, ProcessRow, QpRow};
use crate::findings::{About, Finding, FindingId, Severity, words};
use crate::input::EbpfState;
use crate::judgement::{Peer, is_of_the_core};
use rdmatop_base::order::Ordered as _;
use rdmatop_base::step::{NextStep, ShellWord, step};

/// Packets that arrive twice, for each round of retransmission, below which none came out of order.
const SELDOM: f64 = 0.2;

/// Packets that are sent again.
pub(super) fn loss(ctx: &RuleContext<'_>, port: &PortRow) -> Option<Finding> {
    // Ports are read before programs are attached; until then nothing is known of the QP that may explain it.
    if matches!(ctx.facts.health.ebpf, EbpfState::Starting) {
        return None;
    }
    // A round repeats one packet or many.
    let (packets, retries) = (growing(port.retransmits), growing(port.retries));
    let (all, sent) = (packets.or(retries)?, growing(port.tx_packets)?);
    let is_little = |again: f64| again < ctx.limits.loss_per_s || again / sent < ctx.limits.loss_share;
    if is_little(all) {
        return None;
    }
    let twice = ArrivedTwice::of(ctx, port);
    let again = all * (1.0 - twice.share);
    // A sender without a receive buffer at its peer, or without a peer, starts again, too: the rules of
    // QPs name those.
    let mut stuck = ctx.judgement.stuck();
    if stuck.any(|qp| qp.device == port.device && qp.stuck.reason.repeats())
        || growing(port.rnr_naks).is_some()
        || is_little(again)
        || only_waits(ctx, port)
        || is_outside(ctx, port)
    {
        return None;
    }
    let users = ctx.carried(port);
    let (place, rate, share) = (name(port), words::per_s(again), again / sent);
    // EFA's `retrans_timeout_events` are changes of the path, not rounds, and SRD repeats no more than what
    // is lost.
    let srd = ctx.driver(port) == Some("efa");
    // A receiver that gets a packet too early asks for the one before it, as if that were lost, and then
    // gets it twice.
    let rounds = retries.filter(|_| !srd).unwrap_or(again);
    let lost = if twice.known && all * twice.share < SELDOM * rounds {
        "lost"
    } else {
        "lost or out of order"
    };
    let what = if packets.is_some() {
        "packets sent again"
    } else {
        "rounds of retransmission"
    };
    let mut evidence = vec![format!("{rate} {what}, {} packets sent", words::per_s(sent))];
    if let Some(paths) = retries.filter(|_| srd) {
        evidence.push(format!(
            "{} changes of the path after a timeout",
            words::per_s(paths)
        ));
    }
    let peers = Peers::of(ctx, port);
    let (to, by) = (peers.to(), peers.by(&users));
    let again_share = words::percent(share);
    // One that is missed makes the sender repeat all that it sent behind it.
    let missed = rounds / (sent - all).max(rounds);
    let verdict = if packets.is_some() && rounds < again {
        evidence.push(format!("{} rounds of retransmission", words::per_s(rounds)));
        let missed = words::percent(missed);
        format!(
            "About {missed} of the packets from {place}{to} are {lost}, and {again_share} of what it sends is sent again for them{by}"
        )
    } else {
        let how = if packets.is_some() {
            format!("{again_share} are sent again")
        } else {
            format!("{} retransmissions/s", words::number(again))
        };
        format!("Packets from {place}{to} are {lost} ({how}){by}")
    };
    evidence.extend(peers.list().into_iter().chain(impaired(port)));
    Some(Finding {
        verdict,
        evidence,
        next: where_lost(ctx, port),
        short: "packet loss".to_owned(),
        victims: users.iter().map(|row| row.uid).collect(),
        severity: Severity::critical_if(share >= 10.0 * ctx.limits.loss_share && !srd),
        ..ctx.finding(FindingId::Loss, About::of_port(port))
    })
}

/// What shows where packets of a port are lost.
fn where_lost(ctx: &RuleContext<'_>, port: &PortRow) -> NextStep {
    let device = ShellWord::device(&port.device);
    if ctx.driver(port) == Some("efa") {
        // There is no switch to set, and no PFC: SRD spreads its packets over many ways.
        return step!(
            "rdma statistic show link {}/{}   # here and on the peer: rx_drops grows -> that host is slow   # it does not -> the provider's network drops: EFA sends again by other ways, and nothing is to be set; for long -> its support",
            device,
            port.port
        );
    }
    if is_infiniband(port) {
        return step!(
            "sudo ibdiagnet -i {} -p {}   # links with receive errors -> change cable or transceiver there   # ports that discard what they are to send \
             -> the link or the host behind them is too slow",
            device,
            port.port
        );
    }
    let Some((netdev, more)) = interface(ctx, port) else {
        return step!(
            "rdma statistic show link {}/{}   # here and on the peer: drops that grow -> that host drops   # none grows -> the switch: PFC, ECN, MTU of its ports, one flow over several ways",
            device,
            port.port
        );
    };
    step!(
        "ethtool -S {} | grep -E 'drop|discard|crc|fcs|symbol'   # twice, here and on the peer: crc, fcs, symbol grow -> cable or transceiver   # drop, discard grow -> that host is slow, or its PFC is off   # none grows -> the switch: PFC, ECN, MTU of its ports, one flow over several ways{}",
        netdev,
        more
    )
}

/// Of EFA: how often its device took back how much a connection to a peer may send.
fn impaired(port: &PortRow) -> Option<String> {
    const COUNTER: &str = "impaired_remote_conn_events";
    let rate = words::per_s(rising(port, COUNTER)?);
    Some(format!(
        "{COUNTER} {rate}: the device lets connections to peers send less"
    ))
}

/// The peers to which the QPs of a port lead.
pub(super) struct Peers<'a> {
    /// By how much is sent to them again, else by how many QPs lead there.
    names: Vec<String>,
    /// There are others, which are not known.
    others: bool,
    /// They are those of QPs that send again, and not of all QPs.
    resending: bool,
    /// The processes of QPs that send again, by PID.
    senders: Vec<&'a ProcessRow>,
}

impl<'a> Peers<'a> {
    /// Peers named in a line.
    const SHOWN: usize = 4;

    pub(super) fn of(ctx: &RuleContext<'a>, port: &PortRow) -> Self {
        let own = |qp: &&QpRow| !qp.exited && qp.port.is_none_or(|number| number == port.port);
        let sends_again = |qp: &QpRow| growing(qp.traffic.retransmits).is_some();
        let qps: Vec<_> = ctx.qps_on(port.device_uid).filter(own).collect();
        let resending = qps.iter().any(|qp| sends_again(qp));
        let mut weights: BTreeMap<String, u64> = BTreeMap::new();
        let (mut others, mut senders) = (false, BTreeSet::new());
        for qp in qps.into_iter().filter(|qp| !resending || sends_again(qp)) {
            senders.extend(qp.process_uid.filter(|_| resending));
            // In all, and not lately: the order is to last.
            let again = qp.traffic.retransmits.map_or(0, |again| again.total);
            match ctx.peer_of(qp) {
                Some(peer) => {
                    *weights.entry(peer_name(ctx, peer)).or_default() += if resending { again } else { 1 };
                }
                // UD, DC and SRD QPs send to several peers, which are not known.
                None => others |= !is_of_the_core(qp),
            }
        }
        // Nor are the peers of QPs that the kernel does not list.
        let device = ctx.device(port.device_uid);
        let hides = device.is_none_or(|row| row.may_hide_qps() && row.contexts.is_none());
        others |= !resending && (hides || ctx.openers(port.device_uid).next().is_some());
        let mut names: Vec<_> = weights.into_iter().collect();
        names.order_by(|(a, of_a), (b, of_b)| of_b.cmp(of_a).then_with(|| a.cmp(b)));
        let mut senders: Vec<_> = senders.into_iter().filter_map(|uid| ctx.process(uid)).collect();
        senders.order_by_key(|row| row.pid);
        Self {
            names: names.into_iter().map(|(name, _)| name).collect(),
            others,
            resending,
            senders,
        }
    }

    /// Where the packets go: the first peer, and that it may be another one.
    fn to(&self) -> String {
        let Some(first) = self.names.first() else {
            return String::new();
        };
        match self.names.len() - 1 {
            _ if self.others => format!(" to {first} or others"),
            0 => format!(" to {first}"),
            more => format!(" to {first} or {more} more"),
        }
    }

    /// Who sends the packets. Where no QP says that it sends again, it is only known who uses the port.
    fn by(&self, users: &[&ProcessRow]) -> String {
        who(&self.senders).map_or_else(|| used_by(users), |who| format!("; {who} sends them"))
    }

    /// All of them, where they are several.
    fn list(&self) -> Option<String> {
        (self.names.len() > 1).then(|| self.lead_to()).flatten()
    }

    /// The IPv4 address to which all of them lead.
    pub(super) fn address(&self) -> Option<Ipv4Addr> {
        let [only] = &self.names[..] else { return None };
        only.parse().ok().filter(|_| !self.others)
    }

    /// Where the QPs lead, if that is known of one.
    pub(super) fn lead_to(&self) -> Option<String> {
        let shown = self.names.get(..self.names.len().min(Self::SHOWN))?;
        let more = match self.names.len() - shown.len() {
            _ if self.others => " and others".to_owned(),
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let whose = if self.resending {
            "the QPs that send again lead"
        } else {
            "its QPs lead"
        };
        (!shown.is_empty()).then(|| format!("{whose} to {}{more}", shown.join(", ")))
    }
}

/// A process of this host by its name and PID, else an address. If QP numbers alone say who the peer is, the
/// name is marked (`~`), because another process may have such a number.
fn peer_name(ctx: &RuleContext<'_>, peer: Peer<'_>) -> String {
    let Peer::Here { qp, sure } = peer else {
        return peer.name();
    };
    let mark = if sure { "" } else { "~" };
    let owner = ctx.owner(qp.process_uid);
    owner.map_or_else(|| peer.name(), |owner| format!("{mark}{}", words::process(owner)))
}

/// Whether the QPs of a port's device are counted, and none of them both sends again and finishes work. The
/// peer of such a QP may be gone; that it waits is known only after some seconds, and until then it is not
/// called loss.
fn only_waits(ctx: &RuleContext<'_>, port: &PortRow) -> bool {
    let device = ctx.device(port.device_uid);
    let finishes = |qp: &QpRow| {
        growing(qp.traffic.retransmits)
            .and(growing(qp.traffic.tx_wr))
            .is_some()
    };
    device.is_some_and(|device| device.datapath.is_some()) && !ctx.qps_on(port.device_uid).any(finishes)
}

/// Of what the QPs of a port send again, what receivers on this host had got before.
struct ArrivedTwice {
    share: f64,
    /// It is known of all of their receivers.
    known: bool,
}

impl ArrivedTwice {
    /// The answer to such a packet came late, because the host is busy, and nothing was lost. Of peers
    /// elsewhere it is not known.
    ///
    /// A receiver counts such a packet as a duplicate. Behind a lost packet it drops the others, so those are
    /// no duplicates.
    fn of(ctx: &RuleContext<'_>, port: &PortRow) -> Self {
        // Of each QP that sends again: its device, that of its peer, and how much.
        let resending = ctx.live_qps().filter_map(|qp| {
            let rate = growing(qp.traffic.retransmits)?;
            let to = ctx.peer(qp).and_then(|peer| peer.device_uid);
            Some((qp.device_uid, to, rate))
        });
        let resending: Vec<_> = resending.collect();
        let mut to_each: BTreeMap<u64, f64> = BTreeMap::new();
        for (_, to, rate) in &resending {
            if let Some(to) = to {
                *to_each.entry(*to).or_default() += rate;
            }
        }
        // All that is sent again to a receiver shares its duplicates.
        let share_of = |device: u64| {
            let ports = ctx.facts.ports.iter();
            let duplicates = ports
                .filter(|row| row.device_uid == device)
                .find_map(|row| rate_of(row, "duplicate_request"))?;
            Some((duplicates / to_each.get(&device)?).min(1.0))
        };
        let (mut again, mut twice, mut known) = (0.0, 0.0, true);
        for (_, to, rate) in resending.iter().filter(|(of, ..)| *of == Some(port.device_uid)) {
            let share = to.and_then(share_of);
            again += rate;
            twice += rate * share.unwrap_or(0.0);
            known &= share.is_some();
        }
        let share = if again > 0.0 { twice / again } else { 0.0 };
        Self {
            share,
            known: known && again > 0.0,
        }
    }
}
