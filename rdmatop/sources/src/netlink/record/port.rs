//! Port record: `fill_port_info`, drivers/infiniband/core/nldev.c.
use crate::netlink::attr::{NDEV_INDEX, NDEV_NAME, PORT_INDEX, PORT_PHYS_STATE, PORT_STATE};
use crate::netlink::name::Name;
use crate::netlink::wire::{Attr, Attrs, WireResult};
use rdmatop_base::ib::{PhysState, PortState};

/// The network interface under a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetdevRef {
    /// Interface index.
    pub index: u32,
    /// Interface name.
    pub name: Option<Name>,
}

/// A port. Rate, width, MTU and link layer are not part of this record; sysfs has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Port number, from 1.
    pub port: u32,
    /// Logical state.
    pub state: Option<PortState>,
    /// Physical state.
    pub phys_state: Option<PhysState>,
    /// The interface under the port, when it is in our network namespace.
    pub netdev: Option<NetdevRef>,
}

impl Port {
    /// Reads a port record.
    pub fn decode(attrs: &Attrs<'_>) -> WireResult<Self> {
        let name = attrs.get(NDEV_NAME, Attr::string)?.map(Name::from);
        let index = attrs.get(NDEV_INDEX, Attr::u32)?;
        Ok(Self {
            port: attrs.need("port", PORT_INDEX, Attr::u32)?,
            state: attrs.get(PORT_STATE, Attr::u8)?.map(PortState),
            phys_state: attrs.get(PORT_PHYS_STATE, Attr::u8)?.map(PhysState),
            netdev: index.map(|index| NetdevRef { index, name }),
        })
    }
}
