//! Who: the current task, and the owner that the kernel noted at creation.

use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_get_current_task, bpf_ktime_get_ns, generated};
use rdmatop_common::{
    event::{COMM_LEN, Prefix, flag},
    offsets::UNKNOWN,
};

use crate::{
    maps::CallKey,
    offsets::{
        OFF_DEV_INDEX, OFF_DEV_NAME, OFF_RES_KERN_NAME, OFF_RES_TASK, OFF_TASK_COMM, OFF_TASK_FLAGS,
        OFF_TASK_LEADER, OFF_TASK_TGID, get, member, read_into,
    },
};

/// `PF_KTHREAD`, include/linux/sched.h: the same bit on 5.10 to 7.2.
const PF_KTHREAD: u32 = 0x0020_0000;

/// Stamps a prefix: kind, time, current task.
#[inline(always)]
pub(crate) fn stamp(prefix: &mut Prefix, kind: u16, object: u64) {
    let pid_tgid = bpf_get_current_pid_tgid();
    // SAFETY: takes no argument, reads the clock.
    prefix.ts_ns = unsafe { bpf_ktime_get_ns() };
    prefix.kind = kind;
    prefix.object = object;
    prefix.pid = (pid_tgid >> 32) as u32;
    prefix.tid = pid_tgid as u32;
    // SAFETY: the helper writes no more than the length, and zeroes what it cannot fill.
    unsafe { generated::bpf_get_current_comm((&raw mut prefix.comm).cast(), COMM_LEN as u32) };
    if is_kthread() {
        prefix.flags |= flag::KTHREAD;
    }
}

/// Whether the current task is a kernel thread (a worker, or softirq on one): then it is nobody's.
#[inline(always)]
pub(crate) fn is_kthread() -> bool {
    // SAFETY: takes no argument, returns the current task's address.
    let task = unsafe { bpf_get_current_task() };
    get::<u32>(task, &OFF_TASK_FLAGS).is_some_and(|flags| flags & PF_KTHREAD != 0)
}

/// The owner that a `struct rdma_restrack_entry` names, as pid and bits of `event::flag`: the task that made the object,
/// or the kernel consumer; 0 is none. Never the current task: a held verbs file lets others destroy what they did not
/// create. The name goes to `comm`, which is zeroed.
#[inline(always)]
pub(crate) fn owner_of(res: u64, comm: &mut [u8; COMM_LEN]) -> (u32, u16) {
    if res == 0 {
        return (0, 0);
    }
    if let Some(task) = get::<u64>(res, &OFF_RES_TASK)
        && task != 0
    {
        // The process's name, not that of whichever of its threads made the call.
        let leader = get::<u64>(task, &OFF_TASK_LEADER).unwrap_or(task);
        if let Some(name) = member(leader, &OFF_TASK_COMM) {
            read_into(comm, name);
        }
        return match get::<u32>(task, &OFF_TASK_TGID) {
            Some(tgid) => (tgid, flag::OWNER_TASK),
            None => (0, 0),
        };
    }
    if let Some(name) = get::<u64>(res, &OFF_RES_KERN_NAME)
        && name != 0
    {
        // A shorter string than COMM_LEN may end at a page's end: then the rest of the read fails and with it
        // the name, but never the flag.
        read_into(comm, name);
        return (0, flag::OWNER_KERNEL);
    }
    (0, 0)
}

/// Fills in the owner.
#[inline(always)]
pub(crate) fn owner(prefix: &mut Prefix, res: u64) {
    let (pid, flags) = owner_of(res, &mut prefix.owner_comm);
    prefix.owner_pid = pid;
    prefix.flags |= flags;
}

/// Fills in name and index of a `struct ib_device`; 0 is none.
#[inline(always)]
pub(crate) fn device(prefix: &mut Prefix, device: u64) {
    if device == 0 {
        return;
    }
    let Some(name) = member(device, &OFF_DEV_NAME) else {
        return;
    };
    if read_into(&mut prefix.device, name) {
        prefix.device_index = get(device, &OFF_DEV_INDEX).unwrap_or(UNKNOWN);
        prefix.flags |= flag::DEVICE;
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
