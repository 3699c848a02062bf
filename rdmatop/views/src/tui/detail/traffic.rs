//! Work requests, bytes, completions, latency: the part that processes and QPs share.

use rdmatop_model::cause::Cause;
use rdmatop_model::fields::Table;
use rdmatop_model::judgement::sentence;
use rdmatop_model::snapshot::{Latency, Traffic};
use rdmatop_model::value::Counter;

use super::super::columns::Cell;
use super::super::format;
use super::super::state::State;
use super::super::theme::Tone;
use super::{chart, counters_of, facts, heading};

/// Every counter, opcodes, statuses and latency. `unknown` says why some or all of them are unknown.
pub(super) fn lines<R>(
    state: &State,
    (table, row): (Table<R>, &R),
    t: &Traffic,
    unknown: &[Cause],
    width: usize,
) -> Vec<Cell> {
    let rows = counters_of(state, table, row);
    let mut out = Vec::new();
    if rows.iter().all(|(_, c)| c.is_none()) {
        let why = match unknown.first() {
            Some(cause) => format!("Traffic: not observable: {}", sentence(cause)),
            None => "Traffic: not known.".to_owned(),
        };
        out.extend(Cell::lines(&why, width, Tone::Warn));
    } else {
        out.push(heading(COUNTERS));
        let known = rows.iter().filter_map(|(name, c)| Some((*name, (*c).as_ref()?)));
        out.extend(known.map(|(name, c)| counter(name, c)));
        let missing: Vec<_> = rows
            .iter()
            .filter(|(_, c)| c.is_none())
            .map(|(n, _)| *n)
            .collect();
        if !missing.is_empty() {
            out.extend(super::long("not observable:", &missing.join(", "), width));
        }
        for cause in unknown {
            out.extend(Cell::lines(
                &format!("{}: {}", cause.what, sentence(cause)),
                width,
                Tone::Dim,
            ));
        }
    }
    if !t.by_opcode.is_empty() {
        out.push(heading(
            "Opcode                    per second            total        bytes",
        ));
        for row in &t.by_opcode {
            out.push(
                Cell::new(format!("{:<24}", row.opcode), Tone::Strong)
                    .and(format!("{:>12}", format::rate(Some(&row.wr))), Tone::Tx)
                    .and(
                        format!(
                            "{:>17}{:>13}",
                            format::exact(row.wr.total),
                            format::count(row.bytes.total)
                        ),
                        Tone::Normal,
                    ),
            );
        }
    }
    for row in &t.by_status {
        let tone = if row.status.0 == 0 {
            Tone::Normal
        } else {
            Tone::Bad
        };
        out.push(
            Cell::new(format!("{:<24}", row.status), tone)
                .and(
                    format!(
                        "{:>12}{:>17}",
                        format::rate(Some(&row.cqes)),
                        format::exact(row.cqes.total)
                    ),
                    tone,
                )
                .and("  completions", Tone::Dim),
        );
    }
    if let Some(latency) = &t.latency {
        out.extend(self::latency(state, "Post to completion", latency, width));
    }
    out
}

/// Heading over lines of [`counter`].
pub(super) const COUNTERS: &str = "Counter                   per second            total  source";

pub(super) fn counter(name: &str, c: &Counter) -> Cell {
    let source = format!("{:?}", c.source).to_lowercase();
    let moving = c.rate.is_some_and(|r| r > 0.0);
    Cell::new(
        format!("{name:<24}"),
        if moving { Tone::Strong } else { Tone::Normal },
    )
    .and(
        format!("{:>12}", format::rate(Some(c))),
        if c.rate.is_some() { Tone::Normal } else { Tone::Dim },
    )
    .and(
        format!(
            "{:>17}",
            format!("{}{}", format::total_mark(c), format::exact(c.total))
        ),
        Tone::Normal,
    )
    .and(format!("  {source}"), Tone::Dim)
}

/// Numbers and histogram.
pub(super) fn latency(state: &State, name: &'static str, latency: &Latency, width: usize) -> Vec<Cell> {
    let mut out = vec![heading(name)];
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
    out.extend(facts(width, &list));
    out.extend(chart::histogram(state.glyphs, latency, width));
    out
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::tui::settings::Settings;
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
            let lines = lines(&state, (QP, &row), traffic, &[], 400);
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
