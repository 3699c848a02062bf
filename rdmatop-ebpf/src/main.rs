//! rdmatop's eBPF programs. Only the feature `bpf`, which `cargo xtask build-ebpf` sets, makes cargo build
//! them: `cargo build --workspace` needs no bpf toolchain.
//!
//! `body` holds the logic; `shell` holds the thin programs through which a kprobe or a tracepoint enters it.
//! No offset is written in the code: see `offsets`.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch, core_intrinsics, stmt_expr_attributes)]
#![expect(
    internal_features,
    reason = "bpfel has no AtomicU64::fetch_add; atomic_xadd makes a locked add, and words::fence is an instruction"
)]
#![expect(
    clippy::inline_always,
    clippy::needless_borrows_for_generic_args,
    clippy::cast_possible_truncation,
    clippy::unnecessary_wraps,
    reason = "a call that is not inlined hides bounds from the verifier; a map key or value by reference is not \
              copied on the 512 byte stack; try_from leaves a panic path; bodies share one Option shape"
)]

mod body;
mod cursor;
mod emit;
mod identity;
mod maps;
mod offsets;
mod pool;
mod providers;
mod record;
mod share;
mod shell;
mod slots;
mod task;
mod user;
mod words;
mod wr_maps;

/// Only GPL-compatible programs may call some of the helpers; the kernel reads the licence from this section.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

/// No loaded program reaches this. It loops for ever, so the verifier refuses a program that can panic.
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
