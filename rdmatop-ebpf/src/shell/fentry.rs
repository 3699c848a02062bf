//! fentry of the SoftRoCE data path: cheaper than a kprobe, and it pins the module. Why only the doorbell: rdmatop's
//! `source/ebpf/datapath.rs`. User space loads it itself (`source/ebpf/fentry.rs`) and decides the function; the
//! name in the section is for people.

use aya_ebpf::{EbpfContext as _, helpers::generated, macros::fentry, programs::FEntryContext};

use crate::body::rxe;

#[fentry(function = "rxe_post_send")]
pub(crate) fn fe_post_send(ctx: FEntryContext) -> i32 {
    let mut qp = 0u64;
    // Loaded from the context it would be a typed pointer, and the verifier lets nobody calculate with those. The
    // helper gives the same word as a plain number, and is inlined.
    // SAFETY: writes the one word.
    if unsafe { generated::bpf_get_func_arg(ctx.as_ptr(), 0, &raw mut qp) } == 0 {
        let _ = rxe::doorbell(qp);
    }
    0
}
