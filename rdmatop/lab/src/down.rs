//! `lab down`.
use std::{process::ExitCode, thread, time::Duration};

use super::host::{Host, Leaving, NetnsMode, Present, RXE};
use super::{DownArgs, LabError};
use super::{disk, ours, say::Printer, store::Store, work::Work};
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
    let Some(made) = locked.load()?.filter(|made| !made.is_nothing()) else {
        say.line(format_args!(
            "nothing to remove: `lab up` made nothing, or it is removed already"
        ));
        return Ok(ExitCode::SUCCESS);
    };
    let mut work = Work::begin(host, &locked, say)?;
    if !made.may_be_of(&boot) {
        work.save()?;
        work.say.line(format_args!(
            "nothing to remove: this machine was booted since `lab up`, and what that made is gone"
        ));
        return Ok(ExitCode::SUCCESS);
    }
    if boot.is_empty() || made.boot.is_empty() {
        work.say.line(format_args!(
            "whether this machine was booted since `lab up` is not known: only what still is as that made it is removed"
        ));
    }
    work.remove(Which::All { force: args.force })?;
    work.unload_rxe()?;
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

impl Work<'_, '_> {
    /// Removes devices and interfaces of the list, last first, and takes them off it.
    pub(super) fn remove(&mut self, which: Which) -> Result<(), LabError> {
        // All devices are checked before the first is removed: a refusal leaves everything as it was.
        let mut present = self.host.devices()?;
        let mut leaving = self.leaving(which, &present);
        // A `lab run` that was killed leaves devices: its programs end, and the kernel removes the devices,
        // which takes a moment.
        for _ in 0..PATIENCE {
            let is_of_run = self.made.devices.iter().any(|device| device.run);
            if !is_of_run || leaving.is_empty() && !self.is_run_held(&present)? {
                break;
            }
            thread::sleep(BETWEEN_LOOKS);
            present = self.host.devices()?;
            leaving = self.leaving(which, &present);
        }
        if let Some(leaving) = leaving.into_iter().next() {
            // The device is not gone, and needs its interface and its driver until it is. What is dropped
            // from the list now would never be removed.
            return Err(LabError::Leaving(leaving.name.to_string(), leaving.held));
        }
        for device in self.made.devices.iter().filter(|device| which.has(device.run)) {
            let Some(now) = ours::device(device, &present) else {
                continue;
            };
            let holders = text::names(&self.host.holders(now.index)?);
            if holders.is_empty() {
                continue;
            }
            if which != (Which::All { force: true }) {
                return Err(LabError::Held(now.name.to_string(), holders));
            }
            self.say.line(format_args!(
                "{} is held open by {holders}: waiting until they close it",
                now.name
            ));
        }
        self.remove_disk()?;
        self.remove_devices(which)?;
        self.remove_interfaces(which)
    }

    /// Removes the disk, and the modules that were loaded for it and that nothing else has use of.
    fn remove_disk(&mut self) -> Result<(), LabError> {
        let Some(ours) = self.made.disk.take() else {
            return Ok(());
        };
        // The file keeps it until all is gone, and `save` is called.
        if self.host.remove_disk(&ours)? {
            self.say.line(format_args!("removed the NVMe disk {}", ours.name));
        }
        for name in disk::MODULES.into_iter().rev() {
            let Some(module) = ours.modules.iter().find(|module| module.name == name) else {
                continue;
            };
            if !is_still(module.inode, self.host.module_inode(name)) {
                continue;
            }
            match self.host.unload(name) {
                Ok(()) => self.say.line(format_args!("unloaded {name}")),
                Err(error) => self.say.line(format_args!("{name} stays loaded: {error}")),
            }
        }
        self.save()
    }

