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
    facts::{DeviceRow, Facts, Health, ProcessRow, QpRow, Quantity, Traffic},
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
        Some(_) => Obstacle::new(NO_PROBE.id, NO_PROBE.why, NO_PROBE.remedy),
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    Kernel,
    /// A process, by its uid if that is known.
    Process(Option<u64>),
}

impl Owner {
    fn of(qp: &QpRow) -> Self {
        if qp.kernel {
            Self::Kernel
        } else {
            Self::Process(qp.process_uid)
        }
    }
}

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
        *counted.silent.entry(Owner::of(qp)).or_default() += 1;
    } else {
        counted.some = true;
    }
}

fn by_uid(processes: &[ProcessRow]) -> BTreeMap<u64, &ProcessRow> {
    processes.iter().map(|process| (process.uid, process)).gather()
}

/// Whether probes on programs count the work requests of a device, or would count them if they were not off.
pub(super) fn is_probed(health: &Health, device: &DeviceRow) -> bool {
    matches!(health.ebpf, EbpfState::On { .. }) && health.uprobes.is_some() && !device.followed
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
    let processes = by_uid(&facts.processes);
    let mut plain = 0;
    let mut others: Vec<(Why<'_>, u64)> = Vec::new();
    for (owner, qps) in &counted.silent {
        let process = match owner {
            Owner::Process(uid) => uid.and_then(|uid| processes.get(&uid).copied()),
            Owner::Kernel => None,
        };
        let why = Why::refined(&cause, &facts.health, device, *owner == Owner::Kernel, process);
        match others.iter_mut().find(|(known, _)| *known == why) {
            _ if why == Why::OfDevice(&cause) => plain += qps,
            Some((_, sum)) => *sum += qps,
            None => others.push((why, *qps)),
        }
    }
    let others = others
        .into_iter()
        .map(|(why, qps)| (WHAT, Some(qps), why.cause(WHAT, Some(device))));
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

/// Why the work requests of a QP or a process are unknown, before it is put into words.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Why<'a> {
    /// The reason is that of all QPs of the device.
    OfDevice(&'a Cause),
    /// The QP or the process has a reason of its own.
    Own(&'static Reason),
}

impl<'a> Why<'a> {
    /// The reason for what a process or the kernel has on a device; `cause` is the device's own reason.
    fn refined(
        cause: &'a Cause,
        health: &Health,
        device: &DeviceRow,
        kernel: bool,
        process: Option<&ProcessRow>,
    ) -> Self {
        // In all other cases the device's reason is not that no program follows its posts.
        if device.followed || !matches!(health.ebpf, EbpfState::On { .. }) {
            return Self::OfDevice(cause);
        }
        if kernel {
            return Self::Own(&BY_KERNEL);
        }
        let Some(report) = health.uprobes.as_deref().filter(|report| report.off.is_none()) else {
            return Self::OfDevice(cause);
        };
        let Some(process) = process.filter(|process| report.pid.is_none() || process.pid == report.pid)
        else {
            return Self::OfDevice(cause);
        };
        match bypassed(device, process) {
            Some(reason) => Self::Own(reason),
            None if report.pid.is_some() => Self::Own(&NO_PROBE),
            None => Self::OfDevice(cause),
        }
    }

    fn id(self) -> CauseId {
        match self {
            Self::OfDevice(cause) => cause.id,
            Self::Own(reason) => reason.id,
        }
    }

    fn cause(self, what: Quantity, device: Option<&DeviceRow>) -> Cause {
        match self {
            Self::OfDevice(cause) => cause.clone(),
            Self::Own(reason) => reason.cause(what, device),
        }
    }
}

/// What is needed to say which quantities of a QP are unknown, and why; made once for all QPs.
struct QpUnknowns<'a> {
    health: &'a Health,
    devices: BTreeMap<u64, (&'a DeviceRow, Option<Cause>)>,
    processes: BTreeMap<u64, &'a ProcessRow>,
    /// Why the QPs of an unknown device are not counted.
    nowhere: Option<Cause>,
    /// Some QPs found no slot.
    short: bool,
}

impl<'a> QpUnknowns<'a> {
    fn of(facts: &'a Facts) -> Self {
        let health = &facts.health;
        let devices = facts.devices.iter();
        Self {
            health,
            devices: devices
                .map(|device| (device.uid, (device, why_uncounted(health, Some(device)))))
                .collect(),
            processes: by_uid(&facts.processes),
            nowhere: why_uncounted(health, None),
            short: health
                .losses
                .iter()
                .any(|loss| matches!(loss.at, "slot" | "place") && loss.count > 0),
        }
    }

    fn device(&self, qp: &QpRow) -> Option<&(&'a DeviceRow, Option<Cause>)> {
        self.devices.get(&qp.device_uid?)
    }

    /// Why the work requests of a QP are unknown; `None` if they are known, or will be with the next reading.
    fn why(&self, qp: &QpRow) -> Option<Why<'_>> {
        if !says_nothing(&qp.traffic) {
            return None;
        }
        if qp.uncounted {
            return Some(Why::Own(&NO_SLOT));
        }
        let Some((device, cause)) = self.device(qp) else {
            return self.nowhere.as_ref().map(Why::OfDevice);
        };
        let Some(cause) = cause else {
            return self.short.then_some(Why::Own(&MAYBE_NO_SLOT));
        };
        let process = qp.process_uid.and_then(|uid| self.processes.get(&uid));
        let process = process.copied();
        Some(Why::refined(cause, self.health, device, qp.kernel, process))
    }

    /// For a QP of which some quantities are known, calls `tell` with each one that is unknown: the quantity,
    /// and the id and the words of its cause.
    fn parts(&self, qp: &QpRow, mut tell: impl FnMut(Quantity, CauseId, &'static str)) {
        let mut posted = [qp.traffic.tx_wr, qp.traffic.rx_wr_posted].into_iter().flatten();
        if posted.any(|counter| counter.source == Source::Uprobe) {
            tell(Quantity::Completions, ONLY_POSTS.id, ONLY_POSTS.why);
            return;
        }
        let hidden = self.device(qp).map_or(&[][..], |(device, _)| device.hidden);
        for hidden in hidden {
            tell(hidden.what, CauseId::NotInDriver, hidden.why);
        }
    }
}

/// What is unknown of a QP, and why: either everything about work requests, or some quantities.
pub fn why_qp_is_unknown(facts: &Facts, qp: &QpRow) -> Vec<Cause> {
    let known = QpUnknowns::of(facts);
    let device = known.device(qp).map(|(device, _)| *device);
    if let Some(why) = known.why(qp) {
        return vec![why.cause(Quantity::WorkRequests, device)];
    }
    let mut out = Vec::new();
    known.parts(qp, |what, id, why| {
        out.push(Obstacle::new(id, why, "").takes(what.name(), concerns(device)));
    });
    out
}

/// Why the work requests of a process are unknown. `None` if some are known, or if a program counts those of
/// one of the process's devices.
pub fn why_process_is_uncounted(facts: &Facts, process: &ProcessRow) -> Option<Cause> {
    if !says_nothing(&process.traffic) {
        return None;
    }
    let health = &facts.health;
    let own = facts
        .devices
        .iter()
        .filter(|device| process.devices.contains(&device.name));
    if let Some(followed) = own.clone().find(|device| device.followed) {
        return why_uncounted(health, Some(followed));
    }
    let cause = why_uncounted(health, None)?;
    let mut whys = own.map(|device| {
        let why = Why::refined(&cause, health, device, process.kernel, Some(process));
        (why, device)
    });
    let special = whys.find(|(why, _)| *why != Why::OfDevice(&cause));
    Some(match special {
        Some((why, device)) => why.cause(Quantity::WorkRequests, Some(device)),
        None => cause.clone(),
    })
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
            unknown: Unknown<'a>,
        }
        let known = QpUnknowns::of(self.0);
        let mut rows = serializer.serialize_seq(Some(self.0.qps.len()))?;
        for row in &self.0.qps {
            let unknown = Unknown { known: &known, row };
            rows.serialize_element(&Row { row, unknown })?;
        }
        rows.end()
    }
}

/// Quantities of a QP that are unknown, with the ids of their causes.
struct Unknown<'a> {
    known: &'a QpUnknowns<'a>,
    row: &'a QpRow,
}

impl Serialize for Unknown<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut all = Vec::new();
        match self.known.why(self.row) {
            Some(why) => all.push((Quantity::WorkRequests, why.id())),
            None => self.known.parts(self.row, |what, id, _| all.push((what, id))),
        }
        serializer.collect_map(all)
    }
}
