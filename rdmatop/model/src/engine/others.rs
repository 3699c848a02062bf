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
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "made-up counts are small and not negative"
)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        ib::{QpState, QpType},
        input::PortGid,
    };

    const LINK_BITS: u64 = 100_000_000_000;
    const MILLI: u64 = 1_000_000;

    /// A process: whether counters are bound to its queue pairs, and headers of a packet as the port and as
    /// the counter count them.
    #[derive(Clone, Debug)]
    struct User {
        is_bound: bool,
        headers: [u64; 2],
        /// Its part of what the link can carry in each of four times, and the payload of a packet.
        moves: [(f64, u64); 4],
    }

    fn user() -> impl Strategy<Value = User> {
        let moves = (prop_oneof![Just(0.0), Just(1.0), 0.0..1.0_f64], 1_u64..4096);
        let headers = (0_u64..=106, 0_u64..=106);
        (any::<bool>(), headers, prop::array::uniform4(moves)).prop_map(|(is_bound, (port, own), moves)| {
            User {
                is_bound,
                headers: [port, own],
                moves,
            }
        })
    }

    fn row(process: u64) -> QpRow {
        QpRow {
            process_uid: Some(process),
            qp_type: Some(QpType(2)),
            state: Some(QpState::RTS),
            remote_gid: Some(crate::ib::Gid([9; 16])),
            ..QpRow::default()
        }
    }

    fn port() -> PortRow {
        let own = PortGid {
            index: 0,
            gid: crate::ib::Gid([1; 16]),
            v1: None,
        };
        PortRow {
            gids: Some([own].into()),
            ..PortRow::default()
        }
    }

    fn rest(others: &Others, rows: &[QpRow], now_ns: u64) -> Option<Rest> {
        others.rest(rows.iter(), &[&port()], (0, now_ns))
    }

    proptest! {
        #[test]
        fn a_user_moved_no_more_than_is_left_by_others_whatever_was_read_first(
            users in prop::collection::vec(user(), 2..5),
            // The times between five reads, ms: before the first, and of port and counters twice.
            times in prop::array::uniform4(1_u64..1500),
            counters_first in prop::array::uniform2(any::<bool>()),
            withins in prop::array::uniform4(0_u64..40),
            errors in prop::array::uniform4(-1.0..1.0_f64),
            turns: bool,
        ) {
            // Each read at a time of its own; the middle that is known of it is off by at most its half.
            let mut at = 10_000 * MILLI;
            let true_ns = [0, 1, 2, 3].map(|read| {
                at += if read == 2 { times[2] + 80 } else { times[read].min(30) } * MILLI;
                at
            });
            let read_at = [0, 1, 2, 3].map(|read| {
                let within_ns = withins[read] * MILLI / 4;
                let off = (errors[read] * within_ns as f64) as i64;
                ReadAt { mono_ns: true_ns[read].saturating_add_signed(off), within_ns }
            });
            // What each has moved by each read, and how much of it the port and the counter have counted.
            let mut port_bytes = [0_u64; 4];
            let mut own_port = vec![[0_u64; 4]; users.len()];
            let mut counted = vec![[Counted::default(); 4]; users.len()];
            let mut before = true_ns[0];
            for (read, at_ns) in true_ns.into_iter().enumerate() {
                let link = LINK_BITS as f64 / 8.0 * (at_ns - before) as f64 / SECOND as f64;
                before = at_ns;
                let all: f64 = users.iter().map(|user| user.moves[read].0).sum();
                for (number, user) in users.iter().enumerate() {
                    let (part, payload) = user.moves[read];
                    let is_its_turn = !turns || read % users.len() == number;
                    let wire = if is_its_turn { link * part / all.max(1.0) } else { 0.0 };
                    let packets = (wire / (payload + 106) as f64) as u64;
                    for later in read..4 {
                        let port = packets * (payload + user.headers[0]);
                        port_bytes[later] += port;
                        own_port[number][later] += port;
                        counted[number][later].bytes += packets * (payload + user.headers[1]);
                        counted[number][later].packets += packets;
                    }
                }
            }
            let places = [0, 2].map(|first: usize| {
                let counters = first + usize::from(!counters_first[first / 2]);
                (first + usize::from(counters_first[first / 2]), counters)
            });
            let mut others = Others::default();
            for (port, counters) in places {
                let bound = (0_u64..).zip(&users).zip(&counted).filter(|((_, user), _)| user.is_bound);
                others.read(Reading {
                    sent: Some((port_bytes[port], read_at[port])),
                    at: read_at[counters],
                    counted: bound.map(|((number, _), counted)| ((number, 7), counted[counters])).collect(),
                });
            }
            let rows: Vec<QpRow> = (0..users.len() as u64).map(row).collect();
            let Some(rest) = rest(&others, &rows, read_at[3].mono_ns) else {
                return Ok(());
            };
            let (from, to) = (places[0].0, places[1].0);
            let seconds = (read_at[to].mono_ns - read_at[from].mono_ns) as f64 / SECOND as f64;
            let rate = (port_bytes[to] - port_bytes[from]) as f64 / seconds;
            for (process, own) in (0_u64..).zip(&own_port) {
                let truth = (own[to] - own[from]) as f64 / seconds;
                if let Some(most) = rest.of(process, rate, LINK_BITS) {
                    prop_assert!(most >= truth * (1.0 - 1e-9) - 1.0, "{} of {}: {:?}", most, truth, rest);
                }
            }
        }
    }

    /// Two readings a second apart, in which a process has sent so many packets of 4096 and 66 bytes, of
    /// which the port counts 62, beside a million of another.
    fn sent(packets: u64) -> Others {
        let mut others = Others::default();
        for second in 1..3 {
            let of = |packets: u64| packets * (second - 1);
            let counted = Counted {
                bytes: of(packets * 4162),
                packets: of(packets),
            };
            others.read(Reading {
                sent: Some((of((packets + 1_000_000) * 4158), (second * SECOND).into())),
                at: (second * SECOND + MILLI).into(),
                counted: [((1, 7), counted)].into(),
            });
        }
        others
    }

    #[test]
    fn what_is_counted_of_others_is_taken_off_but_for_headers() {
        let others = sent(2_000_000);
        let rate = 3e6 * 4158.0;
        let most = |rows: &[QpRow], process: u64, rate: f64| {
            let rest = rest(&others, rows, 2 * SECOND)?;
            rest.of(process, rate, LINK_BITS)
        };
        let rows = [row(1), row(2)];
        let of_two = most(&rows, 2, rate).unwrap();
        let expected = rate - 2e6 * (4162.0 - HEADERS) + LINK_BITS as f64 / 8.0 / 1000.0;
        assert!((of_two - expected).abs() < 1.0, "{of_two} {expected}");
        assert!(of_two < 1.06 * 1e6 * 4158.0, "{of_two}");
        assert_eq!(most(&rows, 1, rate), None, "of the other nothing is counted");
        assert_eq!(most(&rows, 2, rate * 1.2), None, "the port is faster now");
        assert!(rest(&others, &rows, 9 * SECOND).is_none(), "long ago");
        let with = |change: fn(&mut QpRow)| {
            let mut rows = rows.clone();
            change(&mut rows[0]);
            most(&rows, 2, rate)
        };
        assert!(with(|qp| qp.port = Some(1)).is_some());
        assert!(
            with(|qp| qp.state = Some(QpState(1))).is_some(),
            "it carries nothing"
        );
        for change in [
            |qp: &mut QpRow| qp.remote_gid = Some(crate::ib::Gid([1; 16])),
            |qp: &mut QpRow| qp.remote_gid = None,
            |qp: &mut QpRow| qp.qp_type = Some(QpType(4)),
            |qp: &mut QpRow| qp.exited = true,
            |qp: &mut QpRow| qp.process_uid = None,
            |qp: &mut QpRow| qp.born_mono_ns = Some(SECOND + 2 * MILLI),
        ] {
            assert_eq!(with(change), None, "it may have stayed in the NIC");
        }
        let mut unknown = port();
        unknown.gids = None;
        assert!(others.rest(rows.iter(), &[&unknown], (0, 2 * SECOND)).is_none());
        let untold = others.rest(rows.iter(), &[&port()], (5, 2 * SECOND));
        assert!(
            untold.is_none_or(|rest| rest.of(2, rate, LINK_BITS).is_none()),
            "its peer may be another"
        );
        // What the counters count is not what the port does.
        let mut rows = rows.to_vec();
        rows.push(row(3));
        let mut others = others;
        others.rest.as_mut().unwrap().payload.insert(3, rate);
        assert!(rest(&others, &rows, 2 * SECOND).is_none());
    }
}
