//! `cargo xtask test`: everything that must pass, from style to four real kernels.

use std::{
    env,
    fmt::Write as _,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::{
    ebpf, equality,
    lab::{
        self,
        kernel::{self, Series},
        modules, nic,
    },
    lints, paths,
    setup::{self, SetupArgs},
    step,
};

/// `cargo xtask test`
#[derive(Args, Clone, Default)]
pub(crate) struct TestArgs {
    /// Only this kernel: 5.10, 6.1, 6.12 or 7.2; may be repeated
    #[arg(long)]
    kernel: Vec<String>,
    /// Style and unit tests only, no virtual machine
    #[arg(long, conflicts_with = "only_lab")]
    no_lab: bool,
    /// Kernel tests only
    #[arg(long)]
    only_lab: bool,
    /// Seconds that one kernel's tests may take
    #[arg(long, default_value_t = 1800)]
    timeout: u64,
    /// Only tests whose name contains this
    filter: Option<String>,
}

/// The kernel on which that is tested which does not depend on the kernel.
const ONE_KERNEL: &str = "6.12";
/// Test executables for which one kernel is enough: the tests' own traffic programs, floods of events, what is missing on a
/// machine, terminals and signals, and `rdmatop lab`. With `--kernel` they run on that one too.
const ON_ONE_KERNEL: [&str; 5] = [
    "traffic-",
    "flood-",
    "degrade-",
    "faults_terminal-",
    "lab_command-",
];
/// Test executables with a guest of their own.
struct Alone {
    /// Beginnings of their names, in the order in which they run.
    prefixes: &'static [&'static str],
    /// Options of `lab run`.
    options: &'static [&'static str],
    /// Whether a kernel can have such a guest.
    has: fn(Series) -> bool,
}

const ALONE: [Alone; 3] = [
    // They turn switches of the whole kernel, or let programs come and go under traffic: what a switch leaves behind would be
    // everybody's. One CPU, because the code that all kprobes go through is patched by them, and QEMU's translator may go on
    // with the old code on another CPU: then no kprobe runs there any more, or the guest dies. The last one locks the kernel
    // down, for which there is no way back.
    Alone {
        prefixes: &["degrade-", "faults_host-", "presence-", "skips-", "lockdown-"],
        options: &["--cpus", "1"],
        has: |_| true,
    },
    // A machine without SoftRoCE.
    Alone {
        prefixes: &["testnic-"],
        options: &["--devices", "0"],
        has: modules::has_test_drivers,
    },
    // A NIC that the kernel does not see at work.
    Alone {
        prefixes: &["bypass-"],
        options: &["--nic", "pvrdma"],
        has: nic::is_for,
    },
];

/// Counts of one part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    passed: u64,
    failed: u64,
    skipped: u64,
    /// Of all these, tests: style and builds are none.
    tests: u64,
    /// Skips that were printed, of a run whose result line has not come yet.
    pending: u64,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.tests += other.tests;
    }

    /// Takes what a line of a test run says: libtest's result lines, and the skips that kernel tests print (libtest
    /// has counted those as passed).
    fn line(&mut self, line: &str) {
        if let Some(rest) = line.strip_prefix("test result: ") {
            let count = |what: &str| {
                rest.split([';', '.'])
                    .find_map(|part| part.trim().strip_suffix(what)?.trim().parse::<u64>().ok())
                    .unwrap_or(0)
            };
            let (passed, failed, ignored) = (count("passed"), count("failed"), count("ignored"));
            self.tests += passed + failed + ignored;
            // A skip that is no test's alone, such as of a part of one, makes no test less that passed.
            let skipped = std::mem::take(&mut self.pending).min(passed);
            self.passed += passed - skipped;
            self.failed += failed;
            self.skipped += skipped + ignored;
        } else if line.contains("SKIPPED ") {
            self.pending += 1;
        }
    }
}

