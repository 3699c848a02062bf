//! `cargo xtask setup`: brings a Debian machine with a rustup stable toolchain to where everything builds and runs.
//!
//! Looks first, so that a complete machine costs some milliseconds; changes only what is missing.

use std::{path::Path, process::Command};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::{lab::kernel, paths, step};

/// The bpf-linker that links against the LLVM of Debian's rustc.
const LINKER: &str = "0.13.0";

/// `cargo xtask setup`
#[derive(Args, Clone, Copy, Default)]
pub(crate) struct SetupArgs {
    /// Say what is missing and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not fetch the lab's kernels
    #[arg(long)]
    pub(crate) no_kernels: bool,
}

/// Debian packages, and what needs them.
const PACKAGES: &[(&str, &[&str])] = &[
    (
        "link Rust programs and compile the tests' C",
        &["gcc", "libc6-dev", "pkg-config"],
    ),
    (
        "compile the eBPF programs",
        &[
            "rustc-web",
            "cargo-web",
            "libstd-rust-web-dev-bpf",
            "rust-web-clippy",
        ],
    ),
    (
        "run the lab's virtual machine",
        &["qemu-system-x86", "busybox-static", "kmod", "xz-utils", "zstd"],
    ),
    (
        "make RDMA traffic",
        &[
            "perftest",
            "rdma-core",
            "ibverbs-utils",
            "ibverbs-providers",
            "libibverbs-dev",
            "librdmacm-dev",
            "rdmacm-utils",
            "python3-pyverbs",
            "iproute2",
            "iputils-ping",
        ],
    ),
    ("drive a terminal in tests", &["tmux", "procps", "strace"]),
    ("compare in benchmarks", &["bpftrace"]),
];

/// Runs the command.
pub(crate) fn main(args: SetupArgs) -> Result<u8> {
    let did = ensure(args, true)?;
    if args.dry_run {
        return Ok(0);
    }
    eprintln!("setup: {}", if did { "complete" } else { "nothing was missing" });
    Ok(0)
}

/// Makes the machine complete; tells whether anything was missing.
pub(crate) fn ensure(args: SetupArgs, verbose: bool) -> Result<bool> {
    if !Path::new("/usr/bin/dpkg-query").is_file() {
        bail!(
            "this is no Debian-like machine: setup installs Debian packages. What is needed: {}; bpf-linker {LINKER}",
            PACKAGES
                .iter()
                .flat_map(|(_, names)| *names)
                .copied()
                .collect::<Vec<_>>()
                .join(" ")
        );
    }
    let mut did = packages(PACKAGES, args.dry_run, verbose)?;
    did |= components(args.dry_run)?;
    did |= linker(args.dry_run, verbose)?;
    if !args.no_kernels {
        did |= kernels(args.dry_run)?;
    }
    Ok(did)
}

/// Which of `names` dpkg does not know as installed.
fn missing<'a>(names: &[&'a str]) -> Result<Vec<&'a str>> {
    let output = Command::new("dpkg-query")
        .args(["-W", "-f", "${binary:Package} ${db:Status-Status}\n"])
        .args(names)
        .output()
        .context("cannot run dpkg-query")?;
    Ok(not_installed(names, &String::from_utf8_lossy(&output.stdout)))
}

/// Names that `listing` (lines of package and status) does not have as installed.
fn not_installed<'a>(names: &[&'a str], listing: &str) -> Vec<&'a str> {
    let installed = |name: &str| {
        listing.lines().any(|line| {
            let (package, status) = line.split_once(' ').unwrap_or((line, ""));
            package.split(':').next() == Some(name) && status == "installed"
        })
    };
    names.iter().copied().filter(|name| !installed(name)).collect()
}

fn packages(wanted: &[(&str, &[&str])], dry_run: bool, verbose: bool) -> Result<bool> {
    let names: Vec<&str> = wanted.iter().flat_map(|(_, names)| *names).copied().collect();
    let lacking = missing(&names)?;
    if lacking.is_empty() {
        return Ok(false);
    }
    if verbose || dry_run {
        for (why, group) in wanted {
            let some: Vec<&str> = group
                .iter()
                .copied()
                .filter(|name| lacking.contains(name))
                .collect();
            if !some.is_empty() {
                eprintln!("setup: to {why}: {}", some.join(" "));
            }
        }
    }
    if dry_run {
        return Ok(true);
    }
    step::run("setup: apt-get update", as_root("apt-get").arg("update"))?;
    let mut install = as_root("apt-get");
    install
        .args(["install", "--yes", "--no-install-recommends"])
        .args(&lacking);
    step::run(
        &format!("setup: apt-get install ({} packages)", lacking.len()),
        &mut install,
    )?;
    Ok(true)
}

