//! One session takes over from another: for a moment both count, and what both have told of is told once.
//!
//! With one off before the other is on, a gap lies between the two in which events are lost and nobody counts them: a
//! system call long, or as long as the caller is preempted in it. With both on there is none, and the work is to find
//! the two records of one event. Their times differ: each program looks at the clock for itself.

use std::{collections::HashMap, time::Duration};

use rdmatop_common::event::Record;

/// How far apart the two records of one event can be, ns: the programs run one after the other on one CPU, which a
/// hypervisor can take away in between.
const SKEW_NS: u64 = 50_000_000;

/// How long both count. A call that was under way when the next session began to count is told of by the one before,
/// if it ends within this. Longer than [`SKEW_NS`]: what only the one before has seen must not be taken for what only
/// the next one has seen.
pub(super) const OVERLAP: Duration = Duration::from_millis(100);

const _: () = assert!(OVERLAP.as_nanos() > SKEW_NS as u128 * 3 / 2);

/// Records that one program makes. Of two sessions' programs at one place one always runs first: which, the kernel
/// decides when they are attached.
type Maker = (u16, u32);

/// What both records of an event say. A thread makes its events one after the other.
type Key = (Maker, u64, u32, i32);

fn key(record: &Record) -> Key {
    let prefix = record.prefix();
    let which = match record {
        Record::Qp(_) | Record::Object(_) => 0,
        Record::Cm(record) => u32::from(record.what),
        Record::Verb(record) => record.verb,
    };
    ((prefix.kind, which), prefix.object, prefix.tid, prefix.rc)
}

/// A record of the session before (`None`) or of the next one (its number), and its time.
type Seen = (u64, Option<usize>);

/// The records of two sessions that counted at once, each event once, in the order of time. Of two records of one event
/// that of `before` is taken: it knows what was before the other.
pub(super) fn unite(before: Vec<Record>, after: Vec<Record>) -> Vec<Record> {
    let mut keys: HashMap<Key, Vec<Seen>> = HashMap::new();
    for record in &before {
        let seen = (record.prefix().ts_ns, None);
        keys.entry(key(record)).or_default().push(seen);
    }
    for (number, record) in after.iter().enumerate() {
        // Others have no twin.
        if let Some(seen) = keys.get_mut(&key(record)) {
            seen.push((record.prefix().ts_ns, Some(number)));
        }
    }
    let mut makers: HashMap<Maker, Order> = HashMap::new();
    for ((maker, ..), seen) in &mut keys {
        seen.sort_unstable();
        makers.entry(*maker).or_default().look(seen);
    }
    let mut twin = vec![false; after.len()];
    for ((maker, ..), seen) in &keys {
        let next_first = makers.get_mut(maker).is_some_and(Order::next_first);
        for number in twins(seen, next_first) {
            if let Some(twin) = twin.get_mut(number) {
                *twin = true;
            }
        }
    }
    let mut all = before;
    let rest = after.into_iter().zip(twin);
    all.extend(rest.filter_map(|(record, twin)| (!twin).then_some(record)));
    // Stable: a thread's records of one time stay in their order.
    all.sort_by_key(|record| record.prefix().ts_ns);
    all
}

/// Times between neighbours: from a record of the session before to one of the next, and the other way round. Those
/// within events are short, those between events are not. But for one event a stall makes it otherwise.
#[derive(Default)]
struct Order {
    before_next: Vec<u64>,
    next_before: Vec<u64>,
}

impl Order {
    fn look(&mut self, seen: &[Seen]) {
        for pair in seen.windows(2) {
            match pair {
                [(from, None), (to, Some(_))] => self.before_next.push(to - from),
                [(from, Some(_)), (to, None)] => self.next_before.push(to - from),
                _ => {}
            }
        }
    }

    /// Whether the next session's program runs first.
    fn next_first(&mut self) -> bool {
        let usual = |gaps: &mut Vec<u64>| {
            gaps.sort_unstable();
            gaps.get(gaps.len().saturating_sub(1) / 2)
                .copied()
                .unwrap_or(u64::MAX)
        };
        usual(&mut self.next_before) < usual(&mut self.before_next)
    }
}

