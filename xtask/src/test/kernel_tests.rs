//! Decides which kernel tests run on which kernel.

use std::{path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};

use super::places::{self, ALSO_ON, EVERYTHING, FEW_ON_AARCH64, Group, ON_AARCH64, ONLY_EVERYWHERE};
use crate::{arch::Arch, cross, lab::kernel::Series};

/// The kernel tests of one file below tests/tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Module {
    /// Its name, such as `exact`.
    pub(super) name: String,
    /// The tests by libtest's names: `exact::two_pairs_at_once_are_told_apart`.
    pub(super) tests: Vec<String>,
}

/// The tests on one kernel.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OnKernel {
    pub(super) run: Vec<Module>,
    pub(super) not_run: Vec<Module>,
}

impl OnKernel {
    /// Returns a line with the modules that have tests which do not run on this kernel; `None` if all run.
    pub(super) fn left_out(&self, series: Series) -> Option<String> {
        let tests: usize = self.not_run.iter().map(|module| module.tests.len()).sum();
        let names = self.not_run.iter().map(|module| {
            let runs = self.run.iter().any(|other| other.name == module.name);
            let part = if runs { "part of " } else { "" };
            format!("{part}{} ({})", module.name, module.tests.len())
        });
        (tests > 0).then(|| {
            format!(
                "{}: {tests} kernel tests: {}",
                series.title(),
                names.collect::<Vec<_>>().join(", ")
            )
        })
    }
}

/// Returns the tests of the executable, which is for `arch`, with `filter` in their names.
pub(super) fn list(executable: &Path, arch: Arch, filter: Option<&str>) -> Result<Vec<Module>> {
    let mut words = cross::runner(arch)?;
    words.push(executable.into());
    let listed = Command::new(&words[0])
        .args(&words[1..])
        .arg("--list")
        .args(filter)
        .output();
    let listed = listed.with_context(|| format!("cannot run {}", executable.display()))?;
    ensure!(
        listed.status.success(),
        "{} --list: {}",
        executable.display(),
        listed.status
    );
    Ok(by_module(&String::from_utf8_lossy(&listed.stdout)))
}

/// Returns the tests for aarch64 that the default run has. Nobody asks the executable, which would take an
/// emulator.
pub(super) fn few_on_aarch64() -> Vec<Module> {
    of_names(FEW_ON_AARCH64.iter().copied())
}

/// Groups the tests of libtest's list, whose lines are `NAME: test`.
fn by_module(list: &str) -> Vec<Module> {
    of_names(list.lines().filter_map(|line| line.strip_suffix(": test")))
}

/// Groups tests by the modules in their names.
fn of_names<'a>(tests: impl Iterator<Item = &'a str>) -> Vec<Module> {
    let mut modules: Vec<Module> = Vec::new();
    for test in tests {
        let name = test.split_once("::").map_or(test, |(module, _)| module);
        let module = match modules.iter_mut().find(|module| module.name == name) {
            Some(module) => module,
            None => modules.push_mut(Module {
                name: name.into(),
                tests: Vec::new(),
            }),
        };
        module.tests.push(test.into());
    }
    modules
}

/// Which tests run on a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// Those that the tables of `places` name.
    Named,
    /// Those that the tables name, and all others of their modules.
    Modules,
    /// All.
    All,
}

/// Splits the tests into those that run on this kernel and those that do not.
pub(super) fn on(all: &[Module], series: Series, extent: Extent) -> OnKernel {
    let part = |runs: bool| {
        let parts = all.iter().map(|module| {
            let is_named = |test: &String| is_for(test, series);
            let whole = match extent {
                Extent::Named => false,
                Extent::Modules => module.tests.iter().any(is_named),
                Extent::All => true,
            };
            Module {
                name: module.name.clone(),
                tests: module
                    .tests
                    .iter()
                    .filter(|test| (whole || is_named(test)) == runs)
                    .cloned()
                    .collect(),
            }
        });
        parts.filter(|module| !module.tests.is_empty()).collect()
    };
    OnKernel {
        run: part(true),
        not_run: part(false),
    }
}

/// Whether the test runs on this kernel by default; the longest prefix of its name in the table decides.
fn is_for(test: &str, series: Series) -> bool {
    if series.arch == Arch::Aarch64 {
        return ON_AARCH64.iter().any(|beginning| test.starts_with(beginning));
    }
    if ONLY_EVERYWHERE.contains(&test) {
        return false;
    }
    let known = ALSO_ON
        .iter()
        .filter(|(beginning, _)| test.starts_with(beginning));
    let kernels = known
        .max_by_key(|(beginning, _)| beginning.len())
        .map_or(&[][..], |(_, kernels)| kernels);
    series.name == EVERYTHING || kernels.contains(&series.name)
}