/// A command as root: through sudo only when we are not.
fn as_root(program: &str) -> Command {
    let root = Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|out| out.stdout.trim_ascii() == b"0");
    let mut command = if root {
        Command::new("env")
    } else {
        let mut sudo = Command::new("sudo");
        sudo.arg("env");
        sudo
    };
    command.args(["DEBIAN_FRONTEND=noninteractive", program]);
    command
}

/// rustfmt and clippy of the rustup toolchain.
fn components(dry_run: bool) -> Result<bool> {
    let there = |name: &str| {
        Command::new("cargo")
            .args([name, "--version"])
            .output()
            .is_ok_and(|out| out.status.success())
    };
    let lacking: Vec<&str> = [("fmt", "rustfmt"), ("clippy", "clippy")]
        .iter()
        .filter(|(verb, _)| !there(verb))
        .map(|(_, c)| *c)
        .collect();
    if lacking.is_empty() {
        return Ok(false);
    }
    eprintln!("setup: to check style: rustup components {}", lacking.join(" "));
    if !dry_run {
        step::run(
            "setup: rustup component add",
            Command::new("rustup").args(["component", "add"]).args(&lacking),
        )?;
    }
    Ok(true)
}

/// Major version in the "LLVM version: 22.1.8" line of `rustc -vV`.
fn llvm_major(version: &str) -> Option<u32> {
    version.lines().find_map(|line| {
        line.strip_prefix("LLVM version: ")?
            .split('.')
            .next()?
            .parse()
            .ok()
    })
}

fn linker(dry_run: bool, verbose: bool) -> Result<bool> {
    let home = std::env::var_os("HOME")
        .map(std::path::PathBuf::from)
        .unwrap_or_default();
    let found = paths::find_tool(&["bpf-linker"]).unwrap_or_else(|| home.join(".cargo/bin/bpf-linker"));
    // Run, not only seen: it is bound to one LLVM library, which an upgrade may have taken away.
    let works = Command::new(&found).arg("--version").output();
    if works.is_ok_and(|out| out.status.success()) {
        return Ok(false);
    }
    let rustc = Command::new("/usr/bin/rustc").arg("-vV").output();
    let major = rustc
        .ok()
        .and_then(|out| llvm_major(&String::from_utf8_lossy(&out.stdout)));
    eprintln!("setup: to link the eBPF programs: bpf-linker {LINKER}, against the LLVM of Debian's rustc");
    if dry_run {
        return Ok(true);
    }
    let major = major.context("Debian's rustc does not tell its LLVM version (/usr/bin/rustc -vV)")?;
    let (dev, polly) = (format!("llvm-{major}-dev"), format!("libpolly-{major}-dev"));
    let names: &[&str] = &[&dev, &polly, "zlib1g-dev", "libzstd-dev", "libxml2-dev", "g++"];
    packages(&[("build bpf-linker", names)], false, verbose)?;
    let mut install = Command::new("cargo");
    install
        .args([
            "install",
            "bpf-linker",
            "--version",
            LINKER,
            "--force",
            "--locked",
            "--no-default-features",
            "--features",
        ])
        .arg(format!("llvm-{major}"))
        .env("LLVM_PREFIX", format!("/usr/lib/llvm-{major}"))
        // It is built for this machine, whatever the caller builds for, and not into the caller's directory.
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("RUSTFLAGS");
    step::run("setup: cargo install bpf-linker (about a minute)", &mut install)?;
    Ok(true)
}

fn kernels(dry_run: bool) -> Result<bool> {
    let lacking: Vec<_> = kernel::ALL
        .into_iter()
        .filter(|series| !kernel::is_cached(*series))
        .collect();
    if lacking.is_empty() {
        return Ok(false);
    }
    let names: Vec<&str> = lacking.iter().map(|series| series.name).collect();
    eprintln!(
        "setup: to test on real kernels: Linux {} from Debian, some 100 MB each",
        names.join(", ")
    );
    if !dry_run {
        for series in lacking {
            kernel::ensure(series)?;
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_package_is_missing_and_an_architecture_is_no_part_of_a_name() {
        let listing = "gcc installed\nlibc6-dev:amd64 installed\ntmux config-files\n";
        assert_eq!(
            not_installed(&["gcc", "libc6-dev", "tmux", "perftest"], listing),
            ["tmux", "perftest"]
        );
    }

    #[test]
    fn the_llvm_version_is_read_from_rustc() {
        assert_eq!(llvm_major("rustc 1.96.0\nLLVM version: 22.1.8\n"), Some(22));
        assert_eq!(llvm_major("rustc 1.96.0\n"), None);
    }
}
