//! Why no program counts the work requests of a device, a process or a QP.
//!
//! The cause is not computed for every QP at each snapshot: [`Rows`] keeps how many QPs of which owner are
//! not counted, and a view asks for the causes of the QPs that it shows.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer, ser::SerializeSeq as _};

use super::{
    Rows,
    bypass::{Reason, bypassed},
    unexplained::is_of_the_core,
    unobserved::of_device,
};
use crate::{
    cause::{Cause, CauseId, Concerns, Obstacle},
    facts::{DeviceRow, Facts, Health, Hidden, ProcessRow, QpRow, Quantity, Traffic},
    input::{EbpfState, UprobesReport},
    value::Source,
};
use rdmatop_base::order::Gather as _;

const BY_KERNEL: Reason = Reason {
    id: CauseId::NotFollowed,
    why: "the kernel posts these itself, and no program of rdmatop follows this driver there",
    remedy: "",
};
const NO_PROBE: Reason = Reason {
    id: CauseId::NotProbed,
    why: "these posts bypass the kernel, and no probe on a program counts them",
    remedy: "",
};
const NO_SLOT: Reason = Reason {
    id: CauseId::NoSlot,
    why: "it moved when no counter slot was free, or the tables of QPs had no room for it",
    remedy: "a note says more",
};
const MAYBE_NO_SLOT: Reason = Reason {
    id: CauseId::NoSlot,
    why: "some QPs found no free counter slot, or no room in the tables of QPs, and which ones is not known",
    remedy: "a note says more",
};
const ONLY_POSTS: Reason = Reason {
    id: CauseId::NotFollowed,
    why: "probes on programs see what is posted, and not what becomes of it",
    remedy: "",
};

pub(super) fn concerns(device: Option<&DeviceRow>) -> Concerns {
    device.map_or(Concerns::Host, of_device)
}

/// Why no program counts the work requests of a device (or of an unknown one); `None` if one does.
pub(super) fn why_uncounted(health: &Health, device: Option<&DeviceRow>) -> Option<Cause> {
    let because = |id, why: &str, remedy: &'static str| Obstacle::new(id, why, remedy);
    let obstacle = match &health.ebpf {
        EbpfState::Starting => because(CauseId::EbpfStarts, "eBPF is starting", ""),
        EbpfState::Disabled => because(CauseId::NoEbpf, "--no-ebpf leaves out what counts it", ""),
        EbpfState::Unavailable(off) => {
            let why = format!("eBPF is off: {}", off.cause.why);
            because(off.cause.id, &why, "")
        }
        EbpfState::On { .. } if device.is_none_or(|device| !device.followed) => not_followed(health),
        EbpfState::On { .. } if device.is_some_and(|device| device.datapath.is_none()) => because(
            CauseId::NoDataPath,
            "the programs that count it are not attached",
            "`rdmatop probes` says why",
        ),
        EbpfState::On { .. } => return None,
    };
    Some(obstacle.takes(Quantity::WorkRequests.name(), concerns(device)))
}

/// Why posts that the kernel does not see are not counted.
fn not_followed(health: &Health) -> Obstacle {
    match health.uprobes.as_deref() {
        None => Obstacle::new(
            CauseId::NotFollowed,
            "no program follows these posts: most NICs' posts bypass the kernel",
            "`--uprobes` counts them where the program uses libibverbs",
        ),
        Some(UprobesReport { off: Some(off), .. }) => Obstacle::new(off.id, &*off.why, off.remedy.clone()),
        Some(UprobesReport { pid: Some(pid), .. }) => {
            let why = format!("these posts bypass the kernel, and only process {pid} is probed");
            Obstacle::new(CauseId::NotProbed, why, "`--uprobes` probes all")
        }
        Some(_) => Obstacle::new(NO_PROBE.id, NO_PROBE.why, ""),
    }
}

