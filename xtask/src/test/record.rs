//! Records a test run from its output: how many tests passed, which failed and what those printed, and how
//! long each took.

use std::{
    collections::{BTreeMap, VecDeque},
    io::{self, BufRead as _, BufReader},
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context as _, Result};

use super::counts::Counts;
use crate::lab::CPU_TIME;

/// The most lines kept of the output of a failed test, and of a run that did not finish.
const KEPT: usize = 40;

/// A failed test or step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// Where it failed: `5.10 rxe`, `unit tests`.
    pub(super) place: String,
    /// The test executable; empty for a step.
    pub(super) executable: String,
    /// The test's name, or a description of what did not finish.
    pub(super) test: String,
    /// The end of its output, without stack traces.
    pub(super) output: Vec<String>,
}

impl Failure {
    /// A failed step that is no test.
    pub(super) fn step(place: &str, what: &str, output: &str) -> Self {
        Self {
            place: place.into(),
            executable: String::new(),
            test: what.into(),
            output: last(output.lines()),
        }
    }

    /// Whether it is a test of an executable that finished, and not a step, a signal or a guest that died.
    pub(super) fn is_a_test(&self) -> bool {
        !self.executable.is_empty() && !self.test.contains(' ')
    }

    /// Returns `unit tests cli: the_help_is_stable`, or for a module of kernel tests `5.10 rxe:
    /// lifecycle::a_storm_is_printed`.
    pub(super) fn name(&self) -> String {
        let module = self
            .test
            .split_once("::")
            .is_some_and(|(of, _)| of == self.executable);
        let executable = if module { "" } else { &self.executable };
        let place = [self.place.trim(), executable].join(" ");
        format!("{}: {}", place.trim(), self.test)
    }
}

/// How long something took.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Took {
    /// A test, or an executable whose tests run in parallel.
    pub(super) name: String,
    pub(super) seconds: f64,
}

/// A guest that was run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Spent {
    /// `5.10 rxe`.
    pub(super) guest: String,
    /// The time from the guest's boot to its end.
    pub(super) seconds: f64,
    /// CPU time that it took of the host; `None` if it did not report it.
    pub(super) cpu: Option<f64>,
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub(super) counts: Counts,
    pub(super) failures: Vec<Failure>,
    /// Failures of the first run whose tests passed in the second.
    pub(super) flaky: Vec<Failure>,
    pub(super) times: Vec<Took>,
    pub(super) guests: Vec<Spent>,
}

impl Outcome {
    pub(super) fn add(&mut self, other: Self) {
        self.counts.add(other.counts);
        self.failures.extend(other.failures);
        self.flaky.extend(other.flaky);
        self.times.extend(other.times);
        self.guests.extend(other.guests);
    }

    /// Takes the second run of the failed tests: those that ran and passed are flaky. A second run that broke
    /// off, or in which a test was skipped, shows nothing.
    pub(super) fn second_run(&mut self, second: &Self) {
        if second.counts.skipped > 0 || !second.failures.iter().all(Failure::is_a_test) {
            return;
        }
        let passed = |failure: &Failure| {
            let name = failure.name();
            failure.is_a_test()
                && second.times.iter().any(|took| took.name == name)
                && !second.failures.iter().any(|again| again.name() == name)
        };
        let (flaky, failures) = std::mem::take(&mut self.failures)
            .into_iter()
            .partition::<Vec<_>, _>(passed);
        let count = flaky.len() as u64;
        self.counts.failed -= count;
        self.counts.flaky += count;
        self.flaky.extend(flaky);
        self.failures = failures;
    }

    /// Counts a failure that is no test.
    pub(super) fn fail(&mut self, failure: Failure) {
        self.counts.failed += 1;
        self.failures.push(failure);
    }
}

/// The part of libtest's output that a line belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Part {
    /// Results.
    #[default]
    Results,
    /// The output of failed tests, after the first `failures:`.
    Printed,
    /// Their names, after the second `failures:`.
    Names,
}

