//! The seam between what reads the outside world and the engine.
//!
//! A source imports neither the engine nor a view. Polled sources implement [`Polled`] and run one after
//! another on the sampler thread, where they may block; sources that send on their own (the ring buffer) hold
//! a [`Feed`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::clock::now;
use rdmatop_model::{
    cause::Cause,
    input::{EbpfState, Input, Timed},
};

/// What a round of sampling has to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// Number of the round, from 0.
    pub round: u64,
    /// The QP table is wanted from a dump: the first sync, the repair after a loss, or, without eBPF, the
    /// regular reading. The cost of a dump is quadratic in QPs inside the kernel, so it is requested only
    /// when needed.
    pub qps: bool,
    /// Every QP is wanted, even of devices that seem at rest: the table may be wrong.
    pub repair: bool,
    /// Programs were attached or detached, so the rest of the machine may have changed too.
    pub machine: bool,
    /// Objects were created or destroyed since the last round: their counts have changed.
    pub objects: bool,
    /// Counter maps are wanted: false in a trace, which shows no counters.
    pub counters: bool,
    /// This is the last round: sources that read in turns read everything now.
    pub last: bool,
    /// There is no later round to print what this one misses, so it waits longer for a late driver.
    pub once: bool,
    /// Processes whose facts the engine lacks, each once.
    pub processes: Arc<[u32]>,
    /// TCP connections are wanted, however little this namespace moves.
    pub tcp: bool,
    /// The processes that have devices open are wanted.
    pub openers: bool,
    /// Processes whose limit of locked memory is wanted.
    pub locked: Arc<[u32]>,
    /// Numbers of the queue pairs whose PSNs are wanted, by the index of their device.
    pub psns: Arc<BTreeMap<u32, Vec<u32>>>,
    /// Numbers of the queue pairs whose peers are wanted, by the index of their device.
    pub paths: Arc<BTreeMap<u32, Vec<u32>>>,
    /// Nothing but `processes` and `openers` is wanted: this round is no sample.
    pub only_processes: bool,
}

/// Rounds between two readings of what a trace does not show.
const FULL_EVERY: u64 = 30;

impl Wants {
    /// Records alone are needed, as in a trace: no view shows devices, processes or the host, and the engine
    /// lacks nothing. These are still read from time to time, so that the engine forgets what is gone.
    pub fn is_light(&self) -> bool {
        !self.only_processes && !self.counters && !self.qps && !self.round.is_multiple_of(FULL_EVERY)
    }

    /// Devices are read, and what else a sample has.
    pub fn is_sample(&self) -> bool {
        !self.is_light() && !self.only_processes
    }

    /// Something is wanted of certain processes.
    pub fn is_of_processes(&self) -> bool {
        !self.processes.is_empty() || !self.locked.is_empty()
    }
}

/// A source that is asked once a round.
pub trait Polled: Send {
    /// Its name in messages about a round that hangs or takes long.
    fn name(&self) -> &'static str;

    /// Reads, and hands over what was read. May block; errors are inputs too (`errors` of the samples).
    fn poll(&mut self, wants: &Wants, out: &mut dyn FnMut(Input));
}

impl<F: FnMut(&Wants, &mut dyn FnMut(Input)) + Send> Polled for (&'static str, F) {
    fn name(&self) -> &'static str {
        self.0
    }

    fn poll(&mut self, wants: &Wants, out: &mut dyn FnMut(Input)) {
        (self.1)(wants, out);
    }
}

/// All sources of a mode.
#[derive(Default)]
pub struct Sources {
    /// Asked in this order: devices are listed before their counters are read.
    pub polled: Vec<Box<dyn Polled>>,
    /// The eBPF side, when it is wanted.
    pub pushing: Option<Pushing>,
    /// The kernel has RDMA loaded, with or without a device.
    pub subsystem: bool,
    /// rdmatop runs in a PID namespace of its own.
    pub nested_pids: bool,
    /// The state of eBPF until the first report of it.
    pub ebpf: EbpfState,
    /// Why there is no RDMA device; printing views end with this message.
    pub no_rdma: Option<Cause>,
}

