//! Settings of the RDMA subsystem: `nldev_sys_get_doit`, drivers/infiniband/core/nldev.c.
use crate::netlink::attr::SYS_NETNS_MODE;
use crate::netlink::enums::NetnsMode;
use crate::netlink::wire::{Attrs, WireResult};

/// Settings of the whole subsystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SysSettings {
    /// Whether devices are seen in every network namespace (shared) or only in their own (exclusive).
    pub netns_mode: Option<NetnsMode>,
}

impl SysSettings {
    /// Reads the settings.
    pub fn decode(attrs: Attrs<'_>) -> WireResult<Self> {
        let mut netns_mode = None;
        for attr in attrs {
            let attr = attr?;
            if attr.number == SYS_NETNS_MODE {
                netns_mode = Some(NetnsMode::from(attr.u8()?));
            }
        }
        Ok(Self { netns_mode })
    }
}
