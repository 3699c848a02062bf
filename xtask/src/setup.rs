//! `cargo xtask setup`: installs everything on a Debian machine with a rustup stable toolchain that is needed
//! to build and run. Ubuntu has no compiler for the bpf target, so rustup's nightly is used there.
//!
//! It checks first, so that a complete machine costs only milliseconds, and changes only what is missing.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::{
    apt,
    arch::Arch,
    ebpf_toolchain,
    lab::{headers, kernel, modules, newer_qemu},
    step,
};

/// The bpf-linker version whose features name LLVM 21 to 23, which includes those of Debian's rustc and of
/// rustup's nightly.
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

/// Packages, and what needs them.
type Group = (&'static str, &'static [&'static str]);

/// The core library for the bpf target.
const CORE: &str = "libstd-rust-web-dev-bpf";

/// Not in Ubuntu, and not needed if there is a rustup nightly with rust-src.
const COMPILER: Group = (
    "compile the eBPF programs",
    &["rustc-web", "cargo-web", CORE, "rust-web-clippy"],
);

/// What `cargo xtask demo` needs of Debian's packages, and what for.
const OF_THE_DEMO: &[Group] = &[
    ("link Rust programs", &["gcc", "libc6-dev"]),
    (
        "run the lab's virtual machine",
        &["qemu-system-x86", "busybox-static", "kmod", "xz-utils", "zstd"],
    ),
    (
        "make RDMA traffic",
        &["perftest", "rdma-core", "ibverbs-providers", "iproute2"],
    ),
];

/// The other Debian packages, and what needs them.
const OTHERS: &[Group] = &[
    ("compile the tests' C", &["pkg-config"]),
    ("build the tests' kernel modules", &["make", "binutils", "pahole"]),
    (
        "make the tests' traffic",
        &[
            "ibverbs-utils",
            "libibverbs-dev",
            "librdmacm-dev",
            "rdmacm-utils",
            "python3-pyverbs",
            "iputils-ping",
        ],
    ),
    (
        "run what examples/ describes",
        &["ucx-utils", "libfabric-bin", "openmpi-bin", "python3-mpi4py"],
    ),
    (
        "try the commands of remedies",
        &[
            "ethtool",
            "infiniband-diags",
            "libcap2-bin",
            "nftables",
            "pciutils",
            "psmisc",
        ],
    ),
    ("drive a terminal in tests", &["tmux", "procps", "strace"]),
    ("compare in benchmarks", &["bpftrace"]),
];

/// Runs the command.
pub(crate) fn main(args: SetupArgs) -> Result<u8> {
    let did = ensure(args, true)?;
    let outcome = match (args.dry_run, did) {
        (true, true) => "the above is missing; nothing was changed",
        (true, false) => "nothing is missing",
        (false, true) => "complete",
        (false, false) => "nothing was missing",
    };
    eprintln!("setup: {outcome}");
    Ok(0)
}

/// Installs all that is missing except the lab's kernels, which a lab downloads when it boots them.
pub(crate) fn without_kernels() -> Result<bool> {
    let args = SetupArgs {
        no_kernels: true,
        ..SetupArgs::default()
    };
    ensure(args, true)
}

/// Installs the packages of the demo. [`ebpf`] installs the rest of what it needs.
pub(crate) fn packages_of_the_demo() -> Result<bool> {
    packages(&wanted(OF_THE_DEMO.to_vec())?, false, true)
}

/// Installs what compiles and links the eBPF programs, after the packages.
pub(crate) fn ebpf() -> Result<bool> {
    Ok(compiler(false)? | linker(false, true)?)
}

/// Adds the compiler for the bpf target to `groups`, unless there is another one.
fn wanted(mut groups: Vec<Group>) -> Result<Vec<Group>> {
    if !Path::new("/usr/bin/dpkg-query").is_file() {
        bail!(
            "this is no Debian-like machine: setup installs Debian packages. What is needed: {}; bpf-linker {LINKER}",
            groups
                .iter()
                .chain([&COMPILER])
                .flat_map(|(_, names)| *names)
                .copied()
                .collect::<Vec<_>>()
                .join(" ")
        );
    }
    let debian = Path::new("/usr/bin");
    if ebpf_toolchain::compiler().map_or(true, |bin| bin == debian) {
        groups.push(COMPILER);
    }
    Ok(groups)
}

/// Installs what is missing; returns whether anything was.
pub(crate) fn ensure(args: SetupArgs, verbose: bool) -> Result<bool> {
    let wanted = wanted([OF_THE_DEMO, OTHERS].concat())?;
    let mut did = packages(&wanted, args.dry_run, verbose)?;
    did |= compiler(args.dry_run)?;
    did |= components(args.dry_run)?;
    did |= linker(args.dry_run, verbose)?;
    if !args.no_kernels {
        did |= kernels(args.dry_run)?;
        did |= kernel_headers(args.dry_run);
        if !args.dry_run {
            newer_qemu::fetch_if_missing(Arch::X86_64);
        }
    }
    Ok(did)
}

/// Returns which of `names` dpkg does not list as installed.
fn missing<'a>(names: &[&'a str]) -> Result<Vec<&'a str>> {
    let output = Command::new("dpkg-query")
        .args(["-W", "-f", "${binary:Package} ${db:Status-Status}\n"])
        .args(names)
        .output()
        .context("cannot run dpkg-query")?;
    Ok(not_installed(names, &String::from_utf8_lossy(&output.stdout)))
}

