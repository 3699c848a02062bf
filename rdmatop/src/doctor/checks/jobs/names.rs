//! Names of NCCL's variables: the present ones and earlier ones.

use super::jobs;
use crate::doctor::facts::Facts;
use crate::doctor::line::Lines;
use crate::step::step;

/// No longer read, with their replacements.
const OLD: [(&str, &str); 6] = [
    ("NCCL_IB_GDR_LEVEL", "NCCL_NET_GDR_LEVEL"),
    ("NCCL_IB_CUDA_SUPPORT", "NCCL_NET_GDR_LEVEL"),
    ("NCCL_LL_THRESHOLD", "NCCL_PROTO"),
    ("NCCL_TREE_THRESHOLD", "NCCL_ALGO"),
    ("NCCL_SINGLE_RING_THRESHOLD", "NCCL_MIN_NCHANNELS"),
    ("NCCL_RINGS", "NCCL_GRAPH_FILE"),
];

/// Without `NCCL_`: the variables that NCCL reads today, and those that releases since 2.4 accept without effect.
const KNOWN: &str = "\
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
    IGNORE_NET_MISMATCH INCLUDE_DIR INSPECTOR_ENABLE IPC_USE_ABSTRACT_SOCKET L1_SHARED_MEMORY_CARVEOUT \
    LAUNCH_MODE LAUNCH_ORDER_IMPLICIT LAUNCH_RACE_FATAL LEGACY_CUDA_REGISTER LIBRARY LIB_DIR LL128_BUFFSIZE \
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

pub(crate) fn names(facts: &Facts, out: &mut Lines) {
    for job in jobs(facts) {
        for (name, _) in job.environ.iter().filter(|(name, _)| name.starts_with("NCCL_")) {
            let subject = &job.subject;
            let ignored = "NCCL ignores what it does not know, without a word.";
            if let Some((_, new)) = OLD.iter().find(|(old, _)| old == name) {
                out.warn(
                    subject,
                    format!("{subject}: {name} is an old name that NCCL reads no more"),
                    ignored,
                    step!("start the job with {} instead", *new),
                );
            } else if let Some(meant) = misspelt(name) {
                out.warn(
                    subject,
                    format!("{subject}: {name} is not a variable of NCCL; NCCL_{meant} is"),
                    ignored,
                    step!("start the job with NCCL_{} instead", meant),
                );
            }
        }
    }
}

/// The known variable that is close to an unknown name, without its `NCCL_`.
fn misspelt(name: &str) -> Option<&'static str> {
    let short = name.strip_prefix("NCCL_")?;
    let known = || KNOWN.split_ascii_whitespace();
    // Short names are close to each other.
    if short.len() < 5 || known().any(|known| known == short) {
        return None;
    }
    let best = known()
        .filter(|known| known.len() >= 5)
        .map(|known| (distance(short.as_bytes(), known.as_bytes()), known))
        .min()?;
    (best.0 <= 2).then_some(best.1)
}

/// Letters to add, drop, change or swap; 3 stands for more than 2.
fn distance(a: &[u8], b: &[u8]) -> usize {
    const FAR: usize = 3;
    if a.len().abs_diff(b.len()) >= FAR || a.len() > 64 {
        return FAR;
    }
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let mut best = (last[j] + usize::from(x != y))
                .min(last[j + 1] + 1)
                .min(row[j] + 1);
            if i > 0 && j > 0 && *x == b[j - 1] && a[i - 1] == *y {
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()].min(FAR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_is_found_and_a_right_or_foreign_one_is_not() {
        for (name, meant) in [
            ("NCCL_IB_HCAS", "NCCL_IB_HCA"),
            ("NCCL_SOCKET_IFNMAE", "NCCL_SOCKET_IFNAME"),
            ("NCCL_IB_GIDINDEX", "NCCL_IB_GID_INDEX"),
            ("NCCL_IB_DISABLED", "NCCL_IB_DISABLE"),
        ] {
            assert_eq!(misspelt(name), meant.strip_prefix("NCCL_"));
        }
        for name in [
            "NCCL_IB_HCA",
            "NCCL_DEBUG",
            "NCCL_DEBUG_FILE",
            "NCCL_MY_PLUGIN_SETTING",
            "NCCL_FASTRAK_X",
            "PATH",
            "NCCL_",
        ] {
            assert_eq!(misspelt(name), None, "{name}");
        }
        let long = format!("NCCL_{}", "A".repeat(10_000));
        assert_eq!(misspelt(&long), None);
    }

    #[test]
    fn distances_are_right() {
        for (a, b, far) in [
            ("", "", 0),
            ("AB", "BA", 1),
            ("ABC", "AC", 1),
            ("ABC", "ABCD", 1),
            ("ABC", "XYC", 2),
            ("ABC", "XYZ", 3),
        ] {
            assert_eq!(distance(a.as_bytes(), b.as_bytes()), far, "{a} {b}");
        }
    }

    #[test]
    fn an_old_name_is_not_also_a_known_one() {
        for (old, new) in OLD {
            let known = |name: &str| {
                KNOWN
                    .split_ascii_whitespace()
                    .any(|known| format!("NCCL_{known}") == name)
            };
            assert!(!known(old) && known(new), "{old} {new}");
        }
    }
}
