//! Settings of the RDMA subsystem: `nldev_sys_get_doit`, drivers/infiniband/core/nldev.c.
use crate::source::netlink::attr::{SYS_COPY_ON_FORK, SYS_NETNS_MODE};
use crate::source::netlink::enums::NetnsMode;
use crate::source::netlink::wire::{Attrs, WireResult};

/// Settings of the whole subsystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SysSettings {
    /// Are devices seen in every network namespace (shared) or only in their own (exclusive)?
    pub netns_mode: Option<NetnsMode>,
    /// Does fork copy pinned pages? Linux 5.10 does not say.
    pub copy_on_fork: Option<bool>,
}

impl SysSettings {
    /// Reads the settings.
    pub fn decode(attrs: Attrs<'_>) -> WireResult<Self> {
        let mut settings = Self {
            netns_mode: None,
            copy_on_fork: None,
        };
        for attr in attrs {
            let attr = attr?;
            match attr.number {
                SYS_NETNS_MODE => settings.netns_mode = Some(NetnsMode::from(attr.u8()?)),
                SYS_COPY_ON_FORK => settings.copy_on_fork = Some(attr.u8()? != 0),
                _ => {}
            }
        }
        Ok(settings)
    }
}