/// A source that sends on its own.
pub struct Pushing {
    /// Starts it, once the channel exists, inside the mode's runtime. Must return soon: what waits gets a
    /// thread of its own. The source reports its state as [`Input::Ebpf`], including a failed start.
    pub start: Box<dyn FnOnce(Feed) + Send>,
    /// Asks it to hand over what it still has and to drop its feed.
    pub stop: Box<dyn FnOnce() + Send>,
}

impl Pushing {
    /// Delays the start until `first` receives a message, for `patience` at most. A sender that is dropped
    /// before cancels the start.
    #[must_use]
    pub fn after(self, first: oneshot::Receiver<()>, patience: Duration) -> Self {
        let Self { start, stop } = self;
        let begin = move |feed: Feed| {
            // The task holds the feed, so the channel stays open for a source that has not started yet.
            drop(tokio::spawn(async move {
                if !matches!(timeout(patience, first).await, Ok(Err(_))) {
                    start(feed);
                }
            }));
        };
        Self {
            start: Box::new(begin),
            stop,
        }
    }
}

/// A message to the engine.
#[derive(Debug)]
pub enum Message {
    /// A source has read something.
    Input(Timed),
    /// All polled sources had their turn: time for a snapshot. It travels in the same channel, so that it
    /// cannot overtake their inputs.
    RoundDone,
}

/// The way into the one bounded channel.
#[derive(Clone, Debug)]
pub struct Feed {
    to: mpsc::Sender<Message>,
    dropped: Arc<AtomicU64>,
}

/// An input with the present time: a source hands over what it has just read, and may then wait for room.
fn stamped(input: Input) -> Message {
    Message::Input(input.at(now()))
}

/// The engine is gone: the program is ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the engine has ended")]
pub struct Ended;

impl Feed {
    /// The way into this channel; what finds no room is counted in `dropped`.
    pub fn new(to: mpsc::Sender<Message>, dropped: Arc<AtomicU64>) -> Self {
        Self { to, dropped }
    }

    /// Sends, or counts the message as dropped when the channel is full. Never blocks.
    pub fn offer(&self, input: Input) -> Result<(), Ended> {
        match self.to.try_send(stamped(input)) {
            Ok(()) => Ok(()),
            Err(mpsc::error::TrySendError::Full(_)) => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(mpsc::error::TrySendError::Closed(_)) => Err(Ended),
        }
    }

    /// Waits for room. For a source with a buffer of its own, such as the ring buffer: the kernel counts what
    /// that buffer loses meanwhile.
    pub async fn send(&self, input: Input) -> Result<(), Ended> {
        self.to.send(stamped(input)).await.map_err(|_| Ended)
    }

    /// As [`Feed::send`] from a thread that may block. Must not be called on the runtime's thread.
    pub fn send_blocking(&self, input: Input) -> Result<(), Ended> {
        self.to.blocking_send(stamped(input)).map_err(|_| Ended)
    }

    /// All polled sources had their turn.
    pub fn round_done(&self) -> Result<(), Ended> {
        self.to.blocking_send(Message::RoundDone).map_err(|_| Ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A source that reports when it is started, behind a gate that opens after `patience`.
    fn gated(patience: Duration) -> (oneshot::Sender<()>, mpsc::Receiver<Message>) {
        let (to, from) = mpsc::channel(2);
        let (open, first) = oneshot::channel();
        let source = Pushing {
            start: Box::new(|feed| feed.offer(Input::BadRecord).unwrap()),
            stop: Box::new(|| ()),
        };
        (source.after(first, patience).start)(Feed::new(to, Arc::default()));
        (open, from)
    }

    #[tokio::test]
    async fn a_source_starts_after_what_it_waits_for_and_not_before() {
        let (open, mut from) = gated(Duration::from_hours(1));
        let early = timeout(Duration::from_millis(20), from.recv()).await;
        assert!(early.is_err(), "{early:?}");
        open.send(()).unwrap();
        assert!(from.recv().await.is_some());
        assert!(from.recv().await.is_none());
    }

    #[tokio::test]
    async fn a_source_does_not_wait_for_ever() {
        let (open, mut from) = gated(Duration::from_millis(1));
        assert!(from.recv().await.is_some());
        drop(open);
    }

    #[tokio::test]
    async fn a_source_does_not_start_once_nothing_opens_the_gate() {
        let (open, mut from) = gated(Duration::from_hours(1));
        drop(open);
        assert!(from.recv().await.is_none());
    }

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
