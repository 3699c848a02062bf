//! Rings of points for sparklines.

use std::sync::{Arc, LazyLock};

use crate::snapshot::History;

/// The empty history that all rows share which never moved.
static EMPTY: LazyLock<Arc<History>> = LazyLock::new(Arc::default);

/// A growing history. While there is nothing but zeroes and unknowns it is the shared empty one and costs
/// nothing.
#[derive(Debug)]
pub(super) struct Series {
    points: Arc<History>,
    /// There are no points, and only a movement makes one. Known without reading the points.
    empty: bool,
    capacity: u16,
    /// Points at the end that are zero or unknown.
    quiet: u16,
}

impl Series {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            points: Arc::clone(&EMPTY),
            empty: true,
            capacity: u16::try_from(capacity).unwrap_or(u16::MAX),
            quiet: 0,
        }
    }

    /// Nothing moved for as long as points are kept.
    pub(super) fn is_empty(&self) -> bool {
        self.empty
    }

    /// Adds a point. True when the history changed.
    pub(super) fn push(&mut self, tx: Option<f64>, rx: Option<f64>, unit: &'static str) -> bool {
        let moves = moves(tx, rx);
        if !moves && self.empty {
            return false;
        }
        self.quiet = if moves { 0 } else { self.quiet + 1 };
        if self.quiet >= self.capacity {
            self.points = Arc::clone(&EMPTY);
            self.empty = true;
            self.quiet = 0;
            return true;
        }
        self.empty = false;
        // The last snapshot still holds the old points, so this copies: only rows that move pay for it.
        let points = Arc::make_mut(&mut self.points);
        if points.unit != unit {
            // Bytes and packets must not stand in one row.
            points.tx.clear();
            points.rx.clear();
            points.unit = unit;
        }
        for (ring, value) in [(&mut points.tx, tx), (&mut points.rx, rx)] {
            if ring.len() >= usize::from(self.capacity) {
                ring.remove(0);
            }
            ring.push(value);
        }
        true
    }

    pub(super) fn points(&self) -> Arc<History> {
        Arc::clone(&self.points)
    }
}

/// Whether a point is a movement.
pub(super) fn moves(tx: Option<f64>, rx: Option<f64>) -> bool {
    [tx, rx].into_iter().flatten().any(|value| value > 0.0)
}

/// What everything shares that has no points.
pub(super) fn no_points() -> Arc<History> {
    Arc::clone(&EMPTY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histories_without_movement_share_one() {
        let mut series = Series::new(3);
        assert!(!series.push(None, Some(0.0), "bytes"));
        assert!(Arc::ptr_eq(&series.points(), &EMPTY));
    }

    #[test]
    fn the_oldest_point_goes_and_a_quiet_ring_empties() {
        let mut series = Series::new(3);
        for value in [1.0, 2.0, 3.0, 4.0] {
            assert!(series.push(Some(value), None, "bytes"));
        }
        assert_eq!(series.points().tx, [Some(2.0), Some(3.0), Some(4.0)]);
        for _ in 0..3 {
            assert!(series.push(Some(0.0), Some(0.0), "bytes"));
        }
        assert!(series.points().tx.is_empty());
    }

    #[test]
    fn a_snapshot_keeps_the_points_it_was_given() {
        let mut series = Series::new(3);
        series.push(Some(1.0), None, "bytes");
        let before = series.points();
        series.push(Some(2.0), None, "bytes");
        assert_eq!(before.tx, [Some(1.0)]);
    }

    #[test]
    fn points_of_two_units_never_stand_in_one_row() {
        let mut series = Series::new(3);
        series.push(Some(1.0), None, "packets");
        series.push(Some(2000.0), None, "bytes");
        assert_eq!(
            (series.points().tx.as_slice(), series.points().unit),
            ([Some(2000.0)].as_slice(), "bytes")
        );
    }
}
