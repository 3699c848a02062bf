//! Verb calls, by process and verb.

use std::borrow::Cow;

use super::{Sense, Table, Unit, Value, counter, flag, gauge, object, rate, text};
use crate::snapshot::VerbRow;

type V = VerbRow;

/// Fields of the calls of one verb by one process.
#[rustfmt::skip] // a row of the table is a line or two
pub static VERB: Table<VerbRow> = &[
    gauge("pid", "process id", |v: &V, _| Value::number(Some(v.pid))).words(&["pid"]).screen("PID", 1, (7, 7)).page(0, "PID"),
    text("comm", "process name", |v: &V, _| Value::text(v.comm.as_ref()))
        .words(&["comm", "name"]).screen("COMMAND", 0, (11, 24)).page(10, "COMM"),
    text("verb", "verb", |v: &V, _| Value::Text(Cow::Borrowed(&v.verb)))
        .words(&["verb"]).screen("VERB", 0, (14, 28)).page(20, "VERB"),
    rate("rate", "calls per second", |v: &V, _| Value::Rate(v.calls))
        .json("calls.rate").screen("CALL/s", 0, (6, 8)).page(40, "CALLS/s"),
    counter("calls", "calls, total", |v: &V, _| Value::Total(v.calls))
        .json("calls.total").screen("CALLS", 2, (6, 7)).page(30, "CALLS").detail(100, "calls"),
    gauge("mean", "mean time in the kernel", |v: &V, _| Value::time(v.latency.as_ref(), |l| l.mean_ns))
        .unit(Unit::Nanoseconds).json("latency.mean_ns").screen("MEAN", 3, (6, 6)).page(70, "MEAN"),
    gauge("p99", "time in the kernel: 99 of 100 take less", |v: &V, _| Value::time(v.latency.as_ref(), |l| l.p99_ns))
        .unit(Unit::UpperNanoseconds).json("latency.p99_ns").screen("P99", 3, (6, 7)).page(80, "P99"),
    gauge("max", "longest time in the kernel", |v: &V, _| Value::time(v.latency.as_ref(), |l| l.max_ns))
        .unit(Unit::Nanoseconds).json("latency.max_ns").screen("MAX", 5, (6, 6)).page(90, "MAX"),
    counter("errors", "calls that failed, total; - where only calls are counted", |v: &V, _| Value::total(v.errors))
        .sense(Sense::Fault).json("errors.total").screen("ERR", 1, (4, 6)).page(50, "ERRORS").detail(110, "failed"),
    text("errnos", "why they failed; probe: fails by design", |v: &V, _| Value::Errnos(&v.errnos))
        .words(&["errno"]).screen("ERRNO", 2, (8, 60)).page(60, "ERRNOS"),
    gauge("process_uid", "uid of its process", |v: &V, _| Value::number(v.process_uid)),
    flag("probe", "it fails by design", |v: &V, _| Value::Flag(v.probe)),
    object("latency", "times in the kernel"),
];
