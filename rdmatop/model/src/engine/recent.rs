//! What a process moved in the last seconds, for the verdict on what it waits for.
//!
//! Not [`History`](crate::snapshot::History): its points are one a snapshot, whatever the time between
//! two snapshots, and do not say which of them are lower bounds.

use std::collections::VecDeque;

use crate::{snapshot::Recent, value::Source};

/// Seconds that are averaged over, ns (ours): the steps of a training job, in which it computes and
/// communicates in turn, are shorter.
const SPAN_NS: u64 = 30_000_000_000;
/// Points that are kept: with a shorter refresh the average is of a shorter time, and says so.
const MOST: usize = 128;

/// Rates of the interval since the last snapshot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rates {
    /// Bytes per second sent.
    pub(super) tx: Option<f64>,
    /// Bytes per second received.
    pub(super) rx: Option<f64>,
    /// The rates are of all that moved, and not lower bounds.
    pub(super) whole: bool,
    pub(super) source: Source,
}

#[derive(Debug)]
struct Point {
    end_ns: u64,
    ns: u64,
    rates: Rates,
}

/// Rates of the last seconds without a gap.
#[derive(Debug, Default)]
pub(super) struct Recently {
    points: VecDeque<Point>,
    last_ns: Option<u64>,
}

impl Recently {
    /// Adds what is known at a snapshot. Unknown rates end the time that is averaged over, and so does
    /// another source.
    pub(super) fn push(&mut self, now_ns: u64, rates: Option<Rates>) {
        let last_ns = self.last_ns.replace(now_ns);
        let Some(rates) = rates.filter(|rates| rates.tx.or(rates.rx).is_some()) else {
            self.points = VecDeque::new();
            return;
        };
        if self
            .points
            .back()
            .is_some_and(|last| last.rates.source != rates.source)
        {
            self.points.clear();
        }
        let Some(ns) = last_ns
            .and_then(|last_ns| now_ns.checked_sub(last_ns))
            .filter(|ns| *ns > 0)
        else {
            return;
        };
        self.points.push_back(Point {
            end_ns: now_ns,
            ns,
            rates,
        });
        let from_ns = now_ns.saturating_sub(SPAN_NS);
        let is_old = |point: &Point| point.end_ns.saturating_sub(point.ns) < from_ns;
        while self.points.len() > 1 && (self.points.len() > MOST || self.points.front().is_some_and(is_old)) {
            self.points.pop_front();
        }
    }

    /// The averages.
    pub(super) fn average(&self) -> Option<Recent> {
        let last = self.points.back()?;
        let ns: u64 = self.points.iter().map(|point| point.ns).sum();
        let mean = |of: fn(&Rates) -> Option<f64>| {
            let parts = self
                .points
                .iter()
                .map(|point| Some(of(&point.rates)? * point.ns as f64));
            Some(parts.sum::<Option<f64>>()? / ns as f64)
        };
        let (tx, rx) = (mean(|rates| rates.tx), mean(|rates| rates.rx));
        tx.or(rx)?;
        Some(Recent {
            ns,
            tx,
            rx,
            whole: self.points.iter().all(|point| point.rates.whole),
            source: last.rates.source,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn rates(tx: f64, whole: bool) -> Rates {
        Rates {
            tx: Some(tx),
            rx: Some(1.0),
            whole,
            source: Source::Hw,
        }
    }

    #[test]
    fn intervals_count_by_their_length_and_those_that_are_too_old_go() {
        let mut recently = Recently::default();
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
        let mut recently = Recently::default();
        for second in 1..=3 {
            recently.push(second * S, Some(rates(4.0, second != 2)));
        }
        assert!(!recently.average().unwrap().whole);
        recently.push(4 * S, None);
        assert!(recently.average().is_none());
        recently.push(5 * S, Some(rates(4.0, true)));
        let average = recently.average().unwrap();
        assert_eq!((average.ns, average.whole), (S, true));
        let uprobe = |rates: Rates| Rates {
            source: Source::Uprobe,
            ..rates
        };
        recently.push(7 * S, Some(uprobe(rates(6.0, false))));
        let average = recently.average().unwrap();
        assert_eq!(
            (average.ns, average.tx, average.source),
            (2 * S, Some(6.0), Source::Uprobe)
        );
        let sent_unknown = Rates {
            tx: None,
            ..uprobe(rates(6.0, true))
        };
        recently.push(8 * S, Some(sent_unknown));
        let average = recently.average().unwrap();
        assert_eq!((average.tx, average.rx), (None, Some(1.0)));
    }

    #[test]
    fn a_short_refresh_keeps_a_bounded_number_of_points() {
        let mut recently = Recently::default();
        for at in 1..=1000 {
            recently.push(at * S / 100, Some(rates(4.0, true)));
        }
        assert_eq!(recently.points.len(), MOST);
        assert_eq!(recently.average().unwrap().ns, MOST as u64 * S / 100);
    }
}
