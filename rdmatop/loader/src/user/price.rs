//! The cost of a probed post, measured on a function and a work request of rdmatop's own.

use std::sync::atomic::{AtomicI32, Ordering};

use rustix::time::ClockId;

use rdmatop_sources::{
    clock,
    uprobes::{CONTEXT_POST_SEND, Opened, Process, after_landing_pad, file},
};

/// The number of calls in a row, and the number of rows. The fastest row counts.
const CALLS: u32 = 200;
const ROWS: u32 = 5;

/// A work request for a QP that does not exist: a `struct ibv_send_wr` with one segment, followed by that
/// `struct ibv_sge`. It also stands for the QP and for the QP's context, which names [`post`].
#[derive(Debug)]
pub(super) struct Sample {
    request: Box<[u64; POST + 1]>,
}

/// The word of a context that names `post_send`.
#[expect(clippy::cast_possible_truncation, reason = "an offset in a structure")]
const POST: usize = CONTEXT_POST_SEND as usize / 8;

static RETURNS: AtomicI32 = AtomicI32::new(0);

/// Stands for a provider's post_send.
#[inline(never)]
extern "C" fn post(qp: u64, list: u64, bad: u64) -> i32 {
    std::hint::black_box((qp, list, bad));
    RETURNS.load(Ordering::Relaxed)
}

impl Sample {
    pub(super) fn new() -> Self {
        let mut request = Box::new([0; POST + 1]);
        (request[0], request[POST]) = (request.as_ptr() as u64, post as *const () as u64);
        // One segment of 64 bytes behind the work request; opcode 2 is a send.
        request[2] = request.as_ptr() as u64 + 16 * 8;
        request[3] = 1 | 2 << 32;
        request[17] = 64;
        Self { request }
    }

    /// The address that stands for that of the QP.
    pub(super) fn handle(&self) -> u64 {
        self.request.as_ptr() as u64
    }

    /// File and offset of the function that stands for the provider's post_send.
    pub(super) fn place() -> Option<(Opened, u64)> {
        let pid = std::process::id();
        let places = Process::open(pid).ok()?.places(&[post as *const () as u64]);
        let place = places.ok()?.pop()??;
        let file = file(pid, &place).ok()??;
        let offset = place.offset + after_landing_pad(&file.code(place.offset));
        Some((file, offset))
    }

    /// How long a call takes now, ns of this thread's CPU time, in the fastest row.
    pub(super) fn call_ns(&self) -> u64 {
        let row = || {
            let begun = clock::read(ClockId::ThreadCPUTime);
            for _ in 0..CALLS {
                std::hint::black_box(post(self.handle(), self.handle(), 0));
            }
            clock::read(ClockId::ThreadCPUTime).saturating_sub(begun) / u64::from(CALLS)
        };
        (0..ROWS).map(|_| row()).min().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_request_is_one_of_libibverbs() {
        let sample = Sample::new();
        let [context, next, segments, what] = *sample.request.first_chunk().unwrap();
        assert_eq!(context, sample.handle());
        assert_eq!((next, what & 0xffff_ffff, what >> 32), (0, 1, 2));
        assert_eq!(segments, sample.handle() + 128);
        assert_eq!(sample.request[17], 64, "ibv_sge.length is at 8");
        assert!(sample.call_ns() < 1_000_000);
    }
}
