//! `cargo xtask test`: everything that must pass, from style to four real kernels and one for aarch64; and
//! `cargo xtask check`: style and unit tests.

mod build;
mod counts;
mod guests;
mod kernel_tests;
mod places;
mod record;
mod report;

use std::{
    path::Path,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread::{self, ScopedJoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, bail, ensure};
use clap::Args;

pub(crate) use self::build::{Profile, build, crates_without_ebpf, program, quick_program};
use self::{
    build::{build_few_for, build_for, by_clippy, cargo, options},
    guests::Asked,
    record::{Failure, Outcome, Record, follow},
    report::Part,
};
use crate::{arch::Arch, cross, deny, dist, ebpf, equality, kernels, lab::kernel, lints, paths, setup, step};

/// `cargo xtask check`
#[derive(Args, Clone, Default)]
pub(crate) struct CheckArgs {
    /// Only unit tests whose name contains this
    filter: Option<String>,
}

/// `cargo xtask test`
#[derive(Args, Clone, Default)]
pub(crate) struct TestArgs {
    /// Only this kernel: 5.10, 6.1, 6.12 or 7.2; may be repeated
    #[arg(long)]
    kernel: Vec<String>,
    /// The machine of the guests. For aarch64: kernel tests only, on Linux 6.12 but where --kernel names
    /// others (6.1, 6.12, 6.12-16k, 6.12-64k, 7.2), and a short list of them but where a FILTER names tests;
    /// with --everywhere all, on all
    #[arg(long, value_enum, default_value_t)]
    arch: Arch,
    /// Run all there is, as before a release: each kernel test on every kernel, and the fuzz targets for
    /// longer. Else every test runs on one kernel, on the others what the kernel decides, and two tests on
    /// Linux 6.12 for aarch64. With --kernel all tests run on the kernels that are named. It also runs the
    /// whole modules of the short list of --arch aarch64 on each of that machine's kernels, compares
    /// docs/kernels.md with Debian's packages and with the lab's kernels (`cargo xtask kernels --verify`),
    /// and makes and tries the files of a release (`cargo xtask dist --roots --lint`)
    #[arg(long)]
    everywhere: bool,
    /// Kernel tests only
    #[arg(long)]
    only_lab: bool,
    /// Guests at a time [default: the number of CPUs, 4 at most]
    #[arg(long)]
    guests: Option<usize>,
    /// Seconds that one guest's tests may take
    #[arg(long, default_value_t = 2700)]
    timeout: u64,
    /// Run each test that failed once more, alone, a kernel test in a fresh guest, if no more than this many
    /// unit tests or kernel tests failed; one that passes then is printed as flaky and does not fail the run.
    /// 0: never
    #[arg(long, default_value_t = 3)]
    again: u64,
    /// Only tests whose name contains this
    filter: Option<String>,
}

/// The options for style and unit tests.
struct Units<'a> {
    filter: Option<&'a str>,
    /// Guests run at the same time, so these tests leave the CPUs to them.
    behind_guests: bool,
    /// How long search tests run.
    search: Search,
    /// Whether to build the documentation, which compiles each dependency again for its types.
    rustdoc: bool,
    /// The most failed tests that are run again.
    again: u64,
}

/// How long tests that search for failing inputs run.
#[derive(Clone, Copy)]
struct Search {
    /// Seconds per fuzz target.
    fuzz: u64,
    /// Inputs per property.
    cases: u64,
}

/// By default, and with `--everywhere`. Inputs that failed once are in files and are tried in each run.
const SEARCH: [Search; 2] = [Search { fuzz: 1, cases: 64 }, Search { fuzz: 10, cases: 256 }];

impl TestArgs {
    /// Whether the tests are those of the default run: no more, and none by kernel or name.
    fn names_nothing(&self) -> bool {
        !self.everywhere && self.kernel.is_empty() && self.filter.is_none()
    }
}

/// Runs style and unit tests.
pub(crate) fn check(args: &CheckArgs) -> Result<u8> {
    setup::without_kernels()?;
    let units = Units {
        filter: args.filter.as_deref(),
        behind_guests: false,
        search: SEARCH[0],
        rustdoc: true,
        again: 0,
    };
    let part = style_and_units(&units);
    finish(&[part], &[], units.filter)
}

