//! A network device under an RDMA port: `/sys/class/net/NAME`.

use crate::source::root::{Root, is_component};
use crate::text;

/// MTU in bytes of a network device; `None` when the network namespace of rdmatop has no such device.
pub fn netdev_mtu(root: &Root, name: &str) -> Option<u32> {
    if !is_component(name.as_ref()) {
        return None;
    }
    let mtu = root.number(&root.sys("class/net").join(name).join("mtu"))?;
    u32::try_from(mtu).ok()
}

/// Priorities with flow control (PFC) as NVIDIA's own driver has them in `qos/pfc`: a figure for each.
pub fn netdev_pfc(root: &Root, name: &str) -> Option<Vec<u8>> {
    if !is_component(name.as_ref()) {
        return None;
    }
    let line = root.line(&root.sys("class/net").join(name).join("qos/pfc"))?;
    let flags: Vec<&str> = line.split_whitespace().collect();
    let known = flags.len() == 8 && flags.iter().all(|flag| matches!(*flag, "0" | "1"));
    let on = (0..8).zip(flags).filter(|(_, flag)| *flag == "1");
    known.then(|| on.map(|(priority, _)| priority).collect())
}

/// The interfaces that a bond consists of; none for any other network device.
pub fn netdev_members(root: &Root, name: &str) -> Vec<String> {
    if !is_component(name.as_ref()) {
        return Vec::new();
    }
    let members = root.line(&root.sys("class/net").join(name).join("bonding/slaves"));
    let members = members.unwrap_or_default();
    let all = members
        .split_whitespace()
        .map(|member| text::sanitize(member.as_bytes()));
    all.collect()
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
    fn priorities_with_flow_control_are_eight_figures() {
        let fake = Fake::new();
        fake.sys("class/net/eth0/qos/pfc", "0 0 0 1 0 0 0 1\n")
            .sys("class/net/eth1/qos/pfc", "0 0 0 1\n")
            .sys("class/net/eth2/qos/pfc", "0 0 0 2 0 0 0 0\n");
        assert_eq!(netdev_pfc(&fake.root(), "eth0"), Some(vec![3, 7]));
        for name in ["eth1", "eth2", "eth3", "..", ""] {
            assert_eq!(netdev_pfc(&fake.root(), name), None, "{name:?}");
        }
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
