//! Links that go down and come up again, over and over.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::link::{LINK_DOWNED, down_counter, down_counters_of_bond, interface, name, used_by};
use super::{Consumers, RuleContext};
use crate::facts::{Facts, PortRow, QpRow};
use crate::findings::{About, FindingId, Limits, Severity, Symptom, words};
use crate::ib::{PortState, QpState};
use crate::judgement::is_of_the_core;
use crate::value::Source;
use rdmatop_base::fabric;
use rdmatop_base::step::step;
use rdmatop_base::text;

const S: u64 = 1_000_000_000;
/// Times kept of each port: more make no other finding.
const KEPT: usize = 64;
/// Between two snapshots that are farther apart a link may come up and go down again, ns. Training it takes
/// longer than a fraction of this.
const NEAR_NS: u64 = 10 * S;
/// The same where no counter tells how often it went down, ns.
const NEXT_NS: u64 = 2 * S;
/// A link that came up counts damaged packets until both ends agree. Counters of network devices are read
/// every 5 s, and a rate stands until the next reading, ns.
const SETTLE_NS: u64 = 12 * S;

/// A time in which a port was not ACTIVE, or may not have been: from the last snapshot before that says it
/// was, to the first one after, ns.
#[derive(Clone, Copy, Debug)]
struct Outage {
    from: u64,
    to: u64,
    /// It was seen down for so long of that.
    seen: u64,
}

/// For how long a port was down in sum.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    at_least_ns: u64,
    /// `None`: it may have been down between two snapshots, and no counter tells.
    at_most_ns: Option<u64>,
}

impl Sum {
    /// The sum in words; `None`: nothing is known of it.
    fn words(self) -> Option<String> {
        if self.at_least_ns >= S {
            return Some(format!("for {} or more in all", text::age(self.at_least_ns / S)));
        }
        let most = self.at_most_ns?.div_ceil(S);
        // An age of an hour or more leaves seconds out, one of a day minutes: an upper bound is rounded up.
        let unit = match most {
            0..3600 => 1,
            3600..86_400 => 60,
            _ => 3600,
        };
        let most = most.next_multiple_of(unit);
        (most > 0).then(|| format!("for {} or less in all", text::age(most)))
    }
}

/// When a port went down, by each of the two witnesses, oldest first, ns. A short outage is seen by the
/// counter alone, and not every driver has the counter.
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
    by_state: VecDeque<u64>,
    downed: Option<(Source, u64)>,
    by_counter: VecDeque<u64>,
    /// Oldest first.
    outages: VecDeque<Outage>,
    /// The last snapshot at which an outage since the one before may have been overlooked, ns.
    overlooked_ns: Option<u64>,
    /// The links of its bond: of each its down counter, and the last snapshot that shows the link down or the
    /// counter risen, ns.
    links: BTreeMap<String, (Option<u64>, Option<u64>)>,
}

/// Ports by device and number.
#[derive(Clone, Debug, Default)]
pub(super) struct Flaps(BTreeMap<(u64, u32), Port>);

/// How often a port went down in the window, when first and when last.
pub(super) struct Downs<'a> {
    times: &'a VecDeque<u64>,
    witness: &'a str,
    port: &'a Port,
}

fn downed(port: &PortRow) -> Option<(Source, u64)> {
    let row = down_counter(port)?;
    // The counter of InfiniBand stops at 255, and is only a lower bound from there on.
    (!row.counter.partial).then_some((row.counter.source, row.counter.total))
}

impl Port {
    fn look(&mut self, port: &PortRow, now: u64, oldest: u64) {
        self.time(port, now, oldest);
        self.seen_ns = now;
        self.active_before = port.state.map(PortState::is_active);
        if let Some(active) = port.state.map(PortState::is_active) {
            if self.active == Some(true) && !active {
                self.by_state.push_back(now);
            }
            self.active = Some(active);
            self.was_active |= active;
        }
        if let Some((source, total)) = downed(port) {
            let before = self.downed.filter(|(before, _)| *before == source);
            let more = before.map_or(0, |(_, before)| total.saturating_sub(before));
            for _ in 0..more.min(KEPT as u64) {
                self.by_counter.push_back(now);
            }
            self.downed = Some((source, total));
        }
        self.links = self.links_of_bond(port, now);
        for times in [&mut self.by_state, &mut self.by_counter] {
            while times.front().is_some_and(|at| *at < oldest) || times.len() > KEPT {
                times.pop_front();
            }
        }
    }