/// Reads the output of test executables.
#[derive(Debug)]
pub(super) struct Record {
    place: String,
    /// Whether tests run one at a time: only then are the times between results those of the tests.
    one_by_one: bool,
    outcome: Outcome,
    executable: String,
    part: Part,
    /// Its tests have begun, but its result line has not arrived.
    open: bool,
    /// The test that has begun, if its result comes on a later line.
    begun: Option<String>,
    /// Failed tests of this executable and the output of each.
    failed: BTreeMap<String, Vec<String>>,
    /// The failed test that the current output belongs to.
    printing: Option<String>,
    since: f64,
    /// CPU seconds that the guest reports.
    cpu: Option<f64>,
    /// The last lines of the whole output.
    end: VecDeque<String>,
}

impl Record {
    /// Starts a record of tests in `place`. With `one_by_one` each test is timed, otherwise each executable.
    pub(super) fn of(place: &str, one_by_one: bool) -> Self {
        Self {
            place: place.trim().into(),
            one_by_one,
            outcome: Outcome::default(),
            executable: String::new(),
            part: Part::default(),
            open: false,
            begun: None,
            failed: BTreeMap::new(),
            printing: None,
            since: 0.0,
            cpu: None,
            end: VecDeque::new(),
        }
    }

    /// Takes a line that arrived `at` seconds after the start.
    pub(super) fn line(&mut self, line: &str, at: f64) {
        self.outcome.counts.line(line);
        if let Some(seconds) = line.strip_prefix(CPU_TIME) {
            self.cpu = seconds.trim().parse().ok();
        }
        if let Some(name) = executable(line) {
            if self.open {
                // Something ended the previous executable: an abort, a signal.
                self.break_off("ended without a result");
            }
            self.executable = name;
            self.since = at;
        } else if let Some(rest) = line.strip_prefix("test result: ") {
            self.finish(rest);
        } else if line == "failures:" {
            self.printing = None;
            self.part = match self.part {
                Part::Results => Part::Printed,
                Part::Printed | Part::Names => Part::Names,
            };
        } else if self.part == Part::Results {
            self.result(line, at);
        } else if self.part == Part::Printed {
            let heading = line
                .strip_prefix("---- ")
                .and_then(|rest| rest.strip_suffix(" ----"))
                .and_then(|rest| rest.strip_suffix(" stdout").or(rest.strip_suffix(" stderr")))
                .filter(|name| self.failed.contains_key(*name));
            if let Some(name) = heading {
                self.printing = Some(name.to_owned());
            } else if let Some(name) = &self.printing {
                self.failed.entry(name.clone()).or_default().push(line.to_owned());
            }
        }
        if self.end.len() == KEPT {
            self.end.pop_front();
        }
        self.end.push_back(line.to_owned());
    }

    /// Takes `test NAME ... ok`, or the result on a later line if the test printed something itself.
    fn result(&mut self, line: &str, at: f64) {
        if line.starts_with("running ") && (line.ends_with(" tests") || line.ends_with(" test")) {
            self.since = at;
            self.open = true;
            return;
        }
        let (name, result) = match line
            .strip_prefix("test ")
            .and_then(|rest| rest.split_once(" ... "))
        {
            Some((name, result)) => (name.to_owned(), result),
            None => match self.begun.take() {
                Some(name) => (name, line),
                None => return,
            },
        };
        match result {
            "ok" | "FAILED" => {
                if result == "FAILED" {
                    self.failed.insert(name.clone(), Vec::new());
                }
                if self.one_by_one {
                    self.took(name, at - self.since);
                }
                self.since = at;
            }
            ignored if ignored.starts_with("ignored") => self.since = at,
            _ => self.begun = Some(name),
        }
    }

    fn took(&mut self, test: String, seconds: f64) {
        let of = Failure {
            place: self.place.clone(),
            executable: self.executable.clone(),
            test,
            output: Vec::new(),
        };
        self.outcome.times.push(Took {
            name: of.name(),
            seconds,
        });
    }

