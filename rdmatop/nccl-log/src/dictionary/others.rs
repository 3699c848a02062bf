//! What libraries beside NCCL print of the same network: UCX, NVSHMEM, libfabric's provider of EFA, Slurm's
//! PMIx, by which the processes of a step meet, MPICH over libfabric, Gloo, NIXL and JAX. UCX was read in its
//! tags from 1.4 to 1.19, libfabric from 1.9 to 2.3, NIXL from 0.1 to 1.4, NVSHMEM in 3.4.5; older NVSHMEM,
//! Slurm, MPICH, Gloo and JAX are of published logs.
//!
//! These lines have no head of NCCL's. [`super::super::exception`] finds where a message begins.

use super::{Entry, Pattern::Text};

const NVSHMEM_PATH: &str = "NVSHMEM_IB_GID_INDEX and NVSHMEM_HCA_LIST (or NVSHMEM_HCA_PE_MAPPING); on a fabric of rails NVSHMEM connects NICs of all \
                            rails with one another; NCCL's own variables do not count there";

pub(super) const ENTRIES: &[Entry] = messages! {
    "nvshmem-connect" Fault means "NVSHMEM could not connect a queue pair: nobody answers for the peer's address (ARP or neighbour discovery)";
        next NVSHMEM_PATH;
        in "NVSHMEM 3.2 on": Text(&["non-zero status: 110 ", "ibv_modify_qp failed"]);

    "nvshmem-connect" Fault means "NVSHMEM could not connect a queue pair: the peer's GID cannot be reached from this GID";
        next NVSHMEM_PATH;
        in "NVSHMEM 3.2 on": Text(&["non-zero status: 101 ", "ibv_modify_qp failed"]);

    "nvshmem-connect" Fault means "NVSHMEM could not connect a queue pair: the driver refused its attributes, mostly the GID or the MTU";
        next NVSHMEM_PATH;
        in "NVSHMEM 3.2 on": Text(&["non-zero status: 22 ", "ibv_modify_qp failed"]);

    "nvshmem-connect" Fault means "NVSHMEM could not connect a queue pair: its call of ibv_modify_qp failed with the number behind `status`";
        next NVSHMEM_PATH;
        in "NVSHMEM 3.2 on": Text(&["non-zero status: ", "ibv_modify_qp failed"]);

    "nvshmem-address" Fault means "NVSHMEM could not make an address handle: the NIC has no way from this GID to the peer's";
        next NVSHMEM_PATH;
        in "NVSHMEM 3.2 on": Text(&["NULL value Unable to create ah"]);

    "nvshmem-memory" Fault means "NVSHMEM could not register memory with the NIC";
        next "`ulimit -l unlimited` for the job; for GPU memory nvidia_peermem or DMA-BUF (the open GPU driver)";
        in "NVSHMEM 3.2 on": Text(&["NULL value mem registration failed"]);

    "nvshmem-ibgda" Follows means "NVSHMEM's transport IBGDA, by which GPUs start their own transfers, did not start; programs that need it \
        (DeepEP's low latency) fail";
        next "the lines before it: NICs of mlx5 alone can; before NVSHMEM 3.4.5 the GPU driver needs NVreg_EnableStreamMemOPs=1 and \
            NVreg_RegistryDwords=\"PeerMappingOverride=1;\", or NVSHMEM gdrcopy";
        in "NVSHMEM 3.2 on": Text(&["init failed for transport: IBGDA"]);

    "nvshmem-not-mlx5" Note means "NVSHMEM does not use an RDMA device for IBGDA, because its driver is not mlx5";
        next "nothing, where other devices are left; else another transport of NVSHMEM (IBRC, UCX, libfabric)";
        in "NVSHMEM 3.2 on": Text(&["WARN: device ", " is not enumerated as an mlx5 device"]);

    "nvshmem-peers" Follows means "NVSHMEM could not connect its processes with one another";
        next "the first error before it, here or on another host";
        in "NVSHMEM 3.2 on": Text(&["non-zero status: ", "ep_connect failed"]);
        in "NVSHMEM 3.2 on": Text(&["non-zero status: ", "connect EPS failed"]);
        in "NVSHMEM 3.2 on": Text(&["non-zero status: ", "nvshmem setup connections failed"]);

    "ucx-address" Fault means "UCX could not make an address handle: nobody answers for the peer's address (ARP or neighbour discovery), or the NIC \
        has no way from this GID to it";
        next "ping the peer from the NIC's own interface; UCX_NET_DEVICES with the NICs that reach it, UCX_IB_GID_INDEX, where it is set";
        in "UCX 1.4 on": Text(&["UCX  ERROR ", "ibv_create_ah(", " failed: "]);

    "memlock" Fault means "UCX could not register memory: the limit of locked memory is too small";
        next "`ulimit -l unlimited` for the job (docker: --ulimit memlock=-1; Slurm: LimitMEMLOCK of slurmd)";
        in "UCX 1.6 on": Text(&["UCX  ERROR ", "Please set max locked memory"]);

    "ofi-memory" Fault means "libfabric could not register memory: the limit of locked memory, or the NIC's number of regions, is reached";
        next "`ulimit -l unlimited` for the job (docker: --ulimit memlock=-1; Slurm: LimitMEMLOCK of slurmd); else how many regions its processes \
            have (`rdma resource show`)";
        in "libfabric 1.9 on": Text(&["<warn> Unable to register MR", "Cannot allocate memory"]);
        in "aws-ofi-nccl 1.0 on": Text(&["NET/OFI Unable to register memory", "Error: Cannot allocate memory"]);

    "ofi-peer" Echo means "the peer's endpoint of EFA is not there: its process ended or began anew";
        next "of all ranks' logs, the one that ends first; `sudo dmesg` of its host (out of memory), the memory limit of its container";
        in "aws-ofi-nccl 1.3 on, with libfabric to 1.21": Text(&["NET/OFI ", "completed with error", "Invalid receiver queue pair number"]);
        in "aws-ofi-nccl 1.3 on, with libfabric 1.22 on": Text(&["NET/OFI ", "completed with error", "Bad queue pair (QP) number"]);
        in "libfabric 1.16 to 1.21": Text(&["<warn> err: ", "message: Invalid receiver queue pair number"]);
        in "libfabric 1.22 on": Text(&["<warn> err: ", "message: Bad queue pair (QP) number"]);

    "ofi-peer" Echo means "the peer's memory that a transfer of EFA names is not registered, or no longer: it gave the transfer up, or ended";
        next "of all ranks' logs, the one that ends first; it also comes where a program frees a buffer too early";
        in "aws-ofi-nccl 1.3 on, with libfabric to 1.20": Text(&["NET/OFI ", "completed with error", "Invalid address My EFA"]);
        in "libfabric 1.16 to 1.20": Text(&["<warn> err: ", "message: Invalid address My EFA"]);
        in "libfabric 1.22 to 2.2": Text(&["<warn> err: ", "message: Remote key (RKEY) not registered"]);
        in "libfabric 2.3 on": Text(&["<warn> err: ", "message: Remote memory registration is invalid"]);

    "ofi-peer" Echo means "the peer does not answer over EFA, or not any more";
        next "EFA: the security group must allow all traffic from and to itself, both ends in one subnet; else the peer's process and its log";
        in "aws-ofi-nccl 1.3 on, with libfabric 1.22 on": Text(&["NET/OFI ", "completed with error", "Unresponsive remote"]);
        in "libfabric 1.16 to 1.21": Text(&["<warn> err: ", "message: Unresponsive receiver"]);
        in "libfabric 1.22 on": Text(&["<warn> err: ", "message: Unresponsive remote"]);
        in "aws-ofi-nccl 1.3 on": Text(&["NET/OFI ", "completed with error", "Unresponsive receiver"]);
        in "aws-ofi-nccl 1.3 on": Text(&["NET/OFI ", "completed with error", "nreachable remote"]);

    "ofi-open" Fault means "Slingshot's device is there, and this process may not use it: its job has no virtual network (VNI) of its own";
        next "start it with the site's launcher (Slurm's srun with its plugin of HPE's network, or PALS), or have the administrator allow the \
            default service of cxi (`cxi_service list`); in a container SLINGSHOT_VNIS and SLINGSHOT_SVC_IDS must be passed in";
        in "libfabric 1.15 on": Text(&["<warn> ", "Failed to find valid default rgroup and vni"]);

    "mpi-peer" Fault means "the peer of an MPI process has no such endpoint any more: mostly its process ended before, and this one only reports it";
        next "of all ranks' logs, the one that ends first (Segmentation fault, out of memory); without one, FI_CXI_RX_MATCH_MODE=hybrid or software";
        in "MPICH 3.4 on, over libfabric's cxi": Text(&["OFI poll failed (", "PTLTE_NOT_FOUND"]);
        in "MPICH 3.4 on, over libfabric's cxi": Text(&["OFI poll failed (", "VNI_NOT_FOUND"]);

    "mpi-undelivered" Fault means "a message of MPI could not be delivered over Slingshot, although its NIC tried again and again: the receiver has \
        no room for it, or its link failed";
        next "FI_CXI_RX_MATCH_MODE=software (the hardware's matching ran out of room); the state of the links of both hosts (`cxi_stat`, the fabric \
            manager)";
        in "MPICH 3.4 on, over libfabric's cxi": Text(&["OFI poll failed (", "UNDELIVERABLE"]);

    "mpi-peer" Fault means "the peer of an MPI process did not answer (retries exceeded): its process or host is gone, or packets are lost";
        next "of all ranks' logs, the one that ends first; else loss: retransmissions and drops of both NICs";
        in "MPICH 3.4 on, over libfabric's verbs": Text(&["OFI poll failed (", "transport retry counter exceeded"]);

    "mpi-request" Fault means "a request of MPI failed in libfabric";
        next "the words behind the dash are the provider's; the log of the peer at the same time";
        in "MPICH 3.4 on": Text(&["OFI poll failed ("]);

    "mpi-queue-full" Note means "MPI cannot post a receive on Slingshot, because its completion queue is full";
        next "FI_CXI_DEFAULT_CQ_SIZE=131072 (and above, where it comes again); fewer receives posted at once";
        in "Cray MPICH 8 on": Text(&["MPICH WARNING: OFI is failing to make progress"]);

    "gloo-apart" Fault means "processes could not connect with one another by Gloo (TCP), which frameworks use beside NCCL";
        next "GLOO_SOCKET_IFNAME with the interface that joins the hosts; without it Gloo takes the address that the host's own name leads to, which \
            must not be 127.0.0.1 or 127.0.1.1 (/etc/hosts); a firewall";
        in "PyTorch 1.8 on": Text(&["Gloo connectFullMesh failed with "]);

    "nixl-peer" Follows means "NIXL's peer is gone, or its connection broke";
        next "the log of the process at the other end, at the same time; before this line, what UCX says";
        in "NIXL 0.2 on": Text(&["NIXL_ERR_REMOTE_DISCONNECT"]);

    "coordinator" Fault means "a process could not register with JAX's coordinator: not all came in time, or it is unreachable or refused (the words \
        before say which)";
        next "coordinator_address, alike in all processes and reachable from their hosts; num_processes; a process that starts late (its image, its \
            data): initialization_timeout";
        in "JAX 0.4 on": Text(&["CoordinationService/RegisterTask"]);

    "xla-waits" Follows means "XLA waits for other ranks before a collective, or NCCL does not return; where they are only late, it says later that \
        the thread is unstuck";
        next "the process that has no such line: its log and its stack";
        in "JAX 0.4 on": Text(&["This thread has been waiting for `", "may be stuck"]);

    "step-apart" Fault means "the nodes of a Slurm step do not reach one another at its start (PMIx: collective timeout)";
        next "whether nodes reach one another by the addresses of `scontrol show node`: a firewall before SlurmdPort, or before the ports that steps \
            choose (PMIxDirectConn of mpi.conf); a node that still loads its image; PMIxTimeout there is how long it waits";
        in "Slurm 18.08 on": Text(&["pmixp_coll_", ": collective timeout"]);
};
