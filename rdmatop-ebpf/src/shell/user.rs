//! Probes on user programs, and the kprobes that find their QPs.

use aya_ebpf::{
    EbpfContext, Global,
    bindings::pt_regs,
    helpers::generated::bpf_get_attach_cookie,
    macros::{kretprobe, map, uprobe, uretprobe},
    maps::ProgramArray,
    programs::{ProbeContext, RetProbeContext},
};

use super::{instruction, stack};
use crate::{
    body::Hook,
    user::{
        build, cqs, poll, post,
        qps::{self, Entered},
        records,
    },
};

/// Always 0. The verifier knows that, the compiler does not.
static NEVER: Global<u32> = Global::new(0);

/// Empty: the target of the tail call below.
#[map]
static NOTHING: ProgramArray = ProgramArray::with_max_entries(1, 0);

/// Keeps a program's frames on the kernel stack of the thread that it runs for.
///
/// Since Linux 6.13 a program of the kprobe type with a frame of 64 bytes or more has one stack per CPU
/// (`bpf_enable_priv_stack`), because the kernel does not run such a program while it is already running on
/// that CPU. For uprobes the kernel does not ensure that: they bypass `bpf_prog_active`
/// (`bpf_prog_run_array_uprobe`). Where the kernel preempts them (7.2 does), another thread on that CPU runs
/// the same program on the same stack, and work requests of one QP were counted for another. A program with a
/// tail call gets no such stack, whether it makes the call or not. This one never makes it, and the verifier
/// removes the call.
#[inline(always)]
fn keep_own_stack(ctx: &impl EbpfContext) {
    if NEVER.load() != 0 {
        // SAFETY: the array is empty, so there is no program to go to.
        unsafe { NOTHING.tail_call(ctx, 0) };
    }
}

entry!(user_modify(qp, attr, mask) {
    let _ = qps::seen(qp, true);
    records::modifying(qp, attr, mask as u32)
});
entry!(user_query(qp) qps::seen(qp, false));
entry!(user_destroy(qp) qps::destroying(qp));

#[kretprobe]
pub(crate) fn user_destroy_ret(ctx: RetProbeContext) -> u32 {
    let _ = qps::destroyed(ctx.ret::<i32>());
    0
}

/// The function that a uprobe is at the entry of.
#[inline(always)]
fn entered(ctx: &ProbeContext) -> Entered {
    Entered {
        at: instruction(ctx),
        stack: stack(ctx),
        // SAFETY: the context is that of the running program.
        cookie: unsafe { bpf_get_attach_cookie(ctx.as_ptr()) },
    }
}

/// By how much the return of a function moves the stack pointer: on x86-64 it takes the return address.
const RETURN: u64 = if size_of::<pt_regs>() == 168 { 8 } else { 0 };

/// The stack pointer at the entry of the function that a uretprobe is at the return of.
#[inline(always)]
fn left(ctx: &RetProbeContext) -> u64 {
    stack(ctx).wrapping_sub(RETURN)
}

macro_rules! post {
    ($entry:ident, $return:ident, $hook:expr) => {
        #[uprobe]
        pub(crate) fn $entry(ctx: ProbeContext) -> u32 {
            keep_own_stack(&ctx);
            let (Some(qp), Some(list), Some(bad)) = (ctx.arg::<u64>(0), ctx.arg::<u64>(1), ctx.arg::<u64>(2))
            else {
                return 0;
            };
            let _ = post::posting($hook, qp, list, bad, &entered(&ctx));
            0
        }

        #[uretprobe]
        pub(crate) fn $return(ctx: RetProbeContext) -> u32 {
            keep_own_stack(&ctx);
            let _ = post::posted($hook, ctx.ret::<i32>(), left(&ctx));
            0
        }
    };
}

post!(user_post_send, user_post_send_ret, Hook::UserSend);
post!(user_post_recv, user_post_recv_ret, Hook::UserRecv);

#[uprobe]
pub(crate) fn user_wr(ctx: ProbeContext) -> u32 {
    keep_own_stack(&ctx);
    let (Some(qp), Some(second), Some(fourth)) = (ctx.arg::<u64>(0), ctx.arg::<u64>(1), ctx.arg::<u64>(3))
    else {
        return 0;
    };
    let _ = build::begun(qp, &entered(&ctx), second, fourth);
    0
}

#[uprobe]
pub(crate) fn user_wr_data(ctx: ProbeContext) -> u32 {
    keep_own_stack(&ctx);
    let (Some(qp), Some(second), Some(third), Some(fourth)) = (
        ctx.arg::<u64>(0),
        ctx.arg::<u64>(1),
        ctx.arg::<u64>(2),
        ctx.arg::<u64>(3),
    ) else {
        return 0;
    };
    let _ = build::given(qp, &entered(&ctx), second, third, fourth);
    0
}

#[uprobe]
pub(crate) fn user_wr_abort(ctx: ProbeContext) -> u32 {
    keep_own_stack(&ctx);
    if let Some(qp) = ctx.arg::<u64>(0) {
        let _ = build::aborted(qp, &entered(&ctx));
    }
    0
}

#[uprobe]
pub(crate) fn user_wr_complete(ctx: ProbeContext) -> u32 {
    keep_own_stack(&ctx);
    if let Some(qp) = ctx.arg::<u64>(0) {
        let _ = build::completing(qp, &entered(&ctx));
    }
    0
}

#[uretprobe]
pub(crate) fn user_wr_done(ctx: RetProbeContext) -> u32 {
    keep_own_stack(&ctx);
    let _ = build::completed(ctx.ret::<i32>(), left(&ctx));
    0
}

#[uprobe]
pub(crate) fn user_poll_cq(ctx: ProbeContext) -> u32 {
    keep_own_stack(&ctx);
    if let (Some(cq), Some(wc)) = (ctx.arg::<u64>(0), ctx.arg::<u64>(2)) {
        let _ = poll::polling(cq, wc, &entered(&ctx));
    }
    0
}

#[uretprobe]
pub(crate) fn user_poll_cq_ret(ctx: RetProbeContext) -> u32 {
    keep_own_stack(&ctx);
    let _ = poll::polled(ctx.ret::<i32>(), left(&ctx));
    0
}

#[uprobe]
pub(crate) fn user_poll_ex(ctx: ProbeContext) -> u32 {
    keep_own_stack(&ctx);
    if let Some(cq) = ctx.arg::<u64>(0) {
        let _ = cqs::polling(cq, &entered(&ctx));
    }
    0
}

#[uretprobe]
pub(crate) fn user_poll_ex_ret(ctx: RetProbeContext) -> u32 {
    keep_own_stack(&ctx);
    let _ = cqs::polled(ctx.ret::<i32>(), left(&ctx));
    0
}