    fn links_of_bond(&self, port: &PortRow, now: u64) -> BTreeMap<String, (Option<u64>, Option<u64>)> {
        let mut links = BTreeMap::new();
        let members = port.bond.iter().flat_map(|bond| bond.members.iter());
        let states = members.map(|member| (&*member.name, None, member.up == Some(false)));
        let counters = down_counters_of_bond(port)
            .filter_map(|row| Some((row.name.split_once(':')?.0, Some(row.counter.total), false)));
        for (name, total, is_down) in states.chain(counters) {
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

    /// When the port was last down, or that link of its bond, ns.
    fn last_down(&self, member: &str) -> Option<u64> {
        if !member.is_empty() {
            return self.links.get(member)?.1;
        }
        let outage = self.outages.back().map(|outage| outage.to);
        outage.max(self.by_counter.back().copied())
    }

    /// Notes what the time since the snapshot before says of outages.
    fn time(&mut self, port: &PortRow, now: u64, oldest: u64) {
        // Not the first snapshot with this port.
        let before = Some(self.seen_ns).filter(|before| *before > 0);
        if let (Some(before), Some(was), Some(is)) =
            (before, self.active_before, port.state.map(PortState::is_active))
        {
            // That of a network device is read less often than the state.
            let total = downed(port).filter(|(source, _)| *source != Source::Ethtool);
            // One that is less was reset, and tells as little as one that is more.
            let more = self.downed.zip(total).map(|(then, now)| now != then);
            // Without a counter only time tells that it did not come up in between.
            let near = if more.is_some() { NEAR_NS } else { NEXT_NS };
            let stays_down = !was && !is && more != Some(true) && now - before <= near;
            match (was && is, more) {
                // It was up all the time.
                (true, Some(false)) => {}
                (true, None) => self.overlooked_ns = Some(now),
                _ => {
                    let seen = if stays_down { now - before } else { 0 };
                    let same = self.outages.back_mut();
                    match same.filter(|last| !was && last.to == before && more != Some(true)) {
                        Some(last) => (last.to, last.seen) = (now, last.seen + seen),
                        None => self.outages.push_back(Outage {
                            from: before,
                            to: now,
                            seen,
                        }),
                    }
                }
            }
        } else if before.is_some() {
            self.overlooked_ns = Some(now);
        }
        while self.outages.front().is_some_and(|first| first.to < oldest) || self.outages.len() > 2 * KEPT {
            self.outages.pop_front();
        }
    }

    /// For how long it was down since the outage that began between `since` and the snapshot before.
    fn sum(&self, since: u64) -> Sum {
        let all = self.outages.iter().filter(|outage| outage.to >= since);
        let full = self.outages.len() >= 2 * KEPT;
        let known = !full && self.overlooked_ns.is_none_or(|at| at < since);
        all.fold(
            Sum {
                at_least_ns: 0,
                at_most_ns: known.then_some(0),
            },
            |sum, outage| Sum {
                at_least_ns: sum.at_least_ns + outage.seen,
                at_most_ns: sum.at_most_ns.map(|most| most + (outage.to - outage.from)),
            },
        )
    }
}

impl Downs<'_> {
    /// The last snapshot before the first outage, ns; the first that shows it, where that is not known.
    fn begin(&self) -> Option<u64> {
        let first = *self.times.front()?;
        let outage = self.port.outages.iter().find(|outage| outage.to >= first);
        Some(outage.map_or(first, |outage| outage.from.min(first)))
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

    /// Whether a port was ACTIVE since rdmatop began.
    pub(super) fn was_active(&self, port: &PortRow) -> bool {
        self.0
            .get(&(port.device_uid, port.port))
            .is_some_and(|kept| kept.was_active)
    }

    /// Whether a port, or the link of its bond with this name, is down or came up so lately that its errors
    /// are those of training.
    pub(super) fn settles(&self, port: &PortRow, member: &str, now: u64) -> bool {
        let last = || self.0.get(&(port.device_uid, port.port))?.last_down(member);
        port.state.is_some_and(|state| !state.is_active())
            || last().is_some_and(|at| now.saturating_sub(at) < SETTLE_NS)
    }

    /// The modules of the kernel that had connected QPs on a port when it was ACTIVE last.
    pub(super) fn consumers(&self, port: &PortRow) -> impl Iterator<Item = u64> {
        let kept = self.0.get(&(port.device_uid, port.port));
        kept.into_iter().flat_map(|kept| kept.consumers.iter().copied())
    }

    /// The outages of a port, if they are as many as make a flapping link.
    pub(super) fn of<'a>(&'a self, port: &'a PortRow, limits: &Limits) -> Option<Downs<'a>> {
        let kept = self.0.get(&(port.device_uid, port.port))?;
        let (times, witness) = if kept.by_counter.len() > kept.by_state.len() {
            let counter = down_counter(port).map_or(LINK_DOWNED, |row| &*row.name);
            (&kept.by_counter, counter)
        } else {
            (&kept.by_state, "the port's state")
        };
        (times.len() as u64 >= limits.flaps).then_some(Downs {
            times,
            witness,
            port: kept,
        })
    }
}

/// Ports that went down several times within minutes.
pub(super) fn flaps(ctx: &RuleContext<'_>, out: &mut Vec<Symptom>) {
    for port in &ctx.facts.ports {
        let Some(downs) = ctx.history.flaps.of(port, ctx.limits) else {
            continue;
        };
        let (Some(first), Some(last)) = (downs.times.front(), downs.times.back()) else {
            continue;
        };
        let users = ctx.carried(port);
        let now = ctx.facts.mono_ns;
        let ago = |at: u64| text::age(now.saturating_sub(at) / S);
        // It works for the moment.
        let up = port.state.is_none_or(PortState::is_active);
        let begin = downs.begin().unwrap_or(*first);
        let sum = downs.port.sum(*first);
        let long = sum.words().map_or_else(String::new, |long| format!(", {long}"));
        let mut evidence = vec![format!("by {}, the last time {} ago", downs.witness, ago(*last))];
        evidence.extend(share(sum, now.saturating_sub(begin)));
        let failed = Failed::of(ctx, port, begin);
        evidence.extend(failed.evidence());
        let mut victims: Vec<u64> = users.iter().map(|row| row.uid).collect();
        if !up {
            victims.extend(
                ctx.ranks_behind(port.device_uid, &users)
                    .iter()
                    .map(|row| row.uid),
            );
        }
        out.push(Symptom {
            verdict: format!(
                "The link of {} flaps: it went down {} within {}{long}{}{}",
                name(port),
                words::count(downs.times.len() as u64, "time"),
                ago(begin),
                failed.words(),
                used_by(&users)
            ),
            evidence,
            next: interface(ctx, port).map_or_else(
                || fabric::bad_links(&port.device, port.port),
                |(netdev, more)| {
                    step!(
                        "sudo ethtool -m {}   # optical power below its low alarm -> change transceiver or cable, which ends the job   # else -> the switch's \
                         log, firmware of both ends{}",
                        netdev,
                        more
                    )
                },
            ),
            short: "link flaps".to_owned(),
            victims,
            since_ns: *first,
            ..ctx.symptom(
                FindingId::LinkFlaps,
                if up { Severity::Warning } else { Severity::Critical },
                About::of_port(port),
            )
        });
    }
}

/// Which share of the time since the first outage began the port was down. A lower bound is rounded down, an
/// upper one up.
fn share(sum: Sum, since_ns: u64) -> Option<String> {
    if since_ns == 0 {
        return None;
    }
    let of = |ns: u64| ns as f64 * 100.0 / since_ns as f64;
    let time = text::age(since_ns / S);
    let most = sum.at_most_ns.filter(|most| (1..=since_ns).contains(most));
    let most = most.map(|most| format!("at most {} %", of(most).ceil()));
    if sum.at_least_ns >= S {
        let most = most.map_or_else(String::new, |most| format!(", {most}"));
        let least = of(sum.at_least_ns).floor();
        return Some(format!("down for at least {least} % of these {time}{most}"));
    }
    Some(format!("down for {} of these {time}", most?))
}

/// What became of the QPs on a port. Those that are destroyed are not known any more.
struct Failed {
    /// QPs that are there, as the kernel lists them.
    all: u64,
    /// Of these, those that failed since the first outage.
    qps: u64,
    processes: u64,
    /// Some failed earlier, or their state is not known.
    others: bool,
}

impl Failed {
    fn of(ctx: &RuleContext<'_>, port: &PortRow, since_ns: u64) -> Self {
        let is_of_port = |qp: &QpRow| qp.port.is_none_or(|number| number == port.port);
        let (mut all, mut qps, mut others) = (0, 0, false);
        let mut processes = BTreeSet::new();
        for qp in ctx.qps_on(port.device_uid) {
            if qp.exited || is_of_the_core(qp) || !is_of_port(qp) {
                continue;
            }
            all += 1;
            let is_err = qp.state.map(|state| state == QpState::ERR);
            let lately = qp.timeline.last().is_some_and(|step| step.mono_ns >= since_ns);
            if is_err == Some(true) && lately {
                qps += 1;
                processes.extend(qp.process_uid.filter(|_| !qp.kernel));
            } else {
                others |= is_err != Some(false);
            }
        }
        Self {
            all,
            qps,
            processes: processes.len() as u64,
            others,
        }
    }

    /// In the line of the finding.
    fn words(&self) -> String {
        if self.qps == 0 {
            return String::new();
        }
        format!(", and {} went to ERR", words::count(self.qps, "QP"))
    }

    fn evidence(&self) -> Option<String> {
        if self.qps > 0 {
            let whose = match self.processes {
                0 => String::new(),
                1 => " of 1 process".to_owned(),
                more => format!(" of {more} processes"),
            };
            let qps = words::count(self.qps, "QP");
            return Some(format!("{qps}{whose} went to ERR since the link first went down"));
        }
        let qps = words::count(self.all, "QP");
        (self.all > 0 && !self.others)
            .then(|| format!("none of the {qps} that the kernel lists there is in ERR"))
    }
}
