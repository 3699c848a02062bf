//! The report as text for a terminal of 80 columns.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use super::{
    jobs::Job,
    now::Now,
    now_page,
    process::Process,
    report::{MAX_LOG, NicKey, NicUse, Report, is_ib},
    verdict::{self, host_name, nic_name},
    warning::Warning,
};
use rdmatop_base::order::Gather as _;
use rdmatop_base::text::{self, count};

/// Kinds of jobs that a line names.
const KINDS: usize = 4;

/// The page; the first line is the verdict.
pub fn text(report: &Report, links: &Links, now: Option<&Now>) -> String {
    let verdict = verdict::judge(report);
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
            item(&mut out, &format!("{nic}: {why}"));
        }
    }
    if verdict.on_tcp.len() > 1 || (verdict.on_tcp.len() == 1 && verdict.nics > 0) {
        section(&mut out, "On TCP");
        for (host, why) in &verdict.on_tcp {
            item(&mut out, &format!("{}: {why}", host_name(host)));
        }
    }
    settings(&mut out, report);
    warnings(&mut out, report);
    bandwidth(&mut out, report, links);
    out
}

/// The page with its first line in lines of a terminal's width, as its other lines are. Elsewhere the
/// verdict stays in one line, so that programs find it whole.
pub fn for_terminal(page: &str) -> String {
    let (first, rest) = page.split_once('\n').unwrap_or((page, ""));
    let mut out = String::with_capacity(page.len() + 16);
    wrapped(&mut out, "", 2, first);
    out + rest
}

/// Writes words in lines: `first` before the first line, and `hang` spaces before the others.
pub(super) fn wrapped(out: &mut String, first: &str, hang: usize, words: &str) {
    text::wrap(out, first, text::width(first), hang, words);
}

/// Writes one of several things that a section has.
pub(super) fn item(out: &mut String, words: &str) {
    wrapped(out, "  ", 4, words);
}

/// Text with spaces behind it, so that the next column of a table begins below its heading. The names of
/// hosts may have wide characters, of which each takes two columns.
pub(super) fn padded(text: &str, columns: usize) -> String {
    format!("{text}{:1$}", "", columns.saturating_sub(text::width(text)))
}

pub(super) fn section(out: &mut String, title: &str) {
    let _ = writeln!(out, "\n{title}");
}

