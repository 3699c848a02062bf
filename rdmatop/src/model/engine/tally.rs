//! Everything a slot counts, as one row of numbers: deltas, sums and rates are loops.

use std::sync::{Arc, LazyLock};

use rdmatop_common::counters::{HIST_BUCKETS, OPCODES, QpSlot, WC_STATUSES, slot_flag};

use super::meter::per_second;
use crate::model::{
    ib::{WcStatus, WrOpcode},
    snapshot::{Latency, OpcodeTraffic, StatusCount, Traffic},
    value::{Counter, Source},
};

pub(super) const TX_WR: usize = 0;
const TX_POSTED: usize = 1;
pub(super) const TX_BYTES: usize = 2;
const RX_WR: usize = 3;
pub(super) const RX_BYTES: usize = 4;
const CQES: usize = 5;
const RETRANSMITS: usize = 6;
const RNR_WAITS: usize = 7;
const DOORBELLS: usize = 8;
const EARLY: usize = 9;
const LATENCY_SUM: usize = 10;
const ERRORS: usize = 11;
const RX_POSTED: usize = 12;
const CQ_OVERFLOWS: usize = 13;
const OPS: usize = 14;
const OP_BYTES: usize = OPS + OPCODES;
const WC: usize = OP_BYTES + OPCODES;
const LATENCY: usize = WC + WC_STATUSES;
const LEN: usize = LATENCY + HIST_BUCKETS;

/// `IB_WC_WR_FLUSH_ERR`: the echo of an error, one for each WR that was still queued.
const FLUSH: usize = 5;

/// Counts that only grow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tally {
    counts: [u64; LEN],
    /// A maximum, not a count.
    latency_max: u64,
    /// Some of the receives come from a shared receive queue: how many were posted for a QP is not known.
    shared_receives: bool,
}

/// Nothing counted: what most of ten thousand idle QPs have, and share.
static NOTHING: Tally = Tally {
    counts: [0; LEN],
    latency_max: 0,
    shared_receives: false,
};

impl Default for Tally {
    fn default() -> Self {
        NOTHING.clone()
    }
}

impl Tally {
    fn of(slot: &QpSlot) -> Self {
        let mut counts = [0; LEN];
        counts[TX_WR] = slot.tx_done;
        counts[TX_POSTED] = slot.tx_posted;
        counts[TX_BYTES] = slot.tx_bytes;
        counts[RX_WR] = slot.rx_done;
        counts[RX_BYTES] = slot.rx_bytes;
        counts[CQES] = slot.cqes;
        counts[RETRANSMITS] = slot.retransmits;
        counts[RNR_WAITS] = slot.rnr_waits;
        counts[DOORBELLS] = slot.doorbells;
        counts[RX_POSTED] = slot.rx_posted;
        counts[CQ_OVERFLOWS] = slot.cq_overflows;
        counts[EARLY] = slot.latency_early;
        counts[LATENCY_SUM] = slot.latency_sum_ns;
        counts[ERRORS] = slot
            .wc
            .iter()
            .enumerate()
            .filter(|(status, _)| *status != 0 && *status != FLUSH)
            .fold(0, |sum, (_, count)| sum.saturating_add(*count));
        counts[OPS..OP_BYTES].copy_from_slice(&slot.ops);
        counts[OP_BYTES..WC].copy_from_slice(&slot.op_bytes);
        counts[WC..LATENCY].copy_from_slice(&slot.wc);
        counts[LATENCY..].copy_from_slice(&slot.latency);
        Self {
            counts,
            latency_max: slot.latency_max_ns,
            shared_receives: shared_receives(slot),
        }
    }

