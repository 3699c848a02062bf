//! Logs as people have published them, shortened and rewritten. For each: the first line of the page, what
//! the page must contain, and what it must not.

use std::fmt::Write as _;

use super::{
    super::page::{self, Links},
    read,
};

struct Case {
    name: &'static str,
    log: &'static str,
    first: &'static str,
    holds: &'static [&'static str],
    lacks: &'static [&'static str],
}

const NO_LIBRARY: &str = "TCP: NET/Socket on eth1, because libibverbs could not be opened: it is missing in the image (install \
                          libibverbs1 and ibverbs-providers)";

const CASES: &[Case] = &[
    Case {
        name: "a missing library is INFO since 2.11, and a missing plugin is normal",
        log: "\
w0:7:7 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using internal implementation
w0:7:7 [0] NCCL INFO Failed to open libibverbs.so[.1]
w0:7:7 [0] NCCL INFO NET/Socket : Using [0]eth1:198.51.100.1<0>
w0:7:7 [0] NCCL INFO Using network Socket
w0:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0
",
        first: NO_LIBRARY,
        holds: &["network plugin: none", " eth1 "],
        lacks: &["Warnings"],
    },
    Case {
        name: "the same as 2.30 spells it",
        log: "\
w0:7:7 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so
w0:7:7 [0] NCCL INFO Count not open libibverbs.so
w0:7:7 [0] NCCL INFO Count not open libibverbs.so.1
w0:7:7 [0] NCCL INFO Failed to initialize NET plugin IB
w0:7:7 [0] NCCL INFO NET/Socket : Using [0]eth1:198.51.100.1<0>
w0:7:7 [0] NCCL INFO Assigned NET plugin Socket to comm
w0:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0
",
        first: NO_LIBRARY,
        holds: &[],
        lacks: &["Failed to initialize"],
    },
    Case {
        name: "of the library's two names one is enough",
        log: "\
w0:7:7 [0] NCCL INFO Count not open libibverbs.so
w0:7:7 [0] NCCL INFO NET/IB : No device found.
w0:7:7 [0] NCCL INFO NET/Socket : Using [0]eth1:198.51.100.1<0>
w0:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0
",
        first: "TCP: NET/Socket on eth1, because NCCL found no usable RDMA device",
        holds: &[],
        lacks: &["libibverbs"],
    },
    Case {
        name: "the same as RCCL spells it",
        log: "\
amd1:7:7 [0] NCCL INFO NET/Plugin: Could not find: librccl-net.so
amd1:7:7 [0] NCCL INFO Could not open libibverbs.so
amd1:7:7 [0] NCCL INFO NET/IB : No device found.
amd1:7:7 [0] NCCL INFO NET/Socket : Using [0]eth1:198.51.100.1<0>
amd1:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0 comm 0x55 nRanks 02
",
        first: NO_LIBRARY,
        holds: &[],
        lacks: &[],
    },
    Case {
        name: "a cut log of a job of several hosts is not local",
        log: "\
p:21:21 [0] NCCL INFO comm 0x9 rank 8 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0
p:21:21 [0] NCCL INFO Channel 00/0 : 8[0] -> 9[1] via P2P/IPC
q:22:22 [0] NCCL INFO Connected all rings
",
        first: "unknown: this log, of 1 of 16 ranks, shows no connection between hosts",
        holds: &[],
        lacks: &["LOCAL", "starting", "joined"],
    },
    Case {
        name: "one rank's COMPLETE is that of all",
        log: "\
p:21:21 [1] NCCL INFO Using network IB
p:21:21 [1] NCCL INFO ncclCommInitRank comm 0x9 rank 3 nranks 32 cudaDev 1 nvmlDev 1 busId 18000 commId 0x77 - Init START
p:21:21 [1] NCCL INFO Channel 00/0 : 3[1] -> 4[2] via P2P/CUMEM
p:21:21 [1] NCCL INFO ncclCommInitRank comm 0x9 rank 3 nranks 32 cudaDev 1 nvmlDev 1 busId 18000 commId 0x77 - Init COMPLETE
",
        first: "RDMA: network IB; all 32 ranks have joined; this log, of 1 of 32 ranks, shows no connection between hosts",
        holds: &["32 ranks, all joined (1 in this log)"],
        lacks: &["starting", "NCCL_DEBUG"],
    },
    Case {
        name: "NVLink between hosts needs no network",
        log: "\
r1:1:1 [0] NCCL INFO Using network IB
r1:1:1 [0] NCCL INFO comm 0x1 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 1
r1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] via P2P/MNNVL
r2:2:2 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] via P2P/MNNVL
r2:2:2 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 801000 commId 0x2 - Init COMPLETE
",
        first: "NVLink: 2 hosts are joined by NVLink (MNNVL), and no network is used",
        holds: &[],
        lacks: &["LOCAL", "TCP"],
    },
    Case {
        name: "in one host MNNVL is local",
        log: "\
r1:2:2 [1] NCCL INFO comm 0x1 rank 1 nRanks 2 nNodes 1 localRanks 2 localRank 1 MNNVL 1
r1:1:1 [0] NCCL INFO comm 0x1 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 1
r1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/MNNVL
r1:1:1 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 8 commId 0x2 - Init COMPLETE
",
        first: "LOCAL: all 2 ranks are on one host, and no network is used (NVLink, PCIe or shared memory)",
        holds: &[],
        lacks: &["TCP"],
    },
    Case {
        name: "of a rack that NVLink joins NCCL may count one node, and the log may be of one host",
        log: "\
r1:1:1 [0] NCCL INFO comm 0x1 rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 1
r1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 4[0] via P2P/MNNVL
",
        first: "NVLink: all ranks are joined by NVLink (MNNVL), and no network is used",
        holds: &[],
        lacks: &["LOCAL"],
    },
    Case {
        name: "two jobs of the same ranks before there was a commId",
        log: "\
u1:8:10 [0] NCCL INFO comm 0x50 rank 0 nranks 2 cudaDev 0 busId 18000 - Init COMPLETE
u1:8:11 [1] NCCL INFO comm 0x51 rank 1 nranks 2 cudaDev 1 busId 2a000 - Init COMPLETE
u2:8:20 [0] NCCL INFO comm 0x50 rank 0 nranks 2 cudaDev 0 busId 18000 - Init COMPLETE
u2:8:21 [1] NCCL INFO comm 0x51 rank 1 nranks 2 cudaDev 1 busId 2a000 - Init COMPLETE
",
        first: "LOCAL: 2 jobs that do not know of each other, each on one host; no network is used",
        holds: &["2 jobs of 2 ranks, all joined"],
        lacks: &[],
    },
    Case {
        name: "the head of NCCL 2.1 and 2.2",
        log: "\
box-7:91:91 [2] INFO NET : Using interface eth1:198.51.100.7<0>
box-7:91:91 [2] INFO NET/IB : Using interface eth1 for sideband communication
box-7:91:91 [2] INFO NET/IB: [0] mlx4_0:2/RoCE
box-7:91:91 [2] INFO Using internal Network IB
box-7:91:96 [2] INFO comm 0x2b8b rank 6 nranks 8
2026-01-02 12:34:56 [3] INFO Using internal Network Socket
",
        first: "RDMA was chosen (network IB)",
        holds: &["1 host: box-7"],
        lacks: &["Socket"],
    },
    Case {
        name: "an error that RCCL prints without NCCL_DEBUG since ROCm 7.2",
        log: "\
amd7:41:41 [0] [FATAL ERROR]: HIP failure: 'out of memory'
RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)
",
        first: "unknown: no line names the network; FAULT: amd7: a GPU has no memory left for NCCL's buffers",
        holds: &["HIP failure: 'out of memory'"],
        lacks: &["no line of NCCL"],
    },
    Case {
        name: "RCCL says `Cuda failure` of AMD's GPUs, which have none of NVIDIA's tools",
        log: "\
amd8:51:51 [0] NCCL INFO RCCL version 2.18.6+hip6.0 HEAD:1234567
amd8:51:71 [1] /rccl/src/transport/p2p.cc:193 NCCL WARN Cuda failure 'out of memory'
",
        first: "unknown: no line names the network; FAULT: amd8: a GPU has no memory left for NCCL's buffers",
        holds: &["Cuda failure 'out of memory'", "rocm-smi"],
        lacks: &["nvidia-smi", "HIP failure"],
    },
    Case {
        name: "the network of RCCL breaks, and it says so without NCCL_DEBUG",
        log: "\
amd7:41:77 [3] [FATAL ERROR]: RCCL encountered a communication fatal error (detected in ncclIbTest)
amd7:41:77 [3] [FATAL ERROR]: RCCL cannot recover from this network failure and now exiting. Please check the network health.
",
        first: "unknown: no line names the network; FAULT: amd7: a connection is given up, because its device reported a fatal event",
        holds: &["(2 times)"],
        lacks: &[],
    },
    Case {
        name: "words that CUDA and HIP share are not explained by hardware that AMD does not have",
        log: "\
amd1:7:15 [0] rccl/src/enqueue.cc:2061 NCCL WARN HIP failure 'the operation cannot be performed in the present state'
",
        first: "unknown: no line names the network; FAULT: amd1: a call of CUDA or HIP failed (HIP failure 'the operation cannot be \
                performed in the present state')",
        holds: &[],
        lacks: &["NVSwitch", "Fabric"],
    },
    Case {
        name: "a feature of ROCm that is not used is no cause",
        log: "\
[2026-01-02 04:24:13] amd1:7:15 [1] rccl/src/misc/amdsmi_wrap.cc:214 NCCL WARN RCCL_USE_AMD_SMI_LIB not set, but HIP_FABRIC_API is defined.
amd1:7:15 [1] NCCL INFO [Rank 1] ncclCommInitAll_impl comm 0x57 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 23000 commId 0x4c - Init START
amd1:7:15 [1] NCCL INFO comm 0x57 rank 1 nRanks 2 nNodes 1 localRanks 2 localRank 1 MNNVL 0
",
        first: "LOCAL: all 2 ranks are on one host, and no network is needed; 0 of 2 ranks have joined (this log has no line of rank 0): \
                the job is starting, or waits for a rank",
        holds: &["a feature of ROCm that RCCL can do without"],
        lacks: &["does not know"],
    },
    Case {
        name: "AMD's NICs without their library",
        log: "\
amd2:7:7 [0] rccl/src/transport/net_ib_rocm.cc:633 NCCL WARN NET/IB : Failed to open ionicdv symbols. Advance features like AINIC UD load balancing will be disabled.
amd2:7:7 [0] NCCL INFO Failed to initialize NET plugin IB
amd2:7:7 [0] NCCL INFO NET/Socket : Using [0]eth0:198.51.100.1<0>
amd2:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0
",
        first: "TCP: NET/Socket on eth0, and the log does not say why",
        holds: &["AMD NIC features off", "install libionic"],
        lacks: &["because", "FAULT"],
    },
    Case {
        name: "a host of Mellanox's NICs without AMD's library has another cause of TCP",
        log: "\
amd3:7:7 [0] rccl/src/transport/net_ib_rocm.cc:633 NCCL WARN NET/IB : Failed to open ionicdv symbols. Advance features like AINIC UD load balancing will be disabled.
amd3:7:7 [0] NCCL WARN NET/IB : Unable to open device mlx5_0
amd3:7:7 [0] NCCL INFO NET/Socket : Using [0]eth0:198.51.100.1<0>
amd3:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0
",
        first: "TCP: NET/Socket on eth0, because the device mlx5_0 cannot be opened (/dev/infiniband missing in the container, or no \
                rights)",
        holds: &["AMD NIC features off", "nothing, if the host has other NICs"],
        lacks: &["does not use them"],
    },
    Case {
        name: "a host of Mellanox's NICs without AMD's library is on RDMA",
        log: "\
amd3:7:7 [0] rccl/src/transport/net_ib_rocm.cc:633 NCCL WARN NET/IB : Failed to open ionicdv symbols. Advance features like AINIC UD load balancing will be disabled.
amd3:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA
",
        first: "RDMA: yes, 1 NIC, GPUDirect on all",
        holds: &["AMD NIC features off"],
        lacks: &["does not use them"],
    },
    Case {
        name: "attention of NCCL 2.32 is explained where it is known, and is no error",
        log: "\
n3:5:5 [0] NCCL INFO Using network IB
n3:5:6 [0] src/gin/gin_host.cc:119 (ncclGinConnect) NCCL ATTN Found 9 local devices, but GIN supports at most 8 connections.
n3:5:6 [0] transport/net_ib/init.cc:90 (ncclIbAsync) NCCL ATTN NET/IB : mlx5_2:1 Got non-fatal async event: port error(10)
",
        first: "RDMA was chosen (network IB); FAULT: n3 mlx5_2: the port went down",
        holds: &[],
        lacks: &["does not know", "Found 9"],
    },
    Case {
        name: "a head whose numbers somebody masked",
        log: "\
[2026-03-13 22:26:02] h1.example.com:XXXXXX [5] ibvwrap.c:262 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_1:1, curr state INIT, next state RTR
",
        first: "RDMA, as the warnings show; FAULT: h1.example.com mlx5_1: a queue pair could not be connected: nobody answers for the \
                peer's address (ARP or neighbour discovery)",
        holds: &["1 host: h1.example.com"],
        lacks: &[],
    },
    Case {
        name: "an address that is none, as NCCL up to 2.12 says it",
        log: "\
[1,4]<stdout>:g7:41:43 [0] NCCL INFO Ring 00 : 1 -> 4 [receive] via NET/IB/1/GDRDMA
[1,4]<stdout>:
[1,4]<stdout>:g7:41:43 [0] include/socket.h:318 NCCL WARN Net : Socket creation failed : Address family not supported by protocol
[1,4]<stdout>:g7:41:43 [0] NCCL INFO transport/net_ib.cu:407 -> 2
",
        first: "RDMA: yes, 1 NIC, GPUDirect on all; FAULT: g7: what a rank got as another's address is none: the unique ID did not arrive from the first rank, or the two use different networks (a plugin, sockets) or versions",
        holds: &[],
        lacks: &[],
    },
    Case {
        name: "MPICH on Slingshot, in a log without NCCL",
        log: "\
srun: error: x1: task 1: Segmentation fault
MPICH ERROR [Rank 8] [job id 14.0] [Wed Aug 23 06:05:55 2023] [x2] - Abort(136982671) (rank 8 in comm 0): Fatal error in PMPI_Waitall
MPIDI_OFI_handle_cq_error(1062): OFI poll failed (ofi_events.c:1064:MPIDI_OFI_handle_cq_error:Input/output error - PTLTE_NOT_FOUND)
",
        first: "unknown: no line names the network; FAULT: the peer of an MPI process has no such endpoint any more: mostly its process \
                ended before, and this one only reports it",
        holds: &["Segmentation fault, out of memory", "    line: OFI poll failed"],
        lacks: &["no line of NCCL", "NCCL: "],
    },
    Case {
        name: "what libfabric says stands beside NCCL's own fault",
        log: "\
libfabric:57:174::cxi:fabric:cxip_nic_get_rgroup_vni():253<warn> : Failed to find valid default rgroup and vni for cxi0
[0] NCCL INFO NET/OFI Selected Provider is cxi (found 8 nics)
[0] NCCL INFO Using network AWS Libfabric
[0] get_plugin:100 NCCL WARN NET/OFI Couldn't open a fabric access domain. RC: -38, ERROR: Function not implemented
",
        first: "RDMA was chosen (network AWS Libfabric); FAULT: libfabric's provider cannot be opened (and 1 other fault below)",
        holds: &["has no virtual network (VNI) of its own", "SLINGSHOT_VNIS"],
        lacks: &[],
    },
    Case {
        name: "FastSocket connects, and warns of what is no fault",
        log: "\
d1:40:48 [0] net_fastsocket.cc:765 NCCL WARN Cannot get incoming CPU.
d1:40:55 [0] net_fastsocket.cc:674 NCCL WARN Maximum retry reached for connect 3.
d1:40:55 [0] NCCL INFO NET/FastSocket : Connected after 1000 retries.
",
        first: "TCP was chosen (network FastSocket), because the network plugin FastSocket is TCP",
        holds: &["(2 times): connections of FastSocket may share"],
        lacks: &["does not know"],
    },
    Case {
        name: "a build without code for the GPU, of which somebody removed the heads",
        log: "\
[0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]
[3] enqueue.cc:215 NCCL WARN Cuda failure 'invalid device function'
",
        first: "unknown: no RDMA, because libibverbs could not be opened: it is missing in the image (install libibverbs1 and \
                ibverbs-providers); FAULT: this build of NCCL has no code for this GPU",
        holds: &["architecture"],
        lacks: &[],
    },
    Case {
        name: "lines in the frame of a program that shows the logs of pods",
        log: "\
│ t-4:28:53 [0] NCCL INFO Channel 00 : 3[51000] -> 0[cb000] [receive] via NET/IB/0             │
│ t-4:29:56 [1] NCCL INFO Channel 00 : 1[d0000] -> 2[4b000] [send] via NET/IB/0                │
",
        first: "RDMA: yes, 1 NIC, no GPUDirect",
        holds: &["t-4   IB/0  -            1        1  no"],
        lacks: &["torn"],
    },
    Case {
        name: "no host at all",
        log: "\
[0] NCCL INFO NET/Socket : Using [0]eth3:198.51.100.1<0>
[0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.
12:34:56 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/Socket/0
",
        first: "TCP: NET/Socket on eth3, because NCCL_IB_DISABLE is 1",
        holds: &["  -     eth3"],
        lacks: &["host:", "hosts:", "12"],
    },
    Case {
        name: "one host that may use nothing else is on TCP inside it",
        log: "\
n:1:1 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1
n:1:1 [0] NCCL INFO NCCL_SHM_DISABLE set by environment to 1.
n:1:1 [0] NCCL INFO NET/IB : No device found.
n:1:1 [0] NCCL INFO NET/Socket : Using [0]lo:127.0.0.1<0>
n:1:1 [0] NCCL INFO comm 0x2 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0
n:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0
",
        first: "TCP inside one host: NET/Socket on lo, because NCCL_P2P_DISABLE is 1 and NCCL_SHM_DISABLE is 1",
        holds: &[],
        lacks: &["device"],
    },
    Case {
        name: "Google's gIB is RDMA and lists its NICs",
        log: "\
n:1:1 [0] NCCL INFO NET/gIB : Initializing gIB v1.0.5
n:1:1 [0] NCCL INFO NET/gIB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:198.51.100.1<0>
n:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/gIB/1/GDRDMA
",
        first: "RDMA: yes, 1 NIC, GPUDirect on all",
        holds: &["mlx5_1  RoCE", "1 of 2 NICs"],
        lacks: &[],
    },
    Case {
        name: "FasTrak and TCPX are TCP with GPUDirect",
        log: "\
n:1:1 [0] NCCL INFO NET/Plugin: Loaded net plugin FasTrak (v7)
n:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/FasTrak/0/GDRDMA
",
        first: "TCP: NET/FasTrak, because the network plugin FasTrak is TCP",
        holds: &[],
        lacks: &[],
    },
    Case {
        name: "the beginning of a log, and versions that do not name the network",
        log: "\
m:22:95 [2] NCCL INFO NET/Socket : Using [0]ib0:198.51.100.1<0>
m:22:95 [2] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB ; OOB ib0:198.51.100.1<0>
",
        first: "RDMA was chosen (network IB)",
        holds: &[],
        lacks: &["Socket", "NCCL_DEBUG"],
    },
    Case {
        name: "NICs of HPC-X have SHARP behind their link",
        log: "\
n:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_4:1/IB/SHARP [1]mlx5_5:1/IB/SHARP [RO]; OOB ib0:198.51.100.1<0>
n:1:1 [0] NCCL INFO NET/Plugin: Loaded net plugin IBext_v8 (v8)
n:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IBext_v8/0/GDRDMA
",
        first: "RDMA: yes, 1 NIC, GPUDirect on all",
        holds: &["mlx5_4  IB ", "1 of 2 NICs that NCCL listed have no connection", "network plugin: IBext_v8"],
        lacks: &["IB/0"],
    },
    Case {
        name: "merged NICs of 2.20 to 2.23",
        log: "\
n:1:1 [0] NCCL INFO NET/IB : Using [0]={[0] mlx5_6:1/RoCE, [1] mlx5_7:1/RoCE} [1]={[2] mlx5_8:1/RoCE, [3] mlx5_9:1/RoCE} [RO]; OOB eth0:198.51.100.1<0>
n:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0
n:1:1 [0] NCCL INFO Channel 01/0 : 0[0] -> 8[0] [send] via NET/IB/1
",
        first: "RDMA: yes, 2 NICs, no GPUDirect",
        holds: &["mlx5_6+mlx5_7  RoCE ", "mlx5_8+mlx5_9  RoCE "],
        lacks: &["have no connection"],
    },
    Case {
        name: "virtual NICs of 2.24 on use all their parts",
        log: "\
n:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [2]mlx5_2:1/RoCE [RO]; OOB eth0:198.51.100.1<0>
n:1:1 [0] NCCL INFO NET/IB : Made virtual device [3] name=mlx5_0+mlx5_1 speed=400000 ndevs=2
n:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/3/GDRDMA
",
        first: "RDMA: yes, 1 NIC, GPUDirect on all",
        holds: &["mlx5_0+mlx5_1  RoCE ", "1 of 3 NICs that NCCL listed have no connection"],
        lacks: &[],
    },
    Case {
        name: "a clock is no process, and hosts stay apart",
        log: "\
Nov  3 01:02:03 x:61:62 [0] NCCL INFO NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'
01:02:03 y:63:64 [0] NCCL INFO NET/IB : No device found.
01:02:03 x:61:62 [0] NCCL INFO Channel 00/0 : 1[1] -> 0[0] [receive] via NET/IB/0/GDRDMA
2026-11-03T01:02:03 y:63:64 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [receive] via NET/Socket/0
",
        first: "MIXED: RDMA on 1 NIC (GPUDirect on all), but y on TCP, because NCCL found no usable RDMA device",
        holds: &["2 hosts: x and y"],
        lacks: &["01"],
    },
    Case {
        name: "warnings alone name the device and the fault",
        log: "\
n:1:1 [4] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer 198.51.100.2<4711> with status=12 opcode=0 len=0 vendor err 129 (Recv) hca mlx5_6
",
        first: "RDMA, as the warnings show; FAULT: n mlx5_6: the peer did not answer (status 12, retries exceeded): its process or \
                host is gone, or packets are lost on the way",
        holds: &[],
        lacks: &["names the network"],
    },
    Case {
        name: "the plugin of EFA failed, before a variable that does not matter then",
        log: "\
n:1:1 [1] NCCL INFO NET/Plugin: Loaded net plugin AWS Libfabric (v8)
n:1:1 [1] NCCL INFO NET/Plugin: Failed to find ncclCollNetPlugin symbol (>= v5)
n:1:1 [1] NCCL INFO NET/OFI No eligible providers were found
n:1:1 [1] nccl_net_ofi_create_plugin:259 NCCL WARN NET/OFI aws-ofi-nccl initialization failed
n:1:1 [1] NCCL INFO NCCL_IB_DISABLE set by environment to 1.
n:1:1 [1] NCCL INFO NET/Socket : Using [0]eth1:198.51.100.1<0>
n:1:1 [1] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/Socket/0
",
        first: "TCP: NET/Socket on eth1, because the EFA plugin found no provider of libfabric",
        holds: &["network plugin: AWS Libfabric", "NCCL_IB_DISABLE=1", "failed to start"],
        lacks: &["ncclCollNetPlugin", "FAULT"],
    },
    Case {
        name: "FastSocket is TCP by the plugin",
        log: "\
n:1:1 [0] NCCL INFO NET/Plugin: Loaded net plugin FastSocket (v6)
n:1:1 [0] NCCL INFO NET/Plugin: Failed to find ncclCollNetPlugin symbol (>= v5)
n:1:1 [0] NCCL INFO NET/FastSocket : Using [0]enp6s0f0:198.51.100.4<0>
n:1:1 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/FastSocket/0
",
        first: "TCP: NET/FastSocket on enp6s0f0, because the network plugin FastSocket is TCP",
        holds: &[],
        lacks: &["ncclCollNetPlugin"],
    },
    Case {
        name: "UCX with GPUDirect is RDMA, and its NICs have their names",
        log: "\
n:1:1 [0] NCCL INFO P2P plugin UCX
n:1:1 [0] NCCL INFO NET/IB : Using [0]bnxt_re0:1/RoCE ; OOB eth0:198.51.100.4<0>
n:1:1 [0] NCCL INFO Using network UCX
n:1:1 [0] NCCL INFO Channel 00/0 : 1[7000] -> 0[b7000] [receive] via NET/UCX/0/GDRDMA comm 0x22 nRanks 02
",
        first: "RDMA: yes, 1 NIC, GPUDirect on all",
        holds: &["bnxt_re0  RoCE"],
        lacks: &[],
    },
    Case {
        name: "GPUDirect proves RDMA where the provider's line is missing",
        log: "\
n:1:1 [0] NCCL INFO Channel 01/1 : 4[0] -> 0[0] [receive] via NET/Libfabric/7/GDRDMA/Shared
n:1:1 [0] NCCL INFO Channel 02/1 : 4[0] -> 0[0] [receive] via NET/Libfabric/6
",
        first: "RDMA: yes, 2 NICs, GPUDirect on 1 of 2",
        holds: &[],
        lacks: &["unknown"],
    },
    Case {
        name: "lines that are cut into each other make nothing",
        log: "\
g1:1612:16169g1:1618:1695 [7] NCCL INFO Channel 07/0 : 7[7] -> 15[7] [send] via NET/IB/3/GDRDMA
g1:1618:1695 [7] NCCL INFO Channel 15/0 : 7[7] -> 15[7] [send] via NET/IB/8/GDRDMA
",
        first: "RDMA: yes, 1 NIC, GPUDirect on all",
        holds: &["1 host: g1", "Torn: 1 of 2 lines", "IB/8"],
        lacks: &["IB/3", "16169g1"],
    },
    Case {
        name: "a device that cannot be opened is the cause, by name",
        log: "\
n:1:1 [0] misc/ibvwrap.cc:212 NCCL WARN Call to ibv_open_device failed
n:1:1 [0] transport/net_ib.cc:148 NCCL WARN NET/IB : Unable to open device mlx5_bond_1
n:1:1 [0] NCCL INFO NET/IB : No device found.
n:1:1 [0] NCCL INFO NET/Socket : Using [0]bond0:198.51.100.2<0>
n:1:1 [0] NCCL INFO Using network Socket
",
        first: "TCP was chosen (network Socket on bond0), because the device mlx5_bond_1 cannot be opened (/dev/infiniband missing \
                in the container, or no rights)",
        holds: &["--device=/dev/infiniband"],
        lacks: &["no usable RDMA device"],
    },
    Case {
        name: "events as old versions spell them, each with its own meaning",
        log: "\
n:1:1 [3] transport/net_ib.cc:93 NCCL WARN NET/IB : mlx5_2:1 Got async event : GID table change
n:1:1 [3] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : local catastrophic error
n:1:1 [3] transport/net_ib.cc:93 NCCL WARN NET/IB : mlx5_2:1 Got async event : port error
",
        first: "RDMA, as the warnings show; FAULT: n: the NIC itself failed (and 1 other fault below)",
        holds: &["n mlx5_2: the port went down", "n mlx5_2: addresses of the NIC changed", "DHCP"],
        lacks: &[],
    },
    Case {
        name: "the text is inside docker's JSON",
        log: r#"{"log":"n:1:1 [0] NCCL INFO NCCL version 2.26.2+cuda12.2\n","stream":"stdout","time":"2026-05-01T12:34:56Z"}
{"log":"n:1:1 [0] NCCL INFO NCCL_IB_HCA set to mlx5\n","stream":"stdout","time":"2026-05-01T12:34:56Z"}
{"log":"n:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/1/GDRDMA\n","stream":"stdout","time":"2026-05-01T12:34:56Z"}
"#,
        first: "RDMA: yes, 1 NIC, GPUDirect on all",
        holds: &["NCCL 2.26.2+cuda12.2; 1 host: n", "NCCL_IB_HCA=mlx5\n"],
        lacks: &["\"n", "stream"],
    },
    Case {
        name: "each status has its own meaning",
        log: "\
n:1:1 [0] net_ib.cc:1909 NCCL WARN NET/IB : Got completion from peer 198.51.100.1<33057> with status=10 opcode=0 len=0 vendor err 136 (Send)
n:1:1 [0] net_ib.cc:1909 NCCL WARN NET/IB : Got completion from peer 198.51.100.1<33057> with status=11 opcode=0 len=0 vendor err 137 (Send)
n:1:1 [0] net_ib.cc:1909 NCCL WARN NET/IB : Got completion from peer 198.51.100.1<33057> with status=77 opcode=0 len=0 vendor err 137 (Send)
",
        first: "RDMA, as the warnings show; FAULT: n: the peer's NIC may not touch the memory named (status 10, remote access error) \
                (and 1 other fault below)",
        holds: &["status 11, remote operation error", "with status=77", "1 warning without explanation"],
        lacks: &["times", "ibv_poll_cq"],
    },
    Case {
        name: "a part of a communicator is not the job",
        log: "\
a:1:1 [0] NCCL INFO Using network IB
a:1:1 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 1 commId 0x5 - Init COMPLETE
a:1:1 [0] NCCL INFO ncclCommSplit comm 0x2 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1 parent 0x1 splitCount 1 color 3 key 0- Init START
",
        first: "RDMA: network IB; all 16 ranks have joined; this log, of 1 of 16 ranks, shows no connection between hosts; a \
                communicator of 2 ranks began and is not complete (this log has its rank 0): a rank does not come, or the log ends there",
        holds: &["16 ranks, all joined"],
        lacks: &["of 2 ranks have joined", "starting"],
    },
    Case {
        name: "a part that is complete needs no word",
        log: "\
a:1:1 [0] NCCL INFO Using network IB
a:1:1 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1 commId 0x5 - Init START
b:1:1 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 1 commId 0x5 - Init START
a:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA
a:1:1 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1 commId 0x5 - Init COMPLETE
a:1:1 [0] NCCL INFO ncclCommSplit comm 0x2 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1 parent 0x1 splitCount 1 color 3 key 0- Init START
b:1:1 [0] NCCL INFO ncclCommSplit comm 0x2 rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 1 parent 0x1 splitCount 1 color 3 key 1- Init START
a:1:1 [0] NCCL INFO ncclCommSplit comm 0x2 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1 parent 0x1 splitCount 1 color 3 key 0 - Init COMPLETE
",
        first: "RDMA: yes, 1 NIC, GPUDirect on all",
        holds: &["2 ranks, all joined"],
        lacks: &["communicator"],
    },
    Case {
        name: "a split that hangs is said beside the job that is complete, and what gave up is the fault",
        log: "\
a:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0/GDRDMA
a:1:1 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 1 commId 0x5 - Init COMPLETE
a:2:2 [1] NCCL INFO ncclCommInitRank comm 0x1 rank 1 nranks 4 cudaDev 0 nvmlDev 0 busId 1 commId 0x5 - Init COMPLETE
b:3:3 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 2 nranks 4 cudaDev 0 nvmlDev 0 busId 1 commId 0x5 - Init COMPLETE
a:1:1 [0] NCCL INFO ncclCommSplit comm 0x2 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 1 parent 0x1 childCount 1 color 0 key 0- Init START
a:2:2 [1] NCCL INFO ncclCommSplit comm 0x2 rank 1 nranks 4 cudaDev 0 nvmlDev 0 busId 1 parent 0x1 childCount 1 color 0 key 1- Init START
b:3:3 [0] NCCL INFO ncclCommSplit comm 0x2 rank 2 nranks 4 cudaDev 0 nvmlDev 0 busId 1 parent 0x1 childCount 1 color 0 key 2- Init START
[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE) ran for 600077 milliseconds before timing out.
",
        first: "RDMA: yes, 1 NIC, GPUDirect on all; a communicator of 4 ranks began and is not complete (this log has its ranks 0 to 2); \
                FAULT: a collective did not end in time (PyTorch's watchdog): a rank came late or not at all, or the network stands still",
        holds: &["4 ranks, all joined"],
        lacks: &["starting", "log ends there"],
    },
    Case {
        name: "of many communicators that wait, the largest is named, and those of another job are its own",
        log: "\
a:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA
a:1:1 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 1 commId 0x5 - Init COMPLETE
a:1:1 [0] NCCL INFO ncclCommInitRank comm 0x2 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1 commId 0x6 - Init START
a:1:1 [0] NCCL INFO ncclCommInitRank comm 0x3 rank 1 nranks 8 cudaDev 0 nvmlDev 0 busId 1 commId 0x7 - Init START
a:1:1 [0] NCCL INFO ncclCommInitRank comm 0x4 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 1 commId 0x8 - Init START
a:1:1 [0] NCCL INFO ncclCommInitRank comm 0x4 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 1 commId 0x8 - Init COMPLETE
q:9:9 [0] NCCL INFO ncclCommInitRank comm 0x9 rank 0 nranks 32 cudaDev 0 nvmlDev 0 busId 1 commId 0x99 - Init START
",
        first: "RDMA: yes, 1 NIC, GPUDirect on all; 0 of 32 ranks of one of 2 jobs have joined (this log is of 1 of them): that job is \
                starting, or waits for a rank; 2 communicators began and are not complete (the largest is of 8 ranks, and this log has its rank 1): a rank \
                does not come, or the log ends there",
        holds: &["1 job of 32 ranks, none joined, 1 job of 16 ranks, all joined"],
        lacks: &[],
    },
    Case {
        name: "in a torn log the line that a communicator is complete may be lost",
        log: "\
a:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
a:1:1 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1 commId 0x5 - Init COMPLETE
a:2:2 [1] NCCL INFO ncclCommInitRank comm 0x1 rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 1 commId 0x5 - Init COMPLETE
a:1:1 [0] NCCL INFO ncclCommInitRank comm 0x2 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1 commId 0x6 - Init START
a:2:2 [1] NCCL INFO ncclCommInitRank coma:1:1 [0] NCCL INFO ncclCommInitRank comm 0x2 rank 0 nranks 2 cudaDev 0
",
        first: "LOCAL: all 2 ranks are on one host, and no network is used (NVLink, PCIe or shared memory); a communicator of 2 ranks began \
                and is not complete (this log has its rank 0): a rank does not come, or the line that says so is lost",
        holds: &["Torn: 1 of 5"],
        lacks: &[],
    },
    Case {
        name: "the plugin of HPC-X that is switched off is a cause",
        log: "\
n:1:1 [0] NCCL INFO NCCL_IBEXT_DISABLE set by environment to 1.
n:1:1 [0] NCCL INFO NET/Plugin: Loaded net plugin NCCL RDMA Plugin v8 (v8)
n:1:1 [0] NCCL INFO NET/Socket : Using [0]bond0:198.51.100.2<0>
n:1:1 [0] NCCL INFO Using network Socket
",
        first: "TCP was chosen (network Socket on bond0), because NCCL_IBEXT_DISABLE is 1",
        holds: &["NCCL_IBEXT_DISABLE=1"],
        lacks: &[],
    },
    Case {
        name: "a log of 2.3",
        log: "\
m:22:295 [2] NCCL INFO NET/IB : Using interface ib0 for sideband communication
m:22:295 [2] NCCL INFO NET/IB: [0] mlx5_0:1/IB
m:22:295 [2] NCCL INFO Using internal Network IB
m:22:301 [2] NCCL INFO comm 0x7f rank 0 nranks 16
m:22:301 [2] NCCL INFO Ring 00 : 15 -> 0 via NET/IB/0/GDRDMA
m:22:301 [2] NCCL INFO comm 0x7f rank 0 nranks 16 - COMPLETE
",
        first: "RDMA: yes, 1 NIC, GPUDirect on all",
        holds: &["16 ranks, all joined (1 in this log)"],
        lacks: &["unknown"],
    },
    Case {
        name: "NVIDIA's plugin for Spectrum-X and AMD's for its NICs are RDMA without GPUDirect, too",
        log: "\
n:1:1 [0] NCCL INFO NET/Plugin: Loaded net plugin SPCX (v12)
n:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/SPCX/0
amd1:7:7 [0] src/net_ib.cc:855 NCCL WARN ANP plugin loaded successfully with telemetry enabled : /usr/lib/librccl-net.so
amd1:7:7 [0] NCCL INFO Using network RCCL-ANP
amd1:7:7 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/RCCL-ANP/0 comm 0x55 nRanks 16
",
        first: "RDMA: yes, 2 NICs, no GPUDirect",
        holds: &["says so in a warning"],
        lacks: &["FAULT", "without explanation"],
    },
    Case {
        name: "a transfer of GPUDirect-TCPX that stands still is a note",
        log: "\
n:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/GPUDirectTCPX_v7/0
n:1:1 [0] net_tcpx.cc:1238 NCCL WARN 0x7f01:0x7f02, nic 0, eth1, 192.0.2.1:4711->192.0.2.2:4712 rx ctrl timeout cnt 912, nanos 10000012345
",
        first: "TCP: NET/GPUDirectTCPX_v7, because the network plugin GPUDirectTCPX_v7 is TCP",
        holds: &["or its peer's announcement of one, has not come"],
        lacks: &["FAULT", "without explanation"],
    },
    Case {
        name: "two jobs of the same ranks do not know of each other",
        log: "\
u1:8:10 [0] NCCL INFO Using network IB
u1:8:10 [0] NCCL INFO comm 0x50 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 18000 commId 0xa1 - Init START
u1:8:11 [1] NCCL INFO comm 0x51 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 2a000 commId 0xa1 - Init START
u1:8:10 [0] NCCL INFO Channel 03/0 : 0[0] -> 1[1] via P2P/direct pointer
u1:8:10 [0] NCCL INFO comm 0x50 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 18000 commId 0xa1 - Init COMPLETE
u2:8:20 [0] NCCL INFO comm 0x50 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 18000 commId 0xb2 - Init START
u2:8:21 [1] NCCL INFO comm 0x51 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 2a000 commId 0xb2 - Init START
u2:8:20 [0] NCCL INFO comm 0x50 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 18000 commId 0xb2 - Init COMPLETE
",
        first: "LOCAL: 2 jobs that do not know of each other, each on one host; no network is used",
        holds: &["2 jobs of 2 ranks, all joined", "MPI=1"],
        lacks: &["4 ranks", "TCP"],
    },
    Case {
        name: "GPU memory that cannot be registered says what is missing",
        log: "\
n1:5:9 [0] misc/ibvwrap.cc:182 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Bad address
n1:5:9 [0] misc/ibvwrap.cc:288 NCCL WARN Call to ibv_reg_dmabuf_mr failed with error Operation not supported errno 95
n2:7:9 [3] misc/ibvwrap.cc:182 NCCL WARN Call to ibv_reg_mr failed with error Invalid argument
",
        first: "RDMA, as the warnings show; FAULT: n1: GPU memory cannot be registered (Bad address): no module tells the NIC where \
                it is (and 2 other faults below)",
        holds: &["nvidia_peermem", "DMA-BUF", "does not fit the GPU's driver"],
        lacks: &["locked memory"],
    },
    Case {
        name: "a fault outranks that the job is starting, a version is one in two spellings, and one host needs no network",
        log: "\
vm:3:3 [0] NCCL INFO NCCL version 2.28.9+cuda13.0
vm:4:4 [0] NCCL INFO NET/IB : No device found.
vm:4:4 [0] NCCL INFO NET/IB : Using [RO]; OOB eth0:198.51.100.2<0>
vm:4:4 [0] NCCL INFO Using network Socket
vm:3:3 [0] NCCL INFO ncclCommInitRankConfig comm 0x3d rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 60 commId 0xc3 - Init START
vm:4:4 [0] NCCL INFO ncclCommInitRankConfig comm 0x15 rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 60 commId 0xc3 - Init START

[2026-11-26 14:04:42] vm:4:4 [0] init.cc:904 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 60
EXC DistBackendError NCCL error in: NCCLUtils.cpp:93, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.28.9
",
        first: "LOCAL: all 2 ranks are on one host, and no network is needed; the job did not start; FAULT: vm: two ranks use the \
                same GPU",
        holds: &["NCCL 2.28.9+cuda13.0; 2 ranks, none joined"],
        lacks: &["different versions", "TCP", "starting"],
    },
    Case {
        name: "ranks that write to one file tear each other's lines",
        log: "\
vm:70:70 [0] NCCL INFO ncclOsDlopen(libnccl-env.so) failed: No such file or divm:71:71 [0] NCCL INFO ncclOsDlopen(libnccl-env.so) failed
rectory
vm:71:71 [0] NCCL INFO Using network Socket
-1->3->2 [25vm:71:71 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/2
ivm:71:71 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/4
vm:70:70 [0] NCCL INFO ncclCommInitRankConfig comm 0x2 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 60 commId 0x9 - Init START
vm:71:71 [0] NCCL INFO comm 0x3 rank 1 nRanks 2 nNodes 1 localRanks 2 localRank 1 MNNVL 0
vm:70:7vm:71:71 [0] NCCL INFO comm 0x3 rank 7 nRanks 9 nNodes 3 localRanks 2 localRank 1 MNNVL 0
vm:70:70 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] via P2P/CUMEM
vm:71:71 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] via P2P/CUMEM
vm:71:71 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 0
vm:71:71 [0] NCCL INFO Connected all trees
vm:71:71 [0] NCCL INFO ncclCommInitRankConfig comm 0x3 rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 60 commId 0x9 - Init COMPLETE
",
        first: "LOCAL: all 2 ranks are on one host, and no network is used (NVLink, PCIe or shared memory)",
        holds: &["2 ranks, all joined; 1 host: vm\n", "Torn: 4 of 12 lines"],
        lacks: &["IB/2", "IB/4", "ivm"],
    },
    Case {
        name: "a single rank needs no network, and a plugin that is missing no word",
        log: "\
n:1:1 [0] NCCL INFO NET/IB : No device found.
n:1:1 [0] NCCL INFO Using network Socket
n:1:1 [0] NCCL INFO ncclCommInitRank comm 0x2 rank 0 nranks 1 cudaDev 0 nvmlDev 0 busId 60 commId 0x9 - Init COMPLETE
",
        first: "LOCAL: a single rank needs no network",
        holds: &["1 rank, joined"],
        lacks: &["TCP", "NCCL_"],
    },
    Case {
        name: "one host without InfiniBand needs none",
        log: "\
n:1:1 [0] NCCL INFO NET/IB : No device found.
n:1:1 [0] NCCL INFO Using network Socket
n:1:1 [0] NCCL INFO comm 0x2 rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 0
n:1:1 [0] NCCL INFO ncclCommInitRank comm 0x2 rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 60 commId 0x9 - Init COMPLETE
",
        first: "LOCAL: all 8 ranks are on one host, and no network is used (NVLink, PCIe or shared memory)",
        holds: &[],
        lacks: &["TCP", "unknown"],
    },
    Case {
        name: "a rank that waits for others is told from a part of a log",
        log: "\
n:1:1 [0] NCCL INFO Using network IB
n:1:1 [0] NCCL INFO ncclCommInitRank comm 0x2 rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 60 commId 0x9 - Init START
",
        first: "RDMA was chosen (network IB); 0 of 8 ranks have joined (this log is of 1 of them): the job is starting, or waits for a \
                rank",
        holds: &[],
        lacks: &["NCCL_DEBUG"],
    },
    Case {
        name: "the rank that does not come is named, also where others have connections already",
        log: "\
n:1:1 [0] NCCL INFO ncclCommInitRank comm 0x2 rank 0 nranks 3 cudaDev 0 nvmlDev 0 busId 60 commId 0x9 - Init START
m:2:2 [0] NCCL INFO ncclCommInitRank comm 0x2 rank 2 nranks 3 cudaDev 0 nvmlDev 0 busId 60 commId 0x9 - Init START
n:1:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0/GDRDMA
",
        first: "RDMA: yes, 1 NIC, GPUDirect on all; 0 of 3 ranks have joined (this log has no line of rank 1): the job is starting, or \
                waits for a rank",
        holds: &["3 ranks, none joined (2 in this log)"],
        lacks: &["FAULT"],
    },
    Case {
        name: "of a torn log nobody knows whether a job with connections has joined",
        log: "\
n:1:1 [0] NCCL INFO ncclCommInitRank comm 0x2 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 60 commId 0x9 - Init START
n:1:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA
n:1:1 [0] NCCL INFO ncclCommInitRank comm 0x2 rank 0 nranks 2 cudaDev 0 m:2:2 [0] NCCL INFO ncclCommInitRank comm 0x2 rank 1
",
        first: "RDMA: yes, 1 NIC, GPUDirect on all",
        holds: &["Torn: 1 of 3"],
        lacks: &["have joined"],
    },
    Case {
        name: "hosts that chose different networks",
        log: "\
a:1:1 [0] NCCL INFO Using network IB
b:1:1 [0] NCCL INFO NCCL_NET set by environment to Socket.
b:1:1 [0] NCCL INFO Using network Socket
a:1:1 [0] NCCL INFO comm 0x2 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 60 commId 0x9 - Init START
b:1:1 [0] NCCL INFO comm 0x2 rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 60 commId 0x9 - Init START
",
        first: "MIXED: a chose network IB, b chose Socket, because NCCL_NET is Socket; 0 of 2 ranks have joined: the job is \
                starting, or waits for a rank",
        holds: &[],
        lacks: &[],
    },
    Case {
        name: "advice names what is set already",
        log: "\
n:1:1 [0] NCCL INFO NCCL_IB_HCA set by environment to mlx5.
n:1:1 [0] connect.cc:987 NCCL WARN NET/IB : Attempted to connect incompatible devices: [0]mlx5_0:1/IB and [1]mlx5_1:1/RoCE
",
        first: "RDMA, as the warnings show; FAULT: n: one end is InfiniBand, the other RoCE",
        holds: &["with NCCL_IB_HCA (NCCL_IB_HCA is mlx5 here)"],
        lacks: &["NCCL_DEBUG"],
    },
    Case {
        name: "a retry and what another rank makes of a fault are not the fault",
        log: "\
n:1:1 [0] NCCL INFO Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1, curr state INIT, next state RTR, retrying 1/34 after 100 msec of sleep
n:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA
n:1:1 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer m<4711>
",
        first: "RDMA: yes, 1 NIC, GPUDirect on all; FAULT: n: another rank's connection was closed or broke: it ended or crashed",
        holds: &["look for the rank that ended first"],
        lacks: &["ARP"],
    },
    Case {
        name: "a rank that was killed, as the others tell it",
        log: "\
1: [2026-11-28 03:11:02] x1:70:99 [0] misc/socket.cc:58 NCCL WARN socketProgress: Connection closed by remote peer x2<50412>
1: [2026-11-28 03:11:02] x1:70:98 [0] proxy.cc:1507 NCCL WARN [Service thread] Accept failed Resource temporarily unavailable
srun: error: x2: task 2: Out Of Memory
",
        first: "unknown: no line names the network; FAULT: x1: another rank's connection was closed or broke: it ended or crashed (and 1 other fault \
                below)",
        holds: &["remote peer x2<50412>", "a thread of NCCL gave up"],
        lacks: &["without explanation"],
    },
    Case {
        name: "text that was wrapped at 80 columns",
        log: "\
node-a:161258:161690 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/R
oCE [RO]; OOB eth0:198.51.100.1<0>
node-a:161258:161690 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB
/1/GDRDMA
",
        first: "RDMA: yes, 1 NIC, GPUDirect on all",
        holds: &["mlx5_1  RoCE"],
        lacks: &["Torn"],
    },
    Case {
        name: "warnings that are not known are shown as they are and counted",
        log: "\
n:1:1 [0] x.cc:1 NCCL WARN Something odd at 0x7f01 on 3
n:1:1 [0] x.cc:1 NCCL WARN Something odd at 0x7f02 on 4
",
        first: "unknown: no line names the network; NCCL_DEBUG=INFO shows the network; a warning that rdmatop does not know: n: \"Something \
                odd at 0x7f01 on 3\"",
        holds: &["n (2 times): Something odd at 0x7f01 on 3", "2 warnings without explanation"],
        lacks: &["next:", "FAULT"],
    },
    Case {
        name: "a call that failed without a warning is a fault, and its trace is no advice to see more",
        log: "\
n:1:9 [0] NCCL INFO misc/socket.cc:564 -> 2
n:1:9 [0] NCCL INFO bootstrap.cc:270 -> 2
n:1:9 [0] NCCL INFO group.cc:64 -> 2 [Async thread]
n:1:1 [0] NCCL INFO group.cc:106 (ncclGroupEndInternal) -> 2
",
        first: "unknown: no line names the network; FAULT: n: a call of NCCL failed with a system error (ncclSystemError), where ranks find \
                one another at the start (bootstrap, by TCP)",
        holds: &["n (2 times): a call of NCCL failed", "names the place in NCCL's source"],
        lacks: &["NCCL_DEBUG"],
    },
    Case {
        name: "before a call that failed, a warning that is not known is quoted, that of another host is not",
        log: "\
m:1:1 [0] x.cc:1 NCCL WARN Elsewhere
n:1:1 [0] x.cc:1 NCCL WARN Something odd on 3
n:1:1 [0] proxy.cc:1 NCCL WARN [Service thread] Error encountered progressing operation=Connect, res=3, closing connection
n:1:1 [0] NCCL INFO group.cc:64 -> 3 [Async thread]
",
        first: "unknown: no line names the network; FAULT: n: a call of NCCL failed with an internal error (ncclInternalError), \
                after the warning \"Something odd on 3\"",
        holds: &[],
        lacks: &[],
    },
    Case {
        name: "places inside NCCL are no fault where it goes on, as without SHARP",
        log: "\
n:1:1 [0] NCCL INFO transport.cc:291 -> 2
n:1:1 [0] NCCL INFO init.cc:670 -> 2
n:1:1 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1
n:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA
",
        first: "RDMA: yes, 1 NIC, GPUDirect on all",
        holds: &[],
        lacks: &["FAULT", "Warnings"],
    },
    Case {
        name: "an exception of PyTorch has the text of NCCL's last warning, also where no line is NCCL's",
        log: "\
[E ProcessGroupNCCL.cpp:455] Some NCCL operations have failed or timed out.
RuntimeError: NCCL error: remote process exited or there was a network error, NCCL version 2.14.3
ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
Last error:
NET/IB : Got completion from peer 198.51.100.2<4711> with error 12, opcode 0, len 0, vendor err 129
",
        first: "RDMA, as the warnings show; FAULT: the peer did not answer (status 12, retries exceeded): its process or host is \
                gone, or packets are lost on the way",
        holds: &["NCCL 2.14.3", "ncclRemoteError"],
        lacks: &["no line of NCCL"],
    },
    Case {
        name: "an exception whose text is not known, or missing, still says with what the call failed",
        log: "\
torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:275, unhandled system error, NCCL version 2.20.5
ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.
Last error:

n:1:1 [0] NCCL INFO Using network IB
",
        first: "RDMA was chosen (network IB); FAULT: a call of NCCL failed with a system error (ncclSystemError)",
        holds: &[],
        lacks: &["not know these words"],
    },
    Case {
        name: "what PyTorch prints of a fault that NCCL has is not a second one",
        log: "\
n:1:1 [0] net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer m<4711> with error 12, opcode 0, len 0, vendor err 129
Last error: NET/IB : Got completion from peer m<4711> with error 12, opcode 0, len 0, vendor err 129
Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600013 milliseconds
",
        first: "RDMA, as the warnings show; FAULT: n: the peer did not answer (status 12, retries exceeded): its process or host is \
                gone, or packets are lost on the way",
        holds: &[],
        lacks: &["times", "watchdog"],
    },
    Case {
        name: "a collective that PyTorch gave up is a fault beside connections that were made",
        log: "\
n:1:1 [7] NCCL INFO Channel 07/0 : 15[7] -> 7[7] [receive] via NET/IB/7/GDRDMA
[E226 11:16:37.170 ProcessGroupNCCL.cpp:616] [Rank 7] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE) ran for 600077 milliseconds before timing out.
",
        first: "RDMA: yes, 1 NIC, GPUDirect on all; FAULT: a collective did not end in time (PyTorch's watchdog): a rank came late or \
                not at all, or the network stands still",
        holds: &["last enqueued NCCL work"],
        lacks: &[],
    },
    Case {
        name: "what Ray says of lines that it left out is no part of their text",
        log: "\
(RayWorkerWrapper pid=5) n:5:5 [6] NCCL INFO NCCL_IB_DISABLE set by environment to 1. [repeated 15x across cluster] (Ray deduplicates logs by default.)
(RayWorkerWrapper pid=5) n:5:5 [6] NCCL INFO Using network Socket [repeated 15x across cluster]
(RayWorkerWrapper pid=5) n:5:5 [6] NCCL INFO Channel 00/0 : 6[ [repeated 1x across cluster]
(RayWorkerWrapper pid=5) Loading weights took 3 s [repeated 15x across cluster]
",
        first: "TCP was chosen (network Socket), because NCCL_IB_DISABLE is 1",
        holds: &["NCCL_IB_DISABLE=1\n", "Ray left out 28 lines", "RAY_DEDUP_LOGS=0"],
        lacks: &["repeated", "channel"],
    },
    Case {
        name: "calls of verbs whose message has no error are faults all the same",
        log: "\
n:1:9 [0] NCCL INFO Channel 00 : 0[3000] -> 1[3000] [send] via NET/IB/0
n:1:9 [0] misc/ibvwrap.cc:268 NCCL WARN Call to ibv_create_cq failed
m:1:9 [0] ibvwrap.c:130 NCCL WARN Call to ibv_create_qp failed
m:1:9 [0] ibvwrap.c:120 NCCL WARN Call to ibv_reg_mr failed
",
        first: "RDMA: yes, 1 NIC, no GPUDirect; FAULT: n: a completion queue could not be made, and the message does not say why: \
                mostly the limit of locked memory (and 2 other faults below)",
        holds: &["memlock=-1", "m: a queue pair could not be made", "m: memory could not be registered"],
        lacks: &["without explanation"],
    },
    Case {
        name: "shared memory that is not there is not one that is too small",
        log: "\
n:1:9 [0] NCCL INFO Channel 01/1 : 0[0] -> 8[0] [send] via NET/IB/9/GDRDMA/Shared
n:1:9 [0] misc/shmutils.cc:129 NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl-a (size 141), error: No such file or directory (2)
",
        first: "RDMA: yes, 1 NIC, GPUDirect on all; FAULT: n: a rank could not open the shared memory that another rank of its host made",
        holds: &["RemoveIPC"],
        lacks: &["too small", "--shm-size"],
    },
    Case {
        name: "shared memory that is too small, as versions before 2.16 say it",
        log: "\
[3] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device
[3] include/shm.h:48 NCCL WARN Error while creating shared memory segment nccl-shm-recv-1-2-3 (size 9637888)
",
        first: "unknown: no line names the network; FAULT: shared memory between ranks of a host could not be made: /dev/shm is too small",
        holds: &["(2 times)", "--shm-size"],
        lacks: &["without explanation"],
    },
    Case {
        name: "a failure of CUDA is named by its words, and what another one only follows from is not first",
        log: "\
n:1:9 [0] init.cc:194 NCCL WARN Cuda failure 700 'an illegal memory access was encountered'
n:2:9 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'
n:2:9 [3] include/alloc.h:185 NCCL WARN Failed to CUDA calloc 6291456 bytes
n:3:9 [1] transport/nvls.cc:254 NCCL WARN Cuda failure 401 'the operation cannot be performed in the present state'
n:4:9 [1] enqueue.cc:103 NCCL WARN Cuda failure 'API call is not supported in the installed CUDA driver'
n:5:9 [1] misc/cudawrap.cc:33 NCCL WARN Cuda failure 'initialization error'
",
        first: "unknown: no line names the network; FAULT: n: a GPU has no memory left for NCCL's buffers (and 4 other faults below)",
        holds: &["memory of a GPU could not be made ready", "Fabric Manager", "driver is too old", "spawn", "compute-sanitizer"],
        lacks: &["a call of CUDA or HIP failed"],
    },
    Case {
        name: "GPUs that do not reach each other are a fault without any network",
        log: "\
n:1:9 [0] NCCL INFO Channel 00 : 0[2d000] -> 1[2e000] via P2P/IPC
n:1:9 [0] transport/p2p.cc:238 NCCL WARN failed to open CUDA IPC handle : 217 peer access is not supported between these two devices
m:1:9 [1] /src/transport/p2p.cc:220 NCCL WARN hipIpcGetMemHandle failed : invalid argument
m:1:9 [1] /src/transport/p2p.cc:221 NCCL WARN Cuda failure 'invalid argument'
",
        first: "unknown: this log shows no connection between hosts; FAULT: n: two GPUs of a host cannot reach each other's memory \
                (and 2 other faults below)",
        holds: &["NCCL_P2P_DISABLE=1", "m: a GPU's memory could not be shared"],
        lacks: &["TCP"],
    },
    Case {
        name: "an address of one link only is named, whichever error the connection had but a refusal",
        log: "\
n:1:1 [0] NCCL INFO NET/Socket : Using [0]ens5:198.51.100.1<0> [1]veth7:fe80::1%veth7<0>
n:1:1 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to ens5,veth7
n:1:1 [0] NCCL INFO Channel 00 : 1[1e0] -> 0[1e0] [receive] via NET/Socket/1
n:1:1 [0] include/socket.h:403 NCCL WARN Connect to fe80::2%veth7<54567> failed : Connection timed out
",
        first: "TCP: NET/Socket on ens5 and veth7, and the log does not say why; FAULT: n: a rank gave an address that holds on one link only (fe80, 169.254): NCCL took an interface of containers, of their services, or of a cable to one host",
        holds: &["^docker,lo,veth,virbr,br-", "(NCCL_SOCKET_IFNAME is ens5,veth7 here)"],
        lacks: &["firewall"],
    },
    Case {
        name: "what ranks and programs do wrong before any network is a fault",
        log: "\
n:1:1 [0] misc/socket.cc:441 NCCL WARN socketFinalizeAccept: wrong type 4 != 3
n:1:1 [0] enqueue.cc:422 NCCL WARN Error : no algorithm/protocol available
n:1:1 [0] socket.cc:816 NCCL WARN ncclSocketInit: connecting to address  with family 59936 is neither AF_INET(2) nor AF_INET6(10)
n:1:1 [0] init.cc:1969 NCCL WARN comm 0x55 has already been destroyed
n:1:1 [0] graph/xml.cc:332 NCCL WARN Could not find real path of /sys/class/pci_bus/0000:01/../../0000:01:00.0
n:1:1 [0] graph/topo.h:180 NCCL WARN Could not find NET with id 0
",
        first: "unknown: no line names the network; FAULT: n: a rank connected to a port that waits for another kind of connection: the \
                ranks are no longer in step (and 5 other faults below)",
        holds: &["unset NCCL_ALGO", "unique ID", "that it destroyed, or that is none", "WSL2", "NCCL 2.27 or later"],
        lacks: &["port scanner", "without explanation"],
    },
    Case {
        name: "a scanner and a bad topology are notes, and no fault",
        log: "\
n:1:1 [0] NCCL INFO comm 0x5 rank 0 nranks 1 cudaDev 0 busId 100000 - Init COMPLETE
n:1:9 [0] proxy.cc:1119 NCCL WARN [Service thread] Unknown command 790 from localRank -1
n:1:9 [0] graph/search.cc:765 NCCL WARN Could not find a path for pattern 4, falling back to simple order
",
        first: "LOCAL: a single rank needs no network",
        holds: &["a port scanner, or a rank of another job or version", "in the order of their numbers"],
        lacks: &["FAULT", "without explanation"],
    },
    Case {
        name: "an endpoint of libfabric that could not be made is a fault",
        log: "\
n:1:1 [7] NCCL INFO NET/OFI Selected Provider is efa
n:1:1 [7] NCCL INFO Ring 00 : 7 -> 8 [send] via NET/AWS Libfabric/0
n:1:1 [7] create_nccl_ofi_component:459 NCCL WARN NET/OFI Couldn't open AV. RC: -22, ERROR: Invalid argument
m:1:1 [0] nccl_net_ofi_domain_get_ep:969 NCCL WARN NET/OFI Creating new endpoint for domain 0x7f9 failed: Invalid argument
",
        first: "RDMA: yes, 1 NIC, no GPUDirect; FAULT: n: libfabric's provider cannot be opened (and 1 other fault below)",
        holds: &["m: an endpoint of libfabric could not be made"],
        lacks: &["without explanation"],
    },
    Case {
        name: "SHARP that cannot be used is a note, and its plugin's lines about GPUDirect name NICs",
        log: "\
n:1:1 [7] NCCL INFO NET/IB : GPU Direct RDMA (DMABUF) enabled for HCA 1 'mlx5_3
n:1:1 [7] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IBext_v10/1/GDRDMA
n:1:1 [7] sharp_plugin.c:320 NCCL WARN NET/IB : SHARP coll init error: Cannot create SHARP job(-11)
",
        first: "RDMA: yes, 1 NIC, GPUDirect on all",
        holds: &["sharp_am", "mlx5_3"],
        lacks: &["FAULT", "without explanation"],
    },
    Case {
        name: "of an exception whose text is not known, the text is quoted; a stack is none",
        log: "\
[rank7]: ncclInternalError: Internal check failed.
[rank7]: Last error:
[rank7]: Something odd on 3
[rank6]: ncclInternalError: Internal check failed.
[rank6]: Last error:
[rank6]: Exception raised from create at NCCLUtils.cpp:93 (most recent call first):
",
        first: "unknown: no line names the network; FAULT: a call of NCCL failed with an internal error (ncclInternalError), after \
                the warning \"Something odd on 3\"",
        holds: &["(2 times)"],
        lacks: &["Exception"],
    },
    Case {
        name: "a plugin that cannot be loaded is why its network is not there",
        log: "\
n:1:1 [7] NCCL INFO NET/Plugin: Plugin load returned 2 : libc.so.6: version `GLIBC_2.32' not found (required by /usr/lib/libnccl-net.so) : when loading libnccl-net.so
n:1:1 [7] NCCL INFO NET/Plugin: Using internal network plugin.
n:1:1 [7] net.cc:579 NCCL WARN Error: network gIB not found.
",
        first: "unknown: no RDMA, because the network plugin cannot be loaded: it was built for other libraries than those of the image; \
                FAULT: n: the network that NCCL_NET names is not there",
        holds: &[],
        lacks: &[],
    },
    Case {
        name: "an address of a pod's own services, and a topology file that does not fit",
        log: "\
n:1:1 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 169.254.20.10<43369> failed : Software caused connection abort
m:1:1 [2] graph/xml.h:101 NCCL WARN Attribute arch of node cpu not found
",
        first: "unknown: no line names the network; FAULT: n: a rank gave an address that holds on one link only (fe80, 169.254): NCCL took an interface of containers, of their services, or of a cable to one host (and 1 other fault below)",
        holds: &["pod-id-link", "m: the topology that NCCL was given lacks something"],
        lacks: &["firewall", "without explanation"],
    },
    Case {
        name: "a call of verbs that says its error is not one that does not",
        log: "\
n:1:9 [0] misc/ibvwrap.cc:278 NCCL WARN Call to ibv_create_qp failed with error No space left on device
n:1:9 [0] misc/ibvwrap.cc:268 NCCL WARN Call to ibv_create_cq failed with error No space left on device
n:1:9 [0] misc/ibvwrap.cc:258 NCCL WARN Call to ibv_reg_mr_iova2 failed with error No space left on device
",
        first: "unknown: no line names the network; NCCL_DEBUG=INFO shows the network; a warning that rdmatop does not know: n: \"Call to \
                ibv_reg_mr_iova2 failed with error No space left on device\"",
        holds: &["3 warnings without explanation"],
        lacks: &["FAULT", "memlock"],
    },
    Case {
        name: "the last error of another program is none of NCCL",
        log: "\
retry 3. Last error: HTTPConnectionPool(host='api', port=443): Connection refused
urllib3: upload failed. Last error:
Connection refused
",
        first: "unknown: no line of NCCL in this log. Run the job with NCCL_DEBUG=INFO",
        holds: &[],
        lacks: &["FAULT"],
    },
    Case {
        name: "the last error behind an invalid usage is read",
        log: "\
[rank1]: ncclInvalidUsage: This usually reflects invalid usage of NCCL library.
[rank1]: Last error:
[rank1]: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 60
",
        first: "unknown: no line names the network; FAULT: two ranks use the same GPU",
        holds: &[],
        lacks: &["times"],
    },
    Case {
        name: "one event that NCCL and PyTorch print is one, and has its host",
        log: "\
n:1:1 [0] NCCL WARN Something odd on 3
n:1:1 [0] NCCL INFO group.cc:64 -> 2 [Async thread]
[rank0]: ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.
[rank0]: Last error:
[rank0]: Something odd on 3
",
        first: "unknown: no line names the network; FAULT: n: a call of NCCL failed with a system error (ncclSystemError), after the \
                warning \"Something odd on 3\"",
        holds: &["n: Something odd on 3"],
        lacks: &["times"],
    },
    Case {
        name: "a plugin that cannot be loaded does not hide that NCCL's own transport is switched off",
        log: "\
n:1:1 [7] NCCL INFO NET/Plugin: Plugin load returned 2 : libc.so.6: version `GLIBC_2.32' not found (required by /usr/lib/libnccl-net.so) : when loading libnccl-net.so
n:1:1 [7] NCCL INFO NCCL_IB_DISABLE set by environment to 1.
n:1:1 [7] NCCL INFO Using network Socket
",
        first: "TCP was chosen (network Socket), because NCCL_IB_DISABLE is 1",
        holds: &[],
        lacks: &["image"],
    },
    Case {
        name: "where NICs are merged, the plugin of HPC-X names devices of another list",
        log: "\
n:1:1 [0] NCCL INFO NET/IB : Using [0]={[0] mlx5_0:1/RoCE, [1] mlx5_1:1/RoCE} [1]={[2] mlx5_2:1/RoCE} [RO]; OOB eth0:192.0.2.1<0>
n:1:1 [0] NCCL INFO NET/IB : GPU Direct RDMA (DMABUF) enabled for HCA 0 'mlx5_0
n:1:1 [0] NCCL INFO NET/IB : GPU Direct RDMA (DMABUF) enabled for HCA 1 'mlx5_1
n:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IBext_v8/0/GDRDMA
n:1:1 [0] NCCL INFO Channel 01/0 : 0[0] -> 8[0] [send] via NET/IBext_v8/1/GDRDMA
",
        first: "RDMA: yes, 2 NICs, GPUDirect on all",
        holds: &["mlx5_0+mlx5_1", "mlx5_2"],
        lacks: &["have no connection"],
    },
    Case {
        name: "an address of one link that refuses was reached, a graph without latency is a note, and memory of the host is no GPU's",
        log: "\
n:1:1 [0] misc/socket.cc:484 NCCL WARN socketPollConnect: connect to 169.254.33.7<4711> returned Connection refused
n:1:1 [0] graph/xml.h:101 NCCL WARN Attribute latencyinter of node graph not found
n:1:1 [0] include/alloc.h:60 NCCL WARN Failed to CUDA host alloc 1048576 bytes
",
        first: "unknown: no line names the network; FAULT: n: a rank's port did not answer: that process is gone or not there \
                yet, or a firewall refuses",
        holds: &["NCCL_GRAPH_FILE", "memory of the host"],
        lacks: &["NCCL_TOPO_FILE", "memory of a GPU", "pod-id-link", "other fault"],
    },
    Case {
        name: "two builds of one version are two",
        log: "NCCL version 2.28.9+cuda13.0\nNCCL version 2.28.9+cuda12.8\nNCCL version 2.28.9\nn:1:1 [0] NCCL INFO x\n",
        first: "unknown: no line names the network; give the log from its beginning, and NCCL_DEBUG_SUBSYS, if it is set, must \
                contain INIT or NET",
        holds: &["NCCL 2.28.9+cuda12.8 and NCCL 2.28.9+cuda13.0", "different versions"],
        lacks: &[],
    },
    Case {
        name: "NCCL takes no network but the one that NCCL_NET names, so that none was chosen where it is not there",
        log: "\
n:1:1 [0] NCCL INFO NCCL_NET set by environment to AWS Libfabric.
n:1:1 [0] NCCL INFO NET/Plugin : No plugin found, using internal implementation
n:1:1 [0] NCCL INFO NET/IB : No device found.
n:1:1 [0] NCCL INFO NET/Socket : Using [0]eth0:198.51.100.1<0>
n:1:1 [0] net.cc:370 NCCL WARN Error: network AWS Libfabric not found.
n:1:1 [0] NCCL INFO group.cc:64 -> 5 [Async thread]
",
        first: "unknown: no RDMA, because NCCL found no usable RDMA device; FAULT: n: the network that NCCL_NET names is not there",
        holds: &["NCCL_NET=AWS Libfabric"],
        lacks: &["TCP was chosen"],
    },
    Case {
        name: "a list of RDMA devices chooses nothing where NCCL_NET names sockets",
        log: "\
n:1:1 [0] NCCL INFO NCCL_NET set by environment to socket.
n:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:198.51.100.1<0>
",
        first: "unknown: no line names the network",
        holds: &[],
        lacks: &["RDMA was chosen"],
    },
    Case {
        name: "a job that finds no interface did not get as far as a network, so there is no reason why it has no RDMA",
        log: "\
n:1:1 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth7
n:1:1 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found
n:1:1 [0] NCCL INFO init.cc:102 -> 3
",
        first: "unknown: no line names the network; FAULT: n: no network interface matches, or none can be listened on, so ranks cannot find each other",
        holds: &["(NCCL_SOCKET_IFNAME is eth7 here)"],
        lacks: &["no RDMA"],
    },
    Case {
        name: "an answer of the RAS service is no log",
        log: "\
NCCL version 2.28.9 compiled with CUDA 13.0
Job summary
===========
Communicators... (0.00s)
=============
    0         1         2         8        16        16   RUNNING  INCOMPLETE
",
        first: "unknown: this is an answer of NCCL's RAS service, and no log. Run the job with NCCL_DEBUG=INFO",
        holds: &["NCCL 2.28.9"],
        lacks: &[],
    },
    Case {
        name: "NCCL prints its version alone with NCCL_DEBUG=VERSION, and with WARN where all is well",
        log: "NCCL version 2.20.5+cuda12.4\nstep 1 loss 3.2\n",
        first: "unknown: no line of NCCL but its version in this log. Run the job with NCCL_DEBUG=INFO",
        holds: &[],
        lacks: &[],
    },
    Case {
        name: "nothing at all",
        log: "",
        first: "unknown: the log is empty",
        holds: &[],
        lacks: &["NCCL_DEBUG"],
    },
    Case {
        name: "a log that ends after its first lines has its beginning",
        log: "\
n:1:1 [0] NCCL INFO Bootstrap: Using eth0:198.51.100.1<0>
n:1:1 [0] NCCL INFO cudaDriverVersion 13000
torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.
",
        first: "unknown: no line names the network; the log ends before NCCL chose one: the job is starting, or waits for a rank",
        holds: &[],
        lacks: &["from its beginning"],
    },
    Case {
        name: "a plugin that was asked for and is not there comes before devices that it would not have needed",
        log: "\
n:1:1 [0] NCCL INFO NCCL_NET_PLUGIN set by environment to aws-ofi
n:1:1 [0] NCCL INFO NET/Plugin: Could not find: aws-ofi libnccl-net-aws-ofi.so. Using internal network plugin.
n:1:1 [0] NCCL INFO NET/IB : No device found.
n:1:1 [0] NCCL INFO NET/Socket : Using [0]ens5:198.51.100.1<0>
n:1:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0
",
        first: "TCP: NET/Socket on ens5, because NCCL_NET_PLUGIN is aws-ofi, and that plugin was not found",
        holds: &[],
        lacks: &[],
    },
    Case {
        name: "a rank whose kernel touched foreign memory ends, and its peer does not answer then",
        log: "\
b:2:2 [0] enqueue.cc:1400 NCCL WARN Cuda failure 700 'an illegal memory access was encountered'
a:1:1 [0] net_ib.cc:1400 NCCL WARN NET/IB : Got completion from peer 198.51.100.2<4711> with status=12 opcode=0 len=0 hca mlx5_0
",
        first: "RDMA, as the warnings show; FAULT: b: a kernel on the GPU touched memory that it may not; NCCL only reports it (and \
                1 other fault below)",
        holds: &["a mlx5_0: the peer did not answer"],
        lacks: &[],
    },
    Case {
        name: "PyTorch says that a collective does not end in other words, too",
        log: "\
[rank5]:[E126 12:10:00 ProcessGroupNCCL.cpp:1987] [PG ID 0 Rank 5] Received a dump signal due to a collective timeout from  rank 7 and \
we will try our best to dump the debug info. Last enqueued NCCL work: 81, last completed NCCL work: 80.
",
        first: "unknown: no line names the network; FAULT: a collective did not end in time (PyTorch's watchdog): a rank came late \
                or not at all, or the network stands still",
        holds: &["last enqueued NCCL work"],
        lacks: &["no line of NCCL"],
    },
    Case {
        name: "PyTorch's watchdog may stand still itself",
        log: "\
[rank0]:[F126 12:20:00 ProcessGroupNCCL.cpp:1224] [PG 0 Rank 0] [PG 0 Rank 0] ProcessGroupNCCL's watchdog got stuck for 600 seconds \
without making progress in monitoring enqueued collectives.
",
        first: "unknown: no line names the network; FAULT: PyTorch's watchdog of collectives stands still itself: a call of CUDA or \
                NCCL does not return, or a thread that waits for one holds Python's lock",
        holds: &["py-spy dump"],
        lacks: &["no line of NCCL"],
    },
    Case {
        name: "a communicator that all its ranks began waits for no rank to come",
        log: "\
a:1:1 [0] NCCL INFO Using network IB
a:1:1 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1 commId 0x7 - Init COMPLETE
a:1:1 [0] NCCL INFO ncclCommSplit comm 0x3 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1 parent 0x1 splitCount 1 color 0 key 0 - Init START
b:2:2 [0] NCCL INFO ncclCommInitRank comm 0x2 rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 1 commId 0x7 - Init COMPLETE
b:2:2 [0] NCCL INFO ncclCommSplit comm 0x4 rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 1 parent 0x2 splitCount 1 color 0 key 1 - Init START
",
        first: "RDMA: network IB; all 2 ranks have joined; this log shows no connection between hosts; a communicator of 2 ranks began \
                and is not complete (this log has its ranks 0 and 1): its ranks do not reach one another, or the log ends there",
        holds: &[],
        lacks: &["does not come"],
    },
    Case {
        name: "a list of interfaces shows that the log has the subsystems that print more",
        log: "n:1:1 [0] NCCL INFO NET/Socket : Using [0]eth0:198.51.100.1<0>\n",
        first: "TCP was chosen (network Socket on eth0), and the log does not say why",
        holds: &[],
        lacks: &["from its beginning"],
    },
    Case {
        name: "programs of all kinds print NCCL's words for an error",
        log: "\
(RayWorkerWrapper pid=99) ERROR worker_base.py:145] RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO)
horovod.common.exceptions.HorovodInternalError: ncclCommInitRank failed: unhandled system error
cupy_backends.cuda.libs.nccl.NcclError: NCCL_ERROR_SYSTEM_ERROR: unhandled system error (run with NCCL_DEBUG=INFO for details)
",
        first: "unknown: no line names the network; FAULT: a call of NCCL failed with a system error (ncclSystemError)",
        holds: &["(3 times)"],
        lacks: &["no line of NCCL"],
    },
    Case {
        name: "nccl-tests has NCCL's last warning behind the error",
        log: "\
gpu-b: Test NCCL failure common.cu:1005 'remote process exited or there was a network error / socketProgress: Connection closed by \
remote peer gpu-a<4711>'
 .. gpu-b pid 2000: Test failure common.cu:844
",
        first: "unknown: no line names the network; FAULT: another rank's connection was closed or broke: it ended or crashed",
        holds: &["ncclRemoteError"],
        lacks: &["no line of NCCL"],
    },
    Case {
        name: "XLA has it in quotes",
        log: "\
E126 12:00:00 10 pjrt_client.cc:2985] Execution of replica 0 failed: INTERNAL: NCCL operation ncclCommInitRankConfig(&comm, ...) failed: \
unhandled system error (run with NCCL_DEBUG=INFO for details). Last NCCL warning(error) log entry (may be unrelated) 'Call to \
ibv_reg_mr failed with error Cannot allocate memory'.
",
        first: "RDMA, as the warnings show; FAULT: memory could not be pinned: the limit of locked memory is too small",
        holds: &["ulimit -l unlimited"],
        lacks: &["no line of NCCL"],
    },
    Case {
        name: "the provider of libfabric that one process names is that of all, unless another names another",
        log: "\
p5-1:31:40 [0] NCCL INFO Using network Libfabric
p5-2:32:41 [0] NCCL INFO NET/OFI Selected Provider is efa (found 16 nics)
p5-1:31:40 [0] NCCL INFO ncclCommInitRank comm 0x6 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 59000 commId 0x14 - Init COMPLETE
",
        first: "RDMA: network Libfabric; all 2 ranks have joined; this log, of 1 of 2 ranks, shows no connection between hosts",
        holds: &[],
        lacks: &["does not say"],
    },
    Case {
        name: "two providers name none",
        log: "\
p5-1:31:40 [0] NCCL INFO Using network Libfabric
p5-2:32:41 [0] NCCL INFO NET/OFI Selected Provider is efa (found 16 nics)
p5-3:33:41 [0] NCCL INFO NET/OFI Selected Provider is tcp (found 1 nics)
",
        first: "unknown: network Libfabric, and its name does not say whether that is RDMA",
        holds: &[],
        lacks: &[],
    },
    Case {
        name: "NICs that NCCL makes are listed, too",
        log: "\
(EngineCore_DP0 pid=31) (RayWorkerWrapper pid=98, ip=198.51.100.8) sp-2:98:98 [0] NCCL INFO NET/IB : Made virtual device [0] name=rocep1s0f1 speed=200000 ndevs=1
",
        first: "RDMA was chosen (network IB)",
        holds: &["1 host: sp-2"],
        lacks: &["from its beginning"],
    },
    Case {
        name: "NICs that receive directly and send from the host's memory have GPUDirect in part, and no distance is to blame",
        log: "\
j1:15:18 [0] NCCL INFO NCCL_NET_GDR_READ set by environment to 0.
j1:15:18 [0] NCCL INFO Channel 00 : 0[4000] -> 4[4000] [receive] via NET/IB/0/GDRDMA comm 0x2a nRanks 08
j1:15:18 [0] NCCL INFO Channel 00 : 4[4000] -> 0[4000] [send] via NET/IB/0 comm 0x2a nRanks 08
j2:16:19 [0] NCCL INFO Channel 00 : 4[4000] -> 0[4000] [receive] via NET/IB/0/GDRDMA comm 0x2b nRanks 08
j2:16:19 [0] NCCL INFO Channel 00 : 0[4000] -> 4[4000] [send] via NET/IB/0 comm 0x2b nRanks 08
",
        first: "RDMA: yes, 2 NICs, GPUDirect for receiving only",
        holds: &[
            "j1 IB/0: it receives directly, and sends from the host's memory: NCCL_NET_GDR_READ is 0",
            "NCCL_NET_GDR_READ=1 allows both",
        ],
        lacks: &["too far"],
    },
    Case {
        name: "NICs with some direct connections of either kind are not without GPUDirect",
        log: "\
j1:15:18 [0] NCCL INFO Channel 00 : 4[4000] -> 0[4000] [send] via NET/IB/0/GDRDMA
j1:15:18 [0] NCCL INFO Channel 00 : 0[4000] -> 4[4000] [receive] via NET/IB/0
",
        first: "RDMA: yes, 1 NIC, GPUDirect on a part of their connections",
        holds: &["1 of 2"],
        lacks: &["no GPUDirect"],
    },
    Case {
        name: "a line that a viewer has twice is one, and no host begins with the zone of a clock",
        log: "\
  | 2026-11-16T16:39:51.208-07:00 | n7:79:79 [0] NCCL INFO threadThresholds 8/8/64 | 64/8/64 | 512 | 512
  | 2026-11-16T16:39:51.208-07:00n7:79:79 [0] NCCL INFO NET/IB : No device found. | n7:79:79 [0] NCCL INFO NET/IB : No device found.
  | 2026-11-16T16:39:51.208-07:00n7:79:79 [0] NCCL INFO NET/Socket : Using [0]eth0:198.51.100.1<0> | n7:79:79 [0] NCCL INFO NET/Socket : Using [0]eth0:198.51.100.1<0>
",
        first: "TCP was chosen (network Socket on eth0), because NCCL found no usable RDMA device",
        holds: &["1 host: n7\n"],
        lacks: &["Torn"],
    },
    Case {
        name: "what a thread that gave up says comes after what it gave up for",
        log: "\
g9:22:58 [3] proxy.cc:1485 NCCL WARN [Service thread] Error encountered progressing operation=Connect, res=2, closing connection
g9:22:58 [3] proxy.cc:1495 NCCL WARN [Service thread] Could not receive type from localRank 0, res=3, closed=0
g9:22:49 [3] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer g8.example<53735>
",
        first: "unknown: no line names the network; FAULT: g9: another rank's connection was closed or broke: it ended or crashed (and 1 other fault \
                below)",
        holds: &["g9 (2 times): a thread of NCCL gave up"],
        lacks: &["without explanation"],
    },
    Case {
        name: "a failure of CUDA whose words say nothing is told by its place in the source, or quoted",
        log: "\
[2026-11-06 22:31:56] c1:34:38 [0] transport/nvls.cc:598 (ncclNvlsSetup) NCCL WARN Cuda failure 1 'invalid argument'
c1:34:38 [0] transport/p2p.cc:275 NCCL WARN Cuda failure 'invalid argument'
c1:34:38 [0] transport.cc:154 NCCL WARN Cuda failure 'invalid argument'
",
        first: "unknown: no line names the network; FAULT: c1: NVLink SHARP could not be set up (and 2 other faults below)",
        holds: &["memory of a GPU could not be shared between two ranks", "c1: a call of CUDA or HIP failed"],
        lacks: &[],
    },
    Case {
        name: "an error of CUDA that stays until the program ends is not explained by the call that reports it",
        log: "\
c1:34:38 [0] transport/p2p.cc:632 NCCL WARN Cuda failure 710 'device-side assert triggered'
c1:34:38 [0] transport/nvls.cc:598 NCCL WARN Cuda failure 719 'unspecified launch failure'
",
        first: "unknown: no line names the network; FAULT: c1: a call of CUDA or HIP failed (Cuda failure 710 'device-side assert triggered')",
        holds: &[],
        lacks: &["memory of a GPU could not be shared", "NVLink SHARP"],
    },
    Case {
        name: "memory of a GPU that another rank cannot open",
        log: "c1:34:38 [0] transport/p2p.cc:275 NCCL WARN Cuda failure 400 'invalid resource handle'\n",
        first: "unknown: no line names the network; FAULT: c1: memory of a GPU could not be shared between two ranks",
        holds: &[],
        lacks: &[],
    },
    Case {
        name: "words that no entry has are in the first line",
        log: "d1:64:77 [0] include/alloc.h:123 NCCL WARN Cuda failure 999 'unknown error'\n",
        first: "unknown: no line names the network; FAULT: d1: a call of CUDA or HIP failed (Cuda failure 999 'unknown error')",
        holds: &[],
        lacks: &[],
    },
    Case {
        name: "a call of DOCA from the transport IB shows RDMA",
        log: "w3:86:90 [0] transport/net_ib/gdaki/gin_host_gdaki.cc:431 (gdakiConnectQp) NCCL WARN DOCA failure 21\n",
        first: "RDMA, as the warnings show; FAULT: w3: a call of DOCA failed, by which GPUs start their own transfers (GIN)",
        holds: &["NCCL_GIN_ENABLE=0"],
        lacks: &["without explanation"],
    },
    Case {
        name: "a device of software is no fault, and a GID that is not there is one",
        log: "\
m:60:60 [0] transport/net_ib.cc:115 NCCL WARN Could not find real path of rxe1 (/sys/class/infiniband/rxe1/device)
m:60:60 [0] NCCL INFO NET/IB : Using [0]rxe1:1/RoCE [RO]; OOB eth1:198.51.100.13<0>
m:60:61 [0] misc/ibvwrap.cc:190 NCCL WARN Call to ibv_modify_qp failed with error No data available errno 61
",
        first: "RDMA was chosen (network IB); FAULT: m: a queue pair could not be connected: the port has no address (GID) at that index",
        holds: &["SoftRoCE"],
        lacks: &["without explanation"],
    },
    Case {
        name: "files of topologies and graphs that do not fit, and ranks that see different machines",
        log: "\
::16:16 [0] graph/search.cc:703 NCCL WARN XML Import Channel : dev 1 not found.
::16:16 [0] graph/xml.h:214 NCCL WARN Error : too many XML nodes (max 256)
::16:16 [0] graph/rings.cc:38 NCCL WARN Error : ring 2 does not loop back to start (7 != 2)
::16:16 [0] graph/paths.cc:87 NCCL WARN Failed to find reverse path from remNode 0/300000 nlinks 3 to node 0/800000
",
        first: "unknown: no line names the network; FAULT: the file of graphs that NCCL was given names a GPU that this job does not have: \
                it is of another machine, or of more GPUs (and 3 other faults below)",
        holds: &["/etc/nccl.conf", "has room for", "do not agree on the order", "in one direction only"],
        lacks: &["without explanation", "1 host"],
    },
    Case {
        name: "what programs do wrong with communicators",
        log: "\
j:29:69 [0] misc/argcheck.cc:39 NCCL WARN AllGather : invalid root 0 (root should be in the 0..-1 range)
j:29:69 [0] misc/argcheck.cc:39 NCCL WARN Broadcast : invalid root 8 (root should be in the 0..7 range)
",
        first: "unknown: no line names the network; FAULT: j: a program names a rank that its communicator does not have (and 1 other \
                fault below)",
        holds: &["was aborted"],
        lacks: &["without explanation"],
    },
    Case {
        name: "the tuner of the EFA plugin and PyTorch's older words for an error",
        log: "\
a9:78:79 [6] ncclResult_t nccl_ofi_tuner_init_v1(size_t, size_t, ncclDebugLogger_t):270 NCCL WARN NET/OFI The tuner plugin can not be loaded when explicitly choosing an algorithm or protocol with NCCL_ALGO/NCCL_PROTO
RuntimeError: NCCL Error 4: invalid argument (run with NCCL_DEBUG=WARN for details)
",
        first: "unknown: no line names the network; FAULT: a9: the tuner of the EFA plugin refuses a job that sets NCCL_ALGO or \
                NCCL_PROTO",
        holds: &["NCCL_TUNER_PLUGIN=none"],
        lacks: &["ncclInvalidArgument"],
    },
    Case {
        name: "PyTorch's older words for an error alone",
        log: "RuntimeError: NCCL Error 2: unhandled system error (run with NCCL_DEBUG=INFO for details)\n",
        first: "unknown: no line names the network; FAULT: a call of NCCL failed with a system error (ncclSystemError)",
        holds: &[],
        lacks: &["no line of NCCL"],
    },
    Case {
        name: "ranks that do not meet",
        log: "\
[E socket.cpp:860] [c10d] The client socket has timed out after 60s while trying to connect to 198.51.100.1:1234
torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed. See inner exception.
",
        first: "unknown: no line names the network; FAULT: the process where ranks meet (MASTER_ADDR, --rdzv-endpoint) does not answer",
        holds: &["127.0.1.1", "198.51.100.1:1234"],
        lacks: &["no line of NCCL"],
    },
    Case {
        name: "ranks that wait for the first one, by whatever error their wait ends",
        log: "\
g3: RuntimeError: [11] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but \
store->get('0') got error: Connection reset by peer
g3: Exception raised from recvBytes at ../torch/csrc/distributed/c10d/Utils.hpp:670 (most recent call first):
",
        first: "unknown: no line names the network; FAULT: the first rank did not hand out the ID that a communicator begins with: it \
                came late to its first collective, or ended",
        holds: &["rank 0"],
        lacks: &["no line of NCCL"],
    },
    Case {
        name: "a store that ends before the others is a note, as at the end of each job",
        log: "\
NCCL version 2.26.2+cuda12.4
[rank3]:[W703 01:01:05.364835151 TCPStore.cpp:138] [c10d] recvValueWithTimeout failed on SocketImpl(fd=90, addr=[n1]:43518, remote=[n0]:56789): Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?
",
        first: "unknown: no line names the network; NCCL_DEBUG=INFO shows the network",
        holds: &["nothing at the end of a job"],
        lacks: &["FAULT"],
    },
    Case {
        name: "XLA's text that is not known does not hide with what the call failed",
        log: "\
INTERNAL: xla/service/gpu/nccl_utils.cc:305: NCCL operation ncclCommInitRank(&comm, nranks, id, rank) failed: unhandled system error (run \
with NCCL_DEBUG=INFO for details). Last NCCL warning(error) log entry (may be unrelated) 'socketTryAccept: Something odd'.; current \
tracing scope: all-reduce-start.2
",
        first: "unknown: no line names the network; FAULT: a call of NCCL failed with a system error (ncclSystemError), after the warning \
                \"socketTryAccept: Something odd\"",
        holds: &[],
        lacks: &["tracing scope"],
    },
    Case {
        name: "what nccl-tests say of CUDA",
        log: "\
# Using devices
g10: Test CUDA failure common.cu:941 'invalid device ordinal'
 .. g10 pid 888: Test failure common.cu:891
",
        first: "unknown: no line names the network; FAULT: a GPU that NCCL or the program names is not there in this process",
        holds: &["CUDA_VISIBLE_DEVICES"],
        lacks: &["no line of NCCL"],
    },
    Case {
        name: "what PyTorch says where a terminal broke it, at more than 80 columns",
        log: "\
  what():  [PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog thread terminated with exception: [Rank 3] Watchdog caught colle
ctive operation timeout: WorkNCCL(SeqNum=4, OpType=BROADCAST, NumelIn=112, NumelOut=112, Timeout(ms)=1800000) ran for 1800011 millisecond
s before timing out.
",
        first: "unknown: no line names the network; FAULT: a collective did not end in time (PyTorch's watchdog): a rank came late or not \
                at all, or the network stands still",
        holds: &["SeqNum=4"],
        lacks: &["no line of NCCL"],
    },
    Case {
        name: "a daemon that does not answer is no rank",
        log: "k1:29:29 [0] NCCL WARN NET/FasTrak connect() error: 111: Connection refused\n",
        first: "unknown: no line names the network; FAULT: k1: the daemon that moves the plugin FasTrak's data on this host (RxDM) does \
                not answer",
        holds: &["tcpxo-daemon"],
        lacks: &["rank"],
    },
    Case {
        name: "what RCCL asks for in the environment is a note",
        log: "g7:12:12 [3] rccl/src/init.cpp:126 NCCL WARN Missing \"HSA_FORCE_FINE_GRAIN_PCIE=1\" from environment which can lead to low RCCL performance, system instablity or hang!\n",
        first: "unknown: no line names the network; NCCL_DEBUG=INFO shows the network",
        holds: &["a variable that RCCL asks for is not set"],
        lacks: &["FAULT", "without explanation"],
    },
    Case {
        name: "what an answer of the RAS service says is wrong",
        log: "\
Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    0         1         4         8        32        32   RUNNING  MISMATCH

#0-0 (fa93daea854b060b) MISMATCH
  Communicator ranks have different AllGather operation counts
  30 ranks have launched up to operation 640

#1-0 (fa93daea854b060c) MISMATCH
  Something else
",
        first: "unknown: this is an answer of NCCL's RAS service, and no log. It says MISMATCH: Communicator ranks have different \
                AllGather operation counts; 30 ranks have launched up to operation 640 (ask twice: ranks are never at the same place)",
        holds: &[],
        lacks: &["Something else"],
    },
    Case {
        name: "a process that is missing is so, however often the RAS service is asked",
        log: "\
Communicators... (0.00s)
=============

#0-0 (fa93daea854b060b) INCOMPLETE
  Missing communicator data from 1 job process
",
        first: "unknown: this is an answer of NCCL's RAS service, and no log. It says INCOMPLETE: Missing communicator data from 1 job \
                process",
        holds: &[],
        lacks: &["ask twice"],
    },
    Case {
        name: "a device that cannot be opened is one of several, where nothing says that there is no other",
        log: "e1:5:9 [0] transport/net_ib.cc:148 NCCL WARN NET/IB : Unable to open device erdma_2\n",
        first: "unknown: the device erdma_2 cannot be opened (/dev/infiniband missing in the container, or no rights); others may be used; \
                NCCL_DEBUG=INFO shows the network",
        holds: &[],
        lacks: &["no RDMA"],
    },
    Case {
        name: "ports that are taken, and collectives that differ in old versions",
        log: "\
426928:140:140 [0] include/socket.h:333 NCCL WARN Call to bind failed : Address already in use
426928:140:140 [0] init.cc:1247 NCCL WARN Mismatched collective detected, please check your collective calls at and around rank 3.
",
        first: "unknown: no line names the network; FAULT: 426928: a port cannot be listened on, because another process does (and 1 other \
                fault below)",
        holds: &["NCCL_DEBUG_SUBSYS=COLL"],
        lacks: &["without explanation"],
    },
    Case {
        name: "a store that finds its port taken",
        log: "\
[W socket.cpp:436] [c10d] The server socket has failed to bind to [::]:12211 (errno: 98 - Address already in use).
[E socket.cpp:472] [c10d] The server socket has failed to listen on any local network address.
",
        first: "unknown: no line names the network; FAULT: the port where ranks are to meet is taken on this host",
        holds: &["MASTER_PORT"],
        lacks: &["no line of NCCL"],
    },
    Case {
        name: "UCX says that a peer does not answer, with its host and its NIC",
        log: "\
[u1:42:0:42] ib_mlx5_log.c:177  Transport retry count exceeded on mlx5_3:1/IB (synd 0x15 vend 0x81 hw_synd 0/0)
[u1:42:0:42] ib_mlx5_log.c:177  DCI QP 0x77 wqe[9]: SEND s-e [rqpn 0x66 rlid 5] [inl len 18]
[u2:43 :0:43] ib_mlx5_log.c:115  FATAL: Error on mlx5_4:1 QP 0x1 wqe[7]: Transport retry count exceeded (synd 0x15 vend 0x81) opcode SEND
",
        first: "RDMA, as the warnings show; FAULT: u1 mlx5_3 and 1 more: the peer did not answer (status 12, retries exceeded): its process \
                or host is gone, or packets are lost on the way",
        holds: &["u2 mlx5_4"],
        lacks: &["no line of NCCL"],
    },
    Case {
        name: "UCX and a limit of locked memory, behind a clock and before a file that is no host",
        log: "\
[1794300000.111111] [u3:42:0]         ib_md.c:321  UCX  ERROR ibv_reg_mr(address=0x7f01, length=4096, access=0xf) failed: Cannot allocate \
memory. Please set max locked memory (ulimit -l) to 'unlimited' (current: 8192 kbytes)
",
        first: "unknown: no line names the network; FAULT: u3: UCX could not register memory: the limit of locked memory is too small",
        holds: &["LimitMEMLOCK"],
        lacks: &["ib_md.c:", "no line of NCCL"],
    },
    Case {
        name: "NVSHMEM cannot connect, in lines that its processes cut into each other",
        log: "\
v0:7:9 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 1000 commId 0x2 - Init COMPLETE
/src/modules/transport/ibrc/ibrc.cpp:418: non-zero status: 110 /src/modules/transport/ibrc/ibrc.cpp:418: non-zero status: 110 ibv_modify_qp failed

/src/modules/transport/ibrc/ibrc.cpp:1433: non-zero status: 7 ep_connect failed
",
        first: "RDMA, as the warnings show; all 16 ranks have joined; this log, of 1 of 16 ranks, shows no connection between hosts; FAULT: \
                NVSHMEM could not connect a queue pair: nobody answers for the peer's address (ARP or neighbour discovery)",
        holds: &["NVSHMEM_IB_GID_INDEX", "connect its processes"],
        lacks: &["without explanation"],
    },
    Case {
        name: "NVSHMEM has no NIC for transfers that GPUs start",
        log: "\
WARN: device erdma_1 is not enumerated as an mlx5 device. Skipping...

/src/host/transport/transport.cpp:nvshmemi_transport_init:275: init failed for transport: IBGDA
",
        first: "unknown: no line names the network; FAULT: NVSHMEM's transport IBGDA, by which GPUs start their own transfers, did not start; \
                programs that need it (DeepEP's low latency) fail",
        holds: &["its driver is not mlx5"],
        lacks: &["no line of NCCL"],
    },
    Case {
        name: "a peer's endpoint of EFA that is gone is no request that failed somehow",
        log: "\
e0:19:26 [2] process_err_completion:1562 NCCL WARN NET/OFI Request 0x7f08 completed with error. RC: 5. Error: Invalid receiver queue pair \
number (QPN) My EFA addr: fi_addr_efa://[fe80::1]:0:65 My host id: i-1 Peer EFA addr: fi_addr_efa://[fe80::2]:0:22 Peer host id: i-2. \
Completed length: 0
",
        first: "unknown: no line names the network; FAULT: e0: the peer's endpoint of EFA is not there: its process ended or began anew",
        holds: &["out of memory"],
        lacks: &["a request failed"],
    },
    Case {
        name: "libfabric says of itself what NCCL does not",
        log: "\
libfabric:45:1794300000::efa:cq:efa_rdm_txe_handle_error():737<warn> err: 5, message: Invalid address My EFA addr: fi_addr_efa://[fe80::1]:0:10 (7)
e1:45:47 [4] NCCL INFO Channel 00/0 : 0[4] -> 8[4] [send] via NET/AWS Libfabric/4/GDRDMA
",
        first: "RDMA: yes, 1 NIC, GPUDirect on all; FAULT: the peer's memory that a transfer of EFA names is not registered, or no longer: it \
                gave the transfer up, or ended",
        holds: &[],
        lacks: &[],
    },
    Case {
        name: "libfabric alone cannot register memory",
        log: "libfabric:71:1794300000::efa:mr:efa_mr_regattr():632<warn> Unable to register MR: Cannot allocate memory\n",
        first: "unknown: no line names the network; FAULT: libfabric could not register memory: the limit of locked memory, or the NIC's \
                number of regions, is reached",
        holds: &["--ulimit memlock=-1"],
        lacks: &["no line of NCCL"],
    },
    Case {
        name: "an exception of PyTorch whose lines somebody joined",
        log: "\
  what(): NCCL error: remote process exited or there was a network error, NCCL version 2.14.3 ncclRemoteError: A call failed possibly due \
to a network error. Last error: NET/IB : Got completion from peer 192.0.2.3<39138> with error 12, opcode 0, len 0, vendor err 129
",
        first: "RDMA, as the warnings show; FAULT: the peer did not answer (status 12, retries exceeded): its process or host is gone, or \
                packets are lost on the way",
        holds: &[],
        lacks: &["no line of NCCL"],
    },
    Case {
        name: "a program's own words before an error of NCCL",
        log: "  what():  NCCL failure: unhandled cuda error in my_all_reduce.cu at line: 86 rank: 0\n",
        first: "unknown: no line names the network; FAULT: a call of NCCL failed because CUDA or HIP failed (ncclUnhandledCudaError)",
        holds: &[],
        lacks: &["no line of NCCL"],
    },
    Case {
        name: "2.3 has a line for each interface",
        log: "\
q1:7:7 [0] misc/ibvwrap.cu:63 NCCL WARN Failed to open libibverbs.so[.1]
q1:7:7 [0] NCCL INFO Using internal Network Socket
q1:7:7 [0] NCCL INFO NET : Using interface eth4:198.51.100.7<0>
q1:7:7 [0] NCCL INFO NET : Using interface eth5:198.51.100.8<0>
q1:7:7 [0] NCCL INFO NET : Using interface eth4:198.51.100.7<0>
q1:7:7 [0] NCCL INFO NET/Socket : 2 interfaces found
",
        first: "TCP was chosen (network Socket on eth4 and eth5), because libibverbs could not be opened: it is missing in the image (install \
                libibverbs1 and ibverbs-providers)",
        holds: &[],
        lacks: &[],
    },
    Case {
        name: "an interface of 2.3 chooses no network",
        log: "\
q2:7:7 [0] NCCL INFO NET : Using interface ib0:198.51.100.7<0>
q2:7:7 [0] NCCL INFO NET/IB : Using interface ib0 for sideband communication
q2:7:7 [0] NCCL INFO Using internal Network IB
",
        first: "RDMA was chosen (network IB)",
        holds: &[],
        lacks: &["Socket"],
    },
    Case {
        name: "the trace of a call that failed names the network",
        log: "\
z1:7:9 [0] NCCL INFO transport/net_ib.cc:415 -> 2
z1:7:9 [0] NCCL INFO transport/net.cc:234 -> 2
z1:7:9 [0] NCCL INFO group.cc:72 -> 2 [Async thread]
",
        first: "RDMA, as the trace of a call that failed shows; FAULT: z1: a call of NCCL failed with a system error (ncclSystemError), in \
                the transport IB",
        holds: &[],
        lacks: &[],
    },
    Case {
        name: "the trace of a call over sockets, too, and what was chosen counts more",
        log: "\
z2:7:9 [0] NCCL INFO Using network Socket
z2:7:9 [0] NCCL INFO transport/net_ib.cc:415 -> 2
z2:7:9 [0] NCCL INFO misc/socket.cc:564 -> 2
z2:7:9 [0] NCCL INFO transport/net_socket.cc:336 -> 2
z2:7:9 [0] NCCL INFO group.cc:72 -> 2 [Async thread]
",
        first: "TCP was chosen (network Socket), and the log does not say why; FAULT: z2: a call of NCCL failed with a system error \
                (ncclSystemError), in the transport Socket",
        holds: &[],
        lacks: &["RDMA"],
    },
    Case {
        name: "the RAS service calls processes dead, behind whatever prefix",
        log: "\
Communicators... (0.00s)
=============

Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 34 on node 192.0.2.13 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
",
        first: "unknown: this is an answer of NCCL's RAS service, and no log. It says DEAD: 1 job process is considered dead (unreachable via \
                the RAS network); Process 34 on node 192.0.2.13 managing GPU 5",
        holds: &[],
        lacks: &["INCOMPLETE"],
    },
    Case {
        name: "Slurm's step does not come together",
        log: "slurmstepd: error:  mpi/pmix_v4: pmixp_coll_ring_reset_if_to: k1 [0]: pmixp_coll_ring.c:742: 0x14ce: collective timeout seq=0\n",
        first: "unknown: no line names the network; FAULT: the nodes of a Slurm step do not reach one another at its start (PMIx: collective \
                timeout)",
        holds: &["SlurmdPort"],
        lacks: &["no line of NCCL"],
    },
    Case {
        name: "an exception of PyTorch with an empty line behind each",
        log: "\
RuntimeError: NCCL error in: ../ProcessGroupNCCL.cpp:2897, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.27.3

ncclInvalidUsage: This usually reflects invalid usage of NCCL library.

Last error:

Bootstrap : no socket interface found
",
        first: "unknown: no line names the network; FAULT: no network interface matches, or none can be listened on, so ranks cannot find each other",
        holds: &[],
        lacks: &["no line of NCCL", "2 times"],
    },
    Case {
        name: "behind an empty line something else may stand than an error's text",
        log: "\
ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.
Last error:

o1:7:7 [3] NCCL INFO comm 0xa6 rank 11 nranks 16 cudaDev 3 busId 4e000 - Abort COMPLETE
[2026-01-09 08:16:36] something else: failed (exitcode: 1)
ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.
Last error:

[2026-01-09 08:16:37] something else again
",
        first: "unknown: no line names the network; FAULT: a call of NCCL failed with a system error (ncclSystemError)",
        holds: &[],
        lacks: &["something else"],
    },
    Case {
        name: "ranks that wait for the first one, as PyTorch spelt it before 2.0",
        log: "\
RuntimeError: [1] is setting up NCCL communicator and retreiving ncclUniqueId from [0] via c10d key-value store by key '0', but \
store->get('0') got error: Timeout waiting for key: default_pg/0/0 after 1800000 ms
",
        first: "unknown: no line names the network; FAULT: the first rank did not hand out the ID that a communicator begins with: it \
                came late to its first collective, or ended",
        holds: &[],
        lacks: &["no line of NCCL"],
    },
    Case {
        name: "the first release of the EFA plugin finds no provider",
        log: "\
a1:7:7 [0] get_ofi_provider:312 NCCL WARN NET/OFI Could not find any optimal provider
a1:7:7 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]
a1:7:7 [0] NCCL INFO NET/Socket : Using [0]ens5:198.51.100.1<0>
",
        first: "TCP was chosen (network Socket on ens5), because the EFA plugin found no provider of libfabric",
        holds: &[],
        lacks: &["FAULT"],
    },
    Case {
        name: "an endpoint of libfabric that is not EFA's",
        log: "a2:31:44 [0] ofi_init_connection:120 NCCL WARN NET/OFI Disabling shared memory failed: Protocol not available\n",
        first: "unknown: no line names the network; FAULT: a2: an endpoint of libfabric could not be made: its provider is not EFA's, or too \
                old to be told to use no shared memory",
        holds: &[],
        lacks: &["without explanation"],
    },
    Case {
        name: "lines of Loki, Elastic and Google, and bytes of journald",
        log: "\
{\"data\":{\"result\":[{\"stream\":{\"pod\":\"w0\"},\"values\":[[\"1794300000000000000\",\"l1:7:7 [0] NCCL INFO Using network Socket\"],\
[\"1794300000000000001\",\"l1:7:7 [0] NCCL INFO NET/Socket : Using [0]eth1:198.51.100.1<0>\"]]}]}}
{\"_source\":{\"@timestamp\":\"2026-01-09T08:16:36Z\",\"message\":\"ncclSystemError: System call failed\"}}
{\"_HOSTNAME\":\"l1\",\"MESSAGE\":[27,91,51,51,109,108,49,58,55,58,55,32,91,48,93,32,78,67,67,76,32,73,78,70,79,32,78,69,84,47,73,66,32,58,32,78,111,32,100,101,118,105,\
99,101,32,102,111,117,110,100,46,27,91,48,109]}
",
        first: "TCP was chosen (network Socket on eth1), because NCCL found no usable RDMA device; FAULT: a call of NCCL failed with a \
                system error (ncclSystemError)",
        holds: &["1 host: l1"],
        lacks: &["Torn"],
    },
    Case {
        name: "interfaces that 2.4 lists first choose no network, where others of the job have gone on to theirs",
        log: "\
s6:14:15 [0] NCCL INFO NET/IB : Using [0]mlx5_18:1/RoCE ; OOB :
s6:17:18 [3] NCCL INFO NET/Socket : Using [0]enp1:198.51.100.6<0> [1]flannel.1:203.0.113.0<0>
s7:41:42 [0] NCCL INFO NET/Socket : Using [0]enp1:198.51.100.7<0> [1]flannel.1:203.0.113.1<0>
",
        first: "RDMA was chosen (network IB)",
        holds: &[],
        lacks: &["MIXED"],
    },
    Case {
        name: "an address whose kind a container does not show",
        log: "\
`y0:11:30 [0] transport/net_ib.cc:330 NCCL WARN NET/IB: read failed in ncclIbRoceGetVersionNum: Invalid argument
y0:11:30 [0] NCCL INFO transport/net_ib.cc:470 -> 2`
",
        first: "RDMA, as the warnings show; FAULT: y0: the kind (RoCE v1 or v2) of an address (GID) cannot be read: the container's /sys has \
                no such index, and NCCL up to 2.25 ends there",
        holds: &["show_gids", "1 host: y0"],
        lacks: &["without explanation"],
    },
    Case {
        name: "the place where ranks meet, as torchrun's exceptions tell it",
        log: "\
RuntimeError: connect() timed out. Original timeout was 60000 ms.

The above exception was the direct cause of the following exception:

torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details.
",
        first: "unknown: no line names the network; FAULT: the process where ranks meet (MASTER_ADDR, --rdzv-endpoint) does not answer",
        holds: &["127.0.1.1"],
        lacks: &["no line of NCCL"],
    },
    Case {
        name: "nodes that do not come to the rendezvous",
        log: "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError\n",
        first: "unknown: no line names the network; FAULT: not all nodes came to the rendezvous in time (torchrun)",
        holds: &["--rdzv-id"],
        lacks: &["no line of NCCL"],
    },
    Case {
        name: "an error of UCX that is not known is shown, with its host",
        log: "\
[1794300000.684686] [t4:99:0]      ib_mlx5_dv.c:452  UCX  ERROR   mlx5dv_devx_obj_create(CQ) failed on mlx5_1, syndrome 0x2aac7c: Remote I/O error
[1794300000.719079] [t4:99:0]           tcp_ep.c:397  UCX  ERROR   something else
[1794300000.719080] [t4:99:0]           tcp_ep.c:398  UCX  WARN    nothing to say
",
        first: "unknown: no line names the network; NCCL_DEBUG=INFO shows the network; a warning that rdmatop does not know: t4: \"UCX  ERROR   \
                something else\"",
        holds: &["mlx5dv_devx_obj_create(CQ)", "2 warnings without explanation"],
        lacks: &["no line of NCCL", "nothing to say", "tcp_ep.c"],
    },
    Case {
        name: "processes that Gloo does not join",
        log: "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error\n",
        first: "unknown: no line names the network; FAULT: processes could not connect with one another by Gloo (TCP), which frameworks use \
                beside NCCL",
        holds: &["GLOO_SOCKET_IFNAME"],
        lacks: &["no line of NCCL"],
    },
    Case {
        name: "a peer of NIXL that is gone",
        log: "nixl_cu13._bindings.nixlRemoteDisconnectError: NIXL_ERR_REMOTE_DISCONNECT\n",
        first: "unknown: no line names the network; FAULT: NIXL's peer is gone, or its connection broke",
        holds: &[],
        lacks: &["no line of NCCL"],
    },
    Case {
        name: "processes that do not come to JAX's coordinator, and threads that wait",
        log: "\
E external/xla/xla/service/rendezvous.cc:38] This thread has been waiting for `initialize clique for rank 6; stream=0` for 10 seconds and may be stuck. \
Expected 8 threads to join the rendezvous
Additional GRPC error information while calling /xla.coordination.CoordinationService/RegisterTask:
",
        first: "unknown: no line names the network; FAULT: a process could not register with JAX's coordinator: not all came in time, or it \
            is unreachable or refused (the words before say which)",
        holds: &["is unstuck"],
        lacks: &["no line of NCCL"],
    },
    Case {
        name: "a line that names NCCL and an error of something else is none of NCCL's",
        log: "pynccl.py:69] vLLM uses nccl==2.27.3\nworker: invalid argument: --nccl-port\ninternal error of the NCCL profiler plugin\n",
        first: "unknown: no line of NCCL in this log. Run the job with NCCL_DEBUG=INFO",
        holds: &[],
        lacks: &["FAULT"],
    },
    Case {
        name: "a library made from NCCL writes NCCL's lines under its own name",
        log: "\
a1:7:7 [0] FLAGCX INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth1:198.51.100.1<0>
b1:8:8 [0] 282.991520 bootstrapAllGather:467 FLAGCX TRACE rank 0 nranks 2 size 8
[2026-01-02 03:04:05] a1:7:7 [1] enqueue.cc:3001 VCCL WARN RMA coll: recvbuff is NULL
a1:7:7 [1] VCCL INFO group.cc:78 -> 4 [Async thread]
ACCL version 2.21.5.7+cuda12.4
",
        first: "RDMA was chosen (network IB); FAULT: a1: a program gave NCCL an argument that it refuses (ncclInvalidArgument), \
                after the warning \"RMA coll: recvbuff is NULL\"",
        holds: &["ACCL 2.21.5.7+cuda12.4; 1 host: a1\n"],
        lacks: &["b1"],
    },
    Case {
        name: "what PyTorch prints of a library made from NCCL",
        log: "\
torch.distributed.DistBackendError: FLAGCX error in: backend_flagcx.cpp:927, 
flagcxInvalidArgument: Invalid value for an argument.
Last error:
Undefined: the communicator is not fully initialized.
",
        first: "unknown: no line names the network; FAULT: a program gave NCCL an argument that it refuses (ncclInvalidArgument), \
                after the warning \"Undefined: the communicator is not fully initialized.\"",
        holds: &[],
        lacks: &[],
    },
    Case {
        name: "lines that lost their ends are told apart by their writer",
        log: "\
seed=0) (RayWorker pid=77) a1:77:77 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to ^lo (RayWorker pid=77) (RayWorker pid=77) \
a1:77:77 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found (RayWorker pid=77) a1:77:77 [0] NCCL INFO init.cc:82 -> 3
",
        first: "unknown: no line names the network; FAULT: a1: no network interface matches, or none can be listened on, so ranks cannot \
                find each other",
        holds: &["NCCL_SOCKET_IFNAME=^lo\n"],
        lacks: &["Torn"],
    },
    Case {
        name: "a host that only a line within a line names may be cut, so nothing is taken of that line",
        log: "\
vm:1:1 [0] NCCL INFO Using network IB
vm:1:1 [0] NCCL INFO No such file or divm:2:2 [0] NCCL INFO NET/IB : Using [0]mlx5_9:1/IB
",
        first: "RDMA was chosen (network IB)",
        holds: &["1 host: vm\n", "Torn: 1 of 2 lines"],
        lacks: &["divm", "mlx5_9"],
    },
    Case {
        name: "a copy that begins within the name of a host has no host of the rest of that name",
        log: "\
tos:77:78 [0] net_ib.cc:9 NCCL WARN NET/IB : Got completion from peer 192.0.2.2<4711> with error 5, opcode 0, len 0, vendor err 249
vm-1-centos:77:78 [0] NCCL INFO proxy.cc:874 -> 6 [Progress Thread]
",
        first: "RDMA, as the warnings show; FAULT: a request was dropped because its queue pair had already failed (status 5)",
        holds: &["1 host: vm-1-centos\n", "Torn: 1 of 2 lines"],
        lacks: &["2 hosts"],
    },
    Case {
        name: "the port of the RAS service is no port of the job's",
        log: "\
a1:7:8 [1] NCCL INFO ncclCommInitAll comm 0x5f rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId d6000 commId 0x22 - Init START
a1:7:7 [0] NCCL INFO ncclCommInitAll comm 0x5e rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 52000 commId 0x22 - Init START
[2026-01-02 03:04:05] a1:7:8 [1] ras/client_support.cc:159 NCCL WARN Call to bind failed: Address already in use
a1:7:8 [1] NCCL INFO RAS failed to establish a client listening socket at localhost:28028
a1:7:8 [1] NCCL INFO ncclCommInitAll comm 0x5f rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId d6000 commId 0x22 - Init COMPLETE
",
        first: "LOCAL: all 2 ranks are on one host, and no network is used (NVLink, PCIe or shared memory)",
        holds: &["the port where NCCL's RAS service answers is taken"],
        lacks: &["FAULT"],
    },
    Case {
        name: "the places of a build of RCCL end in .cpp",
        log: "\
a1:7:9 [3] NCCL INFO /build/rccl/src/transport/net_socket.cpp:336 -> 2
a1:7:9 [3] /build/rccl/src/misc/socket.cpp:57 NCCL WARN socketProgress: Connection closed by remote peer a2.example<57521>
a1:7:7 [3] NCCL INFO /build/rccl/src/group.cpp:118 -> 3
",
        first: "TCP, as the trace of a call that failed shows; FAULT: a1: another rank's connection was closed or broke: it ended or crashed",
        holds: &["ncclInternalError"],
        lacks: &[],
    },
    Case {
        name: "Google's plugin says what the transport IB says, and its checker ends a job",
        log: "\
a1:7:9 [3] net_ib.cc:101 NCCL WARN NET/gIB : mlx5_3:1 Got async event : port error
a1:7:9 [3] net_ib.cc:9 NCCL WARN NET/gIB : Got completion from peer 192.0.2.2<4711> with status=12 opcode=0 len=0 vendor err 129 (Recv)
a2:7:9 [3] shim.cc:9 NCCL WARN NCCL/NET (shim) mismatch enforced: NCCL_FASTRAK_NUM_FLOWS=4 (expected 2)
a2:7:9 [3] shim.cc:9 NCCL WARN NCCL/NET (shim) mismatch recommended: NCCL_MAX_P2P_NCHANNELS=8 (expected unset)
",
        first: "RDMA, as the warnings show; FAULT: a1 mlx5_3: the port went down (and 2 other faults below)",
        holds: &["the peer did not answer (status 12", "Google's checker of settings ends the job", "would have another value"],
        lacks: &["without explanation"],
    },
];

#[test]
fn published_logs_are_judged_as_they_are() {
    let mut wrong = String::new();
    for case in CASES {
        let page = page::text(&read(case.log), &Links::default(), None);
        let first = page.lines().next().unwrap_or_default();
        // The page breaks long lines.
        let whole = page.split_whitespace().collect::<Vec<_>>().join(" ");
        let holds = case
            .holds
            .iter()
            .all(|text| page.contains(text) || whole.contains(text));
        let lacks = case.lacks.iter().all(|text| !page.contains(text));
        if first != case.first || !holds || !lacks {
            let (name, holds, lacks) = (case.name, case.holds, case.lacks);
            let _ = writeln!(
                wrong,
                "{name}\nwanted {:?}\n{holds:?} {lacks:?}\n{page}",
                case.first
            );
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Prefixes of launchers and other encodings (Windows) must change nothing.
#[test]
fn every_log_reads_alike_behind_prefixes_and_in_other_encodings() {
    for case in CASES.iter().filter(|case| !case.name.contains("80 columns")) {
        let wanted = page::text(&read(case.log), &Links::default(), None);
        let each = |of: &dyn Fn(&str) -> String| case.log.lines().map(of).collect::<Vec<_>>().join("\n");
        let plain = !case.log.starts_with('{') && !case.log.contains("\nrectory");
        for (log, applies) in [
            (each(&|line| format!("{line}\r")), true),
            (each(&|line| format!("\u{1b}[36m{line}\u{1b}[0m")), true),
            (each(&|line| format!("3: {line}")), plain),
            (each(&|line| format!("[1,3]<stdout>:{line}")), plain),
            (
                each(&|line| format!("2026-11-03T01:02:03.456789Z stdout F {line}")),
                plain,
            ),
            (
                each(&|line| format!("Nov 03 01:02:03 head step[7]: {line}")),
                plain,
            ),
            (
                each(&|line| serde_json::json!({"log": format!("{line}\n"), "stream": "stderr"}).to_string()),
                plain,
            ),
        ] {
            if applies {
                assert_eq!(
                    page::text(&read(&log), &Links::default(), None),
                    wanted,
                    "{}",
                    case.name
                );
            }
        }
    }
}