/// Returns the names that `listing` (lines of package and status) does not show as installed.
fn not_installed<'a>(names: &[&'a str], listing: &str) -> Vec<&'a str> {
    let installed = |name: &str| {
        listing.lines().any(|line| {
            let (package, status) = line.split_once(' ').unwrap_or((line, ""));
            package.split(':').next() == Some(name) && status == "installed"
        })
    };
    names.iter().copied().filter(|name| !installed(name)).collect()
}

/// Installs missing packages; returns whether any was missing.
pub(crate) fn packages(wanted: &[(&str, &[&str])], dry_run: bool, verbose: bool) -> Result<bool> {
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
    ask_for_sudo(&lacking)?;
    // Without this, apt only warns of a failed fetch. The fetch may be of an archive that is not needed.
    let update = ["-o", "APT::Update::Error-Mode=any", "update"];
    let lists = step::run("setup: apt-get update", as_root("apt-get").args(update)).map_err(apt::explained);
    // apt-get installs nothing at all if it does not know one of the packages.
    let (there, absent): (Vec<&str>, Vec<&str>) = lacking.into_iter().partition(|name| is_in_apt(name));
    let up_to_date = lists.is_ok();
    match lists {
        Err(error) if there.is_empty() => return Err(error),
        Err(error) => eprintln!("{error:#}; going on with the package lists there are"),
        Ok(_) => {}
    }
    if !absent.is_empty() {
        eprintln!("setup: not in this machine's apt: {}", absent.join(" "));
    }
    if up_to_date && absent.contains(&CORE) && is_debian_12() {
        bail!(
            "Debian 12 has {CORE} in its security archive alone: add the suite bookworm-security to apt's sources, and \
             run this again"
        );
    }
    if there.is_empty() {
        return Ok(true);
    }
    let mut install = as_root("apt-get");
    install
        .args(["install", "--yes", "--no-install-recommends"])
        .args(&there);
    step::run(
        &format!("setup: apt-get install ({} packages)", there.len()),
        &mut install,
    )
    .map_err(apt::explained)?;
    Ok(true)
}

/// Whether this machine runs Debian 12.
pub(crate) fn is_debian_12() -> bool {
    is_of_debian_12(&fs::read_to_string("/etc/os-release").unwrap_or_default())
}

/// Whether an /etc/os-release is that of Debian 12.
fn is_of_debian_12(os_release: &str) -> bool {
    let has = |line| os_release.lines().any(|there| there == line);
    has("ID=debian") && has("VERSION_CODENAME=bookworm")
}

fn is_in_apt(name: &str) -> bool {
    Command::new("apt-cache")
        .args(["policy", name])
        .env("LC_ALL", "C")
        .output()
        .is_ok_and(|out| has_candidate(&String::from_utf8_lossy(&out.stdout)))
}

/// Whether the output of `apt-cache policy` shows an installable version.
fn has_candidate(policy: &str) -> bool {
    policy
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Candidate: "))
        .any(|version| version != "(none)")
}

/// Whether this process runs as root.
pub(crate) fn is_root() -> bool {
    Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|out| out.stdout.trim_ascii() == b"0")
}

/// Lets sudo ask for a password on the terminal now, because the following steps show a clock there.
fn ask_for_sudo(lacking: &[&str]) -> Result<()> {
    let may = || {
        Command::new("sudo")
            .arg("-v")
            .status()
            .is_ok_and(|status| status.success())
    };
    if is_root() || may() {
        return Ok(());
    }
    bail!(
        "neither root nor sudo: as root run apt-get install {}, then this again",
        lacking.join(" ")
    );
}

/// Installs a rustup nightly with the source of the core library if there is still no compiler for the bpf
/// target.
fn compiler(dry_run: bool) -> Result<bool> {
    let Err(missing) = ebpf_toolchain::compiler() else {
        return Ok(false);
    };
    if dry_run {
        return Ok(true);
    }
    let mut install = Command::new("rustup");
    install.args(["toolchain", "install", "nightly", "--profile", "minimal"]);
    install.args(["--component", "rust-src", "--component", "clippy"]);
    step::run(
        "setup: to compile the eBPF programs: rustup's nightly",
        &mut install,
    )
    .context(missing)?;
    Ok(true)
}

