//! Lifecycle records, which the kernel side sends through the ring buffer.
//!
//! They are rare by design. [`crate::counters`] counts work requests; only a trace that asks for them gets a
//! record for each ([`crate::wr`]).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `TASK_COMM_LEN` of the kernel, include/linux/sched.h.
pub const COMM_LEN: usize = 16;
/// `IB_DEVICE_NAME_MAX` of the kernel, include/rdma/ib_verbs.h.
pub const DEVICE_NAME_LEN: usize = 64;

/// A 32-bit field whose value the kernel side could not learn.
pub const UNKNOWN_U32: u32 = u32::MAX;
/// An 8-bit field whose value the kernel side could not learn.
pub const UNKNOWN_U8: u8 = u8::MAX;

/// Kinds of record ([`Prefix::kind`]). Gaps leave room in each family of kinds; no number is ever reused.
pub mod kind {
    /// A QP was created ([`super::QpRecord`]).
    pub const QP_CREATE: u16 = 1;
    /// `_ib_modify_qp` returned ([`super::QpRecord`]).
    pub const QP_MODIFY: u16 = 2;
    /// `ib_destroy_qp_user` returned ([`super::QpRecord`]).
    pub const QP_DESTROY: u16 = 3;
    /// An asynchronous QP event ([`super::QpRecord`], `event` says which).
    pub const QP_ASYNC: u16 = 4;
    /// A QP moved and found no slot: it is not counted until it finds one ([`super::QpRecord`]).
    pub const QP_UNCOUNTED: u16 = 5;
    /// A memory region was registered ([`super::ObjectRecord`]).
    pub const MR_REG: u16 = 10;
    /// A memory region was deregistered ([`super::ObjectRecord`]).
    pub const MR_DEREG: u16 = 11;
    /// A completion queue was created ([`super::ObjectRecord`]).
    pub const CQ_CREATE: u16 = 20;
    /// A completion queue was destroyed ([`super::ObjectRecord`]).
    pub const CQ_DESTROY: u16 = 21;
    /// An object was made past ib_core ([`super::DevxRecord`]).
    pub const DEVX_CREATE: u16 = 40;
    /// An object was destroyed that had been made past ib_core ([`super::DevxRecord`]).
    pub const DEVX_DESTROY: u16 = 41;
    /// A program asked for a change of an object or a queue pair past ib_core, with whatever success
    /// ([`super::DevxRecord`]).
    pub const DEVX_MODIFY: u16 = 42;
    /// An `rdma_cma` tracepoint fired ([`super::CmRecord`], `what` says which).
    pub const CM: u16 = 30;
    /// A verb returned an error ([`super::VerbRecord`]).
    pub const VERB_ERROR: u16 = 50;
}

/// Bits of [`Prefix::flags`]: which fields are valid, and where the record comes from.
pub mod flag {
    /// [`super::Prefix::owner_pid`] and `owner_comm` are from `rdma_restrack_entry.task`.
    pub const OWNER_TASK: u16 = 1;
    /// The owner is a kernel consumer; `owner_comm` holds the start of `rdma_restrack_entry.kern_name`.
    pub const OWNER_KERNEL: u16 = 2;
    /// The device name and index are valid.
    pub const DEVICE: u16 = 4;
    /// A kernel thread was running when the record was made: `pid`, `tid` and `comm` are not those of a user.
    pub const KTHREAD: u16 = 8;
    /// [`super::QpRecord::born_ns`] is when the QP was created. Without this bit the QP existed before that
    /// time.
    pub const CREATED: u16 = 16;
}

/// Every record begins with this prefix. 144 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Prefix {
    /// `bpf_ktime_get_ns()` when the record was made: `CLOCK_MONOTONIC`, nanoseconds.
    pub ts_ns: u64,
    /// Address of the kernel object: an identity to join records on, never shown.
    pub object: u64,
    /// Nanoseconds between entry and return of the traced function, 0 where `kind` has no return.
    pub duration_ns: u64,
    /// One of [`kind`].
    pub kind: u16,
    /// Bits of [`flag`].
    pub flags: u16,
    /// Return code of the traced function (negative errno), 0 where `kind` has none.
    pub rc: i32,
    /// Current process (thread group) when the hook ran.
    pub pid: u32,
    /// Current thread when the hook ran.
    pub tid: u32,
    /// Owner of the object: the process that created it. Valid with [`flag::OWNER_TASK`].
    pub owner_pid: u32,
    /// `ib_device.index`. Valid with [`flag::DEVICE`].
    pub device_index: u32,
    /// `comm` of the current thread.
    pub comm: [u8; COMM_LEN],
    /// `comm` of the owner, or the kernel consumer's name.
    pub owner_comm: [u8; COMM_LEN],
    /// `ib_device.name`, NUL-padded. Valid with [`flag::DEVICE`]. Hostile text: any byte but NUL.
    pub device: [u8; DEVICE_NAME_LEN],
}

