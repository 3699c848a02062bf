//! The rules: each looks at one snapshot and names symptoms.

mod far;
mod flaps;
mod growth;
mod idle;
mod lag;
mod latency;
mod link;
mod loss;
mod mappings;
mod memory;
mod nic;
mod objects;
mod pauses;
mod qps;
mod queue;
mod rails;
mod receiver;
mod share;
mod tcp;
mod unanswered;
mod verbs;

use std::cell::OnceCell;
use std::collections::BTreeSet;

use super::{About, FindingId, Limits, Severity, Symptom};
use crate::peers::Peer;
use crate::snapshot::{DeviceRow, PortRow, ProcessRow, QpRow, Snapshot, VerbRow};
use crate::value::Counter;
use rdmatop_base::step::NextStep;

pub(super) use growth::Growth;
pub(super) use link::LINK_DOWNED;

/// What rules look at.
pub(super) struct Scene<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) limits: &'a Limits,
    growth: &'a Growth,
    /// Devices with QPs whose RNR waits are counted.
    counted: OnceCell<BTreeSet<u64>>,
    rails: OnceCell<Vec<Vec<&'a PortRow>>>,
}

impl<'a> Scene<'a> {
    pub(super) fn new(snapshot: &'a Snapshot, limits: &'a Limits, growth: &'a Growth) -> Self {
        Self {
            snapshot,
            limits,
            growth,
            counted: OnceCell::new(),
            rails: OnceCell::new(),
        }
    }

    pub(super) fn process(&self, uid: u64) -> Option<&'a ProcessRow> {
        self.snapshot.processes.iter().find(|row| row.uid == uid)
    }

    pub(super) fn device(&self, uid: u64) -> Option<&'a DeviceRow> {
        self.snapshot.devices.iter().find(|row| row.uid == uid)
    }

    fn port(&self, device_uid: u64, number: u32) -> Option<&'a PortRow> {
        let is_it = |row: &&PortRow| (row.device_uid, row.port) == (device_uid, number);
        self.snapshot.ports.iter().find(is_it)
    }

    fn driver(&self, port: &PortRow) -> Option<&'a str> {
        self.device(port.device_uid)?.driver.as_deref()
    }

    /// Processes with QPs on a device.
    fn users(&self, device: &str) -> impl Iterator<Item = &'a ProcessRow> {
        self.holders(device).filter(|row| row.qps > 0)
    }

    /// Processes with any RDMA object on a device. QPs that the driver makes past the kernel (DEVX) are not
    /// listed, but the PDs and MRs that they need are.
    fn holders(&self, device: &str) -> impl Iterator<Item = &'a ProcessRow> {
        live(self.snapshot).filter(move |row| row.devices.iter().any(|name| &**name == device))
    }

    /// The other ranks of the jobs of some processes that can do nothing: they wait for these. A job is known
    /// as one by what started it. Of its processes those are ranks that have QPs, and that are connected to
    /// one of these, or run its program with a library of collectives. Who moves data does not wait.
    fn ranks_behind(&self, users: &[&ProcessRow]) -> Vec<&'a ProcessRow> {
        let job_of = |row: &'_ ProcessRow| row.workload.clone().filter(|_| !row.workload_claimed);
        let jobs: BTreeSet<_> = users.iter().filter_map(|row| job_of(row)).collect();
        if jobs.is_empty() {
            return Vec::new();
        }
        let is_user = |uid: u64| users.iter().any(|row| row.uid == uid);
        let still = |row: &ProcessRow| {
            let moved = [row.traffic.tx_bytes, row.traffic.rx_bytes, row.traffic.tx_wr];
            moved.into_iter().all(|counter| growing(counter).is_none())
        };
        let is_like = |row: &ProcessRow, user: &&ProcessRow| {
            row.comm == user.comm && is_collective(row) && is_collective(user) && job_of(row) == job_of(user)
        };
        let is_connected = |row: &ProcessRow| {
            let qps = self.snapshot.qps.iter();
            let mut own = qps.filter(|qp| !qp.exited && qp.process_uid == Some(row.uid));
            own.any(|qp| {
                let peer = self.peer(qp).and_then(|peer| peer.process_uid);
                peer.is_some_and(is_user)
            })
        };
        live(self.snapshot)
            .filter(|row| row.qps > 0 && !is_user(row.uid) && still(row))
            .filter(|row| job_of(row).is_some_and(|job| jobs.contains(&job)))
            .filter(|row| users.iter().any(|user| is_like(row, user)) || is_connected(row))
            .collect()
    }

    /// The process of a row in which the uid may be unknown.
    fn owner(&self, uid: Option<u64>) -> Option<&'a ProcessRow> {
        self.process(uid?)
    }

    /// Calls of a verb by each process.
    fn calls_of(&self, verb: &'static str) -> impl Iterator<Item = &'a VerbRow> {
        self.snapshot.verbs.iter().filter(move |row| &*row.verb == verb)
    }

    /// The QPs on a device.
    fn qps_on(&self, device_uid: u64) -> impl Iterator<Item = &'a QpRow> {
        let qps = self.snapshot.qps.iter().map(|qp| &**qp);
        qps.filter(move |qp| qp.device_uid == Some(device_uid))
    }

    /// ACTIVE ports.
    fn active_ports(&self) -> impl Iterator<Item = &'a PortRow> {
        self.snapshot.ports.iter().filter(|port| port.is_active())
    }

    /// The QP at the other end, if it is on this host.
    fn peer(&self, qp: &QpRow) -> Option<&'a QpRow> {
        match self.snapshot.peer(qp)? {
            Peer::Here { qp, .. } => Some(qp),
            Peer::At(_) => None,
        }
    }

    /// Whether RNR waits are counted for a QP of this device. The first call looks at all QPs.
    fn counts_rnr_waits(&self, device_uid: u64) -> bool {
        let of_qps = || {
            let counted = self
                .snapshot
                .qps
                .iter()
                .filter(|qp| qp.traffic.rnr_waits.is_some());
            counted.filter_map(|qp| qp.device_uid).collect()
        };
        self.counted.get_or_init(of_qps).contains(&device_uid)
    }

    /// ACTIVE ports by driver, for drivers with three or more.
    fn rails(&self) -> &[Vec<&'a PortRow>] {
        self.rails.get_or_init(|| rails::groups(self))
    }

    /// A symptom that rates of this snapshot show; its words are still empty.
    fn symptom(&self, id: FindingId, severity: Severity, about: About) -> Symptom {
        Symptom {
            id,
            severity,
            about,
            since_ns: self.interval_begin(),
            verdict: String::new(),
            evidence: Vec::new(),
            next: NextStep::default(),
            short: String::new(),
            victims: Vec::new(),
        }
    }

    /// Begin of the interval for which rates are computed, ns.
    fn interval_begin(&self) -> u64 {
        let interval = self.snapshot.interval_ns.unwrap_or(0);
        self.snapshot.mono_ns.saturating_sub(interval)
    }
}

