//! The lab: QEMU guests with real Debian kernels and `SoftRoCE` devices.

pub(crate) mod archive;
mod cpio;
pub(crate) mod headers;
pub(crate) mod image;
pub(crate) mod initramfs;
mod job;
mod kbuild;
pub(crate) mod kernel;
mod kernel_build;
mod linux_source;
mod module_btf;
pub(crate) mod modules;
pub(crate) mod newer_qemu;
pub(crate) mod nic;
mod own_libc;
mod qemu;
pub(crate) mod root;
mod stream;
mod tty;
pub(crate) mod vm;

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand};

use self::job::Job;
use self::kernel::Series;
use self::linux_source::SIW;
use self::nic::Nic;
use self::qemu::Accel;
use self::vm::{End, Machine};
use crate::arch::Arch;
use crate::paths;

/// Exit status when the job ran out of time, the same as of timeout(1).
const EXIT_TIMEOUT: u8 = 124;
/// Exit status when the guest could not run the job.
const EXIT_LAB: u8 = 125;
/// The line that `run --cpu-time` prints, before the seconds.
pub(crate) const CPU_TIME: &str = "lab: seconds of CPU time: ";
/// Exit status when QEMU itself failed.
pub(crate) const EXIT_QEMU: u8 = 123;

/// `cargo xtask lab ...`
#[derive(Subcommand)]
pub(crate) enum LabCommand {
    /// Run a command as root in a guest; its output and exit status are the command's
    Run(RunArgs),
    /// Open a shell as root in a guest (Ctrl-] three times ends a hung one)
    Shell(ShellArgs),
    /// Fetch kernels and their headers into the cache, so that later runs need no network
    Fetch {
        /// Kernel to fetch: 5.10, 6.1, 6.12, 7.2, or all
        #[arg(long, default_value = "all")]
        kernel: String,
        /// The machine of the guests: for aarch64 kernels 6.1, 6.12, 6.12-16k, 6.12-64k (which is built here)
        /// and 7.2, and the guests' programs
        #[arg(long, value_enum, default_value_t)]
        arch: Arch,
    },
    /// Build the test drivers of tests/kmod and the kernel's siw, which `run` and `shell` then hand to the
    /// guest in $RDMATOP_KMOD and $RDMATOP_SIW
    Modules {
        /// Kernel to build for: 6.1, 6.12, 7.2, or all
        #[arg(long, default_value = "all")]
        kernel: String,
    },
    /// List the lab's kernels
    List,
}

/// Returns the command that runs `cargo xtask lab run` of this very program with these options. The caller
/// adds `--` and the command for the guest.
pub(crate) fn command(series: Series, timeout: u64, options: &[&str]) -> Result<Command> {
    let mut lab = Command::new(env::current_exe().context("cannot tell what program this is")?);
    lab.args([
        "lab",
        "run",
        "--arch",
        series.arch.name(),
        "--kernel",
        series.name,
        "--timeout",
        &timeout.to_string(),
    ])
    .args(options);
    Ok(lab)
}

/// What both `run` and `shell` take.
#[derive(Args, Clone)]
pub(crate) struct GuestArgs {
    /// Kernel: 5.10, 6.1, 6.12 or 7.2 (the newest of Debian unstable); for aarch64 6.1, 6.12, 6.12-16k,
    /// 6.12-64k (which is built here) or 7.2
    #[arg(long, default_value = "6.12")]
    pub(crate) kernel: String,
    /// The guest's machine. One for aarch64 is always translated, with a root of Debian packages of its own
    /// in which this repository and the build directory are at the same paths
    #[arg(long, value_enum, default_value_t)]
    pub(crate) arch: Arch,
    /// Number of `SoftRoCE` devices rxe0, rxe1, ..., each over a dummy interface with address 10.77.N.1
    /// [default: 1; with --nic 0]
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..=250))]
    pub(crate) devices: Option<u32>,
    /// A NIC to which programs post without entering the kernel (Linux 6.1 and 6.12)
    #[arg(long, value_enum)]
    pub(crate) nic: Option<Nic>,
    /// Also lay a veth wire between two devices rxa (10.78.0.1) and rxb (10.78.0.2): tc netem works on it
    #[arg(long)]
    pub(crate) wire: bool,
    /// Number of CPUs [default: 2; with --icount 1]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) cpus: Option<u32>,
    /// Memory in MiB
    #[arg(long, default_value_t = 2048)]
    pub(crate) memory: u32,
    /// Count instructions: one nanosecond of the guest's clock is one instruction
    #[arg(long)]
    pub(crate) icount: bool,
    /// Run all CPUs in turn on one thread: slower, and safe where probes come and go under traffic
    #[arg(long, conflicts_with = "icount")]
    pub(crate) single_threaded: bool,
}

/// `cargo xtask lab run`
#[derive(Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    guest: GuestArgs,
    /// End the guest when the command has run this many seconds (exit status 124)
    #[arg(long, default_value_t = 600)]
    timeout: u64,
    /// Give the command a terminal
    #[arg(long)]
    tty: bool,
    /// At the end print how much CPU time the guest took
    #[arg(long)]
    cpu_time: bool,
    /// The command
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// `cargo xtask lab shell`
#[derive(Args)]
pub(crate) struct ShellArgs {
    #[command(flatten)]
    guest: GuestArgs,
}

