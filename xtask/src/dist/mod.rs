//! `cargo xtask dist`: makes the artefacts of a release. Two builds of one commit are equal byte for byte.

mod audit;
mod checks;
mod crates;
mod deb;
mod licences;
mod linker;
mod lint;
mod oci;
mod program;
mod roots;
mod rpm;
mod sbom;
mod tarball;
mod tools;
mod traffic;
pub(crate) mod tree;
mod twice;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

use crate::arch::Arch;
use crate::{cross, ebpf_toolchain, paths, setup};

/// The options of `cargo xtask dist`.
#[derive(Args, Clone, Copy)]
pub(crate) struct DistArgs {
    /// The machines to build for
    #[arg(long, value_enum, default_value = "all")]
    arch: Wanted,
    /// Also install, upgrade, remove and purge the packages in fresh roots of Debian 11, 12, 13 and unstable,
    /// of another machine in emulation: needs root and mmdebstrap
    #[arg(long)]
    roots: bool,
    /// Also hold the packages to lintian and rpmlint: they may object to what docs/install.md names and to
    /// nothing else
    #[arg(long)]
    lint: bool,
    /// Also make all of them in another clone of this source, and compare: takes twice the time
    #[arg(long)]
    twice: bool,
}

/// The values of `--arch`.
#[derive(Clone, Copy, ValueEnum)]
enum Wanted {
    #[value(name = "x86_64")]
    X86_64,
    #[value(name = "aarch64")]
    Aarch64,
    All,
}

impl Wanted {
    /// The value's name on the command line.
    fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
            Self::All => "all",
        }
    }

    fn archs(self) -> &'static [Arch] {
        match self {
            Self::X86_64 => &[Arch::X86_64],
            Self::Aarch64 => &[Arch::Aarch64],
            Self::All => &[Arch::X86_64, Arch::Aarch64],
        }
    }
}

/// The version of all crates of the workspace.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Makes the artefacts of both machines and tries them, as before a release, and returns what could not be
/// tried here, and why.
pub(crate) fn whole() -> Result<Vec<String>> {
    let args = DistArgs {
        arch: Wanted::All,
        roots: true,
        lint: true,
        twice: false,
    };
    args.install()?;
    let mut roots = Vec::new();
    let mut left_out = Vec::new();
    for arch in Wanted::All.archs() {
        match roots::possible(*arch) {
            Ok(()) => roots.push(*arch),
            Err(error) => left_out.push(format!(
                "the packages for {} in roots of Debian: {error:#}",
                arch.name()
            )),
        }
    }
    make_all(args, &roots)?;
    Ok(left_out)
}

