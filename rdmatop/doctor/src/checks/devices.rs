//! Devices: present, complete, usable, alike.

use std::collections::BTreeMap;

use crate::{
    facts::{Device, Facts, Reading, SoftRoce},
    line::Lines,
    words::{count, lists, names},
};
use rdmatop_base::step::step;

const ONLY_TCP: &str = "Programs on this machine can use TCP only.";

pub(crate) fn present(facts: &Facts, out: &mut Lines) {
    if facts.host.without_sys {
        return out.fail(
            "",
            "devices cannot be seen: /sys is not mounted",
            "RDMA libraries read /sys to find devices.",
            "sudo mount -t sysfs sysfs /sys   # until the next boot; or give the container the host's /sys",
        );
    }
    if !facts.excluded.is_empty() {
        out.skip(
            names(&facts.excluded),
            "--exclude-device or the settings say so",
            "",
        );
    }
    if !facts.elsewhere.is_empty() {
        out.unknown_until(
            names(&facts.elsewhere),
            "in another network namespace (mode exclusive), where doctor reads nothing",
            "run rdmatop doctor in the pod or container that has the device: the live view names it beside the device",
        );
    }
    match &facts.devices {
        Reading::Known(all) if all.is_empty() && !facts.excluded.is_empty() => {}
        Reading::Unreadable(why) | Reading::Unknown(why) => out.unknown("", "RDMA devices", why.clone()),
        // A NIC without its driver has a line of its own.
        Reading::Absent if facts.idle_nics.is_empty() => out.fail(
            "",
            "no RDMA: the kernel's RDMA subsystem (ib_core) is not loaded",
            ONLY_TCP,
            "load the driver of your NIC, if it has one for RDMA",
        ),
        Reading::Known(all) if all.is_empty() && facts.host.exclusive => out.fail(
            "",
            "no RDMA device in this network namespace: each belongs to one (mode exclusive)",
            ONLY_TCP,
            "look where the device is: in the pod that has it (sudo nsenter -t PID -n), or with --network=host. Moving a device to another namespace ends all that use it",
        ),
        Reading::Known(all) if all.is_empty() && facts.idle_nics.is_empty() => out.fail(
            "",
            "no RDMA device",
            ONLY_TCP,
            "load the driver of your NIC; in a container: --network=host",
        ),
        Reading::Absent => {}
        Reading::Known(all) => each(all, out),
    }
}

fn each(all: &[Device], out: &mut Lines) {
    for device in all.iter().filter(|device| device.dangling) {
        out.fail(
            &device.name,
            format!("{} is listed, and its files in /sys are missing", device.name),
            "RDMA libraries find the name and cannot use the device.",
            "start the container with -v /sys/devices:/sys/devices:ro",
        );
    }
    for device in all.iter().filter(|device| device.late) {
        out.fail(
            &device.name,
            format!("{} does not answer", device.name),
            "Its driver or firmware hangs; whatever uses it waits.",
            "sudo dmesg | tail -50",
        );
    }
    if all.is_empty() || all.iter().any(|device| device.dangling || device.late) {
        return;
    }
    let mut by_driver: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for device in all {
        let driver = match &device.driver {
            Some(driver) => driver,
            None if device.software => "SoftRoCE",
            None => "no PCI driver",
        };
        by_driver.entry(driver).or_default().push(&device.name);
    }
    let kinds = by_driver.iter();
    let kinds = kinds.map(|(driver, devices)| format!("{} ({driver})", names(devices)));
    out.pass("", format!("{}: {}", count(all.len(), "device"), names(kinds)));
}

pub(crate) fn driver(facts: &Facts, out: &mut Lines) {
    for nic in &facts.idle_nics {
        let driver = match &nic.driver {
            Some(driver) => format!("driver {driver} has made none"),
            None => "it has no driver".to_owned(),
        };
        let text = format!("{} at {} has no RDMA device: {driver}", nic.what, nic.address);
        let remedy = step!(
            "sudo modprobe {}; sudo dmesg | tail -50   # loads the driver until the next boot; what it found is in the log",
            nic.module
        );
        // Beside other devices it may serve TCP alone.
        if facts.answering().next().is_some() {
            out.warn(
                &nic.address,
                text,
                "Jobs use the other devices and not this one.",
                remedy,
            );
        } else {
            out.fail(&nic.address, text, ONLY_TCP, remedy);
        }
    }
}

