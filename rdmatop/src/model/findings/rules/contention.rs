//! Processes that get little of a NIC because another one has many more queue pairs on it.

use std::collections::BTreeMap;

use super::{Scene, growing};
use crate::model::findings::{About, FindingId, Severity, Symptom, words};
use crate::model::snapshot::ProcessRow;

/// What a process has on a device: only QPs that send.
#[derive(Default)]
struct Use {
    qps: u64,
    bytes: f64,
    wr: f64,
    /// Each of its QPs has work requests that are posted and not finished.
    waits: bool,
}

impl Use {
    fn of_each(&self) -> f64 {
        self.bytes / self.qps.max(1) as f64
    }
}

/// A NIC serves its QPs in turns. Who has few beside one with many gets as much for each, so little in all. A
/// process that sends little by itself has work requests that are small, or QPs that are done with theirs, or
/// gets another share for each.
pub(super) fn crowds(scene: &Scene<'_>, out: &mut Vec<Symptom>) {
    let limits = scene.limits;
    let sent = |row: &ProcessRow| growing(row.traffic.tx_bytes).unwrap_or(0.0);
    let all: Vec<f64> = scene
        .snapshot
        .processes
        .iter()
        .map(sent)
        .filter(|sent| *sent > 0.0)
        .collect();
    let most = all.iter().copied().fold(0.0, f64::max);
    // Most snapshots end here, and not all of ten thousand QPs are looked at.
    if !all.iter().any(|sent| *sent * limits.crowd_ratio <= most) {
        return;
    }
    let mut devices: BTreeMap<u64, BTreeMap<u64, Use>> = BTreeMap::new();
    for qp in scene.snapshot.qps.iter().filter(|qp| !qp.exited) {
        let traffic = &qp.traffic;
        let (Some(device), Some(process)) = (qp.device_uid.get(), qp.process_uid.get()) else {
            continue;
        };
        let (Some(bytes), Some(wr)) = (growing(traffic.tx_bytes), growing(traffic.tx_wr)) else {
            continue;
        };
        let waits = traffic
            .tx_wr_posted
            .zip(traffic.tx_wr)
            .is_some_and(|(posted, done)| posted.total > done.total);
        let of = devices.entry(device).or_default().entry(process).or_insert(Use {
            waits: true,
            ..Use::default()
        });
        (of.qps, of.bytes, of.wr, of.waits) = (of.qps + 1, of.bytes + bytes, of.wr + wr, of.waits && waits);
    }
    for (device, of) in devices {
        let Some((first, most)) = of.iter().max_by(|(_, a), (_, b)| a.bytes.total_cmp(&b.bytes)) else {
            continue;
        };
        let crowded = |(_, it): &(&u64, &Use)| {
            let alike = (0.25..=4.0).contains(&(it.of_each() / most.of_each()));
            let large = it.bytes >= limits.crowd_message * it.wr;
            it.waits
                && alike
                && large
                && it.bytes * limits.crowd_ratio <= most.bytes
                && it.qps * 4 <= most.qps
        };
        let victims: Vec<_> = of.iter().filter(crowded).collect();
        let (Some((victim, least)), Some(row), Some(cause)) =
            (victims.first(), scene.device(device), scene.process(*first))
        else {
            continue;
        };
        let Some(other) = scene.process(**victim) else {
            continue;
        };
        let more = match victims.len() {
            1 => String::new(),
            all => format!(", and {} more", all - 1),
        };
        let about = About {
            process: Some(*first),
            device: Some(device),
            ..About::default()
        };
        out.push(Symptom {
            verdict: format!(
                "{} sends {} on {} by {}; beside it {} gets {} by {}{more}: the NIC serves them in turns",
                words::process(cause),
                words::bits(most.bytes),
                row.name,
                words::count(most.qps, "QP"),
                words::process(other),
                words::bits(least.bytes),
                words::count(least.qps, "QP"),
            ),
            evidence: vec![format!(
                "each QP gets about as much: {} and {}; both have work that waits",
                words::bits(most.of_each()),
                words::bits(least.of_each())
            )],
            next: "Where it is not meant, let the first use fewer QPs (NCCL_IB_QPS_PER_CONNECTION, perftest -q), or another NIC.".into(),
            short: format!("{} QPs", most.qps),
            victims: victims.iter().map(|(uid, _)| **uid).collect(),
            ..scene.symptom(FindingId::Contention, Severity::Info, about)
        });
    }
}
