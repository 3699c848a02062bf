//! The section "now" of the page.

use std::fmt::{Display, Write as _};

use super::{
    now::{Agreement, LivePort, LiveProcess, Now},
    page::{item, padded, section, wrapped},
};
use rdmatop_base::text;
use rdmatop_model::{
    ib::PortState,
    value::{Counter, Known, Source},
};

/// Rows that each table shows; a machine has eight or sixteen GPUs, and may run several jobs.
const ROWS: usize = 16;

/// Writes the section if there is something to say.
pub(super) fn write(out: &mut String, now: &Now) {
    if now.processes.is_empty() {
        return absent_only(out, now);
    }
    let seconds = now.seconds.unwrap_or(0.0);
    section(out, &format!("Now, as rdmatop saw it in {seconds:.0} s"));
    for comparison in &now.comparisons {
        let first = if comparison.kind == Agreement::Differs {
            "  ! "
        } else {
            "    "
        };
        wrapped(out, first, 6, &comparison.line);
    }
    processes(out, now);
    ports(out, now);
    for live in &now.processes {
        if let Some(doubt) = live.proof.doubt() {
            item(out, &format!("PID {} may be another process: {doubt}", live.pid));
        }
    }
    for one in now.absent.iter().take(ROWS) {
        item(out, &format!("PID {} of the log: {}", one.log_pid, one.why));
    }
    more(out, now.absent.len(), "processes that are not here");
    for missing in &now.missing {
        wrapped(out, "  not known: ", 4, missing);
    }
}

fn absent_only(out: &mut String, now: &Now) {
    let Some(first) = now.absent.first() else { return };
    section(out, "Now");
    let certain = now.absent.iter().all(|one| one.ended);
    let line = match (now.absent.len(), certain) {
        (1, _) => format!("PID {} of the log: {}", first.log_pid, first.why),
        (count, true) => format!("All {count} processes of the log on this machine have ended"),
        (count, false) => format!(
            "Which of the {count} processes of the log run on this machine is not certain; PID {}: {}",
            first.log_pid, first.why
        ),
    };
    item(out, &line);
}

fn more(out: &mut String, count: usize, what: &str) {
    if count > ROWS {
        let _ = writeln!(out, "  and {} more {what}", count - ROWS);
    }
}

/// Bytes per second; the unit is in the header. A lower bound has a `>`; one of 0 says nothing and is `-`.
fn cell(value: Option<f64>, is_bound: bool) -> String {
    let text = number(value);
    match (is_bound, text.as_str()) {
        (true, "0") => number(None),
        (true, known) if known != "-" => format!(">{known}"),
        _ => text,
    }
}

/// Bytes per second one way. A share by PSN has a `~`, an upper bound is `0-n`: these are of the counter,
/// which has no READs to be moved to the other direction.
fn way(certain: Option<f64>, counter: Option<&Counter>, is_bound: bool) -> String {
    let sign = match counter.map(|counter| (counter.source, counter.rate_known())) {
        Some((_, Known::AtMost)) => "0-",
        Some((Source::Psn, Known::Exact)) => "~",
        _ => return cell(certain, is_bound),
    };
    let rate = counter.and_then(|counter| counter.rate);
    rate.map_or_else(|| number(None), |rate| sign.to_owned() + &number(Some(rate)))
}

fn is_partial(counter: Option<&Counter>) -> bool {
    counter.is_some_and(|counter| counter.rate_known() == Known::AtLeast)
}

/// Work requests show what receives and READs bring, but not what peers WRITE.
fn is_received_in_part(live: &LiveProcess) -> bool {
    let by_work_requests = |counter: Counter| matches!(counter.source, Source::Ebpf | Source::Uprobe);
    is_partial(live.rx_bytes.as_ref()) || live.rx_bytes.is_some_and(by_work_requests)
}

fn number(value: Option<f64>) -> String {
    let Some(value) = value else { return "-".to_owned() };
    for (unit, size) in [("G", 1e9), ("M", 1e6), ("k", 1e3)] {
        if value >= size {
            return format!("{:.1}{unit}", value / size);
        }
    }
    format!("{value:.0}")
}

fn cut(text: &str, columns: usize) -> String {
    padded(text::cut_columns(text, columns), columns)
}

