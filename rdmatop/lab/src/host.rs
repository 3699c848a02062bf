//! What the lab does to the machine, behind a trait so that its decisions are tested without one.
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::module::{self, Presence};
pub(super) use super::switch::Switch;
use super::{LabError, cannot, disk, link, switch};
use super::{run::Wire, state::MadeDisk};
use rdmatop_base::{order::Gather as _, text};
use rdmatop_sources::netlink::client::Nldev;
use rdmatop_sources::netlink::error::NetlinkError;
use rdmatop_sources::netlink::name::Name;
pub(super) use rdmatop_sources::netlink::record::NetnsMode;
use rdmatop_sources::netlink::record::{Owner, Port};
use rdmatop_sources::netlink::sample::Dump;
use rdmatop_sources::netlink::socket::Socket;
use rdmatop_sources::netlink::transport::Transport;
use rdmatop_sources::openers::openers;
use rdmatop_sources::proc::process_of;
use rdmatop_sources::removal;
use rdmatop_sources::root::Root;
use rdmatop_sources::sysfs;

/// The module of SoftRoCE.
pub(super) const RXE: &str = "rdma_rxe";

/// An RDMA device that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Present {
    pub(super) name: Name,
    pub(super) index: u32,
    pub(super) node_guid: Option<u64>,
    /// Inode of the device's directory in sysfs.
    pub(super) inode: Option<u64>,
    /// It is or may be one of rdma_rxe.
    pub(super) software: bool,
    /// Interfaces of its ports.
    pub(super) netdevs: Vec<Netdev>,
}

/// An interface under a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Netdev {
    pub(super) index: u32,
    pub(super) name: Name,
}

/// A network interface that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) name: Name,
    pub(super) index: u32,
    /// Hardware address, if it has six bytes.
    pub(super) address: Option<[u8; 6]>,
    /// Inode of the interface's directory in sysfs.
    pub(super) inode: Option<u64>,
}

/// An RDMA device whose removal waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Leaving {
    pub(super) name: Name,
    /// Who holds it, in words.
    pub(super) held: String,
}

/// The machine.
pub(super) trait Host {
    /// Which boot this is; empty where that cannot be read.
    fn boot(&mut self) -> String;
    /// Is rdma_rxe in the kernel?
    fn has_rxe(&mut self) -> bool;
    /// Makes sure that rdma_rxe is loaded, and what programs need to use its devices.
    fn load_rxe(&mut self) -> Result<(), LabError>;
    /// Are RDMA devices of other network namespaces seen here? None when that is not known.
    fn netns_mode(&mut self) -> Option<NetnsMode>;
    /// RDMA devices; none where there is no RDMA.
    fn devices(&mut self) -> Result<Vec<Present>, LabError>;
    /// Devices that are being removed.
    fn leaving(&mut self) -> Vec<Leaving> {
        Vec::new()
    }
    /// Makes an rxe device.
    fn add_device(&mut self, name: &str, netdev: &Interface) -> Result<(), LabError>;
    /// Removes an RDMA device; hangs while it is open.
    fn remove_device(&mut self, device: &Present) -> Result<(), LabError>;
    /// Processes with objects on a device, as `PID (comm)`.
    fn holders(&mut self, index: u32) -> Result<Vec<String>, LabError>;
    /// Interface of the default route.
    fn default_netdev(&mut self) -> Option<String>;
    /// Network interfaces of this network namespace.
    fn interfaces(&mut self) -> Vec<Interface>;
    /// A hardware address that no interface has.
    fn new_address(&mut self) -> [u8; 6];
    /// Makes a dummy interface.
    fn add_dummy(&mut self, name: &str, address: [u8; 6]) -> Result<(), LabError>;
    /// Gives an interface an IPv4 address, if it does not have that one.
    fn add_ipv4(&mut self, interface: &Interface, address: [u8; 4]) -> Result<(), LabError>;
    /// Makes a switch in a network namespace of its own.
    fn new_switch(&mut self) -> Result<Switch, LabError>;
    /// Makes an interface with a cable to the switch, up, with a link-local address and no other.
    fn add_port(&mut self, switch: &Switch, name: &str, address: [u8; 6], mtu: u32) -> Result<(), LabError>;
    /// Makes an interface without a cable, up, with a link-local address and no other.
    fn add_inside(&mut self, name: &str, address: [u8; 6]) -> Result<(), LabError>;
    /// Inode of a module's directory in sysfs; none while it is not loaded.
    fn module_inode(&mut self, name: &str) -> Option<u64>;
    /// Loads what the disk needs. The error names the module that the kernel does not have.
    fn load_disk_modules(&mut self) -> Result<(), LabError>;
    /// Unloads a module; refused while it is in use.
    fn unload(&mut self, name: &'static str) -> Result<(), LabError>;
    fn make_disk(&mut self, disk: &MadeDisk, device: &str) -> Result<PathBuf, LabError>;
    /// Removes what there is of the disk; false when there was nothing.
    fn remove_disk(&mut self, disk: &MadeDisk) -> Result<bool, LabError>;
    /// Waits until an RDMA device can carry traffic.
    fn await_device(&mut self, name: &str) -> Result<(), LabError>;
    fn disturb(&mut self, interface: &Interface, wire: Wire) -> Result<(), LabError>;
    fn remove_interface(&mut self, interface: &Interface) -> Result<(), LabError>;
}

/// The machine on which rdmatop runs.
#[derive(Debug)]
pub(super) struct System {
    nldev: Nldev<Socket>,
}

impl Default for System {
    fn default() -> Self {
        Self {
            nldev: Nldev::unopened(),
        }
    }
}

/// The error of a netlink request that the kernel refused. Root may lack the right for it.
pub(super) fn refused(action: impl Into<String>) -> impl FnOnce(NetlinkError) -> LabError {
    let action = action.into();
    move |error| match error.errno() {
        Some(libc::EPERM) => cannot(
            action,
            &format!(
                "{error}; it takes CAP_NET_ADMIN: run on the host, or start the container with --cap-add NET_ADMIN"
            ),
        ),
        _ => cannot(action, &error),
    }
}

impl Host for System {
    fn boot(&mut self) -> String {
        Root::default().boot_id()
    }

