//! A queue pair: its life, then its traffic.

use rdmatop_model::fields::QP;
use rdmatop_model::snapshot::QpRow;
use rdmatop_model::value::Source;

use super::super::columns::Cell;
use super::super::format;
use super::super::theme::{Tone, stuck_tone};
use super::{Pane, chart, facts_of, traffic};
use rdmatop_model::judgement::{Reason, Stuck, why_qp_is_unknown};

pub(super) fn fill(pane: &mut Pane<'_>, q: &QpRow) {
    let state = pane.state;
    if q.exited {
        pane.say("Destroyed. The row disappears in some seconds.", Tone::Dim);
    }
    if q.orphan {
        // Without a PID, only one thread of the creator may have ended while the process goes on.
        let line = if q.pid.is_some() {
            "Its creator has ended; another process holds it."
        } else {
            "The thread that made it has ended, so the kernel names no process for it."
        };
        pane.say(line, Tone::Warn);
    }
    if let Some(stuck) = Stuck::of(q, state.snapshot.mono_ns) {
        let mut line = stuck.sentence(state.snapshot.mono_ns);
        if stuck.reason == Reason::Failed {
            line.push_str(" Trace (o) may show what came before.");
        }
        pane.say(&line, stuck_tone(stuck));
    }
    if q.since_attach {
        pane.say(
            "It existed before its work was counted: totals count from then on.",
            Tone::Dim,
        );
    }
    let mut list = facts_of(state, QP, q);
    // A netlink dump reads the PSNs each time; records have only those that a modify set earlier.
    if q.state_source != Some(Source::Netlink) {
        list.retain(|(label, _)| !label.ends_with("PSN"));
    }
    pane.facts(&list);
    timeline(pane, q);
    chart::history(pane, &q.history, 2, false);
    let unknown = why_qp_is_unknown(&state.snapshot, q);
    traffic::fill(pane, (QP, q), &q.traffic, &unknown);
}

/// The states, how long the QP was in each, and how long the kernel took for the step.
fn timeline(pane: &mut Pane<'_>, q: &QpRow) {
    let state = pane.state;
    if q.timeline.is_empty() {
        return pane.say("Life: no state change seen yet", Tone::Dim);
    }
    pane.heading("Life: state, time in it, (time in the kernel to get there)");
    let steps = q.timeline.iter().enumerate().map(|(at, step)| {
        let next = q.timeline.get(at + 1);
        let until = next.map_or(state.snapshot.mono_ns, |next| next.mono_ns);
        let stay = match until.saturating_sub(step.mono_ns) {
            // As the age above, which has whole seconds: no QP is longer in a state than it is there.
            ns @ 10_000_000_000.. => format::age(ns / 1_000_000_000),
            ns => format::nanos(ns),
        };
        let cost = step.duration_ns.map(|ns| format!(" ({})", format::nanos(ns)));
        let arrow = next.map(|_| format!(" {} ", state.glyphs.arrow));
        let name = step.state.to_string();
        let tone = match name.as_str() {
            "ERR" | "SQE" => Tone::Bad,
            "RTS" => Tone::Good,
            _ => Tone::Strong,
        };
        Cell::new(name, tone)
            .and(format!(" {stay}"), Tone::Normal)
            .and(cost.unwrap_or_default(), Tone::Dim)
            .and(arrow.unwrap_or_default(), Tone::Dim)
    });
    pane.row("", steps);
}
