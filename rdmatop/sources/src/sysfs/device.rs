//! One RDMA device: `/sys/class/infiniband/NAME`.
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::{fs, io};

use super::pci::{PciFacts, read_pci};
use super::port::{PortFacts, read_port};
use crate::root::{Root, is_component};
use rdmatop_base::text;

/// Facts of one device. Its counters are read by [`super::CounterFiles`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Directory name, safe to print. A `/` of the device's own name is a `!` here.
    pub name: String,
    /// Node GUID: distinguishes a device that was added again from another one of the same name.
    pub node_guid: Option<u64>,
    /// Kernel driver of the parent device (`mlx5_core`, `efa`, ...); `None` for software devices.
    pub driver: Option<String>,
    /// PCI function; `None` for software devices and for other buses.
    pub pci: Option<PciFacts>,
    /// The network device on which an rxe device was made.
    pub parent_netdev: Option<String>,
    /// No hardware behind it (rxe, siw).
    pub software: bool,
    /// The entry is listed and its target is missing: the container lacks the `/sys/devices` of the host.
    pub dangling: bool,
    /// Ports by number.
    pub ports: Vec<PortFacts>,
}

/// The directory in `/sys/class/infiniband` of the device that the kernel calls `name` (RDMA netlink's name,
/// any bytes); `None` for a name that cannot be one.
pub fn device_dir(name: &[u8]) -> Option<OsString> {
    let dir: Vec<u8> = name.iter().map(|b| if *b == b'/' { b'!' } else { *b }).collect();
    Some(OsString::from_vec(dir)).filter(|dir| is_component(dir))
}

/// Names of the device directories, sorted. `None`: no RDMA subsystem in this kernel (`ib_core` is not
/// loaded).
pub fn list_devices(root: &Root) -> Option<Vec<OsString>> {
    root.list(&root.sys("class/infiniband"))
}

/// Names of verbs files (`uverbs0`), each with the raw name of its device; an error where ib_uverbs is not
/// loaded.
pub fn verbs_files(root: &Root) -> io::Result<Vec<(OsString, Vec<u8>)>> {
    let class = root.sys("class/infiniband_verbs");
    let of = |file: OsString| {
        let device = root.value(&class.join(&file).join("ibdev"))?;
        Some((file, device))
    };
    Ok(root.try_list(&class)?.into_iter().filter_map(of).collect())
}

/// How many of these devices are only a name: what their entry points to is missing.
pub fn count_dangling(root: &Root, dirs: &[OsString]) -> usize {
    let paths = dirs.iter().filter_map(|dir| device_path(root, dir));
    paths.filter(|path| !path.exists()).count()
}

/// Whether a device is software: a driver does its work, not a NIC.
fn is_software(root: &Root, dir: &Path) -> bool {
    // On older kernels an rxe device has the `device` link of its network device; only rxe devices have
    // `parent`.
    root.line(&dir.join("parent")).is_some() || fs::symlink_metadata(dir.join("device")).is_err()
}

/// Whether there is a device that is not software.
pub fn has_hardware(root: &Root) -> bool {
    let names = list_devices(root).unwrap_or_default();
    names.iter().any(|name| is_hardware(root, name))
}

/// Whether a device is there whose driver is that of mlx5.
pub fn has_mlx5(root: &Root) -> bool {
    let names = list_devices(root).unwrap_or_default();
    let driver = |name: &OsString| root.link_name(&device_path(root, name)?.join("device/driver"));
    names
        .iter()
        .filter_map(driver)
        .any(|driver| driver.starts_with("mlx5"))
}

/// Whether there is a device of this name that is not software.
pub fn is_hardware(root: &Root, name: &OsStr) -> bool {
    device_path(root, name).is_some_and(|dir| !is_software(root, &dir))
}

/// Reads one device with its ports; `None` when there is no such directory.
pub fn read_device(root: &Root, dir_name: &OsStr) -> Option<DeviceFacts> {
    let dir = device_path(root, dir_name)?;
    fs::symlink_metadata(&dir).ok()?;
    let parent_netdev = root.line(&dir.join("parent"));
    let software = is_software(root, &dir);
    let dangling = !dir.exists();
    let driver = (!software)
        .then(|| root.link_name(&dir.join("device/driver")))
        .flatten();
    Some(DeviceFacts {
        name: text::sanitize(dir_name.as_bytes()),
        node_guid: root
            .value(&dir.join("node_guid"))
            .and_then(|raw| parse_guid(&raw)),
        pci: if software {
            None
        } else {
            read_pci(root, &dir.join("device"))
        },
        parent_netdev,
        software: software && !dangling,
        dangling,
        ports: port_numbers(root, &dir)
            .into_iter()
            .map(|port| read_port(root, &dir, port, driver.as_deref(), software))
            .collect(),
        driver,
    })
}

