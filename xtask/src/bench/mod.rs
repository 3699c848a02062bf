//! `cargo xtask bench`: the performance goals, measured in the instruction-counting guest.

mod goals;
mod math;
mod raw;
mod row;

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use serde_json::{Value, json};

use self::goals::Context;
use self::raw::Raw;
use self::row::{HEADER, Row};
use crate::lab::{self, GuestArgs};
use crate::{paths, step};

/// Marks around the part of docs/performance.md that `--docs` writes.
const BEGIN: &str = "<!-- last table: written by cargo xtask bench --docs -->";
const END: &str = "<!-- end of the last table -->";

/// `cargo xtask bench`
#[derive(Args)]
pub(crate) struct BenchArgs {
    /// Kernel: 6.1, 6.12 or 7.2
    #[arg(long, default_value = "6.12")]
    kernel: String,
    /// Only these goals, for example G3,G6
    #[arg(long, value_name = "GOAL", value_delimiter = ',')]
    only: Vec<String>,
    /// Another tool with a live view, started without arguments, to measure beside ours
    #[arg(long, value_name = "PATH")]
    peer: Option<PathBuf>,
    /// Devices of the stage with many
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(2..=250))]
    devices: u32,
    /// Take the release binaries as they are
    #[arg(long)]
    no_build: bool,
    /// Write the rows into the table of docs/performance.md; those of other goals stay
    #[arg(long)]
    docs: bool,
}

/// One boot of the guest.
struct Stage {
    name: &'static str,
    goals: &'static [&'static str],
    devices: u32,
    cpus: u32,
    minutes: u64,
}

/// Measures, prints the table and keeps it as JSON. The exit status is 1 when a goal is missed.
pub(crate) fn main(args: &BenchArgs) -> Result<u8> {
    let wanted = wanted(&args.only)?;
    let programs = paths::target().join("release");
    // Read before the build, because the tree may change while this measures.
    let about = About::read(&args.kernel);
    if !args.no_build {
        build()?;
    }
    let peer = args.peer.as_deref().map(stage_peer).transpose()?;
    let mut raw = Raw::default();
    for (tool, package, prefix) in [("bpftrace", "bpftrace", "bpftrace"), ("rdma", "iproute2", "rdma")] {
        if paths::find_tool(&[tool]).is_none() {
            let line = format!("no {tool}: apt-get install {package}");
            eprintln!("bench: {line}");
            raw.missing.insert(prefix.to_owned(), line);
        }
    }
    let stages = [
        Stage {
            name: "one",
            goals: &goals::ALL,
            devices: 1,
            cpus: 1,
            minutes: 40,
        },
        Stage {
            name: "many",
            goals: &["G5"],
            devices: args.devices,
            cpus: 1,
            minutes: 15,
        },
        // Reader and producers run on two CPUs, as in reality. These share one emulated core, which mixes
        // their CPU times: the stage with one CPU measures what a storm costs its producers.
        Stage {
            name: "storm",
            goals: &["G8"],
            devices: 1,
            // Linux 6.1 hangs when it brings up a second CPU while instructions are counted.
            cpus: if args.kernel == "6.1" { 1 } else { 2 },
            minutes: 30,
        },
    ];
    for stage in &stages {
        if !stage.goals.iter().any(|goal| wanted.iter().any(|w| w == goal)) {
            continue;
        }
        match run_stage(stage, &args.kernel, &wanted, &programs, peer.as_deref()) {
            Ok(report) => raw.merge(report),
            Err(error) => {
                let why = format!("{error:#}");
                eprintln!("bench: stage {}: {why}", stage.name);
                raw.missing.insert(format!("stage {}", stage.name), why);
            }
        }
    }
    let context = Context {
        peer: peer.is_some(),
        devices: args.devices,
    };
    let rows = goals::rows(&raw, context, &wanted);
    let table = row::table(rows.iter().map(Row::cells));
    println!("{}\n\n{table}", about.line());
    save(&about, &rows, &raw)?;
    if args.docs {
        write_docs(&about, &wanted, &rows)?;
    }
    let missed = rows.iter().any(|row| row.verdict() == row::Verdict::Missed);
    Ok(u8::from(missed))
}

