//! `rdmatop lab`: SoftRoCE devices to try things on, made over netlink and removed again without a trace.
//!
//! `run` makes what one scenario needs, runs its traffic and takes all of it down again. `up` loads rdma_rxe
//! and makes devices, `down` removes just what `up` made, `status` reports. What was made is kept in
//! /run/rdmatop/lab.json, each before it is made. rdma_rxe is unloaded only if `up` loaded it and nothing
//! else may have use of it: unloading takes the devices of others too.
mod disk;
mod down;
#[cfg(feature = "testkit")]
pub mod fuzz;
mod host;
mod link;
mod module;
mod ours;
mod packages;
mod run;
mod say;
mod state;
mod status;
mod store;
mod switch;
#[cfg(test)]
mod tests;
mod up;
mod work;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use thiserror::Error;

use self::host::{Host, System};
use self::module::Presence;
use self::say::Printer;
use self::store::Store;
use rdmatop_base::step::{NextStep, ShellWord, step};
use rdmatop_sources::root::Root;

/// Arguments of `rdmatop lab`.
#[derive(Debug, Clone, Args)]
pub struct LabArgs {
    /// What to do
    #[command(subcommand)]
    pub command: LabCommand,
}

/// What `rdmatop lab` can do.
#[derive(Debug, Clone, Subcommand)]
pub enum LabCommand {
    /// Load rdma_rxe and make SoftRoCE devices; run again, it makes only what is missing
    Up(UpArgs),
    /// Remove what `lab up` made, and nothing else
    Down(DownArgs),
    /// Show what `lab up` made and which processes use it
    Status,
    /// Run one scenario on devices of its own, say what to look for, and take all of it down at the end
    Run(RunArgs),
}

/// Arguments of `rdmatop lab up`.
#[derive(Debug, Clone, Args)]
pub struct UpArgs {
    /// Network interface of the first device [default: that of the default route, else a dummy of our own]
    #[arg(long, value_name = "INTERFACE")]
    pub netdev: Option<String>,
    /// Number of devices; an interface carries one, so further ones lie on dummies of our own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub devices: u8,
}

/// Arguments of `rdmatop lab down`.
#[derive(Debug, Clone, Args)]
pub struct DownArgs {
    /// Remove devices that processes hold open too: this command then hangs until they close them
    #[arg(long)]
    pub force: bool,
}

/// Arguments of `rdmatop lab run`.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// What to run
    #[arg(value_name = "SCENARIO", required_unless_present = "list", value_parser = run::names())]
    pub scenario: Option<String>,
    /// List the scenarios
    #[arg(long)]
    pub list: bool,
    /// End after so many seconds [default: at Ctrl-C]
    #[arg(long = "for", alias = "seconds", value_name = "SECS", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub seconds: Option<u32>,
    /// Open the live view beside it; leaving the view ends the scenario
    #[arg(long)]
    pub view: bool,
    /// Run on a machine that has RDMA devices of its own too
    #[arg(long)]
    pub force: bool,
    /// Where the traffic programs are [default: examples/build of the source, or ../lib/rdmatop of this
    /// program]
    #[arg(long, value_name = "DIR")]
    pub programs: Option<PathBuf>,
    /// Let the programs say nothing
    #[arg(long, hide = true)]
    pub quiet: bool,
}

/// The command that shows the state of a device's only port.
fn link_state(device: &str) -> NextStep {
    step!("rdma link show {}/1", ShellWord::device(device))
}

