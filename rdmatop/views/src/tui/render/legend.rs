//! What the signs on the screen mean, in the line above the last one; only signs that are shown.

use rdmatop_model::fields::finding_of;
use rdmatop_model::findings::{Role, Severity};
use rdmatop_model::ib::QpState;
use rdmatop_model::judgement::STUCK_MARK;
use rdmatop_model::value::Known;

use super::super::columns::Cell;
use super::super::layout::Layout;
use super::super::state::State;
use super::super::tab::Tab;
use super::super::text;
use super::super::theme::Tone;
use super::{Canvas, put};

/// Draws the line where the layout has room for it.
pub(super) fn draw(state: &State, layout: &Layout, canvas: &mut Canvas) {
    if layout.legend.height == 0 {
        return;
    }
    let mut room = usize::from(layout.legend.width);
    let mut line = Cell::default();
    for (at, (sign, meaning)) in signs(state, layout).into_iter().enumerate() {
        let gap = if at == 0 { "" } else { "  " };
        let wide = text::width(gap) + text::width(&sign) + 1 + text::width(meaning);
        // The signs come in the order of their importance, so the rest is left out.
        if wide > room {
            break;
        }
        room -= wide;
        line = line
            .and(gap, Tone::Normal)
            .and(sign, Tone::Strong)
            .and(format!(" {meaning}"), Tone::Dim);
    }
    put(state, canvas, layout.legend, 0, &line);
}

/// Signs and their meanings.
fn signs(state: &State, layout: &Layout) -> Vec<(String, &'static str)> {
    let snapshot = &state.snapshot;
    let mut out = Vec::new();
    if state.tab == Tab::Processes {
        let rows = snapshot
            .processes
            .iter()
            .filter(|_| !snapshot.findings.is_empty());
        let marks: Vec<_> = rows.filter_map(|row| finding_of(row, snapshot)).collect();
        if marks.iter().any(|mark| mark.number.is_some()) {
            out.push(("1 2".to_owned(), "finding in 7"));
        }
        for (severity, role, meaning) in [
            (Severity::Critical, Role::Cause, "cause, critical"),
            (Severity::Critical, Role::Victim, "suffers, critical"),
            (Severity::Warning, Role::Cause, "cause"),
            (Severity::Warning, Role::Victim, "suffers"),
        ] {
            if marks
                .iter()
                .any(|mark| (mark.severity, mark.role) == (severity, role))
            {
                out.push((state.glyphs.sign(severity, role).to_owned(), meaning));
            }
        }
        if marks.iter().any(|mark| mark.severity == Severity::Info) {
            out.push((state.glyphs.meant.to_owned(), "may be meant"));
        }
    }
    out.push(("-".to_owned(), "not known"));
    out.push(("0".to_owned(), "none counted"));
    if matches!(state.tab, Tab::Processes | Tab::Qps) && snapshot.judgement.stuck().len() > 0 {
        out.push((STUCK_MARK.to_string(), "QPs stuck"));
    }
    let totals = &snapshot.judgement.totals;
    let mut sums = [totals.tx, totals.rx, totals.wr].into_iter();
    if sums.any(|sum| sum.partial && sum.known().is_some()) {
        out.push((state.glyphs.bound[1].to_owned(), "at least"));
    }
    let mut rows = snapshot.processes.iter();
    if state.tab == Tab::Processes && rows.any(|row| row.psn_explains.is_some()) {
        out.push(("~".to_owned(), "share by PSN"));
    }
    if state.shows(Known::AtMost) {
        out.push(("<".to_owned(), "at most"));
    }
    if state.shows(Known::AtLeast) {
        out.push((">".to_owned(), "at least"));
    }
    for (state, meaning) in [("INIT", "not connected yet"), ("RTS", "connected")] {
        let mut states = totals.states.iter().map(|row| row.state.and_then(QpState::name));
        if states.any(|name| name == Some(state)) {
            out.push((state.to_owned(), meaning));
        }
    }
    let fit = state.fit(layout.heading.width);
    if fit.shed > 0 {
        out.push((state.glyphs.more[1].to_owned(), "more columns"));
    }
    out
}
