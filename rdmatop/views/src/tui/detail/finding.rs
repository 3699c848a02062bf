//! A finding: what is wrong, the numbers, why it matters, what to do next.

use rdmatop_model::findings::Finding;

use super::super::columns::{Cell, finding_tone};
use super::super::format;
use super::super::text;
use super::super::theme::Tone;
use super::Pane;

pub(super) fn fill(pane: &mut Pane<'_>, found: &Finding) {
    let snapshot = &pane.state.snapshot;
    pane.say(&found.verdict, finding_tone(found.severity));
    pane.long(
        "when ",
        &format!("{} ({})", found.when(snapshot.mono_ns), found.severity.name()),
    );
    for fact in &found.evidence {
        pane.long("seen ", fact);
    }
    pane.long("why  ", found.why);
    let steps: Vec<_> = found.steps().collect();
    for (at, step) in steps.iter().enumerate() {
        let name = if at == 0 { "do   " } else { "     " };
        if at == 0 && steps.len() > 1 {
            for (at, line) in text::wrap_command(step, pane.width.saturating_sub(6))
                .iter()
                .enumerate()
            {
                let head = if at == 0 { "do    " } else { "      " };
                pane.add(Cell::new(head, Tone::Dim).and(line.clone(), Tone::Normal));
            }
        } else {
            pane.long(name, step);
        }
    }
    pane.long(found.end(), &format!("when {}", found.fixed));
    let processes = snapshot.processes.iter();
    for row in processes.filter(|row| found.victims.contains(&row.uid)) {
        pane.long("whom ", &format::process(&row.comm, row.pid));
    }
}
