//! Environment variables that steer RDMA stacks.

use crate::text::cut_columns;

/// Without `NCCL_`: the variables that NCCL reads today, and those that releases since 2.4 accept without
/// effect.
pub const NCCL: &str = "\
    MAX_NRINGS MIN_NRINGS ALGO ALLGATHERV_ENABLE ALLOC_P2P_NET_LL_BUFFERS ASYNC_ERROR_HANDLING BLOCKING_WAIT BUFFSIZE CGA_CLUSTER_SIZE \
    CHECKS_DISABLE CHECK_MODE CHECK_POINTERS CHUNK_SIZE COLLNET_ENABLE COLLNET_NODE_THRESHOLD COMM_BLOCKING \
    COMM_ID COMM_SHRINK_SHARE_RESOURCES COMM_SPLIT_SHARE_RESOURCES CONFIG_FILE CONF_FILE CONNECT_ROUND_MAX_PEERS \
    CROSS_NIC CTA_POLICY CUMEM_ENABLE CUMEM_HOST_ENABLE DEBUG DEBUG_FILE DEBUG_SUBSYS DEBUG_TIMESTAMP_FORMAT \
    DEBUG_TIMESTAMP_LEVELS DESYNC_DEBUG DEV_API_JIT DISABLE_MEM_MANAGER DMABUF_ENABLE ELASTIC_BUFFER_REGISTER \
    ENABLE_VERSION_CHECK ENV_PLUGIN GDAKI_USE_RELIABLE_DB GDRCOPY_ENABLE GDRCOPY_FIFO_ENABLE GDRCOPY_FLUSH_ENABLE \
    GDRCOPY_SYNC_ENABLE GDR_FLUSH_DISABLE GIN_CONNECTION_RAIL GIN_ENABLE GIN_ERROR_QUERY_SEC \
    GIN_GDAKI_MAX_DEST_RD_ATOMIC GIN_GDAKI_MAX_QP_RD_ATOMIC GIN_GDAKI_NIC_HANDLER GIN_GDAKI_QP_DEPTH GIN_IB_TC \
    GIN_NCONNECTIONS GIN_PLUGIN GIN_PLUGIN_REF_COUNT GIN_PROXY_QUEUE_SIZE GIN_TYPE GRAPH_DUMP_FILE \
    GRAPH_DUMP_FILE_RANK GRAPH_FILE GRAPH_HELPER_DISABLE GRAPH_MIXING_SUPPORT GRAPH_REGISTER \
    GRAPH_STREAM_ORDERING GROUP_CUDA_STREAM HOME HOSTID IBVERBS_LIB IB_ADAPTIVE_ROUTING IB_ADDR_FAMILY \
    IB_ADDR_RANGE IB_AR_THRESHOLD IB_DATA_DIRECT IB_DEVICE_PCI_ORDER IB_DISABLE IB_ECE_ENABLE IB_FIFO_TC \
    IB_GID_INDEX IB_HCA IB_MERGE_NICS IB_MERGE_VFS IB_MQP_RETRY_ALL IB_MQP_RETRY_CNT IB_MQP_RETRY_SLEEP_MSEC \
    IB_OOO_RQ IB_PCI_RELAXED_ORDERING IB_PKEY IB_PREPOST_RECEIVE_WORK_REQUESTS IB_QPS_PER_CONNECTION \
    IB_QUERY_PORT_SPEED IB_RECEIVER_SIDE_MATCHING_SCHEME IB_RESILIENCY_PORT_FAILOVER \
    IB_RESILIENCY_PORT_FAILOVER_MAX_ATTEMPTS IB_RESILIENCY_PORT_FAILOVER_PROBE_DELAY IB_RESILIENCY_PORT_RECOVERY \
    IB_RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL \
    IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_SIZE IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_SEQUENCE_SIZE \
    IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_TIMEOUT IB_RESILIENCY_PORT_RECOVERY_ATTEMPTS_MAX \
    IB_RESILIENCY_PORT_RECOVERY_START_DELAY IB_RETRY_CNT IB_RETURN_ASYNC_EVENTS IB_ROCE_VERSION_NUM \
    IB_ROUTABLE_FLID_GID_INDEX IB_SL IB_SPLIT_DATA_ON_QPS IB_SUBNET_AWARE_ROUTING IB_SUBNET_PREFIX_LEN IB_TC \
    IB_TIMEOUT IB_USE_INLINE IB_WARN_RAIL_LOCAL IGNORE_COLLNET_MISMATCH IGNORE_CPU_AFFINITY IGNORE_DISABLED_P2P \
    IGNORE_NET_MISMATCH INSPECTOR_ENABLE IPC_USE_ABSTRACT_SOCKET L1_SHARED_MEMORY_CARVEOUT \
    LAUNCH_MODE LAUNCH_ORDER_IMPLICIT LAUNCH_RACE_FATAL LEGACY_CUDA_REGISTER LIBRARY LL128_BUFFSIZE \
    LL128_C2C LL128_NTHREADS LL_BUFFSIZE LOCAL_REGISTER LSA_TEAM_SIZE MAX_CTAS MAX_NCHANNELS MAX_P2P_NCHANNELS \
    MEM_SYNC_DOMAIN MIN_CTAS MIN_NCHANNELS MIN_P2P_NCHANNELS MLOPART_RDMA_ENABLE MNNVL_CLIQUE_ID \
    MNNVL_CROSS_CLIQUE MNNVL_ENABLE MNNVL_RAIL_PER_HOST MNNVL_SCATTER_NETS_ENABLE MNNVL_UUID \
    MULTI_RANK_GPU_ENABLE MULTI_SEGMENT_REGISTER NCHANNELS_PER_NET_PEER NET NETDEVS_POLICY NET_DISABLE_INTRA \
    NET_FORCE_FLUSH NET_FORCE_MERGE NET_GDR_C2C NET_GDR_LEVEL NET_GDR_MLOPART NET_GDR_READ NET_MERGE_LEVEL \
    NET_MERGE_POLICY NET_OPTIONAL_RECV_COMPLETION NET_OVERHEAD NET_PLUGIN NET_PLUGIN_REF_COUNT NET_SHARED_BUFFERS \
    NET_SHARED_COMMS NO_CACHE NSOCKS_PERTHREAD NTHREADS NUM_RMA_CTX NVB_DISABLE NVB_PRECONNECT \
    NVLINK_UTIL_CENTRIC_SCHED_ENABLE NVLSTREE_MAX_CHUNKSIZE NVLS_CHUNKSIZE NVLS_ENABLE NVLS_NCHANNELS \
    NVTX_DISABLE OOB_NET_ENABLE OOB_NET_IFNAME P2P_DIRECT_DISABLE P2P_DISABLE P2P_EPOCH_ENABLE P2P_LEVEL \
    P2P_LL_THRESHOLD P2P_MAX_PEERS P2P_NET_CHUNKSIZE P2P_NVL_CHUNKSIZE P2P_PCI_CHUNKSIZE P2P_PER_CHANNEL_NET_BW \
    P2P_PXN_LEVEL P2P_READ_ENABLE P2P_SCHEDULE_GROUP_SIZE P2P_USE_CUDA_MEMCPY PARAM_DUMP_ALL PAT_ENABLE \
    PROFILER_PLUGIN PROGRESS_APPENDOP_FREQ PROTO PROXY_APPEND_BATCH_SIZE PROXY_CPUSET PROXY_DUMP_SIGNAL PXN_C2C \
    PXN_DISABLE RAS_ADDR RAS_ENABLE RAS_TIMEOUT_FACTOR REPORT_CONNECT_PROGRESS RMA_DISABLE RMA_PLUGIN \
    RMA_PLUGIN_REF_COUNT RMA_PROXY_DUMP_SIGNAL RMA_PROXY_QUEUE_SIZE ROOT RUNTIME_CONNECT SET_CPU_STACK_SIZE \
    SET_STACK_SIZE SHADOW_MEMPOOL_MAX_SIZE SHM_DISABLE SHM_LOCALITY SHM_MEMCPY_MODE SHM_USE_CUDA_MEMCPY \
    SINGLE_PROC_MEM_REG_ENABLE SOCKET_FAMILY SOCKET_IFNAME SOCKET_INLINE SOCKET_MAGIC SOCKET_MIN_TASKSIZE \
    SOCKET_NTHREADS SOCKET_POLL_TIMEOUT_MSEC SOCKET_RCVBUF SOCKET_RETRY_CNT SOCKET_RETRY_SLEEP_MSEC SOCKET_SNDBUF \
    SYM_CE_THRESHOLD SYM_CTAS SYM_GIN_KERNELS_ENABLE SYM_KERNEL SYM_NOWIN_ENABLE SYM_REUSE_SYSMEM_HANDLES \
    SYM_RS_GIN_CHUNK_SIZE SYM_TMA_ENABLE TESTS_DEVICE THREAD_THRESHOLDS TIMEOUT TOPO_DUMP_FILE \
    TOPO_DUMP_FILE_RANK TOPO_FILE TOPO_SPLIT_MLOPART TUNER_PLUGIN UID_STAGGER_RATE UID_STAGGER_THRESHOLD \
    UNPACK_DOUBLE_NCHANNELS VERSION WARN_ENABLE_DEBUG_INFO WIN_ENABLE WIN_STRIDE WORK_ARGS_BYTES WORK_FIFO_BYTES";

