//! A network device under an RDMA port: `/sys/class/net/NAME`.

use crate::source::root::{Root, is_component};

/// MTU in bytes of a network device; `None` when the network namespace of rdmatop has no such device.
pub fn netdev_mtu(root: &Root, name: &str) -> Option<u32> {
    if !is_component(name.as_ref()) {
        return None;
    }
    let mtu = root.number(&root.sys("class/net").join(name).join("mtu"))?;
    u32::try_from(mtu).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::fake::Fake;

    #[test]
    fn the_mtu_is_read_where_the_device_says_one() {
        let fake = Fake::new();
        fake.sys("class/net/dummy0/mtu", "1500\n")
            .sys("class/net/odd/mtu", "4294967296\n");
        assert_eq!(netdev_mtu(&fake.root(), "dummy0"), Some(1500));
        assert_eq!(netdev_mtu(&fake.root(), "odd"), None);
    }

    #[test]
    fn an_absent_or_escaping_name_is_no_device() {
        let fake = Fake::new();
        fake.sys("class/infiniband/mtu", "1")
            .sys("class/net/mtu", "1")
            .sys("class/net/lo/mtu", "65536");
        for name in ["eth9", "..", ".", "../infiniband", ""] {
            assert_eq!(netdev_mtu(&fake.root(), name), None, "{name:?}");
        }
    }
}
