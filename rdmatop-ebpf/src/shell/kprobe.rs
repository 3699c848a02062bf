//! kprobes and kretprobes of the control plane. They pin no module and need no module BTF.

use aya_ebpf::{
    macros::{kprobe, kretprobe},
    programs::{ProbeContext, RetProbeContext},
};
use rdmatop_common::event::kind;

use crate::{
    body::{cm, hook, object, qp, restrack, verbs, write},
    maps::enabled,
};

/// Entry probes: name, arguments taken as u64, body. `always`: also while counting is off.
macro_rules! entry {
    (always $name:ident($($arg:ident),*) $body:expr) => {
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
    ($(#[$doc:meta])* $name:ident($($arg:ident),*) $body:expr) => {
        $(#[$doc])*
        #[kprobe]
        pub(crate) fn $name(ctx: ProbeContext) -> u32 {
            let mut _n = 0;
            $(
                let Some($arg) = ctx.arg::<u64>(_n) else { return 0 };
                _n += 1;
            )*
            if enabled() {
                #[cfg(feature = "log")]
                aya_log_ebpf::debug!(&ctx, concat!(stringify!($name), " entered"));
                let _ = $body;
            }
            0
        }
    };
}

/// Return probes. They run even when counting is off, to clear what an entry remembered.
macro_rules! ret {
    ($(#[$doc:meta])* $name:ident($rc:ident) $body:expr) => {
        $(#[$doc])*
        #[kretprobe]
        pub(crate) fn $name(ctx: RetProbeContext) -> u32 {
            let $rc = ctx.ret::<i32>();
            let _ = $body;
            0
        }
    };
}

entry!(restrack_add(res) restrack::added(res));

entry!(modify_qp(qp, attr, mask) qp::modifying(qp, attr, mask as u32));
ret!(modify_qp_ret(rc) qp::returned(hook::MODIFY_QP, rc));

entry!(destroy_qp(qp) qp::destroying(qp));
ret!(destroy_qp_ret(rc) qp::returned(hook::DESTROY_QP, rc));

entry!(dereg_mr(mr) object::destroying(kind::MR_DEREG, mr, object::hook_of(kind::MR_DEREG)));
ret!(dereg_mr_ret(rc) object::destroyed(hook::DEREG_MR, rc));

entry!(destroy_cq(cq) object::destroying(kind::CQ_DESTROY, cq, object::hook_of(kind::CQ_DESTROY)));
ret!(destroy_cq_ret(rc) object::destroyed(hook::DESTROY_CQ, rc));

entry!(free_cq(cq) object::freed(kind::CQ_DESTROY, cq));

entry!(qp_event(event) qp::async_event(event));

entry!(cmd_verbs(file, header, attrs) verbs::ioctl_entered(file, header, attrs));
ret!(cmd_verbs_ret(rc) verbs::ioctl_returned(rc));

entry!(always uverbs_write(_file, buffer) write::entered(buffer));
ret!(uverbs_write_ret(rc) write::returned(rc));

entry!(always ucma_write(_file, buffer) write::cm_entered(buffer));
ret!(ucma_write_ret(rc) write::cm_returned(rc));

entry!(cm_handler(id_priv) cm::handler_entered(id_priv));
