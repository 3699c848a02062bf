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

/// How much older than the next one, in ns, a call that has an entry may be. The return of one that is older
/// was missed: modify waits for a second at most. Who has returns missed on purpose would otherwise take the
/// entries of all until the programs are loaded anew.
const LONGEST_NS: u64 = 60_000_000_000;

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

    /// Remembers a call. `earlier` counts the loss where an earlier call whose return probe did not fire is
    /// still remembered: one of this thread, or one that is older by [`LONGEST_NS`]. Returns whether the call
    /// is remembered; if it is not, the program at its return counts the loss.
    #[inline(always)]
    pub(crate) fn remember(
        &self,
        hook: Hook,
        call: &T,
        began_ns: impl Fn(&T) -> u64,
        earlier: impl Fn(&T),
    ) -> bool {
        let key = call_key(hook);
        let Some(entry) = self.entry(key) else {
            return false;
        };
        // SAFETY: the map checked the pointer; only the claim's holder writes the rest of the entry.
        unsafe {
            let claims = &raw mut (*entry).claims;
            let is_free = claim(claims);
            if is_free {
                if let Some(before) = self.rest.get_ptr(&key) {
                    // Another thread had the entry at this thread's earlier call, and no longer has it.
                    earlier(&*before);
                    let _ = self.rest.remove(&key);
                }
            } else {
                // Only the holder's claim and this one: no third thread takes the entry over. If the holder
                // returns within these few instructions after all, one of the two calls is lost.
                let is_over = || {
                    let until_ns = began_ns(&(*entry).call) + LONGEST_NS;
                    read_volatile(claims) == 2 && until_ns < began_ns(call)
                };
                if read_volatile(&raw const (*entry).caller) != caller(key) && !is_over() {
                    unclaim(claims);
                    if let Some(before) = self.rest.get_ptr(&key) {
                        earlier(&*before);
                    }
                    return self.rest.insert(&key, call, 0).is_ok();
                }
                earlier(&(*entry).call);
            }
            write_volatile(&raw mut (*entry).caller, caller(key));
            copy(call, &raw mut (*entry).call);
            if !is_free {
                // The claim of the call before is this one's.
                unclaim(claims);
            }
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
