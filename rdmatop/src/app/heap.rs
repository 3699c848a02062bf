//! Free memory that the C library and the kernel keep for rdmatop.

/// Larger blocks go back to the kernel when they are freed: a dump of ten thousand queue pairs is one.
const LARGE: i32 = 160 << 10;
/// How much free memory is kept at the end of the heap.
const KEPT: i32 = 256 << 10;
/// In a trace: as much as arrives while the ring buffer's reader sleeps once, so that its pages need not be
/// allocated again.
const KEPT_IN_TRACE: i32 = 4 << 20;

/// Sets the allocator for a program whose large blocks are short-lived. Called before there are threads.
///
/// By default glibc raises the bound of what it keeps to the largest block that was ever freed, and has a
/// heap for each thread: one dump in the sampler's thread then keeps megabytes for good.
pub(super) fn settle() {
    set(Setting::Large, LARGE);
    set(Setting::Kept, KEPT);
    set(Setting::Heaps, 1);
    // A huge page at the end of a table or over a hole of the heap takes up to 2 MiB that were never
    // requested. SAFETY: takes integers; a refusal leaves the kernel's default, which is as correct.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
}

/// Keeps the memory that a trace will soon use again.
pub(super) fn settle_for_trace() {
    set(Setting::Kept, KEPT_IN_TRACE);
}

#[derive(Clone, Copy)]
enum Setting {
    Large,
    Kept,
    Heaps,
}

/// `mallopt(3)`. Other C libraries lack it.
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