/// The source of a number, in words.
fn source(source: Source) -> &'static str {
    match source {
        Source::Ebpf => "eBPF",
        Source::Uprobe => "probes on the program",
        Source::Hw => "the NIC",
        Source::Port => "the port",
        Source::Psn => "shares by PSN",
        Source::Netlink => "netlink",
        Source::Sysfs => "/sys",
        Source::Ethtool => "ethtool",
        Source::SockDiag => "sock_diag",
        Source::Est => "an estimate",
    }
}

fn sources<'a>(counters: impl Iterator<Item = &'a Counter>) -> String {
    let mut all: Vec<&str> = counters.map(|counter| source(counter.source)).collect();
    all.sort_unstable();
    all.dedup();
    all.join(", ")
}

/// The first of several, and how many more there are.
fn first_of<T: Display>(all: &[T]) -> String {
    match all {
        [] => "-".to_owned(),
        [one] => one.to_string(),
        [first, more @ ..] => format!("{first} +{}", more.len()),
    }
}

fn rank(live: &LiveProcess) -> String {
    let is_next = |two: &[u32]| two[0].checked_add(1) == Some(two[1]);
    match live.ranks.as_slice() {
        [first, .., last] if live.ranks.windows(2).all(is_next) => format!("{first}..{last}"),
        all => first_of(all),
    }
}

fn processes(out: &mut String, now: &Now) {
    let _ = writeln!(
        out,
        "\n  {:>6} {:>7} {:<12} {:>4} {:>8} {:>8} {:>6} {:>7}  DEVICES",
        "RANK", "PID", "COMM", "QPS", "TX B/s", "RX B/s", "WR/s", "TCP B/s"
    );
    for live in now.processes.iter().take(ROWS) {
        let [tx, rx] = live.byte_rates;
        let work = live
            .tx_wr
            .and_then(|c| c.rate)
            .zip(live.rx_wr.and_then(|c| c.rate));
        let tcp = live
            .tcp
            .as_ref()
            .and_then(|tcp| Some(tcp.tx_bytes.rate? + tcp.rx_bytes.rate?));
        let devices = first_of(&live.devices);
        let qps = live.qps.map_or_else(|| "-".to_owned(), |qps| qps.to_string());
        let row = format!(
            "  {:>6} {:>7} {} {:>4} {:>8} {:>8} {:>6} {:>7}  {}{}",
            rank(live),
            live.pid,
            cut(&live.comm, 12),
            qps,
            way(tx, live.tx_bytes.as_ref(), is_partial(live.tx_bytes.as_ref())),
            way(rx, live.rx_bytes.as_ref(), is_received_in_part(live)),
            cell(
                work.map(|(sent, received)| sent + received),
                [&live.tx_wr, &live.rx_wr]
                    .into_iter()
                    .any(|wr| is_partial(wr.as_ref()))
            ),
            cell(tcp, false),
            devices,
            if live.ended { " ended" } else { "" }
        );
        let _ = writeln!(out, "{row}");
    }
    more(out, now.processes.len(), "processes");
    let all = || {
        now.processes
            .iter()
            .flat_map(|live| [&live.tx_bytes, &live.rx_bytes])
            .flatten()
    };
    let ways = || all().filter(|counter| counter.rate.is_some());
    let rdma = sources(all());
    let by_tcp = sources(
        now.processes
            .iter()
            .filter_map(|live| Some(&live.tcp.as_ref()?.tx_bytes)),
    );
    let mut words = Vec::new();
    if !rdma.is_empty() {
        words.push(format!("TX, RX and WR counted by {rdma}"));
    }
    if ways().any(|counter| counter.rate_known() == Known::AtMost) {
        words.push("0-n: between 0 and n".to_owned());
    }
    if ways().any(|counter| counter.source == Source::Psn && counter.rate_known() == Known::Exact) {
        words.push("~ within 5 %".to_owned());
    }
    if now.processes.iter().any(is_received_in_part) {
        words.push("RX without what peers write by RDMA".to_owned());
    }
    if !by_tcp.is_empty() {
        words.push(format!("TCP, both ways, by {by_tcp}"));
    }
    if !words.is_empty() {
        wrapped(out, "  ", 2, &words.join("; "));
    }
}

fn link(port: &LivePort) -> String {
    port.rate_bps
        .map_or_else(|| "-".to_owned(), |bits| format!("{} Gb/s", bits / 1_000_000_000))
}

