//! QPs whose posts are read from the memory of their programs: at each refresh one word of each.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use rdmatop_common::counters::{QpSlot, UserQp, slot_flag, user_word};

use super::{
    super::slots::Wanted,
    counts_late,
    reader::{self, Place},
};
use crate::source::uprobes::{Running, Words, low};

/// A QP that is to be read from now on.
#[derive(Debug)]
pub(super) struct Handed<M> {
    pub(super) number: u32,
    pub(super) born_ns: u64,
    pub(super) pid: u32,
    pub(super) place: Place<M>,
    pub(super) running: Running,
    /// When `running` was read.
    pub(super) at_ns: u64,
    /// [`UserQp::resets`] before that.
    pub(super) resets: u64,
}

/// A QP that is not read any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GivenUp {
    pub(super) number: u32,
    pub(super) born_ns: u64,
    pub(super) pid: u32,
    /// Work requests as of the last reading that can be true.
    pub(super) count: u64,
    pub(super) why: &'static str,
}

/// One that is.
#[derive(Debug)]
struct Followed<M> {
    handed: Handed<M>,
    /// What was last passed on.
    told: Option<u64>,
    /// Posts since the last reading are not known.
    short: bool,
    /// Nothing was posted before the probes stood, or before rdmatop began.
    whole: bool,
}

/// All that are, by number.
#[derive(Debug)]
pub(super) struct Follower<M> {
    qps: BTreeMap<u32, Followed<M>>,
    /// QPs that probes are to count again, by number, with their birth.
    lost: BTreeMap<u32, u64>,
    /// QPs some of whose posts are not known, since start.
    pub(super) gaps: u64,
}

impl<M> Default for Follower<M> {
    fn default() -> Self {
        Self {
            qps: BTreeMap::new(),
            lost: BTreeMap::new(),
            gaps: 0,
        }
    }
}

/// A slot's QP and its state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) born_ns: u64,
    pub(super) destroyed: bool,
}

impl<M: Words> Follower<M> {
    /// Takes over QPs.
    pub(super) fn add(&mut self, handed: Vec<Handed<M>>) {
        for handed in handed {
            let followed = Followed {
                told: None,
                short: false,
                whole: handed.running.is_whole(),
                handed,
            };
            self.qps.insert(followed.handed.number, followed);
        }
    }

    /// QPs that are read, and processes.
    pub(super) fn numbers(&self) -> (u64, u64) {
        let pids: BTreeSet<u32> = self.qps.values().map(|qp| qp.handed.pid).collect();
        (self.qps.len() as u64, pids.len() as u64)
    }

    /// Reads all words. Returns the QPs of processes where that is not possible any more; the next sweep passes on that their counts
    /// are not known.
    pub(super) fn read(
        &mut self,
        now_ns: impl Fn() -> u64,
        head: impl Fn(u32) -> Option<Head>,
        beside: impl Fn(u32) -> UserQp,
    ) -> Vec<GivenUp> {
        self.qps
            .retain(|number, qp| head(*number).is_some_and(|head| head.born_ns == qp.handed.born_ns));
        // What a destroyed QP counted last the kernel side has read.
        let lives = |qp: &&mut Followed<M>| head(qp.handed.number).is_some_and(|head| !head.destroyed);
        let mut living: Vec<_> = self
            .qps
            .values_mut()
            .filter(|qp| !qp.short)
            .filter(lives)
            .collect();
        // Those of one process together: they are read at once.
        living.sort_by_key(|qp| Arc::as_ptr(&qp.handed.place.process).addr());
        let places: Vec<_> = living.iter().map(|qp| qp.handed.place.clone()).collect();
        let words = reader::read(&places);
        let mut failed: BTreeMap<u32, &'static str> = BTreeMap::new();
        for (qp, word) in living.into_iter().zip(words) {
            let at_ns = now_ns();
            let handed = &mut qp.handed;
            let elapsed_ns = at_ns.saturating_sub(handed.at_ns);
            // After the word: a provider sets it back after the kernel has noted that.
            let why = if word.is_some() && beside(handed.number).resets != handed.resets {
                Some("a queue pair went through RESET")
            } else if let Some(word) = word {
                let read = handed.running.read(word, elapsed_ns);
                read.is_none()
                    .then_some("the count in its memory went back or jumped")
            } else {
                Some("its memory cannot be read any more")
            };
            match why {
                Some(why) => {
                    failed.entry(handed.pid).or_insert(why);
                }
                None => handed.at_ns = at_ns,
            }
        }
        let mut given_up = Vec::new();
        for qp in self.qps.values_mut().filter(|qp| !qp.short) {
            let handed = &qp.handed;
            let ended = head(handed.number).is_some_and(|head| head.destroyed);
            if let Some(why) = failed.get(&handed.pid)
                && !ended
            {
                qp.short = true;
                self.gaps += 1;
                self.lost.insert(handed.number, handed.born_ns);
                given_up.push(GivenUp {
                    number: handed.number,
                    born_ns: handed.born_ns,
                    pid: handed.pid,
                    count: handed.running.count(),
                    why,
                });
            }
        }
        given_up
    }

