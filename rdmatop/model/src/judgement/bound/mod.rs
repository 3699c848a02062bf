//! How busy the links of a job are, and whether the job waits for them.
//!
//! The job of a process is all processes with the same workload, or the process alone if it has no workload
//! or only claims one. Its links are the ACTIVE ports on which the job has a queue pair that can move data.
//! If the true rate of one link is unknown, nothing is said. The traffic of the links is what is counted of
//! the job, if that is complete; otherwise it is everything that passed the ports, whoever moved it.
//!
//! Links at rest do not mean that a job computes: it may wait for another node. NVML's utilisation cannot
//! tell the difference: it is the time in which any kernel runs (`nvmlUtilization_t`), and an NCCL kernel
//! that waits for a peer runs too (100 % in a hang, NVIDIA/nccl issue 238). The activity of multiprocessors
//! and tensor cores, which GPUs from Hopper on count, does tell ([`gpu`]). When links are full and GPUs
//! compute, the job overlaps the two, and there is no verdict.

mod gpu;
#[cfg(test)]
mod gpu_tests;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use super::{Judgement, unexplained::is_of_the_core};
use crate::{
    facts::{Bound, Facts, GpuUse, PortRow, ProcessRow, QpRow, Recent},
    ib::PortState,
    input::GpuSample,
    value::{MIDDLE_IS_WITHIN, Source},
};
use rdmatop_base::order::Gather as _;

/// From this share of what its links can carry, a job is bound by communication (our limit). Headers and gaps
/// between messages take the rest.
const BUSY: f64 = 0.8;
/// Below this share of its links a job whose GPUs compute is bound by computing (our limit).
const IDLE: f64 = 0.5;
/// Shortest time, ns, on which a verdict may rest (our limit): a job computes and communicates in turn.
const LEAST_NS: u64 = 10_000_000_000;
/// Above this share (our limit) the data cannot have passed the links: it stayed inside a NIC.
const IMPOSSIBLE: f64 = 1.05;
/// If one part was watched for less than this share of the time, the sum is a lower bound (our limit).
const MOSTLY: f64 = 0.9;

/// A port of a device; `None`: the queue pair's port is not known.
pub(super) type Link = (u64, Option<u32>);

/// The links of each process; the key `None` stands for queue pairs whose process is not known.
pub(super) type Links = BTreeMap<Option<u64>, BTreeSet<Link>>;

/// The process and the link of a queue pair that can move data.
pub(super) fn link_of(qp: &QpRow) -> Option<(Option<u64>, Link)> {
    // RTR, RTS, SQD, SQE: in the other states nothing moves.
    let able = qp.state.is_none_or(|state| matches!(state.0, 2..=5)) && !is_of_the_core(qp);
    Some((qp.process_uid, (qp.device_uid?, qp.port))).filter(|_| able)
}

/// Processes that work together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum JobKey<'a> {
    Workload(&'a str),
    Process(u64),
}

impl<'a> JobKey<'a> {
    fn of(row: &'a ProcessRow) -> Self {
        row.job()
            .map_or(Self::Process(row.uid), |job| Self::Workload(job))
    }
}

type Ports<'a> = BTreeMap<u64, Vec<&'a PortRow>>;
/// Ports by device and number.
type Used<'a> = BTreeMap<(u64, u32), &'a PortRow>;

#[derive(Default)]
struct Job {
    links: BTreeSet<Link>,
    moved: Vec<Recent>,
    processes: u64,
    gpu: Option<GpuUse>,
}

impl Job {
    /// The ACTIVE ports among its links; `None` when a port or its state is not known.
    fn ports<'a>(&self, ports: &Ports<'a>) -> Option<Used<'a>> {
        let mut used = Used::new();
        for (device, port) in &self.links {
            let of_device = ports.get(device)?;
            let port = match (port, &of_device[..]) {
                (Some(port), rows) => rows.iter().find(|row| row.port == *port)?,
                (None, [only]) => only,
                (None, _) => return None,
            };
            if port.state.map(PortState::is_active)? {
                used.insert((*device, port.port), port);
            }
        }
        Some(used)
    }

    /// `alone`: nobody else has queue pairs on its ports.
    fn judge(&self, used: &Used<'_>, alone: bool) -> Option<Bound> {
        let rates = used.values().map(|port| port.rate_bps);
        let capacity = rates.sum::<Option<u64>>()? as f64 / 8.0;
        let own = Carried::sum(&self.moved, self.processes);
        let passed: Vec<Recent> = used.values().filter_map(|port| port.recent).collect();
        let passed = Carried::sum(&passed, used.len() as u64).filter(|carried| !carried.partial);
        let (carried, of_ports) = match (own, passed) {
            (Some(own), _) if !own.partial => (own, false),
            (_, Some(passed)) => (passed, true),
            (own, None) => (own?, false),
        };
        // Traffic of another job, or of IP, may be nothing that this job waits for.
        let is_its_own = !of_ports || (alone && used.values().all(|port| port.rdma_alone));
        let share = carried.per_s / capacity;
        let off = if carried.source == Source::Psn {
            MIDDLE_IS_WITHIN
        } else {
            0.0
        };
        // The comparison also drops NaN (the capacity is 0). A lower bound near 0 says nothing.
        let telling = share <= IMPOSSIBLE && (!carried.partial || share >= 0.01);
        let is_long = carried.ns >= LEAST_NS;
        let waits = is_its_own && share * (1.0 - off) >= BUSY && is_long;
        let computes = self.gpu.is_some_and(gpu::computes);
        let verdict = match (waits, computes) {
            (true, false) => Some("communication"),
            (false, true) if is_long && share * (1.0 + off) < IDLE && !carried.partial => Some("compute"),
            _ => None,
        };
        telling.then(|| Bound {
            share: share.min(1.0),
            partial: carried.partial,
            of_ports,
            seconds: carried.ns as f64 / 1e9,
            processes: self.processes,
            source: carried.source,
            verdict,
            gpu: self.gpu,
        })
    }
}

