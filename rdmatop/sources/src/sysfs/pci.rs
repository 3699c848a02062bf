//! The PCI function behind an RDMA device.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::root::Root;
use rdmatop_model::input::PcieLink;

/// The PCI address of a device and the speed of its link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PciFacts {
    /// Address, `DDDD:BB:DD.F`.
    pub address: String,
    /// Directory names from the host bridge (`pci0000:17`) through the root port to the function; empty where
    /// sysfs has the function elsewhere.
    pub path: Arc<[String]>,
    /// NUMA node; `None` where the kernel reports none (-1).
    pub numa_node: Option<u32>,
    /// The link as it was negotiated.
    pub current: Option<PcieLink>,
    /// The link that the device is capable of.
    pub max: Option<PcieLink>,
    /// The link that the bridge at the other end is capable of.
    pub slot: Option<PcieLink>,
}

/// The link with so many mega-transfers per second and lane (2500 in Gen1, 5000, 8000, 16000, 32000, 64000)
/// and so many lanes. Its rate is that after line coding (8b/10b up to Gen2, 128b/130b after), before packet
/// overhead.
pub fn pcie_link(mega_transfers: u32, width: u32) -> PcieLink {
    let raw = u64::from(mega_transfers) * u64::from(width) * 1_000_000;
    PcieLink {
        mega_transfers,
        width,
        bps: if mega_transfers <= 5000 {
            raw / 10 * 8
        } else {
            raw / 130 * 128
        },
    }
}

/// The PCI function that `device` (the `device` link of a class directory) is, or sits on: a scalable
/// function is an auxiliary device below its PCI parent.
pub(super) fn read_pci(root: &Root, device: &Path) -> Option<PciFacts> {
    let real = root.place(device)?;
    let dir: PathBuf = real.ancestors().find(|dir| address(dir).is_some())?.to_owned();
    let link = |dir: &Path, speed, width| {
        let mega_transfers = parse_speed(&root.value(&dir.join(speed))?)?;
        // 0 and 255 stand for a width that the kernel could not read (pcie_get_width_cap, NLW of a dead
        // link).
        let width = root.number(&dir.join(width)).filter(|w| (1..=32).contains(w))?;
        Some(pcie_link(mega_transfers, width.try_into().ok()?))
    };
    Some(PciFacts {
        address: address(&dir)?,
        path: pci_path(&dir),
        numa_node: root
            .signed(&dir.join("numa_node"))
            .and_then(|n| n.try_into().ok()),
        current: link(&dir, "current_link_speed", "current_link_width"),
        max: link(&dir, "max_link_speed", "max_link_width"),
        slot: dir
            .parent()
            .filter(|bridge| address(bridge).is_some())
            .and_then(|bridge| link(bridge, "max_link_speed", "max_link_width")),
    })
}

/// The PCI function of this address. A driver gave the address, so that no user chooses the path.
pub fn read_pci_at(root: &Root, address: &str) -> Option<PciFacts> {
    read_pci(root, &root.sys("bus/pci/devices").join(address))
}

/// The directory names from the host bridge down to a function, whose directory this is without links; empty
/// where sysfs has the function elsewhere.
pub fn pci_path(dir: &Path) -> Arc<[String]> {
    let name = |dir: &Path| dir.file_name().and_then(|name| name.to_str()).map(str::to_owned);
    let is_host = |name: &String| name.starts_with("pci") && name.contains(':');
    let all: Vec<String> = dir.ancestors().filter_map(name).collect();
    let host = all.iter().position(is_host);
    host.map_or_else(Arc::default, |host| all[..=host].iter().rev().cloned().collect())
}

/// The name of a directory if it is `DDDD:BB:DD.F`.
fn address(dir: &Path) -> Option<String> {
    let name = dir.file_name()?.to_str()?;
    let (domain, rest) = name.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let lengths = (bus.len(), device.len(), function.len());
    let fits = (4..=8).contains(&domain.len()) && lengths == (2, 2, 1);
    (fits && [domain, bus, device, function].into_iter().all(is_hex)).then(|| name.to_owned())
}

