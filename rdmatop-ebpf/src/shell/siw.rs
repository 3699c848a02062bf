//! The data path of soft iWARP, by kprobes, which pin no module.

use aya_ebpf::{macros::kprobe, programs::ProbeContext};

use crate::body::siw;

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

entry!(siw_post_send(qp) siw::doorbell(qp));
entry!(siw_activate(siw_qp) siw::activating(siw_qp));
entry!(siw_sq_cqe(siw_qp, sqe, _bytes, status) siw::sent(siw_qp, sqe, status as u32));
entry!(siw_rq_cqe(siw_qp, _rqe, bytes, _stag, status) siw::received(siw_qp, bytes as u32, status as u32));
entry!(siw_read_end(wqe, opcode) siw::read_ending(wqe, opcode as u32));
entry!(siw_qp_end(kref) siw::ending(kref));
