//! How much one process may put into the ring buffer of lifecycle records, so that the others keep room.
//!
//! * Only [`FAILURES_A_SECOND`] of its failed calls become events.
//! * While the ring buffer is more than three quarters full, the unread records of one process may take at
//!   most a quarter of what is still free: so it leaves four fifths of the free space that it found. The
//!   programs count its bytes from the end of the ring buffer at the first such record, and anew when the
//!   reader has come to there.
//! * While it is more than fifteen sixteenths full, the same holds for all processes of a user together, so
//!   that one who has many does not get around their shares. The user is the caller's real one, in the
//!   initial user namespace, which a process without rights cannot change. Why so late: a job of one user
//!   loses nothing that fits as long as it has up to seven processes, which can fill no more by their own
//!   shares.
//!
//! The programs count for each process what they refuse. While there is more room, a record costs two
//! queries.

use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_get_current_uid_gid, generated};
use core::ptr::{read_volatile, write_volatile};
use rdmatop_common::{
    counters::{CALLER_WAYS, CALLERS as PLACES, Caller, FAILURES_A_SECOND, Unread, loss},
    event::COMM_LEN,
};

use crate::{
    emit::lost,
    maps::{CALLERS, NOEXIST, USERS},
    task::now,
    words::{add, claim, fence, unclaim},
};

/// Log2 of the number of groups of places.
const GROUP_BITS: u32 = (PLACES / CALLER_WAYS).trailing_zeros();
/// A second, in ns.
const SECOND: u64 = 1_000_000_000;
/// Bytes of the header before each record in a ring buffer (`BPF_RINGBUF_HDR_SZ`).
const HEADER: u64 = 8;

/// The thread group id of the current process.
#[inline(always)]
pub(crate) fn caller() -> u32 {
    (bpf_get_current_pid_tgid() >> 32) as u32
}

/// The place of a process, which it gets now if it has none. Process 0, and a process whose places are all
/// taken by others, get the last place, which such processes share.
#[inline(always)]
fn place(pid: u32) -> Option<*mut Caller> {
    let first = (pid.wrapping_mul(0x9e37_79b1) >> (32 - GROUP_BITS)) * CALLER_WAYS;
    if pid == 0 {
        return CALLERS.get_ptr_mut(PLACES);
    }
    for way in 0..CALLER_WAYS {
        let place = CALLERS.get_ptr_mut(first + way)?;
        // SAFETY: the map checked the pointer.
        if unsafe { read_volatile(&raw const (*place).pid) } == pid {
            return Some(place);
        }
    }
    for way in 0..CALLER_WAYS {
        let place = CALLERS.get_ptr_mut(first + way)?;
        // SAFETY: as above; only the claim's holder writes who has the place.
        unsafe {
            let claims = &raw mut (*place).claims;
            if read_volatile(claims) != 0 {
                continue;
            }
            if claim(claims) {
                if caller() == pid {
                    generated::bpf_get_current_comm((&raw mut (*place).comm).cast(), COMM_LEN as u32);
                }
                write_volatile(&raw mut (*place).used_ns, now());
                fence(claims);
                write_volatile(&raw mut (*place).pid, pid);
                return Some(place);
            }
            unclaim(claims);
        }
    }
    CALLERS.get_ptr_mut(PLACES)
}

/// Whether the current process has used up its failed calls of this second. If so, this call is counted as
/// over budget and must make no event.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn is_over_budget() -> u64 {
    let Some(place) = place(caller()) else { return 0 };
    let now = now();
    // SAFETY: the map checked the pointer. If several threads begin a new second at once, some more calls may
    // get through.
    unsafe {
        write_volatile(&raw mut (*place).used_ns, now);
        if now - read_volatile(&raw const (*place).second_ns) >= SECOND {
            write_volatile(&raw mut (*place).second_ns, now);
            write_volatile(&raw mut (*place).failures, 0);
        }
        if read_volatile(&raw const (*place).failures) >= FAILURES_A_SECOND {
            add(&raw mut (*place).over_budget, 1);
            return 1;
        }
        add(&raw mut (*place).failures, 1);
    }
    0
}

/// Adds `bytes` to the unread ones of `unread`, unless that would be more than `most`. If several threads
/// begin a new count at once, some more records may get through.
#[inline(always)]
fn fits(unread: *mut Unread, bytes: u64, most: u64, [read_to, written_to]: [u64; 2]) -> bool {
    // SAFETY: the map checked the pointer.
    unsafe {
        let from = read_volatile(&raw const (*unread).from);
        // `written_to < from`: a new ring buffer, which begins at 0, has replaced the earlier one.
        if read_to >= from || written_to < from {
            write_volatile(&raw mut (*unread).from, written_to);
            write_volatile(&raw mut (*unread).bytes, 0);
        }
        if read_volatile(&raw const (*unread).bytes) + bytes > most {
            return false;
        }
        add(&raw mut (*unread).bytes, bytes);
    }
    true
}

/// The unread records of the user of process `pid`, if that is the current process: whoever else runs, as a
/// worker of the kernel for rdma_cm or an interrupted process, has no part in the record. A user without an
/// entry gets one, while there is room.
#[inline(always)]
fn of_user(pid: u64) -> Option<*mut Unread> {
    if bpf_get_current_pid_tgid() >> 32 != pid {
        return None;
    }
    let uid = bpf_get_current_uid_gid() as u32;
    if let Some(unread) = USERS.get_ptr_mut(&uid) {
        return Some(unread);
    }
    let _ = USERS.insert(&uid, &Unread { from: 0, bytes: 0 }, NOEXIST);
    USERS.get_ptr_mut(&uid)
}

/// Whether a record of `bytes` would exceed the share of process `pid`, or that of the caller's user; if so,
/// it is counted as lost. `free` is the number of free bytes in the ring buffer, `read_to` and `written_to`
/// are its positions.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn is_over_share(
    pid: u64,
    bytes: u64,
    free: u64,
    read_to: u64,
    written_to: u64,
) -> u64 {
    let Some(place) = place(pid as u32) else { return 0 };
    let bytes = bytes + HEADER;
    let at = [read_to, written_to];
    // SAFETY: the map checked the pointer.
    let own = unsafe {
        write_volatile(&raw mut (*place).used_ns, now());
        &raw mut (*place).unread
    };
    let size = free + written_to - read_to;
    if fits(own, bytes, free / 4, at) {
        if free >= size / 16 || of_user(pid).is_none_or(|all| fits(all, bytes, free / 4, at)) {
            return 0;
        }
        // The record is not written, so it is not among those that the process has unread.
        // SAFETY: as above.
        add(unsafe { &raw mut (*own).bytes }, bytes.wrapping_neg());
    }
    lost(loss::RING);
    // SAFETY: as above.
    add(unsafe { &raw mut (*place).refused }, 1);
    1
}
