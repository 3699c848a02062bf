//! Decides when growing maps get more memory, and how much: early enough that no event waits for it.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use aya::maps::MapData;
use rdmatop_common::{
    counters::{
        QpSlot, SLOTS_A_CHUNK, VERB_ENTRIES, VERB_ERROR_ENTRIES, VERB_ERRORS_A_CHUNK, VERBS_A_CHUNK,
        VerbEntry, VerbErrorEntry, room,
    },
    names::map,
};
use tokio::sync::Notify;
use zerocopy::{FromBytes, IntoBytes};

use super::{
    attach::explain,
    grown::{AT_ONCE, Generations, Outer, Outers, Put, put},
    headroom::Headroom,
    mapped::{Arriving, Mapped, MappedError},
    rooms::Rooms,
};
use crate::{
    model::cause::{CauseId, Obstacle},
    source::netlink::{client::Nldev, error::NetlinkError},
};

// Why the sizes suffice. While the number of QPs grows, the reader looks every 2 ms (`Grower::nap`), and
// programs find new memory less than 1 ms later, before the kernel waits for its grace period. If another
// addition is under way, it first has to end with its own grace period, after some 30 ms at worst on a
// machine that does not swap. A create_qp takes at least 20 us (a system call, an object, two queues), and at
// most four threads do that in the kernel at once, because locks protect the object tables of a device and
// the addresses of queues (vmalloc). So at most 600 QPs are created in 3 ms, 6600 in 33 ms.
//
// A table of QPs has room for 3072 more at first, when no addition is under way, and for at least 4096 while
// it grows. A QP that still finds no room is reported as not counted at its creation, and its counts are
// unknown. The programs remember it at its next modify (three come before it can move) or send, or when all
// QPs are listed, which the grower has the kernel do as soon as there is room (`relist`): a QP that only
// receives makes no call that shows its address. From then on it is counted, and marked as counted since
// then.

/// How many numbers to keep free at least. A QP takes a number when it first moves, after three more calls
/// (to INIT, RTR, RTS): a thread needs 50 us per such QP. QPs that still wait for a number count as demand,
/// so memory is added before they move.
const LEAST_FREE: u64 = 64;
/// As [`LEAST_FREE`], for pairs of process and verb: a process that starts makes eight.
const LEAST_FREE_VERBS: u64 = 128;

/// How many entries to keep free in the newest generation of a table, or three quarters of it if that is
/// less.
const LEAST_FREE_ENTRIES: u64 = 4096;

/// How many numbers should have memory if `demand` are in use or needed: half as many again, and at least
/// `least_free` more.
fn wanted(demand: u64, least_free: u64, most: u32) -> u32 {
    let wanted = demand.saturating_add((demand / 2).max(least_free));
    u32::try_from(wanted).unwrap_or(u32::MAX).min(most)
}

/// How many chunks of `each` numbers to add to the `made` ones, so that there are `wanted` numbers.
fn pieces(wanted: u32, made: u32, each: u32) -> u32 {
    wanted.div_ceil(each).saturating_sub(made)
}

/// Whether a table's newest generation of `size` entries, `used` of them in use, is too small for `more` keys
/// that are sure to come, or for those that may come before the next generation exists.
fn is_short(size: u32, used: u64, more: u64) -> bool {
    let size = u64::from(size);
    let free = size.saturating_sub(used);
    free < (size - size / 4).min(LEAST_FREE_ENTRIES).max(more)
}

/// Maps a chunk into memory and passes it to its reader.
type HandOver = Box<dyn Fn(MapData) -> Result<(), MappedError> + Send>;

/// An array that grows by chunks.
struct Array {
    outer: Outer,
    row: u32,
    each: u32,
    most: u32,
    least_free: u64,
    hand_over: HandOver,
}

impl Array {
    /// How many numbers should have memory, for the present demand or for `besides` if that is more.
    fn wanted(&self, rooms: &Rooms, besides: u64) -> u32 {
        let demand = rooms.used(self.row, room::TAKEN) + rooms.used(self.row, room::WAITING);
        wanted(demand.max(besides), self.least_free, self.most)
    }

