//! Objects that a program makes on mlx5 past ib_core (DEVX): no list of the kernel has them.

use aya_ebpf::helpers::bpf_probe_read_user;
use rdmatop_common::{
    devx::{CMD_IN, CREATE, DRIVER, HANDLE, MODIFY, attribute, is_inline, opcode},
    event::{DevxRecord, UNKNOWN_U32, kind},
};

use super::verbs::{SCAN, attributes, device_of};
use crate::{
    emit::send,
    offsets::read,
    task::{device, own, stamp},
};

/// `driver_id` in `struct ib_uverbs_ioctl_hdr`. The kernel refuses a call that names another driver than that
/// of the device.
const DRIVER_ID: u64 = 16;

/// Whether the call is of mlx5's driver.
#[inline(always)]
pub(super) fn is_of_mlx5(header: u64) -> bool {
    read::<u32>(header + DRIVER_ID) == Some(DRIVER)
}

/// Return of a successful call of [`CREATE`] or DESTROY, and of any of [`MODIFY`]. The driver has copied the
/// attributes and the command long ago: what is read here of the program's memory is a hint. A program that
/// changes it meanwhile falsifies the record of its own call. The header is the kernel's copy.
///
/// A function of its own, which the verifier checks once.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn devx_returned(verb: u64, file: u64, header: u64, attrs: u64, took: u64) -> u64 {
    if !is_of_mlx5(header) {
        return 0;
    }
    let count = attributes(read(header).unwrap_or(0));
    let (mut handle, mut command) = (UNKNOWN_U32, UNKNOWN_U32);
    for i in 0..SCAN {
        if i >= count {
            break;
        }
        // SAFETY: the helper checks the user address and fails on a bad one.
        let words = unsafe { bpf_probe_read_user((attrs + u64::from(i) * 16) as *const [u64; 2]) };
        let Ok([head, data]) = words else { break };
        let (id, len) = attribute(head);
        if id == HANDLE {
            // The kernel has written the number of a new object here.
            handle = data as u32;
        } else if id == CMD_IN && is_inline(len) {
            command = opcode(data as u16);
        } else if id == CMD_IN {
            // SAFETY: as above.
            let first = unsafe { bpf_probe_read_user(data as *const u16) };
            command = first.map_or(UNKNOWN_U32, opcode);
        }
    }
    send(|record: &mut DevxRecord| {
        let kind = if verb == u64::from(CREATE) {
            kind::DEVX_CREATE
        } else if verb == u64::from(MODIFY) {
            kind::DEVX_MODIFY
        } else {
            kind::DEVX_DESTROY
        };
        stamp(&mut record.prefix, kind, file);
        record.prefix.duration_ns = took;
        device(&mut record.prefix, device_of(file));
        record.owner_start_ns = own(&mut record.prefix);
        record.handle = handle;
        record.opcode = command;
    });
    0
}
