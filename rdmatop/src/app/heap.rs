//! Free memory that the C library and the kernel keep for rdmatop.

/// Sets the allocator for a program whose large blocks are short-lived. Called before there are threads.
///
/// By default glibc raises the bound of what it keeps to the largest block that was ever freed, and has a
/// heap for each thread: one dump in the sampler's thread then keeps megabytes for good.
pub(super) fn settle() {
    // Other C libraries lack mallopt(3).
    #[cfg(target_env = "gnu")]
    for (option, value) in [
        // Larger blocks go back to the kernel when they are freed: a dump of ten thousand queue pairs is one.
        (libc::M_MMAP_THRESHOLD, 160 << 10),
        // So much free memory is kept at the end of the heap.
        (libc::M_TRIM_THRESHOLD, 256 << 10),
        (libc::M_ARENA_MAX, 1),
    ] {
        // SAFETY: takes two integers. A refusal leaves the default, which is as correct.
        unsafe { libc::mallopt(option, value) };
    }
    // A huge page at the end of a table or over a hole of the heap takes up to 2 MiB that were never
    // requested. SAFETY: takes integers; a refusal leaves the kernel's default, which is as correct.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
}

/// Gives free memory back that lies between blocks that are in use. When programs are attached, the model
/// makes the row of each queue pair anew while a snapshot still has the old one. Ten thousand old rows leave
/// 1.7 MB free, and without this call rdmatop misses G10 of docs/performance.md.
pub(super) fn trim() {
    // SAFETY: takes an integer, and locks the heap.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0)
    };
}

/// Keeps the memory that a trace will soon use again: as much as arrives while the ring buffer's reader
/// sleeps once, so that its pages need not be allocated again.
pub(super) fn settle_for_trace() {
    // SAFETY: as above.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, 4 << 20)
    };
}
