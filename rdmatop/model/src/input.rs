//! Everything that a source can send to the engine. It is plain data: two engines that get the
//! same inputs make the same snapshots.

mod devices;
mod gpus;
mod processes;
mod qps;

use std::{collections::BTreeMap, sync::Arc};

use rdmatop_base::text;
use rdmatop_common::{
    counters::loss,
    event::Record,
    wr::{WrRecord, count},
};
use serde::Serialize;

use super::{
    cause::{Cause, Concerns, Obstacle},
    value::Shared,
};

pub use devices::{
    Bond, CountersSample, DeviceGroups, DeviceReading, DevicesSample, GroupReading, HwCountersReport, HwPort,
    LoggedError, Member, NetdevDown, NetnsReading, PcieLink, PortCounters, PortGid, PortReading, RawReading,
    RawSource, UNLISTED,
};
pub use gpus::{GpuActivity, GpuPlace, GpuReading, GpuSample};
pub use processes::{
    LimitReached, LockedMemory, MappingCount, MappingsSample, Opener, OpenersSample, ProcessFacts, TcpSample,
    TcpTotals,
};
pub use qps::{PathReading, PsnReading, QpReading, QpsSample, SlotsSample, VerbsSample};

/// A point in time, by both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// `CLOCK_MONOTONIC`, ns: the clock of kernel records and of rates.
    pub mono_ns: u64,
    /// `CLOCK_REALTIME`, ns since the epoch: for display only.
    pub wall_ns: u64,
}

impl Now {
    /// Converts a time of `CLOCK_MONOTONIC` to ns since the epoch.
    pub(crate) fn wall_of(self, mono_ns: u64) -> u64 {
        let both = mono_ns.saturating_add(self.wall_ns);
        both.saturating_sub(self.mono_ns)
    }
}

/// When something was read. Each counter has its own time, because a rate is its increase divided by the time
/// between its own two reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadAt {
    /// `CLOCK_MONOTONIC` in the middle of the read, ns: the kernel looked at the counter at some time between
    /// the begin and the end of the read.
    pub mono_ns: u64,
    /// Half of the duration of the read, ns: the true time may differ from `mono_ns` by this much.
    pub within_ns: u64,
}

impl ReadAt {
    /// The time of a read that began at `before_ns` and ended at `after_ns`.
    pub fn between(before_ns: u64, after_ns: u64) -> Self {
        let within_ns = after_ns.saturating_sub(before_ns) / 2;
        Self {
            mono_ns: before_ns.saturating_add(within_ns),
            within_ns,
        }
    }
}

impl From<u64> for ReadAt {
    /// A read at one moment.
    fn from(mono_ns: u64) -> Self {
        Self {
            mono_ns,
            within_ns: 0,
        }
    }
}

/// An input and the time at which it was read: what a source sends to the engine.
#[derive(Clone, Debug)]
pub struct Timed {
    /// Both clocks when the source handed the input over. The engine reads no clock: this is its present.
    pub at: Now,
    /// What was read.
    pub input: Input,
}

impl Input {
    /// The input with the time at which it was read.
    pub fn at(self, at: Now) -> Timed {
        Timed { at, input: self }
    }
}

