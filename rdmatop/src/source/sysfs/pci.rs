//! The PCI function behind an RDMA device.
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::source::root::Root;

/// Where a device sits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PciFacts {
    /// Address, `DDDD:BB:DD.F`.
    pub address: String,
    /// NUMA node; `None` on machines that do not say (-1).
    pub numa_node: Option<u32>,
}

/// The PCI function that `device` (the `device` link of a class directory) is, or sits on: a scalable function
/// is an auxiliary device below its PCI parent.
pub(super) fn read_pci(root: &Root, device: &Path) -> Option<PciFacts> {
    let real = fs::canonicalize(device).ok()?;
    let dir: PathBuf = real.ancestors().find(|dir| address(dir).is_some())?.to_owned();
    Some(PciFacts {
        address: address(&dir)?,
        numa_node: root
            .signed(&dir.join("numa_node"))
            .and_then(|n| n.try_into().ok()),
    })
}

fn address(dir: &Path) -> Option<String> {
    let name = dir.file_name()?.as_bytes();
    let pattern_end = b":BB:DD.F";
    let domain = name
        .len()
        .checked_sub(pattern_end.len())
        .filter(|len| (4..=8).contains(len))?;
    let matches = name
        .iter()
        .enumerate()
        .all(|(i, b)| match i.checked_sub(domain).map(|i| pattern_end[i]) {
            Some(punctuation @ (b':' | b'.')) => *b == punctuation,
            _ => b.is_ascii_hexdigit(),
        });
    matches.then(|| String::from_utf8_lossy(name).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::fake::Fake;

    #[test]
    fn a_scalable_function_is_found_through_its_pci_parent() {
        let fake = Fake::new();
        let dir = "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0";
        fake.sys(format!("{dir}/numa_node"), "1\n");
        fake.sys(format!("{dir}/mlx5_core.sf.4/sfnum"), "88\n");
        fake.link(
            "sys/class/infiniband/mlx5_2/device",
            fake.root().sys(format!("{dir}/mlx5_core.sf.4")),
        );
        let pci = read_pci(&fake.root(), &fake.root().sys("class/infiniband/mlx5_2/device")).unwrap();
        assert_eq!(pci.address, "0000:3b:00.0");
        assert_eq!(pci.numa_node, Some(1));
    }

    #[test]
    fn minus_one_is_no_numa_node() {
        let fake = Fake::new();
        fake.sys("devices/0000:00:06.0/numa_node", "-1\n");
        let pci = read_pci(&fake.root(), &fake.root().sys("devices/0000:00:06.0")).unwrap();
        assert_eq!(pci.numa_node, None);
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
}
