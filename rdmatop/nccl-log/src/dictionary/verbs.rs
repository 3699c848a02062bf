//! What the transport IB prints about verbs, in NCCL and in plugins that are made from it: statuses of work
//! requests, events of devices, calls that failed.

use super::{
    Entry,
    Kind::{self, Choice, Fault, Follows, Note},
    On::{Event, Status},
    entry,
};

/// Printed by all versions that were read, each in its own words.
const ALWAYS: &str = "NCCL 2.3 on, RCCL";
/// Since these versions the line has the text of errno; before them it does not say why.
const WITH_ERRNO: &str = "NCCL 2.14 on, RCCL of ROCm 5.5 on";
/// The same for memory. DMA-BUF came with them, too.
const WITH_ERRNO_OF_MR: &str = "NCCL 2.13 on, RCCL of ROCm 5.4 on";

const fn completion(
    id: &'static str,
    number: u32,
    name: &'static str,
    means: &'static str,
    next: &'static str,
    example: &'static str,
) -> Entry {
    let kind = if number == 5 { Follows } else { Fault };
    Entry {
        id,
        versions: ALWAYS,
        on: Status(number, name),
        kind,
        means,
        next,
        example,
    }
}

/// In the order of the numbers of `enum ibv_wc_status` (rdma-core, libibverbs/verbs.h). Statuses of reliable
/// datagrams are left out, because they cannot occur.
pub(super) const COMPLETIONS: &[Entry] = &[
    completion(
        "message-too-long",
        1,
        "IBV_WC_LOC_LEN_ERR",
        "a message was longer than the buffer posted for it (status 1, local length error)",
        "the two ends disagree on a size: look for ranks that call another collective or another count, and for NCCL_ settings that \
         differ between ranks",
        "NET/IB : Got completion with error 1, opcode 129, len 0, vendor err 105",
    ),
    completion(
        "bad-work-request",
        2,
        "IBV_WC_LOC_QP_OP_ERR",
        "the NIC could not carry out a request of its own side (status 2, local queue pair operation error)",
        "look at `dmesg` of that host, and at the firmware's and the driver's version",
        "NET/IB : Got completion from peer 192.0.2.2<4711> with error 2, opcode 0, len 0, vendor err 105",
    ),
    completion(
        "protection",
        4,
        "IBV_WC_LOC_PROT_ERR",
        "the NIC may not read or write that memory (status 4, local protection error)",
        "with GPUDirect: nvidia_peermem or DMA-BUF and the driver's version; ACS and the IOMMU; a run without GPUDirect \
         (NCCL_NET_GDR_LEVEL=LOC) shows whether it is that",
        "NET/IB : Got completion with error 4, opcode 1, len 0, vendor err 81",
    ),
    completion(
        "flushed",
        5,
        "IBV_WC_WR_FLUSH_ERR",
        "a request was dropped because its queue pair had already failed (status 5)",
        "look at the first error of that queue pair, above this one or on the peer",
        "NET/IB : Got completion from peer 192.0.2.2<4711> with status=5 opcode=0 len=0 vendor err 249 (Recv)",
    ),
    completion(
        "memory-window",
        6,
        "IBV_WC_MW_BIND_ERR",
        "a memory window could not be bound (status 6)",
        "NCCL uses none: look at the plugin that does",
        "NET/IB : Got completion with error 6, opcode 5, len 0, vendor err 0",
    ),
    completion(
        "bad-response",
        7,
        "IBV_WC_BAD_RESP_ERR",
        "the peer's NIC sent an answer that does not fit the request (status 7, bad response)",
        "look at `dmesg` and the firmware of both hosts",
        "NET/IB : Got completion with error 7, opcode 2, len 0, vendor err 0",
    ),
    completion(
        "local-access",
        8,
        "IBV_WC_LOC_ACCESS_ERR",
        "what arrived could not be written to the memory named for it (status 8, local access error)",
        "with GPUDirect: nvidia_peermem or DMA-BUF and the driver's version of this host; a buffer that was freed too early",
        "NET/IB : Got completion from peer 192.0.2.2<4711> with status=8 opcode=129 len=0 vendor err 82 (Recv) hca mlx5_1",
    ),
    completion(
        "remote-refused",
        9,
        "IBV_WC_REM_INV_REQ_ERR",
        "the peer's NIC refused the request as invalid (status 9, remote invalid request): its buffer is too small, or it does not \
         allow such a request",
        "look at the peer's log at the same time; compare versions of NCCL and NCCL_ settings of both ends",
        "NET/IB : Got completion from peer 192.0.2.2<4711> with status=9 opcode=0 len=0 vendor err 138 (Send)",
    ),
    completion(
        "remote-access",
        10,
        "IBV_WC_REM_ACCESS_ERR",
        "the peer's NIC may not touch the memory named (status 10, remote access error)",
        "look at the peer: a buffer that was freed, a process that ended, GPUDirect of its host (nvidia_peermem or DMA-BUF, ACS, \
         IOMMU)",
        "NET/IB : Got completion from peer 192.0.2.2<4711> with status=10 opcode=0 len=0 vendor err 136 (Send)",
    ),
    completion(
        "remote-operation",
        11,
        "IBV_WC_REM_OP_ERR",
        "the peer's NIC could not carry out the request (status 11, remote operation error)",
        "look at the peer: its log at the same time, `dmesg`, events of its NIC, its PCIe link",
        "NET/IB : Got completion from peer 192.0.2.2<4711> with status=11 opcode=0 len=0 vendor err 137 (Send)",
    ),
    completion(
        "no-answer",
        12,
        "IBV_WC_RETRY_EXC_ERR",
        "the peer did not answer (status 12, retries exceeded): its process or host is gone, or packets are lost on the way",
        "look for a rank that ended before; else at loss: retransmissions and drops of both NICs, PFC and ECN of the switch, \
         the MTU, the GID index; NCCL_IB_TIMEOUT only hides it",
        "NET/IB: Got completion from peer 192.0.2.2<4711> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) \
         vendor_err=129 hca mlx5_3",
    ),
    completion(
        "receiver-not-ready",
        13,
        "IBV_WC_RNR_RETRY_EXC_ERR",
        "the receiver had no buffer posted for too long (status 13, RNR retries exceeded)",
        "look at the peer's process: stopped, busy elsewhere, or hanging",
        "NET/IB : Got completion from peer 192.0.2.2<4711> with status=13 opcode=0 len=0 vendor err 135 (Send)",
    ),
    completion(
        "nic-fatal",
        19,
        "IBV_WC_FATAL_ERR",
        "the NIC failed while it had the request (status 19, fatal error)",
        "look at `dmesg` of that host; the device must be reset",
        "NET/IB : Got completion with error 19, opcode 0, len 0, vendor err 0",
    ),
    completion(
        "response-timeout",
        20,
        "IBV_WC_RESP_TIMEOUT_ERR",
        "the peer's answer did not come in time (status 20)",
        "look at the peer's host and at loss on the way",
        "NET/IB : Got completion with error 20, opcode 0, len 0, vendor err 0",
    ),
    completion(
        "nic-error",
        21,
        "IBV_WC_GENERAL_ERR",
        "the NIC reported an error without a name (status 21)",
        "the vendor error tells its maker more; look at `dmesg` of that host",
        "NET/IB : Got completion with error 21, opcode 0, len 0, vendor err 244",
    ),
];

