//! Rates that are placeholders: what drivers report when they do not know the rate of the link, or always. No
//! share of such a rate may be shown.

use std::path::Path;

/// What is known of a port before its rate is judged.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Port<'a> {
    /// No hardware is behind the device.
    pub(super) software: bool,
    pub(super) driver: Option<&'a str>,
    /// "`InfiniBand`" or "Ethernet".
    pub(super) link_layer: Option<&'a str>,
}

/// Where drivers have the constant, below drivers/infiniband/hw:
/// * EFA: `efa_query_port`, before the device told its speed (`max_link_speed_gbps`); its instances have 50
///   to 400 Gb/s.
/// * MANA: `mana_ib_query_port`, before it asked the network device.
/// * erdma: `erdma_query_port` of the driver outside Linux; Linux's asks the network device.
///
/// Newer drivers report true rates. A true rate of 100 Gb/s cannot be told from the constant, and is not
/// shown.
const CONSTANT: &str = "100 Gb/sec (4X EDR)";
/// Beginnings of these drivers' names. Where the port has the counter beside it, the driver is new enough to
/// report the true rate: that of EFA came with Linux 6.17, the speed earlier.
const DRIVERS: [(&str, Option<&str>); 3] = [
    ("efa", Some("hw_counters/retrans_bytes")),
    ("mana", None),
    ("erdma", None),
];

/// Whether `rate`, of the port with this directory, is a placeholder.
pub(super) fn is_placeholder(dir: &Path, port: Port<'_>, rate: &str) -> bool {
    let rate = rate.trim();
    // Only a real InfiniBand device can have such a slow link: one that came up with width 1, which is worth
    // reporting.
    let infiniband = !port.software && port.link_layer == Some("InfiniBand");
    // `ib_get_eth_speed` (core/verbs.c) reports 1X SDR for a network device that is slower or does not know
    // its speed; vmw_pvrdma, an emulated device, always does. The function never reports 4X SDR, but hns
    // before Linux 6.6 and i40iw always do.
    if !infiniband && (rate.starts_with("2.5 Gb/sec") || rate.ends_with("(4X SDR)")) {
        return true;
    }
    let driver = port.driver.unwrap_or_default();
    rate == CONSTANT
        && DRIVERS.iter().any(|(own, counter)| {
            // Only its presence is checked: to read it would ask the driver.
            driver.starts_with(own) && !counter.is_some_and(|counter| dir.join(counter).exists())
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    #[test]
    fn each_driver_s_rate_that_is_not_the_link_s_is_recognised() {
        let fake = Fake::new();
        let port = |driver, link_layer, software| Port {
            software,
            driver,
            link_layer: Some(link_layer),
        };
        let (eth, ib) = ("Ethernet", "InfiniBand");
        let (sdr, slow, edr) = ("2.5 Gb/sec (1X SDR)", "10 Gb/sec (4X SDR)", "100 Gb/sec (4X EDR)");
        for (port, rate, wanted) in [
            (port(None, eth, true), sdr, true),
            (port(None, "Unspecified", true), sdr, true),
            (port(None, eth, true), edr, false),
            // An emulated PCI device, and hardware whose network device does not know its speed.
            (port(Some("vmw_pvrdma"), eth, false), sdr, true),
            (port(Some("bnxt_en"), eth, false), sdr, true),
            (port(Some("mlx5_core"), eth, false), edr, false),
            (port(Some("mlx5_core"), ib, false), sdr, false),
            (port(Some("mlx5_core"), ib, false), slow, false),
            // Drivers with a constant.
            (port(Some("hns3"), eth, false), slow, true),
            (port(Some("i40e"), eth, false), slow, true),
            (port(Some("i40e"), eth, false), "10 Gb/sec (1X FDR10)", false),
            (port(Some("efa"), eth, false), edr, true),
            (port(Some("efa"), eth, false), "200 Gb/sec (4X HDR)", false),
            (port(Some("mana"), eth, false), edr, true),
            (port(Some("erdma"), eth, false), edr, true),
        ] {
            let got = is_placeholder(&fake.root().sys("port"), port, rate);
            assert_eq!(got, wanted, "{port:?} {rate}");
        }
    }

    #[test]
    fn an_efa_driver_that_knows_the_speed_is_believed() {
        let fake = Fake::new();
        fake.sys("port/hw_counters/retrans_bytes", "0\n");
        let efa = Port {
            driver: Some("efa"),
            link_layer: Some("Unspecified"),
            ..Port::default()
        };
        let at = fake.root().sys("port");
        assert!(!is_placeholder(&at, efa, "100 Gb/sec (4X EDR)"));
    }
}
