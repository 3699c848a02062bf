//! Counts per process of sessions that have ended. The maps of a new session start at zero, but reported
//! counts must not fall.

use std::collections::{BTreeMap, BTreeSet};

use rdmatop_base::order::Gather as _;
use rdmatop_common::counters::{VerbErrorKey, VerbKey, VerbStats};
use zerocopy::FromZeros as _;

use rdmatop_model::input::VerbsSample;

/// Sums over all sessions before the present one.
#[derive(Default)]
pub(super) struct Carried {
    verbs: BTreeMap<VerbKey, VerbStats>,
    calls_only: BTreeMap<VerbKey, u64>,
    errors: BTreeMap<VerbErrorKey, u64>,
}

impl Carried {
    /// Keeps the last sample of a session, which includes the counts of earlier sessions. Drops the counts of
    /// ended processes, as the maps do.
    pub(crate) fn keep(&mut self, last: VerbsSample, is_alive: impl Fn(u32) -> bool) {
        self.verbs = last.verbs.into_iter().collect();
        self.calls_only = last.calls_only.into_iter().collect();
        self.errors = last.errors.into_iter().collect();
        self.verbs.retain(|key, _| is_alive(key.pid));
        self.calls_only.retain(|key, _| is_alive(key.pid));
        self.errors.retain(|key, _| is_alive(key.pid));
    }

    /// Adds the earlier counts to a sample of the present session.
    pub(super) fn add_to(&mut self, sample: &mut VerbsSample) {
        for (pid, verb) in &sample.gone {
            let key = VerbKey {
                pid: *pid,
                verb: *verb,
            };
            self.verbs.remove(&key);
            self.calls_only.remove(&key);
            self.errors.retain(|of, _| (of.pid, of.verb) != (*pid, *verb));
        }
        // One session may have counted a verb only by doorbells, and another one by its calls: report the sum
        // as calls.
        for (key, stats) in &mut sample.verbs {
            if let Some(calls) = self.calls_only.remove(key) {
                let before = self.verbs.entry(*key).or_insert_with(VerbStats::new_zeroed);
                before.calls = before.calls.saturating_add(calls);
            }
            if let Some(before) = self.verbs.get(key) {
                add(stats, before);
            }
        }
        for (key, calls) in &mut sample.calls_only {
            let before = self.verbs.get(key).map(|stats| stats.calls);
            let before = before.or(self.calls_only.get(key).copied()).unwrap_or_default();
            *calls = calls.saturating_add(before);
        }
        for (key, count) in &mut sample.errors {
            *count = count.saturating_add(self.errors.get(key).copied().unwrap_or_default());
        }
        self.add_rest(sample);
    }

    /// Adds entries that the present session has not counted yet. A partial sample gets no such verbs and
    /// errors, because it has only entries that changed.
    fn add_rest(&self, sample: &mut VerbsSample) {
        let only: BTreeSet<VerbKey> = sample.calls_only.iter().map(|(key, _)| *key).gather();
        let rest = self.calls_only.iter().filter(|(key, _)| !only.contains(key));
        sample.calls_only.extend(rest.map(|(key, calls)| (*key, *calls)));
        if sample.partial {
            return;
        }
        let listed: BTreeSet<VerbKey> = sample.verbs.iter().map(|(key, _)| *key).gather();
        let rest = self.verbs.iter();
        let rest = rest.filter(|(key, _)| !listed.contains(key) && !only.contains(key));
        sample.verbs.extend(rest.map(|(key, stats)| (*key, *stats)));
        let listed: BTreeSet<VerbErrorKey> = sample.errors.iter().map(|(key, _)| *key).gather();
        let rest = self.errors.iter().filter(|(key, _)| !listed.contains(key));
        sample.errors.extend(rest.map(|(key, count)| (*key, *count)));
    }
}

