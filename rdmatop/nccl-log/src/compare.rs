//! Compares what a log says with what its processes do now. Pure; each difference or agreement is a line.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    line::Writer,
    now::{Agreement, Comparison, LivePort, LiveProcess, Now},
    process::Process,
    report::Report,
    verdict::is_rdma,
};
use rdmatop_base::order::{Gather as _, Ordered as _};
use rdmatop_base::text;
use rdmatop_model::ib::PortState;

/// Traffic below this, in bytes per second both ways together, is not the data of a collective: connections
/// are kept alive, and ranks tell each other where they are.
const MIN_DATA_RATE: f64 = 1e6;
/// A NIC of a job that carries less than this share of what the busiest carries takes no part in the work.
const IDLE_SHARE: f64 = 0.01;

/// What the log has of a process.
fn logged<'a>(report: &'a Report, live: &LiveProcess) -> Option<&'a Process> {
    let (host, pid) = (live.host.clone(), live.log_pid);
    report.processes.get(&Writer { host, pid })
}

/// What, by the log, the processes of a host use between hosts, and whether that is RDMA. `None`: no
/// connection leaves the host, or the name of the network does not tell what it is.
fn log_network<'a>(report: &'a Report, live: &'a LiveProcess) -> Option<(&'a str, bool)> {
    let process = logged(report, live);
    let provider = process.and_then(|process| process.provider.as_deref());
    let of_host = || {
        let first = report.nics_of(&live.host).next();
        first.map(|(nic, _)| nic.network.as_str())
    };
    // The chosen network is not used when the log has local connections and none over a network.
    let local =
        report.other_connections.local > 0 && report.nics.is_empty() && report.other_connections.collnet == 0;
    let chosen = process.and_then(|process| process.network.as_deref());
    let network = chosen.or_else(of_host).filter(|_| !local)?;
    Some((network, is_rdma(network, provider)?))
}

/// A rate of bytes, `11.2 GB/s`.
pub(super) fn rate(bytes: f64) -> String {
    text::rate(bytes, "B/s")
}

fn tcp_rate(live: &LiveProcess) -> Option<f64> {
    let tcp = live.tcp.as_ref()?;
    Some(tcp.tx_bytes.rate? + tcp.rx_bytes.rate?)
}

fn rdma_rate(live: &LiveProcess) -> Option<f64> {
    let [tx, rx] = live.byte_rates;
    Some(tx? + rx?)
}

/// What a port moves; `None` for a small lower bound, which does not show that little moves.
fn port_rate(port: &LivePort) -> Option<f64> {
    let (tx, rx) = (port.tx_bytes?, port.rx_bytes?);
    let sum = tx.rate? + rx.rate?;
    let is_known = sum >= MIN_DATA_RATE || !(tx.partial || rx.partial);
    is_known.then_some(sum)
}

/// What the ports of a process's devices move; `None` if that is not known of each port.
fn device_rate(live: &LiveProcess, now: &Now) -> Option<f64> {
    let ports = now
        .ports
        .iter()
        .filter(|port| live.devices.contains(&port.device));
    let all: Vec<f64> = ports.map(port_rate).collect::<Option<_>>()?;
    (!all.is_empty()).then(|| all.iter().sum())
}

fn names<T: Ord + ToString>(all: impl IntoIterator<Item = T>) -> String {
    let all: BTreeSet<T> = all.into_iter().gather();
    text::names(all)
}

fn pids<'a>(all: impl Iterator<Item = &'a LiveProcess>) -> String {
    names(all.map(|live| live.pid.to_string()))
}

/// The lines; differences between log and life come first.
pub(super) fn compare(report: &Report, now: &Now) -> Vec<Comparison> {
    let mut out = Vec::new();
    let lives: Vec<&LiveProcess> = now.processes.iter().filter(|live| !live.ended).collect();
    ended_ranks(now, &mut out);
    let of_kind = |rdma: bool| -> Vec<&LiveProcess> {
        let is_of = |live: &&LiveProcess| log_network(report, live).is_some_and(|(_, is)| is == rdma);
        lives.iter().copied().filter(is_of).collect()
    };
    compare_rdma(report, now, &of_kind(true), &mut out);
    compare_tcp(report, &of_kind(false), &mut out);
    failed_qps(&lives, &mut out);
    out.order_by_key(|one| one.kind);
    out
}

fn push(out: &mut Vec<Comparison>, kind: Agreement, id: &'static str, line: String) {
    out.push(Comparison { kind, id, line });
}

