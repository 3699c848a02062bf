//! Fields of findings.

use std::borrow::Cow;

use super::{Table, Unit, Value, gauge, object, state, text};
use crate::findings::{Finding, FindingId, Role, Severity};
use crate::snapshot::{PortRow, ProcessRow, Snapshot};

type F = Finding;

fn device(f: &F) -> Value<'_> {
    match (f.device.as_deref(), f.port) {
        (Some(name), Some(port)) => Value::Text(Cow::Owned(format!("{name}/{port}"))),
        (Some(name), None) => Value::Text(Cow::Borrowed(name)),
        (None, _) => Value::Unknown,
    }
}

/// How the row of a process shows its worst finding.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// If there are several findings, its number, 1 for the worst: rows with the same number belong together.
    pub number: Option<usize>,
    /// How bad it is.
    pub severity: Severity,
    /// Whether the process is the cause, or suffers, or may.
    pub role: Role,
    /// What is wrong, and since when or how long ago, in a few words.
    pub words: String,
}

/// Returns the mark of the worst finding of a process.
pub fn of_process(row: &ProcessRow, s: &Snapshot) -> Option<Mark> {
    let all = || s.findings.iter().enumerate();
    let (at, found) = all()
        .find(|(_, found)| found.concerns_process(row.uid))
        .or_else(|| all().find(|(_, found)| found.role_of(row).is_some()))?;
    let when = found.when_short(s.mono_ns);
    // Trouble of a port or a peer has no causing process: all affected processes suffer alike.
    let cause = found.about.process.filter(|uid| *uid != row.uid);
    let cause = cause.filter(|uid| found.role(*uid) == Some(Role::Cause));
    // A rank that has no QP on the port waits for one of its job that has.
    let of_port = matches!(found.id, FindingId::PortDown | FindingId::LinkFlaps) && found.pid != row.pid;
    let port = found.device.as_ref().filter(|_| of_port);
    let waits = cause.is_some() || port.is_some_and(|device| !row.devices.contains(device));
    // The finding names one process, and another job may use the port too.
    let is_of_its_job = |pid: &u32| {
        let named = s.processes.iter().find(|other| other.pid == Some(*pid));
        named.is_some_and(|named| named.workload.is_some() && named.workload == row.workload)
    };
    let pid = found.pid.filter(|pid| cause.is_some() || is_of_its_job(pid));
    let what = match (waits, pid) {
        _ if found.taker == Some(row.uid) => "takes most".to_owned(),
        (true, Some(pid)) => format!("waits for {pid}"),
        (true, None) => "waits".to_owned(),
        (false, _) => found.short.clone(),
    };
    Some(Mark {
        number: (s.findings.len() > 1).then_some(at + 1),
        severity: found.severity,
        role: found.role_of(row)?,
        // A narrow column cuts off the end.
        words: format!("{when} {what}"),
    })
}

/// Returns the worst finding of a process in a few words.
pub(super) fn words_of_process<'a>(row: &'a ProcessRow, s: &'a Snapshot) -> Value<'a> {
    of_process(row, s).map_or(Value::Unknown, |mark| Value::Text(Cow::Owned(mark.words)))
}

/// Returns the worst finding of a port in a few words.
pub(super) fn of_port<'a>(row: &'a PortRow, s: &'a Snapshot) -> Value<'a> {
    let mut found = s.findings.iter().filter(|found| found.about.port.is_some());
    let found = found.find(|found| found.concerns_port(row.device_uid, row.port));
    found.map_or(Value::Unknown, |found| {
        Value::Text(Cow::Owned(format!(
            "{} {}",
            found.when_short(s.mono_ns),
            found.short
        )))
    })
}

/// Fields of a finding.
#[rustfmt::skip] // a row of the table is a line or two
pub static FINDING: Table<Finding> = &[
    state("severity", "critical: something does not work; warning: it works worse than it could; info: it may be meant so", |f: &F, _| {
        let rank = match f.severity { Severity::Critical => 0, Severity::Warning => 1, Severity::Info => 2 };
        Value::State(rank, Cow::Borrowed(f.severity.name()))
    }).words(&["severity"]).screen("SEVERITY", 0, (8, 8)),
    gauge("since", "how long ago it began", |f: &F, s| Value::number(s.mono_ns.checked_sub(f.since_mono_ns)))
        .unit(Unit::Age).json("").screen("SINCE", 1, (5, 6)),
    text("verdict", "what is wrong, with the process and the device", |f: &F, _| Value::Text(Cow::Borrowed(&f.verdict)))
        .words(&["verdict"]).screen("WHAT IS WRONG", 0, (56, 200)),
    text("device", "device and port", |f: &F, _| device(f))
        .json("").words(&["dev", "device"]).screen("DEVICE", 4, (7, 12)),
    gauge("pid", "process id", |f: &F, _| Value::number(f.pid)).words(&["pid"]).screen("PID", 3, (7, 7)),
    text("id", "stable name of the kind of finding", |f: &F, _| Value::Text(Cow::Borrowed(f.id.name())))
        .words(&["id"]).screen("FINDING", 5, (12, 22)),
    text("comm", "process name", |f: &F, _| Value::text(f.comm.as_ref())).words(&["comm", "name"]),
    gauge("since_mono_ns", "CLOCK_MONOTONIC since which it has been so", |f: &F, _| Value::number(Some(f.since_mono_ns)))
        .unit(Unit::Nanoseconds),
    text("device_name", "device name", |f: &F, _| Value::text(f.device.as_ref())).json("device"),
    gauge("port", "port number", |f: &F, _| Value::number(f.port)),
    text("why", "why it matters", |f: &F, _| Value::Text(Cow::Borrowed(f.why))),
    text("next", "what to run or to change next", |f: &F, _| Value::Text(Cow::Borrowed(&f.next))),
    text("fixed", "what one sees when it is mended", |f: &F, _| Value::Text(Cow::Borrowed(f.fixed))),
    text("short", "a few words, for the row of the process or port", |f: &F, _| Value::Text(Cow::Borrowed(&f.short))),
    object("evidence", "the numbers behind it"),
    object("victims", "processes that suffer from it, by uid"),
];
