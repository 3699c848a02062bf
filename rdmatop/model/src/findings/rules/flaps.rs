//! Links that go down and come up again, over and over.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::link::{LINK_DOWNED, down_counter, down_counters_of_bond, interface, name, used_by};
use super::{Consumers, RuleContext};
use crate::facts::{Facts, PortRow, QpRow};
use crate::findings::{About, Finding, FindingId, Limits, S, Severity, words};
use crate::ib::{PortState, QpState};
use crate::judgement::is_of_the_core;
use crate::value::Source;
use rdmatop_base::fabric;
use rdmatop_base::order::Gather as _;
use rdmatop_base::step::step;
use rdmatop_base::text;

/// Times kept of each port: more make no other finding.
const KEPT: usize = 64;
/// Between two snapshots that are farther apart a link may come up and go down again, ns.
const NEXT_NS: u64 = 2 * S;
/// Counters of network devices are read so often, ns.
const READ_NS: u64 = 5 * S;
/// A link that came up counts damaged packets until both ends agree, and a rate stands until the next
/// reading, ns.
const SETTLE_NS: u64 = 12 * S;

/// Of links of a port: the down counter, and a time, ns.
type Links = BTreeMap<String, (Option<u64>, Option<u64>)>;

/// When a port went down, by each of the two witnesses, oldest first: the last snapshot before that, and the
/// first after, ns. A short outage is seen by the counter alone, and not every driver has the counter.
#[derive(Clone, Debug, Default)]
struct Port {
    /// The last snapshot with it, ns.
    seen_ns: u64,
    active: Option<bool>,
    /// The same of the last snapshot, which may not say.
    active_before: Option<bool>,
    /// The port was ACTIVE in some snapshot.
    was_active: bool,
    /// What the kernel had connected there when the port was ACTIVE last.
    consumers: BTreeSet<u64>,
    by_state: VecDeque<(u64, u64)>,
    downed: Option<(Source, u64)>,
    by_counter: VecDeque<(u64, u64)>,
    /// Snapshots between which it was down all the time, as far as is known.
    down: VecDeque<(u64, u64)>,
    /// The links of its bond, and as the empty name its own: of each its down counter, and the last snapshot
    /// that shows the link down or come up, or the counter risen, ns.
    links: Links,
}

/// Ports by device and number.
#[derive(Clone, Debug, Default)]
pub(super) struct Flaps(BTreeMap<(u64, u32), Port>);

/// How often a port went down in the window.
pub(super) struct Downs<'a> {
    times: &'a VecDeque<(u64, u64)>,
    witness: &'a str,
    /// For how long it was seen down, ns.
    at_least_ns: u64,
}

impl Port {
    fn look(&mut self, port: &PortRow, now: u64, oldest: u64) {
        let before = std::mem::replace(&mut self.seen_ns, now);
        // The counter of InfiniBand stops at 255, and is only a lower bound from there on.
        let row = down_counter(port).filter(|row| !row.counter.partial);
        let counted = row.map(|row| (row.counter.source, row.counter.total));
        let same = self.downed.zip(counted).filter(|(then, now)| then.0 == now.0);
        let more = same.map_or(0, |(then, now)| now.1.saturating_sub(then.1));
        // That of a network device may be that much older than the snapshot before.
        let is_late = counted.is_some_and(|(source, _)| source == Source::Ethtool);
        let read = before.saturating_sub(if is_late { READ_NS } else { 0 });
        for _ in 0..more.min(KEPT as u64) {
            self.by_counter.push_back((read, now));
        }
        self.downed = counted.or(self.downed);
        let active = port.state.map(PortState::is_active);
        let stays_down = [self.active_before, active] == [Some(false); 2];
        self.active_before = active;
        if (self.active, active) == (Some(true), Some(false)) {
            self.by_state.push_back((before, now));
        }
        if stays_down && more == 0 && now - before <= NEXT_NS {
            match self.down.back_mut() {
                Some((_, to)) if *to == before => *to = now,
                _ => self.down.push_back((before, now)),
            }
        }
        self.links = self.links_of(port, now, more > 0 || self.active == Some(false));
        self.active = active.or(self.active);
        self.was_active |= active == Some(true);
        for times in [&mut self.by_state, &mut self.by_counter, &mut self.down] {
            times.drain(..times.len().saturating_sub(KEPT));
            while times.front().is_some_and(|(_, at)| *at < oldest) {
                times.pop_front();
            }
        }
        if let Some((from, _)) = self.down.front_mut() {
            *from = oldest.max(*from);
        }
    }

    fn links_of(&self, port: &PortRow, now: u64, was_down: bool) -> Links {
        let mut links = Links::new();
        let members = port.bond.iter().flat_map(|bond| bond.members.iter());
        let states = members.map(|member| (&*member.name, None, member.up == Some(false)));
        let counters = down_counters_of_bond(port)
            .filter_map(|row| Some((row.name.split_once(':')?.0, Some(row.counter.total), false)));
        let own = ("", None, was_down);
        for (name, total, is_down) in states.chain(counters).chain([own]) {
            let (before, at) = self.links.get(name).copied().unwrap_or_default();
            let rose = before.zip(total).is_some_and(|(before, total)| total > before);
            let link = links.entry(name.to_owned()).or_insert((before, at));
            link.0 = total.or(link.0);
            if is_down || rose {
                link.1 = Some(now);
            }
        }
        links
    }
}

