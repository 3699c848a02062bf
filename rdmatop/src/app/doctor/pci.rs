//! PCI functions: NICs, GPUs, and the bridges above them.

use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt, path::Path};

use super::read;
use rdmatop_base::text;
use rdmatop_doctor::facts::{Gpu, IdleNic, Pci, Reading};
use rdmatop_sources::{
    foreign::Tree,
    privileges::Raised,
    root::{Root, place},
    sysfs::{PciFacts, netdev_bond, pci_path},
};

const MELLANOX: u64 = 0x15b3;
const AMAZON: u64 = 0x1d0f;
const INTEL: u64 = 0x8086;
const CORNELIS: u64 = 0x434e;
const NVIDIA: u64 = 0x10de;
const AMD: u64 = 0x1002;
/// Root ports of Grace. Linux turns ACS on there (`iort_enable_acs`), and rdma_topo of rdma-core wants it so.
const GRACE: [&str; 3] = ["0x22b1", "0x22b2", "0x22b8"];
/// ConnectX-8's function for GPUDirect alone.
const DATA_DIRECT: u64 = 0x2100;

/// The other facts of a function whose address and link are known.
pub(super) fn of(root: &Root, facts: &PciFacts) -> Pci {
    let dir = root.sys("bus/pci/devices").join(&facts.address);
    let mut pci = placed(&dir);
    pci.address.clone_from(&facts.address);
    pci.node = facts.numa_node;
    pci.current = facts.current.into();
    pci.max = facts.max.into();
    pci.slot = facts.slot.into();
    pci
}

/// Reads what a function's directory says of its IDs, its path, its IOMMU and the bridges above it.
fn placed(dir: &Path) -> Pci {
    let mut pci = Pci::default();
    let Some(real) = place(dir) else {
        return pci;
    };
    let ids = ["vendor", "device", "subsystem_vendor", "subsystem_device"]
        .map(|file| read::line(&real.join(file)).known().cloned());
    pci.ids = ids.into_iter().flatten().collect::<Vec<_>>().join(":");
    let path = pci_path(&real);
    if !path.is_empty() {
        // The function itself is not a bridge, and the host bridge has no configuration space here.
        let mut bridges: Vec<&Path> = real.ancestors().take(path.len() - 1).skip(1).collect();
        bridges.reverse();
        if !bridges.first().is_some_and(|port| is_of_grace(port)) {
            pci.acs = redirecting(&bridges);
        }
    }
    pci.path = path.to_vec();
    pci.iommu = match fs::symlink_metadata(real.join("iommu_group")) {
        Ok(_) => read::line(&real.join("iommu_group/type")),
        Err(_) => Reading::Absent,
    };
    pci
}

fn is_of_grace(port: &Path) -> bool {
    let id = |file: &str| read::line(&port.join(file)).known().cloned().unwrap_or_default();
    id("vendor") == "0x10de" && GRACE.contains(&&*id("device"))
}

/// Which of these bridges redirect transfers between devices.
fn redirecting(bridges: &[&Path]) -> Reading<Vec<String>> {
    let mut on = Vec::new();
    for bridge in bridges {
        // Reading past the first 64 bytes takes CAP_SYS_ADMIN (pci_read_config); without it the kernel
        // returns only those.
        let raised = Raised::for_attach();
        let config = read::bytes(&bridge.join("config"), 4096);
        drop(raised);
        match config {
            Reading::Known(config) if config.len() > 256 => {
                if acs_redirects(&config)
                    && let Some(name) = bridge.file_name()
                {
                    on.push(text::sanitize(name.as_bytes()));
                }
            }
            Reading::Known(config) if config.len() <= 64 => {
                return Reading::Unreadable(read::forbidden().to_owned());
            }
            Reading::Known(_) | Reading::Absent => {}
            Reading::Unreadable(why) | Reading::Unknown(why) => return Reading::Unreadable(why),
        }
    }
    Reading::Known(on)
}