    fn pieces(&self, rooms: &Rooms, besides: u64) -> u32 {
        pieces(self.wanted(rooms, besides), self.outer.made(), self.each)
    }
}

/// A hash table that grows by generations.
struct Table {
    outer: Outer,
    row: u32,
    sizes: room::Sizes,
    /// The generations, for user space to remove keys.
    generations: Option<Generations>,
}

impl Table {
    /// Size of the generation to add now so that `keys` keys have room, `None` if none is needed.
    fn next(&self, rooms: &Rooms, keys: u64) -> Option<u32> {
        let made = self.outer.made() as usize;
        let next = *self.sizes.get(made)?;
        let Some(newest) = made.checked_sub(1) else {
            return Some(next);
        };
        let all: u64 = (0..made).map(|each| rooms.used(self.row, each)).sum();
        let used = rooms.used(self.row, newest);
        let short = is_short(*self.sizes.get(newest)?, used, keys.saturating_sub(all));
        (short && next > 0).then_some(next)
    }
}

/// Why maps got no more memory, for the report of the shortage. `None` if they got what they need.
pub(super) type Refusal = Arc<Mutex<Option<Obstacle>>>;

pub(super) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The growing maps of a session.
pub(super) struct Growth {
    rooms: Rooms,
    ring: Option<Outer>,
    /// Size of the ring buffer in bytes.
    ring_bytes: u32,
    /// The new ring buffer that programs write to now, until the reader takes it.
    new_ring: Option<MapData>,
    arrays: Vec<Array>,
    tables: Vec<Table>,
    refusal: Refusal,
    /// Why a map could not be put into its place. Then later places are useless.
    stuck: Option<Obstacle>,
}

/// The readers' side of the growing maps: where new chunks of the arrays arrive.
pub(super) struct Pieces {
    pub(super) slots: Arriving<QpSlot>,
    pub(super) verbs: Arriving<VerbEntry>,
    pub(super) errors: Arriving<VerbErrorEntry>,
    pub(super) verb_index: Generations,
    pub(super) error_index: Generations,
    /// How many entries the tables of verbs and of failures can have: 0 if no program uses them.
    pub(super) most_verbs: u32,
    pub(super) most_errors: u32,
}

fn hand_over<T: FromBytes + IntoBytes + Copy + 'static>(
    each: u32,
    name: &'static str,
    to: &Arriving<T>,
) -> HandOver {
    let to = Arc::clone(to);
    Box::new(move |map| {
        let piece = Mapped::piece(&map, each, name)?;
        lock(&to).push(piece);
        Ok(())
    })
}

impl Growth {
    /// The growing maps, none of which has memory yet. `slots`: how many QPs can be counted at most;
    /// `known_qps`: how many can be known.
    pub(super) fn new(mut outers: Outers, rooms: Rooms, slots: u32, known_qps: u32) -> (Self, Pieces) {
        let most = |name: &str, most| if outers.contains_key(name) { most } else { 0 };
        let pieces = Pieces {
            most_verbs: most(map::VERBS, VERB_ENTRIES),
            most_errors: most(map::VERB_ERRORS, VERB_ERROR_ENTRIES),
            slots: Arriving::default(),
            verbs: Arriving::default(),
            errors: Arriving::default(),
            verb_index: Generations::default(),
            error_index: Generations::default(),
        };
        let mut arrays = Vec::new();
        let mut array = |name: &str, row, each, most, least_free, hand_over| {
            arrays.extend(outers.remove(name).map(|outer| Array {
                outer,
                row,
                each,
                most,
                least_free,
                hand_over,
            }));
        };
        let to = hand_over(VERBS_A_CHUNK, map::VERBS, &pieces.verbs);
        array(
            map::VERBS,
            room::VERBS,
            VERBS_A_CHUNK,
            VERB_ENTRIES,
            LEAST_FREE_VERBS,
            to,
        );
        let to = hand_over(VERB_ERRORS_A_CHUNK, map::VERB_ERRORS, &pieces.errors);
        array(
            map::VERB_ERRORS,
            room::VERB_ERRORS,
            VERB_ERRORS_A_CHUNK,
            VERB_ERROR_ENTRIES,
            LEAST_FREE,
            to,
        );
        let to = hand_over(SLOTS_A_CHUNK, map::QP_SLOTS, &pieces.slots);
        array(map::QP_SLOTS, room::SLOTS, SLOTS_A_CHUNK, slots, LEAST_FREE, to);
        let tables = [
            (map::QP_INDEX, room::QP_INDEX, room::qps(known_qps), None),
            (map::QPN_INDEX, room::QPN_INDEX, room::qps(known_qps), None),
            (map::QUEUE_SLOTS, room::QUEUE_SLOTS, room::queues(slots), None),
            (
                map::VERB_INDEX,
                room::VERB_INDEX,
                room::VERB_KEYS,
                Some(&pieces.verb_index),
            ),
            (
                map::VERB_ERROR_INDEX,
                room::VERB_ERROR_INDEX,
                room::VERB_ERROR_KEYS,
                Some(&pieces.error_index),
            ),
        ]
        .into_iter()
        .filter_map(|(name, row, sizes, generations)| {
            Some(Table {
                outer: outers.remove(name)?,
                row,
                sizes,
                generations: generations.cloned(),
            })
        })
        .collect();
        let growth = Self {
            ring: outers.remove(map::EVENTS),
            ring_bytes: 0,
            new_ring: None,
            rooms,
            arrays,
            tables,
            refusal: Refusal::default(),
            stuck: None,
        };
        (growth, pieces)
    }

