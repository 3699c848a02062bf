//! What others are known to have moved through a port: each user moved at most the rest.
//!
//! Counters that queue pairs are bound to (`groups.rs`) count what passes, as the port does. The payload of
//! what they counted passed the port, too; how many bytes of headers either counts is its driver's. They are
//! read at other times than the port: what they counted outside of the port's interval is at most what its
//! link carries in that time. docs/model.md, "What others moved", says which counts are of no use here.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    meter::{MIN_INTERVAL_NS, SECOND, per_second},
    psn_batches::{changed_ns, is_able, is_told},
    psn_shares::HEADERS,
};
use crate::{
    input::ReadAt,
    judgement::is_of_the_core,
    snapshot::{PortRow, QpRow},
};

/// Ended queue pairs are in the list of all for longer than this, ns: so long may an interval be.
const LONGEST_NS: u64 = 4_000_000_000;

/// What a counter has counted of what was sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    pub(super) bytes: u64,
    pub(super) packets: u64,
}

/// Counters on a port, by process and id.
pub(super) type OnPort = BTreeMap<(u64, u32), Counted>;

/// A reading of the bytes that a port has sent and, at `at`, of the counters that are bound there.
///
/// Of what was received a counter may have what a queue pair here sent to one of its numbers, unseen by the
/// port: whoever sends needs no part in that connection.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) sent: Option<(u64, ReadAt)>,
    pub(super) at: ReadAt,
    pub(super) counted: OnPort,
}

/// Two readings of a port say this of what its users can have moved.
#[derive(Clone, Debug)]
pub(super) struct Rest {
    /// What the port sent each second.
    port: f64,
    /// Of which this payload was each process's.
    payload: BTreeMap<u64, f64>,
    /// In so long a part of the time the counters may have counted what the port did not.
    outside: f64,
}

/// Keeps the last reading of a port on which queue pairs are bound to counters, and what two readings say.
#[derive(Debug, Default)]
pub(super) struct Others {
    last: Option<Reading>,
    /// Since when that is known, ns.
    since_ns: Option<u64>,
    rest: Option<Rest>,
    until_ns: u64,
}

impl Reading {
    /// What this reading and a later one say.
    fn until(&self, new: &Self) -> Option<Rest> {
        let ((before, from), (now, to)) = (self.sent?, new.sent?);
        let elapsed = to.mono_ns.checked_sub(from.mono_ns);
        let elapsed = elapsed.filter(|ns| (MIN_INTERVAL_NS..LONGEST_NS).contains(ns))?;
        let seconds = elapsed as f64 / SECOND as f64;
        let begins = |at: ReadAt| at.mono_ns.saturating_sub(at.within_ns);
        let ends = |at: ReadAt| at.mono_ns.saturating_add(at.within_ns);
        let early = ends(from).saturating_sub(begins(self.at));
        let late = ends(new.at).saturating_sub(begins(to));
        let mut payload: BTreeMap<u64, f64> = BTreeMap::new();
        for (key, now) in &new.counted {
            let moved = self.counted.get(key).and_then(|before| {
                let packets = now.packets.checked_sub(before.packets)?;
                let bytes = now.bytes.checked_sub(before.bytes)?;
                Some((bytes as f64 - packets as f64 * HEADERS).max(0.0))
            });
            *payload.entry(key.0).or_default() += moved.unwrap_or(0.0) / seconds;
        }
        Some(Rest {
            port: per_second(now.checked_sub(before)?, elapsed),
            payload,
            outside: early.saturating_add(late) as f64 / elapsed as f64,
        })
    }
}

impl Others {
    /// Takes over a reading, if it is a new one.
    pub(super) fn read(&mut self, new: Reading) {
        let last = self.last.as_ref();
        if last.is_some_and(|last| last.at == new.at) {
            return;
        }
        self.rest = last.and_then(|last| last.until(&new));
        self.since_ns = last.map(|last| last.at.mono_ns.saturating_sub(last.at.within_ns));
        // As long as the port's rate is shown between two readings.
        self.until_ns = new.at.mono_ns.saturating_add(LONGEST_NS);
        self.last = Some(new);
    }

    /// What is known at `now_ns`. Of the queue pairs `qps` of the device, whose ports are `ports`, each
    /// change since `told_ns` was seen.
    pub(super) fn rest<'a>(
        &self,
        qps: impl Iterator<Item = &'a QpRow>,
        ports: &[&PortRow],
        (told_ns, now_ns): (u64, u64),
    ) -> Option<Rest> {
        let since_ns = self.since_ns.filter(|_| now_ns <= self.until_ns)?;
        let leave = leave(qps, ports, told_ns, since_ns)?;
        let mut rest = self.rest.clone()?;
        rest.payload.retain(|process, _| leave.contains(process));
        // More than the port: then they count other things than it does.
        (rest.payload.values().sum::<f64>() <= rest.port).then_some(rest)
    }
}

impl Rest {
    /// What a process sent at most each second, where the link carries so many bits; `rate` is that of the
    /// port now.
    pub(super) fn of(&self, process: u64, rate: f64, link: u64) -> Option<f64> {
        let others = self.payload.iter().filter(|(other, _)| **other != process);
        let others = others.map(|(_, payload)| payload).sum::<f64>() - self.outside * link as f64 / 8.0;
        // It has changed since: nobody knows by whom.
        let changed = (rate - self.port).abs() > super::shares::CHANGED * rate;
        (others > 0.0 && !changed).then_some(self.port - others)
    }
}

/// The processes of which all that moved since `since_ns` left the device: whether a NIC's port counts what
/// it sends to itself is not known.
fn leave<'a>(
    qps: impl Iterator<Item = &'a QpRow>,
    ports: &[&PortRow],
    told_ns: u64,
    since_ns: u64,
) -> Option<BTreeSet<u64>> {
    let gids = ports.iter().map(|port| port.gids.as_deref());
    let own = gids.collect::<Option<Vec<_>>>()?;
    let leaves = |qp: &QpRow| {
        // RC and UC have one peer.
        let connected = qp.qp_type.is_some_and(|qp_type| matches!(qp_type.0, 2 | 3));
        let is_own = |gid| own.iter().any(|gids| gids.iter().any(|one| one.gid == gid));
        let went = || qp.remote_gid.is_some_and(|gid| !is_own(gid));
        let changed = changed_ns(qp).is_some_and(|ns| ns >= since_ns);
        // RESET and INIT carry nothing.
        let rests = qp.state.is_some_and(|state| state.0 <= 1);
        !changed && (rests || connected && is_able(qp.state) && is_told(qp, told_ns) && went())
    };
    let (mut leave, mut others) = (BTreeSet::new(), BTreeSet::new());
    for qp in qps.filter(|qp| !is_of_the_core(qp)) {
        // One that has ended may have been any, and many of them push others out of the list.
        let process = qp.process_uid.filter(|_| !qp.exited)?;
        let which = if leaves(qp) { &mut leave } else { &mut others };
        which.insert(process);
    }
    Some(&leave - &others)
}

#[cfg(test)]
mod tests;
