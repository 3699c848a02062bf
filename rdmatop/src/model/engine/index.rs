//! Finds QPs by what each of them knows of itself.

use std::hash::{BuildHasher, BuildHasherDefault, Hash};

use hashbrown::{HashTable, hash_table::Entry};

use super::hash::Mix;

/// Numbers of entries of another table, by a key that the entries hold. The keys are not stored again: among ten thousand QPs they
/// would take half a megabyte.
///
/// Each method takes the function that returns the key of an entry. It must return the same key for as long as the entry is here.
#[derive(Debug, Default)]
pub(super) struct Index(HashTable<u64>);

fn hash(key: impl Hash) -> u64 {
    BuildHasherDefault::<Mix>::default().hash_one(key)
}

impl Index {
    /// The entry with this key.
    pub(super) fn get<K: Hash + Eq>(&self, key: K, key_of: impl Fn(u64) -> Option<K>) -> Option<u64> {
        let found = self
            .0
            .find(hash(&key), |entry| key_of(*entry).as_ref() == Some(&key));
        found.copied()
    }

    /// Puts an entry in the place of the one with this key, which is returned.
    pub(super) fn set<K: Hash + Eq>(
        &mut self,
        key: K,
        entry: u64,
        key_of: impl Fn(u64) -> Option<K>,
    ) -> Option<u64> {
        let is_its = |other: &u64| key_of(*other).as_ref() == Some(&key);
        let hash_of = |other: &u64| key_of(*other).map_or(0, hash);
        match self.0.entry(hash(&key), is_its, hash_of) {
            Entry::Occupied(mut there) => Some(std::mem::replace(there.get_mut(), entry)),
            Entry::Vacant(place) => {
                place.insert(entry);
                None
            }
        }
    }

    /// Removes an entry, if it is the one with this key.
    pub(super) fn remove(&mut self, key: impl Hash, entry: u64) {
        if let Ok(there) = self.0.find_entry(hash(key), |other| *other == entry) {
            there.remove();
        }
    }
}
