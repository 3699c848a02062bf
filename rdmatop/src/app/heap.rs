//! What the C library keeps of memory that was freed.

/// Larger blocks are given back to the kernel when they are freed: a dump of ten thousand queue pairs is one.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE: libc::c_int = 256 << 10;
/// So much of what is free at the end of the heap is kept for the next batch of records.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const KEPT: libc::c_int = 1 << 20;

/// Sets the allocator for a program whose large blocks are short-lived. Called before there are threads.
///
/// glibc takes the largest block that was ever freed as the new bound of what it keeps, and a heap for each thread: one
/// dump in the sampler's thread then holds megabytes for good. malloc's `mallopt(3)`; there is no such thing in musl.
pub(super) fn settle() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (option, value) in [
        (libc::M_MMAP_THRESHOLD, LARGE),
        (libc::M_TRIM_THRESHOLD, KEPT),
        (libc::M_ARENA_MAX, 1),
    ] {
        // SAFETY: takes two integers. A refusal leaves the default, which is as correct.
        unsafe { libc::mallopt(option, value) };
    }
}
