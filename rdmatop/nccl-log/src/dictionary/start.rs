//! What NCCL and RCCL print about sockets, and about the start of a job.

use super::{
    Entry,
    Pattern::{In, Text},
};

const FIRST: &str = "look for the rank that ended first: the others only report it";
const UNREACHED: &str = "the interface that NCCL took (`Bootstrap : Using`) does not reach that host: NCCL_SOCKET_IFNAME names one that does; look \
                         for a firewall";
const HIP: &str = "RCCL; of ROCm 5.5 to 6.3 as `Cuda failure`";

pub(super) const ENTRIES: &[Entry] = messages! {
    // Before `refused`: it is no rank.
    "fastrak-daemon" Fault means "the daemon that moves the plugin FasTrak's data on this host (RxDM) does not answer";
        next "the log of that host's tcpxo-daemon (the pod's sidecar): it ends where it does not find every GPU and its NIC";
        in "GPUDirect-TCPXO": Text(&["NET/FasTrak", "onnect", "Connection refused"]);

    "refused" Echo means "a rank's port did not answer: that process is gone or not there yet, or a firewall refuses";
        next FIRST;
        in "NCCL 2.3 on, RCCL": Text(&["*", "onnect", "Connection refused"]);

    // Behind `refused`, which shows that the address was reached.
    "local-address" Fault means "a rank gave an address that holds on one link only (fe80, 169.254): NCCL took an interface of containers, of their \
        services, or of a cable to one host";
        next "NCCL_SOCKET_IFNAME with the interface that joins the hosts, or without those that have such addresses (`ip -br address`): \
            ^docker,lo,veth,virbr,br-,pod-id-link";
        in "NCCL 2.4 on, RCCL": Text(&["*", "onnect to fe80:", "%"]);
        in "NCCL 2.4 on, RCCL": Text(&["*", "onnect to 169.254.", "<", "> "]);

    "unreached" Echo means "a rank's host cannot be reached: there is no route, or a firewall rejects";
        next UNREACHED;
        in "NCCL 2.4 on, RCCL": Text(&["*", "onnect to ", "No route to host"]);
        in "NCCL 2.4 on, RCCL": Text(&["*", "onnect to ", "Network is unreachable"]);

    "unreached" Echo means "a rank's host or process does not answer: it is down, or a firewall drops";
        next UNREACHED;
        in "NCCL 2.4 on, RCCL": Text(&["*", "onnect to ", "Connection timed out"]);
        in "NCCL 2.16 to 2.23, RCCL of ROCm 5.6 on": Text(&["socketPollConnect: exceeded "]);
        in "NCCL 2.24 on, RCCL of ROCm 7.0 on": Text(&["*", "onnect to ", " retry count"]);

    "unreached" Echo means "a rank's host or process cannot be reached";
        next UNREACHED;
        in "NCCL 2.4 on, RCCL": Text(&["*", "onnect to ", " failed : "]);
        in "NCCL 2.30 on": Text(&["*", "PollConnect to ", " failed with error "]);

    "peer-gone" Follows means "another rank's connection was closed or broke: it ended or crashed";
        next FIRST;
        in "NCCL 2.3 on, RCCL": Text(&["*", "Connection closed by remote peer"]);
        in "NCCL 2.3 on, RCCL": Text(&["*", "Connection reset by peer"]);
        in "NCCL 2.3 on, RCCL": Text(&["*", "failed : Broken pipe"]);

    "unreached" Echo means "a rank's host or process cannot be reached";
        next UNREACHED;
        in "NCCL 2.3 to 2.11, RCCL to ROCm 5.2": Text(&["*", "Call to connect failed"]);

    "no-buffer" Follows means "a rank could not give another one of its host memory of its GPU as a buffer between: it has none left, or the other \
        one ended";
        next "the WARN before it; how full the GPU's memory is (`nvidia-smi`)";
        in "NCCL 2.8 to 2.11": Text(&["[Rem Allocator] Allocation failed"]);

    // Behind `unreached`, which has no connection yet.
    "peer-silent" Echo means "another rank's host can no longer be reached on a connection that was made";
        next "look at that host and the network between: it is down, its route is gone, or packets are lost";
        in "NCCL 2.3 on, RCCL, FastSocket, GPUDirect-TCPX":
            Text(&["*", "Call to ", " failed : ", "Connection timed out"]);
        in "NCCL 2.3 on, RCCL, FastSocket, GPUDirect-TCPX":
            Text(&["*", "Call to ", " failed : ", "No route to host"]);

    "wrong-socket" Fault means "a rank connected to a port that waits for another kind of connection: the ranks are no longer in step";
        next "look for a rank that failed or began anew before, and for different versions or NCCL_ settings of the ranks";
        in "NCCL 2.16 to 2.31, RCCL of ROCm 5.6 on": Text(&["socketFinalizeAccept", ": wrong type "]);

    "stranger" Note means "something else connected to a port of NCCL: a port scanner, or a rank of another job or version";
        next "nothing, if it came once; else keep scanners away from the hosts; two jobs must not share an address (NCCL_COMM_ID, MASTER_PORT)";
        in "NCCL 2.16 to 2.26, RCCL of ROCm 5.6 on": Text(&["socketFinalizeAccept", ": wrong magic "]);
        in "NCCL 2.12 on, RCCL of ROCm 5.3 on": Text(&["[Service thread] Unknown command "]);

    "no-files" Fault means "the process may not open more files, and each connection is one";
        next "`ulimit -n` of the job: 65536 and more for large jobs";
        in "NCCL 2.3 on, RCCL": Text(&["*", "ccept", "ailed", "Too many open files"]);

    "no-address" Fault means "an address of another rank is empty: its NCCL_SOCKET_IFNAME matches no interface, or the unique ID did not arrive from \
        the first rank";
        next "check NCCL_SOCKET_IFNAME against `ip -br address` on every host; where it is right, how the program hands the unique ID on";
        in "NCCL 2.8 on, RCCL of ROCm 4.2 on":
            Text(&["*", "connecting to address", "with family 0 ", "neither AF_INET"]);

    "foreign-address" Fault means "what a rank got as another's address is none: the unique ID did not arrive from the first rank, or the two use \
        different networks (a plugin, sockets) or versions";
        next "how the program hands the unique ID on; then `Using network` and `NCCL version` of all ranks, which must be alike";
        in "NCCL 2.8 on, RCCL of ROCm 4.2 on":
            Text(&["*", "connecting to address", "with family ", "neither AF_INET"]);
        in "NCCL 2.3 to 2.12, RCCL to ROCm 5.3": Text(&["Net : Socket creation failed", "Address family not supported"]);

    "bad-address" Fault means "the first rank's name cannot be resolved";
        next "the host's name in MASTER_ADDR or NCCL_COMM_ID, and the name service of this host or container";
        in "NCCL 2.3 on, RCCL": Text(&["Net : error encountered when getting address info"]);

    "bad-address" Fault means "NCCL_COMM_ID is not an address with a port";
        next "set it to HOST:PORT of the first rank, or not at all";
        in "NCCL 2.3 on, RCCL": Text(&["Invalid NCCL_COMM_ID"]);

    "double-rank" Fault means "two processes say that they are the same rank";
        next "the ranks that the launcher gives; two jobs must not share an address (NCCL_COMM_ID, MASTER_PORT)";
        in "NCCL 2.3 on, RCCL": Text(&["Bootstrap Root : rank ", " has already checked in"]);

    "double-job" Fault means "ranks disagree on how many they are";
        next "two jobs must not share an address (NCCL_COMM_ID, MASTER_PORT); the number of ranks that the launcher gives";
        in "NCCL 2.3 on, RCCL": Text(&["Bootstrap Root : mismatch in "]);

    // The start of a job.
    "shared-gpu" Fault means "two ranks use the same GPU";
        next "each rank needs a GPU of its own: look at CUDA_VISIBLE_DEVICES and at the local rank that the program uses; from 2.30 on \
            NCCL_MULTI_RANK_GPU_ENABLE=1 allows it";
        in "NCCL 2.5 to 2.29, RCCL": Text(&["Duplicate GPU detected"]);
        in "NCCL 2.30 on":
            Text(&["Multiple ", "anks ", "using the same GPU", "NCCL_MULTI_RANK_GPU_ENABLE"]);

    "versions" Fault means "ranks run different versions of NCCL";
        next "use one image on every host";
        in "NCCL 2.23 on, RCCL of ROCm 7.0 on": Text(&["Mismatched NCCL version detected"]);

    "versions" Note means "ranks run different versions of NCCL";
        next "use one image on every host";
        in "NCCL 2.24 on, RCCL of ROCm 7.0 on": Text(&["NCCL version mismatch with remote peer"]);

    "unknown-network" Fault means "the network that NCCL_NET names is not there";
        next "NCCL_NET is IB, Socket or the name of a plugin that is installed (`NET/Plugin` in the log); unset it to let NCCL choose";
        in "NCCL 2.10 to 2.26, RCCL of ROCm 5.0 on": Text(&["Error: network ", " not found"]);

    "no-network" Fault means "no network could be started, not even sockets";
        next "NCCL_NET and NCCL_NET_PLUGIN; NCCL_SOCKET_IFNAME against `ip -br address`";
        in "NCCL 2.27 on, RCCL of ROCm 7.1 on": Text(&["Failed to initialize any NET plugin"]);

    "no-transport" Fault means "two ranks have no way to reach each other";
        next "NCCL_P2P_DISABLE, NCCL_SHM_DISABLE and NCCL_NET together may leave none";
        in "NCCL 2.3 on, RCCL": Text(&["No transport found"]);
        in "NCCL 2.9 on, RCCL of ROCm 4.3 on": Text(&["Rank ", " has no transport for "]);

    "mismatch" Fault means "ranks call different collectives, or with different counts";
        next "look for ranks that call another collective or another count; NCCL_DEBUG_SUBSYS=COLL shows the calls";
        in "NCCL 2.4 to 2.6": Text(&["Mismatched collective detected"]);

    // Before `no-port`: the job goes on.
    "ras-port" Note means "the port where NCCL's RAS service answers is taken, mostly by another job on this host";
        next "nothing, unless this job is to be asked by `ncclras`: then NCCL_RAS_ADDR=localhost:PORT with another port";
        in "NCCL 2.24 on, RCCL of ROCm 7.0 on": In("ras/client_support.c", &["Call to bind failed"]);

    "no-port" Fault means "a port cannot be listened on, because another process does";
        next "the port of NCCL_COMM_ID, if that is set; else `ss -s`: processes that keep very many connections";
        in "NCCL 2.3 on, RCCL": Text(&["*", "Call to bind failed", "Address already in use"]);

    "no-algorithm" Fault means "no algorithm can run this collective on these ranks: mostly NCCL_ALGO or NCCL_PROTO allow none that can";
        next "unset NCCL_ALGO and NCCL_PROTO, or let them name Ring and Simple too: CollNet needs SHARP's plugin, NVLS an NVSwitch with multicast";
        in "NCCL 2.5 to 2.29, RCCL": Text(&["Error : no algorithm/protocol available"]);
        in "NCCL 2.30 on, RCCL of ROCm 10 on": Text(&["No algorithm/protocol available"]);

    "no-sysfs" Fault means "a GPU or NIC is not in /sys, where NCCL looks for its place on PCIe";
        next "whether /sys of the container is the host's and whole, and NCCL_TOPO_FILE, if it is set; under WSL2 a newer NCCL";
        in "NCCL 2.3 on, RCCL": Text(&["Could not find real path of /sys/class/pci_bus"]);

    "graph-file" Note means "the file of graphs that NCCL was given lacks a latency, as those of older versions do, and NCCL goes on without it";
        next "NCCL_GRAPH_FILE: a file that NCCL_GRAPH_DUMP_FILE of this version wrote; or unset it";
        in "NCCL 2.12 to 2.26, RCCL of ROCm 5.3 on":
            Text(&["Attribute latencyinter of node graph not found"]);

    "topology-file" Fault means "a file of a topology or of graphs cannot be read: it is cut off, or not what NCCL writes";
        next "the file that NCCL_TOPO_FILE, NCCL_GRAPH_FILE or a plugin names: whole, and of this version of NCCL; or unset it";
        in "NCCL 2.6 on, RCCL": Text(&["XML Parse"]);
        in "NCCL 2.6 on, RCCL": Text(&["XML Mismatch : "]);

    "topology-size" Fault means "there are more devices on PCIe than this version of NCCL has room for, in /sys or in a topology file";
        next "a newer NCCL; a shorter topology file, or none (NCCL_TOPO_FILE, which plugins set too); virtual functions (SR-IOV) that nobody uses \
            switched off";
        in "NCCL 2.6 on, RCCL": Text(&["Error : too many XML "]);
        in "NCCL 2.6 on, RCCL": Text(&["Error : XML parser is limited to "]);

    "graph-misfit" Fault means "the file of graphs that NCCL was given names a GPU that this job does not have: it is of another machine, or of more \
        GPUs";
        next "unset NCCL_GRAPH_FILE, in /etc/nccl.conf and ~/.nccl.conf too";
        in "NCCL 2.6 on, RCCL": Text(&["XML Import Channel : dev ", " not found"]);

    "unlike-rings" Fault means "the ranks do not agree on the order in which they are joined: they do not see the same hosts, GPUs and NICs";
        next "one version of NCCL and the same NCCL_ settings and files on every host; then the host that differs, in its GPUs or NICs (`nvidia-smi \
            topo -m`), or in the place of its ranks (NCCL_HOSTID, host names)";
        in "NCCL 2.3 on, RCCL": Text(&["Error : ring ", " does not "]);

    "one-way-link" Fault means "a link between GPUs (NVLink, XGMI) is there in one direction only: mostly a virtual machine or container has only a \
        part of the GPUs that are joined, or no true list of their links";
        next "give it all GPUs that are joined; else the driver in it, and NCCL_TOPO_FILE of this type of machine";
        in "NCCL 2.5 on, RCCL": Text(&["Failed to find reverse path from remNode "]);

    "topology-file" Fault means "the topology that NCCL was given lacks something: a file that NCCL_TOPO_FILE or a plugin names does not fit this \
        machine";
        next "which file the log names (NCCL_TOPO_FILE, `NET/OFI Setting NCCL_TOPO_FILE`): that of this type of machine, whole, and of the plugin's \
            version; or unset it";
        in "NCCL 2.6 on, RCCL": Text(&["Attribute ", " of node ", " not found"]);

    "topology-nic" Fault means "NCCL's own graph names a NIC that its topology does not have";
        next "NCCL 2.27 or later, where NICs are merged less; else whether all hosts list the same NICs (NCCL_IB_HCA, a port that is down)";
        in "NCCL 2.21 on, RCCL of ROCm 6.4 on": Text(&["Could not find NET with id "]);

    "simple-order" Note means "NCCL found no good way through the topology, and joins ranks in the order of their numbers: bandwidth may be low";
        next "NCCL_TOPO_DUMP_FILE shows what it sees: GPUs or NICs that are not in /sys of the container, or MIG";
        in "NCCL 2.5 on, RCCL":
            Text(&["Could not find a path for pattern ", "falling back to simple order"]);

    "comm-gone" Echo means "a program uses a communicator that it destroyed, or that is none";
        next "look at that call in the program; the network has no part in it";
        in "NCCL 2.4 on, RCCL": Text(&["comm ", " has already been destroyed"]);
        in "NCCL 2.21 on, RCCL of ROCm 6.4 on": Text(&["Error: corrupted comm object detected"]);

    "comm-gone" Echo means "a program uses a communicator that was aborted, and has no ranks any more";
        next "look at the first error before: why it was aborted";
        in "NCCL 2.3 on, RCCL": Text(&["*", " : invalid root ", "0..-1 range"]);

    "misuse" Fault means "a program names a rank that its communicator does not have";
        next "look at that call in the program, and at the number of ranks that it was started with";
        in "NCCL 2.3 on, RCCL": Text(&["*", " : invalid root "]);
        in "NCCL 2.3 on, RCCL": Text(&["Invalid rank requested : "]);

    "misuse" Fault means "a program uses a communicator that is still being made";
        next "a communicator that does not block: wait until ncclCommGetAsyncError no longer says ncclInProgress";
        in "NCCL 2.14 on, RCCL of ROCm 5.5 on":
            Text(&["Attempt to use communicator before the previous operation returned ncclSuccess"]);

    "misuse" Fault means "a program gave a communicator's configuration (ncclConfig_t) a value that NCCL refuses";
        next "the program or framework, and whether it was built for this version of NCCL";
        in "NCCL 2.14 on, RCCL of ROCm 5.5 on": Text(&["Invalid config ", " attribute value "]);

    "misuse" Fault means "a program gave NCCL a buffer that is not memory of the rank's GPU";
        next "look at that call in the program; the network has no part in it";
        in "NCCL 2.3 on, RCCL": Text(&["*", " is not a valid pointer"]);
        in "NCCL 2.3 on, RCCL": Text(&["*", " allocated on device ", " mismatchs with NCCL device "]);

    "unequal-nics" Fault means "ranks see different numbers of NICs";
        next "look for a host with a NIC missing or its port down";
        in "NCCL 2.30 on, RCCL of ROCm 10 on": Text(&["Detected mixed local Net device counts across ranks"]);

    "other-network" Fault means "a part of a communicator asks for another network than the whole has";
        next "the program sets netName of a communicator's configuration: leave it out, or set it alike";
        in "NCCL 2.18 on": Text(&["*", "netName", " parent"]);

    "imex" Fault means "NVLink between hosts is there, and cannot be used: the IMEX service or its channel is missing";
        next "nvidia-imex runs on every host of the rack (`nvidia-imex-ctl -N`), and the job may open /dev/nvidia-caps-imex-channels; \
            NCCL_MNNVL_ENABLE=0 does without";
        in "NCCL 2.25 on": Text(&["MNNVL (cliqueSize ", " is available but not "]);

    "imex" Fault means "NVLink between hosts was asked for, and cannot be used";
        next "NCCL_MNNVL_ENABLE is not 1 where there is no such rack; else the IMEX service";
        in "NCCL 2.20 to 2.24": Text(&["MNNVL is not supported on this system"]);

    "nvls" Fault means "NVLink SHARP cannot be used: the Fabric Manager or the NVSwitches do not work";
        next "nvidia-fabricmanager of that host and its log; NCCL_NVLS_ENABLE=0 does without";
        in "NCCL 2.27 on": Text(&["Failed to bind NVLink SHARP (NVLS) Multicast memory"]);

    "no-collnet" Note means "in-network reduction (SHARP) cannot be used; connections between ranks can";
        next "nothing, unless SHARP is meant to be used: then its plugin, its aggregation manager (sharp_am), and how many jobs its trees have room \
            for";
        in "NCCL 2.6 on, RCCL of ROCm 3.10 on": Text(&["Cannot initialize CollNet, using "]);
        in "NCCL 2.6 on, HPC-X's plugin": Text(&["NET/IB : SHARP coll init error"]);
        in "NCCL 2.6 on, HPC-X's plugin": Text(&["SHARP group create"]);

    "shared-memory-gone" Echo means "a rank could not open the shared memory that another rank of its host made";
        next "that rank ended first (its log), something cleans /dev/shm (systemd's RemoveIPC=yes, a cron job), or containers of one host name do \
            not share /dev/shm";
        in "NCCL 2.4 on, RCCL": Text(&["Error while attaching to shared memory segment "]);
        in "NCCL 2.12 to 2.30, RCCL of ROCm 5.3 on": In("shmutils.c", &["Call to open failed", "No such file"]);

    "handles" Echo means "a process could not pass another one of its host a handle of GPU memory (Unix socket): that one ended, or is in another \
        network namespace";
        next "the log of the other process; ranks of a host in containers: --network host, or NCCL_CUMEM_ENABLE=0";
        in "NCCL 2.17 on, RCCL of ROCm 5.7 on": Text(&["UDS: Sending data over socket ", " failed"]);

    "shared-memory" Fault means "shared memory between ranks of a host could not be made: /dev/shm is too small";
        next "a larger /dev/shm (docker: --shm-size=8g; Kubernetes: an emptyDir with medium: Memory at /dev/shm)";
        in "NCCL 2.4 on, RCCL": Text(&["Error while creating shared memory segment "]);
        in "NCCL 2.12 on, RCCL of ROCm 5.3 on": Text(&["Error: failed to extend "]);
        in "NCCL 2.4 to 2.15, RCCL": Text(&["Call to posix_fallocate failed", "No space left"]);

    // What HIP says, where AMD's GPUs have another remedy.
    "gpu-memory-full" Fault means "a GPU has no memory left for NCCL's buffers";
        next "`rocm-smi --showmeminfo vram` at that moment: what the program and others take (a smaller batch, a smaller share for the cache of a \
            server); NCCL_BUFFSIZE makes the buffers smaller";
        in HIP: Text(&["HIP failure", "out of memory"]);

    "gpu-peers" Fault means "two GPUs of a host cannot reach each other's memory";
        next "NCCL_P2P_DISABLE=1 does without (through the host's memory); `rocm-smi --showtopoaccess` shows which pairs can; in a container or VM, \
            whether IOMMU and ACS let GPUs reach each other";
        in HIP: Text(&["HIP failure", "peer access is not supported"]);

    "gpu-start" Fault means "HIP could not be started in this process";
        next "a process that was forked after its parent had used HIP (start workers by spawn), or a driver that does not work or does not fit ROCm: \
            `rocm-smi` in the same container, /dev/kfd and /dev/dri in it";
        in HIP: Text(&["HIP failure", "initialization error"]);
        in HIP: Text(&["HIP failure", "driver version is insufficient"]);

    "gpu-program" Echo means "a kernel on the GPU touched memory that it may not; NCCL only reports it";
        next "AMD_SERIALIZE_KERNEL=3 shows which kernel; an error of the network before it can be the cause";
        in HIP: Text(&["HIP failure", "illegal memory access"]);

    "gpu-broke" Fault means "a GPU reports an error that it cannot correct";
        next "`sudo dmesg` (amdgpu) and `rocm-smi --showrasinfo all` of that host: reset the GPU, and if it comes again, replace it";
        in HIP: Text(&["HIP failure", "uncorrectable"]);

    "gpu-absent" Fault means "a GPU that NCCL or the program names is not there in this process";
        next "HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES, and the local rank that the program uses as the GPU's number; where each rank sees its \
            own GPU alone, let the ranks of a host see all, or NCCL_P2P_DISABLE=1";
        in HIP: Text(&["HIP failure", "invalid device ordinal"]);

    "gpu-memory-full" Fault means "a GPU has no memory left for NCCL's buffers";
        next "`nvidia-smi` or `rocm-smi` at that moment: what the program and others take (a smaller batch, a smaller share for the cache of a \
            server); NCCL_BUFFSIZE makes the buffers smaller";
        in "NCCL 2.3 on, RCCL": Text(&["Cuda failure ", "out of memory"]);

    "host-alloc" Follows means "memory of the host that GPUs use too could not be made ready";
        next "the failure above says why";
        in "NCCL 2.14 on, RCCL of ROCm 5.5 on": Text(&["Failed to CUDA host alloc ", " bytes"]);

    "gpu-alloc" Follows means "memory of a GPU could not be made ready";
        next "the failure above says why";
        in "NCCL 2.14 on, RCCL of ROCm 5.5 on": Text(&["Failed to CUDA ", " bytes"]);

    "gpu-peers" Fault means "two GPUs of a host cannot reach each other's memory";
        next "NCCL_P2P_DISABLE=1 does without (through the host's memory); `nvidia-smi topo -p2p r` shows which pairs can; in a container or VM, \
            whether IOMMU and ACS let GPUs reach each other";
        in "NCCL 2.3 on, RCCL": Text(&["Cuda failure ", "peer access is not supported"]);
        in "NCCL 2.3 on, RCCL": Text(&["failed to peer with device "]);
        in "NCCL 2.3 to 2.7": Text(&["failed to open CUDA IPC handle"]);

    "gpu-ipc" Fault means "a GPU's memory could not be shared with another process of the host (IPC)";
        next "in a container: --ipc=host, and the same /dev/kfd and /dev/dri for all processes; NCCL_P2P_DISABLE=1 does without (through the host's \
            memory)";
        in "NCCL 2.8 on, RCCL of ROCm 4.2 on": Text(&["*", "IpcGetMemHandle failed"]);

    "gpu-driver" Fault means "the GPU driver is too old for the CUDA that this NCCL was built with";
        next "`nvidia-smi` shows the newest CUDA that the driver has, `NCCL version ...+cuda` the one that is wanted: a newer driver, or a build for \
            an older CUDA";
        in "NCCL 2.3 on, RCCL": Text(&["Cuda failure ", "driver version is insufficient"]);
        in "NCCL 2.3 on": Text(&["Cuda failure ", "installed CUDA driver"]);
        in "NCCL 2.15 on": Text(&["NCCL cannot be captured in a graph "]);

    "gpu-start" Fault means "CUDA could not be started in this process";
        next "a process that was forked after its parent had used CUDA (start workers by spawn), or a driver that does not work: `nvidia-smi` in the \
            same container";
        in "NCCL 2.3 on, RCCL": Text(&["Cuda failure ", "initialization error"]);

    "gpu-fabric" Fault means "the GPUs' NVSwitches are not ready, or refuse multicast (NVLink SHARP): mostly the Fabric Manager";
        next "`sudo systemctl status nvidia-fabricmanager` and its log, of the driver's version; `nvidia-smi -q` shows Fabric State; \
            NCCL_NVLS_ENABLE=0 does without NVLink SHARP";
        in "NCCL 2.3 on": Text(&["Cuda failure ", "system not yet initialized"]);
        in "NCCL 2.17 on": Text(&["Cuda failure ", "cannot be performed in the present state"]);

    "gpu-program" Echo means "a kernel on the GPU touched memory that it may not; NCCL only reports it";
        next "CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer shows which kernel; an error of the network before it can be the cause";
        in "NCCL 2.3 on, RCCL": Text(&["Cuda failure ", "illegal memory access"]);

    "gpu-broke" Fault means "a GPU or its NVLink reports an error that it cannot correct";
        next "`sudo dmesg` (Xid) and `nvidia-smi -q -d ECC` of that host: reset the GPU, and if it comes again, replace it";
        in "NCCL 2.3 on, RCCL": Text(&["Cuda failure ", "uncorrectable"]);

    "gpu-ending" Follows means "a program ended while NCCL still used its GPU";
        next "look at the first error above, and why the program ended";
        in "NCCL 2.3 on, RCCL": Text(&["Cuda failure ", "driver shutting down"]);
        in HIP: Text(&["HIP failure", "driver shutting down"]);

    "gpu-build" Fault means "this build of NCCL has no code for this GPU";
        next "the framework or the library built for this GPU's architecture (compute capability, or gfx of AMD's): mostly a newer one, or for an \
            old GPU an older one";
        in "NCCL 2.3 on, RCCL": Text(&["Cuda failure ", "invalid device function"]);
        in HIP: Text(&["HIP failure", "invalid device function"]);
        in "NCCL 2.3 on, RCCL": Text(&["Cuda failure ", "no kernel image"]);
        in HIP: Text(&["HIP failure", "no kernel image"]);

    "gpu-absent" Fault means "a GPU that NCCL or the program names is not there in this process";
        next "CUDA_VISIBLE_DEVICES, and the local rank that the program uses as the GPU's number; where each rank sees its own GPU alone (Slurm's \
            --gpus-per-task, a GPU for each container), let the ranks of a host see all, or NCCL_P2P_DISABLE=1";
        in "NCCL 2.3 on, RCCL": Text(&["Cuda failure ", "invalid device ordinal"]);

    // Where the words say nothing, the place in NCCL's source does.
    "nvls" Fault means "NVLink SHARP could not be set up";
        next "NCCL_NVLS_ENABLE=0 does without; else `sudo systemctl status nvidia-fabricmanager` and its log, the same version as the driver, and \
            `nvidia-smi -q` for Fabric State";
        in "NCCL 2.17 on": In("nvls.c", &["Cuda failure ", "invalid argument"]);

    "gpu-share" Fault means "memory of a GPU could not be shared between two ranks";
        next "in containers --ipc=host, and all GPUs of the host visible to each of its ranks; NCCL_P2P_DISABLE=1 does without (through the host's \
            memory), NCCL_CUMEM_ENABLE=0 does it in the older way";
        in "NCCL 2.3 on, RCCL of ROCm 5.4 on": In("transport/p2p.c", &["Cuda failure ", "invalid argument"]);
        in HIP: In("transport/p2p.c", &["HIP failure", "invalid argument"]);
        in "NCCL 2.3 on, RCCL of ROCm 5.4 on": In("transport/p2p.c", &["Cuda failure ", "invalid resource handle"]);
        in HIP: In("transport/p2p.c", &["HIP failure", "invalid resource handle"]);

    "cuda" Echo means "a call of CUDA or HIP failed";
        next "the words in quotes say which; `sudo dmesg` shows errors of a GPU (Xid, amdgpu)";
        in "NCCL 2.3 on, RCCL": Text(&["Cuda failure "]);
        in HIP: Text(&["HIP failure"]);

    "misuse" Fault means "a program launched a collective on a stream whose capture into a graph had become invalid";
        next "look at what the program calls while it captures a graph; the network has no part in it";
        in "RCCL of ROCm 7.2 on": Text(&["Application is trying to use an invalidated stream"]);

    "no-rocr" Fault means "the library of ROCm's runtime (libhsa-runtime64.so) could not be opened";
        next "whether it is in the image under that name: a runtime without developers' files has libhsa-runtime64.so.1 alone; RCCL_ROCR_PATH names \
            its folder, with a slash at the end";
        in "RCCL": Text(&["Failed to find ROCm runtime library"]);

    "gpu-links" Note means "two GPUs with NVLink between them cannot reach each other's memory";
        next "`nvidia-smi topo -p2p r` and `sudo dmesg`: most often hardware";
        in "NCCL 2.12 on": Text(&["P2P is disabled between NVLINK connected GPUs"]);

    // What other ranks and threads print because of a fault.
    "proxy" Follows means "a thread of NCCL gave up";
        next "look at the first error above";
        in "NCCL 2.12 on, RCCL of ROCm 5.3 on": Text(&["[Proxy Service", "Failed to execute operation "]);
        in "NCCL 2.17 on, RCCL of ROCm 5.7 on":
            Text(&["[Service thread] Error encountered progressing operation="]);
        in "NCCL 2.17 on, RCCL of ROCm 5.7 on": Text(&["Socket recv failed while polling for opId="]);
        in "NCCL 2.12 to 2.17, RCCL of ROCm 5.3 to 5.7": Text(&["Proxy Call to rank ", " failed"]);
        in "NCCL 2.12 on, RCCL of ROCm 5.3 on": Text(&["[Service thread] Accept failed "]);
        in "NCCL 2.12 on, RCCL of ROCm 5.3 on": Text(&["[Service thread] Could not receive type from "]);

    "nvml" Fault means "the library of NVML (libnvidia-ml.so.1) could not be opened, by which NCCL asks for GPUs and their links";
        next "the driver's libraries in the container (nvidia-container-toolkit, NVIDIA_DRIVER_CAPABILITIES with utility)";
        in "NCCL 2.3 on": Text(&["Failed to open libnvidia-ml.so"]);

    "no-libcuda" Note means "the driver's library (libcuda.so) was not found: NCCL does without what needs it (DMA-BUF, NVLink SHARP)";
        next "in a container the driver's libraries (nvidia-container-toolkit); in WSL2 /usr/lib/wsl/lib in LD_LIBRARY_PATH";
        in "NCCL 2.13 to 2.20": Text(&["Failed to find CUDA library "]);

    "no-near-nic" Note means "a GPU has no way to a NIC in NCCL's topology, as where NCCL sees no NIC";
        next "nothing on one host; else NCCL_TOPO_DUMP_FILE shows what it sees: NICs that are not in /sys of the container, or left out by \
            NCCL_IB_HCA";
        in "NCCL 2.25 on, RCCL of ROCm 7.0 on": Text(&["Could not find any local path from gpu "]);

    "nvml" Fault means "NVML, by which NCCL asks for GPUs and their links, refused a call";
        next "`nvidia-smi` in the same container: `Driver/library version mismatch` is over after the driver's modules are loaded anew or the host \
            has booted; else CUDA_VISIBLE_DEVICES, and whether the container has the GPUs (Unknown Error: its devices were taken away, so start it \
            anew)";
        in "NCCL 2.3 on": Text(&["nvml", "failed: "]);

    // RCCL's checks of the host.
    "iommu" Note means "the kernel was not started with what RCCL asks for: GPUDirect may be slow, or hang";
        next "iommu=pt on the kernel's command line";
        in "RCCL of ROCm 5.6 on": Text(&["Missing \"", " from kernel command line"]);

    "rccl-environment" Note means "a variable that RCCL asks for is not set: GPUs that PCIe joins may be slow";
        next "set what it names in the job, and measure";
        in "RCCL of ROCm 5.6 on": Text(&["Missing \"", " from environment"]);

    "rocm-feature" Note means "a feature of ROCm that RCCL can do without is not used";
        next "nothing, unless the network of a rack (UALoE) or memory of the cuMem kind is meant to be used: then what the line names";
        in "RCCL of ROCm 7.2 on": Text(&["RCCL_USE_AMD_SMI_LIB not set"]);
        in "RCCL after ROCm 6.3": Text(&["cuMem support requires "]);
        in "RCCL of ROCm 6.3 on": Text(&["*", "rocprofiler-register failed with error code"]);

    "numa-balancing" Note means "the kernel moves memory between NUMA nodes: bandwidths vary";
        next "`sudo sysctl -w kernel.numa_balancing=0`, until the next boot";
        in "RCCL of ROCm 5.6 on": Text(&["NUMA auto balancing enabled"]);
};
