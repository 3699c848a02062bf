//! The GID table of a port: its addresses, and the network device behind it (`gid_attrs/ndevs/N`).
use std::{net::Ipv6Addr, path::Path};

use crate::root::Root;
use rdmatop_base::ib::Gid;
use rdmatop_model::input::PortGid;

/// How many entries are searched for a network device. The kernel fills the first of a RoCE port from the
/// device itself (`ib_cache_gid_set_default_gid` in drivers/infiniband/core/cache.c). A table has up to some
/// thousand: reading all took longer than everything else at the start.
const FIRST: u32 = 4;

/// The network device of the first GID that has one, below `port` (`.../ports/N`). `None` on InfiniBand. In
/// mode shared it may be in another network namespace, where another one here has its name.
pub(super) fn first_netdev(root: &Root, port: &Path) -> Option<String> {
    let ndevs = port.join("gid_attrs").join("ndevs");
    (0..FIRST).find_map(|index| root.line(&ndevs.join(index.to_string())))
}

/// The limits of the live view and of `--once`.
pub(super) const SHOWN: GidLimits = GidLimits { gap: 8, entries: 256 };

/// How many entries of a GID table a reader asks the kernel for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GidLimits {
    /// After so many unset entries in a row it ends: it is filled from the front.
    pub gap: u32,
    /// Entries that are read at most.
    pub entries: u16,
}

/// The GIDs of a port; `None` when there is no table to read.
pub fn read_gids(root: &Root, port: &Path, limits: GidLimits) -> Option<Vec<PortGid>> {
    let dir = root.dir(&port.join("gids"))?;
    let types = root.dir(&port.join("gid_attrs").join("types"));
    let mut found = None;
    let mut unset = 0;
    for index in 0..limits.entries {
        // The kernel answers from its cache.
        let Some(line) = dir.line(&index.to_string()) else {
            break;
        };
        let found = found.get_or_insert_with(Vec::new);
        match line.parse::<Ipv6Addr>() {
            Ok(gid) if !gid.is_unspecified() => {
                unset = 0;
                let kind = types.as_ref().and_then(|types| types.line(&index.to_string()));
                found.push(PortGid {
                    index,
                    gid: Gid(gid.octets()),
                    // The kernel has one word for RoCE v1 and InfiniBand.
                    v1: kind.map(|kind| kind == "IB/RoCE v1"),
                });
            }
            _ => unset += 1,
        }
        if unset >= limits.gap {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    #[test]
    fn a_table_is_read_up_to_where_it_is_empty() {
        let fake = Fake::new();
        let port = fake.root().sys("p");
        assert_eq!(read_gids(&fake.root(), &port, SHOWN), None);
        let unset = "0000:0000:0000:0000:0000:0000:0000:0000\n";
        for index in 0..60 {
            fake.sys(format!("p/gids/{index}"), unset);
        }
        assert_eq!(read_gids(&fake.root(), &port, SHOWN), Some(Vec::new()));
        fake.sys("p/gids/0", "fe80:0000:0000:0000:5054:00ff:fe12:3456\n")
            .sys("p/gids/4", "0000:0000:0000:0000:0000:ffff:0a00:0001\n")
            .sys("p/gids/50", "0000:0000:0000:0000:0000:ffff:0a00:0002\n");
        fake.sys("p/gid_attrs/types/0", "IB/RoCE v1\n")
            .sys("p/gid_attrs/types/4", "RoCE v2\n");
        let found = read_gids(&fake.root(), &port, SHOWN).unwrap();
        assert_eq!(found.len(), 2);
        let last = found[1];
        assert_eq!(
            last.gid.0,
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]
        );
        assert_eq!((last.index, last.v1, found[0].v1), (4, Some(false), Some(true)));
    }

    #[test]
    fn the_first_entry_with_a_device_is_taken_and_a_long_table_is_not_read() {
        let fake = Fake::new();
        let port = fake.root().sys("p");
        assert_eq!(first_netdev(&fake.root(), &port), None);
        for index in 2..300 {
            fake.sys(format!("p/gid_attrs/ndevs/{index}"), format!("eth{index}\n"));
        }
        let root = fake.root();
        let before = root.opens();
        assert_eq!(first_netdev(&root, &port).as_deref(), Some("eth2"));
        assert_eq!(root.opens() - before, 3);
    }
}
