//! Readings of the PSNs of ports that several users share: which are asked for, and what two of them say.

use rdmatop_base::order::Gather as _;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    meter::{MIN_INTERVAL_NS, SECOND, per_second},
    psn::MASK,
    psn_shares::{PortRates, QpRates, Way, ways},
};
use crate::{
    ib::{QpState, QpType},
    input::PsnReading,
    judgement::is_of_the_core,
    snapshot::{QpRow, may_go_round},
};

/// Requests for single queue pairs in each second at most, on all devices together: each costs a command of
/// the firmware.
const REQUESTS: u64 = 200;
/// Of a port with more queue pairs than that so many are asked, and so many of these because they moved most.
const SOME: usize = 100;
const MOVERS: usize = 60;
/// So many packets of a port move a PSN, if its driver reports them.
const ENOUGH: u64 = 1000;
/// After so many readings in a row in which no PSN moved, nobody asks for so long, ns.
const STILL: u32 = 3;
const QUIET_NS: u64 = 600 * SECOND;
/// A PSN has 24 bits. A QP that went back to an older packet by less than the rest is known from one that
/// went further than this.
const ROUND: u64 = (1 << 24) - (1 << 20);
/// A share is shown for so long after it was read, ns, or for twice the time that it is of.
const FRESH_NS: u64 = 3 * SECOND;

/// Requests for single queue pairs that may be made now, in parts of a second.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Credit {
    ns: u64,
    last_ns: u64,
}

impl Credit {
    /// Adds those of the time since this was last called.
    pub(super) fn grow(&mut self, now_ns: u64) {
        let passed = now_ns.saturating_sub(std::mem::replace(&mut self.last_ns, now_ns));
        self.ns = self.ns.saturating_add(passed.saturating_mul(REQUESTS));
        self.ns = self.ns.min(REQUESTS * SECOND);
    }

    /// Takes so many, if they are there.
    pub(super) fn take(&mut self, requests: u64) -> bool {
        let left = self.ns.checked_sub(requests.saturating_mul(SECOND));
        self.ns = left.unwrap_or(self.ns);
        left.is_some()
    }
}

/// A device's uid and the number of a port.
pub(super) type Place = (u64, u32);

/// What a port had counted when it was last read.
#[derive(Clone, Copy, Debug)]
pub(super) struct PortTotals {
    /// Packets sent and received, with the time of the reading, ns.
    pub(super) packets: [(u64, u64); 2],
    pub(super) bytes: [(u64, u64); 2],
    /// READs of peers; `None`: the NIC does not count them.
    pub(super) reads: Option<u64>,
    /// Signs that a packet was sent twice; `None`: the NIC does not count each kind.
    pub(super) again: Option<u64>,
    /// The bytes are those of Ethernet, too.
    pub(super) has_ethernet: bool,
}

/// A reading of a port and its queue pairs.
#[derive(Clone, Debug)]
struct Batch {
    at_ns: u64,
    port: PortTotals,
    qps: BTreeMap<u32, PsnReading>,
}

/// What two readings of a port say.
#[derive(Clone, Debug)]
pub(super) struct Shown {
    pub(super) ways: [Option<Way>; 2],
    /// The time that it is of.
    pub(super) seconds: f64,
    until_ns: u64,
    /// Nobody has added it to the totals yet.
    pub(super) is_new: bool,
}

#[derive(Debug, Default)]
struct Port {
    asked_ns: u64,
    /// The last reading, and one that the next snapshot compares with it.
    last: Option<Batch>,
    new: Option<Batch>,
    shown: Option<Shown>,
    /// Since the last reading other queue pairs than those that were read may have moved data.
    others: bool,
    /// Readings in a row in which no PSN moved, although the port did and each queue pair has had its turn.
    still: u32,
    quiet_until_ns: u64,
    /// All of its queue pairs are asked at a time.
    is_whole: bool,
    /// Each of them was compared, at that time or in its turn.
    is_complete: bool,
    /// Where some are: readings that compared all that were asked; those that the last one did not compare;
    /// packets of each that moved lately; and in which of these readings each was compared last.
    turn: u64,
    fresh: BTreeSet<u32>,
    movers: BTreeMap<u32, u64>,
    turns: BTreeMap<u32, u64>,
}

