//! What was read and counted at one time: rows of devices, ports, processes, QPs and verb calls.
//!
//! Field names are the JSON schema (version 1, docs/json.md). `None` means unknown and is written as null.
//! All text is safe to print. Nothing here knows what is concluded of it ([`crate::judgement`],
//! [`crate::findings`]).

mod bound;
mod devices;
mod devx;
mod processes;
mod qps;
mod traffic;

use std::sync::Arc;

use serde::Serialize;

use crate::{
    cause::{Cause, CauseId, Concerns},
    input::{EbpfState, Flood, HostFacts, HwCountersReport, ProbeVerdict, Skipped, UprobesReport},
    value::{Counter, Shared},
    watched::Picture,
};

pub use crate::input::{Bond, Member};
pub use bound::{Bound, GpuUse};
pub(crate) use devices::may_go_round;
pub use devices::{DeviceRow, DeviceState, Gauge, Hidden, NamedCounter, PortRow, Quantity, may_hide_qps};
pub(crate) use devx::named_kinds;
pub use devx::{DevxCounts, DevxKind, DevxObjects};
pub use processes::{CounterGroup, Mappings, ProcessRow, Recent, TcpTraffic, Unlisted};
pub(crate) use qps::numbered;
pub use qps::{NO_NUMBER, QpRow, Step, qp_name};
pub(crate) use traffic::{Count, FIRST, FLUSH, WORDS, count, place};
pub use traffic::{Latency, OpcodeTraffic, StatusCount, Traffic};

/// Points kept of each history of ports and processes.
pub const HISTORY: usize = 300;

/// Points kept of each history of QPs: there may be ten thousand of them.
pub const QP_HISTORY: usize = 60;

/// Everything that was read and counted at one time.
#[derive(Clone, Debug)]
pub struct Facts {
    /// `CLOCK_REALTIME`, ns since the epoch.
    pub time: u64,
    /// `CLOCK_MONOTONIC`, ns.
    pub mono_ns: u64,
    /// Time since the snapshot before, ns; `None` for the first.
    pub interval_ns: Option<u64>,
    /// The machine that was read.
    pub host: HostFacts,
    /// State of rdmatop itself.
    pub health: Health,
    /// Devices, natural order of their names.
    pub devices: Vec<DeviceRow>,
    /// Ports, in the order of devices.
    pub ports: Vec<PortRow>,
    /// Processes and kernel consumers that have or had RDMA objects or made verb calls.
    pub processes: Vec<ProcessRow>,
    /// QPs. The row of a QP in which nothing changed is the same `Arc` as in the snapshot before; if no row
    /// changed, the whole list is the same.
    pub qps: Shared<Arc<QpRow>>,
    /// Verb calls by process.
    pub verbs: Vec<VerbRow>,
    /// The QP whose work requests the view asked for. JSON does not have it.
    pub watched: Option<Arc<Picture>>,
}

/// State of rdmatop itself.
#[derive(Clone, Debug, Serialize)]
pub struct Health {
    /// eBPF programs.
    pub ebpf: EbpfState,
    /// Records lost since start, of all causes that lose records. `None` while no program runs and no loss is
    /// known: nothing is traced then, so nobody knows what was missed.
    pub lost_events: Option<u64>,
    /// Losses by cause; only causes that happened.
    pub losses: Vec<Loss>,
    /// Processes that exceeded the limit on events, and how many of their events were left out.
    pub floods: Shared<Flood>,
    /// Programs that the kernel skipped since start; `None` where it does not count that.
    pub skipped: Option<Shared<Skipped>>,
    /// Probes on programs whose posts bypass the kernel; `None` without `--uprobes`.
    pub uprobes: Option<Arc<UprobesReport>>,
    /// What `--hw-counters` has changed; `None` without it.
    pub hw_counters: Option<Arc<HwCountersReport>>,
    /// Lifecycle records seen since start; `None` as for [`Health::lost_events`].
    pub events: Option<u64>,
    /// What became of work requests, when a trace asks for them.
    #[serde(skip)]
    pub work: Option<WorkRequests>,
    /// Which programs run, and why the others do not.
    pub probes: Shared<ProbeVerdict>,
    /// eBPF is on and records report everything that happens to QPs, so no dump is needed.
    #[serde(skip)]
    pub follows_qps: bool,
    /// For how long the rules of findings have looked, ns: since programs were attached, or since it was
    /// clear that none will be.
    #[serde(skip)]
    pub looked_ns: u64,
    /// What is missing, why, the remedy.
    pub notes: Shared<Cause>,
    /// Reads that failed in this interval.
    pub errors: Vec<Cause>,
    /// Own CPU, fraction of a core.
    pub self_cpu: Option<f64>,
    /// Own resident memory, bytes.
    pub self_rss: Option<u64>,
}

