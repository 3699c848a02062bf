//! The eBPF objects that build.rs embeds if it can.

/// Includes an object, aligned for the ELF reader; `None` in a build without the bpf toolchain.
macro_rules! object {
    ($variable:literal) => {{
        #[cfg(ebpf_object)]
        {
            Some(aya::include_bytes_aligned!(env!($variable)))
        }
        #[cfg(not(ebpf_object))]
        {
            None
        }
    }};
}

/// The object with all programs.
pub(super) fn counting() -> Option<&'static [u8]> {
    object!("RDMATOP_COUNTING_OBJECT")
}

/// The object of a trace. It has no programs that count, and its others do not count, so that the kernel
/// loads them with less work.
pub(super) fn trace() -> Option<&'static [u8]> {
    object!("RDMATOP_TRACE_OBJECT")
}

/// The object of a session that `counts`, or of a trace.
pub(super) fn of(counts: bool) -> Option<&'static [u8]> {
    if counts { counting() } else { trace() }
}

/// Whether this binary carries the objects.
pub fn available() -> bool {
    counting().is_some()
}