    /// Makes the maps that counting begins with, with room for `qps` existing QPs as far as the kernel grants
    /// memory. Returns the ring buffer.
    pub(super) fn begin(&mut self, ring_bytes: u32, qps: u64) -> Result<MapData, Obstacle> {
        let Some(outer) = &mut self.ring else {
            return Err(Obstacle::new(CauseId::Defect, "the object has no EVENTS map", ""));
        };
        let ring = outer.make(ring_bytes).map_err(|error| explain(&error))?;
        let put = outer.next(&ring).map_err(|error| explain(&error))?;
        self.try_to(0, vec![put], &mut Headroom::unlimited())?;
        self.ring_bytes = ring_bytes;
        // If there is not room for all QPs, some are still counted, and `refusal` says why the others are
        // not.
        self.grow(qps, None);
        Ok(ring)
    }

    /// Makes a ring buffer to replace the present one.
    fn next_ring(&self, bytes: u32, headroom: &mut Headroom) -> Option<(Put, MapData)> {
        let outer = self.ring.as_ref()?;
        headroom.take(u64::from(bytes)).ok()?;
        let ring = outer.make(bytes).ok()?;
        Some((outer.next(&ring).ok()?, ring))
    }

    /// Removes the array of slots, which no program uses if no data path is counted.
    pub(super) fn without_slots(&mut self) {
        self.arrays.retain(|array| array.row != room::SLOTS);
    }

    /// Shared cell that says why maps got no more memory.
    pub(super) fn refusal(&self) -> Refusal {
        Arc::clone(&self.refusal)
    }

    /// Whether any map needs more memory.
    pub(super) fn is_wanted(&self) -> bool {
        if self.stuck.is_some() {
            return false;
        }
        let short = |array: &Array| array.pieces(&self.rooms, 0) > 0;
        self.arrays.iter().any(short)
            || self
                .tables
                .iter()
                .any(|table| table.next(&self.rooms, self.keys(table, 0)).is_some())
    }

    /// Whether another QP would find room in the tables.
    fn has_places(&self) -> bool {
        self.tables
            .iter()
            .filter(|table| [room::QP_INDEX, room::QPN_INDEX].contains(&table.row))
            .all(|table| {
                let newest = (table.outer.made() as usize).checked_sub(1);
                newest.is_some_and(|newest| {
                    let size = table.sizes.get(newest).map_or(0, |size| u64::from(*size));
                    self.rooms.used(table.row, newest) < size
                })
            })
    }

    /// How many QPs the kernel side knows.
    fn known(&self) -> u64 {
        let each = 0..room::GENERATIONS as usize;
        each.map(|generation| self.rooms.used(room::QP_INDEX, generation))
            .sum()
    }

