//! Requests that fail for good, as NICs count them where no work request is counted.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::link::{PAST_KERNEL, name, used_by, who};
use super::{Scene, growing, qps};
use crate::findings::{About, FindingId, Severity, Symptom, words};
use crate::ib::WcStatus;
use crate::judgement::{Stuck, StuckQp};
use crate::snapshot::{NamedCounter, PortRow, ProcessRow, QpRow, Snapshot};

const S: u64 = 1_000_000_000;
/// A QP is seen in ERR at most this long before or after its port's counter is seen to rise, ns: both are
/// asked for each second or two.
const NEAR_NS: u64 = 5 * S;

/// One way to fail.
pub(super) struct Failure {
    /// What fails.
    what: &'static str,
    /// The status of the completion at the end that has one; `None`: the peer alone has it.
    status: Option<WcStatus>,
    /// The counters for it of each driver that has one.
    counters: &'static [&'static str],
}

/// By the InfiniBand specification (9.9.2, 9.9.3) a QP of a connection goes to ERR with each of these: each
/// rise is a connection that ended. `resp_cqe_error` and `req_cqe_error` are others, which count flushes too,
/// as of the receives that are left when a program ends; so do counters of single NAKs. Those of EFA are left
/// out: nothing says what becomes of its QPs.
const FAILURES: &[Failure] = &[
    Failure {
        what: "Requests from",
        status: Some(WcStatus(12)),
        // mlx5, bnxt_re, rxe, mlx4, ionic, mana.
        counters: &[
            "req_transport_retries_exceeded",
            "max_retry_exceeded",
            "retry_exceeded_err",
            "sq_num_tree",
            "req_tx_retry_excd_err",
            "requester_retries_exceeded",
        ],
    },
    Failure {
        what: "Requests from",
        status: Some(WcStatus(13)),
        // mlx5, rxe, mlx4, mana.
        counters: &[
            "req_rnr_retries_exceeded",
            "retry_rnr_exceeded_err",
            "sq_num_rree",
            "requester_rnr_nak_retries_exceeded",
        ],
    },
    Failure {
        what: "Requests from",
        status: Some(WcStatus(10)),
        // mlx5 and bnxt_re, bnxt_re, mlx4, ionic.
        counters: &[
            "req_remote_access_errors",
            "remote_access_err",
            "sq_num_rae",
            "req_rx_rmt_acc_err",
        ],
    },
    Failure {
        what: "Requests from",
        status: Some(WcStatus(9)),
        counters: &[
            "req_remote_invalid_request",
            "remote_invalid_req_err",
            "sq_num_rire",
            "req_rx_rmt_req_err",
        ],
    },
    Failure {
        what: "Requests from",
        status: Some(WcStatus(11)),
        // bnxt_re, mlx4, ionic.
        counters: &["remote_op_err", "sq_num_roe", "req_rx_oper_err"],
    },
    Failure {
        what: "Messages to",
        status: Some(WcStatus(1)),
        // mlx5 and bnxt_re, mlx4, ionic, mana.
        counters: &[
            "resp_local_length_error",
            "rq_num_lle",
            "resp_rx_loc_len_err",
            "responder_local_len_error",
        ],
    },
    Failure {
        what: "Requests to",
        status: None,
        // As for status 10, of which this is the other end.
        counters: &[
            "resp_remote_access_errors",
            "rq_num_rae",
            "resp_tx_rmt_acc_err",
            "responder_rem_access_error",
        ],
    },
];

/// What it means that requests fail so, and what to do.
pub(super) fn meaning(failure: &Failure) -> (&'static str, &'static str) {
    match failure.status {
        Some(status) => qps::meaning(status),
        None => (
            "a peer asked for memory that it may not use",
            "Check RKey, remote address and length on the peer, and the MR's access flags here; was it deregistered too early?",
        ),
    }
}

