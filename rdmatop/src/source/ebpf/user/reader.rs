//! Reads words of programs' memory. Each process has a helper of its own, so that one that does not answer
//! costs nobody else anything.

use std::sync::Arc;

use crate::source::uprobes::Words;

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

impl<M: Words> Place<M> {
    /// The word, `None` where the process's memory is gone or the address is not in it.
    pub(super) fn read(&self) -> Option<u32> {
        self.process.words(&[self.address]).into_iter().next().flatten()
    }
}

/// Reads words in their order, those of one process that follow each other at once.
pub(super) fn read<M: Words>(places: &[Place<M>]) -> Vec<Option<u32>> {
    let of_one = places.chunk_by(|one, next| Arc::ptr_eq(&one.process, &next.process));
    let words = of_one.flat_map(|places| {
        let addresses: Vec<u64> = places.iter().map(|place| place.address).collect();
        places
            .first()
            .map(|place| place.process.words(&addresses))
            .unwrap_or_default()
    });
    words.collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    /// Whose memory answers with its address, or not at all.
    struct Program {
        answers: bool,
        asked: AtomicUsize,
    }

    impl Words for Program {
        fn words(&self, addresses: &[u64]) -> Vec<Option<u32>> {
            self.asked.fetch_add(1, Relaxed);
            let word = |address: &u64| self.answers.then(|| u32::try_from(*address).unwrap());
            addresses.iter().map(word).collect()
        }
    }

    #[test]
    fn a_process_that_does_not_answer_costs_its_own_words() {
        let programs = [true, false, true].map(|answers| {
            Arc::new(Program {
                answers,
                asked: AtomicUsize::new(0),
            })
        });
        let place = |program: usize, address| Place {
            process: Arc::clone(&programs[program]),
            address,
        };
        let places = [place(0, 7), place(1, 8), place(1, 9), place(2, 10)];
        assert_eq!(read(&places), [Some(7), None, None, Some(10)]);
        assert_eq!(
            programs[1].asked.load(Relaxed),
            1,
            "one question for all of its words"
        );
        assert_eq!((places[0].read(), places[1].read()), (Some(7), None));
        assert_eq!(read::<Program>(&[]), []);
    }
}
