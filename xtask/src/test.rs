//! `cargo xtask test`: everything that must pass, from style to four real kernels.

mod counts;
mod guests;
mod places;
mod record;
mod report;

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread::{self, ScopedJoinHandle},
    time::Instant,
};

use anyhow::{Context as _, Result, bail};
use clap::Args;

use self::{
    guests::Asked,
    record::{Failure, Outcome, Record, follow},
    report::Part,
};
use crate::{
    ebpf, equality,
    lab::kernel,
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
    /// Run each kernel test on every kernel, as before a release; else what rdmatop alone decides runs on one of them.
    /// With --kernel this is so
    #[arg(long)]
    everywhere: bool,
    /// Style and unit tests only, no virtual machine
    #[arg(long, conflicts_with = "only_lab")]
    no_lab: bool,
    /// Kernel tests only
    #[arg(long)]
    only_lab: bool,
    /// Guests at a time [default: the number of CPUs, 4 at most]
    #[arg(long)]
    guests: Option<usize>,
    /// Seconds that one guest's tests may take
    #[arg(long, default_value_t = 2700)]
    timeout: u64,
    /// Run each test that failed once more, alone, a kernel test in a fresh guest, if no more than this many unit tests or kernel
    /// tests failed; one that passes then is printed as flaky and does not fail the run. 0: never
    #[arg(long, default_value_t = 3)]
    again: u64,
    /// Only tests whose name contains this
    filter: Option<String>,
}

/// Runs the command.
pub(crate) fn main(args: &TestArgs) -> Result<u8> {
    // Before minutes are spent on the rest.
    for name in &args.kernel {
        kernel::find(name)?;
    }
    setup::ensure(SetupArgs::default(), true)?;
    // At the same time: builds that have one CPU busy, downloads and tests that wait leave much of a machine idle.
    let units_run = AtomicBool::new(!args.only_lab);
    let (units, kernels) = thread::scope(|scope| {
        let units = (!args.only_lab).then(|| {
            scope.spawn(|| {
                let _end = Ended(&units_run);
                style_and_units(args)
            })
        });
        let kernels = (!args.no_lab).then(|| in_guests(args, &units_run));
        (units.map(ScopedJoinHandle::join), kernels)
    });
    let mut parts: Vec<Part> = Vec::new();
    parts.extend(units.map(|units| match units {
        Ok(units) => units_again(units, args.again),
        Err(_) => cannot("style and unit tests", "a panic, see above"),
    }));
    match kernels.transpose() {
        Ok(kernels) => {
            let (kernels, outs) = kernels.unwrap_or_default();
            parts.extend(kernels);
            equality::finish(&outs)?;
        }
        Err(error) => parts.push(cannot("kernel tests", &format!("{error:#}"))),
    }
    let (text, all) = report::of(&parts);
    print!("{text}");
    if let Some(filter) = args.filter.as_ref().filter(|_| all.tests == 0) {
        bail!("no test that ran is called *{filter}*");
    }
    Ok(u8::from(all.failed > 0))
}

/// Says so when it is dropped, after a panic too.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// A part that did not begin or did not finish.
fn cannot(name: &str, why: &str) -> Part {
    let mut outcome = Outcome::default();
    outcome.fail(Failure::step(name, "cannot run", why));
    Part {
        name: name.into(),
        outcome,
        seconds: 0.0,
    }
}

/// Builds what the guests need, and runs them.
fn in_guests(args: &TestArgs, units_run: &AtomicBool) -> Result<(Vec<Part>, Vec<PathBuf>)> {
    let mut binaries = lab_binaries()?;
    if let Some(filter) = &args.filter {
        binaries = guests::with_tests_called(filter, binaries)?;
    }
    let asked = Asked {
        kernels: &args.kernel,
        everywhere: args.everywhere,
        filter: args.filter.as_deref(),
        timeout: args.timeout,
        at_once: args.guests.unwrap_or_else(guests_at_once),
        again: args.again,
        units_run,
    };
    guests::run(&binaries, &asked)
}

/// As many as there are CPUs, up to four. With more of them the host stops a guest's CPU more often while it runs one of our
/// programs; the interrupt that then waits has rxe work in its softirq before Linux 6.4, where the kernel skips programs.
fn guests_at_once() -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(4)
}

fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(paths::repo());
    command
}

/// A build at the lowest priority: what the guests need is built first, and then what they leave of the machine is enough.
fn cargo_behind_guests(args: &[&str]) -> Command {
    let cargo = cargo(args);
    let mut command = Command::new("nice");
    command
        .args(["-n", "19"])
        .arg(cargo.get_program())
        .args(cargo.get_args())
        .current_dir(paths::repo());
    command
}