/// A record about a queue pair. 144 + 72 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QpRecord {
    /// Common part; `object` is the `struct ib_qp *`.
    pub prefix: Prefix,
    /// `ib_qp.qp_num`, [`UNKNOWN_U32`] when the offset is unknown.
    pub qpn: u32,
    /// `IB_QPT_*`, [`UNKNOWN_U32`] when unknown.
    pub qp_type: u32,
    /// `mask` argument of `_ib_modify_qp`, 0 otherwise.
    pub attr_mask: u32,
    /// `ib_qp_attr.dest_qp_num` when the mask has `IB_QP_DEST_QPN`, else [`UNKNOWN_U32`].
    pub dest_qpn: u32,
    /// `ib_qp_attr.rq_psn` when masked (bit 12), else [`UNKNOWN_U32`].
    pub rq_psn: u32,
    /// `ib_qp_attr.sq_psn` when masked (bit 16), else [`UNKNOWN_U32`].
    pub sq_psn: u32,
    /// Slot in the counter array, or one of [`crate::counters::place`].
    pub slot: u32,
    /// `IB_EVENT_*` of a [`kind::QP_ASYNC`]; `ib_device.attrs.max_qp`, the most QPs that the device may have,
    /// of a [`kind::QP_CREATE`]. Else, and where it is not known, [`UNKNOWN_U32`].
    pub event: u32,
    /// State before, `IB_QPS_*`, [`UNKNOWN_U8`] when the kernel side does not know it.
    pub from_state: u8,
    /// State after when the mask has `IB_QP_STATE`, else [`UNKNOWN_U8`].
    pub to_state: u8,
    /// `enum ib_mtu` (1 = 256 ... 5 = 4096) when masked, else [`UNKNOWN_U8`].
    pub path_mtu: u8,
    /// Port number when masked or known from the QP, else [`UNKNOWN_U8`].
    pub port: u8,
    /// `ib_qp_attr.timeout` when masked, else [`UNKNOWN_U8`].
    pub timeout: u8,
    /// `ib_qp_attr.retry_cnt` when masked, else [`UNKNOWN_U8`].
    pub retry_cnt: u8,
    /// `ib_qp_attr.rnr_retry` when masked, else [`UNKNOWN_U8`].
    pub rnr_retry: u8,
    /// `ib_qp_attr.ah_attr.grh.sgid_index` when masked, else [`UNKNOWN_U8`].
    pub sgid_index: u8,
    /// `ib_qp_attr.ah_attr.grh.dgid` when masked and the address has a GRH, else all zero.
    pub dest_gid: [u8; 16],
    /// `bpf_ktime_get_ns()` when the kernel side first saw the QP: at its creation with [`flag::CREATED`].
    /// With [`Prefix::object`] it identifies the QP, because the kernel reuses addresses. 0 when not known.
    pub born_ns: u64,
    /// Start time of the owner process, `task_struct.start_boottime` in ns: identifies the process, because
    /// the kernel reuses process ids. 0 when not known.
    pub owner_start_ns: u64,
}

/// A record about an MR or a CQ. 144 + 24 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ObjectRecord {
    /// Common part; `object` is the `struct ib_mr *` or `struct ib_cq *`.
    pub prefix: Prefix,
    /// MR: bytes registered, `u64::MAX` when unknown. CQ: number of CQEs, `u64::MAX` when unknown.
    pub size: u64,
    /// On create: the most MRs and SRQs, or CQs and PDs, that the device may have, `ib_device.attrs.max_mr`
    /// and like; [`UNKNOWN_U32`] when unknown. SRQs and PDs have no records of their own.
    pub limits: [u32; 2],
    /// Start of the owner, as in [`QpRecord::owner_start_ns`].
    pub owner_start_ns: u64,
}

/// Which `rdma_cma` tracepoint made a [`CmRecord`].
pub mod cm {
    /// `cm_event_handler`: `event` and `status` are set.
    pub const EVENT: u32 = 1;
    /// `cm_send_req`: the active side asks for a connection.
    pub const CONNECT: u32 = 2;
    /// `cm_send_rep`: the passive side accepts.
    pub const ACCEPT: u32 = 3;
    /// `cm_disconnect`: this side ends the connection.
    pub const DISCONNECT: u32 = 4;
    /// `cm_send_rej`: this side refuses.
    pub const REJECT: u32 = 5;
}

/// A connection-manager record. 144 + 80 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CmRecord {
    /// Common part; `object` is the `struct rdma_id_private *`, or 0 where the module has no BTF. In that
    /// case the record names no device, and its owner is the calling process.
    pub prefix: Prefix,
    /// One of [`cm`].
    pub what: u32,
    /// `enum rdma_cm_event_type`, [`UNKNOWN_U32`] when `what` is not [`cm::EVENT`].
    pub event: u32,
    /// Status of the event (negative errno or IB reason), 0 otherwise.
    pub status: i32,
    /// The kernel's number for the `rdma_cm_id` (restrack id), 0 while the id has no device. An id of another
    /// device may have the same number.
    pub cm_id: u32,
    /// The first 28 bytes of a `sockaddr_in`, `sockaddr_in6` or `sockaddr_ib`, as in the tracepoint.
    pub src: [u8; 28],
    /// Address of the peer, as `src`.
    pub dst: [u8; 28],
    /// QPN of the connection, [`UNKNOWN_U32`] when the tracepoint has none.
    pub qpn: u32,
    /// Keeps the size a multiple of 8.
    pub reserved: u32,
}

