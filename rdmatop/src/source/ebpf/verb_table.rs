//! Counters by process and verb, or by process, verb and errno: mapped arrays. Only the kernel side looks
//! entries up, in hash tables.

use std::{
    mem::offset_of,
    ptr::{read_volatile, write_volatile},
    sync::atomic::{Ordering, fence},
};

use aya::maps::{Map, MapData, Stack};
use rdmatop_common::counters::{
    VERB_ERRORS_A_CHUNK, VERBS_A_CHUNK, VerbEntry, VerbErrorEntry, VerbErrorKey, VerbKey, VerbStats, free,
    room,
};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use super::{
    grown::Generations,
    mapped::{Arriving, MappedError, Pieces, UsedRanges},
    rooms::Rooms,
};

/// For how many entries to check at one time whether the process still exists: each takes a system call.
const CHECKED_AT_ONCE: usize = 64;

/// An entry of a table.
pub(super) trait Entry: FromBytes + IntoBytes + FromZeros + Copy {
    /// Key in the hash table that leads to the entry.
    type Key: IntoBytes + Immutable + Copy;
    /// Index of the word with the count that is written first when an entry changes.
    const COUNT: usize;
    /// Entries in a chunk of the array.
    const EACH: u32;
    /// Rows of the array of rooms: for the entries, and for their keys.
    const ROWS: (u32, u32);

    /// Process of the entry, 0 if it is free.
    fn pid(&self) -> u32;
    /// Key of the entry.
    fn key(&self) -> Self::Key;
}

impl Entry for VerbEntry {
    type Key = VerbKey;
    const COUNT: usize = (offset_of!(Self, stats) + offset_of!(VerbStats, calls)) / 8;
    const EACH: u32 = VERBS_A_CHUNK;
    const ROWS: (u32, u32) = (room::VERBS, room::VERB_INDEX);

    fn pid(&self) -> u32 {
        self.key.pid
    }

    fn key(&self) -> Self::Key {
        self.key
    }
}

impl Entry for VerbErrorEntry {
    type Key = VerbErrorKey;
    const COUNT: usize = offset_of!(Self, count) / 8;
    const EACH: u32 = VERB_ERRORS_A_CHUNK;
    const ROWS: (u32, u32) = (room::VERB_ERRORS, room::VERB_ERROR_INDEX);

    fn pid(&self) -> u32 {
        self.key.pid
    }

    fn key(&self) -> Self::Key {
        self.key
    }
}

/// What was last reported about an entry.
#[derive(Clone, Copy, Default)]
struct Reported {
    count: u64,
    /// It was reported once more after it stopped changing, because its other words may be written a moment
    /// after the count.
    settled: bool,
}

/// The changes in a table.
pub(super) struct Changed<T: Entry> {
    /// Copies of the changed entries.
    pub(super) entries: Vec<T>,
    /// Keys of entries that were freed since the previous read, which had their last counts.
    pub(super) gone: Vec<T::Key>,
}

/// One of the two tables.
pub(super) struct Table<T: Entry> {
    array: Pieces<T>,
    used_ranges: UsedRanges,
    /// How many entries there can be.
    most: u32,
    rooms: Rooms,
    index: Generations,
    free: Stack<MapData, u64>,
    /// Entries whose keys have been removed, so that the kernel side no longer finds them. They are freed at
    /// the next read: by then programs that had found one before have long ended.
    leaving: Vec<(u32, T::Key)>,
    /// What was last reported, by number.
    reported: Vec<Reported>,
    /// Entry at which the next search for ended processes begins.
    next: usize,
}

