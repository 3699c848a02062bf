//! Prints what rdmatop would attach on the machines below directories, a line of JSON for each.
//! `cargo xtask kernels` makes the directories from packages of kernels, and a table of these lines.

#![allow(clippy::print_stdout, reason = "its output is what it is for")]

use std::path::Path;

use rdmatop_loader::plan::{
    Outcome,
    foresee::{Foreseen, foresee},
};
use serde_json::{Value, json};

fn main() {
    for directory in std::env::args().skip(1) {
        println!("{}", of(Path::new(&directory)));
    }
}

/// The same records as in `rdmatop probes --json`, and what these files do not decide.
fn of(directory: &Path) -> Value {
    let Foreseen {
        outcomes,
        undecided,
        unseen,
    } = match foresee(directory) {
        Ok(foreseen) => foreseen,
        Err(obstacle) => return json!({ "why_not": obstacle.why }),
    };
    let probes: Vec<_> = outcomes.iter().map(Outcome::shown).collect();
    json!({ "probes": probes, "undecided": undecided, "causes": unseen })
}
