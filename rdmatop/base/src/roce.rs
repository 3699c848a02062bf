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

/// The UDP source port with which a connected QP sends, if its program sets no flow label
/// (`rdma_get_udp_sport`, include/rdma/ib_verbs.h, Linux 6.1 to 7.2).
pub fn udp_source_port(local_qpn: u32, remote_qpn: u32) -> u16 {
    let both = u64::from(local_qpn) * u64::from(remote_qpn);
    let folded = both ^ (both >> 20);
    let label = folded ^ (folded >> 40);
    0xc000 | ((label ^ (label >> 14 & 0x3f)) & 0x3fff) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_ports_are_those_that_the_kernel_computes() {
        // By the kernel's functions, compiled on their own.
        for (local, remote, port) in [
            (17, 18, 49_458),
            (7_000, 7_100, 56_470),
            (7_001, 7_101, 54_144),
            (0xff_ffff, 0xff_fffe, 65_298),
            (4_660, 11_259_375, 57_851),
        ] {
            assert_eq!(udp_source_port(local, remote), port, "{local} {remote}");
            assert_eq!(udp_source_port(remote, local), port, "both ends have the same");
        }
    }
}