/// Returns the modules of a group on this kernel, in the order in which they run.
pub(super) fn of_group(all: &[Module], group: &Group, series: Series) -> Vec<Module> {
    let place = |module: &Module| group.modules.iter().position(|name| *name == module.name);
    let here = |module: &&Module| places::group_of(&module.name, series).name == group.name;
    let mut modules: Vec<Module> = all.iter().filter(here).cloned().collect();
    modules.sort_by_key(|module| place(module));
    modules
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{lab::kernel, test::places::GROUPS};

    const LIST: &str = "\
bypass::a: test
exact::b: test
exact::c: test
lab_scenarios::disk::d: test
lifecycle::a_plain_pair: test
lifecycle::filters_keep_what_they_name: test
presence::e: test
skips::f: test

7 tests, 0 benchmarks
";

    fn names(modules: &[Module]) -> Vec<&str> {
        modules
            .iter()
            .flat_map(|module| &module.tests)
            .map(String::as_str)
            .collect()
    }

    #[test]
    fn tests_are_listed_by_their_modules() {
        let all = by_module(LIST);
        assert_eq!(all.len(), 6);
        assert_eq!(all[1].name, "exact");
        assert_eq!(all[1].tests, ["exact::b", "exact::c"]);
        assert_eq!(all[2].name, "lab_scenarios");
        assert!(by_module("\n0 tests, 0 benchmarks\n").is_empty());
    }

    #[test]
    fn one_kernel_runs_all_and_the_others_what_the_kernel_decides() {
        let all = by_module(LIST);
        let on = |kernel: &str, extent| on(&all, kernel::find(kernel).unwrap(), extent);
        assert_eq!(on("6.12", Extent::Named).run, all);
        assert_eq!(on("7.2", Extent::All).run, all);
        assert_eq!(
            on("7.2", Extent::All).left_out(kernel::find("7.2").unwrap()),
            None
        );
        assert_eq!(
            names(&on("5.10", Extent::Modules).run),
            [
                "lifecycle::a_plain_pair",
                "lifecycle::filters_keep_what_they_name"
            ]
        );
        let oldest = on("5.10", Extent::Named);
        assert_eq!(names(&oldest.run), ["lifecycle::a_plain_pair"]);
        assert_eq!(
            oldest.left_out(kernel::find("5.10").unwrap()).unwrap(),
            "Linux 5.10: 7 kernel tests: bypass (1), exact (2), lab_scenarios (1), part of lifecycle (1), \
             presence (1), skips (1)"
        );
    }

    #[test]
    fn what_a_missing_capability_costs_is_tested_by_default_and_on_one_kernel() {
        const TEST: &str = "privileges::each_capability_that_is_taken_away_costs_what_the_page_says";
        for series in kernel::all(Arch::X86_64) {
            assert_eq!(
                is_for(TEST, *series),
                series.name == EVERYTHING,
                "{}",
                series.name
            );
        }
    }

    #[test]
    fn modules_of_the_short_list_for_aarch64_run_whole_on_each_kernel() {
        let all = by_module(LIST);
        let kernels = kernel::all(Arch::Aarch64);
        let keys: Vec<String> = kernels.iter().map(|series| series.key()).collect();
        assert_eq!(
            keys,
            ["6.1", "6.12", "6.12-16k", "6.12-64k", "7.2"].map(|name| format!("{name}-aarch64"))
        );
        for series in kernels {
            let run = on(&all, *series, Extent::Modules).run;
            let whole = [
                "lifecycle::a_plain_pair",
                "lifecycle::filters_keep_what_they_name",
            ];
            assert!(whole.iter().all(|test| names(&run).contains(test)), "{run:?}");
            assert!(!names(&run).contains(&"presence::e"), "{run:?}");
            // A group of each module has a guest there.
            let guests = GROUPS.iter().filter(|group| (group.has)(*series));
            let tests = guests.map(|group| of_group(&run, group, *series));
            let tests: usize = tests.flatten().map(|module| module.tests.len()).sum();
            assert_eq!(tests, names(&run).len(), "{}", series.title());
        }
    }

    #[test]
    fn the_few_tests_for_aarch64_are_of_its_short_list() {
        let few = few_on_aarch64();
        let series = kernel::find_for(Arch::Aarch64, EVERYTHING).unwrap();
        assert_eq!(on(&few, series, Extent::Named).run, few);
        assert!(few.iter().all(|module| !module.tests.is_empty()));
    }

    #[test]
    fn each_module_has_one_group_and_runs_in_its_order() {
        let all = by_module(LIST);
        let series = |name| kernel::find(name).unwrap();
        let of = |name: &str, kernel| {
            let group = GROUPS.iter().find(|group| group.name == name).unwrap();
            let modules = of_group(&all, group, series(kernel));
            modules.into_iter().map(|module| module.name).collect::<Vec<_>>()
        };
        assert_eq!(of("rxe", "6.12"), ["exact"]);
        assert_eq!(of("rxe", "6.1"), ["exact", "lifecycle"]);
        assert_eq!(of("control", "6.12"), ["lifecycle"]);
        assert!(of("control", "6.1").is_empty());
        assert_eq!(of("alone", "6.12"), ["presence", "skips"]);
        assert_eq!(of("lab", "6.12"), ["lab_scenarios"]);
        for kernel in ["5.10", "6.12"] {
            let of = |group| of_group(&all, group, series(kernel)).len();
            let sum: usize = GROUPS.iter().map(of).sum();
            assert_eq!(sum, all.len());
        }
    }
}
