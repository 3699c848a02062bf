//! Port record: `fill_port_info`, drivers/infiniband/core/nldev.c.
use crate::netlink::attr::{NDEV_INDEX, NDEV_NAME, PORT_INDEX, PORT_PHYS_STATE, PORT_STATE};
use crate::netlink::name::Name;
use crate::netlink::wire::{Attrs, WireError, WireResult};
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
    pub fn decode(attrs: Attrs<'_>) -> WireResult<Self> {
        let (mut port, mut state, mut phys_state) = (None, None, None);
        let (mut netdev_index, mut netdev_name) = (None, None);
        for attr in attrs {
            let attr = attr?;
            match attr.number {
                PORT_INDEX => port = Some(attr.u32()?),
                PORT_STATE => state = Some(PortState(attr.u8()?)),
                PORT_PHYS_STATE => phys_state = Some(PhysState(attr.u8()?)),
                NDEV_INDEX => netdev_index = Some(attr.u32()?),
                NDEV_NAME => netdev_name = Some(Name::from(attr.string()?)),
                _ => {}
            }
        }
        Ok(Self {
            port: port.ok_or(WireError::missing("port", PORT_INDEX))?,
            state,
            phys_state,
            netdev: netdev_index.map(|index| NetdevRef {
                index,
                name: netdev_name,
            }),
        })
    }
}