fn head(out: &mut String, report: &Report) {
    let versions = report.versions();
    let mut parts = Vec::new();
    if !versions.is_empty() {
        parts.push(versions.join(" and "));
    }
    let jobs = report.jobs();
    parts.extend(ranks(&jobs));
    let mut hosts = report.hosts();
    hosts.remove("");
    if !hosts.is_empty() {
        let named = text::names(&hosts);
        parts.push(format!("{}: {named}", count(hosts.len(), "host")));
    }
    if let Some(channels) = report.channels {
        parts.push(count(channels, "channel"));
    }
    if !parts.is_empty() {
        wrapped(out, "", 2, &parts.join("; "));
    }
    if versions.len() > 1 {
        let _ = writeln!(out, "Ranks run different versions: use one image on every host.");
    }
    if jobs.len() > 1 {
        let words = "No communicator in this log joins these jobs: several runs in one file, or nccl-tests without MPI (make MPI=1), \
                     which runs one on each host.";
        wrapped(out, "", 2, words);
    }
    if report.torn > 0 {
        let separate = match report.variable("NCCL_DEBUG_FILE") {
            Some(_) => "",
            None => " With NCCL_DEBUG_FILE=nccl.%h.%p.log each process writes its own file.",
        };
        let words = format!(
            "Torn: {} of {} lines of NCCL are cut into each other and left out, {} are used: counts of connections are lower \
             bounds.{separate}",
            report.torn,
            report.nccl_lines,
            report.nccl_lines.saturating_sub(report.torn)
        );
        wrapped(out, "", 2, &words);
    }
    if report.repeated > 0 {
        let words = format!(
            "Ray left out {} that are like one of these, from all hosts: ranks, hosts and connections are lower bounds. RAY_DEDUP_LOGS=0 \
             keeps them.",
            count(report.repeated, "line")
        );
        wrapped(out, "", 2, &words);
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
    if report.cut > 0 {
        let words = format!(
            "Cut: {} read up to {}, and what follows there is missing here.",
            match report.cut {
                1 => "1 log was".to_owned(),
                several => format!("{several} logs were"),
            },
            text::bytes(MAX_LOG)
        );
        wrapped(out, "", 2, &words);
    }
}

/// `16 ranks, all joined`.
fn ranks(jobs: &[Job]) -> Option<String> {
    let joined = |job: &Job| match (job.is_complete(), job.started) {
        (true, _) if job.ranks == 1 => ", joined",
        (true, _) => ", all joined",
        (false, true) => ", none joined",
        (false, false) => "",
    };
    match jobs {
        [] => None,
        [job] => {
            let seen = if job.ranks_seen < job.ranks as usize {
                format!(" ({} in this log)", job.ranks_seen)
            } else {
                String::new()
            };
            Some(format!("{}{}{seen}", count(job.ranks, "rank"), joined(job)))
        }
        jobs => {
            // Jobs are mostly alike, so equal ones are counted together.
            let mut kinds: BTreeMap<(u32, &str), u64> = BTreeMap::new();
            for job in jobs {
                *kinds.entry((job.ranks, joined(job))).or_default() += 1;
            }
            let kinds = kinds.iter().rev().take(KINDS);
            let words: Vec<String> = kinds
                .map(|((ranks, joined), jobs)| {
                    format!("{} of {}{joined}", count(*jobs, "job"), count(*ranks, "rank"))
                })
                .collect();
            Some(words.join(", "))
        }
    }
}

fn nics(out: &mut String, report: &Report) {
    if report.nics.is_empty() {
        return;
    }
    section(out, "Connections between hosts, by NIC");
    let row = |(nic, used): (&'_ NicKey, &NicUse)| {
        let link = report.name_of(nic).and_then(|(_, link)| link);
        let link = link.unwrap_or_else(|| "-".to_owned());
        (nic.host.clone(), *used, nic_name(report, nic), link)
    };
    let rows: Vec<_> = report.nics.iter().map(row).collect();
    let wide =
        |least: usize, lengths: &mut dyn Iterator<Item = usize>| lengths.fold(least, usize::max).min(32);
    let host = wide(4, &mut rows.iter().map(|(host, ..)| text::width(host)));
    let name = wide(3, &mut rows.iter().map(|(_, _, name, _)| text::width(name)));
    let _ = writeln!(
        out,
        "  {:host$}  {:name$}  {:6}  {:>6}  {:>7}  GPUDIRECT",
        "HOST", "NIC", "LINK", "SEND", "RECEIVE"
    );
    for (on, used, nic_name, link) in rows {
        let on = padded(if on.is_empty() { "-" } else { &on }, host);
        let nic_name = padded(&nic_name, name);
        let _ = writeln!(
            out,
            "  {on}  {nic_name}  {link:6}  {:>6}  {:>7}  {}",
            used.sends,
            used.receives,
            direct(used)
        );
    }
    for line in uneven(report) {
        let _ = writeln!(out, "  {line}");
    }
}

fn direct(used: NicUse) -> String {
    let all = used.sends + used.receives;
    match used.gpu_direct {
        0 => "no".to_owned(),
        on if on == all => "yes".to_owned(),
        on => format!("{on} of {all}"),
    }
}

/// Hosts on which one NIC has far more receiving connections than the others, or listed NICs stay unused.
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
        lines.extend(idle(report, host));
    }
    lines
}

/// How many of the ports that NCCL listed have no connection. A NIC made of several ports uses them all.
fn idle(report: &Report, host: &str) -> Option<String> {
    let process = report
        .first_processes_on(host)
        .max_by_key(|process| process.hcas.len())?;
    let listed: BTreeSet<&str> = process
        .hcas
        .iter()
        .flat_map(|hca| &hca.ports)
        .map(|port| port.device.as_str())
        .gather();
    let mut used = BTreeSet::new();
    for (nic, _) in report.nics_of(host).filter(|(nic, _)| is_ib(&nic.network)) {
        let (name, _) = report.name_of(nic)?;
        used.extend(name.split('+').map(str::to_owned));
    }
    let idle = listed.iter().filter(|name| !used.contains(**name)).count();
    (idle > 0 && !used.is_empty()).then(|| {
        format!(
            "{host}: {idle} of {} NICs that NCCL listed have no connection.",
            listed.len()
        )
    })
}

/// Variables that affect the network.
const DECISIVE: [&str; 16] = [
    "NCCL_IB_DISABLE",
    "NCCL_IB_HCA",
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_TC",
    "NCCL_IB_SL",
    "NCCL_IB_TIMEOUT",
    "NCCL_NET",
    "NCCL_NET_PLUGIN",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_IBEXT_DISABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_SHM_DISABLE",
    "NCCL_MNNVL_ENABLE",
    "NCCL_SOCKET_IFNAME",
    "NCCL_CROSS_NIC",
    "FI_PROVIDER",
];