const fn async_event(
    id: &'static str,
    name: &'static str,
    kind: Kind,
    means: &'static str,
    next: &'static str,
    example: &'static str,
) -> Entry {
    // Since 2.23 NCCL does not name this event, and since 2.28 it says so in words of its own (network.rs).
    let is_of_gids = matches!(name.as_bytes(), [b'G', b'I', b'D', ..]);
    Entry {
        id,
        versions: if is_of_gids {
            "NCCL 2.3 to 2.22, RCCL"
        } else {
            ALWAYS
        },
        on: Event(name),
        kind,
        means,
        next,
        example,
    }
}

const QP_BROKE: &str =
    "look at the first failed request of that NIC, here and in the peer's log, and at `dmesg` of both hosts";

/// Recognised by the texts of `ibv_event_type_str`. Before 2.20 the line names no device.
pub(super) const EVENTS: &[Entry] = &[
    async_event(
        "cq-broke",
        "CQ error",
        Fault,
        "a completion queue overflowed or broke",
        "look at `dmesg` of that host",
        "NET/IB : mlx5_0:1 async fatal event on CQ (0x7f): CQ error",
    ),
    async_event(
        "qp-broke",
        "local work queue catastrophic error",
        Fault,
        "a queue pair broke: the NIC could not read its own queue",
        QP_BROKE,
        "NET/IB : mlx5_0:1 async fatal event on QP (0x7f): local work queue catastrophic error",
    ),
    async_event(
        "qp-refused",
        "invalid request local work queue error",
        Fault,
        "a queue pair broke: a peer sent a request that it does not allow, or that is too long",
        QP_BROKE,
        "NET/IB : mlx5_3:1 async fatal event on QP (0x7f): invalid request local work queue error",
    ),
    async_event(
        "qp-access",
        "local access violation work queue error",
        Fault,
        "a queue pair broke: a peer asked for memory that the NIC may not touch",
        "GPUDirect of this host (nvidia_peermem or DMA-BUF, ACS, IOMMU), a buffer that was freed too early; and what NCCL_IB_HCA \
         takes: not every device of a host reaches the other hosts",
        "NET/IB : mlx5_5:1 async fatal event on QP (0x7f): local access violation work queue error",
    ),
    async_event(
        "device-broke",
        "local catastrophic error",
        Fault,
        "the NIC itself failed",
        "look at `dmesg` of that host; the device must be reset, and if it comes again, replaced",
        "NET/IB : mlx5_0:1 Got async event : local catastrophic error",
    ),
    async_event(
        "port-down",
        "port error",
        Fault,
        "the port went down",
        "cable, transceiver and switch port of that NIC; `dmesg` and `rdma link` of that host say whether it is up again",
        "NET/IB : Got async event : port error",
    ),
    async_event(
        "srq-broke",
        "SRQ catastrophic error",
        Fault,
        "a shared receive queue broke",
        "look at `dmesg` of that host",
        "NET/IB : mlx5_0:1 async fatal event on SRQ, unused for now (0x7f): SRQ catastrophic error",
    ),
    async_event(
        "port-up",
        "port active",
        Note,
        "the port came up: it was down before",
        "look for what took it down: cable, transceiver, switch port",
        "NET/IB : mlx5_0:1 Got async event : port active",
    ),
    async_event(
        "gid-changed",
        "GID table change",
        Note,
        "addresses of the NIC changed while it was in use",
        "find out what reconfigures that interface (DHCP, NetworkManager, a bond); connections made before may break",
        "NET/IB : mlx5_0:1 Got async event : GID table change",
    ),
    async_event(
        "lid-changed",
        "LID change",
        Note,
        "the subnet manager gave the port another LID",
        "look at the subnet manager's log: it restarted, or the fabric changed; connections made before may break",
        "NET/IB : mlx5_0:1 Got non-fatal async event: LID change(11)",
    ),
    async_event(
        "pkey-changed",
        "P_Key change",
        Note,
        "the subnet manager changed the port's partitions",
        "connections in a partition that was removed break: ask whoever runs the subnet manager",
        "NET/IB : mlx5_0:1 Got async event : P_Key change",
    ),
    async_event(
        "sm-changed",
        "SM change",
        Note,
        "another subnet manager took over",
        "nothing, if it came once; else ask whoever runs the subnet manager",
        "NET/IB : mlx5_0:1 Got async event : SM change",
    ),
    async_event(
        "sm-reregister",
        "client reregistration",
        Note,
        "the subnet manager asked for a new registration, as after its restart",
        "nothing, if it came once",
        "NET/IB : mlx5_0:1 Got async event : client reregistration",
    ),
    async_event(
        "qp-drained",
        "last WQE reached",
        Follows,
        "a queue pair ended its last request after an error",
        "look at the first error of that NIC",
        "NET/IB : mlx5_0:1 Got async event : last WQE reached",
    ),
];