fn wanted(only: &[String]) -> Result<Vec<String>> {
    if only.is_empty() {
        return Ok(goals::ALL.map(str::to_owned).to_vec());
    }
    let upper: Vec<String> = only.iter().map(|goal| goal.to_uppercase()).collect();
    for goal in &upper {
        if !goals::ALL.contains(&goal.as_str()) {
            bail!("--only {goal}: the goals are {}", goals::ALL.join(", "));
        }
    }
    Ok(upper)
}

fn build() -> Result<()> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args([
            "build",
            "--release",
            "--bins",
            "-p",
            "rdmatop",
            "-p",
            "rdmatop-tests",
        ])
        .current_dir(paths::repo())
        .env("CARGO_TARGET_DIR", paths::target());
    step::run("build rdmatop and the drivers (release)", &mut command).map(drop)
}

/// Copies the peer to a directory that the guest sees: the guest has its own /tmp and /run.
fn stage_peer(path: &Path) -> Result<PathBuf> {
    let dir = paths::target().join("bench");
    fs::create_dir_all(&dir)?;
    let copy = dir.join("peer");
    fs::copy(path, &copy).with_context(|| format!("cannot copy the peer {}", path.display()))?;
    Ok(copy)
}

fn run_stage(
    stage: &Stage,
    kernel: &str,
    wanted: &[String],
    programs: &Path,
    peer: Option<&Path>,
) -> Result<Raw> {
    let out = env::var_os("RDMATOP_LAB_OUT")
        .map_or_else(|| paths::target().join("lab-out"), |dir| paths::repo().join(dir));
    let report = out.join(format!("bench-{}.json", stage.name));
    // Removed, so that a report of an earlier run is not taken for the report of this one.
    match fs::remove_file(&report) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let mut command: Vec<OsString> = vec![programs.join("bench-guest").into()];
    let mut option = |name: &str, value: OsString| command.extend([name.into(), value]);
    option("--stage", stage.name.into());
    option("--goals", wanted.join(",").into());
    option("--ours", programs.join("rdmatop").into());
    if let Some(peer) = peer {
        option("--peer", peer.into());
    }
    option("--out", report.clone().into());
    let guest = GuestArgs {
        arch: crate::arch::Arch::X86_64,
        kernel: kernel.to_owned(),
        devices: Some(stage.devices),
        nic: None,
        wire: false,
        cpus: Some(stage.cpus),
        memory: 3072,
        icount: true,
        single_threaded: false,
    };
    let limit = Duration::from_secs(60 * stage.minutes);
    let code = lab::run_job(&guest, command, false, Some(limit))?;
    let text = fs::read_to_string(&report);
    if code != 0 {
        eprintln!(
            "bench: stage {} ended with {code}; what it measured before is used",
            stage.name
        );
    }
    let text = text.with_context(|| format!("the guest ended with {code} and left no report"))?;
    let mut raw = Raw::parse(&text)?;
    if code != 0 {
        let why = format!("the guest's stage {} ended early with {code}", stage.name);
        raw.missing.insert(format!("stage {}", stage.name), why);
    }
    Ok(raw)
}

/// When, and from which kernel and commit, a table was measured.
struct About {
    kernel: String,
    date: String,
    commit: String,
}

impl About {
    fn read(kernel: &str) -> Self {
        let tell = |program: &str, args: &[&str]| {
            let output = Command::new(program)
                .args(args)
                .current_dir(paths::repo())
                .output();
            let output = output.ok().filter(|output| output.status.success());
            output.map_or_else(
                || "unknown".to_owned(),
                |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
            )
        };
        Self {
            kernel: kernel.to_owned(),
            date: tell("date", &["-u", "+%Y-%m-%d %H:%M"]),
            commit: tell("git", &["describe", "--always", "--dirty", "--abbrev=12"]),
        }
    }

    fn line(&self) -> String {
        format!("Linux {}, {} UTC, commit {}", self.kernel, self.date, self.commit)
    }
}

