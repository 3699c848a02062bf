//! Processes that share a port by their number of queue pairs.

use std::collections::BTreeMap;

use super::{Scene, growing};
use crate::findings::{About, FindingId, Limits, Severity, Symptom, words};
use crate::ib::PortState;
use crate::snapshot::{PortRow, ProcessRow, QpRow};
use crate::value::Counter;
use rdmatop_base::step::{NextStep, step};

/// Times the QPs of a process that another one has at least. With fewer the number of QPs is not the reason.
const QPS: f64 = 4.0;
/// Times that a QP of the one may send what a QP of the other sends, either way, to be served alike.
const ALIKE: f64 = 4.0;

/// The QPs of one process that send on a port.
#[derive(Clone, Copy, Debug, Default)]
struct Sender {
    process: u64,
    qps: u32,
    bytes_per_s: f64,
    /// Work requests that are posted and not finished, of all of them together: at least so many.
    waiting: u64,
}

impl Sender {
    fn add(&mut self, qp: &QpRow, bytes_per_s: f64) {
        let total = |counter: Option<Counter>| counter.map_or(0, |counter| counter.total);
        self.qps += 1;
        self.bytes_per_s += bytes_per_s;
        self.waiting += total(qp.traffic.tx_wr_posted).saturating_sub(total(qp.traffic.tx_wr));
    }

    fn of_a_qp(&self) -> f64 {
        self.bytes_per_s / f64::from(self.qps.max(1))
    }

    /// Whether the other has so much less than this one as it has fewer QPs, and would send more.
    fn crowds(&self, other: &Self, limits: &Limits) -> bool {
        let alike = self.of_a_qp() / other.of_a_qp();
        other.waiting > 0
            && f64::from(self.qps) >= QPS * f64::from(other.qps)
            && self.bytes_per_s >= limits.crowd_ratio * other.bytes_per_s
            && (1.0 / ALIKE..=ALIKE).contains(&alike)
    }
}

/// Who sends on each port: device, number, process.
fn senders(scene: &Scene<'_>) -> BTreeMap<(u64, u32), BTreeMap<u64, Sender>> {
    let mut ports: BTreeMap<_, BTreeMap<u64, Sender>> = BTreeMap::new();
    for qp in &scene.snapshot.qps {
        // A receiver without buffers, which other rules name, is no matter of the port.
        if qp.kernel || growing(qp.traffic.rnr_waits).is_some() {
            continue;
        }
        let Some(bytes) = growing(qp.traffic.tx_bytes) else {
            continue;
        };
        if let (Some(device), Some(port), Some(process)) = (qp.device_uid, qp.port, qp.process_uid) {
            let sender = ports.entry((device, port)).or_default().entry(process);
            sender
                .or_insert(Sender {
                    process,
                    ..Sender::default()
                })
                .add(qp, bytes);
        }
    }
    ports
}

/// Whether a port sends all that it can. Of SoftRoCE and soft iWARP nothing says how much that is: there it
/// is enough that both processes have work requests that wait.
fn is_full(scene: &Scene<'_>, port: &PortRow) -> bool {
    if matches!(scene.driver(port), Some("rdma_rxe" | "siw")) {
        return true;
    }
    let rates = growing(port.tx_bytes).zip(port.rate_bps);
    rates.is_some_and(|(bytes, link)| bytes * 8.0 >= scene.limits.hot_share * link as f64)
}

/// A process whose few queue pairs get as much as each of another one's many.
pub(super) fn queue_pairs(scene: &Scene<'_>, out: &mut Vec<Symptom>) {
    for ((device, number), senders) in senders(scene) {
        let Some(port) = scene.port(device, number) else {
            continue;
        };
        let most = senders
            .values()
            .max_by(|a, b| a.bytes_per_s.total_cmp(&b.bytes_per_s));
        let Some(most) = most.filter(|most| {
            most.waiting > 0
                && most.bytes_per_s >= scene.limits.rail_bytes_per_s
                && port.state.is_some_and(PortState::is_active)
                && is_full(scene, port)
        }) else {
            continue;
        };
        let mut few: Vec<(&Sender, &ProcessRow)> = senders
            .values()
            .filter(|sender| most.crowds(sender, scene.limits))
            .filter_map(|sender| Some((sender, scene.process(sender.process)?)))
            .collect();
        few.sort_by_key(|(_, row)| row.pid);
        let (Some(many), Some((first, row))) = (scene.process(most.process), few.first()) else {
            continue;
        };
        let more = match few.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        out.push(Symptom {
            verdict: format!(
                "{}{more} sends {} with {} on {}, {} {} with {}: shared per QP, not per process",
                words::process(row),
                words::bits(first.bytes_per_s),
                words::count(u64::from(first.qps), "QP"),
                super::link::name(port),
                words::process(many),
                words::bits(most.bytes_per_s),
                most.qps,
            ),
            evidence: vec![
                format!(
                    "{} for each QP of the one, {} for each of the other",
                    words::bits(first.of_a_qp()),
                    words::bits(most.of_a_qp())
                ),
                format!("{} posted and not finished by the one, {} by the other", first.waiting, most.waiting),
            ],
            next: row.pid.map_or_else(NextStep::default, |pid| {
                step!(
                    "Where both are to have the same: restart PID {} with more QPs (perftest -q, NCCL_IB_QPS_PER_CONNECTION), or on another \
                     NIC (perftest -d, NCCL_IB_HCA, UCX_NET_DEVICES).",
                    pid
                )
            }),
            short: "few QPs".to_owned(),
            victims: few.iter().map(|(_, row)| row.uid).collect(),
            ..scene.symptom(FindingId::PortContention, Severity::Info, About::of_port(port))
        });
    }
}
