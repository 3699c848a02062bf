//! The current task, and the owner that the kernel recorded when an object was created.

use core::ptr::read_volatile;

use aya_ebpf::{
    Global,
    helpers::{bpf_get_current_pid_tgid, bpf_get_current_task, bpf_ktime_get_ns, generated},
};
use rdmatop_common::{
    event::{COMM_LEN, DEVICE_NAME_LEN, Prefix, flag},
    offsets::UNKNOWN,
};

use crate::{
    body::Hook,
    maps::{CallKey, QpKnown},
    offsets::{
        OFF_DEV_INDEX, OFF_DEV_NAME, OFF_PROG_ATTACH_BTF, OFF_RES_KERN_NAME, OFF_RES_TASK, OFF_TASK_COMM,
        OFF_TASK_FLAGS, OFF_TASK_LEADER, OFF_TASK_START, OFF_TASK_TGID, StructBuffer, StructRead,
        get_or_unknown, get_or_zero, is_known, place_of, read_into, read_text,
    },
    words::copy,
};

/// `PF_KTHREAD`, include/linux/sched.h: the same bit on 5.10 to 7.2.
const PF_KTHREAD: u32 = 0x0020_0000;

/// Stamps a prefix: kind, time, current task.
#[inline(always)]
pub(crate) fn stamp(prefix: &mut Prefix, kind: u16, object: u64) {
    let pid_tgid = bpf_get_current_pid_tgid();
    prefix.ts_ns = now();
    prefix.kind = kind;
    prefix.object = object;
    prefix.pid = (pid_tgid >> 32) as u32;
    prefix.tid = pid_tgid as u32;
    name_current(&mut prefix.comm);
    prefix.flags |= of_current_kthread();
}

/// As [`stamp`], for a QP, with owner and device from `known`.
#[inline(always)]
pub(crate) fn stamp_known(prefix: &mut Prefix, kind: u16, object: u64, known: &QpKnown) {
    stamp(prefix, kind, object);
    prefix.flags |= known.flags;
    prefix.owner_pid = known.owner_pid;
    prefix.device_index = known.device_index;
    // SAFETY: the names are multiples of 8 long, and at a multiple of 8 in both structs.
    unsafe {
        copy(&raw const known.owner_comm, &raw mut prefix.owner_comm);
        copy(&raw const known.device_name, &raw mut prefix.device);
    }
}

/// Reads the current thread's name, directly where possible: the helper takes 207 instructions to copy 16
/// bytes (6.12).
#[inline(always)]
fn name_current(comm: &mut [u8; COMM_LEN]) {
    if let Some(name) = of_current::<[u64; COMM_LEN / 8]>(&OFF_TASK_COMM) {
        // SAFETY: both have the same length; the place is a member of a record, at a multiple of 8.
        unsafe { copy(&raw const name, (&raw mut *comm).cast()) };
    } else {
        // SAFETY: the helper writes no more than the length, and zeroes what it cannot fill.
        unsafe { generated::bpf_get_current_comm((&raw mut *comm).cast(), COMM_LEN as u32) };
    }
}

/// Loads a member of the current task directly, because the verifier knows the type that the helper returns.
/// `None` before Linux 5.11, which has no such helper, and where the offset is unknown.
#[inline(always)]
fn of_current<T>(offset: &Global<u32>) -> Option<T> {
    let offset = offset.load();
    if offset == UNKNOWN || OFF_PROG_ATTACH_BTF.load() == UNKNOWN {
        return None;
    }
    // SAFETY: the verifier checks the offset against the type; every T used is plain integers or a pointer.
    unsafe {
        let task = generated::bpf_get_current_task_btf().cast::<u8>();
        Some(read_volatile(task.add(offset as usize).cast::<T>()))
    }
}

/// `flag::KTHREAD` if the current task is a kernel thread, which belongs to no process; else 0. Without a
/// branch, as [`get_or_zero`].
#[inline(always)]
pub(crate) fn of_current_kthread() -> u16 {
    const SHIFT: u32 = PF_KTHREAD.trailing_zeros() - flag::KTHREAD.trailing_zeros();
    let flags: u32 = match of_current(&OFF_TASK_FLAGS) {
        Some(flags) => flags,
        None => get_or_zero(current(), &OFF_TASK_FLAGS),
    };
    ((flags & PF_KTHREAD) >> SHIFT) as u16
}

/// The head of a `struct rdma_restrack_entry`: task, `kern_name`, type.
pub(crate) type Entry<'a> = StructRead<'a, 3>;

/// Reads the head of the entry at `res`. For `res` 0 the head is all zeroes, which means no owner. There is
/// no branch, because the verifier would follow both sides.
#[inline(always)]
pub(crate) fn entry(buffer: &mut StructBuffer<3>, res: u64) -> Entry<'_> {
    StructRead::open(buffer, res, &OFF_RES_TASK)
}

