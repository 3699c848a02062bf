//! Array maps that are mapped into rdmatop's memory, so that reads and writes need no system call.

use std::{
    borrow::Borrow,
    num::NonZeroUsize,
    ops::Range,
    os::fd::AsFd,
    ptr::{NonNull, read_volatile},
};

use aya::maps::{Map, MapError, Stack};
use rdmatop_common::counters::{QpSlot, free};
use rustix::{
    io::Errno,
    mm::{MapFlags, ProtFlags, mmap, munmap},
};
use zerocopy::{FromBytes, IntoBytes};

use rdmatop_sources::limits;

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

/// A mapped array of plain integers. The kernel side may write during a read, but each word is read whole.
pub(crate) struct Mapped<T> {
    array: NonNull<T>,
    bytes: NonZeroUsize,
    count: u32,
}

// SAFETY: the pointer is to a shared mapping that this value owns and that is tied to no thread.
unsafe impl<T> Send for Mapped<T> {}
// SAFETY: every access is volatile or atomic, because the kernel side writes at any time.
unsafe impl<T> Sync for Mapped<T> {}

impl<T: FromBytes + IntoBytes + Copy> Mapped<T> {
    /// Maps an array map whose value is a `T`.
    pub(crate) fn open(map: impl Borrow<Map>, name: &'static str) -> Result<Self, MappedError> {
        let no_map = || MappedError::NoMap(name);
        let Map::Array(data) = map.borrow() else {
            return Err(no_map());
        };
        let info = data.info().map_err(|_| no_map())?;
        // The kernel rounds values up to 8 bytes, so the map is a slice of `T` only if `T` has such a size.
        if info.value_size() as usize != size_of::<T>() || !size_of::<T>().is_multiple_of(8) {
            return Err(no_map());
        }
        let count = info.max_entries();
        let bytes = NonZeroUsize::new(count as usize * size_of::<T>()).ok_or_else(no_map)?;
        // SAFETY: this is a new shared mapping at an address of the kernel's choice, and it keeps the map
        // alive. Its size is that of the map, which the kernel rounds up to pages.
        let address = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes.get(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                data.fd().as_fd(),
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
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Address of an element, valid as long as `self` is.
    pub(crate) fn at(&self, number: u32) -> *mut T {
        assert!(number < self.count, "element {number} of {}", self.count);
        // SAFETY: the number is below `count`, so the element is inside the mapping.
        unsafe { self.array.as_ptr().add(number as usize) }
    }

    /// A copy of an element.
    pub(crate) fn read(&self, number: u32) -> T {
        // SAFETY: the element is inside the mapping, and any bytes are a valid `T`.
        unsafe { read_volatile(self.at(number)) }
    }
}

impl Mapped<QpSlot> {
    /// Whether a QP has the slot.
    pub(crate) fn in_use(&self, number: u32) -> bool {
        // SAFETY: the slot is inside the mapping; the kernel side writes the word whole.
        unsafe { read_volatile(&raw const (*self.at(number)).qp) != 0 }
    }
}

#[cfg(test)]
impl<T> Mapped<T> {
    /// An array of zeroes without a map.
    pub(crate) fn anonymous(count: u32) -> Self {
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
        // SAFETY: this is the mapping that `open` made, and nobody holds a reference into it.
        let _ = unsafe { munmap(self.array.as_ptr().cast(), self.bytes.get()) };
    }
}

/// How far past the last entry in use to look for another one. Entries are taken in order, but a CPU may not
/// have written its entry yet when a later one is already visible.
const LOOKAHEAD: u32 = 16;
/// How often all entries are looked at: an entry that was taken and given back, unused, leaves a hole, and
/// many holes side by side are wider than [`LOOKAHEAD`].
const WHOLE_EVERY: u32 = 16;

/// Numbers `first..end` of an array, of which `first..high` have ever been in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct UsedRange {
    high: u32,
    first: u32,
    end: u32,
}

/// The numbers of an array that have ever been in use.
#[derive(Debug)]
pub(crate) struct UsedRanges {
    ranges: Vec<UsedRange>,
    looks: u32,
}

impl UsedRanges {
    /// Divides all numbers below `count` into the same ranges that the kernel side starts with.
    pub(crate) fn of(count: u32) -> Self {
        let range = |(first, end)| UsedRange {
            high: first,
            first,
            end,
        };
        Self {
            ranges: free::ranges(count).map(range).collect(),
            looks: 0,
        }
    }

    /// Passes all numbers below `count` to the kernel side, the lowest range on top.
    pub(crate) fn fill(
        free: &mut Stack<impl std::borrow::BorrowMut<aya::maps::MapData>, u64>,
        count: u32,
    ) -> Result<Self, MapError> {
        let used_ranges = Self::of(count);
        for range in used_ranges.ranges.iter().rev() {
            free.push(free::pack(range.first, range.end), 0)?;
        }
        Ok(used_ranges)
    }

    /// Whether `number` or a higher one has been in use, as of the last [`UsedRanges::ranges`].
    pub(super) fn goes_beyond(&self, number: u32) -> bool {
        self.ranges
            .iter()
            .any(|range| range.high > range.first && range.high > number)
    }

    /// Returns the numbers that may be in use.
    pub(crate) fn ranges(&mut self, in_use: impl Fn(u32) -> bool) -> Vec<Range<u32>> {
        self.looks = self.looks.wrapping_add(1);
        let whole = self.looks.is_multiple_of(WHOLE_EVERY);
        self.search(in_use, if whole { u32::MAX } else { LOOKAHEAD })
    }

    /// As [`UsedRanges::ranges`], but never looks at all entries: the reader of records calls this often.
    pub(super) fn near(&mut self, in_use: impl Fn(u32) -> bool) -> Vec<Range<u32>> {
        self.search(in_use, LOOKAHEAD)
    }

    fn search(&mut self, in_use: impl Fn(u32) -> bool, ahead: u32) -> Vec<Range<u32>> {
        for range in &mut self.ranges {
            while let Some(beyond) = (range.high..range.end.min(range.high.saturating_add(ahead)))
                .rev()
                .find(|number| in_use(*number))
            {
                range.high = beyond + 1;
            }
        }
        let used = self.ranges.iter().map(|range| range.first..range.high);
        used.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_use_are_found_past_one_that_is_not_written_yet() {
        // Ranges of 100.
        let mut used_ranges = UsedRanges::of(1600);
        let used = [0, 2, 200, 201, 202 + 12];
        let found: Vec<u32> = used_ranges
            .ranges(|number| used.contains(&number))
            .into_iter()
            .flatten()
            .collect();
        assert_eq!(found, (0..3).chain(200..215).collect::<Vec<_>>());
        // A number that was in use once is always listed.
        assert_eq!(used_ranges.ranges(|_| false).into_iter().flatten().count(), 18);
        assert!(
            used_ranges.goes_beyond(214) && !used_ranges.goes_beyond(215),
            "ranges that nobody used end there"
        );
        // Behind a wide hole, too, if not at once.
        let looks = (0..WHOLE_EVERY).map(|_| {
            used_ranges
                .ranges(|number| number == 299)
                .into_iter()
                .flatten()
                .last()
        });
        assert!(looks.collect::<Vec<_>>().contains(&Some(299)));
    }
}
