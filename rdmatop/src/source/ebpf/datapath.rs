//! Providers whose data path goes through the kernel, and where to hook it.
//!
//! The next provider is one more table here and its bodies in rdmatop-ebpf.

use super::{
    control::CONTROL_PLANE,
    hook::{Fast, Hook, Path, Role, Skip},
};

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
    /// What its hooks share.
    pub path: &'static Path,
    /// Hooks.
    pub hooks: &'static [Hook],
}

const RXE_MODULE: &str = "rdma_rxe";

static RXE_PATH: Path = Path {
    driver: RXE_MODULE,
    needs: &[
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
    ],
};

const RXE_HOOK: Hook = Hook {
    module: RXE_MODULE,
    path: Some(&RXE_PATH),
    skip: Skip::Count,
    ..Hook::BASE
};

/// SoftRoCE. Only names that 6.1, 6.12 and 7.2 share: the responder, which was renamed, is not needed.
///
/// Only the doorbell, the one hook that the posting program itself pays for, is worth fentry. An fentry program
/// can be preempted, and the kernel then skips it for a task that enters the same function on that CPU: seen on
/// 7.2, with six of a thousand receive completions missing. A missed doorbell is made good by the next look at the
/// ring's index; a missed completion by nothing. kprobes run with preemption off.
pub const RXE: DataPath = DataPath {
    path: &RXE_PATH,
    hooks: &[
        Hook {
            program: "kp_completer",
            symbol: "rxe_completer",
            gives: "send WRs finished, bytes, opcodes, latency, waits for a receiver without buffers",
            wants: &[&[
                "OFF_RING_DATA",
                "OFF_QUEUE_SHIFT",
                "OFF_WQE_OPCODE",
                "OFF_WQE_LENGTH",
                "OFF_RXE_QP_STATE",
                "OFF_RXE_QP_RNR_EXPIRES",
                "OFF_RXE_QP_RNR_PENDING",
            ]],
            role: Role::Counts,
            // It reads what it counts from the rings and the QP, so its next run makes good what this one would have: but
            // for a wait of which each visit was skipped, and for a ring that went round meanwhile.
            cost: Some(
                "post-to-completion times may be too long; a wait for a receiver, or a whole ring of WRs, may be missing",
            ),
            ..RXE_HOOK
        },
        Hook {
            program: "kp_post_send",
            symbol: "rxe_post_send",
            gives: "doorbells, send WRs posted, post time",
            role: Role::Counts,
            cost: Some("doorbells, and calls of post_send, may be short by as many"),
            // The one hook of the data path that the posting program itself pays for. The next look at the ring's index
            // finds what a doorbell would have reported.
            fast: Some(Fast {
                program: "fe_post_send",
                heals: true,
            }),
            ..RXE_HOOK
        },
        Hook {
            program: "kp_cq_post",
            symbol: "rxe_cq_post",
            gives: "completions by status, receive WRs and bytes, CQ overflows",
            needs: &[&["OFF_RXE_CQ_IBCQ", "OFF_RXE_CQ_USER", "OFF_CQ_DEVICE"]],
            wants: &[&[
                "OFF_WC_QP",
                "OFF_WC_STATUS",
                "OFF_WC_OPCODE",
                "OFF_WC_BYTE_LEN",
                "OFF_RXE_CQ_QUEUE",
                "OFF_RING_CONSUMER",
                "OFF_RING_DATA",
                "OFF_RXE_QP_RQ",
                "OFF_RXE_QP_SRQ",
                "OFF_WQE_STATUS",
            ]],
            ..RXE_HOOK
        },
        Hook {
            program: "kp_xmit",
            symbol: "rxe_xmit_packet",
            gives: "retransmitted packets",
            needs: &[&[
                "OFF_PKT_PSN",
                "OFF_PKT_OPCODE",
                "OFF_PKT_WQE",
                "OFF_WQE_RESID",
                "OFF_RXE_QP_MTU",
            ]],
            ..RXE_HOOK
        },
        Hook {
            program: "rxe_queue_end",
            symbol: "rxe_queue_cleanup",
            gives: "final counts of a destroyed QP",
            cost: Some("what as many queues did just before they were destroyed may be missing"),
            ..RXE_HOOK
        },
        // A QP that is not found here the next doorbell or completion shows.
        Hook {
            program: "query_qp",
            symbol: "ib_query_qp",
            module: "ib_core",
            gives: "QPs that were there before",
            skip: Skip::Nothing,
            ..RXE_HOOK
        },
    ],
};

/// Every data path.
pub const DATA_PATHS: &[DataPath] = &[RXE];

/// All hooks of data paths.
pub fn hooks() -> impl Iterator<Item = &'static Hook> {
    DATA_PATHS.iter().flat_map(|path| path.hooks)
}

/// Every hook that there is.
pub fn all_hooks() -> impl Iterator<Item = &'static Hook> {
    CONTROL_PLANE.iter().chain(hooks())
}
