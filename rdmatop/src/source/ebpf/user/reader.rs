//! Reads words of programs' memory on a thread of its own. A program decides what is behind its addresses: a page of a file system that
//! does not answer, or one that another thread has to fill (userfaultfd), keeps a reader waiting for as long as the program likes.

use std::{
    sync::{
        Arc,
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use crate::source::uprobes::Memory;

/// How long to wait for the answers of one refresh.
const PATIENCE: Duration = Duration::from_secs(1);

/// A word to read.
#[derive(Debug)]
pub(super) struct Place<M> {
    pub(super) process: Arc<M>,
    pub(super) address: u64,
}

impl<M> Clone for Place<M> {
    fn clone(&self) -> Self {
        Self {
            process: Arc::clone(&self.process),
            address: self.address,
        }
    }
}

impl<M: Memory> Place<M> {
    /// The word, `None` where the process's memory is gone or the address is not in it.
    pub(super) fn read(&self) -> Option<u32> {
        let mut bytes = [0; 4];
        self.process
            .read(self.address, &mut bytes)
            .then(|| u32::from_ne_bytes(bytes))
    }
}

/// The thread's ends of two channels. It ends when this is dropped, once it is not waiting.
#[derive(Debug)]
struct Thread<M> {
    orders: Sender<Vec<Place<M>>>,
    answers: Receiver<Option<u32>>,
}

impl<M: Memory + Send + Sync + 'static> Thread<M> {
    fn start() -> Option<Self> {
        let (orders, from) = mpsc::channel::<Vec<Place<M>>>();
        let (to, answers) = mpsc::channel();
        let run = move || {
            for places in from {
                for place in places {
                    if to.send(place.read()).is_err() {
                        return;
                    }
                }
            }
        };
        let started = thread::Builder::new().name("memory".to_owned()).spawn(run);
        started.is_ok().then_some(Self { orders, answers })
    }
}

/// Reads words, and gives up one that takes too long.
#[derive(Debug)]
pub(super) struct Reader<M> {
    thread: Option<Thread<M>>,
}

impl<M> Default for Reader<M> {
    fn default() -> Self {
        Self { thread: None }
    }
}

impl<M: Memory + Send + Sync + 'static> Reader<M> {
    /// Reads words in their order. `None` for one that cannot be read in time; its thread is left behind, and so is all that it had
    /// still to read of that process.
    pub(super) fn read(&mut self, places: &[Place<M>]) -> Vec<Option<u32>> {
        let mut read = Vec::with_capacity(places.len());
        while let Some(rest) = places.get(read.len()..).filter(|rest| !rest.is_empty()) {
            self.some(rest, &mut read);
            let Some(stuck) = places.get(read.len()) else {
                break;
            };
            self.thread = None;
            let of_it = |place: &&Place<M>| Arc::ptr_eq(&place.process, &stuck.process);
            let waits = places.iter().skip(read.len()).take_while(of_it).count();
            read.extend(std::iter::repeat_n(None, waits));
        }
        read
    }

    /// Reads until one takes too long.
    fn some(&mut self, places: &[Place<M>], read: &mut Vec<Option<u32>>) {
        if self.thread.is_none() {
            self.thread = Thread::start();
        }
        let Some(thread) = &self.thread else { return };
        if thread.orders.send(places.to_vec()).is_err() {
            return;
        }
        let until = Instant::now() + PATIENCE;
        for _ in places {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(word) = thread.answers.recv_timeout(left) else {
                return;
            };
            read.push(word);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::source::uprobes::Process;

    #[test]
    fn words_are_read_in_their_order_and_one_that_cannot_be_read_is_none() {
        let own = Arc::new(Process::open(std::process::id()).unwrap());
        let words = [7u32, 11];
        let place = |address| Place {
            process: Arc::clone(&own),
            address,
        };
        let at = words.as_ptr() as u64;
        let mut reader = Reader::default();
        for _ in 0..2 {
            let places = [place(at), place(8), place(at + 4)];
            assert_eq!(reader.read(&places), [Some(7), None, Some(11)]);
        }
        assert_eq!(reader.read(&[]), []);
    }

    /// Whose memory answers with its address, or only when the other end is dropped.
    #[derive(Debug)]
    struct Program(Option<Mutex<Receiver<()>>>);

    impl Memory for Program {
        fn read(&self, address: u64, into: &mut [u8]) -> bool {
            if let Some(wait) = &self.0 {
                let _ = wait.lock().unwrap().recv();
            }
            let word = u32::try_from(address).unwrap();
            into.copy_from_slice(&word.to_ne_bytes());
            true
        }
    }

    #[test]
    fn a_reader_that_waits_is_left_behind_with_the_rest_of_its_process() {
        let (hold, wait) = mpsc::channel();
        let programs = [Program(None), Program(Some(Mutex::new(wait)))].map(Arc::new);
        let place = |program: usize, address| Place {
            process: Arc::clone(&programs[program]),
            address,
        };
        let mut reader = Reader::default();
        let places = [place(0, 7), place(1, 8), place(1, 9), place(0, 10)];
        assert_eq!(reader.read(&places), [Some(7), None, None, Some(10)]);
        drop(hold);
        assert_eq!(reader.read(&places[..2]), [Some(7), Some(8)]);
    }
}
