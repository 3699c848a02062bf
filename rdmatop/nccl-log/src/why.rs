//! Why a process is not on RDMA, or a NIC has no GPUDirect. Only messages that cause this count; that no
//! plugin was found is normal.

use std::collections::BTreeSet;

use super::{
    dictionary,
    process::Process,
    report::{NicKey, Report},
};
use rdmatop_base::order::Gather as _;
use rdmatop_base::text;

/// The reason where the log has none.
pub(super) const NOT_KNOWN: &str = "the log does not say why";

/// Messages that keep a process from RDMA, the most direct ones first, by their id in the dictionary.
pub(super) const CAUSES: [&str; 15] = [
    "ofi-no-provider",
    "ofi-only-efa",
    "ofi-old-libfabric",
    "ofi-no-rdma-write",
    "ofi-cuda",
    "ofi-no-protocol",
    "ofi-init",
    "plugin-unsupported",
    "no-libibverbs",
    "old-libibverbs",
    "device-unopened",
    "device-unanswering",
    "no-interface",
    "no-device",
    // It leaves NCCL its own transports.
    "plugin-unloadable",
];
/// The first of [`CAUSES`]: a loaded plugin causes them before any setting of NCCL's own transport matters.
const OF_PLUGIN: usize = 8;

/// The message that is the cause, and whether it is about one device alone.
fn message(process: &Process, causes: &[&str]) -> Option<(String, bool)> {
    let id = causes.iter().find(|id| process.messages.contains_key(*id))?;
    let means = dictionary::entries().find(|entry| entry.id == *id)?.means;
    let device = process.messages.get(id).and_then(Option::as_deref);
    let words = match device {
        // As in `the device mlx5_0 cannot ...`.
        Some(name) => means.replacen("the device", &format!("the device {name}"), 1),
        None => means.to_owned(),
    };
    let hcas = process
        .variables
        .get("NCCL_IB_HCA")
        .filter(|_| *id == "no-device");
    let words = match hcas {
        Some(hcas) => format!("{words} (NCCL_IB_HCA is {hcas})"),
        None => words,
    };
    let of_device = ["device-unopened", "device-unanswering"].contains(id) && device.is_some();
    Some((words, of_device))
}

/// Which of a process's messages keeps it from RDMA, and whether it is about one device alone.
pub(super) fn by_messages(process: &Process) -> Option<(String, bool)> {
    message(process, &CAUSES)
}

fn variable(process: &Process, name: &str, says: fn(&str) -> bool) -> Option<String> {
    let value = process.variables.get(name).filter(|value| says(value))?;
    Some(format!("{name} is {value}"))
}

fn is_on(value: &str) -> bool {
    value.parse::<i64>().is_ok_and(|value| value != 0)
}

/// Why a process is on TCP, the most direct reason first.
fn of_process(process: &Process, network: &str) -> Option<String> {
    let by_name = || {
        variable(process, "NCCL_NET", |value| {
            value.to_lowercase().contains("socket")
        })
    };
    let provider = || {
        let provider = process.provider.as_ref()?;
        Some(format!("libfabric's provider is {provider}"))
    };
    let plugin = || {
        let own = network != "Socket" && network.to_lowercase() != "socket";
        own.then(|| format!("the network plugin {network} is TCP"))
    };
    if let Some(why) = by_name() {
        return Some(why);
    }
    if network.to_lowercase().contains("libfabric") {
        return provider();
    }
    let (of_plugin, of_nccl) = CAUSES.split_at_checked(OF_PLUGIN).unwrap_or_default();
    let because = |process, causes| message(process, causes).map(|(why, _)| why);
    let missing = || {
        let wanted = process
            .variables
            .get("NCCL_NET_PLUGIN")
            .filter(|_| process.no_plugin)?;
        (wanted != "none").then(|| format!("NCCL_NET_PLUGIN is {wanted}, and that plugin was not found"))
    };
    plugin()
        .or_else(|| because(process, of_plugin))
        .or_else(missing)
        .or_else(|| variable(process, "NCCL_IB_DISABLE", is_on))
        .or_else(|| because(process, of_nccl))
        .or_else(|| variable(process, "NCCL_IBEXT_DISABLE", is_on))
        .or_else(provider)
}

