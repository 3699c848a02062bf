//! The struct members that the kernel side reads, and the read-only global that carries each offset.
//!
//! User space resolves the offsets from the running kernel's BTF at load time, never from a header or a
//! version table. [`UNKNOWN`] means that the member is not in BTF and the kernel side does not read it.

/// The read-only global that says whether user space reads counters: 1 or 0.
pub const COUNTS: &str = "COUNTS";

/// The read-only global that says whether objects that programs make past ib_core are shown: 1 or 0.
pub const WANT_DEVX: &str = "WANT_DEVX";

/// The read-only global that says whether probes on programs make records of work requests: 1 or 0.
pub const WANT_USER_WORK: &str = "WANT_USER_WORK";

/// The read-only global that says how many slots may go to QPs at rest: the slots below this number.
pub const EAGER_SLOTS: &str = "EAGER_SLOTS";

/// The read-only global that says whether the kernel has atomic instructions that return a value: 1 or 0.
pub const HAS_FENCE: &str = "HAS_FENCE";

/// The value of a global whose member is not in BTF.
pub const UNKNOWN: u32 = u32::MAX;

/// A struct member whose byte offset the kernel side needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offset {
    /// Name of the read-only global in rdmatop-ebpf.
    pub global: &'static str,
    /// Module whose BTF describes the struct. User space looks in vmlinux when the module has no BTF.
    pub module: &'static str,
    /// Struct name.
    pub ty: &'static str,
    /// Member path, dots between nested members.
    pub member: &'static str,
}

