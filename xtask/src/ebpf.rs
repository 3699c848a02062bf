//! `cargo xtask build-ebpf`: compiles the eBPF programs and reports their sizes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;
use object::{Object, ObjectSection, ObjectSymbol, SectionKind, SymbolKind};

use crate::ebpf_toolchain::{self as toolchain, OBJECT};
use crate::{ebpf_strip, lints, paths, step};

/// `cargo xtask build-ebpf`
#[derive(Args, Clone, Copy, Default)]
pub(crate) struct BuildArgs {
    /// Lint the programs instead of building them
    #[arg(long)]
    pub(crate) clippy: bool,
    /// With log lines from inside the programs, for developers
    #[arg(long, conflicts_with = "clippy")]
    pub(crate) log: bool,
    /// Print nothing unless it fails
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// One eBPF program of an object.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Program {
    section: String,
    name: String,
    instructions: u64,
}

/// Builds (or lints) and reports.
pub(crate) fn main(args: BuildArgs) -> Result<u8> {
    let found = toolchain::find().map_err(anyhow::Error::msg)?;
    let (repo, target_dir) = (paths::repo(), paths::target().join("ebpf"));
    if args.clippy {
        let fail = lints::fail("clippy for bpf", &found.rustc());
        let command = found
            .clippy_command(&repo, &target_dir, fail)
            .map_err(anyhow::Error::msg)?;
        execute("clippy for the bpf target", command, args.quiet)?;
        return Ok(0);
    }
    let _alone =
        toolchain::alone(&target_dir).with_context(|| format!("cannot lock {}", target_dir.display()))?;
    let mut build = found.build_command(&repo, &target_dir);
    if args.log {
        build.args(["--features", "log"]);
    }
    execute("the eBPF build", build, args.quiet)?;
    let built = toolchain::built_object(&target_dir);
    let bytes = fs::read(&built).with_context(|| format!("cannot read {}", built.display()))?;
    let bytes =
        ebpf_strip::without_debug(&bytes).with_context(|| format!("{} is no object", built.display()))?;
    let finished = target_dir.join(OBJECT);
    fs::write(&finished, bytes).with_context(|| format!("cannot write {}", finished.display()))?;
    if !args.quiet {
        report(&finished, &found.name)?;
    }
    Ok(0)
}

fn execute(label: &str, mut command: Command, quiet: bool) -> Result<()> {
    if quiet {
        let output = command
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot start {label}"))?;
        if !output.status.success() {
            bail!(
                "{label} failed:\n{}",
                step::tail(&String::from_utf8_lossy(&output.stderr), 60)
            );
        }
        return Ok(());
    }
    let status = command
        .status()
        .with_context(|| format!("cannot start {label}"))?;
    if !status.success() {
        bail!("{label} failed ({status})");
    }
    Ok(())
}

fn report(object: &Path, toolchain: &str) -> Result<()> {
    let bytes = fs::read(object).with_context(|| format!("cannot read {}", object.display()))?;
    let file = object::File::parse(&*bytes).with_context(|| format!("{} is no object", object.display()))?;
    let programs = programs(&file);
    let width = programs
        .iter()
        .map(|program| program.section.len())
        .max()
        .unwrap_or(0);
    let names = programs
        .iter()
        .map(|program| program.name.len())
        .max()
        .unwrap_or(0);
    for Program {
        section,
        name,
        instructions,
    } in &programs
    {
        println!("{section:width$}  {name:names$}  {instructions:6} instructions");
    }
    let maps = maps(&file);
    let total: u64 = programs.iter().map(|program| program.instructions).sum();
    println!(
        "maps: {}",
        if maps.is_empty() {
            "none".to_owned()
        } else {
            maps.join(" ")
        }
    );
    println!(
        "{}: {} bytes, {} programs, {total} instructions, {} maps ({toolchain})",
        shown(object).display(),
        bytes.len(),
        programs.len(),
        maps.len()
    );
    Ok(())
}

fn shown(path: &Path) -> PathBuf {
    path.strip_prefix(paths::repo()).unwrap_or(path).to_path_buf()
}

fn programs(file: &object::File<'_>) -> Vec<Program> {
    const INSTRUCTION: u64 = 8;
    let mut programs = Vec::new();
    for section in file
        .sections()
        .filter(|section| section.kind() == SectionKind::Text)
    {
        let section_name = section.name().unwrap_or("?");
        // .text holds functions that the programs call; it is no program.
        if section_name == ".text" {
            continue;
        }
        for symbol in file.symbols() {
            let here = symbol.section_index() == Some(section.index());
            if here && symbol.is_definition() && symbol.kind() == SymbolKind::Text {
                programs.push(Program {
                    section: section_name.to_owned(),
                    name: symbol.name().unwrap_or("?").to_owned(),
                    instructions: symbol.size() / INSTRUCTION,
                });
            }
        }
    }
    programs.sort_by(|a, b| (&a.section, &a.name).cmp(&(&b.section, &b.name)));
    programs
}

fn maps(file: &object::File<'_>) -> Vec<String> {
    let mut maps = Vec::new();
    for section in file
        .sections()
        .filter(|section| matches!(section.name(), Ok("maps" | ".maps")))
    {
        for symbol in file
            .symbols()
            .filter(|symbol| symbol.section_index() == Some(section.index()))
        {
            match symbol.name() {
                Ok(name) if !name.is_empty() && symbol.kind() != SymbolKind::Section => {
                    maps.push(name.to_owned());
                }
                _ => {}
            }
        }
    }
    maps.sort();
    maps
}