impl Port {
    /// What was read is not followed any more.
    fn forget(&mut self) {
        (self.last, self.new, self.shown) = (None, None, None);
        self.fresh.clear();
    }

    /// Notes which queue pairs moved between the last reading and a new one, where some are asked at a time.
    fn note(&mut self, new: &Batch) {
        if self.is_whole {
            self.movers.clear();
            self.turns.clear();
            return;
        }
        let last = self.last.as_ref().map(|last| &last.qps);
        let before = |qpn: &u32| last.and_then(|last| last.get(qpn));
        self.movers.values_mut().for_each(|packets| *packets /= 2);
        for (qpn, now) in &new.qps {
            if let Some(before) = before(qpn) {
                let packets = self.movers.entry(*qpn).or_default();
                *packets = moved_since(before, now).max(*packets);
                self.turns.insert(*qpn, self.turn);
            }
        }
        self.movers.retain(|_, packets| *packets > 0);
        let fresh = new.qps.keys().filter(|qpn| before(qpn).is_none());
        self.fresh = fresh.copied().gather();
        self.turn += u64::from(self.fresh.is_empty());
    }

    /// Which of the queue pairs of a port that has too many are asked, each with its process. Those that
    /// moved most explain most of its packets. The others are asked in turns, twice each, those first that
    /// have waited longest.
    fn some(&self, all: &[(u32, Option<u64>)]) -> Vec<u32> {
        let moved = all.iter().filter_map(|(qpn, process)| {
            let packets = self.movers.get(qpn)?;
            Some((*process, (u64::MAX - packets, *qpn)))
        });
        let mut asked = fairly(moved, MOVERS);
        let mut others: Vec<_> = all.iter().filter(|(qpn, _)| !asked.contains(qpn)).collect();
        if others.iter().any(|(qpn, _)| self.fresh.contains(qpn)) {
            others.retain(|(qpn, _)| self.fresh.contains(qpn));
        }
        let turn = |qpn| self.turns.get(qpn).map_or(0, |turn| turn + 1);
        let others = others
            .into_iter()
            .map(|(qpn, process)| (*process, (turn(qpn), *qpn)));
        asked.extend(fairly(others, SOME - asked.len()));
        asked
    }
}

/// The first of these queue pairs, each with its process and its place among those of that: as many of one
/// process as of another.
fn fairly(qps: impl Iterator<Item = (Option<u64>, (u64, u32))>, most: usize) -> Vec<u32> {
    let mut of_process: BTreeMap<Option<u64>, BTreeSet<(u64, u32)>> = BTreeMap::new();
    for (process, place) in qps {
        of_process.entry(process).or_default().insert(place);
    }
    let ranks = of_process.into_values().flat_map(|own| (0_u64..).zip(own));
    let ranks: BTreeSet<(u64, (u64, u32))> = ranks.gather();
    ranks.into_iter().take(most).map(|(_, (_, qpn))| qpn).collect()
}

/// Keeps what was read of ports, and decides what is read next.
#[derive(Debug, Default)]
pub(super) struct Batches {
    ports: BTreeMap<Place, Port>,
    /// Numbers of the queue pairs to ask for, by the index of their device.
    pub(super) plan: Arc<BTreeMap<u32, Vec<u32>>>,
}

impl Batches {
    /// Keeps the ports that are there.
    pub(super) fn keep(&mut self, is_there: impl Fn(&Place) -> bool) {
        self.ports.retain(|place, _| is_there(place));
    }

    /// Records were lost, or owners of queue pairs have changed.
    pub(super) fn forget(&mut self) {
        self.ports.values_mut().for_each(Port::forget);
    }

