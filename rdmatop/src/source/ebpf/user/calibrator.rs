//! Decides which processes' posts can be read from memory: from samples that the kernel side takes, and for a process as a whole.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use rdmatop_common::counters::{USER_WORDS, UserQp, UserSample};

use crate::source::uprobes::{Running, Search};

/// Time between two samples of a QP.
const PAUSE_NS: u64 = 50_000_000;
/// Nothing was posted to a QP for so long: it does not move.
const STILL_NS: u64 = 1_000_000_000;
/// Searches that end without a word before the provider counts as one that keeps none: a sample with which something went wrong
/// would end one.
const TRIES: u32 = 3;

/// The function that a QP's sends are posted with: device and inode of its file, and where in it. QPs that share it have structs of
/// one layout.
pub(super) type Code = ((u64, u64), u64);

/// A living QP that probes count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted {
    pub(super) number: u32,
    pub(super) born_ns: u64,
    pub(super) pid: u32,
    /// `None`: not all its sends are seen, or it is not probed yet.
    pub(super) code: Option<Code>,
    /// Its counters beside the slot, and how many sends were counted.
    pub(super) beside: UserQp,
    pub(super) posted: u64,
}

/// Where samples come from.
pub(super) trait Samples {
    /// Asks for one of this QP, to be written to this place.
    fn ask(&mut self, number: u32, place: u32);
    /// Asks for none of this QP any more.
    fn withdraw(&mut self, number: u32);
    /// What lies there, once it is written.
    fn take(&mut self, place: u32) -> Option<UserSample>;
}

/// What is known of a QP.
#[derive(Debug, Default)]
struct Progress {
    search: Search,
    /// Where its next sample will be.
    place: Option<u32>,
    asked_ns: u64,
    /// Posts when it was last asked for.
    asked_at: u64,
    resets: u64,
    /// The sample that was asked for may be of before the last RESET.
    stale: bool,
    /// Since when nothing was posted: entered calls, and when they were first as many.
    still: (u64, u64),
}

/// What to do for a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Handover {
    pub(super) pid: u32,
    pub(super) qps: Vec<Reads>,
}

/// How a QP is read from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reads {
    pub(super) number: u32,
    pub(super) born_ns: u64,
    pub(super) word: usize,
    /// From its last sample on; `None`: it has none, because nothing is posted to it.
    pub(super) running: Option<Running>,
    pub(super) resets: u64,
}

/// All searches.
#[derive(Debug)]
pub(super) struct Calibrator {
    /// Places for samples that are not in use. One that was withdrawn is used last: a call that is returning may still write to it.
    free: VecDeque<u32>,
    qps: HashMap<(u32, u64), Progress>,
    /// Words that count, by function.
    found: BTreeMap<Code, usize>,
    /// Searches that found nothing, and functions of which it is certain that they keep no count.
    failed: BTreeMap<Code, u32>,
    refused: BTreeSet<Code>,
    /// Processes that are not tried again.
    given_up: BTreeSet<u32>,
}

impl Calibrator {
    /// With so many places for samples.
    pub(super) fn new(places: u32) -> Self {
        Self {
            free: (0..places).collect(),
            qps: HashMap::new(),
            found: BTreeMap::new(),
            failed: BTreeMap::new(),
            refused: BTreeSet::new(),
            given_up: BTreeSet::new(),
        }
    }

    /// A process stays with its probes.
    pub(super) fn give_up(&mut self, pid: u32) {
        self.given_up.insert(pid);
    }

    /// QPs that are sampled now.
    pub(super) fn searching(&self) -> u64 {
        self.qps.len() as u64
    }

    /// Whether the provider with this function keeps no count that can be found.
    pub(super) fn is_refused(&self, code: &Code) -> bool {
        self.refused.contains(code)
    }

