//! Verb calls of processes on any provider: counts, errors, durations.

use core::mem::MaybeUninit;

use super::{Hook, calls::Calls, devx, not_entered};
use crate::{
    emit::{lost, send},
    maps::{
        FREE_VERB_ERRORS, FREE_VERBS, NOEXIST, VERB_CALL_ENTRIES, VERB_CALLS, VERB_ERROR_INDEX, VERB_ERRORS,
        VERB_INDEX, VERB_REST, VERBS, VerbCall,
    },
    offsets::{OFF_UDEV_IB_DEV, OFF_UFILE_DEVICE, WANT_DEVX, counts, get, read},
    pool,
    share::{caller, is_over_budget},
    task::{device, now, of_current_kthread, stamp},
    words::add,
};
use aya_ebpf::{
    helpers::bpf_probe_read_user,
    maps::{Array, HashMap, Stack},
};
use rdmatop_common::{
    counters::{VerbErrorKey, VerbKey, bucket, loss},
    devx::{CREATE, DESTROY, MODIFY},
    event::{VerbRecord, kind},
    verb,
};
use zerocopy::FromZeros;

/// `UVERBS_ATTR_WRITE_CMD`: the attribute that holds the command of an INVOKE_WRITE.
const WRITE_CMD: u16 = 2;
/// How many attributes to search for one; rdma-core sends those that are searched for among the first.
pub(super) const SCAN: u32 = 8;
/// No command: commands have 32 bits.
const NO_COMMAND: u64 = u64::MAX;
/// `IB_USER_VERBS_CMD_FLAG_EXTENDED` in the command word.
const EXTENDED: u32 = 0x8000_0000;

/// Calls by ioctl and by `write()`.
pub(super) const CALLS: Calls<VerbCall> = Calls {
    entries: &VERB_CALLS,
    number: VERB_CALL_ENTRIES,
    rest: &VERB_REST,
};

/// The verb number of a write command.
#[inline(always)]
pub(super) fn of_command(command: u32) -> u32 {
    verb::write(command)
        | if command & EXTENDED != 0 {
            verb::EXTENDED
        } else {
            0
        }
}

/// How many attributes a call has, by the first word of its `struct ib_uverbs_ioctl_hdr`: length, object,
/// method, number of attributes.
#[inline(always)]
pub(super) fn attributes(head: u64) -> u32 {
    (head >> 48) as u32
}

/// Returns the verb of an ioctl by the first word of its header. Object 0 with method 0 wraps a write
/// command, whose number is in the user's attribute array.
#[inline(always)]
fn of_ioctl(head: u64, attrs: u64) -> Option<u32> {
    let (object, method) = ((head >> 16) as u16, (head >> 32) as u16);
    if object != 0 || method != 0 {
        return Some(verb::ioctl(object, method));
    }
    let command = write_command(attributes(head).into(), attrs);
    (command != NO_COMMAND).then_some(of_command(command as u32))
}

/// The command of an INVOKE_WRITE with `count` attributes at `attrs`, or [`NO_COMMAND`].
///
/// A function of its own, which the verifier checks once. Inlined, each place where the search may end made
/// it check the rest of the program once more.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn write_command(count: u64, attrs: u64) -> u64 {
    for i in 0..SCAN.into() {
        if i >= count {
            break;
        }
        let attr = attrs + i * 16;
        // SAFETY: the helper checks the user address and fails on a bad one.
        let Ok(id) = (unsafe { bpf_probe_read_user(attr as *const u16) }) else {
            break;
        };
        if id == WRITE_CMD {
            // SAFETY: as above.
            let command = unsafe { bpf_probe_read_user((attr + 8) as *const u64) };
            return command.map_or(NO_COMMAND, |command| u64::from(command as u32));
        }
    }
    NO_COMMAND
}

/// The device of a `struct ib_uverbs_file`, 0 if that is not known.
#[inline(always)]
pub(super) fn device_of(file: u64) -> u64 {
    let uverbs = get::<u64>(file, &OFF_UFILE_DEVICE);
    uverbs
        .and_then(|uverbs| get::<u64>(uverbs, &OFF_UDEV_IB_DEV))
        .unwrap_or(0)
}

/// Entry of `ib_uverbs_cmd_verbs(ufile, hdr, user_attrs)`. The return program reads which verb it is; in a
/// trace it does so only if the call failed or may have made or destroyed an object that is shown.
#[inline(always)]
pub(crate) fn ioctl_entered(file: u64, header: u64, attrs: u64) -> Option<()> {
    let call = VerbCall {
        start_ns: now(),
        file,
        header,
        attrs,
    };
    CALLS.remember(Hook::Verb, &call, |call| call.start_ns, |_| lost(loss::RETURN));
    Some(())
}

/// The entry of a key, which the entry begins with. A new key gets a free one: the key is written before the
/// index has the entry's number.
#[inline(always)]
fn entry_of<K: Copy + FromZeros, E>(
    index: &HashMap<K, u32>,
    array: &Array<E>,
    free: &Stack<u64>,
    key: &K,
) -> Option<*mut E> {
    if let Some(number) = index.get_ptr(key) {
        // SAFETY: the map checked the pointer.
        return array.get_ptr_mut(unsafe { *number });
    }
    let entry = pool::take(free).and_then(|number| {
        let entry = array.get_ptr_mut(number)?;
        // SAFETY: the map checked the pointer, and nobody else has this entry.
        unsafe { *entry.cast::<K>() = *key };
        if index.insert(key, &number, NOEXIST).is_ok() {
            return Some(entry);
        }
        // SAFETY: as above.
        unsafe { *entry.cast::<K>() = K::new_zeroed() };
        pool::give_back(free, number);
        // Another CPU was first, or there is no room.
        // SAFETY: the map checked the pointer.
        array.get_ptr_mut(unsafe { *index.get_ptr(key)? })
    });
    if entry.is_none() {
        lost(loss::VERB);
    }
    entry
}

