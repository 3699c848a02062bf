//! Probes on user programs, and the kprobes that find their QPs.

use aya_ebpf::{
    EbpfContext, Global,
    bindings::pt_regs,
    helpers::generated::bpf_get_attach_cookie,
    macros::{map, uprobe, uretprobe},
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

ret!(user_destroy_ret(rc) qps::destroyed(rc));

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

/// The program at a function's entry: the arguments that it reads with their numbers, then its body. `at` is
/// the call.
macro_rules! uprobe {
    ($name:ident($($arg:ident $number:literal),*) |$at:ident| $body:expr) => {
        #[uprobe]
        pub(crate) fn $name(ctx: ProbeContext) -> u32 {
            keep_own_stack(&ctx);
            $(let Some($arg) = ctx.arg::<u64>($number) else { return 0 };)*
            let $at = &entered(&ctx);
            let _ = $body;
            0
        }
    };
}

/// The program at a function's return: with its result, and the stack pointer at its entry.
macro_rules! uretprobe {
    ($name:ident($rc:ident, $stack:ident) $body:expr) => {
        #[uretprobe]
        pub(crate) fn $name(ctx: RetProbeContext) -> u32 {
            keep_own_stack(&ctx);
            let ($rc, $stack) = (ctx.ret::<i32>(), left(&ctx));
            let _ = $body;
            0
        }
    };
}

uprobe!(user_post_send(qp 0, list 1, bad 2) |at| post::posting(Hook::UserSend, qp, list, bad, at));
uretprobe!(user_post_send_ret(rc, stack) post::posted(Hook::UserSend, rc, stack));
uprobe!(user_post_recv(qp 0, list 1, bad 2) |at| post::posting(Hook::UserRecv, qp, list, bad, at));
uretprobe!(user_post_recv_ret(rc, stack) post::posted(Hook::UserRecv, rc, stack));
uprobe!(user_wr(qp 0, second 1, fourth 3) |at| build::begun(qp, at, second, fourth));
uprobe!(user_wr_data(qp 0, second 1, third 2, fourth 3) |at| build::given(qp, at, second, third, fourth));
uprobe!(user_wr_abort(qp 0) |at| build::aborted(qp, at));
uprobe!(user_wr_complete(qp 0) |at| build::completing(qp, at));
uretprobe!(user_wr_done(rc, stack) build::completed(rc, stack));
uprobe!(user_poll_cq(cq 0, wc 2) |at| poll::polling(cq, wc, at));
uretprobe!(user_poll_cq_ret(rc, stack) poll::polled(rc, stack));
uprobe!(user_poll_ex(cq 0) |at| cqs::polling(cq, at));
uretprobe!(user_poll_ex_ret(rc, stack) cqs::polled(rc, stack));
