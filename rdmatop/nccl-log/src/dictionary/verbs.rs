//! What the transport IB prints about verbs, in NCCL and in plugins that are made from it: statuses of work
//! requests, events of devices, calls that failed.

use super::{
    Entry,
    Pattern::{Event, Status, Text},
    UCX,
};

/// Printed by all versions that were read, each in its own words.
const ALWAYS: &str = "NCCL 2.3 on, RCCL";
/// Since these versions the line has the text of errno; before them it does not say why.
const WITH_ERRNO: &str = "NCCL 2.14 on, RCCL of ROCm 5.5 on";
/// The same for memory. DMA-BUF came with them, too.
const WITH_ERRNO_OF_MR: &str = "NCCL 2.13 on, RCCL of ROCm 5.4 on";

/// In the order of the numbers of `enum ibv_wc_status` (rdma-core, libibverbs/verbs.h). Statuses of reliable
/// datagrams are left out, because they cannot occur.
pub(super) const COMPLETIONS: &[Entry] = messages! {
    "message-too-long" Fault means "a message was longer than the buffer posted for it (status 1, local length error)";
        next "the two ends disagree on a size: look for ranks that call another collective or another count, and for NCCL_ settings that differ \
            between ranks";
        in ALWAYS: Status(1, "IBV_WC_LOC_LEN_ERR");

    "bad-work-request" Fault means "the NIC could not carry out a request of its own side (status 2, local queue pair operation error)";
        next "look at `sudo dmesg` of that host, and at the firmware's and the driver's version";
        in ALWAYS: Status(2, "IBV_WC_LOC_QP_OP_ERR");

    "protection" Fault means "the NIC may not read or write that memory (status 4, local protection error)";
        next "with GPUDirect: nvidia_peermem or DMA-BUF and the driver's version; ACS and the IOMMU; a run without GPUDirect \
            (NCCL_NET_GDR_LEVEL=LOC) shows whether it is that";
        in ALWAYS: Status(4, "IBV_WC_LOC_PROT_ERR");
        in "UCX 1.4 on": Text(&[UCX, "Local protection"]);

    "flushed" Follows means "a request was dropped because its queue pair had already failed (status 5)";
        next "look at the first error of that queue pair, above this one or on the peer";
        in ALWAYS: Status(5, "IBV_WC_WR_FLUSH_ERR");

    "memory-window" Fault means "a memory window could not be bound (status 6)";
        next "NCCL uses none: look at the plugin that does";
        in ALWAYS: Status(6, "IBV_WC_MW_BIND_ERR");

    "bad-response" Echo means "the peer's NIC sent an answer that does not fit the request (status 7, bad response)";
        next "look at `sudo dmesg` and the firmware of both hosts";
        in ALWAYS: Status(7, "IBV_WC_BAD_RESP_ERR");

    "local-access" Fault means "what arrived could not be written to the memory named for it (status 8, local access error)";
        next "with GPUDirect: nvidia_peermem or DMA-BUF and the driver's version of this host; a buffer that was freed too early";
        in ALWAYS: Status(8, "IBV_WC_LOC_ACCESS_ERR");

    "remote-refused" Echo means "the peer's NIC refused the request as invalid (status 9, remote invalid request): its buffer is too small, or it \
        does not allow such a request";
        next "look at the peer's log at the same time; compare versions of NCCL and NCCL_ settings of both ends";
        in ALWAYS: Status(9, "IBV_WC_REM_INV_REQ_ERR");
        in "UCX 1.4 on": Text(&[UCX, "Invalid request"]);

    "remote-access" Echo means "the peer's NIC may not touch the memory named (status 10, remote access error)";
        next "look at the peer: a buffer that was freed, a process that ended, GPUDirect of its host (nvidia_peermem or DMA-BUF, ACS, IOMMU)";
        in ALWAYS: Status(10, "IBV_WC_REM_ACCESS_ERR");
        in "UCX 1.4 on": Text(&[UCX, "Remote access"]);

    "remote-operation" Echo means "the peer's NIC could not carry out the request (status 11, remote operation error)";
        next "look at the peer: its log at the same time, `sudo dmesg`, events of its NIC, its PCIe link";
        in ALWAYS: Status(11, "IBV_WC_REM_OP_ERR");
        in "UCX 1.16 on": Text(&[UCX, "Remote operation error"]);

    "no-answer" Echo means "the peer did not answer (status 12, retries exceeded): its process or host is gone, or packets are lost on the way";
        next "look for a rank that ended before; else at loss: retransmissions and drops of both NICs, PFC and ECN of the switch, the MTU, the GID \
            index; NCCL_IB_TIMEOUT only hides it";
        in ALWAYS: Status(12, "IBV_WC_RETRY_EXC_ERR");
        in "UCX 1.4 on": Text(&[UCX, "Transport retry count exceeded"]);

    "receiver-not-ready" Echo means "the receiver had no buffer posted for too long (status 13, RNR retries exceeded)";
        next "look at the peer's process: stopped, busy elsewhere, or hanging";
        in ALWAYS: Status(13, "IBV_WC_RNR_RETRY_EXC_ERR");
        in "UCX 1.4 on": Text(&[UCX, "Receive-no-ready retry count exceeded"]);

    "nic-fatal" Fault means "the NIC failed while it had the request (status 19, fatal error)";
        next "look at `sudo dmesg` of that host; the device must be reset";
        in ALWAYS: Status(19, "IBV_WC_FATAL_ERR");

    "response-timeout" Echo means "the peer's answer did not come in time (status 20)";
        next "look at the peer's host and at loss on the way";
        in ALWAYS: Status(20, "IBV_WC_RESP_TIMEOUT_ERR");

    "nic-error" Fault means "the NIC reported an error without a name (status 21)";
        next "the vendor error tells its maker more; look at `sudo dmesg` of that host";
        in ALWAYS: Status(21, "IBV_WC_GENERAL_ERR");
};

