//! The word of a QP's struct that counts posted work requests: finding it, and counting by it. Pure.
//!
//! A provider of rdma-core may keep a 32-bit count of all work requests that were ever posted to a QP (mlx5 and mlx4 `sq.head`,
//! EFA `wqe_posted`, siw `sq_put`). Where it is differs from version to version, so it is searched for: a probe copies the words
//! behind the QP together with the number of work requests counted so far, at a moment when nobody posts. The word that counts
//! grows by exactly as much as the number does, from sample to sample.
//!
//! What must not be taken for it, and why it is not:
//!
//! * A constant, a count of bytes, of blocks or of calls: it grows by another amount. If each work request has one block, or one
//!   byte, the two cannot be told apart; see [`SURE`].
//! * An index that wraps at the size of the ring: it is smaller than the ring (or twice that), so a word counts only once it has
//!   reached, or has moved by, more than the largest ring has ([`LARGEST_RING`]).
//! * A number that agrees by chance: it would have to agree in all bits in [`SAMPLES`] samples.

/// Samples of a word that has to agree.
const SAMPLES: u32 = 4;
/// Samples where several words agree: a word that counts something else, such as completions in a program that waits for each,
/// gets time to differ. After these the lowest is taken.
const SURE: u32 = 12;
/// Work requests between the first sample and the last, at least.
const MOVED: u64 = 256;
/// Twice the entries of the largest ring: providers of rdma-core allow 32 768 (mlx5, siw), and some keep one bit more to tell a full
/// ring from an empty one.
const LARGEST_RING: u64 = 1 << 16;
/// Work requests per second that no QP reaches: a word that moves faster does not count them.
const FASTEST: u64 = 100_000_000;

/// The search for the word of one QP.
#[derive(Clone, Debug, Default)]
pub(crate) struct Search {
    first: Option<(u64, Vec<u32>)>,
    last: Option<(u64, Vec<u32>)>,
    /// Numbers of the words that have agreed so far.
    left: Vec<usize>,
    /// Samples after the first between which something was posted.
    steps: u32,
    /// How much was posted before the first of them, and whether it was another number before a later one.
    step: Option<u64>,
    varied: bool,
}

/// A word that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Its number.
    pub(crate) word: usize,
    /// Words behind it that agree as well.
    pub(crate) others: usize,
}

impl Search {
    /// Takes in a sample: work requests counted so far, and the words at that moment.
    pub(crate) fn take(&mut self, count: u64, words: &[u32]) {
        let Some((from, before)) = &self.first else {
            self.left = (0..words.len()).collect();
            self.first = Some((count, words.to_vec()));
            self.last = self.first.clone();
            return;
        };
        // The count only grows, and the low half of a difference is the difference of the low halves.
        let grown = low(count.wrapping_sub(*from));
        self.left.retain(|word| {
            let at = |words: &[u32]| words.get(*word).copied();
            at(words)
                .zip(at(before))
                .map(|(now, before)| now.wrapping_sub(before))
                == Some(grown)
        });
        let step = count.saturating_sub(self.last.as_ref().map_or(0, |(last, _)| *last));
        if step > 0 {
            self.steps += 1;
            self.varied |= *self.step.get_or_insert(step) != step;
        }
        self.last = Some((count, words.to_vec()));
    }

    /// Work requests between the first sample and the last.
    fn moved(&self) -> u64 {
        let ends = self.first.as_ref().zip(self.last.as_ref());
        ends.map_or(0, |((from, _), (to, _))| to.saturating_sub(*from))
    }

    /// Enough samples to say of any word that it agrees.
    fn is_long(&self) -> bool {
        self.steps + 1 >= SAMPLES && self.varied && self.moved() >= MOVED
    }

    /// No word agrees.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.first.is_some() && self.left.is_empty()
    }

    /// The word that counts, once it is certain.
    pub(crate) fn found(&self) -> Option<Found> {
        if !self.is_long() {
            return None;
        }
        let (_, words) = self.last.as_ref()?;
        let large = |word: &&usize| {
            self.moved() >= LARGEST_RING
                || words
                    .get(**word)
                    .is_some_and(|value| u64::from(*value) >= LARGEST_RING)
        };
        let mut sure = self.left.iter().filter(large);
        let word = *sure.next()?;
        let others = sure.count();
        (others == 0 || self.steps + 1 >= SURE).then_some(Found { word, others })
    }

    /// Whether the QP's samples show that this word, which counts for another QP of the same functions, counts for this one.
    pub(crate) fn agrees(&self, word: usize) -> bool {
        self.is_long() && self.left.contains(&word)
    }

    /// Whether the samples show that this word does not count.
    pub(crate) fn contradicts(&self, word: usize) -> bool {
        self.first.is_some() && !self.left.contains(&word)
    }

    /// Counting by a word from the last sample on; `None` without one.
    pub(crate) fn running(&self, word: usize) -> Option<Running> {
        let (count, words) = self.last.as_ref()?;
        Some(Running::new(*count, *words.get(word)?))
    }
}