/// Those of the next session that have a twin. A thread's events do not overlap: twins are neighbours.
fn twins(seen: &[Seen], next_first: bool) -> Vec<usize> {
    let mut found = Vec::new();
    let mut rest = seen;
    while let [one, other, ..] = rest {
        let number = match (one.1, other.1) {
            (Some(number), None) if next_first => Some(number),
            (None, Some(number)) if !next_first => Some(number),
            _ => None,
        };
        let number = number.filter(|_| other.0 - one.0 <= SKEW_NS);
        found.extend(number);
        rest = rest.get(1 + usize::from(number.is_some())..).unwrap_or_default();
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rdmatop_common::event::{VerbRecord, kind};
    use zerocopy::FromZeros as _;

    use super::*;

    fn record(tid: u32, ts_ns: u64, which: u32) -> Record {
        let mut record = VerbRecord::new_zeroed();
        record.prefix.kind = kind::VERB_ERROR;
        record.prefix.tid = tid;
        record.prefix.ts_ns = ts_ns;
        // No part of what makes two records twins.
        record.prefix.duration_ns = u64::from(which);
        Record::Verb(record)
    }

    fn told(records: &[Record]) -> Vec<u32> {
        let numbers = records.iter().map(|record| record.prefix().duration_ns);
        numbers.map(|number| u32::try_from(number).unwrap()).collect()
    }

    #[test]
    fn what_both_saw_is_told_once_and_what_one_saw_is_told() {
        let before = vec![record(1, 100, 0), record(1, 200, 1), record(1, 300, 2)];
        let after = vec![record(1, 201, 1), record(1, 302, 2), record(1, 400, 3)];
        assert_eq!(told(&unite(before, after)), [0, 1, 2, 3]);
    }

    #[test]
    fn the_first_one_alone_does_not_shift_the_pairs_after_it() {
        // The newer program runs first: alone, new, old, new, old, alone.
        let before = vec![record(1, 100, 0), record(1, 201, 1), record(1, 301, 2)];
        let after = vec![record(1, 200, 1), record(1, 300, 2), record(1, 400, 3)];
        assert_eq!(told(&unite(before, after)), [0, 1, 2, 3]);
    }

    #[test]
    fn events_of_other_threads_objects_or_results_are_no_twins() {
        let before = vec![record(1, 100, 0)];
        let mut other = record(1, 101, 1);
        if let Record::Verb(record) = &mut other {
            record.prefix.rc = -22;
        }
        assert_eq!(told(&unite(before, vec![record(2, 100, 2), other])), [0, 2, 1]);
    }

    #[test]
    fn a_record_long_after_is_another_event() {
        let before = vec![record(1, 100, 0)];
        let after = vec![record(1, 101 + SKEW_NS, 1)];
        assert_eq!(told(&unite(before, after)), [0, 1]);
    }

    #[test]
    fn a_stall_between_two_programs_does_not_shift_the_pairs_after_it() {
        let before = vec![record(1, 100, 0), record(1, 5300, 1), record(1, 6000, 2)];
        let after = vec![record(1, 5100, 0), record(1, 5310, 1), record(1, 6010, 2)];
        assert_eq!(told(&unite(before, after)), [0, 1, 2]);
    }

    /// Events of a thread: how long after the one before, and how long between the two programs, in us.
    fn events() -> impl Strategy<Value = Vec<(u64, u64)>> {
        prop::collection::vec((2000u64..5000, 1u64..90), 60)
    }

    proptest! {
        #[test]
        fn each_event_is_told_once_wherever_one_begins_and_the_other_ends(
            threads in prop::collection::vec(events(), 1..4),
            next_first in any::<bool>(),
            stalled in 0usize..8,
            from in 0u64..30_000,
            overlap in 60_000u64..80_000,
        ) {
            let (from, to) = (from, from + overlap);
            let (mut before, mut after, mut happened) = (Vec::new(), Vec::new(), Vec::new());
            let mut number = 0;
            for (tid, events) in (1..).zip(threads) {
                let mut at = 0;
                for (nth, (gap, skew)) in events.into_iter().enumerate() {
                    let skew = if nth % 8 == stalled { skew * 90 } else { skew };
                    let (first, second) = (at + gap, at + gap + skew);
                    at = second;
                    let (old, new) = if next_first { (second, first) } else { (first, second) };
                    // Each is seen as its program finds the switch.
                    if old < to {
                        before.push(record(tid, old * 1000, number));
                    }
                    if new >= from {
                        after.push(record(tid, new * 1000, number));
                    }
                    happened.push(number);
                    number += 1;
                }
            }
            let mut seen = told(&unite(before, after));
            seen.sort_unstable();
            prop_assert_eq!(seen, happened);
        }
    }
}