    /// Gives maps the memory they need, at least enough for `qps` QPs, and replaces the ring buffer by one of
    /// `ring` bytes. If the kernel refuses memory, the next call asks again.
    pub(super) fn grow(&mut self, qps: u64, ring: Option<u32>) {
        if self.stuck.is_some() {
            return;
        }
        let mut headroom = Headroom::now();
        let mut outcome = self.add_generations(qps, &mut headroom);
        // If this fails no record is lost yet, and the next call tries again.
        let next = ring.and_then(|bytes| Some((bytes, self.next_ring(bytes, &mut headroom)?)));
        let (puts, next) = match next {
            Some((bytes, (put, map))) => (vec![put], Some((bytes, map))),
            None => (Vec::new(), None),
        };
        outcome = outcome.and(self.try_to(qps, puts, &mut headroom));
        if let Some((bytes, map)) = next
            && self.stuck.is_none()
        {
            // Programs no longer write to the previous ring buffer, which holds the older records.
            self.ring_bytes = bytes;
            self.new_ring = Some(map);
        }
        *lock(&self.refusal) = outcome.err();
    }

    /// How many keys a table needs room for if there are `qps` QPs.
    fn keys(&self, table: &Table, qps: u64) -> u64 {
        match table.row {
            room::QP_INDEX | room::QPN_INDEX => qps,
            // Two keys per slot that exists or is about to: this number is known beforehand.
            room::QUEUE_SLOTS => {
                let slots = self.arrays.iter().find(|array| array.row == room::SLOTS);
                2 * slots.map_or(0, |array| u64::from(array.wanted(&self.rooms, qps)))
            }
            _ => 0,
        }
    }

    /// Adds generations to tables that are short of room. This comes before the slots: a QP without room in a
    /// table is not counted, but a QP without a slot has correct counts until it moves.
    fn add_generations(&mut self, qps: u64, headroom: &mut Headroom) -> Result<(), Obstacle> {
        let keys: Vec<u64> = self.tables.iter().map(|table| self.keys(table, qps)).collect();
        let mut outcome = Ok(());
        let mut puts = Vec::new();
        for (table, keys) in self.tables.iter_mut().zip(keys) {
            while let Some(entries) = table.next(&self.rooms, keys) {
                match table.generation(entries, headroom) {
                    Ok(put) => puts.push(put),
                    Err(obstacle) => {
                        outcome = Err(obstacle);
                        break;
                    }
                }
            }
        }
        outcome.and(self.put(&puts))
    }

    /// Puts maps into their places. If that fails, no map can grow any more.
    fn put(&mut self, puts: &[Put]) -> Result<(), Obstacle> {
        put(puts).map_err(|error| {
            let obstacle = explain(&error);
            self.stuck = Some(obstacle.clone());
            obstacle
        })
    }

    /// Adds chunks, up to [`AT_ONCE`] at a time, the first time together with `puts`. Each time tables come
    /// first.
    fn try_to(&mut self, qps: u64, mut puts: Vec<Put>, headroom: &mut Headroom) -> Result<(), Obstacle> {
        loop {
            let mut outcome = self.add_generations(qps, headroom);
            if self.stuck.is_some() {
                return outcome;
            }
            'all: for array in &mut self.arrays {
                let besides = if array.row == room::SLOTS { qps } else { 0 };
                for _ in 0..array.pieces(&self.rooms, besides) {
                    if puts.len() == AT_ONCE {
                        break 'all;
                    }
                    match array.piece(headroom) {
                        Ok(put) => puts.push(put),
                        Err(obstacle) => {
                            outcome = Err(obstacle);
                            break;
                        }
                    }
                }
            }
            if puts.is_empty() {
                return outcome;
            }
            self.put(&puts)?;
            // Raise the limits only now: programs must find the memory of every number below them.
            for array in &self.arrays {
                let there = array.outer.made().saturating_mul(array.each).min(array.most);
                self.rooms.set_limit(array.row, there);
            }
            outcome?;
            puts = Vec::new();
        }
    }
}

