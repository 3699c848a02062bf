//! The page for a terminal of 80 columns, and the same as JSON.

use serde::Serialize;

use super::{
    facts::Facts,
    line::{Line, Report, Status},
    words::count,
};
use rdmatop_base::text;

/// Columns of the groups' names.
const GROUP: usize = 10;
/// Where the text begins.
const INDENT: usize = GROUP + 6;

/// How a status is written, and its colour (SGR).
fn word(status: Status) -> (&'static str, &'static str) {
    match status {
        Status::Pass => ("ok", "\x1b[32m"),
        Status::Skip => ("skip", "\x1b[36m"),
        Status::Unknown => ("????", "\x1b[1;35m"),
        Status::Warn => ("WARN", "\x1b[1;33m"),
        Status::Fail => ("FAIL", "\x1b[1;31m"),
    }
}

fn head(facts: &Facts) -> String {
    let host = facts.host.name.as_deref().unwrap_or("this machine");
    let kernel = facts.host.kernel.as_ref();
    let kernel = kernel.map_or(String::new(), |kernel| format!(", Linux {kernel}"));
    let rights = if facts.host.root { "as root" } else { "not as root" };
    let view = match facts.pid {
        Some(pid) => format!("as PID {pid} ({}) sees it, ", facts.view.comm),
        None => String::new(),
    };
    format!("{host}{kernel}, {view}checked {rights}")
}

/// The page; the first line is the verdict.
pub fn text(facts: &Facts, report: &Report, all: bool, colors: bool) -> String {
    let mut out = String::new();
    text::wrap(&mut out, "", 0, 2, &report.verdict());
    text::wrap(&mut out, "", 0, 2, &head(facts));
    out.push('\n');
    let mut group = "";
    let mut said = "";
    for line in &report.lines {
        let name = if line.group == group { "" } else { line.group };
        group = line.group;
        one(&mut out, name, line, said == line.why, colors);
        said = &line.why;
    }
    rest(&mut out, report, all);
    out
}

/// `known`: the line before has the same reason.
fn one(out: &mut String, group: &str, line: &Line, known: bool, colors: bool) {
    let (word, color) = word(line.status);
    let (begin, end) = if colors { (color, "\x1b[0m") } else { ("", "") };
    let first = format!("{group:GROUP$}{begin}{word:4}{end}  ");
    let said = match line.status {
        // What is unknown and why, in one sentence.
        Status::Skip | Status::Unknown if !line.why.is_empty() => format!("{}: {}", line.text, line.why),
        _ => line.text.clone(),
    };
    text::wrap(out, &first, INDENT, INDENT, &said);
    let mut note = |name: &str, words: &str| {
        if !words.is_empty() {
            let first = format!("{:INDENT$}{name:5}", "");
            text::wrap(out, &first, INDENT + 5, INDENT + 5, words);
        }
    };
    if !matches!(line.status, Status::Skip | Status::Unknown) && !known {
        note("why:", &line.why);
    }
    note("do:", &line.remedy);
}

fn rest(out: &mut String, report: &Report, all: bool) {
    if report.not_applicable.is_empty() {
        return;
    }
    out.push('\n');
    let count = count(report.not_applicable.len(), "check");
    let said = if all {
        format!("Not applicable here: {}", report.not_applicable.join(", "))
    } else {
        format!("Not applicable here: {count}; --all lists them.")
    };
    text::wrap(out, "", 0, 2, &said);
}

/// One JSON object.
pub fn json(facts: &Facts, report: &Report) -> serde_json::Result<String> {
    #[derive(Serialize)]
    struct Document<'a> {
        schema: u32,
        verdict: &'a str,
        status: Status,
        host: Option<&'a str>,
        kernel: Option<&'a str>,
        root: bool,
        pid: Option<u32>,
        passed: usize,
        skipped: usize,
        unknown: usize,
        warnings: usize,
        failures: usize,
        lines: &'a [Line],
        not_applicable: &'a [&'static str],
    }
    serde_json::to_string(&Document {
        schema: rdmatop_model::snapshot::SCHEMA,
        verdict: &report.verdict(),
        status: report.status(),
        host: facts.host.name.as_deref(),
        kernel: facts.host.kernel.as_deref(),
        root: facts.host.root,
        pid: facts.pid,
        passed: report.count(Status::Pass),
        skipped: report.count(Status::Skip),
        unknown: report.count(Status::Unknown),
        warnings: report.count(Status::Warn),
        failures: report.count(Status::Fail),
        lines: &report.lines,
        not_applicable: &report.not_applicable,
    })
}