/// Whether `UCX_TLS` or `FI_PROVIDER` says nothing about the transfers of a job with these settings, because
/// they are NCCL's. Clouds start jobs of NCCL with `-x UCX_TLS=tcp`, which is for MPI: NCCL reads neither
/// variable. Of its plug-ins that of HPC-X makes its transfers with UCX if `NCCL_PLUGIN_P2P` says so, and
/// aws-ofi-nccl, without which there is no RDMA on EFA (`has_verbs`: the machine has other NICs), with
/// libfabric.
pub fn nccl_ignores(name: &str, settings: &[(String, String)], has_verbs: bool) -> bool {
    let value = |wanted: &str| {
        let found = settings.iter().find(|(known, _)| known == wanted);
        found.map_or_else(String::new, |(_, value)| value.trim().to_ascii_lowercase())
    };
    let is_fabric = |name| value(name).contains("ofi") || value(name).contains("fabric");
    let in_nccl = match name {
        "UCX_TLS" => value("NCCL_PLUGIN_P2P").starts_with("uc"),
        "FI_PROVIDER" => !has_verbs || ["NCCL_NET", "NCCL_NET_PLUGIN"].into_iter().any(is_fabric),
        _ => return false,
    };
    !in_nccl && is_of_nccl(settings)
}

/// Whether somebody made these settings for a job of NCCL. Each image of NVIDIA sets `NCCL_VERSION`, whatever
/// runs in it.
pub fn is_of_nccl(settings: &[(String, String)]) -> bool {
    let mut names = settings.iter().map(|(name, _)| name.as_str());
    names.any(|name| name.starts_with("NCCL_") && name != "NCCL_VERSION")
}