    /// What was counted between `before` and `self`, and whether every count only grew. One that did not grow
    /// counts as no movement.
    fn since(&self, before: &Self) -> (Self, bool) {
        let mut delta = Self {
            latency_max: self.latency_max,
            shared_receives: self.shared_receives,
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

    fn add(&mut self, other: &Self) {
        for (sum, count) in self.counts.iter_mut().zip(&other.counts) {
            *sum = sum.saturating_add(*count);
        }
        self.latency_max = self.latency_max.max(other.latency_max);
        self.shared_receives |= other.shared_receives;
    }

    /// CQEs with an error of their own.
    pub(super) fn errors(&self) -> u64 {
        self.counts[ERRORS]
    }
}

/// A tally that is read round by round.
#[derive(Clone, Debug, Default)]
pub(super) struct Flow {
    /// `None` is nothing: a tally has a hundred numbers, and most of ten thousand QPs are idle.
    counts: Option<Box<Counts>>,
    /// The last closed round gives an honest rate.
    known: bool,
    /// Something in the open round was counted at an unknown time.
    blurred: bool,
    /// It is on the list of those whose rounds are closed.
    pub(super) moving: bool,
    /// Nothing was looked at, because the QP has not moved: receives may be posted.
    pub(super) resting: bool,
    /// A sum in which something is missing for ever.
    pub(super) short: bool,
}

/// What a flow has counted.
#[derive(Clone, Debug, Default)]
struct Counts {
    total: Tally,
    /// The total when the present slot was given; `None` is nothing.
    before: Option<Box<Tally>>,
    /// Counted since the last round was closed; `None` is nothing.
    open: Option<Box<Tally>>,
    /// Counted in the last closed round; `None` is nothing.
    round: Option<Box<Tally>>,
    /// Length of the last closed round, for the rates of what was counted in it.
    elapsed_ns: u64,
}

impl Flow {
    /// That of a QP that has not moved since it is known; on the list of those whose rounds are closed.
    pub(super) fn at_rest() -> Self {
        Self {
            moving: true,
            resting: true,
            ..Self::default()
        }
    }

    /// Itself, unless something is missing in it.
    pub(super) fn whole(&self) -> Option<&Self> {
        (!self.short).then_some(self)
    }

    /// From now on another slot is read, which begins at nothing: programs were attached anew.
    pub(super) fn begin_slot(&mut self) {
        if let Some(counts) = &mut self.counts {
            counts.before = Some(Box::new(counts.total.clone()));
        }
    }

    /// A new reading of the same slot. Returns what it adds, `None` when nothing.
    pub(super) fn read(&mut self, slot: &QpSlot) -> Option<Tally> {
        let mut now = Tally::of(slot);
        if let Some(before) = self.counts.as_ref().and_then(|counts| counts.before.as_ref()) {
            now.add(before);
        }
        if now == *self.total() {
            return None;
        }
        let (delta, grew) = now.since(self.total());
        self.blurred |= !grew;
        self.add(&delta);
        Some(delta)
    }

    /// Adds what was counted in the open round.
    pub(super) fn add(&mut self, delta: &Tally) {
        if *delta == NOTHING {
            return;
        }
        let counts = self.counts.get_or_insert_default();
        counts.total.add(delta);
        match &mut counts.open {
            Some(open) => open.add(delta),
            None => counts.open = Some(Box::new(delta.clone())),
        }
    }

    /// Adds what was counted at an unknown time: a total, no rate.
    pub(super) fn add_old(&mut self, delta: &Tally) {
        self.blurred = true;
        if *delta != NOTHING {
            self.counts.get_or_insert_default().total.add(delta);
        }
    }

    /// Takes over all of another flow, as if its work had been counted here from the start.
    pub(super) fn absorb(&mut self, other: &Self) {
        self.blurred |= other.blurred;
        self.short |= other.short;
        let Some(theirs) = &other.counts else { return };
        let Some(mine) = &mut self.counts else {
            self.counts = Some(theirs.clone());
            return;
        };
        mine.total.add(&theirs.total);
        for (mine, theirs) in [(&mut mine.open, &theirs.open), (&mut mine.round, &theirs.round)] {
            match (mine, theirs) {
                (Some(mine), Some(theirs)) => mine.add(theirs),
                (mine @ None, Some(theirs)) => *mine = Some(theirs.clone()),
                (_, None) => {}
            }
        }
        // Rounds are closed for all at once: who was not there at the last one has none of its own.
        mine.elapsed_ns = mine.elapsed_ns.max(theirs.elapsed_ns);
    }

    /// The open round gives no rate.
    pub(super) fn blur(&mut self) {
        self.blurred = true;
    }

    /// Ends a round of `elapsed_ns`; `None` when its beginning is not known. True when a rate changed.
    pub(super) fn close(&mut self, elapsed_ns: Option<u64>) -> bool {
        let blurred = std::mem::take(&mut self.blurred);
        let elapsed_ns = elapsed_ns.filter(|_| !blurred);
        let known = std::mem::replace(&mut self.known, elapsed_ns.is_some());
        let mut changed = known != self.known;
        if let Some(counts) = &mut self.counts {
            let before = counts.round.take();
            counts.round = counts.open.take();
            changed |= before.is_some() || counts.round.is_some();
            counts.elapsed_ns = elapsed_ns.unwrap_or(0);
        }
        changed
    }

    /// Whether the end of the next round can change a rate although nothing is counted in it.
    pub(super) fn gives_news(&self) -> bool {
        !self.known || self.counts.as_ref().is_some_and(|counts| counts.round.is_some())
    }

    pub(super) fn total(&self) -> &Tally {
        self.counts.as_ref().map_or(&NOTHING, |counts| &counts.total)
    }

    /// One count and its rate.
    pub(super) fn counter(&self, field: usize, rates_are_fresh: bool) -> Counter {
        let round = || {
            let counts = self.counts.as_ref()?;
            let round = counts.round.as_ref()?;
            Some(per_second(round.counts[field], counts.elapsed_ns))
        };
        Counter {
            total: self.total().counts[field],
            rate: (self.known && rates_are_fresh).then(|| round().unwrap_or(0.0)),
            source: Source::Ebpf,
        }
    }

    /// As [`Flow::traffic`]; flows in which nothing was ever counted share it.
    pub(super) fn shared_traffic(&self, rates_are_fresh: bool) -> Arc<Traffic> {
        static IDLE: LazyLock<[[Arc<Traffic>; 2]; 2]> = LazyLock::new(|| {
            [false, true].map(|resting| {
                let known = Flow {
                    known: true,
                    resting,
                    ..Flow::default()
                };
                [false, true].map(|fresh| Arc::new(known.traffic(fresh)))
            })
        });
        if self.counts.is_some() {
            return Arc::new(self.traffic(rates_are_fresh));
        }
        let known = rates_are_fresh && self.known;
        Arc::clone(&IDLE[usize::from(self.resting)][usize::from(known)])
    }

    /// Everything a row shows.
    pub(super) fn traffic(&self, rates_are_fresh: bool) -> Traffic {
        let counter = |field| self.counter(field, rates_are_fresh);
        let total = self.total();
        let by_opcode = (0..OPCODES)
            .filter(|op| total.counts[OPS + op] > 0 || total.counts[OP_BYTES + op] > 0)
            .map(|op| OpcodeTraffic {
                opcode: WrOpcode(small(op)),
                wr: counter(OPS + op),
                bytes: counter(OP_BYTES + op),
            });
        let by_status = (1..WC_STATUSES)
            .filter(|status| total.counts[WC + status] > 0)
            .map(|status| StatusCount {
                status: WcStatus(small(status)),
                cqes: counter(WC + status),
            });
        Traffic {
            tx_wr: Some(counter(TX_WR)),
            tx_wr_posted: Some(counter(TX_POSTED)),
            rx_wr: Some(counter(RX_WR)),
            rx_wr_posted: (!total.shared_receives && !self.resting).then(|| counter(RX_POSTED)),
            tx_bytes: Some(counter(TX_BYTES)),
            rx_bytes: Some(counter(RX_BYTES)),
            completions: Some(counter(CQES)),
            completion_errors: Some(counter(ERRORS)),
            flushes: Some(counter(WC + FLUSH)),
            retransmits: Some(counter(RETRANSMITS)),
            rnr_waits: Some(counter(RNR_WAITS)),
            doorbells: Some(counter(DOORBELLS)),
            cq_overflows: Some(counter(CQ_OVERFLOWS)),
            tx_packets: None,
            by_opcode: by_opcode.collect(),
            by_status: by_status.collect(),
            latency: Some(latency(
                &total.counts[LATENCY..],
                total.counts[LATENCY_SUM],
                total.latency_max,
                total.counts[EARLY],
            )),
        }
    }
}

fn shared_receives(slot: &QpSlot) -> bool {
    slot.flags & slot_flag::SRQ != 0
}

/// Opcodes and statuses are below 24.
fn small(index: usize) -> u8 {
    u8::try_from(index).unwrap_or(u8::MAX)
}

/// What a histogram says.
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
    use super::*;
    use zerocopy::FromZeros;

    fn slot(tx_done: u64) -> QpSlot {
        QpSlot {
            tx_done,
            ..QpSlot::new_zeroed()
        }
    }

    #[test]
    fn a_rate_is_the_round_over_its_length() {
        let mut flow = Flow::default();
        flow.read(&slot(100));
        flow.close(None);
        assert_eq!(flow.counter(TX_WR, true).rate, None);
        flow.read(&slot(300));
        flow.close(Some(2_000_000_000));
        let counter = flow.counter(TX_WR, true);
        assert_eq!(
            (counter.total, counter.rate, counter.source),
            (300, Some(100.0), Source::Ebpf)
        );
        assert_eq!(flow.counter(TX_WR, false).rate, None);
    }

    #[test]
    fn an_idle_round_changes_nothing() {
        let mut flow = Flow::default();
        flow.read(&slot(1));
        flow.close(None);
        assert!(flow.close(Some(1)), "from unknown to zero");
        assert!(flow.read(&slot(1)).is_none());
        assert!(!flow.close(Some(7)));
    }

    #[test]
    fn a_count_that_goes_back_gives_no_rate_and_the_total_stays() {
        let mut flow = Flow::default();
        flow.read(&slot(100));
        flow.close(Some(1));
        flow.read(&slot(40));
        flow.close(Some(1));
        let counter = flow.counter(TX_WR, true);
        assert_eq!((counter.total, counter.rate), (100, None));
    }

    #[test]
    fn the_next_slot_counts_on_from_the_last_one() {
        let mut flow = Flow::default();
        flow.begin_slot();
        flow.read(&slot(100));
        for (count, total) in [(0, 100), (3, 103), (250, 350)] {
            if count == 0 {
                flow.begin_slot();
            }
            flow.read(&slot(count));
            assert_eq!(flow.counter(TX_WR, true).total, total);
        }
        flow.begin_slot();
        flow.read(&slot(1));
        assert_eq!(flow.counter(TX_WR, true).total, 351);
    }

    #[test]
    fn a_flow_that_takes_over_another_keeps_its_rate() {
        let mut theirs = Flow::default();
        theirs.close(None);
        theirs.read(&slot(100));
        theirs.close(Some(2_000_000_000));
        // Idle, and not counted before at all.
        for known in [true, false] {
            let mut mine = Flow::default();
            mine.close(known.then_some(2_000_000_000));
            mine.absorb(&theirs);
            let counter = mine.counter(TX_WR, true);
            assert_eq!((counter.total, counter.rate), (100, known.then_some(50.0)));
        }
    }

    #[test]
    fn flushes_are_apart_from_errors() {
        let mut slot = slot(0);
        slot.wc[0] = 1000;
        slot.wc[12] = 1;
        slot.wc[5] = 127;
        slot.cqes = 1128;
        let mut flow = Flow::default();
        flow.read(&slot);
        let traffic = flow.traffic(true);
        assert_eq!(traffic.completion_errors.unwrap().total, 1);
        assert_eq!(traffic.flushes.unwrap().total, 127);
        assert_eq!(traffic.completions.unwrap().total, 1128);
        let statuses: Vec<_> = traffic
            .by_status
            .iter()
            .map(|s| (s.status.0, s.cqes.total))
            .collect();
        assert_eq!(statuses, [(5, 127), (12, 1)]);
    }

    #[test]
    fn receives_posted_to_a_shared_queue_are_unknown_and_so_is_a_sum_with_them() {
        let mut plain = slot(0);
        plain.rx_posted = 512;
        let mut flow = Flow::default();
        flow.read(&plain);
        assert_eq!(flow.traffic(true).rx_wr_posted.unwrap().total, 512);
        let mut shared = slot(0);
        shared.flags = slot_flag::SRQ;
        let mut other = Flow::default();
        // Idle so far: that its receives are shared is news all the same.
        flow.add(&other.read(&shared).unwrap());
        assert!(other.traffic(true).rx_wr_posted.is_none());
        assert!(flow.traffic(true).rx_wr_posted.is_none());
        assert_eq!(flow.traffic(true).rx_wr.unwrap().total, 0);
    }

    #[test]
    fn percentiles_are_upper_edges_and_never_above_the_largest_sample() {
        let mut buckets = [0; HIST_BUCKETS];
        buckets[10] = 98;
        buckets[12] = 2;
        let told = latency(&buckets, 200_000, 5000, 3);
        assert_eq!(told.p50_ns, Some(2048));
        assert_eq!(told.p99_ns, Some(5000));
        assert_eq!(
            (told.mean_ns, told.max_ns, told.early, told.count),
            (Some(2000), Some(5000), 3, 100)
        );
    }

    #[test]
    fn no_sample_is_unknown_not_zero() {
        let told = latency(&[0; HIST_BUCKETS], 0, 0, 0);
        assert_eq!(
            (told.mean_ns, told.p50_ns, told.p99_ns, told.max_ns),
            (None, None, None, None)
        );
        assert!(told.buckets.is_empty());
    }
}
