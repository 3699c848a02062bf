//! The report as text for a terminal of 80 columns, and as JSON.

use std::fmt::Write as _;

use serde::Serialize;

use super::{
    now::Now,
    now_page,
    perf::Perf,
    report::{Report, Use},
    verdict::{self, Verdict, nic_name},
};

/// Hosts named in one line.
const HOSTS: usize = 4;

/// The page; the first line is the verdict.
pub fn text(report: &Report, links: &Links, now: Option<&Now>) -> String {
    let verdict = verdict::of(report);
    let mut out = format!("{}\n", verdict.line);
    head(&mut out, report);
    if let Some(now) = now {
        now_page::write(&mut out, now);
    }
    nics(&mut out, report);
    if !verdict.without_gpu_direct.is_empty() && verdict.nics > 0 {
        section(
            &mut out,
            "Without GPUDirect RDMA (data passes through the host's memory)",
        );
        for (nic, why) in &verdict.without_gpu_direct {
            wrapped(&mut out, "  ", 4, &format!("{nic}: {why}"));
        }
    }
    if verdict.on_tcp.len() > 1 || (verdict.on_tcp.len() == 1 && verdict.nics > 0) {
        section(&mut out, "On TCP");
        for (host, why) in &verdict.on_tcp {
            wrapped(&mut out, "  ", 4, &format!("{host}: {why}"));
        }
    }
    settings(&mut out, report);
    warnings(&mut out, report);
    bandwidth(&mut out, report, links);
    out
}

/// Columns of a terminal.
const WIDTH: usize = 80;

