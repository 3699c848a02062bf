//! What a slot counts, as one row of numbers, so that deltas, sums and rates are loops; and its histogram.

use rdmatop_common::counters::{QpSlot, slot_flag};
use zerocopy::IntoBytes as _;

use crate::snapshot::{FIRST, FLUSH, Latency, WORDS, count, place};

/// The words of a slot, and [`count::COMPLETION_ERRORS`] behind them.
pub(super) const LEN: usize = WORDS + 1;

/// Counts that only grow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) counts: [u64; LEN],
    /// A maximum, not a count.
    pub(super) latency_max: u64,
    /// Some of the receives come from a shared receive queue: how many were posted for a QP is not known.
    pub(super) shared_receives: bool,
    /// What is not known of some of the QPs: bits of `slot_flag`.
    pub(super) unknown: u32,
}

/// Nothing counted: what most of ten thousand idle QPs have, and share.
pub(super) static NOTHING: Tally = Tally {
    counts: [0; LEN],
    latency_max: 0,
    shared_receives: false,
    unknown: 0,
};

impl Default for Tally {
    fn default() -> Self {
        NOTHING.clone()
    }
}

impl Tally {
    /// Nothing counted; `unknown`: what is not known of it.
    pub(super) fn knowing_all_but(unknown: u32) -> Self {
        Self {
            unknown,
            ..Self::default()
        }
    }

    pub(super) fn of(slot: &QpSlot) -> Self {
        let mut counts = [0; LEN];
        let (words, _) = slot.as_bytes()[FIRST..].as_chunks();
        for (count, word) in counts.iter_mut().zip(words) {
            *count = u64::from_ne_bytes(*word);
        }
        let sum = |statuses: &[u64]| {
            statuses
                .iter()
                .fold(0, |sum: u64, count| sum.saturating_add(*count))
        };
        // Not `slot.cqes`, which a copy may show before the status it belongs to: the sum has to be the sum.
        counts[count::COMPLETIONS.place] = sum(&slot.wc);
        counts[count::COMPLETION_ERRORS.place] =
            sum(&slot.wc[1..FLUSH]).saturating_add(sum(&slot.wc[FLUSH + 1..]));
        counts[place!(latency_max_ns)] = 0;
        Self {
            counts,
            latency_max: slot.latency_max_ns,
            shared_receives: slot.flags & slot_flag::SRQ != 0,
            unknown: slot.flags & slot_flag::UNKNOWN,
        }
    }

    /// What was counted between `before` and `self`, and whether every count only grew. A count that went
    /// down counts as no movement.
    pub(super) fn since(&self, before: &Self) -> (Self, bool) {
        let mut delta = Self {
            latency_max: self.latency_max,
            shared_receives: self.shared_receives,
            unknown: self.unknown,
            ..Self::default()
        };
        let mut grew = true;
        for (slot, (now, before)) in delta
            .counts
            .iter_mut()
            .zip(self.counts.iter().zip(&before.counts))
        {
            grew &= now >= before;
            *slot = now.saturating_sub(*before);
        }
        (delta, grew)
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (sum, count) in self.counts.iter_mut().zip(&other.counts) {
            *sum = sum.saturating_add(*count);
        }
        self.latency_max = self.latency_max.max(other.latency_max);
        self.shared_receives |= other.shared_receives;
        self.unknown |= other.unknown;
    }

    /// CQEs with an error of their own.
    pub(super) fn errors(&self) -> u64 {
        self.counts[count::COMPLETION_ERRORS.place]
    }
}

/// Percentiles and mean of a histogram.
pub(super) fn latency(buckets: &[u64], sum_ns: u64, max_ns: u64, early: u64) -> Latency {
    let count = buckets
        .iter()
        .fold(0u64, |sum, bucket| sum.saturating_add(*bucket));
    let some = count > 0;
    Latency {
        count,
        early,
        mean_ns: some.then(|| sum_ns / count.max(1)),
        p50_ns: percentile(buckets, count, max_ns, 50),
        p99_ns: percentile(buckets, count, max_ns, 99),
        max_ns: some.then_some(max_ns),
        buckets: if some { buckets.to_vec() } else { Vec::new() },
    }
}

/// Upper edge of the bucket that holds the percentile; the largest sample when that is less.
fn percentile(buckets: &[u64], count: u64, max_ns: u64, percent: u64) -> Option<u64> {
    // The smallest rank that has `percent` of the samples at or below it. u128: counts may be any u64.
    let rank = (u128::from(count) * u128::from(percent)).div_ceil(100);
    let mut seen = 0u128;
    for (index, bucket) in buckets.iter().enumerate() {
        seen += u128::from(*bucket);
        if *bucket > 0 && seen >= rank {
            let last = index + 1 == buckets.len();
            let edge = if last { u64::MAX } else { 1 << (index + 1) };
            return Some(edge.min(max_ns));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use rdmatop_common::counters::HIST_BUCKETS;

    use super::*;

    #[test]
    fn percentiles_are_upper_edges_and_never_above_the_largest_sample() {
        let mut buckets = [0; HIST_BUCKETS];
        buckets[10] = 98;
        buckets[12] = 2;
        let shown = latency(&buckets, 200_000, 5000, 3);
        assert_eq!(shown.p50_ns, Some(2048));
        assert_eq!(shown.p99_ns, Some(5000));
        assert_eq!(
            (shown.mean_ns, shown.max_ns, shown.early, shown.count),
            (Some(2000), Some(5000), 3, 100)
        );
    }

    #[test]
    fn no_sample_is_unknown_not_zero() {
        let shown = latency(&[0; HIST_BUCKETS], 0, 0, 0);
        assert_eq!(
            (shown.mean_ns, shown.p50_ns, shown.p99_ns, shown.max_ns),
            (None, None, None, None)
        );
        assert!(shown.buckets.is_empty());
    }
}
