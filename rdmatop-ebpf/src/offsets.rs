//! Guarded reads: a program does not read a member that the running kernel's BTF lacks.

use core::{ffi::c_void, mem::MaybeUninit, ptr::read_volatile};

use aya_ebpf::{
    Global,
    helpers::{bpf_probe_read_kernel, generated},
};
use rdmatop_common::offsets::UNKNOWN;
use zerocopy::FromZeros;

macro_rules! globals {
    ($($name:ident $($of:literal)*,)*) => {
        $(
            // Each offset has a symbol, because user space sets it by name before load. The verifier then
            // treats it as a constant.
            #[unsafe(no_mangle)]
            pub(crate) static $name: Global<u32> = Global::new(UNKNOWN);
        )*
    };
}

rdmatop_common::each_offset!(globals);
rdmatop_common::each_field!(globals);

/// Whether user space reads counters. In a trace, which reads none, it is 0, and the verifier removes the
/// code that counts.
#[unsafe(no_mangle)]
pub(crate) static COUNTS: Global<u32> = Global::new(1);

/// See [`COUNTS`].
#[inline(always)]
pub(crate) fn counts() -> bool {
    COUNTS.load() != 0
}

/// Whether objects that programs make past ib_core are shown. If it is 0, the verifier removes what reads
/// them.
#[unsafe(no_mangle)]
pub(crate) static WANT_DEVX: Global<u32> = Global::new(1);

/// Whether probes on programs make records of work requests. If it is 0, the verifier removes the code for
/// them.
#[unsafe(no_mangle)]
pub(crate) static WANT_USER_WORK: Global<u32> = Global::new(0);

/// Whether the kernel has atomic instructions that return a value, which `words::fence` consists of. If it is
/// 0, the verifier removes them.
#[unsafe(no_mangle)]
pub(crate) static HAS_FENCE: Global<u32> = Global::new(0);

/// Whether a member is in the kernel's BTF.
#[inline(always)]
pub(crate) fn is_known(offset: &Global<u32>) -> bool {
    offset.load() != UNKNOWN
}

/// Slots from this number on are kept for QPs that move.
#[unsafe(no_mangle)]
pub(crate) static EAGER_SLOTS: Global<u32> = Global::new(0);

/// Address of a member, `None` when its offset is unknown.
///
/// Callers pass the address on as a plain word, with 0 for none: LLVM would copy the undefined half of a
/// `None`, and the verifier refuses to read a register that was never written.
#[inline(always)]
pub(crate) fn member(base: u64, offset: &Global<u32>) -> Option<u64> {
    let offset = offset.load();
    if offset == UNKNOWN || base == 0 {
        None
    } else {
        Some(base + u64::from(offset))
    }
}

/// Reads `T` at a kernel address.
#[inline(always)]
pub(crate) fn read<T>(address: u64) -> Option<T> {
    // SAFETY: the helper checks the address itself and fails on a bad one; every T used is plain integers.
    unsafe { bpf_probe_read_kernel(address as *const T) }.ok()
}

/// Reads a member, `None` when its offset is unknown or the address is bad.
#[inline(always)]
pub(crate) fn get<T>(base: u64, offset: &Global<u32>) -> Option<T> {
    read(member(base, offset)?)
}

/// Reads into a place, because a large return value would be copied byte by byte. If the address is bad, the
/// helper zeroes the place. Returns whether the read succeeded.
#[inline(always)]
pub(crate) fn read_into<T>(place: &mut T, address: u64) -> bool {
    // SAFETY: the helper checks the address itself and fails on a bad one, after it has zeroed the place;
    // every T used is plain integers.
    unsafe {
        generated::bpf_probe_read_kernel(
            (&raw mut *place).cast(),
            size_of::<T>() as u32,
            address as *const c_void,
        ) == 0
    }
}

/// As [`read_into`], for a text, up to its NUL: most names are much shorter than their place. Returns 1 if
/// the address is bad, else 0.
#[inline(always)]
pub(crate) fn read_text<const N: usize>(place: &mut [u8; N], address: u64) -> u64 {
    // SAFETY: as above.
    let result = unsafe {
        generated::bpf_probe_read_kernel_str((&raw mut *place).cast(), N as u32, address as *const c_void)
    };
    result.cast_unsigned() >> 63
}

/// Returns all ones if a helper has failed, else 0. There is no branch: the verifier follows both sides of a
/// branch through all the code after it, so the results of several reads would multiply.
#[inline(always)]
fn failed(result: i64) -> u64 {
    (result >> 63).cast_unsigned()
}

