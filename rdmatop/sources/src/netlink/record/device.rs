//! Device record: `fill_dev_info`, drivers/infiniband/core/nldev.c.
use crate::netlink::attr::{DEV_INDEX, DEV_NAME, DEV_PROTOCOL, FW_VERSION, NODE_GUID, PORT_INDEX};
use crate::netlink::name::Name;
use crate::netlink::wire::{Attr, Attrs, WireResult};

/// An RDMA device. The kernel's driver is not part of this record; sysfs has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Device {
    /// Index; the kernel refuses it once the device was added again.
    pub index: u32,
    /// Name.
    pub name: Name,
    /// Number of ports, numbered from 1.
    pub port_count: u32,
    /// Node GUID.
    pub node_guid: Option<u64>,
    /// Firmware version; software devices have none.
    pub firmware: Option<Box<str>>,
    /// `ib`, `roce`, `iw`, `opa` or `usnic`.
    pub protocol: Option<Box<str>>,
}

/// A firmware version without the newline that some drivers append (vmw_pvrdma: `"%d.%d.%d\n"`).
fn version(raw: &[u8]) -> Option<Box<str>> {
    let text = String::from_utf8_lossy(raw.trim_ascii());
    (!text.is_empty()).then(|| text.into())
}

impl Device {
    /// Reads a device record.
    pub fn decode(attrs: &Attrs<'_>) -> WireResult<Self> {
        let what = "device";
        Ok(Self {
            index: attrs.need(what, DEV_INDEX, Attr::u32)?,
            name: Name::from(attrs.need(what, DEV_NAME, Attr::string)?),
            port_count: attrs.need(what, PORT_INDEX, Attr::u32)?,
            node_guid: attrs.get(NODE_GUID, Attr::u64)?,
            firmware: attrs.get(FW_VERSION, Attr::string)?.and_then(version),
            protocol: attrs.get(DEV_PROTOCOL, Attr::text)?,
        })
    }

    /// Whether it is this generation of this device. One that was added again has a new index and its
    /// counters start at 0, so neither the name nor the index alone distinguishes two of them.
    pub fn is(&self, other: &Self) -> bool {
        let key = |device: &Self| (device.index, device.node_guid);
        key(self) == key(other) && self.name == other.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::wire::MessageWriter;

    /// Bytes of the header of a netlink message.
    const HEADER: usize = 16;

    #[test]
    fn the_newline_of_a_driver_is_no_part_of_the_version_and_other_bytes_are() {
        assert_eq!(version(b"0.0.14\n").as_deref(), Some("0.0.14"));
        assert_eq!(version(b" 1\x1b[2J\n2 \n").as_deref(), Some("1\x1b[2J\n2"));
        assert_eq!((version(b""), version(b"\n")), (None, None));
    }

    #[test]
    fn the_version_of_a_message_ends_at_its_nul_and_before_its_newline() {
        for raw in [
            &b"28.39.1002\0"[..],
            b"28.39.1002\n\0",
            b"28.39.1002\n\0\0\0",
            b"28.39.1002\0rest\0",
        ] {
            let message = MessageWriter::new(0, 0, 0)
                .u32(DEV_INDEX, 0)
                .string(DEV_NAME, b"mlx5_0")
                .u32(PORT_INDEX, 1)
                .bytes(FW_VERSION, raw)
                .finish();
            let message = message.get(HEADER..).unwrap();
            let device = Device::decode(&Attrs::new(message)).unwrap();
            assert_eq!(device.firmware.as_deref(), Some("28.39.1002"), "{raw:?}");
        }
    }
}
