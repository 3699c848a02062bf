//! Host, health and sums. Every fact has a rank; on a short line the least important are left out.

use std::cmp::Reverse;

use rdmatop_base::order::Ordered as _;
use rdmatop_base::text::count;
use rdmatop_model::input::EbpfState;

use super::super::columns::Cell;
use super::super::format;
use super::super::layout::Layout;
use super::super::state::State;
use super::super::theme::Tone;
use super::super::{detail, text};
use super::{Canvas, put, put_clipped};
use rdmatop_model::judgement::Sum;

/// A fact: its rank (0 is always shown), and its forms, the longest first.
type Fact = (u8, Vec<Cell>);

/// Draws the header and, on tall screens, the chart of the totals.
pub(super) fn draw(state: &State, layout: &Layout, canvas: &mut Canvas) {
    let lines = if layout.header.height > 1 {
        vec![host(state), sums(state)]
    } else {
        vec![small(state)]
    };
    for (y, facts) in lines.into_iter().enumerate() {
        let cell = join(facts, usize::from(layout.header.width));
        put(state, canvas, layout.header, y, &cell);
    }
    if layout.chart.height > 0 {
        // Tx above, Rx below, of all ports together.
        let lines = detail::chart::totals(state, usize::from(layout.chart.width));
        for (y, line) in lines.iter().enumerate() {
            put_clipped(state, canvas, layout.chart, y, line);
        }
    }
}

/// Puts the facts into one line in their order, two spaces between them. If they do not fit, the least
/// important ones get shorter; when none can get shorter, they are left out.
fn join(mut facts: Vec<Fact>, width: usize) -> Cell {
    // Width of each fact's present form. A form of no width takes no space.
    let own = |fact: &Fact| fact.1.first().map_or(0, Cell::width);
    let mut wide: Vec<usize> = facts.iter().map(own).collect();
    let total = |wide: &[usize]| {
        let shown = wide.iter().filter(|w| **w > 0);
        shown.map(|w| w + 2).sum::<usize>().saturating_sub(2)
    };
    // Facts are shortened in turn, so that none gets very short while another stays long.
    let mut turns = vec![0; facts.len()];
    while total(&wide) > width {
        let able = facts.iter().enumerate().filter(|(_, f)| f.1.len() > 1);
        let Some((next, _)) = able.min_by_key(|(at, f)| (turns[*at], Reverse(f.0))) else {
            break;
        };
        facts[next].1.remove(0);
        wide[next] = own(&facts[next]);
        turns[next] += 1;
    }
    while total(&wide) > width {
        let able = facts.iter().enumerate().filter(|(_, f)| f.0 > 0);
        let Some((worst, _)) = able.max_by_key(|(at, f)| (f.0, *at)) else {
            break;
        };
        facts.remove(worst);
        wide.remove(worst);
    }
    let mut out = Cell::default();
    for (_, forms) in facts {
        let form = forms.into_iter().next().unwrap_or_default();
        if !out.0.is_empty() && !form.0.is_empty() {
            out.0.push(("  ".into(), Tone::Normal));
        }
        out.0.extend(form.0);
    }
    out
}

fn named(name: &str, value: String) -> Cell {
    Cell::new(format!("{name} "), Tone::Dim).and(value, Tone::Normal)
}

fn ebpf(state: &State) -> Vec<Cell> {
    match &state.snapshot.health.ebpf {
        EbpfState::Starting => vec![Cell::new("eBPF starting", Tone::Warn)],
        EbpfState::On { datapaths } => match datapaths.how() {
            Some(how) => vec![
                Cell::new(format!("eBPF on ({how})"), Tone::Good),
                Cell::new("eBPF on", Tone::Good),
            ],
            // The line of findings says which work requests no program counts, and why.
            None => vec![Cell::new("eBPF on", Tone::Good)],
        },
        EbpfState::Disabled => vec![Cell::new("eBPF off (--no-ebpf)", Tone::Warn)],
        EbpfState::Unavailable(no) => {
            let why = no.why();
            let cut = |room| {
                let why = text::cut(&why, room, state.glyphs.cut);
                Cell::new(format!("eBPF off: {why}"), Tone::Warn)
            };
            let mut forms = vec![cut(40), cut(24)];
            // The line of notes gives the reason as well.
            if !state.snapshot.health.notes.is_empty() {
                forms.push(Cell::new("eBPF off", Tone::Warn));
            }
            forms
        }
    }
}

fn ebpf_short(state: &State) -> Cell {
    match &state.snapshot.health.ebpf {
        EbpfState::Starting => Cell::new("eBPF..", Tone::Warn),
        EbpfState::On { .. } => Cell::new("eBPF", Tone::Good),
        EbpfState::Disabled | EbpfState::Unavailable(_) => Cell::new("no eBPF", Tone::Warn),
    }
}

