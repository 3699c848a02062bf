//! The kinds of findings: one table.

use serde::{Serialize, Serializer};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The state may be intended.
    Info,
    /// Something works, but worse than it could.
    Warning,
    /// Something does not work.
    Critical,
}

impl Severity {
    /// The severity's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

/// What is the same for all findings of a kind.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Stable name.
    pub name: &'static str,
    /// A symptom is raised once it was there this long, s, within two and a half times as long. 0: at once.
    pub raise_s: u64,
    /// A finding is cleared once its symptom stayed away this long, s: at least 1.5 times `raise_s`.
    pub clear_s: u64,
    /// The rule that says when a snapshot shows the symptom.
    pub rule: &'static str,
    /// Where the rule and its numbers come from.
    pub source: &'static str,
    /// Why it matters.
    pub why: &'static str,
    /// What one sees when the trouble is over. The finding itself goes away `clear_s` later.
    pub fixed: &'static str,
    /// Whether `--trace` can show it: a trace does not count work requests.
    pub trace: Traced,
}

/// Whether a trace has what a rule needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traced {
    /// A trace has all of it.
    Yes,
    /// It needs counters of QPs, of which a trace has only those of ports: it names a port, seldom a process.
    OfPorts,
    /// It needs counts of work requests or completions, readings of GPUs, or lists of mappings, which a trace
    /// does not take.
    No,
}

impl Traced {
    /// The word for it in a table.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::OfPorts => "of ports",
            Self::No => "no",
        }
    }
}

macro_rules! kinds {
    ($($id:ident => $kind:expr,)*) => {
        /// Which finding.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[expect(missing_docs, reason = "Kind::rule says what each one is")]
        pub enum FindingId { $($id,)* }

        impl FindingId {
            /// Every kind.
            pub const ALL: &'static [Self] = &[$(Self::$id,)*];

            /// What is the same for all findings of this kind.
            pub const fn kind(self) -> &'static Kind {
                match self { $(Self::$id => const { &$kind },)* }
            }
        }
    };
}