/// The QPs of a device: whether their work requests are counted. QPs of the RDMA core are left out, because
/// no process posts work requests to them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Counted {
    /// Work requests of some QPs are counted.
    some: bool,
    /// How many QPs are not counted, by owner.
    silent: BTreeMap<Owner, u64>,
}

/// Whether the kernel owns it, and the uid of its process if that is known.
type Owner = (bool, Option<u64>);

/// Whether no counter says how many work requests there were.
fn says_nothing(traffic: &Traffic) -> bool {
    let known = [
        traffic.tx_wr,
        traffic.tx_wr_posted,
        traffic.rx_wr,
        traffic.rx_wr_posted,
    ];
    known.iter().all(Option::is_none)
}

/// Counts a live QP among those of its device.
pub(super) fn count(all: &mut BTreeMap<u64, Counted>, qp: &QpRow) {
    let Some(device) = qp.device_uid.filter(|_| !is_of_the_core(qp)) else {
        return;
    };
    let counted = all.entry(device).or_default();
    if says_nothing(&qp.traffic) {
        *counted.silent.entry((qp.kernel, qp.process_uid)).or_default() += 1;
    } else {
        counted.some = true;
    }
}

/// Whether probes on programs count the work requests of a device, or would count them if they were not off.
pub(super) fn is_probed(health: &Health, device: &DeviceRow) -> bool {
    health.ebpf.is_on() && health.uprobes.is_some() && !device.followed
}

/// For a device where [`is_probed`] holds: what is unknown, for how many of its QPs (`None`: all), and why.
/// `cause` says why the QPs that no probe counts are unknown.
pub(super) fn not_probed(
    facts: &Facts,
    rows: &Rows,
    device: &DeviceRow,
    cause: Cause,
) -> Vec<(Quantity, Option<u64>, Cause)> {
    const WHAT: Quantity = Quantity::WorkRequests;
    let none = Counted::default();
    let counted = rows.counted.get(&device.uid).unwrap_or(&none);
    let processes = facts.processes.iter().map(|process| (process.uid, process));
    let processes: BTreeMap<u64, &ProcessRow> = processes.gather();
    let mut plain = 0;
    let mut others: Vec<(&'static Reason, u64)> = Vec::new();
    for ((kernel, uid), qps) in &counted.silent {
        let process = uid.and_then(|uid| processes.get(&uid).copied());
        let own = own_reason(&facts.health, device, *kernel, process);
        match own.map(|own| (own, others.iter_mut().find(|(known, _)| *known == own))) {
            None => plain += qps,
            Some((_, Some((_, sum)))) => *sum += qps,
            Some((own, None)) => others.push((own, *qps)),
        }
    }
    let others = others.into_iter();
    let others = others.map(|(why, qps)| (WHAT, Some(qps), why.cause(WHAT, Some(device))));
    let mut out: Vec<_> = others.collect();
    if !counted.some {
        // The device may be used without any QP that the kernel knows.
        out.insert(0, (WHAT, None, cause));
        return out;
    }
    if plain > 0 {
        out.insert(0, (WHAT, Some(plain), cause));
    }
    let becomes = Quantity::Completions;
    out.push((becomes, None, ONLY_POSTS.cause(becomes, Some(device))));
    out
}

/// The reason of its own that a process, or the kernel, has on a device; `None`: that of all QPs of the
/// device.
fn own_reason(
    health: &Health,
    device: &DeviceRow,
    kernel: bool,
    process: Option<&ProcessRow>,
) -> Option<&'static Reason> {
    // In all other cases the device's reason is not that no program follows its posts.
    if device.followed || !health.ebpf.is_on() {
        return None;
    }
    if kernel {
        return Some(&BY_KERNEL);
    }
    let report = health.uprobes.as_deref().filter(|report| report.off.is_none())?;
    let process = process.filter(|process| report.pid.is_none() || process.pid == report.pid)?;
    bypassed(device, process).or_else(|| report.pid.is_some().then_some(&NO_PROBE))
}

