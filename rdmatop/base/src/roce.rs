//! Arithmetic of RoCE packets.

/// Headers of the largest kind (`iboe_get_mtu`, include/rdma/ib_addr.h): GRH, UDP, BTH, XRC, AtomicETH, ICRC.
const HEADERS: u32 = 40 + 8 + 12 + 4 + 28 + 4;

/// Bytes of payload that a RoCE packet carries at most over an interface of this MTU; `None` when the MTU is
/// too small for any.
pub fn payload(mtu: u32) -> Option<u32> {
    [4096, 2048, 1024, 512, 256]
        .into_iter()
        .find(|payload| mtu >= payload + HEADERS)
}