    /// Takes over a reading of a port.
    pub(super) fn read(&mut self, place: Place, port: PortTotals, qps: BTreeMap<u32, PsnReading>) {
        let Some(known) = self.ports.get_mut(&place) else {
            return;
        };
        let at_ns = qps.values().map(|qp| qp.at_ns).max().unwrap_or(0);
        known.new = Some(Batch { at_ns, port, qps });
    }

    /// What is known of a port at `now_ns`. `told_ns`: no record was lost since then, so that of a queue pair
    /// that was made later it is known what each modify set. `all_listed`: nobody has queue pairs that are
    /// not among `qps`.
    pub(super) fn look(
        &mut self,
        place: Place,
        qps: &[Arc<QpRow>],
        (told_ns, all_listed): (u64, bool),
        now_ns: u64,
    ) -> Option<&mut Shown> {
        let port = self.ports.get_mut(&place)?;
        let of_it =
            |qp: &&Arc<QpRow>| qp.device_uid == Some(place.0) && qp.port.is_none_or(|port| port == place.1);
        let rows = || qps.iter().filter(of_it).map(|qp| &**qp);
        if let Some(last) = &port.last {
            port.others |= !all_listed || rows().any(|qp| is_another(qp, last.at_ns));
        }
        if let Some(new) = port.new.take() {
            // Who has others now may lose them at once: then they may have moved data in the next interval.
            let others = std::mem::replace(&mut port.others, !all_listed);
            port.shown = None;
            port.note(&new);
            if let Some(last) = port.last.take() {
                port.shown = last.until(&new, rows(), (told_ns, others));
                if last.psns_moved(&new) {
                    port.still = 0;
                } else if port.is_complete
                    && port.movers.is_empty()
                    && last.packets(&new).into_iter().sum::<u64>() >= ENOUGH
                {
                    port.still += 1;
                }
            }
            if port.still >= STILL {
                (port.still, port.quiet_until_ns) = (0, now_ns.saturating_add(QUIET_NS));
            }
            port.last = Some(new);
        }
        port.shown.as_mut().filter(|shown| now_ns <= shown.until_ns)
    }

    /// Decides which queue pairs are read next: all of a port at a time, of `shared` ports in turns, each
    /// with the index of its device and whether it moves. One at rest is read once: from then on no PSN
    /// moves there before the port does. Of a port with more of them than may be asked for in a second some
    /// are: what others move is not explained, and may be anybody's.
    pub(super) fn plan(
        &mut self,
        shared: &BTreeMap<Place, (u32, bool)>,
        qps: &[Arc<QpRow>],
        credit: &mut Credit,
        now_ns: u64,
    ) {
        let alone = |(place, _): &(&Place, &mut Port)| !shared.contains_key(place);
        self.ports
            .iter_mut()
            .filter(alone)
            .for_each(|(_, port)| port.forget());
        let is_due = |(place, (_, moves)): &(&Place, &(u32, bool))| {
            *moves || self.ports.get(place).is_none_or(|port| port.asked_ns == 0)
        };
        let due = shared
            .iter()
            .filter(is_due)
            .map(|(place, _)| (*place, Vec::new()));
        let mut numbers: BTreeMap<Place, Vec<(u32, Option<u64>)>> = due.gather();
        if !numbers.is_empty() {
            for qp in qps.iter().filter(|qp| is_asked(qp)) {
                let place = qp.device_uid.zip(qp.port);
                if let Some(of_port) = place.and_then(|place| numbers.get_mut(&place)) {
                    of_port.push((qp.qpn, qp.process_uid));
                }
            }
            numbers.retain(|_, of_port| !of_port.is_empty());
        }
        let mut plan: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let mut turns: BTreeSet<(u64, Place)> = BTreeSet::new();
        for place in numbers.keys() {
            let port = self.ports.entry(*place).or_default();
            if port.quiet_until_ns <= now_ns {
                turns.insert((port.asked_ns, *place));
            }
        }
        for (_, place) in turns {
            let Some(((index, _), numbers)) = shared.get(&place).zip(numbers.remove(&place)) else {
                continue;
            };
            let Some(port) = self.ports.get_mut(&place) else {
                continue;
            };
            let is_whole = numbers.len() as u64 <= REQUESTS;
            let mut is_complete = true;
            let asked: Vec<u32> = if is_whole {
                numbers.iter().map(|(qpn, _)| *qpn).collect()
            } else {
                let all: BTreeSet<u32> = numbers.iter().map(|(qpn, _)| *qpn).gather();
                port.turns.retain(|qpn, _| all.contains(qpn));
                is_complete = port.turns.len() == all.len();
                port.some(&numbers)
            };
            // Those that have waited longest come first, also where they are many.
            if !credit.take(asked.len() as u64) {
                break;
            }
            (port.asked_ns, port.is_whole, port.is_complete) = (now_ns, is_whole, is_complete);
            plan.entry(*index).or_default().extend(asked);
        }
        self.plan = plan.into();
    }
}