/// Whether a process has loaded a library by which ranks wait for one another.
fn is_collective(row: &ProcessRow) -> bool {
    const LIBRARIES: [&str; 5] = ["libnccl", "librccl", "libmpi", "libnvshmem", "libsharp"];
    let libraries = row.libraries.iter().flat_map(|all| all.iter());
    libraries
        .into_iter()
        .any(|library| LIBRARIES.iter().any(|known| library.starts_with(known)))
}

/// Processes that have not ended, without kernel consumers.
fn live(snapshot: &Snapshot) -> impl Iterator<Item = &ProcessRow> {
    let rows = snapshot.processes.iter();
    rows.filter(|row| !row.kernel && !row.exited)
}

/// The rate of a counter if it is certain that the counter grows.
fn growing(counter: Option<Counter>) -> Option<f64> {
    counter.and_then(Counter::certain_rate).filter(|rate| *rate > 0.0)
}

/// Symptoms of all rules.
pub(super) fn all(scene: &Scene<'_>) -> Vec<Symptom> {
    const RULES: &[fn(&Scene<'_>, &mut Vec<Symptom>)] = &[
        receiver::not_ready,
        receiver::of_port,
        qps::stuck,
        qps::completions,
        qps::overflows,
        verbs::fail,
        verbs::churn,
        verbs::reconnects,
        objects::leak,
        memory::growth,
        mappings::nearly_all,
        objects::removal,
        link::state,
        link::errors,
        flaps::flaps,
        loss::loss,
        link::congestion,
        pauses::storm,
        pauses::class,
        link::waits,
        link::mtu,
        link::path_mtu,
        queue::full,
        latency::rises,
        link::commands,
        nic::pcie,
        nic::logged,
        nic::roce_v1,
        nic::setup,
        rails::slow,
        rails::load,
        share::queue_pairs,
        far::nic,
        lag::imbalance,
        lag::without_link,
        tcp::fallback,
    ];
    let mut out = Vec::new();
    for rule in RULES {
        rule(scene, &mut out);
    }
    out
}
