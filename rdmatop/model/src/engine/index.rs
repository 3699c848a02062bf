//! Finds QPs by what each of them knows of itself.

use std::hash::{BuildHasher, BuildHasherDefault, Hash};

use hashbrown::{HashTable, hash_table::Entry};

use super::hash::Mix;

/// Numbers of entries of another table, by a key that the entries hold. The keys are not stored again: with
/// ten thousand QPs that would take 0.26 MB more.
///
/// Each method takes the function that returns the key of an entry. It must return the same key for as long
/// as the entry is here.
#[derive(Debug, Default)]
pub(super) struct Index(HashTable<u64>);

fn hash(key: impl Hash) -> u64 {
    BuildHasherDefault::<Mix>::default().hash_one(key)
}

impl Index {
    /// The entry with this key.
    pub(super) fn get<K: Hash + Eq>(&self, key: &K, key_of: impl Fn(u64) -> Option<K>) -> Option<u64> {
        let found = self
            .0
            .find(hash(key), |entry| key_of(*entry).as_ref() == Some(key));
        found.copied()
    }

    /// Puts an entry in the place of the one with this key, which is returned.
    pub(super) fn set<K: Hash + Eq>(
        &mut self,
        key: &K,
        entry: u64,
        key_of: impl Fn(u64) -> Option<K>,
    ) -> Option<u64> {
        let is_its = |other: &u64| key_of(*other).as_ref() == Some(key);
        let hash_of = |other: &u64| key_of(*other).map_or(0, hash);
        match self.0.entry(hash(key), is_its, hash_of) {
            Entry::Occupied(mut there) => Some(std::mem::replace(there.get_mut(), entry)),
            Entry::Vacant(place) => {
                place.insert(entry);
                None
            }
        }
    }

    /// Removes an entry, if it is the one with this key.
    pub(super) fn remove(&mut self, key: &impl Hash, entry: u64) {
        if let Ok(there) = self.0.find_entry(hash(key), |other| *other == entry) {
            there.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_finds_what_a_table_with_its_own_keys_finds(steps in prop::collection::vec((any::<bool>(), 0u32..40, 0usize..64), 0..400)) {
            let (mut index, mut table) = (Index::default(), HashMap::new());
            // The keys of the entries, which are numbered as they come.
            let mut keys: Vec<u32> = Vec::new();
            for (add, key, any) in steps {
                if add || keys.is_empty() {
                    let entry = keys.len() as u64;
                    keys.push(key);
                    let key_of = |entry: u64| keys.get(usize::try_from(entry).ok()?).copied();
                    prop_assert_eq!(index.set(&key, entry, key_of), table.insert(key, entry));
                } else {
                    // Often one whose key has another entry by now.
                    let entry = any % keys.len();
                    index.remove(&keys[entry], entry as u64);
                    table.retain(|_, other| *other != entry as u64);
                }
                let key_of = |entry: u64| keys.get(usize::try_from(entry).ok()?).copied();
                for key in 0..40 {
                    prop_assert_eq!(index.get(&key, key_of), table.get(&key).copied());
                }
            }
        }
    }
}
