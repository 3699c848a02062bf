//! The kinds of findings: one table. docs/findings.md has the rule of each, and where it comes from.

use serde::{Serialize, Serializer};

use crate::facts::named_kinds;

named_kinds! {
    /// How bad a finding is.
    Severity:
    /// The state may be intended.
    Info = "info",
    /// Something works, but worse than it could.
    Warning = "warning",
    /// Something does not work.
    Critical = "critical",
}

impl Severity {
    /// Critical if that holds, else a warning.
    pub(super) const fn critical_if(is_critical: bool) -> Self {
        if is_critical {
            Self::Critical
        } else {
            Self::Warning
        }
    }

    /// Information if that holds, else a warning.
    pub(super) const fn info_if(is_info: bool) -> Self {
        if is_info { Self::Info } else { Self::Warning }
    }
}

/// What is the same for all findings of a kind.
#[derive(Clone, Copy, Debug)]
pub struct FindingKind {
    /// Stable name.
    pub name: &'static str,
    /// How bad it is, where its rule says nothing else.
    pub severity: Severity,
    /// A symptom is raised once it was there this long, s, within two and a half times as long. 0: at once.
    pub raise_s: u64,
    /// A finding is cleared once its symptom stayed away this long, s: at least 1.5 times `raise_s`.
    pub clear_s: u64,
    /// Why it matters.
    pub why: &'static str,
    /// What one sees when the trouble is over. The finding itself goes away `clear_s` later.
    pub fixed: &'static str,
}

macro_rules! kinds {
    ($($id:ident: $name:literal, $severity:ident, raise_s: $raise:literal, clear_s: $clear:literal,
        why: $why:literal,
        fixed: $fixed:literal;)*) => {
        /// Which finding.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum FindingId {
            $(#[doc = $name] $id,)*
        }

        impl FindingId {
            /// Every kind.
            pub const ALL: &'static [Self] = &[$(Self::$id,)*];

            /// What is the same for all findings of this kind.
            pub const fn kind(self) -> &'static FindingKind {
                match self {
                    $(Self::$id => &FindingKind {
                        name: $name, severity: Severity::$severity, raise_s: $raise, clear_s: $clear, why: $why, fixed: $fixed,
                    },)*
                }
            }
        }
    };
}

