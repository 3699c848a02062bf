//! Work requests, bytes, completions, latency: the part that processes and QPs share.

use rdmatop_model::cause::Cause;
use rdmatop_model::fields::Table;
use rdmatop_model::judgement::sentence;
use rdmatop_model::snapshot::{Latency, Traffic};
use rdmatop_model::value::Counter;

use super::super::columns::Cell;
use super::super::format;
use super::super::theme::Tone;
use super::{Pane, chart, counters_of};

/// Every counter, opcodes, statuses and latency. `unknown` says why some or all of them are unknown.
pub(super) fn fill<R>(pane: &mut Pane<'_>, (table, row): (Table<R>, &R), t: &Traffic, unknown: &[Cause]) {
    let rows = counters_of(pane.state, table, row);
    if rows.iter().all(|(_, c)| c.is_none()) {
        let why = unknown
            .first()
            .map(|cause| format!("not observable: {}", sentence(cause)));
        let why = why.unwrap_or_else(|| "not known.".to_owned());
        pane.say(&format!("Traffic: {why}"), Tone::Warn);
    } else {
        pane.heading(COUNTERS);
        let known = rows.iter().filter_map(|(name, c)| Some((*name, (*c).as_ref()?)));
        pane.lines.extend(known.map(|(name, c)| counter(name, c)));
        let missing = rows.iter().filter(|(_, c)| c.is_none());
        let missing: Vec<_> = missing.map(|(name, _)| *name).collect();
        if !missing.is_empty() {
            pane.long("not observable:", &missing.join(", "));
        }
        for cause in unknown {
            pane.say(&format!("{}: {}", cause.what, sentence(cause)), Tone::Dim);
        }
    }
    if !t.by_opcode.is_empty() {
        pane.heading("Opcode                    per second            total        bytes");
    }
    for row in &t.by_opcode {
        let (rate, total) = (format::rate(Some(&row.wr)), marked(&row.wr));
        let line =
            Cell::new(format!("{:<24}", row.opcode), Tone::Strong).and(format!("{rate:>12}"), Tone::Tx);
        let bytes = format!(
            "{}{}",
            format::total_mark(&row.bytes),
            format::count(row.bytes.total)
        );
        pane.add(line.and(format!("{total:>17}{bytes:>13}"), Tone::Normal));
    }
    for row in &t.by_status {
        let tone = if row.status.0 == 0 {
            Tone::Normal
        } else {
            Tone::Bad
        };
        let (rate, total) = (format::rate(Some(&row.cqes)), marked(&row.cqes));
        let line = Cell::new(format!("{:<24}{rate:>12}{total:>17}", row.status), tone);
        pane.add(line.and("  completions", Tone::Dim));
    }
    if let Some(latency) = &t.latency {
        self::latency(pane, "Post to completion", latency);
    }
}

/// A total with all its digits.
fn marked(counter: &Counter) -> String {
    format!("{}{}", format::total_mark(counter), format::exact(counter.total))
}

/// Heading over lines of [`counter`].
pub(super) const COUNTERS: &str = "Counter                   per second            total  source";

pub(super) fn counter(name: &str, c: &Counter) -> Cell {
    let source = format!("{:?}", c.source).to_lowercase();
    let moves = c.rate.is_some_and(|rate| rate > 0.0);
    let of_name = if moves { Tone::Strong } else { Tone::Normal };
    let of_rate = if c.rate.is_some() { Tone::Normal } else { Tone::Dim };
    let total = marked(c);
    Cell::new(format!("{name:<24}"), of_name)
        .and(format!("{:>12}", format::rate(Some(c))), of_rate)
        .and(format!("{total:>17}"), Tone::Normal)
        .and(format!("  {source}"), Tone::Dim)
}

/// Numbers and histogram.
pub(super) fn latency(pane: &mut Pane<'_>, name: &'static str, latency: &Latency) {
    pane.heading(name);
    let mut list = vec![
        ("mean", format::known(latency.mean_ns, format::nanos)),
        ("p50", format::below(latency.p50_ns)),
        ("p99", format::below(latency.p99_ns)),
        ("max", format::known(latency.max_ns, format::nanos)),
        ("samples", format::exact(latency.count)),
    ];
    if latency.early > 0 {
        list.push(("finished before seen", format::exact(latency.early)));
    }
    pane.facts(&list);
    chart::histogram(pane, latency);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::tui::settings::Settings;
    use crate::tui::state::State;
    use crate::tui::tab::Tab;
    use crate::tui::theme::Depth;
    use rdmatop_model::fields::QP;
    use rdmatop_model::snapshot::QpRow;
    use rdmatop_model::testkit;
    use rdmatop_model::value::Source;

    #[test]
    fn every_counter_there_is_has_its_line_known_or_not() {
        let snapshot = Arc::new(testkit::one_row());
        let state = State::new(snapshot, Settings::default(), Tab::Qps, true, Depth::True);
        let counter = |total| Some(Counter::whole(total, None, Source::Ebpf));
        // Every field is named, so a new counter does not compile here until it has a line.
        let known = Traffic {
            tx_wr: counter(9001),
            tx_wr_posted: counter(9002),
            rx_wr: counter(9003),
            rx_wr_posted: counter(9004),
            tx_bytes: counter(9005),
            rx_bytes: counter(9006),
            completions: counter(9007),
            completion_errors: counter(9008),
            flushes: counter(9009),
            retransmits: counter(9010),
            rnr_waits: counter(9011),
            doorbells: counter(9012),
            cq_overflows: counter(9013),
            tx_packets: counter(9014),
            by_opcode: Vec::new(),
            by_status: Vec::new(),
            latency: None,
        };
        let text = |traffic: &Traffic| -> String {
            let row = QpRow {
                traffic: Arc::new(traffic.clone()),
                ..(*state.snapshot.qps[0]).clone()
            };
            let lines = super::super::filled(&state, 400, |pane| fill(pane, (QP, &row), traffic, &[]));
            lines.iter().map(|line| line.text() + "\n").collect()
        };
        let all = text(&known);
        for total in 9001..=9014 {
            assert!(all.contains(&format::exact(total)), "{total}\n{all}");
        }
        let one = text(&Traffic {
            tx_wr: counter(1),
            ..Traffic::default()
        });
        let unknown = one
            .lines()
            .find(|line| line.starts_with("not observable:"))
            .unwrap();
        assert_eq!(unknown.split(", ").count(), 13, "{unknown}");
    }
}