    fn is_run_held(&mut self, present: &[Present]) -> Result<bool, LabError> {
        for device in self.made.devices.iter().filter(|device| device.run) {
            if let Some(now) = ours::device(device, present)
                && !self.host.holders(now.index)?.is_empty()
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn leaving(&mut self, which: Which, present: &[Present]) -> Vec<Leaving> {
        let mut leaving = ours::leaving(self.host, &self.made, present);
        leaving.retain(|going| {
            let mut ours = self.made.devices.iter().filter(|device| which.has(device.run));
            ours.any(|device| going.name == *device.name)
        });
        leaving
    }

    /// Says what became of something that was made. `now` is what it was called when it was removed; `found`:
    /// it had been made; `namesake`: something else has its name.
    fn say_gone(&mut self, kind: &str, then: &str, now: Option<String>, found: bool, namesake: bool) {
        match now {
            Some(now) if now == then => self.say.line(format_args!("removed {now}")),
            Some(now) => self
                .say
                .line(format_args!("removed {now}, which was made as {then}")),
            None if !found => {}
            None if namesake => self.say.line(format_args!(
                "{then} is another {kind} of that name now: left as it is"
            )),
            None => self.say.line(format_args!("{then} is gone already")),
        }
    }

    fn remove_devices(&mut self, which: Which) -> Result<(), LabError> {
        while let Some(at) = self.made.devices.iter().rposition(|one| which.has(one.run)) {
            let device = self.made.devices[at].clone();
            let present = self.host.devices()?;
            let now = ours::device(&device, &present);
            if let Some(now) = now
                && let Err(error) = self.host.remove_device(now)
                && ours::device(&device, &self.host.devices()?).is_some()
            {
                return Err(error);
            }
            let now = now.map(|now| now.name.to_string());
            let namesake = present.iter().any(|now| now.name == *device.name);
            self.say_gone("device", &device.name, now, device.found.is_some(), namesake);
            self.made.devices.remove(at);
            self.save()?;
        }
        Ok(())
    }

    fn remove_interfaces(&mut self, which: Which) -> Result<(), LabError> {
        while let Some(at) = self.made.interfaces.iter().rposition(|one| which.has(one.run)) {
            let interface = self.made.interfaces[at].clone();
            let present = self.host.interfaces();
            let now = ours::interface(&interface, &present);
            if let Some(now) = now
                && let Err(error) = self.host.remove_interface(now)
                && ours::interface(&interface, &self.host.interfaces()).is_some()
            {
                return Err(error);
            }
            let now = now.map(|now| now.name.to_string());
            let namesake = present.iter().any(|now| now.name == *interface.name);
            self.say_gone(
                "interface",
                &interface.name,
                now,
                interface.found.is_some(),
                namesake,
            );
            self.made.interfaces.remove(at);
            self.save()?;
        }
        Ok(())
    }

    /// Unloads rdma_rxe if the lab loaded it and nothing else may use it: without it all rxe devices are gone
    /// too, whoever made them.
    pub(super) fn unload_rxe(&mut self) -> Result<(), LabError> {
        let Some(ours) = self.made.module.take() else {
            return Ok(());
        };
        // Else somebody unloaded it, and perhaps loaded it again.
        if is_still(ours.inode, self.host.module_inode(RXE)) {
            let others = self.host.devices()?.into_iter().filter(|device| device.software);
            let others = text::names(others.map(|device| device.name));
            let why = if !others.is_empty() {
                Some(format!("{others} may need it"))
            } else if self.host.netns_mode() != Some(NetnsMode::Shared) {
                Some("another network namespace may have a device that needs it".into())
            } else {
                self.host.unload(RXE).err().map(|error| error.to_string())
            };
            match why {
                None => self.say.line(format_args!("unloaded rdma_rxe")),
                Some(why) => self.say.line(format_args!("rdma_rxe stays loaded: {why}")),
            }
        }
        self.save()
    }
}

/// Whether a module that is loaded now, with this inode, is the one that was loaded.
fn is_still(ours: Option<u64>, loaded: Option<u64>) -> bool {
    loaded.is_some() && ours.is_none_or(|inode| loaded == Some(inode))
}
