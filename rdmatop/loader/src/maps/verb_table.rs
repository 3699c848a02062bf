//! Counters by process and verb, or by process, verb and errno, in mapped arrays. Only the kernel side looks
//! up entries by key, in hash tables.

use std::{
    mem::offset_of,
    os::fd::{AsFd as _, AsRawFd as _},
    ptr::{read_volatile, write_volatile},
    sync::atomic::{Ordering, fence},
};

use aya::maps::{Map, MapData, Stack};
use aya_obj::generated::bpf_cmd;
use rdmatop_common::counters::{VerbEntry, VerbErrorEntry, VerbErrorKey, VerbKey, VerbStats, free};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use crate::{
    load::sys::{empty, raw_bpf},
    maps::{
        mapped::{Mapped, MappedError, UsedRanges},
        unpreempted::Unpreempted,
    },
};

/// How many entries to check at one time for whether the process still exists: each takes a system call.
const CHECKED_AT_ONCE: usize = 64;

pub(super) trait Entry: FromBytes + IntoBytes + FromZeros + Copy {
    /// The entry's key in the hash table.
    type Key: IntoBytes + Immutable + Copy;
    /// Index of the word with the count that a program changes first.
    const COUNT: usize;

    fn key(&self) -> Self::Key;
}

impl Entry for VerbEntry {
    type Key = VerbKey;
    const COUNT: usize = (offset_of!(Self, stats) + offset_of!(VerbStats, calls)) / 8;

    fn key(&self) -> Self::Key {
        self.key
    }
}

impl Entry for VerbErrorEntry {
    type Key = VerbErrorKey;
    const COUNT: usize = offset_of!(Self, count) / 8;

    fn key(&self) -> Self::Key {
        self.key
    }
}

/// What was last reported about an entry.
#[derive(Clone, Copy, Default)]
struct Reported {
    count: u64,
    /// The entry was reported once more after it stopped changing, because its other words may be written a
    /// moment after the count.
    settled: bool,
}

/// Copies of the changed entries, and the keys of entries that were freed at this read; an earlier read has
/// reported their last counts.
pub(super) type Changed<T> = (Vec<T>, Vec<<T as Entry>::Key>);

pub(super) struct Table<T: Entry> {
    array: Mapped<T>,
    used_ranges: UsedRanges,
    /// The hash table that leads to the entries.
    index: MapData,
    free: Stack<MapData, u64>,
    /// Entries whose keys have been removed, so that the kernel side no longer finds them. The next read
    /// frees them: by then all programs that had found one before have ended.
    leaving: Vec<(u32, T::Key)>,
    /// What was last reported, by number.
    reported: Vec<Reported>,
    /// Entry at which the next search for ended processes begins.
    next: usize,
}

impl<T: Entry> Table<T> {
    /// Passes all entries to the kernel side.
    pub(crate) fn open(array: Map, index: Map, free: Map, name: &'static str) -> Result<Self, MappedError> {
        let no_map = || MappedError::NoMap(name);
        let mut free = Stack::try_from(free).map_err(|_| no_map())?;
        let Map::HashMap(index) = index else {
            return Err(no_map());
        };
        let array = Mapped::open(array, name)?;
        Ok(Self {
            used_ranges: UsedRanges::fill(&mut free, array.count())?,
            array,
            index,
            free,
            leaving: Vec::new(),
            reported: Vec::new(),
            next: 0,
        })
    }

    /// The changes since the last read, or every entry if `all` is set. If most entries are taken, this makes
    /// room: it calls `is_alive` for some of the processes, and removes the entries of ended ones. It does so
    /// only then, because removing takes system calls, during which the kernel skips kprobes on this CPU.
    ///
    /// For an entry that has not changed, this reads only two of its words.
    pub(crate) fn read(&mut self, all: bool, is_alive: impl Fn(u32) -> bool) -> Changed<T> {
        let (mut changed, gone) = (Vec::new(), self.free_left());
        let array = &self.array;
        let mut used: Vec<(u32, u64)> = self
            .used_ranges
            .ranges(|number| heads(array, number).0 != 0)
            .into_iter()
            .flatten()
            .map(|number| (number, heads(array, number)))
            .filter(|(_, (pid, count))| *pid != 0 && *count != 0)
            .map(|(number, (_, count))| (number, count))
            .collect();
        if used.len() > self.array.count() as usize / 2 {
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
            changed.push(self.array.read(number));
        }
        (changed, gone)
    }

    fn make_room(&mut self, used: &mut [(u32, u64)], is_alive: impl Fn(u32) -> bool) {
        let start = self.next % used.len();
        self.next = start + CHECKED_AT_ONCE;
        used.rotate_left(start);
        let mut asked = (0, true);
        for (number, count) in used.iter_mut().take(CHECKED_AT_ONCE) {
            let (pid, _) = heads(&self.array, *number);
            if asked.0 != pid {
                asked = (pid, is_alive(pid));
            }
            let key = self.array.read(*number).key();
            if !asked.1 && remove(&self.index, key.as_bytes()) {
                // Read the count again: from now on no new program finds the entry.
                *count = heads(&self.array, *number).1;
                self.leaving.push((*number, key));
            }
        }
    }

    fn free_left(&mut self) -> Vec<T::Key> {
        let mut gone = Vec::with_capacity(self.leaving.len());
        for (number, key) in self.leaving.drain(..) {
            gone.push(key);
            if let Some(reported) = self.reported.get_mut(number as usize) {
                *reported = Reported::default();
            }
            let place = self.array.at(number);
            // SAFETY: the entry is inside the mapping, and the kernel side no longer finds it.
            unsafe {
                write_volatile(place, T::new_zeroed());
                fence(Ordering::Release);
            }
            // The stack has room for every number.
            let _ = self.free.push(free::pack(number, number + 1), 0);
        }
        gone
    }
}

/// Removes a key from a hash table that programs use at the same time. Returns whether the key was there.
fn remove(map: &MapData, key: &[u8]) -> bool {
    let mut attr = empty();
    // SAFETY: a union of plain integers, all zero; only the fields of MAP_DELETE_ELEM are written.
    let element = unsafe { &mut attr.__bindgen_anon_2 };
    element.map_fd = map.fd().as_fd().as_raw_fd().cast_unsigned();
    element.key = key.as_ptr() as u64;
    let _unpreempted = Unpreempted::begin();
    // SAFETY: the key has the length of the map's keys, and outlives the call.
    unsafe { raw_bpf(bpf_cmd::BPF_MAP_DELETE_ELEM, &mut attr) }.is_ok()
}

/// Process and count of an entry.
fn heads<T: Entry>(array: &Mapped<T>, number: u32) -> (u32, u64) {
    let place = array.at(number);
    // SAFETY: the number is inside the mapping. Every key begins with the process, and the count is a word of
    // the entry that both sides access whole.
    unsafe {
        (
            read_volatile(place.cast::<u32>()),
            read_volatile(place.cast::<u64>().add(T::COUNT)),
        )
    }
}
