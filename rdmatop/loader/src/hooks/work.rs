//! The hooks that report work requests as events. Their programs are loaded only if a trace asks for these
//! events by name.

use rdmatop_common::provider;

use crate::hooks::{Hook, Path, Skip};
use rdmatop_model::event::EventKind;

static PATH: Path = Path {
    of: &provider::RXE,
    needs: &[
        "OFF_RXE_QP_IBQP",
        "OFF_RXE_QP_SQ",
        "OFF_QUEUE_BUF",
        "OFF_QUEUE_MASK",
        "OFF_QUEUE_INDEX",
        "OFF_RING_PRODUCER",
        "OFF_QP_DEVICE",
        "OFF_QP_NUM",
    ],
};

const POSTS: &[EventKind] = &[EventKind::WrPost, EventKind::WrDone];

/// For the place of a queue element, and what the programs read from it.
const ELEMENT: &[&str] = &[
    "OFF_RING_DATA",
    "OFF_WQE_OPCODE",
    "OFF_WQE_LENGTH",
    "OFF_WQE_WR_ID",
    "OFF_WQE_FLAGS",
    "OFF_WQE_IMM",
    "OFF_WQE_UD_QPN",
];

const PEER: &[&str] = &["OFF_RXE_QP_DEST", "OFF_RXE_QP_DGID"];

/// What the programs read from a QP when they first see it.
const FIRST: &[&str] = &[
    "OFF_QUEUE_SHIFT",
    "OFF_RXE_QP_USER",
    "OFF_RXE_QP_RQ",
    "OFF_RXE_QP_SRQ",
    "OFF_RXE_QP_SIGNALS",
    "OFF_RXE_QP_SCQ",
    "OFF_RXE_QP_RCQ",
];

const HOOK: Hook = Hook {
    module: provider::RXE.driver,
    path: Some(&PATH),
    gives: "work requests as events",
    events: POSTS,
    // The next visit finds by the ring's index what a skipped run would have reported.
    skip: Skip::Nothing,
    ..Hook::BASE
};

/// SoftRoCE. A program posts receives in memory that it shares with the driver, without any call, so no hook
/// can report those posts.
pub(crate) const WORK_HOOKS: &[Hook] = &[
    // A QP that this program did not see is followed from its first doorbell, packet or completion on.
    Hook {
        program: "wr_created",
        symbol: "rdma_restrack_add",
        module: "ib_core",
        cost: Some(
            "the first work requests of as many QPs may be missing; the number includes new MRs and CQs, which lose \
             nothing",
        ),
        needs: &[&["OFF_RES_TYPE", "OFF_QP_RES", "OFF_DEV_DRIVER"], FIRST],
        skip: Skip::Named,
        ..HOOK
    },
    Hook {
        program: "wr_completer",
        symbol: "rxe_completer",
        needs: &[ELEMENT, FIRST],
        wants: &[PEER, &["OFF_RXE_QP_STATE"]],
        ..HOOK
    },
    Hook {
        program: "wr_post_send",
        symbol: "rxe_post_send",
        needs: &[ELEMENT, FIRST],
        wants: &[PEER],
        ..HOOK
    },
    Hook {
        program: "wr_cq_post",
        symbol: "rxe_cq_post",
        cost: Some("as many work requests may have ended without an event or a status"),
        needs: &[
            ELEMENT,
            &[
                "OFF_RXE_CQ_IBCQ",
                "OFF_RXE_CQ_USER",
                "OFF_CQ_DEVICE",
                "OFF_RXE_QP_SCQ",
            ],
        ],
        wants: &[
            PEER,
            &[
                "OFF_WC_QP",
                "OFF_WC_STATUS",
                "OFF_WC_OPCODE",
                "OFF_WC_BYTE_LEN",
                "OFF_RXE_CQ_QUEUE",
                "OFF_RING_CONSUMER",
            ],
        ],
        skip: Skip::Work,
        ..HOOK
    },
    Hook {
        program: "wr_packet",
        symbol: "rxe_resp_queue_pkt",
        gives: "receives of QPs that only receive, as events",
        needs: &[FIRST],
        ..HOOK
    },
    Hook {
        program: "wr_modify",
        symbol: "_ib_modify_qp",
        module: "ib_core",
        gives: "receives whose completions the kernel skipped, as a count",
        wants: &[&["OFF_ATTR_STATE"]],
        ..HOOK
    },
    Hook {
        program: "wr_destroy",
        symbol: "ib_destroy_qp_user",
        module: "ib_core",
        gives: "receives whose completions the kernel skipped, as a count",
        ..HOOK
    },
    Hook {
        program: "wr_queue_end",
        symbol: "rxe_queue_cleanup",
        cost: Some("the last work requests of as many queues before their destruction may be missing"),
        skip: Skip::Named,
        needs: &[ELEMENT],
        wants: &[PEER],
        ..HOOK
    },
];