/// Runs the command.
pub(crate) fn main(args: &TestArgs) -> Result<u8> {
    // Checked before minutes are spent on the rest.
    for name in &args.kernel {
        kernel::find_for(args.arch, name)?;
    }
    let only_lab = args.only_lab || args.arch != Arch::X86_64;
    // The kernels are downloaded while the tests are built.
    setup::without_kernels()?;
    let asked = Units {
        filter: args.filter.as_deref(),
        behind_guests: true,
        search: SEARCH[usize::from(args.everywhere)],
        rustdoc: args.everywhere,
        again: args.again,
    };
    // Style and unit tests run beside the guests: builds that keep only one CPU busy, downloads and waiting
    // tests leave much of a machine idle.
    let units_run = AtomicBool::new(!only_lab);
    let default = !only_lab && args.names_nothing();
    let (units, kernels) = thread::scope(|scope| {
        let units = (!only_lab).then(|| {
            scope.spawn(|| {
                let _end = Ended(&units_run);
                style_and_units(&asked)
            })
        });
        let few = default.then(|| scope.spawn(|| few_on_aarch64(args, &units_run)));
        let mut kernels = vec![in_guests(args, args.arch, &units_run)];
        if args.everywhere && args.arch == Arch::X86_64 && args.kernel.is_empty() {
            kernels.push(in_guests(args, Arch::Aarch64, &units_run));
        }
        kernels.extend(few.map(|few| few.join().unwrap_or_else(|_| Err(anyhow!("a panic, see above")))));
        (units.map(ScopedJoinHandle::join), kernels)
    });
    let mut parts: Vec<Part> = Vec::new();
    let mut left_out = Vec::new();
    parts.extend(units.map(|units| match units {
        Ok(units) => units_again(units, &asked),
        Err(_) => cannot("style and unit tests", "a panic, see above"),
    }));
    if !only_lab && !args.everywhere {
        let [short, long] = SEARCH;
        left_out.push(format!(
            "fuzz targets: {} s each instead of {} s; properties: {} inputs each instead of {}",
            short.fuzz, long.fuzz, short.cases, long.cases
        ));
        left_out.push("rustdoc: cargo xtask check runs it too".to_owned());
    }
    let mut outs = Vec::new();
    for kernels in kernels {
        match kernels {
            Ok(ran) => {
                parts.extend(ran.kernels);
                left_out.extend(ran.left_out);
                outs.extend(ran.outs);
            }
            Err(error) => parts.push(cannot("kernel tests", &format!("{error:#}"))),
        }
    }
    if args.everywhere && !only_lab && args.kernel.is_empty() && args.filter.is_none() {
        parts.push(what_is_attached());
        parts.push(release_files());
    }
    equality::finish(&outs)?;
    finish(&parts, &left_out, asked.filter)
}

/// Compares docs/kernels.md with Debian's packages and the lab's kernels, which take hundreds of megabytes
/// and a guest each.
fn what_is_attached() -> Part {
    let started = Instant::now();
    let checked = program(Profile::Release).and_then(|rdmatop| kernels::check(&rdmatop));
    let tried = checked.map(|checked| match checked {
        kernels::Checked::Alike => (1, Vec::new()),
        kernels::Checked::Skipped(why) => (0, vec![why]),
    });
    one_part("docs/kernels.md", tried, started)
}

/// Makes the files of a release and tries them, after the guests: its builds keep all CPUs busy.
fn release_files() -> Part {
    let started = Instant::now();
    let tried = dist::whole().map(|left_out| (1, left_out));
    one_part("files of a release", tried, started)
}

/// Returns the part of a command: how many tests passed, and what could not be tried here, which is printed
/// and counted as skipped.
fn one_part(name: &str, tried: Result<(u64, Vec<String>)>, started: Instant) -> Part {
    let outcome = match tried {
        Ok((passed, left_out)) => {
            let mut outcome = Outcome::default();
            outcome.counts.passed = passed;
            for what in left_out {
                println!("SKIPPED {name}: {what}");
                outcome.counts.skipped += 1;
            }
            outcome
        }
        Err(error) => cannot(name, &format!("{error:#}")).outcome,
    };
    Part {
        name: name.into(),
        outcome,
        seconds: started.elapsed().as_secs_f64(),
    }
}

/// Prints the end of the log and returns the exit status.
fn finish(parts: &[Part], left_out: &[String], filter: Option<&str>) -> Result<u8> {
    let (text, all) = report::of(parts, left_out);
    print!("{text}");
    if let Some(filter) = filter.filter(|_| all.tests == 0) {
        bail!("no test that ran is called *{filter}*");
    }
    Ok(u8::from(all.failed > 0))
}

