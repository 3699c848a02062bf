//! `rdmatop lab`: SoftRoCE devices to try things on, made over netlink and removed again without a trace.
//!
//! `up` loads rdma_rxe and makes devices, `down` removes just what `up` made, `status` reports. What was made is
//! kept in /run/rdmatop/lab.json, each before it is made. rdma_rxe is unloaded only if `up` loaded it and nothing else may
//! have use of it: unloading takes the devices of others too.
mod down;
mod host;
mod link;
mod module;
mod ours;
mod packages;
mod say;
mod state;
mod status;
mod store;
#[cfg(test)]
mod tests;
mod up;

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use thiserror::Error;

use self::host::{Host, System};
use self::module::Presence;
use self::say::Say;
use self::store::Store;
use crate::doctor::facts::SoftRoce;
use crate::source::netlink::error::NetlinkError;

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

/// Why a lab command failed. One line each: what, why, remedy.
#[derive(Debug, Error)]
pub enum LabError {
    /// Not root.
    #[error("`lab {0}` changes network devices and needs root: run `sudo rdmatop lab {0}`")]
    NotRoot(&'static str),
    /// The kernel has no rdma_rxe.
    #[error("kernel {kernel} has no module rdma_rxe: {advice}")]
    NoModule {
        /// Kernel release.
        kernel: String,
        /// What to do on this distribution.
        advice: String,
    },
    /// `modprobe` or `rmmod` failed.
    #[error("`{command} {module}` failed: {reason}")]
    Module {
        /// The command.
        command: &'static str,
        /// The module.
        module: &'static str,
        /// Its stderr, or why it could not be run.
        reason: String,
    },
    /// A netlink request failed.
    #[error("cannot {action}: {source}{}", right(source))]
    Netlink {
        /// What was to be done.
        action: String,
        /// Why it was not.
        source: NetlinkError,
    },
    /// An interface that is not there.
    #[error("there is no network interface {0}; `ip link` lists them")]
    NoInterface(String),
    /// Another `rdmatop lab` holds the lock.
    #[error("another `rdmatop lab` is at work ({0} holds the lock): run this again when that has ended")]
    Busy(String),
    /// The file of what was made is not ours.
    #[error(
        "{path} is not what `lab up` writes ({why}), so rdmatop cannot know what it made: remove that by `rdma link delete \
         NAME` and `ip link delete NAME` where it is left, then run `sudo rm {path}`"
    )]
    Broken {
        /// The file.
        path: String,
        /// Why.
        why: String,
    },
    /// The directory of that file is not root's alone.
    #[error(
        "{path} {why}, and what is in it decides what root removes: run `sudo rm -r {path}` and try again"
    )]
    Foreign {
        /// The directory.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// The file of what was made cannot be read or written.
    #[error("cannot {action} {path}: {reason}")]
    State {
        /// `read`, `write`, `remove`, `lock`.
        action: &'static str,
        /// The file.
        path: String,
        /// Why.
        reason: String,
    },
    /// Processes hold a device open.
    #[error(
        "{device} is held open by {holders}: removing it now would hang until they close it; end them, or use --force"
    )]
    Held {
        /// The device.
        device: String,
        /// Processes, by id and name.
        holders: String,
    },
    /// Its removal waits until no process holds it.
    #[error(
        "{device} is still being removed, {held}; the kernel waits for its last user: end that, then run this again"
    )]
    Leaving {
        /// The device.
        device: String,
        /// Who holds it.
        held: String,
    },
    /// Output failed.
    #[error("cannot write output: {0}")]
    Output(#[from] io::Error),
}

/// What a refusal asks for: root has been made sure of.
fn right(error: &NetlinkError) -> &'static str {
    match error.errno() {
        Some(libc::EPERM) => {
            "; it takes CAP_NET_ADMIN: run on the host, or start the container with --cap-add NET_ADMIN"
        }
        _ => "",
    }
}

/// How long to wait for another `rdmatop lab`: one that makes 64 devices takes seconds, one that removes a device in use
/// as long as that is used.
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
    let mut say = Say::new(out);
    let done = match &args.command {
        LabCommand::Up(_) if !root => Err(LabError::NotRoot("up")),
        LabCommand::Down(_) if !root => Err(LabError::NotRoot("down")),
        LabCommand::Up(args) => up::up(host, store, args, &mut say),
        LabCommand::Down(args) => down::down(host, store, args, &mut say),
        LabCommand::Status => status::status(host, store, &mut say),
    };
    let code = done?;
    say.end()?;
    Ok(code)
}

/// Whether SoftRoCE devices can be made on this machine.
pub(crate) fn softroce() -> SoftRoce {
    let root = Path::new("/");
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    match module::presence(root, kernel.trim(), "rdma_rxe") {
        Presence::Loaded | Presence::Loadable => SoftRoce::Ready,
        Presence::Unknown => SoftRoce::Unknown,
        Presence::Absent => match module::no_module(root, kernel.trim()) {
            LabError::NoModule { advice, .. } => SoftRoce::Missing(advice),
            _ => SoftRoce::Unknown,
        },
    }
}

/// For `crate::fuzz`.
pub(crate) fn fuzz_state(raw: &[u8]) {
    state::fuzz(raw);
}
