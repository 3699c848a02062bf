//! What the C library keeps of memory that was freed.

/// Larger blocks are given back to the kernel when they are freed: a dump of ten thousand queue pairs is one.
const LARGE: i32 = 160 << 10;
/// Of what is free at the end of the heap so much is kept.
const KEPT: i32 = 256 << 10;
/// In a trace: what comes in during one nap of the ring buffer's reader, so that its pages need not come anew.
const KEPT_IN_TRACE: i32 = 4 << 20;

/// Sets the allocator for a program whose large blocks are short-lived. Called before there are threads.
///
/// glibc takes the largest block that was ever freed as the new bound of what it keeps, and a heap for each thread: one
/// dump in the sampler's thread then holds megabytes for good.
pub(super) fn settle() {
    set(Setting::Large, LARGE);
    set(Setting::Kept, KEPT);
    set(Setting::Heaps, 1);
}

/// Keeps what a trace is about to use again.
pub(super) fn settle_for_trace() {
    set(Setting::Kept, KEPT_IN_TRACE);
}

#[derive(Clone, Copy)]
enum Setting {
    Large,
    Kept,
    Heaps,
}

/// `mallopt(3)`. There is no such thing in other C libraries.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn set(setting: Setting, value: i32) {
    let option = match setting {
        Setting::Large => libc::M_MMAP_THRESHOLD,
        Setting::Kept => libc::M_TRIM_THRESHOLD,
        Setting::Heaps => libc::M_ARENA_MAX,
    };
    // SAFETY: takes two integers. A refusal leaves the default, which is as correct.
    unsafe { libc::mallopt(option, value) };
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn set(_setting: Setting, _value: i32) {}