/// The counters of a port that rise because requests failed: their places in [`FAILURES`], and their rates.
fn rising(port: &PortRow) -> impl Iterator<Item = (usize, &NamedCounter, f64)> {
    port.counters.iter().filter_map(|row| {
        let rate = growing(Some(row.counter))?;
        let is_it = |failure: &Failure| failure.counters.contains(&&*row.name);
        Some((FAILURES.iter().position(is_it)?, row, rate))
    })
}

/// Rises kept of each counter.
const KEPT: usize = 8;

/// A rise of a counter.
#[derive(Clone, Debug)]
struct Rise {
    at_ns: u64,
    counter: Arc<str>,
    per_s: f64,
}

/// The last rises of counters of a port, by their places in [`FAILURES`], oldest first.
type Rises = BTreeMap<usize, VecDeque<Rise>>;

/// What each port (device uid, number) counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Failed {
    rises: BTreeMap<(u64, u32), Rises>,
    /// Time of the first snapshot, ns. What was in ERR then failed at a time that nobody knows.
    first_ns: Option<u64>,
}

/// What a port counted when QPs went to ERR.
pub(super) struct Reason {
    pub(super) failure: &'static Failure,
    /// Which counter rose.
    pub(super) rose: String,
    /// No other process has QPs there whose requests it may have been.
    pub(super) sure: bool,
}

impl Failed {
    pub(super) fn look(&mut self, snapshot: &Snapshot) {
        let at_ns = snapshot.mono_ns;
        self.first_ns.get_or_insert(at_ns);
        let mut before = std::mem::take(&mut self.rises);
        for port in &snapshot.ports {
            let key = (port.device_uid, port.port);
            let mut of_port = before.remove(&key).unwrap_or_default();
            for (at, row, per_s) in rising(port) {
                let rises = of_port.entry(at).or_default();
                let counter = row.name.clone();
                rises.push_back(Rise {
                    at_ns,
                    counter,
                    per_s,
                });
                rises.drain(..rises.len().saturating_sub(KEPT));
            }
            if !of_port.is_empty() {
                self.rises.insert(key, of_port);
            }
        }
    }

    /// Whether a QP that is in ERR since then was seen before.
    fn is_new(&self, since_ns: u64) -> bool {
        self.first_ns.is_some_and(|first| since_ns > first)
    }

    /// What a port of their device counted nearest to the time at which QPs of a process went to ERR.
    pub(super) fn reason(&self, scene: &Scene<'_>, owner: &ProcessRow, qps: &[&StuckQp]) -> Option<Reason> {
        if self.rises.is_empty() {
            return None;
        }
        let mut ports: BTreeMap<&str, Vec<_>> = BTreeMap::new();
        for ((device, number), rises) in &self.rises {
            if let Some(port) = scene.port(*device, *number) {
                let all = ports.entry(&*port.device).or_default();
                let rises = rises.iter();
                all.extend(rises.flat_map(|(at, rises)| rises.iter().map(move |rise| (port, *at, rise))));
            }
        }
        let near = qps.iter().flat_map(|qp| {
            let since = qp.stuck.since_ns.filter(|since| self.is_new(*since));
            let rises = ports.get(&*qp.device).into_iter().flatten();
            rises.filter_map(move |(port, at, rise)| Some((rise.at_ns.abs_diff(since?), *port, *at, rise)))
        });
        let nearest = near.min_by_key(|(distance, ..)| *distance);
        let (_, port, at, rise) = nearest.filter(|(distance, ..)| *distance <= NEAR_NS)?;
        Some(Reason {
            failure: FAILURES.get(at)?,
            rose: format!("{} of {} rose at that time", rise.counter, name(port)),
            sure: users(scene, port).iter().all(|user| user.uid == owner.uid)
                && scene.openers(port.device_uid).all(|user| user.uid == owner.uid),
        })
    }
}

/// Processes with QPs on a port's device, and what the kernel has on the port.
fn users<'a>(scene: &Scene<'a>, port: &PortRow) -> Vec<&'a ProcessRow> {
    scene.holders(&port.device).chain(scene.consumers(port)).collect()
}

