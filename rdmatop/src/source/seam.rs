//! The seam between what reads the outside world and the engine.
//!
//! A source imports neither the engine nor a view. Sources that are asked implement [`Polled`] and run one
//! after another on the sampler thread, where they may block; sources that send without being asked (the ring
//! buffer) hold a [`Feed`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;

use super::clock::now;
use crate::model::{
    cause::Cause,
    input::{EbpfState, Input, Timed},
};

/// What one round of sampling is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// Number of the round, from 0.
    pub round: u64,
    /// The QP table is wanted from a dump: the first sync, the repair after a loss, or the heartbeat without
    /// eBPF. A dump is quadratic in QPs inside the kernel, so it is not asked for in vain.
    pub qps: bool,
    /// Every QP is wanted, whatever seems to be at rest: the table may be wrong.
    pub repair: bool,
    /// Programs came or went, so the rest of the machine may have changed too.
    pub machine: bool,
    /// Objects came or went since the last round: their counts have changed.
    pub objects: bool,
    /// Counter maps are wanted: false in a trace, where nobody looks at counters.
    pub counters: bool,
    /// This is the last round: sources that read things in turns read all of them now.
    pub last: bool,
    /// What this round does not find is not printed: it waits longer for a driver that is late.
    pub once: bool,
    /// Processes whose facts the engine lacks, each once.
    pub processes: Arc<[u32]>,
    /// Nothing but `processes` is wanted: this round is no sample.
    pub only_processes: bool,
}

/// Rounds between two readings of what a trace does without.
const FULL_EVERY: u64 = 30;

impl Wants {
    /// No view shows devices, processes or the host, and the engine lacks nothing: a trace needs records alone. From time
    /// to time these are read all the same, so that the engine forgets what is gone.
    pub fn is_light(&self) -> bool {
        !self.only_processes && !self.counters && !self.qps && !self.round.is_multiple_of(FULL_EVERY)
    }
}

/// Something that is asked once a round.
pub trait Polled: Send {
    /// For messages about a round that hangs or takes long.
    fn name(&self) -> &'static str;

    /// Reads, and hands over what was read. May block; errors are inputs too (`errors` of the samples).
    fn poll(&mut self, wants: &Wants, out: &mut dyn FnMut(Input));
}

/// Everything that a mode listens to.
#[derive(Default)]
pub struct Sources {
    /// Asked in this order: the list of devices comes before what they did.
    pub polled: Vec<Box<dyn Polled>>,
    /// The eBPF side, when it is wanted.
    pub pushing: Option<Pushing>,
    /// The kernel has RDMA loaded, with or without a device.
    pub subsystem: bool,
    /// rdmatop runs in a PID namespace of its own.
    pub nested_pids: bool,
    /// The state of eBPF until the first report of it.
    pub ebpf: EbpfState,
    /// Why there is no RDMA device; the views that print end with it.
    pub no_rdma: Option<Cause>,
}

/// A source that sends without being asked.
pub struct Pushing {
    /// Starts it, once the channel is there. Must return soon: whatever waits gets a thread of its own. It reports its
    /// state as [`Input::Ebpf`], also that it could not start.
    pub start: Box<dyn FnOnce(Feed) + Send>,
    /// Asks it to hand over what it still has and to let go of its feed.
    pub stop: Box<dyn FnOnce() + Send>,
}

/// A message to the engine.
#[derive(Debug)]
pub(crate) enum Message {
    /// A source has read something.
    Input(Timed),
    /// All polled sources had their turn: time for a snapshot. Travels in the same channel so that it cannot
    /// overtake what they sent.
    RoundDone,
}

/// The way into the one bounded channel.
#[derive(Clone, Debug)]
pub struct Feed {
    to: mpsc::Sender<Message>,
    dropped: Arc<AtomicU64>,
}

/// An input of now: a source hands over what it has just read, and may wait for room after that.
fn read(input: Input) -> Message {
    Message::Input(input.at(now()))
}

/// The engine is gone: the program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the engine has ended")]
pub struct Ended;

impl Feed {
    pub(crate) fn new(to: mpsc::Sender<Message>, dropped: Arc<AtomicU64>) -> Self {
        Self { to, dropped }
    }

    /// Sends, or counts the message as dropped when the channel is full. Never blocks.
    pub fn offer(&self, input: Input) -> Result<(), Ended> {
        match self.to.try_send(read(input)) {
            Ok(()) => Ok(()),
            Err(mpsc::error::TrySendError::Full(_)) => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(mpsc::error::TrySendError::Closed(_)) => Err(Ended),
        }
    }

    /// Waits for room. For a source with a buffer of its own before it, such as the ring buffer: the kernel
    /// counts what that buffer loses meanwhile.
    pub async fn send(&self, input: Input) -> Result<(), Ended> {
        self.to.send(read(input)).await.map_err(|_| Ended)
    }

    /// As [`Feed::send`] from a thread that may block. Must not be called on the runtime's thread.
    pub fn send_blocking(&self, input: Input) -> Result<(), Ended> {
        self.to.blocking_send(read(input)).map_err(|_| Ended)
    }

    pub(crate) fn round_done(&self) -> Result<(), Ended> {
        self.to.blocking_send(Message::RoundDone).map_err(|_| Ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_finds_the_channel_full_is_counted() {
        let (to, mut from) = mpsc::channel(2);
        let dropped = Arc::new(AtomicU64::new(0));
        let feed = Feed::new(to, Arc::clone(&dropped));
        for _ in 0..5 {
            feed.offer(Input::BadRecord).unwrap();
        }
        assert_eq!(dropped.load(Ordering::Relaxed), 3);
        from.close();
        assert_eq!(feed.offer(Input::BadRecord), Err(Ended));
    }
}