/// Variables of other libraries, of NCCL's plug-ins and of launchers whose values are settings of a network,
/// by their documentation.
pub const OTHERS: &str = "\
    CUDA_VISIBLE_DEVICES EFA_USE_DEVICE_RDMA FI_CXI_DEFAULT_CQ_SIZE FI_CXI_RDZV_THRESHOLD FI_CXI_RX_MATCH_MODE FI_EFA_ENABLE_SHM_TRANSFER \
    FI_EFA_FORK_SAFE FI_EFA_IFACE FI_EFA_USE_DATA_PATH_DIRECT FI_EFA_USE_DEVICE_RDMA FI_EFA_USE_HUGE_PAGE FI_HMEM FI_LOG_LEVEL \
    FI_MR_CACHE_MAX_COUNT FI_MR_CACHE_MAX_SIZE FI_MR_CACHE_MONITOR FI_MR_CUDA_CACHE_MONITOR_ENABLED FI_OFI_RXM_USE_SRX FI_OPX_HFI_SELECT \
    FI_PROVIDER FI_TCP_IFACE FI_UNIVERSE_SIZE FI_VERBS_DEVICE_NAME FI_VERBS_IFACE FI_VERBS_PREFER_XRC FLUX_JOB_ID GLOO_DEVICE_TRANSPORT \
    GLOO_SOCKET_IFNAME IBV_FORK_SAFE I_MPI_DEBUG I_MPI_FABRICS I_MPI_HYDRA_IFACE I_MPI_OFI_PROVIDER LOCAL_RANK LOCAL_WORLD_SIZE LSB_JOBID \
    MASTER_ADDR MASTER_PORT MLX4_SINGLE_THREADED MLX5_POST_SEND_PREFER_BF MLX5_RELAXED_PACKET_ORDERING_ON MLX5_SCATTER_TO_CQE \
    MLX5_SHUT_UP_BF MLX5_SINGLE_THREADED MORI_DISABLE_P2P MORI_ENABLE_SDMA MORI_RDMA_DEVICES MPICH_OFI_NIC_MAPPING MPICH_OFI_NIC_POLICY \
    MPICH_OFI_NUM_NICS MV2_IBA_HCA MV2_USE_CUDA MV2_USE_RDMA_CM NCCL_IBEXT_DISABLE NCCL_PLUGIN_P2P NIXL_LOG_LEVEL NIXL_PLUGIN_DIR NVSHMEM_BOOTSTRAP NVSHMEM_DEBUG \
    NVSHMEM_DISABLE_P2P NVSHMEM_ENABLE_NIC_PE_MAPPING NVSHMEM_HCA_LIST NVSHMEM_HCA_PE_MAPPING NVSHMEM_IBGDA_NUM_RC_PER_PE \
    NVSHMEM_IB_ENABLE_IBGDA NVSHMEM_IB_GID_INDEX NVSHMEM_IB_SL NVSHMEM_IB_TRAFFIC_CLASS NVSHMEM_REMOTE_TRANSPORT \
    NVSHMEM_SYMMETRIC_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_MCA_btl OMPI_MCA_btl_tcp_if_include \
    OMPI_MCA_coll OMPI_MCA_mtl OMPI_MCA_osc OMPI_MCA_pml PBS_JOBID PMIX_RANK PMI_RANK PMI_SIZE PSM2_DEVICES PSM2_MULTIRAIL PSM3_DEVICES \
    PSM3_MULTIRAIL PSM3_NIC PSM3_RDMA RANK RDMAV_FORK_SAFE RDMAV_HUGEPAGES_SAFE ROCR_VISIBLE_DEVICES SHARP_COLL_ENABLE_SAT \
    SHARP_COLL_LOG_LEVEL SLURM_JOB_ID SLURM_JOB_NAME SLURM_LOCALID SLURM_NNODES SLURM_NODEID SLURM_NTASKS SLURM_PROCID SLURM_STEP_ID \
    UCX_CUDA_COPY_DMABUF UCX_DC_MLX5_NUM_DCI UCX_IB_ADDR_TYPE UCX_IB_AR_ENABLE UCX_IB_FORK_INIT UCX_IB_GID_INDEX UCX_IB_GPU_DIRECT_RDMA \
    UCX_IB_MLX5_DEVX UCX_IB_NUM_PATHS UCX_IB_PCI_RELAXED_ORDERING UCX_IB_PKEY UCX_IB_REG_METHODS UCX_IB_ROCE_REACHABILITY_MODE UCX_IB_SL \
    UCX_IB_TRAFFIC_CLASS UCX_LOG_LEVEL UCX_MAX_EAGER_RAILS UCX_MAX_RNDV_RAILS UCX_MEMTYPE_CACHE UCX_NET_DEVICES UCX_PROTO_ENABLE \
    UCX_RCACHE UCX_RC_RETRY_COUNT UCX_RC_RNR_RETRY_COUNT UCX_RC_RNR_TIMEOUT UCX_RC_TIMEOUT UCX_RNDV_SCHEME UCX_RNDV_THRESH \
    UCX_SOCKADDR_TLS_PRIORITY UCX_TCP_CM_REUSEADDR UCX_TLS UCX_UD_TIMEOUT UCX_WARN_UNUSED_ENV_VARS WORLD_SIZE";

