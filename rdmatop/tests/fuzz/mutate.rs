//! Makes new inputs of old ones.

/// Numbers at which readers of lengths, counts and texts turn.
const NUMBERS: [u64; 14] = [
    0,
    1,
    2,
    3,
    4,
    0x0f,
    0x10,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
];
/// Bytes that mean something to one of the readers.
const BYTES: &[u8] = b"\0\n\r\t\x1b \x7f\x80\xc2\xe2\xf0\xff:/=\"'[]{}.,#!\\-+(0x9)";

/// Makes inputs from a corpus, the same from the same seed.
pub(crate) struct Mutator<'a> {
    state: u64,
    corpus: &'a [Vec<u8>],
    largest: usize,
}

impl<'a> Mutator<'a> {
    pub(crate) fn new(seed: u64, corpus: &'a [Vec<u8>], largest: usize) -> Self {
        Self {
            state: seed,
            corpus,
            largest,
        }
    }

    /// splitmix64.
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.random() % end.max(1) as u64).unwrap_or(0)
    }

    fn one_of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    /// The next input: one of the corpus after one to some dozen changes.
    pub(crate) fn next(&mut self) -> Vec<u8> {
        let first = self.below(self.corpus.len());
        let mut input = self.corpus[first].clone();
        let most = self.one_of(&[1, 2, 4, 16, 40]);
        for _ in 0..=self.below(most) {
            self.change(&mut input);
        }
        input.truncate(self.largest);
        input
    }

    fn range(&mut self, length: usize) -> std::ops::Range<usize> {
        let start = self.below(length + 1);
        let most = self.one_of(&[4, 16, 64, 1024]);
        start..start + self.below((length - start).min(most) + 1)
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let at = self.below(input.len() + 1);
        match self.below(9) {
            0 if at < input.len() => input[at] ^= 1 << self.below(8),
            1 if at < input.len() => input[at] = self.one_of(BYTES),
            2 => {
                // A number of 2, 4 or 8 bytes, perhaps one more or less, perhaps the other way round.
                let number = self
                    .one_of(&NUMBERS)
                    .wrapping_add(self.below(3) as u64)
                    .wrapping_sub(1);
                let width = self.one_of(&[2, 4, 8]);
                let mut bytes = number.to_le_bytes();
                if self.below(8) == 0 {
                    bytes[..width].reverse();
                }
                let end = (at + width).min(input.len());
                input[at..end].copy_from_slice(&bytes[..end - at]);
            }
            3 => {
                let range = self.range(input.len());
                input.drain(range);
            }
            4 => {
                let range = self.range(input.len());
                let copy = input[range].to_vec();
                input.splice(at..at, copy);
            }
            5 => {
                let byte = self.one_of(BYTES);
                let times = self.one_of(&[1, 1, 1, 3, 100]);
                input.splice(at..at, std::iter::repeat_n(byte, times));
            }
            6 => {
                let other = self.below(self.corpus.len());
                let corpus = self.corpus;
                let range = self.range(corpus[other].len());
                input.splice(at..at, corpus[other][range].iter().copied());
            }
            7 => {
                let number = self.random();
                let text = match self.below(3) {
                    0 => (number >> self.below(64)).to_string(),
                    1 => format!("{:#x}", number >> self.below(64)),
                    _ => char::from_u32(u32::try_from(number % 0x11_0000).unwrap_or(0))
                        .map_or_else(String::new, String::from),
                };
                input.splice(at..at, text.into_bytes());
            }
            _ => input.truncate(at),
        }
        // What is copied doubles; the end is cut in `next`.
        input.truncate(4 * self.largest);
    }
}
