//! The part of libibverbs that applications have compiled in, and that therefore never changes:
//! `ibv_post_send`, `ibv_post_recv` and the `ibv_wr_*` calls are inline functions (rdma-core,
//! libibverbs/verbs.h). Offsets in bytes, on a machine with 64-bit pointers.

/// `ibv_qp.context`.
pub(super) const QP_CONTEXT: u64 = 0;
/// `ibv_qp.qp_num`.
pub(super) const QP_NUM: u64 = 52;
/// How much of a `struct ibv_qp` is read: its head, up to the number.
pub(super) const QP_HEAD: usize = 56;

/// `ibv_context.ops.poll_cq`.
pub const CONTEXT_POLL_CQ: u64 = 96;
/// `ibv_context.ops.post_send`, and post_recv behind it.
pub const CONTEXT_POST_SEND: u64 = 208;

/// The function pointers of a `struct ibv_qp_ex`, from `wr_atomic_cmp_swp` on. Before them lies `struct
/// ibv_qp` with a mutex and a condition variable, whose size depends on the machine.
pub const QP_EX_CALLS: u64 = if cfg!(target_arch = "aarch64") { 192 } else { 184 };
/// `wr_id` of a `struct ibv_qp_ex`, and `wr_flags` behind it: right before the pointers.
pub const QP_EX_WR_ID: u64 = QP_EX_CALLS - 16;
/// How many pointers there are. The last two came later: in an older library other data, no code, lies there.
pub(super) const QP_EX_NUMBER: usize = 22;

/// `ibv_qp.send_cq`, and `recv_cq` behind it.
pub(super) const QP_CQS: u64 = 24;
/// Where a `struct ibv_cq_ex` has `comp_mask` and `status`, and `wr_id` behind them. As with a QP, a mutex
/// lies before that.
pub const CQ_EX_OUTCOME: u64 = if cfg!(target_arch = "aarch64") { 136 } else { 128 };
/// Its function pointers: `start_poll`, `next_poll` and `end_poll`.
pub const CQ_EX_CALLS: u64 = CQ_EX_OUTCOME + 16;

/// Numbers of these pointers: the `wr_*` calls that begin a work request, each with its `IBV_WR_*` opcode.
pub const BEGIN: [(usize, u32); 13] = [
    (0, 5),
    (1, 6),
    (2, 8),
    (3, 7),
    (4, 4),
    (5, 0),
    (6, 1),
    (7, 2),
    (8, 3),
    (9, 9),
    (10, 10),
    (20, 15),
    (21, 14),
];
/// `wr_set_inline_data`, and behind it the other ways to give data: `_list`, `wr_set_sge`, `_list`.
pub const SET_INLINE_DATA: usize = 13;
/// `wr_start`, and behind it `wr_complete` and `wr_abort`.
pub const WR_START: usize = 17;

/// User addresses are below this, with five levels of page tables as well.
pub(super) const USER_END: u64 = 1 << 56;

/// How far behind the entry of a function a probe is placed. A landing pad of Intel CET is not emulated by
/// the kernel's uprobes: a probe on it costs a single step, ten times as much as one on the instruction
/// behind it.
pub fn after_landing_pad(code: &[u8]) -> u64 {
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    if cfg!(target_arch = "x86_64") && code.starts_with(&ENDBR64) {
        ENDBR64.len() as u64
    } else {
        0
    }
}
