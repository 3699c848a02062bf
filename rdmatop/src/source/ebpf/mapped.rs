//! Array maps that are mapped into rdmatop's memory, so that reads and writes need no system call.

use std::{
    borrow::Borrow,
    num::NonZeroUsize,
    ops::Range,
    os::fd::AsFd,
    ptr::{NonNull, read_volatile},
    sync::{Arc, Mutex, PoisonError},
};

use aya::maps::{Map, MapData, MapError, Stack};
use rdmatop_common::counters::free;
use rustix::{
    io::Errno,
    mm::{MapFlags, ProtFlags, mmap, munmap},
};
use zerocopy::{FromBytes, IntoBytes};

use crate::source::limits;

/// Why an array cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum MappedError {
    /// The object lacks the map, or has it with another type.
    #[error("the object has no usable {0} map")]
    NoMap(&'static str),
    /// The kernel refused the mapping.
    #[error("cannot map the counters into memory: {0}; {remedy}", remedy = mmap_remedy(*.0))]
    Mmap(rustix::io::Errno),
    /// The list of free entries could not be filled.
    #[error("cannot fill the list of free entries: {0}")]
    Fill(#[from] MapError),
}

fn mmap_remedy(errno: Errno) -> &'static str {
    if errno == Errno::NOMEM {
        limits::memory()
    } else {
        "that needs Linux 5.5 (BPF_F_MMAPABLE)"
    }
}

/// A mapped array of plain integers. The kernel side may write during a read; each word is read whole.
pub(super) struct Mapped<T> {
    array: NonNull<T>,
    bytes: NonZeroUsize,
    count: u32,
}

// SAFETY: the pointer is to a shared mapping that this value owns; nothing about it is tied to a thread.
unsafe impl<T> Send for Mapped<T> {}
// SAFETY: every access is volatile or atomic, because the kernel side writes at any time.
unsafe impl<T> Sync for Mapped<T> {}

impl<T: FromBytes + IntoBytes + Copy> Mapped<T> {
    /// Maps an array map whose value is a `T`.
    pub(super) fn open(map: impl Borrow<Map>, name: &'static str) -> Result<Self, MappedError> {
        let no_map = || MappedError::NoMap(name);
        let Map::Array(data) = map.borrow() else {
            return Err(no_map());
        };
        let info = data.info().map_err(|_| no_map())?;
        // The kernel rounds values up to 8 bytes: only a T of such a size has the layout of a slice.
        if info.value_size() as usize != size_of::<T>() || !size_of::<T>().is_multiple_of(8) {
            return Err(no_map());
        }
        Self::of(data, info.max_entries(), name)
    }

    /// Maps a chunk of an array: a map of one value that begins with `count` elements.
    pub(super) fn piece(map: &MapData, count: u32, name: &'static str) -> Result<Self, MappedError> {
        let info = map.info().map_err(|_| MappedError::NoMap(name))?;
        if (info.value_size() as usize) < count as usize * size_of::<T>() {
            return Err(MappedError::NoMap(name));
        }
        Self::of(map, count, name)
    }

    /// The mapping keeps the map alive.
    fn of(map: &MapData, count: u32, name: &'static str) -> Result<Self, MappedError> {
        let no_map = || MappedError::NoMap(name);
        let bytes = NonZeroUsize::new(count as usize * size_of::<T>()).ok_or_else(no_map)?;
        // SAFETY: a new shared mapping at an address of the kernel's choice; the size is within the map's,
        // which the kernel rounds up to pages itself.
        let address = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes.get(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                map.fd().as_fd(),
                0,
            )
            .map_err(MappedError::Mmap)?
        };
        Ok(Self {
            array: NonNull::new(address.cast()).ok_or_else(no_map)?,
            bytes,
            count,
        })
    }

    /// Number of elements.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Address of an element, valid as long as `self` is.
    pub(super) fn at(&self, number: u32) -> *mut T {
        assert!(number < self.count, "element {number} of {}", self.count);
        // SAFETY: below `count`, so inside the mapping.
        unsafe { self.array.as_ptr().add(number as usize) }
    }

    /// A copy of an element.
    pub(super) fn read(&self, number: u32) -> T {
        // SAFETY: inside the mapping; any bytes are a T.
        unsafe { read_volatile(self.at(number)) }
    }
}

