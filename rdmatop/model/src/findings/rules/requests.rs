//! Requests that fail for good, as NICs count them where no work request is counted.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::link::{PAST_KERNEL, is_infiniband, name, used_by, who};
use super::loss::Peers;
use super::{RuleContext, growing, qps};
use crate::cause::CauseId;
use crate::facts::{Facts, NamedCounter, PortRow, ProcessRow, QpRow};
use crate::findings::{About, FindingId, Severity, Symptom, words};
use crate::ib::WcStatus;
use crate::judgement::{Stuck, StuckQp};
use rdmatop_base::order::Gather as _;
use rdmatop_base::step::step;

const S: u64 = 1_000_000_000;
/// A QP is seen in ERR at most this long before or after its port's counter is seen to rise, ns: both are
/// asked for each second or two.
const NEAR_NS: u64 = 5 * S;

/// A way in which requests fail, and the counters that count it.
pub(super) struct Failure {
    /// The subject of the verdict, before the port's name.
    what: &'static str,
    /// The status of the completion at the end that has one; `None`: the peer alone has it.
    status: Option<WcStatus>,
    /// The counters for it of each driver that has one.
    counters: &'static [&'static str],
}

/// By the InfiniBand specification (9.9.2, 9.9.3) a QP of a connection goes to ERR with each of these: each
/// rise is a connection that ended. `resp_cqe_error` and `req_cqe_error` are others, which count flushes too,
/// as of the receives that are left when a program ends; so do counters of single NAKs. Those of EFA are left
/// out, whose QPs have no connections: [`unresponsive`].
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
pub(super) fn meaning(failure: &Failure, infiniband: bool) -> (&'static str, &'static str) {
    match failure.status {
        Some(status) => qps::meaning(status, infiniband),
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

/// How many spans are kept of each way to fail, on each port.
const KEPT: usize = 8;

/// A span in which a counter went on rising.
#[derive(Clone, Debug)]
struct Rise {
    from_ns: u64,
    /// When it last rose.
    at_ns: u64,
    counter: Arc<str>,
    per_s: f64,
    /// The processes of which QPs were seen to go to ERR then.
    failed: BTreeSet<u64>,
}

impl Rise {
    /// How far a time is from the span, ns.
    fn distance(&self, ns: u64) -> u64 {
        self.from_ns.saturating_sub(ns).max(ns.saturating_sub(self.at_ns))
    }
}

/// The last spans of each port, by their places in [`FAILURES`], oldest first.
type Rises = BTreeMap<usize, VecDeque<Rise>>;

/// What each port (device uid, number) counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Failed {
    rises: BTreeMap<(u64, u32), Rises>,
    /// When the watch began, ns. QPs in ERR by then failed at a time that nobody knows.
    first_ns: Option<u64>,
}

/// Why QPs went to ERR, by a counter of their port.
pub(super) struct Reason {
    pub(super) failure: &'static Failure,
    pub(super) rose: String,
    /// Each of the QPs went to ERR at such a time, and no other process has QPs there whose requests it may
    /// have been.
    pub(super) sure: bool,
}

impl Failed {
    pub(super) fn look(&mut self, facts: &Facts) {
        let at_ns = facts.mono_ns;
        self.first_ns.get_or_insert(at_ns);
        let mut before = std::mem::take(&mut self.rises);
        for port in &facts.ports {
            let key = (port.device_uid, port.port);
            let mut of_port = before.remove(&key).unwrap_or_default();
            for (at, row, per_s) in rising(port) {
                let spans = of_port.entry(at).or_default();
                let counter = row.name.clone();
                match spans.back_mut().filter(|span| at_ns - span.at_ns < NEAR_NS) {
                    Some(span) => (span.at_ns, span.counter, span.per_s) = (at_ns, counter, per_s),
                    None => spans.push_back(Rise {
                        from_ns: at_ns,
                        at_ns,
                        counter,
                        per_s,
                        failed: BTreeSet::new(),
                    }),
                }
                spans.drain(..spans.len().saturating_sub(KEPT));
            }
            let last = of_port.values_mut().filter_map(VecDeque::back_mut);
            for span in last.filter(|span| at_ns - span.at_ns < NEAR_NS) {
                span.failed.extend(failing(facts, port, span, self.first_ns));
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
    pub(super) fn reason(
        &self,
        ctx: &RuleContext<'_>,
        owner: &ProcessRow,
        qps: &[&StuckQp],
    ) -> Option<Reason> {
        if self.rises.is_empty() {
            return None;
        }
        let mut ports: BTreeMap<&str, Vec<_>> = BTreeMap::new();
        for ((device, number), rises) in &self.rises {
            if let Some(port) = ctx.port(*device, *number) {
                let all = ports.entry(&*port.device).or_default();
                let rises = rises.iter();
                all.extend(rises.flat_map(|(at, rises)| rises.iter().map(move |rise| (port, *at, rise))));
            }
        }
        let since = |qp: &StuckQp| qp.stuck.since_ns.filter(|since| self.is_new(*since));
        let near = |qp: &StuckQp| {
            let since = since(qp);
            let rises = ports.get(&*qp.device).into_iter().flatten();
            let near = rises.filter_map(|(port, at, rise)| Some((rise.distance(since?), *port, *at, *rise)));
            near.filter(|(distance, ..)| *distance <= NEAR_NS)
                .min_by_key(|(distance, ..)| *distance)
        };
        let all: Vec<_> = qps.iter().map(|qp| near(qp)).collect();
        let nearest = all.iter().flatten().min_by_key(|(distance, ..)| *distance);
        let (_, port, at, rise) = nearest.copied()?;
        let mut notes = ctx.facts.health.notes.iter();
        // The NIC counts for other PID namespaces too, of which no QP is listed here.
        let are_all_listed = notes.all(|note| note.id != CauseId::PidNamespace);
        Some(Reason {
            failure: FAILURES.get(at)?,
            rose: format!("{} of {} rose at that time", rise.counter, name(port)),
            sure: are_all_listed
                && all
                    .iter()
                    .all(|found| found.is_some_and(|(_, _, reason, _)| reason == at))
                && users(ctx, port).iter().all(|user| user.uid == owner.uid)
                && ctx.openers(port.device_uid).all(|user| user.uid == owner.uid),
        })
    }
}

/// Processes with QPs on a port's device, and what the kernel has on the port.
fn users<'a>(ctx: &RuleContext<'a>, port: &PortRow) -> Vec<&'a ProcessRow> {
    ctx.holders(&port.device).chain(ctx.consumers(port)).collect()
}

/// The processes with QPs on a port that went to ERR while its counter rose, after the watch began.
fn failing(facts: &Facts, port: &PortRow, rise: &Rise, first_ns: Option<u64>) -> BTreeSet<u64> {
    let went = |qp: &&Arc<QpRow>| {
        let stuck = Stuck::of(qp, facts.mono_ns).filter(|stuck| stuck.is_wrong());
        let since = stuck
            .and_then(|stuck| stuck.since_ns)
            .filter(|since| Some(*since) > first_ns);
        qp.device_uid == Some(port.device_uid)
            && qp.port.is_none_or(|number| number == port.port)
            && since.is_some_and(|since| rise.distance(since) <= NEAR_NS)
    };
    let failed = facts.qps.iter().filter(went);
    failed.filter_map(|qp| qp.process_uid).gather()
}

/// Peers that EFA gives up. SRD has no connections, and no QP goes to ERR for them: the completions say it to
/// the program alone.
pub(super) fn unresponsive(ctx: &RuleContext<'_>, out: &mut Vec<Symptom>) {
    const COUNTER: &str = "unresponsive_remote_events";
    for port in &ctx.facts.ports {
        let row = port.counters.iter().find(|row| &*row.name == COUNTER);
        let Some((row, per_s)) = row.and_then(|row| Some((row, growing(Some(row.counter))?))) else {
            continue;
        };
        let users = ctx.carried(port);
        out.push(Symptom {
            verdict: format!("A peer of {} does not answer any more{}", name(port), used_by(&users)),
            evidence: vec![format!(
                "{COUNTER} {} in all, {} when it last rose",
                row.counter.total,
                words::per_s(per_s)
            )],
            next: "Look at the job's other nodes: one is down, or its process has ended.   # at the job's start, and all run -> the security group of the instances has to let all traffic within the group in and out".into(),
            short: "peer gone".to_owned(),
            victims: users.iter().map(|row| row.uid).collect(),
            ..ctx.symptom(
                FindingId::RequestsFail,
                Severity::Warning,
                About::of_port(port).part(COUNTER),
            )
        });
    }
}

/// Ports whose NIC counts requests that failed. Each rise is told for some seconds: the QP may be seen in ERR
/// after it.
pub(super) fn failed(ctx: &RuleContext<'_>, out: &mut Vec<Symptom>) {
    let now = ctx.facts.mono_ns;
    for ((device_uid, number), rises) in &ctx.history.failed.rises {
        let Some(port) = ctx.port(*device_uid, *number) else {
            continue;
        };
        let last = rises.iter().filter_map(|(at, rises)| Some((*at, rises.back()?)));
        for (at, rise) in last.filter(|(_, rise)| now.saturating_sub(rise.at_ns) < NEAR_NS) {
            let (failure, counter) = (&FAILURES[at], &rise.counter);
            let mut users = users(ctx, port);
            let device = ctx.device(port.device_uid);
            let is_counted = device.is_some_and(|device| device.datapath.is_some())
                || (!users.is_empty() && users.iter().all(|user| user.traffic.tx_wr.is_some()));
            // `completion-error` names the process where completions are counted, and have such a status.
            if is_counted && failure.status.is_some() {
                continue;
            }
            let total = port.counters.iter().find(|row| row.name == *counter);
            let total = total.map_or_else(String::new, |row| format!(" {} in all,", row.counter.total));
            let mut evidence = vec![format!(
                "{counter}{total} {} when it last rose",
                words::per_s(rise.per_s)
            )];
            if users.is_empty() {
                users = ctx.openers(port.device_uid).collect();
                evidence.extend((!users.is_empty()).then(|| PAST_KERNEL.to_owned()));
            }
            // No living QP is seen to fail: it may be the trace of a program that has ended. Whose QPs were
            // seen stays so when the program ends.
            let unseen = rise.failed.is_empty();
            let severity = if unseen {
                evidence.push(
                    "no QP that the kernel lists went to ERR then: it may be of a program that has ended"
                        .to_owned(),
                );
                Severity::Warning
            } else {
                users.retain(|user| rise.failed.contains(&user.uid));
                evidence
                    .extend(who(&users).map(|who| format!("QPs went to ERR at that time: those of {who}")));
                Severity::Critical
            };
            let peers = Peers::of(ctx, port);
            evidence.extend(peers.lead_to());
            let (why, next) = meaning(failure, is_infiniband(port));
            let no_answer = failure.status == Some(WcStatus(12)) && !is_infiniband(port);
            let whose = match who(&users) {
                Some(who) if unseen => format!("; of {who} or of an ended program"),
                _ => used_by(&users),
            };
            let only_kernel = !users.is_empty() && users.iter().all(|user| user.kernel);
            out.push(Symptom {
                verdict: format!("{} {} failed: {why}{whose}", failure.what, name(port)),
                evidence,
                next: match peers.address().filter(|_| no_answer && !only_kernel) {
                    Some(peer) => step!(
                        "ping -c 3 {}   # the peer of the QPs that are there. No answer -> its host is down, or cable, route, firewall   # answers, and its process \
                         runs -> compare GID index and MTU of both sides: rdmatop doctor; rails that do not reach each other: NCCL_CROSS_NIC=0",
                        peer
                    ),
                    None if only_kernel => qps::OF_KERNEL.into(),
                    None => next.into(),
                },
                short: "requests fail".to_owned(),
                victims: rise.failed.iter().copied().collect(),
                ..ctx.symptom(
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
