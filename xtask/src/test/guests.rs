//! Runs the kernel tests in several guests at a time and collects their results.

use std::{
    cmp::Reverse,
    collections::VecDeque,
    fmt::Write as _,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;

use super::{
    kernel_tests::{self, Extent, Module},
    places::{self, EVERYTHING, GROUPS, Group},
    record::{Failure, Outcome, Record, follow},
    report::Part,
};
use crate::{
    arch::Arch,
    equality,
    lab::{
        self,
        kernel::{self, Series},
        modules, newer_qemu, nic, root,
    },
    paths,
};

/// The suffixes of the output directories of a guest's first and second run.
const FIRST: &str = "";
const SECOND: &str = "-again";

/// The options for all guests.
pub(super) struct Asked<'a> {
    /// The rdmatop that is tested.
    pub(super) program: &'a Path,
    /// The guests' architecture.
    pub(super) arch: Arch,
    /// Names of kernels; empty for all.
    pub(super) kernels: &'a [String],
    /// Whether to run all there is.
    pub(super) everywhere: bool,
    /// Whether these guests run beside those of the architecture that was asked for.
    pub(super) beside: bool,
    /// A part of the test names to run.
    pub(super) filter: Option<&'a str>,
    /// Seconds that one guest's tests may take.
    pub(super) timeout: u64,
    /// The number of guests at a time.
    pub(super) at_once: usize,
    /// The most failed tests of all guests that are run a second time; if there are more, none is.
    pub(super) again: u64,
    /// Whether style and unit tests still run beside the guests.
    pub(super) units_run: &'a AtomicBool,
}

impl Asked<'_> {
    /// Which tests run on each kernel. Who names kernels wants all tests on them. On aarch64, where all tests
    /// take hours, only who asks for that or names tests; beside the guests of x86-64 the modules of its
    /// short list run whole.
    fn extent(&self) -> Extent {
        let named = match self.arch {
            Arch::X86_64 => !self.kernels.is_empty(),
            Arch::Aarch64 => self.filter.is_some(),
        };
        match (self.everywhere, self.beside) {
            _ if named => Extent::All,
            (true, false) => Extent::All,
            (true, true) => Extent::Modules,
            (false, _) => Extent::Named,
        }
    }
}

/// One guest and the tests that it runs.
struct Guest {
    series: Series,
    group: &'static Group,
    modules: Vec<Module>,
}

impl Guest {
    fn label(&self) -> String {
        format!("{:>4} {:7} ", self.series.key(), self.group.name)
    }

    /// Estimates how long it takes.
    fn seconds(&self) -> usize {
        let tests: usize = self.modules.iter().map(|module| module.tests.len()).sum();
        tests * self.group.seconds
    }

    /// Returns the output directory of a `run`: the second run does not add to files of the first.
    fn out(&self, run: &str) -> PathBuf {
        let name = format!("{}-{}{run}", self.series.key(), self.group.name);
        paths::target().join("lab-out").join(name)
    }

    /// Returns its tests that are among `failures`, in the order in which they run.
    fn tests_of(&self, failures: &[Failure]) -> Vec<Module> {
        let failed = |test: &String| {
            failures
                .iter()
                .any(|failure| failure.is_a_test() && failure.test == *test)
        };
        let all = self.modules.iter().map(|module| Module {
            name: module.name.clone(),
            tests: module.tests.iter().filter(|test| failed(test)).cloned().collect(),
        });
        all.filter(|module| !module.tests.is_empty()).collect()
    }
}

/// A guest that has ended.
struct Ended {
    guest: Guest,
    outcome: Outcome,
    seconds: f64,
}

/// The results of the guests.
#[derive(Default)]
pub(super) struct Ran {
    /// One part per kernel; its seconds are the sum over its guests.
    pub(super) kernels: Vec<Part>,
    /// The directories where guests left their files.
    pub(super) outs: Vec<PathBuf>,
    /// For each kernel a line about the tests that only `--everywhere` runs there.
    pub(super) left_out: Vec<String>,
}

/// Returns the kernels of these names for an architecture, or all without names.
fn wanted(arch: Arch, names: &[String]) -> Vec<Series> {
    let is = |series: &&Series| {
        let same = |name: &String| kernel::find_for(arch, name).is_ok_and(|of_name| of_name == **series);
        names.is_empty() || names.iter().any(same)
    };
    kernel::all(arch).iter().filter(is).copied().collect()
}

