//! What cargo builds for tests and guests: the tests, the program and the traffic programs, for this machine
//! and for another one.

use std::{
    collections::BTreeSet,
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, anyhow};
use serde_json::Value;

use crate::{arch::Arch, cross, dist::tree::said_by, paths, step};

/// Returns cargo with these arguments, for this repository.
pub(super) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(paths::repo());
    command
}

/// Builds all tests, the program and the traffic programs. With one selection of packages, dependencies have
/// one set of features, so that cargo builds each once. Traffic programs have no unit tests; `--bins` would
/// link each of them twice.
const BUILD: [&str; 10] = [
    "test",
    "--workspace",
    "--lib",
    "--bin",
    "xtask",
    "--test",
    "*",
    "--no-run",
    "--quiet",
    "--message-format=json",
];

/// With guests, the same build makes the program that runs in them. Without optimization it takes half a
/// second longer to start and cannot follow a storm on one translated CPU; unit tests take half the time with
/// it. Developers build too often for this to pay off elsewhere. The loader indexes the kernel's types and
/// links programs at each start: optimized more, it takes a tenth of a start's CPU time less.
fn for_guests() -> Vec<String> {
    let level = |part: &str| if part == "rdmatop-loader" { 2 } else { 1 };
    let optimized = PROGRAM.map(|part| format!("profile.dev.package.{part}.opt-level={}", level(part)));
    // In more units, what is generic is compiled more often.
    let settings = optimized.into_iter().chain([
        "profile.dev.debug=false".into(),
        "profile.dev.codegen-units=16".into(),
    ]);
    settings
        .flat_map(|setting| ["--config".into(), setting])
        .collect()
}

/// The crates of the program that work all the time. The others read a machine, a log or an order once.
const PROGRAM: [&str; 7] = [
    "rdmatop",
    "rdmatop-base",
    "rdmatop-loader",
    "rdmatop-model",
    "rdmatop-output",
    "rdmatop-sources",
    "rdmatop-views",
];

/// Returns the cargo options for a build whose program runs in guests or not.
pub(super) fn options(guests: bool) -> Vec<String> {
    if guests { for_guests() } else { Vec::new() }
}

/// The cargo options of [`quick_program`]. The crates that wait for the eBPF programs are the last ones, and
/// nothing is compiled beside them: optimized less, they let a fresh machine begin earlier. Nor is anything
/// written for a next build that goes on from this one.
fn quick() -> Vec<String> {
    let last = [("rdmatop-loader", 1), ("rdmatop", 0)];
    let less = last.map(|(part, level)| format!("profile.dev.package.{part}.opt-level={level}"));
    let less = less.into_iter().flat_map(|setting| ["--config".into(), setting]);
    for_guests().into_iter().chain(less).collect()
}

/// Builds the crates of [`quick_program`] that can be built without a toolchain for eBPF, without a word: the
/// build afterwards says what fails.
pub(crate) fn crates_without_ebpf() {
    let mut build = cargo(&["build", "--quiet", "--keep-going", "--package", "rdmatop"]);
    // The loader's build script fails. Without this it would build a program that has no eBPF.
    build
        .args(quick())
        .env("RDMATOP_EBPF_OBJECTS", "/nowhere")
        .env("CARGO_INCREMENTAL", "0");
    let _ = build.output();
}

/// Builds rdmatop nearly as guests run it, in half the time of a release or less, and returns its path.
pub(crate) fn quick_program() -> Result<PathBuf> {
    let mut tree = cargo(&["tree", "--package", "rdmatop", "--edges", "normal,build"]);
    let tree = said_by(tree.args(["--prefix", "none", "--format", "{p}"]))?;
    let tree = String::from_utf8_lossy(&tree);
    let crates: BTreeSet<&str> = tree.lines().map(|line| line.trim_end_matches(" (*)")).collect();
    let mut build = cargo(&[
        "build",
        "--quiet",
        "--message-format=json",
        "--package",
        "rdmatop",
    ]);
    let share = |output: &str| format!(", crate {} of {}", compiled(output), crates.len());
    build.args(quick()).env("CARGO_INCREMENTAL", "0");
    let text = step::run_with("build rdmatop", &mut build, share).map_err(build_failed)?;
    executable(&text, "bin", "rdmatop").context("cargo named no rdmatop")
}

