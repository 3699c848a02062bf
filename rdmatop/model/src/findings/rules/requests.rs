//! Requests that fail for good, as NICs count them where no work request is counted.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::link::{self, PAST_KERNEL, is_infiniband, name, used_by, who};
use super::loss::Peers;
use super::{RuleContext, growing, qps};
use crate::cause::CauseId;
use crate::facts::{Facts, NamedCounter, PortRow, ProcessRow, QpRow};
use crate::findings::{About, Finding, FindingId, S, Severity, words};
use crate::ib::WcStatus;
use crate::judgement::{Stuck, StuckQp};
use rdmatop_base::order::Gather as _;
use rdmatop_base::step::step;

/// A QP is seen in ERR at most this long before or after its port's counter is seen to rise, ns: both are
/// asked for each second or two.
const NEAR_NS: u64 = 5 * S;

/// Counters of requests that failed, each with the status of the completion at the end that has one; `None`:
/// the peer alone has it. By the InfiniBand specification (9.9.2, 9.9.3) a QP of a connection goes to ERR
/// with each of these: each rise is a connection that ended. `resp_cqe_error` and `req_cqe_error` are others,
/// which count flushes too, as of the receives that are left when a program ends; so do counters of single
/// NAKs. Those of EFA are left out, whose QPs have no connections: [`unresponsive`].
const FAILURES: &[(&str, Option<u8>)] = &[
    // mlx5, bnxt_re, rxe, mlx4, ionic, mana.
    ("req_transport_retries_exceeded", Some(12)),
    ("max_retry_exceeded", Some(12)),
    ("retry_exceeded_err", Some(12)),
    ("sq_num_tree", Some(12)),
    ("req_tx_retry_excd_err", Some(12)),
    ("requester_retries_exceeded", Some(12)),
    // mlx5, rxe, mlx4, mana.
    ("req_rnr_retries_exceeded", Some(13)),
    ("retry_rnr_exceeded_err", Some(13)),
    ("sq_num_rree", Some(13)),
    ("requester_rnr_nak_retries_exceeded", Some(13)),
    // mlx5 and bnxt_re, bnxt_re, mlx4, ionic.
    ("req_remote_access_errors", Some(10)),
    ("remote_access_err", Some(10)),
    ("sq_num_rae", Some(10)),
    ("req_rx_rmt_acc_err", Some(10)),
    ("req_remote_invalid_request", Some(9)),
    ("remote_invalid_req_err", Some(9)),
    ("sq_num_rire", Some(9)),
    ("req_rx_rmt_req_err", Some(9)),
    // bnxt_re, mlx4, ionic.
    ("remote_op_err", Some(11)),
    ("sq_num_roe", Some(11)),
    ("req_rx_oper_err", Some(11)),
    // mlx5 and bnxt_re, mlx4, ionic, mana.
    ("resp_local_length_error", Some(TOO_LONG)),
    ("rq_num_lle", Some(TOO_LONG)),
    ("resp_rx_loc_len_err", Some(TOO_LONG)),
    ("responder_local_len_error", Some(TOO_LONG)),
    // The other ends of status 10.
    ("resp_remote_access_errors", None),
    ("rq_num_rae", None),
    ("resp_tx_rmt_acc_err", None),
    ("responder_rem_access_error", None),
];

/// The status of a receive whose buffer is too short: the only one of messages that arrive.
const TOO_LONG: u8 = 1;

/// What it means that requests fail so, and what to do.
pub(super) fn meaning(status: Option<u8>, infiniband: bool) -> (&'static str, &'static str) {
    match status {
        Some(status) => qps::meaning(WcStatus(status), infiniband),
        None => (
            "a peer asked for memory that it may not use",
            "Check RKey, remote address and length on the peer, and the MR's access flags here; was it deregistered too early?",
        ),
    }
}

