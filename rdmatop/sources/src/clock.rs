//! The kernel's clocks.

use rustix::time::{ClockId, clock_gettime};

use rdmatop_model::input::{Now, ReadAt};

/// The present time of `clock`, ns. `bpf_ktime_get_ns` and every rate use [`ClockId::Monotonic`].
pub fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// The present time of `CLOCK_MONOTONIC`, ns.
pub fn monotonic() -> u64 {
    read(ClockId::Monotonic)
}

/// Reads both clocks.
pub fn now() -> Now {
    Now {
        mono_ns: monotonic(),
        wall_ns: read(ClockId::Realtime),
    }
}

/// Runs `read`, and returns when that was too, by `CLOCK_MONOTONIC`.
pub fn timed<R>(read: impl FnOnce() -> R) -> (R, ReadAt) {
    let before_ns = monotonic();
    let got = read();
    (got, ReadAt::between(before_ns, monotonic()))
}
