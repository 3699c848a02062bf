//! The judgement: whether the job uses RDMA, on which NICs, and with GPUDirect or not; otherwise why not.
//! Also what broke the job.

use std::collections::{BTreeMap, BTreeSet};

use rdmatop_base::order::Gather as _;
use rdmatop_base::text::{self, count};
use serde::Serialize;

use super::{
    jobs::Job,
    process::Part,
    report::{NicKey, Report},
    warning::Warning,
    why,
};

/// The verdict in one word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictKind {
    /// All connections between hosts are RDMA.
    Rdma,
    /// All connections between hosts are TCP.
    Tcp,
    /// Some connections are RDMA, some TCP.
    Mixed,
    /// NVLink joins the hosts, so no network is used.
    Nvlink,
    /// No connection leaves its host.
    Local,
    /// The log does not show what is used.
    #[default]
    Unknown,
}

/// What the log shows about the network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// The verdict in one word.
    pub kind: VerdictKind,
    /// The verdict in one line.
    pub line: String,
    /// What broke the job: the first fault of the warnings.
    pub fault: Option<String>,
    /// How many NICs have connections.
    pub nics: usize,
    /// How many of these use GPUDirect RDMA for all their connections.
    pub gpu_direct: usize,
    /// Hosts on TCP, each with the reason.
    pub on_tcp: BTreeMap<String, String>,
    /// NICs without GPUDirect, each with the reason if the log has one.
    pub without_gpu_direct: BTreeMap<String, String>,
}

/// Whether a network is RDMA; `None` if its name does not tell.
pub(super) fn is_rdma(network: &str, provider: Option<&str>) -> Option<bool> {
    let lower = network.to_lowercase();
    let named = |names: &[&str]| names.iter().any(|name| lower.contains(name));
    // Google's FastSocket, GPUDirect-TCPX and FasTrak use TCP.
    if named(&["socket", "tcp", "fastrak"]) {
        return Some(false);
    }
    // Short names count as words, because `efa` is also in `default`. SPCX is NVIDIA's plugin for Spectrum-X,
    // RCCL-ANP that for AMD's NICs. PSM3 is none of them: it has a transport by sockets, too (PSM3_HAL).
    let is_short = |word: &str| ["gib", "cxi", "efa", "psm2", "opx", "spcx", "anp"].contains(&word);
    let mut words = lower.split(|c: char| !c.is_ascii_alphanumeric());
    if lower.starts_with("ib") || named(&["infiniband", "roce", "rdma", "spectrum"]) || words.any(is_short) {
        return Some(true);
    }
    if named(&["libfabric", "ofi"]) {
        let provider = provider?.to_lowercase();
        let begins = |names: &[&str]| names.iter().any(|name| provider.starts_with(name));
        if begins(&["efa", "verbs", "cxi", "psm2", "opx"]) {
            return Some(true);
        }
        return begins(&["tcp", "sockets", "udp"]).then_some(false);
    }
    // UCX chooses among transports of its own.
    None
}

fn provider<'a>(report: &'a Report, host: &'a str) -> Option<&'a str> {
    report
        .first_processes_on(host)
        .find_map(|process| process.provider.as_deref())
        .or_else(|| report.provider())
}

/// The name of a NIC, as the page shows it.
pub fn nic_name(report: &Report, nic: &NicKey) -> String {
    report
        .name_of(nic)
        .map_or_else(|| format!("{}/{}", nic.network, nic.device), |(name, _)| name)
}

/// The name of a host, as the page shows it.
pub(super) fn host_name(host: &str) -> &str {
    if host.is_empty() { "a host" } else { host }
}

