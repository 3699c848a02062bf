//! What a QP, or all QPs of a process or a device, have counted, and the rates of that.

use std::sync::{Arc, LazyLock};

use rdmatop_common::counters::{HIST_BUCKETS, OPCODES, QpSlot, WC_STATUSES, slot_flag};

use super::{
    meter::{per_second, was_held_up},
    tally::{LEN, NOTHING, Tally, latency},
};
use crate::{
    ib::{WcStatus, WrOpcode},
    input::ReadAt,
    snapshot::{Count, OpcodeTraffic, StatusCount, Traffic, place},
    value::{Counter, Source},
};

const OPS: usize = place!(ops);
const OP_BYTES: usize = place!(op_bytes);
const WC: usize = place!(wc);
const LATENCY: usize = place!(latency);

/// Counts per second, in the places of a [`Tally`].
type Speeds = [f64; LEN];

/// A tally that is read once a round: that of a QP, or that of a process or a device, which is the sum of its
/// QPs.
///
/// A QP's rate is what was counted between its own two last readings over the time between them; a sum's is
/// the sum of those rates.
#[derive(Clone, Debug, Default)]
pub(super) struct Flow {
    /// `None` stands for all zeroes: a tally has a hundred numbers, and most of ten thousand QPs are idle.
    counts: Option<Box<Counts>>,
    /// The last closed round gives an honest rate.
    known: bool,
    /// Something in the open round was counted at an unknown time.
    pub(super) blurred: bool,
    /// It is on the list of those whose rounds are closed.
    pub(super) moving: bool,
    /// The receives of this QP were not read, because it has not moved: some may be posted.
    pub(super) resting: bool,
    /// A sum in which some count is missing for good.
    pub(super) short: bool,
}

/// The totals of a flow.
#[derive(Clone, Debug, Default)]
struct Counts {
    /// The time of the last reading.
    at: ReadAt,
    /// When the reading was made that ended its last round.
    from: ReadAt,
    total: Tally,
    /// The total when the present slot was given; `None` is nothing.
    before: Option<Box<Tally>>,
    /// Counted since the last round was closed; `None` is nothing.
    open: Option<Box<Tally>>,
    /// Rates of QPs' rounds that were closed just now; `None` is nothing.
    gathered: Option<Box<Speeds>>,
    /// Rates of the last closed round; `None` is nothing.
    round: Option<Box<Speeds>>,
}

/// The ends of a round: the beginnings of two sweeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    /// `None`: there was no sweep before.
    pub(super) from_ns: Option<u64>,
    pub(super) to_ns: u64,
}

fn add_speeds(sum: &mut Speeds, more: &Speeds) {
    sum.iter_mut().zip(more).for_each(|(sum, speed)| *sum += speed);
}

/// Adds to a sum that may be nothing.
fn add_to<T: Clone>(sum: &mut Option<Box<T>>, more: &T, add: impl FnOnce(&mut T, &T)) {
    match sum {
        Some(sum) => add(sum, more),
        None => *sum = Some(Box::new(more.clone())),
    }
}

impl Flow {
    /// For a QP that has not moved since it became known; on the list of flows whose rounds are closed.
    pub(super) fn at_rest(nothing: &Tally) -> Self {
        let mut flow = Self {
            moving: true,
            resting: true,
            ..Self::default()
        };
        flow.add(nothing, false);
        flow
    }

    /// The flow itself, unless something is missing in it.
    pub(super) fn whole(&self) -> Option<&Self> {
        (!self.short).then_some(self)
    }

    /// From now on another slot is read, which starts at zero: programs were attached again.
    pub(super) fn begin_slot(&mut self) {
        if let Some(counts) = &mut self.counts {
            counts.before = Some(Box::new(counts.total.clone()));
        }
    }