/// Fetches the named kernels and builds the modules that tests need there, which guests share; only those of
/// the default run with `by_default`.
pub(super) fn prepare(arch: Arch, names: &[String], by_default: bool) -> Result<()> {
    newer_qemu::fetch_if_missing(arch);
    if arch != Arch::X86_64 {
        root::ensure(arch)?;
    }
    for series in wanted(arch, names) {
        kernel::ensure(series)?;
        build_modules(series, by_default)?;
    }
    Ok(())
}

/// Returns the result of a kernel on which no guest has run yet.
fn no_guest_yet(series: Series) -> Part {
    Part {
        name: part_of(series),
        outcome: Outcome::default(),
        seconds: 0.0,
    }
}

/// Runs the few tests of this executable that the default run has for aarch64, in one guest. It has one CPU,
/// for the reason given at the group `alone`, and because a second boot would take a fifth of the whole.
pub(super) fn run_few(executable: &Path, asked: &Asked<'_>) -> Result<Ran> {
    let series = kernel::find_for(asked.arch, EVERYTHING)?;
    let guest = Guest {
        series,
        group: places::group("alone"),
        modules: kernel_tests::few_on_aarch64(),
    };
    let few = places::FEW_ON_AARCH64.len();
    let mut ran = run_guests(vec![no_guest_yet(series)], vec![guest], executable, asked)?;
    ran.left_out.push(format!(
        "guests for aarch64: all kernel tests but {few} on Linux {EVERYTHING}; cargo xtask test --arch aarch64 runs \
         some more"
    ));
    Ok(ran)
}

/// Runs the tests of this executable on the wanted kernels, which [`prepare`] has fetched.
pub(super) fn run(executable: &Path, asked: &Asked<'_>) -> Result<Ran> {
    let all_tests = kernel_tests::list(executable, asked.arch, asked.filter)?;
    let all = wanted(asked.arch, asked.kernels);
    let mut kernels: Vec<Part> = all.iter().copied().map(no_guest_yet).collect();
    let no_nic = nic::missing();
    let mut guests = Vec::new();
    let mut left_out = Vec::new();
    for (series, kernel) in all.iter().zip(&mut kernels) {
        let here = kernel_tests::on(&all_tests, *series, asked.extent());
        left_out.extend(here.left_out(*series));
        for group in GROUPS.iter().filter(|group| (group.has)(*series)) {
            let modules = kernel_tests::of_group(&here.run, group, *series);
            if modules.is_empty() {
                continue;
            }
            if let Some(reason) = no_nic.as_ref().filter(|_| group.has_nic()) {
                println!(
                    "SKIPPED {} on {}: {reason}",
                    group.modules.join(", "),
                    series.name
                );
                kernel.outcome.counts.skipped += 1;
                continue;
            }
            guests.push(Guest {
                series: *series,
                group,
                modules,
            });
        }
    }
    guests.sort_by_key(|guest| Reverse(guest.seconds()));
    let mut ran = run_guests(kernels, guests, executable, asked)?;
    ran.left_out = left_out;
    Ok(ran)
}

/// Runs these guests in this order and adds their results to those of their `kernels`.
fn run_guests(
    mut kernels: Vec<Part>,
    guests: Vec<Guest>,
    executable: &Path,
    asked: &Asked<'_>,
) -> Result<Ran> {
    let outs = guests.iter().map(|guest| guest.out(FIRST)).collect();
    let (waiting, busy): (Vec<_>, Vec<_>) = guests.into_iter().partition(|guest| guest.group.waits);
    let [waiting, busy] = [waiting, busy].map(|guests| Mutex::new(VecDeque::from(guests)));
    let ended = Mutex::new(Vec::new());
    thread::scope(|scope| {
        let spawn = |kinds: [_; 2], behind_units: bool| {
            let ended = &ended;
            scope.spawn(move || {
                // Unit tests of terminals and signals expect a less busy machine.
                while behind_units && asked.units_run.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_secs(1));
                }
                work(&kinds, ended, executable, asked)
            })
        };
        let mut workers: Vec<_> = (1..asked.at_once)
            .map(|_| spawn([&busy, &waiting], false))
            .collect();
        if asked.at_once > 1 {
            // Those that wait take longest in all and leave the unit tests most of a CPU.
            workers.push(spawn([&waiting, &busy], false));
        }
        // One more than CPUs, because at the end a guest that boots or waits leaves its CPU idle.
        workers.push(spawn([&busy, &waiting], asked.at_once > 1));
        workers.into_iter().try_for_each(|worker| {
            worker
                .join()
                .unwrap_or_else(|_| anyhow::bail!("a guest's thread panicked"))
        })
    })?;
    let mut ended = ended.into_inner().unwrap_or_else(PoisonError::into_inner);
    second_runs(&mut ended, executable, asked)?;
    for Ended {
        guest,
        outcome,
        seconds,
    } in ended
    {
        let name = part_of(guest.series);
        if let Some(kernel) = kernels.iter_mut().find(|of| of.name == name) {
            kernel.outcome.add(outcome);
            kernel.seconds += seconds;
        }
    }
    Ok(Ran {
        kernels,
        outs,
        left_out: Vec::new(),
    })
}

