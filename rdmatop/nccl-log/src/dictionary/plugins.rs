//! What network plugins print: aws-ofi-nccl (`NET/OFI`), and what NCCL prints about plugins.

use super::{Entry, Pattern::Text};

const START: &str = "`fi_info -p efa` in the container (cxi on Slingshot); /dev/infiniband passed in; libfabric and aws-ofi-nccl of one release of \
                     the EFA installer; the plugin's lines with NCCL_DEBUG=INFO";

pub(super) const ENTRIES: &[Entry] = messages! {
    "ofi-no-provider" Choice means "the EFA plugin found no provider of libfabric";
        next START;
        in "aws-ofi-nccl 1.0": Text(&["NET/OFI Could not find any optimal provider", "$"]);
        in "aws-ofi-nccl 1.1 to 1.8": Text(&["NET/OFI Couldn't find any optimal provider"]);
        in "aws-ofi-nccl 1.14 on": Text(&["NET/OFI No eligible providers were found"]);

    "ofi-only-efa" Choice means "the EFA plugin found another provider than EFA";
        next "an instance type with EFA, and an EFA interface attached; otherwise the plugin is not needed";
        in "aws-ofi-nccl 1.1 to 1.5": Text(&["NET/OFI Only EFA provider is supported"]);

    "ofi-old-libfabric" Choice means "libfabric is too old for the EFA plugin";
        next "libfabric and aws-ofi-nccl of one release of the EFA installer, in the image";
        in "aws-ofi-nccl 1.8 on": Text(&["NET/OFI EFA provider requires at least libfabric version"]);

    "ofi-no-protocol" Choice means "the EFA plugin failed to start: no protocol of it worked on libfabric";
        next START;
        in "aws-ofi-nccl 1.7 on": Text(&["NET/OFI Failed to initialize ", " protocol"]);
        in "aws-ofi-nccl 1.13 on": Text(&["NET/OFI Unable to find a protocol that worked"]);

    "ofi-no-rdma-write" Choice means "this EFA device has no RDMA write, which the plugin's protocol needs";
        next "OFI_NCCL_PROTOCOL=SENDRECV on such instances";
        in "aws-ofi-nccl 1.7 on": Text(&["NET/OFI FI_OPT_EFA_EMULATED_WRITE "]);

    "ofi-cuda" Choice means "the EFA plugin found no CUDA";
        next "the driver's libraries in the container (nvidia-container-toolkit)";
        in "aws-ofi-nccl 1.7 on": Text(&["NET/OFI CUDA initialization failed"]);
        in "aws-ofi-nccl 1.7 to 1.12 and 1.17 on": Text(&["NET/OFI Failed to find CUDA "]);

    "ofi-init" Choice means "the EFA plugin (aws-ofi-nccl) failed to start";
        next START;
        in "aws-ofi-nccl 1.1 on": Text(&["NET/OFI", " initialization failed"]);

    "ofi-open" Fault means "libfabric's provider cannot be opened";
        next START;
        in "aws-ofi-nccl 1.0 on": Text(&["NET/OFI Couldn't open "]);
        in "aws-ofi-nccl 1.18 on": Text(&["NET/OFI Couldn't create "]);

    "ofi-endpoint" Fault means "an endpoint of libfabric could not be made";
        next "`fi_info -p efa` (cxi on Slingshot) and the lines of libfabric with FI_LOG_LEVEL=warn; /dev/infiniband passed in, `ulimit -l \
            unlimited`; libfabric, the driver of the device and aws-ofi-nccl of one release";
        in "aws-ofi-nccl 1.0 on": Text(&["NET/OFI Couldn't allocate endpoint"]);
        in "aws-ofi-nccl 1.0 on": Text(&["NET/OFI Couldn't bind EP-"]);
        in "aws-ofi-nccl 1.0 on": Text(&["NET/OFI Couldn't enable endpoint"]);
        in "aws-ofi-nccl 1.14 on": Text(&["NET/OFI Creating new endpoint for domain", " failed"]);

    "ofi-endpoint" Fault means "an endpoint of libfabric could not be made: its provider is not EFA's, or too old to be told to use no shared memory";
        next "`fi_info -p efa` in the container; an instance with EFA and its devices (/dev/infiniband) passed in; libfabric and aws-ofi-nccl of one \
            release of the EFA installer";
        in "aws-ofi-nccl 1.10 on": Text(&["NET/OFI Disabling shared memory failed"]);

    "ofi-memory" Fault means "memory could not be registered with libfabric; where the line has a type, 2 is GPU memory";
        next "GPUDirect of EFA (efa-nv-peermem, or DMA-BUF of the open GPU driver); the limit of locked memory (`ulimit -l unlimited`); \
            FI_EFA_SET_CUDA_SYNC_MEMOPS=0 with an EFA installer before 1.29";
        in "aws-ofi-nccl 1.0 on": Text(&["NET/OFI Unable to register memory"]);
        in "aws-ofi-nccl 1.17 on": Text(&["NET/OFI Could not register memory on "]);

    "ofi-request" Echo means "a request failed in libfabric";
        next "the words behind `Error` are the provider's; look at the peer's log at the same time";
        in "aws-ofi-nccl 1.3 on": Text(&["NET/OFI ", "completed with error"]);

    "ofi-queue" Fault means "libfabric's completion queue cannot be read";
        next "the error behind `RC`; `sudo dmesg` of that host";
        in "aws-ofi-nccl 1.0 on": Text(&["NET/OFI Unable to retrieve completion queue entries"]);
        in "aws-ofi-nccl 1.0 on": Text(&["NET/OFI Unable to read from fi_cq_readerr"]);

    "ofi-address" Fault means "the peer's address makes no sense to libfabric";
        next "the same libfabric, provider and plugin on every host";
        in "aws-ofi-nccl 1.0 on": Text(&["NET/OFI ", "nable to insert remote address into address vector"]);

    "ofi-rails" Fault means "the two ends, or two GPUs of a host, have different numbers of EFA interfaces per GPU";
        next "look for a host with an interface missing: `fi_info -p efa` on each";
        in "aws-ofi-nccl 1.7 on": Text(&["NET/OFI Unexpected number of remote "]);
        in "aws-ofi-nccl 1.7 to 1.14": Text(&["NET/OFI Wrong number of NICs for device"]);

    "ofi-ll128" Fault means "the protocol that NCCL_PROTO sets may corrupt data on this network";
        next "unset NCCL_PROTO";
        in "aws-ofi-nccl 1.7 to 1.14": Text(&["NET/OFI NCCL_PROTO was set to \"LL/LL128\""]);

    "ofi-tuner" Fault means "the tuner of the EFA plugin refuses a job that sets NCCL_ALGO or NCCL_PROTO";
        next "unset both, in /etc/nccl.conf too; aws-ofi-nccl before 1.17 may set NCCL_PROTO itself: then NCCL_TUNER_PLUGIN=none, or a newer one";
        in "aws-ofi-nccl 1.8 to 1.16": Text(&["NET/OFI The tuner plugin can not be loaded when "]);

    "ofi-topology" Note means "a property of a NIC or GPU cannot be read from /sys: NCCL may pair them badly";
        next "/sys in the container; on virtual machines the plugin's own topology file";
        in "aws-ofi-nccl 1.7 on": Text(&["NET/OFI Failed to ", "device property file"]);

    "ofi-topology" Note means "the plugin cannot read what type of machine this is: it has no settings and no topology for it";
        next "nothing, if it is no instance of AWS; else /sys/devices/virtual/dmi in the container";
        in "aws-ofi-nccl 1.7 on": Text(&["NET/OFI Error opening file: "]);

    "ofi-gdrcopy" Note means "GDRCopy cannot be used, which the plugin needs for transfers that GPUs start themselves (GIN)";
        next "the module gdrdrv, and /dev/gdrdrv passed into the container; nothing for programs that do without GIN";
        in "aws-ofi-nccl 1.18 on": Text(&["NET/OFI Failed to initialize GDRCopy"]);

    "google-config" Fault means "Google's checker of settings ends the job: a variable has another value than this type of machine is to have";
        next "the variable that the line names as it says; what the checker wants is in guest_config of the plugin's folder; it sets all: `source \
            /usr/local/gib/scripts/set_nccl_env.sh` (gIB), or nccl-env-profile.sh (FasTrak)";
        in "GPUDirect-TCPXO, gIB": Text(&["NCCL/NET (shim) mismatch enforced: "]);

    "google-advice" Note means "Google's checker of settings would have another value of a variable";
        next "the variable that the line names as it says";
        in "GPUDirect-TCPXO, gIB": Text(&["NCCL/NET (shim) mismatch recommended: "]);

    "google-advice" Note means "Google's checker of settings does not find its list";
        next "NCCL_SHIMNET_GUEST_CONFIG_CHECKER_CONFIG_FILE with guest_config.txtpb of the plugin's folder (/usr/local/gib/configs)";
        in "GPUDirect-TCPXO, gIB": Text(&["cannot find config file at default paths"]);
        in "GPUDirect-TCPXO, gIB": Text(&["NCCL_SHIMNET_GUEST_CONFIG_CHECKER_CONFIG_FILE does not exist"]);

    "ofi-symbol" Note means "the plugin cannot tell NCCL's version, as where NCCL is linked statically";
        next "nothing";
        in "aws-ofi-nccl 1.7 on": Text(&["NET/OFI Could not find ncclGetVersion symbol"]);

    "tcpx-stalls" Note means "a transfer of GPUDirect-TCPX, or its peer's announcement of one, has not come for 10 seconds or more";
        next "look at the rank at the other end of the line's addresses: whether it receives, computes or hangs, and at retransmissions (`ss -ti`) \
            of both hosts";
        in "GPUDirect-TCPX": Text(&["*", " timeout error ", " cnt ", ", nanos "]);
        in "GPUDirect-TCPX": Text(&["*", " ctrl timeout cnt ", ", nanos "]);

    "no-interface" Choice means "no network interface matches, so the plugin FastSocket cannot be used";
        next "check NCCL_SOCKET_IFNAME against `ip -br address`";
        in "FastSocket": Text(&["NET/FastSocket : no interface found"]);

    "fastsocket-queues" Note means "connections of FastSocket may share a queue of the NIC: it could not choose them as it wants to";
        next "nothing; where throughput is low, compare it with that without the plugin (NCCL_NET=Socket)";
        in "FastSocket": Text(&["Cannot get incoming CPU"]);
        in "FastSocket": Text(&["Maximum retry reached for "]);

    "anp-loaded" Note means "AMD's network plugin (ANP) was loaded; it says so in a warning";
        next "nothing";
        in "AMD's ANP plugin": Text(&["ANP plugin loaded successfully"]);

    "plugin-unsupported" Choice means "the network plugin is of a version that NCCL cannot use";
        next "a plugin and an NCCL of the same time";
        in "NCCL 2.28 on, RCCL of ROCm 7.11 on": Text(&["External network plugin ", " is unsupported"]);

    "plugin-unloadable" Choice means "the network plugin cannot be loaded: it was built for other libraries than those of the image";
        next "an image as new as the plugin wants (glibc), or a plugin built for it; then NCCL_NET names a network that is there";
        in "NCCL 2.4 to 2.25, RCCL": Text(&["NET/Plugin", " returned ", "not found (required by "]);
        in "NCCL 2.4 to 2.25, RCCL": Text(&["NET/Plugin", " returned ", "undefined symbol"]);

    "plugin-unpack" Follows means "the network plugin is of a version that NCCL cannot use";
        next "a plugin and an NCCL of the same time";
        in "NCCL 2.19 on": Text(&["NCCL_DEVICE_UNPACK plugin has incompatible version"]);
};