/// The current task's address.
#[inline(always)]
fn current() -> u64 {
    // SAFETY: takes no argument, returns the current task's address.
    unsafe { bpf_get_current_task() }
}

/// The owner of an object.
pub(crate) struct Owner {
    /// Process id, 0 for none.
    pub(crate) pid: u32,
    /// Bits of `event::flag`.
    pub(crate) flags: u16,
    /// When the owner was started, ns, 0 when not known: the start of the process's first thread.
    pub(crate) start_ns: u64,
}

/// Reads the owner that a `struct rdma_restrack_entry` names: the task that created the object, or the kernel
/// consumer. The current task need not be the owner: processes that share a verbs file can destroy each
/// other's objects. The name goes to `comm`; it is that of the process, not of the thread that made the call.
#[inline(always)]
pub(crate) fn owner_of(entry: Entry<'_>, comm: &mut [u8; COMM_LEN]) -> Owner {
    match entry.get::<u64>(&OFF_RES_TASK) {
        Some(task) if task != 0 => process_of(task, comm),
        _ => Owner {
            pid: 0,
            flags: if name_consumer(comm, entry) {
                flag::OWNER_KERNEL
            } else {
                0
            },
            start_ns: 0,
        },
    }
}

/// The process of a task, by its first thread.
#[inline(always)]
fn process_of(task: u64, comm: &mut [u8; COMM_LEN]) -> Owner {
    let leader = get_or_zero(task, &OFF_TASK_LEADER);
    // A restrack entry keeps the `task_struct` of a thread, not that of the process's first thread. Once the
    // first thread has ended, its memory may be another process's. Then the object has no owner, as in
    // netlink.
    let pid: u32 = get_or_zero(task, &OFF_TASK_TGID);
    let of_leader: u32 = get_or_zero(leader, &OFF_TASK_TGID);
    // No process has id 0. For every other id, bit 31 of `-pid` is set.
    let pid = pid * u32::from(pid == of_leader);
    read_into(comm, place_of(leader, &OFF_TASK_COMM));
    Owner {
        pid,
        flags: (pid.wrapping_neg() >> 31) as u16 * flag::OWNER_TASK,
        start_ns: get_or_zero(leader, &OFF_TASK_START),
    }
}

/// Reads the kernel consumer's name from a `struct rdma_restrack_entry`. Returns whether the entry has one.
#[inline(always)]
pub(crate) fn name_consumer(comm: &mut [u8; COMM_LEN], entry: Entry<'_>) -> bool {
    match entry.get::<u64>(&OFF_RES_KERN_NAME) {
        Some(name) if name != 0 => {
            // A name shorter than COMM_LEN may lie at the end of a page. Then the read fails and the name
            // stays empty, but the caller still sets the flag.
            read_into(comm, name);
            true
        }
        _ => false,
    }
}

/// Fills in the owner. Returns when it was started, 0 when that is not known.
#[inline(always)]
pub(crate) fn owner(prefix: &mut Prefix, entry: Entry<'_>) -> u64 {
    let owner = owner_of(entry, &mut prefix.owner_comm);
    fill_owner(prefix, &owner)
}

/// Fills in the current process as the owner. Returns when it was started, 0 when that is not known.
#[inline(always)]
pub(crate) fn own(prefix: &mut Prefix) -> u64 {
    let owner = process_of(current(), &mut prefix.owner_comm);
    fill_owner(prefix, &owner)
}

#[inline(always)]
fn fill_owner(prefix: &mut Prefix, owner: &Owner) -> u64 {
    prefix.owner_pid = owner.pid;
    prefix.flags |= owner.flags;
    owner.start_ns
}

/// Fills in name and index of a `struct ib_device`; `device` 0 means none.
#[inline(always)]
pub(crate) fn device(prefix: &mut Prefix, device: u64) {
    let named = name_device(&mut prefix.device, device);
    if named != 0 {
        prefix.device_index = get_or_unknown(device, &OFF_DEV_INDEX);
        prefix.flags |= named;
    }
}

/// Reads the name of a `struct ib_device` into a place of zeroes. Returns `flag::DEVICE` if it could be read,
/// else 0.
#[inline(always)]
pub(crate) fn name_device(place: &mut [u8; DEVICE_NAME_LEN], device: u64) -> u16 {
    if !is_known(&OFF_DEV_NAME) {
        return 0;
    }
    let failed = read_text(place, place_of(device, &OFF_DEV_NAME)) as u16;
    flag::DEVICE - failed * flag::DEVICE
}

/// The key of the current thread's call in flight.
#[inline(always)]
pub(crate) fn call_key(hook: Hook) -> CallKey {
    CallKey {
        tid: bpf_get_current_pid_tgid() as u32,
        hook: hook as u32,
    }
}

/// `CLOCK_MONOTONIC`, ns.
#[inline(always)]
pub(crate) fn now() -> u64 {
    // SAFETY: takes no argument, reads the clock.
    unsafe { bpf_ktime_get_ns() }
}
