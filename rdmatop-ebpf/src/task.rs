//! Who: the current task, and the owner that the kernel noted at creation.

use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_get_current_task, bpf_ktime_get_ns, generated};
use rdmatop_common::{
    event::{COMM_LEN, DEVICE_NAME_LEN, Prefix, flag},
    offsets::UNKNOWN,
};

use crate::{
    emit::copy,
    maps::{CallKey, QpKnown},
    offsets::{
        OFF_DEV_INDEX, OFF_DEV_NAME, OFF_RES_KERN_NAME, OFF_RES_TASK, OFF_TASK_COMM, OFF_TASK_FLAGS,
        OFF_TASK_LEADER, OFF_TASK_TGID, Pane, Window, get, member, read_into,
    },
};

/// `PF_KTHREAD`, include/linux/sched.h: the same bit on 5.10 to 7.2.
const PF_KTHREAD: u32 = 0x0020_0000;

/// Stamps a prefix: kind, time, current task.
#[inline(always)]
pub(crate) fn stamp(prefix: &mut Prefix, kind: u16, object: u64) {
    begin(prefix, kind, object);
    if is_kthread(current()) {
        prefix.flags |= flag::KTHREAD;
    }
}

/// As [`stamp`], for a QP: what is known of its owner need not be read again where the owner itself calls.
#[inline(always)]
pub(crate) fn stamp_known(prefix: &mut Prefix, kind: u16, object: u64, known: &QpKnown) {
    begin(prefix, kind, object);
    prefix.owner_pid = known.owner_pid;
    let mut flags = known.flags as u16;
    if flags & flag::OWNER_TASK == 0 || known.owner_pid != prefix.pid {
        flags &= !flag::KTHREAD;
        if is_kthread(current()) {
            flags |= flag::KTHREAD;
        }
    }
    prefix.flags = flags;
    prefix.device_index = known.device_index;
    // SAFETY: the names are multiples of 8 long and at one in both structs.
    unsafe {
        copy(&raw const known.owner_comm, &raw mut prefix.owner_comm);
        copy(&raw const known.device_name, &raw mut prefix.device);
    }
}

#[inline(always)]
fn begin(prefix: &mut Prefix, kind: u16, object: u64) {
    let pid_tgid = bpf_get_current_pid_tgid();
    prefix.ts_ns = now();
    prefix.kind = kind;
    prefix.object = object;
    prefix.pid = (pid_tgid >> 32) as u32;
    prefix.tid = pid_tgid as u32;
    // SAFETY: the helper writes no more than the length, and zeroes what it cannot fill.
    unsafe { generated::bpf_get_current_comm((&raw mut prefix.comm).cast(), COMM_LEN as u32) };
}

/// The head of a `struct rdma_restrack_entry`: task, `kern_name`, type.
pub(crate) type Entry<'a> = Window<'a, 3>;

/// Reads it; `None` where there is none.
#[inline(always)]
pub(crate) fn entry(pane: &mut Pane<3>, res: u64) -> Option<Entry<'_>> {
    if res == 0 {
        return None;
    }
    let entry = Window::open(pane, res, &OFF_RES_TASK);
    entry.readable.then_some(entry)
}

/// Whether a task is a kernel thread (a worker, or softirq on one): then it is nobody's.
#[inline(always)]
pub(crate) fn is_kthread(task: u64) -> bool {
    get::<u32>(task, &OFF_TASK_FLAGS).is_some_and(|flags| flags & PF_KTHREAD != 0)
}

/// The current task's address.
#[inline(always)]
fn current() -> u64 {
    // SAFETY: takes no argument, returns the current task's address.
    unsafe { bpf_get_current_task() }
}

/// Whose an object is.
pub(crate) struct Owner {
    /// Process, 0 for none.
    pub(crate) pid: u32,
    /// Bits of `event::flag`.
    pub(crate) flags: u16,
    /// `struct task_struct *`, 0 for none.
    pub(crate) task: u64,
}

/// The owner that a `struct rdma_restrack_entry` names: the task that made the object, or the kernel consumer. Never the
/// current task: a held verbs file lets others destroy what they did not create. The name goes to `comm`.
#[inline(always)]
pub(crate) fn owner_of(entry: Option<Entry<'_>>, comm: &mut [u8; COMM_LEN]) -> Owner {
    let mut owner = Owner {
        pid: 0,
        flags: 0,
        task: 0,
    };
    let Some(entry) = entry else { return owner };
    let task = entry.get::<u64>(&OFF_RES_TASK).unwrap_or(0);
    if task == 0 {
        if name_consumer(comm, entry) {
            owner.flags = flag::OWNER_KERNEL;
        }
        return owner;
    }
    owner.task = task;
    let pid_tgid = bpf_get_current_pid_tgid();
    let (pid, tid) = ((pid_tgid >> 32) as u32, pid_tgid as u32);
    // The process's name, not that of whichever of its threads made the call.
    let mut leader = task;
    if pid == tid && task == current() {
        owner.pid = pid;
        owner.flags = flag::OWNER_TASK;
    } else {
        leader = get::<u64>(task, &OFF_TASK_LEADER).unwrap_or(task);
        if let Some(tgid) = get::<u32>(task, &OFF_TASK_TGID) {
            owner.pid = tgid;
            owner.flags = flag::OWNER_TASK;
        }
    }
    if let Some(name) = member(leader, &OFF_TASK_COMM) {
        read_into(comm, name);
    }
    owner
}

/// Takes the kernel consumer's name from a `struct rdma_restrack_entry`. Whether it has one.
#[inline(always)]
pub(crate) fn name_consumer(comm: &mut [u8; COMM_LEN], entry: Entry<'_>) -> bool {
    match entry.get::<u64>(&OFF_RES_KERN_NAME) {
        Some(name) if name != 0 => {
            // A shorter string than COMM_LEN may end at a page's end: then the rest of the read fails and with it
            // the name, but never the flag.
            read_into(comm, name);
            true
        }
        _ => false,
    }
}

/// Fills in the owner.
#[inline(always)]
pub(crate) fn owner(prefix: &mut Prefix, entry: Option<Entry<'_>>) {
    let owner = owner_of(entry, &mut prefix.owner_comm);
    prefix.owner_pid = owner.pid;
    prefix.flags |= owner.flags;
}

/// Fills in name and index of a `struct ib_device`; 0 is none.
#[inline(always)]
pub(crate) fn device(prefix: &mut Prefix, device: u64) {
    if name_device(&mut prefix.device, device) {
        prefix.device_index = get(device, &OFF_DEV_INDEX).unwrap_or(UNKNOWN);
        prefix.flags |= flag::DEVICE;
    }
}

/// Reads the name of a `struct ib_device`. Whether there is one.
#[inline(always)]
pub(crate) fn name_device(place: &mut [u8; DEVICE_NAME_LEN], device: u64) -> bool {
    match member(device, &OFF_DEV_NAME) {
        Some(name) => read_into(place, name),
        None => false,
    }
}

/// The key of a call in flight by the current thread.
#[inline(always)]
pub(crate) fn call_key(hook: u32) -> CallKey {
    CallKey {
        tid: bpf_get_current_pid_tgid() as u32,
        hook,
    }
}

/// `CLOCK_MONOTONIC`, ns.
#[inline(always)]
pub(crate) fn now() -> u64 {
    // SAFETY: takes no argument, reads the clock.
    unsafe { bpf_ktime_get_ns() }
}