/// Ranks that have ended while others go on, which wait for them.
fn ended_ranks(now: &Now, out: &mut Vec<Comparison>) {
    let during: Vec<&LiveProcess> = now.processes.iter().filter(|live| live.ended).collect();
    if during.len() == now.processes.len() {
        if !during.is_empty() {
            let line = "all processes of the log ended while rdmatop looked".to_owned();
            push(out, Agreement::Unclear, "ended", line);
        }
        return;
    }
    let before = now.absent.iter().filter(|one| one.ended).map(|one| one.log_pid);
    let all = before.chain(during.iter().map(|live| live.log_pid));
    let all: Vec<String> = all.map(|pid| pid.to_string()).collect();
    if !all.is_empty() {
        let line = format!(
            "PID {} of the log has ended, and of the others {} run on: a collective waits for every rank",
            names(all),
            now.processes.len() - during.len()
        );
        push(out, Agreement::Differs, "rank-gone", line);
    }
}

fn compare_rdma(report: &Report, now: &Now, lives: &[&LiveProcess], out: &mut Vec<Comparison>) {
    let Some((network, _)) = lives.first().and_then(|first| log_network(report, first)) else {
        return;
    };
    let joined = |live: &LiveProcess| logged(report, live).is_some_and(Process::joined);
    let without: Vec<&LiveProcess> = lives.iter().copied().filter(|live| live.qps == Some(0)).collect();
    for live in &without {
        let by_tcp = tcp_rate(live).filter(|rate| *rate >= MIN_DATA_RATE);
        let by_tcp = by_tcp.map(|bytes| format!("it moves {} by TCP instead", rate(bytes)));
        let (kind, id, rest) = match &by_tcp {
            Some(rest) => (Agreement::Differs, "tcp-instead", rest.as_str()),
            None if joined(live) => (
                Agreement::Differs,
                "no-qp",
                "its connections are closed, or not made",
            ),
            None => {
                let rest = "the log does not show that its rank has joined: it may be starting";
                (Agreement::Unclear, "no-qp", rest)
            }
        };
        let (comm, pid) = (&live.comm, live.pid);
        let line = format!("The log says NET/{network}, and {comm} (PID {pid}) has no QP: {rest}");
        push(out, kind, id, line);
    }
    for live in lives.iter().filter(|live| live.qps != Some(0)) {
        // Not compared with the process's own count: a rank to which others write need not send.
        if let Some(bytes) = tcp_rate(live).filter(|bytes| *bytes >= MIN_DATA_RATE)
            && let Some(by_rdma) = device_rate(live, now)
            && by_rdma * 10.0 < bytes
        {
            let line = format!(
                "The log says NET/{network}, and {} (PID {}) moves {} by TCP; by RDMA its NICs move {}",
                live.comm,
                live.pid,
                rate(bytes),
                rate(by_rdma)
            );
            push(out, Agreement::Differs, "tcp-instead", line);
        }
    }
    if without.len() == lives.len() {
        return;
    }
    compare_devices(report, now, lives, out);
    compare_traffic(network, now, out);
}

/// Devices that the log names and the processes do not use, and the other way round.
fn compare_devices(report: &Report, now: &Now, lives: &[&LiveProcess], out: &mut Vec<Comparison>) {
    let named = now.log_devices(report);
    let here: BTreeSet<&str> = now.ports.iter().map(|port| &*port.device).gather();
    let missing: Vec<&str> = named
        .keys()
        .map(String::as_str)
        .filter(|name| !here.contains(name))
        .collect();
    if !missing.is_empty() {
        let line = format!(
            "The log has connections on {}, and this machine has no such device now",
            names(missing)
        );
        push(out, Agreement::Differs, "nic-gone", line);
    }
    let down = now
        .ports
        .iter()
        .filter(|port| port.in_log == Some(true) && port.state.is_some_and(|state| !state.is_active()));
    let down: Vec<&str> = down.map(|port| &*port.device).collect();
    if !down.is_empty() {
        let line = format!(
            "The log has connections on {}, and its port is not ACTIVE now",
            names(down)
        );
        push(out, Agreement::Differs, "port-down", line);
    }
    let used = lives
        .iter()
        .flat_map(|live| live.devices.iter().map(|name| &**name));
    let others: BTreeSet<&str> = used.filter(|name| !named.contains_key(*name)).gather();
    if !named.is_empty() && !others.is_empty() {
        let line = format!(
            "PID {} has QPs on {}, where the log has no connection",
            pids(
                lives
                    .iter()
                    .copied()
                    .filter(|live| live.devices.iter().any(|name| others.contains(&**name)))
            ),
            names(others)
        );
        push(out, Agreement::Differs, "other-nic", line);
    }
}

