//! The text of `--once`: a head line, then tables of ports, processes and QPs, then what is missing.
//!
//! `-` is unknown or not observable, never zero. `~` marks an estimate, `>=` a sum of which a part could not be read. A
//! speed in packets, where the provider counts no bytes, ends with `p`. `TX/s` of a port is what passed the wire,
//! `WRTX/s` the payload of its work requests.

use std::fmt::Write;

use super::{table::Table, units};
use crate::model::input::EbpfState;
use crate::model::snapshot::{
    DeviceRow, DeviceState, Health, Latency, PortRow, ProcessRow, QpRow, Snapshot, Traffic, VerbRow,
};
use crate::model::value::{Counter, Source};

/// Everything, ready to print.
pub fn text(snapshot: &Snapshot) -> String {
    let mut out = String::new();
    head(&mut out, snapshot);
    section(&mut out, &devices(snapshot));
    section(&mut out, &ports(snapshot));
    section(&mut out, &processes(snapshot));
    section(&mut out, &qps(snapshot));
    section(&mut out, &verbs(snapshot));
    notes(&mut out, &snapshot.health);
    out
}

/// `eBPF: ...` in one line.
pub(super) fn ebpf_line(state: &EbpfState) -> String {
    match state {
        EbpfState::Starting => "eBPF: starting".to_owned(),
        EbpfState::On { datapath: Some(how) } => format!("eBPF: on, data path by {how}"),
        EbpfState::On { datapath: None } => "eBPF: on, data path not observed".to_owned(),
        EbpfState::Disabled => "eBPF: off (--no-ebpf)".to_owned(),
        EbpfState::Unavailable(no) => format!("eBPF: unavailable: {}", no.why()),
    }
}

/// What is missing and what failed, one line each.
pub(super) fn notes(out: &mut String, health: &Health) {
    let skipped = || health.skipped.iter().flatten();
    if health.notes.is_empty() && health.errors.is_empty() && skipped().next().is_none() {
        return;
    }
    out.push('\n');
    for note in &health.notes {
        let _ = writeln!(out, "note: {note}");
    }
    for skipped in skipped() {
        let _ = writeln!(out, "lost: {skipped}");
    }
    for error in &health.errors {
        let _ = writeln!(out, "error: {error}");
    }
}

fn section(out: &mut String, table: &Table) {
    if !table.is_empty() {
        out.push('\n');
        table.write(out);
    }
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
        health.events,
        health.lost_events
    );
    for loss in &health.losses {
        let _ = write!(out, "  {} {}", loss.at, loss.count);
    }
    out.push('\n');
}

fn devices(snapshot: &Snapshot) -> Table {
    let mut table = Table::new(&[
        "DEVICE", "DRIVER", "FIRMWARE", "PCI", ">NUMA", "GUID", ">QP", ">CQ", ">MR", ">PD", ">CM_ID", ">CTX",
        ">SRQ",
    ]);
    for row in &snapshot.devices {
        let DeviceRow {
            name,
            driver,
            fw_version,
            pci,
            numa_node,
            node_guid,
            ..
        } = row;
        table.row([
            mark(
                name,
                (row.state == Some(DeviceState::Removing)).then_some("removing"),
            ),
            show(driver.as_ref()),
            show(fw_version.as_ref()),
            show(pci.as_ref()),
            show(*numa_node),
            show(node_guid.as_ref()),
            show(row.qps),
            show(row.cqs),
            show(row.mrs),
            show(row.pds),
            show(row.cm_ids),
            show(row.ctxs),
            show(row.srqs),
        ]);
    }
    table
}

fn ports(snapshot: &Snapshot) -> Table {
    let mut table = Table::new(&[
        "PORT", "STATE", "PHYS", "LINK", "NETDEV", ">MTU", ">RATE", ">TX/s", ">RX/s", ">WRTX/s", ">WRRX/s",
        ">TXPKT/s", ">RXPKT/s", ">DROP/s", ">RETX/s", ">RETRY/s", ">CONG/s", ">RNR/s",
    ]);
    for row in &snapshot.ports {
        let PortRow { device, port, .. } = row;
        table.row([
            format!("{device}/{port}"),
            show(row.state),
            show(row.phys_state),
            show(row.link_layer.as_ref()),
            show(row.netdev.as_ref()),
            show(row.netdev_mtu),
            row.rate_bps
                .map_or_else(String::new, |bps| format!("{}b/s", units::count(bps as f64))),
            speed(row.tx_bytes, row.tx_packets),
            speed(row.rx_bytes, row.rx_packets),
            speed(row.wr_tx_bytes, None),
            speed(row.wr_rx_bytes, None),
            per_second(row.tx_packets),
            per_second(row.rx_packets),
            per_second(row.drops),
            per_second(row.retransmits),
            per_second(row.retries),
            per_second(row.congestion),
            per_second(row.rnr_naks),
        ]);
    }
    table
}