kinds! {
    ReceiverNotReady => Kind {
        name: "receiver-not-ready", raise_s: 4, clear_s: 10,
        rule: "a sender waits for a receiver that has no receive buffer posted (RNR); where work requests are not counted: RNR \
               NAKs or out_of_buffer of a port grow",
        source: "rnr_waits of the sender's QPs; rnr_naks of the port; out_of_buffer of the port (mlx5, mlx4, bnxt_re, ionic)",
        why: "The sender waits a whole RNR timer for each packet that finds no receive buffer.",
        fixed: "no sender waits for it any more",
        trace: Traced::OfPorts,
    },
    PeerGone => Kind {
        name: "peer-gone", raise_s: 2, clear_s: 10,
        rule: "a QP in RTS sends the same packets again and finishes nothing",
        source: "retransmissions and finished work requests of the QP",
        why: "No answer comes back. With retry_cnt 7, the default of perftest and NCCL, SoftRoCE repeats for ever.",
        fixed: "its TX b/s is above 0, or it has ended",
        trace: Traced::No,
    },
    QpError => Kind {
        name: "qp-error", raise_s: 3, clear_s: 5,
        rule: "a QP stays in ERR or SQE",
        source: "state of the QP",
        why: "A QP in ERR flushes every work request until the application resets or destroys it; in SQE it sends none.",
        fixed: "none of its QPs is in ERR or SQE",
        trace: Traced::Yes,
    },
    QpSetup => Kind {
        name: "qp-setup", raise_s: 1, clear_s: 5,
        rule: "a QP of a connected type stays in INIT for 5 s, while no `modify_qp` of its process fails",
        source: "state of the QP, and since when it has it; errnos of `modify_qp`",
        why: "Connecting takes milliseconds. The peer did not answer, the job waits for it, or a step of the setup failed.",
        fixed: "its QPs are in RTS",
        trace: Traced::Yes,
    },
    CompletionError => Kind {
        name: "completion-error", raise_s: 0, clear_s: 60,
        rule: "work requests end with an error other than a flush",
        source: "status of CQEs",
        why: "The first error moves the QP to ERR, and what was posted behind it is flushed.",
        fixed: "ERR of the process stops growing",
        trace: Traced::No,
    },
    CqOverflow => Kind {
        name: "cq-overflow", raise_s: 0, clear_s: 60,
        rule: "a CQE found its completion queue full",
        source: "cq_overflows of the QP",
        why: "The completion is lost, the CQ is in error, and the program waits for ever.",
        fixed: "after its restart ERR stays 0",
        trace: Traced::No,
    },
    SendQueueFull => Kind {
        name: "send-queue-full", raise_s: 4, clear_s: 10,
        rule: "of the calls of post_send of a process 100 per second or more, and half or more, post nothing, while work requests \
               finish and no receiver is waited for: its send queues are full, and it tries again and again",
        source: "doorbells and posted work requests: librxe rings the doorbell also where it refuses the work request with ENOMEM; \
                 silent on NICs that bypass the kernel; rdmatop's own limits",
        why: "The thread spends its time on calls that fail. A queue that is full is no fault by itself: nothing goes faster by trying.",
        fixed: "its CPU time falls, TX WR/s stays",
        trace: Traced::No,
    },
    LatencyRises => Kind {
        name: "latency-rises", raise_s: 12, clear_s: 20,
        rule: "the 99th percentile of a process's post-to-completion times is four times what it was in the five minutes before, and \
               200 us or more, it finishes half as many work requests or fewer of the same size, keeps as many outstanding, and \
               neither retransmissions nor a receiver explain it",
        source: "post-to-completion times of the process, in intervals of 10 s; the medians of those before, three or more; \
                 rdmatop's own limits",
        why: "The program asks for as much as before and gets less: the path, the peer or this host's CPUs became slow.",
        fixed: "P99 and TX WR/s are what they were",
        trace: Traced::No,
    },
    VerbFails => Kind {
        name: "verb-fails", raise_s: 0, clear_s: 60,
        rule: "a verb fails with ENOMEM, EAGAIN, EPERM, ENOSPC, ETIMEDOUT, EIO or ENODEV, or modify_qp with ENODATA",
        source: "return codes of verbs; probes by libraries and calls of the connection manager, which libraries make to try a \
                 way, are left out",
        why: "Most libraries give up, or go on without RDMA.",
        fixed: "ERR of the process stops growing",
        trace: Traced::Yes,
    },
    CgroupLimit => Kind {
        name: "cgroup-limit", raise_s: 0, clear_s: 60,
        rule: "a verb fails with EAGAIN, and the process's RDMA cgroup, or one above it, has as much as it may have",
        source: "return codes of verbs; rdma.max and rdma.current of the cgroups",
        why: "No queue pair and no memory region can be made until something is destroyed or the limit is raised.",
        fixed: "ERR of the process stops growing",
        trace: Traced::Yes,
    },
    TcpFallback => Kind {
        name: "tcp-fallback", raise_s: 5, clear_s: 10,
        rule: "a process with libnccl, librccl, libfabric, libucp, libnvshmem or libnixl moves 50 MB/s or more by TCP, both ways together, between \
               ports that were chosen and not assigned, less than a tenth of that by RDMA, and a port of the host is ACTIVE; where a library makes \
               QPs past the kernel (UCX, NVSHMEM, DOCA on mlx5) all that the ports of the devices move that it has open counts as RDMA",
        source: "sock_diag(7), /proc/PID/fd and maps, each 10 s: with the two looks that a rate needs it takes up to 25 s; for the \
                 reason its environment and its /dev/infiniband; connections of other network namespaces are not seen",
        why: "TCP costs the job most of its bandwidth and CPU time that it needs elsewhere; nothing but its speed shows it.",
        fixed: "it has QPs, and its data goes by RDMA",
        trace: Traced::Yes,
    },
    MrChurn => Kind {
        name: "mr-churn", raise_s: 10, clear_s: 15,
        rule: "a process registers more than 100 memory regions per second; or registers and deregisters several within 20 s, and \
               spends a quarter of a thread's time in that or registers 1 GB/s and as much as it moves",
        source: "calls of reg_mr and dereg_mr and their time in the kernel; lengths of memory regions",
        why: "Each registration pins pages and takes longer than most transfers. Libraries keep registrations in a cache.",
        fixed: "it registers less memory, less often",
        trace: Traced::Yes,
    },
    MrGrowth => Kind {
        name: "mr-growth", raise_s: 0, clear_s: 60,
        rule: "the registered memory of a process never fell within 30 minutes, grew in six or more of their eight parts, and by 1 GiB \
               or more in all",
        source: "lengths of the memory regions of the process; rdmatop's own limits",
        why: "Registered memory is pinned: it cannot be swapped or moved, until the machine has none left. It may be meant so.",
        fixed: "MR of the process falls, or stays",
        trace: Traced::Yes,
    },
    MapCount => Kind {
        name: "map-count", raise_s: 0, clear_s: 60,
        rule: "a process with QPs or memory regions had 90 % or more of the mappings of memory that one process may have \
               (vm.max_map_count) when rdmatop listed them, 10 minutes ago at most",
        source: "lines of /proc/PID/maps, counted where its libraries are read: when the process is first seen and after an exec, not \
                 again; vm.max_map_count, each minute; silent where the list is not readable, is longer than 16 MiB or has more than \
                 128 libraries; rdmatop's own limit",
        why: "At the limit mmap(2) fails with ENOMEM, and with it what needs a mapping: allocations, threads, opening a device, and with \
              fork support registering memory. It reads as if memory were exhausted.",
        fixed: "vm.max_map_count is well above the count",
        trace: Traced::No,
    },
    QpChurn => Kind {
        name: "qp-churn", raise_s: 10, clear_s: 15,
        rule: "a process makes and destroys more than 10 QPs per second",
        source: "calls of create_qp and destroy_qp; their time in the kernel and that of modify_qp; rdmatop's own limit",
        why: "A new connection costs both ends milliseconds and commands to the NIC; what it could carry meanwhile is lost.",
        fixed: "it calls create_qp less often",
        trace: Traced::Yes,
    },
    QpLeak => Kind {
        name: "qp-leak", raise_s: 0, clear_s: 60,
        rule: "the QPs of a process grew in five looks or more within 60 s, never fell, by 32 or more in all, and most of \
               them move nothing",
        source: "QPs of the process",
        why: "Each QP takes memory of the NIC and its driver until the device has none left.",
        fixed: "the number of its QPs stops growing",
        trace: Traced::No,
    },
    PortDown => Kind {
        name: "port-down", raise_s: 2, clear_s: 5,
        rule: "the only port of a device is not ACTIVE and processes have QPs on the device; or connected QPs of the kernel are on the port (NVMe-oF, NFS, Lustre); or a port that was ACTIVE since rdmatop began \
               is not, and processes have QPs on its device or, with a library that makes QPs past the kernel (DEVX), have it open; other \
               ranks of such a process's job are taken to wait for it: they have QPs, are seen to move nothing, are of its workload, and run its \
               program with a library of collectives or are connected to it",
        source: "state of the port; workload, program, libraries and QPs of processes",
        why: "Nothing passes it. What its QPs have under way is repeated until they give up.",
        fixed: "the port is ACTIVE",
        trace: Traced::Yes,
    },
    PortSlow => Kind {
        name: "port-slow", raise_s: 5, clear_s: 10,
        rule: "an ACTIVE port has a lower rate than most ports of the same driver and link layer, and one process has QPs on \
               it and on two or more of the fast ones",
        source: "rate of the port",
        why: "A collective runs at the pace of its slowest link.",
        fixed: "its rate is that of the other ports",
        trace: Traced::Yes,
    },
    LinkErrors => Kind {
        name: "link-errors", raise_s: 0, clear_s: 60,
        rule: "an error counter of the link grows faster than its limit: link_downed and link_error_recovery at all, \
               local_link_integrity_errors and excessive_buffer_overrun_errors at all, symbol_error and port_rcv_errors \
               10/s, port_xmit_discards 100/s",
        source: "counters of the port; limits of NVIDIA NVSentinel's NIC monitor",
        why: "A cable, a transceiver or the port at the other end is failing, or the fabric is congested.",
        fixed: "the link stays up and counts no errors",
        trace: Traced::Yes,
    },
    LinkFlaps => Kind {
        name: "link-flaps", raise_s: 0, clear_s: 60,
        rule: "a port went down three times or more within 10 minutes; while it is found, `link-errors` leaves link_downed out",
        source: "state of the port, and link_downed where the driver has it: whichever saw more; both say for how long it was down, \
                 between the snapshots that show it; states of QPs; limits of NVIDIA NVSentinel's NIC monitor",
        why: "A link that comes up again hides a bad cable or transceiver: each time, jobs wait for seconds or end.",
        fixed: "the port stays ACTIVE",
        trace: Traced::Yes,
    },
    Loss => Kind {
        name: "loss", raise_s: 8, clear_s: 12,
        rule: "packets are sent again, or senders start again, 10 times per second or more and for 0.1 % or more of the packets \
               sent, and neither RNR nor a stuck QP explains it; where QPs are counted, one of them sends again and finishes work; \
               what a receiver on this host got twice (duplicate_request) was late and not lost; where `traffic-class` is found it is the \
               reason",
        source: "retransmits or retries of the port, and tx_packets; the peers of the QPs that send again, where no QP is counted those of \
                 all QPs of the port; a peer that QP numbers alone show is marked `~`",
        why: "RoCE and iWARP lose most of their bandwidth at a loss of a few packets in a thousand.",
        fixed: "the port retransmits no more",
        trace: Traced::Yes,
    },
    Congestion => Kind {
        name: "congestion-ignored", raise_s: 8, clear_s: 12,
        rule: "rp_cnp_ignored grows, or packets arrive marked by ECN and no CNP is sent",
        source: "hardware counters of mlx5",
        why: "Congestion control is switched off on this side: senders do not slow down, switches drop or pause.",
        fixed: "the counter stops growing",
        trace: Traced::Yes,
    },
    IbCongestion => Kind {
        name: "ib-congestion", raise_s: 8, clear_s: 12,
        rule: "an InfiniBand port has data and waits 5 % of the time or more for the credits to send it",
        source: "port_xmit_wait, rate and lanes of the port: a tick is taken as one symbol time of a lane, the shortest that the \
                 InfiniBand specification has, so the true share is this or more (NVIDIA's switches count 8 bytes a tick and more); \
                 silent where the counter has 32 bits and is at its end; rdmatop's own limit",
        why: "Without credits nothing is sent, and what waits here makes others wait: a slow receiver holds up a whole tree.",
        fixed: "port_xmit_wait hardly grows",
        trace: Traced::Yes,
    },
    PauseStorm => Kind {
        name: "pause-storm", raise_s: 8, clear_s: 20,
        rule: "a port sends or receives Ethernet pause frames (PFC or of the whole link) 1000 times per second or more, is paused or \
               pauses the other end 1 % of the time or more, or its driver's watchdog saw pauses without end",
        source: "ethtool statistics of the port's network device, each 5 s: mlx5, mlx4, bnxt_en, ice, i40e, hns3; durations of mlx5 and \
                 bnxt_en; rdmatop's own limits",
        why: "A pause stops all traffic of its priority, and spreads: the switch that waits pauses others, until a whole fabric waits \
              for one slow host.",
        fixed: "the pause counters hardly grow",
        trace: Traced::Yes,
    },
    TrafficClass => Kind {
        name: "traffic-class", raise_s: 8, clear_s: 12,
        rule: "a port has flow control (PFC) on some priorities, sends 100 MB/s of RDMA or more, and less than a tenth of that leaves on \
               those priorities",
        source: "dcb netlink or qos/pfc of the network device; bytes by priority of ethtool (mlx5, mlx4, bnxt_en)",
        why: "On the other priorities switches drop what they cannot hold: RoCE then sends again and loses most of its bandwidth.",
        fixed: "the traffic leaves on that priority",
        trace: Traced::Yes,
    },
    HotPort => Kind {
        name: "hot-port", raise_s: 10, clear_s: 15,
        rule: "of three or more ACTIVE ports of one driver and link layer, one carries more than twice the mean, and half \
               of its link's rate where that is known, and two or more carry less than 5 % of it; a process has objects on it",
        source: "bytes of ports, else packets",
        why: "The job has the bandwidth of one NIC where it could have that of all. Where an option of the command line names this \
              NIC it is meant, and this is information. A variable that does is a warning: it may be left over from a test.",
        fixed: "all ports of the job send",
        trace: Traced::Yes,
    },
    RailsIdle => Kind {
        name: "rails-idle", raise_s: 12, clear_s: 20,
        rule: "of three or more ACTIVE ports of one driver, link layer and rate, some carry less than 5 % of the busiest both ways, and the \
               others, two or more, carry half of their links' rate or more (where that is not known: half of the busiest); more processes of \
               one job than ports fill those, or (info) one process fills them and has QPs on all idle ones",
        source: "bytes of ports, else packets; devices, job and traffic of processes; rdmatop's own limits",
        why: "The job waits for ports that are full while others do nothing. Information where one process has QPs on all of them: the \
              idle ones may be for storage.",
        fixed: "all ports of the job send",
        trace: Traced::Yes,
    },
    RxFunnel => Kind {
        name: "rx-funnel", raise_s: 10, clear_s: 15,
        rule: "of three or more ACTIVE ports of one driver and link layer that carry anything, Tx is spread (three quarters \
               carry half the mean or more) and one has more than 70 % of all Rx",
        source: "bytes of ports, else packets",
        why: "All peers send to one address of this host: its port is the limit of the whole job.",
        fixed: "all ports of the job receive",
        trace: Traced::Yes,
    },
    PortContention => Kind {
        name: "port-contention", raise_s: 10, clear_s: 15,
        rule: "of two processes that send on one ACTIVE port of SoftRoCE or soft iWARP, and have four work requests or more waiting in each \
               sending QP, one sends eight times as much as the other or more, and has four times as many sending QPs or more; a QP of the \
               one sends at most four times what a QP of the other sends, either way; neither are they of one job, nor does one send to the \
               other",
        source: "bytes, posted and finished work requests of QPs; silent on NICs that bypass the kernel, where nothing says how many wait; \
                 rdmatop's own limits",
        why: "A NIC serves its QPs in turn, whoever has them. Who has few beside a process with many gets as little as each of those.",
        fixed: "its TX b/s is nearer to the other one's",
        trace: Traced::No,
    },
    FarNic => Kind {
        name: "far-nic", raise_s: 10, clear_s: 15,
        rule: "a process that computes on one GPU is the only one with QPs on a busy port, and of the ACTIVE ports of that driver one that \
               is nearer to the GPU (switch, host bridge, NUMA node) carries less than 5 % of that; the bytes of all those ports and the \
               places of their NICs are known",
        source: "nvmlDeviceGetComputeRunningProcesses and nvmlDeviceGetPciInfo of NVIDIA's library; paths of the PCI functions in sysfs; \
                 bytes of ports; rdmatop's own limits",
        why: "Each byte passes the processor, and between sockets their link, which the GPUs of the node share: NCCL uses no GPUDirect \
              over such a way unless it is told to.",
        fixed: "the nearer port carries the bytes",
        trace: Traced::No,
    },
    LagImbalance => Kind {
        name: "lag-imbalance", raise_s: 10, clear_s: 15,
        rule: "of an ACTIVE port over a bond that is no active-backup one and has two links or more, one link has more than 90 % of what it \
               sends, or of what it receives, and that is 1 % of the link's rate or more (where that is not known: 1 MB/s)",
        source: "bytes on the wire of each link of the bond (ethtool -S: tx_bytes_phy, tx_bytes.nic, tx_bytes; of SoftRoCE the interface's \
                 own); rdmatop's own limits",
        why: "The bond is as fast as that link. Few queue pairs, or one UDP source port for all, are the usual reason. Information while the \
              link is less than half full.",
        fixed: "both links of the bond move bytes",
        trace: Traced::Yes,
    },
    LagDegraded => Kind {
        name: "lag-degraded", raise_s: 5, clear_s: 8,
        rule: "a link of the bond under an ACTIVE port with QPs of processes is down, and another one is up",
        source: "bonding_slave/mii_status of each link, each 20 s",
        why: "The port stays ACTIVE with a part of its rate: nothing else says so.",
        fixed: "all links of the bond are up",
        trace: Traced::Yes,
    },
    SmallMtu => Kind {
        name: "small-mtu", raise_s: 5, clear_s: 8,
        rule: "an ACTIVE RoCE port of 25 Gb/s or more that has QPs of processes, or connected ones of the kernel, has a network device whose MTU has no room for \
               RoCE packets of 4096 bytes, or QPs whose path MTU is below that for which it has room",
        source: "MTU of the port's network device; 96 bytes of headers (iboe_get_mtu of the kernel); path MTU of the modify to RTR",
        why: "Each packet costs the same to handle, however little it carries.",
        fixed: "jobs that start have a path MTU of 4096",
        trace: Traced::Yes,
    },
    PcieSlow => Kind {
        name: "pcie-slow", raise_s: 5, clear_s: 10,
        rule: "the PCI Express link of a NIC that a process or the kernel's storage uses is below what the NIC can do, and carries less than its ACTIVE \
               ports",
        source: "current_link_speed, current_link_width and max_link_* of the PCI function; rates of the ports",
        why: "No setting of the job gets more through the slot than the slot carries.",
        fixed: "lspci shows in LnkSta what LnkCap has",
        trace: Traced::Yes,
    },
    RoceV1 => Kind {
        name: "roce-v1", raise_s: 5, clear_s: 8,
        rule: "QPs of a process send from a GID of RoCE v1, and their port has one of RoCE v2",
        source: "sgid_index of the modify to RTR; gid_attrs/types of the port",
        why: "RoCE v1 is not routed, and switches do not mark its packets (ECN).",
        fixed: "QPs of jobs that start use that index",
        trace: Traced::Yes,
    },
    SetupSlow => Kind {
        name: "setup-slow", raise_s: 0, clear_s: 10,
        rule: "of the QPs that a process connected in the last 60 s, the 99th percentile of the time in the kernel to INIT, RTR \
               or RTS is 500 ms or more",
        source: "times of modify_qp and the steps of each QP",
        why: "A job with thousands of connections starts as much later, and libraries give up after some seconds.",
        fixed: "new QPs are in RTS within half a second",
        trace: Traced::Yes,
    },
    AdminErrors => Kind {
        name: "device-command-errors", raise_s: 0, clear_s: 60,
        rule: "the device does not answer commands of its driver, or (warning) refuses some",
        source: "no_completion_cmds and cmds_err of EFA: hw_counters of the device, until Linux 5.13 of its port",
        why: "Objects cannot be made, or the device does not answer.",
        fixed: "the counter stops growing",
        trace: Traced::Yes,
    },
    DriverErrors => Kind {
        name: "driver-errors", raise_s: 0, clear_s: 5,
        rule: "the kernel logged an error (level err or more urgent, or a line that is known to be bad at any level, and none that is known \
               to be harmless) in the last 60 s that names the device or its PCI function; SoftRoCE and soft iWARP, which log each call that they refuse, are left out",
        source: "/dev/kmsg from rdmatop's start on; with kernel.dmesg_restrict=1 it needs root or CAP_SYSLOG at the start",
        why: "The driver or the firmware could not do what a program or the network asked for.",
        fixed: "the kernel logs no more of them",
        trace: Traced::Yes,
    },
    Removal => Kind {
        name: "removal-waits", raise_s: 3, clear_s: 5,
        rule: "the removal of a device waits for a process that holds it",
        source: "the device is in sysfs and no more in RDMA netlink",
        why: "The command that removes it hangs until the process closes the device.",
        fixed: "the device is gone",
        trace: Traced::Yes,
    },
}

impl Kind {
    /// The window within which a symptom has to be there for [`Kind::raise_s`], ns.
    pub const fn window_ns(&self) -> u64 {
        self.raise_s * 2_500_000_000
    }
}

impl FindingId {
    /// The finding's stable name.
    pub const fn name(self) -> &'static str {
        self.kind().name
    }
}

impl Serialize for FindingId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
