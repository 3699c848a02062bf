//! The kernel tests: their guests, several at a time, and what each has shown.

use std::{
    cmp::Reverse,
    collections::VecDeque,
    fmt::Write as _,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use super::{
    places::{GROUPS, Group, ON_SOME_KERNELS, ONE_KERNEL},
    record::{Failure, Outcome, Record, follow},
    report::Part,
};
use crate::{
    equality,
    lab::{
        self,
        kernel::{self, Series},
        modules, nic,
    },
    paths,
};

/// The end of the names of the directories of a guest's first and second run.
const FIRST: &str = "";
const SECOND: &str = "-again";

/// What is asked of all guests.
pub(super) struct Asked<'a> {
    /// Names of kernels; none: all.
    pub(super) kernels: &'a [String],
    /// Each test on every kernel.
    pub(super) everywhere: bool,
    /// Part of a test's name.
    pub(super) filter: Option<&'a str>,
    /// Seconds that one guest's tests may take.
    pub(super) timeout: u64,
    /// Guests at a time.
    pub(super) at_once: usize,
    /// Failed tests of all guests that are run a second time; when there are more, none is.
    pub(super) again: u64,
    /// Style and unit tests run beside the guests.
    pub(super) units_run: &'a AtomicBool,
}

impl Asked<'_> {
    /// Whether each test runs on every kernel that is tested: who names kernels wants to see all of them.
    fn everywhere(&self) -> bool {
        self.everywhere || !self.kernels.is_empty()
    }
}

/// One guest and what it runs.
struct Guest<'a> {
    series: Series,
    group: &'static Group,
    binaries: Vec<&'a Path>,
}

impl Guest<'_> {
    fn label(&self) -> String {
        format!("{:>4} {:7} ", self.series.name, self.group.name)
    }

    /// What it takes, about. Half of what runs on the oldest kernel is skipped there.
    fn seconds(&self) -> usize {
        let all = self.binaries.len() * self.group.seconds;
        if self.series.name == "5.10" { all / 2 } else { all }
    }

    /// Where the tests of its `run` leave files: the second run does not add to those of the first.
    fn out(&self, run: &str) -> PathBuf {
        let name = format!("{}-{}{run}", self.series.name, self.group.name);
        paths::target().join("lab-out").join(name)
    }

    /// All its tests. One executable after another, one test at a time: the kernel's state is everybody's.
    fn everything(&self, asked: &Asked<'_>) -> Vec<(&Path, Vec<String>)> {
        let filter: Vec<String> = asked.filter.map(str::to_owned).into_iter().collect();
        self.binaries
            .iter()
            .map(|binary| (*binary, filter.clone()))
            .collect()
    }

    /// The tests of `failures`, in the order of their executables.
    fn tests_of(&self, failures: &[Failure]) -> Vec<(&Path, Vec<String>)> {
        let of = |binary: &Path| -> Vec<String> {
            let name = binary.file_name().unwrap_or_default().to_string_lossy();
            let name = name.rsplit_once('-').map_or(&*name, |(name, _)| name);
            let own = failures
                .iter()
                .filter(|failure| failure.is_a_test() && failure.executable == name);
            own.map(|failure| failure.test.clone()).collect()
        };
        let all = self.binaries.iter().map(|binary| (*binary, of(binary)));
        let mut all: Vec<_> = all.filter(|(_, tests)| !tests.is_empty()).collect();
        for (_, tests) in &mut all {
            tests.insert(0, "--exact".into());
        }
        all
    }
}

/// A guest that has ended.
struct Ended<'a> {
    guest: Guest<'a>,
    outcome: Outcome,
    seconds: f64,
}