/// "16.0 GT/s PCIe", "8 GT/s", "2.5 GT/s PCIe"; `Unknown` is `None`.
fn parse_speed(text: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(text).ok()?;
    let (number, unit) = text.split_once(' ')?;
    let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
    let tenths: u32 = tenths.parse().ok().filter(|t| *t < 10)?;
    let whole: u32 = whole.parse().ok().filter(|w| (1..=1024).contains(w))?;
    unit.starts_with("GT/s").then_some(whole * 1000 + tenths * 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;
    use proptest::prelude::*;

    #[test]
    fn a_scalable_function_is_found_through_its_pci_parent() {
        let fake = Fake::new();
        let dir = "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0";
        fake.sys(format!("{dir}/numa_node"), "1\n")
            .sys(format!("{dir}/current_link_speed"), "8.0 GT/s PCIe\n");
        fake.sys(format!("{dir}/current_link_width"), "8\n")
            .sys(format!("{dir}/max_link_speed"), "16.0 GT/s PCIe");
        fake.sys(format!("{dir}/max_link_width"), "255\n");
        fake.sys(format!("{dir}/mlx5_core.sf.4/sfnum"), "88\n");
        fake.link(
            "sys/class/infiniband/mlx5_2/device",
            fake.root().sys(format!("{dir}/mlx5_core.sf.4")),
        );
        let pci = read_pci(&fake.root(), &fake.root().sys("class/infiniband/mlx5_2/device")).unwrap();
        assert_eq!(pci.address, "0000:3b:00.0");
        assert_eq!(*pci.path, ["pci0000:3a", "0000:3a:00.0", "0000:3b:00.0"]);
        assert_eq!(pci.numa_node, Some(1));
        assert_eq!(pci.current, Some(pcie_link(8000, 8)));
        assert_eq!(pci.max, None, "an unreadable width is not a width");
    }

    #[test]
    fn minus_one_is_no_numa_node() {
        let fake = Fake::new();
        fake.sys("devices/0000:00:06.0/numa_node", "-1\n");
        let pci = read_pci(&fake.root(), &fake.root().sys("devices/0000:00:06.0")).unwrap();
        assert_eq!((pci.numa_node, pci.current), (None, None));
    }

    #[test]
    fn the_usable_rate_takes_line_coding_off() {
        assert_eq!(pcie_link(5000, 8).bps, 32_000_000_000);
        let gen3x8 = pcie_link(8000, 8).bps;
        assert!((63_000_000_000..63_100_000_000).contains(&gen3x8), "{gen3x8}");
    }

    #[test]
    fn speeds_of_all_kernels_are_read_and_unknown_is_not() {
        for (text, want) in [
            ("2.5 GT/s PCIe", Some(2500)),
            ("8 GT/s", Some(8000)),
            ("64.0 GT/s PCIe", Some(64000)),
            ("Unknown", None),
            ("Unknown speed", None),
            ("0.0 GT/s", None),
        ] {
            assert_eq!(parse_speed(text.as_bytes()), want, "{text}");
        }
    }

    #[test]
    fn only_pci_addresses_are_addresses() {
        for (name, ok) in [
            ("0000:3b:00.0", true),
            ("10000:e1:00.1", true),
            ("vmbus", false),
            ("0000:3b:00-0", false),
            ("", false),
        ] {
            assert_eq!(address(&Path::new("/d").join(name)).is_some(), ok, "{name}");
        }
    }

    proptest! {
        #[test]
        fn no_speed_text_panics(text: Vec<u8>, s in "[0-9.]{0,12} GT/s.*") {
            let _ = parse_speed(&text);
            let _ = parse_speed(s.as_bytes());
        }
    }
}
