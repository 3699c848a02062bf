//! Words that several CPUs write, values that are written word by word, and loops.

use core::{
    arch::asm,
    ffi::c_void,
    intrinsics::{AtomicOrdering, atomic_xadd},
    mem::MaybeUninit,
    ptr::{read_volatile, write_volatile},
};

use aya_ebpf::{bindings::pt_regs, helpers::bpf_loop, maps::HashMap};
use zerocopy::{FromZeros, IntoBytes};

use crate::offsets::HAS_FENCE;

/// Whether other CPUs may see the stores of a program in another order, and whether the CPU may read ahead:
/// true on all machines but x86-64, which is recognised by the size of its registers.
const REORDERS: bool = size_of::<pt_regs>() != 168;

/// Adds to a word that several CPUs share.
#[inline(always)]
pub(crate) fn add(word: *mut u64, value: u64) {
    // SAFETY: the pointer is to a member of a map value that the verifier knows; the add is atomic.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(word, value) };
}

/// Raises a word that only grows, and that others may read at any time.
///
/// # Safety
/// The pointer must be to a member of a map value that the verifier knows.
#[inline(always)]
pub(crate) unsafe fn raise(word: *mut u64, value: u64) {
    // SAFETY: the caller promises it.
    unsafe {
        if value > read_volatile(word) {
            write_volatile(word, value);
        }
    }
}

/// Calls `visit` with the state `turns` times, or until it returns 1. The verifier checks a callback once and
/// not once per turn.
#[inline(always)]
pub(crate) fn each<T>(turns: u32, visit: unsafe extern "C" fn(u32, *mut T) -> i64, state: &mut T) {
    // SAFETY: the helper expects a callback, its state, which outlives the call, and no flags.
    unsafe { bpf_loop(turns, visit as *mut c_void, (&raw mut *state).cast(), 0) };
}

/// Removes an entry, if it has this value: a newer owner's entry stays.
#[inline(always)]
pub(crate) fn remove_if<K, V: Copy + PartialEq>(map: &HashMap<K, V>, key: &K, value: V) {
    if let Some(now) = map.get_ptr(key)
        // SAFETY: the map checked the pointer.
        && unsafe { *now } == value
    {
        let _ = map.remove(key);
    }
}

/// Orders memory accesses: other CPUs and user space see those before this call before those after it. `word`
/// may be any word of a map value.
///
/// eBPF has no fence instruction. On arm64 an atomic instruction that returns the old value is one, because
/// the kernel makes `ldsetal` of it (arch/arm64/net/bpf_jit_comp.c); a plain atomic add becomes `stadd` and
/// is none. x86-64 needs nothing: it keeps stores in order, loads too, and each atomic add is a fence.
#[inline(always)]
pub(crate) fn fence(word: *mut u64) {
    if REORDERS && HAS_FENCE.load() != 0 {
        // SAFETY: as for `add`; the word keeps its value.
        unsafe {
            asm!(
                "{value} = atomic_fetch_or((u64 *)({word} + 0), {value})",
                word = in(reg) word,
                value = inout(reg) 0_u64 => _,
            );
        }
    }
}

/// As [`add`], ordered after all accesses before it and before all accesses after it.
#[inline(always)]
pub(crate) fn add_in_order(word: *mut u64, value: u64) {
    fence(word);
    add(word, value);
    fence(word);
}

/// Claims what `word` guards, if nobody holds it. Of several CPUs that add at once, at most one then reads 1;
/// this needs no compare-and-exchange, which Linux 5.10 lacks. What the new holder does after the claim
/// happens after what the last holder did before its release.
#[inline(always)]
pub(crate) fn claim(word: *mut u64) -> bool {
    add(word, 1);
    // SAFETY: as above.
    let got = unsafe { read_volatile(word) } == 1;
    if got {
        fence(word);
    }
    got
}

/// Takes back a claim that failed.
#[inline(always)]
pub(crate) fn unclaim(word: *mut u64) {
    add(word, u64::MAX);
}

/// Ends a claim that succeeded.
#[inline(always)]
pub(crate) fn release(word: *mut u64) {
    fence(word);
    add(word, u64::MAX);
}

/// The two members of 32 bits that share a word in memory, the first one first. All machines that the
/// programs run on are little endian.
#[inline(always)]
pub(crate) fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

/// Zeroes a place word by word. Otherwise LLVM calls a memset that goes byte by byte, at five instructions
/// for each.
///
/// # Safety
/// The place must be writable and aligned to 8 bytes; all zeroes must be a value of `T`, whose size must be a
/// multiple of 8.
#[inline(always)]
pub(crate) unsafe fn clear<T>(place: *mut T) {
    for word in 0..size_of::<T>() / 8 {
        // SAFETY: inside the place.
        unsafe { write_volatile(place.cast::<u64>().add(word), 0) };
    }
}

/// A zeroed value on the stack. As [`clear`].
#[inline(always)]
pub(crate) fn zeroed<T: FromZeros + IntoBytes>(place: &mut MaybeUninit<T>) -> &mut T {
    const { assert!(align_of::<T>() == 8 && size_of::<T>().is_multiple_of(8)) };
    // SAFETY: the place is this function's to write; with FromZeros zeroes are a valid value, and they are
    // written before it is used.
    unsafe {
        clear(place.as_mut_ptr());
        place.assume_init_mut()
    }
}

/// Copies a place word by word, for the same reason as [`clear`].
///
/// # Safety
/// Both must be valid, aligned to 8 bytes and not overlap; the size of `T` must be a multiple of 8.
#[inline(always)]
pub(crate) unsafe fn copy<T>(from: *const T, to: *mut T) {
    for word in 0..size_of::<T>() / 8 {
        // SAFETY: inside both.
        unsafe {
            let value = from.cast::<u64>().add(word).read();
            write_volatile(to.cast::<u64>().add(word), value);
        }
    }
}