impl Array {
    /// Makes one more chunk and maps it into memory.
    fn piece(&mut self, headroom: &mut Headroom) -> Result<Put, Obstacle> {
        headroom.take(self.outer.bytes(1))?;
        let map = self.outer.make(1).map_err(|error| explain(&error))?;
        let put = self.outer.next(&map).map_err(|error| explain(&error))?;
        (self.hand_over)(map).map_err(|error| explain(&error))?;
        self.outer.advance();
        Ok(put)
    }
}

impl Table {
    /// Makes one more generation.
    fn generation(&mut self, entries: u32, headroom: &mut Headroom) -> Result<Put, Obstacle> {
        headroom.take(self.outer.bytes(entries))?;
        let map = self.outer.make(entries).map_err(|error| explain(&error))?;
        let put = self.outer.next(&map).map_err(|error| explain(&error))?;
        if let Some(generations) = &self.generations {
            generations.add(&map).map_err(|error| explain(&error))?;
        }
        self.outer.advance();
        Ok(put)
    }
}

/// How long to wait after the kernel refused memory.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// How long to wait after a list of QPs: the least time, and the multiple of the time that the last list
/// took. A list takes time quadratic in the number of QPs of a device.
const LIST_AGAIN: Duration = Duration::from_secs(1);
const LIST_SELDOM: u32 = 20;

/// Makes the kernel list the QPs of all devices, which shows each QP to the programs (`ib_query_qp`). Returns
/// whether the lists are complete.
fn list_qps() -> Result<bool, NetlinkError> {
    let mut nldev = Nldev::open()?;
    let devices = nldev.devices()?;
    let mut complete = !devices.interrupted;
    for device in devices.items {
        complete &= !nldev.each_qp(device.index, &mut |_| ())?;
    }
    Ok(complete)
}

/// Makes a session's maps grow, on a thread of its own, because the calls wait for RCU grace periods.
pub(super) struct Grower {
    growth: Arc<Mutex<Growth>>,
    at_work: Option<JoinHandle<()>>,
    again: Instant,
    /// Largest size of the ring buffer in bytes.
    ring_most: u32,
    /// The ring buffer should be replaced by one of that size: it fills fast, or a trace has started.
    ring_wanted: bool,
    /// The highest number of known QPs so far.
    highest: u64,
    rooms: Rooms,
    /// The thread that lists the QPs and returns how long that took.
    lister: Option<JoinHandle<Duration>>,
    list_again: Instant,
    /// Notified when the thread has ended: nothing else would make the reader take the new ring buffer.
    done: Arc<Notify>,
}

impl Grower {
    pub(super) fn new(growth: Growth, ring_most: u32) -> Self {
        Self {
            rooms: growth.rooms.clone(),
            lister: None,
            list_again: Instant::now(),
            growth: Arc::new(Mutex::new(growth)),
            at_work: None,
            again: Instant::now(),
            ring_most,
            ring_wanted: false,
            highest: 0,
            done: Arc::default(),
        }
    }

    /// Notified when the maps have grown.
    pub(super) fn done(&self) -> Arc<Notify> {
        Arc::clone(&self.done)
    }

    /// Notes how many bytes were in the ring buffer after a nap of its reader.
    pub(super) fn drained(&mut self, bytes: usize) {
        if self.at_work.is_none() && !self.ring_wanted {
            let holds = lock(&self.growth).ring_bytes;
            self.ring_wanted = holds < self.ring_most && bytes > holds as usize / 8;
        }
    }

    /// Has the next [`Grower::look`] replace the ring buffer by one of the largest size.
    pub(super) fn enlarge_ring(&mut self) {
        self.ring_wanted = true;
    }

    /// How long the reader may nap now: its usual time, or a moment if the number of known QPs has reached a
    /// new maximum.
    pub(super) fn nap(&mut self, usual: Duration) -> Duration {
        /// See the comment at the top of the file.
        const SHORT: Duration = Duration::from_millis(2);
        let Ok(growth) = self.growth.try_lock() else {
            return SHORT;
        };
        let known = growth.known();
        if known <= self.highest {
            return usual;
        }
        self.highest = known;
        SHORT
    }