impl<T: Entry> Table<T> {
    /// Gives the numbers of `most` entries to the kernel side. Their memory comes through `arriving`.
    pub(super) fn open(
        arriving: Arriving<T>,
        index: Generations,
        most: u32,
        free: Option<Map>,
        rooms: &Rooms,
        name: &'static str,
    ) -> Result<Self, MappedError> {
        let no_map = || MappedError::NoMap(name);
        let mut free = Stack::try_from(free.ok_or_else(no_map)?).map_err(|_| no_map())?;
        Ok(Self {
            used_ranges: UsedRanges::fill(&mut free, most, T::EACH)?,
            array: Pieces::new(T::EACH, arriving),
            most,
            rooms: rooms.clone(),
            index,
            free,
            leaving: Vec::new(),
            reported: Vec::new(),
            next: 0,
        })
    }

    /// The changes since the last read, or with `all` every entry. When most entries are taken, this calls
    /// `is_alive` for some of the processes to make room. It does so only then, because that takes system
    /// calls, during which the kernel skips kprobes on this CPU.
    ///
    /// An entry that has not changed costs reading two of its words.
    pub(super) fn read(&mut self, all: bool, is_alive: impl Fn(u32) -> bool) -> Changed<T> {
        let mut changed = Changed {
            entries: Vec::new(),
            gone: Vec::new(),
        };
        self.free_left(&mut changed.gone);
        self.array.take_in();
        let array = &self.array;
        let mut used: Vec<(u32, u64)> = self
            .used_ranges
            .numbers(array.count(), |number| heads(array, number).0 != 0)
            .map(|number| (number, heads(array, number)))
            .filter(|(_, (pid, count))| *pid != 0 && *count != 0)
            .map(|(number, (_, count))| (number, count))
            .collect();
        if used.len() > self.most as usize / 2 {
            self.make_room(&mut used, is_alive);
        }
        for (number, count) in used {
            let place = number as usize;
            if self.reported.len() <= place {
                self.reported.resize(place + 1, Reported::default());
            }
            let Some(reported) = self.reported.get_mut(place) else {
                continue;
            };
            let rests = reported.count == count;
            if rests && reported.settled && !all {
                continue;
            }
            *reported = Reported {
                count,
                settled: rests,
            };
            changed.entries.push(self.array.read(number));
        }
        changed
    }

    fn make_room(&mut self, used: &mut [(u32, u64)], is_alive: impl Fn(u32) -> bool) {
        let start = self.next % used.len();
        self.next = start + CHECKED_AT_ONCE;
        used.rotate_left(start);
        let mut asked = (0, true);
        for (number, count) in used.iter_mut().take(CHECKED_AT_ONCE) {
            let entry = self.array.read(*number);
            if asked.0 != entry.pid() {
                asked = (entry.pid(), is_alive(entry.pid()));
            }
            if !asked.1
                && let Some(generation) = self.index.remove(entry.key().as_bytes())
            {
                self.rooms.give_back(T::ROWS.1, generation);
                // Read again: now no program adds to it.
                *count = heads(&self.array, *number).1;
                self.leaving.push((*number, entry.key()));
            }
        }
    }

    fn free_left(&mut self, gone: &mut Vec<T::Key>) {
        for (number, key) in self.leaving.drain(..) {
            gone.push(key);
            if let Some(reported) = self.reported.get_mut(number as usize) {
                *reported = Reported::default();
            }
            let place = self.array.at(number);
            // SAFETY: inside the mapping; the kernel side does not find the entry any more.
            unsafe {
                write_volatile(place, T::new_zeroed());
                fence(Ordering::Release);
            }
            // If the stack were full, the entry would be lost; it is larger than the number of entries freed
            // at one time.
            let _ = self.free.push(free::pack(number, number + 1), 0);
            self.rooms.give_back(T::ROWS.0, room::TAKEN);
        }
    }
}

/// Process and count of an entry.
fn heads<T: Entry>(array: &Pieces<T>, number: u32) -> (u32, u64) {
    let place = array.at(number);
    // SAFETY: inside the mapping; every key begins with the process, and the count is a word of the entry
    // that both sides use whole.
    unsafe {
        (
            read_volatile(place.cast::<u32>()),
            read_volatile(place.cast::<u64>().add(T::COUNT)),
        )
    }
}