/// Runs failed tests again, alone, each guest's in a fresh guest. With guests and builds beside it on few
/// CPUs, a translated guest sometimes meets delays of seconds, which a test of timing between programs cannot
/// always tolerate. If many tests failed, delays are not the cause.
fn second_runs(ended: &mut [Ended], executable: &Path, asked: &Asked<'_>) -> Result<()> {
    let failed: u64 = ended.iter().map(|ended| ended.outcome.counts.failed).sum();
    if failed > asked.again {
        return Ok(());
    }
    for Ended {
        guest,
        outcome,
        seconds,
    } in ended
    {
        let tests = guest.tests_of(&outcome.failures);
        if tests.is_empty() {
            continue;
        }
        let started = Instant::now();
        println!("{}== failed tests begin once more ==", guest.label());
        let (record, code) = in_guest(guest, executable, asked, &tests, SECOND)?;
        let second = record.end(code);
        outcome.second_run(&second);
        outcome.guests.extend(second.guests);
        *seconds += started.elapsed().as_secs_f64();
    }
    Ok(())
}

/// Returns the name of a kernel's part.
fn part_of(series: Series) -> String {
    series.title()
}

/// Runs guests until none is left; those of the first list come first.
fn work(
    left: &[&Mutex<VecDeque<Guest>>],
    ended: &Mutex<Vec<Ended>>,
    executable: &Path,
    asked: &Asked<'_>,
) -> Result<()> {
    loop {
        let mut lists = left.iter();
        let next = lists.find_map(|list| list.lock().unwrap_or_else(PoisonError::into_inner).pop_front());
        let Some(guest) = next else { return Ok(()) };
        let started = Instant::now();
        println!("{}== begins ==", guest.label());
        let outcome = in_guest_again(&guest, executable, asked)?;
        let seconds = started.elapsed().as_secs_f64();
        println!("{}== ends after {seconds:.0} s ==", guest.label());
        let mut ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.push(Ended {
            guest,
            outcome,
            seconds,
        });
    }
}

/// Builds the modules of the tests. If one fails, its tests report that they are skipped, and this prints the
/// reason.
fn build_modules(series: Series, by_default: bool) -> Result<()> {
    if !modules::has_test_drivers(series) {
        return Ok(());
    }
    let needs = |what: &str| !by_default || places::builds_by_default(what, series.name);
    for (what, built) in lab::build_modules(series, needs)? {
        if let Err(error) = built {
            println!("SKIPPED tests of {what} on {}: {error:#}", series.title());
        }
    }
    Ok(())
}

/// Boots once for all tests; boots again, with a message, if QEMU failed the first guest.
fn in_guest_again(guest: &Guest, executable: &Path, asked: &Asked<'_>) -> Result<Outcome> {
    let (record, code) = in_guest(guest, executable, asked, &guest.modules, FIRST)?;
    if code != i32::from(lab::EXIT_QEMU) || record.any_failed() {
        return Ok(record.end(code));
    }
    println!(
        "{}QEMU failed the guest (see above): all its tests once more, in another",
        guest.label()
    );
    let (record, code) = in_guest(guest, executable, asked, &guest.modules, FIRST)?;
    Ok(record.end(code))
}

