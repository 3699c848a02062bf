//! fentry and fexit of the SoftRoCE data path: three times cheaper than kprobes, and they pin the module. User
//! space loads them itself (`source/ebpf/fentry.rs`), which also decides the function; the names in the
//! sections are for people.

use aya_ebpf::{
    macros::{fentry, fexit},
    programs::{FEntryContext, FExitContext},
};

use crate::body::{rxe, rxe_cq};

#[fentry(function = "rxe_post_send")]
pub(crate) fn fe_post_send(ctx: FEntryContext) -> i32 {
    let _ = rxe::doorbell(ctx.arg(0));
    0
}

#[fentry(function = "rxe_completer")]
pub(crate) fn fe_completer(ctx: FEntryContext) -> i32 {
    let _ = rxe::completing(ctx.arg(0));
    0
}

#[fexit(function = "rxe_cq_post")]
pub(crate) fn fx_cq_post(ctx: FExitContext) -> i32 {
    // The return code stands behind the three arguments.
    let rc: i32 = ctx.arg(3);
    let _ = rxe_cq::posted(ctx.arg(0), ctx.arg(1), rc != 0);
    0
}

#[fentry(function = "rxe_xmit_packet")]
pub(crate) fn fe_xmit(ctx: FEntryContext) -> i32 {
    let _ = rxe::transmitting(ctx.arg(0), ctx.arg(1));
    0
}
