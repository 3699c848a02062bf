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
        WANT_QP_CREATES, get_or_unknown, get_or_zero, is_known, place_of, read_into, read_text,
    },
    words::copy,
};

/// `PF_KTHREAD`, include/linux/sched.h: the same bit on 5.10 to 7.2.
const PF_KTHREAD: u32 = 0x0020_0000;

/// Stamps a prefix: kind, time, current task.
#[inline(always)]
pub(crate) fn stamp(prefix: &mut Prefix, kind: u16, object: u64) {
    begin(prefix, kind, object, now());
    name_current(&mut prefix.comm);
    prefix.flags |= of_current_kthread();
}

/// As [`stamp`], for a QP; writes every byte. Owner and device come from `known`. If the calling process is
/// the owner, the KTHREAD flag comes from `known` too, and so does the name, if the process's first thread is
/// calling and `fresh` says that `known` was read just now.
#[inline(always)]
pub(crate) fn stamp_known(
    prefix: &mut Prefix,
    (kind, object): (u16, u64),
    known: &QpKnown,
    ts_ns: u64,
    fresh: bool,
) {
    begin(prefix, kind, object, ts_ns);
    // All other fields are written below, and a new field must be too.
    let Prefix {
        ts_ns: _,
        object: _,
        duration_ns,
        kind: _,
        flags: _,
        rc,
        pid: _,
        tid: _,
        owner_pid: _,
        device_index: _,
        comm: _,
        owner_comm: _,
        device: _,
    } = prefix;
    (*duration_ns, *rc) = (0, 0);
    if fresh && known.owner_pid == prefix.pid && prefix.tid == prefix.pid && known.owner_comm[0] != 0 {
        // SAFETY: the names are multiples of 8 long, and at a multiple of 8 in both structs.
        unsafe { copy(&raw const known.owner_comm, &raw mut prefix.comm) };
    } else {
        name_current(&mut prefix.comm);
    }
    prefix.owner_pid = known.owner_pid;
    let mut flags = known.flags;
    if flags & flag::OWNER_TASK == 0 || known.owner_pid != prefix.pid {
        flags = flags & !flag::KTHREAD | of_current_kthread();
    }
    prefix.flags = flags;
    prefix.device_index = known.device_index;
    // SAFETY: the names are multiples of 8 long, and at a multiple of 8 in both structs.
    unsafe {
        copy(&raw const known.owner_comm, &raw mut prefix.owner_comm);
        copy(&raw const known.device_name, &raw mut prefix.device);
    }
}

