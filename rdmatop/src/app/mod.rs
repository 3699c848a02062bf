//! Connects the sources, the engine and the views: one mode, one set of sources, one channel.
//!
//! ```text
//! sampler thread -- one round when asked ---+
//! eBPF thread ----- when something happens -+-> one bounded channel -> pump (engine) -> watch: snapshots
//!                                                                                   \-> mpsc: events -> view
//! ```
//! The pump runs alone on the runtime's thread. Whatever may block has a thread of its own: sampling, the
//! eBPF side, writing lines, drawing.
mod check;
mod defect;
pub(crate) mod doctor;
mod files;
mod heap;
pub mod host;
mod limits;
mod live;
mod nccl_log;
mod noted;
mod once;
mod patience;
mod plan;
mod probes;
mod pump;
mod ready;
mod reorder;
mod ring;
mod sampler;
mod signals;
mod sink;
mod summary;
mod targets;
pub mod trace;
mod work;
mod writer;

#[cfg(test)]
mod testkit;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::Parser;

use crate::cli::{self, Cli, Command};
use crate::exit::{Exit, Stop, Written, written};
use plan::{Mode, Plan, Terminal};
use rdmatop_lab::{LabArgs, LabError};
use rdmatop_model::cause::Cause;
use rdmatop_output::{
    journal,
    say::{self, say},
};
use rdmatop_sources::hw_counters::{self, HwCounters};
use rdmatop_sources::root::Root;
use rdmatop_sources::uprobes;
use rdmatop_views::tui::TuiOptions;

/// The whole program: parses `args`, runs the mode, prints on stderr in one line what failed.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    if uprobes::is_helper(&args) {
        uprobes::serve();
        return Exit::Ok.into();
    }
    heap::settle();
    signals::go_on_in_the_background();
    say::open();
    // Before rights are given up and the screen is drawn.
    if let Err(line) = journal::open() {
        say(&format!("rdmatop: {line}"));
    }
    log::info!(
        version = env!("CARGO_PKG_VERSION"), pid = std::process::id(), args:? = args;
        "start"
    );
    limits::raise();
    let checks = args.get(1).is_some_and(|word| word == "check");
    let outcome = match Cli::try_parse_from(args) {
        Ok(mut cli) => {
            match TuiOptions::excluded() {
                Ok(devices) => cli.exclude(devices),
                // Whoever wants a device left alone must learn that it is not.
                Err(error) => say(&format!(
                    "rdmatop: {error}; defaults are in use, and no device is left alone"
                )),
            }
            run(&cli)
        }
        Err(error) if error.use_stderr() => {
            say(&cli::one_line(&error));
            // A usage error has the same code as a critical finding.
            let exit = if checks { Exit::NothingToShow } else { Exit::Usage };
            Ok(exit.into())
        }
        // --help and --version.
        Err(text) => print(&text.to_string()).map(|_| Exit::Ok.into()),
    };
    let code = outcome.unwrap_or_else(|stop| {
        log::error!(why = stop.line.as_str(); "stopped");
        say(&format!("rdmatop: {}", stop.line));
        stop.exit.into()
    });
    log::info!("end");
    say::end();
    code
}

fn run(cli: &Cli) -> Result<ExitCode, Stop> {
    match &cli.command {
        Some(Command::Man { out_dir }) => return files::man(out_dir.as_deref()).map(ExitCode::from),
        Some(Command::Completions { shell }) => return files::completions(*shell).map(ExitCode::from),
        Some(Command::Lab(args)) => return in_lab(args),
        Some(Command::NcclLog(args)) => {
            let plan = plan::plan(cli, Terminal::here())?;
            return nccl_log::run(args, &plan).map(ExitCode::from);
        }
        Some(Command::Doctor(args)) => return doctor::run(args),
        Some(Command::Probes(_) | Command::Check(_)) | None => {}
    }
    let plan = plan::plan(cli, Terminal::here())?;
    limits::check()?;
    for line in hw_counters::recover(Root::default()) {
        say(&format!("rdmatop: {line}"));
    }
    // Takes `--hw-counters` back however the mode ends, even by a panic.
    let _undo = TakeBack(plan.hw_counters.clone());
    let exit = match plan.mode {
        Mode::Check => return block_on(check::run(&plan)),
        Mode::Live { .. } => block_on(live::run(&plan)),
        Mode::Lines => block_on(trace::run(&plan)),
        Mode::Once => block_on(once::run(&plan)),
        Mode::Probes => block_on(probes::run(&plan)),
    };
    exit.map(ExitCode::from)
}

/// Takes back what `--hw-counters` has set when it is dropped.
struct TakeBack(Option<HwCounters>);

impl Drop for TakeBack {
    fn drop(&mut self) {
        for line in self.0.iter().flat_map(HwCounters::take_back) {
            say(&format!("rdmatop: {line}"));
        }
    }
}

fn in_lab(args: &LabArgs) -> Result<ExitCode, Stop> {
    match rdmatop_lab::run(args) {
        Ok(code) => Ok(code),
        Err(LabError::Output(error)) => written(Err(error)).map(|_| Exit::Ok.into()),
        Err(error) => Err(Stop::failure(error.to_string())),
    }
}

/// One thread is enough: only the pump computes, everything else waits.
fn block_on<T>(mode: impl Future<Output = Result<T, Stop>>) -> Result<T, Stop> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| {
            Stop::failure(format!(
                "cannot start: {e}; are there too many open files or threads?"
            ))
        })?;
    let seconds = std::env::var("RDMATOP_PANIC").ok();
    let outcome = runtime.block_on(async {
        tokio::select! {
            outcome = mode => outcome,
            never = defect::after(seconds.as_deref()) => match never {},
        }
    });
    // A thread that hangs in the kernel must not keep the program from ending.
    runtime.shutdown_background();
    outcome
}

impl Terminal {
    fn here() -> Self {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        Self {
            stdout: io::stdout().is_terminal(),
            dumb: std::env::var_os("TERM").is_some_and(|term| term == "dumb"),
            no_color: set("NO_COLOR"),
        }
    }
}

/// Writes everything to stdout at once and waits for the reader: only for modes that keep the default action
/// of all signals.
fn print(text: &str) -> Result<Written, Stop> {
    let mut out = io::stdout().lock();
    written(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// The line for a machine without RDMA, `None` when there is RDMA.
fn nothing_to_show(plan: &Plan, no_rdma: Option<&Cause>, devices: usize) -> Option<String> {
    if devices > 0 {
        return None;
    }
    let none = "no RDMA device: the kernel lists none in this network namespace; load the driver of your NIC, or see rdma(8)";
    let line = no_rdma.map_or_else(|| none.to_owned(), Cause::line);
    let device = plan.filter.device.as_ref();
    let device = device.map(|device| format!(" (--device {device})"));
    Some(line + &device.unwrap_or_default())
}
