//! Host, health and sums. Every fact has a rank; when the line is short the least important go.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::model::ib::QpState;
use crate::model::input::EbpfState;

use super::super::columns::Cell;
use super::super::format;
use super::super::layout::Layout;
use super::super::state::State;
use super::super::summary::Sum;
use super::super::theme::Tone;
use super::super::{detail, text};
use super::put;

/// A fact and its rank: 0 never goes.
type Fact = (u8, Cell);

/// Draws the header and, on tall screens, the chart of the totals.
pub(super) fn draw(state: &State, layout: &Layout, buf: &mut Buffer) {
    let lines = if layout.header.height > 1 {
        vec![host(state), sums(state)]
    } else {
        vec![small(state)]
    };
    for (y, facts) in lines.into_iter().enumerate() {
        let cell = join(facts, usize::from(layout.header.width));
        put(
            buf,
            layout.header,
            u16::try_from(y).unwrap_or(0),
            &cell,
            state.paint(),
            state.glyphs.cut,
        );
    }
    if layout.chart.height > 0 {
        chart(state, layout.chart, buf);
    }
}

/// As many facts as fit, in their order, two spaces between them.
fn join(mut facts: Vec<Fact>, width: usize) -> Cell {
    let wide = |facts: &[Fact]| {
        facts
            .iter()
            .map(|(_, c)| text::width(&c.text()) + 2)
            .sum::<usize>()
            .saturating_sub(2)
    };
    while wide(&facts) > width {
        let worst = facts
            .iter()
            .enumerate()
            .filter(|(_, f)| f.0 > 0)
            .max_by_key(|(at, f)| (f.0, *at));
        let Some((at, _)) = worst else { break };
        facts.remove(at);
    }
    let mut out = Cell::default();
    for (_, cell) in facts {
        if !out.0.is_empty() {
            out.0.push(("  ".to_owned(), Tone::Normal));
        }
        out.0.extend(cell.0);
    }
    out
}

fn named(name: &str, value: String) -> Cell {
    Cell::new(format!("{name} "), Tone::Dim).and(value, Tone::Normal)
}

fn ebpf(state: &State) -> Cell {
    match &state.snapshot.health.ebpf {
        EbpfState::Starting => Cell::new("eBPF starting", Tone::Warn),
        EbpfState::On { datapath: Some(how) } => Cell::new(format!("eBPF on ({how})"), Tone::Good),
        EbpfState::On { datapath: None } => Cell::new("eBPF on, no data path", Tone::Good),
        EbpfState::Disabled => Cell::new("eBPF off (--no-ebpf)", Tone::Warn),
        EbpfState::Unavailable { why } => Cell::new(
            format!("eBPF off: {}", text::cut(why, 40, state.glyphs.cut)),
            Tone::Warn,
        ),
    }
}

fn ebpf_short(state: &State) -> Cell {
    match &state.snapshot.health.ebpf {
        EbpfState::Starting => Cell::new("eBPF..", Tone::Warn),
        EbpfState::On { .. } => Cell::new("eBPF", Tone::Good),
        EbpfState::Disabled | EbpfState::Unavailable { .. } => Cell::new("no eBPF", Tone::Warn),
    }
}

fn probes(state: &State) -> Option<Cell> {
    let [ok, partial, broken, off] = state.summary.probes;
    if ok + partial + broken + off == 0 {
        return None;
    }
    let mut cell = Cell::new("probes ", Tone::Dim).and(format!("{ok} ok"), Tone::Normal);
    for (count, word, tone) in [
        (partial, "partial", Tone::Warn),
        (off, "off", Tone::Dim),
        (broken, "broken", Tone::Bad),
    ] {
        if count > 0 {
            cell = cell.and(format!(" {count} {word}"), tone);
        }
    }
    Some(cell)
}

fn lost(state: &State) -> Fact {
    let lost = state.snapshot.health.lost_events;
    if lost == 0 {
        (5, named("lost", "0".to_owned()))
    } else {
        (
            1,
            Cell::new(format!("lost {} events", format::count(lost)), Tone::Bad),
        )
    }
}

fn sum(state: &State, name: &str, sum: Sum, tone: Tone) -> Cell {
    let Some(rate) = sum.rate else {
        return Cell::new(format!("{name} -"), Tone::Dim);
    };
    // Part of it is not known: what is shown is a floor.
    let floor = if sum.partial { state.glyphs.bound[1] } else { "" };
    let value = format!(
        "{floor}{}{}",
        format::si(state.settings.units.of_bytes(rate)),
        state.settings.units.per_second()
    );
    Cell::new(format!("{name} "), Tone::Dim).and(value, tone)
}

fn requests(state: &State) -> Cell {
    let sum = state.summary.wr;
    let floor = if sum.partial && sum.rate.is_some() {
        state.glyphs.bound[1]
    } else {
        ""
    };
    let text = format::known(sum.rate, |r| format!("{floor}{}/s", format::si(r)));
    let tone = if sum.rate.is_some() {
        Tone::Normal
    } else {
        Tone::Dim
    };
    Cell::new("WR ", Tone::Dim).and(text, tone)
}