/// Why a job on one host uses a network at all.
pub(super) fn inside(report: &Report, host: &str) -> String {
    let names = ["NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE"];
    let of = |process: &Process| {
        let set = names
            .iter()
            .filter_map(|name| variable(process, name, |value| value != "0"));
        let set: Vec<String> = set.collect();
        (!set.is_empty()).then(|| set.join(" and "))
    };
    report
        .processes_on(host)
        .find_map(of)
        .unwrap_or_else(|| "NCCL found no way by NVLink, PCIe or shared memory".to_owned())
}

/// Why a host is on TCP.
pub(super) fn tcp(report: &Report, host: &str, network: &str) -> String {
    report
        .processes_on(host)
        .find_map(|process| of_process(process, network))
        .unwrap_or_else(|| NOT_KNOWN.to_owned())
}

/// ` on eth0, eth1`: the interfaces that TCP uses on a host.
pub(super) fn interfaces(report: &Report, host: &str) -> String {
    let names: BTreeSet<&str> = report
        .processes_on(host)
        .flat_map(|process| &process.interfaces)
        .map(String::as_str)
        .gather();
    match names.len() {
        0 => String::new(),
        _ => format!(" on {}", text::names(names)),
    }
}

/// Why a NIC has connections without GPUDirect.
pub(super) fn no_gpu_direct(report: &Report, nic: &NicKey) -> String {
    if report
        .nics
        .get(nic)
        .is_some_and(|used| used.only_receives_directly())
    {
        return match report.variable_on(&nic.host, "NCCL_NET_GDR_READ") {
            Some(value) => format!("it receives directly, and sends from the host's memory: NCCL_NET_GDR_READ is {value}"),
            None => "it receives directly, and sends from the host's memory, as NCCL does with older GPUs without NVLink; \
                     NCCL_NET_GDR_READ=1 allows both"
                .to_owned(),
        };
    }
    let why = report.first_processes_on(&nic.host).find_map(|process| {
        let direct = process.gpu_direct.get(&nic.device)?;
        (!direct.on || direct.why.is_some()).then(|| direct.why.clone())
    });
    let level = match report.variable_on(&nic.host, "NCCL_NET_GDR_LEVEL") {
        Some(level) => format!("NCCL_NET_GDR_LEVEL is {level}"),
        None => "NCCL_NET_GDR_LEVEL sets how far is allowed".to_owned(),
    };
    let no_module = "load nvidia_peermem, or use the open kernel driver with DMA-BUF";
    match why {
        Some(Some(why)) if why.starts_with("no module") => format!("no module: {no_module}"),
        Some(Some(why)) if why.starts_with("distance") => {
            format!("{why}: GPU and NIC are too far apart on PCIe; {level}")
        }
        Some(Some(why)) => why,
        Some(None) => {
            "disabled for this NIC: nvidia_peermem is not loaded and DMA-BUF is not there, or the driver lacks it".to_owned()
        }
        None if report.first_processes_on(&nic.host).any(|one| one.messages.contains_key("no-gpudirect")) => {
            "the kernel has neither peer memory nor DMA-BUF for these GPUs".to_owned()
        }
        None => format!("the log does not say why; often GPU and NIC are too far apart ({level})"),
    }
}

/// What to set so that the log shows more.
pub(super) fn advice(report: &Report, complete: bool) -> Option<String> {
    if report.info == 0 {
        return Some("NCCL_DEBUG=INFO shows the network".to_owned());
    }
    let processes = || report.processes.values();
    // The log has lines of the subsystems that also print the connections.
    let shown = processes().any(|one| {
        let lists = one.lists_hcas() || !one.interfaces.is_empty();
        lists || one.network.is_some() || !one.members.is_empty()
    });
    let words = if processes().any(|one| one.bootstrapped) {
        "the log ends before NCCL chose one: the job is starting, or waits for a rank"
    } else {
        "give the log from its beginning, and NCCL_DEBUG_SUBSYS, if it is set, must contain INIT or NET"
    };
    (!shown && !complete).then(|| words.to_owned())
}
