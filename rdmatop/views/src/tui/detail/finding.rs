//! A finding: what is wrong, the numbers, why it matters, what to do next.

use rdmatop_model::findings::Finding;

use super::super::columns::{Cell, finding_tone};
use super::super::state::State;
use super::super::text;
use super::super::theme::Tone;
use super::long;

pub(super) fn lines(state: &State, found: &Finding, width: usize) -> Vec<Cell> {
    let tone = finding_tone(found.severity);
    let mut out = Cell::lines(&found.verdict, width, tone);
    let when = found.when(state.snapshot.mono_ns);
    out.push(Cell::new("when  ", Tone::Dim).and(format!("{when} ({})", found.severity.name()), Tone::Normal));
    for fact in &found.evidence {
        out.extend(long("seen ", fact, width));
    }
    out.extend(long("why  ", found.why, width));
    let steps: Vec<_> = found.steps().collect();
    for (at, step) in steps.iter().enumerate() {
        let name = if at == 0 { "do   " } else { "     " };
        if at == 0 && steps.len() > 1 {
            let lines = text::wrap_command(step, width.saturating_sub(6));
            let heads = std::iter::once(name).chain(std::iter::repeat("     "));
            out.extend(
                heads
                    .zip(lines)
                    .map(|(head, line)| Cell::new(format!("{head} "), Tone::Dim).and(line, Tone::Normal)),
            );
        } else {
            out.extend(long(name, step, width));
        }
    }
    out.extend(long(found.end(), &format!("when {}", found.fixed), width));
    let victims = state
        .snapshot
        .processes
        .iter()
        .filter(|row| found.victims.contains(&row.uid));
    for row in victims {
        let pid = row.pid.map(|pid| format!(" ({pid})")).unwrap_or_default();
        out.extend(long("whom ", &format!("{}{pid}", row.comm), width));
    }
    out
}