/// Writes words, `first` before the first line and as many spaces as `hang` before the others.
pub(super) fn wrapped(out: &mut String, first: &str, hang: usize, words: &str) {
    let mut line = first.to_owned();
    let mut empty = true;
    for word in words.split(' ').filter(|word| !word.is_empty()) {
        if !empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            let _ = writeln!(out, "{}", line.trim_end());
            line = " ".repeat(hang);
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    let _ = writeln!(out, "{}", line.trim_end());
}

pub(super) fn section(out: &mut String, title: &str) {
    let _ = writeln!(out, "\n{title}");
}

fn head(out: &mut String, report: &Report) {
    let versions: Vec<&str> = report.versions.iter().map(String::as_str).collect();
    let mut parts = Vec::new();
    if !versions.is_empty() {
        parts.push(versions.join(" and "));
    }
    let (joined, _, of) = report.ranks();
    if let Some(of) = of {
        parts.push(if joined as u64 >= u64::from(of) {
            format!("{of} ranks, all joined")
        } else {
            format!("{joined} of {of} ranks joined")
        });
    }
    let hosts = report.hosts();
    let named: Vec<&str> = hosts.iter().take(HOSTS).copied().collect();
    if named.iter().any(|host| !host.is_empty()) {
        let more = match hosts.len().saturating_sub(HOSTS) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let word = if hosts.len() == 1 { "host" } else { "hosts" };
        parts.push(format!("{} {word}: {}{more}", hosts.len(), named.join(", ")));
    }
    if let Some(channels) = report.channels {
        parts.push(format!("{channels} channels"));
    }
    if !parts.is_empty() {
        let _ = writeln!(out, "{}", parts.join("; "));
    }
    if report.versions.len() > 1 {
        let _ = writeln!(out, "Ranks run different versions: use one image on every host.");
    }
    if report.left_out > 0 {
        let _ = writeln!(
            out,
            "Left out: {} lines, of more processes, NICs or text than a job has (kept: {} processes, {} NICs).",
            report.left_out,
            report.processes.len(),
            report.nics.len()
        );
    }
}

fn nics(out: &mut String, report: &Report) {
    if report.nics.is_empty() {
        return;
    }
    section(out, "Connections between hosts, by NIC");
    let wide =
        |least: usize, lengths: &mut dyn Iterator<Item = usize>| lengths.fold(least, usize::max).min(32);
    let host = wide(4, &mut report.nics.keys().map(|nic| nic.host.chars().count()));
    let name = wide(
        3,
        &mut report
            .nics
            .keys()
            .map(|nic| nic_name(report, nic).chars().count()),
    );
    let _ = writeln!(
        out,
        "  {:host$}  {:name$}  {:6}  {:>6}  {:>7}  GPUDIRECT",
        "HOST", "NIC", "LINK", "SEND", "RECEIVE"
    );
    for (nic, used) in &report.nics {
        let link = report
            .name_of(nic)
            .and_then(|(_, link)| link)
            .unwrap_or_else(|| "-".to_owned());
        let _ = writeln!(
            out,
            "  {:host$}  {:name$}  {link:6}  {:>6}  {:>7}  {}",
            nic.host,
            nic_name(report, nic),
            used.sends,
            used.receives,
            direct(*used)
        );
    }
    for line in uneven(report) {
        let _ = writeln!(out, "  {line}");
    }
}

fn direct(used: Use) -> String {
    let all = used.sends + used.receives;
    match used.gpu_direct {
        0 => "no".to_owned(),
        on if on == all => "yes".to_owned(),
        on => format!("{on} of {all}"),
    }
}

/// Hosts on which one NIC receives far more connections than the others, or that leave listed NICs unused.
fn uneven(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    for host in report.hosts() {
        let used: Vec<_> = report.nics_of(host).collect();
        let received: u64 = used.iter().map(|(_, used)| used.receives).sum();
        let busiest = used.iter().max_by_key(|(_, used)| used.receives);
        if let (Some((nic, most)), true) = (busiest, used.len() > 1)
            && received >= 4
            && most.receives * 10 > received * 7
        {
            lines.push(format!(
                "{host}: {} of {received} receiving connections are on {}: a funnel.",
                most.receives,
                nic_name(report, nic)
            ));
        }
        let listed = report
            .on(host)
            .map(|process| process.hcas.len())
            .max()
            .unwrap_or(0);
        let idle = listed.saturating_sub(used.len());
        if idle > 0 && used.iter().any(|(nic, _)| nic.network.starts_with("IB")) {
            lines.push(format!(
                "{host}: {idle} of {listed} NICs that NCCL listed have no connection."
            ));
        }
    }
    lines
}

/// Variables that affect the network.
const DECISIVE: [&str; 12] = [
    "NCCL_IB_DISABLE",
    "NCCL_IB_HCA",
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_TC",
    "NCCL_IB_SL",
    "NCCL_IB_TIMEOUT",
    "NCCL_NET",
    "NCCL_NET_PLUGIN",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_SOCKET_IFNAME",
    "NCCL_CROSS_NIC",
    "FI_PROVIDER",
];

fn settings(out: &mut String, report: &Report) {
    let mut lines: Vec<String> = Vec::new();
    for name in DECISIVE {
        let mut values: Vec<&str> = report
            .processes
            .values()
            .filter_map(|process| process.variables.get(name))
            .map(String::as_str)
            .collect();
        values.sort_unstable();
        values.dedup();
        match values.as_slice() {
            [] => {}
            [one] => lines.push(format!("{name}={one}")),
            several => lines.push(format!(
                "{name} differs between processes: {}",
                several.join(", ")
            )),
        }
    }
    let mut plugins: Vec<&str> = report
        .processes
        .values()
        .filter_map(|process| process.plugin.as_deref())
        .collect();
    plugins.sort_unstable();
    plugins.dedup();
    if !plugins.is_empty() {
        lines.push(format!("network plugin: {}", plugins.join(", ")));
    } else if report
        .processes
        .values()
        .any(|process| process.no_plugin.is_some())
    {
        // NCCL's alarming words for something normal: most machines have no plugin.
        lines.push("network plugin: none, NCCL's own transports are used".to_owned());
    }
    if !lines.is_empty() {
        section(out, "Settings");
        for line in lines {
            let _ = writeln!(out, "  {line}");
        }
    }
}

fn warnings(out: &mut String, report: &Report) {
    if report.warnings.is_empty() {
        return;
    }
    section(out, "Warnings");
    for warning in &report.warnings {
        let hosts: Vec<&str> = warning.hosts.iter().take(HOSTS).map(String::as_str).collect();
        let devices: Vec<String> = warning
            .devices
            .iter()
            .take(HOSTS)
            .map(|(host, device)| format!("{host} {device}"))
            .collect();
        let place = if devices.is_empty() {
            hosts.join(", ")
        } else {
            devices.join(", ")
        };
        let times = if warning.count == 1 {
            String::new()
        } else {
            format!(" ({} times)", warning.count)
        };
        match warning.meaning {
            Some(meaning) => {
                wrapped(out, "  ", 4, &format!("{place}{times}: {}", meaning.means));
                wrapped(out, "    next: ", 10, meaning.next);
                wrapped(out, "    NCCL: ", 10, &warning.text);
            }
            None => {
                wrapped(out, "  ", 4, &format!("{place}{times}: {}", warning.text));
            }
        }
    }
    if report.warnings_left_out > 0 {
        let _ = writeln!(out, "  and {} warnings of other kinds", report.warnings_left_out);
    }
}

/// The link rates of this machine's RDMA devices, bits/s; empty where the log is from other machines.
#[derive(Clone, Debug, Default)]
pub struct Links {
    /// Rate by name of the device.
    pub bits_per_second: std::collections::BTreeMap<String, u64>,
}

/// GB/s that the NICs of one host with connections can carry, and the source of that figure.
fn limit(report: &Report, links: &Links) -> Option<(f64, usize, &'static str)> {
    let host = report.nics.keys().next()?.host.clone();
    let used: Vec<_> = report.nics.keys().filter(|nic| nic.host == host).collect();
    let linked: Option<Vec<f64>> = used
        .iter()
        .map(|nic| {
            let rate = links.bits_per_second.get(&report.name_of(nic)?.0)?;
            Some(*rate as f64 / 8e9)
        })
        .collect();
    if let Some(rates) = linked {
        return Some((rates.iter().sum(), rates.len(), "the link rates of this machine"));
    }
    let known: Option<Vec<f64>> = used
        .iter()
        .map(|nic| report.nic_speed.get(&nic.device).copied())
        .collect();
    known.map(|rates| (rates.iter().sum(), rates.len(), "NCCL's topology"))
}

fn bandwidth(out: &mut String, report: &Report, links: &Links) {
    if report.perf.is_empty() {
        return;
    }
    section(out, "nccl-tests");
    if let Some(best) = report.perf.best {
        let _ = writeln!(
            out,
            "  bus bandwidth {:.2} GB/s at {} bytes",
            best.gigabytes_per_second, best.bytes
        );
        if let Some((gigabytes, count, source)) = limit(report, links) {
            let word = if count == 1 { "NIC" } else { "NICs" };
            let reached = best.gigabytes_per_second / gigabytes * 100.0;
            let words = format!(
                "the {count} {word} of a host carry {gigabytes:.1} GB/s at most ({source}): {reached:.0} % of it reached"
            );
            wrapped(out, "  ", 4, &words);
        }
    }
    if let Some(average) = report.perf.average_gigabytes_per_second {
        let _ = writeln!(
            out,
            "  average over all sizes {average:.2} GB/s, as nccl-tests counts it"
        );
    }
    if let Some(wrong) = report.perf.wrong.filter(|wrong| *wrong > 0) {
        let _ = writeln!(
            out,
            "  {wrong} values were WRONG: the data did not arrive as it was sent"
        );
    }
}

/// The report as one JSON object.
pub fn json(report: &Report, now: Option<&Now>) -> serde_json::Result<String> {
    #[derive(Serialize)]
    struct Nic<'a> {
        host: &'a str,
        network: &'a str,
        index: u32,
        name: Option<String>,
        link: Option<String>,
        #[serde(flatten)]
        used: Use,
    }
    #[derive(Serialize)]
    struct Warned<'a> {
        id: Option<&'static str>,
        count: u64,
        hosts: Vec<&'a str>,
        text: &'a str,
    }
    #[derive(Serialize)]
    struct Document<'a> {
        schema: u32,
        verdict: Verdict,
        now: Option<&'a Now>,
        versions: Vec<&'a str>,
        ranks_joined: usize,
        ranks: Option<u32>,
        hosts: Vec<&'a str>,
        nics: Vec<Nic<'a>>,
        local_connections: u64,
        warnings: Vec<Warned<'a>>,
        nccl_tests: &'a Perf,
        lines: u64,
        lines_left_out: u64,
    }
    let (ranks_joined, _, ranks) = report.ranks();
    let document = Document {
        schema: crate::model::snapshot::SCHEMA,
        verdict: verdict::of(report),
        now,
        versions: report.versions.iter().map(String::as_str).collect(),
        ranks_joined,
        ranks,
        hosts: report.hosts().into_iter().collect(),
        nics: report
            .nics
            .iter()
            .map(|(nic, used)| {
                let (name, link) = report
                    .name_of(nic)
                    .map_or((None, None), |(name, link)| (Some(name), link));
                Nic {
                    host: &nic.host,
                    network: &nic.network,
                    index: nic.device,
                    name,
                    link,
                    used: *used,
                }
            })
            .collect(),
        local_connections: report.local,
        warnings: report
            .warnings
            .iter()
            .map(|warning| Warned {
                id: warning.meaning.map(|meaning| meaning.id),
                count: warning.count,
                hosts: warning.hosts.iter().map(String::as_str).collect(),
                text: &warning.text,
            })
            .collect(),
        nccl_tests: &report.perf,
        lines: report.lines,
        lines_left_out: report.left_out,
    };
    serde_json::to_string(&document)
}