/// The low half of a number.
pub(crate) fn low(number: u64) -> u32 {
    u32::try_from(number & u64::from(u32::MAX)).unwrap_or(u32::MAX)
}

/// Work requests counted by a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Running {
    count: u64,
    word: u32,
}

impl Running {
    /// `count` work requests had been posted when the word had this value.
    pub(crate) const fn new(count: u64, word: u32) -> Self {
        Self { count, word }
    }

    /// Work requests as of the last reading.
    pub(crate) const fn count(&self) -> u64 {
        self.count
    }

    /// Whether the word is the count itself. Providers begin at 0 with a new QP, so nothing was posted that was not counted.
    pub(crate) fn is_whole(&self) -> bool {
        u64::from(self.word) == self.count
    }

    /// A later reading. `None` where the word has gone back or has jumped further than a QP can post in that time: then it does
    /// not count, and nothing changes.
    pub(crate) fn read(&mut self, word: u32, elapsed_ns: u64) -> Option<u64> {
        let step = u64::from(word.wrapping_sub(self.word));
        let seconds = (elapsed_ns / 1_000_000_000).saturating_add(1);
        if step > seconds.saturating_mul(FASTEST).min(1 << 31) {
            return None;
        }
        (self.count, self.word) = (self.count.saturating_add(step), word);
        Some(self.count)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Feeds samples after so many posts each; `words` makes the struct from what was posted so far.
    fn search(from: u64, posts: &[u64], words: impl Fn(u64) -> Vec<u32>) -> Search {
        let (mut search, mut count) = (Search::default(), from);
        search.take(count, &words(count));
        for more in posts {
            count += more;
            search.take(count, &words(count));
        }
        search
    }

    /// Twelve samples, together far more than any ring has entries.
    const LONG: [u64; 12] = [
        10_007, 9_001, 20_011, 3, 7_919, 15_013, 8_009, 12_007, 6_007, 11_003, 4_001, 9_973,
    ];

    #[test]
    fn the_word_that_grows_by_what_was_posted_is_found() {
        let words = |count| vec![7, 0xdead_beef, low(count).wrapping_add(0xffff_f000), 3];
        let found = search(500, &LONG, words).found();
        assert_eq!(
            found,
            Some(Found { word: 2, others: 0 }),
            "across the end of 32 bits"
        );
    }

    #[test]
    fn what_counts_something_else_is_not_taken() {
        type Word = fn(u64) -> u32;
        let others: [(&str, Word); 8] = [
            ("a constant", |_| 4096),
            ("bytes", |count| low(count * 64)),
            ("blocks of 64 bytes, two for a work request", |count| {
                low(count * 2)
            }),
            ("calls with lists of four", |count| low(count / 4)),
            ("the index of a ring of 128", |count| low(count % 128)),
            ("with one bit more", |count| low(count % 65_536)),
            ("the low 16 bits", |count| low(count) & 0xffff),
            ("downwards", |count| low(u64::MAX - count)),
        ];
        for (what, word) in others {
            let search = search(0, &LONG, |count| vec![word(count)]);
            assert!(search.is_exhausted(), "{what}");
            assert_eq!(search.found(), None, "{what}");
            assert!(search.contradicts(0) && !search.agrees(0), "{what}");
        }
    }

    #[test]
    fn an_index_that_has_not_wrapped_yet_is_no_count() {
        // A ring of 32 768 with one bit more, and 60 000 posts.
        let posts = [20_000, 10_001, 14_999, 15_000];
        let index = search(0, &posts, |count| vec![low(count % 65_536)]);
        assert_eq!((index.found(), index.is_exhausted()), (None, false));
        // The same posts to a QP that has existed for longer: no ring has an index this large.
        let count = search(0, &posts, |count| vec![low(count) + 65_536]);
        assert_eq!(count.found(), Some(Found { word: 0, others: 0 }));
        assert!(count.agrees(0));
    }

    #[test]
    fn few_samples_equal_steps_and_little_movement_say_nothing() {
        let word = |count| vec![low(count) + 100_000];
        assert_eq!(search(0, &[300, 100], word).found(), None, "three samples");
        assert_eq!(search(0, &[300; 9], word).found(), None, "equal steps");
        assert_eq!(search(0, &[30, 40, 50], word).found(), None, "120 posts");
        assert!(search(0, &[300, 100, 200], word).found().is_some());
        assert_eq!(
            search(0, &[0, 300, 0, 100, 0], word).found(),
            None,
            "no post between"
        );
    }

    #[test]
    fn of_several_the_lowest_is_taken_after_more_samples() {
        // A program that waits for each completion: posts and completions agree.
        let words = |count| vec![1, low(count) + 70_000, low(count) + 69_999];
        assert_eq!(search(0, &LONG[..10], words).found(), None);
        let found = search(0, &LONG, words).found();
        assert_eq!(found, Some(Found { word: 1, others: 1 }));
        // It does not always wait.
        let late = |count: u64| vec![low(count - count % 3) + 70_000, low(count) + 70_000];
        assert_eq!(
            search(0, &LONG[..6], late).found(),
            Some(Found { word: 1, others: 0 })
        );
    }

    #[test]
    fn a_shorter_copy_drops_the_words_that_it_lacks() {
        let mut search = Search::default();
        search.take(0, &[0, 100_000]);
        search.take(300, &[0]);
        assert!(search.is_exhausted());
    }

    #[test]
    fn counting_goes_on_across_the_end_of_32_bits_and_not_backwards() {
        const S: u64 = 1_000_000_000;
        let mut running = Running::new(1000, u32::MAX - 1);
        assert_eq!(running.read(3, S), Some(1005));
        assert_eq!(running.read(3, S), Some(1005));
        let before = running;
        assert_eq!(running.read(2, S), None, "back");
        assert_eq!(running.read(0, S), None, "RESET");
        assert_eq!(running.read(1 << 31, S), None, "a jump");
        assert_eq!(running, before);
        assert_eq!(running.read(3 + 150_000_000, S), Some(150_001_005));
        // rdmatop was stopped for long: beyond half of the range it is not known which way the word went.
        assert_eq!(running.read(u32::MAX, 1000 * S), None);
        assert_eq!(before.count(), 1005);
    }

    #[test]
    fn a_word_that_is_the_count_says_that_nothing_was_missed() {
        let mut whole = Running::new(7, 7);
        assert!(whole.read(9, 0).is_some() && whole.is_whole());
        assert!(!Running::new(7, 10).is_whole(), "three posts before the probes");
        assert!(!Running::new((1 << 32) + 7, 7).is_whole(), "not known");
    }

    proptest! {
        #[test]
        fn whatever_else_is_there_the_count_is_found_or_a_word_that_agreed_with_it(
            steps in prop::collection::vec(1u64..40_000, 12..20),
            noise in prop::collection::vec((any::<u32>(), any::<u32>()), 0..8),
            at in 0usize..8,
            from in 0u64..1 << 40,
            offset: u32,
        ) {
            let at = at.min(noise.len());
            let words = |count: u64| {
                // Each of the others grows by a multiple of its own.
                let mut words: Vec<u32> = noise.iter().map(|(start, each)| start.wrapping_add(each.wrapping_mul(low(count)))).collect();
                words.insert(at, low(count).wrapping_add(offset));
                words
            };
            let mut search = Search::default();
            let mut count = from;
            search.take(count, &words(count));
            for step in &steps {
                count += step;
                search.take(count, &words(count));
            }
            prop_assert!(!search.is_exhausted() && !search.contradicts(at));
            if let Some(found) = search.found() {
                prop_assert!(found.word <= at && search.agrees(found.word));
                // From the last sample on it counts what is posted.
                let mut running = search.running(at).unwrap();
                prop_assert_eq!(running.count(), count);
                prop_assert_eq!(running.read(words(count + 77)[at], 0), Some(count + 77));
            } else {
                prop_assert!(steps.iter().sum::<u64>() < LARGEST_RING || steps.windows(2).all(|two| two[0] == two[1]));
            }
        }

        #[test]
        fn nothing_that_wraps_below_the_largest_ring_is_ever_taken(
            steps in prop::collection::vec(1u64..50_000, 1..20),
            bits in 1u32..=16,
            from: u32,
        ) {
            let mask = (1u64 << bits) - 1;
            let search = search(u64::from(from), &steps, |count| vec![low(count & mask)]);
            prop_assert_eq!(search.found(), None);
        }

        #[test]
        fn any_reading_gives_a_count_that_does_not_fall(words: Vec<(u32, u32)>, count: u64) {
            let mut running = Running::new(count, 0);
            for (word, elapsed) in words {
                let before = running.count();
                let now = running.read(word, u64::from(elapsed));
                prop_assert!(now.is_none_or(|now| now >= before && now == running.count()));
            }
        }
    }
}
