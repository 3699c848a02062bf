//! Ports that move data which no queue pair that the kernel lists can move.
//!
//! A driver may let a library make queue pairs past ib_core. mlx5's does (DEVX), and UCX, NVSHMEM and DOCA
//! use it. The kernel then knows neither the queue pairs nor the work requests, but the port counts the
//! bytes, and the process has the device's file open.
//!
//! A healthy machine must never be accused of this. Therefore the port's bytes must be those of queue pairs
//! alone (`PortRow::rdma_alone`), and the state of each known queue pair must rule out that it moved them. A
//! queue pair whose exact counts are 0 is not ruled out: a peer may read and write through it.

#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, sync::Arc};

use serde::{Serialize, Serializer, ser::SerializeStruct as _};

use crate::{
    cause::{Cause, CauseId, Concerns, Obstacle},
    facts::{DeviceRow, DeviceState, DevxObjects, Facts, PortRow, ProcessRow, QpRow},
    input::{Opener, OpenersSample},
};
use rdmatop_base::order::Gather as _;
use rdmatop_base::step::{NextStep, ShellWord, step};
use rdmatop_base::text;
use rdmatop_base::turns::in_turn;

/// Bytes per second, both ways together, from which traffic needs an explanation. Management datagrams are
/// far less.
const MUCH: f64 = 1e6;
/// Counters and QPs are not read at the same time. A queue pair that left the states in which data moves less
/// than this ago (ns) may therefore have moved the counted bytes.
const SETTLED: u64 = 10_000_000_000;
/// Without records of everything that happens to QPs, a QP may have come and gone unseen. The traffic must
/// then go on for this many samples.
const SAMPLES: usize = 4;
/// Candidates that a sentence names.
const NAMED: usize = 4;
/// Libraries that tell what a candidate is. A sentence names the first of these that it has.
#[rustfmt::skip] // names, as many as a line has room for
const TELLING: [&str; 9] = [
    "libnvshmem", "libdoca_gpunetio", "libdoca_", "libuct", "libucp", "libfabric", "libnccl", "librccl",
    "libmlx5",
];

/// A port that moves data which no known queue pair can have moved.
#[derive(Clone, Debug, PartialEq)]
pub struct Unexplained {
    /// Device name.
    pub device: Arc<str>,
    /// Port number.
    pub port: u32,
    /// Why that is so, and who has the device open.
    pub cause: Cause,
    openers: Option<Arc<OpenersSample>>,
}

/// The unexplained ports of a snapshot with all rows. `openers`: who has which device open, if looked up.
pub(crate) fn unexplained(facts: &Facts, openers: Option<&Arc<OpenersSample>>) -> Vec<Unexplained> {
    let moving: Vec<&PortRow> = facts.ports.iter().filter(|port| moves(facts, port)).collect();
    if moving.is_empty() {
        return Vec::new();
    }
    // Only now, because this looks at all QPs.
    let explained = explained(facts);
    let one = |port: &PortRow| {
        let mut devices = facts.devices.iter();
        let device = devices.find(|device| device.uid == port.device_uid)?;
        let plain = device.state == Some(DeviceState::Registered) && !device.followed;
        let none = plain && !explained.contains(&device.uid) && are_known(&facts.qps, device);
        none.then(|| Unexplained::new(device, port.port, openers.cloned()))
    };
    moving.into_iter().filter_map(one).collect()
}

/// One note for all ports that have the same cause and remedy.
pub(crate) fn notes_of(all: &[Unexplained]) -> Vec<Cause> {
    let mut groups: Vec<(Vec<String>, &Cause)> = Vec::new();
    for one in all {
        let place = format!("{}/{}", one.device, one.port);
        let same = |cause: &Cause| (&cause.why, &cause.remedy) == (&one.cause.why, &one.cause.remedy);
        match groups.iter_mut().find(|(_, cause)| same(cause)) {
            Some((places, _)) => places.push(place),
            None => groups.push((vec![place], &one.cause)),
        }
    }
    let note = |(places, cause): (Vec<String>, &Cause)| {
        let moves = if places.len() == 1 { "moves" } else { "move" };
        Cause {
            what: format!(
                "{} {moves} data without a queue pair that the kernel lists",
                text::names(&places)
            ),
            ..cause.clone()
        }
    };
    groups.into_iter().map(note).collect()
}

