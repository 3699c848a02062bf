//! `lab run`: one scenario on devices of its own.
//!
//! The devices are listed in the file before they are made, as those of `lab up`, and the lock is held to the
//! end: there is one scenario at a time. They go with this process whatever ends it (`switch.rs`), but for
//! those of `nvme` (`disk.rs`); what is left then, the list and the module, goes with `lab down` or with the
//! next `lab run`.
mod ending;
mod scenario;
mod traffic;
mod view;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::PossibleValuesParser;

use self::ending::Ending;
pub(super) use self::scenario::{Scenario, Wire};
use self::traffic::Traffic;
pub(super) use self::view::view;
use super::disk::MODULES;
use super::down::{self, Which};
use super::host::{Host, Interface, Switch};
use super::say::Printer;
use super::state::{DISK as DISK_NAME, DiskModule, Made, MadeDevice, MadeDisk, MadeInterface};
use super::store::{Locked, Store};
use super::{LabError, RunArgs, ours, up};
use rdmatop_base::text;

/// What `--view` waits for.
const RUNS: &str = "running";

/// Accepts the names of scenarios.
pub(super) fn names() -> PossibleValuesParser {
    PossibleValuesParser::new(scenario::ALL.iter().map(|scenario| scenario.name))
}

pub(super) fn list(say: &mut Printer<'_>) -> ExitCode {
    for Scenario { name, what, .. } in scenario::ALL {
        say.line(format_args!("{name:<15} {what}"));
    }
    ExitCode::SUCCESS
}

/// Runs a scenario to its end.
pub(super) fn run(
    host: &mut dyn Host,
    store: &Store,
    args: &RunArgs,
    say: &mut Printer<'_>,
) -> Result<ExitCode, LabError> {
    match args.scenario.as_deref().and_then(scenario::find) {
        Some(scenario) => run_scenario(host, store, scenario, args, say).map(|()| ExitCode::SUCCESS),
        None => Ok(list(say)),
    }
}

pub(super) fn run_scenario(
    host: &mut dyn Host,
    store: &Store,
    scenario: &Scenario,
    args: &RunArgs,
    say: &mut Printer<'_>,
) -> Result<(), LabError> {
    let programs = traffic::find_all(scenario, args.programs.as_deref())?;
    // From here on a signal makes rdmatop take down what is made by then.
    let mut ending = Ending::new(args.seconds.map(|seconds| Duration::from_secs(seconds.into())))?;
    let locked = store.lock()?;
    let mut lab = Lab::enter(host, &locked, args, say)?;
    let mut switch = None;
    let ran = lab.make(host, scenario, &mut switch, say).and_then(|disk| {
        let mut traffic = Traffic::start(scenario, &programs, disk.as_deref(), args.quiet)?;
        introduce(scenario, args, say);
        let ran = ending.wait(&mut traffic);
        // The programs end before their devices go.
        traffic.end();
        ran
    });
    let left = if args.quiet {
        lab.leave(host, &mut Printer::new(&mut io::sink()))
    } else {
        lab.leave(host, say)
    };
    // Only now: the kernel would remove the devices at the same time as we do.
    drop(switch);
    ran.and(left)
}

fn introduce(scenario: &Scenario, args: &RunArgs, say: &mut Printer<'_>) {
    if !args.quiet {
        say.line(format_args!("{}: {}", scenario.name, scenario.what));
        say.line(format_args!("Look: {}", scenario.look));
        say.line(format_args!(
            "In another terminal: sudo rdmatop; this one shows what the programs say."
        ));
    }
    match args.seconds {
        Some(seconds) => say.line(format_args!("{RUNS} for {seconds} s; Ctrl-C ends it before")),
        None => say.line(format_args!("{RUNS} until Ctrl-C")),
    }
}

/// What is made, and the right to make and remove it.
struct Lab<'a> {
    locked: &'a Locked<'a>,
    made: Made,
    quiet: bool,
}

impl<'a> Lab<'a> {
    /// Refuses a machine with RDMA devices of its own, and removes what an earlier run left.
    fn enter(
        host: &mut dyn Host,
        locked: &'a Locked<'a>,
        args: &RunArgs,
        say: &mut Printer<'_>,
    ) -> Result<Self, LabError> {
        let boot = host.boot();
        let made = locked.load()?.filter(|made| made.may_be_of(&boot));
        let mut lab = Self {
            locked,
            made: made.unwrap_or_else(|| Made::new(&boot)),
            quiet: args.quiet,
        };
        let devices = host.devices()?;
        let own: Vec<String> = devices
            .iter()
            .filter(|device| !device.software)
            .map(|device| device.name.to_string())
            .collect();
        if !own.is_empty() && !args.force {
            return Err(LabError::OwnDevices(text::names(&own)));
        }
        down::remove(host, locked, &mut lab.made, Which::Run, say)?;
        Ok(lab)
    }

