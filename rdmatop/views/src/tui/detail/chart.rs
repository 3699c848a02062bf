//! Charts and histograms as lines of text.

use rdmatop_model::snapshot::{History, Latency};

use super::super::columns::Cell;
use super::super::format::{self, Units};
use super::super::glyphs::Glyphs;
use super::super::state::State;
use super::super::theme::Tone;
use super::Pane;
use rdmatop_model::judgement::{Sum, counts_bytes};

/// Width of the labels to the left of a chart.
const MARGIN: usize = 14;

/// A chart of `points`, the newest at the right, `height` lines high, scaled to its own maximum.
fn chart(
    glyphs: &Glyphs,
    name: &str,
    points: &[Option<f64>],
    unit: impl Fn(f64) -> String,
    width: usize,
    height: usize,
    tone: Tone,
) -> Vec<Cell> {
    let room = width.saturating_sub(MARGIN + 1);
    let shown = &points[points.len().saturating_sub(room)..];
    let max = shown.iter().flatten().copied().fold(0.0, f64::max);
    let last = shown.last().copied().flatten();
    let pad = " ".repeat(room.saturating_sub(shown.len()));
    let mut out = Vec::with_capacity(height);
    for line in (0..height).rev() {
        let label = if height == 1 || line == 0 {
            format!("{name} {}", format::known(last, &unit))
        } else if line + 1 == height {
            let known = shown.iter().any(Option::is_some).then_some(max);
            format!("max {}", format::known(known, &unit))
        } else {
            String::new()
        };
        // The signs of a chart take three bytes each.
        let mut text = String::with_capacity(pad.len() + 3 * (shown.len() + 1));
        text.push_str(glyphs.wall);
        text.push_str(&pad);
        for point in shown {
            let cell = match point {
                // A gap is marked on the ground line only.
                None if line == 0 => glyphs.gap,
                Some(value) if max > 0.0 => {
                    let part = value / max * height as f64 - line as f64;
                    glyphs.spark(Some(part.clamp(0.0, 1.0)), 1.0)
                }
                _ => " ",
            };
            text.push_str(cell);
        }
        out.push(Cell::new(format!("{label:<MARGIN$}"), Tone::Dim).and(text, tone));
    }
    out
}

/// A rate of bytes. `part`: only the bytes of work requests are counted, so a 0 means nothing.
fn bytes(units: Units, part: bool, value: f64) -> String {
    match part {
        true if value <= 0.0 => format::UNKNOWN.to_owned(),
        true => format!("~{}", format::si(units.of_bytes(value))),
        false => format::si(units.of_bytes(value)),
    }
}

/// Tx and Rx of a history. `part`: only the bytes of work requests are counted.
pub(super) fn history(pane: &mut Pane<'_>, history: &History, height: usize, part: bool) {
    let len = history.tx.len().max(history.rx.len());
    if len == 0 {
        return pane.say("History: nothing moved, or nothing is known", Tone::Dim);
    }
    let (units, width, glyphs) = (pane.state.settings.units, pane.width, pane.state.glyphs);
    let name = match history.unit {
        "bytes" => units.per_second(),
        "packets" => "pkt/s",
        _ => "WR/s",
    };
    let unit = |value: f64| match history.unit {
        "bytes" => bytes(units, part, value),
        _ => format::si(value),
    };
    let points = len.min(width.saturating_sub(MARGIN + 1));
    let title = format!("History, {name}, {points} points, newest right");
    pane.add(Cell::new(title, Tone::Title));
    for (name, points, tone) in [("Tx", &history.tx, Tone::Tx), ("Rx", &history.rx, Tone::Rx)] {
        pane.lines
            .extend(chart(glyphs, name, points, unit, width, height, tone));
    }
}

/// Tx and Rx of all ports together, three lines each.
pub fn totals(state: &State, width: usize) -> Vec<Cell> {
    let ports = &state.snapshot.ports;
    // Packets and bytes cannot be added, so ports without bytes are left out when any port counts bytes.
    let unit = if ports.iter().any(|p| p.history.unit == "bytes") {
        "bytes"
    } else {
        "packets"
    };
    let total = |side: fn(&History) -> &Vec<Option<f64>>| {
        let ports = ports.iter().filter(|port| port.history.unit == unit);
        let known = ports
            .map(|port| side(&port.history))
            .filter(|points| points.iter().any(Option::is_some));
        let all: Vec<_> = known.collect();
        let len = all.iter().map(|points| points.len()).max().unwrap_or(0);
        // A port that was not there yet takes no part; of one without a rate, as after a reset, the sum is
        // not known.
        let sum = |ago: usize| {
            let points = all
                .iter()
                .filter_map(|points| points.iter().rev().nth(ago).copied());
            points.reduce(|a, b| Some(a? + b?)).flatten()
        };
        (0..len).rev().map(sum).collect::<Vec<_>>()
    };
    let units = state.settings.units;
    let part = !ports.iter().any(counts_bytes);
    let totals = &state.snapshot.judgement.totals;
    let text = |sum: &Sum| {
        let least = if sum.partial && !part {
            state.glyphs.at_least
        } else {
            ""
        };
        move |value: f64| match (unit, bytes(units, part, value)) {
            ("bytes", rate) if rate == format::UNKNOWN => rate,
            ("bytes", rate) => format!("{least}{rate}{}", units.per_second()),
            _ => format!("{}pkt/s", format::si(value)),
        }
    };
    let side = |name, points: &[Option<f64>], sum, tone| {
        chart(state.glyphs, name, points, text(sum), width, 3, tone)
    };
    let mut out = side("Tx", &total(|h| &h.tx), &totals.tx, Tone::Tx);
    out.extend(side("Rx", &total(|h| &h.rx), &totals.rx, Tone::Rx));
    out
}

/// A log2 histogram as bars, without the empty buckets at its ends.
pub(super) fn histogram(pane: &mut Pane<'_>, latency: &Latency) {
    let most = latency.buckets.iter().copied().max().unwrap_or(0);
    let sum: u64 = latency.buckets.iter().sum();
    let room = pane.width.saturating_sub(32).clamp(4, 60);
    let used = |count: &u64| *count > 0;
    let first = latency.buckets.iter().position(used).unwrap_or(0);
    let end = latency.buckets.iter().rposition(used).map_or(0, |last| last + 1);
    for (at, count) in latency.buckets.iter().enumerate().take(end).skip(first) {
        let edge = |bit: usize| {
            format::nanos(
                1u64.checked_shl(u32::try_from(bit).unwrap_or(63))
                    .unwrap_or(u64::MAX),
            )
        };
        let (full, track) = pane.state.glyphs.bar(*count as f64 / most as f64, room);
        let share = format::percent(*count as f64 / sum as f64);
        let line = Cell::new(format!("{:>6}-{:<6} ", edge(at), edge(at + 1)), Tone::Dim);
        let line = line.and(full, Tone::Rx).and(track, Tone::Dim);
        pane.add(line.and(format!(" {:>7} {share:>4}", format::count(*count)), Tone::Normal));
    }
}