    fn has_rxe(&mut self) -> bool {
        module::presence(Path::new("/"), &kernel(), RXE) == Presence::Loaded
    }

    fn load_rxe(&mut self) -> Result<(), LabError> {
        load(RXE)?;
        // For programs to open the device and to connect by address; the device itself works without.
        let _ = module::modprobe("ib_uverbs", &[]);
        let _ = module::modprobe("rdma_ucm", &[]);
        Ok(())
    }

    fn netns_mode(&mut self) -> Option<NetnsMode> {
        self.nldev.netns_mode().ok()?
    }

    fn devices(&mut self) -> Result<Vec<Present>, LabError> {
        let nldev = &mut self.nldev;
        let devices = match nldev.devices().and_then(Dump::whole) {
            Err(NetlinkError::NoRdma) => return Ok(Vec::new()),
            devices => devices.map_err(refused("list RDMA devices"))?,
        };
        let present = devices.into_iter().map(|device| {
            let ports = nldev.ports(device.index).unwrap_or_default().items;
            let netdev = |port: Port| {
                let netdev = port.netdev?;
                Some(Netdev {
                    index: netdev.index,
                    name: netdev.name?,
                })
            };
            let dir = sysfs::device_dir(device.name.as_bytes()).unwrap_or_default();
            Present {
                index: device.index,
                node_guid: device.node_guid,
                inode: inode(&Path::new("/sys/class/infiniband").join(&dir)),
                software: !sysfs::is_hardware(&Root::default(), &dir),
                netdevs: ports.into_iter().filter_map(netdev).collect(),
                name: device.name,
            }
        });
        Ok(present.collect())
    }

    fn leaving(&mut self) -> Vec<Leaving> {
        let root = Root::default();
        let shared = self.netns_mode() == Some(NetnsMode::Shared);
        // What cannot be listed may be there: nothing of it is forgotten.
        let listed = || {
            let devices = self.devices().unwrap_or_default();
            Ok::<_, LabError>(devices.into_iter().map(|device| device.name).collect())
        };
        let found = removal::waiting(&root, shared, listed).unwrap_or_default();
        if found.is_empty() {
            return Vec::new();
        }
        let held = removal::holders(&root).to_string();
        let leaving = |dir: OsString| Leaving {
            name: Name::from(dir.as_bytes()),
            held: held.clone(),
        };
        found.into_iter().map(leaving).collect()
    }

    fn add_device(&mut self, name: &str, netdev: &Interface) -> Result<(), LabError> {
        let netdev = &netdev.name;
        self.nldev
            .new_link(name.as_bytes(), b"rxe", netdev.as_bytes())
            .map_err(refused(format!("make {name} on {netdev}")))
    }

    fn remove_device(&mut self, device: &Present) -> Result<(), LabError> {
        self.nldev
            .del_link(device.index)
            .map_err(refused(format!("remove {}", device.name)))
    }