/// Packages, and what needs them.
type Group = (&'static str, &'static [&'static str]);

/// Debian's packages that the artefacts are made with, beside those of every Debian.
const MAKERS: Group = (
    "make the files of a release",
    &[
        "gcc",
        "git",
        "libc6-dev",
        "libibverbs-dev",
        "make",
        "python3-pip",
        "rpm",
    ],
);
const ROOTS: Group = ("try them in roots of Debian", &["mmdebstrap"]);
const LINTERS: Group = ("look for mistakes in the packages", &["lintian", "rpmlint"]);
/// A compiler for the eBPF programs. Ubuntu has none, and rustup's nightly takes its place there.
const COMPILER: Group = (
    "compile the eBPF programs",
    &["rustc-web", "cargo-web", "libstd-rust-web-dev-bpf"],
);

impl DistArgs {
    /// The packages that are needed for these options.
    fn packages(self, has_compiler: bool) -> Vec<Group> {
        let asked = [
            (true, MAKERS),
            (self.roots, ROOTS),
            (self.lint, LINTERS),
            (!has_compiler, COMPILER),
        ];
        asked
            .into_iter()
            .filter_map(|(asked, group)| asked.then_some(group))
            .collect()
    }

    /// Installs what is missing. Where nothing is, this needs neither root nor a network.
    fn install(self) -> Result<()> {
        setup::packages(&self.packages(ebpf_toolchain::compiler().is_ok()), false, true)?;
        setup::ebpf().map(drop)
    }
}

/// Makes the artefacts in `target/dist`.
pub(crate) fn main(args: DistArgs) -> Result<u8> {
    let roots = if args.roots { args.arch.archs() } else { &[] };
    make_all(args, roots)?;
    Ok(0)
}

/// Makes the artefacts, and tries those for the machines `roots` in roots.
fn make_all(args: DistArgs, roots: &[Arch]) -> Result<()> {
    // Fails before the build, which takes minutes, if an option cannot be carried out.
    if args.twice {
        twice::possible()?;
    }
    args.install()?;
    for arch in roots {
        roots::possible(*arch)?;
    }
    if args.lint {
        lint::possible()?;
    }
    let epoch = epoch()?;
    let out = paths::target().join("dist");
    let work = paths::target().join("dist-work");
    for dir in [&out, &work] {
        let _ = fs::remove_dir_all(dir);
        fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    }
    let own: Vec<PathBuf> = program::own_paths()?.into_iter().map(|(path, _)| path).collect();
    let mut images = Vec::new();
    for arch in args.arch.archs() {
        images.push((*arch, make(*arch, &own, epoch, &work, &out)?));
    }
    tools::make(&images, &out.join(tools::FILE))?;
    sums(&out)?;
    if args.lint {
        lint::packages(&out, &work)?;
    }
    if args.twice {
        twice::compare(&out, &work, args.arch.name(), epoch)?;
    }
    for arch in roots {
        roots::try_all(*arch, &out, &work, epoch)?;
    }
    Ok(())
}

/// Makes the artefacts for one architecture. Returns which Debian packages are in the image.
fn make(arch: Arch, own: &[PathBuf], epoch: u64, work: &Path, out: &Path) -> Result<String> {
    let crates = crates::of(arch.triple())?;
    let linker = linker::wrapper(arch, work)?;
    let parts = work.join(format!("parts-{}", arch.name()));
    let list = audit::object(&crates, &linker, &parts)?;
    let built = program::built(arch);
    if built.is_file() && audit::check(&built, &crates).is_err() {
        program::link_again(arch)?;
    }
    let program = program::build(arch, epoch, &linker, &list, work)?;
    let listed = audit::check(&program, &crates)?;
    let passed = checks::program(&program, linker::GLIBC, own)?;
    println!(
        "{}: {} bytes, needs glibc {} or newer, lists {listed} crates",
        program.display(),
        passed.size,
        passed.glibc
    );
    // The program itself writes its pages: in emulation, unless one for this machine was built before.
    let here = work.join(format!("rdmatop-{}", env::consts::ARCH));
    let mut native = Vec::new();
    if here.is_file() {
        native.push(here.into());
    } else {
        native.extend(cross::runner(arch)?);
        native.push(program.clone().into());
    }
    let name = format!("{}-{VERSION}-{}", tree::PACKAGE, arch.name());
    let dir = work.join(&name);
    let traffic = traffic::build(&linker, own, &parts)?;
    tree::lay(
        &dir,
        &tree::Parts {
            program: &program,
            native: &native,
            traffic: &traffic,
            crates: &crates,
        },
    )?;
    tarball::make(&dir, &out.join(format!("{name}.tar.gz")), epoch)?;
    deb::make(
        &dir,
        arch,
        VERSION,
        epoch,
        &out.join(deb::file_name(VERSION, arch)),
    )?;
    rpm::make(&dir, arch, VERSION, epoch, out)?;
    sbom::make(&crates, epoch, &out.join(format!("{name}.cdx.json")))?;
    oci::make(&dir, arch, epoch, work, out)
}

/// The time of all files in an artefact is that of the commit, so that it does not depend on the build.
fn epoch() -> Result<u64> {
    if let Ok(given) = env::var("SOURCE_DATE_EPOCH") {
        return given.parse().context("SOURCE_DATE_EPOCH is a number of seconds");
    }
    let time = tree::said_by(
        Command::new("git")
            .args(["log", "-1", "--format=%ct"])
            .current_dir(paths::repo()),
    )
    .context("a source without git needs SOURCE_DATE_EPOCH")?;
    String::from_utf8_lossy(&time)
        .trim()
        .parse()
        .context("the time of the commit")
}

/// Writes SHA256SUMS in the format of `sha256sum --check`.
fn sums(out: &Path) -> Result<()> {
    let mut names: Vec<_> = fs::read_dir(out)?
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    names.sort();
    let sums = tree::said_by(Command::new("sha256sum").args(&names).current_dir(out))?;
    print!("{}", String::from_utf8_lossy(&sums));
    tree::write(&out.join("SHA256SUMS"), &sums)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::kernel;

    #[test]
    fn what_the_options_need_is_installed_and_nothing_else() {
        let of = |roots, lint, has_compiler| {
            let args = DistArgs {
                arch: Wanted::All,
                roots,
                lint,
                twice: false,
            };
            let groups = args.packages(has_compiler);
            let names = groups.iter().flat_map(|(_, names)| *names).copied();
            names.collect::<Vec<_>>()
        };
        let least = of(false, false, true);
        assert_eq!(least, MAKERS.1);
        let has = |names: &[&str], wanted: &str| names.contains(&wanted);
        assert!(has(&of(true, false, true), "mmdebstrap") && !has(&of(true, false, true), "lintian"));
        assert!(has(&of(false, true, true), "rpmlint") && !has(&of(false, true, true), "mmdebstrap"));
        assert!(has(&of(false, false, false), "rustc-web"), "a fresh clone");
    }

    #[test]
    fn the_public_ci_may_emulate_and_tries_each_kernel() {
        let file = paths::repo().join(".github/workflows/ci.yml");
        let text = fs::read_to_string(file).unwrap();
        let of = |command: &str| {
            let mut jobs = text.split("\n\n  ").filter(|job| job.contains(command));
            jobs.next().unwrap_or_default().to_owned()
        };
        for command in ["cargo xtask dist", "cargo xtask test --everywhere"] {
            assert!(of(command).contains("options: --privileged"), "{command}");
        }
        let words = of("--arch aarch64");
        let words: Vec<&str> = words.split_whitespace().collect();
        for series in kernel::all(Arch::Aarch64) {
            assert!(words.contains(&series.name), "{}", series.name);
        }
    }

    #[test]
    fn the_page_names_what_is_needed_before_one_goes_offline() {
        let page = fs::read_to_string(paths::repo().join("docs/install.md")).unwrap();
        let start = page.find("Before one goes offline").unwrap();
        let list: String = page[start..].split("\n\n").take(2).collect();
        for name in [MAKERS, ROOTS, LINTERS, COMPILER]
            .iter()
            .flat_map(|(_, names)| *names)
        {
            assert!(list.contains(name), "{name}");
        }
    }
}
