//! The size of the ring buffer.

use super::plan::Mode;

/// Bytes for a trace: 75 000 QP records, 60 000 of them of a single process (share.rs of rdmatop-ebpf).
/// Real-time tasks that occupy their CPUs have to pause once a second (`sched_rt_runtime_us`, sched(7)), so
/// the buffer must hold the records of one second for a reader that they starve. The fastest storm measured
/// was 60 000 records a second, untraced, on one core.
const TRACE: u64 = 16 << 20;
/// Bytes for any other mode: 2500 QP records, those of four naps of the reader in that storm. The reader can
/// be starved for longer, but a dump repairs what is lost. A smaller buffer holds too little for one nap.
const VIEW: u64 = 512 << 10;
const LEAST: u64 = VIEW;
/// The buffer takes at most one part in `SHARE` of the available memory: pages of a ring buffer are allocated
/// when it is created and never swapped.
const SHARE: u64 = 64;
/// At most so much where the available memory is not known.
const WITHOUT_NUMBER: u64 = 4 << 20;

/// Bytes for the ring buffer of a mode: a power of two, as the kernel requires.
pub(super) fn bytes(mode: Mode, available: Option<u64>) -> u32 {
    let wanted = match mode {
        Mode::Lines => TRACE,
        Mode::Live { .. } | Mode::Once | Mode::Check | Mode::Probes => VIEW,
    };
    let most = available.map_or(WITHOUT_NUMBER, |bytes| bytes / SHARE);
    let mut bytes = wanted;
    while bytes > most && bytes > LEAST {
        bytes /= 2;
    }
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: Mode = Mode::Lines;
    const LIVE: Mode = Mode::Live { trace: true };

    #[test]
    fn a_trace_has_room_for_a_second_and_a_view_for_less() {
        assert_eq!(bytes(LINES, Some(64 << 30)), 16 << 20);
        assert_eq!(bytes(LIVE, Some(64 << 30)), 512 << 10);
    }

    #[test]
    fn little_memory_makes_a_small_buffer_and_never_a_useless_one() {
        assert_eq!(bytes(LINES, Some(1 << 30)), 16 << 20);
        assert_eq!(bytes(LINES, Some((1 << 30) - 1)), 8 << 20);
        assert_eq!(bytes(LINES, Some(100 << 20)), 1 << 20);
        assert_eq!(bytes(LIVE, Some(100 << 20)), 512 << 10);
        assert_eq!(bytes(LINES, Some(0)), 512 << 10);
        assert_eq!(bytes(LINES, None), 4 << 20);
    }
}