    /// Looks at all QPs that are not read yet. Returns the processes that can be read from now on.
    pub(super) fn look(&mut self, qps: &[Counted], now_ns: u64, samples: &mut impl Samples) -> Vec<Handover> {
        let tried: Vec<&Counted> = qps
            .iter()
            .filter(|qp| qp.code.is_some_and(|code| !self.refused.contains(&code)))
            .filter(|qp| !self.given_up.contains(&qp.pid))
            .collect();
        let keys: BTreeSet<_> = tried.iter().map(|qp| (qp.number, qp.born_ns)).collect();
        let lives = |key: &(u32, u64)| qps.iter().any(|qp| (qp.number, qp.born_ns) == *key);
        let free = &mut self.free;
        self.qps.retain(|key, progress| {
            let stays = keys.contains(key);
            if !stays && let Some(place) = progress.place.take() {
                free.push_back(place);
                if lives(key) {
                    samples.withdraw(key.0);
                }
            }
            stays
        });
        let pids: BTreeSet<u32> = qps.iter().map(|qp| qp.pid).collect();
        self.given_up.retain(|pid| pids.contains(pid));
        for qp in tried {
            self.sample(qp, now_ns, samples);
        }
        pids.into_iter()
            .filter(|pid| !self.given_up.contains(pid))
            .filter_map(|pid| self.handover(pid, qps, now_ns))
            .collect()
    }

    fn sample(&mut self, qp: &Counted, now_ns: u64, samples: &mut impl Samples) {
        let progress = self
            .qps
            .entry((qp.number, qp.born_ns))
            .or_insert_with(|| Progress {
                resets: qp.beside.resets,
                still: (qp.beside.entered, now_ns),
                ..Progress::default()
            });
        if progress.still.0 != qp.beside.entered {
            progress.still = (qp.beside.entered, now_ns);
        }
        if progress.resets != qp.beside.resets {
            (progress.resets, progress.search) = (qp.beside.resets, Search::default());
            progress.stale = progress.place.is_some();
        }
        if let Some(place) = progress.place {
            let Some(sample) = samples.take(place) else { return };
            progress.place = None;
            self.free.push_front(place);
            let is_its = sample.number == u64::from(qp.number) && sample.born_ns == qp.born_ns;
            let read = usize::try_from(sample.words_read).unwrap_or(0).min(USER_WORDS);
            let stale = std::mem::take(&mut progress.stale);
            if is_its
                && !stale
                && let Some(words) = sample.words.get(..read)
            {
                progress.search.take(sample.count, words);
            }
            let Some(code) = qp.code else { return };
            Self::judge(
                progress,
                code,
                &mut self.found,
                &mut self.failed,
                &mut self.refused,
            );
            return;
        }
        // A QP to which nothing is posted would keep the place.
        let moves = qp.posted != progress.asked_at;
        if moves
            && now_ns.saturating_sub(progress.asked_ns) >= PAUSE_NS
            && let Some(place) = self.free.pop_front()
        {
            (progress.place, progress.asked_ns, progress.asked_at) = (Some(place), now_ns, qp.posted);
            samples.ask(qp.number, place);
        }
    }

    fn judge(
        progress: &mut Progress,
        code: Code,
        found: &mut BTreeMap<Code, usize>,
        failed: &mut BTreeMap<Code, u32>,
        refused: &mut BTreeSet<Code>,
    ) {
        let contradicts = found
            .get(&code)
            .is_some_and(|word| progress.search.contradicts(*word));
        if progress.search.is_exhausted() || contradicts {
            progress.search = Search::default();
            let failed = failed.entry(code).or_default();
            *failed += 1;
            if *failed >= TRIES {
                refused.insert(code);
                found.remove(&code);
            }
        } else if let Some(word) = progress.search.found() {
            found.entry(code).or_insert(word.word);
        }
    }

    /// How to read a process, if that is known of all of its QPs.
    fn handover(&self, pid: u32, qps: &[Counted], now_ns: u64) -> Option<Handover> {
        let of_it = qps.iter().filter(|qp| qp.pid == pid);
        let reads = of_it.map(|qp| {
            let word = *self.found.get(&qp.code?)?;
            let progress = self.qps.get(&(qp.number, qp.born_ns))?;
            let still = now_ns.saturating_sub(progress.still.1) >= STILL_NS;
            let fits = if still {
                !progress.search.contradicts(word)
            } else {
                progress.search.agrees(word)
            };
            fits.then(|| Reads {
                number: qp.number,
                born_ns: qp.born_ns,
                word,
                running: progress.search.running(word),
                resets: progress.resets,
            })
        });
        let qps: Vec<_> = reads.collect::<Option<_>>()?;
        Some(Handover { pid, qps })
    }