/// Whether the value of a variable may be shown. A name that no library reads may hold anything, a password
/// too.
pub fn value_is_shown(name: &str) -> bool {
    let has = |all: &str, name: &str| all.split_ascii_whitespace().any(|known| known == name);
    let of_nccl = name.strip_prefix("NCCL_").or_else(|| name.strip_prefix("RCCL_"));
    has(OTHERS, name) || of_nccl.is_some_and(|short| has(NCCL, short))
}

/// A variable and what it is set to; of a long list only its beginning.
pub fn setting(name: &str, value: &str) -> String {
    const COLUMNS: usize = 64;
    let begin = cut_columns(value, COLUMNS);
    let dots = if begin.len() < value.len() { "..." } else { "" };
    format!("{name}={begin}{dots}")
}

/// The settings of a process, each variable with its value, that keep a library from RDMA, those of NCCL
/// first. On EFA NCCL has RDMA by a plug-in, for which the variable against its own verbs means nothing
/// (`has_verbs`: the machine has other NICs).
pub fn without_rdma(settings: &[(String, String)], has_verbs: bool) -> Vec<(&'static str, &str)> {
    /// A variable, whether it counts here, and whether a value keeps its library from RDMA.
    type Switch = (&'static str, bool, fn(&str) -> bool);
    let get = |name: &str| {
        let found = settings.iter().find(|(known, _)| known == name);
        found
            .map(|(_, value)| value.trim())
            .filter(|value| !value.is_empty())
    };
    // The plug-in IBext has a transport of its own, which reads NCCL_IBEXT_DISABLE instead.
    let net = get("NCCL_NET").unwrap_or_default().to_ascii_lowercase();
    let disable = if net.starts_with("ibext") {
        "NCCL_IBEXT_DISABLE"
    } else {
        "NCCL_IB_DISABLE"
    };
    let switches: [Switch; 6] = [
        (disable, has_verbs, |value| {
            value.parse::<i64>().is_ok_and(|value| value != 0)
        }),
        ("NCCL_NET", true, |value| value.eq_ignore_ascii_case("socket")),
        ("NCCL_NET_PLUGIN", !has_verbs, |value| {
            value.eq_ignore_ascii_case("none")
        }),
        ("UCX_TLS", true, ucx_without_rdma),
        ("FI_PROVIDER", true, fabric_without_rdma),
        ("NVSHMEM_REMOTE_TRANSPORT", true, |value| {
            value.eq_ignore_ascii_case("none")
        }),
    ];
    let all = switches.into_iter().filter(|(_, counts, _)| *counts);
    all.filter_map(|(name, _, is_off)| Some((name, get(name).filter(|value| is_off(value))?)))
        .collect()
}

/// Whether a process with these libraries has NCCL, and nothing by which NCCL reaches EFA: its own transport
/// takes verbs devices of InfiniBand and RoCE. A NCCL that is linked statically is not seen. Where libfabric
/// is loaded, a plug-in of any name may have done so.
pub fn lacks_efa_plugin<'a>(libraries: impl IntoIterator<Item = &'a str>) -> bool {
    let mut has_nccl = false;
    for library in libraries {
        if ["libnccl-net", "libnccl-ofi", "libfabric"]
            .iter()
            .any(|name| library.starts_with(name))
        {
            return false;
        }
        has_nccl |= library.starts_with("libnccl.so");
    }
    has_nccl
}

