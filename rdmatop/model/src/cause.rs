//! Why something is missing: one value, from the place that finds it to the view that shows it.

use serde::Serialize;

use rdmatop_base::step::NextStep;

/// Why something is missing, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cause {
    /// Which cause it is. Code that decides by a cause compares this, never the words.
    pub id: CauseId,
    /// What it makes incomplete.
    pub concerns: Concerns,
    /// What is missing.
    pub what: String,
    /// Why: the fact behind it.
    pub why: String,
    /// What to do; empty where there is nothing to do.
    pub remedy: NextStep,
}

/// What a cause makes incomplete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Concerns {
    /// The whole of what rdmatop shows.
    Host,
    /// A device, by name.
    Device(String),
    /// Programs of ours, by name.
    Programs(Vec<String>),
}

macro_rules! causes {
    ($($(#[$doc:meta])* $id:ident,)*) => {
        /// Which cause.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum CauseId {
            $($(#[$doc])* $id,)*
        }

        impl CauseId {
            /// Every cause.
            pub const ALL: &[Self] = &[$(Self::$id,)*];
        }
    };
}

causes! {
    /// /sys is not mounted.
    NoSysfs,
    /// /sys names devices, and their files are missing.
    DanglingSysfs,
    /// /proc is not mounted.
    NoProcfs,
    /// The kernel has no RDMA subsystem loaded.
    NoRdmaSubsystem,
    /// There is no RDMA device.
    NoRdmaDevice,
    /// rdmatop runs in a user namespace.
    UserNamespace,
    /// rdmatop runs in a PID namespace of its own.
    PidNamespace,
    /// A capability for eBPF is missing.
    NoCapability,
    /// kernel.perf_event_paranoid forbids probes.
    PerfParanoid,
    /// Programs cannot be entered by fentry.
    NoFentry,
    /// Maps may exceed the limit of locked memory.
    Memlock,
    /// Kernel lockdown forbids programs to read memory.
    Lockdown,
    /// The kernel has no kprobe events.
    NoKprobes,
    /// The RDMA core is out of tree and has no BTF.
    OfedWithoutBtf,
    /// /proc hides other users' processes.
    Hidepid,
    /// Files of other users' processes cannot be read.
    NoPtrace,
    /// This binary carries no eBPF object.
    NoObject,
    /// The list of loaded modules is hidden.
    NoModuleList,
    /// The list of kernel functions is hidden.
    NoSymbols,
    /// A switch of the kernel keeps probes from running.
    ProbesOff,
    /// The limit of open files is too low.
    NoFiles,
    /// There is not enough memory.
    NoMemory,
    /// A thread cannot be started.
    NoThread,
    /// The kernel does not permit it.
    NotPermitted,
    /// The kernel refused it.
    Refused,
    /// rdmatop has a defect.
    Defect,
    /// No program could be attached.
    NothingAttached,
    /// What the programs count cannot be read.
    Unreadable,
    /// A program's module is not loaded.
    NoModule,
    /// The driver whose work a program counts is not loaded.
    NoDriver,
    /// The kernel does not have a program's function.
    NoFunction,
    /// Several functions of the kernel have that name.
    AmbiguousFunction,
    /// The kernel has no BTF, or not of what a program reads.
    NoBtf,
    /// A tracepoint does not have a field.
    NoField,
    /// tracefs cannot be read.
    NoTracefs,
    /// The kernel's log cannot be read.
    NoKernelLog,
    /// A program is left out because it costs too much.
    TooCostly,
    /// A kprobe stands in for fentry.
    KprobeInstead,
    /// fentry keeps modules loaded.
    Pinned,
    /// Programs were attached again.
    AttachedAnew,
    /// No counter slot is free.
    NoSlot,
    /// The tables of QPs have no room.
    NoPlace,
    /// A device's driver answers late.
    SlowDevice,
    /// Reading a device's counters does harm.
    CountersPaused,
    /// The user wants a device left alone.
    Excluded,
    /// A device is in another network namespace, which cannot be read.
    OtherNamespace,
    /// A process's memory is not read to its end.
    SlowProcess,
    /// The removal of a device waits.
    RemovalWaits,
    /// The kernel refused a reading, or its answer makes no sense.
    ReadFailed,
    /// The kernel or a driver has not answered in time.
    NoAnswer,
    /// The eBPF programs are still being attached.
    EbpfStarts,
    /// The user left out eBPF (`--no-ebpf`).
    NoEbpf,
    /// No program of rdmatop follows what a driver does: most NICs' posts bypass the kernel.
    NotFollowed,
    /// The programs that count a driver's work requests are not attached.
    NoDataPath,
    /// No counter of a driver can be read.
    NoCounters,
    /// A driver counts no bytes.
    NoByteCounters,
    /// A driver keeps nothing from which it could be counted.
    NotInDriver,
    /// What a program posts with cannot be probed.
    NotProbed,
    /// A program has a library loaded that may post past the functions that are probed.
    MayBypass,
    /// rdmatop lets the kernel bind QPs to counters of the NIC (`--hw-counters`).
    CountersSet,
    /// Another program decides which QPs are bound to counters.
    CountersTaken,
    /// A driver binds no QPs to counters.
    NoBinding,
    /// A port moves data without a queue pair that the kernel lists.
    UnseenQps,
    /// There are more findings than are shown.
    FindingsLeftOut,
}

impl CauseId {
    /// Whether it explains why eBPF is refused with `refused`: then no other note is needed.
    pub fn denies_ebpf(self, refused: Self) -> bool {
        // Before Linux 5.11 that limit refuses maps with EPERM, as a missing right does.
        if self == Self::Memlock {
            return refused == Self::NotPermitted;
        }
        matches!(
            self,
            Self::NoSysfs
                | Self::NoRdmaSubsystem
                | Self::NoRdmaDevice
                | Self::UserNamespace
                | Self::NoCapability
                | Self::PerfParanoid
                | Self::Lockdown
        )
    }

    /// Whether it is of no interest to a user who wants no eBPF.
    pub fn is_of_ebpf_alone(self) -> bool {
        matches!(
            self,
            Self::UserNamespace | Self::NoCapability | Self::PerfParanoid | Self::Lockdown
        )
    }

    /// Whether it says that there is no RDMA to show.
    pub fn denies_rdma(self) -> bool {
        matches!(self, Self::NoRdmaSubsystem | Self::NoRdmaDevice)
    }
}

/// A fact that is in the way, and what to do about it. The caller that knows what is missing because of it
/// makes a [`Cause`] of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// Which cause.
    pub id: CauseId,
    /// The fact.
    pub why: String,
    /// What to do; empty for nothing.
    pub remedy: NextStep,
}

impl Obstacle {
    /// `remedy` may be empty.
    pub fn new(id: CauseId, why: impl Into<String>, remedy: impl Into<NextStep>) -> Self {
        Self {
            id,
            why: why.into(),
            remedy: remedy.into(),
        }
    }

    /// As the cause that `what` is missing.
    pub fn takes(self, what: impl Into<String>, concerns: Concerns) -> Cause {
        let Self { id, why, remedy } = self;
        Cause {
            id,
            concerns,
            what: what.into(),
            why,
            remedy,
        }
    }
}

impl std::fmt::Display for Obstacle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.why)?;
        if self.remedy.is_empty() {
            return Ok(());
        }
        write!(f, "; {}", self.remedy)
    }
}

impl Cause {
    /// Cause and remedy in one line.
    pub fn line(&self) -> String {
        format!("{}: {}", self.what, self.reason())
    }

    /// Why, and what to do, in one line, where the text before it already says what is missing.
    pub fn reason(&self) -> String {
        Obstacle::new(self.id, &*self.why, self.remedy.clone()).to_string()
    }
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.remedy.after(&format!("{}: {}", self.what, self.why)))
    }
}
