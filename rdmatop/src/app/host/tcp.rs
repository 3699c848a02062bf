//! What programs with RDMA-capable libraries move by TCP.

use std::{collections::BTreeSet, sync::mpsc, thread, time::Duration};

use rustix::time::ClockId;

use super::processes::{offset, read_facts};
use crate::{
    app::source::{Polled, Wants},
    model::input::{Input, ReadAt, TcpSample, TcpTotals},
    source::{
        clock,
        proc::{ProcKey, verbs_files},
        root::Root,
        tcp::{TcpLook, TcpReader},
    },
};

/// How long to wait for the file systems of a process.
const PATIENCE: Duration = Duration::from_millis(200);

/// Looks at TCP connections where counters are wanted.
pub struct TcpSource {
    reader: TcpReader,
    /// Processes whose facts were sent: the last look of a mode that prints once may be the first to find one.
    introduced: BTreeSet<ProcKey>,
    start_offset: i64,
    root: Root,
}

impl TcpSource {
    /// Reads under `root`.
    pub fn new(root: Root) -> Self {
        Self {
            reader: TcpReader::default(),
            introduced: BTreeSet::new(),
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
        // A mode that prints once has no later look.
        let look = self.reader.look(&self.root, wants.once || wants.tcp, || {
            clock::read(ClockId::Monotonic)
        });
        let Some(look) = look else { return };
        out(Input::Tcp(Box::new(sample(&look))));
        let found: BTreeSet<ProcKey> = look.processes.iter().map(|one| one.process).collect();
        for key in found.difference(&self.introduced) {
            if let Some(mut facts) = read_facts(&self.root, *key, self.start_offset) {
                facts.verbs_files = verbs_files_in_time(&self.root, key.pid);
                out(Input::Process(Box::new(facts)));
            }
        }
        self.introduced = found;
    }
}

/// Whether a process finds device files, if its file systems answer in time. A thread that waits longer is left behind: it ends
/// when its read does.
fn verbs_files_in_time(root: &Root, pid: u32) -> Option<bool> {
    let (answer, answered) = mpsc::channel();
    let root = root.clone();
    let read = move || {
        // If the answer is late, its receiver is gone.
        let _ = answer.send(verbs_files(&root, pid));
    };
    thread::Builder::new().name("files".to_owned()).spawn(read).ok()?;
    answered.recv_timeout(PATIENCE).ok().flatten()
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
