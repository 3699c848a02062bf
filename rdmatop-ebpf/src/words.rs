//! Words that several CPUs write, and values that are written word by word.

use core::{
    intrinsics::{AtomicOrdering, atomic_xadd},
    mem::MaybeUninit,
    ptr::write_volatile,
};

use zerocopy::{FromZeros, IntoBytes};

/// Adds to a word that several CPUs share.
#[inline(always)]
pub(crate) fn add(word: *mut u64, value: u64) {
    // SAFETY: the pointer is a member of a map value that the verifier knows; the add is locked.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(word, value) };
}

/// Zeroes a place word by word. Without this LLVM calls a memset that goes byte by byte: five instructions
/// each.
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
    // SAFETY: the place is ours; FromZeros says that zeroes are a value, and they are written before it is
    // used.
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
