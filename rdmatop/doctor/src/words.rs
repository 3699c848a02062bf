//! Words and numbers as the page has them.

use std::collections::BTreeSet;

use super::facts::{Device, Facts, Port, Process};
use rdmatop_base::order::Gather as _;
pub(super) use rdmatop_base::text::{bytes, count, lists, names};
pub(super) use rdmatop_base::variables::setting;

/// `400 Gb/s`.
pub(super) fn rate(bits: u64) -> String {
    let tenths = bits / 100_000_000;
    match tenths % 10 {
        0 => format!("{} Gb/s", tenths / 10),
        part => format!("{}.{part} Gb/s", tenths / 10),
    }
}

/// `mlx5_0`, or `mlx5_0 port 2` of a device with several.
pub(super) fn port_name(device: &Device, port: &Port) -> String {
    if device.ports.len() > 1 {
        format!("{} port {}", device.name, port.number)
    } else {
        device.name.clone()
    }
}

/// Adds a value to the group of this key, or begins one.
pub(super) fn group<K: PartialEq, V>(groups: &mut Vec<(K, Vec<V>)>, key: K, value: V) {
    match groups.iter_mut().find(|(known, _)| *known == key) {
        Some((_, same)) => same.push(value),
        None => groups.push((key, vec![value])),
    }
}

/// Values, each once and in order.
pub(super) fn distinct<T: Ord>(all: impl Iterator<Item = T>) -> Vec<T> {
    let all: BTreeSet<T> = all.gather();
    all.into_iter().collect()
}

impl Facts {
    pub(super) fn answering(&self) -> impl Iterator<Item = &Device> {
        let all = self.devices.known().into_iter().flatten();
        all.filter(|device| !device.late && !device.dangling)
    }

    /// Whether the machine has a device that RDMA libraries would use by themselves: EFA is none.
    pub(super) fn has_verbs_nic(&self) -> bool {
        self.answering()
            .any(|device| device.driver.as_deref() != Some("efa"))
    }

    pub(super) fn hardware(&self) -> impl Iterator<Item = &Device> {
        self.answering().filter(|device| !device.software)
    }

    pub(super) fn ports(&self) -> impl Iterator<Item = (&Device, &Port)> {
        self.answering()
            .flat_map(|device| device.ports.iter().map(move |port| (device, port)))
    }
}

impl Process {
    /// Whether its /dev/infiniband has no file for a device: /sys of a container may have the devices of the
    /// whole machine.
    pub(super) fn lacks_file(&self, facts: &Facts, device: &str) -> bool {
        let (Some(verbs), Some(nodes)) = (facts.verbs.known(), self.nodes.known()) else {
            return false;
        };
        let is_absent = |file: &String| nodes.iter().all(|(name, _)| name != file);
        verbs.iter().any(|(file, of)| of == device && is_absent(file))
    }
}

impl Device {
    /// Driver and board. Without the board's name (`board_id`, which not every driver has) the PCI IDs stand
    /// for it.
    pub(super) fn kind(&self) -> [&str; 3] {
        let board = self.board.known().map_or("", String::as_str);
        let ids = self.pci.as_ref().filter(|_| board.is_empty());
        [
            self.driver.as_deref().unwrap_or_default(),
            board,
            ids.map_or("", |pci| pci.ids.as_str()),
        ]
    }
}

impl Port {
    pub(super) fn is_infiniband(&self) -> bool {
        self.link_layer.as_deref() == Some("InfiniBand")
    }

    /// Whether its interface is switched off.
    pub(super) fn is_off(&self) -> bool {
        self.netdev
            .as_ref()
            .is_some_and(|netdev| netdev.up == Some(false))
    }

    /// Whether traffic can pass.
    pub(super) fn active(&self) -> bool {
        self.state.known().is_some_and(|state| state.is_active())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units() {
        assert_eq!(
            (rate(400_000_000_000).as_str(), rate(2_500_000_000).as_str()),
            ("400 Gb/s", "2.5 Gb/s")
        );
        assert_eq!(
            (bytes(65536).as_str(), bytes(8 << 20).as_str()),
            ("64 KiB", "8 MiB")
        );
        assert_eq!(
            (
                bytes(1 << 30).as_str(),
                bytes(3 << 29).as_str(),
                bytes(5).as_str()
            ),
            ("1 GiB", "1.5 GiB", "5 bytes")
        );
        assert_eq!(
            (count(1, "process"), count(2, "process"), count(3, "port")),
            ("1 process".into(), "2 processes".into(), "3 ports".into())
        );
    }
}
