//! What NCCL and RCCL print of devices and of connections over the transport IB.

use super::{Entry, Pattern::Text};

const ONE_KIND: &str = "choose NICs of one kind on every host with NCCL_IB_HCA";
const INTERFACES: &str = "check NCCL_SOCKET_IFNAME against `ip -br address`";
const COLLECTIVES: &str = "look for ranks that call another collective or another count, and for NCCL_ settings that differ between ranks";

pub(super) const ENTRIES: &[Entry] = messages! {
    "no-libibverbs" Choice means "libibverbs could not be opened: it is missing in the image (install libibverbs1 and ibverbs-providers)";
        next "install rdma-core's libibverbs1 and ibverbs-providers in the image";
        in "NCCL 2.3 to 2.29, RCCL to ROCm 6.3": Text(&["Failed to open libibverbs.so"]);
        in "NCCL 2.30 on": Text(&["Count not open libibverbs.so.1"]);
        in "RCCL after ROCm 6.3": Text(&["Could not open libibverbs.so"]);

    "old-libibverbs" Choice means "libibverbs is too old, or not rdma-core's";
        next "install a rdma-core that is as new as NCCL in the image";
        in "NCCL 2.3 on, RCCL": Text(&["dlvsym failed on ibv_"]);

    // It is printed on hosts without such NICs, too, and RCCL goes on with verbs.
    "no-libionic" Note means "AMD NIC features off: the library of AMD's NICs (libionic) could not be opened or is too old";
        next "nothing, if the host has other NICs; else install libionic of the NIC's driver in the image";
        in "RCCL of ROCm 7.12 on": Text(&["NET/IB : Failed to open ionicdv symbols"]);

    "no-pcie" Note means "an RDMA device has no PCIe device in /sys: it is one of software (SoftRoCE, siw), or the container's /sys is not whole";
        next "nothing, if it is one of software: NCCL then does not know which GPU is near it";
        in "NCCL 2.8 on, RCCL of ROCm 4.2 on":
            Text(&["Could not find real path of ", " (/sys/class/infiniband/"]);

    "no-device" Choice means "NCCL found no usable RDMA device";
        next "`rdmatop doctor` and `ibv_devinfo`, in the container too: no device, no ACTIVE port, or none that NCCL_IB_HCA names; with EFA alone \
            aws-ofi-nccl has to be in the image";
        in "NCCL 2.4 on, RCCL": Text(&["NET/IB : No device found"]);

    "no-interface" Choice means "no network interface matches NCCL_SOCKET_IFNAME";
        next INTERFACES;
        in "NCCL 2.3 on, RCCL": Text(&["NET/IB : No IP interface found"]);

    "no-interface" Fault means "no network interface matches, or none can be listened on, so ranks cannot find each other";
        next INTERFACES;
        in "NCCL 2.4 on, RCCL": Text(&["Bootstrap : no socket interface found"]);
        in "NCCL 2.3 to 2.31, RCCL": Text(&["NET/Socket : no interface found"]);
        in "NCCL 2.4 on, RCCL": Text(&["NET/Socket : No usable listening interface found"]);

    "no-oob-interface" Fault means "no network interface matches NCCL_OOB_NET_IFNAME";
        next "check NCCL_OOB_NET_IFNAME against `ip -br address`";
        in "NCCL 2.23 on, RCCL of ROCm 7.0 on": Text(&["no device found ", " NCCL_OOB_NET_IFNAME"]);

    "no-subnet" Fault means "no interface is in the subnet of the first rank's address (NCCL_COMM_ID)";
        next INTERFACES;
        in "NCCL 2.3 to 2.26, RCCL":
            Text(&["Net : No interface found in the same subnet as remote address"]);

    "mixed-links" Fault means "one end is InfiniBand, the other RoCE";
        next ONE_KIND;
        in "NCCL 2.26 on, RCCL of ROCm 7.0 on": Text(&["NET/IB : Attempted to connect incompatible devices"]);
        in "NCCL 2.26 on, RCCL of ROCm 7.0 on": Text(&["NET/IB : Remote ", " device is incompatible with the local "]);
        in "NCCL 2.20 to 2.25, RCCL of ROCm 6.2 on":
            Text(&["NET/IB : Can't ", " net devices with different link_layer"]);

    "mixed-merge" Note means "an InfiniBand and a RoCE port were to be merged into one NIC";
        next ONE_KIND;
        in "NCCL 2.26 on, RCCL of ROCm 7.0 on": Text(&["NET/IB : Attempted to merge incompatible devices"]);
        in "NCCL 2.24 to 2.25":
            Text(&["NET/IB : Trying to merge multiple devices together with different link_layer"]);

    "far-merge" Note means "a NIC is merged from ports on different sockets or PCIe roots: slower than each alone, or without GPUDirect";
        next "NCCL_IB_MERGE_NICS=0, or NCCL_NET_FORCE_MERGE not set, and measure";
        in "RCCL of ROCm 7.12 on": Text(&["NET/IB : Merging NICs across "]);

    "unequal-merge" Note means "a NIC is merged from more ports on one host than on the other";
        next "look for a port that is down, or a host of another kind";
        in "NCCL 2.20 on, RCCL of ROCm 6.2 on": Text(&["NET/IB : Local mergedDev"]);

    "unequal-rails" Note means "the two ends of a connection use devices of different names";
        next "on a rail-optimized network NICs of one name should meet: compare what NCCL lists on both hosts (NCCL_IB_HCA)";
        in "NCCL 2.24 on, RCCL of ROCm 7.0 on": Text(&["NET/IB : There are mismatched physical devices"]);

    "no-requests" Echo means "more requests are outstanding than NCCL allows for: those before did not end";
        next "look at the peer: a rank that hangs or runs other collectives";
        in "NCCL 2.3 on, RCCL": Text(&["NET/IB : unable to allocate requests"]);

    "mismatch" Fault means "the two ends disagree on the size of a message";
        next COLLECTIVES;
        in "NCCL 2.10 to 2.19, RCCL of ROCm 5.0 to 6.1": Text(&["NET/IB : ", " collective mismatch error"]);
        in "NCCL 2.4 on, RCCL": Text(&["NET/Socket : ", "essage truncated : receiving "]);

    "mismatch" Fault means "the peer announced a buffer that makes no sense";
        next COLLECTIVES;
        in "NCCL 2.12 on, RCCL of ROCm 5.3 on": Text(&["NET/IB : req ", " posted incorrect receive info"]);

    "start-mismatch" Fault means "ranks disagree while the job starts";
        next "the same program, image and NCCL on every host; two jobs must not share an address (NCCL_COMM_ID, MASTER_PORT)";
        in "NCCL 2.3 on, RCCL": Text(&["Message truncated : received "]);

    "not-connected" Echo means "data was to be moved on a connection that was not ready";
        next "look at the first error above";
        in "NCCL 2.17 on, RCCL of ROCm 5.7 on": Text(&["NET/IB: ncclIb", "() called when comm->"]);

    "device-failed" Fault means "a NIC failed; NCCL goes on with the others where it was told to (NCCL_IB_RESILIENCY settings)";
        next "cable, transceiver and switch port of that NIC; `sudo dmesg` of that host";
        in "NCCL 2.29 on, RCCL of ROCm 10 on": Text(&["NET/IB: ", "Device ", " marked as failed"]);

    "devices-failed" Fault means "more NICs of a connection failed than NCCL can replace";
        next "cables, transceivers and switch ports of these NICs; `sudo dmesg` of that host";
        in "NCCL 2.30 on, RCCL of ROCm 10 on": Text(&["NET/IB: ", "Fatal error. Detected "]);

    "failed-request" Follows means "a request failed, and NCCL looks whether another NIC can take it";
        next "the status of the first failed request says why";
        in "NCCL 2.29 on, RCCL of ROCm 10 on": Text(&["NET/IB: ", "Got CQE with error"]);

    "broken-communicator" Follows means "a connection is given up, because its device reported a fatal event";
        next "the event above says why";
        in "NCCL 2.23 on, RCCL of ROCm 7.0 to 7.1": Text(&["communicator encountered a fatal error"]);
        in "RCCL of ROCm 7.2 on": Text(&["RCCL encountered a communication fatal error"]);
        in "RCCL of ROCm 7.2 on": Text(&["RCCL cannot recover from this network failure"]);

    "no-gpudirect" Note means "GPUs cannot start transfers themselves (GIN): there is neither nvidia_peermem nor DMA-BUF";
        next "load nvidia_peermem, or use the open GPU kernel driver with DMA-BUF";
        in "NCCL 2.29 on": Text(&["Unable to use GIN: Peermem is not supported"]);

    "dmabuf-forced" Note means "DMA-BUF is forced for GPUDirect, whatever kernel and driver say";
        next "unset RCCL_FORCE_ENABLE_DMABUF, if registration of memory fails";
        in "RCCL of ROCm 7.1 on": Text(&["DMA_BUF Support is force enabled"]);
        in "RCCL after ROCm 6.3": Text(&["NCCL_CUMEM_ENABLE is set but NCCL_DMABUF_ENABLE is not"]);

    "no-gpudirect" Note means "GPUDirect is off: the kernel has no peer memory for AMD GPUs";
        next "install amdgpu-dkms, or a kernel and driver with DMA-BUF (NCCL_DMABUF_ENABLE=1)";
        in "RCCL after ROCm 6.3": Text(&["GDRDMA not enabled. Could not find memory_peers"]);

    "no-flid" Note means "the two ends are in different InfiniBand subnets, and the router's address is not configured";
        next "ask whoever runs the subnet managers for FLIDs of the routers";
        in "NCCL 2.22 on": Text(&["Warning: remote FLID configured as zero"]);

    "gid-unreadable" Fault means "the kind (RoCE v1 or v2) of an address (GID) cannot be read: the container's /sys has no such index, and NCCL up \
        to 2.25 ends there";
        next "NCCL 2.26 or later, which goes on to the next index; else NCCL_IB_GID_INDEX with one that `show_gids` has in the container";
        in "NCCL 2.23 to 2.25": Text(&["NET/IB: read failed in ncclIbRoceGetVersionNum", "Invalid argument"]);

    "gid-unreadable" Fault means "the kind (RoCE v1 or v2) of an address (GID) cannot be read from /sys";
        next "whether the container's /sys has /sys/class/infiniband/DEVICE/ports/PORT/gid_attrs/types";
        in "NCCL 2.23 on, RCCL of ROCm 7.0 on": Text(&["NET/IB: open failed in ncclIbRoceGetVersionNum"]);
        in "NCCL 2.23 on, RCCL of ROCm 7.0 on": Text(&["NET/IB: read failed in ncclIbRoceGetVersionNum"]);

    "gid-lost" Fault means "the addresses (GIDs) of a port changed while the job ran, and NCCL found none that it can use";
        next "`rdma link` and `ip address` of that host: the network device needs its address again; then restart the job";
        in "NCCL 2.31 on, RCCL of ROCm 10 on":
            Text(&["NET/IB : ", " marking device with fatal error after GID-change event handler failed"]);

    "one-nic" Note means "NCCL is to go on over another NIC when one fails, and a connection has one NIC alone";
        next "nothing, or NCCL_IB_RESILIENCY_PORT_FAILOVER unset, or NICs that can be merged (NCCL_IB_MERGE_NICS, NCCL_NET_MERGE_LEVEL)";
        in "NCCL 2.29 on": Text(&["NET/IB: Resiliency is enabled on a "]);

    "speed-changed" Note means "a port's speed changed while the job ran";
        next "where it became less: `ethtool` or `ibstat` of that port, its cable and its peer";
        in "NCCL 2.30 on, RCCL of ROCm 10 on": Text(&["NET/IB : ", " speed change detected: "]);

    "pkey-missing" Fault means "the port is not in the partition that NCCL_IB_PKEY_VALUE names";
        next "unset NCCL_IB_PKEY_VALUE, or have the subnet manager put the port into that partition";
        in "NCCL 2.31 on": Text(&["NET/IB: NCCL_IB_PKEY_VALUE=", " not found in PKey table"]);

    "recovery-waits" Note means "a connection over a port that was down cannot be made anew yet";
        next "`rdma link`: whether the port is ACTIVE and has its GID again";
        in "NCCL 2.31 on, RCCL of ROCm 10 on": Text(&["NET/IB: ", "port still down or GID not yet registered"]);

    "request-stalls" Note means "a request that was posted to a NIC has not ended for long: its peer does not receive, or packets are lost";
        next "look at the peer that the line names: its process, its port, and retransmissions of both NICs";
        in "NCCL 2.31 on, RCCL of ROCm 10 on": Text(&["NET/IB: WQE stall (no CQE): "]);

    "request-slow" Note means "a request took much longer than others of its connection";
        next "retransmissions, pauses (PFC) and ECN marks of both NICs and of the switch, if there are many";
        in "NCCL 2.31 on, RCCL of ROCm 10 on": Text(&["NET/IB: WQE slow: "]);

    "ordering-differs" Fault means "the two ends of a connection want different orders of packets";
        next "compare NCCL_ settings, the NIC's firmware and its settings of both hosts";
        in "NCCL 2.31 on, RCCL of ROCm 10 on": Text(&["Can't connect local QP ", " ordering_semantic "]);

    "rail-policy" Choice means "NCCL_IB_RAIL_POLICY has a value that NCCL does not know, and is ignored";
        next "unset it, or look its values up in the user guide of that version";
        in "NCCL 2.32 on": Text(&["NET/IB: Unrecognized NCCL_IB_RAIL_POLICY="]);

    "gin-connect" Fault means "a queue pair of a GPU that starts its own transfers (GIN) could not be connected";
        next "the NICs that the line names: link, GID or LID of both; the first error before it";
        in "NCCL 2.31 on": Text(&["*", "Failed to connect GDAKI QP: "]);

    "gin-call" Fault means "a call of DOCA failed, by which GPUs start their own transfers (GIN)";
        next "NCCL_GIN_ENABLE=0 does without, for programs that can; else the number is a doca_error_t (21: the driver refused), and `sudo dmesg` of \
            that host, the NIC's firmware and the open GPU kernel driver";
        in "NCCL 2.30 on": Text(&["DOCA failure "]);
        in "NCCL 2.30 on": Text(&["DOCA Error "]);

    "stranger" Note means "a connection that is not of this job, or of another kind, or that ended at once, was dropped: a process of another job or \
        version, or a port scanner";
        next "who has the address that the line names; where it is of this job, two jobs share NCCL_COMM_ID or a port, or the hosts have different \
            versions of NCCL";
        in "NCCL 2.32 on": Text(&["Socket magic mismatch from ", "discarding peer connection"]);
        in "NCCL 2.32 on": Text(&["Wrong socket type from ", "discarding peer connection"]);
        in "NCCL 2.32 on": Text(&["Handshake receive from ", "discarding peer connection"]);
        in "NCCL 2.32 on": Text(&["Peer ", " closed before socket hello, discarding"]);
};
