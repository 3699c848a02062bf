//! The clocks, read in one place.

use rustix::time::ClockId;

use crate::{model::input::Now, source::clock::read};

/// Both clocks now. `CLOCK_MONOTONIC` is the clock of `bpf_ktime_get_ns` and of every rate.
pub fn now() -> Now {
    Now {
        mono_ns: read(ClockId::Monotonic),
        wall_ns: read(ClockId::Realtime),
    }
}