/// Runs the command.
pub(crate) fn main(args: &TestArgs) -> Result<u8> {
    // Before minutes are spent on the rest.
    for name in &args.kernel {
        kernel::find(name)?;
    }
    setup::ensure(SetupArgs::default(), true)?;
    let mut parts: Vec<(String, Tally, f64)> = Vec::new();
    if !args.only_lab {
        let started = Instant::now();
        let tally = style_and_units(args)?;
        parts.push((
            "style and unit tests".into(),
            tally,
            started.elapsed().as_secs_f64(),
        ));
    }
    if !args.no_lab {
        let binaries = lab_binaries()?;
        equality::begin()?;
        for series in kernel::ALL {
            let asked = |name: &String| kernel::find(name).is_ok_and(|asked| asked == series);
            if !args.kernel.is_empty() && !args.kernel.iter().any(asked) {
                continue;
            }
            let started = Instant::now();
            println!("\n== Linux {} ==", series.name);
            // Unless a kernel was asked for.
            let all = series.name == ONE_KERNEL || !args.kernel.is_empty();
            let binaries = binaries
                .iter()
                .filter(|binary| all || !is_one_of(binary, &ON_ONE_KERNEL));
            build_modules(series);
            let all_alone: Vec<&str> = ALONE.iter().flat_map(|alone| alone.prefixes).copied().collect();
            let (alone, together): (Vec<_>, Vec<_>) =
                binaries.partition(|binary| is_one_of(binary, &all_alone));
            let mut tally = on_kernel_again(series.name, &together, &[], args)?;
            for guest in ALONE.iter().filter(|guest| (guest.has)(series)) {
                let of = |prefix| {
                    alone
                        .iter()
                        .copied()
                        .filter(move |binary| is_one_of(binary, &[prefix]))
                };
                let own: Vec<_> = guest.prefixes.iter().flat_map(|prefix| of(*prefix)).collect();
                let no_nic = guest.options.contains(&"--nic").then(nic::missing).flatten();
                if let Some(reason) = no_nic.filter(|_| !own.is_empty()) {
                    println!("SKIPPED {}*: {reason}", guest.prefixes.join("*, "));
                    tally.skipped += 1;
                } else if !own.is_empty() {
                    tally.add(on_kernel_again(series.name, &own, guest.options, args)?);
                }
            }
            parts.push((
                format!("Linux {}", series.name),
                tally,
                started.elapsed().as_secs_f64(),
            ));
        }
        equality::finish()?;
    }
    let mut all = Tally::default();
    println!(
        "\n{:24} {:>7} {:>7} {:>8} {:>8}",
        "part", "passed", "failed", "skipped", "seconds"
    );
    for (name, tally, seconds) in &parts {
        println!(
            "{name:24} {:>7} {:>7} {:>8} {seconds:>8.0}",
            tally.passed, tally.failed, tally.skipped
        );
        all.add(*tally);
    }
    println!(
        "\n{} passed, {} failed, {} skipped",
        all.passed, all.failed, all.skipped
    );
    if let Some(filter) = args.filter.as_ref().filter(|_| all.tests == 0) {
        bail!("no test that ran is called *{filter}*");
    }
    Ok(u8::from(all.failed > 0))
}

/// Builds the test drivers. Without them their tests say that they are skipped, and why; this says why they are not there.
fn build_modules(series: Series) {
    if modules::has_test_drivers(series)
        && let Err(error) = lab::build_modules(series)
    {
        println!("Linux {}: no test drivers: {error:#}", series.name);
    }
}

fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(paths::repo());
    command
}

fn style_and_units(args: &TestArgs) -> Result<Tally> {
    let mut tally = Tally::default();
    // What fails is told at once and counted; the rest still runs, so that one run shows all there is to mend.
    let mut check = |label: &str, outcome: Result<()>| match outcome {
        Ok(()) => tally.passed += 1,
        Err(error) => {
            println!("FAILED {label}: {error:#}");
            tally.failed += 1;
        }
    };
    let mut clippy = cargo(&["clippy", "--workspace", "--all-targets", "--quiet"]);
    let mut doc = cargo(&["doc", "--workspace", "--no-deps", "--quiet"]);
    if lints::fail("clippy and rustdoc", Path::new("rustc")) {
        clippy.args(["--", "-D", "warnings"]);
        doc.env("RUSTDOCFLAGS", "-D warnings");
    }
    for (label, mut command) in [
        ("rustfmt", cargo(&["fmt", "--all", "--check"])),
        ("clippy", clippy),
        ("rustdoc", doc),
    ] {
        check(label, step::run(label, &mut command).map(drop));
    }
    for (label, clippy) in [("the eBPF build", false), ("clippy for bpf", true)] {
        check(
            label,
            ebpf::main(ebpf::BuildArgs {
                clippy,
                quiet: true,
                log: false,
            })
            .map(drop),
        );
    }
    // The kernel tests' own library has unit tests too; its other tests are for the lab.
    for words in [
        ["test", "--no-fail-fast"].as_slice(),
        &["test", "--package", "rdmatop-tests", "--lib"],
    ] {
        let mut test = cargo(words);
        test.env("INSTA_UPDATE", "no");
        if let Some(filter) = &args.filter {
            test.args(["--", filter]);
        }
        tally.add(follow(test)?);
    }
    Ok(tally)
}

