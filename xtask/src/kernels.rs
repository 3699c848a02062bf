//! `cargo xtask kernels`: which programs rdmatop would attach on the kernels of Debian's packages, without
//! booting them. The loader's plan needs only facts that a package has: BTF, function names, configuration.
//! With `--verify`, the lab's kernels are booted and the prediction is compared with what rdmatop reports
//! there. `cargo xtask test --everywhere` does that, too, and compares the page instead of writing it.

mod facts;
mod table;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::Value;

use crate::arch::Arch;
use crate::lab::{self, archive, kernel};
use crate::{paths, setup, step, test};

const PAGE: &str = "docs/kernels.md";

/// `cargo xtask kernels`
#[derive(Args, Clone, Default)]
pub(crate) struct KernelsArgs {
    /// Look at a kernel of one's own instead: the files of its Debian packages (image and modules)
    #[arg(long, num_args = 1.., value_name = "FILE")]
    deb: Vec<PathBuf>,
    /// Boot the lab's kernels, and compare what rdmatop says there
    #[arg(long)]
    verify: bool,
}

/// Kernels of a Debian suite for one architecture.
struct Source {
    suite: &'static str,
    /// The kernel series to take; `None` takes the newest of the suite.
    series: Option<&'static str>,
    arch: Arch,
    flavours: &'static [&'static str],
}

/// Debian's kernels: each release that is maintained, and the kernels for clouds and for real time.
const SOURCES: [Source; 8] = [
    Source {
        suite: "bullseye",
        series: Some("5.10"),
        arch: Arch::X86_64,
        flavours: &["amd64", "cloud-amd64", "rt-amd64"],
    },
    Source {
        suite: "bookworm",
        series: Some("6.1"),
        arch: Arch::X86_64,
        flavours: &["amd64", "cloud-amd64", "rt-amd64"],
    },
    Source {
        suite: "trixie",
        series: Some("6.12"),
        arch: Arch::X86_64,
        flavours: &["amd64", "cloud-amd64", "rt-amd64"],
    },
    Source {
        suite: "unstable",
        series: None,
        arch: Arch::X86_64,
        flavours: &["amd64", "cloud-amd64", "rt-amd64"],
    },
    Source {
        suite: "bullseye",
        series: Some("5.10"),
        arch: Arch::Aarch64,
        flavours: &["arm64", "cloud-arm64", "rt-arm64"],
    },
    Source {
        suite: "bookworm",
        series: Some("6.1"),
        arch: Arch::Aarch64,
        flavours: &["arm64", "cloud-arm64", "rt-arm64"],
    },
    Source {
        suite: "trixie",
        series: Some("6.12"),
        arch: Arch::Aarch64,
        flavours: &["arm64", "arm64-16k", "cloud-arm64", "rt-arm64"],
    },
    Source {
        suite: "unstable",
        series: None,
        arch: Arch::Aarch64,
        flavours: &["arm64", "arm64-16k", "cloud-arm64", "rt-arm64"],
    },
];

/// A kernel whose facts are in the cache.
struct Known {
    release: String,
    facts: PathBuf,
}

/// What the plan predicts for a kernel.
struct Foreseen {
    release: String,
    /// The RDMA drivers in the package.
    drivers: Vec<String>,
    told: Value,
}

/// Writes docs/kernels.md, or prints the same for a kernel whose packages are given.
pub(crate) fn main(args: &KernelsArgs) -> Result<u8> {
    setup::without_kernels()?;
    if !args.deb.is_empty() {
        let known = of_files(&args.deb)?;
        print!("{}", table::page(&foresee(vec![known])?));
        return Ok(0);
    }
    let foreseen = foresee(of_debian()?.into_iter().collect::<Result<_>>()?)?;
    let page = paths::repo().join(PAGE);
    fs::write(&page, table::page(&foreseen)).with_context(|| format!("cannot write {}", page.display()))?;
    println!("{PAGE}");
    if !args.verify {
        return Ok(0);
    }
    let rdmatop = match std::env::var_os("RDMATOP") {
        Some(program) => fs::canonicalize(program).context("RDMATOP names no program")?,
        None => test::program(test::Profile::Lab)?,
    };
    verify(&foreseen, &rdmatop).map(|differences| u8::from(!differences.is_empty()))
}

