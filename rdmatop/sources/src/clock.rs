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

/// Reads both clocks.
pub fn now() -> Now {
    Now {
        mono_ns: read(ClockId::Monotonic),
        wall_ns: read(ClockId::Realtime),
    }
}

/// When a read began and ended, ns of `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The beginning of the span.
    pub before_ns: u64,
    /// The end of the span.
    pub after_ns: u64,
}

impl From<Span> for ReadAt {
    fn from(span: Span) -> Self {
        Self::between(span.before_ns, span.after_ns)
    }
}

/// Runs `read` and returns its beginning and end too.
pub fn timed<R>(read: impl FnOnce() -> R) -> (R, Span) {
    let before_ns = self::read(ClockId::Monotonic);
    let got = read();
    let after_ns = self::read(ClockId::Monotonic);
    (got, Span { before_ns, after_ns })
}
