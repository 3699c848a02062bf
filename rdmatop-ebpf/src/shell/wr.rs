//! Programs that make records of SoftRoCE work requests: kprobes, attached only for a trace that asks for
//! them.

use aya_ebpf::{macros::kprobe, programs::ProbeContext};

use crate::{
    body::{wr, wr_cqe, wr_moves, wr_qps},
    maps::enabled,
};

macro_rules! entry {
    ($name:ident($($arg:ident),*) $body:expr) => {
        #[kprobe]
        pub(crate) fn $name(ctx: ProbeContext) -> u32 {
            if !enabled() {
                return 0;
            }
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

entry!(wr_created(res) wr_qps::created(res));
entry!(wr_post_send(qp) wr::doorbell(qp));
entry!(wr_completer(qp) wr::completing(qp));
entry!(wr_packet(qp) wr::arrived(qp));
entry!(wr_cq_post(cq, cqe) wr_cqe::posted(cq, cqe));
entry!(wr_queue_end(queue) wr::queue_ending(queue));
entry!(wr_modify(qp, attr, mask) wr_moves::modifying(qp, attr, mask as u32));
entry!(wr_destroy(qp) wr_moves::destroying(qp));
