//! The numbers that the rules compare with.

/// The numbers that the rules compare with.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Registrations of memory regions per second.
    pub mr_per_s: f64,
    /// QPs by which a process grows within [`Limits::leak_window_s`].
    pub leak_qps: u64,
    /// Seconds over which the growth of a process is looked at.
    pub leak_window_s: u64,
    /// Packets sent again per second.
    pub loss_per_s: f64,
    /// Packets sent again, as a share of those sent.
    pub loss_share: f64,
    /// How often the mean of all ports one carries, to be hot.
    pub hot_ratio: f64,
    /// Share of its link's rate from which a hot port is a bottleneck.
    pub hot_share: f64,
    /// What a port carries at most, as a share of the hottest, to be idle.
    pub idle_share: f64,
    /// Share of all Rx that one port has, to be a funnel.
    pub funnel_share: f64,
    /// Bytes/s below which the load of a rail is not judged.
    pub rail_bytes_per_s: f64,
    /// Packets/s below which the load of a rail is not judged.
    pub rail_packets_per_s: f64,
    /// Bytes/s, both ways together, that a job moves by TCP where it could use RDMA.
    pub tcp_bytes_per_s: f64,
    /// What such a job moves by RDMA at most, as a share of that.
    pub tcp_rdma_share: f64,
    /// Ethernet rate in bits/s from which the MTU matters.
    pub mtu_rate_bps: u64,
    /// Payload of a RoCE packet, bytes, that such a port should have.
    pub payload_bytes: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            mr_per_s: 100.0,
            leak_qps: 32,
            leak_window_s: 60,
            loss_per_s: 10.0,
            loss_share: 1e-3,
            hot_ratio: 2.0,
            hot_share: 0.5,
            idle_share: 0.05,
            funnel_share: 0.7,
            rail_bytes_per_s: 1e6,
            rail_packets_per_s: 1e3,
            tcp_bytes_per_s: 50e6,
            tcp_rdma_share: 0.1,
            mtu_rate_bps: 25_000_000_000,
            payload_bytes: 4096,
        }
    }
}
