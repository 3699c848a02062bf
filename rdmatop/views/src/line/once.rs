//! The text of `--once`: head lines, tables of ports, processes and QPs, then what is missing, stuck, and not
//! observable. A `!` after a state means that the QP is stuck in it.
//!
//! `-` means unknown or not observable, never zero. `~` marks an estimate, `>=` a sum of which a part could
//! not be read, `0-n` what is between 0 and n. A rate that ends with `p` is in packets, because the provider
//! counts no bytes. `TX/s` of a port is what passed the wire, `WRTX/s` the payload of its work requests.

use std::cmp::Reverse;
use std::fmt::Write;
use std::sync::Arc;

use super::{
    table::{Align, Table},
    units,
};
use rdmatop_base::errno;
use rdmatop_base::order::Ordered as _;
use rdmatop_base::text;
use rdmatop_model::fields::{self, Meta, Unit, Value};
use rdmatop_model::input::{EbpfState, UprobesReport};
use rdmatop_model::judgement::{STUCK_MARK, Stuck, StuckQp, Sum, Unobserved};
use rdmatop_model::snapshot::{
    DeviceRow, DeviceState, Health, PortRow, ProcessRow, QpRow, Snapshot, VerbRow, qp_name,
};
use rdmatop_model::value::Counter;

/// Everything, ready to print.
pub fn page(snapshot: &Snapshot) -> String {
    let mut out = String::new();
    head(&mut out, snapshot);
    findings(&mut out, snapshot);
    section(&mut out, &devices(snapshot));
    section(&mut out, &ports(snapshot));
    section(&mut out, &processes(snapshot));
    section(&mut out, &qps(snapshot));
    section(&mut out, &verbs(snapshot));
    notes(&mut out, &snapshot.health);
    judged(&mut out, snapshot);
    out
}

/// `eBPF: ...` in one line.
pub(super) fn ebpf_line(state: &EbpfState) -> String {
    match state {
        EbpfState::Starting => "eBPF: starting".to_owned(),
        EbpfState::On { datapaths } => match datapaths.how() {
            Some(how) => format!("eBPF: on, data path by {how}"),
            None => "eBPF: on, data path not observed".to_owned(),
        },
        EbpfState::Disabled => "eBPF: off (--no-ebpf)".to_owned(),
        EbpfState::Unavailable(no) => format!("eBPF: unavailable: {}", no.why()),
    }
}

/// What is missing and what failed, one line for each.
pub(super) fn notes(out: &mut String, health: &Health) {
    let skipped = || health.skipped.iter().flatten();
    if health.notes.is_empty()
        && health.errors.is_empty()
        && health.floods.is_empty()
        && skipped().next().is_none()
    {
        return;
    }
    out.push('\n');
    for note in &health.notes {
        let _ = writeln!(out, "note: {note}");
    }
    for flood in &health.floods {
        let _ = writeln!(out, "lost: {flood}");
    }
    for skipped in skipped() {
        let _ = writeln!(out, "lost: {skipped}");
    }
    for error in &health.errors {
        let _ = writeln!(out, "error: {}", error.line());
    }
}

/// What is wrong, with the numbers and what to do.
pub(super) fn findings(out: &mut String, snapshot: &Snapshot) {
    if !snapshot.findings.is_empty() {
        out.push('\n');
    }
    for found in &snapshot.findings {
        let when = found.when(snapshot.mono_ns);
        let _ = writeln!(out, "{}: {} ({when})", found.severity.name(), found.verdict);
        for fact in &found.evidence {
            let _ = writeln!(out, "  seen: {fact}");
        }
        let _ = writeln!(out, "  why: {}", found.why);
        for (at, step) in found.steps().enumerate() {
            let head = if at == 0 { "  do: " } else { "      " };
            let _ = writeln!(out, "{head}{step}");
        }
        let _ = writeln!(out, "  {} when: {}", found.end(), found.fixed);
    }
}

fn section(out: &mut String, table: &Table) {
    if !table.is_empty() {
        out.push('\n');
        table.write(out);
    }
}

/// A count, or `-` if it is not known.
fn whole(count: Option<u64>) -> String {
    count.map_or_else(|| "-".to_owned(), |count| count.to_string())
}

