//! The PCI Express link of a NIC, errors that its driver logs, the GIDs that QPs use, and how long it takes
//! to connect QPs.

use std::collections::BTreeMap;

use super::RuleContext;
use crate::facts::{DeviceRow, Step, VerbRow};
use crate::findings::{About, Finding, FindingId, Severity, words};
use crate::ib::QpState;
use rdmatop_base::driver_log::{self, Weight};
use rdmatop_base::pcie::link_words;
use rdmatop_base::step::{ShellWord, step};

const MS: u64 = 1_000_000;
/// Steps and errors older than this, ns, no longer matter.
const RECENT: u64 = 60_000 * MS;

/// A PCI Express link that came up with less than its device is capable of, and carries less than the ports.
pub(super) fn pcie(ctx: &RuleContext<'_>, device: &DeviceRow) -> Option<Finding> {
    let [now, able] = device.pcie.filter(|[now, able]| now.bps < able.bps)?;
    let active = || ctx.active_ports().filter(|port| port.device_uid == device.uid);
    let wanted = active().map(|port| port.rate_bps).sum::<Option<u64>>()?;
    if now.bps >= wanted {
        return None;
    }
    // The link of a NIC that nobody uses does not matter.
    let user = active().find_map(|port| ctx.carried(port).first().copied())?;
    let who = words::process(user);
    let [has, able] = [now, able].map(|link| link_words(link.mega_transfers, link.width));
    let [slot, wanted] = [now.bps, wanted].map(|bits| words::bits(bits as f64 / 8.0));
    Some(Finding {
        verdict: format!(
            "{} hangs on PCIe {has} and could do {able}: {who} gets {slot} of {wanted}",
            device.name
        ),
        evidence: vec![
            format!("the slot carries {slot}"),
            format!("its active ports carry {wanted}"),
        ],
        next: step!(
            "grep . /sys/bus/pci/devices/{}/../max_link_*   # what the slot can do: as little -> another slot   # more -> reseat the card; again -> riser, BIOS",
            ShellWord::or(device.pci.as_deref(), "ADDRESS")
        ),
        short: format!("PCIe {has}"),
        victims: vec![user.uid],
        since_mono_ns: ctx.facts.mono_ns,
        ..ctx.finding(FindingId::PcieSlow, About::of_device(device.uid))
    })
}

/// NICs whose driver logged an error lately. SoftRoCE and soft iWARP log each call that they refuse
/// ("rxe_reg_user_mr: returned err = -12"): the program's error, which the verb's errno tells.
pub(super) fn logged(ctx: &RuleContext<'_>, device: &DeviceRow) -> Option<Finding> {
    let (count, text) = (device.driver_errors?, device.driver_error.as_ref()?);
    let at = device
        .driver_error_ns
        .filter(|at| ctx.facts.mono_ns.saturating_sub(*at) < RECENT)?;
    if device.followed {
        return None;
    }
    let known = driver_log::of(text);
    let mut evidence = vec![format!(
        "{} in the kernel's log since rdmatop began",
        words::count(count, "error")
    )];
    evidence.extend(known.map(|known| format!("it means: {}", known.meaning)));
    let next = match (known, device.pci.as_deref()) {
        (Some(known), _) => (known.next)(),
        (None, Some(pci)) => step!(
            "sudo dmesg --level=emerg,alert,crit,err | grep -F {}   # the first line of them says what failed; again -> firmware, vendor",
            ShellWord::new(pci, "ADDRESS")
        ),
        (None, None) => {
            "sudo dmesg --level=emerg,alert,crit,err | tail -50   # the first line of them says what failed; again -> firmware, vendor"
                .into()
        }
    };
    Some(Finding {
        verdict: format!("The driver of {} logs an error: {text}", device.name),
        evidence,
        next,
        short: "driver error".to_owned(),
        since_mono_ns: at,
        severity: Severity::critical_if(known.is_some_and(|known| known.weight == Weight::Critical)),
        ..ctx.finding(FindingId::DriverErrors, About::of_device(device.uid))
    })
}

