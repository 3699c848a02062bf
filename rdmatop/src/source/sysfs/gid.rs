//! The network device behind a port: `gid_attrs/ndevs/N` of its GID table.
use std::path::Path;

use crate::source::root::Root;

/// Slots that are read. The kernel fills the first of a RoCE port from the device itself
/// (`ib_cache_gid_set_default_gid` in drivers/infiniband/core/cache.c). A table has up to some thousand slots, and
/// reading them all took longer than everything else at the start.
const SLOTS: u32 = 4;

/// The network device of the first GID that has one, below `port` (`.../ports/N`). `None` on InfiniBand, and when it
/// lives in another network namespace.
pub(super) fn first_netdev(root: &Root, port: &Path) -> Option<String> {
    let ndevs = port.join("gid_attrs").join("ndevs");
    (0..SLOTS).find_map(|slot| root.line(&ndevs.join(slot.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::fake::Fake;

    #[test]
    fn the_first_slot_with_a_device_is_taken_and_a_long_table_is_not_read() {
        let fake = Fake::new();
        let port = fake.root().sys("p");
        assert_eq!(first_netdev(&fake.root(), &port), None);
        for slot in 2..300 {
            fake.sys(format!("p/gid_attrs/ndevs/{slot}"), format!("eth{slot}\n"));
        }
        let root = fake.root();
        let before = root.opens();
        assert_eq!(first_netdev(&root, &port).as_deref(), Some("eth2"));
        assert_eq!(root.opens() - before, 3);
    }
}
