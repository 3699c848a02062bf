//! Measures inside the lab's instruction-counting guest, for `cargo xtask bench`: one nanosecond of CPU time
//! is one instruction there.
//!
//! `bench-guest --stage one|many|storm --goals G1,G2 --ours PATH [--peer PATH] --out FILE`
//! It rewrites `{"values":{NAME:NUMBER},"missing":{NAME:WHY}}` in FILE after each scenario, so that a later
//! failure loses nothing. It judges nothing: the host has the goals.

mod cpu;
mod floor;
mod live;
mod posts;
mod report;
mod slopes;
mod start;
mod storm;
mod tracer;

use std::path::PathBuf;

use anyhow::{Result, bail};
use rdmatop_tests::{args::Args, verbs::unlimit_memlock};

use report::Report;

/// The wanted goals and the programs to measure.
pub(crate) struct Bench {
    goals: Vec<String>,
    /// The rdmatop under test.
    pub(crate) ours: PathBuf,
    /// Another tool with a live view, started without arguments.
    pub(crate) peer: Option<PathBuf>,
}

impl Bench {
    /// Whether any of `goals` is wanted.
    pub(crate) fn wants(&self, goals: &[&str]) -> bool {
        goals
            .iter()
            .any(|goal| self.goals.iter().any(|wanted| wanted == goal))
    }
}

type Scenario = fn(&Bench, &mut Report) -> Result<()>;

fn main() -> Result<()> {
    let mut args = Args::from_env();
    let stage: String = args.value("--stage", String::new())?;
    let goals: String = args.value("--goals", String::new())?;
    let ours: String = args.value("--ours", "rdmatop".to_owned())?;
    let peer: String = args.value("--peer", String::new())?;
    let out: String = args.value("--out", "bench.json".to_owned())?;
    args.finish()?;
    unlimit_memlock()?;
    let bench = Bench {
        goals: goals.split(',').map(str::to_owned).collect(),
        ours: ours.into(),
        peer: (!peer.is_empty()).then(|| peer.into()),
    };
    let mut report = Report::new(out.into());
    let scenarios: &[(&str, &[&str], Scenario)] = match stage.as_str() {
        "one" => &[
            ("start", &["G9"], start::run),
            ("posts", &["G6"], posts::run),
            ("events", &["G7"], storm::per_event),
            ("producers", &["G8"], storm::producers),
            ("refresh", &["G1", "G2", "G3", "G4", "G5", "G10"], slopes::run),
        ],
        "many" => &[("devices", &["G5"], slopes::devices)],
        "storm" => &[("storm", &["G8"], storm::run)],
        other => bail!("--stage {other}: one, many or storm"),
    };
    // A view without its programs works from netlink: its numbers must not be taken for those of eBPF.
    report.try_value("ebpf_programs", posts::attached(&bench).map(|count| count as f64));
    for (name, goals, scenario) in scenarios {
        if !bench.wants(goals) {
            continue;
        }
        report::say(&format!("{stage}: {name}"));
        if let Err(error) = scenario(&bench, &mut report) {
            report.missing(name, &format!("{error:#}"));
        }
        report.write()?;
    }
    Ok(())
}
