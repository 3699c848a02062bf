//! A network device under an RDMA port: `/sys/class/net/NAME`.

use std::path::PathBuf;

use crate::root::{Root, is_component};
use rdmatop_base::text;
use rdmatop_model::input::{Bond, Member, NetdevDown};

/// The directory of a network device; `None` for a name that cannot be one.
fn netdev(root: &Root, name: &str) -> Option<PathBuf> {
    is_component(name.as_ref()).then(|| root.sys("class/net").join(name))
}

/// MTU in bytes of a network device; `None` when the network namespace of rdmatop has no such device.
pub fn netdev_mtu(root: &Root, name: &str) -> Option<u32> {
    let mtu = root.number(&netdev(root, name)?.join("mtu"))?;
    u32::try_from(mtu).ok()
}

/// `IFF_UP`, linux/if.h.
const IFF_UP: u64 = 1;

/// Why a network device carries nothing; `None` if it may, or if that is not known. `carrier` says it, too,
/// but since Linux 6.8 who reads it waits for the lock of all network devices.
pub fn netdev_down(root: &Root, name: &str) -> Option<NetdevDown> {
    let dir = netdev(root, name)?;
    if root.number(&dir.join("flags"))? & IFF_UP == 0 {
        return Some(NetdevDown::Off);
    }
    (root.line(&dir.join("operstate"))? == "down").then_some(NetdevDown::NoCarrier)
}

/// Priorities with flow control (PFC) as NVIDIA's own driver has them in `qos/pfc`: a figure for each.
pub fn netdev_pfc(root: &Root, name: &str) -> Option<Vec<u8>> {
    let line = root.line(&netdev(root, name)?.join("qos/pfc"))?;
    let flags: Vec<&str> = line.split_whitespace().collect();
    let known = flags.len() == 8 && flags.iter().all(|flag| matches!(*flag, "0" | "1"));
    let on = (0..8).zip(flags).filter(|(_, flag)| *flag == "1");
    known.then(|| on.map(|(priority, _)| priority).collect())
}