fn states(state: &State) -> Cell {
    let mut cell = Cell::new("QPs ", Tone::Dim).and(format::count(state.summary.qps), Tone::Normal);
    // What needs a look comes first.
    let rank = |name: &str| match name {
        "ERR" | "SQE" => 0,
        "RTS" => 1,
        _ => 2,
    };
    let mut states: Vec<_> = state
        .summary
        .states
        .iter()
        .map(|(s, n)| {
            (
                s.map_or_else(|| "state unknown".to_owned(), |s| s.to_string()),
                *n,
            )
        })
        .collect();
    states.sort_by_key(|(name, _)| rank(name));
    for (at, (name, count)) in states.into_iter().enumerate() {
        let tone = match rank(&name) {
            0 => Tone::Bad,
            1 => Tone::Good,
            _ => Tone::Dim,
        };
        cell = cell
            .and(if at == 0 { ": " } else { " " }, Tone::Dim)
            .and(format!("{} {name}", format::count(count)), tone);
    }
    cell
}

fn pace(state: &State) -> Cell {
    if state.frozen {
        return Cell::new(" FROZEN ", Tone::Accent);
    }
    named("every", format!("{}s", state.delay.as_secs_f64()))
}

fn cost(state: &State) -> Cell {
    let health = &state.snapshot.health;
    if health.self_cpu.is_none() && health.self_rss.is_none() {
        return named("self", format::UNKNOWN.to_owned());
    }
    let cpu = format::known(health.self_cpu, |c| format!("{:.1}%", c * 100.0));
    let rss = format::known(health.self_rss, |b| format!("{}B", format::memory(b)));
    named("self", format!("{cpu} {rss}"))
}

fn errors(state: &State) -> Option<Fact> {
    let failed = state.snapshot.health.errors.len();
    (failed > 0).then(|| {
        (
            2,
            Cell::new(
                format!("{failed} read{} failed", if failed == 1 { "" } else { "s" }),
                Tone::Bad,
            ),
        )
    })
}

fn host(state: &State) -> Vec<Fact> {
    let host = &state.snapshot.host;
    let mut facts = vec![
        (0, Cell::new("rdmatop", Tone::Title)),
        (
            4,
            Cell::new(
                text::cut(host.hostname.as_deref().unwrap_or("-"), 32, state.glyphs.cut),
                Tone::Strong,
            ),
        ),
        (
            7,
            Cell::value(text::cut(
                host.kernel.as_deref().unwrap_or("-"),
                24,
                state.glyphs.cut,
            )),
        ),
        (8, named("up", format::known(host.uptime_s, format::age))),
        (0, ebpf(state)),
    ];
    facts.extend(probes(state).map(|cell| (3, cell)));
    facts.push(lost(state));
    facts.extend(errors(state));
    facts.push((6, cost(state)));
    facts
}

fn sums(state: &State) -> Vec<Fact> {
    let snapshot = &state.snapshot;
    let (devices, ports) = (snapshot.devices.len(), snapshot.ports.len());
    let count = |n: usize, one: &str| format!("{n} {one}{}", if n == 1 { "" } else { "s" });
    let mut facts = vec![(5, Cell::value(count(devices, "device")))];
    if ports != devices {
        facts.push((6, Cell::value(count(ports, "port"))));
    }
    facts.extend([
        (0, sum(state, "Tx", state.summary.tx, Tone::Tx)),
        (0, sum(state, "Rx", state.summary.rx, Tone::Rx)),
        (2, requests(state)),
        (3, states(state)),
        (1, pace(state)),
    ]);
    facts
}

fn small(state: &State) -> Vec<Fact> {
    let mut facts = vec![(3, ebpf_short(state))];
    let wrong = |s: &Option<QpState>| {
        s.and_then(QpState::name)
            .is_some_and(|n| matches!(n, "ERR" | "SQE"))
    };
    let count: u64 = state
        .summary
        .states
        .iter()
        .filter(|(s, _)| wrong(s))
        .map(|(_, n)| n)
        .sum();
    if count > 0 {
        facts.push((1, Cell::new(format!("{} ERR", format::count(count)), Tone::Bad)));
    }
    facts.push((0, sum(state, "Tx", state.summary.tx, Tone::Tx)));
    facts.push((0, sum(state, "Rx", state.summary.rx, Tone::Rx)));
    facts.push((5, requests(state)));
    let (rank, cell) = lost(state);
    facts.push((if rank == 1 { 1 } else { 6 }, cell));
    if state.frozen {
        facts.push((1, pace(state)));
    }
    facts
}

/// Tx above, Rx below, of all ports together.
fn chart(state: &State, area: Rect, buf: &mut Buffer) {
    let lines = detail::chart::totals(state, usize::from(area.width));
    for (y, line) in lines.iter().enumerate() {
        put(
            buf,
            area,
            u16::try_from(y).unwrap_or(u16::MAX),
            line,
            state.paint(),
            "",
        );
    }
}