/// Runs a lab command and returns its exit status.
pub(crate) fn main(command: LabCommand) -> Result<u8> {
    match command {
        LabCommand::Run(args) => {
            let timeout = Some(Duration::from_secs(args.timeout));
            let code = run_job(&args.guest, args.command, args.tty, timeout);
            if args.cpu_time
                && let Some(seconds) = cpu_of_children()
            {
                eprintln!("{CPU_TIME}{seconds:.1}");
            }
            code
        }
        LabCommand::Shell(args) => {
            // No start-up files are read, because the host's may take long where instructions are translated.
            let prompt = format!("PS1=lab {} \\w# ", args.guest.kernel);
            let command = ["env", &prompt, "bash", "--norc", "-i"]
                .map(OsString::from)
                .to_vec();
            run_job(&args.guest, command, true, None)
        }
        LabCommand::Fetch { kernel, arch } => {
            for series in kernel::named(arch, &kernel)? {
                let fetched = kernel::ensure(series)?;
                if modules::has_test_drivers(series) {
                    headers::fetch_if_missing(series, &fetched)?;
                }
                println!("{:8} {}", series.name, fetched.release);
            }
            newer_qemu::fetch_if_missing(arch);
            if arch != Arch::X86_64 {
                root::ensure(arch)?;
            }
            Ok(0)
        }
        LabCommand::Modules { kernel } => {
            for series in kernel::named(Arch::X86_64, &kernel)? {
                if modules::has_test_drivers(series) {
                    for (what, place) in build_modules(series, |_| true)? {
                        let place = place.with_context(|| format!("no {what}"))?;
                        println!("{:5} {}", series.name, place.display());
                    }
                } else {
                    println!(
                        "{:5} none: the test drivers need Linux 5.14 or newer",
                        series.name
                    );
                }
            }
            Ok(0)
        }
        LabCommand::List => {
            vm::print_cached();
            Ok(0)
        }
    }
}

/// Returns the CPU seconds of the child processes waited for: QEMU, and module builds before it.
fn cpu_of_children() -> Option<f64> {
    // proc(5): times are in hundredths of a second. The last parenthesis ends the process name.
    let text = fs::read_to_string("/proc/self/stat").ok()?;
    let (_, numbers) = text.rsplit_once(')')?;
    let mut numbers = numbers.split_whitespace().skip(13);
    let mut next = || numbers.next()?.parse::<f64>().ok();
    Some((next()? + next()?) / 100.0)
}

/// Builds the modules that tests need on a kernel, which is fetched first, and whose names `needs` accepts.
/// Returns for each its name and its path or the error; an error does not keep the other from being built.
pub(crate) fn build_modules(
    series: Series,
    needs: impl Fn(&str) -> bool,
) -> Result<Vec<(&'static str, Result<PathBuf>)>> {
    let kernel = kernel::ensure(series)?;
    let build = |what: &'static str| {
        let built = match what {
            "siw" => SIW.ensure(series, &kernel),
            _ => modules::test_drivers().and_then(|drivers| drivers.ensure(series, &kernel)),
        };
        (what, built)
    };
    let wanted = ["test drivers", "siw"].into_iter().filter(|what| needs(what));
    Ok(wanted.map(build).collect())
}