impl Flaps {
    pub(super) fn look(&mut self, facts: &Facts, limits: &Limits, consumers: &Consumers) {
        let now = facts.mono_ns;
        let oldest = now.saturating_sub(limits.flap_window_s * S);
        for port in &facts.ports {
            let key = (port.device_uid, port.port);
            let kept = self.0.entry(key).or_default();
            kept.look(port, now, oldest);
            if port.is_active() {
                kept.consumers = consumers.get(&key).cloned().unwrap_or_default();
            }
        }
        if self.0.len() > facts.ports.len() {
            self.0.retain(|_, kept| kept.seen_ns == now);
        }
    }

    fn port(&self, port: &PortRow) -> Option<&Port> {
        self.0.get(&(port.device_uid, port.port))
    }

    /// Whether a port was ACTIVE since rdmatop began.
    pub(super) fn was_active(&self, port: &PortRow) -> bool {
        self.port(port).is_some_and(|kept| kept.was_active)
    }

    /// Whether a port, or the link of its bond with this name, is down or came up so lately that its errors
    /// are those of training.
    pub(super) fn settles(&self, port: &PortRow, member: &str, now: u64) -> bool {
        let last = || self.port(port)?.links.get(member)?.1;
        port.state.is_some_and(|state| !state.is_active())
            || last().is_some_and(|at| now.saturating_sub(at) < SETTLE_NS)
    }

    /// The modules of the kernel that had connected QPs on a port when it was ACTIVE last.
    pub(super) fn consumers(&self, port: &PortRow) -> impl Iterator<Item = u64> {
        let kept = self.port(port);
        kept.into_iter().flat_map(|kept| kept.consumers.iter().copied())
    }

    /// The outages of a port, if they are as many as make a flapping link.
    pub(super) fn of<'a>(&'a self, port: &'a PortRow, limits: &Limits) -> Option<Downs<'a>> {
        let kept = self.port(port)?;
        let (times, witness) = if kept.by_counter.len() > kept.by_state.len() {
            let counter = down_counter(port).map_or(LINK_DOWNED, |row| &*row.name);
            (&kept.by_counter, counter)
        } else {
            (&kept.by_state, "the port's state")
        };
        let (begin, _) = *times.front()?;
        // An outage may have begun before those that are counted.
        let down = kept
            .down
            .iter()
            .map(|(from, to)| to.saturating_sub(begin.max(*from)));
        (times.len() as u64 >= limits.flaps).then_some(Downs {
            times,
            witness,
            at_least_ns: down.sum(),
        })
    }
}

/// Ports that went down several times within minutes.
pub(super) fn flaps(ctx: &RuleContext<'_>, port: &PortRow) -> Option<Finding> {
    let downs = ctx.history.flaps.of(port, ctx.limits)?;
    let ((begin, first), (_, last)) = (downs.times.front()?, downs.times.back()?);
    let users = ctx.carried(port);
    let ago = |at: u64| text::age(ctx.facts.mono_ns.saturating_sub(at) / S);
    // It works for the moment.
    let up = port.state.is_none_or(PortState::is_active);
    let long = match downs.at_least_ns / S {
        0 => String::new(),
        seconds => format!(", for {} or more in all", text::age(seconds)),
    };
    let (link, times) = (name(port), words::count(downs.times.len() as u64, "time"));
    let mut evidence = vec![format!("by {}, the last time {} ago", downs.witness, ago(*last))];
    let mut failing = String::new();
    let (qps, processes) = failed(ctx, port, *begin);
    if qps > 0 {
        let qps = words::count(qps, "QP");
        failing = format!(", and {qps} went to ERR");
        let whose = match processes {
            0 => String::new(),
            1 => " of 1 process".to_owned(),
            more => format!(" of {more} processes"),
        };
        evidence.push(format!("{qps}{whose} went to ERR since the link first went down"));
    }
    let ranks = if up {
        Vec::new()
    } else {
        ctx.ranks_behind(port.device_uid, &users)
    };
    Some(Finding {
        verdict: format!(
            "The link of {link} flaps: it went down {times} within {}{long}{failing}{}",
            ago(*begin),
            used_by(&users)
        ),
        evidence,
        next: interface(ctx, port).map_or_else(
            || fabric::bad_links(&port.device, port.port),
            |(netdev, more)| {
                step!(
                    "sudo ethtool -m {}   # optical power below its low alarm -> change transceiver or cable, which ends the job   # else -> the switch's \
                     log of that port, firmware of both ends{}",
                    netdev,
                    more
                )
            },
        ),
        short: "link flaps".to_owned(),
        victims: users.iter().chain(&ranks).map(|row| row.uid).collect(),
        since_mono_ns: *first,
        severity: Severity::critical_if(!up),
        ..ctx.finding(FindingId::LinkFlaps, About::of_port(port))
    })
}

/// How many of the QPs on a port failed since its link first went down, and of how many processes. Those that
/// are destroyed are not known any more.
fn failed(ctx: &RuleContext<'_>, port: &PortRow, since_ns: u64) -> (u64, u64) {
    let went_to_err = |qp: &&QpRow| {
        let last = qp.timeline.last();
        !qp.exited
            && !is_of_the_core(qp)
            && qp.port.is_none_or(|number| number == port.port)
            && qp.state == Some(QpState::ERR)
            && last.is_some_and(|step| step.mono_ns >= since_ns)
    };
    let failed: Vec<_> = ctx.qps_on(port.device_uid).filter(went_to_err).collect();
    let users = failed
        .iter()
        .filter(|qp| !qp.kernel)
        .filter_map(|qp| qp.process_uid);
    let users: BTreeSet<u64> = users.gather();
    (failed.len() as u64, users.len() as u64)
}