fn head(out: &mut String, snapshot: &Snapshot) {
    let host = snapshot.host.hostname.as_deref().unwrap_or("-");
    let kernel = snapshot.host.kernel.as_deref().unwrap_or("-");
    let time = units::date_time(snapshot.time);
    let window = snapshot
        .interval_ns
        .map_or_else(|| "-".to_owned(), units::duration);
    let _ = writeln!(out, "{host}  Linux {kernel}  {time}  measured over {window}");
    let health = &snapshot.health;
    let _ = write!(
        out,
        "{}  events {}  lost {}",
        ebpf_line(&health.ebpf),
        whole(health.events),
        whole(health.lost_events)
    );
    for loss in &health.losses {
        let _ = write!(out, "  {} {}", loss.at, loss.count);
    }
    out.push('\n');
    if let Some(uprobes) = &health.uprobes {
        let _ = writeln!(out, "{}", uprobes_line(uprobes));
    }
    totals(out, snapshot);
}

/// `uprobes: ...` in one line: whether programs are probed, and what the probes cost these programs.
pub(super) fn uprobes_line(uprobes: &UprobesReport) -> String {
    if uprobes.off.is_some() {
        return "uprobes: off".to_owned();
    }
    let whose = uprobes
        .pid
        .map_or_else(String::new, |pid| format!(" of process {pid}"));
    let percent = |cores: f64| format!("{:.1}%", cores * 100.0);
    let speed = uprobes.hits_per_s.map_or_else(|| "-".to_owned(), units::count);
    let price = uprobes.hit_ns.map_or_else(|| "-".to_owned(), units::duration);
    let cores = uprobes.cores.map_or_else(|| "-".to_owned(), percent);
    let mut line = format!(
        "uprobes: on, functions {}, QPs {}{whose}, hits {speed}/s of {price}: {cores} of a core (limit {})",
        uprobes.functions,
        uprobes.qps,
        percent(uprobes.limit)
    );
    let rejected = uprobes.rejected_sends.saturating_add(uprobes.rejected_receives);
    for (word, count) in [
        ("rejected", rejected),
        ("unmatched", uprobes.unmatched),
        ("missed", uprobes.missed),
    ] {
        if count > 0 {
            let _ = write!(line, "  {word} {count}");
        }
    }
    line
}

/// The totals, as in the header of the screen.
fn totals(out: &mut String, snapshot: &Snapshot) {
    let totals = &snapshot.judgement.totals;
    let sum = |sum: Sum, unit: fn(f64) -> String| {
        let bound = if sum.partial { ">=" } else { "" };
        let known = sum.known().filter(|rate| rate.is_finite());
        known.map_or_else(|| "-".to_owned(), |rate| format!("{bound}{}/s", unit(rate)))
    };
    let least = if totals.qps_are_partial { ">=" } else { "" };
    let _ = write!(
        out,
        "total  TX {}  RX {}  WR {}  QPs {least}{}",
        sum(totals.tx, units::bytes),
        sum(totals.rx, units::bytes),
        sum(totals.wr, units::count),
        totals.qps
    );
    for (at, row) in totals.states.iter().enumerate() {
        let state = row
            .state
            .map_or_else(|| "of unknown state".to_owned(), |state| state.to_string());
        let _ = write!(out, "{} {} {state}", if at == 0 { ":" } else { "" }, row.qps);
    }
    let stuck = snapshot.judgement.stuck().len();
    if stuck > 0 {
        let _ = write!(out, ", {stuck} of them stuck");
    }
    out.push('\n');
}