fn processes(snapshot: &Snapshot) -> Table {
    let mut table = Table::new(&[
        ">PID",
        "COMM",
        "USER",
        "WORKLOAD",
        "DEVICES",
        ">QPS",
        ">MR",
        ">TX/s",
        ">RX/s",
        ">TXWR/s",
        ">RXWR/s",
        ">CQE/s",
        ">CQE_ERR",
        ">RETX",
        ">VERB_ERR",
        ">P99",
    ]);
    for row in &snapshot.processes {
        let ProcessRow { traffic, .. } = row;
        table.row([
            show(row.pid),
            mark(&row.comm, row.exited.then_some("exited")),
            show(row.user.as_ref()),
            show(row.workload.as_ref()),
            row.devices.join(","),
            row.qps.to_string(),
            row.mr_bytes
                .map_or_else(String::new, |bytes| units::bytes(bytes as f64)),
            speed(traffic.tx_bytes, traffic.tx_packets),
            speed(traffic.rx_bytes, None),
            per_second(traffic.tx_wr),
            per_second(traffic.rx_wr),
            per_second(traffic.completions),
            total(traffic.completion_errors),
            total(traffic.retransmits),
            total(row.verb_errors),
            p99(traffic),
        ]);
    }
    table
}

fn qps(snapshot: &Snapshot) -> Table {
    let mut table = Table::new(&[
        "QP", "TYPE", "STATE", ">PID", "COMM", ">PEER", ">MTU", ">AGE", ">TX/s", ">RX/s", ">TXWR/s",
        ">RXWR/s", ">TXWR", ">RXWR", ">CQE_ERR", ">RETX", ">P99",
    ]);
    for row in &snapshot.qps {
        let QpRow {
            traffic, device, qpn, ..
        } = row.as_ref();
        let fate = if row.exited {
            Some("destroyed")
        } else {
            row.orphan.then_some("orphan")
        };
        table.row([
            format!("{device}/{qpn}"),
            show(row.qp_type),
            show(row.state),
            show(row.pid),
            mark(row.comm.as_deref().unwrap_or("-"), fate),
            show(row.remote_qpn),
            show(row.path_mtu),
            row.age_ns(snapshot.mono_ns)
                .map_or_else(String::new, units::duration),
            speed(traffic.tx_bytes, traffic.tx_packets),
            speed(traffic.rx_bytes, None),
            per_second(traffic.tx_wr),
            per_second(traffic.rx_wr),
            total(traffic.tx_wr),
            total(traffic.rx_wr),
            total(traffic.completion_errors),
            total(traffic.retransmits),
            p99(traffic),
        ]);
    }
    table
}

fn verbs(snapshot: &Snapshot) -> Table {
    let mut table = Table::new(&[
        ">PID", "COMM", "VERB", ">CALLS", ">CALLS/s", ">ERRORS", "ERRNOS", ">MEAN", ">P99", ">MAX",
    ]);
    for row in &snapshot.verbs {
        let VerbRow { latency, errnos, .. } = row;
        let time = |of: fn(&Latency) -> Option<u64>| {
            latency
                .as_ref()
                .and_then(of)
                .map_or_else(String::new, units::duration)
        };
        let errnos: Vec<String> = errnos
            .iter()
            .map(|(errno, count)| {
                let name = i32::try_from(*errno).ok().and_then(super::errno::name);
                format!(
                    "{}:{count}",
                    name.map_or_else(|| errno.to_string(), str::to_owned)
                )
            })
            .collect();
        table.row([
            row.pid.to_string(),
            show(row.comm.as_ref()),
            mark(&row.verb, row.probe.then_some("probe")),
            row.calls.total.to_string(),
            per_second(Some(row.calls)),
            total(row.errors),
            errnos.join(","),
            time(|latency| latency.mean_ns),
            time(|latency| latency.p99_ns),
            time(|latency| latency.max_ns),
        ]);
    }
    table
}

fn mark(text: &str, fate: Option<&str>) -> String {
    match fate {
        Some(fate) => format!("{text} ({fate})"),
        None => text.to_owned(),
    }
}

fn show(value: Option<impl ToString>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

fn estimated(counter: Counter) -> &'static str {
    match counter.source {
        _ if counter.partial => ">=",
        Source::Est => "~",
        _ => "",
    }
}

fn rate(counter: Option<Counter>, unit: fn(f64) -> String) -> Option<String> {
    let counter = counter?;
    // A rate that is no number is one that is not known.
    let rate = counter.rate.filter(|rate| rate.is_finite())?;
    Some(format!("{}{}", estimated(counter), unit(rate)))
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
        format!("{}{}", estimated(counter), counter.total)
    })
}

fn p99(traffic: &Traffic) -> String {
    let p99 = traffic.latency.as_ref().and_then(|latency| latency.p99_ns);
    p99.map_or_else(String::new, |ns| format!("<{}", units::duration(ns)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::fixture;

    #[test]
    fn a_machine_at_work_reads_well() {
        insta::assert_snapshot!(text(&fixture::snapshot()));
    }

    #[test]
    fn an_empty_machine_shows_no_empty_tables() {
        insta::assert_snapshot!(text(&fixture::empty()));
    }

    #[test]
    fn what_is_not_observable_is_a_dash_and_never_zero() {
        let mut snapshot = fixture::empty();
        snapshot.qps.push(std::sync::Arc::new(fixture::unknown_qp()));
        let text = text(&snapshot);
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
            let counter = Counter {
                total: 1,
                rate: Some(bad),
                source: Source::Ebpf,
                partial: false,
            };
            assert_eq!(per_second(Some(counter)), "");
            assert_eq!(speed(Some(counter), None), "");
        }
    }
}
