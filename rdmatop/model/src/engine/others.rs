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

/// What a counter has counted, sent and received.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    pub(super) bytes: [u64; 2],
    pub(super) packets: [u64; 2],
}

/// Counters on a port, by process and id.
pub(super) type OnPort = BTreeMap<(u64, u32), Counted>;

/// A reading of the bytes of a port and, at `at`, of the counters that are bound there.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) bytes: [Option<(u64, ReadAt)>; 2],
    pub(super) at: ReadAt,
    pub(super) counted: OnPort,
}

/// What two readings say of a direction.
#[derive(Clone, Debug)]
struct Way {
    /// Bytes of the port each second.
    port: f64,
    /// Payload of each process each second.
    payload: BTreeMap<u64, f64>,
    /// The part of the time in which the counters may have counted what the port did not.
    outside: f64,
}

/// Keeps the last reading of a port on which queue pairs are bound to counters, and what two readings say.
#[derive(Debug, Default)]
pub(super) struct Others {
    last: Option<Reading>,
    /// Since when that is known, ns.
    since_ns: Option<u64>,
    ways: [Option<Way>; 2],
    until_ns: u64,
}

impl Reading {
    /// What this reading and a later one say of a direction.
    fn until(&self, new: &Self, way: usize) -> Option<Way> {
        let ((before, from), (now, to)) = (self.bytes[way]?, new.bytes[way]?);
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
                let packets = now.packets[way].checked_sub(before.packets[way])?;
                let bytes = now.bytes[way].checked_sub(before.bytes[way])?;
                Some((bytes as f64 - packets as f64 * HEADERS).max(0.0))
            });
            *payload.entry(key.0).or_default() += moved.unwrap_or(0.0) / seconds;
        }
        Some(Way {
            port: per_second(now.checked_sub(before)?, elapsed),
            payload,
            outside: early.saturating_add(late) as f64 / elapsed as f64,
        })
    }
}

impl Others {
    /// Takes over a reading, if it is a new one.
    pub(super) fn read(&mut self, new: Reading) {
        if self.last.as_ref().is_some_and(|last| last.at == new.at) {
            return;
        }
        let last = self.last.as_ref();
        // Of what was received a counter may have what a queue pair here sent to one of its numbers, unseen
        // by the port: whoever sends needs no part in that connection.
        self.ways = [last.and_then(|last| last.until(&new, 0)), None];
        self.since_ns = last.map(|last| last.at.mono_ns.saturating_sub(last.at.within_ns));
        // As long as the port's rate is shown between two readings.
        self.until_ns = new.at.mono_ns.saturating_add(LONGEST_NS);
        self.last = Some(new);
    }

    /// What is known at `now_ns`, where the link carries so many bits each second. Of the queue pairs `qps`
    /// of the device, whose ports are `ports`, each change since `told_ns` was seen.
    pub(super) fn rests<'a>(
        &self,
        link: Option<u64>,
        qps: impl Iterator<Item = &'a QpRow>,
        ports: &[&PortRow],
        (told_ns, now_ns): (u64, u64),
    ) -> [Option<Rest>; 2] {
        let since_ns = self.since_ns.filter(|_| now_ns <= self.until_ns);
        let leave = since_ns.and_then(|since_ns| leave(qps, ports, told_ns, since_ns));
        let Some((leave, link)) = leave.zip(link) else {
            return [None, None];
        };
        [0, 1].map(|way| {
            let known = self.ways[way].as_ref()?;
            let mut payload = known.payload.clone();
            payload.retain(|process, _| leave.contains(process));
            let sum: f64 = payload.values().sum();
            // More than the port: then they count other things than it does.
            (sum <= known.port).then(|| Rest {
                port: known.port,
                payload,
                sum,
                outside: known.outside * link as f64 / 8.0,
            })
        })
    }
}

/// What is left of a direction of a port.
#[derive(Debug)]
pub(super) struct Rest {
    /// What the port moved each second.
    port: f64,
    /// Of which this was each process's.
    payload: BTreeMap<u64, f64>,
    sum: f64,
    /// But for so many bytes each second.
    outside: f64,
}

impl Rest {
    /// What a process moved at most each second; `rate` is that of the port now.
    pub(super) fn of(&self, process: u64, rate: f64) -> Option<f64> {
        let own = self.payload.get(&process).copied().unwrap_or(0.0);
        let others = self.sum - own - self.outside;
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

    fn rests(others: &Others, rows: &[QpRow], now_ns: u64) -> [Option<Rest>; 2] {
        others.rests(Some(LINK_BITS), rows.iter(), &[&port()], (0, now_ns))
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
                        counted[number][later].bytes[0] += packets * (payload + user.headers[1]);
                        counted[number][later].packets[0] += packets;
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
                    bytes: [Some((port_bytes[port], read_at[port])), None],
                    at: read_at[counters],
                    counted: bound.map(|((number, _), counted)| ((number, 7), counted[counters])).collect(),
                });
            }
            let rows: Vec<QpRow> = (0..users.len() as u64).map(row).collect();
            let [Some(rest), None] = rests(&others, &rows, read_at[3].mono_ns) else {
                return Ok(());
            };
            let (from, to) = (places[0].0, places[1].0);
            let seconds = (read_at[to].mono_ns - read_at[from].mono_ns) as f64 / SECOND as f64;
            let rate = (port_bytes[to] - port_bytes[from]) as f64 / seconds;
            for (process, own) in (0_u64..).zip(&own_port) {
                let truth = (own[to] - own[from]) as f64 / seconds;
                if let Some(most) = rest.of(process, rate) {
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
                bytes: [of(packets * 4162), 0],
                packets: [of(packets), 0],
            };
            others.read(Reading {
                bytes: [
                    Some((of((packets + 1_000_000) * 4158), (second * SECOND).into())),
                    None,
                ],
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
        let rest = |rows: &[QpRow], process: u64, rate: f64| {
            rests(&others, rows, 2 * SECOND)[0]
                .as_ref()
                .and_then(|rest| rest.of(process, rate))
        };
        let rows = [row(1), row(2)];
        let most = rest(&rows, 2, rate).unwrap();
        let expected = rate - 2e6 * (4162.0 - HEADERS) + LINK_BITS as f64 / 8.0 / 1000.0;
        assert!((most - expected).abs() < 1.0, "{most} {expected}");
        assert!(most < 1.06 * 1e6 * 4158.0, "{most}");
        assert_eq!(rest(&rows, 1, rate), None, "of the other nothing is counted");
        assert_eq!(rest(&rows, 2, rate * 1.2), None, "the port is faster now");
        assert!(rests(&others, &rows, 9 * SECOND)[0].is_none(), "long ago");
        assert!(others.rests(None, rows.iter(), &[&port()], (0, 2 * SECOND))[0].is_none());
        let with = |change: fn(&mut QpRow)| {
            let mut rows = rows.clone();
            change(&mut rows[0]);
            rest(&rows, 2, rate)
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
        assert!(others.rests(Some(LINK_BITS), rows.iter(), &[&unknown], (0, 2 * SECOND))[0].is_none());
        let untold = others.rests(Some(LINK_BITS), rows.iter(), &[&port()], (5, 2 * SECOND));
        assert!(
            untold[0].as_ref().is_none_or(|rest| rest.of(2, rate).is_none()),
            "its peer may be another"
        );
        // What the counters count is not what the port does.
        let mut rows = rows.to_vec();
        rows.push(row(3));
        let mut others = others;
        others.ways[0].as_mut().unwrap().payload.insert(3, rate);
        assert!(rests(&others, &rows, 2 * SECOND)[0].is_none());
    }
}
