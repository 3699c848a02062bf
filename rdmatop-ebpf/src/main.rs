//! rdmatop's eBPF programs. On the host this crate is an empty program, so that `cargo build --workspace`
//! needs no bpf toolchain; the real build is `cargo xtask build-ebpf`.
//!
//! `body` holds the logic; `shell` holds the thin programs through which a kprobe or a tracepoint enters it.
//! No offset is written in the code: see `offsets`.
#![cfg_attr(
    target_arch = "bpf",
    no_std,
    no_main,
    feature(asm_experimental_arch, core_intrinsics, stmt_expr_attributes)
)]
#![cfg_attr(
    target_arch = "bpf",
    expect(
        internal_features,
        reason = "bpfel has no AtomicU64::fetch_add; atomic_xadd makes a locked add, and words::fence is an instruction"
    )
)]
#![cfg_attr(
    target_arch = "bpf",
    expect(
        clippy::inline_always,
        clippy::needless_borrows_for_generic_args,
        clippy::cast_possible_truncation,
        clippy::needless_pass_by_value,
        clippy::unnecessary_wraps,
        reason = "a call that is not inlined hides bounds from the verifier; a map key or value by reference is not \
                  copied on the 512 byte stack; try_from leaves a panic path; bodies share one Option \
                  shape, and aya hands a context by value"
    )
)]

#[cfg(target_arch = "bpf")]
mod body;
#[cfg(target_arch = "bpf")]
mod cursor;
#[cfg(target_arch = "bpf")]
mod emit;
#[cfg(target_arch = "bpf")]
mod identity;
#[cfg(target_arch = "bpf")]
mod maps;
#[cfg(target_arch = "bpf")]
mod offsets;
#[cfg(target_arch = "bpf")]
mod pool;
#[cfg(target_arch = "bpf")]
mod providers;
#[cfg(target_arch = "bpf")]
mod record;
#[cfg(target_arch = "bpf")]
mod share;
#[cfg(target_arch = "bpf")]
mod shell;
#[cfg(target_arch = "bpf")]
mod slots;
#[cfg(target_arch = "bpf")]
mod task;
#[cfg(target_arch = "bpf")]
mod user;
#[cfg(target_arch = "bpf")]
mod vacancy;
#[cfg(target_arch = "bpf")]
mod words;
#[cfg(target_arch = "bpf")]
mod wr_maps;

#[cfg(not(target_arch = "bpf"))]
fn main() {}

/// Only GPL-compatible programs may call some of the helpers; the kernel reads the licence from this section.
#[cfg(target_arch = "bpf")]
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

/// No loaded program reaches this. It loops for ever, so the verifier refuses a program that can panic.
#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