pub(crate) fn search(facts: &Facts, out: &mut Lines) {
    for (what, why) in &facts.unfinished {
        out.unknown("", *what, *why);
    }
}

pub(crate) fn removal(facts: &Facts, out: &mut Lines) {
    let leaving = out.known(&facts.leaving, "", "devices that are being removed", "");
    for (device, held) in leaving.into_iter().flatten() {
        out.fail(
            device,
            format!("{device} is being removed, and the removal waits: {held}"),
            "The device is gone for new programs until its last user ends.",
            "end the processes that hold it",
        );
    }
}

pub(crate) fn verbs(facts: &Facts, out: &mut Lines) {
    let any: Vec<&Device> = facts.answering().collect();
    if any.is_empty() {
        return;
    }
    if facts.verbs == Reading::Absent {
        out.warn(
            "",
            "programs cannot open the devices: ib_uverbs is not loaded",
            "Only the kernel's own users (storage) can use RDMA now.",
            "sudo modprobe ib_uverbs   # loads it until the next boot",
        );
    }
    let Some(verbs) = out.known(&facts.verbs, "", "verbs devices", "") else {
        return;
    };
    let leaving = facts.leaving.known().map_or(&[][..], Vec::as_slice);
    for device in any {
        let is_there = verbs.iter().any(|(_, name)| *name == device.name);
        if !is_there && leaving.iter().all(|(name, _)| *name != device.name) {
            out.warn(
                &device.name,
                format!("programs cannot open {}: it has no verbs device", device.name),
                "Its driver offers no verbs to programs, or their driver failed to start.",
                "sudo dmesg | grep -i -e infiniband -e uverbs",
            );
        }
    }
}

pub(crate) fn firmware(facts: &Facts, out: &mut Lines) {
    let mut groups: BTreeMap<[&str; 3], BTreeMap<&str, Vec<&str>>> = BTreeMap::new();
    for device in facts.hardware() {
        let Some(firmware) = device.firmware.known() else {
            continue;
        };
        groups
            .entry(device.kind())
            .or_default()
            .entry(firmware)
            .or_default()
            .push(&device.name);
    }
    let mut same = Vec::new();
    for ([driver, board, _], versions) in &groups {
        let devices: usize = versions.values().map(Vec::len).sum();
        match versions.first_key_value() {
            Some((version, _)) if versions.len() == 1 && devices > 1 => same.push(*version),
            Some(_) if versions.len() > 1 => {
                let each: Vec<String> = versions
                    .iter()
                    .map(|(version, devices)| format!("{version} on {}", names(devices)))
                    .collect();
                let what = if board.is_empty() { driver } else { board };
                out.warn(
                    what,
                    format!("different firmware on equal NICs: {}", lists(&each)),
                    "Ranks of one job then run at different speeds or with different faults.",
                    "bring all to the newest of them (Mellanox/NVIDIA: `sudo mlxfwmanager` lists what they have, and changes nothing)",
                );
            }
            _ => {}
        }
    }
    if out.is_empty() && !same.is_empty() {
        out.pass("", format!("the same firmware on equal NICs: {}", names(&same)));
    }
}

pub(crate) fn softroce(facts: &Facts, out: &mut Lines) {
    match &facts.softroce {
        None => {}
        Some(SoftRoce::Ready) => out.pass("", "SoftRoCE, to try RDMA without a NIC: `sudo rdmatop lab up`"),
        Some(SoftRoce::Missing(advice)) => out.warn(
            "",
            "no SoftRoCE either: this kernel has no module rdma_rxe",
            "SoftRoCE is RDMA in software, to try things without a NIC.",
            advice.clone(),
        ),
        Some(SoftRoce::Unknown) => out.unknown_until(
            "SoftRoCE (RDMA in software, to try things)",
            "this kernel's list of modules is not here",
            "run rdmatop doctor on the host itself; there already -> reboot into the installed kernel",
        ),
    }
}