fn probes(state: &State) -> Option<Vec<Cell>> {
    let [ok, partial, broken, off] = state.snapshot.judgement.probes;
    if ok + partial + broken + off == 0 {
        return None;
    }
    let form = |ok: usize, off: usize| {
        let mut cell = Cell::new("probes", Tone::Dim);
        for (count, word, tone) in [
            (ok, "ok", Tone::Normal),
            (partial, "partial", Tone::Warn),
            (off, "off", Tone::Dim),
            (broken, "broken", Tone::Bad),
        ] {
            if count > 0 {
                cell = cell.and(format!(" {count} {word}"), tone);
            }
        }
        cell
    };
    // The number of unsupported probes is left out first; failures stay.
    let mut forms = vec![form(ok, off)];
    if off > 0 && ok + partial + broken > 0 {
        forms.push(form(ok, 0));
    }
    if ok > 0 && partial + broken > 0 {
        forms.push(form(0, 0));
    }
    Some(forms)
}

/// `None` while no program runs: nobody knows then what was missed.
fn lost(state: &State) -> Option<Fact> {
    let health = &state.snapshot.health;
    let short = health.counts_are_short();
    let Some(lost) = health.lost_events else {
        return short.then(|| (1, vec![Cell::new("counts short", Tone::Bad)]));
    };
    if lost == 0 && !short {
        let forms = ["0 events", "0"].map(|count| named("tracer lost", count.to_owned()));
        return Some((5, forms.into()));
    }
    let count = format::count(lost);
    let mut forms = Vec::new();
    if short {
        // No event is missing, but some counters are too low.
        forms.push(Cell::new(
            format!("tracer lost {count} events, counts short"),
            Tone::Bad,
        ));
        forms.push(Cell::new(format!("tracer lost {count}, counts short"), Tone::Bad));
    }
    if lost > 0 {
        forms.push(Cell::new(format!("tracer lost {count} events"), Tone::Bad));
        forms.push(Cell::new(format!("tracer lost {count}"), Tone::Bad));
    } else {
        forms.push(Cell::new("counts short", Tone::Bad));
    }
    Some((1, forms))
}

fn sum(state: &State, name: &str, sum: Sum, tone: Tone) -> Cell {
    let Some(rate) = sum.known() else {
        return Cell::new(format!("{name} -"), Tone::Dim);
    };
    // A part of the sum is unknown: the shown value is a lower bound.
    let floor = if sum.partial { state.glyphs.at_least } else { "" };
    let value = format!(
        "{floor}{}{}",
        format::si(state.settings.units.of_bytes(rate)),
        state.settings.units.per_second()
    );
    Cell::new(format!("{name} "), Tone::Dim).and(value, tone)
}

fn requests(state: &State) -> Cell {
    let sum = state.snapshot.judgement.totals.wr;
    let floor = if sum.partial { state.glyphs.at_least } else { "" };
    let text = format::known(sum.known(), |r| format!("{floor}{}/s", format::si(r)));
    let tone = if sum.known().is_some() {
        Tone::Normal
    } else {
        Tone::Dim
    };
    Cell::new("WR ", Tone::Dim).and(text, tone)
}

fn states(state: &State) -> Vec<Cell> {
    let totals = &state.snapshot.judgement.totals;
    let floor = if totals.qps_are_partial {
        state.glyphs.at_least
    } else {
        ""
    };
    let count = format::count(totals.qps);
    let mut head = Cell::new("QPs ", Tone::Dim).and(format!("{floor}{count}"), Tone::Normal);
    let stuck = state.snapshot.judgement.stuck().len();
    if stuck > 0 {
        let stuck = format::count(stuck as u64);
        head = head.and(format!(" ({stuck} stuck)"), Tone::Bad);
    }
    // States that need attention come first.
    let rank = |name: &str| match name {
        "ERR" | "SQE" => 0,
        "RTS" => 1,
        _ => 2,
    };
    let mut states: Vec<_> = totals
        .states
        .iter()
        .map(|row| {
            let name = row.state.map(|state| state.to_string());
            (name.unwrap_or_else(|| "state unknown".to_owned()), row.qps)
        })
        .collect();
    states.order_by_key(|(name, _)| rank(name));
    let form = |least: u8| {
        let mut cell = head.clone();
        for (at, (name, count)) in states.iter().filter(|(name, _)| rank(name) >= least).enumerate() {
            let tone = match rank(name) {
                0 => Tone::Bad,
                1 => Tone::Good,
                _ => Tone::Dim,
            };
            cell = cell
                .and(if at == 0 { ": " } else { " " }, Tone::Dim)
                .and(format!("{} {name}", format::count(*count)), tone);
        }
        cell
    };
    // QPs in ERR and SQE are also among the stuck ones.
    vec![form(0), form(1), head.clone()]
}

fn pace(state: &State) -> Vec<Cell> {
    if state.frozen {
        return vec![Cell::new(" FROZEN ", Tone::Accent)];
    }
    let every = format!("{}s", state.delay.as_secs_f64());
    vec![named("every", every.clone()), Cell::value(every)]
}

