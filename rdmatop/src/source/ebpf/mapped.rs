//! An array map in our memory: read and written without a system call.

use std::{
    num::NonZeroUsize,
    os::fd::AsFd,
    ptr::{NonNull, read_volatile},
};

use aya::maps::{Map, MapError, Stack};
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
    /// The object does not have the map, or it is of another type.
    #[error("the object has no usable {0} map")]
    NoMap(&'static str),
    /// The kernel refused the mapping.
    #[error("cannot map the counters into memory: {0}; {remedy}", remedy = mmap_remedy(*.0))]
    Mmap(rustix::io::Errno),
    /// The free entries could not be handed to the kernel side.
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

/// A mapped array of plain integers. The kernel side writes while it is read: each word is whole.
pub(super) struct Mapped<T> {
    array: NonNull<T>,
    bytes: NonZeroUsize,
    count: u32,
    /// Keeps the map itself.
    _map: Map,
}

// SAFETY: the pointer is to a shared mapping that this value owns; nothing about it is tied to a thread.
unsafe impl<T> Send for Mapped<T> {}

impl<T: FromBytes + IntoBytes + Copy> Mapped<T> {
    /// Maps an array map whose value is a `T`.
    pub(super) fn open(map: Map, name: &'static str) -> Result<Self, MappedError> {
        let no_map = || MappedError::NoMap(name);
        let Map::Array(data) = &map else {
            return Err(no_map());
        };
        let info = data.info().map_err(|_| no_map())?;
        // The kernel rounds values up to 8 bytes: only such a T lies as in a slice.
        if info.value_size() as usize != size_of::<T>() || !size_of::<T>().is_multiple_of(8) {
            return Err(no_map());
        }
        let count = info.max_entries();
        let bytes = NonZeroUsize::new(count as usize * size_of::<T>()).ok_or_else(no_map)?;
        // SAFETY: a new shared mapping at an address of the kernel's choice; the size is the map's, which the
        // kernel rounds up to pages itself.
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
            _map: map,
        })
    }

    /// Elements.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Where an element is; valid as long as this is.
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

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `open`; nobody holds a reference into it.
        let _ = unsafe { munmap(self.array.as_ptr().cast(), self.bytes.get()) };
    }
}

/// How far past the last entry in use a new one is looked for: entries are taken in order, and a CPU that has taken
/// one may not have written it yet when another's is seen.
const LOOKAHEAD: u32 = 16;

/// Numbers `first..end` of an array, of which `first..high` have ever been in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    high: u32,
    first: u32,
    end: u32,
}

/// Which numbers of an array have ever been in use.
#[derive(Debug)]
pub(super) struct Reach(Vec<Range>);

impl Reach {
    /// Divides all numbers below `count` into the ranges that the kernel side begins with.
    fn new(count: u32) -> Self {
        let step = count.div_ceil(free::RANGES).max(1);
        let ranges = (0..free::RANGES).map(|i| (i * step).min(count)..((i + 1) * step).min(count));
        Self(
            ranges
                .filter(|range| !range.is_empty())
                .map(|range| Range {
                    high: range.start,
                    first: range.start,
                    end: range.end,
                })
                .collect(),
        )
    }

    /// Hands all numbers below `count` to the kernel side, the lowest on top.
    pub(super) fn fill(
        free: &mut Stack<impl std::borrow::BorrowMut<aya::maps::MapData>, u64>,
        count: u32,
    ) -> Result<Self, MapError> {
        let reach = Self::new(count);
        for range in reach.0.iter().rev() {
            free.push(free::pack(range.first, range.end), 0)?;
        }
        Ok(reach)
    }

    /// Whether any of these numbers has been seen in use, as of the last [`Reach::numbers`].
    pub(super) fn goes_beyond(&self, number: u32) -> bool {
        self.0
            .iter()
            .any(|range| range.high > range.first && range.high > number)
    }

    /// Numbers that may be in use.
    pub(super) fn numbers<F: Fn(u32) -> bool>(&mut self, in_use: F) -> impl Iterator<Item = u32> + use<F> {
        for range in &mut self.0 {
            while let Some(beyond) = (range.high..range.end.min(range.high + LOOKAHEAD))
                .rev()
                .find(|number| in_use(*number))
            {
                range.high = beyond + 1;
            }
        }
        self.0
            .clone()
            .into_iter()
            .flat_map(|range| range.first..range.high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ranges_hold_each_number_once() {
        for count in [1, 2, 15, 16, 17, 4096, 16_384] {
            let numbers: Vec<u32> = Reach::new(count)
                .0
                .iter()
                .flat_map(|range| range.first..range.end)
                .collect();
            assert_eq!(numbers, (0..count).collect::<Vec<_>>(), "{count}");
        }
    }

    #[test]
    fn numbers_in_use_are_found_past_one_that_is_not_written_yet() {
        let mut reach = Reach::new(1600);
        let used = [0, 2, 100, 101, 14 + 102];
        let found: Vec<u32> = reach.numbers(|number| used.contains(&number)).collect();
        assert_eq!(found, (0..3).chain(100..117).collect::<Vec<_>>());
        // Once in use, always looked at.
        assert_eq!(reach.numbers(|_| false).count(), 20);
        assert!(
            reach.goes_beyond(116) && !reach.goes_beyond(117),
            "ranges that nobody used end there"
        );
    }
}