    /// Whether a slot has to be passed on, `None` for one that is none of these. Of a destroyed QP, whose slot is freed next, this takes
    /// in what the kernel side read last.
    pub(super) fn wants(
        &mut self,
        number: u32,
        head: Head,
        now_ns: u64,
        beside: impl Fn(u32) -> UserQp,
    ) -> Option<Wanted> {
        let qp = self
            .qps
            .get_mut(&number)
            .filter(|qp| qp.handed.born_ns == head.born_ns)?;
        if head.destroyed && !qp.short {
            let beside = beside(number);
            let elapsed_ns = now_ns.saturating_sub(qp.handed.at_ns);
            let last = (beside.last_word & user_word::IS_READ != 0 && beside.resets == qp.handed.resets)
                .then(|| low(beside.last_word));
            let count = last.and_then(|word| qp.handed.running.read(word, elapsed_ns));
            if count.is_none() {
                qp.short = true;
                self.gaps += 1;
            }
        }
        let is_new = qp.short || qp.told != Some(qp.handed.running.count());
        Some(if is_new { Wanted::Anew } else { Wanted::No })
    }

    /// Whether probes count this QP again for the first time.
    pub(super) fn returns(&mut self, number: u32, born_ns: u64) -> bool {
        self.lost.get(&number) == Some(&born_ns) && !self.qps.contains_key(&number) && {
            self.lost.remove(&number);
            true
        }
    }

