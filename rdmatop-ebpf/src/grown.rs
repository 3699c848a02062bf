//! Maps that user space enlarges while programs use them.
//!
//! Each is an array of maps (`BPF_MAP_TYPE_ARRAY_OF_MAPS`) that holds inner maps of one kind. User space
//! makes an inner map and puts it into the next place of the outer map: from then on programs find it, and no
//! counter moves. The definitions here are those of the inner maps; the loader makes the outer maps around
//! them (source/ebpf/grown.rs of rdmatop).
//!
//! From Linux 6.1 on tables of QPs allocate an entry when its key is inserted ([`Generations::on_demand`]).
//! Older kernels warn about tracing programs that use such tables, and refuse them on a real-time kernel
//! (`check_map_prog_compatibility`, kernel/bpf/verifier.c): there the loader asks the kernel to allocate all
//! entries when it makes the table.

use core::{
    cell::UnsafeCell,
    ffi::c_void,
    marker::PhantomData,
    mem::MaybeUninit,
    ops::{Deref, DerefMut},
    ptr::{self, NonNull, from_ref},
};

use aya_ebpf::{
    bindings::{
        bpf_map_def,
        bpf_map_type::{BPF_MAP_TYPE_ARRAY, BPF_MAP_TYPE_HASH, BPF_MAP_TYPE_RINGBUF},
    },
    helpers::generated::{
        bpf_map_delete_elem, bpf_map_lookup_elem, bpf_map_update_elem, bpf_ringbuf_query,
        bpf_ringbuf_reserve, bpf_ringbuf_submit,
    },
};
use rdmatop_common::counters::room;

use crate::rooms::{MMAPABLE, count_here};

/// `BPF_NOEXIST`, include/uapi/linux/bpf.h.
const NOEXIST: u64 = 1;
/// `BPF_F_NO_PREALLOC`, include/uapi/linux/bpf.h.
const NO_PREALLOC: u32 = 1;

/// A map's definition, which the loader reads.
#[repr(transparent)]
struct Definition(UnsafeCell<bpf_map_def>);

// SAFETY: programs take its address only.
unsafe impl Sync for Definition {}

impl Definition {
    const fn new(kind: u32, sizes: (usize, usize), entries: u32, flags: u32) -> Self {
        Self(UnsafeCell::new(bpf_map_def {
            type_: kind,
            key_size: sizes.0 as u32,
            value_size: sizes.1 as u32,
            max_entries: entries,
            map_flags: flags,
            id: 0,
            pinning: 0,
        }))
    }

    /// The inner map with this number, `None` while there is none.
    #[inline(always)]
    fn inner(&self, number: u32) -> Option<NonNull<c_void>> {
        // SAFETY: the loader puts the outer map in the definition's place; its key is a u32.
        NonNull::new(unsafe { bpf_map_lookup_elem(self.0.get().cast(), (&raw const number).cast()) })
    }
}

#[inline(always)]
fn look_up<K, V>(map: NonNull<c_void>, key: &K) -> Option<NonNull<V>> {
    // SAFETY: the verifier knows the map and holds the key's size to it.
    NonNull::new(unsafe { bpf_map_lookup_elem(map.as_ptr(), from_ref(key).cast()) }.cast())
}

/// An array in chunks: each inner map is one value of type `T`, so that user space can map it.
#[repr(transparent)]
pub(crate) struct Chunks<T> {
    definition: Definition,
    piece: PhantomData<T>,
}

// SAFETY: as of the definition.
unsafe impl<T> Sync for Chunks<T> {}

impl<T> Chunks<T> {
    pub(crate) const fn new() -> Self {
        Self {
            definition: Definition::new(BPF_MAP_TYPE_ARRAY, (4, size_of::<T>()), 1, MMAPABLE),
            piece: PhantomData,
        }
    }

    /// A chunk, `None` while user space has not made it.
    #[inline(always)]
    pub(crate) fn get_ptr_mut(&self, number: u32) -> Option<*mut T> {
        // A variable, because the address of a constant would point into .rodata.
        let key = 0u32;
        look_up(self.definition.inner(number)?, &key).map(NonNull::as_ptr)
    }
}