/// QPs that send from a GID of RoCE v1 although their port has one of v2.
pub(super) fn roce_v1(ctx: &RuleContext<'_>, out: &mut Vec<Finding>) {
    let mut users: BTreeMap<(u64, u32, u8, u64), u64> = BTreeMap::new();
    for (path, qps) in ctx.judgement.paths() {
        if let Some(index) = path.sgid_index {
            *users
                .entry((path.device, path.port, index, path.process))
                .or_default() += qps;
        }
    }
    for ((device, port, index, process), qps) in users {
        let Some(row) = ctx
            .port(device, port)
            .filter(|row| row.link_layer.as_deref() == Some("Ethernet"))
        else {
            continue;
        };
        let is_v1 = row
            .known_gids()
            .any(|gid| gid.index == u16::from(index) && gid.v1 == Some(true));
        // Of the addresses that can be routed, libraries choose the IPv4 one.
        let v2 = || row.known_gids().filter(|gid| gid.is_v2());
        let better = v2().find(|gid| gid.gid.ipv4().is_some()).or_else(|| v2().next());
        let (true, Some(better), Some(owner)) = (is_v1, better, ctx.process(process)) else {
            continue;
        };
        let (qps, who) = (words::count(qps, "QP"), words::process(owner));
        let (device, v2) = (&row.device, better.index);
        out.push(Finding {
            verdict: format!("{qps} of {who} on {device}/{port} use RoCE v1 (GID index {index}) although index {v2} is RoCE v2"),
            evidence: vec![format!("index {v2} is {}", crate::judgement::address(better.gid))],
            next: if owner.kernel {
                step!(
                    "sudo mkdir -p /sys/kernel/config/rdma_cm/{}; echo 'RoCE v2' | sudo tee /sys/kernel/config/rdma_cm/{}/ports/{}/default_roce_mode   # until the next boot; for what is connected from then on",
                    ShellWord::device(&row.device),
                    ShellWord::device(&row.device),
                    port
                )
            } else {
                step!(
                    "Start the job with GID index {}: UCX_IB_GID_INDEX, perftest -x, of NCCL before 2.21 NCCL_IB_GID_INDEX. From 2.21 on NCCL finds it where that is not set.",
                    better.index
                )
            },
            short: "RoCE v1".to_owned(),
            since_mono_ns: ctx.facts.mono_ns,
            ..ctx.finding(FindingId::RoceV1, About::of_port(row).by(process))
        });
    }
}

/// The 99th percentile; the greatest if there are fewer than a hundred.
fn p99(times: &mut [u64]) -> u64 {
    times.sort_unstable();
    let at = (times.len() * 99).div_ceil(100).saturating_sub(1);
    times.get(at).copied().unwrap_or(0)
}

/// Processes whose calls of modify_qp are slow in the kernel. How long a program itself waits between two
/// calls does not matter: a server waits for its client.
pub(super) fn setup(ctx: &RuleContext<'_>, row: &VerbRow) -> Option<Finding> {
    let limit = ctx.limits.setup_ms * MS;
    // This runs over all QPs, so only if a call ever took that long.
    let worst = row.latency.as_ref()?.max_ns;
    worst.filter(|ns| *ns >= limit)?;
    let owner = ctx.owner(row.process_uid)?;
    let since = ctx.facts.mono_ns.saturating_sub(RECENT);
    let own = ctx.qps_of(owner.uid);
    // Times in the kernel by the state that was entered: INIT, RTR, RTS.
    let mut times: BTreeMap<u8, Vec<u64>> = BTreeMap::new();
    for step in own
        .clone()
        .flat_map(|qp| qp.timeline.iter())
        .filter(|step| step.mono_ns >= since)
    {
        if let (1..=3, Some(ns)) = (step.state.0, step.duration_ns) {
            times.entry(step.state.0).or_default().push(ns);
        }
    }
    let slowest = times.iter_mut().map(|(to, times)| (p99(times), *to, times.len()));
    let (ns, to, calls) = slowest.max().filter(|(ns, ..)| *ns >= limit)?;
    let state = QpState(to);
    let is_slow = |step: &Step| step.state == state && step.duration_ns.is_some_and(|ns| ns >= limit);
    let late = own.filter(|qp| {
        let mut steps = qp.timeline.iter();
        steps.any(|step| step.mono_ns >= since && is_slow(step))
    });
    let late: Vec<&str> = late.map(|qp| &*qp.device).collect();
    let on = words::on(late.iter().copied());
    let (who, time) = (words::process(owner), format!("{} ms", ns / MS));
    let calls = words::count(calls as u64, "call");
    let next = if to == 2 && !ctx.only_infiniband(late.into_iter()) {
        "ip neigh | grep -E 'INCOMPLETE|FAILED'   # an address -> the kernel waits for that peer: ping it; its host, cable or VLAN"
    } else {
        "sudo dmesg | tail -50   # timeouts of the driver -> the NIC's firmware answers late: update it"
    };
    Some(Finding {
        verdict: format!(
            "Connections of {who}{on} come up slowly: the kernel takes {time} to bring a QP to {state}"
        ),
        evidence: vec![format!("to {state}: p99 {time} of {calls}")],
        next: next.into(),
        short: format!("slow {state}"),
        victims: vec![owner.uid],
        since_mono_ns: ctx.facts.mono_ns,
        ..ctx.finding(FindingId::SetupSlow, About::of_process(owner.uid))
    })
}
