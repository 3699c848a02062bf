use proptest::prelude::*;
use zerocopy::FromZeros as _;

use super::*;

const MS: u64 = 1_000_000;

fn now(ms: u64) -> Now {
    Now {
        mono_ns: ms * MS,
        wall_ns: ms * MS + 7,
    }
}

fn post(number: u32, ms: u64) -> WrRecord {
    let mut record = WrRecord::new_zeroed();
    (record.kind, record.number, record.ts_ns, record.post_ns) = (kind::POST, number, ms * MS, ms * MS);
    record.flags = flag::WR_ID | flag::DETAILS | flag::SIGNALED;
    record.wr_id = 1000 + u64::from(number);
    (record.status, record.bytes) = (NO_STATUS, 64);
    record
}

fn done(number: u32, posted_ms: u64, ms: u64) -> WrRecord {
    let mut record = post(number, posted_ms);
    (record.kind, record.ts_ns, record.status) = (kind::DONE, ms * MS, 0);
    record
}

fn begun() -> Watched {
    let mut watched = Watched::new(1, 7);
    watched.take(WatchReport::On, now(0));
    watched
}

fn give(watched: &mut Watched, records: &[WrRecord], full: u64, ms: u64) {
    let report = WatchReport::Records {
        records: records.to_vec(),
        full,
        missed: 0,
    };
    watched.take(report, now(ms));
}

#[test]
fn a_request_is_outstanding_from_its_post_to_its_end() {
    let mut watched = begun();
    give(&mut watched, &[post(1, 10), post(2, 20)], 0, 30);
    let seen = watched.picture(40 * MS);
    assert_eq!((seen.outstanding, seen.moment), (2, Moment::Busy));
    let oldest = seen.oldest.unwrap();
    assert_eq!(
        (oldest.age_ns, oldest.wr_id, oldest.at_least),
        (30 * MS, Some(1001), false)
    );
    give(&mut watched, &[done(1, 10, 50), done(2, 20, 60)], 0, 70);
    let seen = watched.picture(80 * MS);
    assert_eq!((seen.outstanding, seen.oldest), (0, None));
    assert_eq!(seen.moment, Moment::Idle(Some(20 * MS)));
    let took: Vec<_> = seen.requests.iter().map(|request| request.took_ns).collect();
    assert_eq!(took, [Some(40 * MS), Some(40 * MS)]);
    assert!(seen.requests.iter().all(|request| !request.is_outstanding()));
}

#[test]
fn a_stall_is_named_while_it_lasts_and_stays_on_the_timeline() {
    let mut watched = begun();
    give(
        &mut watched,
        &[post(1, 100), done(1, 100, 110), post(2, 120)],
        0,
        130,
    );
    let seen = watched.picture(3_120 * MS);
    assert_eq!(seen.moment, Moment::Stalled(3_000 * MS));
    let stalled = |seen: &Picture| seen.slots.iter().filter(|slot| slot.stalled).count();
    assert_eq!(stalled(&seen), 60);
    assert!(
        seen.slots
            .iter()
            .filter(|slot| slot.stalled)
            .all(|slot| slot.open == 1)
    );
    assert_eq!(seen.longest, None, "it is not over");
    give(&mut watched, &[done(2, 120, 3_120)], 0, 3_130);
    let seen = watched.picture(4_120 * MS);
    let wait = Wait {
        length_ns: 3_000 * MS,
        ago_ns: 1_000 * MS,
    };
    assert_eq!((seen.longest, stalled(&seen)), (Some(wait), 60));
    // It leaves with its slots.
    let seen = watched.picture(30_000 * MS);
    assert_eq!((seen.longest, stalled(&seen)), (None, 0));
}

#[test]
fn what_found_no_room_is_counted_by_the_numbers_of_what_did() {
    let mut watched = begun();
    give(
        &mut watched,
        &[post(1, 10), post(50, 20), done(40, 15, 30)],
        86,
        40,
    );
    let seen = watched.picture(50 * MS);
    assert_eq!((seen.outstanding, seen.happened, seen.full), (10, 50, 86));
    let sum = |of: fn(&Slot) -> u32| seen.slots.iter().map(of).sum::<u32>();
    assert_eq!((sum(|slot| slot.posts), sum(|slot| slot.ends)), (50, 40));
    // The posts of 41 to 49 were not seen: one of them is older than the 50th.
    assert!(seen.oldest.unwrap().at_least);
    let first = seen.requests.last().unwrap();
    assert!(first.unseen_end && !first.is_outstanding(), "40 ended after it");
}

