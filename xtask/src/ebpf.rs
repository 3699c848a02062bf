//! `cargo xtask build-ebpf`: compiles the eBPF programs.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::ebpf_toolchain::{self as toolchain, OBJECT};
use crate::{ebpf_strip, lints, paths, step};

/// `cargo xtask build-ebpf`
#[derive(Args, Clone, Copy, Default)]
pub(crate) struct BuildArgs {
    /// Lint the programs instead of building them
    #[arg(long)]
    pub(crate) clippy: bool,
    /// With log lines from inside the programs, for developers
    #[arg(long, conflicts_with = "clippy")]
    pub(crate) log: bool,
    /// Print nothing unless it fails
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// Builds the eBPF programs, or runs clippy over them.
pub(crate) fn main(args: BuildArgs) -> Result<u8> {
    let found = toolchain::find().map_err(anyhow::Error::msg)?;
    let (repo, target_dir) = (paths::repo(), paths::target().join("ebpf"));
    if args.clippy {
        let fail = lints::fail("clippy for bpf", &found.rustc());
        let command = found
            .clippy_command(&repo, &target_dir, fail)
            .map_err(anyhow::Error::msg)?;
        execute("clippy for the bpf target", command, args.quiet)?;
        return Ok(0);
    }
    let _alone =
        toolchain::alone(&target_dir).with_context(|| format!("cannot lock {}", target_dir.display()))?;
    let mut build = found.build_command(&repo, &target_dir);
    if args.log {
        build.args(["--features", "log"]);
    }
    execute("the eBPF build", build, args.quiet)?;
    let built = toolchain::built_object(&target_dir);
    let bytes = fs::read(&built).with_context(|| format!("cannot read {}", built.display()))?;
    let bytes =
        ebpf_strip::without_debug(&bytes).with_context(|| format!("{} is no object", built.display()))?;
    let finished = target_dir.join(OBJECT);
    fs::write(&finished, bytes).with_context(|| format!("cannot write {}", finished.display()))?;
    if !args.quiet {
        println!("{} ({})", finished.display(), found.name);
    }
    Ok(0)
}

fn execute(label: &str, mut command: Command, quiet: bool) -> Result<()> {
    if quiet {
        let output = command
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot start {label}"))?;
        if !output.status.success() {
            bail!(
                "{label} failed:\n{}",
                step::tail(&String::from_utf8_lossy(&output.stderr), 60)
            );
        }
        return Ok(());
    }
    let status = command
        .status()
        .with_context(|| format!("cannot start {label}"))?;
    if !status.success() {
        bail!("{label} failed ({status})");
    }
    Ok(())
}
