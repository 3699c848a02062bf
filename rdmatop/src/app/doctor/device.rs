//! One RDMA device with its ports. Many of the files make the kernel ask the driver, which may hang.

use std::{collections::BTreeSet, ffi::OsStr, os::unix::ffi::OsStrExt, path::Path};

use super::{pci, read};
use rdmatop_base::ib::{PhysState, PortState};
use rdmatop_base::text;
use rdmatop_doctor::facts::{Device, Lossless, Member, Netdev, Port, Reading};
use rdmatop_model::input::{self, PortGid};
use rdmatop_sources::{
    dcb::{self, Dcb},
    netlink::{client::Nldev, name::Name},
    root::{Root, is_component},
    sysfs::{
        DeviceFacts, GidLimits, PortFacts, device_dir, netdev_bond, netdev_pfc, read_device, read_gids,
        verbs_files,
    },
};

/// How far a GID table is read: some have thousands of places.
const GIDS: GidLimits = GidLimits {
    gap: 16,
    entries: 4096,
};
/// Interrupts of a device that are read at most.
const IRQS: usize = 1024;
const IFF_UP: u64 = 1;

/// Reads a device; `None` when it is gone.
pub(super) fn read(root: &Root, name: &OsStr) -> Option<Device> {
    let facts = read_device(root, name)?;
    let dir = root.sys("class/infiniband").join(name);
    // "1: CA"; 4 is iWARP, whose GIDs are MAC addresses, 7 EFA's.
    let roce = root
        .line(&dir.join("node_type"))
        .is_none_or(|kind| kind.starts_with('1'));
    let here = root.is_live().then(|| ports_here(name)).flatten();
    Some(Device {
        firmware: read::line(&dir.join("fw_ver")),
        board: read::line(&dir.join("board_id")),
        pci: facts.pci.as_ref().map(|facts| pci::of(root, facts)),
        p2p: read::line(&dir.join("device/p2p")).known().is_some(),
        irqs: irqs(root, &dir.join("device/msi_irqs")),
        ports: facts
            .ports
            .iter()
            .map(|port| {
                let interface = port.netdev.clone().or_else(|| only_interface(root, &facts, &dir));
                let mut port = read_port(root, &dir, port, roce, interface.as_deref());
                let is_elsewhere = here.as_ref().is_some_and(|here| !here.contains(&port.number));
                if let Some(netdev) = &mut port.netdev
                    && (is_elsewhere || !facts.software && is_namesake(root, &netdev.name))
                {
                    *netdev = Netdev {
                        name: std::mem::take(&mut netdev.name),
                        ..Netdev::default()
                    };
                }
                port
            })
            .collect(),
        name: facts.name,
        driver: facts.driver,
        software: facts.software,
        dangling: facts.dangling,
        late: false,
    })
}

/// A device that did not answer.
pub(super) fn late(name: &OsStr) -> Device {
    Device {
        name: text::sanitize(name.as_bytes()),
        late: true,
        ..Device::default()
    }
}

/// The ports of a device whose interfaces are in this network namespace: netlink names no others. `None`
/// where that is not known.
fn ports_here(name: &OsStr) -> Option<BTreeSet<u32>> {
    let mut nldev = Nldev::open().ok()?;
    let all = nldev.named_summaries().ok()?.items;
    let is_it = |listed: &Name| device_dir(listed.as_bytes()).is_some_and(|dir| dir == name);
    let (_, counts) = all.iter().find(|(listed, _)| is_it(listed))?;
    let ports = nldev.ports(counts.device_index).ok()?.whole().ok()?;
    Some(
        ports
            .into_iter()
            .filter(|port| port.netdev.is_some())
            .map(|port| port.port)
            .collect(),
    )
}

/// Whether an interface has neither hardware nor other interfaces below it, as the `eth0` of a container. Its
/// name stands in the GIDs of a NIC whose own interface of that name is in another network namespace. Whether
/// this process is in a container does not matter: one may have the processes of the machine.
fn is_namesake(root: &Root, name: &str) -> bool {
    let Some(files) = root.list(&root.sys("class/net").join(name)) else {
        return false;
    };
    let is_below = |file: &OsStr| file == "device" || file.as_bytes().starts_with(b"lower_");
    !files.iter().any(|file| is_below(file))
}

/// The interface of a port whose GIDs name none: the one on which the SoftRoCE device was made, or the only
/// one of the card.
fn only_interface(root: &Root, facts: &DeviceFacts, dir: &Path) -> Option<String> {
    if facts.parent_netdev.is_some() {
        return facts.parent_netdev.clone();
    }
    // The interface of an InfiniBand port uses the port; it does not carry it.
    let ethernet = facts
        .ports
        .iter()
        .all(|port| port.link_layer.as_deref() == Some("Ethernet"));
    if facts.ports.len() > 1 || !ethernet {
        return None;
    }
    match root.list(&dir.join("device/net"))?.as_slice() {
        [one] => Some(text::sanitize(one.as_bytes())),
        _ => None,
    }
}

