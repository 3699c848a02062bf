//! Providers whose data path goes through the kernel, and where to hook it.
//!
//! The next provider is one more table here and its bodies in rdmatop-ebpf.

use super::plan::{Entry, Hook};

/// How hooks are entered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attach {
    /// What fits a long run: kprobe, because fentry keeps the modules from being unloaded.
    #[default]
    Auto,
    /// kprobes.
    Kprobe,
    /// fentry and fexit where the kernel has them and nothing is lost by it, kprobes elsewhere.
    Fentry,
}

/// A provider's data path.
#[derive(Clone, Copy, Debug)]
pub struct DataPath {
    /// Provider.
    pub name: &'static str,
    /// Its module.
    pub module: &'static str,
    /// Hooks; without the first two nothing is counted.
    pub hooks: &'static [Hook],
}

const RXE_MODULE: &str = "rdma_rxe";

const fn hot(
    program: &'static str,
    symbol: &'static str,
    gives: &'static str,
    needs: &'static [&'static str],
    wants: &'static [&'static str],
) -> Hook {
    Hook {
        program,
        entry: Entry::Kprobe,
        symbol,
        module: RXE_MODULE,
        driver: Some(RXE_MODULE),
        gives,
        needs,
        wants,
    }
}

const QUEUES: &[&str] = &[
    "OFF_RXE_QP_IBQP",
    "OFF_RXE_QP_USER",
    "OFF_RXE_QP_SQ",
    "OFF_QUEUE_BUF",
    "OFF_QUEUE_MASK",
    "OFF_QUEUE_INDEX",
    "OFF_RING_PRODUCER",
    "OFF_DEV_DRIVER",
    "OFF_QP_DEVICE",
    "OFF_QP_NUM",
];

/// SoftRoCE. Only names that 6.1, 6.12 and 7.2 share: the responder, which was renamed, is not needed.
///
/// Only the doorbell, the one hook that the posting program itself pays for, is worth fentry. An fentry program
/// can be preempted, and the kernel then skips it for a task that enters the same function on that CPU: seen on
/// 7.2, with six of a thousand receive completions missing. A missed doorbell is made good by the next look at the
/// ring's index; a missed completion by nothing. kprobes run with preemption off.
pub const RXE: DataPath = DataPath {
    name: "rxe",
    module: RXE_MODULE,
    hooks: &[
        hot(
            "kp_completer",
            "rxe_completer",
            "send WRs finished, bytes, opcodes, latency, waits for a receiver without buffers",
            QUEUES,
            &[
                "OFF_RING_DATA",
                "OFF_QUEUE_SHIFT",
                "OFF_WQE_OPCODE",
                "OFF_WQE_LENGTH",
                "OFF_RXE_QP_STATE",
                "OFF_RXE_QP_RNR_EXPIRES",
                "OFF_RXE_QP_RNR_PENDING",
            ],
        ),
        hot(
            "kp_post_send",
            "rxe_post_send",
            "doorbells, send WRs posted, post time",
            QUEUES,
            &[],
        ),
        hot(
            "kp_cq_post",
            "rxe_cq_post",
            "completions by status, receive WRs and bytes, CQ overflows",
            &["OFF_RXE_CQ_IBCQ", "OFF_RXE_CQ_USER", "OFF_CQ_DEVICE"],
            &[
                "OFF_WC_QP",
                "OFF_WC_STATUS",
                "OFF_WC_OPCODE",
                "OFF_WC_BYTE_LEN",
                "OFF_RXE_CQ_QUEUE",
                "OFF_RING_CONSUMER",
                "OFF_RXE_QP_RQ",
                "OFF_WQE_STATUS",
            ],
        ),
        hot(
            "kp_xmit",
            "rxe_xmit_packet",
            "retransmitted packets",
            &[
                "OFF_RXE_QP_IBQP",
                "OFF_PKT_PSN",
                "OFF_PKT_OPCODE",
                "OFF_PKT_WQE",
                "OFF_WQE_RESID",
                "OFF_RXE_QP_MTU",
            ],
            &[],
        ),
        hot(
            "rxe_queue_end",
            "rxe_queue_cleanup",
            "final counts of a destroyed QP",
            QUEUES,
            &[],
        ),
        Hook {
            module: "ib_core",
            ..hot(
                "query_qp",
                "ib_query_qp",
                "QPs that were there before",
                QUEUES,
                &[],
            )
        },
    ],
};

/// Every data path.
pub const DATA_PATHS: &[DataPath] = &[RXE];

/// All their hooks.
pub fn hooks() -> impl Iterator<Item = &'static Hook> {
    DATA_PATHS.iter().flat_map(|path| path.hooks)
}
