//! The eBPF object that build.rs embeds if it can.

/// The object's bytes, aligned for the ELF reader; `None` in a build without the bpf toolchain.
#[cfg(ebpf_object)]
#[expect(clippy::unnecessary_wraps, reason = "its twin below has none")]
pub(super) fn bytes() -> Option<&'static [u8]> {
    Some(aya::include_bytes_aligned!(env!("RDMATOP_EBPF_OBJECT")))
}

/// The object's bytes, aligned for the ELF reader; `None` in a build without the bpf toolchain.
#[cfg(not(ebpf_object))]
pub(super) fn bytes() -> Option<&'static [u8]> {
    None
}

/// Whether this binary carries the object.
pub fn available() -> bool {
    bytes().is_some()
}
