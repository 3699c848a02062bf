//! Work requests that take longer and become fewer, compared with the last minutes of the same process.

use std::collections::{BTreeMap, VecDeque};

use super::{RuleContext, growing};
use crate::facts::{Facts, ProcessRow};
use crate::findings::{About, Finding, FindingId, S, words};
use rdmatop_base::order::Ordered as _;

/// Length of the intervals of which percentiles are taken, ns.
const INTERVAL: u64 = 10 * S;
/// Intervals kept: those of five minutes, and the newest.
const KEPT: usize = 31;
/// Fewest earlier intervals to compare with.
const PAST: usize = 3;
/// For how long percentiles are taken before they can be compared, s: the newest with the earlier ones.
pub(in crate::findings) const LATENCIES_S: u64 = (PAST as u64 + 1) * INTERVAL / S;
/// Fewest samples of which a percentile is taken.
const LEAST: u64 = 100;

/// What one interval had.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    begin_ns: u64,
    /// Upper edge of the bucket with the 99th percentile, ns.
    p99_ns: f64,
    /// Mean, ns; each sample counts as the middle of its bucket.
    mean_ns: f64,
    wr_per_s: f64,
    bytes_per_wr: f64,
}

impl Point {
    /// Work requests outstanding on average, by Little's law.
    fn outstanding(&self) -> f64 {
        self.wr_per_s * self.mean_ns / 1e9
    }
}

/// Totals at the begin of an interval.
#[derive(Clone, Debug)]
struct Totals {
    at_ns: u64,
    buckets: Vec<u64>,
    wr: u64,
    bytes: Option<u64>,
}

impl Totals {
    fn of(row: &ProcessRow, at_ns: u64) -> Option<Self> {
        let latency = row.traffic.latency.as_ref()?;
        Some(Self {
            at_ns,
            buckets: latency.buckets.clone(),
            wr: row.traffic.tx_wr?.total,
            bytes: row.traffic.tx_bytes.map(|bytes| bytes.total),
        })
    }

    /// What happened from these totals to `now`; `None` when that is too little, or a total fell.
    fn until(&self, now: &Self) -> Option<Point> {
        let before = |at: usize| self.buckets.get(at).copied().unwrap_or(0);
        let more: Option<Vec<u64>> = (0..now.buckets.len())
            .map(|at| now.buckets[at].checked_sub(before(at)))
            .collect();
        let more = more?;
        let count: u64 = more.iter().sum();
        let wr = now.wr.checked_sub(self.wr)?;
        if count < LEAST || wr == 0 {
            return None;
        }
        // Before the smallest rank that has 99 % of the samples at or below it.
        let mut left = count - count / 100 - 1;
        let mut p99 = 0;
        for (at, times) in more.iter().enumerate() {
            p99 = at + 1;
            if *times > left {
                break;
            }
            left -= times;
        }
        let edge = |at: usize| 2_f64.powi(i32::try_from(at).unwrap_or(64));
        let sum: f64 = more
            .iter()
            .enumerate()
            .map(|(at, times)| *times as f64 * 1.5 * edge(at))
            .sum();
        let bytes = self
            .bytes
            .zip(now.bytes)
            .and_then(|(then, now)| now.checked_sub(then));
        Some(Point {
            begin_ns: self.at_ns,
            p99_ns: edge(p99),
            mean_ns: sum / count as f64,
            wr_per_s: wr as f64 * 1e9 / (now.at_ns - self.at_ns).max(1) as f64,
            bytes_per_wr: bytes? as f64 / wr as f64,
        })
    }
}

#[derive(Clone, Debug, Default)]
struct Process {
    begin: Option<Totals>,
    /// Oldest first. `None` for an interval in which too little happened, or not everything is known.
    points: VecDeque<Option<Point>>,
}

impl Process {
    fn look(&mut self, row: &ProcessRow, now_ns: u64) {
        let due = |begin: &Totals| now_ns.saturating_sub(begin.at_ns) >= INTERVAL;
        if self.begin.as_ref().is_some_and(|begin| !due(begin)) {
            return;
        }
        let Some(now) = Totals::of(row, now_ns) else {
            *self = Self::default();
            return;
        };
        if let Some(begin) = self.begin.replace(now)
            && let Some(now) = &self.begin
        {
            self.points.push_back(begin.until(now));
            while self.points.len() > KEPT {
                self.points.pop_front();
            }
        }
    }

