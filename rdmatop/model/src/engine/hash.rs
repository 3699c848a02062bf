//! A fast hash for keys that are a few numbers: QP numbers, process ids, addresses.
//!
//! The keys are the kernel's own. No program can choose enough of them to make long chains. The standard
//! hash, which is safe against chosen keys, makes a refresh of ten thousand QPs five times as expensive.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasherDefault, Hasher},
};

/// A map by numbers.
pub(super) type NumberMap<K, V> = HashMap<K, V, BuildHasherDefault<Mix>>;
/// A set of numbers.
pub(super) type NumberSet<K> = HashSet<K, BuildHasherDefault<Mix>>;

/// Multiplies and rotates.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        // An odd number with its bits all over (the golden ratio): addresses differ in their middle bits
        // only.
        self.0 = (self.0.rotate_left(26) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        // The map takes its bucket from the low bits, which multiplication mixes least.
        self.0 ^ (self.0 >> 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::Hash;

    fn hash(value: impl Hash) -> u64 {
        let mut mix = Mix::default();
        value.hash(&mut mix);
        mix.finish()
    }

    #[test]
    fn neighbours_and_addresses_fall_into_different_buckets() {
        let spread = |hashes: Vec<u64>| {
            hashes
                .iter()
                .map(|hash| hash % 16_384)
                .collect::<HashSet<_>>()
                .len()
        };
        // Of 8192 keys at random, 6446 of 16384 buckets would be taken.
        assert!(spread((0..8192u32).map(hash).collect()) > 6000);
        assert!(
            spread(
                (0..8192u64)
                    .map(|i| hash(0xffff_8881_0000_0000 + i * 2048))
                    .collect()
            ) > 6000
        );
        assert!(spread((0..8192u32).map(|i| hash((1u64, 17 + i, 0u32))).collect()) > 6000);
    }
}
