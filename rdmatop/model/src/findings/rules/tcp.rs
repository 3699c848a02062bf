//! Jobs that move data by TCP although they could use RDMA.

use super::{RuleContext, growing};
use crate::facts::{DeviceRow, PortRow, ProcessRow, TcpTraffic};
use crate::findings::{About, Finding, FindingId, words};
use crate::value::Counter;
use rdmatop_base::fabric::efa_plugin;
use rdmatop_base::step::{ShellWord, step};
use rdmatop_base::variables::{lacks_efa_plugin, nccl_ignores, setting, without_rdma};

/// Processes whose data goes by TCP.
pub(super) fn fallback(ctx: &RuleContext<'_>, row: &ProcessRow) -> Option<Finding> {
    let tcp = row.tcp.as_ref().filter(|_| !row.exited)?;
    // Without an ACTIVE port there is no way but TCP.
    ctx.active_ports().next()?;
    let [sent, received] = [tcp.tx_bytes, tcp.rx_bytes].map(|bytes| growing(Some(bytes)).unwrap_or(0.0));
    let rate = sent + received;
    let little = by_rdma(ctx, row)? <= ctx.limits.tcp_rdma_share * rate;
    (rate >= ctx.limits.tcp_bytes_per_s && little).then(|| symptom(ctx, row, tcp, rate))
}

/// Devices on which a process without QPs in the kernel's list may have some that are not in it.
fn hiding<'a>(ctx: &RuleContext<'a>, row: &ProcessRow) -> Vec<&'a DeviceRow> {
    if row.qps > 0 || row.verbs_files == Some(false) || row.unlisted.is_none() {
        return Vec::new();
    }
    let may_have_it_open = |device: &&DeviceRow| match (&device.contexts, row.pid) {
        (Some(pids), Some(pid)) => pids.contains(&pid),
        _ => true,
    };
    let devices = ctx.facts.devices.iter().filter(|device| device.may_hide_qps());
    devices.filter(may_have_it_open).collect()
}

/// The most bytes per second that a process may move by RDMA. If its work requests are not counted,
/// everything that its ports move. `None` if that is not known.
fn by_rdma(ctx: &RuleContext<'_>, row: &ProcessRow) -> Option<f64> {
    let rate = |counter: Option<Counter>| counter?.most_rate();
    let hiding = hiding(ctx, row);
    if row.qps == 0 && hiding.is_empty() {
        return Some(0.0);
    }
    let own = rate(row.traffic.tx_bytes).zip(rate(row.traffic.rx_bytes));
    if let Some((sent, received)) = own.filter(|_| row.qps > 0) {
        return Some(sent + received);
    }
    let may_use = |port: &&PortRow| {
        row.devices.contains(&port.device) || hiding.iter().any(|device| device.uid == port.device_uid)
    };
    let mut ports = ctx.facts.ports.iter().filter(may_use).peekable();
    ports.peek()?;
    ports
        .map(|port| Some(rate(port.tx_bytes)? + rate(port.rx_bytes)?))
        .sum()
}

fn symptom(ctx: &RuleContext<'_>, row: &ProcessRow, tcp: &TcpTraffic, rate: f64) -> Finding {
    let peer = tcp.busiest.map(|end| format!(", the busiest to {end}"));
    let connections = words::count(tcp.connections, "connection");
    let (who, moved) = (words::process(row), words::bits(rate));
    let mut evidence = vec![format!("{moved} in {connections}{}", peer.unwrap_or_default())];
    if let Some(libraries) = row.libraries.as_ref().filter(|list| !list.is_empty()) {
        evidence.push(format!("it has loaded {}", libraries.join(", ")));
    }
    let switch = switch(ctx, row);
    let libraries = row.libraries.iter().flat_map(|list| list.iter());
    let lacks_plugin = row.qps == 0 && !has_verbs(ctx) && lacks_efa_plugin(libraries.map(String::as_str));
    let reason = match &switch {
        Some((name, value)) => Some(format!("its environment has {}", setting(name, value))),
        None if row.qps == 0 && row.verbs_files == Some(false) => {
            Some("it finds no device in /dev/infiniband".to_owned())
        }
        None => None,
    };
    evidence.extend(reason.clone());
    // It may move its data by TCP before NCCL begins, as what Gloo loads.
    evidence
        .extend(lacks_plugin.then(|| "NCCL has loaded no plug-in for EFA (aws-ofi-nccl) so far".to_owned()));
    let next = match (&switch, row.pid) {
        (Some((name, value)), _) => step!(
            "Start the job without {}={}: it forbids RDMA (unset {} in its script or its container).",
            *name,
            ShellWord::new(value, "VALUE"),
            *name
        ),
        (None, Some(pid)) => step!(
            "sudo rdmatop doctor --pid {}   # each FAIL keeps it from RDMA, and has the remedy   # no FAIL -> NCCL_DEBUG=INFO at its next start says why",
            pid
        ),
        (None, None) => "Start it with NCCL_DEBUG=INFO, and read the log with rdmatop nccl-log.".into(),
    };
    let next = if lacks_plugin && switch.is_none() && row.verbs_files != Some(false) {
        efa_plugin(&next)
    } else {
        next
    };
    let about = About::of_process(row.uid);
    let instead = if row.qps == 0 && hiding(ctx, row).is_empty() {
        "instead of RDMA (it has no QP)"
    } else {
        "and next to nothing by RDMA"
    };
    let because = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
    Finding {
        verdict: format!("{who} moves {moved} by TCP {instead}{because}"),
        evidence,
        next,
        short: format!("TCP {moved}"),
        ..ctx.finding(FindingId::TcpFallback, about)
    }
}

/// Whether there is a device that NCCL's own transport takes.
fn has_verbs(ctx: &RuleContext<'_>) -> bool {
    let mut devices = ctx.facts.devices.iter();
    devices.any(|device| device.driver.as_deref() != Some("efa"))
}

/// The variable in the process's environment that forbids RDMA, and its value, as `doctor` takes them. That
/// of NVSHMEM ends no transport of other libraries, and NVSHMEM moves nothing by TCP.
fn switch<'a>(ctx: &RuleContext<'_>, row: &'a ProcessRow) -> Option<(&'static str, &'a str)> {
    let environ = row.environ.as_ref()?;
    let has_verbs = has_verbs(ctx);
    let all = without_rdma(environ, has_verbs);
    all.into_iter()
        .find(|(name, _)| *name != "NVSHMEM_REMOTE_TRANSPORT" && !nccl_ignores(name, environ, has_verbs))
}
