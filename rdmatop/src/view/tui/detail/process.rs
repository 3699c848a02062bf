//! A process or a kernel consumer.

use crate::model::judgement::why_process_is_uncounted;
use crate::model::snapshot::ProcessRow;

use super::super::columns::Cell;
use super::super::format;
use super::super::state::State;
use super::super::text;
use super::super::theme::{Tone, stuck_tone};
use super::{chart, facts, heading, long, traffic};

/// Lines for a process.
pub(super) fn lines(state: &State, p: &ProcessRow, width: usize) -> Vec<Cell> {
    let mut out = Vec::new();
    if p.exited {
        out.push(Cell::new(
            "It has ended; its objects or counters remain.",
            Tone::Warn,
        ));
    }
    if !p.kernel && p.pid.is_none() {
        out.push(Cell::new(
            "Its creator has ended and another process holds the verbs file: the kernel tells no owner.",
            Tone::Warn,
        ));
    }
    if let Some((count, why)) = state.snapshot.judgement.stuck_of(p.uid) {
        let line = format!(
            "{} of its QPs: {} (Tab 2 shows each.)",
            format::count(count),
            why.sentence(state.snapshot.mono_ns)
        );
        let lines = text::wrap(&line, width);
        out.extend(lines.into_iter().map(|line| Cell::new(line, stuck_tone(why))));
    }
    let known = |t: &Option<std::sync::Arc<str>>| t.as_deref().unwrap_or(format::UNKNOWN).to_owned();
    out.extend(facts(
        width,
        &[
            ("user", known(&p.user)),
            ("parent", format::known(p.ppid, |n| n.to_string())),
            ("QPs", p.qps.to_string()),
            (
                "MRs",
                format::known(p.mr_bytes, |b| format!("{}B", format::memory(b))),
            ),
            ("failed verbs", format::total(p.verb_errors.as_ref())),
            (
                "devices",
                if p.devices.is_empty() {
                    "-".to_owned()
                } else {
                    p.devices.join(" ")
                },
            ),
        ],
    ));
    out.extend(chart::history(state, &p.history, width, 2, false));
    for (name, value) in [
        ("job", &p.workload),
        ("cgroup", &p.cgroup),
        ("command", &p.cmdline),
    ] {
        if let Some(value) = value {
            out.extend(long(name, value, width));
        }
    }
    out.extend(traffic::lines(
        state,
        &p.traffic,
        why_process_is_uncounted(&state.snapshot, p).as_ref(),
        width,
    ));
    if let Some(libraries) = p.libraries.as_ref().filter(|l| !l.is_empty()) {
        out.extend(long("libraries", &libraries.join(" "), width));
    }
    if let Some(environ) = p.environ.as_ref().filter(|e| !e.is_empty()) {
        out.push(heading("Environment"));
        for (name, value) in environ {
            out.extend(long(&format!("{name}="), value, width));
        }
    }
    out
}