/// Judges the report.
pub fn judge(report: &Report) -> Verdict {
    let mut verdict = Verdict {
        fault: fault(report),
        ..Verdict::default()
    };
    let unknown = count_connections(report, &mut verdict);
    let mut partly = report.nics.values().filter(|used| used.gpu_direct > 0).peekable();
    let direct = match (verdict.gpu_direct, verdict.nics) {
        (0, _) if partly.peek().is_none() => "no GPUDirect".to_owned(),
        (0, _) if partly.all(|used| used.only_receives_directly()) => {
            "GPUDirect for receiving only".to_owned()
        }
        (0, _) => "GPUDirect on a part of their connections".to_owned(),
        (on, all) if on == all => "GPUDirect on all".to_owned(),
        (on, all) => format!("GPUDirect on {on} of {all}"),
    };
    let nics = count(verdict.nics, "NIC");
    let (kind, line) = match (verdict.nics, verdict.on_tcp.first_key_value(), unknown) {
        (0, Some((host, why)), _) => {
            let network = report
                .nics_of(host)
                .next()
                .map_or("Socket", |(nic, _)| nic.network.as_str());
            let on = why::interfaces(report, host);
            let jobs = report.jobs();
            let line = if !jobs.is_empty() && jobs.iter().all(|job| job.is_local() == Some(true)) {
                let why = why::inside(report, host);
                format!("TCP inside one host: NET/{network}{on}, because {why}")
            } else {
                format!("TCP: NET/{network}{on}{}", because(why))
            };
            (VerdictKind::Tcp, line)
        }
        (_, Some((host, why)), _) => {
            let more = match verdict.on_tcp.len() {
                1 => String::new(),
                all => format!(" and {} more hosts", all - 1),
            };
            let host = host_name(host);
            let why = because(why);
            let line = format!("MIXED: RDMA on {nics} ({direct}), but {host}{more} on TCP{why}");
            (VerdictKind::Mixed, line)
        }
        (0, None, Some(network)) => {
            let line =
                format!("unknown: the network is {network}, and its name does not say whether that is RDMA");
            (VerdictKind::Unknown, line)
        }
        (0, None, None) => without_connections(report, verdict.fault.is_some()),
        (_, None, _) => {
            let nvlink = if report.other_connections.multi_node > 0 {
                ", beside NVLink between hosts (MNNVL)"
            } else {
                ""
            };
            (VerdictKind::Rdma, format!("RDMA: yes, {nics}, {direct}{nvlink}"))
        }
    };
    let mut parts = vec![line];
    let connected = verdict.nics > 0 || !verdict.on_tcp.is_empty();
    // The lines that a communicator is complete may be among those that are not there.
    let lost = report.torn + report.repeated + report.left_out + report.cut > 0;
    let jobs = report.jobs();
    if connected && verdict.fault.is_none() && !lost && !jobs.iter().all(Job::is_complete) {
        parts.extend(progress(&jobs, false));
    }
    parts.extend(unfinished(&jobs, verdict.fault.is_some(), lost));
    if let Some(fault) = &verdict.fault {
        parts.push(format!("FAULT: {fault}"));
    } else if !connected && let Some(unknown) = report.warnings.unknown().last() {
        // It may be what the job ended of.
        let host = unknown
            .hosts
            .first()
            .map_or_else(String::new, |host| format!("{host}: "));
        let text = shortened(&unknown.text);
        parts.push(format!("a warning that rdmatop does not know: {host}\"{text}\""));
    }
    (verdict.kind, verdict.line) = (kind, parts.join("; "));
    verdict
}

/// Counts the NICs with connections. Returns the name of a network that is neither RDMA nor TCP for sure.
fn count_connections<'a>(report: &'a Report, verdict: &mut Verdict) -> Option<&'a str> {
    // A network that is not TCP and has GPUDirect is RDMA, whatever its name.
    let direct = report.nics.iter().filter(|(_, used)| used.gpu_direct > 0);
    let proven: BTreeSet<&str> = direct.map(|(nic, _)| nic.network.as_str()).gather();
    let mut unknown = None;
    for (nic, used) in &report.nics {
        let by_name = is_rdma(&nic.network, provider(report, &nic.host));
        let by_connections = || proven.contains(nic.network.as_str()).then_some(true);
        match by_name.or_else(by_connections) {
            Some(true) => {
                verdict.nics += 1;
                if used.gpu_direct == used.sends + used.receives {
                    verdict.gpu_direct += 1;
                } else {
                    let name = format!("{} {}", nic.host, nic_name(report, nic));
                    let why = why::no_gpu_direct(report, nic);
                    verdict.without_gpu_direct.insert(name.trim().to_owned(), why);
                }
            }
            Some(false) => {
                verdict
                    .on_tcp
                    .entry(nic.host.clone())
                    .or_insert_with(|| why::tcp(report, &nic.host, &nic.network));
            }
            None => unknown = Some(nic.network.as_str()),
        }
    }
    unknown
}

