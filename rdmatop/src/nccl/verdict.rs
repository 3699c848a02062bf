//! The judgement: whether the job uses RDMA, on which NICs, with GPUDirect or not, and otherwise why not.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::report::{NicKey, Process, Report};

/// In one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// All connections between hosts are RDMA.
    Rdma,
    /// All are TCP.
    Tcp,
    /// Some are RDMA, some TCP.
    Mixed,
    /// No connection leaves its host.
    Local,
    /// The log does not show it.
    Unknown,
}

/// The judgement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// In one word.
    pub kind: Kind,
    /// In one line.
    pub line: String,
    /// NICs in use.
    pub nics: usize,
    /// Of these, those all of whose connections have GPUDirect RDMA.
    pub gpu_direct: usize,
    /// Hosts on TCP, each with the reason.
    pub on_tcp: BTreeMap<String, String>,
    /// NICs without GPUDirect, each with the reason where the log has one.
    pub without_gpu_direct: BTreeMap<String, String>,
}

/// Whether a network is RDMA; `None` where its name does not say.
pub(super) fn is_rdma(network: &str, provider: Option<&str>) -> Option<bool> {
    let lower = network.to_lowercase();
    if lower.contains("socket") {
        return Some(false);
    }
    if lower.starts_with("ib") || lower.starts_with("gib") {
        return Some(true);
    }
    if lower.contains("libfabric") || lower.contains("ofi") {
        let provider = provider?.to_lowercase();
        if provider.starts_with("efa") || provider.starts_with("verbs") || provider.starts_with("cxi") {
            return Some(true);
        }
        return (provider.starts_with("tcp") || provider.starts_with("sockets")).then_some(false);
    }
    None
}

fn provider<'a>(report: &'a Report, host: &'a str) -> Option<&'a str> {
    report.on(host).find_map(|process| process.provider.as_deref())
}

/// Why a process is on TCP, the most direct reason first.
fn why_process(process: &Process) -> Option<String> {
    let variable = |name: &str, says: fn(&str) -> bool| {
        let value = process.variables.get(name).filter(|value| says(value))?;
        Some(format!("{name} is {value}"))
    };
    let no_library = || {
        let missing = process.warnings.contains("no-libibverbs");
        missing.then(|| "libibverbs could not be opened".to_owned())
    };
    let no_hca = || {
        process
            .no_hca
            .then(|| match process.variables.get("NCCL_IB_HCA") {
                Some(hcas) => format!("NCCL found no usable RDMA device (NCCL_IB_HCA is {hcas})"),
                None => "NCCL found no usable RDMA device".to_owned(),
            })
    };
    let provider = || {
        let provider = process.provider.as_ref()?;
        Some(format!("libfabric's provider is {provider}"))
    };
    variable("NCCL_IB_DISABLE", |value| {
        value.parse::<i64>().is_ok_and(|value| value != 0)
    })
    .or_else(|| variable("NCCL_NET", |value| value.to_lowercase().contains("socket")))
    .or_else(no_library)
    .or_else(no_hca)
    .or_else(provider)
}

/// Why a host is on TCP.
fn why_tcp(report: &Report, host: &str) -> String {
    let plugin = || report.on(host).find_map(|process| process.no_plugin.clone());
    report
        .on(host)
        .find_map(why_process)
        .or_else(plugin)
        .unwrap_or_else(|| "the log does not say why".to_owned())
}

/// Interfaces that TCP uses on a host.
fn interfaces(report: &Report, host: &str) -> String {
    let names: BTreeSet<&str> = report
        .on(host)
        .flat_map(|process| &process.interfaces)
        .map(String::as_str)
        .collect();
    names.into_iter().collect::<Vec<_>>().join(", ")
}

/// The name of a NIC on the page.
pub fn nic_name(report: &Report, nic: &NicKey) -> String {
    report
        .name_of(nic)
        .map_or_else(|| format!("{}/{}", nic.network, nic.device), |(name, _)| name)
}

fn no_gpu_direct(report: &Report, nic: &NicKey) -> String {
    let why = report.some_on(&nic.host).find_map(|process| {
        let (on, _, why) = process.gpu_direct.get(&nic.device)?;
        (!on).then(|| why.clone())
    });
    match why {
        Some(Some(why)) if why == "no module" => {
            "no module: load nvidia_peermem, or use the open kernel driver with DMA-BUF".to_owned()
        }
        Some(Some(why)) if why.starts_with("distance") => {
            format!("{why}: GPU and NIC are too far apart on PCIe; NCCL_NET_GDR_LEVEL sets how far is allowed")
        }
        Some(Some(why)) => why,
        Some(None) => "disabled for this NIC: nvidia_peermem is not loaded and DMA-BUF is not there, or the driver lacks it".to_owned(),
        None => "the log does not say why; often GPU and NIC are too far apart (NCCL_NET_GDR_LEVEL)".to_owned(),
    }
}

