//! Calls between entry and return, remembered by thread.
//!
//! A call has an entry in an array, chosen by the low bits of the thread id. That costs a tenth of inserting
//! into and deleting from a hash table. A call whose entry another thread holds goes to a hash table.

use core::{
    mem::MaybeUninit,
    ptr::{read_volatile, write_volatile},
};

use aya_ebpf::maps::{Array, HashMap};

use super::Hook;
use crate::{
    maps::{CallEntry, CallKey},
    task::call_key,
    words::{claim, copy, release, unclaim},
};

/// The maps that remember one kind of call. The number of entries is a power of two.
pub(crate) struct Calls<T: 'static> {
    pub(crate) entries: &'static Array<CallEntry<T>>,
    pub(crate) number: u32,
    pub(crate) rest: &'static HashMap<CallKey, T>,
}

#[inline(always)]
fn caller(key: CallKey) -> u64 {
    u64::from(key.hook) << 32 | u64::from(key.tid)
}

impl<T: Copy> Calls<T> {
    #[inline(always)]
    fn entry(&self, key: CallKey) -> Option<*mut CallEntry<T>> {
        self.entries.get_ptr_mut(key.tid & (self.number - 1))
    }

    /// Remembers a call. `earlier` counts the loss where an earlier call of this thread is still remembered,
    /// whose return probe did not fire. Returns whether the call is remembered; if it is not, the program at
    /// its return counts the loss.
    #[inline(always)]
    pub(crate) fn remember(&self, hook: Hook, call: &T, earlier: impl Fn(&T)) -> bool {
        let key = call_key(hook);
        let Some(entry) = self.entry(key) else {
            return false;
        };
        // SAFETY: the map checked the pointer; only the claim's holder writes the rest of the entry.
        unsafe {
            let claims = &raw mut (*entry).claims;
            if !claim(claims) {
                unclaim(claims);
                if read_volatile(&raw const (*entry).caller) != caller(key) {
                    if let Some(before) = self.rest.get_ptr(&key) {
                        earlier(&*before);
                    }
                    return self.rest.insert(&key, call, 0).is_ok();
                }
                earlier(&(*entry).call);
            } else if let Some(before) = self.rest.get_ptr(&key) {
                // Another thread had the entry at this thread's earlier call, and no longer has it.
                earlier(&*before);
                let _ = self.rest.remove(&key);
            }
            write_volatile(&raw mut (*entry).caller, caller(key));
            copy(call, &raw mut (*entry).call);
        }
        true
    }

    /// Removes and returns the call that this thread is in, `None` if it is not remembered, or not the one
    /// that returns.
    #[inline(always)]
    pub(crate) fn recall<'a>(
        &self,
        hook: Hook,
        call: &'a mut MaybeUninit<T>,
        returns: impl Fn(&T) -> bool,
    ) -> Option<&'a T> {
        let key = call_key(hook);
        let entry = self.entry(key)?;
        // SAFETY: the map checked the pointers; no other thread writes what this one has in its entry
        // of the array or of the hash table.
        unsafe {
            if read_volatile(&raw const (*entry).caller) == caller(key) {
                if !returns(&(*entry).call) {
                    return None;
                }
                copy(&raw const (*entry).call, call.as_mut_ptr());
                write_volatile(&raw mut (*entry).caller, 0);
                release(&raw mut (*entry).claims);
            } else {
                let rest = self.rest.get_ptr(&key)?;
                if !returns(&*rest) {
                    return None;
                }
                copy(rest, call.as_mut_ptr());
                let _ = self.rest.remove(&key);
            }
            Some(call.assume_init_ref())
        }
    }
}