/// Return of `ib_uverbs_cmd_verbs`.
#[inline(always)]
pub(crate) fn ioctl_returned(rc: i32) -> Option<()> {
    let mut call = MaybeUninit::uninit();
    let Some(call) = CALLS.recall(Hook::Verb, &mut call, |_| true) else {
        not_entered(loss::MISSED);
        return None;
    };
    let may_be_devx = rc >= 0 && WANT_DEVX.load() != 0;
    if !counts() && rc >= 0 && !may_be_devx {
        return None;
    }
    let took = now() - call.start_ns;
    let head: Option<u64> = read(call.header);
    let verb = head.and_then(|head| of_ioctl(head, call.attrs));
    // Another driver has another method of this number, and the kernel refuses a call with a false one.
    let verb = verb.filter(|verb| *verb != MODIFY || devx::is_of_mlx5(call.header));
    let verb = verb.unwrap_or(verb::ioctl(0, 0));
    let is_told = rc >= 0 || record_failure(verb, rc, took, device_of(call.file));
    // Only who counts calls asks for changes. One that has no record is found by its count.
    if may_be_devx && (verb == CREATE || verb == DESTROY) || verb == MODIFY && is_told && counts() {
        devx::devx_returned(verb.into(), call.file, call.header, call.attrs, took);
    }
    count(verb, rc, Some(took))
}

/// The verb under which to count a call. All calls whose method the kernel does not define count as one verb,
/// so that a process takes a limited number of entries. A method without a name, which is a driver's own, is
/// known to be defined once a call of it has succeeded. The command of a write is only what the user wrote,
/// even in a call that succeeds; but all commands of the kernel have names. A failed [`MODIFY`] may have done
/// what it was to do.
#[inline(always)]
fn folded(verb: u32, rc: i32) -> u32 {
    if verb::is_named(verb) || verb == MODIFY {
        return verb;
    }
    let is_method = verb & (verb::WRITE | verb::CM) == 0;
    if is_method && (rc >= 0 || VERB_INDEX.get_ptr(&VerbKey { pid: caller(), verb }).is_some()) {
        return verb;
    }
    verb::UNKNOWN
}

/// Counts a call that has returned. `took` is its duration in ns; `None` for a call that waits, because that
/// duration says nothing about the kernel.
#[inline(always)]
pub(super) fn count(verb: u32, rc: i32, took: Option<u64>) -> Option<()> {
    if !counts() {
        return None;
    }
    let verb = folded(verb, rc);
    if rc < 0 {
        count_failure(verb, rc);
    }
    let key = VerbKey { pid: caller(), verb };
    let entry = entry_of(&VERB_INDEX, &VERBS, &FREE_VERBS, &key)?;
    // SAFETY: members of a map value that the verifier knows.
    unsafe {
        let stats = &raw mut (*entry).stats;
        add(&raw mut (*stats).calls, 1);
        if let Some(took) = took {
            add(&raw mut (*stats).ns, took);
            // Two CPUs may race here, and the smaller duration may stay. Avoiding that would cost more than
            // it is worth.
            if (*stats).max_ns < took {
                (*stats).max_ns = took;
            }
            // The mask tells the verifier that the bucket is below 32, which `bucket` ensures.
            add((&raw mut (*stats).hist).cast::<u64>().add(bucket(took) & 31), 1);
        }
        if rc < 0 {
            add(&raw mut (*stats).errors, 1);
        }
    }
    Some(())
}

/// Entry of `ib_umem_dmabuf_map_pages(umem_dmabuf)`: the process registers a DMA-BUF. In a kernel thread mlx5
/// maps one again that its exporter had moved (`mlx5_ib_eqe_pf_action`).
#[inline(always)]
pub(crate) fn dmabuf_mapped() -> Option<()> {
    if of_current_kthread() != 0 {
        return None;
    }
    count(verb::DMABUF, 0, None)
}

/// Makes the record of a failure, unless it is one by design or the process has too many. `on` is a
/// `struct ib_device *` or 0. Returns whether it made one.
#[inline(always)]
pub(super) fn record_failure(verb: u32, rc: i32, took: u64, on: u64) -> bool {
    failed_call(verb.into(), i64::from(rc), took, on) != 0
}

/// As [`record_failure`]. A function of its own, as [`write_command`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn failed_call(verb: u64, rc: i64, took: u64, on: u64) -> u64 {
    let (verb, rc) = (verb as u32, rc as i32);
    if verb::is_probe(verb, rc.unsigned_abs()) || is_over_budget() != 0 {
        return 0;
    }
    send(|record: &mut VerbRecord| {
        stamp(&mut record.prefix, kind::VERB_ERROR, 0);
        record.prefix.rc = rc;
        record.prefix.duration_ns = took;
        record.verb = verb;
        device(&mut record.prefix, on);
    });
    1
}

#[inline(always)]
fn count_failure(verb: u32, rc: i32) {
    let key = VerbErrorKey {
        pid: caller(),
        verb,
        errno: rc.unsigned_abs(),
        reserved: 0,
    };
    if let Some(entry) = entry_of(&VERB_ERROR_INDEX, &VERB_ERRORS, &FREE_VERB_ERRORS, &key) {
        // SAFETY: the map checked the pointer.
        add(unsafe { &raw mut (*entry).count }, 1);
    }
}