/// Runs these executables on the kernels asked for, each of which is a part whose seconds are those of its guests, added up;
/// also returns the directories in which guests left their files.
pub(super) fn run(binaries: &[PathBuf], asked: &Asked<'_>) -> Result<(Vec<Part>, Vec<PathBuf>)> {
    let wanted = |series: &Series| {
        let same = |name: &String| kernel::find(name).is_ok_and(|of_name| of_name.name == series.name);
        asked.kernels.is_empty() || asked.kernels.iter().any(same)
    };
    let all: Vec<Series> = kernel::ALL.into_iter().filter(wanted).collect();
    let mut kernels: Vec<Part> = all
        .iter()
        .map(|series| Part {
            name: part_of(*series),
            outcome: Outcome::default(),
            seconds: 0.0,
        })
        .collect();
    let no_nic = nic::missing();
    let mut guests = Vec::new();
    for group in &GROUPS {
        for (series, kernel) in all.iter().zip(&mut kernels).rev() {
            let own = of_group(binaries, group, *series, asked);
            if own.is_empty() || !(group.has)(*series) {
                continue;
            }
            if let Some(reason) = no_nic.as_ref().filter(|_| group.options.contains(&"--nic")) {
                println!(
                    "SKIPPED {}* on {}: {reason}",
                    group.prefixes.join("*, "),
                    series.name
                );
                kernel.outcome.counts.skipped += 1;
                continue;
            }
            guests.push(Guest {
                series: *series,
                group,
                binaries: own,
            });
        }
    }
    guests.sort_by_key(|guest| Reverse(guest.seconds()));
    // What guests share is there before the first of them.
    for series in &all {
        if guests.iter().any(|guest| guest.series == *series) {
            kernel::ensure(*series)?;
            build_modules(*series)?;
        }
    }
    let outs = guests.iter().map(|guest| guest.out(FIRST)).collect();
    let (waiting, busy): (Vec<_>, Vec<_>) = guests.into_iter().partition(|guest| guest.group.waits);
    let [waiting, busy] = [waiting, busy].map(|guests| Mutex::new(VecDeque::from(guests)));
    let ended = Mutex::new(Vec::new());
    thread::scope(|scope| {
        let others = (0..asked.at_once).map(|_| scope.spawn(|| work(&[&busy, &waiting], &ended, asked)));
        let mut workers: Vec<_> = others.collect();
        // With one guest at a time there is no second.
        if asked.at_once > 1 {
            workers.push(scope.spawn(|| {
                // Unit tests of terminals and signals are made for a machine that is not that busy.
                while asked.units_run.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_secs(1));
                }
                work(&[&waiting], &ended, asked)
            }));
        }
        workers.into_iter().try_for_each(|worker| {
            worker
                .join()
                .unwrap_or_else(|_| anyhow::bail!("a guest's thread panicked"))
        })
    })?;
    let mut ended = ended.into_inner().unwrap_or_else(PoisonError::into_inner);
    second_runs(&mut ended, asked)?;
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
    Ok((kernels, outs))
}

/// Runs the tests that failed once more, alone, each guest's in a fresh one: with guests and builds beside it on few CPUs, a
/// translated guest meets delays of seconds now and then, for which a test of timing between programs cannot always be ready.
/// When many failed, the delay is not the cause.
fn second_runs(ended: &mut [Ended<'_>], asked: &Asked<'_>) -> Result<()> {
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
        let (record, code) = in_guest(guest, asked, &tests, SECOND)?;
        let second = record.end(code);
        outcome.second_run(&second);
        outcome.guests.extend(second.guests);
        *seconds += started.elapsed().as_secs_f64();
    }
    Ok(())
}

/// The name of a kernel's part.
fn part_of(series: Series) -> String {
    format!("Linux {}", series.name)
}

