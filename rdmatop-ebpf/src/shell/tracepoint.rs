//! Programs of the `rdma_cma` tracepoints: two for each, of which user space attaches one. The one for the
//! raw tracepoint needs the module's BTF. The other needs only the tracepoint's format file, from which user
//! space reads the offsets of the fields.

use aya_ebpf::{
    macros::{raw_tracepoint, tracepoint},
    programs::{RawTracePointContext, TracePointContext},
};
use rdmatop_common::{event::cm as what, offsets::UNKNOWN};

use crate::{
    body::cm::{Fields, raw, traced},
    maps::enabled,
    offsets::{
        TP_DISC_CM_ID, TP_DISC_DST, TP_DISC_SRC, TP_EVENT_CM_ID, TP_EVENT_DST, TP_EVENT_EVENT, TP_EVENT_SRC,
        TP_EVENT_STATUS, TP_REJ_CM_ID, TP_REJ_DST, TP_REJ_SRC, TP_REP_CM_ID, TP_REP_DST, TP_REP_QPN,
        TP_REP_SRC, TP_REQ_CM_ID, TP_REQ_DST, TP_REQ_QPN, TP_REQ_SRC,
    },
};

macro_rules! trace {
    ($name:ident / $raw:ident, $what:expr, $fields:expr) => {
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
                let _ = traced(&ctx, $what, &$fields);
            }
            0
        }
    };
}

trace!(
    cm_event / raw_cm_event,
    what::EVENT,
    Fields {
        cm_id: TP_EVENT_CM_ID.load(),
        event: TP_EVENT_EVENT.load(),
        status: TP_EVENT_STATUS.load(),
        qpn: UNKNOWN,
        src: TP_EVENT_SRC.load(),
        dst: TP_EVENT_DST.load(),
    }
);

trace!(
    cm_send_req / raw_cm_send_req,
    what::CONNECT,
    Fields {
        cm_id: TP_REQ_CM_ID.load(),
        event: UNKNOWN,
        status: UNKNOWN,
        qpn: TP_REQ_QPN.load(),
        src: TP_REQ_SRC.load(),
        dst: TP_REQ_DST.load(),
    }
);

trace!(
    cm_send_rep / raw_cm_send_rep,
    what::ACCEPT,
    Fields {
        cm_id: TP_REP_CM_ID.load(),
        event: UNKNOWN,
        status: UNKNOWN,
        qpn: TP_REP_QPN.load(),
        src: TP_REP_SRC.load(),
        dst: TP_REP_DST.load(),
    }
);

trace!(
    cm_send_rej / raw_cm_send_rej,
    what::REJECT,
    Fields {
        cm_id: TP_REJ_CM_ID.load(),
        event: UNKNOWN,
        status: UNKNOWN,
        qpn: UNKNOWN,
        src: TP_REJ_SRC.load(),
        dst: TP_REJ_DST.load(),
    }
);

trace!(
    cm_disconnect / raw_cm_disconnect,
    what::DISCONNECT,
    Fields {
        cm_id: TP_DISC_CM_ID.load(),
        event: UNKNOWN,
        status: UNKNOWN,
        qpn: UNKNOWN,
        src: TP_DISC_SRC.load(),
        dst: TP_DISC_DST.load(),
    }
);