/// The bond of this name (Documentation/networking/bonding.rst), with its members in the order in which they
/// were added, their names safe to print; `None` for any other network device.
pub fn netdev_bond(root: &Root, name: &str) -> Option<Bond> {
    let dir = netdev(root, name)?.join("bonding");
    let members = root.line(&dir.join("slaves"))?;
    // As `802.3ad 4`.
    let mode = root.line(&dir.join("mode"));
    let mode = mode.and_then(|mode| Some(text::sanitize(mode.split_whitespace().next()?.as_bytes())));
    // The aggregate by which a bond with LACP sends; the links of a switch that speaks none have one each.
    let lacp = mode.as_deref() == Some("802.3ad");
    let aggregate = root.number(&dir.join("ad_aggregator")).filter(|_| lacp);
    let member = |name: &str| {
        let dir = netdev(root, name)?;
        let is = |file: &str, word: &str| root.line(&dir.join(file)).map(|line| line.trim() == word);
        // The bond finds a link up that it does not watch (miimon=0).
        let link = match is("operstate", "down") {
            Some(true) => Some(false),
            _ => is("bonding_slave/mii_status", "up"),
        };
        let own = root.number(&dir.join("bonding_slave/ad_aggregator_id"));
        let outside = link == Some(true) && aggregate.zip(own).is_some_and(|(all, own)| all != own);
        Some(Member {
            name: text::sanitize(name.as_bytes()).into(),
            up: link.map(|up| up && !outside),
            outside,
            // In Mb/s; a driver that does not know says -1, or 0, or the largest number.
            rate_bps: root
                .number(&dir.join("speed"))
                .filter(|speed| (1..u64::from(u32::MAX)).contains(speed))
                .map(|speed| speed * 1_000_000),
            ..Member::default()
        })
    };
    Some(Bond {
        mode: mode.map(Into::into),
        members: members.split_whitespace().filter_map(member).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    #[test]
    fn the_mtu_is_read_where_the_device_says_one() {
        let fake = Fake::new();
        fake.sys("class/net/dummy0/mtu", "1500\n")
            .sys("class/net/odd/mtu", "4294967296\n");
        assert_eq!(netdev_mtu(&fake.root(), "dummy0"), Some(1500));
        assert_eq!(netdev_mtu(&fake.root(), "odd"), None);
    }

    #[test]
    fn a_device_that_is_off_is_told_from_one_without_a_signal() {
        let fake = Fake::new();
        for (name, flags, operstate) in [
            ("off", "0x1002", "down"),
            ("unplugged", "0x1003", "down"),
            ("up", "0x1003", "up"),
            ("dummy0", "0x83", "unknown"),
            ("waiting", "0x1003", "dormant"),
        ] {
            fake.sys(format!("class/net/{name}/flags"), format!("{flags}\n"))
                .sys(format!("class/net/{name}/operstate"), format!("{operstate}\n"));
        }
        fake.sys("class/net/odd/flags", "0x1003\n");
        assert_eq!(netdev_down(&fake.root(), "off"), Some(NetdevDown::Off));
        assert_eq!(
            netdev_down(&fake.root(), "unplugged"),
            Some(NetdevDown::NoCarrier)
        );
        for name in ["up", "dummy0", "waiting", "odd", "absent", "..", ""] {
            assert_eq!(netdev_down(&fake.root(), name), None, "{name:?}");
        }
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
    fn a_bond_has_its_mode_and_its_members_with_link_and_speed() {
        let fake = Fake::new();
        fake.sys("class/net/bond0/bonding/slaves", "eth0 eth1 eth2\n")
            .sys("class/net/bond0/bonding/mode", "802.3ad 4\n")
            .sys("class/net/eth0/bonding_slave/mii_status", "up\n")
            .sys("class/net/eth0/speed", "100000\n")
            .sys("class/net/eth1/bonding_slave/mii_status", "down\n")
            .sys("class/net/eth1/speed", "-1\n")
            .sys("class/net/eth2/speed", "4294967295\n")
            .sys("class/net/eth3/speed", "100000\n");
        let bond = netdev_bond(&fake.root(), "bond0").unwrap();
        assert_eq!(bond.mode.as_deref(), Some("802.3ad"));
        let members: Vec<_> = bond
            .members
            .iter()
            .map(|member| (&*member.name, member.up, member.rate_bps))
            .collect();
        assert_eq!(
            members,
            [
                ("eth0", Some(true), Some(100_000_000_000)),
                ("eth1", Some(false), None),
                ("eth2", None, None)
            ]
        );
        assert_eq!(netdev_bond(&fake.root(), "eth0"), None);
        assert_eq!(netdev_bond(&fake.root(), "../net/bond0"), None);
    }

    #[test]
    fn a_link_outside_of_the_aggregate_or_without_a_signal_is_not_up() {
        let fake = Fake::new();
        fake.sys("class/net/bond0/bonding/slaves", "eth0 eth1 eth2 eth3\n")
            .sys("class/net/bond0/bonding/mode", "802.3ad 4\n")
            .sys("class/net/bond0/bonding/ad_aggregator", "1\n")
            .sys("class/net/eth0/operstate", "up\n")
            .sys("class/net/eth2/operstate", "down\n")
            .sys("class/net/eth3/bonding_slave/ad_aggregator_id", "N/A\n");
        for name in ["eth0", "eth1", "eth2", "eth3"] {
            fake.sys(format!("class/net/{name}/bonding_slave/mii_status"), "up\n");
        }
        for (name, id) in [("eth0", "1\n"), ("eth1", "2\n"), ("eth2", "2\n")] {
            fake.sys(format!("class/net/{name}/bonding_slave/ad_aggregator_id"), id);
        }
        let links = || {
            let members = netdev_bond(&fake.root(), "bond0").unwrap().members;
            members
                .into_iter()
                .map(|member| (member.up, member.outside))
                .collect::<Vec<_>>()
        };
        let (up, down) = ((Some(true), false), (Some(false), false));
        assert_eq!(links(), [up, (Some(false), true), down, up]);
        // In other modes it says nothing.
        fake.sys("class/net/bond0/bonding/mode", "balance-xor 2\n");
        assert_eq!(links(), [up, up, down, up]);
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