    /// A new reading of the same slot. Returns what it adds, `None` when nothing.
    pub(super) fn read(&mut self, slot: &QpSlot, at: ReadAt) -> Option<Tally> {
        if let Some(counts) = &mut self.counts {
            counts.at = at;
        }
        let mut now = Tally::of(slot);
        if let Some(before) = self.counts.as_ref().and_then(|counts| counts.before.as_ref()) {
            now.add(before);
        }
        if now == *self.total() {
            return None;
        }
        let (delta, grew) = now.since(self.total());
        self.blurred |= !grew;
        if delta != NOTHING {
            let counts = self.counts.get_or_insert_default();
            counts.at = at;
            counts.total.add(&delta);
            add_to(&mut counts.open, &delta, Tally::add);
        }
        Some(delta)
    }

    /// Adds what one of its QPs counted. Its rate comes with [`Flow::gather`], unless it was counted at an
    /// unknown time.
    pub(super) fn add(&mut self, delta: &Tally, at_unknown_time: bool) {
        self.blurred |= at_unknown_time;
        if *delta != NOTHING {
            self.counts.get_or_insert_default().total.add(delta);
        }
    }

    /// Takes away what turned out to belong to another flow. The open round gives no rate.
    pub(super) fn take_back(&mut self, others: &Tally) {
        self.blurred = true;
        let Some(counts) = &mut self.counts else { return };
        let (left, _) = counts.total.since(others);
        counts.total.counts = left.counts;
    }

    /// Ends a QP's round. True when a rate changed.
    pub(super) fn close(&mut self, round: Round) -> bool {
        let elapsed_ns = self.elapsed_ns(round);
        let known = elapsed_ns.is_some() && !self.blurred;
        let open = self.counts.as_mut().and_then(|counts| counts.open.take());
        let speeds = open.map(|open| {
            let elapsed_ns = elapsed_ns.unwrap_or(1);
            Box::new(open.counts.map(|count| per_second(count, elapsed_ns)))
        });
        self.turn(known, speeds)
    }

    /// Ends the round of a sum. True when a rate changed.
    pub(super) fn close_sum(&mut self, known: bool) -> bool {
        let known = known && !self.blurred;
        let gathered = self.counts.as_mut().and_then(|counts| counts.gathered.take());
        self.turn(known, gathered)
    }

    /// Adds the rates of a QP whose round was closed just now. Where they are unknown, those of the sum are
    /// unknown too.
    pub(super) fn gather(&mut self, qp: &Self) {
        if !qp.known {
            self.blurred = true;
        } else if let Some(speeds) = qp.counts.as_ref().and_then(|counts| counts.round.as_ref()) {
            let counts = self.counts.get_or_insert_default();
            add_to(&mut counts.gathered, speeds, add_speeds);
        }
    }

    fn turn(&mut self, known: bool, speeds: Option<Box<Speeds>>) -> bool {
        self.blurred = false;
        let mut changed = std::mem::replace(&mut self.known, known) != known;
        if let Some(counts) = &mut self.counts {
            let before = std::mem::replace(&mut counts.round, speeds.filter(|_| known));
            changed |= before.is_some() || counts.round.is_some();
        }
        changed
    }

    /// The time between the readings at the two ends of a round. A flow that a sweep did not read, because
    /// nothing had been counted, is as of that sweep's beginning; so is one that has never counted anything.
    /// `None` when one of the readings was delayed, by preemption or SIGSTOP, for a time that matters.
    fn elapsed_ns(&mut self, round: Round) -> Option<u64> {
        let as_of = |read: ReadAt, sweep_ns: u64| {
            if read.mono_ns < sweep_ns {
                ReadAt::from(sweep_ns)
            } else {
                read
            }
        };
        let (at, from) = match &mut self.counts {
            Some(counts) => (counts.at, &mut counts.from),
            None => (ReadAt::default(), &mut ReadAt::default()),
        };
        let to = as_of(at, round.to_ns);
        let from = std::mem::replace(from, to);
        let from = as_of(from, round.from_ns?);
        let elapsed = to
            .mono_ns
            .checked_sub(from.mono_ns)
            .filter(|elapsed| *elapsed > 0)?;
        (!was_held_up(from, to, elapsed)).then_some(elapsed)
    }

    /// Whether the end of the next round can change a rate even when nothing is counted in it.
    pub(super) fn gives_news(&self) -> bool {
        !self.known || self.counts.as_ref().is_some_and(|counts| counts.round.is_some())
    }