    fn save(&self) -> Result<(), LabError> {
        self.locked.save(&self.made)
    }

    /// Makes the devices of a scenario, on one switch.
    fn make(
        &mut self,
        host: &mut dyn Host,
        scenario: &Scenario,
        switch: &mut Option<Switch>,
        say: &mut Printer<'_>,
    ) -> Result<Option<PathBuf>, LabError> {
        let locked = self.locked;
        up::load_rxe(host, &mut self.made, &mut |made| locked.save(made), say)?;
        ours::compare(host, &mut self.made)?;
        self.save()?;
        let switch = match scenario.wire {
            Wire::None => None,
            _ => Some(&*switch.insert(host.new_switch()?)),
        };
        for number in 0..scenario.ports {
            let netdev = self.port(host, switch, number, scenario.mtu)?;
            self.device(host, &netdev, number)?;
            if !self.quiet {
                say.line(format_args!("made lab{number} on {}", netdev.name));
            }
            if number == 0 && matches!(scenario.wire, Wire::Loses(_) | Wire::Reorders(_)) {
                host.disturb(&netdev, scenario.wire)?;
            }
        }
        for number in 0..scenario.ports {
            host.await_device(&format!("lab{number}"))?;
        }
        scenario.has_disk().then(|| self.disk(host, say)).transpose()
    }

    /// Makes the disk behind `lab0`.
    fn disk(&mut self, host: &mut dyn Host, say: &mut Printer<'_>) -> Result<PathBuf, LabError> {
        let name = host.new_address().into_iter().map(|byte| format!("{byte:02x}"));
        let name = format!("{DISK_NAME}{}", name.collect::<String>());
        let [.., high, low] = host.new_address();
        let absent = |name: &&str| host.module_inode(name).is_none();
        let modules = MODULES.into_iter().filter(absent).map(|name| DiskModule {
            name: name.into(),
            inode: None,
        });
        let modules = modules.collect();
        let disk = MadeDisk {
            name,
            // A high number: people give low ones.
            port: u16::from_be_bytes([high, low]) | 1 << 15,
            netdev: "labnet0".into(),
            modules,
        };
        self.made.disk = Some(disk.clone());
        self.save()?;
        host.load_disk_modules()?;
        for module in self.made.disk.iter_mut().flat_map(|disk| &mut disk.modules) {
            module.inode = host.module_inode(&module.name);
        }
        self.save()?;
        let path = host.make_disk(&disk, "lab0")?;
        if !self.quiet {
            say.line(format_args!("made {} through lab0", path.display()));
        }
        Ok(path)
    }

    fn port(
        &mut self,
        host: &mut dyn Host,
        switch: Option<&Switch>,
        number: u8,
        mtu: u32,
    ) -> Result<Interface, LabError> {
        let name = format!("labnet{number}");
        if host.interfaces().iter().any(|interface| interface.name == *name) {
            return Err(LabError::Taken(name));
        }
        let address = host.new_address();
        self.made.interfaces.push(MadeInterface {
            name: name.clone(),
            address,
            found: None,
            run: true,
        });
        self.save()?;
        let added = match switch {
            Some(switch) => host.add_port(switch, &name, address, mtu),
            None => host.add_inside(&name, address),
        };
        ours::compare(host, &mut self.made)?;
        self.save()?;
        added?;
        let present = host.interfaces();
        let mut ours = self.made.interfaces.iter().filter(|ours| ours.name == name);
        let found = ours.find_map(|ours| ours::interface(ours, &present));
        found.cloned().ok_or(LabError::NoInterface(name))
    }

    fn device(&mut self, host: &mut dyn Host, netdev: &Interface, number: u8) -> Result<(), LabError> {
        let name = format!("lab{number}");
        let present = host.devices()?;
        if present.iter().any(|device| device.name == *name) {
            return Err(LabError::Taken(name));
        }
        self.made.devices.push(MadeDevice {
            name: name.clone(),
            netdev: netdev.name.to_string(),
            netdev_index: netdev.index,
            before: present.iter().map(|device| device.index).collect(),
            found: None,
            run: true,
        });
        self.save()?;
        let added = host.add_device(&name, netdev);
        ours::compare(host, &mut self.made)?;
        self.save()?;
        added
    }

    /// Removes what was made; rdma_rxe too if the lab loaded it and `lab up` made nothing since.
    fn leave(mut self, host: &mut dyn Host, say: &mut Printer<'_>) -> Result<(), LabError> {
        down::remove(host, self.locked, &mut self.made, Which::Run, say)?;
        if self.made.devices.is_empty()
            && self.made.interfaces.is_empty()
            && let Some(module) = self.made.module.take()
        {
            down::module(host, &module, say)?;
            self.save()?;
        }
        Ok(())
    }
}