impl Unexplained {
    /// The entry for a port of this device. `openers`: who has which device open, if looked up.
    pub fn new(device: &DeviceRow, port: u32, openers: Option<Arc<OpenersSample>>) -> Self {
        Self {
            device: Arc::clone(&device.name),
            port,
            cause: cause(device, openers.as_deref()),
            openers,
        }
    }

    /// Processes that have the device open; `None` if nobody has looked yet.
    fn candidates(&self) -> Option<impl Iterator<Item = &Opener>> {
        let sample = self.openers.as_deref()?;
        Some(sample.found.iter().filter(|one| *one.device == *self.device))
    }
}

impl Serialize for Unexplained {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let candidates: Option<Vec<_>> = self.candidates().map(Iterator::collect);
        let whole = |sample: &Arc<OpenersSample>| !sample.hidden && !sample.cut;
        let mut object = serializer.serialize_struct("Unexplained", 5)?;
        object.serialize_field("device", &self.device)?;
        object.serialize_field("port", &self.port)?;
        object.serialize_field("cause", &self.cause)?;
        object.serialize_field("candidates", &candidates)?;
        object.serialize_field("candidates_whole", &self.openers.as_ref().map(whole))?;
        object.end()
    }
}

/// Whether a port moves so many bytes, all of them of queue pairs, that some queue pair must have moved them.
fn moves(facts: &Facts, port: &PortRow) -> bool {
    let rate = |counter: Option<crate::value::Counter>| counter.and_then(|counter| counter.rate);
    let now = [port.tx_bytes, port.rx_bytes].into_iter().filter_map(rate);
    if !port.rdma_alone || now.sum::<f64>() < MUCH {
        return false;
    }
    let records = facts.health.follows_qps && facts.health.lost_events == Some(0);
    let (tx, rx) = (&port.history.tx, &port.history.rx);
    let sums = tx.iter().zip(rx).rev().take(SAMPLES);
    let sums = sums.map(|(tx, rx)| tx.unwrap_or(0.0) + rx.unwrap_or(0.0));
    records || sums.filter(|sum| *sum >= MUCH).count() == SAMPLES
}

/// Devices with a queue pair that may have moved data since the counters were read before, or with one that
/// the kernel does not list and whose owner is known.
fn explained(facts: &Facts) -> BTreeSet<u64> {
    let able = |qp: &&Arc<QpRow>| !is_of_the_core(qp) && (qp.exited || may_move(qp, facts.mono_ns));
    facts
        .qps
        .iter()
        .filter(able)
        .filter_map(|qp| qp.device_uid)
        .chain(unlisted_qps(facts).filter_map(|objects| objects.device_uid))
        .gather()
}

/// Queue pairs that the kernel does not list and whose making was seen, with their owners.
fn unlisted_qps(facts: &Facts) -> impl Iterator<Item = &DevxObjects> {
    facts.processes.iter().flat_map(ProcessRow::unlisted_qps)
}

/// Of how many queue pairs that the kernel does not list no fault and no state is seen, in words; `None`: of
/// none that is known.
pub fn unseen_qps(facts: &Facts) -> Option<String> {
    let all = || unlisted_qps(facts);
    let devices: BTreeSet<_> = all().map(|objects| &objects.device).gather();
    let count: u64 = all().map(DevxObjects::carriers).sum();
    let on = match devices.first()? {
        Some(device) if devices.len() == 1 => format!(" on {device}"),
        None if devices.len() == 1 => String::new(),
        _ => format!(" on {} devices", devices.len()),
    };
    let whole = all().all(|objects| objects.whole);
    let at_least = if whole { "" } else { "at least " };
    let qps = text::count(count, "DEVX QP");
    Some(format!("nothing is seen of {at_least}{qps}{on}"))
}

