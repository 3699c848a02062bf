//! `lab down`.
use std::io::Write;
use std::process::ExitCode;

use super::host::{Host, Present};
use super::state::Store;
use super::{DownArgs, LabError};

/// Removes what `up` made, last first. What is gone already is said and forgotten; what only has the name of
/// ours is left alone.
///
/// `RDMA_NLDEV_CMD_DELLINK` blocks, deaf to signals, while a process has the device open, so holders are looked
/// for first; one that opens it in between still makes this wait.
pub(super) fn down(
    host: &mut dyn Host,
    store: &Store,
    args: &DownArgs,
    out: &mut dyn Write,
) -> Result<ExitCode, LabError> {
    let mut made = store.load()?;
    if made.devices.is_empty() && made.interfaces.is_empty() {
        writeln!(
            out,
            "nothing to remove: `lab up` made nothing, or it is removed already"
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    // All of them before the first is removed: a refusal leaves everything as it was.
    for device in &made.devices {
        let ours = |present: &Present| present.name == *device.name && present.index == device.index;
        if !host.devices()?.iter().any(ours) {
            continue;
        }
        let holders = host.holders(device.index)?.join(", ");
        if holders.is_empty() {
            continue;
        }
        if !args.force {
            return Err(LabError::Held {
                device: device.name.clone(),
                holders,
            });
        }
        writeln!(
            out,
            "{} is held open by {holders}: waiting until they close it",
            device.name
        )?;
    }
    while let Some(device) = made.devices.last() {
        let present = host.devices()?;
        match present.iter().find(|present| present.name == *device.name) {
            Some(present) if present.index == device.index => {
                host.remove_device(&device.name, device.index)?;
                writeln!(out, "removed {}", device.name)?;
            }
            Some(_) => writeln!(
                out,
                "{} is another device of that name now: left as it is",
                device.name
            )?,
            None => writeln!(out, "{} is gone already", device.name)?,
        }
        made.devices.pop();
        store.save(&made)?;
    }
    while let Some(interface) = made.interfaces.last() {
        if host.interface_index(&interface.name) == Some(interface.index) {
            host.remove_interface(&interface.name, interface.index)?;
            writeln!(out, "removed {}", interface.name)?;
        } else {
            writeln!(out, "{} is gone already", interface.name)?;
        }
        made.interfaces.pop();
        store.save(&made)?;
    }
    Ok(ExitCode::SUCCESS)
}