/// Whether its PSNs may count packets: connected ones and UD, from RTR on and before an error.
fn is_asked(qp: &QpRow) -> bool {
    // RC, UC, UD.
    let counts = qp.qp_type.is_some_and(|qp_type| matches!(qp_type.0, 2..=4));
    counts && is_able(qp.state) && !qp.exited
}

/// Whether it may have moved data since `since_ns` that its PSNs do not tell of.
fn is_another(qp: &QpRow, since_ns: u64) -> bool {
    let changed = changed_ns(qp).is_some_and(|ns| ns >= since_ns);
    let unread = !qp.exited && !is_asked(qp) && (qp.state.is_none() || is_able(qp.state));
    !is_of_the_core(qp) && (changed || unread)
}

/// When it was made or modified last, if that was seen.
pub(super) fn changed_ns(qp: &QpRow) -> Option<u64> {
    qp.timeline.last().map(|step| step.mono_ns).max(qp.born_mono_ns)
}

/// Whether a queue pair can move packets in this state: RTR, RTS or SQD.
pub(super) fn is_able(state: Option<QpState>) -> bool {
    state.is_some_and(|state| matches!(state.0, 2..=4))
}

impl Batch {
    /// Packets that the port sent and received up to a later reading.
    fn packets(&self, new: &Self) -> [u64; 2] {
        [0, 1].map(|way| new.port.packets[way].0.saturating_sub(self.port.packets[way].0))
    }

    /// How much later than the port's packets its last PSN was read.
    fn late_ns(&self, way: usize) -> u64 {
        self.at_ns.saturating_sub(self.port.packets[way].1)
    }

    fn psns_moved(&self, new: &Self) -> bool {
        let moved = |(qpn, now): (&u32, &PsnReading)| {
            let before = self.qps.get(qpn);
            before.is_some_and(|before| moved_since(before, now) > 0)
        };
        new.qps.iter().any(moved)
    }