const QP_BROKE: &str = "look at the first failed request of that NIC, here and in the peer's log, and at `sudo dmesg` of both hosts";

/// Recognised by the texts of `ibv_event_type_str`. Before 2.20 the line names no device.
pub(super) const EVENTS: &[Entry] = messages! {
    "cq-broke" Fault means "a completion queue overflowed or broke";
        next "look at `sudo dmesg` of that host";
        in ALWAYS: Event("CQ error");

    "qp-broke" Fault means "a queue pair broke: the NIC could not read its own queue";
        next QP_BROKE;
        in ALWAYS: Event("local work queue catastrophic error");

    "qp-refused" Fault means "a queue pair broke: a peer sent a request that it does not allow, or that is too long";
        next QP_BROKE;
        in ALWAYS: Event("invalid request local work queue error");

    "qp-access" Fault means "a queue pair broke: a peer asked for memory that the NIC may not touch";
        next "GPUDirect of this host (nvidia_peermem or DMA-BUF, ACS, IOMMU), a buffer that was freed too early; and what NCCL_IB_HCA takes: not \
            every device of a host reaches the other hosts";
        in ALWAYS: Event("local access violation work queue error");

    "device-broke" Fault means "the NIC itself failed";
        next "look at `sudo dmesg` of that host; the device must be reset, and if it comes again, replaced";
        in ALWAYS: Event("local catastrophic error");

    "port-down" Fault means "the port went down";
        next "cable, transceiver and switch port of that NIC; `sudo dmesg` and `rdma link` of that host say whether it is up again";
        in ALWAYS: Event("port error");

    "srq-broke" Fault means "a shared receive queue broke";
        next "look at `sudo dmesg` of that host";
        in ALWAYS: Event("SRQ catastrophic error");

    "port-up" Note means "the port came up: it was down before";
        next "look for what took it down: cable, transceiver, switch port";
        in ALWAYS: Event("port active");

    "gid-changed" Note means "addresses of the NIC changed while it was in use";
        next "find out what reconfigures that interface (DHCP, NetworkManager, a bond); connections made before may break";
        in "NCCL 2.3 to 2.22, RCCL": Event("GID table change");
        in "NCCL 2.28 on, RCCL of ROCm 7.11 on": Text(&["NET/IB : ", " GID table changed"]);
        in "NCCL 2.31 on, RCCL of ROCm 10 on": Text(&["NET/IB: ", ": GID table changed on "]);
        in "NCCL 2.31 on, RCCL of ROCm 10 on": Text(&["NET/IB : ", " GID refreshed: idx "]);

    "lid-changed" Note means "the subnet manager gave the port another LID";
        next "look at the subnet manager's log: it restarted, or the fabric changed; connections made before may break";
        in ALWAYS: Event("LID change");

    "pkey-changed" Note means "the subnet manager changed the port's partitions";
        next "connections in a partition that was removed break: ask whoever runs the subnet manager";
        in ALWAYS: Event("P_Key change");

    "sm-changed" Note means "another subnet manager took over";
        next "nothing, if it came once; else ask whoever runs the subnet manager";
        in ALWAYS: Event("SM change");

    "sm-reregister" Note means "the subnet manager asked for a new registration, as after its restart";
        next "nothing, if it came once";
        in ALWAYS: Event("client reregistration");

    "qp-drained" Follows means "a queue pair ended its last request after an error";
        next "look at the first error of that NIC";
        in ALWAYS: Event("last WQE reached");
};

