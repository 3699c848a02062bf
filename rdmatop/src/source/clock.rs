//! The kernel's clocks.

use rustix::time::{ClockId, clock_gettime};

/// A clock now, ns: [`ClockId::Monotonic`] is that of `bpf_ktime_get_ns` and of every rate.
pub fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}
