//! What programs with RDMA-capable libraries move by TCP.

use std::collections::{BTreeMap, BTreeSet};

use rustix::time::ClockId;

use super::processes::{SharedDetails, offset, search};
use crate::app::source::{Polled, Wants};
use rdmatop_model::input::{Input, ReadAt, TcpSample, TcpTotals};
use rdmatop_sources::{
    clock,
    proc::{Part, ProcKey},
    root::Root,
    tcp::{TcpLook, TcpReader},
};

/// What is read of the processes that are found.
const PARTS: &[Part] = &[
    Part::CommandLine,
    Part::Environment,
    Part::Libraries,
    Part::VerbsFiles,
];

/// Looks at TCP connections where counters are wanted.
pub struct TcpSource {
    reader: TcpReader,
    /// Processes whose facts were sent: the last look of a mode that prints once may be the first to find
    /// one.
    introduced: BTreeSet<ProcKey>,
    details: SharedDetails,
    start_offset: i64,
    root: Root,
}

impl TcpSource {
    /// Reads under `root`.
    pub fn new(root: Root, details: SharedDetails) -> Self {
        Self {
            reader: TcpReader::default(),
            introduced: BTreeSet::new(),
            details,
            start_offset: offset(&root),
            root,
        }
    }
}

impl Polled for TcpSource {
    fn name(&self) -> &'static str {
        "TCP connections"
    }

    fn poll(&mut self, wants: &Wants, out: &mut dyn FnMut(Input)) {
        if wants.only_processes || !wants.counters {
            return;
        }
        let Self {
            reader,
            details,
            start_offset,
            root,
            ..
        } = self;
        let libraries = |processes: Vec<ProcKey>| -> BTreeMap<ProcKey, Vec<String>> {
            let parts = &[Part::Libraries];
            let found = search(root, details, &processes, parts, wants.once, 0);
            let loaded = found.into_iter().filter_map(|facts| {
                let key = processes.iter().find(|key| key.pid == facts.pid)?;
                Some((*key, facts.libraries?))
            });
            loaded.collect()
        };
        // A mode that prints once has no later look.
        let must = wants.once || wants.tcp;
        let clock = || clock::read(ClockId::Monotonic);
        let Some(look) = reader.look(root, must, clock, libraries) else {
            return;
        };
        out(Input::Tcp(Box::new(sample(&look))));
        let found: BTreeSet<ProcKey> = look.processes.iter().map(|one| one.process).collect();
        let fresh: Vec<ProcKey> = found.difference(&self.introduced).copied().collect();
        for facts in search(root, details, &fresh, PARTS, wants.once, *start_offset) {
            out(Input::Process(Box::new(facts)));
        }
        self.introduced = found;
    }
}

fn sample(look: &TcpLook) -> TcpSample {
    let at = |(begin, end): (u64, u64)| ReadAt::between(begin, end);
    TcpSample {
        at: at(look.at_ns),
        before: look.before_ns.map(at),
        processes: look
            .processes
            .iter()
            .map(|one| TcpTotals {
                pid: one.process.pid,
                sent: one.sent,
                received: one.received,
                connections: one.connections,
                busiest: one.busiest,
            })
            .collect(),
    }
}
