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
`cargo xtask test` attaches everything there. `cargo xtask test --everywhere` verifies too, and compares this page with what would be written.
For a kernel that is not on this page nothing is known until
`rdmatop probes` runs on it; `cargo xtask kernels --deb FILE...` answers for one whose Debian packages you have.

Kernels of Ubuntu, RHEL and Amazon Linux are not on this page, because no package that a build can have brings them: names and
descriptions of Debian's packages, of PyPI's and of npm's were searched for BTF, BTFHub, vmlinux and kallsyms, and crates.io was asked for
btf, btf-rs, btfdump, btfhub and vmlinux. What there is reads BTF and holds none. BTFHub's archive is in none of them, and has one file for
each kernel: RDMA's structs are in the BTF of modules, which it lacks, and it has no list of functions.

";

/// What stands above the table of kernels.
const INTRO: &str = "\
## Kernels

`attached`: how many programs would be attached, of those whose driver the kernel has. Programs about which the files do not decide
(`?` in the table of [programs](#programs)) are in neither number. `partly`: how many of the attached programs would leave something
unread. Which programs differ between kernels is in that table.

";

/// Makes the page about these kernels.
pub(super) fn page(kernels: &[Foreseen]) -> String {
    let mut out = [HEAD, INTRO].concat();
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

/// What a written page says otherwise than these kernels.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Stale {
    /// A line for each difference.
    pub(super) wrong: Vec<String>,
    /// Kernels that the page does not have, because their packages are newer.
    pub(super) new: Vec<String>,
}

/// Compares a written page with these kernels: of those that it has the mark of each program, and the whole
/// text where it has the same kernels.
pub(super) fn stale(written: &str, kernels: &[Foreseen]) -> Stale {
    let known = marks(written);
    let rows = |release: &str| written.contains(&format!("\n| {release} |"));
    let mut out = Stale::default();
    for Foreseen { release, told, .. } in kernels {
        let Some(known) = known.get(release.as_str()) else {
            // One without verdicts has a row alone.
            let list = if rows(release) && told["why_not"].is_null() {
                &mut out.wrong
            } else if rows(release) {
                continue;
            } else {
                &mut out.new
            };
            list.push(release.clone());
            continue;
        };
        let now = verdicts(told);
        let programs: BTreeSet<&str> = known.keys().chain(now.keys()).copied().collect();
        for program in programs {
            let before = known.get(program).copied().unwrap_or("?");
            let now = now.get(program).map_or("?", |verdict| mark(verdict));
            if before != now {
                out.wrong.push(format!(
                    "{release}: {program}: the page says {before}, the plan {now}"
                ));
            }
        }
    }
    if out == Stale::default() && page(kernels) != written {
        out.wrong.push("other words, rows or drivers".to_owned());
    }
    out
}

/// Returns the marks of all programs by the releases of a written page.
fn marks(page: &str) -> BTreeMap<&str, Verdicts<'_>> {
    const EVERYWHERE: &str = "Attached on each of them: ";
    let programs = page.split_once("\n## Programs\n").map_or("", |(_, rest)| rest);
    let mut columns: Vec<(Vec<&str>, Verdicts<'_>)> = Vec::new();
    for line in programs.lines() {
        if let Some((_, releases)) = line.strip_prefix("* ").and_then(|line| line.split_once(": ")) {
            columns.push((releases.split(", ").collect(), BTreeMap::new()));
        } else if let Some(row) = line.strip_prefix("| `") {
            let mut cells = row.trim_end_matches(" |").split(" | ");
            let program = cells.next().unwrap_or_default().trim_end_matches('`');
            for ((_, marks), mark) in columns.iter_mut().zip(cells) {
                marks.insert(program, mark);
            }
        } else if let Some(list) = line.strip_prefix(EVERYWHERE) {
            for program in list.trim_end_matches('.').split(", ") {
                let program = program.trim_matches('`');
                for (_, marks) in &mut columns {
                    marks.insert(program, "yes");
                }
            }
        }
    }
    let each = columns
        .into_iter()
        .flat_map(|(releases, marks)| releases.into_iter().map(move |release| (release, marks.clone())));
    each.collect()
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
        let head = [HEAD, INTRO].concat();
        assert!(page.starts_with(&head), "`cargo xtask kernels` writes it anew");
    }

    #[test]
    fn the_marks_of_the_page_that_is_here_are_read_as_its_rows_count_them() {
        let page = std::fs::read_to_string(crate::paths::repo().join(crate::kernels::PAGE)).unwrap();
        let known = marks(&page);
        assert!(known.len() > 20, "{known:?}");
        for (release, marks) in known {
            let count = |wanted: &[&str]| marks.values().filter(|mark| wanted.contains(mark)).count();
            let (attached, all) = (count(&["yes", "partly"]), count(&["yes", "partly", "no"]));
            let row = format!(
                "\n| {release} | {attached} of {all} | {} | column ",
                count(&["partly"])
            );
            assert!(page.contains(&row), "no {row:?}");
        }
    }

    #[test]
    fn a_verdict_that_changed_is_told_and_a_newer_kernel_is_no_difference() {
        let told = |verdict: &str| {
            json!({
                "probes": [
                    { "program": "both", "verdict": "ok" },
                    { "program": "one", "verdict": verdict },
                ],
                "undecided": ["cm"],
                "causes": [],
            })
        };
        let none = || kernel("4.19.0", json!({ "why_not": "no list of functions" }));
        let before = [
            kernel("6.1.0-1", told("ok")),
            kernel("6.1.0-2", told("partial")),
            none(),
        ];
        let written = page(&before);
        assert_eq!(stale(&written, &before), Stale::default());

        let changed = [
            kernel("6.1.0-1", told("unsupported")),
            kernel("6.1.0-3", told("ok")),
            none(),
        ];
        assert_eq!(
            stale(&written, &changed),
            Stale {
                wrong: vec!["6.1.0-1: one: the page says yes, the plan no".into()],
                new: vec!["6.1.0-3".into()],
            }
        );
        // A program that is new, and one that is gone.
        let other = json!({ "probes": [{ "program": "other", "verdict": "ok" }] });
        let wrong = stale(&written, &[kernel("6.1.0-1", other)]).wrong;
        assert_eq!(
            wrong,
            [
                "6.1.0-1: both: the page says yes, the plan ?",
                "6.1.0-1: one: the page says yes, the plan ?",
                "6.1.0-1: other: the page says ?, the plan yes"
            ]
        );
        let words = written.replacen("decide", "tell", 1);
        assert_eq!(stale(&words, &before).wrong, ["other words, rows or drivers"]);
        // A kernel that had no verdicts has some now.
        let now = stale(&written, &[kernel("4.19.0", told("ok"))]);
        assert_eq!((now.wrong, now.new), (vec!["4.19.0".to_owned()], Vec::new()));
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
