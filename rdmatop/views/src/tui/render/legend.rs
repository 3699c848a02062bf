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
    let (snapshot, glyphs) = (&state.snapshot, state.glyphs);
    let of_processes = state.tab == Tab::Processes;
    let marks: Vec<Mark> = match snapshot.processes.iter() {
        rows if of_processes && !snapshot.findings.is_empty() => {
            rows.filter_map(|row| finding_of(row, snapshot)).collect()
        }
        _ => Vec::new(),
    };
    let has = |what: &dyn Fn(&Mark) -> bool| marks.iter().any(what);
    let is = |severity, role| has(&|mark| (mark.severity, mark.role) == (severity, role));
    let has_stuck = matches!(state.tab, Tab::Processes | Tab::Qps) && snapshot.judgement.stuck().len() > 0;
    let totals = &snapshot.judgement.totals;
    let mut sums = [totals.tx, totals.rx, totals.wr].into_iter();
    let of_sums = sums.any(|sum| sum.partial && sum.known().is_some());
    // The two signs may be one.
    let of_rows = state.shows(Known::AtLeast) && !(of_sums && glyphs.at_least == ">");
    let at_least = [(of_sums, glyphs.at_least), (of_rows, ">")]
        .into_iter()
        .filter(|(is, _)| *is);
    let at_least = at_least.map(|(_, sign)| sign).collect::<Vec<_>>().join(" ");
    let by_psn = of_processes && snapshot.processes.iter().any(|row| row.psn_explains.is_some());
    let has_state = |name| {
        let mut states = totals.states.iter();
        states.any(|row| row.state.and_then(QpState::name) == Some(name))
    };
    let fit = state.fit(layout.heading.width);
    let titles: Vec<&str> = fit
        .placed
        .iter()
        .map(|placed| placed.column.screen.title)
        .collect();
    let has_gsi = titles.contains(&"TYPE") && snapshot.qps.iter().any(|qp| qp.qp_type == Some(QpType::GSI));
    // What a peer WRITEs or READs needs no work request here.
    let by_requests = of_processes && snapshot.devices.iter().any(|device| device.datapath.is_some());
    let none = if by_requests {
        "none by own requests"
    } else {
        "none counted"
    };
    let (critical, warning) = (Severity::Critical, Severity::Warning);
    let meant = |mark: &Mark| mark.severity == Severity::Info && mark.role != Role::Possible;
    let signs = [
        (has(&|mark| mark.number.is_some()), "1 2", "finding in 7"),
        (has(&|mark| mark.role == Role::Possible), "?", "may concern it"),
        (is(critical, Role::Cause), glyphs.cause[0], "cause, critical"),
        (is(critical, Role::Victim), glyphs.victim[0], "suffers, critical"),
        (is(warning, Role::Cause), glyphs.cause[1], "cause"),
        (is(warning, Role::Victim), glyphs.victim[1], "suffers"),
        (has(&meant), glyphs.meant, "may be meant"),
        (true, "-", "not known"),
        (true, "0", none),
        (has_stuck, STUCK_MARK, "QPs stuck"),
        (!at_least.is_empty(), &at_least, "at least"),
        (by_psn, "~", "within 5 %"),
        (state.shows(Known::AtMost), "0-n", "between 0 and n"),
        (has_state("INIT"), "INIT", "not connected yet"),
        (has_state("RTS"), "RTS", "connected"),
        (fit.shed > 0, glyphs.more[1], "more columns"),
        (has_gsi, "GSI", "manages connections"),
    ];
    let headings = HEADINGS
        .iter()
        .map(|(heading, meaning)| (titles.contains(heading), *heading, *meaning));
    let shown = signs
        .into_iter()
        .chain(headings)
        .filter(|(is_shown, ..)| *is_shown);
    shown
        .map(|(_, sign, meaning)| (sign.to_owned(), meaning))
        .collect()
}