/// Those of these processes that have QPs on a port which went to ERR about when its counter rose.
fn failing<'a>(
    scene: &Scene<'_>,
    port: &PortRow,
    users: &[&'a ProcessRow],
    at_ns: u64,
) -> Vec<&'a ProcessRow> {
    let went = |qp: &&QpRow| {
        let stuck = Stuck::of(qp, scene.snapshot.mono_ns).filter(|stuck| stuck.is_wrong());
        let since = stuck.and_then(|stuck| stuck.since_ns);
        qp.port.is_none_or(|number| number == port.port)
            && since
                .is_some_and(|since| scene.growth.failed.is_new(since) && since.abs_diff(at_ns) <= NEAR_NS)
    };
    let failed = scene.qps_on(port.device_uid).filter(went);
    let owners: BTreeSet<_> = failed.filter_map(|qp| qp.process_uid).collect();
    users
        .iter()
        .copied()
        .filter(|user| owners.contains(&user.uid))
        .collect()
}

/// Ports whose NIC counts requests that failed. Each rise is told for some seconds: the QP may be seen in ERR
/// after it.
pub(super) fn failed(scene: &Scene<'_>, out: &mut Vec<Symptom>) {
    let now = scene.snapshot.mono_ns;
    for ((device_uid, number), rises) in &scene.growth.failed.rises {
        let Some(port) = scene.port(*device_uid, *number) else {
            continue;
        };
        let last = rises.iter().filter_map(|(at, rises)| Some((*at, rises.back()?)));
        for (at, rise) in last.filter(|(_, rise)| now.saturating_sub(rise.at_ns) < NEAR_NS) {
            let (failure, counter) = (&FAILURES[at], &rise.counter);
            let mut users = users(scene, port);
            let device = scene.device(port.device_uid);
            let is_counted = device.is_some_and(|device| device.datapath.is_some())
                || (!users.is_empty() && users.iter().all(|user| user.traffic.tx_wr.is_some()));
            // `completion-error` names the process where completions are counted, and have such a status.
            if is_counted && failure.status.is_some() {
                continue;
            }
            let total = port.counters.iter().find(|row| row.name == *counter);
            let total = total.map_or(0, |row| row.counter.total);
            let mut evidence = vec![format!(
                "{counter} {total} in all, {} when it last rose",
                words::per_s(rise.per_s)
            )];
            if users.is_empty() {
                users = scene.openers(port.device_uid).collect();
                evidence.extend((!users.is_empty()).then(|| PAST_KERNEL.to_owned()));
            }
            let victims = failing(scene, port, &users, rise.at_ns);
            // Of the others nobody is seen to wait: it may be the trace of a program that has ended.
            let severity = if victims.is_empty() {
                Severity::Warning
            } else {
                evidence
                    .extend(who(&victims).map(|who| format!("QPs went to ERR at that time: those of {who}")));
                users.clone_from(&victims);
                Severity::Critical
            };
            let (why, next) = meaning(failure);
            let only_kernel = !users.is_empty() && users.iter().all(|user| user.kernel);
            out.push(Symptom {
                verdict: format!(
                    "{} {} fail: {why} ({counter}){}",
                    failure.what,
                    name(port),
                    used_by(&users)
                ),
                evidence,
                next: if only_kernel { qps::OF_KERNEL } else { next }.into(),
                short: "requests fail".to_owned(),
                victims: victims.iter().map(|row| row.uid).collect(),
                ..scene.symptom(
                    FindingId::RequestsFail,
                    severity,
                    About::of_port(port).part(counter.clone()),
                )
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name that no driver has would never speak.
    #[test]
    fn each_counter_is_one_that_a_driver_exports() {
        let page = include_str!("../../../../../docs/counters.md");
        for counter in FAILURES.iter().flat_map(|failure| failure.counters) {
            assert!(page.contains(&format!("`{counter}`")), "{counter}");
        }
    }
}