/// An object that a program made past ib_core, or destroyed ([`crate::devx`]). 144 + 16 bytes.
///
/// Handle and opcode are from the memory of the program, which the kernel read at another time: a program can
/// have others here than those that the kernel saw, of its own calls alone.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DevxRecord {
    /// Common part; `object` is the `struct ib_uverbs_file *`, in which the handle is unique; the owner is
    /// the process that calls.
    pub prefix: Prefix,
    /// The object's number in its file, [`UNKNOWN_U32`] when it could not be read.
    pub handle: u32,
    /// On create: [`crate::devx::opcode`] of the command, [`UNKNOWN_U32`] when it could not be read.
    pub opcode: u32,
    /// Start of the owner, as in [`QpRecord::owner_start_ns`].
    pub owner_start_ns: u64,
}

/// A verb that failed. 144 + 8 bytes. The error is in `prefix.rc`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct VerbRecord {
    /// Common part.
    pub prefix: Prefix,
    /// Encoded as in [`crate::verb`].
    pub verb: u32,
    /// Keeps the size a multiple of 8.
    pub reserved: u32,
}

/// A decoded record.
#[derive(Clone, Copy, Debug)]
pub enum Record {
    /// Kinds 1 to 5.
    Qp(QpRecord),
    /// Kinds 10, 11, 20, 21.
    Object(ObjectRecord),
    /// Kinds 40, 41.
    Devx(DevxRecord),
    /// Kind 30.
    Cm(CmRecord),
    /// Kind 50.
    Verb(VerbRecord),
}

/// Why bytes from the ring buffer are not a record. Each of these errors means that the eBPF object and this
/// binary do not match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// Fewer bytes than the record's kind needs.
    Short {
        /// Bytes received.
        len: usize,
        /// Bytes required.
        need: usize,
    },
    /// A kind this version does not know.
    Kind(u16),
}

impl core::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Short { len, need } => write!(f, "record of {len} bytes where {need} are needed"),
            Self::Kind(kind) => write!(f, "unknown record kind {kind}"),
        }
    }
}

impl core::error::Error for DecodeError {}

/// Reads one record from the start of some bytes.
pub(crate) fn read<T: FromBytes>(bytes: &[u8]) -> Result<T, DecodeError> {
    T::read_from_prefix(bytes)
        .map(|(record, _)| record)
        .map_err(|_| DecodeError::Short {
            len: bytes.len(),
            need: size_of::<T>(),
        })
}

/// Decodes one ring-buffer record. A record that is too short is an error; missing bytes are never taken as
/// zeroes.
pub fn decode(bytes: &[u8]) -> Result<Record, DecodeError> {
    match read::<Prefix>(bytes)?.kind {
        kind::QP_CREATE | kind::QP_MODIFY | kind::QP_DESTROY | kind::QP_ASYNC | kind::QP_UNCOUNTED => {
            read(bytes).map(Record::Qp)
        }
        kind::MR_REG | kind::MR_DEREG | kind::CQ_CREATE | kind::CQ_DESTROY => read(bytes).map(Record::Object),
        kind::DEVX_CREATE | kind::DEVX_DESTROY | kind::DEVX_MODIFY => read(bytes).map(Record::Devx),
        kind::CM => read(bytes).map(Record::Cm),
        kind::VERB_ERROR => read(bytes).map(Record::Verb),
        other => Err(DecodeError::Kind(other)),
    }
}

impl Record {
    /// The part that all records share.
    pub fn prefix(&self) -> &Prefix {
        match self {
            Self::Qp(r) => &r.prefix,
            Self::Object(r) => &r.prefix,
            Self::Devx(r) => &r.prefix,
            Self::Cm(r) => &r.prefix,
            Self::Verb(r) => &r.prefix,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_the_abi() {
        assert_eq!(size_of::<Prefix>(), 144);
        assert_eq!(size_of::<QpRecord>(), 216);
        assert_eq!(size_of::<ObjectRecord>(), 168);
        assert_eq!(size_of::<DevxRecord>(), 160);
        assert_eq!(size_of::<CmRecord>(), 224);
        assert_eq!(size_of::<VerbRecord>(), 152);
    }

    #[test]
    fn a_record_cut_at_any_length_is_an_error() {
        let mut record = VerbRecord::read_from_bytes(&[0u8; size_of::<VerbRecord>()]).unwrap();
        record.prefix.kind = kind::VERB_ERROR;
        let bytes = record.as_bytes();
        for cut in 0..bytes.len() {
            assert!(decode(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        assert!(matches!(decode(bytes), Ok(Record::Verb(_))));
    }

    #[test]
    fn an_unknown_kind_is_named() {
        let mut bytes = [0u8; 512];
        bytes[24..26].copy_from_slice(&999u16.to_ne_bytes());
        assert_eq!(decode(&bytes).err(), Some(DecodeError::Kind(999)));
    }
}