/// A reason behind what it explains.
fn because(why: &str) -> String {
    let word = if why == why::NOT_KNOWN { "and" } else { "because" };
    format!(", {word} {why}")
}

/// Entries that do not tell what failed, as only the words of the message do.
const IN_WORDS: [&str; 3] = ["cuda", "nvml", "ofi-request"];

/// The first fault among the warnings: where it was, and what.
fn fault(report: &Report) -> Option<String> {
    let worst = report.warnings.worst()?;
    let place = match (worst.devices.first(), worst.hosts.first()) {
        (Some((host, device)), _) => format!("{host} {device}"),
        (None, Some(host)) => host.clone(),
        (None, None) => String::new(),
    };
    let more = match worst.devices.len().max(worst.hosts.len()) {
        0 | 1 => String::new(),
        all => format!(" and {} more", all - 1),
    };
    let place = place.trim();
    let entry = worst.entry?;
    let unknown = report
        .warnings
        .unknown_before(worst)
        .filter(|_| worst.is_only_a_result());
    let means = match unknown {
        Some(unknown) => format!(
            "{}, after the warning \"{}\"",
            entry.means,
            shortened(&unknown.text)
        ),
        None if IN_WORDS.contains(&entry.id) => format!("{} ({})", entry.means, shortened(&worst.text)),
        None if worst.is_only_a_result() => format!("{}{}", entry.means, failed_in(report, worst)),
        None => entry.means.to_owned(),
    };
    let kinds = report
        .warnings
        .list
        .iter()
        .filter(|one| one.kind() == worst.kind() && one.is_only_a_result() == worst.is_only_a_result())
        .count();
    let others = match kinds {
        0 | 1 => String::new(),
        kinds => format!(" (and {} below)", count(kinds - 1, "other fault")),
    };
    Some(if place.is_empty() {
        format!("{means}{others}")
    } else {
        format!("{place}{more}: {means}{others}")
    })
}

/// In what part of NCCL a call failed: `, in the transport IB`.
fn failed_in(report: &Report, result: &Warning) -> String {
    let mut processes = result
        .hosts
        .iter()
        .flat_map(|host| report.first_processes_on(host));
    let part = processes.find_map(|process| process.failed_in);
    part.map_or_else(String::new, |part| format!(", {}", part.words()))
}

/// The beginning of a warning's text, for the first line.
fn shortened(text: &str) -> String {
    const LONGEST: usize = 120;
    match text.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}...", text.get(..at).unwrap_or_default().trim_end()),
        None => text.to_owned(),
    }
}

/// How far the jobs got.
fn progress(jobs: &[Job], failed: bool) -> Option<String> {
    if jobs.iter().all(Job::is_complete) {
        return Some(match jobs {
            [] => return None,
            [job] if job.ranks == 1 => "its only rank has joined".to_owned(),
            [job] => format!("all {} ranks have joined", job.ranks),
            all => format!("all ranks of {} jobs have joined", all.len()),
        });
    }
    let job = jobs.iter().find(|job| job.started && !job.is_complete())?;
    let ranks = job.ranks;
    if failed {
        return Some("the job did not start".to_owned());
    }
    let missing = text::names(&job.missing);
    let part = match (job.missing.len(), job.ranks_seen < ranks as usize) {
        (_, false) => String::new(),
        (0, true) => format!(" (this log is of {} of them)", job.ranks_seen),
        (1, true) => format!(" (this log has no line of rank {missing})"),
        (_, true) => format!(" (this log has no line of ranks {missing})"),
    };
    let (of, job) = match jobs.len() {
        1 => (String::new(), "the job"),
        all => (format!(" of one of {all} jobs"), "that job"),
    };
    let line = format!("0 of {ranks} ranks{of} have joined{part}: {job} is starting, or waits for a rank");
    Some(line)
}