/// Clears the flag when it is dropped, also after a panic.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Returns a part that could not start or did not finish.
fn cannot(name: &str, why: &str) -> Part {
    let mut outcome = Outcome::default();
    outcome.fail(Failure::step(name, "cannot run", why));
    Part {
        name: name.into(),
        outcome,
        seconds: 0.0,
    }
}

/// Builds what the guests of an architecture need and runs them. For an architecture that was not asked for,
/// this is, on each of its kernels, all tests of the modules of its short list.
fn in_guests(args: &TestArgs, arch: Arch, units_run: &AtomicBool) -> Result<guests::Ran> {
    let mut kernels = args.kernel.clone();
    if arch != Arch::X86_64 && kernels.is_empty() && !args.everywhere {
        kernels.push(places::EVERYTHING.to_owned());
    }
    // In parallel, because downloads leave the CPUs idle.
    let (program, built) = thread::scope(|scope| {
        let here = arch == Arch::X86_64;
        let kernels = scope.spawn(|| guests::prepare(arch, &kernels, args.names_nothing()));
        let released = (args.everywhere && here).then(|| scope.spawn(|| program(Profile::Release)));
        let tests = if here { build(true) } else { build_for(arch) };
        let panicked = |_| anyhow!("a builder panicked");
        kernels.join().map_err(panicked)??;
        let released = released
            .map(|builder| builder.join().map_err(panicked)?)
            .transpose()?;
        anyhow::Ok((released, tests?))
    })?;
    // In a guest the unoptimized program takes half a second longer to start, but the optimized one takes six
    // minutes of CPU time to build.
    let program = program.unwrap_or(built.program);
    let asked = Asked {
        program: &program,
        arch,
        kernels: &kernels,
        everywhere: args.everywhere,
        beside: arch != args.arch,
        filter: args.filter.as_deref(),
        timeout: args.timeout,
        at_once: args.guests.unwrap_or_else(guests_at_once),
        again: args.again,
        units_run,
    };
    guests::run(&built.kernel_tests, &asked)
}

/// Runs a few tests in a guest for aarch64 beside the guests of x86-64. What it needs is downloaded while
/// their tests are built. It is built when the unit tests have ended, whose cargo would wait for this one.
fn few_on_aarch64(args: &TestArgs, units_run: &AtomicBool) -> Result<guests::Ran> {
    let arch = Arch::Aarch64;
    let kernels = [places::EVERYTHING.to_owned()];
    guests::prepare(arch, &kernels, true)?;
    cross::install(arch)?;
    while units_run.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_secs(1));
    }
    let built = build_few_for(arch)?;
    let asked = Asked {
        program: &built.program,
        arch,
        kernels: &kernels,
        everywhere: false,
        beside: true,
        filter: None,
        timeout: args.timeout,
        at_once: 1,
        again: args.again,
        units_run,
    };
    guests::run_few(&built.kernel_tests, &asked)
}

/// As many as there are CPUs, but at most four. With more guests the host stops a guest's CPU more often
/// while it runs one of our programs. Before Linux 6.4, the interrupt that then waits has rxe work in its
/// softirq, where the kernel skips programs.
fn guests_at_once() -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(4)
}

/// Makes a build run at the lowest priority: the guests' build comes first, and afterwards the CPU time that
/// the guests leave is enough.
fn behind_guests(command: &Command) -> Command {
    let mut behind = Command::new("nice");
    behind
        .args(["-n", "19"])
        .arg(command.get_program())
        .args(command.get_args())
        .current_dir(paths::repo());
    behind
}