fn style_and_units(args: &TestArgs) -> Part {
    const NAME: &str = "style and unit tests";
    let started = Instant::now();
    let mut all = Outcome::default();
    // A failure is printed at once and counted; the rest still runs, so that one run shows all there is to mend.
    let mut check = |label: &str, outcome: Result<()>| match outcome {
        Ok(()) => all.counts.passed += 1,
        Err(error) => {
            let text = format!("{error:#}");
            println!("FAILED {label}: {text}");
            all.fail(Failure::step("style", label, &text));
        }
    };
    let mut clippy = cargo_behind_guests(&["clippy", "--workspace", "--all-targets", "--quiet"]);
    let mut doc = cargo_behind_guests(&["doc", "--workspace", "--no-deps", "--quiet"]);
    if lints::fail("clippy and rustdoc", Path::new("rustc")) {
        clippy.args(["--", "-D", "warnings"]);
        doc.env("RUSTDOCFLAGS", "-D warnings");
    }
    for (label, mut command) in [
        ("rustfmt", cargo_behind_guests(&["fmt", "--all", "--check"])),
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
    for words in UNIT_TESTS {
        let mut build = cargo_behind_guests(words);
        build.args(["--no-run", "--quiet"]);
        check(
            "the tests' build",
            step::run("build unit tests", &mut build).map(drop),
        );
    }
    let filter: Vec<&str> = args.filter.iter().map(String::as_str).collect();
    all.add(unit_tests(&filter, false));
    let seconds = started.elapsed().as_secs_f64();
    println!("units        == ends after {seconds:.0} s ==");
    Part {
        name: NAME.into(),
        outcome: all,
        seconds,
    }
}

/// What cargo runs. The kernel tests' own library has unit tests too; its other tests are for the lab.
const UNIT_TESTS: [&[&str]; 2] = [
    &["test", "--no-fail-fast"],
    &["test", "--package", "rdmatop-tests", "--lib"],
];

/// Runs unit tests with these arguments of libtest. Not behind the guests: some wait for a program no longer than a terminal's user
/// would.
fn unit_tests(args: &[&str], one_by_one: bool) -> Outcome {
    let mut all = Outcome::default();
    for words in UNIT_TESTS {
        let mut test = cargo(words);
        test.env("INSTA_UPDATE", "no").arg("--").args(args);
        match follow(test, "units        ", Record::of("unit tests", one_by_one)) {
            Ok((record, code)) => all.add(record.end(code)),
            Err(error) => all.fail(Failure::step("unit tests", "cannot run", &format!("{error:#}"))),
        }
    }
    all
}

/// Runs the unit tests that failed once more, when no guest runs any more: some are about moments between a program and its
/// terminal, for which a machine with guests on all CPUs may be too busy.
fn units_again(mut units: Part, again: u64) -> Part {
    let failures = &units.outcome.failures;
    let tests: Vec<&str> = failures
        .iter()
        .filter(|failure| failure.is_a_test())
        .map(|failure| failure.test.as_str())
        .collect();
    if tests.is_empty() || tests.len() as u64 > again {
        return units;
    }
    println!("units        == failed tests begin once more ==");
    let second = unit_tests(&[&["--exact", "--test-threads=1"], &*tests].concat(), true);
    units.outcome.second_run(&second);
    units
}

/// Builds rdmatop and the kernel tests; returns the tests' executables.
fn lab_binaries() -> Result<Vec<PathBuf>> {
    release()?;
    kernel_tests(&[])
}

/// Builds rdmatop as it is released, and returns its path.
pub(crate) fn release() -> Result<PathBuf> {
    step::run(
        "build rdmatop",
        &mut cargo(&["build", "--quiet", "--release", "--package", "rdmatop"]),
    )?;
    Ok(paths::target().join("release/rdmatop"))
}

/// Builds one kernel test; returns its executable.
pub(crate) fn kernel_test(name: &str) -> Result<PathBuf> {
    let mut found = kernel_tests(&["--test", name])?;
    found.pop().context("no executable")
}

fn kernel_tests(which: &[&str]) -> Result<Vec<PathBuf>> {
    let build = [
        "test",
        "--package",
        "rdmatop-tests",
        "--no-run",
        "--message-format=json-render-diagnostics",
    ];
    let text = step::run("build the kernel tests", cargo(&build).args(which))?;
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

#[cfg(test)]
mod tests {
    use super::*;

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