/// Returns a command that runs as root, through sudo if necessary.
fn as_root(program: &str) -> Command {
    let mut command = if is_root() {
        Command::new("env")
    } else {
        let mut sudo = Command::new("sudo");
        sudo.arg("env");
        sudo
    };
    command.args(["DEBIAN_FRONTEND=noninteractive", program]);
    command
}

/// Installs rustfmt and clippy for the rustup toolchain.
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

/// Returns the major version in the line "LLVM version: 22.1.8" of `rustc -vV`.
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
    // It is started, not only looked for: it needs one LLVM library, which an upgrade may have removed.
    let works = |found| Command::new(found).arg("--version").output();
    if ebpf_toolchain::find_in_path("bpf-linker")
        .is_some_and(|found| works(found).is_ok_and(|out| out.status.success()))
    {
        return Ok(false);
    }
    let rustc = ebpf_toolchain::compiler().map(|bin| bin.join("rustc"));
    let major = rustc
        .ok()
        .and_then(|rustc| Command::new(rustc).arg("-vV").output().ok())
        .and_then(|out| llvm_major(&String::from_utf8_lossy(&out.stdout)));
    eprintln!("setup: to link the eBPF programs: bpf-linker {LINKER}, against the LLVM of the compiler");
    if dry_run {
        return Ok(true);
    }
    let major =
        major.context("the compiler for the bpf target does not tell its LLVM version (rustc -vV)")?;
    let library = format!("libllvm{major}");
    let names: &[&str] = &[&library];
    packages(&[("link with LLVM", names)], false, verbose)?;
    let found = llvm(major).with_context(|| {
        format!(
            "bpf-linker cannot be built here without {library}: take a built one, whose LLVM is {major} or newer (`cargo \
             install cargo-binstall && cargo binstall bpf-linker`), and run this again"
        )
    })?;
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
        .arg(format!("llvm-{major},no-llvm-linking"))
        .env("RUSTFLAGS", format!("-Clink-arg={}", found.display()))
        // Nearly all of its work is LLVM's, which is compiled already. So it takes 30 s of a CPU and not 72,
        // and links the programs in the same time.
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        // It is built for this machine and outside the caller's target directory, whatever the caller builds.
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    step::run("setup: cargo install bpf-linker (half a minute)", &mut install)?;
    Ok(true)
}

/// Finds the library of LLVM `major` that the compiler loads. Debian has a name without a version only in the
/// package for developers, of 400 MB, of which bpf-linker needs nothing.
fn llvm(major: u32) -> Option<PathBuf> {
    let name = format!("libLLVM.so.{major}.");
    let libraries = fs::read_dir(format!("/usr/lib/{}-linux-gnu", env::consts::ARCH)).ok()?;
    let mut libraries = libraries.flatten();
    libraries
        .find(|entry| entry.file_name().to_string_lossy().starts_with(&name))
        .map(|entry| entry.path())
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

/// Fetches the headers for the tests' kernel modules. Their tests are skipped without them, so a failure is
/// only reported.
fn kernel_headers(dry_run: bool) -> bool {
    let lacking: Vec<_> = kernel::ALL
        .into_iter()
        .filter(|series| modules::has_test_drivers(*series))
        .filter_map(|series| Some((series, kernel::cached(series)?)))
        .filter(|(_, kernel)| !headers::is_cached(kernel))
        .collect();
    if lacking.is_empty() {
        return false;
    }
    let names: Vec<&str> = lacking.iter().map(|(series, _)| series.name).collect();
    eprintln!(
        "setup: to build the tests' kernel modules: headers of Linux {}, some 20 MB each",
        names.join(", ")
    );
    for (series, kernel) in lacking.iter().filter(|_| !dry_run) {
        if let Err(error) = headers::fetch_if_missing(*series, kernel) {
            eprintln!("{error:#}");
        }
    }
    true
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
    fn a_package_without_a_candidate_is_not_asked_for() {
        assert!(has_candidate(
            "gcc:\n  Installed: (none)\n  Candidate: 4:12.2.0-3\n"
        ));
        // A package known by name only, and an unknown one.
        assert!(!has_candidate(
            "rustc-web:\n  Installed: (none)\n  Candidate: (none)\n"
        ));
        assert!(!has_candidate(""));
    }

    #[test]
    fn debian_12_is_told_from_its_heirs() {
        let debian = "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nVERSION_CODENAME=bookworm\nID=debian\n";
        assert!(is_of_debian_12(debian));
        assert!(!is_of_debian_12(&debian.replace("bookworm", "trixie")));
        assert!(!is_of_debian_12(
            &debian.replace("ID=debian", "ID=other\nID_LIKE=debian")
        ));
    }

    #[test]
    fn the_llvm_version_is_read_from_rustc() {
        assert_eq!(llvm_major("rustc 1.96.0\nLLVM version: 22.1.8\n"), Some(22));
        assert_eq!(llvm_major("rustc 1.96.0\n"), None);
    }
}