fn style_and_units(asked: &Units<'_>) -> Part {
    const NAME: &str = "style and unit tests";
    let started = Instant::now();
    let mut all = Outcome::default();
    // A failure is printed at once and counted. The rest still runs, so that one run shows everything to fix.
    let mut check = |label: &str, outcome: Result<()>| match outcome {
        Ok(()) => all.counts.passed += 1,
        Err(error) => {
            let text = format!("{error:#}");
            println!("FAILED {label}: {text}");
            all.fail(Failure::step("style", label, &text));
        }
    };
    let cargo = |args: &[&str]| {
        let command = cargo(args);
        if asked.behind_guests {
            behind_guests(&command)
        } else {
            command
        }
    };
    let mut doc = cargo(&["doc", "--workspace", "--no-deps", "--quiet"]);
    // The build of the tests has linted everything except the code that only xtask's own program has.
    let mut clippy = cargo(&["clippy", "--package", "xtask", "--quiet"]);
    let fail = lints::fail("clippy and rustdoc", Path::new("rustc"));
    if fail {
        clippy.args(["--", "-D", "warnings"]);
        doc.env("RUSTDOCFLAGS", "-D warnings");
    }
    let mut fmt = cargo(&["fmt", "--all", "--check"]);
    check("rustfmt", step::run("rustfmt", &mut fmt).map(drop));
    check("deny.toml", deny::check());
    check(
        "clippy of xtask",
        step::run("clippy of xtask", &mut clippy).map(drop),
    );
    for (label, clippy) in [("the eBPF build", false), ("clippy for bpf", true)] {
        check(
            label,
            ebpf::main(ebpf::BuildArgs {
                clippy,
                log: false,
                quiet: true,
            })
            .map(drop),
        );
    }
    let lints = build(asked.behind_guests).and_then(|built| {
        ensure!(
            !fail || built.warnings.is_empty(),
            "{}",
            built.warnings.join("\n")
        );
        Ok(())
    });
    check("the tests' build and clippy", lints);
    if asked.rustdoc {
        check("rustdoc", step::run("rustdoc", &mut doc).map(drop));
    }
    let filter: Vec<&str> = asked.filter.into_iter().collect();
    all.add(unit_tests(&filter, asked, false));
    let seconds = started.elapsed().as_secs_f64();
    println!("units        == ends after {seconds:.0} s ==");
    Part {
        name: NAME.into(),
        outcome: all,
        seconds,
    }
}

/// Integration tests that do not need a lab kernel.
const ON_THE_HOST: [&str; 5] = ["cli", "fuzz", "layers", "memory", "terminal"];

/// Runs unit tests with these libtest arguments. They do not run at low priority, because some wait for a
/// program only as long as a user at a terminal would.
fn unit_tests(args: &[&str], asked: &Units<'_>, one_by_one: bool) -> Outcome {
    let search = asked.search;
    let mut test = cargo(&["test", "--workspace", "--no-fail-fast", "--lib", "--bin", "xtask"]);
    for name in ON_THE_HOST {
        test.args(["--test", name]);
    }
    test.args(options(asked.behind_guests));
    test.env("INSTA_UPDATE", "no")
        .env("RDMATOP_FUZZ_SECONDS", search.fuzz.to_string())
        .env("PROPTEST_CASES", search.cases.to_string())
        .arg("--")
        .args(args);
    if !asked.behind_guests && std::env::var_os("RUST_TEST_THREADS").is_none() {
        // Twice the CPUs, because a third of the time is spent in tests that wait.
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        test.env("RUST_TEST_THREADS", (2 * cpus).to_string());
    }
    let mut all = Outcome::default();
    let ran = by_clippy(&mut test)
        .and_then(|()| follow(test, "units        ", Record::of("unit tests", one_by_one)));
    match ran {
        Ok((record, code)) => all.add(record.end(code)),
        Err(error) => all.fail(Failure::step("unit tests", "cannot run", &format!("{error:#}"))),
    }
    all
}

/// Runs failed unit tests again once no guest runs: some depend on timing between a program and its terminal,
/// for which a machine with guests on all CPUs may be too busy.
fn units_again(mut units: Part, asked: &Units<'_>) -> Part {
    let failures = &units.outcome.failures;
    let tests: Vec<&str> = failures
        .iter()
        .filter(|failure| failure.is_a_test())
        .map(|failure| failure.test.as_str())
        .collect();
    if tests.is_empty() || tests.len() as u64 > asked.again {
        return units;
    }
    println!("units        == failed tests begin once more ==");
    let second = unit_tests(&[&["--exact", "--test-threads=1"], &*tests].concat(), asked, true);
    units.outcome.second_run(&second);
    units
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_was_not_tried_is_counted_as_skipped_and_an_error_as_a_failure() {
        let counts = |tried| {
            let counts = one_part("files", tried, Instant::now()).outcome.counts;
            (counts.passed, counts.failed, counts.skipped)
        };
        assert_eq!(counts(Ok((1, Vec::new()))), (1, 0, 0));
        assert_eq!(counts(Ok((1, vec!["no QEMU".into()]))), (1, 0, 1));
        assert_eq!(counts(Ok((0, vec!["no network".into()]))), (0, 0, 1));
        assert_eq!(counts(Err(anyhow!("no zig"))), (0, 1, 0));
    }

    #[test]
    fn each_integration_test_of_rdmatop_runs_on_the_host() {
        let entries = fs::read_dir(paths::repo().join("rdmatop/tests")).unwrap();
        let tests = entries
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|end| end == "rs") || path.join("main.rs").is_file());
        let mut names: Vec<String> = tests
            .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
            .collect();
        names.sort();
        assert_eq!(names, ON_THE_HOST);
    }
}
