//! Records of single work requests, for a trace that asks for them. They have a ring buffer of their own, so
//! that a million of them do not displace lifecycle records.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::event::{COMM_LEN, DEVICE_NAME_LEN, DecodeError, read};

/// Kinds of record ([`WrRecord::kind`]).
pub mod kind {
    /// A work request was posted.
    pub const POST: u16 = 60;
    /// A work request has ended.
    pub const DONE: u16 = 61;
}

/// Bits of [`WrRecord::flags`]. The first two are those of [`crate::event::flag`].
pub mod flag {
    /// The owner is a process: `owner_pid` and `owner_comm` are from `rdma_restrack_entry.task`.
    pub const OWNER_TASK: u16 = crate::event::flag::OWNER_TASK;
    /// The owner is a kernel consumer; `owner_comm` holds the start of its name.
    pub const OWNER_KERNEL: u16 = crate::event::flag::OWNER_KERNEL;
    /// The work request is from the receive queue.
    pub const RECEIVE: u16 = 1 << 4;
    /// [`super::WrRecord::wr_id`] is known.
    pub const WR_ID: u16 = 1 << 5;
    /// Opcode, bytes and whether it is signaled are known.
    pub const DETAILS: u16 = 1 << 6;
    /// The program requested a completion.
    pub const SIGNALED: u16 = 1 << 7;
    /// [`super::WrRecord::imm`] is known.
    pub const IMM: u16 = 1 << 8;
    /// RESET or the destruction of the QP removed the work request from its queue without a completion.
    pub const DROPPED: u16 = 1 << 9;
    /// The CQ had no room for the completion.
    pub const CQ_FULL: u16 = 1 << 10;
    /// [`super::WrRecord::tid`] is known.
    pub const THREAD: u16 = 1 << 11;
    /// Whether the program requested a completion is not known: the QP may signal every work request.
    pub const SIGNALS_UNKNOWN: u16 = 1 << 12;
}

/// [`WrRecord::status`] of a work request that has not ended, or whose completion no program saw.
pub const NO_STATUS: u32 = u32::MAX;
/// [`WrRecord::opcode`] when the opcode is not known.
pub const NO_OPCODE: u32 = u32::MAX;

/// A work request that was posted, or has ended.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WrRecord {
    /// `bpf_ktime_get_ns()` at the doorbell, or at the end.
    pub ts_ns: u64,
    /// `struct ib_qp *`: an identity to join records on, never shown.
    pub object: u64,
    /// The program's own number for the work request. Valid with [`flag::WR_ID`].
    pub wr_id: u64,
    /// `bpf_ktime_get_ns()` at the doorbell, 0 when not known.
    pub post_ns: u64,
    /// One of [`kind`].
    pub kind: u16,
    /// Bits of [`flag`].
    pub flags: u16,
    /// `IB_WC_*` status, or [`NO_STATUS`].
    pub status: u32,
    /// `IB_WR_*` for a send WR, `IB_WC_RECV` and up for a receive, or [`NO_OPCODE`].
    pub opcode: u32,
    /// Bytes. Valid with [`flag::DETAILS`].
    pub bytes: u32,
    /// Immediate data in the host's order. Valid with [`flag::IMM`].
    pub imm: u32,
    /// `ib_qp.qp_num`.
    pub qpn: u32,
    /// `ib_qp.qp_type`.
    pub qp_type: u32,
    /// `ib_device.index`.
    pub device_index: u32,
    /// Process that created the QP. Valid with [`flag::OWNER_TASK`].
    pub owner_pid: u32,
    /// Thread that posted the work request. Valid with [`flag::THREAD`].
    pub tid: u32,
    /// QP number of the peer, [`crate::event::UNKNOWN_U32`] when not known.
    pub dest_qpn: u32,
    /// Number of the work request on its send queue. The first one after a program first saw the QP is 1; 0
    /// when not known, and for a receive.
    pub number: u32,
    /// `comm` of the owner, or the kernel consumer's name.
    pub owner_comm: [u8; COMM_LEN],
    /// GID of the peer's port, all zero when not known.
    pub dest_gid: [u8; 16],
    /// The device's name when the QP was first seen, NUL-padded, all zero when not known. The filter
    /// compared this name.
    pub device: [u8; DEVICE_NAME_LEN],
}

/// Which work requests make records. User space writes it before counting begins.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WrFilter {
    /// Only QPs of this process; 0 is any.
    pub pid: u32,
    /// Only QPs with this number, if `flags` has [`WrFilter::QPN`].
    pub qpn: u32,
    /// One of this many work requests makes a record; 0 and 1 mean all.
    pub sample: u32,
    /// [`WrFilter::QPN`], [`WrFilter::NO_POSTS`] and [`WrFilter::NO_ENDS`].
    pub flags: u32,
    /// Only QPs of an owner with this name, up to the first NUL; all zero is any. If the name fills all 16
    /// bytes, only the first 15 count.
    pub comm: [u8; COMM_LEN],
    /// Only QPs of the device with this name; NUL-padded, all zero is any.
    pub device: [u8; DEVICE_NAME_LEN],
}

impl WrFilter {
    /// [`WrFilter::qpn`] is set.
    pub const QPN: u32 = 1;
    /// Make no records of posts.
    pub const NO_POSTS: u32 = 2;
    /// Make no records of ends.
    pub const NO_ENDS: u32 = 4;
}

/// Index into the array of counts of work requests. [`HAPPENED`](count::HAPPENED) is the sum of those that
/// were printed, lost, filtered out and sampled out.
pub mod count {
    /// Posts and ends of work requests that the programs found.
    pub const HAPPENED: u32 = 0;
    /// Of these, those whose process, device, QP or kind the trace did not ask for.
    pub const FILTERED: u32 = 1;
    /// Of these, those that sampling left out.
    pub const SAMPLED_OUT: u32 = 2;
    /// Signaled requests whose end shows only in the ring's index and not in a completion, because the kernel
    /// skipped the program that sees completions. They make a record all the same.
    pub const HEALED: u32 = 3;
    /// Receives that are missing according to the ring's index. [`crate::counters::loss::WR_MISSED`] includes
    /// them.
    pub const INDEXED: u32 = 4;
    /// Number of counts.
    pub const COUNT: u32 = 5;
}

/// Decodes one record. A record that is too short is an error.
pub fn decode(bytes: &[u8]) -> Result<WrRecord, DecodeError> {
    let record: WrRecord = read(bytes)?;
    match record.kind {
        kind::POST | kind::DONE => Ok(record),
        other => Err(DecodeError::Kind(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_cut_at_any_length_is_an_error_and_so_is_another_kind() {
        assert_eq!((size_of::<WrRecord>(), size_of::<WrFilter>()), (176, 96));
        let mut record = WrRecord::read_from_bytes(&[0u8; size_of::<WrRecord>()]).unwrap();
        assert_eq!(decode(record.as_bytes()).err(), Some(DecodeError::Kind(0)));
        record.kind = kind::DONE;
        let bytes = record.as_bytes();
        for cut in 0..bytes.len() {
            assert!(decode(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        assert!(decode(bytes).is_ok());
    }
}