/// The end of [`check`] where nothing differs.
pub(crate) enum Checked {
    /// The page and the lab's kernels were compared, and nothing differs.
    Alike,
    /// Nothing was compared, because the packages cannot be fetched here, and why.
    Skipped(String),
}

/// Compares the page with Debian's packages, and these with what this rdmatop says on the lab's kernels.
/// Fails with all differences; writes nothing.
pub(crate) fn check(rdmatop: &Path) -> Result<Checked> {
    let known = match of_debian() {
        Ok(known) => known.into_iter().collect::<Result<_>>()?,
        Err(error) => return Ok(Checked::Skipped(format!("{error:#}"))),
    };
    let foreseen = foresee(known)?;
    let page = paths::repo().join(PAGE);
    let page = fs::read_to_string(&page).with_context(|| format!("cannot read {}", page.display()))?;
    let table::Stale { mut wrong, new } = table::stale(&page, &foreseen);
    for release in new {
        println!("{PAGE}: no row of {release}, which is newer: `cargo xtask kernels` writes it");
    }
    if !wrong.is_empty() {
        wrong.insert(0, format!("{PAGE} is old: `cargo xtask kernels` writes it anew"));
    }
    wrong.extend(verify(&foreseen, rdmatop)?);
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(Checked::Alike)
}

/// Returns the facts of all of Debian's kernels, or why their packages cannot be had. A package that was
/// fetched and has not what is looked for is a failure of its own.
fn of_debian() -> Result<Vec<Result<Known>>> {
    let mut known = Vec::new();
    for source in &SOURCES {
        known.extend(of_source(source)?);
    }
    Ok(known)
}

fn cache() -> PathBuf {
    kernel::cache().join("facts")
}

/// Returns the facts of a release if an earlier run has extracted them.
fn cached(release: &str) -> Option<Known> {
    let facts = cache().join(release);
    // This file is written last, so it proves that the others are complete.
    facts.join("proc/kallsyms").is_file().then(|| Known {
        release: release.to_owned(),
        facts,
    })
}

fn of_source(source: &Source) -> Result<Vec<Result<Known>>> {
    let title = format!("kernels: {} for {}", source.suite, source.arch.debian());
    let job = format!("facts-{}", source.arch.debian());
    archive::from_any(source.arch, source.suite, &job, &title, |apt| {
        let mut out = Vec::new();
        for flavour in source.flavours {
            let picked = apt.newest_kernel(&title, flavour, source.series)?;
            if let Some(known) = cached(&picked.release) {
                out.push(Ok(known));
                continue;
            }
            let label = format!("{title}: download {}", picked.release);
            let files = apt.download(&label, &picked.packages)?;
            let root = cache().join(format!("{}.root", picked.release));
            archive::unpack(&title, &files, &root)?;
            out.push(take(&root, &picked.release));
        }
        Ok(out)
    })
}

fn of_files(files: &[PathBuf]) -> Result<Known> {
    let root = cache().join("given");
    archive::unpack("kernels: the given packages", files, &root)?;
    let modules = [root.join("lib/modules"), root.join("usr/lib/modules")];
    let entry = modules.iter().find_map(|at| fs::read_dir(at).ok()?.next()?.ok());
    let entry = entry.context("the packages have no lib/modules")?;
    let release = entry.file_name().to_string_lossy().into_owned();
    take(&root, &release)
}

/// Extracts the facts from unpacked packages, and removes the packages.
fn take(root: &Path, release: &str) -> Result<Known> {
    let new = cache().join(format!("{release}.new"));
    let _ = fs::remove_dir_all(&new);
    facts::write(root, release, &new).with_context(|| format!("kernel {release}"))?;
    fs::remove_dir_all(root)?;
    let place = cache().join(release);
    let _ = fs::remove_dir_all(&place);
    fs::rename(&new, &place).with_context(|| format!("cannot rename {}", new.display()))?;
    cached(release).context("facts without functions")
}