kinds! {
    ReceiverNotReady: "receiver-not-ready", Warning, raise_s: 4, clear_s: 10,
        why: "The sender waits a whole RNR timer for each packet that finds no receive buffer.",
        fixed: "no sender waits for it any more";
    PeerGone: "peer-gone", Critical, raise_s: 2, clear_s: 10,
        why: "No answer comes back. With retry_cnt 7, the default of perftest and NCCL, SoftRoCE repeats for ever.",
        fixed: "its TX b/s is above 0 again";
    QpError: "qp-error", Critical, raise_s: 3, clear_s: 5,
        why: "A QP in ERR flushes every work request until the application resets or destroys it; in SQE it sends none.",
        fixed: "none of its QPs is in ERR or SQE";
    QpSetup: "qp-setup", Warning, raise_s: 1, clear_s: 5,
        why: "Connecting takes milliseconds. The peer did not answer, the job waits for it, or a step of the setup failed.",
        fixed: "its QPs are in RTS";
    CompletionError: "completion-error", Critical, raise_s: 0, clear_s: 60,
        why: "The first error moves the QP to ERR, and what was posted behind it is flushed.",
        fixed: "ERR of the process stops growing";
    CqOverflow: "cq-overflow", Critical, raise_s: 0, clear_s: 60,
        why: "The completion is lost, the CQ is in error, and the program waits for ever.",
        fixed: "after its restart ERR stays 0";
    SendQueueFull: "send-queue-full", Warning, raise_s: 4, clear_s: 10,
        why: "The thread spends its time on calls that fail. A queue that is full is no fault by itself: nothing goes faster by trying.",
        fixed: "its CPU time falls, TX WR/s stays";
    LatencyRises: "latency-rises", Warning, raise_s: 12, clear_s: 20,
        why: "The program asks for as much as before and gets less: the path, the peer or this host's CPUs became slow.",
        fixed: "P99 and TX WR/s are what they were";
    VerbFails: "verb-fails", Critical, raise_s: 0, clear_s: 60,
        why: "Most libraries give up, or go on without RDMA.",
        fixed: "ERR of the process stops growing";
    CgroupLimit: "cgroup-limit", Critical, raise_s: 0, clear_s: 60,
        why: "No queue pair and no memory region can be made until something is destroyed or the limit is raised.",
        fixed: "ERR of the process stops growing";
    TcpFallback: "tcp-fallback", Warning, raise_s: 5, clear_s: 10,
        why: "TCP costs the job most of its bandwidth and CPU time that it needs elsewhere; nothing but its speed shows it.",
        fixed: "it has QPs, and its data goes by RDMA";
    MrChurn: "mr-churn", Warning, raise_s: 10, clear_s: 15,
        why: "Each registration pins pages and takes longer than most transfers. Libraries keep registrations in a cache.",
        fixed: "it registers less memory, less often";
    MrGrowth: "mr-growth", Info, raise_s: 0, clear_s: 60,
        why: "Registered memory is pinned: it cannot be swapped or moved, until the machine has none left. It may be meant so.",
        fixed: "MR of the process falls, or stays";
    MapCount: "map-count", Warning, raise_s: 0, clear_s: 60,
        why: "At the limit mmap(2) fails with ENOMEM, and with it what needs a mapping: allocations, threads, opening a device, and with \
              fork support registering memory. It reads as if memory were exhausted.",
        fixed: "vm.max_map_count is well above the count";
    Headroom: "headroom", Warning, raise_s: 0, clear_s: 60,
        why: "At the limit no process can make another one: jobs that start then fail, or go without this NIC, and the error is that of \
              exhausted memory.",
        fixed: "the device has well below its limit";
    QpChurn: "qp-churn", Warning, raise_s: 10, clear_s: 15,
        why: "A new connection costs both ends milliseconds and commands to the NIC; what it could carry meanwhile is lost.",
        fixed: "it calls create_qp less often";
    QpLeak: "qp-leak", Warning, raise_s: 0, clear_s: 60,
        why: "Each QP takes memory of the NIC and its driver until the device has none left.",
        fixed: "the number of its QPs stops growing";
    PortDown: "port-down", Critical, raise_s: 2, clear_s: 5,
        why: "Nothing passes it. What its QPs have under way is repeated until they give up.",
        fixed: "the port is ACTIVE";
    PortSlow: "port-slow", Warning, raise_s: 5, clear_s: 10,
        why: "A collective runs at the pace of its slowest link.",
        fixed: "its rate is that of the other ports";
    LinkErrors: "link-errors", Warning, raise_s: 0, clear_s: 60,
        why: "A cable, a transceiver or the port at the other end is failing, or the fabric is congested.",
        fixed: "the link stays up and counts no errors";
    RequestsFail: "requests-fail", Warning, raise_s: 0, clear_s: 60,
        why: "Such a request ends its connection: the QP goes to ERR, and what was posted behind it is flushed.",
        fixed: "no further request fails";
    LinkFlaps: "link-flaps", Warning, raise_s: 0, clear_s: 60,
        why: "A link that comes up again hides a bad cable or transceiver: each time, jobs wait for seconds or end.",
        fixed: "the port stays ACTIVE";
    Loss: "loss", Warning, raise_s: 8, clear_s: 12,
        why: "Most NICs send again all that they sent behind a lost packet: a few in a thousand take most of the bandwidth.",
        fixed: "the port retransmits no more";
    Congestion: "congestion-ignored", Warning, raise_s: 8, clear_s: 12,
        why: "Congestion control is switched off on this side: senders do not slow down, switches drop or pause.",
        fixed: "the counter stops growing";
    IbCongestion: "ib-congestion", Warning, raise_s: 8, clear_s: 12,
        why: "Without credits nothing is sent, and what waits here makes others wait: a slow receiver holds up a whole tree.",
        fixed: "port_xmit_wait hardly grows";
    PauseStorm: "pause-storm", Warning, raise_s: 8, clear_s: 20,
        why: "A pause stops all traffic of its priority, and spreads: the switch that waits pauses others, until a whole fabric waits \
              for one slow host.",
        fixed: "the pause counters hardly grow";
    TrafficClass: "traffic-class", Warning, raise_s: 8, clear_s: 12,
        why: "On the other priorities switches drop what they cannot hold: RoCE then sends again and loses most of its bandwidth.",
        fixed: "the traffic leaves on that priority";
    HotPort: "hot-port", Warning, raise_s: 10, clear_s: 15,
        why: "The job has the bandwidth of one NIC where it could have that of all. Where an option of the command line names this \
              NIC it is meant, and this is information; so it is where nothing says that ranks wait for one another, as in storage. A \
              variable that does is a warning: it may be left over from a test.",
        fixed: "all ports of the job send";
    RailsIdle: "rails-idle", Warning, raise_s: 12, clear_s: 20,
        why: "The job waits for ports that are full while others do nothing. Information where one process has QPs on all of them: the \
              idle ones may be for storage.",
        fixed: "all ports of the job send";
    RxFunnel: "rx-funnel", Warning, raise_s: 10, clear_s: 15,
        why: "All peers send to one address of this host: its port is the limit of the whole job.",
        fixed: "all ports of the job receive";
    PortContention: "port-contention", Info, raise_s: 10, clear_s: 15,
        why: "A NIC serves its QPs in turn, whoever has them. Who has few beside a process with many gets as little as each of those.",
        fixed: "its TX b/s is nearer to the other one's";
    FarNic: "far-nic", Warning, raise_s: 10, clear_s: 15,
        why: "Each byte passes the processor, and between sockets their link, which the GPUs of the node share: NCCL uses no GPUDirect \
              over such a way unless it is told to.",
        fixed: "the nearer port carries the bytes";
    NoGpuDirect: "no-gpudirect", Info, raise_s: 10, clear_s: 15,
        why: "What it sends from its GPU is copied to the host's memory first, at half the speed or less. It may be meant: who loads data \
              has nothing of the GPU to send.",
        fixed: "it registers memory of its GPU (DMA-BUF)";
    LagImbalance: "lag-imbalance", Info, raise_s: 10, clear_s: 15,
        why: "The bond is as fast as that link. Few queue pairs, or one UDP source port for all, are the usual reason. Information while the \
              link is less than half full.",
        fixed: "both links of the bond move bytes";
    LagDegraded: "lag-degraded", Warning, raise_s: 5, clear_s: 8,
        why: "The port stays ACTIVE, with a part of its rate or without a reserve: nothing else says so.",
        fixed: "all links of the bond are up";
    SmallMtu: "small-mtu", Warning, raise_s: 5, clear_s: 8,
        why: "Each packet costs the same to handle, however little it carries.",
        fixed: "new connections have a path MTU of 4096";
    PcieSlow: "pcie-slow", Warning, raise_s: 5, clear_s: 10,
        why: "No setting of the job gets more through the slot than the slot carries.",
        fixed: "lspci shows in LnkSta what LnkCap has";
    RoceV1: "roce-v1", Warning, raise_s: 5, clear_s: 8,
        why: "RoCE v1 is not routed, and switches do not mark its packets (ECN).",
        fixed: "new QPs use that index";
    SetupSlow: "setup-slow", Warning, raise_s: 0, clear_s: 10,
        why: "A job with thousands of connections starts as much later, and libraries give up after some seconds.",
        fixed: "new QPs are in RTS within half a second";
    AdminErrors: "device-command-errors", Warning, raise_s: 0, clear_s: 60,
        why: "Objects cannot be made, or the device does not answer.",
        fixed: "the counter stops growing";
    DriverErrors: "driver-errors", Warning, raise_s: 0, clear_s: 5,
        why: "The driver or the firmware could not do what a program or the network asked for.",
        fixed: "the kernel logs no more of them";
    Removal: "removal-waits", Warning, raise_s: 3, clear_s: 5,
        why: "The command that removes it hangs until the process closes the device.",
        fixed: "the device is gone";
}

impl FindingKind {
    /// The window within which a symptom has to be there for [`FindingKind::raise_s`], ns.
    pub const fn window_ns(&self) -> u64 {
        self.raise_s * 2_500_000_000
    }
}

impl FindingId {
    /// The finding's stable name.
    pub const fn name(self) -> &'static str {
        self.kind().name
    }

    /// Whether it can stand for days, because a setting, a slot, a cable, the place of a GPU or the size of a
    /// process makes it so: beside it, what began later is news. A link of a bond that is down is no such
    /// thing: it went down at some time.
    pub const fn stands(self) -> bool {
        matches!(
            self,
            Self::MrGrowth
                | Self::MapCount
                | Self::PortSlow
                | Self::Congestion
                | Self::TrafficClass
                | Self::FarNic
                | Self::NoGpuDirect
                | Self::SmallMtu
                | Self::PcieSlow
                | Self::RoceV1
        )
    }
}

impl Serialize for FindingId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
