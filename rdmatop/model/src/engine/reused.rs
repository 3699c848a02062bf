//! Numbers and addresses that the kernel gives away again.
use std::{collections::hash_map::Entry, hash::Hash};

use super::hash::NumberMap;

/// What has which number. The kernel gives a number away while the call that ends its owner has not returned:
/// the record of the next owner may then come before that of the end, which is of the one that was there when
/// its call began.
pub(super) type Reused<K, T> = NumberMap<K, Owners<T>>;

/// The objects that have, or had until lately, one number.
#[derive(Debug)]
pub(super) struct Owners<T> {
    /// The present one, and since when.
    now: Option<(T, u64)>,
    /// The last [`LATE`] before whose end no record has told yet, oldest first.
    before: Vec<T>,
}

/// Records of ends may be lost, and their owners then stay.
const LATE: usize = 8;

impl<T> Owners<T> {
    /// Keeps some owners; whether any is left.
    pub(super) fn keep(&mut self, keep: impl Fn(&T) -> bool) -> bool {
        self.now.take_if(|(owner, _)| !keep(owner));
        self.before.retain(keep);
        self.now.is_some() || !self.before.is_empty()
    }
}

/// Gives a number to an owner. Returns the one that has it until then, as far as records tell.
pub(super) fn give<K: Eq + Hash, T: Copy>(
    all: &mut Reused<K, T>,
    number: K,
    owner: T,
    since_ns: u64,
) -> Option<T> {
    let last = all.remove(&number);
    let (ended, mut before) = last.map_or((None, Vec::new()), |last| (last.now, last.before));
    let ended = ended.map(|(owner, _)| owner);
    before.extend(ended);
    before.drain(..before.len().saturating_sub(LATE));
    let now = Some((owner, since_ns));
    all.insert(number, Owners { now, before });
    ended
}

/// A call that began at `call_ns` ended an owner. Returns which one, if its beginning was seen, and whether
/// nothing else has got its number since.
pub(super) fn end<K: Eq + Hash, T>(all: &mut Reused<K, T>, number: K, call_ns: u64) -> Option<(T, bool)> {
    let Entry::Occupied(mut entry) = all.entry(number) else {
        return None;
    };
    let owners = entry.get_mut();
    let ended = match owners.now.take_if(|(_, since_ns)| *since_ns <= call_ns) {
        Some((owner, _)) => Some((owner, true)),
        None if owners.before.is_empty() => None,
        None => Some((owners.before.remove(0), false)),
    };
    if !owners.keep(|_| true) {
        entry.remove();
    }
    ended
}