const fn call(
    id: &'static str,
    versions: &'static str,
    words: &'static [&'static str],
    kind: Kind,
    means: &'static str,
    next: &'static str,
    example: &'static str,
) -> Entry {
    entry(id, versions, words, kind, means, next, example)
}

const MEMLOCK: &str = "`ulimit -l unlimited` for the job (docker: --ulimit memlock=-1; pod: capabilities.add IPC_LOCK; Slurm: \
                       LimitMEMLOCK of slurmd; unit: LimitMEMLOCK)";
const GIDS: &str = "compare the GID tables of both hosts (RoCE v2 with an IPv4 address on both) with NCCL_IB_GID_INDEX, which is better \
                    not set from 2.21 on; ping the peer from the NIC's own interface";
const RAILS: &str = "ping the peer from the NIC's own interface; where each NIC of a host is in a network of its own, NCCL_CROSS_NIC=0 \
                     keeps NCCL from joining them";

/// Calls of libibverbs that failed; the line has the text of errno.
pub(super) const CALLS: &[Entry] = &[
    call(
        "memlock",
        WITH_ERRNO_OF_MR,
        &["Call to ibv_reg_mr", "failed with error Cannot allocate memory"],
        Fault,
        "memory could not be pinned: the limit of locked memory is too small",
        MEMLOCK,
        "Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory errno 12",
    ),
    call(
        "gpu-memory-unknown",
        WITH_ERRNO_OF_MR,
        &["Call to ibv_reg_mr", "failed with error Bad address"],
        Fault,
        "GPU memory cannot be registered (Bad address): no module tells the NIC where it is",
        "load nvidia_peermem (`modprobe nvidia_peermem`), or use DMA-BUF: the open kernel driver, Linux 5.12 or later, and an \
         rdma-core of 34 or later in the image",
        "Call to ibv_reg_mr_iova2 failed with error Bad address",
    ),
    call(
        "memory-refused",
        WITH_ERRNO_OF_MR,
        &["Call to ibv_reg_mr", "failed with error Invalid argument"],
        Fault,
        "the driver refused to register memory (Invalid argument): for GPU memory, nvidia_peermem or the NIC's driver does not fit the \
         GPU's driver",
        "reload nvidia_peermem, built for the GPU driver that runs; `dmesg` of that host says more",
        "Call to ibv_reg_mr failed with error Invalid argument",
    ),
    call(
        "dmabuf-unsupported",
        WITH_ERRNO_OF_MR,
        &["Call to ibv_reg_dmabuf_mr", "not supported"],
        Fault,
        "GPU memory cannot be registered by DMA-BUF: the NIC's driver or the kernel does not support it",
        "Linux 5.12 or later with a driver that has DMA-BUF (mlx5, bnxt_re, efa, irdma), and the open GPU kernel driver; or \
         nvidia_peermem instead, with NCCL_DMABUF_ENABLE=0",
        "Call to ibv_reg_dmabuf_mr failed with error Operation not supported",
    ),
    call(
        "dmabuf-refused",
        WITH_ERRNO_OF_MR,
        &["Call to ibv_reg_dmabuf_mr"],
        Fault,
        "GPU memory could not be registered by DMA-BUF",
        "by the error: Bad address or Invalid argument, the GPU's driver does not export that memory to this NIC; Cannot allocate \
         memory, its BAR1 or the NIC's table is full; `dmesg` of that host says more",
        "Call to ibv_reg_dmabuf_mr failed with error Invalid argument errno 22",
    ),
    call(
        "memlock",
        WITH_ERRNO,
        &["Call to ibv_create_cq failed with error Cannot allocate memory"],
        Fault,
        "a completion queue could not be made: the limit of locked memory is too small",
        MEMLOCK,
        "Call to ibv_create_cq failed with error Cannot allocate memory",
    ),
    call(
        "memlock",
        WITH_ERRNO,
        &["Call to ibv_create_qp failed with error Cannot allocate memory"],
        Fault,
        "a queue pair could not be made: the limit of locked memory is too small, or the device has no more",
        MEMLOCK,
        "Call to ibv_create_qp failed with error Cannot allocate memory",
    ),
    call(
        "qp-refused-by-driver",
        WITH_ERRNO,
        &["Call to ibv_create_qp failed with error Invalid argument"],
        Fault,
        "the device cannot make such a queue pair",
        "the size of its queues (NCCL_IB_QPS_PER_CONNECTION, the plugin's settings) is beyond what `ibv_devinfo -v` says",
        "Call to ibv_create_qp failed with error Invalid argument",
    ),
    call(
        "cq-failed",
        "NCCL 2.3 to 2.13, RCCL to ROCm 5.4, older plugins of HPC-X",
        &["Call to ibv_create_cq failed", "$"],
        Fault,
        "a completion queue could not be made, and the message does not say why: mostly the limit of locked memory",
        MEMLOCK,
        "Call to ibv_create_cq failed",
    ),
    call(
        "qp-failed",
        "NCCL 2.3 to 2.13, RCCL to ROCm 5.4, older plugins of HPC-X",
        &["Call to ibv_create_qp failed", "$"],
        Fault,
        "a queue pair could not be made, and the message does not say why: mostly the limit of locked memory",
        MEMLOCK,
        "Call to ibv_create_qp failed",
    ),
    call(
        "mr-failed",
        "NCCL 2.3 to 2.12, RCCL to ROCm 5.3, HPC-X's plugin",
        &["Call to ibv_reg_mr", " failed", "$"],
        Fault,
        "memory could not be registered, and the message does not say why: the limit of locked memory, or GPU memory without nvidia_peermem",
        MEMLOCK,
        "Call to ibv_reg_mr failed",
    ),
    call(
        "pd-failed",
        ALWAYS,
        &["Call to ibv_alloc_pd failed"],
        Fault,
        "the device gives no protection domain, the first thing that a process needs of it",
        "look at `dmesg` of that host; in a container, whether its /dev/infiniband is that of this device",
        "Call to ibv_alloc_pd failed",
    ),
    call(
        "events-failed",
        ALWAYS,
        &["Call to ibv_get_async_event failed"],
        Follows,
        "events of a device cannot be read any more",
        "look at the first error of that device, and at `dmesg` of that host",
        "Call to ibv_get_async_event failed",
    ),
    call(
        "device-unopened",
        ALWAYS,
        &["Call to ibv_open_device failed"],
        Choice,
        "an RDMA device cannot be opened",
        "in a container, pass the devices in (docker: --device=/dev/infiniband; Kubernetes: the NIC's device plugin); else the rights \
         of /dev/infiniband/uverbs*, and whether the provider's library (ibverbs-providers) is installed",
        "Call to ibv_open_device failed",
    ),
    call(
        "address-timeout",
        ALWAYS,
        &["Call to ibv_modify_qp failed with ", "Connection timed out"],
        Fault,
        "a queue pair could not be connected: nobody answers for the peer's address (ARP or neighbour discovery)",
        RAILS,
        "Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1, curr state INIT, next state RTR",
    ),
    call(
        "address-unreachable",
        ALWAYS,
        &["Call to ibv_modify_qp failed with ", "unreachable"],
        Fault,
        "a queue pair could not be connected: the peer's GID cannot be reached from this GID",
        GIDS,
        "Call to ibv_modify_qp failed with error Network is unreachable",
    ),
    call(
        "address-no-route",
        ALWAYS,
        &["Call to ibv_modify_qp failed with ", "No route to host"],
        Fault,
        "a queue pair could not be connected: there is no route to the peer's address",
        RAILS,
        "Call to ibv_modify_qp failed with error No route to host",
    ),
    call(
        "address-no-device",
        ALWAYS,
        &["Call to ibv_modify_qp failed with ", "No such device"],
        Fault,
        "a queue pair could not be connected: the interface of its GID is gone, or in another network namespace",
        GIDS,
        "Call to ibv_modify_qp failed with 19 No such device, on dev mlx5_2:1, curr state INIT, next state RTR",
    ),
    call(
        "connect-refused",
        ALWAYS,
        &["Call to ibv_modify_qp failed with ", "Invalid argument"],
        Fault,
        "a queue pair could not be connected: the driver refused its attributes, mostly the GID or the MTU",
        GIDS,
        "Call to ibv_modify_qp failed with error Invalid argument",
    ),
    call(
        "connect-failed",
        ALWAYS,
        &["Call to ibv_modify_qp failed"],
        Fault,
        "a queue pair could not be connected",
        GIDS,
        "Call to ibv_modify_qp failed with error Remote I/O error",
    ),
    call(
        "gid-missing",
        ALWAYS,
        &["Call to ibv_query_gid failed"],
        Fault,
        "the port has no GID of that index",
        "`show_gids` or `rdma link`; NCCL_IB_GID_INDEX is better not set from 2.21 on",
        "Call to ibv_query_gid failed with error Invalid argument",
    ),
    call(
        "device-unanswering",
        ALWAYS,
        &["Call to ibv_query_device failed"],
        Choice,
        "an RDMA device does not answer",
        "look at `dmesg` of that host",
        "Call to ibv_query_device failed with error Input/output error",
    ),
    call(
        "post-failed",
        ALWAYS,
        &["ibv_post_send() failed with error"],
        Fault,
        "a request to send could not be posted",
        "look at the first error of that queue pair: most often it had failed before",
        "ibv_post_send() failed with error Cannot allocate memory, Bad WR 0x7f, First WR 0x7f",
    ),
    call(
        "post-failed",
        ALWAYS,
        &["ibv_post_recv() failed with error"],
        Fault,
        "a request to receive could not be posted",
        "look at the first error of that queue pair: most often it had failed before",
        "ibv_post_recv() failed with error Invalid argument",
    ),
    call(
        "poll-failed",
        ALWAYS,
        &["Call to ibv_poll_cq() returned"],
        Fault,
        "a completion queue cannot be read",
        "look at `dmesg` of that host: the device may have been reset",
        "Call to ibv_poll_cq() returned -2",
    ),
];