const MEMLOCK: &str = "`ulimit -l unlimited` for the job (docker: --ulimit memlock=-1; pod: capabilities.add IPC_LOCK; Slurm: LimitMEMLOCK of \
                       slurmd; unit: LimitMEMLOCK)";
const GIDS: &str = "compare the GID tables of both hosts (RoCE v2 with an IPv4 address on both) with NCCL_IB_GID_INDEX, which is better not set from \
                    2.21 on; ping the peer from the NIC's own interface";
const RAILS: &str = "ping the peer from the NIC's own interface; where each NIC of a host is in a network of its own, NCCL_CROSS_NIC=0 keeps NCCL \
                     from joining them";

/// Calls of libibverbs that failed; the line has the text of errno.
pub(super) const CALLS: &[Entry] = messages! {
    "memlock" Fault means "memory could not be pinned: the limit of locked memory is too small";
        next MEMLOCK;
        in WITH_ERRNO_OF_MR: Text(&["Call to ibv_reg_mr", "failed with error Cannot allocate memory"]);
        in WITH_ERRNO: Text(&["Call to ibv_create_cq failed with error Cannot allocate memory"]);

    "gpu-memory-unknown" Fault means "GPU memory cannot be registered (Bad address): no module tells the NIC where it is";
        next "load nvidia_peermem (`sudo modprobe nvidia_peermem`, until the next boot), or use DMA-BUF: the open kernel driver, Linux 5.12 or \
            later, and an rdma-core of 34 or later in the image";
        in WITH_ERRNO_OF_MR: Text(&["Call to ibv_reg_mr", "failed with error Bad address"]);

    "memory-refused" Fault means "the driver refused to register memory (Invalid argument): for GPU memory, nvidia_peermem or the NIC's driver does \
        not fit the GPU's driver";
        next "reload nvidia_peermem, built for the GPU driver that runs; `sudo dmesg` of that host says more";
        in WITH_ERRNO_OF_MR: Text(&["Call to ibv_reg_mr", "failed with error Invalid argument"]);

    "dmabuf-unsupported" Fault means "GPU memory cannot be registered by DMA-BUF: the NIC's driver or the kernel does not support it";
        next "Linux 5.12 or later with a driver that has DMA-BUF (mlx5, bnxt_re, efa, irdma), and the open GPU kernel driver; or nvidia_peermem \
            instead, with NCCL_DMABUF_ENABLE=0";
        in WITH_ERRNO_OF_MR: Text(&["Call to ibv_reg_dmabuf_mr", "not supported"]);

    "dmabuf-refused" Fault means "GPU memory could not be registered by DMA-BUF";
        next "by the error: Bad address or Invalid argument, the GPU's driver does not export that memory to this NIC; Cannot allocate memory, its \
            BAR1 or the NIC's table is full; `sudo dmesg` of that host says more";
        in WITH_ERRNO_OF_MR: Text(&["Call to ibv_reg_dmabuf_mr"]);

    "memlock" Fault means "a queue pair could not be made: the limit of locked memory is too small, or the device has no more";
        next MEMLOCK;
        in WITH_ERRNO: Text(&["Call to ibv_create_qp failed with error Cannot allocate memory"]);
        in "RCCL of ROCm 7.12 on": Text(&["Call to ionic_dv_create_qp_ex failed with error Cannot allocate memory"]);

    "qp-refused-by-driver" Fault means "the device cannot make such a queue pair";
        next "the size of its queues (NCCL_IB_QPS_PER_CONNECTION, the plugin's settings) is beyond what `ibv_devinfo -v` says";
        in WITH_ERRNO: Text(&["Call to ibv_create_qp failed with error Invalid argument"]);
        in "RCCL of ROCm 7.12 on": Text(&["Call to ionic_dv_create_qp_ex failed with error Invalid argument"]);

    "qp-refused-by-driver" Fault means "the device cannot make the kind of queue pair that RCCL asks AMD's NICs for";
        next "firmware or driver of the NIC lacks the feature: update both";
        in "RCCL of ROCm 7.12 on": Text(&["Call to ionic_dv_create_qp_ex failed with error Operation not supported"]);

    "cq-failed" Fault means "a completion queue could not be made, and the message does not say why: mostly the limit of locked memory";
        next MEMLOCK;
        in "NCCL 2.3 to 2.13, RCCL to ROCm 5.4, older plugins of HPC-X":
            Text(&["Call to ibv_create_cq failed", "$"]);

    "qp-failed" Fault means "a queue pair could not be made, and the message does not say why: mostly the limit of locked memory";
        next MEMLOCK;
        in "NCCL 2.3 to 2.13, RCCL to ROCm 5.4, older plugins of HPC-X":
            Text(&["Call to ibv_create_qp failed", "$"]);

    "mr-failed" Fault means "memory could not be registered, and the message does not say why: the limit of locked memory, or GPU memory without \
        nvidia_peermem";
        next MEMLOCK;
        in "NCCL 2.3 to 2.12, RCCL to ROCm 5.3, HPC-X's plugin":
            Text(&["Call to ibv_reg_mr", " failed", "$"]);

    "pd-failed" Fault means "the device gives no protection domain, the first thing that a process needs of it";
        next "look at `sudo dmesg` of that host; in a container, whether its /dev/infiniband is that of this device";
        in ALWAYS: Text(&["Call to ibv_alloc_pd failed"]);

    "events-failed" Follows means "events of a device cannot be read any more";
        next "look at the first error of that device, and at `sudo dmesg` of that host";
        in ALWAYS: Text(&["Call to ibv_get_async_event failed"]);

    "device-unopened" Choice means "the device cannot be opened (/dev/infiniband missing in the container, or no rights)";
        next "in a container, pass the devices in (docker: --device=/dev/infiniband; Kubernetes: the NIC's device plugin); else the rights of \
            /dev/infiniband/uverbs*, and whether the provider's library (ibverbs-providers) is installed";
        in ALWAYS: Text(&["Call to ibv_open_device failed"]);
        in "NCCL 2.3 on, RCCL": Text(&["NET/IB : Unable to open device "]);

    "address-timeout" Fault means "a queue pair could not be connected: nobody answers for the peer's address (ARP or neighbour discovery)";
        next RAILS;
        in ALWAYS: Text(&["Call to ibv_modify_qp failed with ", "Connection timed out"]);

    "address-unreachable" Fault means "a queue pair could not be connected: the peer's GID cannot be reached from this GID";
        next GIDS;
        in ALWAYS: Text(&["Call to ibv_modify_qp failed with ", "unreachable"]);

    "address-no-route" Fault means "a queue pair could not be connected: there is no route to the peer's address";
        next RAILS;
        in ALWAYS: Text(&["Call to ibv_modify_qp failed with ", "No route to host"]);

    "address-no-device" Fault means "a queue pair could not be connected: the interface of its GID is gone, or in another network namespace";
        next GIDS;
        in ALWAYS: Text(&["Call to ibv_modify_qp failed with ", "No such device"]);

    "connect-refused" Fault means "a queue pair could not be connected: the driver refused its attributes, mostly the GID or the MTU";
        next GIDS;
        in ALWAYS: Text(&["Call to ibv_modify_qp failed with ", "Invalid argument"]);

    "gid-missing" Fault means "a queue pair could not be connected: the port has no address (GID) at that index";
        next GIDS;
        in ALWAYS: Text(&["Call to ibv_modify_qp failed with ", "No data available"]);

    "connect-failed" Fault means "a queue pair could not be connected";
        next GIDS;
        in ALWAYS: Text(&["Call to ibv_modify_qp failed"]);

    "gid-missing" Fault means "the port has no GID of that index";
        next "`show_gids` or `rdma link`; NCCL_IB_GID_INDEX is better not set from 2.21 on";
        in ALWAYS: Text(&["Call to ibv_query_gid failed"]);

    "device-unanswering" Choice means "the device does not answer";
        next "look at `sudo dmesg` of that host";
        in ALWAYS: Text(&["Call to ibv_query_device failed"]);
        in "NCCL 2.3 on, RCCL": Text(&["NET/IB : Unable to query "]);

    "post-failed" Echo means "a request to send or to receive could not be posted";
        next "look at the first error of that queue pair: most often it had failed before";
        in ALWAYS: Text(&["ibv_post_", "() failed with error"]);

    "poll-failed" Echo means "a completion queue cannot be read";
        next "look at `sudo dmesg` of that host: the device may have been reset";
        in ALWAYS: Text(&["Call to ibv_poll_cq() returned"]);
};