/// Boots once and runs these tests one after another, because they share the kernel; also returns the exit
/// status.
fn in_guest(
    guest: &Guest,
    executable: &Path,
    asked: &Asked<'_>,
    tests: &[Module],
    run: &str,
) -> Result<(Record, i32)> {
    let out = guest.out(run);
    equality::forget(&out)?;
    // Each detached probe waits for an RCU grace period: 2 s for a trace, 0.9 s with expedited ones.
    let mut script = String::from("echo 1 >/sys/kernel/rcu_expedited\nbad=0\n");
    for Module { name, tests } in tests {
        // The first line has cargo's form for what runs next. A failed module does not keep the next from
        // running.
        let _ = writeln!(
            script,
            "echo '     Running in the guest ({name})'\n'{}' --test-threads=1 --exact {} || bad=1",
            executable.display(),
            shell_words(tests)
        );
    }
    script.push_str("exit $bad\n");
    let options = guest.group.options(guest.series);
    let mut lab = lab::command(guest.series, asked.timeout, &options)?;
    lab.args(["--cpu-time", "--", "sh", "-c", &script]);
    lab.env("RDMATOP", asked.program);
    lab.env("RDMATOP_LAB_OUT", out);
    let label = guest.label();
    let started = Instant::now();
    let (mut record, code) = follow(lab, &label, Record::of(&label, true))?;
    record.guest(started.elapsed().as_secs_f64());
    Ok((record, code))
}

/// Quotes words for a shell.
fn shell_words(words: &[String]) -> String {
    let quoted = words
        .iter()
        .map(|word| format!("'{}'", word.replace('\'', r"'\''")));
    quoted.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_tests_run_on_a_kernel_depends_on_what_was_asked() {
        let units_run = AtomicBool::new(false);
        let extent = |arch, words: &str| {
            let has = |word| words.split(' ').any(|has| has == word);
            let kernels = ["6.12".to_owned()];
            let asked = Asked {
                program: Path::new("rdmatop"),
                arch,
                kernels: if has("kernels") { &kernels } else { &[] },
                everywhere: has("everywhere"),
                beside: has("beside"),
                filter: has("filter").then_some("exact"),
                timeout: 1,
                at_once: 1,
                again: 0,
                units_run: &units_run,
            };
            asked.extent()
        };
        for (arch, words, wanted) in [
            (Arch::X86_64, "", Extent::Named),
            (Arch::X86_64, "filter", Extent::Named),
            (Arch::X86_64, "kernels", Extent::All),
            (Arch::X86_64, "everywhere", Extent::All),
            (Arch::X86_64, "everywhere kernels", Extent::All),
            (Arch::Aarch64, "", Extent::Named),
            (Arch::Aarch64, "kernels", Extent::Named),
            (Arch::Aarch64, "filter", Extent::All),
            (Arch::Aarch64, "everywhere", Extent::All),
            // Whole modules beside the guests of x86-64.
            (Arch::Aarch64, "everywhere beside", Extent::Modules),
            (Arch::Aarch64, "everywhere beside filter", Extent::All),
        ] {
            assert_eq!(extent(arch, words), wanted, "{} {words}", arch.name());
        }
    }

    #[test]
    fn failed_tests_are_run_again_by_name_and_what_is_no_test_is_not() {
        let module = |name: &str, tests: &[&str]| Module {
            name: name.into(),
            tests: tests.iter().map(ToString::to_string).collect(),
        };
        let guest = Guest {
            series: kernel::find("6.12").unwrap(),
            group: &GROUPS[0],
            modules: vec![
                module("exact", &["exact::c", "exact::d"]),
                module("live", &["live::e"]),
                module("wr_events", &["wr_events::b", "wr_events::d"]),
            ],
        };
        let failure = |executable: &str, test: &str| Failure {
            executable: executable.into(),
            ..Failure::step("6.12 rxe", test, "")
        };
        let failures = [
            failure("wr_events", "wr_events::b"),
            failure("exact", "exact::c"),
            failure("wr_events", "wr_events::d"),
            failure("live", "did not finish (status 3), in live::e"),
            failure("", "cannot run"),
        ];
        assert_eq!(
            guest.tests_of(&failures),
            [
                module("exact", &["exact::c"]),
                module("wr_events", &["wr_events::b", "wr_events::d"])
            ]
        );
        assert_eq!(shell_words(&["a::b".into(), "it's".into()]), r"'a::b' 'it'\''s'");
    }
}