    /// Fills in the count of a slot that is passed on; false for one that is none of these.
    pub(super) fn fill(&mut self, number: u32, slot: &mut QpSlot) -> bool {
        let Some(qp) = self
            .qps
            .get_mut(&number)
            .filter(|qp| qp.handed.born_ns == slot.born_ns)
        else {
            return false;
        };
        let count = qp.handed.running.count();
        qp.told = Some(count);
        slot.tx_posted = count;
        slot.flags |= slot_flag::IN_MEMORY;
        if qp.whole {
            slot.flags &= !slot_flag::SINCE_ATTACH;
        } else {
            counts_late(slot);
        }
        let destroyed = slot.flags & slot_flag::DESTROYED != 0;
        if qp.short {
            slot.flags |= slot_flag::GAP;
        }
        if qp.short || destroyed {
            self.qps.remove(&number);
        }
        if destroyed {
            self.lost.remove(&number);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    };

    use zerocopy::FromZeros as _;

    use super::*;

    /// A program whose memory has one word.
    #[derive(Debug, Default)]
    struct Program {
        word: AtomicU32,
        gone: AtomicBool,
    }

    impl Words for Program {
        fn words(&self, addresses: &[u64]) -> Vec<Option<u32>> {
            let word = (!self.gone.load(Relaxed)).then(|| self.word.load(Relaxed));
            vec![word; addresses.len()]
        }
    }

    const S: u64 = 1_000_000_000;

    /// Two QPs of one program, numbers 3 and 4, born at 100, of which 1000 posts were counted when the word was 50.
    struct Bench {
        program: Arc<Program>,
        follower: Follower<Program>,
        beside: Mutex<UserQp>,
        destroyed: bool,
        now_ns: u64,
    }

    impl Bench {
        fn new() -> Self {
            let program = Arc::new(Program::default());
            program.word.store(50, Relaxed);
            let mut follower = Follower::default();
            follower.add(
                [3, 4]
                    .map(|number| Handed {
                        number,
                        born_ns: 100,
                        pid: 77,
                        place: Place {
                            process: Arc::clone(&program),
                            address: 0,
                        },
                        running: Running::new(1000, 50),
                        at_ns: 0,
                        resets: 0,
                    })
                    .into(),
            );
            Self {
                program,
                follower,
                beside: Mutex::new(UserQp::new_zeroed()),
                destroyed: false,
                now_ns: 0,
            }
        }

        fn read(&mut self) -> Vec<GivenUp> {
            self.now_ns += S;
            let (beside, destroyed, now_ns) = (*self.beside.lock().unwrap(), self.destroyed, self.now_ns);
            let head = |_| {
                Some(Head {
                    born_ns: 100,
                    destroyed,
                })
            };
            self.follower.read(|| now_ns, head, |_| beside)
        }

        /// The slot of number 3, if it is passed on: count and flags.
        fn told(&mut self) -> Option<(u64, u32)> {
            let (beside, now_ns) = (*self.beside.lock().unwrap(), self.now_ns);
            let head = Head {
                born_ns: 100,
                destroyed: self.destroyed,
            };
            let wanted = self.follower.wants(3, head, now_ns, |_| beside)?;
            if wanted == Wanted::No {
                return None;
            }
            let mut slot = QpSlot {
                born_ns: 100,
                tx_posted: 900,
                flags: if self.destroyed { slot_flag::DESTROYED } else { 0 },
                ..QpSlot::new_zeroed()
            };
            assert!(self.follower.fill(3, &mut slot));
            Some((slot.tx_posted, slot.flags))
        }
    }

    const MEMORY: u32 = slot_flag::IN_MEMORY | slot_flag::SINCE_ATTACH | slot_flag::LATE;
    const GAP: u32 = MEMORY | slot_flag::GAP;

    #[test]
    fn a_count_goes_on_from_the_probes_count_and_is_told_when_it_moves() {
        let mut bench = Bench::new();
        bench.program.word.store(57, Relaxed);
        assert_eq!(bench.read(), []);
        assert_eq!(bench.told(), Some((1007, MEMORY)));
        assert_eq!((bench.read(), bench.told()), (vec![], None));
        assert_eq!(bench.follower.numbers(), (2, 1));
        let other = Head {
            born_ns: 101,
            destroyed: false,
        };
        assert_eq!(
            bench.follower.wants(3, other, 0, |_| unreachable!()),
            None,
            "another QP has the number"
        );
    }

    #[test]
    fn a_qp_whose_word_is_its_count_is_counted_from_its_first_post_on() {
        for (count, since_attach) in [(50, 0), (49, slot_flag::SINCE_ATTACH)] {
            let mut bench = Bench::new();
            for qp in bench.follower.qps.values_mut() {
                (qp.handed.running, qp.whole) = (Running::new(count, 50), count == 50);
            }
            assert_eq!(bench.read(), []);
            let mut slot = QpSlot {
                born_ns: 100,
                flags: slot_flag::SINCE_ATTACH,
                ..QpSlot::new_zeroed()
            };
            assert!(bench.follower.fill(4, &mut slot));
            assert_eq!(slot.flags, slot_flag::IN_MEMORY | since_attach);
        }
    }

    #[test]
    fn a_destroyed_qp_has_the_count_that_the_kernel_side_read_last() {
        let mut bench = Bench::new();
        bench.destroyed = true;
        bench.program.gone.store(true, Relaxed);
        bench.beside.lock().unwrap().last_word = user_word::IS_READ | 0x3d;
        assert_eq!(bench.read(), []);
        assert_eq!(bench.told(), Some((1011, MEMORY | slot_flag::DESTROYED)));
        assert_eq!((bench.follower.gaps, bench.follower.numbers()), (0, (1, 1)));
    }

    #[test]
    fn a_qp_that_ends_unread_has_a_gap() {
        let mut bench = Bench::new();
        bench.destroyed = true;
        assert_eq!(bench.read(), []);
        assert_eq!(bench.told(), Some((1000, GAP | slot_flag::DESTROYED)));
        assert_eq!(bench.follower.gaps, 1);
    }

    #[test]
    fn a_process_whose_memory_misbehaves_is_given_up_with_all_its_qps() {
        type Spoil = fn(&mut Bench);
        let spoilt: [(&str, Spoil); 4] = [
            ("cannot be read", |bench| bench.program.gone.store(true, Relaxed)),
            ("went back", |bench| bench.program.word.store(49, Relaxed)),
            ("jumped", |bench| bench.program.word.store(1 << 30, Relaxed)),
            ("RESET", |bench| bench.beside.lock().unwrap().resets = 1),
        ];
        for (why, spoil) in spoilt {
            let mut bench = Bench::new();
            bench.program.word.store(60, Relaxed);
            assert_eq!(bench.read(), []);
            assert_eq!(bench.told(), Some((1010, MEMORY)));
            spoil(&mut bench);
            let given_up = bench.read();
            assert_eq!(given_up.len(), 2, "{why}");
            assert!(given_up[0].why.contains(why), "{given_up:?}");
            assert_eq!(
                (given_up[0].number, given_up[0].count, given_up[0].pid),
                (3, 1010, 77)
            );
            assert_eq!(bench.follower.gaps, 2);
            assert!(!bench.follower.returns(3, 100), "not told yet");
            assert_eq!(bench.told(), Some((1010, GAP)), "{why}");
            assert_eq!(bench.told(), None);
            assert_eq!(bench.read(), []);
            assert!(bench.follower.returns(3, 100) && !bench.follower.returns(3, 100));
        }
    }
}
