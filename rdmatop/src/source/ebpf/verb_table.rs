//! Counters by process and verb, or by process, verb and errno: mapped arrays whose entries are found by a hash that
//! only the kernel side looks at.

use std::{
    ptr::write_volatile,
    sync::atomic::{Ordering, fence},
};

use aya::{
    Pod,
    maps::{HashMap, Map, MapData, Stack},
};
use rdmatop_common::counters::{VerbEntry, VerbErrorEntry, VerbErrorKey, VerbKey, free};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::mapped::{Mapped, MappedError, Reach};

/// Entries whose process is looked for at one time: a system call each.
const CHECKED_AT_ONCE: usize = 64;

/// An entry of a table.
pub(super) trait Entry: FromBytes + IntoBytes + FromZeros + Copy {
    /// Key, as aya wants it.
    type Key: Pod;

    /// Whose it is; 0 is nobody's.
    fn pid(&self) -> u32;
    /// Whether it counts anything yet.
    fn is_empty(&self) -> bool;
    /// Its key.
    fn key(&self) -> Self::Key;
}

/// An ABI type as aya wants it: foreign trait and foreign type need a wrapper of ours.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Plain<T>(T);

// SAFETY: the wrapper is transparent over a type of rdmatop-common, which zerocopy has checked to be plain integers
// without padding: any bytes are a valid value and no byte of it is uninitialised.
unsafe impl Pod for Plain<VerbKey> {}
// SAFETY: as above.
unsafe impl Pod for Plain<VerbErrorKey> {}

impl Entry for VerbEntry {
    type Key = Plain<VerbKey>;

    fn pid(&self) -> u32 {
        self.key.pid
    }

    fn is_empty(&self) -> bool {
        self.stats.calls == 0
    }

    fn key(&self) -> Self::Key {
        Plain(self.key)
    }
}

impl Entry for VerbErrorEntry {
    type Key = Plain<VerbErrorKey>;

    fn pid(&self) -> u32 {
        self.key.pid
    }

    fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn key(&self) -> Self::Key {
        Plain(self.key)
    }
}

/// One of the two tables.
pub(super) struct Table<T: Entry> {
    array: Mapped<T>,
    reach: Reach,
    index: HashMap<MapData, T::Key, u32>,
    free: Stack<MapData, u64>,
    /// Entries that the kernel side finds no more; they are free after the next read, when whoever had found one
    /// before has long ended.
    leaving: Vec<u32>,
    /// Where the next search for ended processes begins.
    next: usize,
}

impl<T: Entry> Table<T> {
    /// Maps the array and hands all its entries to the kernel side.
    pub(super) fn open(
        array: Option<Map>,
        index: Option<Map>,
        free: Option<Map>,
        name: &'static str,
    ) -> Result<Self, MappedError> {
        let no_map = || MappedError::NoMap(name);
        let array = Mapped::open(array.ok_or_else(no_map)?, name)?;
        let mut free = Stack::try_from(free.ok_or_else(no_map)?).map_err(|_| no_map())?;
        Ok(Self {
            reach: Reach::fill(&mut free, array.count())?,
            array,
            index: HashMap::try_from(index.ok_or_else(no_map)?).map_err(|_| no_map())?,
            free,
            leaving: Vec::new(),
            next: 0,
        })
    }

    /// Copies of the entries in use. `is_alive` is asked about some of their processes, and only when most entries
    /// are taken: making room takes system calls, during which the kernel skips kprobes on this CPU.
    pub(super) fn read(&mut self, is_alive: impl Fn(u32) -> bool) -> Vec<T> {
        self.free_left();
        let array = &self.array;
        let mut used: Vec<(u32, T)> = self
            .reach
            .numbers(|number| array.read(number).pid() != 0)
            .map(|number| (number, array.read(number)))
            .filter(|(_, entry)| entry.pid() != 0 && !entry.is_empty())
            .collect();
        if used.len() > self.array.count() as usize / 2 {
            self.make_room(&mut used, is_alive);
        }
        used.into_iter().map(|(_, entry)| entry).collect()
    }

    fn make_room(&mut self, used: &mut [(u32, T)], is_alive: impl Fn(u32) -> bool) {
        let start = self.next % used.len();
        self.next = start + CHECKED_AT_ONCE;
        used.rotate_left(start);
        let mut asked = (0, true);
        for (number, entry) in used.iter_mut().take(CHECKED_AT_ONCE) {
            if asked.0 != entry.pid() {
                asked = (entry.pid(), is_alive(entry.pid()));
            }
            if !asked.1 && self.index.remove(&entry.key()).is_ok() {
                // Once more: now nothing is added.
                *entry = self.array.read(*number);
                self.leaving.push(*number);
            }
        }
    }

    fn free_left(&mut self) {
        for number in self.leaving.drain(..) {
            let place = self.array.at(number);
            // SAFETY: inside the mapping; the kernel side does not find the entry any more.
            unsafe {
                write_volatile(place, T::new_zeroed());
                fence(Ordering::Release);
            }
            // A full stack costs an entry: it is larger than what is ever given back at one time.
            let _ = self.free.push(free::pack(number, number + 1), 0);
        }
    }
}
