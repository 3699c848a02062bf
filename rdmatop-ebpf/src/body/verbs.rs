//! Verb calls of processes: counts, errors, durations, whatever the provider.

use core::intrinsics::{AtomicOrdering, atomic_xadd};

use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_probe_read_user};
use rdmatop_common::{
    counters::{VerbErrorKey, VerbKey, VerbStats, bucket, loss},
    event::{VerbRecord, kind},
    verb,
};
use zerocopy::FromZeros as _;

use super::{enter, hook};
use crate::{
    emit::{lost, send},
    maps::{VERB_CALLS, VERB_ERRORS, VERBS, VerbCall, ZERO_STATS},
    offsets::{OFF_UDEV_IB_DEV, OFF_UFILE_DEVICE, get, read},
    task::{call_key, device, now, stamp},
};

/// `UVERBS_ATTR_WRITE_CMD`: the attribute that holds the command of an INVOKE_WRITE.
const WRITE_CMD: u16 = 2;
/// Attributes looked through for it; rdma-core sends it among the first.
const SCAN: u32 = 8;
/// `IB_USER_VERBS_CMD_FLAG_EXTENDED` in the command word.
const EXTENDED: u32 = 0x8000_0000;

/// Adds on a word that several CPUs share.
#[inline(always)]
fn add(word: *mut u64, value: u64) {
    // SAFETY: the pointer is a member of a map value that the verifier knows; the add is locked.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(word, value) };
}

/// A write command as a verb number.
#[inline(always)]
fn of_command(command: u32) -> u32 {
    verb::write(command)
        | if command & EXTENDED != 0 {
            verb::EXTENDED
        } else {
            0
        }
}

/// Which verb an ioctl is: (0, 0) wraps a write command, found in the user's attribute array.
#[inline(always)]
fn of_ioctl(header: u64, attrs: u64) -> Option<u32> {
    let object: u16 = read(header + 2)?;
    let method: u16 = read(header + 4)?;
    if object != 0 || method != 0 {
        return Some(verb::ioctl(object, method));
    }
    let count: u16 = read(header + 6)?;
    for i in 0..SCAN {
        if i >= u32::from(count) {
            break;
        }
        let attr = attrs + u64::from(i) * 16;
        // SAFETY: the helper checks the user address and fails on a bad one.
        let id = unsafe { bpf_probe_read_user(attr as *const u16) }.ok()?;
        if id == WRITE_CMD {
            // SAFETY: as above.
            let command = unsafe { bpf_probe_read_user((attr + 8) as *const u64) }.ok()?;
            return Some(of_command(command as u32));
        }
    }
    None
}

/// Entry of `ib_uverbs_cmd_verbs(ufile, hdr, user_attrs)`; `hdr` is the kernel's copy.
#[inline(always)]
pub(crate) fn ioctl_entered(file: u64, header: u64, attrs: u64) -> Option<()> {
    let verb = of_ioctl(header, attrs).unwrap_or(verb::ioctl(0, 0));
    enter(
        &VERB_CALLS,
        hook::VERB,
        &VerbCall {
            start_ns: now(),
            file,
            verb,
            reserved: 0,
        },
    );
    Some(())
}

/// Entry of `ib_uverbs_write(file, buf, count, pos)`: calls only, because a return probe would cost every
/// doorbell. The command is the first word of the user's buffer.
#[inline(always)]
pub(crate) fn write_entered(buffer: u64) -> Option<()> {
    // SAFETY: the helper checks the user address and fails on a bad one.
    let command = unsafe { bpf_probe_read_user(buffer as *const u32) }.ok()?;
    let stats = stats(VerbKey {
        pid: pid(),
        verb: of_command(command),
    })?;
    // SAFETY: as in `add`.
    add(unsafe { &raw mut (*stats).calls }, 1);
    Some(())
}

#[inline(always)]
fn pid() -> u32 {
    (bpf_get_current_pid_tgid() >> 32) as u32
}

#[inline(always)]
fn stats(key: VerbKey) -> Option<*mut VerbStats> {
    if let Some(stats) = VERBS.get_ptr_mut(&key) {
        return Some(stats);
    }
    // BPF_NOEXIST (1): another CPU may have been first, and its counts must stay.
    let _ = VERBS.insert(&key, ZERO_STATS.get(0)?, 1);
    let stats = VERBS.get_ptr_mut(&key);
    if stats.is_none() {
        lost(loss::VERB);
    }
    stats
}

/// Return of `ib_uverbs_cmd_verbs`.
#[inline(always)]
pub(crate) fn ioctl_returned(rc: i32) -> Option<()> {
    let key = call_key(hook::VERB);
    // SAFETY: no other program writes this thread's entry while the thread is inside the call.
    let call = unsafe { *VERB_CALLS.get_ptr(&key)? };
    let _ = VERB_CALLS.remove(&key);
    let took = now() - call.start_ns;
    let stats = stats(VerbKey {
        pid: pid(),
        verb: call.verb,
    })?;
    // SAFETY: members of a map value that the verifier knows.
    unsafe {
        add(&raw mut (*stats).calls, 1);
        add(&raw mut (*stats).ns, took);
        // Two CPUs may race here and the smaller may win; a lock would cost more than this is worth.
        if (*stats).max_ns < took {
            (*stats).max_ns = took;
        }
        // The mask tells the verifier what `bucket` promises.
        add((&raw mut (*stats).hist).cast::<u64>().add(bucket(took) & 31), 1);
        if rc < 0 {
            add(&raw mut (*stats).errors, 1);
        }
    }
    if rc < 0 {
        failed(&call, rc, took);
    }
    Some(())
}

#[inline(always)]
fn failed(call: &VerbCall, rc: i32, took: u64) {
    let key = VerbErrorKey {
        pid: pid(),
        verb: call.verb,
        errno: rc.unsigned_abs(),
        reserved: 0,
    };
    if let Some(count) = VERB_ERRORS.get_ptr_mut(&key) {
        add(count, 1);
    } else if VERB_ERRORS.insert(&key, &1u64, 0).is_err() {
        lost(loss::VERB);
    }
    let mut record = VerbRecord::new_zeroed();
    stamp(&mut record.prefix, kind::VERB_ERROR, 0);
    record.prefix.rc = rc;
    record.prefix.duration_ns = took;
    record.verb = call.verb;
    let owner_device =
        get::<u64>(call.file, &OFF_UFILE_DEVICE).and_then(|uverbs| get::<u64>(uverbs, &OFF_UDEV_IB_DEV));
    device(&mut record.prefix, owner_device.unwrap_or(0));
    send(&record);
}
