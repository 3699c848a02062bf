//! rdmatop's developer commands: `cargo xtask help` lists them.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool talks to its user"
)]

mod apt;
mod arch;
mod bench;
mod cross;
mod demo;
mod deny;
mod dist;
mod ebpf;
mod ebpf_strip;
mod ebpf_toolchain;
mod equality;
mod kernels;
mod lab;
mod learn;
mod lints;
#[cfg(test)]
mod pages;
mod paths;
mod release;
mod screens;
mod setup;
mod step;
mod test;

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
    /// Build the eBPF programs
    BuildEbpf(ebpf::BuildArgs),
    /// Measure the performance goals in an instruction-counting guest
    Bench(bench::BenchArgs),
    /// Install what is missing: packages, bpf-linker, the lab's kernels
    Setup(setup::SetupArgs),
    /// Run the main job on real RDMA traffic, in the lab where this machine has no RDMA device
    Demo(demo::DemoArgs),
    /// Make the files of a release: tarball, Debian and RPM package, container image and SBOM, with checksums
    Dist(dist::DistArgs),
    /// Release a version: set it, cut the changelog, commit, make the files and tag
    Release(release::ReleaseArgs),
    /// Take the documentation's screens from a real run in the lab
    Screens(screens::ScreensArgs),
    /// Write docs/learn.md anew: run its commands in the lab and put in what they print
    Learn(learn::LearnArgs),
    /// Write docs/kernels.md anew: what would be attached on the kernels of Debian's packages
    Kernels(kernels::KernelsArgs),
    /// Run what needs no lab: style and unit tests
    Check(test::CheckArgs),
    /// Run everything that must pass: style, unit tests, kernel tests on four kernels
    Test(test::TestArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Cmd::Lab(command) => lab::main(command),
        Cmd::BuildEbpf(args) => ebpf::main(args),
        Cmd::Bench(args) => bench::main(&args),
        Cmd::Setup(args) => setup::main(args),
        Cmd::Demo(args) => demo::main(&args),
        Cmd::Dist(args) => dist::main(args),
        Cmd::Release(args) => release::main(&args),
        Cmd::Screens(args) => screens::main(&args),
        Cmd::Learn(args) => learn::main(&args),
        Cmd::Kernels(args) => kernels::main(&args),
        Cmd::Check(args) => test::check(&args),
        Cmd::Test(args) => test::main(&args),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