/// Boots a guest for `command` and returns the exit status for this process.
pub(crate) fn run_job(
    guest: &GuestArgs,
    command: Vec<OsString>,
    tty: bool,
    timeout: Option<Duration>,
) -> Result<u8> {
    if !cfg!(target_arch = "x86_64") {
        bail!("the lab boots x86_64 kernels and needs an x86_64 machine");
    }
    let series = kernel::find_for(guest.arch, &guest.kernel)?;
    let mut kernel = kernel::ensure(series)?;
    let foreign = guest.arch != Arch::X86_64;
    if foreign {
        newer_qemu::fetch_if_missing(guest.arch);
        // This machine's links do not exist in the guest.
        kernel.dir = real(&kernel.dir)?;
    }
    let nic = guest
        .nic
        .map(|nic| nic::ensure(nic, series, &kernel))
        .transpose()?;
    let mut target = paths::target();
    let mut repo = paths::repo();
    if foreign {
        fs::create_dir_all(&target).with_context(|| format!("cannot create {}", target.display()))?;
        (target, repo) = (real(&target)?, real(&repo)?);
    }
    let out =
        env::var_os("RDMATOP_LAB_OUT").map_or_else(|| target.join("lab-out"), |dir| paths::repo().join(dir));
    let terminal = tty.then(|| tty::size().unwrap_or((24, 80)));
    let built = match guest.arch {
        Arch::X86_64 => target.clone(),
        Arch::Aarch64 => target.join(guest.arch.triple()),
    };
    let mut env = environment(&built, &out);
    let mut keep = vec![target];
    if foreign {
        let program = env.iter().find(|(name, _)| *name == "RDMATOP");
        let dir = program.and_then(|(_, file)| Path::new(file).parent());
        keep.extend(dir.map(real).transpose()?);
    }
    let test_drivers = modules::test_drivers().ok();
    if let Some(dir) = test_drivers.and_then(|drivers| drivers.built(&kernel)) {
        env.push(("RDMATOP_KMOD", dir.clone().into()));
        keep.push(dir);
    }
    if let Some(module) = SIW.built(&kernel) {
        keep.extend(module.parent().map(Path::to_path_buf));
        env.push(("RDMATOP_SIW", module.into()));
    }
    keep.extend(
        nic.iter()
            .filter_map(|nic| nic.driver.parent().map(Path::to_path_buf)),
    );
    let job = Job {
        command,
        env,
        dir: repo,
        foreign,
        keep,
        out,
        devices: guest.devices.unwrap_or(u32::from(nic.is_none())),
        nic,
        wire: guest.wire,
        terminal,
        marker: vm::marker(),
    };
    let machine = Machine {
        accel: accel(guest)?,
        cpus: guest.cpus.unwrap_or(if guest.icount { 1 } else { 2 }),
        memory: guest.memory,
        timeout,
    };
    Ok(match vm::run(&kernel, machine, &job)? {
        End::Exit(code) => code,
        End::Timeout => {
            let seconds = timeout.unwrap_or_default().as_secs();
            eprintln!(
                "lab: the command ran longer than {seconds} s on Linux {}: guest ended",
                kernel.release
            );
            EXIT_TIMEOUT
        }
        End::BootFailed(reason) => {
            eprintln!("lab: Linux {} did not come up: {reason}", kernel.release);
            EXIT_LAB
        }
        End::Died => {
            eprintln!("lab: Linux {} died while the command ran", kernel.release);
            EXIT_LAB
        }
        End::Mistranslated => {
            eprintln!(
                "lab: Linux {} died where it was changing its own code for a probe or a static branch, as it does under QEMU's \
                 translator with two CPUs, whoever sets the probe; run it again, or with --single-threaded",
                kernel.release
            );
            EXIT_QEMU
        }
        End::Escaped => {
            eprintln!("lab: guest ended by Ctrl-]");
            EXIT_LAB
        }
    })
}

/// Resolves all links of a path.
fn real(path: &Path) -> Result<PathBuf> {
    fs::canonicalize(path).with_context(|| format!("cannot resolve {}", path.display()))
}

/// Returns how instructions are executed.
fn accel(guest: &GuestArgs) -> Result<Accel> {
    if guest.icount {
        return Ok(Accel::Icount);
    }
    match env::var("RDMATOP_LAB_ACCEL").as_deref() {
        // The host's CPU notices changed code by itself, so one thread is not needed.
        Ok("kvm") if guest.arch == Arch::X86_64 => Ok(Accel::Kvm),
        Ok("kvm" | "tcg") | Err(_) if guest.single_threaded => Ok(Accel::Single),
        Ok("kvm" | "tcg") | Err(_) => Ok(Accel::Tcg),
        Ok(other) => bail!("RDMATOP_LAB_ACCEL={other}: choose tcg or kvm"),
    }
}

/// Returns the job's environment: small and the same everywhere. `target` has the guest's programs.
fn environment(target: &Path, out: &Path) -> Vec<(&'static str, OsString)> {
    let mut profiles: Vec<(SystemTime, PathBuf)> = ["debug", "release"]
        .map(|profile| target.join(profile))
        .into_iter()
        .map(|dir| {
            let built = fs::metadata(dir.join("rdmatop")).and_then(|meta| meta.modified());
            (built.unwrap_or(SystemTime::UNIX_EPOCH), dir)
        })
        .collect();
    // The profile that was built last is meant.
    profiles.sort_by_key(|(built, _)| std::cmp::Reverse(*built));
    let mut path = OsString::new();
    for (_, dir) in &profiles {
        path.push(dir);
        path.push(":");
    }
    path.push("/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    let mut env: Vec<(&'static str, OsString)> = vec![
        ("PATH", path),
        ("HOME", "/root".into()),
        ("USER", "root".into()),
        ("SHELL", "/bin/bash".into()),
        ("LANG", "C.UTF-8".into()),
        ("TERM", env::var_os("TERM").unwrap_or_else(|| "dumb".into())),
        ("RDMATOP_LAB", "1".into()),
        // Loading programs takes seconds where instructions are translated, and longer if other guests use
        // the CPU.
        ("RDMATOP_PATIENCE", "20".into()),
        ("RDMATOP_LAB_OUT", out.into()),
    ];
    for name in ["COLORTERM", "NO_COLOR", "RUST_BACKTRACE", "RUST_LOG"] {
        env.extend(env::var_os(name).map(|value| (name, value)));
    }
    // The program that the caller names, or else the newest.
    let named = env::var_os("RDMATOP").map(|file| paths::repo().join(file));
    let newest = profiles.first().map(|(_, dir)| dir.join("rdmatop"));
    env.extend(
        named
            .or_else(|| newest.filter(|file| file.is_file()))
            .map(|file| ("RDMATOP", file.into_os_string())),
    );
    env
}