#[cfg(test)]
impl<T> Mapped<T> {
    /// So many zeroes, without a map.
    pub(super) fn anonymous(count: u32) -> Self {
        let bytes = NonZeroUsize::new(count as usize * size_of::<T>()).unwrap();
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let address = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes.get(), rights, MapFlags::PRIVATE)
        };
        Self {
            array: NonNull::new(address.unwrap().cast()).unwrap(),
            bytes,
            count,
        }
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `open`; nobody holds a reference into it.
        let _ = unsafe { munmap(self.array.as_ptr().cast(), self.bytes.get()) };
    }
}

/// Queue of new chunks of an array. Their maker adds them here before the kernel side may use them.
pub(super) type Arriving<T> = Arc<Mutex<Vec<Mapped<T>>>>;

/// An array in chunks of the same length.
pub(super) struct Pieces<T> {
    each: u32,
    mapped: Vec<Mapped<T>>,
    arriving: Arriving<T>,
}

impl<T: FromBytes + IntoBytes + Copy> Pieces<T> {
    pub(super) fn new(each: u32, arriving: Arriving<T>) -> Self {
        let mut pieces = Self {
            each,
            mapped: Vec::new(),
            arriving,
        };
        pieces.take_in();
        pieces
    }

    /// Takes in the chunks that have arrived. Call it before each round of reading.
    pub(super) fn take_in(&mut self) {
        let mut arriving = self.arriving.lock().unwrap_or_else(PoisonError::into_inner);
        self.mapped.append(&mut arriving);
    }

    /// Number of elements in the chunks so far.
    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.mapped.len())
            .unwrap_or(u32::MAX)
            .saturating_mul(self.each)
    }

    /// Address of an element, valid as long as `self` is.
    pub(super) fn at(&self, number: u32) -> *mut T {
        let piece = self.mapped.get((number / self.each) as usize);
        match piece {
            Some(piece) => piece.at(number % self.each),
            None => panic!("element {number} of {}", self.count()),
        }
    }

    /// Elements that lie side by side: their numbers, and the address of the first, valid as long as `self`
    /// is. Those that are in no chunk are left out.
    pub(super) fn runs(&self, numbers: Range<u32>) -> impl Iterator<Item = (Range<u32>, *mut T)> {
        let (from, to) = (numbers.start / self.each, numbers.end.div_ceil(self.each));
        let pieces = self.mapped.get(from as usize..).unwrap_or_default();
        (from..to).zip(pieces).filter_map(move |(number, piece)| {
            let first = number * self.each;
            let run = numbers.start.max(first)..numbers.end.min(first + self.each);
            (!run.is_empty()).then(|| (run.clone(), piece.at(run.start - first)))
        })
    }

    /// Addresses of elements, as [`Pieces::runs`]. Many cost less this way than one by one with
    /// [`Pieces::at`].
    pub(super) fn places(&self, numbers: Range<u32>) -> impl Iterator<Item = (u32, *mut T)> {
        self.runs(numbers).flat_map(|(numbers, first)| {
            let places = (0_usize..).map(move |at| first.wrapping_add(at));
            numbers.zip(places)
        })
    }

    /// A copy of an element.
    pub(super) fn read(&self, number: u32) -> T {
        // SAFETY: inside a mapping; any bytes are a T.
        unsafe { read_volatile(self.at(number)) }
    }
}

/// How far past the last entry in use to look for a new one: entries are taken in order, but a CPU may not
/// have written its entry yet when a later one is already visible.
const LOOKAHEAD: u32 = 16;

/// Numbers `first..end` of an array, of which `first..high` have ever been in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct UsedRange {
    high: u32,
    first: u32,
    end: u32,
}

/// The numbers of an array that have ever been in use.
#[derive(Debug)]
pub(super) struct UsedRanges(Vec<UsedRange>);

impl UsedRanges {
    /// For an array that does not grow and whose list of free numbers is filled elsewhere.
    pub(super) fn of(count: u32) -> Self {
        Self::new(count, count)
    }

