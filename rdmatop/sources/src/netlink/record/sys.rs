//! Settings of the RDMA subsystem: `nldev_sys_get_doit`, drivers/infiniband/core/nldev.c.
use crate::netlink::attr::SYS_NETNS_MODE;
use crate::netlink::wire::{Attr, Attrs, WireResult};

/// Network-namespace mode of the RDMA subsystem (`ib_devices_shared_netns`,
/// drivers/infiniband/core/device.c).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetnsMode {
    /// Each device belongs to one network namespace.
    Exclusive,
    /// Devices are seen in all network namespaces.
    Shared,
}

impl NetnsMode {
    /// Reads the settings; `None` where the kernel does not say, or says a number that is not known.
    pub fn decode(attrs: &Attrs<'_>) -> WireResult<Option<Self>> {
        Ok(match attrs.get(SYS_NETNS_MODE, Attr::u8)? {
            Some(0) => Some(Self::Exclusive),
            Some(1) => Some(Self::Shared),
            _ => None,
        })
    }
}