/// What processes have, each once and in order.
fn distinct(report: &Report, of: impl Fn(&Process) -> Option<String>) -> Vec<String> {
    let all: BTreeSet<String> = report.processes.values().filter_map(of).gather();
    all.into_iter().collect()
}

fn settings(out: &mut String, report: &Report) {
    let mut lines: Vec<String> = Vec::new();
    for name in DECISIVE {
        let of = |process: &'_ Process| process.variables.get(name).cloned();
        match distinct(report, of).as_slice() {
            [] => {}
            [one] => lines.push(format!("{name}={one}")),
            several => lines.push(format!(
                "{name} differs between processes: {}",
                text::names(several)
            )),
        }
    }
    let plugins = distinct(report, |process| process.plugin.clone());
    if !plugins.is_empty() {
        lines.push(format!("network plugin: {}", text::names(&plugins)));
    } else if report.processes.values().any(|process| process.no_plugin) {
        // NCCL words this alarmingly, but it is normal: most machines have no plugin.
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
    let all = &report.warnings;
    if all.list.is_empty() {
        return;
    }
    section(out, "Warnings");
    for warning in &all.list {
        let place = place(warning);
        match warning.entry {
            Some(entry) => {
                item(out, &format!("{place}{}", entry.means));
                let next = format!("{}{}", entry.next, set_already(report, entry.next));
                wrapped(out, "    next: ", 10, &next);
                // Other libraries and programs say something of the network, too.
                let of_nccl = entry.versions.contains("CCL");
                let label = if of_nccl { "    NCCL: " } else { "    line: " };
                wrapped(out, label, 10, &warning.text);
            }
            None => item(out, &format!("{place}{}", warning.text)),
        }
    }
    let unknown: u64 = all.unknown().map(|one| one.count).sum();
    if unknown > 0 {
        let _ = writeln!(
            out,
            "  {} without explanation: rdmatop does not know these words",
            count(unknown, "warning")
        );
    }
    if all.left_out > 0 {
        let _ = writeln!(out, "  and {} of other kinds", count(all.left_out, "warning"));
    }
}

/// `gpu-a mlx5_0 (3 times): `.
fn place(warning: &Warning) -> String {
    let names: Vec<String> = if warning.devices.is_empty() {
        warning.hosts.iter().cloned().collect()
    } else {
        let device = |(host, device): &(String, String)| format!("{host} {device}").trim().to_owned();
        warning.devices.iter().map(device).collect()
    };
    let names = text::names(&names);
    match (names.as_str(), warning.count) {
        ("", 1) => String::new(),
        ("", times) => format!("({times} times): "),
        (names, 1) => format!("{names}: "),
        (names, times) => format!("{names} ({times} times): "),
    }
}

/// Those variables named by advice that the job has already set: ` (NCCL_IB_HCA is mlx5 here)`.
fn set_already(report: &Report, advice: &str) -> String {
    let is_of_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let names: BTreeSet<&str> = advice
        .split(|c: char| !is_of_name(c))
        .filter(|word| word.starts_with("NCCL_") || word.starts_with("OFI_") || word.starts_with("FI_"))
        .gather();
    let of_name = |name: &&str| Some(format!("{name} is {} here", report.variable(name)?));
    let set: Vec<String> = names.iter().filter_map(of_name).collect();
    match set.as_slice() {
        [] => String::new(),
        set => format!(" ({})", set.join("; ")),
    }
}

/// The link rates of this machine's RDMA devices, bits/s, by name; empty if the log is from other machines.
pub type Links = BTreeMap<String, u64>;

/// GB/s that the NICs with connections of a host carry by the link rates of this machine, and their number.
fn limit(report: &Report, links: &Links) -> Option<(f64, usize)> {
    let host = &report.nics.keys().next()?.host;
    let rate = |(nic, _): (&NicKey, _)| Some(*links.get(&report.name_of(nic)?.0)? as f64 / 8e9);
    let rates: Vec<f64> = report.nics_of(host).map(rate).collect::<Option<_>>()?;
    Some((rates.iter().sum(), rates.len()))
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
        if let Some((gigabytes, count)) = limit(report, links) {
            let nics = text::count(count, "NIC");
            let reached = best.gigabytes_per_second / gigabytes * 100.0;
            let words = format!(
                "the {nics} of a host carry {gigabytes:.1} GB/s at most (the link rates of this machine): {reached:.0} % of it reached"
            );
            item(out, &words);
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
