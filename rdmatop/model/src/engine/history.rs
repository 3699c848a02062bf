//! What rates were at the last snapshots: points for sparklines, and averages for the verdict on what a
//! process waits for.

use std::{
    collections::VecDeque,
    sync::{Arc, LazyLock},
};

use crate::{
    snapshot::{History, Recent},
    value::Source,
};

/// Seconds that are averaged over, ns (ours): the steps of a training job, in which it computes and
/// communicates in turn, are shorter.
pub(super) const SPAN_NS: u64 = 30_000_000_000;
/// Points that are kept: with a shorter refresh the average is of a shorter time, and says so.
const MOST: usize = 128;

/// The empty history that all rows share which never moved.
static EMPTY: LazyLock<Arc<History>> = LazyLock::new(Arc::default);

/// A growing history. While there is nothing but zeroes and unknowns it is the shared empty one and costs
/// nothing.
#[derive(Debug, Default)]
pub(super) struct Series {
    /// `None`: nothing moved for as long as points are kept, and only a movement makes a point.
    points: Option<Arc<History>>,
    /// Points at the end that are zero or unknown.
    quiet: usize,
}

impl Series {
    /// Nothing moved for as long as points are kept.
    pub(super) fn is_empty(&self) -> bool {
        self.points.is_none()
    }

    /// Adds a point to `most` at most. True when the history changed.
    pub(super) fn push(&mut self, rates: [Option<f64>; 2], unit: &'static str, most: usize) -> bool {
        let moves = rates.into_iter().flatten().any(|rate| rate > 0.0);
        if !moves && self.is_empty() {
            return false;
        }
        self.quiet = if moves { 0 } else { self.quiet + 1 };
        if self.quiet >= most {
            *self = Self::default();
            return true;
        }
        // The last snapshot still holds the old points, so this copies: only rows that move pay for it.
        let points = Arc::make_mut(self.points.get_or_insert_default());
        if points.unit != unit {
            // Bytes and packets must not stand in one row.
            points.tx.clear();
            points.rx.clear();
            points.unit = unit;
        }
        for (ring, rate) in [&mut points.tx, &mut points.rx].into_iter().zip(rates) {
            if ring.len() >= most {
                ring.remove(0);
            }
            ring.push(rate);
        }
        true
    }

    pub(super) fn points(&self) -> Arc<History> {
        self.points.as_ref().map_or_else(no_points, Arc::clone)
    }
}

/// What everything shares that has no points.
pub(super) fn no_points() -> Arc<History> {
    Arc::clone(&EMPTY)
}

/// The average of the last seconds without a gap. The points of a [`History`] do not say how much time is
/// between them, nor which of them are lower bounds.
#[derive(Debug, Default)]
pub(super) struct Average {
    /// What each interval between two snapshots had, oldest first.
    points: VecDeque<Recent>,
    last_ns: Option<u64>,
}

impl Average {
    /// Adds what is known of the interval that a snapshot ends, whose length is set here. Unknown rates end
    /// the time that is averaged over, and so does another measure: bytes of work requests are no packets. A
    /// port's bytes and shares of them alternate as other users come and go, and are averaged together.
    pub(super) fn push(&mut self, now_ns: u64, rates: Option<Recent>) -> Option<Recent> {
        let last_ns = self.last_ns.replace(now_ns);
        let Some(rates) = rates.filter(|rates| rates.tx.or(rates.rx).is_some()) else {
            self.points = VecDeque::new();
            return None;
        };
        let of_packets = |one: &Recent| matches!(one.source, Source::Hw | Source::Port | Source::Psn);
        let is_alike =
            |last: &Recent| last.source == rates.source || (of_packets(last) && of_packets(&rates));
        if self.points.back().is_some_and(|last| !is_alike(last)) {
            self.points.clear();
        }
        let ns = last_ns.map_or(0, |last_ns| now_ns.saturating_sub(last_ns));
        if ns > 0 {
            self.points.push_back(Recent { ns, ..rates });
        }
        while self.points.len() > 1 && (self.points.len() > MOST || self.ns() > SPAN_NS) {
            self.points.pop_front();
        }
        self.average()
    }

    fn ns(&self) -> u64 {
        self.points.iter().map(|point| point.ns).sum()
    }

