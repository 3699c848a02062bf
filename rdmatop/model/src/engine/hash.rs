//! Maps and sets by a few numbers: QP numbers, process ids, addresses.
//!
//! The keys are the kernel's own. No program can choose enough of them to make long chains. The standard
//! hash, which is safe against chosen keys, makes a refresh of ten thousand QPs five times as expensive.

use std::collections::{HashMap, HashSet};

use foldhash::fast::{FixedState, RandomState};

pub(super) type NumberMap<K, V> = HashMap<K, V, FixedState>;
pub(super) type NumberSet<K> = HashSet<K, FixedState>;

/// A map by raw names, which users choose. The seed is the process's own, so that nobody knows which names
/// share a place, and `Names` bounds how many there are. The standard hash is a twentieth of what an event
/// costs.
pub(super) type NameMap<V> = HashMap<Box<[u8]>, V, RandomState>;