    pub(super) fn total(&self) -> &Tally {
        self.counts.as_ref().map_or(&NOTHING, |counts| &counts.total)
    }

    fn counter(&self, place: usize, rates_are_fresh: bool) -> Counter {
        let round = self.counts.as_ref().and_then(|counts| counts.round.as_ref());
        let rate = (self.known && rates_are_fresh).then(|| round.map_or(0.0, |speeds| speeds[place]));
        // Of a sum of both, what is less sure.
        let source = if self.total().unknown & slot_flag::POSTED == 0 {
            Source::Ebpf
        } else {
            Source::Uprobe
        };
        Counter::whole(self.total().counts[place], rate, source)
    }

    /// A count and its rate; `None` where it is unknown for some of the QPs.
    pub(super) fn known(&self, count: Count, rates_are_fresh: bool) -> Option<Counter> {
        let known = self.total().unknown & count.unless == 0;
        known.then(|| self.counter(count.place, rates_are_fresh))
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
        let counter = |place| self.counter(place, rates_are_fresh);
        let total = self.total();
        let by_opcode = (0..OPCODES)
            .filter(|op| total.counts[OPS + op] > 0 || total.counts[OP_BYTES + op] > 0)
            .map(|op| OpcodeTraffic {
                opcode: WrOpcode(small(op)),
                wr: counter(OPS + op),
                bytes: counter(OP_BYTES + op),
            });
        let by_status = (0..WC_STATUSES)
            .filter(|status| total.counts[WC + status] > 0)
            .map(|status| StatusCount {
                status: WcStatus(small(status)),
                cqes: counter(WC + status),
            });
        let times = &total.counts[LATENCY..LATENCY + HIST_BUCKETS];
        let [sum_ns, early] = [place!(latency_sum_ns), place!(latency_early)].map(|at| total.counts[at]);
        let timed = total.unknown & slot_flag::NO_LATENCY == 0;
        // Looked at with each completion of a receive.
        let posted_known = total.unknown & slot_flag::NO_CQES == 0 || total.unknown & slot_flag::POSTED != 0;
        let mut traffic = Traffic {
            by_opcode: by_opcode.collect(),
            by_status: by_status.collect(),
            latency: timed.then(|| latency(times, sum_ns, total.latency_max, early)),
            ..Traffic::of(|count| self.known(count, rates_are_fresh))
        };
        if !posted_known || total.shared_receives || self.resting {
            traffic.rx_wr_posted = None;
        }
        traffic
    }
}

