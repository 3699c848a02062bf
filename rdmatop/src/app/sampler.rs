//! The thread on which polled sources take their turns. They may block only there.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use crate::exit::Stop;
use rdmatop_sources::limits;
use rdmatop_sources::seam::{Feed, Polled, Wants};

/// A running sampler. Dropping it ends the thread after its present round, without waiting.
#[derive(Debug)]
pub(super) struct Sampler {
    orders: mpsc::Sender<Wants>,
    names: Vec<&'static str>,
    turn: Arc<AtomicUsize>,
}

impl Sampler {
    pub(super) fn start(sources: Vec<Box<dyn Polled>>, feed: Feed) -> Result<Self, Stop> {
        let (orders, todo) = mpsc::channel();
        let names = sources.iter().map(|source| source.name()).collect();
        let turn = Arc::new(AtomicUsize::new(0));
        let here = Arc::clone(&turn);
        thread::Builder::new()
            .name("sampler".to_owned())
            .spawn(move || work(sources, &feed, &todo, &here))
            .map_err(|e| Stop::failure(format!("cannot start a thread: {e}; {}", limits::threads())))?;
        Ok(Self { orders, names, turn })
    }

    /// Orders a round. Its end comes through the channel.
    pub(super) fn order(&self, wants: Wants) {
        // A sampler that has ended has seen the engine end first.
        let _ = self.orders.send(wants);
    }

    /// The source whose turn it is, for the message when a round hangs.
    pub(super) fn busy_with(&self) -> &'static str {
        self.names
            .get(self.turn.load(Ordering::Relaxed))
            .copied()
            .unwrap_or("sampling")
    }
}

fn work(mut sources: Vec<Box<dyn Polled>>, feed: &Feed, todo: &mpsc::Receiver<Wants>, turn: &AtomicUsize) {
    while let Ok(wants) = todo.recv() {
        for (number, source) in sources.iter_mut().enumerate() {
            turn.store(number, Ordering::Relaxed);
            let mut ended = false;
            source.poll(&wants, &mut |input| ended |= feed.send_blocking(input).is_err());
            if ended {
                return;
            }
        }
        if feed.round_done().is_err() {
            return;
        }
    }
}
