//! Devices and GIDs that settings name.

use super::{Job, jobs, value::List};
use crate::{
    facts::{Facts, Reading},
    line::{Lines, WITH_ROOT},
    words::{group, names, port_name, setting},
};
use rdmatop_base::order::Ordered as _;
use rdmatop_base::step::step;
use rdmatop_model::input::PortGid;

/// Variables that list devices. UCX's may also list network interfaces, and NCCL's entries are prefixes of
/// names.
const LISTS: [(&str, bool); 3] = [
    ("NCCL_IB_HCA", false),
    ("UCX_NET_DEVICES", true),
    ("NVSHMEM_HCA_LIST", false),
];

const GIDS: [(&str, &str); 3] = [
    ("NCCL_IB_GID_INDEX", "NCCL_IB_HCA"),
    ("UCX_IB_GID_INDEX", "UCX_NET_DEVICES"),
    ("NVSHMEM_IB_GID_INDEX", "NVSHMEM_HCA_LIST"),
];

/// The devices among which a job chooses: those that its processes find in /sys, which in mode exclusive of
/// `rdma system` are those of their network namespace (`ib_class`, drivers/infiniband/core/device.c), if they
/// have a file in its /dev. Also whether the machine's stand for them, because they are not known.
fn found<'a>(facts: &'a Facts, job: &Job<'a>) -> (Vec<&'a str>, bool) {
    let devices = facts.devices.known().into_iter().flatten();
    let own: Vec<&str> = devices.map(|device| device.name.as_str()).collect();
    let Some(sees) = job.first.sees.known() else {
        return (own, true);
    };
    let mut all: Vec<&str> = sees.iter().map(|(name, _)| name.as_str()).collect();
    // libibverbs lists no device without a file.
    all.retain(|name| !job.first.lacks_file(facts, name));
    // In the order of the machine's.
    all.order_by_key(|name| {
        let place = own.iter().position(|known| known == name);
        (place.unwrap_or(usize::MAX), *name)
    });
    (all, false)
}

pub(crate) fn devices(facts: &Facts, out: &mut Lines) {
    if facts.devices.known().is_none() {
        return;
    }
    for job in jobs(facts) {
        let (known, blind) = found(facts, &job);
        for (name, exact) in LISTS {
            let Some(value) = job.get(name).filter(|value| !value.eq_ignore_ascii_case("all")) else {
                continue;
            };
            let list = List::parse(value, exact);
            let interfaces = job.first.interfaces.known().filter(|_| name == "UCX_NET_DEVICES");
            let is_interface = |entry: &str| {
                interfaces.is_some_and(|interfaces| interfaces.iter().any(|interface| interface == entry))
            };
            let missing: Vec<&str> = list
                .entries
                .iter()
                .map(|(entry, _)| *entry)
                .filter(|entry| !known.iter().any(|device| list.means(entry, device)) && !is_interface(entry))
                .collect();
            let used: Vec<&str> = known
                .iter()
                .copied()
                .filter(|device| list.takes(device))
                .collect();
            let subject = &job.subject;
            let devices = if known.is_empty() {
                "no RDMA device".to_owned()
            } else {
                names(&known)
            };
            let (who, finds) = if blind {
                ("this machine", "has")
            } else {
                ("the job", "finds")
            };
            let remedy = step!(
                "start the job with devices in {} that {} {}, or without {}",
                name,
                who,
                finds,
                name
            );
            let takes_none = used.is_empty() && !list.entries.iter().any(|(entry, _)| is_interface(entry));
            let lacks_some = !missing.is_empty() && !list.not;
            if blind && facts.host.exclusive && (takes_none || lacks_some) {
                let (why, remedy) = if job.first.sees == Reading::Absent {
                    (
                        "devices belong to network namespaces here (mode exclusive), and it has no /sys/class/infiniband",
                        "",
                    )
                } else {
                    (
                        "devices belong to network namespaces here (mode exclusive), and its /sys was not read",
                        WITH_ROOT,
                    )
                };
                let what = format!("whether {subject} has the devices of {}", setting(name, value));
                out.unknown_until(what, why, remedy);
            } else if takes_none {
                out.fail(
                    subject,
                    format!(
                        "{subject}: {} takes no RDMA device that {who} {finds}",
                        setting(name, value)
                    ),
                    format!("The job uses TCP, or ends at its start; {who} {finds} {devices}."),
                    remedy,
                );
            } else if lacks_some {
                out.warn(
                    subject,
                    format!("{subject}: {name} names {}, which {who} lacks", names(&missing)),
                    format!("The job uses fewer NICs than it was meant to; {who} {finds} {devices}."),
                    remedy,
                );
            } else if !used.is_empty() {
                out.pass("", format!("{} takes {}", setting(name, value), names(&used)));
            }
        }
    }
}

pub(crate) fn gid(facts: &Facts, out: &mut Lines) {
    for job in jobs(facts) {
        for (name, devices) in GIDS {
            let Some(index) = job.get(name).and_then(|value| value.parse::<u32>().ok()) else {
                continue;
            };
            let list = List::parse(job.get(devices).unwrap_or_default(), devices == "UCX_NET_DEVICES");
            let (known, _) = found(facts, &job);
            let mut bad: Vec<(&str, Vec<String>)> = Vec::new();
            let mut fine = Vec::new();
            for (device, port) in facts.ports() {
                let Reading::Known(gids) = &port.gids else {
                    continue;
                };
                let takes = list.takes_port(&device.name, port.number);
                if !port.roce || !takes || !known.contains(&device.name.as_str()) {
                    continue;
                }
                let active = port.active();
                let port = port_name(device, port);
                match wrong(gids.iter().find(|gid| u32::from(gid.index) == index)) {
                    None => fine.push(port),
                    // NCCL (`ncclIbInit`) and UCX use no port that is not ACTIVE.
                    Some(_) if !active => {}
                    Some(why) => group(&mut bad, why, port),
                }
            }
            let subject = &job.subject;
            for (why, ports) in &bad {
                let text = format!("{subject}: {name}={index} is {why} of {}", names(ports));
                let remedy = if name == "NCCL_IB_GID_INDEX" {
                    "start the job without NCCL_IB_GID_INDEX: from 2.21 on NCCL finds the index; for older ones rdmatop doctor shows it (line of GIDs)"
                        .into()
                } else {
                    step!(
                        "rdmatop doctor shows the right index (line of GIDs); or start the job without {}",
                        name
                    )
                };
                if *why == NO_GID {
                    out.fail(subject, text, "Connections fail, or the job uses TCP.", remedy);
                } else {
                    out.warn(
                        subject,
                        text,
                        "Packets of that kind do not pass routers, and peers may not answer.",
                        remedy,
                    );
                }
            }
            if bad.is_empty() && !fine.is_empty() {
                out.pass(
                    "",
                    format!("{name}={index} is a RoCE v2 address (GID) of {}", names(&fine)),
                );
            }
        }
    }
}

const NO_GID: &str = "no address (GID)";

fn wrong(gid: Option<&PortGid>) -> Option<&'static str> {
    match gid {
        None => Some(NO_GID),
        Some(gid) if !gid.is_v2() => Some("an address (GID) of RoCE v1"),
        Some(gid) if gid.gid.is_link_local() => Some("a link-local address (GID)"),
        Some(_) => None,
    }
}