/// Opcodes and statuses are below 24.
fn small(index: usize) -> u8 {
    u8::try_from(index).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;
    use crate::snapshot::count;

    const TX_WR: usize = count::TX_WR.place;

    fn slot(tx_done: u64) -> QpSlot {
        QpSlot {
            tx_done,
            ..QpSlot::new_zeroed()
        }
    }

    const MS: u64 = 1_000_000;

    /// A round from one time to another, in ms.
    fn round(from: u64, to: u64) -> Round {
        Round {
            from_ns: Some(from * MS),
            to_ns: to * MS,
        }
    }

    /// The first one.
    fn first(to: u64) -> Round {
        Round {
            from_ns: None,
            to_ns: to * MS,
        }
    }

    fn read(flow: &mut Flow, done: u64, at_ms: u64) {
        flow.read(&slot(done), (at_ms * MS).into());
    }

    #[test]
    fn a_rate_is_over_the_time_between_its_own_two_readings() {
        let mut flow = Flow::default();
        read(&mut flow, 100, 1000);
        flow.close(first(1000));
        assert_eq!(flow.counter(TX_WR, true).rate, None);
        // The sweep began at 3 s and reached this slot 100 ms later.
        read(&mut flow, 310, 3100);
        flow.close(round(1000, 3000));
        assert_eq!(
            flow.counter(TX_WR, true),
            Counter::whole(310, Some(100.0), Source::Ebpf)
        );
        assert_eq!(flow.counter(TX_WR, false).rate, None);
        read(&mut flow, 400, 4000);
        flow.close(round(3000, 4000));
        assert_eq!(flow.counter(TX_WR, true).rate, Some(100.0));
        // No movement for some rounds, then again: the QP began to move after the last sweep.
        flow.close(round(4000, 5000));
        assert_eq!(flow.counter(TX_WR, true).rate, Some(0.0));
        read(&mut flow, 500, 9000);
        flow.close(round(8000, 9000));
        assert_eq!(flow.counter(TX_WR, true).rate, Some(100.0));
    }

    #[test]
    fn a_reading_that_was_held_up_gives_no_rate_and_loses_no_count() {
        let mut flow = Flow::default();
        read(&mut flow, 0, 1000);
        flow.close(round(0, 1000));
        flow.read(&slot(500), ReadAt::between(2000 * MS, 8000 * MS));
        flow.close(round(1000, 2000));
        assert_eq!(flow.counter(TX_WR, true), Counter::whole(500, None, Source::Ebpf));
        let mut sum = Flow::default();
        sum.add(&flow.total().clone(), false);
        sum.gather(&flow);
        sum.close_sum(true);
        assert_eq!(sum.counter(TX_WR, true), Counter::whole(500, None, Source::Ebpf));
    }

    #[test]
    fn the_rate_of_a_sum_is_the_sum_of_rates() {
        let mut sum = Flow::default();
        for (length, done) in [(1000, 50), (1250, 100)] {
            let mut flow = Flow::default();
            read(&mut flow, 0, 1000);
            flow.close(round(0, 1000));
            flow.read(&slot(done), ((1000 + length) * MS).into());
            flow.close(round(1000, 2000));
            sum.add(&flow.total().clone(), false);
            sum.gather(&flow);
        }
        sum.close_sum(true);
        assert_eq!(
            sum.counter(TX_WR, true),
            Counter::whole(150, Some(130.0), Source::Ebpf)
        );
        sum.close_sum(true);
        assert_eq!(sum.counter(TX_WR, true).rate, Some(0.0));
    }

    #[test]
    fn an_idle_round_changes_nothing() {
        let mut flow = Flow::default();
        read(&mut flow, 1, 1);
        flow.close(first(1));
        assert!(flow.close(round(1, 2)), "from unknown to zero");
        assert!(flow.read(&slot(1), (3 * MS).into()).is_none());
        assert!(!flow.close(round(2, 3)));
    }

    #[test]
    fn a_count_that_goes_back_gives_no_rate_and_the_total_stays() {
        let mut flow = Flow::default();
        read(&mut flow, 100, 1);
        flow.close(round(0, 1));
        read(&mut flow, 40, 2);
        flow.close(round(1, 2));
        let counter = flow.counter(TX_WR, true);
        assert_eq!((counter.total, counter.rate), (100, None));
    }

    #[test]
    fn totals_go_on_when_a_qp_gets_another_slot() {
        let mut flow = Flow::default();
        flow.begin_slot();
        read(&mut flow, 100, 1);
        for (count, total) in [(0, 100), (3, 103), (250, 350)] {
            if count == 0 {
                flow.begin_slot();
            }
            read(&mut flow, count, 2);
            assert_eq!(flow.counter(TX_WR, true).total, total);
        }
        flow.begin_slot();
        read(&mut flow, 1, 3);
        assert_eq!(flow.counter(TX_WR, true).total, 351);
    }

    #[test]
    fn what_no_program_sees_is_unknown_in_the_row_and_in_every_sum() {
        let mut moving = slot(5);
        moving.flags = slot_flag::NO_CQES | slot_flag::NO_RETRANSMITS;
        let mut qp = Flow::default();
        let delta = qp.read(&moving, 1.into()).unwrap();
        let resting = Tally::knowing_all_but(slot_flag::NO_LATENCY);
        let mut sum = Flow::default();
        sum.add(&delta, false);
        sum.add(&resting, false);
        for (flow, latency) in [(&qp, true), (&sum, false), (&Flow::at_rest(&resting), false)] {
            let traffic = flow.shared_traffic(true);
            assert_eq!(traffic.latency.is_some(), latency);
        }
        for flow in [&qp, &sum] {
            let traffic = flow.traffic(true);
            assert_eq!(traffic.tx_wr.map(|counter| counter.total), Some(5));
            let unknown = [
                traffic.rx_wr,
                traffic.rx_wr_posted,
                traffic.rx_bytes,
                traffic.completions,
                traffic.completion_errors,
                traffic.flushes,
                traffic.cq_overflows,
                traffic.retransmits,
            ];
            assert!(unknown.iter().all(Option::is_none), "{unknown:?}");
            assert!(traffic.rnr_waits.is_some() && traffic.doorbells.is_some());
            assert!(flow.known(count::RX_BYTES, true).is_none());
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
        flow.read(&slot, 1.into());
        let traffic = flow.traffic(true);
        assert_eq!(traffic.completion_errors.unwrap().total, 1);
        assert_eq!(traffic.flushes.unwrap().total, 127);
        assert_eq!(traffic.completions.unwrap().total, 1128);
        let statuses: Vec<_> = traffic
            .by_status
            .iter()
            .map(|s| (s.status.0, s.cqes.total))
            .collect();
        assert_eq!(statuses, [(0, 1000), (5, 127), (12, 1)]);
    }

    #[test]
    fn receives_of_a_shared_queue_are_unknown_as_are_sums_with_them() {
        let mut plain = slot(0);
        plain.rx_posted = 512;
        let mut flow = Flow::default();
        flow.read(&plain, 1.into());
        assert_eq!(flow.traffic(true).rx_wr_posted.unwrap().total, 512);
        let mut shared = slot(0);
        shared.flags = slot_flag::SRQ;
        let mut other = Flow::default();
        // Idle so far: that its receives are shared is new information nevertheless.
        flow.add(&other.read(&shared, 1.into()).unwrap(), false);
        assert!(other.traffic(true).rx_wr_posted.is_none());
        assert!(flow.traffic(true).rx_wr_posted.is_none());
        assert_eq!(flow.traffic(true).rx_wr.unwrap().total, 0);
    }

    proptest::proptest! {
        #[test]
        fn completions_are_the_sum_of_their_statuses(
            sweeps in proptest::collection::vec(
                (proptest::array::uniform24(0u64..1000), 1u64..5000, 0u64..3),
                1..10,
            ),
        ) {
            let (mut flow, mut slot, mut at) = (Flow::default(), slot(0), 0);
            for (more, pause, torn) in sweeps {
                for (count, more) in slot.wc.iter_mut().zip(more) {
                    *count += more;
                }
                // The kernel side counts the CQE first and its status next: a copy may be taken in between.
                slot.cqes = slot.wc.iter().sum::<u64>() + torn;
                flow.read(&slot, ((at + pause) * MS).into());
                flow.close(round(at, at + pause));
                at += pause;
                let traffic = flow.traffic(true);
                let all = traffic.completions.unwrap();
                let sum = traffic.by_status.iter().map(|status| status.cqes);
                let sum = sum.reduce(Counter::plus).unwrap_or(Counter::whole(0, Some(0.0), Source::Ebpf));
                proptest::prop_assert_eq!(all.total, sum.total);
                let (all, sum) = (all.rate.unwrap(), sum.rate.unwrap());
                proptest::prop_assert!((all - sum).abs() <= all * 1e-9, "{} for {}", sum, all);
            }
        }
    }

    #[test]
    fn waits_of_a_timer_that_btf_does_not_describe_are_unknown() {
        let mut blind = slot(5);
        blind.flags = slot_flag::NO_RNR;
        let mut flow = Flow::default();
        flow.read(&blind, ReadAt::from(1));
        assert!(flow.traffic(true).rnr_waits.is_none());
        let mut sum = Flow::default();
        sum.read(&slot(1), ReadAt::from(1));
        assert_eq!(sum.traffic(true).rnr_waits.unwrap().total, 0);
        sum.add(flow.total(), false);
        assert!(sum.traffic(true).rnr_waits.is_none());
    }
}
