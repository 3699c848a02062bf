//! Calls between entry and return, remembered by thread.
//!
//! A call has a place in an array, by the low bits of the thread: a place that is known costs a tenth of what inserting
//! into a hash and deleting from it does. Whoever finds its place taken by another thread goes to a hash.

use core::{
    mem::MaybeUninit,
    ptr::{read_volatile, write_volatile},
};

use aya_ebpf::maps::{Array, HashMap};
use rdmatop_common::counters::loss;

use super::enter;
use crate::{
    emit::{copy, lost},
    maps::{CallKey, Place},
    pool::add,
    task::call_key,
};

/// Where a kind of call is remembered. Places are a power of two.
pub(crate) struct Calls<T: 'static> {
    pub(crate) places: &'static Array<Place<T>>,
    pub(crate) number: u32,
    pub(crate) rest: &'static HashMap<CallKey, T>,
}

/// What is added to give a claim back.
const BACK: u64 = u64::MAX;

#[inline(always)]
fn who(key: CallKey) -> u64 {
    u64::from(key.hook) << 32 | u64::from(key.tid)
}

impl<T: Copy> Calls<T> {
    #[inline(always)]
    fn place(&self, key: CallKey) -> Option<*mut Place<T>> {
        self.places.get_ptr_mut(key.tid & (self.number - 1))
    }

    /// Remembers a call. What finds no room makes its return count the loss. A call of this thread that is still there
    /// is counted here: its return probe did not fire.
    ///
    /// Linux 5.10 knows no compare-and-exchange. Of those who add to the claims at once at most one then reads 1, and
    /// nobody does who comes while the place is taken.
    #[inline(always)]
    pub(crate) fn remember(&self, hook: u32, call: &T) {
        let key = call_key(hook);
        let Some(place) = self.place(key) else { return };
        // SAFETY: the map checked the pointer; only the claim's holder writes the rest of the place.
        unsafe {
            let claims = &raw mut (*place).claims;
            add(claims, 1);
            if read_volatile(claims) != 1 {
                add(claims, BACK);
                if read_volatile(&raw const (*place).who) != who(key) {
                    return enter(self.rest, hook, call);
                }
                lost(loss::RETURN);
            }
            write_volatile(&raw mut (*place).who, who(key));
            copy(call, &raw mut (*place).call);
        }
    }

    /// Takes the call out that this thread is in. Nothing where none is remembered.
    #[inline(always)]
    pub(crate) fn recall<'a>(&self, hook: u32, call: &'a mut MaybeUninit<T>) -> Option<&'a T> {
        let key = call_key(hook);
        let place = self.place(key)?;
        // SAFETY: the map checked the pointers; no other thread writes a place or an entry of this one's.
        unsafe {
            if read_volatile(&raw const (*place).who) == who(key) {
                copy(&raw const (*place).call, call.as_mut_ptr());
                write_volatile(&raw mut (*place).who, 0);
                add(&raw mut (*place).claims, BACK);
            } else {
                copy(self.rest.get_ptr(&key)?, call.as_mut_ptr());
                let _ = self.rest.remove(&key);
            }
            Some(call.assume_init_ref())
        }
    }
}
