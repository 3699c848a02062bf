//! The QP whose work requests the view shows.

use std::sync::Arc;

use crate::{
    input::{Now, WatchReport, WatchSample},
    snapshot::QpRow,
    watched::{Picture, Watched},
};

/// What the counters of a QP say is outstanding; `None` where they are not known, or not all of it is.
fn outstanding(row: &QpRow) -> Option<u64> {
    let posted = row.traffic.tx_wr_posted.as_ref().filter(|count| !count.partial)?;
    let done = row.traffic.tx_wr.as_ref().filter(|count| !count.partial)?;
    posted.total.checked_sub(done.total)
}

/// What is known of it; nothing while no QP is watched.
#[derive(Debug, Default)]
pub(super) struct WatchedQp(Option<Box<Watched>>);

impl WatchedQp {
    /// Takes a report about a watched QP. One of an earlier watch is dropped.
    pub(super) fn apply(&mut self, sample: WatchSample, now: Now) {
        let WatchSample { watch, qp, report } = sample;
        let known = self.0.as_ref().map(|watched| watched.watch());
        if matches!(report, WatchReport::Over) {
            if known == Some(watch) {
                self.0 = None;
            }
            return;
        }
        if matches!(report, WatchReport::Starting | WatchReport::Off(_))
            && known.is_none_or(|known| known < watch)
        {
            self.0 = Some(Box::new(Watched::new(watch, qp)));
        }
        if let Some(watched) = self.0.as_mut().filter(|watched| watched.watch() == watch) {
            watched.take(report, now);
        }
    }

    /// Whether a QP is watched that is still there.
    pub(super) fn is_there(&self) -> bool {
        self.0.as_ref().is_some_and(|watched| !watched.is_gone())
    }

    /// Compares the watched QP with the table, which has just been read, and returns how it looks. `hangs`:
    /// the round of reading does.
    pub(super) fn look(&mut self, qps: &[Arc<QpRow>], hangs: bool, now_ns: u64) -> Option<Arc<Picture>> {
        let watched = self.0.as_mut()?;
        let row = qps.iter().find(|row| row.uid == watched.qp());
        match row.filter(|row| !row.exited) {
            None => watched.end(),
            // Counters of a round that hangs are old.
            Some(row) => {
                if let Some(outstanding) = outstanding(row).filter(|_| !hangs) {
                    watched.settle(outstanding, now_ns);
                }
            }
        }
        Some(Arc::new(watched.picture(now_ns)))
    }

    /// How it looks now. Nothing is read for it.
    pub(super) fn picture(&self, now_ns: u64) -> Option<Arc<Picture>> {
        Some(Arc::new(self.0.as_ref()?.picture(now_ns)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Engine, EngineConfig};

    const NOW: Now = Now {
        mono_ns: 1_000_000_000,
        wall_ns: 5_000_000_000,
    };

    #[test]
    fn reports_of_a_watch_that_is_over_are_dropped() {
        let mut qp = WatchedQp::default();
        let mut give = |watch, report| {
            qp.apply(WatchSample { watch, qp: 7, report }, NOW);
            qp.0.as_ref().map(|watched| watched.watch())
        };
        assert_eq!(give(1, WatchReport::On), None);
        assert_eq!(give(1, WatchReport::Starting), Some(1));
        assert_eq!(give(2, WatchReport::Starting), Some(2));
        assert_eq!(give(1, WatchReport::Over), Some(2));
        assert_eq!(give(1, WatchReport::Starting), Some(2));
        assert_eq!(give(2, WatchReport::Over), None);
    }

    #[test]
    fn a_watched_qp_that_is_not_in_the_table_is_gone() {
        let mut engine = Engine::new(EngineConfig::default());
        let report = WatchReport::Starting;
        engine.watched.apply(
            WatchSample {
                watch: 1,
                qp: 7,
                report,
            },
            NOW,
        );
        assert!(engine.is_watching());
        let snapshot = engine.tick(NOW);
        assert!(!engine.is_watching());
        assert!(snapshot.watched.is_some(), "what was seen of it stays");
        assert!(engine.glance(&snapshot, NOW).is_some());
    }
}
