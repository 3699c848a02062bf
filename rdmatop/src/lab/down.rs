//! `lab down`.
use std::process::ExitCode;

use super::host::{Host, NetnsMode};
use super::ours;
use super::say::Say;
use super::state::{Made, MadeModule};
use super::store::{Locked, Store};
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
    say: &mut Say<'_>,
) -> Result<ExitCode, LabError> {
    let locked = store.lock()?;
    let boot = host.boot();
    let Some(mut made) = locked.load()?.filter(|made| !made.is_nothing()) else {
        say.line(format_args!(
            "nothing to remove: `lab up` made nothing, or it is removed already"
        ));
        return Ok(ExitCode::SUCCESS);
    };
    if made.boot != boot {
        locked.save(&Made::new(&boot))?;
        say.line(format_args!(
            "nothing to remove: this machine was booted since `lab up`, and what that made is gone"
        ));
        return Ok(ExitCode::SUCCESS);
    }
    // All of them before the first is removed: a refusal leaves everything as it was.
    let present = host.devices()?;
    if let Some(leaving) = ours::leaving(host, &made, &present).into_iter().next() {
        // It is not gone: its interface and its driver are needed until it is, and what is not in the list any more nobody
        // removes.
        return Err(LabError::Leaving {
            device: leaving.name.to_string(),
            held: leaving.held,
        });
    }
    for device in &made.devices {
        let Some(now) = ours::device(device, &present) else {
            continue;
        };
        let holders = host.holders(now.index)?.join(", ");
        if holders.is_empty() {
            continue;
        }
        if !args.force {
            return Err(LabError::Held {
                device: now.name.to_string(),
                holders,
            });
        }
        say.line(format_args!(
            "{} is held open by {holders}: waiting until they close it",
            now.name
        ));
    }
    devices(host, &locked, &mut made, say)?;
    interfaces(host, &locked, &mut made, say)?;
    if let Some(ours) = made.module.take() {
        module(host, &ours, say)?;
        locked.save(&made)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What a removed thing is called, now and when it was made.
fn removed(say: &mut Say<'_>, now: &dyn ToString, then: &str) {
    let now = now.to_string();
    if now == then {
        say.line(format_args!("removed {now}"));
    } else {
        say.line(format_args!("removed {now}, which was made as {then}"));
    }
}

fn devices(
    host: &mut dyn Host,
    locked: &Locked<'_>,
    made: &mut Made,
    say: &mut Say<'_>,
) -> Result<(), LabError> {
    while let Some(device) = made.devices.last() {
        let present = host.devices()?;
        match ours::device(device, &present) {
            Some(now) => {
                host.remove_device(now)?;
                removed(say, &now.name, &device.name);
            }
            // It was never made.
            None if device.found.is_none() => {}
            None if present.iter().any(|now| now.name == *device.name) => say.line(format_args!(
                "{} is another device of that name now: left as it is",
                device.name
            )),
            None => say.line(format_args!("{} is gone already", device.name)),
        }
        made.devices.pop();
        locked.save(made)?;
    }
    Ok(())
}

fn interfaces(
    host: &mut dyn Host,
    locked: &Locked<'_>,
    made: &mut Made,
    say: &mut Say<'_>,
) -> Result<(), LabError> {
    while let Some(interface) = made.interfaces.last() {
        let present = host.interfaces();
        match ours::interface(interface, &present) {
            Some(now) => {
                host.remove_interface(now)?;
                removed(say, &now.name, &interface.name);
            }
            None if interface.found.is_none() => {}
            None if present.iter().any(|now| now.name == *interface.name) => say.line(format_args!(
                "{} is another interface of that name now: left as it is",
                interface.name
            )),
            None => say.line(format_args!("{} is gone already", interface.name)),
        }
        made.interfaces.pop();
        locked.save(made)?;
    }
    Ok(())
}

/// Unloads rdma_rxe unless something else may use it: without it all rxe devices are gone, whoever made them.
fn module(host: &mut dyn Host, ours: &MadeModule, say: &mut Say<'_>) -> Result<(), LabError> {
    let loaded = host.rxe_inode();
    if loaded.is_none() || ours.inode.is_some_and(|inode| loaded != Some(inode)) {
        // Somebody unloaded it, and perhaps loaded it again.
        return Ok(());
    }
    let others: Vec<String> = host
        .devices()?
        .iter()
        .filter(|device| device.software)
        .map(|device| device.name.to_string())
        .collect();
    let why = if !others.is_empty() {
        format!("{} may need it", others.join(", "))
    } else if host.netns_mode() != Some(NetnsMode::Shared) {
        "another network namespace may have a device that needs it".into()
    } else {
        match host.unload_rxe() {
            Ok(()) => {
                say.line(format_args!("unloaded rdma_rxe"));
                return Ok(());
            }
            Err(error) => error.to_string(),
        }
    };
    say.line(format_args!("rdma_rxe stays loaded: {why}"));
    Ok(())
}
