//! The state of each eBPF program.

use std::borrow::Cow;

use super::{Table, Value, state, text};
use crate::input::{ProbeVerdict, Verdict};

/// Returns a verdict for tables, where failures sort first.
fn verdict(verdict: Verdict) -> Value<'static> {
    let (rank, word) = match verdict {
        Verdict::Broken => (0, "broken"),
        Verdict::Unsupported => (1, "unsupported"),
        Verdict::Partial => (2, "partial"),
        Verdict::Ok => (3, "ok"),
        Verdict::NotApplicable => (4, "no need"),
    };
    Value::State(rank, Cow::Borrowed(word))
}

type P = ProbeVerdict;

/// Fields of an eBPF program.
#[rustfmt::skip] // a row of the table is a line or two
pub static PROBE: Table<ProbeVerdict> = &[
    state("verdict", "ok, partial, no need (nothing here for it), unsupported, broken", |p: &P, _| verdict(p.verdict))
        .words(&["verdict"]).screen("VERDICT", 0, (11, 11)).detail(0, "verdict"),
    text("program", "eBPF program", |p: &P, _| Value::Text(Cow::Borrowed(&p.program)))
        .words(&["program"]).screen("PROGRAM", 1, (18, 26)),
    text("hook", "what it hooks", |p: &P, _| Value::Text(Cow::Borrowed(&p.hook)))
        .words(&["hook"]).screen("HOOK", 4, (20, 36)).detail(20, "hook"),
    text("gives", "what it shows you", |p: &P, _| Value::Text(Cow::Borrowed(&p.gives))).screen("GIVES", 2, (20, 44)).detail(30, "gives"),
    text("reason", "why it is not ok", |p: &P, _| {
        p.reason().map_or(Value::Unknown, |why| Value::Text(Cow::Owned(why)))
    }).screen("REASON", 0, (14, 90)).detail(10, "reason"),
];