/// What a source has read.
#[derive(Clone, Debug)]
pub enum Input {
    /// Records from the ring buffer, in their order.
    Records(Vec<Record>),
    /// Work requests, from their own ring buffer, in their order.
    WorkRequests(Vec<WrRecord>),
    /// What became of work requests, cumulative since start, indexed by [`count`].
    WorkCounts([u64; count::COUNT as usize]),
    /// The QP whose work requests the view shows.
    Watch(Box<WatchSample>),
    /// A ring-buffer record that could not be decoded.
    BadRecord,
    /// The state of our programs. It comes before anything that they send, and at each change.
    Ebpf(Box<EbpfReport>),
    /// Counts of losses, cumulative since start, indexed by [`loss`].
    Losses([u64; loss::COUNT as usize]),
    /// Processes that exceeded the limit on events, with what was left out since start.
    Floods(Vec<Flood>),
    /// What SoftRoCE's programs have seen. It is not sent on kernels that count what they skip.
    Seen(SeenByPrograms),
    /// Programs that the kernel skipped since start; `None` where it does not count that.
    Skipped(Option<Vec<Skipped>>),
    /// Messages dropped because the channel to the engine was full, cumulative.
    ChannelDropped(u64),
    /// Devices and ports, as netlink and sysfs report them, at one time.
    Devices(Box<DevicesSample>),
    /// Counters of ports, for devices that an earlier [`Input::Devices`] listed and that have not changed.
    Counters(Box<CountersSample>),
    /// All QPs of some devices, from a netlink dump: for the initial sync and for repair.
    Qps(Box<QpsSample>),
    /// PSNs of queue pairs of shared ports, read just after the counters of their devices: the answer to
    /// `Needs::psns`.
    Psns(Vec<PsnReading>),
    /// Peers of queue pairs, after a list of them: the answer to `Needs::paths`. Those that are left out are
    /// asked for again.
    Paths(Vec<PathReading>),
    /// The counter slots in use, from the mmapped array.
    Slots(Box<SlotsSample>),
    /// Verb counters.
    Verbs(Box<VerbsSample>),
    /// Probes on programs.
    Uprobes(Box<UprobesReport>),
    /// The user ended the probes on programs.
    UprobesOver,
    /// Counters of the NIC that QPs are bound to: one entry for each device that was asked, also where no QP
    /// is bound.
    Groups(Vec<DeviceGroups>),
    /// What `--hw-counters` has changed.
    HwCounters(Box<HwCountersReport>),
    /// Facts about a process.
    Process(Box<ProcessFacts>),
    /// What programs with RDMA-capable libraries move by TCP.
    Tcp(Box<TcpSample>),
    /// How busy GPUs were.
    Gpus(Box<GpuSample>),
    /// Which processes have devices open.
    Openers(Box<OpenersSample>),
    /// Errors of any driver in the kernel's log since the last such input, or why the log cannot be read.
    Logged(Result<Vec<LoggedError>, Box<Cause>>),
    /// Processes whose RDMA cgroup is at a limit. Replaces the list before.
    RdmaLimits(Vec<LimitReached>),
    /// How much memory some processes may lock; each entry replaces the one before of its process.
    Locked(Vec<LockedMemory>),
    /// How many mappings of memory processes have; each count replaces what was known of its process.
    Mappings(MappingsSample),
    /// A process is gone from /proc.
    ProcessGone {
        /// Process id: another one may have it by now.
        pid: u32,
        /// Start time, as in [`ProcessFacts`]; `None` for a process that was already gone from /proc when it
        /// was asked for.
        start_ticks: Option<u64>,
    },
    /// Devices whose drivers answer late. Replaces the list before.
    Slow(Vec<Cause>),
    /// Processes whose details are late or too long. Replaces the list before.
    SlowProcesses(Vec<Cause>),
    /// The present round of reading takes too long, and why; `None`: that round has ended.
    RoundHangs(Option<Box<Cause>>),
    /// State of our own programs and of the host.
    Health(Box<HealthSample>),
}

/// What the source reports about a watched QP.
#[derive(Clone, Debug)]
pub struct WatchSample {
    /// Number of the watch. When the user ends one watch and begins another, records of the first may still
    /// be on their way; the number tells them apart.
    pub watch: u64,
    /// `uid` of the QP.
    pub qp: u64,
    /// What there is to report.
    pub report: WatchReport,
}

/// What became of the wish to see work requests, see [`WatchSample`].
#[derive(Clone, Debug)]
pub enum WatchReport {
    /// The programs are being attached.
    Starting,
    /// The programs are attached.
    On,
    /// The programs cannot be attached, or would see nothing.
    Off(Obstacle),
    /// Records of the QP in their order, and how many were lost so far.
    Records {
        /// The records that were read.
        records: Vec<WrRecord>,
        /// Records for which there was no room, since the beginning.
        full: u64,
        /// Posts and ends of work requests that no program saw in time, since the beginning.
        missed: u64,
    },
    /// The user has closed the watch, and nothing is attached.
    Over,
}

