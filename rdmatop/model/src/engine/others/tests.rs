#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "made-up counts are small and not negative"
)]

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
    (any::<bool>(), headers, prop::array::uniform4(moves)).prop_map(|(is_bound, (port, own), moves)| User {
        is_bound,
        headers: [port, own],
        moves,
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
