//! Programs of the soft iWARP data path: kprobes, which pin no module.

use aya_ebpf::{EbpfContext as _, bindings::pt_regs, programs::ProbeContext};

use crate::body::siw;

/// Offset of the stack pointer in the registers of a kprobe. Each architecture names it differently in
/// aya-ebpf; the size of the registers identifies the architecture.
const STACK_POINTER: usize = match size_of::<pt_regs>() {
    // x86-64
    168 => 152,
    // arm64
    272 => 248,
    // riscv64
    256 => 16,
    _ => panic!("where the stack pointer is on this machine has to be added"),
};

/// The stack pointer at the function's entry.
#[inline(always)]
fn stack(ctx: &ProbeContext) -> u64 {
    // SAFETY: the register is inside the part of the context that the verifier lets a kprobe read.
    unsafe { ctx.as_ptr().byte_add(STACK_POINTER).cast::<u64>().read() }
}

entry!(always siw_post_send(qp) siw::doorbell(qp));
entry!(always siw_activate(siw_qp) siw::activating(siw_qp));
entry!(always [stack] siw_sq_cqe(siw_qp, sqe, _bytes, status) siw::sent(siw_qp, sqe, status as u32, stack));
entry!(always [stack] siw_rq_cqe(siw_qp, _rqe, bytes, _stag, status) siw::received(siw_qp, bytes as u32, status as u32, stack));
entry!(always [stack] siw_no_room(cq, event) siw::no_room(cq, event as u32, stack));
entry!(always siw_read_end(wqe, opcode) siw::read_ending(wqe, opcode as u32));
entry!(always siw_qp_end(kref) siw::ending(kref));
