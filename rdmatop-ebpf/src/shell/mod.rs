//! The programs: one thin program per hook and way to attach. rdmatop's `loader/control.rs` and
//! `datapath.rs` say what each is for.
mod control;
mod rxe;
mod siw;
mod tracepoint;
mod user;
mod wr;

use core::ptr::read_volatile;

use aya_ebpf::{EbpfContext, helpers::generated};

/// An argument of the function that an fentry or fexit program is attached to. Loaded from the context it
/// would be a typed pointer, with which the verifier allows no arithmetic. The helper returns the same word
/// as a plain number, and the verifier inlines it.
#[inline(always)]
pub(crate) fn argument(ctx: &impl EbpfContext, number: u32) -> Option<u64> {
    let mut value = 0u64;
    // SAFETY: writes the one word, and refuses a number that the function has no argument for.
    let rc = unsafe { generated::bpf_get_func_arg(ctx.as_ptr(), number, &raw mut value) };
    (rc == 0).then_some(value)
}

/// As [`argument`], for a word that is only stored: it may have any type, and a load costs a tenth of the
/// helper.
#[inline(always)]
#[expect(clippy::unnecessary_wraps, reason = "stands for `argument`")]
pub(crate) fn word(ctx: &impl EbpfContext, number: u32) -> Option<u64> {
    // SAFETY: the verifier refuses what lies behind the function's arguments.
    Some(unsafe { read_volatile(ctx.as_ptr().cast::<u64>().add(number as usize)) })
}