/// Passes every offset to the macro `$then`, in no particular order: the global that carries it, then module,
/// struct and member. The kernel side makes the globals from this list, user space makes [`OFFSETS`].
#[macro_export]
macro_rules! each_offset {
    ($then:ident) => {
        $then! {
            OFF_QP_DEVICE "ib_core" "ib_qp" "device",
            OFF_QP_NUM "ib_core" "ib_qp" "qp_num",
            OFF_QP_TYPE "ib_core" "ib_qp" "qp_type",
            OFF_QP_PORT "ib_core" "ib_qp" "port",
            OFF_QP_RES "ib_core" "ib_qp" "res",
            OFF_QP_PD "ib_core" "ib_qp" "pd",
            OFF_QP_UOBJECT "ib_core" "ib_qp" "uobject",
            OFF_QP_SRQ "ib_core" "ib_qp" "srq",
            OFF_QP_SEND_CQ "ib_core" "ib_qp" "send_cq",
            OFF_QP_RECV_CQ "ib_core" "ib_qp" "recv_cq",
            OFF_UOBJECT_HANDLE "ib_core" "ib_uobject" "user_handle",
            OFF_PD_RES "ib_core" "ib_pd" "res",
            OFF_CQ_DEVICE "ib_core" "ib_cq" "device",
            OFF_CQ_CQE "ib_core" "ib_cq" "cqe",
            OFF_CQ_RES "ib_core" "ib_cq" "res",
            OFF_CQ_ID "ib_core" "ib_cq" "res.id",
            OFF_CQ_UOBJECT "ib_core" "ib_cq" "uobject",
            OFF_CQ_USECNT "ib_core" "ib_cq" "usecnt",
            OFF_MR_DEVICE "ib_core" "ib_mr" "device",
            OFF_MR_LENGTH "ib_core" "ib_mr" "length",
            OFF_MR_RES "ib_core" "ib_mr" "res",
            OFF_DEV_NAME "ib_core" "ib_device" "name",
            OFF_DEV_INDEX "ib_core" "ib_device" "index",
            OFF_DEV_MAX_QP "ib_core" "ib_device" "attrs.max_qp",
            OFF_DEV_MAX_CQ "ib_core" "ib_device" "attrs.max_cq",
            OFF_DEV_MAX_MR "ib_core" "ib_device" "attrs.max_mr",
            OFF_DEV_MAX_PD "ib_core" "ib_device" "attrs.max_pd",
            OFF_DEV_MAX_SRQ "ib_core" "ib_device" "attrs.max_srq",
            OFF_ATTR_STATE "ib_core" "ib_qp_attr" "qp_state",
            OFF_ATTR_PATH_MTU "ib_core" "ib_qp_attr" "path_mtu",
            OFF_ATTR_DEST_QPN "ib_core" "ib_qp_attr" "dest_qp_num",
            OFF_ATTR_RQ_PSN "ib_core" "ib_qp_attr" "rq_psn",
            OFF_ATTR_SQ_PSN "ib_core" "ib_qp_attr" "sq_psn",
            OFF_ATTR_PORT "ib_core" "ib_qp_attr" "port_num",
            OFF_ATTR_TIMEOUT "ib_core" "ib_qp_attr" "timeout",
            OFF_ATTR_RETRY_CNT "ib_core" "ib_qp_attr" "retry_cnt",
            OFF_ATTR_RNR_RETRY "ib_core" "ib_qp_attr" "rnr_retry",
            OFF_ATTR_SGID_INDEX "ib_core" "ib_qp_attr" "ah_attr.grh.sgid_index",
            OFF_ATTR_DGID "ib_core" "ib_qp_attr" "ah_attr.grh.dgid",
            OFF_ATTR_AH_FLAGS "ib_core" "ib_qp_attr" "ah_attr.ah_flags",
            OFF_RES_TYPE "ib_core" "rdma_restrack_entry" "type",
            OFF_RES_TASK "ib_core" "rdma_restrack_entry" "task",
            OFF_RES_KERN_NAME "ib_core" "rdma_restrack_entry" "kern_name",
            OFF_RES_ID "ib_core" "rdma_restrack_entry" "id",
            OFF_RES_USER "ib_core" "rdma_restrack_entry" "user",
            OFF_EVENT_ELEMENT "ib_core" "ib_event" "element",
            OFF_EVENT_EVENT "ib_core" "ib_event" "event",
            OFF_TASK_TGID "vmlinux" "task_struct" "tgid",
            OFF_TASK_COMM "vmlinux" "task_struct" "comm",
            OFF_TASK_LEADER "vmlinux" "task_struct" "group_leader",
            OFF_TASK_FLAGS "vmlinux" "task_struct" "flags",
            OFF_TASK_START "vmlinux" "task_struct" "start_boottime",
            OFF_PROG_ATTACH_BTF "vmlinux" "bpf_prog_aux" "attach_btf",
            OFF_UFILE_DEVICE "ib_uverbs" "ib_uverbs_file" "device",
            OFF_UDEV_IB_DEV "ib_uverbs" "ib_uverbs_device" "ib_dev",
            OFF_IDPRIV_RES "rdma_cm" "rdma_id_private" "res",
            OFF_IDPRIV_DEVICE "rdma_cm" "rdma_id_private" "id.device",
            OFF_IDPRIV_QPN "rdma_cm" "rdma_id_private" "qp_num",
            OFF_IDPRIV_SRC "rdma_cm" "rdma_id_private" "id.route.addr.src_addr",
            OFF_IDPRIV_DST "rdma_cm" "rdma_id_private" "id.route.addr.dst_addr",
            OFF_CM_EVENT "rdma_cm" "rdma_cm_event" "event",
            OFF_CM_STATUS "rdma_cm" "rdma_cm_event" "status",
            OFF_DEV_DRIVER "ib_core" "ib_device" "ops.driver_id",
            OFF_WC_STATUS "ib_core" "ib_wc" "status",
            OFF_WC_OPCODE "ib_core" "ib_wc" "opcode",
            OFF_WC_BYTE_LEN "ib_core" "ib_wc" "byte_len",
            OFF_WC_QP "ib_core" "ib_wc" "qp",
            OFF_RXE_QP_IBQP "rdma_rxe" "rxe_qp" "ibqp",
            OFF_RXE_QP_USER "rdma_rxe" "rxe_qp" "is_user",
            OFF_RXE_QP_SQ "rdma_rxe" "rxe_qp" "sq.queue",
            OFF_RXE_QP_RQ "rdma_rxe" "rxe_qp" "rq.queue",
            OFF_RXE_QP_SRQ "rdma_rxe" "rxe_qp" "srq",
            OFF_RXE_QP_STATE "rdma_rxe" "rxe_qp" "attr.qp_state",
            OFF_RXE_QP_MTU "rdma_rxe" "rxe_qp" "mtu",
            OFF_RXE_QP_RNR_EXPIRES "rdma_rxe" "rxe_qp" "rnr_nak_timer.expires",
            OFF_RXE_QP_RNR_PENDING "rdma_rxe" "rxe_qp" "rnr_nak_timer.entry.pprev",
            OFF_RXE_TASK_TASKLET "rdma_rxe" "rxe_task" "tasklet",
            OFF_RXE_CQ_IBCQ "rdma_rxe" "rxe_cq" "ibcq",
            OFF_RXE_CQ_USER "rdma_rxe" "rxe_cq" "is_user",
            OFF_RXE_CQ_QUEUE "rdma_rxe" "rxe_cq" "queue",
            OFF_QUEUE_BUF "rdma_rxe" "rxe_queue" "buf",
            OFF_QUEUE_SHIFT "rdma_rxe" "rxe_queue" "log2_elem_size",
            OFF_QUEUE_MASK "rdma_rxe" "rxe_queue" "index_mask",
            OFF_QUEUE_INDEX "rdma_rxe" "rxe_queue" "index",
            OFF_RING_PRODUCER "rdma_rxe" "rxe_queue_buf" "producer_index",
            OFF_RING_CONSUMER "rdma_rxe" "rxe_queue_buf" "consumer_index",
            OFF_RING_DATA "rdma_rxe" "rxe_queue_buf" "data",
            OFF_WQE_OPCODE "rdma_rxe" "rxe_send_wqe" "wr.opcode",
            OFF_WQE_LENGTH "rdma_rxe" "rxe_send_wqe" "dma.length",
            OFF_WQE_RESID "rdma_rxe" "rxe_send_wqe" "dma.resid",
            OFF_WQE_STATUS "rdma_rxe" "rxe_send_wqe" "status",
            OFF_WQE_WR_ID "rdma_rxe" "rxe_send_wqe" "wr.wr_id",
            OFF_WQE_FLAGS "rdma_rxe" "rxe_send_wqe" "wr.send_flags",
            OFF_WQE_IMM "rdma_rxe" "rxe_send_wqe" "wr.ex.imm_data",
            OFF_WQE_UD_QPN "rdma_rxe" "rxe_send_wqe" "wr.wr.ud.remote_qpn",
            OFF_RXE_QP_DEST "rdma_rxe" "rxe_qp" "attr.dest_qp_num",
            OFF_RXE_QP_DGID "rdma_rxe" "rxe_qp" "pri_av.grh.dgid",
            OFF_RXE_QP_SIGNALS "rdma_rxe" "rxe_qp" "sq_sig_type",
            OFF_RXE_QP_SCQ "rdma_rxe" "rxe_qp" "scq",
            OFF_RXE_QP_RCQ "rdma_rxe" "rxe_qp" "rcq",
            OFF_PKT_WQE "rdma_rxe" "rxe_pkt_info" "wqe",
            OFF_PKT_PSN "rdma_rxe" "rxe_pkt_info" "psn",
            OFF_PKT_OPCODE "rdma_rxe" "rxe_pkt_info" "opcode",
            OFF_SIW_QP_BASE "siw" "siw_qp" "base_qp",
            OFF_SIW_QP_REF "siw" "siw_qp" "ref",
            OFF_SIW_SENDQ "siw" "siw_qp" "sendq",
            OFF_SIW_SQ_SIZE "siw" "siw_qp" "attrs.sq_size",
            OFF_SIW_SQ_GET "siw" "siw_qp" "sq_get",
            OFF_SIW_ORQ_GET "siw" "siw_qp" "orq_get",
            OFF_SIW_ORQ_PUT "siw" "siw_qp" "orq_put",
            OFF_SIW_RECVQ "siw" "siw_qp" "recvq",
            OFF_SIW_RQ_SIZE "siw" "siw_qp" "attrs.rq_size",
            OFF_SIW_RQ_GET "siw" "siw_qp" "rq_get",
            OFF_SIW_SRQ "siw" "siw_qp" "srq",
            OFF_SIW_SCQ "siw" "siw_qp" "scq",
            OFF_SIW_RCQ "siw" "siw_qp" "rcq",
            OFF_SIW_TX_WQE "siw" "siw_qp" "tx_ctx.wqe_active",
            OFF_SIW_RX_WQE "siw" "siw_qp" "rx_tagged.wqe_active",
            OFF_SIW_WQE_SQE "siw" "siw_wqe" "sqe",
            OFF_SIW_WQE_STATUS "siw" "siw_wqe" "wr_status",
        }
    };
}