    /// A QP is read now.
    pub(super) fn is_read(&mut self, number: u32, born_ns: u64, samples: &mut impl Samples) {
        let place = self.qps.remove(&(number, born_ns)).and_then(|qp| qp.place);
        if let Some(place) = place {
            samples.withdraw(number);
            self.free.push_back(place);
        }
    }

    /// The word of a function's QPs does not count after all.
    pub(super) fn refuse(&mut self, code: Code) {
        self.refused.insert(code);
        self.found.remove(&code);
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros as _;

    use super::*;

    const MS: u64 = 1_000_000;
    const CODE: Code = ((8, 1), 0x40);

    /// A QP of a program whose provider keeps a constant and, at word 1, what `word` makes of the posts.
    #[derive(Clone, Copy)]
    struct Qp {
        number: u32,
        pid: u32,
        posted: u64,
        resets: u64,
        word: fn(u64) -> u32,
    }

    /// Answers each question at the next post.
    #[derive(Default)]
    struct Kernel {
        asked: BTreeMap<u32, u32>,
        samples: BTreeMap<u32, UserSample>,
    }

    impl Kernel {
        fn post(&mut self, qp: &mut Qp, posts: u64) {
            qp.posted += posts;
            if let Some(place) = self.asked.remove(&qp.number) {
                let mut sample = UserSample::new_zeroed();
                sample.done = 1;
                sample.number = qp.number.into();
                sample.born_ns = 5;
                sample.count = qp.posted;
                sample.words_read = 2;
                sample.words[1] = (qp.word)(qp.posted);
                self.samples.insert(place, sample);
            }
        }
    }

    impl Samples for Kernel {
        fn ask(&mut self, number: u32, place: u32) {
            assert!(
                !self.asked.values().any(|other| *other == place),
                "one place for two QPs"
            );
            self.asked.insert(number, place);
        }

        fn withdraw(&mut self, number: u32) {
            self.asked.remove(&number);
        }

        fn take(&mut self, place: u32) -> Option<UserSample> {
            self.samples.remove(&place)
        }
    }

    struct Bench {
        calibrator: Calibrator,
        kernel: Kernel,
        qps: Vec<Qp>,
        now_ns: u64,
    }

    impl Bench {
        fn of(places: u32, qps: &[Qp]) -> Self {
            Self {
                calibrator: Calibrator::new(places),
                kernel: Kernel::default(),
                qps: qps.to_vec(),
                now_ns: 1,
            }
        }

        fn look(&mut self) -> Vec<Handover> {
            self.now_ns += 100 * MS;
            let qps = self.qps.iter().map(|qp| Counted {
                number: qp.number,
                born_ns: 5,
                pid: qp.pid,
                code: Some(CODE),
                beside: UserQp {
                    entered: qp.posted,
                    resets: qp.resets,
                    ..UserQp::new_zeroed()
                },
                posted: qp.posted,
            });
            self.calibrator
                .look(&qps.collect::<Vec<_>>(), self.now_ns, &mut self.kernel)
        }

        /// Posts to these QPs and looks, so often; returns what is handed over first.
        fn run(&mut self, numbers: &[u32], times: u64, posts: u64) -> Vec<Handover> {
            for turn in 0..times {
                for qp in self.qps.iter_mut().filter(|qp| numbers.contains(&qp.number)) {
                    self.kernel.post(qp, posts + turn % 3);
                }
                let handovers = self.look();
                if !handovers.is_empty() {
                    return handovers;
                }
            }
            Vec::new()
        }
    }

    fn counting(number: u32, pid: u32) -> Qp {
        Qp {
            number,
            pid,
            posted: 0,
            resets: 0,
            word: |posted| u32::try_from(posted).unwrap() + 9,
        }
    }

    fn masked(number: u32, pid: u32) -> Qp {
        Qp {
            word: |posted| u32::try_from(posted % 128).unwrap(),
            ..counting(number, pid)
        }
    }

    #[test]
    fn a_process_is_handed_over_when_its_word_is_certain() {
        let mut bench = Bench::of(4, &[counting(3, 7)]);
        let handovers = bench.run(&[3], 40, 5000);
        let qp = handovers[0].qps[0];
        assert_eq!((handovers[0].pid, qp.number, qp.word), (7, 3, 1));
        assert!(bench.qps[0].posted > 65_536);
        assert!(qp.running.unwrap().count() <= bench.qps[0].posted);
        bench.calibrator.is_read(3, 5, &mut bench.kernel);
        assert_eq!(bench.calibrator.searching(), 0);
    }

    #[test]
    fn a_qp_to_which_nothing_is_posted_goes_with_its_sister_and_one_that_posts_is_waited_for() {
        let mut bench = Bench::of(4, &[counting(3, 7), counting(4, 7)]);
        // Both post, the second one too little to say anything.
        assert_eq!(bench.run(&[3, 4], 3, 10), []);
        let handovers = bench.run(&[3], 40, 5000);
        assert_eq!(handovers.len(), 1);
        assert_eq!(handovers[0].qps.len(), 2);
        // It goes on: then its own samples have to agree.
        let mut bench = Bench::of(4, &[counting(3, 7), masked(4, 7)]);
        assert_eq!(
            bench.run(&[3, 4], 40, 500),
            [],
            "its word wraps, and the first one's is not certain yet"
        );
    }

    #[test]
    fn another_process_with_the_same_library_needs_few_posts() {
        let mut bench = Bench::of(4, &[counting(3, 7)]);
        assert_eq!(bench.run(&[3], 40, 5000).len(), 1);
        bench.calibrator.is_read(3, 5, &mut bench.kernel);
        bench.qps = vec![counting(9, 8)];
        let handovers = bench.run(&[9], 40, 300);
        assert_eq!(handovers[0].pid, 8);
        assert!(bench.qps[0].posted < 20_000);
    }

    #[test]
    fn a_provider_without_a_count_is_refused_and_asked_no_more() {
        let mut bench = Bench::of(4, &[masked(3, 7), masked(4, 8)]);
        assert_eq!(bench.run(&[3, 4], 60, 1000), []);
        assert!(bench.calibrator.is_refused(&CODE));
        assert_eq!((bench.calibrator.searching(), bench.kernel.asked.len()), (0, 0));
    }

    #[test]
    fn a_process_that_was_given_up_keeps_its_probes() {
        let mut bench = Bench::of(4, &[counting(3, 7)]);
        bench.calibrator.give_up(7);
        assert_eq!(bench.run(&[3], 40, 5000), []);
        assert_eq!(bench.calibrator.searching(), 0);
    }

    #[test]
    fn reset_begins_the_search_again_and_is_not_held_against_the_provider() {
        let mut bench = Bench::of(4, &[counting(3, 7)]);
        for turn in 1..6 {
            assert_eq!(bench.run(&[3], 4, 5000), []);
            bench.qps[0].resets = turn;
            bench.qps[0].word = if turn % 2 == 0 {
                |posted| u32::try_from(posted).unwrap()
            } else {
                |posted| u32::try_from(posted).unwrap().wrapping_sub(10_000)
            };
            // What was asked before is answered after it.
            assert_eq!(bench.run(&[3], 2, 5000), []);
        }
        assert!(!bench.calibrator.is_refused(&CODE));
        assert_eq!(bench.run(&[3], 40, 5000).len(), 1);
    }

    #[test]
    fn with_one_place_qps_are_sampled_in_turn() {
        let mut bench = Bench::of(1, &[counting(3, 7), counting(4, 7), counting(5, 7)]);
        let handovers = bench.run(&[3, 4, 5], 400, 2000);
        assert_eq!(handovers[0].qps.len(), 3);
    }
}
