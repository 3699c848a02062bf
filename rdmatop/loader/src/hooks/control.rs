//! The hooks of the control plane, for QPs of any provider.

use crate::hooks::{Entry, Fast, Hook, Offsets, Raw, Role, Skip};
use rdmatop_model::event::EventKind;

/// For the current task. A helper gives its name if BTF lacks the offset.
const CURRENT: &[&str] = &["OFF_TASK_COMM", "OFF_TASK_FLAGS"];
const DEVICE: &[&str] = &["OFF_DEV_NAME", "OFF_DEV_INDEX"];
/// The owner of an object, from its entry in the kernel's list of resources.
const OWNER: &[&str] = &[
    "OFF_RES_TASK",
    "OFF_RES_KERN_NAME",
    "OFF_TASK_LEADER",
    "OFF_TASK_TGID",
    "OFF_TASK_COMM",
];
/// What a record and a slot say about a QP besides its number, device and owner.
const QP: &[&str] = &[
    "OFF_QP_TYPE",
    "OFF_QP_PORT",
    "OFF_QP_RES",
    "OFF_QP_PD",
    "OFF_PD_RES",
    "OFF_TASK_START",
];
const QP_IDENTITY: &[&str] = &["OFF_QP_NUM", "OFF_QP_DEVICE"];

const QP_EVENTS: &[EventKind] = &[
    EventKind::QpCreate,
    EventKind::QpModify,
    EventKind::QpDestroy,
    EventKind::QpError,
];
const CREATES: &[EventKind] = &[
    EventKind::QpCreate,
    EventKind::QpModify,
    EventKind::QpDestroy,
    EventKind::QpError,
    EventKind::MrReg,
    EventKind::CqCreate,
];
const IOCTL_EVENTS: &[EventKind] = &[
    EventKind::VerbError,
    EventKind::DevxCreate,
    EventKind::DevxDestroy,
];
/// An fentry program whose skipped runs no later run makes good.
const fn fast(program: &'static str) -> Fast {
    Fast {
        program,
        heals: false,
    }
}

/// A hook at a single point: each run makes a record.
const ALONE: Hook = Hook {
    skip: Skip::Record,
    ..Hook::BASE
};

/// The entry of a call. The return program reports what this program remembered, and counts a loss if it
/// finds nothing.
const ENTRY: Hook = Hook::BASE;

/// The return of a call, which makes the record.
const RETURN: Hook = Hook {
    entry: Entry::Kretprobe,
    skip: Skip::Return,
    ..Hook::BASE
};

/// Entry and return of a call that makes a record only if it fails.
const VERB_ENTRY: Hook = Hook {
    module: "ib_uverbs",
    events: &[EventKind::VerbError],
    ..ENTRY
};
const VERB_RETURN: Hook = Hook {
    entry: Entry::Kretprobe,
    wants: &[CURRENT, DEVICE],
    skip: Skip::Count,
    ..VERB_ENTRY
};

const CM_TRACE: Hook = Hook {
    entry: Entry::Tracepoint,
    module: "rdma_cm",
    ..ALONE
};

/// The program of a raw tracepoint of rdma_cm.
const fn raw(program: &'static str, needs: Offsets, wants: Offsets) -> Raw {
    Raw {
        program,
        needs,
        wants,
    }
}

/// For the owner of an id of rdma_cm, and its number.
const CM_ID: &[&str] = &["OFF_IDPRIV_RES", "OFF_RES_ID"];
const CM_ENDS: &[&str] = &[
    "OFF_IDPRIV_DEVICE",
    "OFF_IDPRIV_SRC",
    "OFF_IDPRIV_DST",
    "OFF_TASK_START",
];
const CM_WANTS: Offsets = &[CM_ENDS, OWNER, DEVICE, CURRENT];
const CM_WANTS_QPN: Offsets = &[CM_ENDS, &["OFF_IDPRIV_QPN"], OWNER, DEVICE, CURRENT];
const CM_WANTS_STATUS: Offsets = &[CM_ENDS, &["OFF_CM_STATUS"], OWNER, DEVICE, CURRENT];

