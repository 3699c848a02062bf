//! The table of `rdmatop probes`.

use super::table::{Align, Table};
use rdmatop_model::input::Verdict;
use rdmatop_model::snapshot::Health;

/// The table, then what is missing, one line each.
pub fn table(health: &Health) -> String {
    let mut out = super::once::ebpf_line(&health.ebpf) + "\n";
    if !health.probes.is_empty() {
        let titles = ["PROGRAM", "HOOK", "VERDICT", "GIVES", "REASON"];
        let mut table = Table::new(titles.map(|title| (title, Align::Left)).into());
        for probe in &health.probes {
            table.row([
                probe.program.clone(),
                probe.hook.clone(),
                verdict(probe.verdict).to_owned(),
                probe.gives.clone(),
                probe.reason().unwrap_or_default(),
            ]);
        }
        table.write(&mut out);
    }
    super::once::notes(&mut out, health);
    out
}

/// The verdict as JSON spells it.
pub fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Ok => "ok",
        Verdict::Partial => "partial",
        Verdict::NotApplicable => "not_applicable",
        Verdict::Unsupported => "unsupported",
        Verdict::Broken => "broken",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmatop_model::testkit::full;

    #[test]
    fn the_table_says_what_is_attached_and_what_is_not() {
        insta::assert_snapshot!(table(&full::snapshot().health));
    }

    #[test]
    fn verdicts_are_spelled_as_in_json() {
        for v in [
            Verdict::Ok,
            Verdict::Partial,
            Verdict::NotApplicable,
            Verdict::Unsupported,
            Verdict::Broken,
        ] {
            assert_eq!(serde_json::to_value(v).unwrap(), verdict(v));
        }
    }
}