/// Communicators that began and are not complete, beside those that are: a part of the ranks, or a second
/// communicator of all. Of a log that goes on nobody can tell whether they hang.
fn unfinished(jobs: &[Job], failed: bool, lost: bool) -> Option<String> {
    let all = jobs.iter().flat_map(|job| &job.unfinished);
    let kinds = all.clone().count();
    let largest = all.max_by_key(|one| one.ranks)?;
    let word = if largest.began.len() == 1 { "rank" } else { "ranks" };
    let has = format!("this log has its {word} {}", text::names(&largest.began));
    let ranks = count(largest.ranks, "rank");
    let began = match kinds {
        1 => format!("a communicator of {ranks} began and is not complete ({has})"),
        _ => {
            format!("{kinds} communicators began and are not complete (the largest is of {ranks}, and {has})")
        }
    };
    if failed {
        return Some(began);
    }
    let all_began = largest.began.len() >= largest.ranks as usize;
    let hangs = match (kinds, all_began) {
        (1, true) => "its ranks do not reach one another",
        _ => "a rank does not come",
    };
    let or = if lost {
        "the line that says so is lost"
    } else {
        "the log ends there"
    };
    Some(format!("{began}: {hangs}, or {or}"))
}

/// The verdict if the log has no connection over a network.
fn without_connections(report: &Report, failed: bool) -> (VerdictKind, String) {
    if report.nccl_lines == report.torn && report.warnings.list.is_empty() {
        let line = if let Some(problem) = &report.ras.problem {
            let twice = if problem.starts_with("MISMATCH") {
                " (ask twice: ranks are never at the same place)"
            } else {
                ""
            };
            &format!("this is an answer of NCCL's RAS service, and no log. It says {problem}{twice}")
        } else if report.torn > 0 {
            "every line of NCCL in this log is cut into another"
        } else if report.lines == 0 {
            "the log is empty"
        } else if report.ras.is_there {
            "this is an answer of NCCL's RAS service, and no log. Run the job with NCCL_DEBUG=INFO"
        } else if !report.versions().is_empty() {
            "no line of NCCL but its version in this log. Run the job with NCCL_DEBUG=INFO"
        } else {
            "no line of NCCL in this log. Run the job with NCCL_DEBUG=INFO"
        };
        return (VerdictKind::Unknown, format!("unknown: {line}"));
    }
    let jobs = report.jobs();
    let inside = report.other_connections;
    let progress = progress(&jobs, failed);
    if inside.collnet == 0 && inside.multi_node > 0 && !jobs.iter().all(Job::is_seen_on_one_host) {
        let nodes = jobs.iter().filter_map(|job| job.nodes).max();
        let hosts = nodes.map_or(0, |nodes| nodes as usize).max(report.hosts().len());
        let who = if hosts > 1 {
            format!("{hosts} hosts")
        } else {
            "all ranks".to_owned()
        };
        let mut line = format!("NVLink: {who} are joined by NVLink (MNNVL), and no network is used");
        if let Some(progress) = progress.filter(|_| !jobs.iter().all(Job::is_complete)) {
            line += "; ";
            line += &progress;
        }
        return (VerdictKind::Nvlink, line);
    }
    if inside.collnet == 0 && !jobs.is_empty() && jobs.iter().all(|job| job.is_local() == Some(true)) {
        return (VerdictKind::Local, local_verdict(&jobs, failed));
    }
    // What was chosen, and which connections the log lacks.
    let mut then: Vec<String> = progress.into_iter().collect();
    let complete = jobs.first().is_some_and(Job::is_complete);
    if complete || (inside.local > 0 && jobs.iter().all(|job| !job.started)) {
        let of = jobs.first().filter(|job| job.ranks_seen < job.ranks as usize);
        let of = of.map_or_else(String::new, |job| {
            format!(", of {} of {} ranks,", job.ranks_seen, job.ranks)
        });
        then.push(format!("this log{of} shows no connection between hosts"));
    }
    then.extend(why::advice(report, complete).filter(|_| !failed));
    let and_then = |head: String| {
        let parts = std::iter::once(head).chain(then.iter().cloned());
        parts.collect::<Vec<_>>().join("; ")
    };
    by_chosen_network(report, complete, &and_then).unwrap_or_else(|| {
        if report.verbs {
            let line = and_then("RDMA, as the warnings show".to_owned());
            return (VerdictKind::Rdma, line);
        }
        let failed_in = |part| report.processes.values().any(|one| one.failed_in == Some(part));
        for (part, kind, network) in [
            (Part::Verbs, VerdictKind::Rdma, "RDMA"),
            (Part::Sockets, VerdictKind::Tcp, "TCP"),
        ] {
            if failed_in(part) {
                return (
                    kind,
                    and_then(format!("{network}, as the trace of a call that failed shows")),
                );
            }
        }
        let why = report.processes.values().find_map(why::by_messages);
        let head = match (why, complete || inside.local > 0) {
            (Some((why, true)), _) => format!("unknown: {why}; others may be used"),
            (Some((why, false)), _) => format!("unknown: no RDMA, because {why}"),
            (None, true) => "unknown".to_owned(),
            (None, false) => "unknown: no line names the network".to_owned(),
        };
        let line = and_then(head).replacen("unknown; ", "unknown: ", 1);
        (VerdictKind::Unknown, line)
    })
}