/// Why a lab command failed. One line each: what, why, remedy.
#[derive(Debug, Error)]
pub enum LabError {
    /// Only root may do this.
    #[error("`lab {0}` changes network devices and needs root: run `sudo rdmatop lab {0}`")]
    NotRoot(&'static str),
    /// The system refused something: what, and its words.
    #[error("cannot {0}: {1}")]
    Refused(String, String),
    /// The kernel has not the module: the module, the kernel's release, and what to do on this distribution.
    #[error("kernel {1} has no module {0}: {2}")]
    NoModule(&'static str, String, NextStep),
    /// An interface that is not there.
    #[error("there is no network interface {0}; `ip link` lists them")]
    NoInterface(String),
    /// A device or an interface has a name that `lab run` gives.
    #[error(
        "there is a {0} already, which `lab run` did not make: rename or remove that, then run this again"
    )]
    Taken(String),
    /// The machine has RDMA hardware.
    #[error(
        "this machine has RDMA devices of its own ({0}): a program that takes the first one could take the lab's while it is \
         there; run it on another machine, or add --force"
    )]
    OwnDevices(String),
    /// A traffic program was not found in these directories.
    #[error(
        "cannot find the traffic program {0} (looked in {1}): run `make -C examples` in rdmatop's source (Debian: apt install \
         gcc make libibverbs-dev), or name its directory with --programs"
    )]
    NoProgram(&'static str, String),
    /// A traffic program ended by itself, and how.
    #[error("{0} ended by itself with {1}; what it said is above")]
    Ended(&'static str, String),
    /// The kernel has no IPv6.
    #[error(
        "this kernel has no IPv6, by whose link-local addresses the lab's ports reach each other: boot without ipv6.disable=1"
    )]
    NoIpv6,
    /// A device that does not become ready.
    #[error("{0} does not become ACTIVE with a link-local GID; `{state}` shows its state", state = link_state(.0))]
    NotReady(String),
    /// No configfs.
    #[error(
        "there is no /sys/kernel/config/nvmet, by which the kernel's NVMe target is set up: run `mount -t configfs configfs \
         /sys/kernel/config`, and on the host if this is a container"
    )]
    NoConfigfs,
    /// A disk that does not appear.
    #[error("no NVMe disk appears after its connection was made; `dmesg` says why")]
    NoDisk,
    /// Another `rdmatop lab` holds the lock.
    #[error("another `rdmatop lab` is at work ({0} holds the lock): run this again when that has ended")]
    Busy(String),
    /// The file of what was made is not ours, and why.
    #[error(
        "{path} is not what `lab up` writes ({why}), so rdmatop cannot know what it made: remove that by `rdma link delete \
         NAME` and `ip link delete NAME` where it is left, then run `sudo rm {path}`",
        path = .0,
        why = .1
    )]
    Broken(String, String),
    /// The directory of that file is not root's alone, and why.
    #[error(
        "{path} {why}, and what is in it decides what root removes: run `sudo rm -r {path}` and try again",
        path = .0,
        why = .1
    )]
    Foreign(String, String),
    /// Processes hold a device open.
    #[error(
        "{0} is held open by {1}: removing it now would hang until they close it; end them, or use --force"
    )]
    Held(String, String),
    /// The removal of a device waits until no process holds it.
    #[error(
        "{0} is still being removed, {1}; the kernel waits for its last user: end that, then run this again"
    )]
    Leaving(String, String),
    /// Output failed.
    #[error("cannot write output: {0}")]
    Output(#[from] io::Error),
}

/// The error of what the system refused.
fn cannot(action: impl Into<String>, reason: &dyn ToString) -> LabError {
    LabError::Refused(action.into(), reason.to_string())
}

/// How long to wait for another `rdmatop lab`: one that makes 64 devices takes seconds, one that removes a
/// device in use as long as that is used.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs `rdmatop lab ...` on this machine.
pub fn run(args: &LabArgs) -> Result<ExitCode, LabError> {
    let mut out = io::stdout().lock();
    let root = rustix::process::geteuid().is_root();
    let store = Store::new(Path::new("/run/rdmatop"), 0, PATIENCE);
    run_on(&mut System::default(), &store, root, args, &mut out)
}

fn run_on(
    host: &mut dyn Host,
    store: &Store,
    root: bool,
    args: &LabArgs,
    out: &mut dyn Write,
) -> Result<ExitCode, LabError> {
    let mut say = Printer::new(out);
    let done = match &args.command {
        LabCommand::Up(_) if !root => Err(LabError::NotRoot("up")),
        LabCommand::Down(_) if !root => Err(LabError::NotRoot("down")),
        LabCommand::Up(args) => up::up(host, store, args, &mut say),
        LabCommand::Down(args) => down::down(host, store, args, &mut say),
        LabCommand::Run(args) if args.list => Ok(run::list(&mut say)),
        LabCommand::Run(_) if !root => Err(LabError::NotRoot("run")),
        LabCommand::Run(args) if args.view => run::view(args),
        LabCommand::Run(args) => run::run(host, store, args, &mut say),
        LabCommand::Status => status::status(host, store, &mut say),
    };
    let code = done?;
    say.end()?;
    Ok(code)
}

/// Whether SoftRoCE devices can be made on this machine, and if this kernel cannot, what to do. `None` if the
/// list of modules cannot be read.
pub fn softroce() -> Option<Result<(), NextStep>> {
    let root = Path::new("/");
    let kernel = Root::default().kernel_release().unwrap_or_default();
    match module::presence(root, &kernel, "rdma_rxe") {
        Presence::Loaded | Presence::Loadable => Some(Ok(())),
        Presence::Unknown => None,
        Presence::Absent => match module::no_module(root, &kernel, "rdma_rxe") {
            LabError::NoModule(_, _, advice) => Some(Err(advice)),
            _ => None,
        },
    }
}
