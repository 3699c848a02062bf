//! `lab down`.
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use super::disk;
use super::host::{Host, Leaving, NetnsMode, Present};
use super::ours;
use super::say::Printer;
use super::state::{Made, MadeModule};
use super::store::{Locked, Store};
use super::{DownArgs, LabError};
use rdmatop_base::text;

/// How often it looks whether a removal is over, and the time between two looks: in all some 5 s.
const PATIENCE: u32 = 20;
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// Removes what `up` made, and what a killed `lab run` left, last first. It says what is gone already, and
/// forgets it; a thing that only has the name of ours is left alone.
///
/// `RDMA_NLDEV_CMD_DELLINK` blocks, deaf to signals, while a process has the device open, so holders are
/// looked for first; one that opens it in between still makes this wait.
pub(super) fn down(
    host: &mut dyn Host,
    store: &Store,
    args: &DownArgs,
    say: &mut Printer<'_>,
) -> Result<ExitCode, LabError> {
    let locked = store.lock()?;
    let boot = host.boot();
    let Some(mut made) = locked.load()?.filter(|made| !made.is_nothing()) else {
        say.line(format_args!(
            "nothing to remove: `lab up` made nothing, or it is removed already"
        ));
        return Ok(ExitCode::SUCCESS);
    };
    if !made.may_be_of(&boot) {
        locked.save(&Made::new(&boot))?;
        say.line(format_args!(
            "nothing to remove: this machine was booted since `lab up`, and what that made is gone"
        ));
        return Ok(ExitCode::SUCCESS);
    }
    if boot.is_empty() || made.boot.is_empty() {
        say.line(format_args!(
            "whether this machine was booted since `lab up` is not known: only what still is as that made it is removed"
        ));
    }
    remove(host, &locked, &mut made, Which::All { force: args.force }, say)?;
    if let Some(ours) = made.module.take() {
        module(host, &ours, say)?;
        locked.save(&made)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What is to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// Everything; with force what is held open too.
    All { force: bool },
    /// What `lab run` made.
    Run,
}

impl Which {
    fn has(self, run: bool) -> bool {
        run || self != Self::Run
    }
}

/// Removes devices and interfaces of the list, last first, and takes them off it.
pub(super) fn remove(
    host: &mut dyn Host,
    locked: &Locked<'_>,
    made: &mut Made,
    which: Which,
    say: &mut Printer<'_>,
) -> Result<(), LabError> {
    // All devices are checked before the first is removed: a refusal leaves everything as it was.
    let mut present = host.devices()?;
    let mut leaving = leaving_of(host, made, which, &present);
    // A `lab run` that was killed leaves devices: its programs end, and the kernel removes the devices,
    // which takes a moment.
    for _ in 0..PATIENCE {
        let is_of_run = made.devices.iter().any(|device| device.run);
        if !is_of_run || leaving.is_empty() && !is_run_held(host, made, &present)? {
            break;
        }
        thread::sleep(BETWEEN_LOOKS);
        present = host.devices()?;
        leaving = leaving_of(host, made, which, &present);
    }
    if let Some(leaving) = leaving.into_iter().next() {
        // The device is not gone, and needs its interface and its driver until it is. What is dropped from
        // the list now would never be removed.
        return Err(LabError::Leaving(leaving.name.to_string(), leaving.held));
    }
    for device in made.devices.iter().filter(|device| which.has(device.run)) {
        let Some(now) = ours::device(device, &present) else {
            continue;
        };
        let holders = text::names(&host.holders(now.index)?);
        if holders.is_empty() {
            continue;
        }
        if which != (Which::All { force: true }) {
            return Err(LabError::Held(now.name.to_string(), holders));
        }
        say.line(format_args!(
            "{} is held open by {holders}: waiting until they close it",
            now.name
        ));
    }
    disk(host, locked, made, say)?;
    devices(host, locked, made, which, say)?;
    interfaces(host, locked, made, which, say)
}

/// Removes the disk, and the modules that were loaded for it and that nothing else has use of.
fn disk(
    host: &mut dyn Host,
    locked: &Locked<'_>,
    made: &mut Made,
    say: &mut Printer<'_>,
) -> Result<(), LabError> {
    let Some(ours) = made.disk.take() else {
        return Ok(());
    };
    // The file keeps it until all is gone, and `save` is called.
    if host.remove_disk(&ours)? {
        say.line(format_args!("removed the NVMe disk {}", ours.name));
    }
    for name in disk::MODULES.into_iter().rev() {
        let Some(module) = ours.modules.iter().find(|module| module.name == name) else {
            continue;
        };
        let loaded = host.module_inode(name);
        if loaded.is_none() || module.inode.is_some_and(|inode| loaded != Some(inode)) {
            continue;
        }
        match host.unload_disk_module(name) {
            Ok(()) => say.line(format_args!("unloaded {name}")),
            Err(error) => say.line(format_args!("{name} stays loaded: {error}")),
        }
    }
    locked.save(made)
}

fn is_run_held(host: &mut dyn Host, made: &Made, present: &[Present]) -> Result<bool, LabError> {
    for device in made.devices.iter().filter(|device| device.run) {
        if let Some(now) = ours::device(device, present)
            && !host.holders(now.index)?.is_empty()
        {
            return Ok(true);
        }
    }
    Ok(false)
}

fn leaving_of(host: &mut dyn Host, made: &Made, which: Which, present: &[Present]) -> Vec<Leaving> {
    let mut leaving = ours::leaving(host, made, present);
    let asked = |going: &Leaving| {
        let mut ours = made.devices.iter().filter(|device| which.has(device.run));
        ours.any(|device| going.name == *device.name)
    };
    leaving.retain(asked);
    leaving
}

/// Says what became of something that was made. `now` is what it was called when it was removed; `found`: it
/// had been made; `namesake`: something else has its name.
fn gone(say: &mut Printer<'_>, kind: &str, then: &str, now: Option<String>, found: bool, namesake: bool) {
    match now {
        Some(now) if now == then => say.line(format_args!("removed {now}")),
        Some(now) => say.line(format_args!("removed {now}, which was made as {then}")),
        None if !found => {}
        None if namesake => say.line(format_args!(
            "{then} is another {kind} of that name now: left as it is"
        )),
        None => say.line(format_args!("{then} is gone already")),
    }
}

fn devices(
    host: &mut dyn Host,
    locked: &Locked<'_>,
    made: &mut Made,
    which: Which,
    say: &mut Printer<'_>,
) -> Result<(), LabError> {
    while let Some(at) = made.devices.iter().rposition(|device| which.has(device.run)) {
        let device = &made.devices[at];
        let present = host.devices()?;
        let now = ours::device(device, &present);
        if let Some(now) = now
            && let Err(error) = host.remove_device(now)
            && ours::device(device, &host.devices()?).is_some()
        {
            return Err(error);
        }
        let now = now.map(|now| now.name.to_string());
        let namesake = present.iter().any(|now| now.name == *device.name);
        gone(say, "device", &device.name, now, device.found.is_some(), namesake);
        made.devices.remove(at);
        locked.save(made)?;
    }
    Ok(())
}

fn interfaces(
    host: &mut dyn Host,
    locked: &Locked<'_>,
    made: &mut Made,
    which: Which,
    say: &mut Printer<'_>,
) -> Result<(), LabError> {
    while let Some(at) = made.interfaces.iter().rposition(|made| which.has(made.run)) {
        let interface = &made.interfaces[at];
        let present = host.interfaces();
        let now = ours::interface(interface, &present);
        if let Some(now) = now
            && let Err(error) = host.remove_interface(now)
            && ours::interface(interface, &host.interfaces()).is_some()
        {
            return Err(error);
        }
        let now = now.map(|now| now.name.to_string());
        let namesake = present.iter().any(|now| now.name == *interface.name);
        let found = interface.found.is_some();
        gone(say, "interface", &interface.name, now, found, namesake);
        made.interfaces.remove(at);
        locked.save(made)?;
    }
    Ok(())
}

/// Unloads rdma_rxe unless something else may use it: without it all rxe devices are gone, whoever made them.
pub(super) fn module(host: &mut dyn Host, ours: &MadeModule, say: &mut Printer<'_>) -> Result<(), LabError> {
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
        format!("{} may need it", text::names(&others))
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