    /// Takes the result line of an executable.
    fn finish(&mut self, rest: &str) {
        for (test, printed) in std::mem::take(&mut self.failed) {
            self.outcome.failures.push(Failure {
                place: self.place.clone(),
                executable: self.executable.clone(),
                test,
                output: last(without_traces(&printed)),
            });
        }
        let seconds = rest
            .rsplit_once("finished in ")
            .and_then(|(_, time)| time.trim_end_matches('s').parse().ok());
        if let Some(seconds) = seconds.filter(|_| !self.one_by_one) {
            self.took("all of it".into(), seconds);
        }
        self.part = Part::default();
        self.printing = None;
        self.begun = None;
        self.open = false;
    }

    /// Records an executable, or the whole run, that did not finish: its failed tests, the test that had
    /// begun, and the last output.
    fn break_off(&mut self, how: &str) {
        self.outcome.counts.failed += self.failed.len() as u64;
        let test = match self.begun.take() {
            Some(test) => format!("{how}, in {test}"),
            None => how.to_owned(),
        };
        self.finish("");
        self.outcome.fail(Failure {
            place: self.place.clone(),
            executable: self.executable.clone(),
            test,
            output: last(self.end.iter().map(String::as_str)),
        });
    }

    /// Whether a test has failed so far.
    pub(super) fn any_failed(&self) -> bool {
        self.outcome.counts.failed > 0 || !self.failed.is_empty()
    }

    /// Records that this run was a guest, which took this many seconds.
    pub(super) fn guest(&mut self, seconds: f64) {
        self.outcome.guests.push(Spent {
            guest: self.place.clone(),
            seconds,
            cpu: self.cpu,
        });
    }

    /// Ends the record of a run with exit status `code`. A run that failed without a failed test did not
    /// finish, which is a failure too.
    pub(super) fn end(mut self, code: i32) -> Outcome {
        // In a guest the tests' own status is 0 or 1; other statuses are the lab's.
        let of_lab = self.one_by_one && code > 1;
        if self.open || of_lab || code != 0 && self.outcome.failures.is_empty() {
            self.break_off(&format!("did not finish (status {code})"));
        }
        self.outcome
    }
}

/// Returns the executable whose tests follow, from a line of cargo or of our guests.
fn executable(line: &str) -> Option<String> {
    let line = line.trim_start();
    if let Some(of) = line.strip_prefix("Doc-tests ") {
        return Some(format!("documentation of {of}"));
    }
    let path = line.strip_prefix("Running ")?.strip_suffix(')')?;
    let (_, path) = path.rsplit_once('(')?;
    let file = path.rsplit('/').next()?;
    Some(file.rsplit_once('-').map_or(file, |(name, _)| name).to_owned())
}

/// Drops stack traces, which would leave no room for the message before them that says what is wrong.
fn without_traces(lines: &[String]) -> impl DoubleEndedIterator<Item = &str> {
    let mut trace = false;
    let kept: Vec<&str> = lines
        .iter()
        .map(String::as_str)
        .filter(|line| {
            let frame = |line: &str| {
                let line = line.trim_start();
                let number = line.split_once(": ").map_or("", |(number, _)| number);
                line.starts_with("at ")
                    || (!number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
            };
            trace = line.trim().eq_ignore_ascii_case("stack backtrace:")
                || trace && (frame(line) || line.starts_with("note: "));
            !trace
        })
        .collect();
    kept.into_iter()
}

/// Returns the last lines, without empty lines around them.
fn last<'a>(lines: impl DoubleEndedIterator<Item = &'a str>) -> Vec<String> {
    let mut kept: Vec<String> = lines
        .rev()
        .skip_while(|line| line.trim().is_empty())
        .take(KEPT)
        .map(str::to_owned)
        .collect();
    kept.reverse();
    let empty = kept.iter().take_while(|line| line.trim().is_empty()).count();
    kept.split_off(empty)
}