fn save(about: &About, rows: &[Row], raw: &Raw) -> Result<()> {
    let dir = paths::target().join("bench");
    fs::create_dir_all(&dir)?;
    let lines: Vec<Value> = rows
        .iter()
        .map(|row| {
            let mut line = json!({
                "ours": row.ours.as_ref().ok(),
                "base": row.base.as_ref().ok(),
                "ratio": row.ratio(),
            });
            let texts = row.cells();
            let cell = |name: &str| {
                HEADER
                    .iter()
                    .position(|head| *head == name)
                    .map(|at| texts[at].clone())
            };
            for name in ["goal", "formula", "limit", "verdict"] {
                line[name] = cell(name).into();
            }
            line
        })
        .collect();
    let report = json!({
        "kernel": about.kernel,
        "date": about.date,
        "commit": about.commit,
        "rows": lines,
        "values": raw.values,
        "missing": raw.missing,
    });
    let name = format!("{}-{}.json", about.kernel, about.date.replace([' ', ':'], "-"));
    let file = dir.join(name);
    fs::write(&file, format!("{report:#}\n")).with_context(|| format!("cannot write {}", file.display()))?;
    eprintln!("bench: {}", file.display());
    Ok(())
}

fn write_docs(about: &About, measured: &[String], rows: &[Row]) -> Result<()> {
    let path = paths::repo().join("docs/performance.md");
    let page = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let new = with_rows(&page, &about.line(), measured, rows.iter().map(Row::cells));
    ensure!(
        new.is_some(),
        "docs/performance.md has lost the marks around its table"
    );
    fs::write(&path, new.unwrap_or_default()).with_context(|| format!("cannot write {}", path.display()))
}

/// Returns the page with the rows of these goals between its marks. Those of other goals stay, and so does
/// what says when they were measured: `G1, G3: Linux ...; G2: Linux ...`, before the table.
fn with_rows(
    page: &str,
    about: &str,
    measured: &[String],
    rows: impl Iterator<Item = [String; 7]>,
) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (old, after) = rest.split_once(END)?;
    let stays = |goal: &str| goals::ALL.contains(&goal) && !measured.iter().any(|now| now == goal);
    let mut abouts = format!("{}: {about}", measured.join(", "));
    let earlier = old.trim_start().lines().next().unwrap_or_default();
    for (goals, about) in earlier.split("; ").filter_map(|part| part.split_once(": ")) {
        let goals: Vec<&str> = goals.split(", ").filter(|goal| stays(goal)).collect();
        if !goals.is_empty() {
            abouts.extend(["; ", &goals.join(", "), ": ", about]);
        }
    }
    let kept = old
        .lines()
        .filter_map(row::cells_of)
        .filter(|cells| stays(&cells[0]));
    let mut rows: Vec<_> = kept.chain(rows).collect();
    rows.sort_by_key(|cells| goals::ALL.iter().position(|goal| *goal == cells[0]));
    let table = row::table(rows);
    Some(format!("{before}{BEGIN}\n{abouts}\n\n{table}\n{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_chosen_in_any_case_and_unknown_ones_refused() {
        assert_eq!(wanted(&["g3".to_owned()]).unwrap(), ["G3"]);
        assert_eq!(wanted(&[]).unwrap().len(), 10);
        let error = wanted(&["G11".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("G11") && error.contains("G10"), "{error}");
    }

    #[test]
    fn rows_of_other_goals_stay_with_what_says_when_they_were_measured() {
        let cells = |goal: &str, ours: &str| [goal, "a / b", ours, "-", "-", "-", "ok"].map(str::to_owned);
        let rows = |rows: &[(&str, &str)]| row::table(rows.iter().map(|(goal, ours)| cells(goal, ours)));
        let page = |abouts: &str, table: &str| format!("a\n{BEGIN}\n{abouts}\n\n{table}\n{END}\nb\n");
        let old = page(
            "G2, G7: Linux 6.1, 20:30; G10: Linux 7.2, 20:31",
            &rows(&[("G2", "1"), ("G7", "2"), ("G7", "3"), ("G10", "4")]),
        );
        let measured = ["G7".to_owned(), "G9".to_owned()];
        let new = [cells("G7", "5"), cells("G9", "6")].into_iter();
        assert_eq!(
            with_rows(&old, "Linux 6.12, 20:40", &measured, new).unwrap(),
            page(
                "G7, G9: Linux 6.12, 20:40; G2: Linux 6.1, 20:30; G10: Linux 7.2, 20:31",
                &rows(&[("G2", "1"), ("G7", "5"), ("G9", "6"), ("G10", "4")]),
            )
        );
        assert_eq!(with_rows("no marks", "new", &measured, std::iter::empty()), None);
    }
}
