//! Soft iWARP: CQEs, and which of them found no room.
//!
//! Only the holder of the CQ's lock knows whether there is room, and the driver takes the lock after the
//! function entry at which a kprobe runs. In between another CPU may fill the CQ, or the user program may
//! empty it. So the programs count each CQE as placed at the entry of `siw_sqe_complete` or
//! `siw_rqe_complete`. If the CQE finds no room, the driver then calls `siw_cq_event`, which names the CQ but
//! not the QP. The programs note the QP at the entry under the kernel stack, which both calls share: an
//! interrupt that completes WRs in between runs on another stack, and a task that moves to another CPU keeps
//! its stack.

use core::ptr::{read_volatile, write_volatile};

use rdmatop_common::counters::{QpSlot, WC_STATUSES};

use crate::{
    maps::{CQE_PLACE_BITS, cqe_call},
    words::add,
};

/// Log2 of the size and alignment of a kernel stack on x86-64 and arm64. Where stacks are larger (KASAN), the
/// two calls can lie on different sides of such a boundary. That is rare; the program then does not find the
/// QP, and counts a loss.
const STACK_BITS: u32 = 14;

/// `IB_WC_*` for each `enum siw_wc_status` from `SIW_WC_SUCCESS` to `SIW_WC_GENERAL_ERR`, five bits each.
const STATUS_OF: u64 = packed([0, 1, 4, 2, 5, 7, 8, 10, 9, 21]);

const fn packed<const N: usize>(values: [u64; N]) -> u64 {
    let mut all = 0;
    let mut at = 0;
    while at < N {
        all |= values[at] << (5 * at);
        at += 1;
    }
    all
}

/// The fields of a CQE that are counted.
pub(crate) struct Cqe {
    /// The `ib_qp`, 0 if it is not counted.
    pub(crate) qp: u64,
    /// `IB_WC_*`.
    status: u64,
    /// Bytes of a receive, else 0.
    bytes: u64,
    receive: bool,
}

impl Cqe {
    #[inline(always)]
    pub(crate) fn of_send(qp: u64, status: u32) -> Self {
        Self {
            qp,
            status: class(status),
            bytes: 0,
            receive: false,
        }
    }

    #[inline(always)]
    pub(crate) fn of_receive(qp: u64, status: u32, bytes: u32) -> Self {
        Self {
            qp,
            status: class(status),
            bytes: u64::from(bytes),
            receive: true,
        }
    }

    /// All but the QP, in 40 bits.
    #[inline(always)]
    fn packed(&self) -> u64 {
        self.bytes << 8 | self.status << 1 | u64::from(self.receive)
    }

    /// `None` for a word that [`Self::packed`] cannot return.
    #[inline(always)]
    fn unpacked(qp: u64, packed: u64) -> Option<Self> {
        if packed >> 40 != 0 {
            return None;
        }
        Some(Self {
            qp,
            status: packed >> 1 & 31,
            bytes: packed >> 8,
            receive: packed & 1 != 0,
        })
    }

    /// Counts the CQE, or takes its count back: `each` is 1 or -1.
    #[inline(always)]
    unsafe fn count(&self, slot: *mut QpSlot, each: u64) {
        // SAFETY: the caller's pointer is checked; the verifier sees the index bounded.
        unsafe {
            add(&raw mut (*slot).cqes, each);
            let status = self.status as usize;
            if status < WC_STATUSES {
                add((&raw mut (*slot).wc).cast::<u64>().add(status), each);
            }
            if self.receive && status == 0 {
                add(&raw mut (*slot).rx_done, each);
                add(&raw mut (*slot).rx_bytes, self.bytes.wrapping_mul(each));
            }
        }
    }

    /// Corrects the counts of a CQE that was counted as placed and found no room.
    #[inline(always)]
    pub(crate) unsafe fn not_placed(&self, slot: *mut QpSlot) {
        // SAFETY: the caller's pointer is checked.
        unsafe {
            self.count(slot, u64::MAX);
            add(&raw mut (*slot).cq_overflows, 1);
        }
    }
}

#[inline(always)]
fn class(status: u32) -> u64 {
    if status < 10 {
        STATUS_OF >> (status * 5) & 31
    } else {
        WC_STATUSES as u64 - 1
    }
}

/// A call that completes a WR, identified by its stack.
pub(crate) struct Call {
    place: *mut [u64; 2],
    /// Both words of the place are xored with this. It tells apart stacks that share a place: with another
    /// stack's seal, a decoded word is not the address of a QP.
    seal: u64,
}

impl Call {
    #[inline(always)]
    fn on(stack: u64) -> Self {
        let seal = (stack >> STACK_BITS).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self {
            place: cqe_call(seal >> (64 - CQE_PLACE_BITS)),
            seal,
        }
    }

    /// Remembers a call at its entry, without a QP so far.
    #[inline(always)]
    pub(crate) fn begin(stack: u64) -> Self {
        let call = Self::on(stack);
        // SAFETY: the place is inside the array, and words are written whole.
        unsafe { call.write(0, 0) };
        call
    }

    #[inline(always)]
    unsafe fn write(&self, qp: u64, what: u64) {
        // SAFETY: see `begin`.
        unsafe {
            write_volatile(&raw mut (*self.place)[0], qp ^ self.seal);
            write_volatile(&raw mut (*self.place)[1], what ^ self.seal);
        }
    }

    /// Counts the CQE that the call is about to place, and remembers it.
    #[inline(always)]
    pub(crate) unsafe fn counted(&self, slot: *mut QpSlot, cqe: &Cqe) {
        // SAFETY: the caller's pointer is checked.
        unsafe {
            self.write(cqe.qp, cqe.packed());
            cqe.count(slot, 1);
        }
    }

    /// The CQE of the last call on this stack, `None` if a call on another stack has overwritten its place.
    #[inline(always)]
    pub(crate) fn last(stack: u64) -> Option<Cqe> {
        let call = Self::on(stack);
        // SAFETY: see `begin`.
        let [qp, what] = unsafe {
            [
                read_volatile(&raw const (*call.place)[0]),
                read_volatile(&raw const (*call.place)[1]),
            ]
        };
        Cqe::unpacked(qp ^ call.seal, what ^ call.seal)
    }
}