/// Which of the log's NICs carry data.
fn compare_traffic(network: &str, now: &Now, out: &mut Vec<Comparison>) {
    let has_log = now.ports.iter().any(|port| port.in_log == Some(true));
    // If no NIC of the log has a connection here, these are the ACTIVE ports of the processes' devices.
    let is_meant = |port: &&LivePort| {
        if has_log {
            port.in_log == Some(true)
        } else {
            port.state.is_none_or(PortState::is_active)
        }
    };
    let mut sums: BTreeMap<&str, Option<f64>> = BTreeMap::new();
    for port in now.ports.iter().filter(is_meant) {
        let sum = sums.entry(&port.device).or_insert(Some(0.0));
        *sum = sum.zip(port_rate(port)).map(|(sum, bytes)| sum + bytes);
    }
    let known: Option<Vec<(&str, f64)>> = sums.into_iter().map(|(name, sum)| Some((name, sum?))).collect();
    let whose = if has_log {
        "has connections on".to_owned()
    } else {
        format!("says NET/{network}; its processes have QPs on")
    };
    let Some(known) = known.filter(|known| !known.is_empty()) else {
        let line = format!(
            "The log says NET/{network}, and the processes have QPs; what their ports move is not known"
        );
        return push(out, Agreement::Unclear, "unknown", line);
    };
    let all: f64 = known.iter().map(|(_, bytes)| bytes).sum();
    let busiest = known.iter().map(|(_, bytes)| *bytes).fold(0.0, f64::max);
    let (idle, busy): (Vec<_>, Vec<_>) = known.iter().partition(|(_, bytes)| *bytes < IDLE_SHARE * busiest);
    let named = |all: &[&(&str, f64)]| names(all.iter().map(|(name, _)| *name));
    let moves = |all: &[&(&str, f64)]| if all.len() == 1 { "moves" } else { "move" };
    let count = text::count(known.len(), "NIC");
    if all < MIN_DATA_RATE {
        let line = format!(
            "The log {whose} {count}, and next to nothing moves on them ({}): the job computes, waits or hangs. \
             rdmatop check says what it waits for",
            rate(all)
        );
        push(out, Agreement::Unclear, "quiet", line);
    } else if idle.is_empty() {
        let line = format!("As the log says, RDMA: {} on {}", rate(all), named(&busy));
        push(out, Agreement::Agrees, "rdma", line);
    } else {
        let line = format!(
            "The log {whose} {count}, and only {} {} data ({}): {} {} less than {:.0} % of that",
            named(&busy),
            moves(&busy),
            rate(all),
            named(&idle),
            moves(&idle),
            IDLE_SHARE * 100.0
        );
        push(out, Agreement::Differs, "idle-nic", line);
    }
}

fn compare_tcp(report: &Report, lives: &[&LiveProcess], out: &mut Vec<Comparison>) {
    let Some((network, _)) = lives.first().and_then(|first| log_network(report, first)) else {
        return;
    };
    for live in lives {
        if let Some(bytes) = rdma_rate(live).filter(|bytes| *bytes >= MIN_DATA_RATE) {
            let line = format!(
                "The log says NET/{network}, and {} (PID {}) moves {} by RDMA on {}",
                live.comm,
                live.pid,
                rate(bytes),
                names(live.devices.iter().map(|name| &**name))
            );
            push(out, Agreement::Differs, "rdma-instead", line);
        }
    }
    let rates: Vec<(f64, u32)> = lives
        .iter()
        .filter_map(|live| Some((tcp_rate(live)?, live.tcp.as_ref()?.connections)))
        .collect();
    let all: f64 = rates.iter().map(|(bytes, _)| bytes).sum();
    let connections: u32 = rates
        .iter()
        .map(|(_, count)| count)
        .fold(0, |a, b| a.saturating_add(*b));
    let unseen = lives.iter().any(|live| !live.same_network);
    if rates.is_empty() || unseen && all < MIN_DATA_RATE {
        let line = format!("The log says NET/{network}; what its processes move by TCP is not known");
        push(out, Agreement::Unclear, "unknown", line);
    } else if all < MIN_DATA_RATE {
        let line = format!(
            "The log says NET/{network}, and next to nothing moves by TCP ({}): the job computes, waits or hangs",
            rate(all)
        );
        push(out, Agreement::Unclear, "quiet", line);
    } else {
        let line = format!(
            "As the log says, TCP: {} in {connections} connections of PID {}",
            rate(all),
            pids(lives.iter().copied())
        );
        push(out, Agreement::Agrees, "tcp", line);
    }
}

fn failed_qps(lives: &[&LiveProcess], out: &mut Vec<Comparison>) {
    for live in lives.iter().filter(|live| live.qps_in_error > 0) {
        let line = format!(
            "{} of {} QPs of {} (PID {}) are in ERR: their connections are broken. `sudo rdmatop check --pid {}` says more",
            live.qps_in_error,
            live.qps.unwrap_or(live.qps_in_error),
            live.comm,
            live.pid,
            live.pid
        );
        push(out, Agreement::Differs, "qp-error", line);
    }
}
