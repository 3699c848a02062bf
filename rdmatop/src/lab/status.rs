//! `lab status`.
use std::io::Write;
use std::process::ExitCode;

use super::LabError;
use super::host::Host;
use super::state::Store;

/// Tells what there is, what of it is ours, and who holds it.
pub(super) fn status(host: &mut dyn Host, store: &Store, out: &mut dyn Write) -> Result<ExitCode, LabError> {
    let made = store.load()?;
    let present = host.devices()?;
    let leaving = host.leaving(&present);
    if leaving.is_empty() && present.is_empty() && made.devices.is_empty() {
        writeln!(out, "no RDMA devices; `sudo rdmatop lab up` makes one")?;
    }
    for device in &present {
        let ours = made
            .devices
            .iter()
            .any(|ours| device.name == *ours.name && device.index == ours.index);
        let whose = if ours { "made by rdmatop" } else { "not ours" };
        let netdevs = device
            .netdevs
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", ");
        let on = if netdevs.is_empty() {
            "no interface in sight".into()
        } else {
            format!("on {netdevs}")
        };
        let used = match host.holders(device.index) {
            Ok(holders) if holders.is_empty() => "not in use".into(),
            Ok(holders) => format!("used by {}", holders.join(", ")),
            Err(error) => error.to_string(),
        };
        writeln!(out, "{}: {on}, {whose}, {used}", device.name)?;
    }
    for device in &leaving {
        let ours = made.devices.iter().any(|ours| device.name == *ours.name);
        let whose = if ours { "made by rdmatop" } else { "not ours" };
        writeln!(out, "{}: being removed, {whose}, {}", device.name, device.held)?;
    }
    for gone in made.devices.iter().filter(|ours| {
        !leaving.iter().any(|device| device.name == *ours.name)
            && !present
                .iter()
                .any(|device| device.name == *ours.name && device.index == ours.index)
    }) {
        writeln!(out, "{}: made by rdmatop, gone since", gone.name)?;
    }
    for interface in &made.interfaces {
        let there = host.interface_index(&interface.name) == Some(interface.index);
        let state = if there { "" } else { ", gone since" };
        writeln!(out, "{}: dummy interface made by rdmatop{state}", interface.name)?;
    }
    Ok(ExitCode::SUCCESS)
}
