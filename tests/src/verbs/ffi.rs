//! The functions of shim.c.

use std::ffi::{c_char, c_int, c_void};

macro_rules! opaque {
    ($($name:ident)*) => { $(
        #[repr(C)]
        pub(super) struct $name { _opaque: [u8; 0] }
    )* };
}
opaque!(IbvContext IbvPd IbvCq IbvMr IbvQp IbvAh);

/// `struct shim_wc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Wc {
    /// The id of the work request.
    pub wr_id: u64,
    /// `enum ibv_wc_status`, 0 = success.
    pub status: u32,
    /// `enum ibv_wc_opcode`.
    pub opcode: u32,
    /// Bytes of a receive completion.
    pub byte_len: u32,
    /// Local QP.
    pub qp_num: u32,
}

unsafe extern "C" {
    pub(super) fn shim_open(name: *const c_char, err: *mut c_int) -> *mut IbvContext;
    pub(super) fn shim_close(context: *mut IbvContext) -> c_int;
    pub(super) fn shim_say(context: *mut IbvContext, own: c_int, behind: usize);
    pub(super) fn shim_exchange(context: *mut IbvContext);
    pub(super) fn shim_wrap(context: *mut IbvContext);
    pub(super) fn shim_wrapped_calls() -> u64;
    pub(super) fn shim_cmd_fd(context: *mut IbvContext) -> c_int;
    pub(super) fn shim_alloc_pd(context: *mut IbvContext) -> *mut IbvPd;
    pub(super) fn shim_dealloc_pd(pd: *mut IbvPd) -> c_int;
    pub(super) fn shim_create_cq(context: *mut IbvContext, cqe: c_int, err: *mut c_int) -> *mut IbvCq;
    pub(super) fn shim_create_extended_cq(
        context: *mut IbvContext,
        cqe: c_int,
        err: *mut c_int,
    ) -> *mut IbvCq;
    pub(super) fn shim_take(cq: *mut IbvCq, out: *mut Wc, most: c_int, is_last: c_int) -> c_int;
    pub(super) fn shim_cq_capacity(cq: *mut IbvCq) -> c_int;
    pub(super) fn shim_destroy_cq(cq: *mut IbvCq) -> c_int;
    pub(super) fn shim_reg_mr(pd: *mut IbvPd, addr: *mut c_void, len: usize, err: *mut c_int) -> *mut IbvMr;
    pub(super) fn shim_dereg_mr(mr: *mut IbvMr) -> c_int;
    pub(super) fn shim_lkey(mr: *mut IbvMr) -> u32;
    pub(super) fn shim_rkey(mr: *mut IbvMr) -> u32;
    pub(super) fn shim_gid(context: *mut IbvContext, index: c_int, gid: *mut u8) -> c_int;
    pub(super) fn shim_create_qp(
        pd: *mut IbvPd,
        sends: *mut IbvCq,
        receives: *mut IbvCq,
        max_wr: u32,
        err: *mut c_int,
    ) -> *mut IbvQp;
    pub(super) fn shim_create_ud_qp(pd: *mut IbvPd, cq: *mut IbvCq, err: *mut c_int) -> *mut IbvQp;
    pub(super) fn shim_mcast(qp: *mut IbvQp, attach: c_int) -> c_int;
    pub(super) fn shim_req_notify(cq: *mut IbvCq) -> c_int;
    pub(super) fn shim_req_notify_by_write(cq: *mut IbvCq, wrong: c_int) -> c_int;
    pub(super) fn shim_destroy_qp(qp: *mut IbvQp) -> c_int;
    pub(super) fn shim_qpn(qp: *mut IbvQp) -> u32;
    pub(super) fn shim_to_init(qp: *mut IbvQp) -> c_int;
    pub(super) fn shim_to_rtr(
        qp: *mut IbvQp,
        dest_qpn: u32,
        dgid: *const u8,
        sgid_index: c_int,
        path_mtu: c_int,
    ) -> c_int;
    pub(super) fn shim_ud_to_rts(qp: *mut IbvQp) -> c_int;
    pub(super) fn shim_create_ah(
        pd: *mut IbvPd,
        dgid: *const u8,
        sgid_index: c_int,
        err: *mut c_int,
    ) -> *mut IbvAh;
    pub(super) fn shim_destroy_ah(ah: *mut IbvAh) -> c_int;
    pub(super) fn shim_post_ud(
        qp: *mut IbvQp,
        wr_id: u64,
        addr: u64,
        length: u32,
        lkey: u32,
        ah: *mut IbvAh,
        dest_qpn: u32,
    ) -> c_int;
    pub(super) fn shim_to_rts(qp: *mut IbvQp, retry_cnt: c_int, timeout: c_int) -> c_int;
    pub(super) fn shim_to_state(qp: *mut IbvQp, state: c_int) -> c_int;
    pub(super) fn shim_to_sqd_with_event(qp: *mut IbvQp) -> c_int;
    pub(super) fn shim_post_send(
        qp: *mut IbvQp,
        wr_id: u64,
        opcode: c_int,
        addr: u64,
        length: u32,
        lkey: u32,
        remote_addr: u64,
        rkey: u32,
    ) -> c_int;
    pub(super) fn shim_post_as(
        qp: *mut IbvQp,
        wr_id: u64,
        opcode: c_int,
        send_flags: c_int,
        imm: u32,
        addr: u64,
        length: u32,
        lkey: u32,
        remote_addr: u64,
        rkey: u32,
    ) -> c_int;
    pub(super) fn shim_post_list(
        qp: *mut IbvQp,
        count: c_int,
        bad_at: c_int,
        addr: u64,
        length: u32,
        lkey: u32,
        remote_addr: u64,
        rkey: u32,
    ) -> c_int;
    pub(super) fn shim_post_recv_list(
        qp: *mut IbvQp,
        count: c_int,
        addr: u64,
        length: u32,
        lkey: u32,
    ) -> c_int;
    pub(super) fn shim_post_recv(qp: *mut IbvQp, wr_id: u64, addr: u64, length: u32, lkey: u32) -> c_int;
    pub(super) fn shim_create_extended_qp(
        pd: *mut IbvPd,
        cq: *mut IbvCq,
        max_wr: u32,
        err: *mut c_int,
    ) -> *mut IbvQp;
    pub(super) fn shim_wr_start(qp: *mut IbvQp);
    pub(super) fn shim_wr_complete(qp: *mut IbvQp) -> c_int;
    pub(super) fn shim_wr_abort(qp: *mut IbvQp);
    pub(super) fn shim_wr_begin(qp: *mut IbvQp, wr_id: u64, opcode: c_int, remote_addr: u64, rkey: u32);
    pub(super) fn shim_wr_data(qp: *mut IbvQp, how: c_int, addr: u64, length: u32, lkey: u32);
    pub(super) fn shim_poll_cq(cq: *mut IbvCq, out: *mut Wc) -> c_int;
    pub(super) fn shim_async_event(
        context: *mut IbvContext,
        ms: c_int,
        typ: *mut u32,
        qpn: *mut u32,
    ) -> c_int;
}