    fn holders(&mut self, index: u32) -> Result<Vec<String>, LabError> {
        let look = || refused("look for holders");
        let nldev = &mut self.nldev;
        let (mut pids, unlisted) = owners(nldev, &Root::default(), index).map_err(look())?;
        if unlisted > 0 {
            let mut devices = nldev.devices().and_then(Dump::whole).map_err(look())?;
            devices.retain(|device| device.index == index);
            let names: Vec<_> = devices
                .iter()
                .map(|device| text::sanitize(device.name.as_bytes()))
                .collect();
            let open = openers(&Root::default()).found.into_iter();
            pids.extend(open.filter(|one| names.contains(&one.device)).map(|one| one.pid));
        }
        let nobody = pids.is_empty() && unlisted > 0;
        let unnamed = nobody.then(|| format!("{unlisted} unnamed (this kernel only counts open contexts)"));
        Ok(pids.into_iter().map(describe).chain(unnamed).collect())
    }

    fn default_netdev(&mut self) -> Option<String> {
        default_route(&fs::read_to_string("/proc/net/route").ok()?)
    }

    fn interfaces(&mut self) -> Vec<Interface> {
        let dirs = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
        let interface = |entry: fs::DirEntry| {
            let dir = entry.path();
            let text = |file: &str| fs::read_to_string(dir.join(file)).ok();
            Some(Interface {
                index: text("ifindex")?.trim().parse().ok()?,
                address: text("address").and_then(|text| hardware_address(text.trim())),
                inode: inode(&dir),
                name: Name::from(entry.file_name().as_bytes()),
            })
        };
        dirs.filter_map(interface).collect()
    }

    fn new_address(&mut self) -> [u8; 6] {
        // Locally administered, of one interface.
        let mut address = [0x02, 0, 0, 0, 0, 0];
        let read = fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut address[1..]));
        if read.is_err() {
            address[1..5].copy_from_slice(&std::process::id().to_ne_bytes());
        }
        address
    }

    fn add_dummy(&mut self, name: &str, address: [u8; 6]) -> Result<(), LabError> {
        if !Path::new("/sys/module/dummy").exists() {
            // Loaded by the kernel itself, the module would bring a dummy0 that was not asked for.
            module::modprobe("dummy", &["numdummies=0"])?;
        }
        link::add_dummy(name, address).map_err(refused(format!("make interface {name}")))
    }

    fn add_ipv4(&mut self, interface: &Interface, address: [u8; 4]) -> Result<(), LabError> {
        match link::add_address(interface.index, address) {
            Err(error) if error.errno() != Some(libc::EEXIST) => {
                Err(refused(format!("give {} an address", interface.name))(error))
            }
            _ => Ok(()),
        }
    }

    fn new_switch(&mut self) -> Result<Switch, LabError> {
        Switch::make()
    }

    fn add_port(&mut self, switch: &Switch, name: &str, address: [u8; 6], mtu: u32) -> Result<(), LabError> {
        switch.add_cable(name, address, mtu)?;
        switch::prepare_ipv6(name)?;
        let found = self
            .interfaces()
            .into_iter()
            .find(|interface| interface.name == *name);
        let index = found.ok_or_else(|| LabError::NoInterface(name.into()))?.index;
        link::set_up(index).map_err(refused(format!("bring {name} up")))
    }

    fn add_inside(&mut self, name: &str, address: [u8; 6]) -> Result<(), LabError> {
        self.add_dummy(name, address)?;
        switch::prepare_ipv6(name)
    }

    fn module_inode(&mut self, name: &str) -> Option<u64> {
        inode(&Path::new("/sys/module").join(name))
    }

    fn load_disk_modules(&mut self) -> Result<(), LabError> {
        disk::WANTED.into_iter().try_for_each(load)
    }

    fn unload(&mut self, name: &'static str) -> Result<(), LabError> {
        if name == "nvme_rdma" && disk::has_others() {
            return Err(cannot("unload it", &"there is another NVMe controller over RDMA"));
        }
        module::rmmod(name)
    }

    fn make_disk(&mut self, disk: &MadeDisk, device: &str) -> Result<PathBuf, LabError> {
        let gid = Path::new("/sys/class/infiniband")
            .join(device)
            .join("ports/1/gids/0");
        let address = fs::read_to_string(gid).map_err(|_| LabError::NotReady(device.into()))?;
        disk::make(disk, &disk.netdev, address.trim())
    }

    fn remove_disk(&mut self, disk: &MadeDisk) -> Result<bool, LabError> {
        disk::remove(disk)
    }

    fn await_device(&mut self, name: &str) -> Result<(), LabError> {
        switch::await_device(name)
    }

    fn disturb(&mut self, interface: &Interface, wire: Wire) -> Result<(), LabError> {
        link::disturb(interface.index, wire).map_err(refused(format!(
            "disturb the packets of {} (tc-netem(8), module sch_netem)",
            interface.name
        )))
    }

    fn remove_interface(&mut self, interface: &Interface) -> Result<(), LabError> {
        link::remove(interface.index).map_err(refused(format!("remove interface {}", interface.name)))
    }
}

