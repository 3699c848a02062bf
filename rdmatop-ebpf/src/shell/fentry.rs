//! fentry of the SoftRoCE data path: cheaper than a kprobe, and it pins the module. Why only the doorbell: rdmatop's
//! `source/ebpf/datapath.rs`. User space loads it itself (`source/ebpf/fentry.rs`) and decides the function; the
//! name in the section is for people.

use aya_ebpf::{macros::fentry, programs::FEntryContext};

use crate::body::rxe;

#[fentry(function = "rxe_post_send")]
pub(crate) fn fe_post_send(ctx: FEntryContext) -> i32 {
    let _ = rxe::doorbell(ctx.arg(0));
    0
}