/// Judges the report.
pub fn of(report: &Report) -> Verdict {
    let mut verdict = Verdict {
        kind: Kind::Unknown,
        line: String::new(),
        nics: 0,
        gpu_direct: 0,
        on_tcp: BTreeMap::new(),
        without_gpu_direct: BTreeMap::new(),
    };
    let mut unknown: BTreeSet<&str> = BTreeSet::new();
    let mut rdma_hosts = BTreeSet::new();
    for (nic, used) in &report.nics {
        match is_rdma(&nic.network, provider(report, &nic.host)) {
            Some(true) => {
                verdict.nics += 1;
                rdma_hosts.insert(nic.host.as_str());
                if used.gpu_direct == used.sends + used.receives {
                    verdict.gpu_direct += 1;
                } else {
                    let name = format!("{} {}", nic.host, nic_name(report, nic));
                    verdict
                        .without_gpu_direct
                        .insert(name.trim().to_owned(), no_gpu_direct(report, nic));
                }
            }
            Some(false) => {
                verdict
                    .on_tcp
                    .entry(nic.host.clone())
                    .or_insert_with(|| why_tcp(report, &nic.host));
            }
            None => {
                unknown.insert(&nic.network);
            }
        }
    }
    let direct = match (verdict.gpu_direct, verdict.nics) {
        (0, _) => "no GPUDirect".to_owned(),
        (on, all) if on == all => "GPUDirect on all".to_owned(),
        (on, all) => format!("GPUDirect on {on} of {all}"),
    };
    let nics = match verdict.nics {
        1 => "1 NIC".to_owned(),
        count => format!("{count} NICs"),
    };
    (verdict.kind, verdict.line) = match (verdict.nics, verdict.on_tcp.first_key_value(), unknown.first()) {
        (0, Some((host, why)), _) => {
            let on = interfaces(report, host);
            let on = if on.is_empty() { on } else { format!(" on {on}") };
            (Kind::Tcp, format!("TCP: NET/Socket{on}, because {why}"))
        }
        (_, Some((host, why)), _) => {
            let more = match verdict.on_tcp.len() {
                1 => String::new(),
                count => format!(" and {} more hosts", count - 1),
            };
            (
                Kind::Mixed,
                format!("MIXED: RDMA on {nics} ({direct}), but {host}{more} on TCP, because {why}"),
            )
        }
        (0, None, Some(network)) => (
            Kind::Unknown,
            format!("unknown: the network is {network}, and its name does not say whether that is RDMA"),
        ),
        (0, None, None) => without_channels(report),
        (_, None, _) => (Kind::Rdma, format!("RDMA: yes, {nics}, {direct}")),
    };
    verdict
}

/// No connection over a network was logged.
fn without_channels(report: &Report) -> (Kind, String) {
    if report.nccl_lines == 0 {
        let line = "unknown: no line of NCCL in this log. Run the job with NCCL_DEBUG=INFO";
        return (Kind::Unknown, line.to_owned());
    }
    let (joined, seen, of) = report.ranks();
    let waiting = of.is_some_and(|of| joined < of as usize);
    let chosen = report.processes.iter().find_map(|(writer, process)| {
        let network = process.network.as_deref()?;
        Some((network, is_rdma(network, provider(report, &writer.host))))
    });
    if report.local > 0 && !waiting && report.collnet == 0 {
        let line = "LOCAL: all ranks communicate within their host (NVLink, PCIe or shared memory); no network is used";
        return (Kind::Local, line.to_owned());
    }
    let then = if waiting {
        format!(
            "{joined} of {} ranks have joined: the job is starting, or waits for a rank",
            of.unwrap_or_default()
        )
    } else if seen == 0 {
        "NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS with INIT and NET show more".to_owned()
    } else {
        "the connections are not in this log; NCCL_DEBUG_SUBSYS must contain INIT or NET".to_owned()
    };
    match chosen {
        Some((network, Some(true))) => (
            Kind::Unknown,
            format!("RDMA was chosen (network {network}); {then}"),
        ),
        Some((network, Some(false))) => {
            let why = report
                .hosts()
                .first()
                .map_or_else(String::new, |host| why_tcp(report, host));
            (
                Kind::Tcp,
                format!("TCP was chosen (network {network}), because {why}; {then}"),
            )
        }
        Some((network, None)) => (Kind::Unknown, format!("unknown: network {network}; {then}")),
        None => (
            Kind::Unknown,
            format!("unknown: no network was chosen yet; {then}"),
        ),
    }
}