impl Health {
    /// The first note with this cause.
    pub fn note(&self, id: CauseId) -> Option<&Cause> {
        self.notes.iter().find(|note| note.id == id)
    }

    /// The first note with this cause about a device.
    pub fn note_of(&self, id: CauseId, device: &str) -> Option<&Cause> {
        let is_of_device = |note: &&Cause| matches!(&note.concerns, Concerns::Device(name) if name == device);
        let mut notes = self.notes.iter().filter(is_of_device);
        notes.find(|note| note.id == id)
    }

    /// Whether some counters miss something.
    pub fn counts_are_short(&self) -> bool {
        self.losses.iter().any(|loss| !loss.records)
    }
}

/// What became of the posts and ends of work requests since start: all that no field below leaves out made an
/// event, or are among the losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkRequests {
    /// Posts and ends of work requests on the QPs that are followed.
    pub happened: u64,
    /// Work requests among these that were not asked for.
    pub filtered: u64,
    /// Work requests among these that sampling left out.
    pub sampled_out: u64,
}

/// A cause of loss and how often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Loss {
    /// Stable word: `ring`, `stash`, `slot`, `verb`, `walk`, `stamp`, `return`, `missed`,
    /// `wr_ring`, `wr_missed`, `place`, `decode`, `channel`.
    #[serde(rename = "where")]
    pub at: &'static str,
    /// How often since start.
    pub count: u64,
    /// Whether this cause loses records, and therefore events; otherwise it loses counts.
    pub records: bool,
}

/// Verb calls of one process.
#[derive(Clone, Debug, Serialize)]
pub struct VerbRow {
    /// [`ProcessRow::uid`] when the process is known.
    pub process_uid: Option<u64>,
    /// Process id.
    pub pid: u32,
    /// Name of the process.
    pub comm: Option<Arc<str>>,
    /// Name of the verb.
    pub verb: Arc<str>,
    /// The verb's number, which stays while the name of a driver's own verb comes and goes with what is
    /// known of the process's devices.
    #[serde(skip)]
    pub number: u32,
    /// How often the process called it.
    pub calls: Counter,
    /// Calls that failed; `None` where only calls are counted.
    pub errors: Option<Counter>,
    /// Failures by errno.
    pub errnos: Vec<(u32, u64)>,
    /// Whether libraries make this call only to probe, so that its failure is by design and no fault.
    pub probe: bool,
    /// Time in the kernel; `None` where it is not measured, or is a wait.
    pub latency: Option<Latency>,
}

/// Whether a verb has the kernel pin memory (`ib_umem_get`).
pub(crate) fn registers_memory(name: &str) -> bool {
    name.starts_with("reg_") || name.starts_with("rereg_")
}

/// Points of the last minutes, one a snapshot, oldest first. `None` where no true rate is known.
///
/// Empty when there were only zeroes and unknowns for as long as points are kept.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Sent, per second.
    pub tx: Vec<Option<f64>>,
    /// Received, per second.
    pub rx: Vec<Option<f64>>,
    /// What the points count: `bytes`, `packets` or `wr`.
    pub unit: &'static str,
}
