//! A queue pair: its life, then its traffic.

use rdmatop_model::fields::QP;
use rdmatop_model::snapshot::QpRow;
use rdmatop_model::value::Source;

use super::super::columns::Cell;
use super::super::format;
use super::super::state::State;
use super::super::theme::{Tone, stuck_tone};
use super::{chart, facts, facts_of, heading, traffic};
use rdmatop_model::judgement::{Reason, Stuck, why_qp_is_unknown};

pub(super) fn lines(state: &State, q: &QpRow, width: usize) -> Vec<Cell> {
    let mut out = Vec::new();
    if q.exited {
        out.push(Cell::new(
            "Destroyed. The row disappears in some seconds.",
            Tone::Dim,
        ));
    }
    if q.orphan {
        // Without a PID, only one thread of the creator may have ended while the process goes on.
        let line = if q.pid.is_some() {
            "Its creator has ended; another process holds it."
        } else {
            "The thread that made it has ended, so the kernel names no process for it."
        };
        out.extend(Cell::lines(line, width, Tone::Warn));
    }
    if let Some(stuck) = Stuck::of(q, state.snapshot.mono_ns) {
        let mut line = stuck.sentence(state.snapshot.mono_ns);
        if stuck.reason == Reason::Failed {
            line.push_str(" Trace (o) may show what came before.");
        }
        out.extend(Cell::lines(&line, width, stuck_tone(stuck)));
    }
    if q.since_attach {
        out.push(Cell::new(
            "It existed before its work was counted: totals count from then on.",
            Tone::Dim,
        ));
    }
    let mut list = facts_of(state, QP, q);
    // A netlink dump reads the PSNs each time; records have only those that a modify set earlier.
    if q.state_source != Some(Source::Netlink) {
        list.retain(|(label, _)| !label.ends_with("PSN"));
    }
    out.extend(facts(width, &list));
    out.extend(timeline(state, q, width));
    out.extend(chart::history(state, &q.history, width, 2, false));
    out.extend(traffic::lines(
        state,
        (QP, q),
        &q.traffic,
        &why_qp_is_unknown(&state.snapshot, q),
        width,
    ));
    out
}

/// The states, how long the QP was in each, and how long the kernel took for the step.
fn timeline(state: &State, q: &QpRow, width: usize) -> Vec<Cell> {
    if q.timeline.is_empty() {
        return vec![Cell::new("Life: no state change seen yet", Tone::Dim)];
    }
    let mut out = vec![heading(
        "Life: state, time in it, (time in the kernel to get there)",
    )];
    let mut line = Cell::default();
    let mut used = 0;
    for (at, step) in q.timeline.iter().enumerate() {
        let until = q
            .timeline
            .get(at + 1)
            .map_or(state.snapshot.mono_ns, |next| next.mono_ns);
        let last = at + 1 == q.timeline.len();
        let stay = match until.saturating_sub(step.mono_ns) {
            // As the age above, which has whole seconds: no QP is longer in a state than it is there.
            ns @ 10_000_000_000.. => rdmatop_base::text::age(ns / 1_000_000_000),
            ns => format::nanos(ns),
        };
        let cost = step
            .duration_ns
            .map(|ns| format!(" ({})", format::nanos(ns)))
            .unwrap_or_default();
        let name = step.state.to_string();
        let arrow = if last {
            String::new()
        } else {
            format!(" {} ", state.glyphs.arrow)
        };
        let wide = name.len() + 1 + stay.len() + cost.len() + 4;
        if used > 0 && used + wide > width {
            out.push(std::mem::take(&mut line));
            used = 0;
        }
        used += wide;
        let tone = match name.as_str() {
            "ERR" | "SQE" => Tone::Bad,
            "RTS" => Tone::Good,
            _ => Tone::Strong,
        };
        line = line
            .and(name, tone)
            .and(format!(" {stay}"), Tone::Normal)
            .and(cost, Tone::Dim)
            .and(arrow, Tone::Dim);
    }
    out.push(line);
    out
}
