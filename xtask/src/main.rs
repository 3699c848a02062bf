//! rdmatop's developer commands: `cargo xtask help` lists them.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool talks to its user"
)]

mod apt;
mod ebpf;
mod ebpf_toolchain;
mod lab;
mod paths;
mod step;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Developer commands of rdmatop.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version)]
struct Cli {
    #[command(subcommand)]
    command: Cmd,
}

#[derive(Subcommand)]
enum Cmd {
    /// Boot a real Debian kernel with `SoftRoCE` devices in a VM, and run something there
    #[command(subcommand)]
    Lab(lab::LabCommand),
    /// Build the eBPF programs and list them
    BuildEbpf(ebpf::BuildArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Cmd::Lab(command) => lab::main(command),
        Cmd::BuildEbpf(args) => ebpf::main(args),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
