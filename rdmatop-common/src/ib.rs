//! Numbers of InfiniBand verbs that the programs compare with, from include/rdma/ib_verbs.h and
//! include/uapi/rdma/ib_user_verbs.h. They are the same in the kernel and in rdma-core's verbs.h.

/// `enum ib_qp_state`.
pub mod state {
    /// The state in which the kernel creates a QP.
    pub const RESET: u32 = 0;
    /// Ready to receive: from here on a connected QP has its peer.
    pub const RTR: u32 = 2;
    /// A QP in this state sends and receives.
    pub const RTS: u32 = 3;
    /// The kernel flushes both queues of a QP in this state.
    pub const ERR: u32 = 6;
}

/// `enum ib_qp_type`.
pub mod qp_type {
    /// Reliable, connected to one peer.
    pub const RC: u32 = 2;
    /// Unreliable, connected to one peer.
    pub const UC: u32 = 3;
    /// Datagrams: each request names its destination.
    pub const UD: u32 = 4;
    /// A type of the provider's own. EFA's (SRD) finishes requests in any order.
    pub const DRIVER: u32 = 0xff;
}

/// `enum ib_wr_opcode`.
pub mod opcode {
    /// `IB_WR_RDMA_WRITE_WITH_IMM`.
    pub const WRITE_IMM: u32 = 1;
    /// `IB_WR_SEND_WITH_IMM`.
    pub const SEND_IMM: u32 = 3;
    const LOCAL_INV: u32 = 7;
    const BIND_MW: u32 = 8;
    /// `IB_WR_REG_MR`, the first that only kernel consumers have.
    const KERNEL: u32 = 0x20;

    /// Whether a request with this opcode has immediate data.
    #[inline]
    pub const fn has_imm(opcode: u32) -> bool {
        opcode == WRITE_IMM || opcode == SEND_IMM
    }

    /// Whether a request with this opcode moves data. If it does not, the length in its queue element may be
    /// that of an earlier request.
    #[inline]
    pub const fn has_data(opcode: u32) -> bool {
        opcode != LOCAL_INV && opcode != BIND_MW && opcode < KERNEL
    }
}

/// `IB_SEND_SIGNALED` of `enum ib_send_flags`.
pub const SIGNALED: u32 = 2;
/// `IB_WC_RECV` of `enum ib_wc_opcode`: the opcodes from this one on are those of receives.
pub const RECV: u32 = 128;
/// `IB_WC_WITH_IMM` of `enum ib_wc_flags`.
pub const WITH_IMM: u32 = 2;
/// `IB_WC_WR_FLUSH_ERR` of `enum ib_wc_status`.
pub const FLUSHED: u32 = 5;