pub(super) fn device_path(root: &Root, dir_name: &OsStr) -> Option<PathBuf> {
    is_component(dir_name).then(|| root.sys("class/infiniband").join(dir_name))
}

fn port_numbers(root: &Root, dir: &Path) -> Vec<u32> {
    let names = root.list(&dir.join("ports")).unwrap_or_default();
    let mut ports: Vec<u32> = names
        .iter()
        .filter_map(|name| name.to_str()?.parse().ok())
        .collect();
    ports.sort_unstable();
    ports
}

/// "5054:00ff:fe12:3456"; all zero is a GUID that was never set.
fn parse_guid(raw: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(raw).ok()?;
    let mut groups = text.split(':');
    let mut guid = 0;
    for _ in 0..4 {
        let group = groups
            .next()
            .filter(|g| g.len() == 4 && g.bytes().all(|b| b.is_ascii_hexdigit()))?;
        guid = guid << 16 | u64::from_str_radix(group, 16).ok()?;
    }
    (groups.next().is_none() && guid != 0).then_some(guid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;
    use proptest::prelude::*;

    fn read(fake: &Fake, name: &str) -> DeviceFacts {
        read_device(&fake.root(), OsStr::new(name)).expect("the device is there")
    }

    /// A hardware device behind a PCI function, its class entry a symlink as in a real sysfs.
    fn hardware(fake: &Fake, name: &str, driver: &str) -> String {
        let pci = "devices/pci0000:00/0000:3b:00.0";
        let dir = format!("{pci}/infiniband/{name}");
        fake.dir(format!("sys/bus/pci/drivers/{driver}"))
            .dir(format!("sys/{dir}"));
        fake.link(
            format!("sys/{pci}/driver"),
            format!("../../../bus/pci/drivers/{driver}"),
        );
        fake.link(format!("sys/{dir}/device"), "../..");
        fake.link(format!("sys/class/infiniband/{name}"), format!("../../{dir}"));
        fake.sys(format!("{pci}/numa_node"), "1\n")
            .sys(format!("{dir}/node_guid"), "b8ce:f603:00a1:b2c3\n");
        dir
    }

    #[test]
    fn an_mlx5_device_shows_hardware_and_ports() {
        let fake = Fake::new();
        let dir = hardware(&fake, "mlx5_0", "mlx5_core");
        let port = format!("{dir}/ports/1");
        fake.sys(format!("{port}/rate"), "400 Gb/sec (4X NDR)\n")
            .sys(format!("{port}/link_layer"), "InfiniBand\n");
        let d = read(&fake, "mlx5_0");
        assert_eq!(d.driver.as_deref(), Some("mlx5_core"));
        assert_eq!(
            d.pci.as_ref().map(|p| (p.address.as_str(), p.numa_node)),
            Some(("0000:3b:00.0", Some(1)))
        );
        assert_eq!(d.node_guid, Some(0xb8ce_f603_00a1_b2c3));
        assert_eq!((d.software, d.dangling), (false, false));
        let p = &d.ports[0];
        assert_eq!(p.port, 1);
        assert_eq!(
            p.rate.as_ref().and_then(|rate| rate.bits_per_sec),
            Some(400_000_000_000)
        );
        assert_eq!(p.netdev, None);
    }

    #[test]
    fn an_efa_device_without_most_files_still_shows_the_rest() {
        let fake = Fake::new();
        let dir = hardware(&fake, "rdmap0s6", "efa");
        fake.sys(format!("{dir}/ports/1/rate"), "100 Gb/sec (4X EDR)");
        fake.sys(format!("{dir}/ports/1/link_layer"), "Unspecified\n");
        let d = read(&fake, "rdmap0s6");
        assert_eq!(d.driver.as_deref(), Some("efa"));
        assert_eq!(d.ports[0].link_layer.as_deref(), Some("Unspecified"));
    }

    #[test]
    fn irdma_and_bnxt_ports_are_numbered_and_sorted() {
        let fake = Fake::new();
        for (name, driver) in [("irdma0", "irdma"), ("bnxt_re0", "bnxt_en")] {
            let dir = hardware(&fake, name, driver);
            for port in ["10", "2", "1", "x"] {
                fake.sys(format!("{dir}/ports/{port}/state"), "1: DOWN\n");
            }
            fake.sys(format!("{dir}/ports/1/rate"), "N/A (no PMA)\n");
            let d = read(&fake, name);
            assert_eq!(d.ports.iter().map(|p| p.port).collect::<Vec<_>>(), [1, 2, 10]);
            assert_eq!(d.ports[0].rate, None);
            assert_eq!(d.driver.as_deref(), Some(driver));
        }
    }

    #[test]
    fn an_rxe_device_has_a_parent_no_driver_and_a_placeholder_rate() {
        let fake = Fake::new();
        let dir = "class/infiniband/rxe0";
        fake.sys(format!("{dir}/parent"), "dummy0\n")
            .sys(format!("{dir}/fw_ver"), "\n");
        fake.sys(format!("{dir}/node_guid"), "5054:00ff:fe12:3456\n");
        fake.sys(format!("{dir}/ports/1/rate"), "2.5 Gb/sec (1X SDR)\n");
        fake.sys(format!("{dir}/ports/1/gid_attrs/ndevs/1"), "dummy0\n");
        let d = read(&fake, "rxe0");
        assert_eq!(
            (d.parent_netdev.as_deref(), d.software, d.driver, d.pci),
            (Some("dummy0"), true, None, None)
        );
        assert!(d.ports[0].rate.as_ref().is_some_and(|r| r.bits_per_sec.is_none()));
        assert_eq!(d.ports[0].netdev.as_deref(), Some("dummy0"));
    }

    #[test]
    fn a_device_is_hardware_also_where_its_function_cannot_be_seen() {
        let fake = Fake::new();
        fake.sys("class/infiniband/mlx5_0/node_guid", "0:1\n");
        let is_hardware = || is_hardware(&fake.root(), OsStr::new("mlx5_0"));
        assert!(!is_hardware());
        fake.link("sys/class/infiniband/mlx5_0/device", "../../../devices/gone");
        assert!(is_hardware());
        assert!(!read(&fake, "mlx5_0").software);
        fake.sys("class/infiniband/mlx5_0/parent", "dummy0\n");
        assert!(!is_hardware());
        assert!(read(&fake, "mlx5_0").software);
    }

    #[test]
    fn a_hostile_name_is_found_by_its_sysfs_spelling_and_shown_escaped() {
        let fake = Fake::new();
        fake.sys("class/infiniband/foo!bar/node_guid", "0000:0000:0000:0001\n");
        fake.sys("class/infiniband/e\x1b[2J\nx/node_guid", "0000:0000:0000:0002\n");
        assert_eq!(list_devices(&fake.root()).map(|d| d.len()), Some(2));
        let dir = device_dir(b"foo/bar").unwrap();
        assert_eq!(read_device(&fake.root(), &dir).and_then(|d| d.node_guid), Some(1));
        let dir = device_dir(b"e\x1b[2J\nx").unwrap();
        let d = read_device(&fake.root(), &dir).unwrap();
        assert_eq!((d.name.as_str(), d.node_guid), ("e\\x1b[2J\\x0ax", Some(2)));
    }

    #[test]
    fn no_name_leads_out_of_the_directory() {
        let fake = Fake::new();
        fake.dir("sys/class/infiniband").dir("sys/class/net");
        for name in ["..", ".", "", "../net", "a\0b"] {
            assert_eq!(read_device(&fake.root(), OsStr::new(name)), None, "{name:?}");
        }
        assert_eq!(device_dir(b".."), None);
        assert_eq!(device_dir(b"../net"), Some("..!net".into()));
    }

    #[test]
    fn a_link_without_a_target_is_dangling_and_not_software() {
        let fake = Fake::new();
        fake.dir("sys/class/infiniband")
            .link("sys/class/infiniband/mlx5_0", "../../devices/gone/mlx5_0");
        let d = read(&fake, "mlx5_0");
        assert!(d.dangling && !d.software && d.ports.is_empty());
        fake.sys("class/infiniband/rxe0/node_guid", "0:0\n");
        let all = list_devices(&fake.root()).unwrap();
        assert_eq!((all.len(), count_dangling(&fake.root(), &all)), (2, 1));
    }

    #[test]
    fn no_class_directory_means_no_subsystem_and_an_empty_one_means_no_device() {
        let fake = Fake::new();
        assert_eq!(list_devices(&fake.root()), None);
        fake.dir("sys/class/infiniband");
        assert_eq!(list_devices(&fake.root()), Some(vec![]));
    }

    proptest! {
        #[test]
        fn every_guid_reads_back_and_junk_does_not_panic(guid in 1u64.., junk: Vec<u8>) {
            let text = format!("{:04x}:{:04x}:{:04x}:{:04x}", guid >> 48, guid >> 32 & 0xffff, guid >> 16 & 0xffff, guid & 0xffff);
            prop_assert_eq!(parse_guid(text.as_bytes()), Some(guid));
            let _ = parse_guid(&junk);
        }

        #[test]
        fn a_directory_name_never_has_a_slash(name: Vec<u8>) {
            prop_assert!(device_dir(&name).is_none_or(|d| is_component(&d)));
        }
    }
}