/// A hash table in generations: each is several times larger than the one before, new keys go to the newest,
/// and a key stays in its generation.
///
/// While user space adds a generation, a program that is already running may not find it yet. If two CPUs
/// insert the same new key at that moment, one of them from such a program, both can succeed. For that, the
/// first two events of one QP must coincide with one of the times in a session when a table grows; the QP
/// would have two slots until it ends.
///
/// `N` is how many generations the table can have: each costs two look-ups in the functions below.
///
/// These functions are not inlined. The verifier (seen on Linux 6.12) replaces each look-up in a program by
/// code of its own, and for each of them copies what it knows of all instructions of the program: inlined, up
/// to 192 look-ups in 3,800 instructions took a third of the CPU time of a start.
#[repr(C)]
pub(crate) struct Generations<K, V, const N: u32> {
    definition: Definition,
    types: PhantomData<(K, V)>,
}

// SAFETY: as of the definition.
unsafe impl<K, V, const N: u32> Sync for Generations<K, V, N> {}

impl<K, V, const N: u32> Generations<K, V, N> {
    /// `first`: entries of the first generation.
    pub(crate) const fn new(first: u32) -> Self {
        Self::with_flags(first, 0)
    }

    /// As [`Generations::new`], with entries that take memory only while they are in use.
    pub(crate) const fn on_demand(first: u32) -> Self {
        Self::with_flags(first, NO_PREALLOC)
    }

    const fn with_flags(first: u32, flags: u32) -> Self {
        Self {
            definition: Definition::new(BPF_MAP_TYPE_HASH, (size_of::<K>(), size_of::<V>()), first, flags),
            types: PhantomData,
        }
    }

    #[inline(always)]
    pub(crate) fn get_ptr_mut(&self, key: &K) -> Option<*mut V> {
        NonNull::new(self.find(key)).map(NonNull::as_ptr)
    }

    #[inline(always)]
    pub(crate) fn get_ptr(&self, key: &K) -> Option<*const V> {
        self.get_ptr_mut(key).map(<*mut V>::cast_const)
    }

    /// The value of a key, null where no generation has the key. While there is no second generation there is
    /// no later one.
    #[inline(never)]
    fn find(&self, key: &K) -> *mut V {
        self.find_here(key)
    }

    /// As [`Generations::get_ptr_mut`], in the caller's own code: for a path that is taken often.
    #[cfg(not(feature = "counters"))]
    #[inline(always)]
    pub(crate) fn get_ptr_here(&self, key: &K) -> Option<*mut V> {
        NonNull::new(self.find_here(key)).map(NonNull::as_ptr)
    }

    #[inline(always)]
    fn find_here(&self, key: &K) -> *mut V {
        if self.definition.inner(1).is_some() {
            for generation in (1..N).rev() {
                if let Some(map) = self.definition.inner(generation)
                    && let Some(value) = look_up::<K, V>(map, key)
                {
                    return value.as_ptr();
                }
            }
        }
        if let Some(map) = self.definition.inner(0)
            && let Some(value) = look_up::<K, V>(map, key)
        {
            return value.as_ptr();
        }
        ptr::null_mut()
    }

    /// Inserts a key that no generation has. `row`: the row of ROOM that counts the table's entries.
    #[inline(always)]
    pub(crate) fn insert_new(&self, row: u32, key: &K, value: &V) -> Result<(), ()> {
        // While there is one generation, adding finds a key that is there. It is added to that one even if
        // there is a second by then.
        let several = self.definition.inner(1).is_some();
        if several && self.get_ptr(key).is_some() {
            return Err(());
        }
        if self.add(row, key, value, if several { N } else { 1 }) == 0 {
            Ok(())
        } else {
            Err(())
        }
    }

    /// Inserts a key that has another value, if there is room.
    #[cfg(not(feature = "counters"))]
    #[inline(always)]
    pub(crate) fn replace(&self, row: u32, key: &K, value: &V) {
        self.remove(row, key);
        // No generation has the key now.
        self.add(row, key, value, N);
    }

    /// Adds a key to the newest of the first `known` generations; 0 if that was done.
    #[inline(never)]
    fn add(&self, row: u32, key: &K, value: &V, known: u32) -> u64 {
        let mut newest = N;
        for generation in (0..N).rev() {
            if generation < known
                && let Some(map) = self.definition.inner(generation)
            {
                // SAFETY: as in `look_up`.
                let rc = unsafe {
                    bpf_map_update_elem(
                        map.as_ptr(),
                        from_ref(key).cast(),
                        from_ref(value).cast(),
                        NOEXIST,
                    )
                };
                if rc != 0 {
                    return 1;
                }
                newest = generation;
                break;
            }
        }
        if newest == N {
            return 1;
        }
        count_here(row, newest as usize, 1);
        0
    }