fn read_port(root: &Root, device: &Path, facts: &PortFacts, roce: bool, interface: Option<&str>) -> Port {
    let dir = device.join("ports").join(facts.port.to_string());
    let number = |file: &str| {
        // "4: ACTIVE"
        read::line(&dir.join(file)).parse(|text| text.split(':').next()?.trim().parse().ok())
    };
    let rate = match &facts.rate {
        Some(rate) => rate.bits_per_sec.into(),
        None => read::line(&dir.join("rate")).and_then(|_| Reading::Absent),
    };
    Port {
        number: facts.port,
        state: number("state").parse(|state| Some(PortState(state))),
        physical: number("phys_state").parse(|state| Some(PhysState(state))),
        rate,
        roce: roce && facts.link_layer.as_deref() == Some("Ethernet"),
        link_layer: facts.link_layer.clone(),
        gids: gids(root, &dir),
        netdev: interface.map(|name| netdev(root, name)),
        in_use: false,
        was_used: ["port_xmit_data", "port_rcv_data"].iter().any(|file| {
            root.number(&dir.join("counters").join(file))
                .is_some_and(|count| count > 0)
        }),
    }
}

fn gids(root: &Root, port: &Path) -> Reading<Vec<PortGid>> {
    match read_gids(root, port, GIDS) {
        Some(gids) => Reading::Known(gids),
        None => read::line(&port.join("gids/0")).and_then(|_| Reading::Absent),
    }
}

fn netdev(root: &Root, name: &str) -> Netdev {
    let mut netdev = Netdev {
        name: name.to_owned(),
        ..Netdev::default()
    };
    if !is_component(name.as_ref()) {
        return netdev;
    }
    let dir = root.sys("class/net").join(name);
    let number = |file: &str| root.number(&dir.join(file));
    netdev.mtu = number("mtu").and_then(|mtu| mtu.try_into().ok());
    netdev.up = number("flags").map(|flags| flags & IFF_UP != 0);
    netdev.carrier = number("carrier").map(|carrier| carrier == 1);
    netdev.had_carrier = number("carrier_up_count").is_some_and(|times| times > 0);
    let bond = netdev_bond(root, name);
    netdev.active_backup = bond
        .as_ref()
        .is_some_and(|bond| bond.mode.as_deref() == Some("active-backup"));
    let members = bond.map(|bond| bond.members).unwrap_or_default();
    let member = |member: input::Member| Member {
        lossless: lossless(root, &member.name, &root.sys("class/net").join(&*member.name)),
        up: member.up,
        outside: member.outside,
        name: member.name.to_string(),
    };
    netdev.members = members.into_iter().map(member).collect();
    // The settings of a bond itself say nothing: its members have them.
    if netdev.members.is_empty() {
        netdev.lossless = lossless(root, name, &dir);
    }
    netdev
}

/// Flow control as NVIDIA's driver shows it in sysfs, and as dcb netlink reports it on this machine.
fn lossless(root: &Root, name: &str, dir: &Path) -> Reading<Lossless> {
    let dcb = if root.is_live() {
        ask_dcb(name)
    } else {
        Reading::Absent
    };
    let mut out = Lossless {
        trust: root.line(&dir.join("qos/trust")),
        ..Lossless::default()
    };
    let enable = dir.join("ecn/roce_np/enable");
    if enable.is_dir() {
        let off = (0..8_u8).filter(|priority| root.number(&enable.join(priority.to_string())) == Some(0));
        out.ecn_off = Some(off.collect());
    }
    match dcb {
        Reading::Unreadable(why) | Reading::Unknown(why) => return Reading::Unreadable(why),
        Reading::Known(dcb) => {
            out.pfc = dcb.pfc;
            // The driver of mlx5 trusts DSCP once the table has an entry for it.
            if out.trust.is_none() && dcb.dscp {
                out.trust = Some("dscp".to_owned());
            }
        }
        Reading::Absent => {}
    }
    out.pfc = out.pfc.or_else(|| netdev_pfc(root, name));
    if out == Lossless::default() {
        Reading::Absent
    } else {
        Reading::Known(out)
    }
}

fn ask_dcb(interface: &str) -> Reading<Dcb> {
    match dcb::of(interface) {
        Ok(dcb) => dcb.into(),
        Err(error) if error.errno() == Some(libc::EPERM) => Reading::Unreadable(read::forbidden().to_owned()),
        Err(error) => Reading::Unreadable(format!("dcb netlink: {error}")),
    }
}

/// CPUs of each interrupt: the one set in the hardware, otherwise those that are allowed.
fn irqs(root: &Root, dir: &Path) -> Vec<Vec<u32>> {
    let mut all = Vec::new();
    for name in root.list(dir).unwrap_or_default().into_iter().take(IRQS) {
        if !name.as_bytes().iter().all(u8::is_ascii_digit) {
            continue;
        }
        let of = root.proc("irq").join(&name);
        let list = |file: &str| {
            let cpus = read::cpus(&root.line(&of.join(file))?)?;
            (!cpus.is_empty()).then_some(cpus)
        };
        all.extend(list("effective_affinity_list").or_else(|| list("smp_affinity_list")));
    }
    all
}

/// Verbs files and names of their devices; absent where ib_uverbs is not loaded.
pub(super) fn verbs(root: &Root) -> Reading<Vec<(String, String)>> {
    let files = match verbs_files(root) {
        Ok(files) => files.into_iter(),
        Err(error) => return read::refused(&error),
    };
    // The name as the directory in sysfs has it.
    let device = |device: &[u8]| text::sanitize(device).replace('/', "!");
    Reading::Known(
        files
            .map(|(file, raw)| (text::sanitize(file.as_bytes()), device(&raw)))
            .collect(),
    )
}