fn kernel() -> String {
    Root::default().kernel_release().unwrap_or_default()
}

/// Loads a module where that is missing.
fn load(module: &'static str) -> Result<(), LabError> {
    let root = Path::new("/");
    match module::presence(root, &kernel(), module) {
        Presence::Loaded => Ok(()),
        Presence::Loadable => module::modprobe(module, &[]),
        Presence::Absent => Err(module::no_module(root, &kernel(), module)),
        // Without a list of modules, in a container or under a kernel from elsewhere, modprobe decides.
        Presence::Unknown => {
            module::modprobe(module, &[]).map_err(|_| module::no_module(root, &kernel(), module))
        }
    }
}

fn inode(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|meta| meta.ino())
}

/// `02:1a:...`, of six bytes.
fn hardware_address(text: &str) -> Option<[u8; 6]> {
    let bytes: Option<Vec<u8>> = text
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).ok())
        .collect();
    bytes?.try_into().ok()
}

/// The processes that have objects of a device, and how many contexts the kernel counts and does not list. A
/// list that may lack a holder is an error: whoever is told that there is none removes the device, and waits
/// in the kernel for the holder that was missed.
fn owners<T: Transport>(
    nldev: &mut Nldev<T>,
    root: &Root,
    index: u32,
) -> Result<(BTreeSet<u32>, u64), NetlinkError> {
    let mut found = Vec::new();
    // A process that only opened the device has a context and nothing else. 5.10 counts contexts and does not
    // list them.
    let unlisted = match nldev.ctxs(index) {
        Ok(ctxs) => {
            found.extend(ctxs.whole()?.into_iter().map(|ctx| ctx.owner));
            0
        }
        Err(NetlinkError::Kernel { .. }) => nldev.summary(index)?.get("ctx").unwrap_or(0),
        Err(error) => return Err(error),
    };
    found.extend(nldev.pds(index)?.whole()?.into_iter().map(|pd| pd.owner));
    found.extend(nldev.qps(index)?.whole()?.into_iter().map(|qp| qp.owner));
    found.extend(nldev.cm_ids(index)?.whole()?.into_iter().map(|id| id.owner));
    let tids: BTreeSet<u32> = found.iter().flatten().filter_map(Owner::pid).gather();
    let pids = tids.into_iter().map(|tid| process_of(root, tid));
    Ok((pids.collect(), unlisted))
}

fn describe(pid: u32) -> String {
    match fs::read(format!("/proc/{pid}/comm")) {
        Ok(comm) => format!("{pid} ({})", Name::from(comm.trim_ascii_end())),
        Err(_) => pid.to_string(),
    }
}