    /// Removes a key if its value `matches`: one look-up less in each generation than to look at the value
    /// first.
    #[cfg(not(feature = "counters"))]
    #[inline(always)]
    pub(crate) fn remove_where(&self, row: u32, key: &K, matches: impl Fn(*const V) -> bool) {
        let known = if self.definition.inner(1).is_some() { N } else { 1 };
        for generation in (0..N).rev() {
            if generation < known
                && let Some(map) = self.definition.inner(generation)
                && let Some(value) = look_up::<K, V>(map, key)
            {
                if matches(value.as_ptr())
                    // SAFETY: as in `look_up`.
                    && unsafe { bpf_map_delete_elem(map.as_ptr(), from_ref(key).cast()) } == 0
                {
                    count_here(row, generation as usize, room::BACK);
                }
                return;
            }
        }
    }

    #[inline(never)]
    pub(crate) fn remove(&self, row: u32, key: &K) {
        let mut its = N;
        for generation in (0..N).rev() {
            if let Some(map) = self.definition.inner(generation)
                // SAFETY: as in `look_up`.
                && unsafe { bpf_map_delete_elem(map.as_ptr(), from_ref(key).cast()) } == 0
            {
                its = generation;
                break;
            }
        }
        if its < N {
            count_here(row, its as usize, room::BACK);
        }
    }
}

impl<K, V: Copy, const N: u32> Generations<K, V, N> {
    /// Inserts a key, or changes its value. Returns whether there was room.
    #[inline(always)]
    pub(crate) fn set(&self, row: u32, key: &K, value: &V) -> bool {
        if let Some(known) = self.get_ptr_mut(key) {
            // SAFETY: the map checked the pointer; the value is one word, or nobody else writes it.
            unsafe { known.write_volatile(*value) };
            return true;
        }
        self.insert_new(row, key, value).is_ok()
    }
}

/// A ring buffer that user space can replace by a larger one: one inner map.
#[repr(transparent)]
pub(crate) struct Ring {
    definition: Definition,
}

/// Space reserved in a ring buffer; the program must submit it.
#[must_use]
pub(crate) struct Entry<T: 'static>(&'static mut MaybeUninit<T>);

impl<T> Deref for Entry<T> {
    type Target = MaybeUninit<T>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        self.0
    }
}

impl<T> DerefMut for Entry<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.0
    }
}

impl<T> Entry<T> {
    /// Hands the record to the reader.
    #[inline(always)]
    pub(crate) fn submit(self, flags: u64) {
        // SAFETY: `reserve` got it from the kernel, and nobody has submitted it yet.
        unsafe { bpf_ringbuf_submit(self.0.as_mut_ptr().cast(), flags) }
    }
}

/// A ring buffer as a program finds it. `BPF_RB_*`, include/uapi/linux/bpf.h.
#[derive(Clone, Copy)]
pub(crate) struct Filling(NonNull<c_void>);

impl Filling {
    #[inline(always)]
    fn query(self, what: u64) -> u64 {
        // SAFETY: the verifier knows the map; the helper only reads.
        unsafe { bpf_ringbuf_query(self.0.as_ptr(), what) }
    }

    /// Bytes that nobody has read yet.
    #[inline(always)]
    pub(crate) fn unread(self) -> u64 {
        self.query(0)
    }

    /// Bytes that it can hold.
    #[inline(always)]
    pub(crate) fn size(self) -> u64 {
        self.query(1)
    }

    /// How far the reader has come, in bytes since the ring buffer was made.
    #[inline(always)]
    pub(crate) fn read_to(self) -> u64 {
        self.query(2)
    }

    /// How far programs have written, as [`Filling::read_to`].
    #[inline(always)]
    pub(crate) fn written_to(self) -> u64 {
        self.query(3)
    }

    /// Reserves space for a record, `None` where the buffer is full.
    #[inline(always)]
    pub(crate) fn reserve<T: 'static>(self) -> Option<Entry<T>> {
        // SAFETY: the verifier knows the map; the room is as large as was asked for.
        unsafe {
            bpf_ringbuf_reserve(self.0.as_ptr(), size_of::<T>() as u64, 0)
                .cast::<MaybeUninit<T>>()
                .as_mut()
        }
        .map(Entry)
    }
}

impl Ring {
    pub(crate) const fn new(bytes: u32) -> Self {
        Self {
            definition: Definition::new(BPF_MAP_TYPE_RINGBUF, (0, 0), bytes, 0),
        }
    }

    /// The ring buffer that programs write to now.
    #[inline(always)]
    pub(crate) fn now(&self) -> Option<Filling> {
        self.definition.inner(0).map(Filling)
    }
}