#[test]
fn where_the_last_records_found_no_room_the_counters_of_the_qp_decide() {
    let mut watched = begun();
    give(&mut watched, &[post(1, 10), post(2, 10), post(3, 10)], 0, 20);
    watched.settle(0, 5_000 * MS);
    assert_eq!(
        watched.outstanding(),
        3,
        "nothing was lost: the records are right"
    );
    give(&mut watched, &[], 2, 30);
    watched.settle(0, 500 * MS);
    assert_eq!(
        watched.outstanding(),
        3,
        "too early: counters may be older than records"
    );
    watched.settle(1, 5_000 * MS);
    let seen = watched.picture(5_000 * MS);
    assert_eq!((seen.outstanding, seen.oldest.unwrap().wr_id), (1, Some(1003)));
    watched.settle(4, 6_000 * MS);
    assert_eq!(watched.outstanding(), 4);
}

#[test]
fn a_qp_with_a_reused_number_begins_anew_and_one_gone_takes_nothing() {
    let mut watched = begun();
    give(&mut watched, &[post(1, 10), post(2, 10), post(1, 20)], 0, 30);
    assert_eq!(watched.outstanding(), 1);
    watched.end();
    give(&mut watched, &[post(2, 40)], 0, 50);
    let seen = watched.picture(60 * MS);
    assert_eq!((seen.outstanding, seen.state), (1, WatchState::Gone));
}

#[test]
fn numbers_may_wrap_and_receives_are_no_posts() {
    let mut watched = begun();
    watched.last_post = u32::MAX - 1;
    watched.last_end = u32::MAX - 1;
    let mut receive = done(0, 0, 40);
    receive.flags |= flag::RECEIVE;
    give(
        &mut watched,
        &[post(u32::MAX, 10), post(1, 20), done(1, 20, 30), receive],
        0,
        50,
    );
    let seen = watched.picture(60 * MS);
    assert_eq!(seen.outstanding, 0);
    assert_eq!(seen.slots.iter().map(|slot| slot.receives).sum::<u32>(), 1);
    assert!(seen.requests[0].receive && seen.requests[0].posted_ns.is_none());
}

fn record() -> impl Strategy<Value = WrRecord> {
    let number = prop_oneof![0u32..40, Just(u32::MAX), any::<u32>()];
    let at = prop_oneof![0u64..20_000, any::<u64>()];
    (number, any::<bool>(), any::<bool>(), at, 0u64..4, any::<u16>()).prop_map(
        |(number, post, receive, ms, wr_id, flags)| {
            let mut record = WrRecord::new_zeroed();
            record.kind = if post { kind::POST } else { kind::DONE };
            record.flags = flags & !flag::RECEIVE | if receive { flag::RECEIVE } else { 0 };
            (record.number, record.wr_id) = (number, wr_id);
            record.ts_ns = ms.saturating_mul(MS);
            record.post_ns = record.ts_ns / 2;
            record
        },
    )
}

proptest! {
    #[test]
    fn whatever_comes_in_whatever_order_all_stays_bounded(
        records in proptest::collection::vec(record(), 0..600),
        full in 0u64..3,
        settled in 0u64..10,
        at in 0u64..40_000,
    ) {
        let mut watched = begun();
        for (some, ms) in records.chunks(50).zip((1u64..).map(|turn| turn * 700)) {
            give(&mut watched, some, full, ms);
            watched.settle(settled, (ms + 2_000) * MS);
            prop_assert!(watched.ended <= watched.posted);
            prop_assert!(watched.open.len() as u64 <= watched.outstanding());
            prop_assert!(watched.open.len() <= MOST_OPEN && watched.slots.len() <= SLOTS);
            prop_assert!(watched.requests.len() <= KEPT && watched.waits.len() <= MOST_WAITS);
        }
        let seen = watched.picture(at * MS);
        prop_assert!(seen.slots.len() <= SLOTS && seen.requests.len() <= KEPT);
        let listed = seen.requests.len() as u64 + seen.forgotten;
        prop_assert!(listed <= records.len() as u64);
    }

    /// Whatever records are lost, a request that has ended is not outstanding once a later one is known to
    /// have ended, and the counts are right.
    #[test]
    fn lost_records_change_no_count(lost in proptest::collection::vec(any::<bool>(), 200)) {
        let all = (1..=100u32).flat_map(|n| [post(n, u64::from(n)), done(n, n.into(), u64::from(n) + 1)]);
        let mut kept: Vec<_> = all.zip(lost).filter(|(_, lost)| !lost).map(|(record, _)| record).collect();
        kept.extend([post(101, 101), done(101, 101, 102), post(102, 103)]);
        let mut watched = begun();
        give(&mut watched, &kept, 1, 200);
        let seen = watched.picture(210 * MS);
        prop_assert_eq!((seen.happened, seen.outstanding), (102, 1));
        prop_assert_eq!(seen.requests.iter().filter(|request| request.is_outstanding()).count(), 1);
        prop_assert!(!seen.oldest.unwrap().at_least);
    }
}
