//! `rdmatop lab` alone, for kernel tests.
use std::process::ExitCode;

use clap::Parser;
use rdmatop_lab::{LabArgs, run};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: LabArgs,
}

#[expect(clippy::print_stderr, reason = "an example's errors go to the user")]
fn main() -> ExitCode {
    run(&Cli::parse().args).unwrap_or_else(|error| {
        eprintln!("rdmatop: {error}");
        ExitCode::FAILURE
    })
}
