//! Shares one start of rdmatop among the workloads of several tests.
//!
//! Starting and ending rdmatop is most of the cost of a kernel test where each instruction is translated. So
//! the tests of a module that ask only about their own processes share one window or one trace. The first
//! test starts it, runs all workloads one after another, and ends it; each test then compares its own
//! workload with rdmatop's result. Workloads of tests that were not asked for do not run.

use std::{env, sync::OnceLock};

use anyhow::{Result, anyhow, bail};

/// The result of a workload, or why it failed, which fails only its own test.
#[derive(Debug)]
pub struct Did<T>(Result<T, String>);

impl<T> Did<T> {
    /// Runs a workload.
    pub fn of(workload: impl FnOnce() -> Result<T>) -> Self {
        Self(workload().map_err(|error| format!("{error:#}")))
    }

    /// Runs the workload of one test, given by libtest's name, unless libtest was asked only for others.
    pub fn of_test(test: &str, workload: impl FnOnce() -> Result<T>) -> Self {
        Self::of_tests(&[test], workload)
    }

    /// As [`Self::of_test`], for a workload of several tests.
    pub fn of_tests(tests: &[&str], workload: impl FnOnce() -> Result<T>) -> Self {
        if tests.iter().any(|test| is_asked(env::args().skip(1), test)) {
            Self::of(workload)
        } else {
            Self::of(|| {
                let tests = tests.join(", ");
                bail!("not asked for, so that the workload did not run: {tests}")
            })
        }
    }

    /// Returns the workload's result by value.
    pub fn into_inner(self) -> Result<T> {
        self.0.map_err(|why| anyhow!("the workload failed: {why}"))
    }

    /// Returns the workload's result.
    pub fn get(&self) -> Result<&T> {
        self.0
            .as_ref()
            .map_err(|why| anyhow!("the workload failed: {why}"))
    }
}

/// Whether libtest runs this test with these arguments. Without `--exact`, with which `cargo xtask test`
/// selects a part of a module for a kernel, all tests count as asked for.
fn is_asked(mut args: impl Iterator<Item = String>, test: &str) -> bool {
    let mut by_name = false;
    let named = args.any(|arg| {
        by_name |= arg == "--exact";
        arg == test
    });
    named || !by_name
}

/// The results of the workloads together with rdmatop's result.
#[derive(Debug)]
pub struct Together<T> {
    ran: OnceLock<Did<T>>,
}

impl<T> Together<T> {
    /// A run that has not started.
    pub const fn new() -> Self {
        Self { ran: OnceLock::new() }
    }

    /// Returns everything; the first call runs the workloads.
    pub fn get(&self, workloads: impl FnOnce() -> Result<T>) -> Result<&T> {
        self.ran.get_or_init(|| Did::of(workloads)).get()
    }
}

impl<T> Default for Together<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn workloads_run_once_and_one_that_fails_fails_no_other() {
        let runs = Cell::new(0);
        let together = Together::new();
        let workloads = || {
            runs.set(runs.get() + 1);
            let failed: Did<u32> = Did::of(|| bail!("no device"));
            Ok((Did::of(|| Ok(5)), failed))
        };
        for _ in 0..2 {
            let (good, bad) = together.get(workloads).unwrap();
            assert_eq!(*good.get().unwrap(), 5);
            let said = bad.get().unwrap_err().to_string();
            assert_eq!(said, "the workload failed: no device");
        }
        assert_eq!(runs.get(), 1);
    }

    #[test]
    fn a_workload_runs_unless_others_are_asked_for_by_their_names() {
        let asked = |args: &[&str]| is_asked(args.iter().map(ToString::to_string), "exact::kinds");
        assert!(asked(&[
            "--test-threads=1",
            "--exact",
            "exact::ways",
            "exact::kinds"
        ]));
        assert!(!asked(&["--exact", "exact::ways"]));
        assert!(asked(&["exact::"]));
        assert!(asked(&[]));
    }
}