/// Builds rdmatop and the kernel tests; returns the tests' executables.
fn lab_binaries() -> Result<Vec<PathBuf>> {
    step::run(
        "build rdmatop",
        &mut cargo(&["build", "--quiet", "--release", "--package", "rdmatop"]),
    )?;
    let build = [
        "test",
        "--package",
        "rdmatop-tests",
        "--no-run",
        "--message-format=json-render-diagnostics",
    ];
    let text = step::run("build the kernel tests", &mut cargo(&build))?;
    let found = executables(&text);
    if found.is_empty() {
        bail!("cargo named no executable of the kernel tests");
    }
    Ok(found)
}

/// Executables of integration tests in cargo's JSON messages, by name.
fn executables(messages: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = messages
        .lines()
        .filter(|line| line.contains(r#""kind":["test"]"#))
        .filter_map(|line| {
            let path = line.split_once(r#""executable":""#)?.1.split('"').next()?;
            Some(PathBuf::from(path))
        })
        .collect();
    found.sort();
    found.dedup();
    found
}

/// Whether an executable's name begins with one of these.
fn is_one_of(binary: &Path, prefixes: &[&str]) -> bool {
    let name = binary.file_name().unwrap_or_default().to_string_lossy();
    prefixes.iter().any(|prefix| name.starts_with(prefix))
}

/// One boot with `options`, all tests; and another when QEMU failed the first, which is told.
fn on_kernel_again(kernel: &str, binaries: &[&PathBuf], options: &[&str], args: &TestArgs) -> Result<Tally> {
    let (mut tally, mut code) = on_kernel(kernel, binaries, options, args)?;
    if code == i32::from(lab::EXIT_QEMU) && tally.failed == 0 {
        println!("Linux {kernel}: QEMU failed the guest (see above): all its tests once more, in another");
        (tally, code) = on_kernel(kernel, binaries, options, args)?;
    }
    if code != 0 && tally.failed == 0 {
        // A guest that died or hung has printed no result: that is a failure all the same.
        println!("Linux {kernel}: ended with status {code} and no failed test: the guest did not finish");
        tally.failed += 1;
    }
    Ok(tally)
}

/// One boot, all tests, and how the boot ended.
fn on_kernel(kernel: &str, binaries: &[&PathBuf], options: &[&str], args: &TestArgs) -> Result<(Tally, i32)> {
    // One after another, one test at a time: the kernel's state is everybody's. A binary that fails does not keep
    // the next from running.
    let mut script = String::from("bad=0\n");
    for binary in binaries {
        let _ = writeln!(script, "'{}' --test-threads=1 \"$@\" || bad=1", binary.display());
    }
    script.push_str("exit $bad\n");
    let mut lab = Command::new(env::current_exe().context("cannot tell what program this is")?);
    lab.args(["lab", "run", "--kernel", kernel]);
    lab.args(["--timeout", &args.timeout.to_string()]);
    lab.args(options).args(["--", "sh", "-c", &script, "tests"]);
    lab.args(&args.filter);
    lab.env("RDMATOP", paths::target().join("release/rdmatop"));
    lab.stdout(Stdio::piped()).stdin(Stdio::null());
    read(lab)
}

/// Runs a command, shows what it prints, and counts. A run that fails without a failed test counts as one.
fn follow(mut command: Command) -> Result<Tally> {
    command.stdout(Stdio::piped()).stdin(Stdio::null());
    let (mut tally, code) = read(command)?;
    if code != 0 && tally.failed == 0 {
        tally.failed += 1;
    }
    Ok(tally)
}

fn read(mut command: Command) -> Result<(Tally, i32)> {
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start {}", command.get_program().display()))?;
    let mut tally = Tally::default();
    if let Some(out) = child.stdout.take() {
        for line in BufReader::new(out).split(b'\n') {
            let line = line.context("cannot read what the tests print")?;
            let line = String::from_utf8_lossy(&line);
            tally.line(&line);
            println!("{line}");
        }
    }
    let status = child.wait().context("cannot wait for the tests")?;
    Ok((tally, status.code().unwrap_or(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_add_up_and_a_skip_is_no_pass() {
        let mut tally = Tally::default();
        tally.line("test a ... SKIPPED a: not on this kernel");
        tally.line("test b ... ok");
        tally.line("test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out");
        tally.line("test result: FAILED. 12 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out");
        assert_eq!(
            tally,
            Tally {
                passed: 14,
                failed: 2,
                skipped: 2,
                tests: 18,
                pending: 0
            }
        );
    }

    #[test]
    fn executables_are_those_of_integration_tests() {
        let lines = concat!(
            r#"{"reason":"compiler-artifact","target":{"kind":["lib"]},"executable":"/t/lib"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"kind":["test"]},"executable":"/t/life"}"#,
            "\n",
        );
        assert_eq!(executables(lines), [PathBuf::from("/t/life")]);
    }
}
