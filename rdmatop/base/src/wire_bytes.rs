//! How drivers name in `ethtool -S` what passes an interface on the wire, RDMA's frames included.
//!
//! The statistics of the interface itself (`ip -s link`) leave out the RDMA that a NIC does. Names are those
//! of Linux 6.12: mlx5 (`en_stats.c`), ice (`ice_ethtool.c`), bnxt_en (`bnxt_ethtool.c`, of the port).

/// The driver of the RDMA device's function, and its names for bytes sent and received.
const DRIVERS: &[(&str, [&str; 2])] = &[
    ("mlx5_core", ["tx_bytes_phy", "rx_bytes_phy"]),
    ("ice", ["tx_bytes.nic", "rx_bytes.nic"]),
    ("bnxt_en", ["tx_bytes", "rx_bytes"]),
];

/// Names of the statistics of any interface, below `statistics` in sysfs. They have RDMA too where software
/// speaks it.
pub const SOFTWARE: [&str; 2] = ["tx_bytes", "rx_bytes"];

/// The driver's names of bytes sent and received; `None` where no such name is known.
pub fn of_driver(driver: Option<&str>) -> Option<[&'static str; 2]> {
    let known = DRIVERS.iter().find(|(name, _)| Some(*name) == driver);
    known.map(|(_, names)| *names)
}

/// Names of bytes sent (0) or received (1) that any driver has.
pub fn names(way: usize) -> impl Iterator<Item = &'static str> {
    DRIVERS
        .iter()
        .filter_map(move |(_, names)| names.get(way).copied())
}

/// The name of a member's counter among those of the port.
pub fn of_member(member: &str, name: &str) -> String {
    format!("{member}:{name}")
}

/// A counter's name without the member that has it: no interface has a colon in its name
/// (`dev_valid_name`, net/core/dev.c).
pub fn without_member(name: &str) -> &str {
    name.split_once(':').map_or(name, |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_driver_has_its_own_names_and_others_have_none() {
        assert_eq!(
            of_driver(Some("mlx5_core")),
            Some(["tx_bytes_phy", "rx_bytes_phy"])
        );
        assert_eq!(of_driver(Some("mlx4_core")), None);
        assert_eq!(of_driver(None), None);
        assert!(names(0).all(|name| name.starts_with("tx_")) && names(1).all(|name| name.starts_with("rx_")));
        assert_eq!(without_member(&of_member("eth0", "tx_bytes_phy")), "tx_bytes_phy");
        assert_eq!(without_member("rx_prio3_pause"), "rx_prio3_pause");
    }
}
