//! A network device under an RDMA port: `/sys/class/net/NAME`.
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::source::root::{Root, is_component};

/// Facts of one network device. It is looked up in the network namespace of rdmatop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetdevFacts {
    /// Interface name.
    pub name: String,
    /// MTU in bytes.
    pub mtu: Option<u64>,
    /// Link speed in Mb/s; `None` while the link is down and for devices without one (the file says -1 or EINVAL).
    pub speed_mbps: Option<u64>,
    /// `up`, `down`, `unknown` (dummy devices), ...
    pub operstate: Option<String>,
    /// How often the link came or went.
    pub carrier_changes: Option<u64>,
    /// Traffic counters. RDMA traffic of hardware bypasses them.
    pub stats: NetdevStats,
}

/// `/sys/class/net/NAME/statistics`, since the device appeared.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetdevStats {
    /// Bytes received.
    pub rx_bytes: Option<u64>,
    /// Bytes sent.
    pub tx_bytes: Option<u64>,
    /// Packets received.
    pub rx_packets: Option<u64>,
    /// Packets sent.
    pub tx_packets: Option<u64>,
    /// Received packets dropped.
    pub rx_dropped: Option<u64>,
    /// Packets dropped before sending.
    pub tx_dropped: Option<u64>,
    /// Receive errors.
    pub rx_errors: Option<u64>,
    /// Transmit errors.
    pub tx_errors: Option<u64>,
}

/// Reads one network device; `None` when this network namespace has no such device.
pub fn read_netdev(root: &Root, name: &str) -> Option<NetdevFacts> {
    if !is_component(name.as_ref()) {
        return None;
    }
    let dir = root.sys("class/net").join(name);
    dir.is_dir().then(|| NetdevFacts {
        name: name.to_owned(),
        mtu: root.number(&dir.join("mtu")),
        // -1 and, from drivers that print it unsigned, 2^32-1 are SPEED_UNKNOWN (include/uapi/linux/ethtool.h).
        speed_mbps: root
            .number(&dir.join("speed"))
            .filter(|s| *s > 0 && *s < u64::from(u32::MAX)),
        operstate: root.line(&dir.join("operstate")),
        carrier_changes: root.number(&dir.join("carrier_changes")),
        stats: read_stats(root, &dir.join("statistics")),
    })
}

fn read_stats(root: &Root, dir: &Path) -> NetdevStats {
    let get = |name| root.number(&dir.join(name));
    NetdevStats {
        rx_bytes: get("rx_bytes"),
        tx_bytes: get("tx_bytes"),
        rx_packets: get("rx_packets"),
        tx_packets: get("tx_packets"),
        rx_dropped: get("rx_dropped"),
        tx_dropped: get("tx_dropped"),
        rx_errors: get("rx_errors"),
        tx_errors: get("tx_errors"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::fake::Fake;

    #[test]
    fn a_dummy_device_has_no_speed_and_keeps_its_other_facts() {
        let fake = Fake::new();
        fake.sys("class/net/dummy0/mtu", "1500\n")
            .sys("class/net/dummy0/operstate", "unknown\n");
        fake.sys("class/net/dummy0/speed", "-1\n")
            .sys("class/net/dummy0/carrier_changes", "3\n");
        fake.sys("class/net/dummy0/statistics/rx_bytes", "0\n");
        fake.sys("class/net/dummy0/statistics/tx_dropped", "5\n");
        let facts = read_netdev(&fake.root(), "dummy0").unwrap();
        assert_eq!(
            (facts.mtu, facts.speed_mbps, facts.carrier_changes),
            (Some(1500), None, Some(3))
        );
        assert_eq!((facts.stats.rx_bytes, facts.stats.tx_dropped), (Some(0), Some(5)));
        assert_eq!(facts.stats.tx_bytes, None);
    }

    #[test]
    fn an_unknown_speed_printed_unsigned_is_unknown_too() {
        let fake = Fake::new();
        fake.sys("class/net/eth0/speed", "4294967295\n")
            .sys("class/net/eth1/speed", "100000\n");
        assert_eq!(read_netdev(&fake.root(), "eth0").unwrap().speed_mbps, None);
        assert_eq!(
            read_netdev(&fake.root(), "eth1").unwrap().speed_mbps,
            Some(100_000)
        );
    }

    #[test]
    fn an_absent_or_escaping_name_is_no_device() {
        let fake = Fake::new();
        fake.sys("class/infiniband/x", "")
            .sys("class/net/lo/mtu", "65536");
        for name in ["eth9", "..", "../infiniband", ""] {
            assert_eq!(read_netdev(&fake.root(), name), None, "{name:?}");
        }
    }
}
