//! The processes of a log that are alive on this machine, and what they move now, compared with the log.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::Serialize;

use super::{
    identity::{Candidate, Identity, Proof},
    line::Writer,
    report::{Report, is_ib},
};
use rdmatop_base::order::Gather as _;
use rdmatop_base::text;
use rdmatop_model::{
    cause::{Cause, CauseId},
    ib::{PortState, QpState},
    snapshot::{PortRow, ProcessRow, QpRow, Quantity, Snapshot, TcpTraffic},
    value::{Counter, Known},
};

/// A process of the log, and who it is on this machine.
#[derive(Clone, Debug)]
pub struct IdentifiedProcess {
    /// The process as the log names it.
    pub writer: Writer,
    /// Which process it is.
    pub identity: Identity,
    /// The process ended while rdmatop looked.
    pub ended: bool,
}

/// What goes on now, by a snapshot of rdmatop over some seconds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Now {
    /// When that time ended, ns since the epoch; `None` if no process was there to look at.
    pub time: Option<u64>,
    /// For how many seconds rdmatop looked.
    pub seconds: Option<f64>,
    /// Processes of the log that are alive.
    pub processes: Vec<LiveProcess>,
    /// Processes of the log that should be here: they have ended, or it is not certain which they are.
    pub absent: Vec<AbsentProcess>,
    /// Ports of the devices that these processes or the log name.
    pub ports: Vec<LivePort>,
    /// Where log and life agree, and where they differ.
    #[serde(rename = "said")]
    pub comparisons: Vec<Comparison>,
    /// What is not known, why, and the remedy.
    pub missing: Vec<String>,
}

/// A process that is alive.
#[derive(Clone, Debug, Serialize)]
pub struct LiveProcess {
    /// Host in the log.
    pub host: String,
    /// Number in the log; in a container that of its PID namespace.
    pub log_pid: u32,
    /// Number on this machine.
    pub pid: u32,
    /// Its name (`comm`).
    pub comm: String,
    /// The process's ranks.
    pub ranks: Vec<u32>,
    /// How it is known that this process wrote the log.
    pub proof: Proof,
    /// The process ended while rdmatop looked.
    pub ended: bool,
    /// Devices on which it has QPs.
    pub devices: Vec<Arc<str>>,
    /// Number of QPs; `None` if not known.
    pub qps: Option<u64>,
    /// How many of these QPs are in ERR.
    pub qps_in_error: u64,
    /// Bytes of its send work requests.
    pub tx_bytes: Option<Counter>,
    /// Bytes of its receive completions.
    pub rx_bytes: Option<Counter>,
    /// Send work requests that finished.
    pub tx_wr: Option<Counter>,
    /// Receive work requests that completed.
    pub rx_wr: Option<Counter>,
    /// Bytes per second that its work requests send and receive; the bytes of a READ are received.
    #[serde(skip)]
    pub byte_rates: [Option<f64>; 2],
    /// TCP between ports that a library chose; `None` if not known, or if there is none.
    pub tcp: Option<TcpTraffic>,
    /// Its connections are seen: it is in the network namespace of rdmatop.
    #[serde(skip)]
    pub same_network: bool,
}

/// A process of the log that is not there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AbsentProcess {
    /// Host in the log.
    pub host: String,
    /// Number in the log.
    pub log_pid: u32,
    /// The process's ranks.
    pub ranks: Vec<u32>,
    /// Why it is not shown: it ended, another process has its number, or it is uncertain which one it is.
    pub why: String,
    /// Whether it is certain that the process ended.
    pub ended: bool,
}

/// A port of a device that a process of the log uses, or the log names.
#[derive(Clone, Debug, Serialize)]
pub struct LivePort {
    /// The name of the device.
    pub device: Arc<str>,
    /// The number of the port.
    pub port: u32,
    /// Its state, as ACTIVE.
    pub state: Option<PortState>,
    /// Rate of the link, bits/s.
    pub rate_bps: Option<u64>,
    /// Bytes sent: those on the wire if the driver counts them, otherwise (a lower bound) of work requests.
    pub tx_bytes: Option<Counter>,
    /// Bytes received, as `tx_bytes`.
    pub rx_bytes: Option<Counter>,
    /// Whether the log has connections on it; `None` if the log names no device, as with libfabric.
    pub in_log: Option<bool>,
}

/// Whether log and life agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Agreement {
    /// Log and life differ.
    Differs,
    /// It cannot be said whether log and life agree.
    Unclear,
    /// Log and life agree.
    Agrees,
}

/// One line that compares log and life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Comparison {
    /// Whether they agree.
    pub kind: Agreement,
    /// A word for programs, which stays the same.
    pub id: &'static str,
    /// The line in words.
    pub line: String,
}

impl Now {
    /// The result if no process of the log is alive here; `None` if the log is not of this machine, so that
    /// there is nothing to say.
    pub fn unobserved(report: &Report, found: &[IdentifiedProcess]) -> Option<Self> {
        (!found.is_empty()).then(|| Self {
            absent: absent(report, found),
            ..Self::default()
        })
    }