/// Takes guests until there are no more, those of the first list first.
fn work<'a>(
    left: &[&Mutex<VecDeque<Guest<'a>>>],
    ended: &Mutex<Vec<Ended<'a>>>,
    asked: &Asked<'_>,
) -> Result<()> {
    loop {
        let mut lists = left.iter();
        let next = lists.find_map(|list| list.lock().unwrap_or_else(PoisonError::into_inner).pop_front());
        let Some(guest) = next else { return Ok(()) };
        let started = Instant::now();
        println!("{}== begins ==", guest.label());
        let outcome = in_guest_again(&guest, asked)?;
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

/// The executables of a group, in the order in which they run.
fn of_group<'a>(binaries: &'a [PathBuf], group: &Group, series: Series, asked: &Asked<'_>) -> Vec<&'a Path> {
    let runs = |binary: &&Path| {
        let some = ON_SOME_KERNELS
            .iter()
            .find(|(prefix, _)| is_one_of(binary, &[prefix]));
        asked.everywhere() || some.is_none_or(|(_, kernels)| kernels.contains(&series.name))
    };
    let here = binaries.iter().map(PathBuf::as_path).filter(runs);
    if group.prefixes.is_empty() {
        let others: Vec<&str> = GROUPS.iter().flat_map(|group| group.prefixes).copied().collect();
        return here.filter(|binary| !is_one_of(binary, &others)).collect();
    }
    let here: Vec<_> = here.collect();
    let of = |prefix: &&str| {
        here.iter()
            .copied()
            .filter(|binary| is_one_of(binary, &[prefix]))
            .collect::<Vec<_>>()
    };
    group.prefixes.iter().flat_map(of).collect()
}

/// The executables that have a test whose name contains `filter`: the others need no guest.
pub(super) fn with_tests_called(filter: &str, binaries: Vec<PathBuf>) -> Result<Vec<PathBuf>> {
    let mut kept = Vec::new();
    for binary in binaries {
        let listed = Command::new(&binary).args(["--list", filter]).output();
        let listed = listed.with_context(|| format!("cannot run {}", binary.display()))?;
        ensure!(
            listed.status.success(),
            "{} --list: {}",
            binary.display(),
            listed.status
        );
        if lists_a_test(&String::from_utf8_lossy(&listed.stdout)) {
            kept.push(binary);
        }
    }
    Ok(kept)
}

/// Whether libtest's list has a test: `NAME: test`.
fn lists_a_test(list: &str) -> bool {
    list.lines().any(|line| line.ends_with(": test"))
}

/// Whether an executable's name begins with one of these.
fn is_one_of(binary: &Path, prefixes: &[&str]) -> bool {
    let name = binary.file_name().unwrap_or_default().to_string_lossy();
    prefixes.iter().any(|prefix| name.starts_with(prefix))
}

/// Builds the modules of the tests. Without one its tests say that they are skipped; this says why it is not there.
fn build_modules(series: Series) -> Result<()> {
    if !modules::has_test_drivers(series) {
        return Ok(());
    }
    for (what, built) in lab::build_modules(series)? {
        if let Err(error) = built {
            println!("SKIPPED tests of {what} on Linux {}: {error:#}", series.name);
        }
    }
    Ok(())
}

/// One boot, all tests; and another when QEMU failed the first, which is reported.
fn in_guest_again(guest: &Guest<'_>, asked: &Asked<'_>) -> Result<Outcome> {
    let all = guest.everything(asked);
    let (record, code) = in_guest(guest, asked, &all, FIRST)?;
    if code != i32::from(lab::EXIT_QEMU) || record.any_failed() {
        return Ok(record.end(code));
    }
    println!(
        "{}QEMU failed the guest (see above): all its tests once more, in another",
        guest.label()
    );
    let (record, code) = in_guest(guest, asked, &all, FIRST)?;
    Ok(record.end(code))
}

/// One boot that runs executables with these arguments, and how the boot ended.
fn in_guest(
    guest: &Guest<'_>,
    asked: &Asked<'_>,
    tests: &[(&Path, Vec<String>)],
    run: &str,
) -> Result<(Record, i32)> {
    let out = guest.out(run);
    equality::forget(&out)?;
    // Each probe that is detached waits for a grace period of RCU: 2 s for a trace, 0.9 s with expedited ones.
    let mut script = String::from("echo 1 >/sys/kernel/rcu_expedited\nbad=0\n");
    if !asked.everywhere() {
        let _ = writeln!(script, "export RDMATOP_ONE_KERNEL={ONE_KERNEL}");
    }
    for (binary, args) in tests {
        // As cargo names what it runs. One that fails does not keep the next from running.
        let (binary, args) = (binary.display(), shell_words(args));
        let _ = writeln!(
            script,
            "echo '     Running in the guest ({binary})'\n'{binary}' --test-threads=1 {args} || bad=1"
        );
    }
    script.push_str("exit $bad\n");
    let mut lab = lab::command(guest.series.name, asked.timeout, guest.group.options)?;
    lab.args(["--cpu-time", "--", "sh", "-c", &script]);
    lab.env("RDMATOP", paths::target().join("release/rdmatop"));
    lab.env("RDMATOP_LAB_OUT", out);
    let label = guest.label();
    let started = Instant::now();
    let (mut record, code) = follow(lab, &label, Record::of(&label, true))?;
    record.guest(started.elapsed().as_secs_f64());
    Ok((record, code))
}

/// Words that a shell takes as they are.
fn shell_words(words: &[String]) -> String {
    let quoted = words
        .iter()
        .map(|word| format!("'{}'", word.replace('\'', r"'\''")));
    quoted.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(group: &str, kernel: &str, asked: &[String]) -> Vec<String> {
        let binaries: Vec<PathBuf> = [
            "bypass-1",
            "degrade-1",
            "exact-1",
            "learn-1",
            "presence-1",
            "testnic-1",
            "traffic-1",
        ]
        .map(|name| Path::new("/t").join(name))
        .into();
        let asked = Asked {
            kernels: asked,
            everywhere: false,
            filter: None,
            timeout: 1,
            at_once: 1,
            again: 0,
            units_run: &AtomicBool::new(false),
        };
        let group = GROUPS.iter().find(|known| known.name == group).unwrap();
        of_group(&binaries, group, kernel::find(kernel).unwrap(), &asked)
            .iter()
            .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn every_executable_has_one_guest_and_what_no_kernel_changes_runs_on_one() {
        let none: [&str; 0] = [];
        assert_eq!(names("rxe", "6.12", &[]), ["exact-1"]);
        assert_eq!(names("rxe", "5.10", &[]), ["exact-1"]);
        assert_eq!(names("once", "6.12", &[]), ["traffic-1"]);
        assert_eq!(names("rxe", "6.1", &[]), ["exact-1"]);
        assert_eq!(names("once", "6.1", &[]), none);
        assert_eq!(names("once", "6.1", &["6.1".to_owned()]), ["traffic-1"]);
        assert_eq!(names("alone", "6.12", &[]), ["degrade-1"]);
        assert_eq!(names("alone", "7.2", &[]), ["presence-1"]);
        assert_eq!(
            names("alone", "6.12", &["6.12".to_owned()]),
            ["degrade-1", "presence-1"]
        );
        assert_eq!(names("find", "6.12", &[]), ["learn-1"]);
        assert_eq!(names("testnic", "7.2", &[]), ["testnic-1"]);
        assert_eq!(names("testnic", "6.1", &[]), none);
    }

    #[test]
    fn a_list_without_tests_needs_no_guest() {
        assert!(lists_a_test("a::b: test\n\n1 test, 0 benchmarks\n"));
        assert!(!lists_a_test("\n0 tests, 0 benchmarks\n"));
    }

    #[test]
    fn failed_tests_are_run_again_by_name_and_what_is_no_test_is_not() {
        let guest = Guest {
            series: kernel::find("6.12").unwrap(),
            group: &GROUPS[0],
            binaries: ["/t/exact-1", "/t/live-2", "/t/wr_events-3"]
                .map(Path::new)
                .into(),
        };
        let failure = |executable: &str, test: &str| Failure {
            executable: executable.into(),
            ..Failure::step("6.12 rxe", test, "")
        };
        let failures = [
            failure("wr_events", "b"),
            failure("exact", "a::c"),
            failure("wr_events", "d"),
            failure("live", "did not finish (status 3), in e"),
            failure("", "cannot run"),
        ];
        let tests: Vec<_> = guest
            .tests_of(&failures)
            .into_iter()
            .map(|(binary, args)| format!("{} {}", binary.display(), shell_words(&args)))
            .collect();
        assert_eq!(
            tests,
            ["/t/exact-1 '--exact' 'a::c'", "/t/wr_events-3 '--exact' 'b' 'd'"]
        );
    }
}
