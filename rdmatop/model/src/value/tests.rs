#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "made-up counts are small and not negative"
)]

use proptest::prelude::*;

use super::*;

#[test]
fn a_part_is_null_in_json_and_what_is_known_of_it_stands_beside() {
    let whole = Counter::whole(7, Some(1.5), Source::Netlink);
    assert_eq!(
        serde_json::to_string(&whole).unwrap(),
        r#"{"total":7,"rate":1.5,"source":"netlink"}"#
    );
    let part = Counter {
        partial: true,
        ..whole
    };
    assert_eq!(
        serde_json::to_string(&part).unwrap(),
        r#"{"total":null,"rate":null,"source":"netlink","at_least":{"total":7,"rate":1.5}}"#
    );
}

#[test]
fn a_sum_with_a_part_is_a_part_and_one_unknown_rate_makes_it_unknown() {
    let known = Counter::whole(7, Some(1.5), Source::Netlink);
    let part = Counter {
        partial: true,
        ..known
    };
    assert_eq!(known.plus(known), Counter::whole(14, Some(3.0), Source::Netlink));
    assert!(known.plus(part).partial && part.plus(known).partial);
    for (one, other) in [
        (Source::Hw, Source::Port),
        (Source::Port, Source::Psn),
        (Source::Ebpf, Source::Uprobe),
    ] {
        let of = |source| Counter { source, ..known };
        assert_eq!(of(one).plus(of(other)).source, other);
        assert_eq!(of(other).plus(of(one)).source, other);
    }
    let first = Counter { rate: None, ..known };
    assert_eq!(known.plus(first).rate, None);
    assert_eq!(
        Counter::whole(u64::MAX, None, Source::Netlink).plus(known).total,
        u64::MAX
    );
}

/// A part of a sum, with its true total and rate.
fn part() -> impl Strategy<Value = (Counter, u64, f64)> {
    let exact = prop::sample::select(vec![
        Source::Ebpf,
        Source::Uprobe,
        Source::Hw,
        Source::Port,
        Source::Netlink,
    ]);
    let any = prop::sample::select(vec![Source::Ebpf, Source::Hw, Source::Port, Source::Psn]);
    let numbers = (0_u64..1 << 40, 0.0..1e10_f64, 0.0..1.0_f64);
    (numbers, exact, any, 0..6).prop_map(|((total, rate, off), exact, any, kind)| {
        let whole = Counter::whole(total, Some(rate), exact);
        let short = (total as f64 * off) as u64;
        let counter = match kind {
            0 => whole,
            1 => Counter { rate: None, ..whole },
            // Exact now, although what was before is not known.
            2 => Counter {
                total: short,
                partial: true,
                rate_is: RateIs::Exact,
                ..whole
            },
            3 => Counter {
                total: short,
                rate: Some(rate * off),
                partial: true,
                source: any,
                ..whole
            },
            4 => Counter {
                total: short,
                rate: Some(rate * (1.0 + off)),
                partial: true,
                rate_is: RateIs::AtMost,
                source: any,
            },
            // The truth is between bounds of which one is at most 1.1 of the other.
            _ => Counter {
                total: short,
                rate: Some(rate * 1.05 / (1.0 + 0.1 * off)),
                partial: true,
                rate_is: RateIs::Exact,
                source: Source::Psn,
            },
        };
        (counter, total, rate)
    })
}

fn is_true(sum: Counter, total: u64, rate: f64) {
    match sum.total_known() {
        Known::Exact => assert_eq!(sum.total, total),
        _ => assert!(sum.total <= total, "{sum:?} of {total}"),
    }
    let Some(shown) = sum.rate else { return };
    let error = rate * 1e-9;
    let is_right = match sum.rate_known() {
        Known::Exact if sum.source == Source::Psn => (shown - rate).abs() <= rate * MIDDLE_IS_WITHIN + error,
        Known::Exact => (shown - rate).abs() <= error,
        Known::AtMost => shown >= rate - error,
        Known::AtLeast => shown <= rate + error,
    };
    assert!(is_right, "{sum:?} of {rate}");
    assert!(
        sum.certain_rate().is_none_or(|certain| certain <= rate + error),
        "{sum:?}"
    );
}

proptest! {
    #[test]
    fn a_sum_says_no_more_than_its_weakest_part_in_whatever_order(
        parts in prop::collection::vec(part(), 1..6),
        at in any::<prop::sample::Index>(),
        has_unknown: bool,
    ) {
        let total = parts.iter().map(|(_, total, _)| total).sum();
        let rate: f64 = parts.iter().map(|(.., rate)| rate).sum();
        let sum = |parts: &[(Counter, u64, f64)]| {
            parts.iter().map(|(counter, ..)| *counter).reduce(Counter::plus)
        };
        // Also the sum of two sums.
        let (first, last) = parts.split_at(at.index(parts.len()));
        let mut all = match (sum(first), sum(last)) {
            (Some(one), Some(other)) => one.plus(other),
            (one, other) => one.or(other).unwrap(),
        };
        if has_unknown {
            all = all.plus_unknown();
            prop_assert!(all.rate.is_none() || all.rate_known() == Known::AtLeast);
        }
        is_true(all, total, rate);
        let weakest = parts.iter().map(|(counter, ..)| counter.source).max();
        prop_assert_eq!(Some(all.source), weakest);
        if parts.iter().any(|(counter, ..)| counter.rate.is_none()) {
            prop_assert_eq!(all.rate, None);
        }
    }
}

#[test]
fn a_rate_has_a_bound_of_its_own() {
    let known = Counter::whole(7, Some(1.5), Source::Port);
    let at_most = Counter {
        partial: true,
        rate_is: RateIs::AtMost,
        ..known
    };
    assert_eq!(
        serde_json::to_string(&at_most).unwrap(),
        r#"{"total":null,"rate":null,"source":"port","at_least":{"total":7,"rate":null},"at_most":{"rate":1.5}}"#
    );
    assert_eq!(at_most.certain_rate(), None);
    let again = Counter {
        rate_is: RateIs::Exact,
        ..at_most
    };
    assert_eq!(
        serde_json::to_string(&again).unwrap(),
        r#"{"total":null,"rate":1.5,"source":"port","at_least":{"total":7,"rate":null}}"#
    );
    let part = Counter {
        partial: true,
        ..known
    };
    let sum = |a: Counter, b: Counter| {
        let (one, other) = (a.plus(b), b.plus(a));
        assert_eq!((one.rate, one.rate_known()), (other.rate, other.rate_known()));
        (one.rate, one.rate_known(), one.total_known())
    };
    assert_eq!(sum(known, at_most), (Some(3.0), Known::AtMost, Known::AtLeast));
    assert_eq!(sum(known, again), (Some(3.0), Known::Exact, Known::AtLeast));
    assert_eq!(sum(part, at_most), (Some(1.5), Known::AtLeast, Known::AtLeast));
    assert_eq!(sum(part, again), (Some(3.0), Known::AtLeast, Known::AtLeast));
    // A share that may be 5 % wrong makes no bound of a sum wrong.
    let share = Counter {
        rate: Some(100.0),
        source: Source::Psn,
        ..again
    };
    assert_eq!(sum(share, again), (Some(101.5), Known::Exact, Known::AtLeast));
    assert_eq!(sum(share, at_most), (Some(106.5), Known::AtMost, Known::AtLeast));
    assert_eq!(sum(share, part), (Some(96.5), Known::AtLeast, Known::AtLeast));
}
