//! Memory that a process registers and never deregisters.

use std::collections::{BTreeMap, VecDeque};

use super::{RuleContext, live};
use crate::facts::Facts;
use crate::findings::{About, FindingId, Limits, Severity, Symptom, words};
use rdmatop_base::step::step;
use rdmatop_base::text;

const S: u64 = 1_000_000_000;
/// The window has this many parts; a process has to register more in `GROWING` of them, because buffers that
/// a program registers at its start fill one or two.
const PARTS: u64 = 8;
const GROWING: usize = 6;

/// Bytes that each process had registered within the window: times, and the bytes at each.
#[derive(Clone, Debug, Default)]
pub(super) struct Registered(BTreeMap<u64, VecDeque<(u64, u64)>>);

impl Registered {
    pub(super) fn look(&mut self, facts: &Facts, limits: &Limits) {
        let now = facts.mono_ns;
        let window = limits.mr_growth_window_s * S;
        let mut seen = BTreeMap::new();
        for row in live(facts) {
            let mut points = self.0.remove(&row.uid).unwrap_or_default();
            let Some(bytes) = row.mr_bytes else {
                // Unknown until the next dump, as after a region of unknown size: what was known stays.
                seen.insert(row.uid, points);
                continue;
            };
            let last = points.back().copied();
            if last.is_some_and(|(_, before)| before > bytes) {
                points.clear();
            }
            match last {
                Some((_, before)) if before == bytes => {}
                // One point for each part is enough: this one takes the newer value.
                Some((then, before))
                    if before < bytes && now.saturating_sub(then) < window / PARTS && points.len() > 1 =>
                {
                    points.pop_back();
                    points.push_back((then, bytes));
                }
                _ => points.push_back((now, bytes)),
            }
            while points.len() > 1 && points[1].0 <= now.saturating_sub(window) {
                points.pop_front();
            }
            seen.insert(row.uid, points);
        }
        self.0 = seen;
    }

    /// By how many bytes a process grew, and since when, if it grew in most parts of the window.
    fn growth(&self, process_uid: u64) -> Option<(u64, u64)> {
        let points = self.0.get(&process_uid)?;
        let ((since, first), (_, last)) = (points.front()?, points.back()?);
        (points.len() > GROWING).then(|| (last - first, *since))
    }
}

/// Processes whose registered memory only rises.
pub(super) fn growth(ctx: &RuleContext<'_>, out: &mut Vec<Symptom>) {
    for row in &ctx.facts.processes {
        let grown = ctx.history.memory.growth(row.uid);
        let Some((more, since)) = grown.filter(|(more, _)| *more >= ctx.limits.mr_growth_bytes) else {
            continue;
        };
        let (Some(pid), Some(now)) = (row.pid, row.mr_bytes) else {
            continue;
        };
        let age = text::age(ctx.facts.mono_ns.saturating_sub(since) / S);
        let about = About::of_process(row.uid);
        out.push(Symptom {
            since_ns: since,
            verdict: format!(
                "{} registers more and more memory: {} in {age}, {} now",
                words::process(row),
                text::bytes(more),
                text::bytes(now)
            ),
            evidence: vec![format!("{} more within {age}, and no reading had less", text::bytes(more))],
            next: step!(
                "rdma resource show mr pid {}   # more of one length each time -> the program lacks an ibv_dereg_mr   # of many lengths -> a \
                 cache of its library without a bound: ucx_info -f | grep RCACHE_MAX, or FI_MR_CACHE_MAX_SIZE of libfabric, for its next start",
                pid
            ),
            short: format!("+{} MR", text::bytes(more)),
            ..ctx.symptom(FindingId::MrGrowth, Severity::Info, about)
        });
    }
}
