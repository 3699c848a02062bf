//! Every check: its subject, when it warns or fails, and where the rule comes from. docs/doctor.md has the
//! same table.

use super::{
    checks::{
        acs, devices, distance, gids, gpu, irqs, jobs, limits, lossless, mtu, nodes, own, pcie, ports, tcp,
    },
    facts::Facts,
    line::{Group, Lines},
};

/// A check.
pub struct Check {
    /// Stable, for JSON and scripts.
    pub id: &'static str,
    /// What the check is about.
    pub group: Group,
    /// The rule that says when the check warns or fails.
    pub rule: fn() -> String,
    /// Where the rule comes from.
    pub source: &'static str,
    /// Judges.
    pub(super) run: fn(&Facts, &mut Lines),
}

/// A table of checks. Each has its id, its group and its function; its source; its rule, and the values in
/// the rule.
macro_rules! checks {
    ($($id:literal $group:ident $run:path, $source:literal, $rule:literal $(, $part:expr)*;)+) => {
        &[$(Check {
            id: $id,
            group: Group::$group,
            rule: || format!($rule $(, $part)*),
            source: $source,
            run: $run,
        },)+]
    };
}

/// All checks in the order of the page.
pub static CHECKS: &[Check] = checks! {
    "device.present" Devices devices::present,
        "drivers/infiniband/core/device.c",
        "fails without an RDMA device, and for one whose driver does not answer in time or whose files are missing in sysfs";
    "device.driver" Devices devices::driver,
        "PCI IDs in the drivers' tables",
        "fails when a NIC that can do RDMA (Mellanox/NVIDIA, EFA, Omni-Path) has no RDMA device; warns where there are other devices";
    "device.search" Devices devices::search,
        "ours",
        "says which searches for devices and processes did not end in time, or stopped at their limit";
    "device.removal" Devices devices::removal,
        "`ib_unregister_device`, drivers/infiniband/core/device.c",
        "fails while a device's removal waits for the processes that hold it";
    "device.verbs" Devices devices::verbs,
        "drivers/infiniband/core/uverbs_main.c",
        "warns when programs cannot open a device because it has no verbs device";
    "device.firmware" Devices devices::firmware,
        "ours",
        "warns when NICs of one driver and one board (without its name: of the same PCI IDs) have different firmware";
    "device.softroce" Devices devices::softroce,
        "Debian, Ubuntu, RHEL and Fedora packages",
        "only where there is no RDMA hardware: warns when this kernel has no rdma_rxe";
    "port.state" Ports ports::state,
        "NVIDIA NVSentinel, NIC health monitor; IBTA port states",
        "fails when a port that something says should be ACTIVE is not: its cable has a signal, queue pairs are on it, it has carried data or had a signal, the same port of more than two thirds of the other NICs of its kind, two or more, is ACTIVE, or no port is; warns when its network interface is switched off; any other is a spare";
    "port.rate" Ports ports::rate,
        "NVIDIA NVSentinel, NIC health monitor",
        "warns when a port is slower than another one of the same driver, board and link layer";
    "port.mtu" Ports mtu::mtu,
        "`iboe_get_mtu`, include/rdma/ib_addr.h; ours for the limits",
        "warns when packets carry less than {} bytes on an ACTIVE RoCE port of {} or more, less than {} on any, or less than on a sibling; where InfiniBand is ACTIVE, only of ports with queue pairs",
        mtu::FAST_MTU, super::words::rate(mtu::FAST), mtu::LEAST;
    "port.gid" Ports gids::gids,
        "pytorch #81628 and nccl #426: traffic on the wrong GID",
        "fails when an ACTIVE RoCE port has no GID of RoCE v2; warns when it has none of a routable address";
    "pcie.link" Pcie pcie::link,
        "sysfs `current_link_*` and `max_link_*`, Documentation/ABI/testing/sysfs-bus-pci",
        "warns when a NIC's PCIe link is below what the NIC can do, and carries less than the ACTIVE ports of its card or a sibling's is not below; says whether the slot could do more";
    "pcie.iommu" Pcie pcie::iommu,
        "Documentation/admin-guide/kernel-parameters.txt, `iommu.passthrough`; NCCL user guide, troubleshooting",
        "warns when an IOMMU translates a NIC's transfers, except in a virtual machine";
    "pcie.acs" Pcie acs::acs,
        "NCCL user guide, troubleshooting; nccl-tests #112, nccl #304",
        "with GPUs, except in a virtual machine: warns when a bridge above a NIC or GPU redirects traffic between them (ACS)";
    "pcie.irq" Pcie irqs::irqs,
        "Documentation/core-api/irq/irq-affinity.rst; ours for the number",
        "warns when a NIC's {} or more interrupts all go to one CPU, or all to CPUs of another NUMA node",
        irqs::VECTORS;
    "gpu.direct" Gpu gpu::direct,
        "NCCL user guide, `NCCL_DMABUF_ENABLE`: Linux 5.12 and the open NVIDIA module; `reg_user_mr_dmabuf` of mlx5 and efa",
        "warns when GPU memory cannot reach the NIC directly: neither nvidia_peermem (EFA: efa_nv_peermem) nor DMA-BUF";
    "gpu.distance" Gpu distance::distance,
        "NCCL user guide, `NCCL_NET_GDR_LEVEL` (PIX, PXB, PHB, SYS)",
        "warns when the nearest NIC of a GPU is on another NUMA node; says where nodes are not known";
    "lossless.pfc" Lossless lossless::pfc,
        "NVIDIA RoCE configuration guides; IEEE 802.1Qbb",
        "warns when ports of one kind and speed differ in PFC or in trust, or PFC is on and the port does not trust DSCP; of a bond each of its links";
    "lossless.ecn" Lossless lossless::ecn,
        "MLNX_EN documentation, `ecn/roce_np/enable`",
        "warns when a priority with PFC does not answer congestion marks (ECN)";
    "limit.devices" Limits nodes::nodes,
        "`ib_uverbs` device nodes; rdma-core",
        "fails when a device has no file in /dev/infiniband (a container: when none has), or its files are missing in sysfs, as the process sees it; warns when the file may not be opened";
    "limit.memlock" Limits limits::memlock,
        "rdma-core README; ours for the numbers",
        "warns when a process may lock less than {}, fails at {} or less (without CAP_IPC_LOCK)",
        super::words::bytes(limits::MEMLOCK_WARN), super::words::bytes(limits::MEMLOCK_FAIL);
    "limit.default" Limits limits::default,
        "systemd.exec(5), LimitMEMLOCK; containers inherit their runtime's limit",
        "with RDMA hardware: warns when this shell, a container runtime or a job manager hands on less than {}",
        super::words::bytes(limits::MEMLOCK_WARN);
    "limit.cgroup" Limits limits::cgroup,
        "Documentation/admin-guide/cgroup-v2.rst, RDMA; ours for the share",
        "fails when an RDMA limit of the process's cgroup is used up; warns at {} % of it",
        limits::CGROUP_WARN;
    "tcp.buffers" Tcp tcp::buffers,
        "defaults of the kernel, Documentation/networking/ip-sysctl.rst",
        "warns when TCP buffers may not grow to {} (receive) and {} (send), the kernel's defaults",
        super::words::bytes(tcp::RMEM), super::words::bytes(tcp::WMEM);
    "tcp.backlog" Tcp tcp::backlog,
        "NCCL bootstrap: all ranks connect to one; default since Linux 5.4",
        "warns when net.core.somaxconn is below {}",
        tcp::BACKLOG;
    "job.rdma" Jobs jobs::disabled,
        "NCCL, UCX and libfabric documentation",
        "fails when a process's settings turn RDMA off: NCCL_IB_DISABLE (with NCCL_NET=IBext NCCL_IBEXT_DISABLE), NCCL_NET, NVSHMEM_REMOTE_TRANSPORT; UCX_TLS and FI_PROVIDER where it has no queue pair, and no setting of NCCL, or NCCL uses that library";
    "job.devices" Jobs jobs::devices,
        "NCCL src/misc/utils.cc `parseStringList`; UCX and NVSHMEM documentation",
        "fails when NCCL_IB_HCA, UCX_NET_DEVICES or NVSHMEM_HCA_LIST name no device that the process finds in /sys, or that this machine has where its /sys is not known; warns when some are missing";
    "job.gid" Jobs jobs::gid,
        "NCCL src/transport/net_ib/connect.cc; pytorch #81628",
        "fails when NCCL_IB_GID_INDEX, UCX_IB_GID_INDEX or NVSHMEM_IB_GID_INDEX point to no GID of an ACTIVE RoCE port that the process finds; warns at RoCE v1 and link-local ones";
    "job.interface" Jobs jobs::interface,
        "NCCL src/misc/socket.cc; gloo",
        "fails when NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME name no network interface that the process has";
    "job.names" Jobs jobs::names,
        "NCCL sources (2026) and release notes since 2.4",
        "warns at a NCCL_* variable that NCCL no longer reads, or that is one or two letters off one that it reads";
    "job.sharers" Jobs jobs::sharers,
        "`ib_uverbs_close`, drivers/infiniband/core/uverbs_main.c: objects last as long as their file; kcmp(2)",
        "with `--pid`: names the processes that have its verbs files open too, after fork(2) or because a descriptor was passed";
    "job.hidden" Jobs jobs::hidden,
        "proc(5), PTRACE_MODE_READ",
        "says how many processes could not be looked at, and whose settings are not all known";
    "rdmatop.ebpf" Rdmatop own::ebpf,
        "capabilities(7), kernel_lockdown(7)",
        "warns when rdmatop's eBPF programs cannot run: BTF, kprobes, capabilities, lockdown, kernel.perf_event_paranoid";
    "rdmatop.processes" Rdmatop own::processes,
        "proc(5), hidepid; pid_namespaces(7)",
        "warns when processes are hidden from rdmatop although it is root";
};
