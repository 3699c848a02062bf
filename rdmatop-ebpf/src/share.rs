//! How much one process may put into a ring buffer, so that the others keep room.
//!
//! * Only [`FAILURES_A_SECOND`] of its failed calls become events.
//! * While a ring buffer, of lifecycle records or of work requests, is more than three quarters full, the
//!   unread records of one process may take at most a quarter of what is still free: so it leaves four fifths
//!   of the free space that it found. The programs count its bytes from the end of the ring buffer at the
//!   first such record, and anew when the reader has come to there.
//! * While it is more than fifteen sixteenths full, the same holds for all processes of a user together, so
//!   that one who has many does not get around their shares. The user is the process's real one, in the
//!   initial user namespace, which a process without rights cannot change, as of its last record in a call of
//!   its own: most ends of work requests come in the driver's task or in an interrupt. Why so late: a job of
//!   one user loses nothing that fits as long as it has up to seven processes, which can fill no more by
//!   their own shares.
//!
//! The programs count for each process what they refuse. While there is more room, a record costs two
//! queries.

use aya_ebpf::{
    helpers::{bpf_get_current_pid_tgid, bpf_get_current_uid_gid, generated},
    maps::RingBuf,
};
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

/// The unread records of a process's user, in the ring buffer that `which` says. `user` is [`Caller::user`]:
/// processes whose user is not known have one entry together. A user without an entry gets one, while there
/// is room.
#[inline(always)]
fn of_user(user: u32, which: u64) -> Option<*mut Unread> {
    let uid = u64::from(user) | which;
    if let Some(unread) = USERS.get_ptr_mut(&uid) {
        return Some(unread);
    }
    let _ = USERS.insert(&uid, &Unread { from: 0, bytes: 0 }, NOEXIST);
    USERS.get_ptr_mut(&uid)
}

/// Arguments of `bpf_ringbuf_query`: the number of unread bytes, the size of the ring buffer in bytes, and
/// the positions of the reader and of the programs, in bytes since the ring buffer was made. `BPF_RB_*`,
/// include/uapi/linux/bpf.h.
const UNREAD: u64 = 0;
const SIZE: u64 = 1;
const READ_TO: u64 = 2;
const WRITTEN_TO: u64 = 3;

/// Bit beside a process or user: the ring buffer is that of work requests.
pub(crate) const WORK: u64 = 1 << 32;
/// No such bit: the one of lifecycle records.
pub(crate) const LIFECYCLE: u64 = 0;

/// Whether a record of `bytes` has no place in a ring buffer, [`WORK`] or [`LIFECYCLE`], although there may
/// be room, because the process that `whose` returns, or its user, has taken its share. Then it is counted
/// as lost.
#[inline(always)]
pub(crate) fn is_refused(ring: &RingBuf, which: u64, bytes: u64, whose: impl FnOnce() -> u32) -> bool {
    let (unread, size) = (ring.query(UNREAD), ring.query(SIZE));
    if unread <= size - size / 4 {
        return false;
    }
    let (read, written) = (ring.query(READ_TO), ring.query(WRITTEN_TO));
    is_over_share(u64::from(whose()) | which, bytes, size - unread, read, written) != 0
}

/// Whether a record of `bytes` would exceed the share of the process in `whose`, or that of its user; if so,
/// it is counted as lost. `free` is the number of free bytes in the ring buffer, `read_to` and `written_to`
/// are its positions. `whose` has [`WORK`] for that of work requests.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn is_over_share(whose: u64, bytes: u64, free: u64, read_to: u64, written_to: u64) -> u64 {
    let Some(place) = place(whose as u32) else {
        return 0;
    };
    let bytes = bytes + HEADER;
    let at = [read_to, written_to];
    // SAFETY: the map checked the pointer.
    let own = unsafe {
        write_volatile(&raw mut (*place).used_ns, now());
        // Whoever else runs, as a worker of the kernel or an interrupted process, has no part in the record.
        if read_volatile(&raw const (*place).pid) == caller() && caller() != 0 {
            let user = (bpf_get_current_uid_gid() as u32).wrapping_add(1);
            write_volatile(&raw mut (*place).user, user);
            // A worker may have taken the place for this process.
            if read_volatile((&raw const (*place).comm).cast::<u8>()) == 0 {
                generated::bpf_get_current_comm((&raw mut (*place).comm).cast(), COMM_LEN as u32);
            }
        }
        if whose & WORK == 0 {
            &raw mut (*place).unread
        } else {
            &raw mut (*place).unread_work
        }
    };
    let size = free + written_to - read_to;
    if fits(own, bytes, free / 4, at) {
        // SAFETY: as above.
        let user = unsafe { read_volatile(&raw const (*place).user) };
        if free >= size / 16 || of_user(user, whose & WORK).is_none_or(|all| fits(all, bytes, free / 4, at)) {
            return 0;
        }
        // The record is not written, so it is not among those that the process has unread.
        // SAFETY: as above.
        add(unsafe { &raw mut (*own).bytes }, bytes.wrapping_neg());
    }
    lost(if whose & WORK == 0 {
        loss::RING
    } else {
        loss::WR_RING
    });
    // SAFETY: as above.
    add(unsafe { &raw mut (*place).refused }, 1);
    1
}
