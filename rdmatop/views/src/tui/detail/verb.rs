//! A verb of a process.

use rdmatop_model::snapshot::VerbRow;

use super::super::columns::Cell;
use super::super::format;
use super::super::theme::Tone;
use super::{Pane, counters_of, traffic};
use rdmatop_base::errno;
use rdmatop_model::fields::VERB;

pub(super) fn fill(pane: &mut Pane<'_>, v: &VerbRow) {
    pane.heading(traffic::COUNTERS);
    for (label, counter) in counters_of(pane.state, VERB, v) {
        pane.lines
            .extend(counter.map(|counter| traffic::counter(label, &counter)));
    }
    if v.errors.is_none() {
        let why = "Failures and times are not known: these calls are counted as doorbells of their queue pairs. \
                   --verb-times shows them, at a price for each post.";
        pane.say(why, Tone::Dim);
    }
    if v.probe {
        let why = "By design: a library asks what the kernel can, or a wait ends without an event.";
        pane.say(why, Tone::Dim);
    }
    for (number, count) in &v.errnos {
        let name = format!("{} ({number})", errno::text(*number));
        let tone = if v.probe { Tone::Dim } else { Tone::Bad };
        let line = format!("  {name:<34}{:>17}", format::exact(*count));
        pane.add(Cell::new(line, tone));
    }
    match &v.latency {
        Some(latency) => traffic::latency(pane, "Time in the kernel", latency),
        None if v.errors.is_some() => {
            let why = "The time of this call is a wait and is not measured.";
            pane.say(why, Tone::Dim);
        }
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::super::{settings::Settings, state::State, tab::Tab, theme::Depth};
    use super::*;
    use rdmatop_model::testkit;

    fn text(change: impl FnOnce(&mut VerbRow)) -> String {
        let snapshot = Arc::new(testkit::busy());
        let state = State::new(snapshot, Settings::default(), Tab::Verbs, true, Depth::True);
        let mut row = state.snapshot.verbs[0].clone();
        change(&mut row);
        let lines = super::super::filled(&state, 60, |pane| fill(pane, &row));
        let lines: Vec<String> = lines.iter().map(Cell::text).collect();
        lines.join("\n")
    }

    #[test]
    fn what_is_unknown_of_a_verb_is_named_and_not_shown_as_zero() {
        let doorbells = text(|v| (v.errors, v.latency) = (None, None));
        assert!(
            doorbells.contains("--verb-times") && !doorbells.contains("failed "),
            "{doorbells}"
        );
        let wait = text(|v| v.latency = None);
        assert!(wait.contains("is a wait") && wait.contains("failed "), "{wait}");
        assert!(!wait.contains("--verb-times"));
        let whole = text(|_| ());
        assert!(whole.contains("p99") && whole.contains("failed "), "{whole}");
    }
}
