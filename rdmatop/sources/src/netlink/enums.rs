//! Numbers of RDMA netlink that are in no header of verbs.

/// Network-namespace mode of the RDMA subsystem (`ib_devices_shared_netns`,
/// drivers/infiniband/core/device.c).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetnsMode {
    /// Each device belongs to one network namespace.
    Exclusive,
    /// Devices are seen in all network namespaces.
    Shared,
    /// A number unknown to this build.
    Other(u8),
}

impl From<u8> for NetnsMode {
    fn from(number: u8) -> Self {
        match number {
            0 => Self::Exclusive,
            1 => Self::Shared,
            other => Self::Other(other),
        }
    }
}
