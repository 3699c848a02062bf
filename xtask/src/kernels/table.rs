//! The page that `cargo xtask kernels` writes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde_json::Value;

use super::{Foreseen, verdicts};

const HEAD: &str = "\
# What rdmatop attaches on which kernel

`cargo xtask kernels` writes this page. It takes each kernel's BTF, the functions of its modules and its
configuration out of Debian's package, and asks the same plan that decides on a running kernel. The verifier is
not asked, and a function whose name a module outside drivers/infiniband has too is not seen to be ambiguous.
`cargo xtask kernels --verify` compares the rows of the lab's kernels with what rdmatop says on them, and
`cargo xtask test` attaches everything there. For a kernel that is not on this page nothing is known until
`rdmatop probes` runs on it; `cargo xtask kernels --deb FILE...` answers for one whose Debian packages you have.

Kernels of Ubuntu, RHEL and Amazon Linux are not on this page, because no package that a build can have brings them: names and
descriptions of Debian's packages, of PyPI's and of npm's were searched for BTF, BTFHub, vmlinux and kallsyms, and crates.io was asked for
btf, btf-rs, btfdump, btfhub and vmlinux. What there is reads BTF and holds none. BTFHub's archive is in none of them, and has one file for
each kernel: RDMA's structs are in the BTF of modules, which it lacks, and it has no list of functions.

";

/// Makes the page about these kernels.
pub(super) fn page(kernels: &[Foreseen]) -> String {
    let mut out = HEAD.to_owned();
    out += "## Kernels\n\n";
    out += "`attached`: programs that would be attached, of those whose driver the kernel has. `partly`: as many of them\n";
    out += "would leave some reading unknown. Which of them differ is in the next section.\n\n";
    out += "| kernel | attached | partly | programs | RDMA drivers in the package |\n|---|---|---|---|---|\n";
    let groups = groups(kernels);
    for kernel in kernels {
        let row = if let Some(why) = kernel.told["why_not"].as_str() {
            format!("none | - | {why}")
        } else {
            let count = |verdict| {
                verdicts(&kernel.told)
                    .values()
                    .filter(|own| **own == verdict)
                    .count()
            };
            let (ok, partial) = (count("ok"), count("partial"));
            let all = ok + partial + count("unsupported");
            let group = groups.iter().position(|(of, _)| *of == verdicts(&kernel.told));
            let group = group.map_or_else(String::new, |at| format!("column {}", letter(at)));
            format!("{} of {all} | {partial} | {group}", ok + partial)
        };
        let drivers = kernel.drivers.join(", ");
        let _ = writeln!(out, "| {} | {row} | {drivers} |", kernel.release);
    }
    out += &unseen(kernels);
    out += &matrix(&groups);
    out
}

fn letter(at: usize) -> char {
    char::from(b'A' + u8::try_from(at).unwrap_or(25).min(25))
}

type Verdicts<'a> = BTreeMap<&'a str, &'a str>;