    /// The result of looking for `seconds`.
    pub fn of(report: &Report, found: &[IdentifiedProcess], snapshot: &Snapshot, seconds: f64) -> Self {
        let lives: Vec<(&IdentifiedProcess, &Candidate, Proof)> = found
            .iter()
            .filter_map(|one| match &one.identity {
                Identity::Process(candidate, proof) => Some((one, &**candidate, *proof)),
                _ => None,
            })
            .collect();
        let rows = Rows::of(snapshot);
        let processes: Vec<LiveProcess> = lives
            .iter()
            .map(|(one, candidate, proof)| live(report, one, candidate, *proof, &rows))
            .collect();
        let mut now = Self {
            time: Some(snapshot.time),
            seconds: Some(seconds),
            ports: ports(report, &processes, snapshot),
            absent: absent(report, found),
            processes,
            ..Self::default()
        };
        now.comparisons = super::compare::compare(report, &now);
        now.missing = missing(&now, &lives, snapshot);
        now
    }

    /// Devices in the log with connections, on hosts whose processes are alive here.
    pub(super) fn log_devices(&self, report: &Report) -> LogDevices {
        log_devices(report, &self.processes)
    }
}

fn ranks(report: &Report, writer: &Writer) -> Vec<u32> {
    let process = report.processes.get(writer);
    process.map_or_else(Vec::new, |process| process.ranks().into_iter().collect())
}

fn absent(report: &Report, found: &[IdentifiedProcess]) -> Vec<AbsentProcess> {
    let one = |found: &IdentifiedProcess| {
        let (why, ended) = match &found.identity {
            Identity::Process(..) => return None,
            Identity::Ended => ("it has ended".to_owned(), true),
            Identity::Reused(by, why) => (
                format!(
                    "it has ended; its number belongs to {} (PID {}): {why}",
                    by.comm, by.pid
                ),
                true,
            ),
            Identity::Several(pids) => (
                format!(
                    "several processes have this number, each in a PID namespace of its own, here {}: which one wrote the log is not known",
                    text::names(pids)
                ),
                false,
            ),
        };
        Some(AbsentProcess {
            host: found.writer.host.clone(),
            log_pid: found.writer.pid,
            ranks: ranks(report, &found.writer),
            why,
            ended,
        })
    };
    found.iter().filter_map(one).collect()
}

/// What of a snapshot is looked up for each process.
struct Rows<'a> {
    /// The last process with each number.
    by_pid: BTreeMap<u32, &'a ProcessRow>,
    /// QPs in ERR, by the process that has them.
    dead: BTreeMap<u64, u64>,
    complete: bool,
}

impl<'a> Rows<'a> {
    fn of(snapshot: &'a Snapshot) -> Self {
        let (mut by_pid, mut dead) = (BTreeMap::<u32, &ProcessRow>::new(), BTreeMap::new());
        for row in snapshot.processes.iter().filter(|row| !row.kernel) {
            if let Some(pid) = row.pid
                && by_pid.get(&pid).is_none_or(|known| known.uid <= row.uid)
            {
                by_pid.insert(pid, row);
            }
        }
        let is_dead = |qp: &&Arc<QpRow>| !qp.exited && qp.state == Some(QpState::ERR);
        for qp in snapshot.qps.iter().filter(is_dead) {
            if let Some(uid) = qp.process_uid {
                *dead.entry(uid).or_default() += 1;
            }
        }
        Self {
            by_pid,
            dead,
            complete: snapshot.health.errors.is_empty(),
        }
    }
}

fn live(
    report: &Report,
    found: &IdentifiedProcess,
    candidate: &Candidate,
    proof: Proof,
    rows: &Rows<'_>,
) -> LiveProcess {
    let row = rows.by_pid.get(&candidate.pid).copied();
    // If something could not be read, or another network namespace may have devices of its own, 0 is unknown.
    let none_is_known = rows.complete && candidate.other_network == Some(false);
    LiveProcess {
        host: found.writer.host.clone(),
        log_pid: found.writer.pid,
        pid: candidate.pid,
        comm: candidate.comm.clone(),
        ranks: ranks(report, &found.writer),
        proof,
        ended: found.ended,
        devices: row.map(|row| row.devices.clone()).unwrap_or_default(),
        qps: match row.map_or(0, |row| row.qps) {
            0 => none_is_known.then_some(0),
            some => Some(some),
        },
        qps_in_error: row.and_then(|row| rows.dead.get(&row.uid).copied()).unwrap_or(0),
        tx_bytes: row.and_then(|row| row.traffic.tx_bytes),
        rx_bytes: row.and_then(|row| row.traffic.rx_bytes),
        tx_wr: row.and_then(|row| row.traffic.tx_wr),
        rx_wr: row.and_then(|row| row.traffic.rx_wr),
        byte_rates: row.map_or([None, None], |row| row.traffic.ways()),
        tcp: row.and_then(|row| row.tcp.clone()),
        same_network: candidate.other_network == Some(false),
    }
}

