//! Programs of the SoftRoCE data path: kprobes, which pin no module, and for the doorbell also fentry.
//! rdmatop's `loader/datapath.rs` explains why only that one. The programs check whether counting is on
//! only for a QP that they do not know yet: before counting begins they know none.

use aya_ebpf::{
    macros::{fentry, kprobe},
    programs::{FEntryContext, ProbeContext},
};

use super::argument;
use crate::body::{rxe, rxe_cq, rxe_shared};

macro_rules! entry {
    ($name:ident($($arg:ident),*) $body:expr) => {
        #[kprobe]
        pub(crate) fn $name(ctx: ProbeContext) -> u32 {
            let mut _n = 0;
            $(
                let Some($arg) = ctx.arg::<u64>(_n) else { return 0 };
                _n += 1;
            )*
            let _ = $body;
            0
        }
    };
}

entry!(kp_post_send(qp) rxe::doorbell(qp));
entry!(kp_completer(qp) rxe::completing(qp));
entry!(kp_cq_post(cq, cqe) rxe_cq::posted(cq, cqe, rxe_shared::is_full(cq)));
entry!(kp_xmit(qp, pkt) rxe::transmitting(qp, pkt));

// Rare, so always a kprobe.
entry!(rxe_queue_end(queue) rxe::queue_ending(queue));

#[fentry]
pub(crate) fn fe_post_send(ctx: FEntryContext) -> i32 {
    if let Some(qp) = argument(&ctx, 0) {
        let _ = rxe::doorbell(qp);
    }
    0
}