fn cost(state: &State) -> Vec<Cell> {
    let health = &state.snapshot.health;
    if health.self_cpu.is_none() && health.self_rss.is_none() {
        return vec![named("self", format::UNKNOWN.to_owned())];
    }
    let cpu = format::known(health.self_cpu, |c| format!("{:.1}%", c * 100.0));
    let rss = format::known(health.self_rss, |b| format!("{}B", format::memory(b)));
    vec![named("self", format!("{cpu} {rss}")), named("self", cpu)]
}

/// Whether programs are probed, and what that costs them. It is never left out, because others pay for it.
fn uprobes(state: &State) -> Option<Fact> {
    let uprobes = state.snapshot.health.uprobes.as_ref()?;
    if uprobes.off.is_some() {
        return Some((1, vec![Cell::new("uprobes off", Tone::Warn)]));
    }
    let cores = format::known(uprobes.cores, |cores| format!("{:.1}%", cores * 100.0));
    let speed = format::known(uprobes.hits_per_s, |hits| format!("{}/s", format::si(hits)));
    let price = format::known(uprobes.hit_ns, |ns| format!("{ns}ns"));
    let whose = uprobes.pid.map(|pid| format!(" on {pid}")).unwrap_or_default();
    let cell = |text: String| Cell::new(text, Tone::Accent);
    Some((
        0,
        vec![
            cell(format!("uprobes{whose} {speed} x {price} = {cores} of a core")),
            cell(format!("uprobes{whose} {cores} of a core")),
            cell(format!("uprobes {cores}")),
        ],
    ))
}

/// That rdmatop has changed how QPs are bound to counters. It is never left out.
fn hw_counters(state: &State) -> Option<Fact> {
    let report = state.snapshot.health.hw_counters.as_ref()?;
    let set = report.ports.iter().filter(|port| port.set).count();
    if set == 0 {
        return Some((1, vec![Cell::new("hw counters off", Tone::Warn)]));
    }
    let ports = count(set, "port");
    let cell = |text: String| Cell::new(text, Tone::Accent);
    Some((
        0,
        vec![
            cell(format!("hw counters auto,pid on {ports}")),
            cell(format!("hw counters on {ports}")),
            cell("hw counters".to_owned()),
        ],
    ))
}

fn errors(state: &State) -> Option<Fact> {
    let failed = state.snapshot.health.errors.len();
    let text = format!("{} failed", count(failed, "read"));
    (failed > 0).then(|| (2, vec![Cell::new(text, Tone::Bad)]))
}

fn host(state: &State) -> Vec<Fact> {
    let host = &state.snapshot.host;
    let short = |text: Option<&str>, room| text::cut(text.unwrap_or("-"), room, state.glyphs.cut);
    let name = |room| Cell::new(short(host.hostname.as_deref(), room), Tone::Strong);
    let mut facts = vec![
        (0, vec![Cell::new("rdmatop", Tone::Title)]),
        (4, vec![name(32), name(14)]),
        // This fact gives way first: no other is shortened for it.
        (
            9,
            vec![Cell::value(short(host.kernel.as_deref(), 24)), Cell::default()],
        ),
        (7, vec![named("up", format::known(host.uptime_s, format::age))]),
        (0, ebpf(state)),
    ];
    facts.extend(probes(state).map(|forms| (3, forms)));
    facts.extend(uprobes(state));
    facts.extend(hw_counters(state));
    facts.extend(lost(state));
    facts.extend(errors(state));
    facts.push((6, cost(state)));
    facts
}

fn sums(state: &State) -> Vec<Fact> {
    let snapshot = &state.snapshot;
    let (devices, ports) = (snapshot.devices.len(), snapshot.ports.len());
    let mut facts = vec![(
        5,
        vec![
            Cell::value(count(devices, "device")),
            Cell::value(format!("{devices} dev")),
        ],
    )];
    if ports != devices {
        facts.push((6, vec![Cell::value(count(ports, "port"))]));
    }
    facts.extend([
        (0, vec![sum(state, "Tx", snapshot.judgement.totals.tx, Tone::Tx)]),
        (0, vec![sum(state, "Rx", snapshot.judgement.totals.rx, Tone::Rx)]),
        (2, vec![requests(state)]),
        (3, states(state)),
        (1, pace(state)),
    ]);
    facts
}

fn small(state: &State) -> Vec<Fact> {
    let mut facts = vec![(3, vec![ebpf_short(state)])];
    let stuck = state.snapshot.judgement.stuck().len();
    if stuck > 0 {
        let text = format!("{} stuck", format::count(stuck as u64));
        facts.push((1, vec![Cell::new(text, Tone::Bad)]));
    }
    let totals = &state.snapshot.judgement.totals;
    facts.push((0, vec![sum(state, "Tx", totals.tx, Tone::Tx)]));
    facts.push((0, vec![sum(state, "Rx", totals.rx, Tone::Rx)]));
    facts.push((5, vec![requests(state)]));
    facts.extend(lost(state).map(|(rank, forms)| (if rank == 1 { 1 } else { 6 }, forms)));
    if state.frozen {
        facts.push((1, pace(state)));
    }
    facts
}