/// The interface of the default route in /proc/net/route: destination and mask 0, lowest metric.
fn default_route(table: &str) -> Option<String> {
    let routes = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [name, destination, _, _, _, _, metric, mask, ..] = fields[..] else {
            return None;
        };
        (destination == "00000000" && mask == "00000000").then_some((metric.parse::<u32>().ok()?, name))
    });
    routes
        .min_by_key(|(metric, _)| *metric)
        .map(|(_, name)| name.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmatop_sources::netlink::attr::{
        DEV_INDEX, RES_CM_ID, RES_CTX, RES_CTX_ENTRY, RES_CTXN, RES_LQPN, RES_PD, RES_PID, RES_QP,
        RES_QP_ENTRY, RES_SUMMARY, RES_SUMMARY_ENTRY, RES_SUMMARY_ENTRY_CURR, RES_SUMMARY_ENTRY_NAME, cmd,
        message_type,
    };
    use rdmatop_sources::netlink::transport::{Datagram, Progress, Sink};
    use rdmatop_sources::netlink::wire::{DONE, ERROR, F_DUMP_INTR, F_MULTI, MessageWriter, Messages};

    const PORTID: u32 = 77;

    /// A kernel with a device on which a thread has a context and a QP.
    struct FakeKernel {
        tid: u32,
        lists_contexts: bool,
        /// The command whose dumps change while they are sent, and how many of them do.
        changing: (u16, usize),
    }

    impl Transport for FakeKernel {
        fn exchange(&mut self, request: &[u8], sink: &mut Sink<'_>) -> Result<(), NetlinkError> {
            let request = Messages::new(request).next().unwrap().unwrap();
            let command = request.kind - message_type(0);
            let mut flags = F_MULTI;
            if command == self.changing.0 && self.changing.1 > 0 {
                self.changing.1 -= 1;
                flags |= F_DUMP_INTR;
            }
            let message = |kind, flags| MessageWriter::new(kind, flags, request.seq).portid(PORTID);
            let tid = self.tid;
            let of_device = message(request.kind, flags).u32(DEV_INDEX, 3);
            let answer = match command {
                cmd::RES_CTX_GET if !self.lists_contexts => {
                    let refused = message(ERROR, 0).raw(&(-libc::EINVAL).to_ne_bytes());
                    refused.raw(&[0; 16])
                }
                cmd::RES_CTX_GET => of_device.nest(RES_CTX, |table| {
                    table.nest(RES_CTX_ENTRY, |entry| entry.u32(RES_CTXN, 1).u32(RES_PID, tid))
                }),
                cmd::RES_GET => of_device.nest(RES_SUMMARY, |table| {
                    table.nest(RES_SUMMARY_ENTRY, |entry| {
                        entry
                            .string(RES_SUMMARY_ENTRY_NAME, b"ctx")
                            .u64(RES_SUMMARY_ENTRY_CURR, 2)
                    })
                }),
                cmd::RES_PD_GET => of_device.nest(RES_PD, |table| table),
                cmd::RES_CM_ID_GET => of_device.nest(RES_CM_ID, |table| table),
                cmd::RES_QP_GET => of_device.nest(RES_QP, |table| {
                    table.nest(RES_QP_ENTRY, |entry| entry.u32(RES_LQPN, 17).u32(RES_PID, tid))
                }),
                other => panic!("command {other}"),
            };
            for bytes in [answer.finish(), message(DONE, F_MULTI).raw(&[0; 4]).finish()] {
                let (portid, bytes) = (PORTID, &bytes);
                if sink(Datagram { portid, bytes })? == Progress::Complete {
                    return Ok(());
                }
            }
            Err(NetlinkError::EndedEarly)
        }
    }

    /// Holders of a device by a kernel whose dumps of this command change so often.
    fn held(lists_contexts: bool, changing: (u16, usize)) -> Result<(BTreeSet<u32>, u64), NetlinkError> {
        let machine = tempfile::tempdir().unwrap();
        let dir = machine.path().join("proc/10");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("status"), "Tgid:\t9\nPid:\t10\n").unwrap();
        let mut nldev = Nldev::new(FakeKernel {
            tid: 10,
            lists_contexts,
            changing,
        });
        owners(&mut nldev, &Root::under(machine.path()), 3)
    }

    #[test]
    fn a_holder_is_the_process_of_the_thread_that_opened_the_device() {
        assert_eq!(held(true, (0, 0)), Ok((BTreeSet::from([9]), 0)));
        assert_eq!(held(false, (0, 0)), Ok((BTreeSet::from([9]), 2)));
    }

    #[test]
    fn a_list_of_holders_that_changes_is_asked_for_again_and_not_taken_whole() {
        for command in [
            cmd::RES_CTX_GET,
            cmd::RES_PD_GET,
            cmd::RES_QP_GET,
            cmd::RES_CM_ID_GET,
        ] {
            assert_eq!(
                held(true, (command, 1)),
                Ok((BTreeSet::from([9]), 0)),
                "{command}"
            );
            let always = held(true, (command, usize::MAX));
            assert_eq!(always, Err(NetlinkError::Interrupted), "{command}");
        }
    }

    #[test]
    fn a_hardware_address_has_six_bytes() {
        assert_eq!(
            hardware_address("02:00:5e:10:00:ff"),
            Some([2, 0, 0x5e, 0x10, 0, 0xff])
        );
        for other in ["", "00:00:00:00", "80:00:02:08:fe:80:00:00", "zz:00:5e:10:00:ff"] {
            assert_eq!(hardware_address(other), None, "{other}");
        }
    }

    const HEADER: &str =
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n";

    #[test]
    fn the_default_route_of_the_lowest_metric_wins() {
        let table = format!(
            "{HEADER}ens5\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
             wlan0\t00000000\t0100000A\t0003\t0\t0\t600\t00000000\t0\t0\t0\n\
             ens5\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
        );
        assert_eq!(default_route(&table).as_deref(), Some("ens5"));
    }

    #[test]
    fn no_default_route_is_none() {
        assert_eq!(default_route(HEADER), None);
        assert_eq!(default_route("junk\njunk 00000000\n"), None);
    }
}
