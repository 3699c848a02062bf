//! Providers whose data path goes through the kernel, and where to hook it.
//!
//! A new provider needs its record in rdmatop-common (`provider.rs`), one more table here, programs in
//! rdmatop-ebpf, and the meaning of its counters in `model/engine/providers/mod.rs`.

use rdmatop_common::{counters::slot_flag, provider};

use crate::{
    hooks::{Fast, Hook, Path, Role, Skip, control::CONTROL_PLANE, work::WORK_HOOKS},
    user,
};

/// A provider's data path.
#[derive(Clone, Copy, Debug)]
pub struct DataPath {
    /// What the hooks share.
    pub path: &'static Path,
    /// The hooks, in the order in which they are attached.
    pub hooks: &'static [Hook],
}

static RXE_PATH: Path = Path {
    of: &provider::RXE,
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
    module: provider::RXE.driver,
    path: Some(&RXE_PATH),
    skip: Skip::Count,
    ..Hook::BASE
};

/// SoftRoCE. The hooks use only functions that have the same name on 6.1, 6.12 and 7.2; the responder was
/// renamed, and no hook needs it.
///
/// Only the doorbell is worth fentry, because only there the hook slows down the posting program. An fentry
/// program can be preempted, and the kernel then skips it for a task that enters the same function on that
/// CPU: on 7.2 six of a thousand receive completions were missing. The next event reads a missed doorbell
/// from the ring's index, but nothing recovers a missed completion. kprobes run with preemption off.
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
                "OFF_RXE_QP_DGID",
                "OFF_RXE_QP_RNR_EXPIRES",
                "OFF_RXE_QP_RNR_PENDING",
            ]],
            role: Role::Counts,
            // The program reads its counts from the rings and the QP, so its next run finds what a skipped
            // one missed, except a wait during which every run was skipped, and WRs of a ring that went round
            // in between.
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
            cost: Some("as many doorbells and calls of post_send may be missing"),
            // Of all hooks of the data path only this one slows down the posting program. The next event
            // reads from the ring's index what a skipped doorbell would have reported.
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
            // The latency of a WR ends at the time of its CQE.
            unknown_without: slot_flag::NO_CQES | slot_flag::NO_LATENCY,
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
            // Before Linux 6.4 a wait may show only at the packet that is sent after it.
            unknown_without: slot_flag::NO_RETRANSMITS | slot_flag::NO_RNR,
            ..RXE_HOOK
        },
        Hook {
            program: "rxe_queue_end",
            symbol: "rxe_queue_cleanup",
            gives: "final counts of a destroyed QP",
            cost: Some("the last work of as many queues before their destruction may be missing"),
            ..RXE_HOOK
        },
    ],
};

static SIW_PATH: Path = Path {
    of: &provider::SIW,
    needs: &[
        "OFF_SIW_QP_BASE",
        "OFF_SIW_SENDQ",
        "OFF_SIW_SQ_SIZE",
        "OFF_SIW_SQ_GET",
        "OFF_SIW_ORQ_GET",
        "OFF_SIW_ORQ_PUT",
        "OFF_SIW_RECVQ",
        "OFF_SIW_RQ_SIZE",
        "OFF_SIW_RQ_GET",
        "OFF_SIW_SRQ",
        "OFF_SIW_TX_WQE",
        "OFF_SIW_WQE_SQE",
        "OFF_RES_USER",
        "OFF_QP_RES",
        "OFF_DEV_DRIVER",
        "OFF_QP_DEVICE",
        "OFF_QP_NUM",
    ],
};

const SIW_HOOK: Hook = Hook {
    module: provider::SIW.driver,
    path: Some(&SIW_PATH),
    skip: Skip::Count,
    ..Hook::BASE
};

/// Soft iWARP. The hooks use only functions that have a symbol on 6.1, 6.12 and 7.2; others are inlined.
pub const SIW: DataPath = DataPath {
    path: &SIW_PATH,
    hooks: &[
        Hook {
            program: "siw_activate",
            symbol: "siw_activate_tx",
            gives: "send WRs posted and finished on soft iWARP, bytes, opcodes",
            role: Role::Counts,
            cost: Some("opcodes and bytes of as many WRs of soft iWARP may be missing"),
            ..SIW_HOOK
        },
        Hook {
            program: "siw_post_send",
            symbol: "siw_post_send",
            gives: "doorbells on soft iWARP",
            role: Role::Counts,
            cost: Some("as many doorbells and calls of post_send may be missing"),
            ..SIW_HOOK
        },
        Hook {
            program: "siw_sq_cqe",
            symbol: "siw_sqe_complete",
            gives: "completions of send WRs on soft iWARP by status",
            needs: &[&["OFF_SIW_SCQ"]],
            unknown_without: slot_flag::NO_CQES,
            ..SIW_HOOK
        },
        Hook {
            program: "siw_rq_cqe",
            symbol: "siw_rqe_complete",
            gives: "receive WRs and bytes on soft iWARP",
            needs: &[&["OFF_SIW_RCQ"]],
            unknown_without: slot_flag::NO_CQES,
            ..SIW_HOOK
        },
        Hook {
            program: "siw_no_room",
            symbol: "siw_cq_event",
            gives: "CQ overflows on soft iWARP",
            needs: &[&["OFF_SIW_SCQ", "OFF_SIW_RCQ"]],
            // For a CQE that found no room this program takes back what the two above have counted.
            unknown_without: slot_flag::NO_CQES,
            cost: Some(
                "as many CQEs of soft iWARP for which the CQ had no room may be counted as completions",
            ),
            ..SIW_HOOK
        },
        Hook {
            program: "siw_read_end",
            symbol: "siw_wqe_put_mem",
            gives: "READs on soft iWARP that end without a completion",
            needs: &[&["OFF_SIW_RX_WQE"]],
            wants: &[&["OFF_SIW_WQE_STATUS"]],
            cost: Some(
                "the last READs without a completion may show as not finished until the QP does something else",
            ),
            ..SIW_HOOK
        },
        Hook {
            program: "siw_qp_end",
            symbol: "siw_free_qp",
            gives: "final counts of a destroyed QP of soft iWARP",
            needs: &[&["OFF_SIW_QP_REF"]],
            cost: Some("the last work of as many QPs before their destruction may be missing"),
            ..SIW_HOOK
        },
    ],
};

/// Every data path.
pub const DATA_PATHS: &[DataPath] = &[RXE, SIW];

/// All hooks of data paths.
pub fn hooks() -> impl Iterator<Item = &'static Hook> {
    DATA_PATHS.iter().flat_map(|path| path.hooks)
}

/// Every hook.
pub fn all_hooks() -> impl Iterator<Item = &'static Hook> {
    let control = CONTROL_PLANE.iter().chain(user::HOOKS);
    control.chain(hooks()).chain(WORK_HOOKS)
}
