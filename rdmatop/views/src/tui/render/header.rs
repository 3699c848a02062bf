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
use super::{Canvas, put};
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
            put(state, canvas, layout.chart, y, line);
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
        // The line of findings says which work requests no program counts, and why.
        EbpfState::On { datapaths } => {
            let how = datapaths.how().map(|how| format!("eBPF on ({how})"));
            let forms = how.into_iter().chain(["eBPF on".to_owned()]);
            forms.map(|text| Cell::new(text, Tone::Good)).collect()
        }
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
    let mut forms = vec![form(ok, off), form(ok, 0), form(0, 0)];
    forms.retain(|form| form.0.len() > 1);
    forms.dedup();
    Some(forms)
}

/// `None` while no program runs: nobody knows then what was missed.
fn lost(state: &State) -> Option<Fact> {
    let health = &state.snapshot.health;
    let (lost, short) = (health.lost_events, health.counts_are_short());
    if lost == Some(0) && !short {
        let forms = ["0 events", "0"].map(|count| named("tracer lost", count.to_owned()));
        return Some((5, forms.into()));
    }
    // Where only counts are short no event is missing, but some counters are too low.
    let tail = if short { ", counts short" } else { "" };
    let mut forms = Vec::new();
    if let Some(lost) = lost {
        let count = format::count(lost);
        forms.push(format!("tracer lost {count} events{tail}"));
        forms.push(format!("tracer lost {count}{tail}"));
    }
    if short {
        forms.push(match lost {
            Some(lost @ 1..) => format!("tracer lost {}", format::count(lost)),
            _ => "counts short".to_owned(),
        });
    }
    let cells = forms.into_iter().map(|text| Cell::new(text, Tone::Bad));
    Some((1, cells.collect())).filter(|(_, forms): &Fact| !forms.is_empty())
}

/// The sign of a sum of which a part is unknown: the shown value is a lower bound.
fn floor(state: &State, partial: bool) -> &'static str {
    if partial { state.glyphs.at_least } else { "" }
}

/// What is sent, received and requested.
fn flows(state: &State) -> [Cell; 3] {
    let (units, totals) = (state.settings.units, &state.snapshot.judgement.totals);
    let flow = |name: &str, sum: Sum, tone: Tone, text: &dyn Fn(f64) -> String| match sum.known() {
        Some(rate) => Cell::new(format!("{name} "), Tone::Dim)
            .and(format!("{}{}", floor(state, sum.partial), text(rate)), tone),
        None => Cell::new(format!("{name} -"), Tone::Dim),
    };
    let bytes = |rate| format!("{}{}", format::si(units.of_bytes(rate)), units.per_second());
    [
        flow("Tx", totals.tx, Tone::Tx, &bytes),
        flow("Rx", totals.rx, Tone::Rx, &bytes),
        flow("WR", totals.wr, Tone::Normal, &|rate| {
            format!("{}/s", format::si(rate))
        }),
    ]
}

fn states(state: &State) -> Vec<Cell> {
    let totals = &state.snapshot.judgement.totals;
    let floor = floor(state, totals.qps_are_partial);
    let head = named("QPs", format!("{floor}{}", format::count(totals.qps)));
    let stuck = state.snapshot.judgement.stuck().len();
    // A QP that is stuck has a state, too, as RTS.
    let ended = |cell: Cell, of_them: &str| match stuck {
        0 => cell,
        _ => cell.and(
            format!(", {}{of_them} stuck", format::count(stuck as u64)),
            Tone::Bad,
        ),
    };
    // States that need attention come first.
    let rank = |name: &str| match name {
        "ERR" | "SQE" => 0,
        "RTS" => 1,
        _ => 2,
    };
    let named = totals.states.iter().map(|row| {
        let name = row.state.map(|state| state.to_string());
        (name.unwrap_or_else(|| "state unknown".to_owned()), row.qps)
    });
    let mut states: Vec<_> = named.collect();
    states.order_by_key(|(name, _)| rank(name));
    let form = |least: u8, of_them: &str| {
        let mut cell = head.clone();
        for (at, (name, count)) in states.iter().filter(|(name, _)| rank(name) >= least).enumerate() {
            let tone = [Tone::Bad, Tone::Good, Tone::Dim][usize::from(rank(name))];
            let gap = if at == 0 { ": " } else { " " };
            cell = cell
                .and(gap, Tone::Dim)
                .and(format!("{} {name}", format::count(*count)), tone);
        }
        ended(cell, of_them)
    };
    // QPs in ERR and SQE are also among the stuck ones.
    vec![
        form(0, " of them"),
        form(1, " of them"),
        form(1, ""),
        ended(head.clone(), ""),
    ]
}

fn pace(state: &State) -> Vec<Cell> {
    if state.frozen {
        return vec![Cell::new(" FROZEN ", Tone::Accent)];
    }
    let every = format!("{}s", state.settings.delay().as_secs_f64());
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
    let forms = [
        format!("uprobes{whose} {speed} x {price} = {cores} of a core"),
        format!("uprobes{whose} {cores} of a core"),
        format!("uprobes {cores}"),
    ];
    Some((0, forms.map(|text| Cell::new(text, Tone::Accent)).into()))
}

/// That rdmatop has changed how QPs are bound to counters. It is never left out.
fn hw_counters(state: &State) -> Option<Fact> {
    let report = state.snapshot.health.hw_counters.as_ref()?;
    let set = report.ports.iter().filter(|port| port.set).count();
    if set == 0 {
        return Some((1, vec![Cell::new("hw counters off", Tone::Warn)]));
    }
    let ports = count(set, "port");
    let forms = [
        format!("hw counters auto,pid on {ports}"),
        format!("hw counters on {ports}"),
        "hw counters".to_owned(),
    ];
    Some((0, forms.map(|text| Cell::new(text, Tone::Accent)).into()))
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
    let forms = [count(devices, "device"), format!("{devices} dev")];
    let mut facts = vec![(5, forms.map(Cell::value).into())];
    if ports != devices {
        facts.push((6, vec![Cell::value(count(ports, "port"))]));
    }
    facts.extend([0, 0, 2].into_iter().zip(flows(state).map(|flow| vec![flow])));
    facts.extend([(3, states(state)), (1, pace(state))]);
    facts
}

fn small(state: &State) -> Vec<Fact> {
    let ebpf = match &state.snapshot.health.ebpf {
        EbpfState::Starting => Cell::new("eBPF..", Tone::Warn),
        EbpfState::On { .. } => Cell::new("eBPF", Tone::Good),
        EbpfState::Disabled | EbpfState::Unavailable(_) => Cell::new("no eBPF", Tone::Warn),
    };
    let mut facts = vec![(3, vec![ebpf])];
    let stuck = state.snapshot.judgement.stuck().len();
    if stuck > 0 {
        let text = format!("{} stuck", format::count(stuck as u64));
        facts.push((1, vec![Cell::new(text, Tone::Bad)]));
    }
    facts.extend([0, 0, 5].into_iter().zip(flows(state).map(|flow| vec![flow])));
    facts.extend(lost(state).map(|(rank, forms)| (if rank == 1 { 1 } else { 6 }, forms)));
    if state.frozen {
        facts.push((1, pace(state)));
    }
    facts
}
