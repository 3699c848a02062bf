//! Hashing of keys that the kernel made: numbers and addresses.
//!
//! The standard hasher withstands keys chosen to collide, at a hundred instructions a look-up, of which a record takes
//! a dozen. Nobody chooses QP numbers or addresses of kernel objects. Names are chosen, and stay with the standard one.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

/// A map by such keys.
pub(super) type NumberMap<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// Multiplies by an odd constant (2^64 divided by the golden ratio) a word at a time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NumberHasher(u64);

impl NumberHasher {
    fn word(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(29) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.word(u64::from(*byte));
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.word(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.word(value);
    }

    fn finish(&self) -> u64 {
        // Low bits of a product know only low bits of the factors, and those of an address are zero.
        self.0.rotate_left(32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::BTreeSet, hash::Hash};

    fn hash(key: impl Hash) -> u64 {
        let mut hasher = NumberHasher::default();
        key.hash(&mut hasher);
        hasher.finish()
    }

    #[test]
    fn addresses_and_numbers_in_a_row_spread_over_buckets_and_tags() {
        // A table of 4096 buckets takes the low 12 bits for the bucket and the top 7 for the tag.
        for step in [1_u64, 64, 2048, 4096] {
            let hashes: Vec<u64> = (0..2048)
                .map(|i| hash(0xffff_8880_0000_0000 + i * step))
                .collect();
            let buckets: BTreeSet<u64> = hashes.iter().map(|hash| hash & 4095).collect();
            let tags: BTreeSet<u64> = hashes.iter().map(|hash| hash >> 57).collect();
            assert!(buckets.len() > 1200, "{step}: {}", buckets.len());
            assert!(tags.len() > 100, "{step}: {}", tags.len());
        }
    }

    #[test]
    fn the_parts_of_a_key_do_not_cancel_each_other() {
        let all: BTreeSet<u64> = (0..64u64)
            .flat_map(|a| (0..64u32).map(move |b| hash((a, b))))
            .collect();
        assert_eq!(all.len(), 64 * 64);
    }
}
