//! Programs of the `rdma_cma` tracepoints: two for each, of which user space attaches one. The one for the
//! raw tracepoint needs the module's BTF. The other needs only the tracepoint's format file, from which user
//! space reads the offsets of the fields.

use aya_ebpf::{
    macros::{raw_tracepoint, tracepoint},
    programs::{RawTracePointContext, TracePointContext},
};
use rdmatop_common::event::cm as what;

use crate::{
    body::cm::{Fields, raw, traced},
    maps::enabled,
    offsets,
};

/// The programs of a tracepoint, with the fields that it has of [`Fields`].
macro_rules! trace {
    ($name:ident / $raw:ident, $what:expr, $($field:ident: $offset:ident),*) => {
        #[raw_tracepoint]
        pub(crate) fn $raw(ctx: RawTracePointContext) -> u32 {
            if enabled() {
                // The verifier refuses to read an argument that the tracepoint does not have.
                let event = if $what == what::EVENT { ctx.arg(1) } else { 0 };
                let _ = raw::<{ $what }>(ctx.arg(0), event);
            }
            0
        }

        #[tracepoint]
        pub(crate) fn $name(ctx: TracePointContext) -> u32 {
            if enabled() {
                let fields = Fields { $($field: offsets::$offset.load(),)* ..Fields::NONE };
                let _ = traced(&ctx, $what, &fields);
            }
            0
        }
    };
}

trace!(cm_event / raw_cm_event, what::EVENT,
    cm_id: TP_EVENT_CM_ID, event: TP_EVENT_EVENT, status: TP_EVENT_STATUS, src: TP_EVENT_SRC,
    dst: TP_EVENT_DST);
trace!(cm_send_req / raw_cm_send_req, what::CONNECT,
    cm_id: TP_REQ_CM_ID, qpn: TP_REQ_QPN, src: TP_REQ_SRC, dst: TP_REQ_DST);
trace!(cm_send_rep / raw_cm_send_rep, what::ACCEPT,
    cm_id: TP_REP_CM_ID, qpn: TP_REP_QPN, src: TP_REP_SRC, dst: TP_REP_DST);
trace!(cm_send_rej / raw_cm_send_rej, what::REJECT,
    cm_id: TP_REJ_CM_ID, src: TP_REJ_SRC, dst: TP_REJ_DST);
trace!(cm_disconnect / raw_cm_disconnect, what::DISCONNECT,
    cm_id: TP_DISC_CM_ID, src: TP_DISC_SRC, dst: TP_DISC_DST);