/// The verdict by the networks that were chosen.
fn by_chosen_network(
    report: &Report,
    complete: bool,
    and_then: &dyn Fn(String) -> String,
) -> Option<(VerdictKind, String)> {
    let (mut rdma, mut tcp, mut listed, mut other) = (None, None, None, None);
    let provider = report.provider();
    for (writer, process) in &report.processes {
        let Some(network) = process.network() else {
            continue;
        };
        let of = match is_rdma(network, process.provider.as_deref().or(provider)) {
            Some(true) => &mut rdma,
            // Up to 2.5 NCCL lists the interfaces of sockets first, also where it then takes IB.
            Some(false) if process.network.is_none() && why::by_messages(process).is_none() => &mut listed,
            Some(false) => &mut tcp,
            None => &mut other,
        };
        of.get_or_insert((writer.host.as_str(), network));
    }
    let tcp = tcp.or_else(|| listed.filter(|_| rdma.is_none()));
    Some(match (rdma, tcp, other) {
        (Some((on, network)), Some((host, socket)), _) => {
            let why = because(&why::tcp(report, host, socket));
            let (on, host) = (host_name(on), host_name(host));
            let head = format!("MIXED: {on} chose network {network}, {host} chose {socket}{why}");
            (VerdictKind::Mixed, and_then(head))
        }
        (Some((_, network)), None, _) => {
            let (kind, head) = if complete {
                (VerdictKind::Rdma, format!("RDMA: network {network}"))
            } else {
                let head = format!("RDMA was chosen (network {network})");
                (VerdictKind::Unknown, head)
            };
            (kind, and_then(head))
        }
        (None, Some((host, network)), _) => {
            let why = because(&why::tcp(report, host, network));
            let on = why::interfaces(report, host);
            let head = format!("TCP was chosen (network {network}{on}){why}");
            (VerdictKind::Tcp, and_then(head))
        }
        (None, None, Some((_, network))) => {
            let head = format!("unknown: network {network}, and its name does not say whether that is RDMA");
            (VerdictKind::Unknown, and_then(head))
        }
        (None, None, None) => return None,
    })
}

/// The verdict if every job is on one host.
fn local_verdict(jobs: &[Job], failed: bool) -> String {
    let complete = jobs.iter().all(Job::is_complete);
    let then = match progress(jobs, failed) {
        Some(progress) if !complete => format!("; {progress}"),
        _ => String::new(),
    };
    match jobs {
        [job] if job.ranks == 1 => format!("LOCAL: a single rank needs no network{then}"),
        [job] => {
            let network = if complete {
                "no network is used (NVLink, PCIe or shared memory)"
            } else {
                "no network is needed"
            };
            format!(
                "LOCAL: all {} ranks are on one host, and {network}{then}",
                job.ranks
            )
        }
        jobs => format!(
            "LOCAL: {} jobs that do not know of each other, each on one host; no network is used{then}",
            jobs.len()
        ),
    }
}