/// What SoftRoCE's programs have seen on all devices together. The engine compares it with the driver's own
/// counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeenByPrograms {
    /// Number of the session of eBPF programs: the counts begin at 0 in each.
    pub session: u64,
    /// `CLOCK_MONOTONIC` when it was read, ns.
    pub mono_ns: u64,
    /// Packets that were about to be sent; `None` if no program sees them.
    pub packets: Option<u64>,
    /// Successful completions of receives; `None` if no program sees them.
    pub receives: Option<u64>,
}

/// State of rdmatop itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HealthSample {
    /// What is missing on this machine.
    pub notes: Shared<Cause>,
    /// Host facts for the header.
    pub host: HostFacts,
    /// Own CPU use, fraction of one core over the last interval.
    pub self_cpu: Option<f64>,
    /// Own resident memory, bytes.
    pub self_rss: Option<u64>,
}

/// State of the eBPF programs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EbpfReport {
    /// On, off, or why not.
    pub state: EbpfState,
    /// Verdicts, one for each program; empty if nothing is attached.
    pub probes: Shared<ProbeVerdict>,
    /// What the programs do not see.
    pub notes: Vec<Cause>,
    /// Programs that are attached.
    pub programs: usize,
    /// Modules that cannot be unloaded while the programs are attached.
    pub pinned: Vec<String>,
    /// Records report everything that happens to QPs.
    pub follows_qps: bool,
    /// Other programs than before make the records from now on. No record tells what happened in between.
    pub anew: bool,
}

/// Whether eBPF is in use, and if not, why.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum EbpfState {
    /// Attach has not finished.
    #[default]
    Starting,
    /// Attached and counting.
    On {
        /// The data paths that are counted.
        datapaths: DataPaths,
    },
    /// The user did not want eBPF (`--no-ebpf`).
    Disabled,
    /// Wanted but not available.
    Unavailable(Unavailable),
}

/// The data paths that are counted, by driver: on a host with several kinds of device it may be only some.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct DataPaths(BTreeMap<Arc<str>, Arc<str>>);

impl DataPaths {
    /// Adds a data path: the driver's module, and how its hooks are entered, `kprobe` or `fentry`.
    #[must_use]
    pub fn and(mut self, driver: &str, how: &str) -> Self {
        self.0.insert(driver.into(), how.into());
        self
    }

    /// How the data path of a driver is entered; `None` when it is not counted.
    pub fn of(&self, driver: &str) -> Option<Arc<str>> {
        self.0.get(driver).cloned()
    }

    /// Whether no data path is counted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How the data paths are entered, in a few words; `None` when none is counted.
    pub fn how(&self) -> Option<String> {
        let mut ways: Vec<&str> = self.0.values().map(|how| &**how).collect();
        ways.sort_unstable();
        ways.dedup();
        (!ways.is_empty()).then(|| ways.join(" and "))
    }
}

/// Why there is no eBPF.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Unavailable {
    why: String,
    /// The cause.
    pub cause: Cause,
}

impl Unavailable {
    /// The reason and the remedy, in one line.
    pub fn why(&self) -> String {
        self.why.clone()
    }
}

impl EbpfState {
    /// eBPF is unavailable for this reason.
    pub fn unavailable(obstacle: Obstacle) -> Self {
        let what = "No eBPF: no lifecycle events and no per-QP rates";
        Self::Unavailable(Unavailable {
            why: obstacle.to_string(),
            cause: obstacle.takes(what, Concerns::Host),
        })
    }

    /// Attached and counting.
    pub fn is_on(&self) -> bool {
        matches!(self, Self::On { .. })
    }
}

/// What happened to one program.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeVerdict {
    /// Program name.
    pub program: String,
    /// What it hooks, as `kprobe:` and a function.
    pub hook: String,
    /// What it gives the user.
    pub gives: String,
    /// The verdict.
    pub verdict: Verdict,
    /// Why the verdict is not [`Verdict::Ok`]; or, if it is, which readings are off.
    pub causes: Vec<Cause>,
}

