//! What programs with RDMA-capable libraries move by TCP.

use std::collections::{BTreeMap, BTreeSet};

use super::processes::{Search, SharedDetails};
use rdmatop_base::order::Gather as _;
use rdmatop_model::input::{Input, ProcessFacts};
use rdmatop_sources::seam::{Polled, Wants};
use rdmatop_sources::{
    clock,
    proc::{Part, ProcKey},
    root::Root,
    tcp::TcpReader,
};

/// What is read of the processes that are found.
const PARTS: &[Part] = &[
    Part::CommandLine,
    Part::Environment,
    Part::Libraries,
    Part::VerbsFiles,
];

/// Looks at TCP connections under `root` where counters are wanted.
pub fn tcp(root: Root, details: SharedDetails) -> impl Polled {
    let (mut reader, mut introduced) = (TcpReader::default(), Introduced::default());
    let search = Search::new(root, details);
    let poll = move |wants: &Wants, out: &mut dyn FnMut(Input)| {
        if wants.only_processes || !wants.counters {
            return;
        }
        let libraries = |processes: Vec<ProcKey>| -> BTreeMap<ProcKey, Vec<String>> {
            let found = search.facts(&processes, &[Part::Libraries], wants.once);
            let loaded = found.into_iter().filter_map(|facts| {
                let key = processes.iter().find(|key| key.pid == facts.pid)?;
                Some((*key, facts.libraries?))
            });
            loaded.gather()
        };
        // A mode that prints once has no later look.
        let must = wants.once || wants.tcp;
        let clock = || clock::monotonic();
        let Some(sample) = reader.look(&search.root, must, clock, libraries) else {
            return;
        };
        let fresh = introduced.fresh(sample.processes.iter().map(|of| ProcKey {
            pid: of.pid,
            start: of.start_ticks,
        }));
        out(Input::Tcp(Box::new(sample)));
        let found = search.facts(&fresh, PARTS, wants.once);
        for facts in introduced.whole(&fresh, found, wants.once) {
            out(Input::Process(Box::new(facts)));
        }
    };
    ("TCP connections", poll)
}

/// Processes whose facts were sent. The last look of a mode that prints once may be the first to find one.
#[derive(Debug, Default)]
struct Introduced(BTreeSet<ProcKey>);

impl Introduced {
    /// Those of `found` whose facts are to be sent; forgets what was not found.
    fn fresh(&mut self, found: impl Iterator<Item = ProcKey>) -> Vec<ProcKey> {
        let found: BTreeSet<ProcKey> = found.gather();
        self.0.retain(|process| found.contains(process));
        found.difference(&self.0).copied().collect()
    }

    /// The facts to send. A process that did not answer in time is asked again at the next look: facts
    /// without details would take away those that its row has. If there is no next look they are better than
    /// nothing.
    fn whole(&mut self, fresh: &[ProcKey], facts: Vec<ProcessFacts>, once: bool) -> Vec<ProcessFacts> {
        let mut whole = Vec::with_capacity(facts.len());
        for facts in facts {
            // The part that is read last: if it is there, the process has answered.
            let has_answered = facts.verbs_files.is_some();
            let process = fresh.iter().find(|process| process.pid == facts.pid);
            self.0.extend(process.filter(|_| has_answered));
            whole.extend((has_answered || once).then_some(facts));
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_did_not_answer_in_time_is_asked_again_and_loses_no_details() {
        let process = |pid| ProcKey { pid, start: 1 };
        let facts = |pid, verbs_files| ProcessFacts {
            pid,
            verbs_files,
            ..ProcessFacts::default()
        };
        let pids = |facts: Vec<ProcessFacts>| facts.iter().map(|facts| facts.pid).collect::<Vec<_>>();
        let mut introduced = Introduced::default();
        let both = || [7, 8].map(process).into_iter();
        let fresh = introduced.fresh(both());
        assert_eq!(fresh, both().collect::<Vec<_>>());
        let late = vec![facts(7, Some(true)), facts(8, None)];
        assert_eq!(pids(introduced.whole(&fresh, late.clone(), false)), [7]);
        let fresh = introduced.fresh(both());
        assert_eq!(fresh, [process(8)]);
        assert_eq!(
            pids(introduced.whole(&fresh, vec![facts(8, Some(false))], false)),
            [8]
        );
        assert_eq!(introduced.fresh(both()), []);
        // The number of one that has ended may be another one's.
        assert_eq!(introduced.fresh([process(8)].into_iter()), []);
        assert_eq!(introduced.fresh(both()), [process(7)]);
        let mut once = Introduced::default();
        let fresh = once.fresh(both());
        assert_eq!(pids(once.whole(&fresh, late, true)), [7, 8]);
    }
}
