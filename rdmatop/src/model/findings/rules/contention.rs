//! Processes that send by one port, of which one has many more queue pairs with work than another.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::{Scene, growing, link::name, rails::about};
use crate::model::findings::{About, FindingId, Severity, Symptom, words};
use crate::model::snapshot::{PortRow, ProcessRow, QpRow};
use crate::model::value::{Counter, Known};
use crate::text;

/// Outstanding send WRs of a queue pair from which one waits behind another: the program asks for more than
/// it gets. One that sends, waits for the answer and sends again has one.
const WAITING: u64 = 2;
/// Times as much that a queue pair of one process moves as one of the other, at most. Where the difference is
/// larger, something other than the number of queue pairs makes it: a path, a peer, the size of messages.
const ALIKE: f64 = 3.0;

/// What a process sends by one port.
#[derive(Default)]
struct Share<'a> {
    /// QPs that send.
    qps: Vec<&'a QpRow>,
    /// Bytes per second.
    rate: f64,
    /// Outstanding send WRs.
    waiting: u64,
    /// Something of it is not known, or a receiver has no buffers: it may have another reason.
    unclear: bool,
}

impl<'a> Share<'a> {
    fn add(&mut self, qp: &'a QpRow) {
        let traffic = &qp.traffic;
        let exact = |counter: Option<Counter>| counter.filter(|counter| counter.rate_known() == Known::Exact);
        let (bytes, done) = (exact(traffic.tx_bytes), exact(traffic.tx_wr));
        let (Some(bytes), Some(done), Some(posted)) = (bytes, done, exact(traffic.tx_wr_posted)) else {
            self.unclear = true;
            return;
        };
        self.unclear |= growing(traffic.rnr_waits).is_some();
        if let Some(rate) = growing(Some(bytes)) {
            self.qps.push(qp);
            self.rate += rate;
            self.waiting += posted.total.saturating_sub(done.total);
        }
    }

    /// Whether it wants to send more than it does, as far as one look shows that.
    fn waits(&self) -> bool {
        let qps = self.qps.len() as u64;
        !self.unclear && qps > 0 && self.waiting >= WAITING * qps
    }

    fn of_each(&self) -> f64 {
        self.rate / self.qps.len() as f64
    }

    fn words(&self, row: &ProcessRow) -> String {
        let numbers: Vec<String> = self.qps.iter().map(|qp| qp.qpn.to_string()).collect();
        format!(
            "{}: {} ({}), {} each, {} outstanding",
            words::process(row),
            words::count(self.qps.len() as u64, "QP"),
            text::names(&numbers),
            words::bits(self.of_each()),
            words::count(self.waiting, "send WR")
        )
    }
}

/// Processes with work outstanding that get a fraction of what another one gets, because it has more QPs.
pub(super) fn contention(scene: &Scene<'_>, out: &mut Vec<Symptom>) {
    let ratio = scene.limits.share_ratio;
    let rows = scene.snapshot.processes.iter();
    let live = rows.filter(|row| !row.kernel && !row.exited);
    let senders: BTreeMap<u64, f64> = live
        .filter_map(|row| Some((row.uid, growing(row.traffic.tx_bytes)?)))
        .collect();
    let most = senders.values().copied().fold(0.0, f64::max);
    // Only then QPs are looked at.
    if !senders.values().any(|rate| rate * ratio <= most) {
        return;
    }
    let mut ports: BTreeMap<(u64, u32), BTreeMap<u64, Share<'_>>> = BTreeMap::new();
    for qp in scene.snapshot.qps.iter().filter(|qp| !qp.exited) {
        if let (Some(uid), Some(device), Some(port)) = (qp.process_uid.get(), qp.device_uid.get(), qp.port)
            && senders.contains_key(&uid)
        {
            let shares = ports.entry((device, port)).or_default();
            shares.entry(uid).or_default().add(qp);
        }
    }
    for ((device, number), shares) in ports {
        let port = scene.port(device, number);
        out.extend(port.and_then(|port| of_port(scene, port, &shares)));
    }
}

fn of_port(scene: &Scene<'_>, port: &PortRow, shares: &BTreeMap<u64, Share<'_>>) -> Option<Symptom> {
    let sent: f64 = shares.values().map(|share| share.rate).sum();
    // Below that the link has room for both.
    let link = port.rate_bps.map(|bits| bits as f64 / 8.0);
    let counted = growing(port.tx_bytes).unwrap_or(0.0);
    if link.is_some_and(|link| counted.max(sent) < scene.limits.hot_share * link) {
        return None;
    }
    let waiting = || shares.iter().filter(|(_, share)| share.waits());
    // By numbers that do not change from look to look.
    let (uid, first) = waiting().max_by_key(|(uid, share)| (share.qps.len(), Reverse(**uid)))?;
    let hog = scene.process(*uid)?;
    // What ranks of one job have was given to them together.
    let same_job = |row: &ProcessRow| {
        let known = hog.workload.is_some() && !hog.workload_claimed && !row.workload_claimed;
        known && row.workload == hog.workload
    };
    let crowded_out = |share: &Share<'_>| {
        share.rate * scene.limits.share_ratio <= first.rate && first.of_each() <= ALIKE * share.of_each()
    };
    let victims: Vec<(&ProcessRow, &Share<'_>)> = waiting()
        .filter(|(_, share)| crowded_out(share))
        .filter_map(|(uid, share)| Some((scene.process(*uid)?, share)))
        .filter(|(row, _)| !same_job(row))
        .collect();
    let (victim, share) = *victims.first()?;
    let others = match victims.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let qps = |share: &Share<'_>| words::count(share.qps.len() as u64, "QP");
    Some(Symptom {
        verdict: format!(
            "{} sends {} by {} of {}; {}{others} has {} and gets {}",
            words::process(hog),
            words::bits(first.rate),
            qps(first),
            name(port),
            words::process(victim),
            qps(share),
            words::bits(share.rate)
        ),
        evidence: vec![first.words(hog), share.words(victim)],
        next: "Where both matter: fewer QPs for the first or more for the second (perftest -q, NCCL_IB_QPS_PER_CONNECTION), another \
               port for one of them, or on a NIC a traffic class of its own. Where one of them may wait, nothing is to be done."
            .into(),
        short: format!("{} to {}", first.qps.len(), qps(share)),
        victims: victims.iter().map(|(row, _)| row.uid).collect(),
        ..scene.symptom(
            FindingId::Contention,
            Severity::Info,
            About {
                process: Some(hog.uid),
                ..about(port)
            },
        )
    })
}