/// Whether the access control services of a configuration space redirect requests or completions between
/// peers (`PCI_ACS_RR`, `PCI_ACS_CR`), include/uapi/linux/pci_regs.h.
pub(super) fn acs_redirects(config: &[u8]) -> bool {
    const ACS: u32 = 0x000d;
    const REDIRECT: u16 = 0x04 | 0x08;
    let word = |at: usize| -> Option<u32> {
        let bytes = config.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    let mut at = 0x100;
    // Each capability is at least 4 bytes: the loop ends whatever the chain holds.
    for _ in 0..960 {
        let Some(header) = word(at).filter(|header| *header != 0 && *header != u32::MAX) else {
            return false;
        };
        if header & 0xffff == ACS {
            let control = config.get(at + 6..at + 8).and_then(|bytes| bytes.try_into().ok());
            return control.is_some_and(|bytes| u16::from_le_bytes(bytes) & REDIRECT != 0);
        }
        let next = usize::try_from(header >> 20).unwrap_or(0) & !3;
        if next < 0x100 {
            return false;
        }
        at = next;
    }
    false
}

/// GPUs, NICs that could do RDMA and have no RDMA device, and whether NICs have functions for GPUDirect.
pub(super) type Found = (Vec<Gpu>, Vec<IdleNic>, bool);

/// Looks for them on PCI. `container`: rdmatop is in one.
pub(super) fn search(root: &Root, container: bool) -> Found {
    let (mut gpus, mut nics, mut direct) = (Vec::new(), Vec::new(), false);
    let devices = root.sys("bus/pci/devices");
    for name in root.list(&devices).unwrap_or_default() {
        let dir = devices.join(&name);
        let number = |file: &str| root.number(&dir.join(file));
        let (Some(vendor), Some(class)) = (number("vendor"), number("class")) else {
            continue;
        };
        let address = text::sanitize(name.as_bytes());
        let driver = root.link_name(&dir.join("driver"));
        // A function that was given to a virtual machine or to a program does its work there. A virtual
        // function without a driver is kept for one.
        let given = match driver.as_deref() {
            Some(driver) => driver.starts_with("vfio") || driver.starts_with("uio") || driver == "pci-stub",
            None => fs::symlink_metadata(dir.join("physfn")).is_ok(),
        };
        // Display controllers and processing accelerators.
        if matches!(vendor, NVIDIA | AMD) && matches!(class >> 16, 0x03 | 0x12) {
            if given || container && !has_file(root, &name, &dir, vendor == NVIDIA) {
                continue;
            }
            let mut pci = placed(&dir);
            pci.address = address;
            pci.node = root
                .signed(&dir.join("numa_node"))
                .and_then(|node| node.try_into().ok());
            gpus.push(Gpu {
                nvidia: vendor == NVIDIA,
                pci,
            });
            continue;
        }
        let device = number("device").unwrap_or_default();
        direct |= (vendor, device) == (MELLANOX, DATA_DIRECT);
        let Some((what, module)) = rdma_nic(vendor, device, class) else {
            continue;
        };
        let given = given || driver.is_some() && is_elsewhere(root, &dir, container);
        if !given && !has_rdma(root, &name, &dir) {
            nics.push(IdleNic {
                address,
                what,
                module,
                driver,
            });
        }
    }
    (gpus, nics, direct)
}

/// Whether a container has the file of a GPU: its /sys has all GPUs of the machine. NVIDIA's driver numbers
/// its files in an order of its own, and says the number (`Device Minor`).
fn has_file(root: &Root, name: &OsStr, dir: &Path, nvidia: bool) -> bool {
    const SMALL: usize = 4096;
    let Ok(tree) = Tree::of(root, &root.proc("self")) else {
        return false;
    };
    let is_there = |file: &Path| tree.find(file).is_ok();
    if !nvidia {
        let all = root.list(&dir.join("drm")).unwrap_or_default();
        return all.iter().any(|name| is_there(&Path::new("dev/dri").join(name)));
    }
    let said = root.proc("driver/nvidia/gpus").join(name).join("information");
    let said = root.bytes(&said, SMALL).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let minor: Option<u32> = said
        .lines()
        .find_map(|line| line.strip_prefix("Device Minor:")?.trim().parse().ok());
    minor.is_some_and(|minor| is_there(Path::new(&format!("dev/nvidia{minor}"))))
}

/// Network controllers that are bought for RDMA.
fn rdma_nic(vendor: u64, device: u64, class: u64) -> Option<(&'static str, &'static str)> {
    let network = class >> 16 == 0x02;
    match (vendor, device) {
        // ConnectX-4 and later, BlueField.
        (MELLANOX, 0x1013..) if network => Some(("a Mellanox/NVIDIA NIC", "mlx5_ib")),
        (AMAZON, device) if device & 0xfff0 == 0xefa0 => Some(("an EFA", "efa")),
        (INTEL, 0x24f0 | 0x24f1) => Some(("an Omni-Path NIC", "hfi1")),
        (CORNELIS, _) if network || class >> 8 == 0x0208 => Some(("an Omni-Path NIC", "hfi1")),
        _ => None,
    }
}

/// Whether a function with a driver serves another network namespace: /sys has the functions of all, and of
/// network interfaces and bonds those of one. Of a function that has no interface anywhere a container cannot
/// know whether it is its own.
fn is_elsewhere(root: &Root, dir: &Path, container: bool) -> bool {
    root.list(&dir.join("net"))
        .map_or(container, |nets| nets.is_empty())
}

/// Whether a bond makes one port of this function and another of its card that has an RDMA device, which is
/// then that of both (mlx5 `mlx5_do_bond`, lag/lag.c). Two cards have a device each.
fn is_bonded(root: &Root, dir: &Path) -> bool {
    // The address without the function.
    let card = |dir: &Path| {
        let address = place(dir)?;
        let (card, _) = address.file_name()?.to_str()?.rsplit_once('.')?;
        Some(card.to_owned())
    };
    let own = card(dir);
    let nets = root.list(&dir.join("net")).unwrap_or_default();
    nets.iter()
        .filter_map(|net| root.link_name(&dir.join("net").join(net).join("master")))
        .filter_map(|master| netdev_bond(root, &master))
        .flat_map(|bond| bond.members)
        .any(|member| {
            let function = root.sys("class/net").join(&*member.name).join("device");
            function.join("infiniband").is_dir() && own.is_some() && card(&function) == own
        })
}

/// Whether an RDMA device sits on this function, or on one of its scalable functions.
fn has_rdma(root: &Root, name: &OsStr, dir: &Path) -> bool {
    if dir.join("infiniband").is_dir() || is_bonded(root, dir) {
        return true;
    }
    let class = root.sys("class/infiniband");
    root.list(&class).unwrap_or_default().iter().any(|device| {
        let target = place(&class.join(device).join("device")).unwrap_or_default();
        target.components().any(|part| part.as_os_str() == name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rdmatop_model::engine::families;
    use rdmatop_sources::{fake::Fake, platform::NICS};
    use std::collections::BTreeSet;

    /// A function with its vendor, device and class.
    fn function(fake: &Fake, address: &str, ids: [&str; 3], driver: Option<&str>) {
        let dir = format!("bus/pci/devices/{address}");
        fake.sys(format!("{dir}/vendor"), ids[0])
            .sys(format!("{dir}/device"), ids[1])
            .sys(format!("{dir}/class"), ids[2]);
        if let Some(driver) = driver {
            fake.link(format!("sys/{dir}/driver"), format!("/bus/pci/drivers/{driver}"));
        }
    }

    #[test]
    fn a_container_has_the_gpus_whose_files_it_has() {
        const H100: [&str; 3] = ["0x10de", "0x2330", "0x030200"];
        let fake = Fake::new();
        for (minor, address) in [(1, "0000:17:00.0"), (0, "0000:65:00.0")] {
            function(&fake, address, H100, Some("nvidia"));
            fake.proc(
                format!("driver/nvidia/gpus/{address}/information"),
                format!("Model: \t\t NVIDIA H100\nDevice Minor: \t {minor}\n"),
            );
        }
        function(&fake, "0000:ca:00.0", H100, Some("vfio-pci"));
        fake.proc("self/root/dev/nvidia0", "");
        let gpus = |container| {
            let (gpus, ..) = search(&fake.root(), container);
            gpus.into_iter().map(|gpu| gpu.pci.address).collect::<Vec<_>>()
        };
        assert_eq!(gpus(true), ["0000:65:00.0"]);
        assert_eq!(gpus(false), ["0000:17:00.0", "0000:65:00.0"]);
    }

    /// Where one is missing, rdmatop takes a machine whose driver is loaded for one without a driver.
    #[test]
    fn each_driver_that_rdmatop_knows_elsewhere_is_among_those_of_nics() {
        const SOFTWARE: [&str; 2] = ["rdma_rxe", "siw"];
        let is_known = |name: &str| NICS.contains(&name) || SOFTWARE.contains(&name);
        // Those with counters.
        for names in families() {
            let starts = |module: &&str| names.iter().any(|name| module.starts_with(name));
            assert!(NICS.iter().chain(&SOFTWARE).any(starts), "{names:?}");
        }
        // Those of NICs that are found on PCI.
        let found = [MELLANOX, AMAZON, INTEL, CORNELIS]
            .into_iter()
            .flat_map(|vendor| {
                let modules =
                    (0..=0xffff).filter_map(move |device| Some(rdma_nic(vendor, device, 0x02_0000)?.1));
                modules.collect::<BTreeSet<_>>()
            });
        let found: Vec<_> = found.collect();
        assert_eq!(found.len(), 4, "{found:?}");
        // Those of docs/kernels.md.
        let kernels = include_str!("../../../../xtask/src/kernels.rs");
        let (_, list) = kernels.split_once("const DEVICES").unwrap();
        let (list, _) = list.split_once("];").unwrap();
        let listed: Vec<_> = list.split('"').skip(1).step_by(2).collect();
        assert!(listed.len() > 10, "{listed:?}");
        let unknown: Vec<_> = found
            .iter()
            .chain(&listed)
            .filter(|name| !is_known(name))
            .collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }

    #[test]
    fn a_nic_kept_for_a_virtual_machine_is_no_idle_one() {
        const NIC: [&str; 3] = ["0x15b3", "0x101e", "0x020000"];
        let fake = Fake::new();
        let idle = || search(&fake.root(), false).1.len();
        function(&fake, "0000:17:00.2", NIC, None);
        assert_eq!(idle(), 1);
        fake.link("sys/bus/pci/devices/0000:17:00.2/physfn", "../0000:17:00.0");
        assert_eq!(idle(), 0);
        fake.link(
            "sys/bus/pci/devices/0000:17:00.2/driver",
            "/bus/pci/drivers/mlx5_core",
        );
        assert_eq!(idle(), 1);
    }

    #[test]
    fn a_nic_of_another_network_namespace_is_not_judged() {
        const NIC: [&str; 3] = ["0x15b3", "0x1021", "0x020000"];
        const AT: &str = "sys/bus/pci/devices/0000:17:00.1";
        let fake = Fake::new();
        let idle = |container| search(&fake.root(), container).1.len();
        function(&fake, "0000:17:00.1", NIC, Some("mlx5_core"));
        assert_eq!((idle(true), idle(false)), (0, 1), "without an interface");
        fake.dir(format!("{AT}/net"));
        assert_eq!((idle(true), idle(false)), (0, 0), "its interface is elsewhere");
        fake.dir(format!("{AT}/net/eth1"));
        assert_eq!((idle(true), idle(false)), (1, 1), "its interface is here");
    }

    #[test]
    fn the_second_function_of_a_bond_has_the_device_of_the_first() {
        const NIC: [&str; 3] = ["0x15b3", "0x1021", "0x020000"];
        let fake = Fake::new();
        for (at, address) in ["0000:17:00.0", "0000:17:00.1", "0000:65:00.0"]
            .into_iter()
            .enumerate()
        {
            function(&fake, address, NIC, Some("mlx5_core"));
            fake.dir(format!("sys/bus/pci/devices/{address}/net/eth{at}"))
                .link(
                    format!("sys/class/net/eth{at}/device"),
                    format!("../../../bus/pci/devices/{address}"),
                );
        }
        fake.dir("sys/bus/pci/devices/0000:17:00.0/infiniband/mlx5_bond_0");
        let idle = || {
            let (_, nics, _) = search(&fake.root(), false);
            nics.into_iter().map(|nic| nic.address).collect::<Vec<_>>()
        };
        assert_eq!(idle(), ["0000:17:00.1", "0000:65:00.0"]);
        for net in ["17:00.0/net/eth0", "17:00.1/net/eth1", "65:00.0/net/eth2"] {
            fake.link(format!("sys/bus/pci/devices/0000:{net}/master"), "../bond0");
        }
        fake.sys("class/net/bond0/bonding/slaves", "eth0 eth1 eth2\n");
        assert_eq!(idle(), ["0000:65:00.0"], "another card has a device of its own");
    }

    fn with_acs(control: u16) -> Vec<u8> {
        let mut config = vec![0; 4096];
        // AER at 0x100, then ACS at 0x148.
        config[0x100..0x104].copy_from_slice(&(0x0001_u32 | 2 << 16 | 0x148 << 20).to_le_bytes());
        config[0x148..0x14c].copy_from_slice(&(0x000d_u32 | 1 << 16).to_le_bytes());
        config[0x14e..0x150].copy_from_slice(&control.to_le_bytes());
        config
    }

    #[test]
    fn redirection_is_found_behind_other_capabilities() {
        assert!(acs_redirects(&with_acs(0x1d)));
        assert!(
            !acs_redirects(&with_acs(0x01)),
            "source validation alone redirects nothing"
        );
        assert!(!acs_redirects(&with_acs(0)));
        assert!(!acs_redirects(&[0; 256]) && !acs_redirects(&[0xff; 4096]));
    }

    #[test]
    fn a_circular_chain_of_capabilities_ends() {
        let mut config = vec![0; 4096];
        config[0x100..0x104].copy_from_slice(&(0x0001_u32 | 0x100 << 20).to_le_bytes());
        assert!(!acs_redirects(&config));
    }

    #[test]
    fn below_a_root_port_of_grace_no_bridge_is_judged() {
        const PORT: &str = "devices/pci0000:10/0000:10:00.0";
        let fake = Fake::new();
        let nic = format!("{PORT}/0000:11:00.0");
        fake.sys(format!("{PORT}/config"), with_acs(0x1d))
            .sys(format!("{PORT}/vendor"), "0x10de\n")
            .sys(format!("{PORT}/device"), "0x22b1\n")
            .sys(format!("{nic}/vendor"), "0x15b3\n");
        let acs = || placed(&fake.root().sys(&nic)).acs;
        assert_eq!(acs(), Reading::Absent);
        fake.sys(format!("{PORT}/vendor"), "0x8086\n");
        assert_eq!(acs(), Reading::Known(vec!["0000:10:00.0".to_owned()]));
    }

    #[test]
    fn a_function_for_gpudirect_alone_is_found_and_is_no_idle_nic() {
        let fake = Fake::new();
        function(
            &fake,
            "0006:03:00.0",
            ["0x15b3", "0x2100", "0x080100"],
            Some("mlx5_ib"),
        );
        let (gpus, nics, direct) = search(&fake.root(), false);
        assert_eq!((gpus.len(), nics.len(), direct), (0, 0, true));
        function(
            &fake,
            "0006:03:00.0",
            ["0x15b3", "0x1023", "0x020000"],
            Some("mlx5_core"),
        );
        assert!(!search(&fake.root(), false).2);
    }

    proptest! {
        #[test]
        fn no_configuration_space_panics(config in prop::collection::vec(any::<u8>(), 0..4200)) {
            let _ = acs_redirects(&config);
        }
    }
}
