//! Maps that grow while programs use them: arrays of maps, see `grown.rs` of rdmatop-ebpf.
//!
//! To put a new map into its place takes a system call on a map while the programs count. While that call
//! exchanges a pointer (`bpf_map_update_value`), the kernel runs no kprobe program on this CPU, so no other
//! task may have the CPU meanwhile ([`Unpreempted`]). Then the call waits for an RCU grace period, during
//! which programs run again (`maybe_wait_bpf_programs`).

use std::{
    collections::HashMap,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use aya::maps::{MapData, MapError};
use aya_obj::generated::{bpf_attr, bpf_cmd, bpf_map_type};
use rustix::param::page_size;

use super::{
    load_error::LoadError,
    sys::{bpf, empty, raw_bpf},
    unpreempted::Unpreempted,
};
use crate::source::limits;

/// The outer map of a growing map: an array of maps.
pub(super) struct Outer {
    name: String,
    fd: OwnedFd,
    /// The object's definition of the inner maps, adapted to what this kernel supports.
    definition: aya_obj::Map,
    /// How many places hold an inner map.
    made: u32,
}

/// The outer maps of a session, by name.
pub(super) type Outers = HashMap<String, Outer>;

/// `BPF_F_NO_PREALLOC`, include/uapi/linux/bpf.h.
const NO_PREALLOC: u32 = 1;

/// Whether tracing programs may use hash tables that allocate an entry when its key is inserted: since Linux
/// 6.1 these use `bpf_mem_alloc`. A vendor's older kernel may support that too; there rdmatop takes more
/// memory than needed.
fn allocates_on_demand(version: Option<(u32, u32)>) -> bool {
    version.is_some_and(|version| version >= (6, 1))
}

/// A definition of inner maps that this kernel supports.
fn fitted(definition: &aya_obj::Map) -> aya_obj::Map {
    let mut fitted = definition.clone();
    if let aya_obj::Map::Legacy(map) = &mut fitted
        && !allocates_on_demand(limits::kernel_version())
    {
        map.def.map_flags &= !NO_PREALLOC;
    }
    fitted
}

fn name_of(name: &str, attr: &mut bpf_attr) {
    // SAFETY: a union of plain integers, all zero but for fields of MAP_CREATE.
    let create = unsafe { &mut attr.__bindgen_anon_1 };
    for (to, from) in create.map_name.iter_mut().take(15).zip(name.bytes()) {
        *to = from.cast_signed() as _;
    }
}

impl Outer {
    /// Makes an outer map whose inner maps have the given definition.
    pub(super) fn create(name: &str, definition: &aya_obj::Map, places: u32) -> Result<Self, LoadError> {
        let definition = fitted(definition);
        // The kernel takes type, sizes and flags from a template map and does not keep it. How many entries
        // there are is each inner map's own: a ring buffer of 16 MiB as a template would take eight million
        // instructions.
        let mut template = definition.clone();
        if template.map_type() == bpf_map_type::BPF_MAP_TYPE_RINGBUF as u32 {
            template.set_max_entries(u32::try_from(page_size()).unwrap_or(4096));
        }
        let model = MapData::create(template, name, None)?;
        let mut attr = empty();
        // SAFETY: a union of plain integers, all zero; the fields of MAP_CREATE are written.
        let create = unsafe { &mut attr.__bindgen_anon_1 };
        create.map_type = bpf_map_type::BPF_MAP_TYPE_ARRAY_OF_MAPS as u32;
        create.key_size = 4;
        create.value_size = 4;
        create.max_entries = places.max(1);
        create.inner_map_fd = model.fd().as_fd().as_raw_fd().cast_unsigned();
        name_of(name, &mut attr);
        // SAFETY: the attribute names only the descriptor above.
        let fd = unsafe { bpf(bpf_cmd::BPF_MAP_CREATE, &mut attr) }.map_err(|error| LoadError::Refused {
            what: "cannot make an array of maps",
            error,
        })?;
        Ok(Self {
            name: name.to_owned(),
            fd,
            definition,
            made: 0,
        })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// How many places hold an inner map.
    pub(super) fn made(&self) -> u32 {
        self.made
    }

    /// About how many bytes an inner map with so many entries takes when it is made.
    pub(super) fn bytes(&self, entries: u32) -> u64 {
        /// An element's header (`struct htab_elem`) and its share of the buckets.
        const HEADER: u64 = 48 + 16;
        /// `struct bucket`.
        const BUCKET: u64 = 16;
        if self.definition.map_flags() & NO_PREALLOC != 0 {
            return BUCKET * u64::from(entries).next_power_of_two();
        }
        let entry = u64::from(self.definition.key_size()) + u64::from(self.definition.value_size());
        (entry + HEADER).saturating_mul(u64::from(entries))
    }

    /// Makes an inner map, which no program finds yet.
    pub(super) fn make(&self, entries: u32) -> Result<MapData, MapError> {
        let mut definition = self.definition.clone();
        definition.set_max_entries(entries);
        MapData::create(definition, &self.name, None)
    }

    /// Prepares to put a map into the next place. The caller must call [`Outer::advance`] too.
    pub(super) fn next(&self, map: &MapData) -> std::io::Result<Put> {
        Ok(Put {
            outer: self.fd.try_clone()?,
            place: self.made,
            inner: map.fd().as_fd().try_clone_to_owned()?,
        })
    }

    /// Marks the next place as taken.
    pub(super) fn advance(&mut self) {
        self.made += 1;
    }
}

/// The generations of a hash table, for user space to remove keys. Maps are added to it later.
#[derive(Clone, Default)]
pub(super) struct Generations(Arc<Mutex<Vec<OwnedFd>>>);

impl Generations {
    pub(super) fn add(&self, map: &MapData) -> std::io::Result<()> {
        let fd = map.fd().as_fd().try_clone_to_owned()?;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(fd);
        Ok(())
    }

    /// Removes a key. Returns the generation that had it, `None` if none had.
    pub(super) fn remove(&self, key: &[u8]) -> Option<usize> {
        let maps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        maps.iter().rposition(|map| {
            let mut attr = empty();
            // SAFETY: a union of plain integers, all zero; the fields of MAP_DELETE_ELEM are written.
            let element = unsafe { &mut attr.__bindgen_anon_2 };
            element.map_fd = map.as_raw_fd().cast_unsigned();
            element.key = key.as_ptr() as u64;
            let _unpreempted = Unpreempted::begin();
            // SAFETY: the caller's key is one of the map's, and outlives the call.
            unsafe { raw_bpf(bpf_cmd::BPF_MAP_DELETE_ELEM, &mut attr) }.is_ok()
        })
    }
}

/// An inner map and the place of an outer map to put it into.
pub(super) struct Put {
    outer: OwnedFd,
    place: u32,
    inner: OwnedFd,
}

impl Put {
    fn run(&self) -> std::io::Result<()> {
        let (key, value) = (self.place, self.inner.as_raw_fd());
        let mut attr = empty();
        // SAFETY: a union of plain integers, all zero; the fields of MAP_UPDATE_ELEM are written.
        let element = unsafe { &mut attr.__bindgen_anon_2 };
        element.map_fd = self.outer.as_raw_fd().cast_unsigned();
        element.key = std::ptr::from_ref(&key) as u64;
        element.__bindgen_anon_1.value = std::ptr::from_ref(&value) as u64;
        let _unpreempted = Unpreempted::begin();
        // SAFETY: key and value are of the sizes that an array of maps has, and outlive the call.
        unsafe { raw_bpf(bpf_cmd::BPF_MAP_UPDATE_ELEM, &mut attr) }.map(drop)
    }
}

/// How many threads put maps into their places: each call waits for a grace period, and several calls can
/// share one.
pub(super) const AT_ONCE: usize = 16;

/// Puts maps into their places, as many as the kernel accepts.
pub(super) fn put(all: &[Put]) -> std::io::Result<()> {
    let mut outcome = Ok(());
    for some in all.chunks(AT_ONCE) {
        let (own, others) = some
            .split_first()
            .map_or((None, some), |(first, rest)| (Some(first), rest));
        let outcomes: Vec<std::io::Result<()>> = thread::scope(|scope| {
            let started: Vec<_> = others
                .iter()
                .map(|one| {
                    let thread = thread::Builder::new().name("grow".to_owned());
                    (one, thread.spawn_scoped(scope, || one.run()))
                })
                .collect();
            let mut outcomes: Vec<_> = own.map(Put::run).into_iter().collect();
            for (one, thread) in started {
                outcomes.push(match thread {
                    Ok(thread) => thread.join().unwrap_or_else(|_| one.run()),
                    // If no thread can be started, do it on this one.
                    Err(_) => one.run(),
                });
            }
            outcomes
        });
        outcome = outcomes.into_iter().fold(outcome, std::io::Result::and);
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_made_beforehand_where_the_kernel_warns_of_others() {
        for old in [None, Some((5, 10)), Some((5, 14)), Some((6, 0))] {
            assert!(!allocates_on_demand(old), "{old:?}");
        }
        for new in [(6, 1), (6, 12), (7, 0)] {
            assert!(allocates_on_demand(Some(new)), "{new:?}");
        }
    }
}