    /// Starts to make the maps grow if needed, and returns at once. Cheap if it is not needed.
    pub(super) fn look(&mut self) {
        self.relist();
        if self.at_work.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        self.finish();
        if Instant::now() < self.again {
            return;
        }
        let growth = lock(&self.growth);
        let refused = lock(&growth.refusal).is_some();
        let smaller = growth.ring_bytes < self.ring_most;
        let ring = (std::mem::take(&mut self.ring_wanted) && smaller).then_some(self.ring_most);
        if ring.is_none() && !growth.is_wanted() {
            return;
        }
        drop(growth);
        if refused {
            self.again = Instant::now() + TRY_AGAIN;
        }
        let (growth, done) = (Arc::clone(&self.growth), Arc::clone(&self.done));
        let work = move || {
            lock(&growth).grow(0, ring);
            done.notify_one();
        };
        match thread::Builder::new().name("grow".to_owned()).spawn(work.clone()) {
            Ok(thread) => self.at_work = Some(thread),
            // If no thread can be started, do it here; records wait meanwhile.
            Err(_) => work(),
        }
    }

    /// Makes the kernel list all QPs if some found no room in the tables and there is room now. This uses a
    /// thread that nobody waits for, because a driver may be slow to answer.
    fn relist(&mut self) {
        if !self.rooms.lacks_some() {
            return;
        }
        if let Some(lister) = self.lister.take_if(|lister| lister.is_finished()) {
            let took = lister.join().unwrap_or_default();
            self.list_again = Instant::now() + (took * LIST_SELDOM).max(LIST_AGAIN);
        }
        if self.lister.is_some() || Instant::now() < self.list_again {
            return;
        }
        // If the lock is taken, the maps are growing; `look` calls this again.
        if !self.growth.try_lock().is_ok_and(|growth| growth.has_places()) {
            return;
        }
        let rooms = self.rooms.clone();
        let work = move || {
            let began = Instant::now();
            let refused = rooms.refused();
            // A listed QP that finds no room is counted as refused once more.
            if list_qps().unwrap_or(false) {
                rooms.set_listed(refused);
            }
            began.elapsed()
        };
        self.lister = thread::Builder::new().name("list".to_owned()).spawn(work).ok();
        if self.lister.is_none() {
            self.list_again = Instant::now() + LIST_AGAIN;
        }
    }

    /// Waits for the thread that makes the maps grow.
    pub(super) fn finish(&mut self) {
        if let Some(thread) = self.at_work.take() {
            drop(thread.join());
        }
    }

    /// Takes the new ring buffer, once. The caller must empty the previous one first.
    pub(super) fn take_ring(&mut self) -> Option<MapData> {
        // The thread holds the lock while it makes maps grow.
        self.growth.try_lock().ok()?.new_ring.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_as_many_again_are_there_and_never_fewer_than_some() {
        assert_eq!(wanted(0, 64, 16_384), 64);
        assert_eq!(wanted(102, 64, 16_384), 166);
        assert_eq!(wanted(1000, 64, 16_384), 1500);
        assert_eq!(wanted(16_000, 64, 16_384), 16_384);
        assert_eq!(wanted(u64::MAX, 64, 8), 8);
        assert_eq!(pieces(166, 0, 64), 3);
        assert_eq!(pieces(166, 3, 64), 0);
        assert_eq!(pieces(8, 0, 64), 1);
        assert_eq!(pieces(8, 1, 64), 0, "no more than were asked for");
    }

    #[test]
    fn a_table_is_short_long_before_a_burst_can_fill_it() {
        let [first, second, ..] = room::KNOWN_QPS;
        assert!(!is_short(first, 1024, 0));
        assert!(is_short(first, 1025, 0), "room for 3071 more");
        assert!(!is_short(second, 24_576, 0));
        assert!(is_short(second, 24_577, 0), "room for 4095 more");
        // QPs that exist already.
        assert!(!is_short(first, 0, 4096) && is_short(first, 0, 4097));
    }

    #[test]
    fn each_slot_finds_room_for_both_of_its_queues() {
        for slots in [2, 64, 8192, 16_384, 65_536, 1 << 20] {
            let sizes = room::queues(slots);
            // However much stays unused in the older generations.
            assert!(
                sizes.iter().rev().find(|size| **size > 0) >= Some(&(2 * slots)),
                "{sizes:?}"
            );
        }
    }
}