    /// Divides all numbers below `most` into the ranges that the kernel side starts with.
    fn new(most: u32, chunk: u32) -> Self {
        let ranges = free::ranges(most, chunk);
        Self(
            ranges
                .map(|(first, end)| UsedRange {
                    high: first,
                    first,
                    end,
                })
                .collect(),
        )
    }

    /// Gives all numbers below `most` to the kernel side, the lowest on top. It takes only those below its
    /// limit.
    pub(super) fn fill(
        free: &mut Stack<impl std::borrow::BorrowMut<aya::maps::MapData>, u64>,
        most: u32,
        chunk: u32,
    ) -> Result<Self, MapError> {
        let used_ranges = Self::new(most, chunk);
        for range in used_ranges.0.iter().rev() {
            free.push(free::pack(range.first, range.end), 0)?;
        }
        Ok(used_ranges)
    }

    /// Number of elements that the array can grow to.
    pub(super) fn count(&self) -> u32 {
        self.0.iter().map(|range| range.end).max().unwrap_or(0)
    }

    /// Whether `number` or a higher one has been in use, as of the last [`UsedRanges::numbers`].
    pub(super) fn goes_beyond(&self, number: u32) -> bool {
        self.0
            .iter()
            .any(|range| range.high > range.first && range.high > number)
    }

    /// The numbers below `count` that may be in use.
    pub(super) fn numbers<F: Fn(u32) -> bool>(
        &mut self,
        count: u32,
        in_use: F,
    ) -> impl Iterator<Item = u32> + use<F> {
        self.ranges(count, in_use).flatten()
    }

    /// As [`UsedRanges::numbers`].
    pub(super) fn ranges<F: Fn(u32) -> bool>(
        &mut self,
        count: u32,
        in_use: F,
    ) -> impl Iterator<Item = Range<u32>> + use<F> {
        for range in self.0.iter_mut().filter(|range| range.first < count) {
            let end = range.end.min(count);
            while let Some(beyond) = (range.high..end.min(range.high + LOOKAHEAD))
                .rev()
                .find(|number| in_use(*number))
            {
                range.high = beyond + 1;
            }
        }
        self.0.clone().into_iter().map(|range| range.first..range.high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_of_the_single_elements_and_end_with_the_chunks() {
        let pieces = Pieces::new(
            4,
            Arriving::new(
                (0..3)
                    .map(|_| Mapped::<u64>::anonymous(4))
                    .collect::<Vec<_>>()
                    .into(),
            ),
        );
        for (begin, end) in [
            (0, 12),
            (1, 3),
            (3, 5),
            (2, 11),
            (4, 8),
            (7, 7),
            (10, 40),
            (12, 16),
        ] {
            let found: Vec<_> = pieces.places(begin..end).collect();
            let single: Vec<_> = (begin..end.min(12)).map(|at| (at, pieces.at(at))).collect();
            assert_eq!(found, single, "{begin}..{end}");
        }
    }

    #[test]
    fn numbers_in_use_are_found_past_one_that_is_not_written_yet() {
        // Ranges of 4 below 64, of 8 below 128, of 16 below 256.
        let mut used_ranges = UsedRanges::new(1600, 64);
        let used = [0, 2, 128, 129, 130 + 12];
        let found: Vec<u32> = used_ranges
            .numbers(1600, |number| used.contains(&number))
            .collect();
        assert_eq!(found, (0..3).chain(128..143).collect::<Vec<_>>());
        // A number that was in use once is always listed.
        assert_eq!(used_ranges.numbers(1600, |_| false).count(), 18);
        assert!(
            used_ranges.goes_beyond(142) && !used_ranges.goes_beyond(143),
            "ranges that nobody used end there"
        );
    }

    #[test]
    fn numbers_whose_memory_is_not_there_are_not_looked_at() {
        let mut used_ranges = UsedRanges::new(1600, 64);
        let looked = |number: u32| {
            assert!(number < 66);
            true
        };
        assert_eq!(used_ranges.numbers(66, looked).count(), 66);
    }
}
