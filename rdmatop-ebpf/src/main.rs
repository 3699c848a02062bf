//! rdmatop's eBPF programs. On the host this crate is an empty program, so that `cargo build --workspace`
//! needs no bpf toolchain; the real build is `cargo xtask build-ebpf`.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(not(target_arch = "bpf"))]
fn main() {}
