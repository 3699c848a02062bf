//! How much of each growing map is in use, which the kernel side counts, and the limits that user space sets.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use aya::maps::Map;
use rdmatop_common::counters::{Room, room};

use super::mapped::{Mapped, MappedError};

/// The array of [`Room`]s, mapped into memory. Both sides change its words atomically.
#[derive(Clone)]
pub(super) struct Rooms {
    rows: Arc<Mapped<Room>>,
    /// How often QPs had found no room in the tables when the last complete list of QPs began.
    listed: Arc<AtomicU64>,
}

impl Rooms {
    pub(super) fn open(map: Option<&Map>) -> Result<Self, MappedError> {
        let map = map.ok_or(MappedError::NoMap("ROOM"))?;
        Ok(Self {
            rows: Arc::new(Mapped::open(map, "ROOM")?),
            listed: Arc::default(),
        })
    }

    fn limit_of(&self, row: u32) -> &AtomicU64 {
        // SAFETY: inside the mapping, which lives as long as this does; aligned, and both sides use the word
        // whole.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.rows.at(row)).limit) }
    }

    fn used_of(&self, row: u32, what: usize) -> &AtomicU64 {
        assert!(what < room::GENERATIONS as usize, "count {what} of a room");
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr((&raw mut (*self.rows.at(row)).used).cast::<u64>().add(what)) }
    }

    /// The kernel side may take numbers below this.
    pub(super) fn limit(&self, row: u32) -> u32 {
        u32::try_from(self.limit_of(row).load(Ordering::Relaxed)).unwrap_or(u32::MAX)
    }

    /// Lets the kernel side take more numbers. Their memory must exist.
    pub(super) fn set_limit(&self, row: u32, limit: u32) {
        self.limit_of(row).store(u64::from(limit), Ordering::Release);
    }

    /// One of the counts of [`Room::used`].
    pub(super) fn used(&self, row: u32, what: usize) -> u64 {
        let count = self.used_of(row, what).load(Ordering::Relaxed);
        // The count can be below 0 for a moment, when one CPU frees what another has just taken and not yet
        // counted.
        if count > u64::MAX / 2 { 0 } else { count }
    }

    /// How often a QP that is to be counted found no room in the tables of QPs.
    pub(super) fn refused(&self) -> u64 {
        self.used(room::SLOTS, room::REFUSED)
    }

    /// Notes that a list of all QPs is complete: it showed the kernel side every QP that was among the
    /// `refused` when it began.
    pub(super) fn set_listed(&self, refused: u64) {
        self.listed.fetch_max(refused, Ordering::Relaxed);
    }

    /// Whether QPs may exist that are in no table.
    pub(super) fn lacks_some(&self) -> bool {
        self.refused() > self.listed.load(Ordering::Relaxed)
    }

    /// Takes one off a count.
    pub(super) fn give_back(&self, row: u32, what: usize) {
        self.used_of(row, what).fetch_sub(1, Ordering::Relaxed);
    }
}