/// The share of the link's rate that its busier direction carries: at least (`>`) that where one direction is
/// unknown or a lower bound, at most (`0-n`) where the busier one is an upper bound.
fn percent(port: &LivePort) -> String {
    let ways =
        [port.tx_bytes, port.rx_bytes].map(|way| way.and_then(|way| Some((way.rate?, way.rate_known()))));
    let busiest = |is_upper: bool| {
        let rates = ways.into_iter().flatten();
        let of_kind = rates.filter(move |(_, known)| (*known == Known::AtMost) == is_upper);
        of_kind.map(|(rate, _)| rate).reduce(f64::max)
    };
    let (certain, upper) = (busiest(false), busiest(true));
    let is_short = ways
        .iter()
        .any(|way| way.is_none_or(|(_, known)| known == Known::AtLeast));
    let (sign, bytes) = match (certain, upper) {
        _ if is_short => (">", certain.filter(|rate| *rate > 0.0)),
        (certain, Some(upper)) if certain.is_none_or(|rate| rate < upper) => ("0-", Some(upper)),
        _ => ("", certain),
    };
    let share = bytes
        .zip(port.rate_bps)
        .map(|(bytes, bits)| bytes * 800.0 / bits as f64);
    share.map_or_else(|| "-".to_owned(), |share| format!("{sign}{share:.0} %"))
}

fn ports(out: &mut String, now: &Now) {
    if now.ports.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "\n  {:<16} {:<6} {:>10} {:>10} {:>10} {:>7}  IN LOG",
        "NIC", "STATE", "LINK", "TX B/s", "RX B/s", "OF LINK"
    );
    for port in now.ports.iter().take(ROWS) {
        let rate =
            |counter: &Option<Counter>| cell(counter.and_then(|c| c.rate), is_partial(counter.as_ref()));
        let state = port.state.and_then(PortState::name).unwrap_or("-");
        let _ = writeln!(
            out,
            "  {} {} {:>10} {:>10} {:>10} {:>7}  {}",
            cut(&format!("{}/{}", port.device, port.port), 16),
            cut(state, 6),
            link(port),
            rate(&port.tx_bytes),
            rate(&port.rx_bytes),
            percent(port),
            match port.in_log {
                Some(true) => "yes",
                Some(false) => "no",
                None => "-",
            }
        );
    }
    more(out, now.ports.len(), "ports");
    let ways = now.ports.iter().flat_map(|port| [&port.tx_bytes, &port.rx_bytes]);
    let by = sources(ways.flatten());
    if !by.is_empty() {
        let _ = writeln!(out, "  counted by {by}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmatop_model::value::RateIs;

    #[test]
    fn a_share_of_which_a_bound_is_known_has_its_sign() {
        let exact = |rate| Some(Counter::whole(1, Some(rate), Source::Sysfs));
        let at_least = |rate| exact(rate).map(|way| Counter { partial: true, ..way });
        let at_most = |rate| {
            let rate_is = RateIs::AtMost;
            exact(rate).map(|way| Counter { rate_is, ..way })
        };
        for (tx_bytes, rx_bytes, says) in [
            (exact(1e9), exact(2e9), "16 %"),
            (exact(1e9), at_least(2e9), ">16 %"),
            (exact(2e9), at_least(1e9), ">16 %"),
            (exact(2e9), None, ">16 %"),
            (exact(0.0), None, "-"),
            (None, None, "-"),
            (at_most(2e9), exact(1e9), "0-16 %"),
            (at_most(1e9), exact(2e9), "16 %"),
            (at_most(2e9), at_least(1e9), ">8 %"),
            (at_most(2e9), None, "-"),
        ] {
            let port = LivePort {
                device: "mlx5_0".into(),
                port: 1,
                state: None,
                rate_bps: Some(100_000_000_000),
                tx_bytes,
                rx_bytes,
                in_log: None,
            };
            assert_eq!(percent(&port), says, "{tx_bytes:?} {rx_bytes:?}");
        }
    }

    #[test]
    fn a_cell_of_wide_characters_is_as_wide_as_the_others() {
        assert_eq!(cut("計算計算計算計算", 12), "計算計算計算");
        assert_eq!(cut("計算", 6), "計算  ");
        assert_eq!(cut("計算計", 5), "計算 ");
    }
}