const CQ_WANTS: Offsets = &[
    &["OFF_CQ_DEVICE", "OFF_CQ_CQE", "OFF_CQ_RES", "OFF_TASK_START"],
    OWNER,
    DEVICE,
    CURRENT,
];

/// Every hook of the control plane.
pub const CONTROL_PLANE: &[Hook] = &[
    // Return probes are attached before their entry probes. In the other order a call could be remembered
    // whose return no program sees.
    //
    // The hooks of create, modify and destroy keep the state of a QP. The records of a modify and of an
    // asynchronous event show that state, so each kind of QP event needs all three.
    Hook {
        program: "modify_qp_ret",
        symbol: "_ib_modify_qp",
        gives: "QP state changes, errno and duration",
        events: QP_EVENTS,
        wants: &[
            &[
                "OFF_ATTR_STATE",
                "OFF_ATTR_PATH_MTU",
                "OFF_ATTR_DEST_QPN",
                "OFF_ATTR_RQ_PSN",
                "OFF_ATTR_SQ_PSN",
                "OFF_ATTR_PORT",
                "OFF_ATTR_TIMEOUT",
                "OFF_ATTR_RETRY_CNT",
                "OFF_ATTR_RNR_RETRY",
                "OFF_ATTR_SGID_INDEX",
                "OFF_ATTR_DGID",
                "OFF_ATTR_AH_FLAGS",
            ],
            QP_IDENTITY,
            QP,
            OWNER,
            DEVICE,
            CURRENT,
        ],
        fast: Some(fast("fx_modify_qp")),
        role: Role::QpTable,
        keeps_slots: true,
        ..RETURN
    },
    Hook {
        program: "modify_qp",
        symbol: "_ib_modify_qp",
        gives: "QP state changes, attributes",
        events: QP_EVENTS,
        needs: &[QP_IDENTITY],
        wants: &[&["OFF_ATTR_STATE"], QP, OWNER, DEVICE, CURRENT],
        fast: Some(fast("fe_modify_qp")),
        role: Role::QpTable,
        keeps_slots: true,
        ..ENTRY
    },
    Hook {
        program: "destroy_qp_ret",
        symbol: "ib_destroy_qp_user",
        gives: "QP destroy, errno and duration",
        events: QP_EVENTS,
        wants: &[CURRENT],
        fast: Some(fast("fx_destroy_qp")),
        role: Role::QpTable,
        ..RETURN
    },
    Hook {
        program: "destroy_qp",
        symbol: "ib_destroy_qp_user",
        gives: "QP destroy",
        events: QP_EVENTS,
        needs: &[QP_IDENTITY],
        wants: &[QP, OWNER, DEVICE],
        fast: Some(fast("fe_destroy_qp")),
        role: Role::QpTable,
        keeps_slots: true,
        ..ENTRY
    },
    Hook {
        program: "dereg_mr_ret",
        symbol: "ib_dereg_mr_user",
        gives: "MR deregistration, errno and duration",
        events: &[EventKind::MrDereg],
        fast: Some(fast("fx_dereg_mr")),
        ..RETURN
    },
    Hook {
        program: "dereg_mr",
        symbol: "ib_dereg_mr_user",
        gives: "MR deregistration",
        events: &[EventKind::MrDereg],
        needs: &[&["OFF_MR_LENGTH"]],
        wants: &[
            &["OFF_MR_DEVICE", "OFF_MR_RES", "OFF_TASK_START"],
            OWNER,
            DEVICE,
            CURRENT,
        ],
        fast: Some(fast("fe_dereg_mr")),
        ..ENTRY
    },
    Hook {
        program: "destroy_cq_ret",
        symbol: "ib_destroy_cq_user",
        gives: "CQ destroy, errno and duration",
        events: &[EventKind::CqDestroy],
        fast: Some(fast("fx_destroy_cq")),
        ..RETURN
    },
    Hook {
        program: "destroy_cq",
        symbol: "ib_destroy_cq_user",
        gives: "CQ destroy",
        events: &[EventKind::CqDestroy],
        wants: CQ_WANTS,
        fast: Some(fast("fe_destroy_cq")),
        ..ENTRY
    },
    Hook {
        program: "free_cq",
        symbol: "ib_free_cq",
        gives: "CQ destroy of kernel consumers",
        events: &[EventKind::CqDestroy],
        wants: CQ_WANTS,
        ..ALONE
    },
    Hook {
        program: "restrack_add",
        symbol: "rdma_restrack_add",
        gives: "QP, MR and CQ creation with owner",
        events: CREATES,
        needs: &[&["OFF_RES_TYPE", "OFF_QP_RES", "OFF_QP_NUM"]],
        wants: &[
            &[
                "OFF_QP_DEVICE",
                "OFF_QP_TYPE",
                "OFF_QP_PORT",
                "OFF_QP_PD",
                "OFF_PD_RES",
                "OFF_TASK_START",
                "OFF_MR_RES",
                "OFF_MR_DEVICE",
                "OFF_MR_LENGTH",
                "OFF_CQ_RES",
                "OFF_CQ_DEVICE",
                "OFF_CQ_CQE",
                "OFF_DEV_MAX_QP",
                "OFF_DEV_MAX_CQ",
                "OFF_DEV_MAX_MR",
                "OFF_DEV_MAX_PD",
                "OFF_DEV_MAX_SRQ",
            ],
            OWNER,
            DEVICE,
            CURRENT,
        ],
        only_for: &[
            ("OFF_MR_RES", &[EventKind::MrReg, EventKind::MrDereg]),
            ("OFF_CQ_RES", &[EventKind::CqCreate, EventKind::CqDestroy]),
            ("OFF_QP_RES", QP_EVENTS),
        ],
        fast: Some(fast("fe_restrack_add")),
        role: Role::QpTable,
        keeps_slots: true,
        ..ALONE
    },
    // If the kernel skips this program, the QP's next doorbell or completion shows the QP.
    Hook {
        program: "query_qp",
        symbol: "ib_query_qp",
        gives: "QPs that were there before",
        wants: &[QP_IDENTITY, QP, OWNER, DEVICE, CURRENT],
        role: Role::Finds,
        keeps_slots: true,
        ..Hook::BASE
    },
    // Whichever call registers a DMA-BUF and whichever driver takes it, its pages are mapped here: by the
    // core where the driver pins them (`ib_umem_dmabuf_get_pinned` and its variants), else by the driver
    // itself (mlx5, `pagefault_dmabuf_mr`). By then the kernel has found the DMA-BUF, so that a library's
    // probe with a descriptor of -1, as NCCL makes one, does not come here. In Linux 7.2 it is a function of
    // ib_core.
    Hook {
        program: "dmabuf_map",
        symbol: "ib_umem_dmabuf_map_pages",
        module: "ib_uverbs",
        gives: "whether processes register memory of GPUs (DMA-BUF)",
        wants: &[&["OFF_TASK_FLAGS"]],
        skip: Skip::Count,
        role: Role::Gpus,
        ..Hook::BASE
    },
    Hook {
        program: "qp_event",
        symbol: "ib_uverbs_qp_event_handler",
        module: "ib_uverbs",
        gives: "asynchronous QP events",
        events: &[EventKind::QpError],
        needs: &[&["OFF_EVENT_ELEMENT", "OFF_EVENT_EVENT"]],
        wants: &[QP_IDENTITY, QP, OWNER, DEVICE, CURRENT],
        keeps_slots: true,
        ..ALONE
    },
    Hook {
        program: "cmd_verbs_ret",
        symbol: "ib_uverbs_cmd_verbs",
        gives: "verb calls, errno and duration; objects made past the kernel (DEVX)",
        events: IOCTL_EVENTS,
        wants: &[
            &[
                "OFF_UFILE_DEVICE",
                "OFF_UDEV_IB_DEV",
                "OFF_TASK_LEADER",
                "OFF_TASK_TGID",
                "OFF_TASK_START",
            ],
            CURRENT,
            DEVICE,
        ],
        fast: Some(fast("fx_cmd_verbs")),
        ..VERB_RETURN
    },
    Hook {
        program: "cmd_verbs",
        symbol: "ib_uverbs_cmd_verbs",
        gives: "verb calls",
        events: IOCTL_EVENTS,
        fast: Some(fast("fe_cmd_verbs")),
        ..VERB_ENTRY
    },
    // These are not attached if a data path counts posts (`session/start.rs`), because they slow down every
    // doorbell.
    Hook {
        program: "uverbs_write_ret",
        symbol: "ib_uverbs_write",
        gives: "post_send and other write() commands, errno and duration",
        role: Role::Write,
        ..VERB_RETURN
    },
    Hook {
        program: "uverbs_write",
        symbol: "ib_uverbs_write",
        gives: "write() commands",
        role: Role::Write,
        ..VERB_ENTRY
    },
    // A thread that waits for an event stays in ucma_write, and the kernel tracks at most max(10, twice the
    // number of CPUs) returns of one probe at a time (`register_kretprobe`). If more threads wait, returns of
    // other calls are missed, and those calls count as missed. The twenty functions that ucma_write calls do
    // not have this problem, but each would need a probe.
    Hook {
        program: "ucma_write_ret",
        symbol: "ucma_write",
        module: "rdma_ucm",
        gives: "rdma_cm verbs, errno and duration",
        ..VERB_RETURN
    },
    Hook {
        program: "ucma_write",
        symbol: "ucma_write",
        module: "rdma_ucm",
        gives: "rdma_cm verbs",
        ..VERB_ENTRY
    },
    Hook {
        program: "cm_event",
        symbol: "cm_event_handler",
        gives: "rdma_cm events",
        events: &[EventKind::CmEvent],
        needs: &[&["TP_EVENT_CM_ID", "TP_EVENT_EVENT"]],
        wants: &[&["TP_EVENT_STATUS", "TP_EVENT_SRC", "TP_EVENT_DST"], CURRENT],
        raw: Some(raw("raw_cm_event", &[CM_ID, &["OFF_CM_EVENT"]], CM_WANTS_STATUS)),
        ..CM_TRACE
    },
    Hook {
        program: "cm_send_req",
        symbol: "cm_send_req",
        gives: "rdma_cm connect",
        events: &[EventKind::CmConnect],
        needs: &[&["TP_REQ_CM_ID"]],
        wants: &[&["TP_REQ_QPN", "TP_REQ_SRC", "TP_REQ_DST"], CURRENT],
        raw: Some(raw("raw_cm_send_req", &[CM_ID], CM_WANTS_QPN)),
        ..CM_TRACE
    },
    Hook {
        program: "cm_send_rep",
        symbol: "cm_send_rep",
        gives: "rdma_cm accept",
        events: &[EventKind::CmAccept],
        needs: &[&["TP_REP_CM_ID"]],
        wants: &[&["TP_REP_QPN", "TP_REP_SRC", "TP_REP_DST"], CURRENT],
        raw: Some(raw("raw_cm_send_rep", &[CM_ID], CM_WANTS_QPN)),
        ..CM_TRACE
    },
    Hook {
        program: "cm_send_rej",
        symbol: "cm_send_rej",
        gives: "rdma_cm reject",
        events: &[EventKind::CmReject],
        needs: &[&["TP_REJ_CM_ID"]],
        wants: &[&["TP_REJ_SRC", "TP_REJ_DST"], CURRENT],
        raw: Some(raw("raw_cm_send_rej", &[CM_ID], CM_WANTS)),
        ..CM_TRACE
    },
    Hook {
        program: "cm_disconnect",
        symbol: "cm_disconnect",
        gives: "rdma_cm disconnect",
        events: &[EventKind::CmDisconnect],
        needs: &[&["TP_DISC_CM_ID"]],
        wants: &[&["TP_DISC_SRC", "TP_DISC_DST"], CURRENT],
        raw: Some(raw("raw_cm_disconnect", &[CM_ID], CM_WANTS)),
        ..CM_TRACE
    },
];