/// Groups kernels with equal verdicts on all programs, ordered by the first of each group.
fn groups(kernels: &[Foreseen]) -> Vec<(Verdicts<'_>, Vec<&str>)> {
    let mut out: Vec<(Verdicts<'_>, Vec<&str>)> = Vec::new();
    for kernel in kernels.iter().filter(|kernel| kernel.told["why_not"].is_null()) {
        let own = verdicts(&kernel.told);
        match out.iter_mut().find(|(verdicts, _)| *verdicts == own) {
            Some((_, releases)) => releases.push(&kernel.release),
            None => out.push((own, vec![&kernel.release])),
        }
    }
    out
}

/// What would not be seen: each cause with its kernels.
fn unseen(kernels: &[Foreseen]) -> String {
    let mut causes: Vec<(String, Vec<&str>)> = Vec::new();
    for kernel in kernels {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        for cause in kernel.told["causes"].as_array().into_iter().flatten() {
            let line = format!("{}: {}", text(&cause["what"]), text(&cause["why"]));
            match causes.iter_mut().find(|(known, _)| *known == line) {
                Some((_, releases)) => releases.push(&kernel.release),
                None => causes.push((line, vec![&kernel.release])),
            }
        }
        let undecided = kernel.told["undecided"].as_array().map_or(0, Vec::len);
        if undecided > 0 {
            let line = format!(
                "Not known from files: {undecided} tracepoints of rdma_cm, whose fields tracefs lists on the \
                 kernel that runs"
            );
            match causes.iter_mut().find(|(known, _)| *known == line) {
                Some((_, releases)) => releases.push(&kernel.release),
                None => causes.push((line, vec![&kernel.release])),
            }
        }
    }
    let mut out = "\n## What is not seen\n\n".to_owned();
    for (line, releases) in causes {
        let _ = writeln!(out, "* {line}\n  ({})", releases.join(", "));
    }
    out
}

/// The verdicts that differ between groups of kernels.
fn matrix(groups: &[(Verdicts<'_>, Vec<&str>)]) -> String {
    let mut out = "\n## Programs\n\n".to_owned();
    for (at, (_, releases)) in groups.iter().enumerate() {
        let _ = writeln!(out, "* {}: {}", letter(at), releases.join(", "));
    }
    out += "\n| program |";
    for at in 0..groups.len() {
        let _ = write!(out, " {} |", letter(at));
    }
    let _ = writeln!(out, "\n|---|{}", "---|".repeat(groups.len()));
    let programs: BTreeSet<&str> = groups.iter().flat_map(|(own, _)| own.keys().copied()).collect();
    let mut everywhere = Vec::new();
    for program in programs {
        let marks: Vec<_> = groups
            .iter()
            .map(|(own, _)| own.get(program).map_or("?", |verdict| mark(verdict)))
            .collect();
        if marks.iter().all(|mark| *mark == "yes") {
            everywhere.push(format!("`{program}`"));
        } else {
            let _ = writeln!(out, "| `{program}` | {} |", marks.join(" | "));
        }
    }
    let _ = writeln!(out, "\nAttached on each of them: {}.", everywhere.join(", "));
    out
}

/// Returns the page's word for a verdict.
fn mark(verdict: &str) -> &'static str {
    match verdict {
        "ok" => "yes",
        "partial" => "partly",
        "not_applicable" => "no driver",
        _ => "no",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kernel(release: &str, told: Value) -> Foreseen {
        Foreseen {
            release: release.to_owned(),
            drivers: vec!["mlx5_ib".to_owned()],
            told,
        }
    }

    #[test]
    fn the_page_that_is_here_has_this_head() {
        let page = std::fs::read_to_string(crate::paths::repo().join(crate::kernels::PAGE)).unwrap();
        assert!(page.starts_with(HEAD), "`cargo xtask kernels` writes it anew");
    }

    #[test]
    fn what_differs_has_a_row_and_what_is_not_decided_is_no_no() {
        let probe = |program: &str, verdict: &str| json!({ "program": program, "verdict": verdict });
        let old = json!({
            "probes": [probe("everywhere", "ok"), probe("new", "unsupported")],
            "undecided": ["cm"],
            "causes": [{ "what": "Not seen: new things", "why": "no function" }],
        });
        let new = json!({
            "probes": [probe("everywhere", "ok"), probe("new", "partial"), probe("cm", "ok")],
            "undecided": [],
            "causes": [],
        });
        let page = page(&[
            kernel("5.10.0-1", old),
            kernel("6.1.0-1", new.clone()),
            kernel("6.1.0-2", new),
            kernel("4.19.0", json!({ "why_not": "no list of functions" })),
        ]);
        for line in [
            "| 5.10.0-1 | 1 of 2 | 0 | column A | mlx5_ib |",
            "| 6.1.0-2 | 3 of 3 | 1 | column B | mlx5_ib |",
            "| 4.19.0 | none | - | no list of functions | mlx5_ib |",
            "* Not seen: new things: no function\n  (5.10.0-1)",
            "* B: 6.1.0-1, 6.1.0-2",
            "| `new` | no | partly |",
            "| `cm` | ? | yes |",
            "Attached on each of them: `everywhere`.",
        ] {
            assert!(page.contains(line), "no {line:?} in:\n{page}");
        }
    }
}
