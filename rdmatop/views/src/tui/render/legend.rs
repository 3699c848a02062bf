//! What the signs on the screen mean, in the line above the last one; only signs that are shown.

use rdmatop_model::fields::{Mark, finding_of};
use rdmatop_model::findings::{Role, Severity};
use rdmatop_model::ib::{QpState, QpType};
use rdmatop_model::judgement::STUCK_MARK;
use rdmatop_model::value::Known;

use super::super::columns::Cell;
use super::super::layout::Layout;
use super::super::state::State;
use super::super::tab::Tab;
use super::super::text;
use super::super::theme::Tone;
use super::{Canvas, put};

/// Headings that are not words, with what their columns count.
const HEADINGS: [(&str, &str); 8] = [
    ("ERR", "failures"),
    ("RETX", "packets sent again"),
    ("RNR", "receiver not ready"),
    ("CONG", "signs of congestion"),
    ("MR B", "bytes registered"),
    ("VERR", "failed calls"),
    ("CQERR", "failed completions"),
    ("P99", "99 % took less"),
];

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
        if marks.iter().any(|mark| mark.role == Role::Possible) {
            out.push(("?".to_owned(), "may concern it"));
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
        let meant = |mark: &Mark| mark.severity == Severity::Info && mark.role != Role::Possible;
        if marks.iter().any(meant) {
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
    let is_bound = sums.any(|sum| sum.partial && sum.known().is_some());
    let of_sums = is_bound.then_some(state.glyphs.at_least);
    let of_rows = state
        .shows(Known::AtLeast)
        .then_some(">")
        .filter(|sign| of_sums != Some(*sign));
    let at_least: Vec<&str> = of_sums.into_iter().chain(of_rows).collect();
    if !at_least.is_empty() {
        out.push((at_least.join(" "), "at least"));
    }
    let mut rows = snapshot.processes.iter();
    if state.tab == Tab::Processes && rows.any(|row| row.psn_explains.is_some()) {
        out.push(("~".to_owned(), "within 5 %"));
    }
    if state.shows(Known::AtMost) {
        out.push(("0-n".to_owned(), "between 0 and n"));
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
    let titles: Vec<&str> = fit.placed.iter().map(|placed| placed.column.title).collect();
    if titles.contains(&"TYPE") && snapshot.qps.iter().any(|qp| qp.qp_type == Some(QpType::GSI)) {
        out.push(("GSI".to_owned(), "manages connections"));
    }
    let known = HEADINGS.iter().filter(|(heading, _)| titles.contains(heading));
    out.extend(known.map(|(heading, meaning)| ((*heading).to_owned(), *meaning)));
    out
}