#[inline(always)]
fn begin(prefix: &mut Prefix, kind: u16, object: u64, ts_ns: u64) {
    let pid_tgid = bpf_get_current_pid_tgid();
    prefix.ts_ns = ts_ns;
    prefix.kind = kind;
    prefix.object = object;
    prefix.pid = (pid_tgid >> 32) as u32;
    prefix.tid = pid_tgid as u32;
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

/// Name and start of the first thread of the current process, as [`of_current`]. The verifier also knows the
/// type of the pointer to that thread; but from Linux 6.2 on it searches all types of the kernel for it,
/// which costs four million instructions per load. So this is left out where creates are not shown.
#[inline(always)]
fn of_leader() -> Option<([u64; COMM_LEN / 8], u64)> {
    let (comm, start) = (OFF_TASK_COMM.load(), OFF_TASK_START.load());
    if comm == UNKNOWN {
        return None;
    }
    let leader = of_current::<*const u8>(&OFF_TASK_LEADER)?;
    // SAFETY: as above; the kernel handles a fault at a bad address.
    unsafe {
        let name = read_volatile(leader.add(comm as usize).cast());
        let start = if start == UNKNOWN {
            0
        } else {
            read_volatile(leader.add(start as usize).cast())
        };
        Some((name, start))
    }
}

/// `flag::KTHREAD` if the current task is a kernel thread, else 0.
#[inline(always)]
fn of_current_kthread() -> u16 {
    match of_current(&OFF_TASK_FLAGS) {
        Some(flags) => kthread(flags),
        None => of_kthread(current()),
    }
}

/// `flag::KTHREAD` from a task's flags. Without a branch, as [`get_or_zero`].
#[inline(always)]
fn kthread(flags: u32) -> u16 {
    const SHIFT: u32 = PF_KTHREAD.trailing_zeros() - flag::KTHREAD.trailing_zeros();
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

/// `flag::KTHREAD` if a task is a kernel thread, which belongs to no process; else 0.
#[inline(always)]
fn of_kthread(task: u64) -> u16 {
    kthread(get_or_zero(task, &OFF_TASK_FLAGS))
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

/// What [`owner_of`] finds out.
#[derive(Clone, Copy)]
pub(crate) enum Depth {
    /// Process and name.
    Name,
    /// Process and name, its start, and whether it is a kernel thread.
    Whole,
    /// As `Whole`, for a program that runs often: takes few instructions for the current task, but more of
    /// the verifier's work.
    Often,
}

/// Reads the owner that a `struct rdma_restrack_entry` names: the task that created the object, or the kernel
/// consumer. The current task need not be the owner: processes that share a verbs file can destroy each
/// other's objects. The name goes to `comm`; it is that of the process, not of the thread that made the call.
/// `depth`: what to read, and how.
///
/// Reading a member of the current task takes a few loads; reading one of another task takes a hundred
/// instructions.
#[inline(always)]
pub(crate) fn owner_of(entry: Entry<'_>, comm: &mut [u8; COMM_LEN], depth: Depth) -> Owner {
    let mut owner = Owner {
        pid: 0,
        flags: 0,
        start_ns: 0,
    };
    let task = entry.get::<u64>(&OFF_RES_TASK).unwrap_or(0);
    if task == 0 {
        if name_consumer(comm, entry) {
            owner.flags = flag::OWNER_KERNEL;
        }
        return owner;
    }
    let pid_tgid = bpf_get_current_pid_tgid();
    let (pid, tid) = ((pid_tgid >> 32) as u32, pid_tgid as u32);
    let whole = !matches!(depth, Depth::Name);
    let own = task == current();
    if own
        && matches!(depth, Depth::Often)
        && WANT_QP_CREATES.load() != 0
        && let Some((name, start_ns)) = of_leader()
    {
        owner.pid = pid;
        owner.flags = flag::OWNER_TASK | of_current_kthread();
        owner.start_ns = start_ns;
        // SAFETY: both have the same length; the place is a member of a struct, at a multiple of 8.
        unsafe { copy(&raw const name, (&raw mut *comm).cast()) };
    } else if own && pid == tid {
        owner.pid = pid;
        owner.flags = flag::OWNER_TASK;
        name_current(comm);
        if whole {
            owner.start_ns = match of_current(&OFF_TASK_START) {
                Some(start_ns) => start_ns,
                None => get_or_zero(task, &OFF_TASK_START),
            };
            owner.flags |= of_current_kthread();
        }
    } else {
        let leader = if is_known(&OFF_TASK_LEADER) {
            get_or_zero(task, &OFF_TASK_LEADER)
        } else {
            task
        };
        // The entry keeps the `task_struct` of a thread, not that of the process's first thread. Once the
        // first thread has ended, its memory may be another process's. Then the object has no owner, as in
        // netlink.
        let pid: u32 = get_or_zero(task, &OFF_TASK_TGID);
        let of_leader: u32 = get_or_zero(leader, &OFF_TASK_TGID);
        // No process has id 0. For every other id, bit 31 of `-pid` is set.
        owner.pid = pid * u32::from(pid == of_leader);
        owner.flags = (owner.pid.wrapping_neg() >> 31) as u16 * flag::OWNER_TASK;
        read_into(comm, place_of(leader, &OFF_TASK_COMM));
        if whole {
            owner.start_ns = get_or_zero(leader, &OFF_TASK_START);
            owner.flags |= of_kthread(task);
        }
    }
    owner
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

/// Fills in the owner. Returns when it was started, 0 when that is not known or not asked for.
#[inline(always)]
pub(crate) fn owner(prefix: &mut Prefix, entry: Entry<'_>, depth: Depth) -> u64 {
    let owner = owner_of(entry, &mut prefix.owner_comm, depth);
    prefix.owner_pid = owner.pid;
    // In a prefix the KTHREAD flag is about the current task and not about the owner.
    prefix.flags |= owner.flags & !flag::KTHREAD;
    owner.start_ns
}

/// Fills in the current process as the owner. Returns when it was started, 0 when that is not known.
#[inline(always)]
pub(crate) fn own(prefix: &mut Prefix) -> u64 {
    let leader = if is_known(&OFF_TASK_LEADER) {
        get_or_zero(current(), &OFF_TASK_LEADER)
    } else {
        current()
    };
    prefix.owner_pid = prefix.pid;
    prefix.flags |= flag::OWNER_TASK;
    read_into(&mut prefix.owner_comm, place_of(leader, &OFF_TASK_COMM));
    get_or_zero(leader, &OFF_TASK_START)
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