impl ProbeVerdict {
    /// All causes in one line, `None` when there is none.
    pub fn reason(&self) -> Option<String> {
        let reasons: Vec<_> = self.causes.iter().map(Cause::reason).collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}

impl Serialize for ProbeVerdict {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct as _;
        let mut object = serializer.serialize_struct("ProbeVerdict", 6)?;
        object.serialize_field("program", &self.program)?;
        object.serialize_field("hook", &self.hook)?;
        object.serialize_field("gives", &self.gives)?;
        object.serialize_field("verdict", &self.verdict)?;
        object.serialize_field("reason", &self.reason())?;
        object.serialize_field("causes", &self.causes)?;
        object.end()
    }
}

/// Probes on programs whose posts bypass the kernel, and what the probes cost these programs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct UprobesReport {
    /// The one process that was asked for.
    pub pid: Option<u32>,
    /// Functions that are probed.
    pub functions: u64,
    /// QPs whose work requests the probes count.
    pub qps: u64,
    /// Entries and returns of the functions since start.
    pub hits: u64,
    /// Hits per second.
    pub hits_per_s: Option<f64>,
    /// Time that one hit takes from the probed program, ns, as measured on a function of rdmatop itself.
    pub hit_ns: Option<u64>,
    /// CPU time that the probes take from all programs together, cores.
    pub cores: Option<f64>,
    /// CPU time that they may take, cores.
    pub limit: f64,
    /// Posts by a process that does not own the QP, such as after fork(2): they are counted for nobody.
    pub unmatched: u64,
    /// Posts of which something could not be read: the counts lack their work requests.
    pub missed: u64,
    /// Send work requests that a provider did not accept; they are not among those posted.
    pub rejected_sends: u64,
    /// Receives that the provider rejected.
    pub rejected_receives: u64,
    /// Why the probes are off.
    pub off: Option<Cause>,
    /// What cannot be probed.
    pub failures: Vec<Cause>,
}

/// A process that exceeded the limit on events, and what of its events was left out since start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Flood {
    /// Process id; `None`: several processes that are not told apart.
    pub pid: Option<u32>,
    /// The process's name when it first exceeded the limit; `None` when not known.
    pub comm: Option<String>,
    /// Failed calls beyond those that become events; the limit is `FAILURES_A_SECOND` of rdmatop-common.
    pub failures: u64,
    /// Those records lost in a ring buffer, of lifecycle records or of work requests, that were refused
    /// because the process had used up its share of it.
    pub records: u64,
}

impl Flood {
    /// Who it is, in words.
    pub fn who(&self) -> String {
        match (self.pid, &self.comm) {
            (Some(pid), Some(comm)) => format!("process `{comm}` ({pid})"),
            (Some(pid), None) => format!("process {pid}"),
            (None, _) => "other processes".to_owned(),
        }
    }
}

impl std::fmt::Display for Flood {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const FULL: &str = "lost, because it had filled its share of the ring buffer";
        let were = |count: u64, one: &str, what: &str| {
            let be = if count == 1 { "was" } else { "were" };
            (count > 0).then(|| format!("{} {be} {what}", text::count(count, one)))
        };
        let all = [
            were(self.failures, "failed call", "not printed one by one"),
            were(self.records, "record", FULL),
        ];
        let all: Vec<String> = all.into_iter().flatten().collect();
        write!(f, "{}: {}", self.who(), all.join("; "))
    }
}

/// A program of ours that the kernel did not run although its hook was reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// Program name.
    pub program: String,
    /// What it hooks, as `kprobe:` and a function.
    pub hook: String,
    /// How often since start.
    pub count: u64,
    /// Which numbers may be wrong because of it.
    pub cost: String,
}

impl std::fmt::Display for Skipped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (hook, cost) = (&self.hook, &self.cost);
        let times = match self.count {
            1 => "once".to_owned(),
            count => format!("{count} times"),
        };
        write!(f, "the kernel skipped {hook} {times}: {cost}")
    }
}

/// What became of an eBPF program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The program is attached.
    Ok,
    /// Attached, some readings off.
    Partial,
    /// Its driver or module is not there.
    NotApplicable,
    /// This kernel does not support the program.
    Unsupported,
    /// The program should have worked.
    Broken,
}

/// Host facts for the header.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HostFacts {
    /// Host name.
    pub hostname: Option<String>,
    /// Kernel release.
    pub kernel: Option<String>,
    /// Uptime, seconds.
    pub uptime_s: Option<u64>,
}