/// Hands every tracepoint field to a macro: the read-only global that carries its offset, and the tracepoint
/// of `rdma_cma` and the field.
#[macro_export]
macro_rules! each_field {
    ($then:ident) => {
        $then! {
            TP_EVENT_CM_ID "cm_event_handler" "cm_id",
            TP_EVENT_EVENT "cm_event_handler" "event",
            TP_EVENT_STATUS "cm_event_handler" "status",
            TP_EVENT_SRC "cm_event_handler" "srcaddr",
            TP_EVENT_DST "cm_event_handler" "dstaddr",
            TP_REQ_CM_ID "cm_send_req" "cm_id",
            TP_REQ_QPN "cm_send_req" "qp_num",
            TP_REQ_SRC "cm_send_req" "srcaddr",
            TP_REQ_DST "cm_send_req" "dstaddr",
            TP_REP_CM_ID "cm_send_rep" "cm_id",
            TP_REP_QPN "cm_send_rep" "qp_num",
            TP_REP_SRC "cm_send_rep" "srcaddr",
            TP_REP_DST "cm_send_rep" "dstaddr",
            TP_REJ_CM_ID "cm_send_rej" "cm_id",
            TP_REJ_SRC "cm_send_rej" "srcaddr",
            TP_REJ_DST "cm_send_rej" "dstaddr",
            TP_DISC_CM_ID "cm_disconnect" "cm_id",
            TP_DISC_SRC "cm_disconnect" "srcaddr",
            TP_DISC_DST "cm_disconnect" "dstaddr",
        }
    };
}

