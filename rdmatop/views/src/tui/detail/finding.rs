//! A finding: what is wrong, the numbers, why it matters, what to do next.

use rdmatop_model::findings::Finding;

use super::super::columns::finding_tone;
use super::super::format;
use super::super::text;
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
        match (at, steps.len()) {
            (0, 1) => pane.long("do   ", step),
            (0, _) => pane.under("do   ", step, text::wrap_command),
            _ => pane.long("     ", step),
        }
    }
    pane.long(found.end(), &format!("when {}", found.fixed));
    let processes = snapshot.processes.iter();
    for row in processes.filter(|row| found.victims.contains(&row.uid)) {
        pane.long("whom ", &format::process(&row.comm, row.pid));
    }
}
