//! The report as one JSON object.

use serde::Serialize;

use super::{
    dictionary::Kind,
    jobs::Job,
    now::Now,
    perf::Perf,
    report::{NicUse, Report},
    verdict::{self, Verdict},
};

#[derive(Serialize)]
struct Nic<'a> {
    host: &'a str,
    network: &'a str,
    index: u32,
    name: Option<String>,
    link: Option<String>,
    #[serde(flatten)]
    used: NicUse,
}

#[derive(Serialize)]
struct WarningRow<'a> {
    id: Option<&'static str>,
    kind: Option<Kind>,
    means: Option<&'static str>,
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
    ranks_joined: u32,
    ranks: Option<u32>,
    jobs: Vec<Job>,
    hosts: Vec<&'a str>,
    nics: Vec<Nic<'a>>,
    local_connections: u64,
    nvlink_connections: u64,
    warnings: Vec<WarningRow<'a>>,
    warnings_left_out: u64,
    nccl_tests: &'a Perf,
    lines: u64,
    nccl_lines: u64,
    lines_torn: u64,
    lines_repeated: u64,
    lines_left_out: u64,
    logs_cut: u64,
}

/// The report as one JSON object.
pub fn document(report: &Report, now: Option<&Now>) -> serde_json::Result<String> {
    let jobs = report.jobs();
    let nics = report.nics.iter().map(|(nic, used)| {
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
    });
    let warnings = report.warnings.list.iter().map(|warning| WarningRow {
        id: warning.entry.map(|entry| entry.id),
        kind: warning.entry.map(|entry| entry.kind),
        means: warning.entry.map(|entry| entry.means),
        count: warning.count,
        hosts: warning.hosts.iter().map(String::as_str).collect(),
        text: &warning.text,
    });
    let document = Document {
        schema: rdmatop_model::snapshot::SCHEMA,
        verdict: verdict::judge(report),
        now,
        versions: report.versions(),
        ranks_joined: jobs.first().map_or(0, |job| job.ranks_joined),
        ranks: jobs.first().map(|job| job.ranks),
        hosts: report
            .hosts()
            .into_iter()
            .filter(|host| !host.is_empty())
            .collect(),
        nics: nics.collect(),
        local_connections: report.other_connections.local,
        nvlink_connections: report.other_connections.multi_node,
        warnings: warnings.collect(),
        warnings_left_out: report.warnings.left_out,
        nccl_tests: &report.perf,
        lines: report.lines,
        nccl_lines: report.nccl_lines,
        lines_torn: report.torn,
        lines_repeated: report.repeated,
        lines_left_out: report.left_out,
        logs_cut: report.cut,
        jobs,
    };
    serde_json::to_string(&document)
}