    /// What this reading and a later one say.
    fn until<'a>(
        &self,
        new: &Self,
        rows: impl Iterator<Item = &'a QpRow>,
        (told_ns, others): (u64, bool),
    ) -> Option<Shown> {
        let elapsed = new
            .at_ns
            .checked_sub(self.at_ns)
            .filter(|ns| *ns >= MIN_INTERVAL_NS)?;
        let packets = self.packets(new);
        let passed = packets[0].saturating_add(packets[1]);
        let rate = |before: (u64, u64), now: (u64, u64)| {
            let ns = now.1.checked_sub(before.1).filter(|ns| *ns >= MIN_INTERVAL_NS)?;
            Some(per_second(now.0.checked_sub(before.0)?, ns))
        };
        let both = |before: [(u64, u64); 2], now: [(u64, u64); 2]| {
            Some([rate(before[0], now[0])?, rate(before[1], now[1])?])
        };
        let (old, port) = (&self.port, &new.port);
        let mut qps = Vec::new();
        let went = self.qps.keys().any(|qpn| !new.qps.contains_key(qpn));
        let mut unknown = others || went || old.again.is_none() || old.again != port.again;
        let mut datagrams = false;
        for row in rows.filter(|row| is_asked(row)) {
            datagrams |= row.qp_type != Some(QpType::RC);
            let readings = self.qps.get(&row.qpn).zip(new.qps.get(&row.qpn));
            let told = is_told(row, told_ns);
            let moved = readings.and_then(|(before, now)| moves(row, before, now, passed, told));
            unknown |= moved.is_none_or(|(_, is_whole)| !is_whole);
            qps.extend(moved.map(|(qp, _)| qp));
        }
        let rates = PortRates {
            packets: both(old.packets, port.packets)?,
            bytes: both(old.bytes, port.bytes)?,
            no_reads: old.reads.is_some() && old.reads == port.reads,
            // What UC and UD receive is no answer, and no PSN explains it.
            answers: [!unknown, !unknown && !datagrams],
            has_ethernet: port.has_ethernet,
            between: [0, 1].map(|way| (self.late_ns(way) + new.late_ns(way)) as f64 / elapsed as f64),
        };
        let mut ways = ways(&rates, &qps);
        let between = rates.between[0].max(rates.between[1]);
        for (way, shown) in ways.iter_mut().enumerate() {
            shown.take_if(|_| may_go_round(packets[way] as f64, packets[1 - way] as f64, between));
        }
        Some(Shown {
            ways,
            seconds: elapsed as f64 / SECOND as f64,
            until_ns: new.at_ns.saturating_add(FRESH_NS.max(elapsed.saturating_mul(2))),
            is_new: true,
        })
    }
}

/// By how much both PSNs of a queue pair moved, as far as is known.
fn moved_since(before: &PsnReading, now: &PsnReading) -> u64 {
    let moved = |before: Option<u32>, now: Option<u32>| match (before, now) {
        (Some(before), Some(now)) => u64::from(now.wrapping_sub(before) & MASK),
        _ => 0,
    };
    moved(before.sq_psn, now.sq_psn) + moved(before.rq_psn, now.rq_psn)
}

/// Whether a record of each modify of a queue pair was read, if none was lost since `told_ns`; 0: ever.
pub(super) fn is_told(row: &QpRow, told_ns: u64) -> bool {
    told_ns == 0 || row.born_mono_ns.is_some_and(|born_ns| born_ns > told_ns)
}

/// How fast the PSNs of a queue pair moved, and whether both are known; `None` if it was another one, or a
/// modify set them. `told`: it is known what its path is.
fn moves(
    row: &QpRow,
    before: &PsnReading,
    now: &PsnReading,
    passed: u64,
    told: bool,
) -> Option<(QpRates, bool)> {
    let elapsed = now
        .at_ns
        .checked_sub(before.at_ns)
        .filter(|ns| *ns >= MIN_INTERVAL_NS)?;
    let able = is_able(before.state) && is_able(now.state);
    if !is_asked(row) || !able || changed_ns(row).is_some_and(|ns| ns >= before.at_ns) {
        return None;
    }
    // What went further than the port can have moved it went back, to an older packet.
    let most = (passed + passed / 16 + 64).min(ROUND);
    let psns = [(before.sq_psn, now.sq_psn), (before.rq_psn, now.rq_psn)].map(|(before, now)| {
        let moved = u64::from(now?.wrapping_sub(before?) & MASK);
        (moved <= most).then(|| per_second(moved, elapsed))
    });
    let is_whole = psns.iter().all(Option::is_some);
    let [sent, received] = psns.map(Option::unwrap_or_default);
    let may_read = row.qp_type == Some(QpType::RC);
    let rates = QpRates {
        user: row.process_uid,
        // The receive PSN of UC passes lost packets too, and that of UD is the sender's.
        psns: [sent, if may_read { received } else { 0.0 }],
        path_mtu: row.path_mtu.filter(|_| told),
        is_ipv4: told && row.remote_gid.is_some_and(|gid| gid.ipv4().is_some()),
        may_read,
    };
    Some((rates, is_whole))
}

#[cfg(test)]
mod tests;