/// Bytes per second of the busier direction.
struct Carried {
    per_s: f64,
    ns: u64,
    partial: bool,
    source: Source,
}

impl Carried {
    /// The sum of `parts`; if there are not `expected` many, it is a lower bound. Its source is the one that
    /// says least.
    fn sum(parts: &[Recent], expected: u64) -> Option<Self> {
        let ns = parts.iter().map(|one| one.ns).max()?;
        let short = |one: &Recent| (one.ns as f64) < ns as f64 * MOSTLY;
        let lacks = |one: &Recent| one.tx.is_none() || one.rx.is_none() || !one.whole || short(one);
        let partial = parts.len() as u64 != expected || parts.iter().any(lacks);
        let way = |of: fn(&Recent) -> Option<f64>| {
            let shares = parts.iter().map(|one| {
                // In a lower bound a share by PSN counts with its own.
                let is_bound = partial && one.source == Source::Psn;
                let off = if is_bound { MIDDLE_IS_WITHIN } else { 0.0 };
                Some(of(one)? * (1.0 - off) * (one.ns as f64 / ns as f64))
            });
            shares.sum::<Option<f64>>()
        };
        let ways = [way(|one| one.tx), way(|one| one.rx)];
        Some(Self {
            per_s: ways.into_iter().flatten().reduce(f64::max)?,
            ns,
            partial,
            source: parts.iter().map(|one| one.source).max()?,
        })
    }
}

impl Judgement {
    /// How busy the links of each process were, in their order; the facts are those that were judged, with
    /// all rows.
    pub(crate) fn bounds(&self, facts: &Facts, gpus: &[GpuSample]) -> Vec<Option<Bound>> {
        let (rows, links) = (&facts.processes, &self.rows.links);
        let mut ports = Ports::new();
        for port in &facts.ports {
            ports.entry(port.device_uid).or_default().push(port);
        }
        // The only user of each link, `Some(None)` for a process that is not known, or has ended; `None`
        // where there are several.
        let mut users: BTreeMap<Link, Option<Option<JobKey<'_>>>> = BTreeMap::new();
        let living = rows.iter().filter(|row| !row.exited);
        let living: BTreeMap<u64, JobKey<'_>> = living.map(|row| (row.uid, JobKey::of(row))).gather();
        for (process, links) in links {
            let user = process.and_then(|uid| living.get(&uid).copied());
            for link in links {
                let only = users.entry(*link).or_insert(Some(user));
                *only = only.filter(|only| *only == user);
            }
        }
        let mut jobs: BTreeMap<JobKey<'_>, Job> = BTreeMap::new();
        for row in rows.iter().filter(|row| !row.exited) {
            let Some(links) = links.get(&Some(row.uid)) else {
                continue;
            };
            let job = jobs.entry(JobKey::of(row)).or_default();
            job.links.extend(links);
            job.moved.extend(row.recent);
            job.processes += 1;
        }
        if !gpus.is_empty() {
            let mut pids: BTreeMap<JobKey<'_>, BTreeSet<u32>> = BTreeMap::new();
            for row in rows.iter().filter(|row| !row.exited && !row.kernel) {
                pids.entry(JobKey::of(row)).or_default().extend(row.pid);
            }
            for (key, job) in &mut jobs {
                let of = |pids| gpu::use_of(pids, gpus, facts.mono_ns);
                job.gpu = pids.get(key).and_then(of);
            }
        }
        let judged = jobs.iter().filter_map(|(key, job)| {
            let used = job.ports(&ports)?;
            // A queue pair whose port is not known may be on any of its device.
            let may_use = |port: &(u64, u32)| [(port.0, Some(port.1)), (port.0, None)];
            let links = used.keys().flat_map(may_use);
            let mut users = links.filter_map(|link| users.get(&link));
            let alone = users.all(|only| *only == Some(Some(*key)));
            Some((*key, job.judge(&used, alone)?))
        });
        let judged: BTreeMap<_, _> = judged.gather();
        let of = |row: &ProcessRow| {
            let judged = judged.get(&JobKey::of(row)).copied();
            judged.filter(|_| !row.exited && links.contains_key(&Some(row.uid)))
        };
        rows.iter().map(of).collect()
    }
}
