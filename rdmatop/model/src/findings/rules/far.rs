//! A process that uses a NIC that is farther from its GPU than an idle one. Another process may have queue
//! pairs on that NIC that the kernel does not list, so the rule does not say whose the NIC's bytes are.

use super::rails::{Choice, carries};
use super::{RuleContext, link};
use crate::facts::{DeviceRow, PortRow, ProcessRow};
use crate::findings::{About, Finding, FindingId, words};
use crate::input::GpuPlace;
use rdmatop_base::pcie::{Distance, Place};
use rdmatop_base::step::{NextStep, ShellWord, step};

/// How far a device is from a GPU; `None` if the PCI path of either is not known.
fn distance(gpu: &GpuPlace, device: &DeviceRow) -> Option<Distance> {
    let nic = Place {
        path: &device.pci_path,
        node: device.numa_node.and_then(|node| node.try_into().ok()),
    };
    let gpu = Place {
        path: &gpu.path,
        node: gpu.node,
    };
    (!nic.path.is_empty() && !gpu.path.is_empty()).then(|| Distance::between(gpu, nic))
}

/// An ACTIVE port and how far its device is from a GPU.
struct PortDistance<'a> {
    port: &'a PortRow,
    distance: Distance,
    bytes_per_s: f64,
}

/// The ACTIVE ports of a port's driver, link layer and rate: another port may be of another network. `None`
/// where the distance or the bytes of one are not known.
fn seen<'a>(ctx: &RuleContext<'a>, gpu: &GpuPlace, first: &PortRow) -> Option<Vec<PortDistance<'a>>> {
    let driver = ctx.driver(first)?;
    let alike = ctx.active_ports().filter(|port| {
        ctx.driver(port) == Some(driver)
            && port.link_layer == first.link_layer
            && port.rate_bps == first.rate_bps
    });
    let seen = alike.map(|port| {
        Some(PortDistance {
            port,
            distance: distance(gpu, ctx.device(port.device_uid)?)?,
            bytes_per_s: carries(port)?,
        })
    });
    seen.collect()
}

/// A process that computes on one GPU, and that alone has QPs on the busy ports that it uses, while a nearer
/// port is idle. A process on several GPUs is left out, because it may send the data of any of them.
pub(super) fn nic(ctx: &RuleContext<'_>, row: &ProcessRow) -> Option<Finding> {
    let Some([gpu]) = row.gpus.as_deref() else {
        return None;
    };
    let own = |port: &PortRow| {
        let mut users = ctx.users(&port.device);
        row.devices.contains(&port.device)
            && users.next().is_some_and(|user| user.uid == row.uid)
            && users.next().is_none()
    };
    let first = ctx.facts.ports.iter().find(|port| own(port))?;
    let all = seen(ctx, gpu, first)?;
    let busy = |seen: &&PortDistance<'_>| own(seen.port) && seen.bytes_per_s >= ctx.limits.rail_bytes_per_s;
    let used = all.iter().filter(busy).min_by_key(|seen| seen.distance)?;
    let idle = ctx.limits.idle_share * used.bytes_per_s;
    let near = all
        .iter()
        .filter(|seen| seen.bytes_per_s < idle)
        .min_by_key(|seen| seen.distance)
        .filter(|near| near.distance < used.distance)?;
    let (far_name, near_name) = (&used.port.device, &near.port.device);
    let (who, address) = (words::process(row), &gpu.address);
    let [far_port, near_port] = [used, near].map(|seen| link::name(seen.port));
    let [far_place, near_place] = [used, near].map(|seen| words_of(seen.distance));
    let [busy, idle] = [used, near].map(|seen| words::bits(seen.bytes_per_s));
    Some(Finding {
        verdict: format!(
            "{who} computes on GPU {address} and alone has QPs on {far_port}, {far_place}, which is busy: {near_port} {near_place} is idle"
        ),
        evidence: vec![
            format!("{far_port} carries {busy}"),
            format!("{near_port} carries {idle}"),
        ],
        next: next(row, far_name, near_name),
        short: "far NIC".to_owned(),
        victims: vec![row.uid],
        ..ctx.finding(FindingId::FarNic, About::of_port(used.port).by(row.uid))
    })
}

/// Where a NIC is, seen from a GPU. For [`Distance::Node`] the host bridge is named: nodes may be unknown.
const fn words_of(distance: Distance) -> &'static str {
    match distance {
        Distance::Node => "on another PCIe host bridge",
        other => other.words(),
    }
}

/// The next step: undo what chose the NIC, if that is known; otherwise find it.
fn next(row: &ProcessRow, far: &str, near: &str) -> NextStep {
    let nearer = ShellWord::device(near);
    match (Choice::of(row, far), row.pid) {
        (Some(choice), _) if choice.is_option => step!(
            "nvidia-smi topo -m   # shows {} nearer to the GPU -> start it next with {} of that NIC",
            nearer,
            choice.name
        ),
        (Some(choice), _) => step!(
            "nvidia-smi topo -m   # shows {} nearer to the GPU -> start it next without {}, or with that NIC in it for this process",
            nearer,
            choice.name
        ),
        (None, Some(pid)) => step!(
            "sudo grep -zE 'NCCL_IB_HCA|NCCL_TOPO_FILE|UCX_NET_DEVICES|CUDA_VISIBLE_DEVICES' /proc/{}/environ | cat -v   # names a NIC or a GPU \
             -> nvidia-smi topo -m shows whether they are near; start the job next without it   # prints nothing -> start it next with \
             NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=GRAPH: a virtual machine may hide its PCIe bridges",
            pid
        ),
        (None, None) => "nvidia-smi topo -m   # shows which NIC is near to which GPU".into(),
    }
}