/// Runs a command, prints its output behind `label` and records it; also returns its exit status.
pub(super) fn follow(mut command: Command, label: &str, mut record: Record) -> Result<(Record, i32)> {
    // One pipe for both: cargo names the executable on stderr, and the lab says there why a guest died.
    let (read, write) = io::pipe().context("no pipe")?;
    command
        .stdin(Stdio::null())
        .stdout(write.try_clone().context("no pipe")?)
        .stderr(write);
    let started = Instant::now();
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start {}", command.get_program().display()))?;
    // The command keeps our ends of the pipe open.
    drop(command);
    for line in BufReader::new(read).split(b'\n') {
        let line = line.context("cannot read what the tests print")?;
        let line = String::from_utf8_lossy(&line);
        record.line(&line, started.elapsed().as_secs_f64());
        println!("{label}{line}");
    }
    let status = child.wait().context("cannot wait for the tests")?;
    Ok((record, status.code().unwrap_or(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &str, one_by_one: bool, code: i32) -> Outcome {
        let mut record = Record::of(" 5.10 rxe  ", one_by_one);
        for (second, line) in (0_u32..).zip(lines.lines()) {
            record.line(line, f64::from(second));
        }
        record.end(code)
    }

    const FAILED: &str = "\
     Running lifecycle (/t/debug/deps/lifecycle-0cbe46f4b063d3b4)

running 4 tests
test a_storm ... Linux 5.10: 20 events
FAILED
test b_is_fine ... ok
test c ... SKIPPED c: not on this kernel
ok
test d ... ignored

failures:

---- a_storm stdout ----
test z ... ok
Error: 7 for 8

Caused by:
    a reason

Stack backtrace:
   0: a_storm
             at ./tests/tests/lifecycle.rs:89:78
   1: call_once
             at /rustc/core.rs:1:1
note: Some details are omitted


failures:
    a_storm

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 3.00s
";

    #[test]
    fn a_failed_test_has_its_place_executable_and_output_without_trace() {
        let outcome = read(FAILED, true, 1);
        let [failure] = outcome.failures.as_slice() else {
            panic!("{:?}", outcome.failures);
        };
        assert_eq!(failure.name(), "5.10 rxe lifecycle: a_storm");
        assert_eq!(
            failure.output,
            [
                "test z ... ok",
                "Error: 7 for 8",
                "",
                "Caused by:",
                "    a reason"
            ]
        );
        let Counts {
            passed,
            failed,
            skipped,
            ..
        } = outcome.counts;
        assert_eq!((passed, failed, skipped), (1, 1, 2));
    }

    #[test]
    fn what_passes_in_a_second_run_is_flaky_and_neither_passed_nor_failed() {
        let passes = "     Running in the guest (/t/debug/deps/lifecycle-0c)\nrunning 1 test\ntest a_storm ... ok\n\n\
                      test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n";
        let after = |second: Outcome| {
            let mut outcome = read(FAILED, true, 1);
            outcome.second_run(&second);
            let Counts {
                passed,
                failed,
                flaky,
                ..
            } = outcome.counts;
            assert_eq!(outcome.flaky.len() as u64, flaky);
            assert_eq!(outcome.failures.len() as u64, failed);
            (passed, failed, flaky)
        };
        assert_eq!(after(read(passes, true, 0)), (1, 0, 1));
        // The test failed again, did not run, was skipped, or its guest died.
        let others = passes.replace("a_storm", "another");
        let skipped = passes.replace("... ok", "... SKIPPED a_storm: no device\nok");
        let died = passes.split_once("\n\ntest result").unwrap().0;
        for second in [
            read(FAILED, true, 1),
            read(&others, true, 0),
            read(&skipped, true, 0),
            read(died, true, 3),
        ] {
            assert_eq!(after(second), (1, 1, 0));
        }
        // A failure that is no test has no second run.
        let mut outcome = read("", true, 3);
        outcome.second_run(&read(passes, true, 0));
        assert_eq!((outcome.counts.failed, outcome.counts.flaky), (1, 0));
    }

    #[test]
    fn each_test_has_the_time_from_the_result_before_to_its_own() {
        let times = read(FAILED, true, 1).times;
        let times: Vec<_> = times
            .iter()
            .map(|took| (took.name.rsplit(' ').next().unwrap_or(""), took.seconds))
            .collect();
        assert_eq!(times, [("a_storm", 2.0), ("b_is_fine", 1.0), ("c", 2.0)]);
        // Tests that run in parallel have no times of their own.
        let times = read(FAILED, false, 1).times;
        assert_eq!(
            times,
            [Took {
                name: "5.10 rxe lifecycle: all of it".into(),
                seconds: 3.0
            }]
        );
    }

    #[test]
    fn a_guest_has_its_seconds_and_the_cpu_time_that_it_says() {
        let mut record = Record::of(" 5.10 rxe  ", true);
        record.line("lab: seconds of CPU time: 12.5", 30.0);
        record.guest(31.0);
        let spent = Spent {
            guest: "5.10 rxe".into(),
            seconds: 31.0,
            cpu: Some(12.5),
        };
        assert_eq!(record.end(0).guests, [spent]);
    }

    #[test]
    fn a_run_that_does_not_finish_has_the_test_it_was_in_and_its_last_lines() {
        let lines = FAILED.split_once("FAILED\n").unwrap().0.to_owned() + "lab: the guest died\n";
        let outcome = read(&lines, true, 3);
        let [failure] = outcome.failures.as_slice() else {
            panic!("{:?}", outcome.failures);
        };
        assert_eq!(
            failure.name(),
            "5.10 rxe lifecycle: did not finish (status 3), in a_storm"
        );
        assert_eq!(
            failure.output.last().map(String::as_str),
            Some("lab: the guest died")
        );
        assert_eq!(outcome.counts.failed, 1);
    }

    #[test]
    fn one_that_fails_and_then_breaks_off_is_told_with_both() {
        let lines = FAILED.split_once("\nfailures:").unwrap().0;
        let outcome = read(lines, true, 3);
        let names: Vec<_> = outcome.failures.iter().map(|failure| &failure.test[..]).collect();
        assert_eq!(names, ["a_storm", "did not finish (status 3)"]);
        assert_eq!(outcome.counts.failed, 2);
    }

    #[test]
    fn an_executable_that_a_signal_ended_is_named_though_others_follow() {
        let lines = "     Running tests/a.rs (t/a-1)\nrunning 2 tests\ntest x ... ok\n     Running tests/b.rs (t/b-1)\nrunning 1 test\n\
                     test y ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n";
        let outcome = read(lines, false, 101);
        let names: Vec<_> = outcome.failures.iter().map(Failure::name).collect();
        assert_eq!(names, ["5.10 rxe a: ended without a result"]);
        assert_eq!((outcome.counts.passed, outcome.counts.failed), (1, 1));
    }

    #[test]
    fn a_status_is_a_failure_of_its_own_only_where_no_test_failed() {
        assert_eq!(read(FAILED, true, 1).counts.failed, 1);
        assert_eq!(read("error: could not compile\n", false, 101).counts.failed, 1);
        assert_eq!(read("", true, 0).counts.failed, 0);
    }

    #[test]
    fn executables_are_named_by_cargo_and_by_guests() {
        for (line, name) in [
            (
                "     Running unittests src/lib.rs (target/debug/deps/rdmatop_common-b931)",
                "rdmatop_common",
            ),
            (
                "     Running tests/terminal.rs (target/debug/deps/terminal-9e)",
                "terminal",
            ),
            ("   Doc-tests rdmatop", "documentation of rdmatop"),
        ] {
            assert_eq!(executable(line).as_deref(), Some(name));
        }
        assert_eq!(executable("Running late"), None);
    }

    #[test]
    fn long_output_is_cut_at_its_beginning() {
        let numbers: Vec<_> = (0..100).map(|number| number.to_string()).collect();
        let output = Failure::step("style", "clippy", &numbers.join("\n")).output;
        assert_eq!(output.len(), KEPT);
        assert_eq!(output.last().map(String::as_str), Some("99"));
    }
}
