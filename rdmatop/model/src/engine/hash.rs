//! Maps and sets by a few numbers: QP numbers, process ids, addresses.
//!
//! The keys are the kernel's own. No program can choose enough of them to make long chains. The standard
//! hash, which is safe against chosen keys, makes a refresh of ten thousand QPs five times as expensive.

use std::collections::{HashMap, HashSet};

use foldhash::fast::FixedState;

pub(super) type NumberMap<K, V> = HashMap<K, V, FixedState>;
pub(super) type NumberSet<K> = HashSet<K, FixedState>;