/// Asks the loader's plan about each kernel.
fn foresee(known: Vec<Known>) -> Result<Vec<Foreseen>> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args([
            "run",
            "--quiet",
            "--package",
            "rdmatop-loader",
            "--example",
            "foresee",
            "--",
        ])
        .args(known.iter().map(|known| &known.facts))
        .current_dir(paths::repo())
        // The plan needs no eBPF object.
        .env("RDMATOP_EBPF_SKIP", "1");
    let lines = step::run("kernels: ask the plan", &mut cargo)?;
    let told: Vec<Value> = lines
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    ensure!(
        told.len() == known.len(),
        "the plan told of {} kernels",
        told.len()
    );
    let each = known.into_iter().zip(told).map(|(known, told)| {
        Ok(Foreseen {
            drivers: drivers(&known.facts)?,
            release: known.release,
            told,
        })
    });
    each.collect()
}

/// Returns the drivers of the README's tables that the kernel has.
fn drivers(facts: &Path) -> Result<Vec<String>> {
    const DEVICES: [&str; 16] = [
        "mlx5_ib",
        "mlx4_ib",
        "efa",
        "mana_ib",
        "bnxt_re",
        "irdma",
        "ionic_rdma",
        "erdma",
        "hns_roce_hw_v2",
        "iw_cxgb4",
        "qedr",
        "ocrdma",
        "hfi1",
        "vmw_pvrdma",
        "rdma_rxe",
        "siw",
    ];
    let modules = facts.join("sys/module");
    let listed = fs::read_dir(&modules).with_context(|| format!("cannot list {}", modules.display()))?;
    let names: Vec<_> = listed
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    let there = DEVICES
        .iter()
        .filter(|device| names.iter().any(|name| name == *device));
    Ok(there.map(|device| (*device).to_owned()).collect())
}

/// Compares the prediction with rdmatop's verdicts on the lab's kernels, where the programs are attached.
/// Prints and returns the differences.
fn verify(foreseen: &[Foreseen], rdmatop: &Path) -> Result<Vec<String>> {
    let mut differences = Vec::new();
    for series in kernel::ALL {
        let release = kernel::ensure(series)?.release;
        let Some(foreseen) = foreseen.iter().find(|known| known.release == release) else {
            println!("{release}: not among the packages: `cargo xtask lab fetch` takes the newest");
            continue;
        };
        let mut guest = lab::command(series, 300, &["--cpus", "2"])?;
        guest.args(["--", "sh", "-c", "exec $RDMATOP probes --json"]);
        guest.env("RDMATOP", rdmatop);
        let said = step::run(&format!("kernels: {} in the lab", series.title()), &mut guest)?;
        let line = said.lines().find(|line| line.starts_with('{'));
        let told: Value = serde_json::from_str(line.context("rdmatop probes printed no JSON")?)?;
        let there = verdicts(&told);
        let mut compared = 0;
        for (program, expected) in verdicts(&foreseen.told) {
            // The lab does not load every driver, and nothing is attached for a driver that is not loaded.
            let Some(seen) = there.get(program).filter(|seen| **seen != "not_applicable") else {
                continue;
            };
            compared += 1;
            if *seen != expected {
                let line = format!("{release}: {program}: {expected} was foreseen, {seen} it is");
                println!("{line}");
                differences.push(line);
            }
        }
        println!("{release}: {compared} programs compared");
        ensure!(compared > 0, "{release}: nothing to compare");
    }
    Ok(differences)
}

/// Returns the verdict on each program from the output of `rdmatop probes --json`.
fn verdicts(told: &Value) -> BTreeMap<&str, &str> {
    let each = told["probes"].as_array().into_iter().flatten();
    each.filter_map(|probe| Some((probe["program"].as_str()?, probe["verdict"].as_str()?)))
        .collect()
}