    fn average(&self) -> Option<Recent> {
        let (source, ns) = (self.points.iter().map(|point| point.source).max()?, self.ns());
        let mean = |of: fn(&Recent) -> Option<f64>| {
            let parts = self.points.iter().map(|point| Some(of(point)? * point.ns as f64));
            Some(parts.sum::<Option<f64>>()? / ns as f64)
        };
        let (tx, rx) = (mean(|point| point.tx), mean(|point| point.rx));
        tx.or(rx)?;
        Some(Recent {
            ns,
            tx,
            rx,
            whole: self.points.iter().all(|point| point.whole),
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histories_without_movement_share_one() {
        let mut series = Series::default();
        assert!(!series.push([None, Some(0.0)], "bytes", 3));
        assert!(Arc::ptr_eq(&series.points(), &EMPTY));
    }

    #[test]
    fn the_oldest_point_goes_and_a_quiet_ring_empties() {
        let mut series = Series::default();
        for value in [1.0, 2.0, 3.0, 4.0] {
            assert!(series.push([Some(value), None], "bytes", 3));
        }
        assert_eq!(series.points().tx, [Some(2.0), Some(3.0), Some(4.0)]);
        for _ in 0..3 {
            assert!(series.push([Some(0.0), Some(0.0)], "bytes", 3));
        }
        assert!(series.points().tx.is_empty());
    }

    #[test]
    fn a_snapshot_keeps_the_points_it_was_given() {
        let mut series = Series::default();
        series.push([Some(1.0), None], "bytes", 3);
        let before = series.points();
        series.push([Some(2.0), None], "bytes", 3);
        assert_eq!(before.tx, [Some(1.0)]);
    }

    #[test]
    fn points_of_two_units_never_stand_in_one_row() {
        let mut series = Series::default();
        series.push([Some(1.0), None], "packets", 3);
        series.push([Some(2000.0), None], "bytes", 3);
        assert_eq!(
            (series.points().tx.as_slice(), series.points().unit),
            ([Some(2000.0)].as_slice(), "bytes")
        );
    }

    const S: u64 = 1_000_000_000;

    fn rates(tx: f64, whole: bool) -> Recent {
        Recent {
            ns: 0,
            tx: Some(tx),
            rx: Some(1.0),
            whole,
            source: Source::Hw,
        }
    }

    #[test]
    fn intervals_count_by_their_length_and_those_that_are_too_old_go() {
        let mut recently = Average::default();
        recently.push(S, Some(rates(9.0, true)));
        assert!(recently.average().is_none(), "no interval has ended");
        recently.push(2 * S, Some(rates(4.0, true)));
        recently.push(5 * S, Some(rates(8.0, true)));
        let average = recently.average().unwrap();
        assert_eq!(
            (average.ns, average.tx, average.rx),
            (4 * S, Some(7.0), Some(1.0))
        );
        for second in 6..=40 {
            recently.push(second * S, Some(rates(2.0, true)));
        }
        let average = recently.average().unwrap();
        assert_eq!((average.ns, average.tx), (SPAN_NS, Some(2.0)));
        // A longer interval than all of them is an average of its own.
        recently.push(100 * S, Some(rates(3.0, true)));
        let average = recently.average().unwrap();
        assert_eq!((average.ns, average.tx), (60 * S, Some(3.0)));
    }

    #[test]
    fn an_unknown_ends_the_time_and_a_lower_bound_makes_the_average_one() {
        let mut recently = Average::default();
        for second in 1..=3 {
            recently.push(second * S, Some(rates(4.0, second != 2)));
        }
        assert!(!recently.average().unwrap().whole);
        recently.push(4 * S, None);
        assert!(recently.average().is_none());
        recently.push(5 * S, Some(rates(4.0, true)));
        let average = recently.average().unwrap();
        assert_eq!((average.ns, average.whole), (S, true));
        let uprobe = |rates: Recent| Recent {
            source: Source::Uprobe,
            ..rates
        };
        recently.push(7 * S, Some(uprobe(rates(6.0, false))));
        let average = recently.average().unwrap();
        assert_eq!(
            (average.ns, average.tx, average.source),
            (2 * S, Some(6.0), Source::Uprobe)
        );
        let sent_unknown = Recent {
            tx: None,
            ..uprobe(rates(6.0, true))
        };
        recently.push(8 * S, Some(sent_unknown));
        let average = recently.average().unwrap();
        assert_eq!((average.tx, average.rx), (None, Some(1.0)));
    }

    #[test]
    fn bytes_of_a_port_and_shares_of_them_are_averaged_together_as_shares() {
        let mut recently = Average::default();
        for (second, source) in (1..).zip([Source::Port, Source::Port, Source::Psn, Source::Port]) {
            let rates = rates(4.0, true);
            recently.push(second * S, Some(Recent { source, ..rates }));
        }
        let average = recently.average().unwrap();
        assert_eq!((average.ns, average.source), (3 * S, Source::Psn));
    }

    #[test]
    fn a_short_refresh_keeps_a_bounded_number_of_points() {
        let mut recently = Average::default();
        for at in 1..=1000 {
            recently.push(at * S / 100, Some(rates(4.0, true)));
        }
        assert_eq!(recently.points.len(), MOST);
        assert_eq!(recently.average().unwrap().ns, MOST as u64 * S / 100);
    }
}