/// Counts the crates that cargo's JSON messages say are compiled; a build script is no crate of its own.
fn compiled(text: &str) -> usize {
    let done = messages(text).filter(|message| {
        message["reason"] == "compiler-artifact" && message["target"]["kind"][0] != "custom-build"
    });
    let ids: BTreeSet<String> = done.map(|message| message["package_id"].to_string()).collect();
    ids.len()
}

/// The Cargo.toml profile that builds the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// Profile `lab`: the same code, compiled in two thirds of the time.
    Lab,
    /// Profile `release`: the program as it is released.
    Release,
}

/// Builds rdmatop and returns its path.
pub(crate) fn program(profile: Profile) -> Result<PathBuf> {
    let name = match profile {
        Profile::Lab => "lab",
        Profile::Release => "release",
    };
    step::run(
        "build rdmatop",
        &mut cargo(&["build", "--quiet", "--profile", name, "--package", "rdmatop"]),
    )?;
    Ok(paths::target().join(name).join("rdmatop"))
}

/// Makes cargo compile this repository with clippy's driver, which is the compiler with additional lints, so
/// that one pass over the sources does both.
pub(super) fn by_clippy(cargo: &mut Command) -> Result<()> {
    let sysroot = step::run(
        "ask rustc for its place",
        Command::new("rustc").args(["--print", "sysroot"]),
    )?;
    let driver = Path::new(sysroot.trim()).join("bin/clippy-driver");
    cargo.env("RUSTC_WORKSPACE_WRAPPER", driver);
    Ok(())
}

/// The results of [`build`].
pub(crate) struct Built {
    /// The kernel tests.
    pub(crate) kernel_tests: PathBuf,
    /// rdmatop, as tests on the host run it.
    pub(super) program: PathBuf,
    /// Lint warnings as the compiler prints them.
    pub(super) warnings: Vec<String>,
}

/// Builds all tests, the program and the traffic programs.
pub(crate) fn build(for_guests: bool) -> Result<Built> {
    let mut build = cargo(&BUILD);
    build.args(options(for_guests));
    by_clippy(&mut build)?;
    let text = step::run("build the tests", &mut build).map_err(build_failed)?;
    Ok(Built {
        kernel_tests: executable(&text, "test", "kernel")
            .context("cargo named no executable of the kernel tests")?,
        program: executable(&text, "bin", "rdmatop").context("cargo named no rdmatop")?,
        warnings: diagnostics(&text),
    })
}

/// Replaces cargo's JSON messages in the error by the compiler's text.
fn build_failed(error: anyhow::Error) -> anyhow::Error {
    let failed = error.downcast_ref::<step::Failed>();
    let text = failed.map(|failed| diagnostics(&failed.output).join("\n"));
    text.map_or(error, |text| anyhow!("the tests do not build:\n{text}"))
}

/// Builds the program, the kernel tests and the traffic programs for another architecture.
pub(super) fn build_for(arch: Arch) -> Result<Built> {
    built_for(arch, &for_guests(), ["--test", "kernel"])
}

/// Builds the program and the few kernel tests of tests/examples/short.rs for another architecture. Nothing
/// is optimized but what is in host programs too: the tests take a tenth longer so, and this build a third of
/// the time.
pub(super) fn build_few_for(arch: Arch) -> Result<Built> {
    let settings = UNOPTIMIZED.map(|part| format!("profile.dev.package.{part}.opt-level=0"));
    let settings = settings.into_iter().chain(["profile.dev.debug=false".into()]);
    let options: Vec<String> = settings
        .flat_map(|setting| ["--config".into(), setting])
        .collect();
    built_for(arch, &options, ["--example", "short"])
}

/// What Cargo.toml optimizes for unit tests and for events by the ten thousands.
const UNOPTIMIZED: [&str; 8] = [
    "itoa",
    "ratatui-core",
    "ratatui-widgets",
    "rdmatop-tests",
    "serde_json",
    "unicode-segmentation",
    "unicode-width",
    "zmij",
];

/// Builds the program and this target of the kernel tests for another architecture.
fn built_for(arch: Arch, options: &[String], tests: [&str; 2]) -> Result<Built> {
    let build = |words: &[&str]| -> Result<String> {
        let mut build = cargo(words);
        build.args(["--quiet", "--message-format=json"]).args(options);
        cross::prepare(&mut build, arch)?;
        step::run(&format!("build the tests for {}", arch.name()), &mut build).map_err(build_failed)
    };
    let program = build(&["build", "--package", "rdmatop"])?;
    let [kind, name] = tests;
    let tests = build(&["test", "--no-run", "--package", "rdmatop-tests", kind, name])?;
    Ok(Built {
        kernel_tests: executable(&tests, kind.trim_start_matches('-'), name)
            .context("cargo named no executable of the kernel tests")?,
        program: executable(&program, "bin", "rdmatop").context("cargo named no rdmatop")?,
        warnings: Vec::new(),
    })
}