/// Whether a list of UCX's transports has none of RDMA.
fn ucx_without_rdma(value: &str) -> bool {
    const RDMA: [&str; 13] = [
        "all", "ib", "rc", "rc_v", "rc_x", "rc_verbs", "rc_mlx5", "ud", "ud_v", "ud_x", "ud_verbs",
        "ud_mlx5", "srd",
    ];
    if let Some(left_out) = value.strip_prefix('^') {
        return left_out.split(',').any(|transport| transport.trim() == "ib");
    }
    !value.split(',').map(str::trim).any(|transport| {
        RDMA.contains(&transport) || transport.starts_with("dc") || transport.starts_with("gga")
    })
}

/// Whether a list of libfabric's providers has none of RDMA.
fn fabric_without_rdma(value: &str) -> bool {
    const SOFTWARE: [&str; 7] = ["tcp", "sockets", "udp", "shm", "net", "ofi_rxm", "ofi_rxd"];
    if value.starts_with('^') {
        return false;
    }
    let core = |provider: &str| provider.split(';').all(|part| SOFTWARE.contains(&part.trim()));
    !value.is_empty() && value.split(',').all(core)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nccl_without_a_way_to_efa_is_known_where_nothing_else_may_be_one() {
        assert!(lacks_efa_plugin([
            "libcuda.so.1",
            "libnccl.so.2",
            "libibverbs.so.1"
        ]));
        assert!(lacks_efa_plugin(["libnccl.so.2.27.3"]));
        for libraries in [
            &[][..],
            // Linked statically, as in PyTorch's wheels of old.
            &["libcuda.so.1", "libibverbs.so.1"],
            &["libnccl.so.2", "libnccl-net.so"],
            &["libnccl.so.2", "libnccl-net-ofi.so"],
            &["libnccl.so.2", "libnccl-ofi-tuner.so"],
            &["libnccl.so.2", "libfabric.so.1"],
        ] {
            assert!(!lacks_efa_plugin(libraries.iter().copied()), "{libraries:?}");
        }
    }

    #[test]
    fn transports_and_providers_without_rdma_are_known() {
        for value in ["tcp", "tcp,self,sm", "sm,cuda_copy", "^ib"] {
            assert!(ucx_without_rdma(value), "{value}");
        }
        for value in ["all", "rc,sm", "rc_x,self", "dc_mlx5", "^tcp", "tcp,ud"] {
            assert!(!ucx_without_rdma(value), "{value}");
        }
        for value in ["tcp", "sockets", "tcp;ofi_rxm", "shm,tcp"] {
            assert!(fabric_without_rdma(value), "{value}");
        }
        for value in ["efa", "verbs;ofi_rxm", "^tcp", "efa,shm", ""] {
            assert!(!fabric_without_rdma(value), "{value}");
        }
    }

    #[test]
    fn each_setting_that_keeps_a_library_from_rdma_is_read_with_its_value() {
        let off = |settings: &[(&str, &str)], has_verbs| {
            let settings: Vec<_> = settings
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect();
            let names = without_rdma(&settings, has_verbs)
                .into_iter()
                .map(|(name, _)| name);
            names.collect::<Vec<_>>()
        };
        for (name, value, with_verbs, on_efa) in [
            ("NCCL_IB_DISABLE", "2", true, false),
            ("NCCL_IB_DISABLE", "0", false, false),
            ("NCCL_NET", "socket", true, true),
            ("NCCL_NET_PLUGIN", "none", false, true),
            ("UCX_TLS", "tcp,self,sm", true, true),
            ("FI_PROVIDER", "sockets", true, true),
            ("NVSHMEM_REMOTE_TRANSPORT", "none", true, true),
            // It is for the plug-in alone.
            ("NCCL_IBEXT_DISABLE", "1", false, false),
        ] {
            assert!(value_is_shown(name), "{name}: without its value nothing is known");
            let is_off = [true, false].map(|has_verbs| off(&[(name, value)], has_verbs) == [name]);
            assert_eq!(is_off, [with_verbs, on_efa], "{name}={value}");
        }
        let with_plugin = |name| off(&[("NCCL_NET", "IBext_v8"), (name, "1")], true);
        assert_eq!(with_plugin("NCCL_IBEXT_DISABLE"), ["NCCL_IBEXT_DISABLE"]);
        assert_eq!(with_plugin("NCCL_IB_DISABLE"), [""; 0]);
        assert!(value_is_shown("NCCL_PLUGIN_P2P") && !value_is_shown("NCCL_SECRET"));
    }
}