/// Devices, each with the ports that the log names; an empty set means any port.
pub(super) type LogDevices = BTreeMap<String, BTreeSet<u32>>;

/// The devices of the log's NICs; a merged NIC is named `mlx5_0+mlx5_1`.
fn log_devices(report: &Report, processes: &[LiveProcess]) -> LogDevices {
    let hosts: BTreeSet<&str> = processes.iter().map(|one| one.host.as_str()).gather();
    let nics = report
        .nics
        .keys()
        .filter(|nic| hosts.contains(nic.host.as_str()) && is_ib(&nic.network));
    let mut out = LogDevices::new();
    for nic in nics {
        let Some((name, _)) = report.name_of(nic) else {
            continue;
        };
        let merged = name.contains('+');
        for part in name.split('+') {
            let hcas = report
                .hcas(&nic.host)
                .filter(|hca| merged || hca.index == nic.device);
            let ports = hcas.flat_map(|hca| &hca.ports).filter(|port| port.device == part);
            out.entry(part.to_owned())
                .or_default()
                .extend(ports.map(|port| port.port));
        }
    }
    out
}

/// Makes a lower bound: what peers WRITE to a port and READ from it has no work request on this machine.
fn at_least(of_work_requests: Counter) -> Counter {
    Counter {
        partial: true,
        ..of_work_requests
    }
}

fn ports(report: &Report, processes: &[LiveProcess], snapshot: &Snapshot) -> Vec<LivePort> {
    let devices = log_devices(report, processes);
    let in_log = |row: &PortRow| {
        devices
            .get(&*row.device)
            .is_some_and(|ports| ports.is_empty() || ports.contains(&row.port))
    };
    let used: BTreeSet<&str> = processes
        .iter()
        .flat_map(|one| one.devices.iter().map(|name| &**name))
        .gather();
    let is_meant = |row: &&PortRow| in_log(row) || used.contains(&*row.device);
    let of = |row: &PortRow| LivePort {
        device: row.device.clone(),
        port: row.port,
        state: row.state,
        rate_bps: row.rate_bps,
        tx_bytes: row.tx_bytes.or(row.wr_tx_bytes.map(at_least)),
        rx_bytes: row.rx_bytes.or(row.wr_rx_bytes.map(at_least)),
        in_log: (!devices.is_empty()).then(|| in_log(row)),
    };
    snapshot.ports.iter().filter(is_meant).map(of).collect()
}

/// What is `-` on the page, and why it is unknown.
fn missing(now: &Now, lives: &[(&IdentifiedProcess, &Candidate, Proof)], snapshot: &Snapshot) -> Vec<String> {
    let mut out = Vec::new();
    let uses: BTreeSet<&str> = now
        .processes
        .iter()
        .flat_map(|one| one.devices.iter().map(|name| &**name))
        .collect();
    // An upper bound is no certain rate, but the page shows it.
    let is_unknown = |(certain, counter): (Option<f64>, Option<Counter>)| {
        certain.is_none() && counter.is_none_or(|counter| counter.rate_known() != Known::AtMost)
    };
    let any_unknown = |one: &LiveProcess| {
        let ways = one.byte_rates.into_iter().zip([one.tx_bytes, one.rx_bytes]);
        ways.into_iter().any(is_unknown)
    };
    if now
        .processes
        .iter()
        .any(|one| any_unknown(one) && !one.devices.is_empty())
    {
        // The note about missing rights comes before what follows from them for a device.
        let rights = snapshot.health.note(CauseId::NoCapability);
        out.extend(rights.map(Cause::line));
        let mut by_reason: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for one in snapshot.judgement.unobserved.iter().filter(|_| rights.is_none()) {
            if uses.contains(&*one.device) && one.what == Quantity::WorkRequests {
                by_reason.entry(one.what()).or_default().push(&one.device);
            }
        }
        out.extend(
            by_reason
                .into_iter()
                .map(|(what, devices)| format!("{}: {what}", text::names(&devices))),
        );
    }
    let whose = |test: fn(&Candidate) -> bool| {
        let those = lives.iter().filter(|(_, one, _)| test(one));
        Some(text::names(those.map(|(_, one, _)| one.pid))).filter(|pids| !pids.is_empty())
    };
    if let Some(pids) = whose(|one| one.other_network == Some(true)) {
        out.push(format!(
            "TCP of PID {pids}: its network namespace is another; nsenter -t PID -n rdmatop nccl-log shows it"
        ));
    }
    if let Some(pids) = whose(|one| one.libraries.is_none() || one.other_network.is_none()) {
        out.push(format!(
            "TCP and libraries of PID {pids}: rdmatop may not inspect it; run it as root, or as the user of the job"
        ));
    }
    if let Some(pids) = whose(|one| {
        let has = |list: &Vec<String>| {
            list.iter()
                .any(|name| name.starts_with("libnccl") || name.starts_with("librccl"))
        };
        one.libraries.as_ref().is_some_and(|list| !has(list))
    }) {
        out.push(format!(
            "TCP of PID {pids}: only that of processes is looked up that have mapped libnccl or librccl"
        ));
    }
    out
}