/// Parses cargo's JSON messages.
fn messages(text: &str) -> impl Iterator<Item = Value> {
    text.lines().filter_map(|line| serde_json::from_str(line).ok())
}

/// Returns the compiler's warnings and errors in cargo's JSON messages without duplicates: cargo repeats
/// those of crates that it does not compile again.
fn diagnostics(text: &str) -> Vec<String> {
    let rendered = messages(text)
        .filter(|message| message["reason"] == "compiler-message")
        .filter_map(|message| message["message"]["rendered"].as_str().map(str::to_owned));
    let mut all: Vec<String> = rendered.collect();
    all.sort();
    all.dedup();
    all
}

/// Returns the executable of a target of this kind (`test`, `bin`) and name from cargo's JSON messages. The
/// unit tests of a program have its kind and name too and are skipped.
fn executable(text: &str, kind: &str, name: &str) -> Option<PathBuf> {
    messages(text).find_map(|message| {
        let target = &message["target"];
        let units = kind == "bin" && message["profile"]["test"] == true;
        let is = target["name"] == name && target["kind"][0] == kind && !units;
        is.then(|| message["executable"].as_str().map(PathBuf::from))?
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_executable_is_that_of_the_kind_and_no_unit_test() {
        let lines = concat!(
            r#"{"reason":"compiler-artifact","target":{"kind":["bin"],"name":"cli"},"profile":{"test":true},"executable":"/t/u"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"kind":["bin"],"name":"cli"},"profile":{"test":false},"executable":"/t/bin"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"kind":["lib"],"name":"kernel"},"executable":"/t/lib"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"kind":["test"],"name":"cli"},"executable":"/t/cli"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"kind":["test"],"name":"kernel"},"executable":"/t/kernel"}"#,
            "\n",
        );
        let is =
            |kind, name, path: &str| assert_eq!(executable(lines, kind, name), Some(PathBuf::from(path)));
        is("test", "kernel", "/t/kernel");
        is("test", "cli", "/t/cli");
        is("bin", "cli", "/t/bin");
        assert_eq!(executable(lines, "test", "learn"), None);
    }

    #[test]
    fn a_crate_counts_as_compiled_once_its_library_is_there_and_once_only() {
        let line = |id: &str, kind: &str| {
            format!(
                "{{\"reason\":\"compiler-artifact\",\"package_id\":\"{id}\",\"target\":{{\"kind\":[\"{kind}\"]}}}}\n"
            )
        };
        let script = line("a", "custom-build");
        assert_eq!(compiled(&script), 0);
        let text = [
            script,
            line("a", "lib"),
            line("a", "bin"),
            line("b", "proc-macro"),
        ]
        .concat();
        assert_eq!(
            compiled(&format!("{text}{{\"reason\":\"compiler-art")),
            2,
            "the last one is cut"
        );
    }

    #[test]
    fn diagnostics_come_once_and_as_the_compiler_prints_them() {
        let line = r#"{"reason":"compiler-message","message":{"rendered":"warning: unused\n"}}"#;
        let text = format!("{line}\n{line}\nnot JSON\n");
        assert_eq!(diagnostics(&text), ["warning: unused\n"]);
    }

    #[test]
    fn each_crate_that_works_all_the_time_is_optimized_for_guests() {
        let entries = fs::read_dir(paths::repo().join("rdmatop")).unwrap();
        let below = entries
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.join("Cargo.toml").is_file())
            .map(|path| format!("rdmatop-{}", path.file_name().unwrap().to_string_lossy()));
        let once = ["rdmatop-doctor", "rdmatop-lab", "rdmatop-nccl-log"];
        let mut names: Vec<String> = PROGRAM.into_iter().chain(once).map(str::to_owned).collect();
        names.sort();
        let mut all: Vec<String> = below.chain(["rdmatop".into()]).collect();
        all.sort();
        assert_eq!(names, all);
        let options = for_guests();
        assert!(
            options.contains(&"profile.dev.package.rdmatop-views.opt-level=1".to_owned()),
            "{options:?}"
        );
    }
}