    /// The newest interval, and the medians of those before it.
    fn change(&self) -> Option<(Point, Point)> {
        let last = (*self.points.back()?)?;
        let past = self.points.iter().take(self.points.len() - 1).flatten();
        let past: Vec<&Point> = past.collect();
        if past.len() < PAST {
            return None;
        }
        let median = |of: fn(&Point) -> f64| {
            let mut values: Vec<f64> = past.iter().map(|point| of(point)).collect();
            values.order_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let before = Point {
            begin_ns: past[0].begin_ns,
            p99_ns: median(|point| point.p99_ns),
            mean_ns: median(|point| point.mean_ns),
            wr_per_s: median(|point| point.wr_per_s),
            bytes_per_wr: median(|point| point.bytes_per_wr),
        };
        Some((before, last))
    }
}

/// Processes whose work requests are timed.
#[derive(Clone, Debug, Default)]
pub(super) struct Latencies(BTreeMap<u64, Process>);

impl Latencies {
    pub(super) fn look(&mut self, facts: &Facts) {
        let mut seen = BTreeMap::new();
        for row in facts.processes.iter().filter(|row| !row.exited) {
            // A process that posts nothing has no times.
            let latency = row.traffic.latency.as_ref();
            if latency.is_some_and(|latency| latency.count > 0) {
                let mut process = self.0.remove(&row.uid).unwrap_or_default();
                process.look(row, facts.mono_ns);
                seen.insert(row.uid, process);
            }
        }
        self.0 = seen;
    }
}

/// Processes whose work requests take longer and become fewer.
pub(super) fn rises(ctx: &RuleContext<'_>, row: &ProcessRow) -> Option<Finding> {
    let limits = ctx.limits;
    let (before, now) = ctx.history.latencies.0.get(&row.uid)?.change()?;
    let longer =
        now.p99_ns >= limits.latency_ratio * before.p99_ns && now.p99_ns >= limits.latency_us as f64 * 1e3;
    let fewer = now.wr_per_s <= limits.latency_rate * before.wr_per_s;
    // Requests of another size take another time; a process that posts less has fewer outstanding.
    let alike = (0.5..=2.0).contains(&(now.bytes_per_wr.max(1.0) / before.bytes_per_wr.max(1.0)))
        && now.outstanding() >= before.outstanding() / 2.0;
    let causes = [row.traffic.rnr_waits, row.traffic.retransmits];
    let explained = causes.into_iter().any(|counter| growing(counter).is_some());
    let who = words::process(row);
    let [p99, p99_before] = [&now, &before].map(|point| words::time(point.p99_ns));
    let [rate, rate_before] = [&now, &before].map(|point| words::per_s(point.wr_per_s));
    let [open, open_before] = [&now, &before].map(|point| words::number(point.outstanding()));
    (longer && fewer && alike && !explained).then(|| Finding {
        verdict: format!("Work requests of {who} take longer and are fewer: p99 {p99} instead of {p99_before}, {rate} instead of {rate_before}"),
        evidence: vec![format!("about {open} outstanding, {open_before} before; {} bytes each", words::number(now.bytes_per_wr))],
        next: "Ping the peer: slow too -> the network (pauses, other traffic); fast -> the CPUs of both ends (top: ksoftirqd, kworker)".into(),
        short: "slow WRs".to_owned(),
        since_mono_ns: now.begin_ns,
        victims: vec![row.uid],
        ..ctx.finding(FindingId::LatencyRises, About::of_process(row.uid))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_percentile_is_that_of_the_views() {
        let totals = |at_ns, buckets: &[u64]| Totals {
            at_ns,
            buckets: buckets.to_vec(),
            wr: at_ns,
            bytes: Some(at_ns),
        };
        // The last of so many samples is slow, and then the last but one, too.
        for count in [100, 101, 150, 199, 200, 201, 300] {
            for slow in 1..=3 {
                let buckets = [0, count - slow, 0, slow, 0];
                let point = totals(0, &[0; 5]).until(&totals(S, &buckets)).unwrap();
                let view = crate::engine::latency_of(&buckets).p99_ns.unwrap();
                assert_eq!(
                    point.p99_ns.to_bits(),
                    (view as f64).to_bits(),
                    "{slow} of {count}"
                );
            }
        }
    }
}
