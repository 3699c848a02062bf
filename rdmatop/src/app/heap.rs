//! Free memory that the C library and the kernel keep for rdmatop.

/// Larger blocks go back to the kernel when they are freed: a dump of ten thousand queue pairs is one.
const LARGE: i32 = 160 << 10;
/// How much free memory is kept at the end of the heap.
const KEPT: i32 = 256 << 10;
/// In a trace: as much as arrives while the ring buffer's reader sleeps once, so that its pages need not be allocated
/// again.
const KEPT_IN_TRACE: i32 = 4 << 20;

/// Sets the allocator for a program whose large blocks are short-lived. Called before there are threads.
///
/// By default glibc raises the bound of what it keeps to the largest block that was ever freed, and has a heap for
/// each thread: one dump in the sampler's thread then keeps megabytes for good.
pub(super) fn settle() {
    set(Setting::Large, LARGE);
    set(Setting::Kept, KEPT);
    set(Setting::Heaps, 1);
    // A huge page at the end of a table or over a hole of the heap takes up to 2 MiB that were never requested.
    // SAFETY: takes integers; a refusal leaves the kernel's default, which is as correct.
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

/// So many rows of queue pairs must have been added, removed or replaced since memory was given back to make it
/// worthwhile.
const MANY: usize = 512;
/// After this many snapshots no view holds the rows of the one before.
const CALM: u8 = 3;
/// After this many snapshots each round that comes every five seconds has run: what only the first one needed is given back too.
const LATE: u8 = 8;

/// Decides when there is much to give back: after the start, and after many rows have changed at once. The old rows
/// live until the views have dropped their snapshot.
#[derive(Debug, Default)]
pub(super) struct Settling {
    rows: usize,
    /// Snapshots since the start or the last great change; `None` once all was given back.
    since: Option<u8>,
    /// The eBPF side has started or failed to.
    started: bool,
}

impl Settling {
    /// A snapshot of `rows` rows was made, `remade` of them new. True when it is time.
    pub(super) fn is_due(&mut self, rows: usize, remade: usize, started: bool) -> bool {
        let before = std::mem::replace(&mut self.rows, rows);
        let start = started && !std::mem::replace(&mut self.started, started);
        if start || remade.max(before.abs_diff(rows)) >= MANY {
            self.since = Some(0);
            return false;
        }
        let since = self.since.map(|since| since + 1);
        self.since = since.filter(|since| *since < LATE);
        matches!(since, Some(CALM | LATE))
    }
}

/// Gives empty pages of the heap back, `malloc_trim(3)`: by itself glibc gives back only free memory at the end of
/// the heap.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(super) fn give_back() {
    // SAFETY: takes an integer.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(super) fn give_back() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_twice_after_the_start_and_after_a_great_change() {
        let mut settling = Settling::default();
        let mut due = |rows, remade, started| settling.is_due(rows, remade, started);
        assert!(!due(0, 0, false) && !due(0, 0, false));
        assert!(!due(10, 0, true));
        let mut dues = |rows, snapshots: usize| -> Vec<usize> {
            (1..=snapshots).filter(|_| due(rows, 3, true)).collect()
        };
        assert_eq!(dues(10, 40), [3, 8]);
        // While a change goes on, nothing is given back.
        let mut settling = Settling::default();
        assert!(!settling.is_due(1000, 990, true) && !settling.is_due(1000, 1000, true));
        let due = [0; 9].map(|_| settling.is_due(1000, 3, true));
        assert_eq!(due, [false, false, true, false, false, false, false, true, false]);
        // Rows that were removed, and again before all was given back.
        assert!(!settling.is_due(10, 0, true));
        assert_eq!(
            [0; 4].map(|_| settling.is_due(10, 0, true)),
            [false, false, true, false]
        );
        assert!(!settling.is_due(1000, 0, true));
        assert_eq!(
            [0; 3].map(|_| settling.is_due(1000, 0, true)),
            [false, false, true]
        );
    }
}
