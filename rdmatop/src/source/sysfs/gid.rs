//! The GID table of a port: `gids/N`, `gid_attrs/types/N`, `gid_attrs/ndevs/N`.
use std::net::Ipv6Addr;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::source::root::Root;

/// What kind of address a GID is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum GidKind {
    /// "IB/RoCE v1": the kernel has one text for both; the port's link layer says which.
    IbOrRoceV1,
    /// "RoCE v2".
    RoceV2,
    /// A text that this version does not know.
    Other(String),
}

/// One used slot of the table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GidEntry {
    /// Slot, as in `NCCL_IB_GID_INDEX` and `sgid_index`.
    pub index: u32,
    /// The address; `::ffff:a.b.c.d` for IPv4.
    pub gid: Ipv6Addr,
    /// Type, if the slot says.
    pub kind: Option<GidKind>,
    /// Network device behind the slot. Absent on InfiniBand and when it lives in another network namespace.
    pub netdev: Option<String>,
}

/// The used slots of the table below `port` (`.../ports/N`), by index.
///
/// Tables have up to some thousand slots, nearly all of them zero: type and device are only read for the rest.
pub(super) fn read_gids(root: &Root, port: &Path) -> Vec<GidEntry> {
    let names = root.list(&port.join("gids")).unwrap_or_default();
    let mut indices: Vec<u32> = names.iter().filter_map(|n| n.to_str()?.parse().ok()).collect();
    indices.sort_unstable();
    let entry = |index: u32| {
        let gid = parse_gid(&root.value(&port.join("gids").join(index.to_string()))?)?;
        let attr = |what| root.line(&port.join("gid_attrs").join(what).join(index.to_string()));
        // An all-zero slot is a free one: sysfs.c shows zgid where ib_query_gid fails.
        (!gid.is_unspecified()).then(|| GidEntry {
            index,
            gid,
            kind: attr("types").map(parse_kind),
            netdev: attr("ndevs"),
        })
    };
    indices.into_iter().filter_map(entry).collect()
}

fn parse_gid(text: &[u8]) -> Option<Ipv6Addr> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn parse_kind(text: String) -> GidKind {
    match text.as_str() {
        "IB/RoCE v1" => GidKind::IbOrRoceV1,
        "RoCE v2" => GidKind::RoceV2,
        _ => GidKind::Other(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::fake::Fake;

    #[test]
    fn free_slots_are_skipped_and_a_slot_without_attributes_is_kept() {
        let fake = Fake::new();
        fake.sys("p/gids/0", "fe80:0000:0000:0000:5054:00ff:fe12:3456\n");
        fake.sys("p/gids/1", "0000:0000:0000:0000:0000:ffff:0a4e:0001\n");
        fake.sys("p/gids/2", "0000:0000:0000:0000:0000:0000:0000:0000\n");
        fake.sys("p/gids/10", "2001:0db8:0000:0000:0000:0000:0000:0001\n");
        fake.sys("p/gids/junk", "x").sys("p/gids/3", "not a gid");
        fake.sys("p/gid_attrs/types/0", "IB/RoCE v1\n")
            .sys("p/gid_attrs/types/1", "RoCE v2\n");
        fake.sys("p/gid_attrs/ndevs/1", "eth1\n");
        let gids = read_gids(&fake.root(), &fake.root().sys("p"));
        assert_eq!(gids.iter().map(|g| g.index).collect::<Vec<_>>(), [0, 1, 10]);
        assert_eq!(gids[0].kind, Some(GidKind::IbOrRoceV1));
        assert_eq!(gids[1].kind, Some(GidKind::RoceV2));
        assert_eq!(gids[1].netdev.as_deref(), Some("eth1"));
        assert_eq!(gids[1].gid.to_ipv4_mapped(), Some("10.78.0.1".parse().unwrap()));
        assert_eq!((gids[2].kind.clone(), gids[2].netdev.clone()), (None, None));
    }

    #[test]
    fn an_unknown_type_keeps_its_text() {
        assert_eq!(parse_kind("RoCE v3".into()), GidKind::Other("RoCE v3".into()));
    }
}