/// What is unknown of a QP, and why: either everything about work requests, or some quantities. What will be
/// known with the next reading is not among them.
fn unknown_of(facts: &Facts, qp: &QpRow) -> Vec<(Quantity, Cause)> {
    const WHAT: Quantity = Quantity::WorkRequests;
    let health = &facts.health;
    let device = facts.devices.iter().find(|row| Some(row.uid) == qp.device_uid);
    let lost = |at: &str| health.losses.iter().any(|loss| loss.at == at && loss.count > 0);
    let of_all = if !says_nothing(&qp.traffic) {
        None
    } else if qp.uncounted {
        Some(NO_SLOT.cause(WHAT, device))
    } else if let Some(cause) = why_uncounted(health, device) {
        let process = facts.processes.iter().find(|row| Some(row.uid) == qp.process_uid);
        let own = device.and_then(|on| own_reason(health, on, qp.kernel, process));
        Some(own.map_or(cause, |own| own.cause(WHAT, device)))
    } else {
        (lost("slot") || lost("place")).then(|| MAYBE_NO_SLOT.cause(WHAT, device))
    };
    if let Some(cause) = of_all {
        return vec![(WHAT, cause)];
    }
    let mut posted = [qp.traffic.tx_wr, qp.traffic.rx_wr_posted].into_iter().flatten();
    if posted.any(|counter| counter.source == Source::Uprobe) {
        let becomes = Quantity::Completions;
        return vec![(becomes, ONLY_POSTS.cause(becomes, device))];
    }
    let hidden = device.map_or(&[][..], |device| device.hidden).iter();
    let cause = |hidden: &Hidden| {
        Obstacle::new(CauseId::NotInDriver, hidden.why, "").takes(hidden.what.name(), concerns(device))
    };
    hidden.map(|hidden| (hidden.what, cause(hidden))).collect()
}

/// What is unknown of a QP, and why: either everything about work requests, or some quantities.
pub fn why_qp_is_unknown(facts: &Facts, qp: &QpRow) -> Vec<Cause> {
    let unknown = unknown_of(facts, qp);
    unknown.into_iter().map(|(_, cause)| cause).collect()
}

/// Why the work requests of a process are unknown. `None` if some are known, or if a program counts those of
/// one of the process's devices.
pub fn why_process_is_uncounted(facts: &Facts, process: &ProcessRow) -> Option<Cause> {
    if !says_nothing(&process.traffic) {
        return None;
    }
    let health = &facts.health;
    let devices = facts.devices.iter();
    let own = devices.filter(|device| process.devices.contains(&device.name));
    if let Some(followed) = own.clone().find(|device| device.followed) {
        return why_uncounted(health, Some(followed));
    }
    let cause = why_uncounted(health, None)?;
    let mut special = own.filter_map(|device| {
        let own = own_reason(health, device, process.kernel, Some(process))?;
        Some(own.cause(Quantity::WorkRequests, Some(device)))
    });
    Some(special.next().unwrap_or(cause))
}

/// The QPs of a snapshot as JSON: each row, and which of its quantities are unknown. These are computed only
/// here, so that a snapshot that nobody writes costs nothing.
pub(crate) struct QpsWritten<'a>(pub(crate) &'a Facts);

impl Serialize for QpsWritten<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Row<'a> {
            #[serde(flatten)]
            row: &'a QpRow,
            #[serde(serialize_with = "ids")]
            unknown: Vec<(Quantity, Cause)>,
        }
        let mut rows = serializer.serialize_seq(Some(self.0.qps.len()))?;
        for row in &self.0.qps {
            let unknown = unknown_of(self.0, row);
            rows.serialize_element(&Row { row, unknown })?;
        }
        rows.end()
    }
}

/// Quantities that are unknown, with the ids of their causes.
fn ids<S: Serializer>(unknown: &[(Quantity, Cause)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(unknown.iter().map(|(what, cause)| (what, cause.id)))
}
