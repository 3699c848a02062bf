//! The identity of a QP of any provider: its device, number, type, port and owner, and when a program first
//! saw it.
//!
//! Nothing here depends on how, or whether, a provider's work requests are counted: `slots` does that.

use rdmatop_common::{
    counters::place::UNCOUNTED,
    event::{UNKNOWN_U8, UNKNOWN_U32, flag},
};

use crate::{
    maps::QpKnown,
    offsets::{
        OFF_DEV_INDEX, OFF_PD_RES, OFF_QP_DEVICE, OFF_QP_NUM, OFF_QP_PD, OFF_QP_PORT, OFF_QP_TYPE,
        StructBuffer, StructRead, get_or_unknown, get_or_zero, place_of,
    },
    task::{Entry, entry, name_consumer, name_device, now, owner_of},
};

/// Reads a QP's identity from the kernel's structs.
#[inline(always)]
pub(crate) fn identify(known: &mut QpKnown, qp: u64, res: Entry<'_>) {
    known.slot = UNCOUNTED;
    known.state = UNKNOWN_U8;
    known.born_ns = now();
    known.device = get_or_zero(qp, &OFF_QP_DEVICE);
    known.device_index = get_or_unknown(known.device, &OFF_DEV_INDEX);
    known.flags = name_device(&mut known.device_name, known.device);
    let mut buffer = StructBuffer::<5>::uninit();
    let members = StructRead::open(&mut buffer, qp, &OFF_QP_NUM);
    let unreadable = members.unreadable as u32;
    known.qpn = members.get(&OFF_QP_NUM).unwrap_or(UNKNOWN_U32) | unreadable;
    known.qp_type = members.get(&OFF_QP_TYPE).unwrap_or(UNKNOWN_U32) | unreadable;
    known.port = port(members.get(&OFF_QP_PORT).unwrap_or(0)) as u8;
    let owner = owner_of(res, &mut known.owner_comm);
    known.owner_pid = owner.pid;
    known.owner_start_ns = owner.start_ns;
    known.flags |= owner.flags;
    if owner.flags & flag::OWNER_KERNEL != 0 {
        // rdma_cm creates QPs for its callers under its own name; the PD has the caller's name
        // (__ib_alloc_pd).
        let pd = get_or_zero(qp, &OFF_QP_PD);
        let mut buffer = StructBuffer::uninit();
        let entry = entry(&mut buffer, place_of(pd, &OFF_PD_RES));
        name_consumer(&mut known.owner_comm, entry);
    }
}

/// A port number as records hold it: `UNKNOWN_U8` for the kernel's 0, until INIT gives the QP a port.
#[inline(always)]
pub(crate) fn port(number: u32) -> u32 {
    // 0 wraps around to the largest number.
    if number.wrapping_sub(1) < 254 {
        number
    } else {
        u32::from(UNKNOWN_U8)
    }
}