/// The counters of a port that rise because requests failed: the status, and the rate.
fn rising(port: &PortRow) -> impl Iterator<Item = (Option<u8>, &NamedCounter, f64)> {
    port.counters.iter().filter_map(|row| {
        let rate = growing(Some(row.counter))?;
        let (_, status) = FAILURES.iter().find(|(counter, _)| *counter == &*row.name)?;
        Some((*status, row, rate))
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

/// The last spans of each port, by the status, oldest first.
type Rises = BTreeMap<Option<u8>, VecDeque<Rise>>;

/// What each port (device uid, number) counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Failed {
    rises: BTreeMap<(u64, u32), Rises>,
    /// When the watch began, ns. QPs in ERR by then failed at a time that nobody knows.
    first_ns: Option<u64>,
}

/// Why QPs went to ERR, by a counter of their port.
pub(super) struct Reason {
    pub(super) status: Option<u8>,
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

    /// What a port of their device counted nearest to the time at which QPs of a process went to ERR.
    pub(super) fn reason<'a>(
        &'a self,
        ctx: &RuleContext<'_>,
        owner: &ProcessRow,
        qps: &[&StuckQp],
    ) -> Option<Reason> {
        let of_port = |((device, number), rises): (&(u64, u32), &'a Rises)| {
            let port = ctx.port(*device, *number)?;
            let rises = rises
                .iter()
                .flat_map(|(status, rises)| rises.iter().map(|rise| (*status, rise)));
            Some(rises.map(move |(status, rise)| (port, status, rise)))
        };
        let rises: Vec<_> = self.rises.iter().filter_map(of_port).flatten().collect();
        let near = |qp: &&StuckQp| {
            let since = qp.stuck.since_ns.filter(|since| Some(*since) > self.first_ns)?;
            let of_device = rises.iter().filter(|(port, ..)| port.device == qp.device);
            let near = of_device.map(|(port, status, rise)| (rise.distance(since), *port, *status, *rise));
            let near = near.filter(|(distance, ..)| *distance <= NEAR_NS);
            near.min_by_key(|(distance, ..)| *distance)
        };
        let all: Vec<_> = qps.iter().map(near).collect();
        let nearest = all.iter().flatten().min_by_key(|(distance, ..)| *distance);
        let (_, port, status, rise) = nearest.copied()?;
        // The NIC counts for other PID namespaces too, of which no QP is listed here.
        let are_all_listed = ctx.facts.health.note(CauseId::PidNamespace).is_none();
        let is_alike = |found: Option<(_, _, _, _)>| found.is_some_and(|(_, _, other, _)| other == status);
        Some(Reason {
            status,
            rose: format!("{} of {} rose at that time", rise.counter, name(port)),
            sure: are_all_listed
                && all.into_iter().all(is_alike)
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
        let since = stuck.and_then(|stuck| stuck.since_ns);
        let since = since.filter(|since| Some(*since) > first_ns);
        qp.device_uid == Some(port.device_uid)
            && qp.port.is_none_or(|number| number == port.port)
            && since.is_some_and(|since| rise.distance(since) <= NEAR_NS)
    };
    let failed = facts.qps.iter().filter(went);
    failed.filter_map(|qp| qp.process_uid).gather()
}

/// Peers that EFA gives up. SRD has no connections, and no QP goes to ERR for them: the completions say it to
/// the program alone.
pub(super) fn unresponsive(ctx: &RuleContext<'_>, port: &PortRow) -> Option<Finding> {
    const COUNTER: &str = "unresponsive_remote_events";
    let row = port.counters.iter().find(|row| &*row.name == COUNTER)?;
    let evidence = link::rose(row, 0.0)?;
    let users = ctx.carried(port);
    Some(Finding {
        verdict: format!("A peer of {} does not answer any more{}", name(port), used_by(&users)),
        evidence: vec![evidence],
        next: "Look at the job's other nodes: one is down, or its process has ended.   # at the job's start, and all run -> the security group of the instances has to let all traffic within the group in and out".into(),
        short: "peer gone".to_owned(),
        victims: users.iter().map(|row| row.uid).collect(),
        ..ctx.finding(FindingId::RequestsFail, About::of_port(port).part(COUNTER))
    })
}

/// Ports whose NIC counts requests that failed. Each rise is told for some seconds: the QP may be seen in ERR
/// after it.
pub(super) fn failed(ctx: &RuleContext<'_>, out: &mut Vec<Finding>) {
    for ((device_uid, number), rises) in &ctx.history.failed.rises {
        let last = rises.iter().filter_map(|(status, rises)| {
            let port = ctx.port(*device_uid, *number)?;
            rose_lately(ctx, port, *status, rises.back()?)
        });
        out.extend(last);
    }
}

fn rose_lately(ctx: &RuleContext<'_>, port: &PortRow, status: Option<u8>, rise: &Rise) -> Option<Finding> {
    let counter = &rise.counter;
    let mut users = users(ctx, port);
    let device = ctx.device(port.device_uid);
    let is_counted = device.is_some_and(|device| device.datapath.is_some())
        || (!users.is_empty() && users.iter().all(|user| user.traffic.tx_wr.is_some()));
    // `completion-error` names the process where completions are counted, and have such a status.
    if ctx.facts.mono_ns.saturating_sub(rise.at_ns) >= NEAR_NS || (is_counted && status.is_some()) {
        return None;
    }
    let total = port.counters.iter().find(|row| row.name == *counter);
    let total = total.map_or_else(String::new, |row| format!(" {} in all,", row.counter.total));
    let rate = words::per_s(rise.per_s);
    let mut evidence = vec![format!("{counter}{total} {rate} when it last rose")];
    if users.is_empty() {
        users = ctx.openers(port.device_uid).collect();
        evidence.extend((!users.is_empty()).then(|| PAST_KERNEL.to_owned()));
    }
    // No living QP is seen to fail: it may be the trace of a program that has ended. Whose QPs were
    // seen stays so when the program ends.
    let unseen = rise.failed.is_empty();
    if unseen {
        evidence.push(
            "no QP that the kernel lists went to ERR then: it may be of a program that has ended".to_owned(),
        );
    } else {
        users.retain(|user| rise.failed.contains(&user.uid));
        evidence.extend(who(&users).map(|who| format!("QPs went to ERR at that time: those of {who}")));
    }
    let what = match status {
        Some(TOO_LONG) => "Messages to",
        Some(_) => "Requests from",
        None => "Requests to",
    };
    let peers = Peers::of(ctx, port);
    evidence.extend(peers.lead_to());
    let (why, next) = meaning(status, is_infiniband(port));
    let no_answer = status == Some(12) && !is_infiniband(port);
    let whose = match who(&users) {
        Some(who) if unseen => format!("; of {who} or of an ended program"),
        _ => used_by(&users),
    };
    let only_kernel = !users.is_empty() && users.iter().all(|user| user.kernel);
    Some(Finding {
        verdict: format!("{what} {} failed: {why}{whose}", name(port)),
        evidence,
        next: match peers.address().filter(|_| no_answer && !only_kernel) {
            Some(peer) => step!(
                "ping -c 3 {}   # its QPs' only peer: no answer -> its host is down, or cable, route, firewall   # answers, its process \
                 runs -> compare GID index, MTU of both: rdmatop doctor   # it is on another rail -> NCCL_CROSS_NIC=0",
                peer
            ),
            None if only_kernel => qps::OF_KERNEL.into(),
            None => next.into(),
        },
        short: if status == Some(12) {
            "no answer"
        } else {
            "requests fail"
        }
        .to_owned(),
        victims: rise.failed.iter().copied().collect(),
        severity: Severity::critical_if(!unseen),
        ..ctx.finding(
            FindingId::RequestsFail,
            About::of_port(port).part(counter.clone()),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name that no driver has would never speak.
    #[test]
    fn each_counter_is_one_that_a_driver_exports() {
        let page = include_str!("../../../../../docs/counters.md");
        for (counter, _) in FAILURES {
            assert!(page.contains(&format!("`{counter}`")), "{counter}");
        }
    }
}
