//! SoftRoCE: what the programs that count and those that make records both need.

use rdmatop_common::offsets::UNKNOWN;

use aya_ebpf::maps::HashMap;

use crate::{
    maps::QpnKey,
    offsets::{
        OFF_CQ_DEVICE, OFF_DEV_DRIVER, OFF_QUEUE_BUF, OFF_QUEUE_INDEX, OFF_QUEUE_MASK, OFF_RING_CONSUMER,
        OFF_RXE_CQ_IBCQ, OFF_RXE_CQ_QUEUE, OFF_RXE_CQ_USER, OFF_RXE_QP_IBQP, OFF_RXE_TASK_TASKLET,
        OFF_WC_BYTE_LEN, OFF_WC_OPCODE, OFF_WC_QP, OFF_WC_STATUS, StructBuffer, StructRead, get, get_or_zero,
        is_known, member, read,
    },
    words::halves,
};

/// `RDMA_DRIVER_RXE`, include/uapi/rdma/ib_user_ioctl_verbs.h.
const DRIVER: u32 = 14;

/// Whether a device is one of SoftRoCE, whose QPs can be read. Every provider's QP struct contains an
/// `ib_qp`; only the driver id says which provider it is.
#[inline(always)]
pub(crate) fn is_rxe(device: u64) -> bool {
    is_known(&OFF_RXE_QP_IBQP) && get::<u32>(device, &OFF_DEV_DRIVER) == Some(DRIVER)
}

/// Whether the driver works in softirqs, which it does before Linux 6.4. An interrupt can come while a
/// program of ours runs, and the softirq then runs inside that program, where the kernel skips all our other
/// programs. Where this is false, the verifier removes the code that depends on it.
#[inline(always)]
pub(crate) fn works_in_softirqs() -> bool {
    OFF_RXE_TASK_TASKLET.load() != UNKNOWN
}

/// A CQE of either form. What a kernel consumer's CQE does not have, or no program reads from it, is 0.
pub(super) struct Cqe {
    /// `struct ib_qp *`, 0 if the QP of a user program's CQE is not known.
    pub(super) qp: u64,
    pub(super) wr_id: u64,
    pub(super) status: u32,
    pub(super) opcode: u32,
    pub(super) bytes: u32,
    /// Network order.
    pub(super) imm: u32,
    pub(super) src_qp: u32,
    pub(super) flags: u32,
}

impl Cqe {
    /// Reads the CQE that `rxe_cq_post(cq, cqe, solicited)` is about to place. A user program's CQE names its
    /// QP only by number, and `qpns` has the QPs by their numbers.
    #[inline(always)]
    pub(super) fn read(cq: u64, cqe: u64, qpns: &HashMap<QpnKey, u64>) -> Option<Self> {
        if get::<u8>(cq, &OFF_RXE_CQ_USER)? == 0 {
            return Some(Self {
                qp: get(cqe, &OFF_WC_QP)?,
                wr_id: 0,
                status: get(cqe, &OFF_WC_STATUS)?,
                opcode: get(cqe, &OFF_WC_OPCODE)?,
                bytes: get(cqe, &OFF_WC_BYTE_LEN)?,
                imm: 0,
                src_qp: 0,
                flags: 0,
            });
        }
        // The head of `struct ib_uverbs_wc` (uAPI, the same on every kernel): `wr_id`, status, opcode,
        // `vendor_err`, `byte_len`, imm, `qp_num`, `src_qp`, `wc_flags`.
        let [wr_id, outcome, length, number, source] = read::<[u64; 5]>(cqe)?;
        let (status, opcode) = halves(outcome);
        let (_, bytes) = halves(length);
        let (imm, qpn) = halves(number);
        let (src_qp, flags) = halves(source);
        let key = QpnKey::new(get(member(cq, &OFF_RXE_CQ_IBCQ)?, &OFF_CQ_DEVICE)?, qpn);
        let qp = match qpns.get_ptr(&key) {
            // SAFETY: the map checked the pointer.
            Some(qp) => unsafe { *qp },
            None => 0,
        };
        Some(Self {
            qp,
            wr_id,
            status,
            opcode,
            bytes,
            imm,
            src_qp,
            flags,
        })
    }
}

/// Whether the CQ is full, which `rxe_cq_post` checks first. The kprobe runs at the entry of that function,
/// so its program cannot use the function's result.
#[inline(always)]
pub(crate) fn is_full(cq: u64) -> bool {
    let at: u64 = get_or_zero(cq, &OFF_RXE_CQ_QUEUE);
    // Read the queue's address each time, because a CQ can be resized.
    let mut buffer = StructBuffer::<6>::uninit();
    let queue = StructRead::open(&mut buffer, at, &OFF_QUEUE_BUF);
    let ring: u64 = queue.get(&OFF_QUEUE_BUF).unwrap_or(0);
    let mask: u32 = queue.get(&OFF_QUEUE_MASK).unwrap_or(0);
    let producer: u32 = queue.get(&OFF_QUEUE_INDEX).unwrap_or(0);
    let consumer: u32 = get_or_zero(ring, &OFF_RING_CONSUMER);
    let no_room = |producer: u32| producer.wrapping_add(1).wrapping_sub(consumer) & mask == 0;
    // Where QPs share a CQ, another CPU may have posted a CQE after `producer` was read, and the user program
    // may have taken it. Then the consumer is ahead of `producer`, which looks the same as a full CQ. A
    // producer that is read after the consumer cannot be behind it. No ring or no mask means that a read
    // failed.
    ring != 0 && mask != 0 && no_room(producer) && no_room(get_or_zero(at, &OFF_QUEUE_INDEX))
}