fn add(sum: &mut VerbStats, before: &VerbStats) {
    sum.calls = sum.calls.saturating_add(before.calls);
    sum.errors = sum.errors.saturating_add(before.errors);
    sum.ns = sum.ns.saturating_add(before.ns);
    sum.max_ns = sum.max_ns.max(before.max_ns);
    for (sum, before) in sum.hist.iter_mut().zip(&before.hist) {
        *sum = sum.saturating_add(*before);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rdmatop_common::counters::HIST_BUCKETS;

    use super::*;

    fn key(pid: u32, verb: u32) -> VerbKey {
        VerbKey { pid, verb }
    }

    fn stats(calls: u64) -> VerbStats {
        let mut hist = [0; HIST_BUCKETS];
        hist[3] = calls;
        VerbStats {
            calls,
            errors: calls / 2,
            ns: calls * 10,
            max_ns: calls,
            hist,
        }
    }

    fn failures(pid: u32, count: u64) -> (VerbErrorKey, u64) {
        let key = VerbErrorKey {
            pid,
            verb: 1,
            errno: 22,
            reserved: 0,
        };
        (key, count)
    }

    fn sample(
        verbs: &[(VerbKey, u64)],
        calls_only: &[(VerbKey, u64)],
        errors: &[(VerbErrorKey, u64)],
    ) -> VerbsSample {
        VerbsSample {
            mono_ns: 1,
            calls_only_ns: None,
            partial: false,
            gone: Vec::new(),
            verbs: verbs.iter().map(|(key, calls)| (*key, stats(*calls))).collect(),
            calls_only: calls_only.to_vec(),
            errors: errors.to_vec(),
        }
    }

    #[test]
    fn counts_go_on_over_sessions_also_of_what_the_next_one_does_not_see() {
        let mut carried = Carried::default();
        let last = sample(&[(key(7, 1), 10), (key(8, 1), 4)], &[], &[failures(7, 5)]);
        carried.keep(last, |_| true);
        let mut next = sample(&[(key(7, 1), 2)], &[], &[failures(7, 1)]);
        carried.add_to(&mut next);
        assert_eq!(next.verbs.len(), 2);
        let (_, sum) = next.verbs[0];
        assert_eq!(
            (sum.calls, sum.errors, sum.ns, sum.max_ns, sum.hist[3]),
            (12, 6, 120, 10, 12)
        );
        assert_eq!(next.verbs[1].1.calls, 4);
        assert_eq!(next.errors[0].1, 6);
        // A third session.
        carried.keep(next, |_| true);
        let mut third = sample(&[(key(8, 1), 1)], &[], &[]);
        carried.add_to(&mut third);
        let calls: BTreeMap<_, _> = third
            .verbs
            .iter()
            .map(|(key, stats)| (key.pid, stats.calls))
            .collect();
        assert_eq!(calls, BTreeMap::from([(7, 12), (8, 5)]));
    }

    #[test]
    fn nothing_is_kept_of_a_process_that_is_gone() {
        let mut carried = Carried::default();
        carried.keep(
            sample(&[(key(7, 1), 10)], &[(key(7, 2), 1)], &[failures(7, 5)]),
            |_| false,
        );
        let mut next = sample(&[], &[], &[]);
        carried.add_to(&mut next);
        assert_eq!(
            (next.verbs.len(), next.calls_only.len(), next.errors.len()),
            (0, 0, 0)
        );
    }

    #[test]
    fn a_sample_of_changes_gets_earlier_counts_and_nothing_at_rest() {
        let mut carried = Carried::default();
        let last = sample(
            &[(key(7, 1), 10), (key(8, 1), 4)],
            &[(key(7, 2), 5)],
            &[failures(7, 5)],
        );
        carried.keep(last, |_| true);
        carried.add_to(&mut sample(&[], &[], &[]));
        let mut next = VerbsSample {
            partial: true,
            ..sample(&[(key(7, 1), 2), (key(7, 2), 1)], &[], &[])
        };
        carried.add_to(&mut next);
        let calls: Vec<_> = next.verbs.iter().map(|(_, stats)| stats.calls).collect();
        assert_eq!(
            (calls, next.calls_only.len(), next.errors.len()),
            (vec![12, 6], 0, 0)
        );
        // Once it was counted as calls, it is not reported as doorbells again.
        let mut later = VerbsSample {
            partial: true,
            gone: vec![(7, 1)],
            ..sample(&[(key(7, 1), 3)], &[], &[])
        };
        carried.add_to(&mut later);
        assert_eq!(
            (later.verbs[0].1.calls, later.calls_only.len()),
            (3, 0),
            "another entry of that key"
        );
    }

    proptest! {
        #[test]
        fn no_call_is_lost_whichever_way_each_session_counts_it(
            before in prop::collection::btree_map(0..4u32, (1..100u64, any::<bool>()), 0..4),
            after in prop::collection::btree_map(0..4u32, (1..100u64, any::<bool>()), 0..4),
        ) {
            let sample_of = |counted: &BTreeMap<u32, (u64, bool)>| {
                let part = |only: bool| -> Vec<_> {
                    let some = counted.iter().filter(|(_, (_, o))| *o == only);
                    some.map(|(pid, (calls, _))| (key(*pid, 9), *calls)).collect()
                };
                sample(&part(false), &part(true), &[])
            };
            let mut carried = Carried::default();
            carried.keep(sample_of(&before), |_| true);
            let mut sum = sample_of(&after);
            carried.add_to(&mut sum);
            let mut told = BTreeMap::new();
            let all = sum.verbs.iter().map(|(key, stats)| (key.pid, stats.calls));
            for (pid, calls) in all.chain(sum.calls_only.iter().map(|(key, calls)| (key.pid, *calls))) {
                prop_assert!(told.insert(pid, calls).is_none(), "{pid} twice");
            }
            let mut wanted = BTreeMap::new();
            for (pid, (calls, _)) in before.iter().chain(&after) {
                *wanted.entry(*pid).or_default() += *calls;
            }
            prop_assert_eq!(told, wanted);
        }
    }
}
