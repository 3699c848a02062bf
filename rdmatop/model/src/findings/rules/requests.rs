//! Requests that fail for good, as NICs count them where no work request is counted.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::link::{name, used_by};
use super::{Scene, growing, qps};
use crate::findings::{About, FindingId, Severity, Symptom, words};
use crate::ib::WcStatus;
use crate::judgement::StuckQp;
use crate::snapshot::{NamedCounter, PortRow, Snapshot};

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

/// By the InfiniBand specification (9.9.2, 9.9.3) a QP of a connection goes to ERR with each of these: none
/// rises while connections work. `resp_cqe_error` and `req_cqe_error` do, which count flushes too, as of the
/// receives that are left when a program ends; so do counters of single NAKs. Those of EFA are left out:
/// nothing says what becomes of its QPs.
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

/// When counters of a port rose last, ns, with their names, by their places in [`FAILURES`].
type Rose = BTreeMap<usize, (Arc<str>, u64)>;

/// What each port (device uid, number) counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Failed(BTreeMap<(u64, u32), Rose>);

impl Failed {
    pub(super) fn look(&mut self, snapshot: &Snapshot) {
        let mut before = std::mem::take(&mut self.0);
        for port in &snapshot.ports {
            let key = (port.device_uid, port.port);
            let mut of_port = before.remove(&key).unwrap_or_default();
            let now = rising(port).map(|(at, row, _)| (at, (row.name.clone(), snapshot.mono_ns)));
            of_port.extend(now);
            if !of_port.is_empty() {
                self.0.insert(key, of_port);
            }
        }
    }

    /// What a port counted when QPs of its device went to ERR, and how it says so.
    pub(super) fn reason(&self, scene: &Scene<'_>, qps: &[&StuckQp]) -> Option<(&'static Failure, String)> {
        qps.iter().find_map(|qp| {
            let since = qp.stuck.since_ns?;
            let ports = scene.snapshot.ports.iter();
            let mut ports = ports.filter(|port| port.device == qp.device);
            ports.find_map(|port| {
                let of_port = self.0.get(&(port.device_uid, port.port))?;
                let mut all = of_port.iter();
                let (at, (counter, _)) = all.find(|(_, (_, at))| at.abs_diff(since) <= NEAR_NS)?;
                let rose = format!("{counter} of {} rose at that time", name(port));
                Some((FAILURES.get(*at)?, rose))
            })
        })
    }
}

/// Ports whose NIC counts requests that failed.
pub(super) fn failed(scene: &Scene<'_>, out: &mut Vec<Symptom>) {
    for port in &scene.snapshot.ports {
        for (at, row, rate) in rising(port) {
            let users = scene.carried(port);
            let device = scene.device(port.device_uid);
            let is_counted = device.is_some_and(|device| device.datapath.is_some())
                || (!users.is_empty() && users.iter().all(|user| user.traffic.tx_wr.is_some()));
            // `completion-error` names the process where completions are counted.
            if is_counted {
                break;
            }
            let failure = &FAILURES[at];
            let (why, next) = meaning(failure);
            // Without a user nobody waits: it is the trace of a program that has ended.
            let severity = if users.is_empty() {
                Severity::Warning
            } else {
                Severity::Critical
            };
            let counter = &row.name;
            out.push(Symptom {
                verdict: format!(
                    "{} {} fail: {why} ({counter}){}",
                    failure.what,
                    name(port),
                    used_by(&users)
                ),
                evidence: vec![format!(
                    "{counter} {} in all, {} when it last rose",
                    row.counter.total,
                    words::per_s(rate)
                )],
                next: next.into(),
                short: "requests fail".to_owned(),
                victims: users.iter().map(|row| row.uid).collect(),
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