/// One line for the stuck QPs of one process with one reason; then what cannot be observed, and why.
fn judged(out: &mut String, snapshot: &Snapshot) {
    let judgement = &snapshot.judgement;
    if judgement.stuck().len() == 0 && judgement.unobserved.is_empty() {
        return;
    }
    out.push('\n');
    let group = |qp: &StuckQp| (qp.process_uid, qp.comm.clone(), qp.stuck.reason);
    for group in grouped(judgement.stuck(), |a, b| group(a) == group(b)) {
        let qp = group[0];
        let more = match group.len() {
            1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        let owner = match (qp.comm.as_deref(), qp.pid) {
            (Some(comm), Some(pid)) => format!(" of {comm} ({pid})"),
            (Some(comm), None) => format!(" of {comm}"),
            (None, pid) => pid.map(|pid| format!(" of {pid}")).unwrap_or_default(),
        };
        let place = qp.stuck.place(snapshot.mono_ns);
        let (name, why) = (qp_name(&qp.device, qp.qpn), qp.stuck.reason.why());
        let _ = writeln!(out, "stuck: {name}{more}{owner}{place}: {why}");
    }
    unobserved(out, snapshot);
}

/// Puts together what is alike, in the order of the first of each.
fn grouped<T>(all: impl Iterator<Item = T>, alike: impl Fn(&T, &T) -> bool) -> Vec<Vec<T>> {
    let mut groups: Vec<Vec<T>> = Vec::new();
    for next in all {
        match groups.iter_mut().find(|group| alike(&group[0], &next)) {
            Some(group) => group.push(next),
            None => groups.push(vec![next]),
        }
    }
    groups
}

/// What cannot be observed. Devices that lack the same for the same reason share an entry.
pub(crate) fn unobserved_alike(snapshot: &Snapshot) -> Vec<(Vec<&str>, &Unobserved)> {
    let groups = grouped(snapshot.judgement.unobserved.iter(), |a, b| a.is_like(b)).into_iter();
    groups
        .map(|group| (group.iter().map(|one| &*one.device).collect(), group[0]))
        .collect()
}

/// What cannot be observed, and why, in lines.
pub(super) fn unobserved(out: &mut String, snapshot: &Snapshot) {
    for (devices, unobserved) in unobserved_alike(snapshot) {
        let _ = writeln!(
            out,
            "not observable: {}: {}",
            text::names(&devices),
            unobserved.what()
        );
    }
}

/// Writes a cell in its own format.
type Own<R> = fn(&R, &Snapshot) -> String;

/// The columns of `fields` that the page has; `own` lists those with a format of their own.
fn table<'a, R: 'static>(
    fields: fields::Table<R>,
    rows: impl Iterator<Item = &'a R>,
    snapshot: &'a Snapshot,
    own: &[(&str, Own<R>)],
) -> Table {
    let mut columns: Vec<_> = fields.iter().filter_map(|f| Some((f.meta.page?, f))).collect();
    columns.order_by_key(|(page, _)| page.place);
    let align = |meta: &Meta| if meta.is_left() { Align::Left } else { Align::Right };
    let titles = columns
        .iter()
        .map(|(page, field)| (page.title, align(&field.meta)));
    let mut table = Table::new(titles.collect());
    for row in rows {
        table.row(columns.iter().map(
            |(_, field)| match own.iter().find(|(id, _)| *id == field.meta.id) {
                Some((_, own)) => own(row, snapshot),
                None => cell(&(field.get)(row, snapshot), field.meta.unit),
            },
        ));
    }
    table
}

fn cell(value: &Value<'_>, unit: Unit) -> String {
    match value {
        Value::Unknown | Value::Share(_) | Value::History(_) => String::new(),
        Value::Text(text) | Value::State(_, text) => text.to_string(),
        Value::List(list) => list.join(","),
        Value::Flag(on) => on.to_string(),
        Value::Number(number) => self::number(*number, unit),
        Value::Total(counter) => total(Some(*counter)),
        Value::Rate(counter) if unit == Unit::Bytes => speed(Some(*counter), None),
        Value::Rate(counter) => per_second(Some(*counter)),
        Value::Errnos(list) => {
            let spell = |errno: u32| errno::name(errno).map_or_else(|| errno.to_string(), str::to_owned);
            let list: Vec<String> = list
                .iter()
                .map(|(errno, n)| format!("{}:{n}", spell(*errno)))
                .collect();
            list.join(",")
        }
    }
}

fn number(number: i64, unit: Unit) -> String {
    let Ok(known) = u64::try_from(number) else {
        return number.to_string();
    };
    match unit {
        Unit::None | Unit::Count => known.to_string(),
        Unit::Bytes | Unit::BytesOrPackets | Unit::Memory => units::bytes(known as f64),
        Unit::BitsPerSecond => format!("{}b/s", units::count(known as f64)),
        Unit::Nanoseconds | Unit::Age => units::duration(known),
        Unit::UpperNanoseconds => format!("<{}", units::duration(known)),
        Unit::Clock => units::date_time(known),
    }
}

fn devices(s: &Snapshot) -> Table {
    let name: Own<DeviceRow> = |row, _| {
        let removing = row.state == Some(DeviceState::Removing);
        mark(
            &row.name,
            removing.then_some("removing").or(row.netns_holder.as_deref()),
        )
    };
    table(fields::DEVICE, s.devices.iter(), s, &[("name", name)])
}

fn ports(s: &Snapshot) -> Table {
    let own: [(&str, Own<PortRow>); 2] = [
        ("tx_bytes", |row, _| speed(row.tx_bytes, row.tx_packets)),
        ("rx_bytes", |row, _| speed(row.rx_bytes, row.rx_packets)),
    ];
    table(fields::PORT, s.ports.iter(), s, &own)
}

fn processes(s: &Snapshot) -> Table {
    let own: [(&str, Own<ProcessRow>); 2] = [
        ("command", |row, _| {
            mark(&row.comm, row.exited.then_some("exited"))
        }),
        ("tx", |row, _| speed(row.traffic.tx_bytes, row.traffic.tx_packets)),
    ];
    table(fields::PROCESS, s.processes.iter(), s, &own)
}

fn qps(s: &Snapshot) -> Table {
    let own: [(&str, Own<QpRow>); 4] = [
        ("device", |row, _| row.name()),
        ("state", |row, s| state(row, s.mono_ns)),
        ("owner", |row, _| {
            let fate = if row.exited {
                Some("destroyed")
            } else {
                row.orphan.then_some("orphan")
            };
            mark(row.comm.as_deref().unwrap_or("-"), fate)
        }),
        ("tx", |row, _| speed(row.traffic.tx_bytes, row.traffic.tx_packets)),
    ];
    table(fields::QP, s.qps.iter().map(|row| &**row), s, &own)
}

/// The state, with a mark if the QP is stuck in it.
fn state(row: &QpRow, mono_ns: u64) -> String {
    let mark = Stuck::of(row, mono_ns).map_or("", |_| STUCK_MARK);
    let state = row.state.map(|state| state.to_string());
    format!("{}{mark}", state.unwrap_or_default())
}

fn verbs(s: &Snapshot) -> Table {
    let verb: Own<VerbRow> = |row, _| mark(&row.verb, row.probe.then_some("probe"));
    let mut rows: Vec<&VerbRow> = s.verbs.iter().collect();
    // The snapshot has them in no order: those of a process stand together, the most frequent calls first.
    rows.order_by_key(|row| (row.pid, Reverse(row.calls.total), Arc::clone(&row.verb)));
    table(fields::VERB, rows.into_iter(), s, &[("verb", verb)])
}

fn mark(text: &str, fate: Option<&str>) -> String {
    match fate {
        Some(fate) => format!("{text} ({fate})"),
        None => text.to_owned(),
    }
}

fn rate(counter: Option<Counter>, unit: fn(f64) -> String) -> Option<String> {
    let counter = counter?;
    // A rate that is not a number is unknown.
    let rate = counter.rate.filter(|rate| rate.is_finite())?;
    Some(format!(
        "{}{}",
        units::mark(counter.rate_known(), counter.source, ">="),
        unit(rate)
    ))
}

fn per_second(counter: Option<Counter>) -> String {
    rate(counter, units::count).unwrap_or_default()
}

fn speed(bytes: Option<Counter>, packets: Option<Counter>) -> String {
    rate(bytes, units::bytes)
        .or_else(|| rate(packets, units::count).map(|rate| format!("{rate}p")))
        .unwrap_or_default()
}

fn total(counter: Option<Counter>) -> String {
    counter.map_or_else(String::new, |counter| {
        format!(
            "{}{}",
            units::mark(counter.total_known(), counter.source, ">="),
            counter.total
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmatop_model::testkit::full;
    use rdmatop_model::value::Source;

    #[test]
    fn a_machine_at_work_reads_well() {
        insta::assert_snapshot!(page(&full::snapshot()));
    }

    #[test]
    fn an_empty_machine_shows_no_empty_tables() {
        insta::assert_snapshot!(page(&full::empty()));
    }

    #[test]
    fn what_is_not_observable_is_a_dash_and_never_zero() {
        let mut snapshot = full::empty();
        snapshot
            .qps
            .push(std::sync::Arc::new(rdmatop_model::testkit::rows::unknown_qp()));
        let text = page(&snapshot);
        let row = text.lines().last().unwrap();
        assert_eq!(
            row.split_whitespace().skip(1).collect::<Vec<_>>(),
            ["-"; 16],
            "{row}"
        );
    }

    #[test]
    fn a_sum_with_a_missing_part_is_a_bound() {
        let part = Counter {
            partial: true,
            ..Counter::whole(5, Some(1.9), Source::Sysfs)
        };
        assert_eq!(
            (per_second(Some(part)), total(Some(part))),
            (">=1.9".to_owned(), ">=5".to_owned())
        );
    }

    #[test]
    fn a_rate_that_is_no_number_is_a_dash() {
        for bad in [f64::NAN, f64::INFINITY] {
            let counter = Counter::whole(1, Some(bad), Source::Ebpf);
            assert_eq!(per_second(Some(counter)), "");
            assert_eq!(speed(Some(counter), None), "");
        }
    }
}