macro_rules! offsets {
    ($($global:ident $module:literal $ty:literal $member:literal,)*) => {
        &[$(Offset { global: stringify!($global), module: $module, ty: $ty, member: $member },)*]
    };
}

macro_rules! fields {
    ($($global:ident $event:literal $field:literal,)*) => {
        &[$(TracepointField { global: stringify!($global), event: $event, field: $field },)*]
    };
}

/// Every offset.
pub const OFFSETS: &[Offset] = each_offset!(offsets);

/// If this member exists, the kernel has bpf_get_current_task_btf(): both came with Linux 5.11.
pub const SIGN_OF_TASK_BTF: &str = "OFF_PROG_ATTACH_BTF";

/// Offsets at which no program reads. Whether the member exists tells which kernel is running.
pub const SIGNS: &[&str] = &[
    SIGN_OF_TASK_BTF,
    // The member exists before Linux 6.4, where the rxe driver works in softirqs.
    "OFF_RXE_TASK_TASKLET",
];

/// A tracepoint field whose byte offset the kernel side needs. User space reads it from the event's `format`
/// file in tracefs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracepointField {
    /// Name of the read-only global in rdmatop-ebpf.
    pub global: &'static str,
    /// Tracepoint name.
    pub event: &'static str,
    /// Field name in the format file.
    pub field: &'static str,
}

/// The category of all tracepoints that programs run at: a directory under tracefs' events.
pub const CATEGORY: &str = "rdma_cma";

/// Every tracepoint field.
pub const TRACEPOINT_FIELDS: &[TracepointField] = each_field!(fields);
