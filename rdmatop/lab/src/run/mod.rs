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

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::builder::PossibleValuesParser;

pub(super) use self::scenario::{Scenario, Wire};
pub(super) use self::view::view;
use self::{ending::Ending, traffic::Traffic};
use super::host::{Host, Interface, Switch};
use super::state::{DISK as DISK_NAME, DiskModule, MadeDisk};
use super::{LabError, RunArgs};
use super::{disk::MODULES, down::Which, say::Printer, store::Store, work::Work};
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
    let mut work = Work::begin(host, &locked, say)?;
    enter(&mut work, args.force)?;
    let mut switch = None;
    let ran = make(&mut work, scenario, &mut switch).and_then(|disk| {
        let mut traffic = Traffic::start(scenario, &programs, disk.as_deref(), args.quiet)?;
        introduce(scenario, args, work.say);
        let ran = ending.wait(&mut traffic);
        // The programs end before their devices go.
        traffic.end();
        ran
    });
    let left = leave(work);
    // Only now: the kernel would remove the devices at the same time as we do.
    drop(switch);
    ran.and(left)
}

fn introduce(scenario: &Scenario, args: &RunArgs, say: &mut Printer<'_>) {
    say.line(format_args!("{}: {}", scenario.name, scenario.what));
    say.line(format_args!("Look: {}", scenario.look));
    say.line(format_args!(
        "In another terminal: sudo rdmatop; this one shows what the programs say."
    ));
    match args.seconds {
        Some(seconds) => say.line(format_args!("{RUNS} for {seconds} s; Ctrl-C ends it before")),
        None => say.line(format_args!("{RUNS} until Ctrl-C")),
    }
}

/// Refuses a machine with RDMA devices of its own, and removes what an earlier run left.
fn enter(work: &mut Work<'_, '_>, force: bool) -> Result<(), LabError> {
    let devices = work.host.devices()?;
    let own = devices.iter().filter(|device| !device.software);
    let own = text::names(own.map(|device| &device.name));
    if !own.is_empty() && !force {
        return Err(LabError::OwnDevices(own));
    }
    work.remove(Which::Run)
}

/// Makes the devices of a scenario, on one switch, and the disk behind the first of them.
fn make(
    work: &mut Work<'_, '_>,
    scenario: &Scenario,
    switch: &mut Option<Switch>,
) -> Result<Option<PathBuf>, LabError> {
    work.load_rxe()?;
    let switch = match scenario.wire {
        Wire::None => None,
        _ => Some(&*switch.insert(work.host.new_switch()?)),
    };
    for number in 0..scenario.ports {
        let netdev = port(work, switch, number, scenario.mtu)?;
        let name = format!("lab{number}");
        if work.host.devices()?.iter().any(|device| device.name == *name) {
            return Err(LabError::Taken(name));
        }
        work.add_device(&name, &netdev, true)?;
        if number == 0 && matches!(scenario.wire, Wire::Loses(_) | Wire::Reorders(_)) {
            work.host.disturb(&netdev, scenario.wire)?;
        }
    }
    for number in 0..scenario.ports {
        work.host.await_device(&format!("lab{number}"))?;
    }
    scenario.has_disk().then(|| disk(work)).transpose()
}

/// Makes the disk behind `lab0`.
fn disk(work: &mut Work<'_, '_>) -> Result<PathBuf, LabError> {
    let name = work.host.new_address().map(|byte| format!("{byte:02x}"));
    let [.., high, low] = work.host.new_address();
    let absent = MODULES
        .into_iter()
        .filter(|name| work.host.module_inode(name).is_none());
    let module = |name: &str| DiskModule {
        name: name.into(),
        inode: None,
    };
    let disk = MadeDisk {
        name: format!("{DISK_NAME}{}", name.concat()),
        // A high number: people give low ones.
        port: u16::from_be_bytes([high, low]) | 1 << 15,
        netdev: "labnet0".into(),
        modules: absent.map(module).collect(),
    };
    work.made.disk = Some(disk.clone());
    work.save()?;
    work.host.load_disk_modules()?;
    for module in work.made.disk.iter_mut().flat_map(|disk| &mut disk.modules) {
        module.inode = work.host.module_inode(&module.name);
    }
    work.save()?;
    let path = work.host.make_disk(&disk, "lab0")?;
    work.say
        .line(format_args!("made {} through lab0", path.display()));
    Ok(path)
}

fn port(
    work: &mut Work<'_, '_>,
    switch: Option<&Switch>,
    number: u8,
    mtu: u32,
) -> Result<Interface, LabError> {
    let name = format!("labnet{number}");
    if work
        .host
        .interfaces()
        .iter()
        .any(|interface| interface.name == *name)
    {
        return Err(LabError::Taken(name));
    }
    work.add_interface(&name, true, &|host, address| match switch {
        Some(switch) => host.add_port(switch, &name, address, mtu),
        None => host.add_inside(&name, address),
    })?;
    work.interface(&name)
}

/// Removes what was made; rdma_rxe too if the lab loaded it and `lab up` made nothing since.
fn leave(mut work: Work<'_, '_>) -> Result<(), LabError> {
    work.remove(Which::Run)?;
    if work.made.devices.is_empty() && work.made.interfaces.is_empty() {
        work.unload_rxe()?;
    }
    Ok(())
}