/// Neighbouring members of a struct, read at once: a read costs some hundred instructions, even of a few
/// bytes.
///
/// The layout of the struct depends on the kernel. A member outside these bytes is read separately; offsets
/// are constants to the verifier, so it keeps only one of the two paths. All members of this struct but
/// `words` are values, not memory: the verifier of 5.10 forgets constants that were stored in memory.
#[derive(Clone, Copy)]
pub(crate) struct StructRead<'a, const WORDS: usize> {
    words: &'a [u64; WORDS],
    base: u64,
    first: u64,
    /// All ones if the read failed, else 0. If it failed, members among these bytes are zero.
    pub(crate) unreadable: u64,
}

/// Where the bytes of a [`StructRead`] go.
pub(crate) type StructBuffer<const WORDS: usize> = MaybeUninit<[u64; WORDS]>;

impl<'a, const WORDS: usize> StructRead<'a, WORDS> {
    /// Reads the struct at `base` from its member `first` on. If that offset is unknown, nothing is read, and
    /// each member is read separately.
    #[inline(always)]
    pub(crate) fn open(buffer: &'a mut StructBuffer<WORDS>, base: u64, first: &Global<u32>) -> Self {
        let first = u64::from(first.load());
        // If the offset is unknown, the address is bad or nothing uses the words. SAFETY: the helper checks
        // the address itself; it writes the whole place, with zeroes if it fails.
        let result = unsafe {
            generated::bpf_probe_read_kernel(
                buffer.as_mut_ptr().cast(),
                (WORDS * 8) as u32,
                (base + first) as *const c_void,
            )
        };
        // SAFETY: the helper has written the whole place.
        let words = unsafe { buffer.assume_init_ref() };
        Self {
            words,
            base,
            first,
            unreadable: if first == u64::from(UNKNOWN) {
                0
            } else {
                failed(result)
            },
        }
    }

    /// The words that were read, `None` when the offset of its first member is unknown.
    #[inline(always)]
    pub(crate) fn first(self) -> Option<*const [u64; WORDS]> {
        (self.first != u64::from(UNKNOWN)).then_some(&raw const *self.words)
    }

    /// A member, `None` when its offset is unknown.
    #[inline(always)]
    pub(crate) fn get<T>(self, offset: &Global<u32>) -> Option<T> {
        let offset = u64::from(offset.load());
        // For a member before these bytes this wraps around; an unknown offset is far past it.
        let inside = offset.wrapping_sub(self.first);
        if inside <= (WORDS * 8 - size_of::<T>()) as u64 && self.first != u64::from(UNKNOWN) {
            // SAFETY: the member is inside the words and aligned, as the first one is; every T used is plain
            // integers.
            Some(unsafe { read_volatile(self.words.as_ptr().cast::<u8>().add(inside as usize).cast::<T>()) })
        } else if offset == u64::from(UNKNOWN) {
            None
        } else {
            read(self.base + offset)
        }
    }
}

/// Reads a member; zero when its offset is unknown or the address is bad, for callers that need no
/// distinction. Without a branch after the read, because the verifier would follow both sides through all the
/// code after it.
#[inline(always)]
pub(crate) fn get_or_zero<T: FromZeros>(base: u64, offset: &Global<u32>) -> T {
    let offset = offset.load();
    if offset == UNKNOWN {
        return T::new_zeroed();
    }
    read_or_zero(base + u64::from(offset))
}

/// Reads a member as [`get_or_zero`] does, and gives [`UNKNOWN`] instead of zero.
#[inline(always)]
pub(crate) fn get_or_unknown(base: u64, offset: &Global<u32>) -> u32 {
    let offset = offset.load();
    if offset == UNKNOWN {
        return UNKNOWN;
    }
    let (value, failed) = read_or_not::<u32>(base + u64::from(offset));
    value | failed as u32
}

/// Address of a member of a struct at `base`, 0 when the offset is unknown.
#[inline(always)]
pub(crate) fn place_of(base: u64, offset: &Global<u32>) -> u64 {
    let offset = offset.load();
    if offset == UNKNOWN {
        0
    } else {
        base + u64::from(offset)
    }
}

/// Reads `T` at a kernel address, zero when the address is bad.
#[inline(always)]
pub(crate) fn read_or_zero<T>(address: u64) -> T {
    read_or_not(address).0
}

/// Reads `T` at a kernel address, and returns it with 0. If the address is bad, returns zero with all ones.
#[inline(always)]
fn read_or_not<T>(address: u64) -> (T, u64) {
    let mut place = MaybeUninit::<T>::uninit();
    // SAFETY: the helper checks the address itself, and writes the whole place, with zeroes if it fails;
    // every T used is plain integers.
    unsafe {
        let result = generated::bpf_probe_read_kernel(
            place.as_mut_ptr().cast(),
            size_of::<T>() as u32,
            address as *const c_void,
        );
        (place.assume_init(), failed(result))
    }
}