/// A queue pair for management datagrams, or one that the driver itself uses to register memory.
pub(crate) fn is_of_the_core(qp: &QpRow) -> bool {
    let management = qp.qp_type.is_some_and(|kind| kind.0 < 2);
    management || (qp.kernel && qp.comm.as_deref() == Some("[mlx5_ib]"))
}

/// Whether a queue pair is, or was less than [`SETTLED`] ago, in a state in which data moves.
fn may_move(qp: &QpRow, now_ns: u64) -> bool {
    // RESET, INIT, ERR.
    let still = qp.state.is_some_and(|state| matches!(state.0, 0 | 1 | 6));
    let since = qp.timeline.last().map(|step| step.mono_ns);
    !still || since.is_none_or(|since| now_ns.saturating_sub(since) < SETTLED)
}

/// Whether all queue pairs that the kernel counts on the device are known.
pub(crate) fn are_known(qps: &[Arc<QpRow>], device: &DeviceRow) -> bool {
    let own = qps
        .iter()
        .filter(|qp| !qp.exited && qp.device_uid == Some(device.uid));
    device.qps.is_some_and(|qps| qps <= own.count() as u64)
}

fn cause(device: &DeviceRow, openers: Option<&OpenersSample>) -> Cause {
    let why = if device.may_hide_qps() {
        "a library can make queue pairs past the kernel (DEVX, as UCX, NVSHMEM and DOCA do on mlx5), also for a GPU to post to: their \
         work requests are unknown, not 0"
    } else {
        "whose they are is unknown, and so are their work requests, which are not 0"
    };
    let remedy = openers.map_or_else(NextStep::default, |openers| words(&device.name, openers));
    Obstacle::new(CauseId::UnseenQps, why, remedy).takes(
        "Work requests of queue pairs that the kernel does not list",
        Concerns::Device(device.name.to_string()),
    )
}

/// The remedy: who the candidates are, or how to find them.
fn words(device: &str, openers: &OpenersSample) -> NextStep {
    let own = || openers.found.iter().filter(|one| one.device == device);
    let named = in_turn(own(), NAMED, |one| one.user);
    let more = own().count() - named.len();
    let named = named.into_iter().map(described);
    let named = named.reduce(|all, one| step!("{}, {}", all, one));
    let Some(named) = named else {
        return match (openers.cut, openers.hidden) {
            // Nobody was found is no proof: a user who wants to stay unseen can open as many files.
            (true, _) => {
                "A user has too many open files to look at each; one of them may be the device's".into()
            }
            (false, true) => "Run with sudo, to see which processes have the device open".into(),
            (false, false) => "No process of this machine has the device open".into(),
        };
    };
    let hidden = openers.hidden || openers.cut;
    let more = if more > 0 {
        step!(" and {} more", more)
    } else {
        "".into()
    };
    step!(
        "Candidates, which have the device open: {}{}{}",
        named,
        more,
        if hidden {
            "; others may, whose open files were not read"
        } else {
            ""
        }
    )
}

fn described(one: &Opener) -> NextStep {
    let libraries = one.libraries.as_deref().unwrap_or_default();
    let telling = TELLING
        .iter()
        .find_map(|name| libraries.iter().find(|library| library.starts_with(name)));
    let fact = |fact: Option<&String>| {
        fact.map_or_else(NextStep::default, |fact| step!(", {}", ShellWord::said(fact)))
    };
    step!(
        "{} (PID {}{}{})",
        one.comm
            .as_deref()
            .map_or_else(|| "?".into(), |comm| step!("{}", ShellWord::said(comm))),
        one.pid,
        fact(one.workload.as_ref()),
        fact(telling)
    )
}
