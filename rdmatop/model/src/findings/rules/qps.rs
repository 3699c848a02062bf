//! QPs that wait or failed, work requests that ended with an error, and send queues that are full.

use std::collections::BTreeMap;

use super::{RuleContext, growing, requests, unanswered, verbs};
use crate::facts::{ProcessRow, QpRow, qp_name};
use crate::findings::{About, Finding, FindingId, S, words};
use crate::ib::WcStatus;
use crate::judgement::{Reason, StuckQp};
use rdmatop_base::step::step;
use rdmatop_base::text;

pub(super) const OF_KERNEL: &str = "sudo dmesg | tail -50   # which connection failed, and why; the kernel makes a new one as long as its timeouts allow   # given up -> mount \
                                    or connect it anew";

/// QPs that are stuck; the QPs of one process with one reason make one symptom.
pub(super) fn stuck(ctx: &RuleContext<'_>, out: &mut Vec<Finding>) {
    let mut groups: BTreeMap<(Option<u64>, FindingId), Vec<&StuckQp>> = BTreeMap::new();
    for qp in ctx.judgement.stuck() {
        let id = match qp.stuck.reason {
            Reason::Failed | Reason::SendFailed => FindingId::QpError,
            Reason::Alone => FindingId::QpSetup,
            Reason::NoAnswer => FindingId::PeerGone,
            // Another rule names the receiver without buffers; draining was asked for by the application.
            Reason::NoBuffers | Reason::Drained => continue,
        };
        groups.entry((qp.process_uid, id)).or_default().push(qp);
    }
    for ((process, id), qps) in groups {
        // Nobody waits for management QPs of the kernel, and for QPs that no process owns.
        let Some(owner) = ctx.owner(process) else {
            continue;
        };
        let failed = (id == FindingId::QpSetup)
            .then(|| verbs::failed_steps(ctx, owner.uid))
            .flatten();
        // While modify_qp fails, the rule of verbs names the cause, which is not the peer.
        if failed.as_ref().is_some_and(|failed| failed.go_on) {
            continue;
        }
        let mut symptom = stuck_symptom(ctx, owner, id, &qps);
        if let Some(failed) = failed {
            symptom.verdict.push_str(", or its modify_qp failed");
            symptom.evidence.push(format!(
                "{} calls of modify_qp failed with {}, none of them in the last interval",
                failed.total, failed.errno
            ));
        }
        out.push(symptom);
    }
}

fn stuck_symptom(ctx: &RuleContext<'_>, owner: &ProcessRow, id: FindingId, qps: &[&StuckQp]) -> Finding {
    let now = ctx.facts.mono_ns;
    let many = words::count(qps.len() as u64, "QP");
    let (who, on) = (words::process(owner), words::on(qps.iter().map(|qp| &*qp.device)));
    let since = qps.iter().filter_map(|qp| qp.stuck.since_ns).min();
    let mut out = Finding {
        since_mono_ns: since.unwrap_or(now),
        evidence: vec![list(qps)],
        ..ctx.finding(id, About::of_process(owner.uid))
    };
    match id {
        FindingId::PeerGone => unanswered::tell(ctx, owner, qps, &mut out),
        FindingId::QpSetup => {
            let age = text::age(now.saturating_sub(out.since_mono_ns) / S);
            let stay = if qps.len() == 1 { "stays" } else { "stay" };
            out.verdict = format!("{many} of {who}{on} {stay} in INIT for {age}: no peer has connected yet");
            "stuck in INIT".clone_into(&mut out.short);
            out.victims = vec![owner.uid];
            out.next = match owner.pid {
                Some(pid) => step!(
                    "sudo ss -tanp | grep pid={},   # LISTEN, or nothing -> it waits: start its peer   # SYN-SENT -> the peer that it shows is silent: start it, or open \
                     the firewall   # ESTAB -> the peer runs but does not connect its QP: read its log",
                    pid
                ),
                None if owner.kernel => "sudo dmesg | tail -50   # to which host it connects (NVMe-oF, NFS, Lustre): does ping reach it, and is the service on there?   # given up -> \
                                         mount or connect it anew"
                    .into(),
                None => "sudo rdmatop check   # on the peers' hosts: have all started, and can they reach this host by TCP?".into(),
            };
        }
        _ => {
            // Only QPs of unconnected types enter SQE, in which only the send queue is flushed.
            let only_sends = |qp: &&&StuckQp| qp.stuck.reason == Reason::SendFailed;
            let (state, what) = match qps.iter().filter(only_sends).count() {
                0 => ("ERR", "all work requests are flushed"),
                some if some == qps.len() => ("SQE", "send work requests are flushed, receives go on"),
                _ => (
                    "ERR or SQE",
                    "send work requests are flushed, in ERR receives too",
                ),
            };
            let reason = ctx.history.failed.reason(ctx, owner, qps);
            let infiniband = ctx.only_infiniband(qps.iter().map(|qp| &*qp.device));
            let told = reason
                .as_ref()
                .map(|reason| requests::meaning(reason.status, infiniband));
            let sure = told.filter(|_| reason.as_ref().is_some_and(|reason| reason.sure));
            let because = sure.map_or(what, |(because, _)| because);
            out.verdict = format!("{many} of {who}{on} in {state}: {because}");
            out.evidence.extend(reason.zip(told).map(|(reason, (why, _))| {
                let rose = reason.rose;
                match sure {
                    Some(_) => format!("{what}; {rose}"),
                    None => format!("may be why: {why} ({rose})"),
                }
            }));
            out.short = format!("QPs in {state}");
            out.next = if owner.kernel {
                OF_KERNEL
            } else if let Some((_, next)) = sure {
                next
            } else {
                "Look at the program's log: the first failed completion says why (later ones are flushes). Then restart the program: no \
                 QP leaves this state by itself."
            }
            .into();
        }
    }
    out
}

/// The QPs by device and number.
fn list(qps: &[&StuckQp]) -> String {
    let names: Vec<String> = qps.iter().map(|qp| qp_name(&qp.device, qp.qpn)).collect();
    text::names(&names)
}

/// What a status of a CQE means, and what to do, on InfiniBand or elsewhere.
pub(super) fn meaning(status: WcStatus, infiniband: bool) -> (&'static str, &'static str) {
    match status.0 {
        1 => (
            "a message was longer than the receive buffer",
            "Post larger receives, or send less: both sides must agree on the size.",
        ),
        2 => (
            "the work request itself is wrong",
            "Check opcode, lengths and the number of SGEs against what the QP was created with.",
        ),
        4 => (
            "the local buffer is not registered for this",
            "Check LKey, address range and access flags of the SGE.",
        ),
        8 => (
            "the local buffer may not be written",
            "Register the MR with IBV_ACCESS_LOCAL_WRITE.",
        ),
        9 => (
            "the peer refused the request as invalid",
            "Check the peer's max_dest_rd_atomic, and that it has a receive of the right size.",
        ),
        10 => (
            "the peer refused access to its memory",
            "Check RKey, remote address and remote access flags; is the peer's MR still registered?",
        ),
        11 => (
            "the peer failed to carry it out",
            "sudo rdmatop check   # on the peer's host: it names what failed there",
        ),
        12 if infiniband => (
            "the peer did not answer",
            "Does the peer's process run, and is its port ACTIVE (ibstat there)? Both -> look for links with errors: sudo ibdiagnet -i DEVICE. Where NICs reach their own rail alone: NCCL_CROSS_NIC=0.",
        ),
        12 => (
            "the peer did not answer",
            "Is the peer's host reached by ping, and does its process run? Both -> compare GID index and MTU of both sides: rdmatop doctor. Where NICs reach their own rail alone: NCCL_CROSS_NIC=0.",
        ),
        13 => (
            "the peer posted no receive in time",
            "The peer has to post receives earlier; rnr_retry 7 waits without end.",
        ),
        _ => (
            "the work request failed",
            "Look at the program's log for the work request's status.",
        ),
    }
}

/// Whether a status is a fault: `success` is none, and `wr_flush_err` only follows from another one.
fn is_fault(status: WcStatus) -> bool {
    !matches!(status.0, 0 | 5)
}

/// The devices of the QPs whose work requests end with this status now; those of the process where no QP
/// shows it, as once it is destroyed.
fn failing_on(ctx: &RuleContext<'_>, owner: &ProcessRow, status: WcStatus) -> String {
    let fails = |qp: &QpRow| {
        let mut all = qp.traffic.by_status.iter();
        all.any(|row| row.status == status && growing(Some(row.cqes)).is_some())
    };
    let failing = ctx.qps_of(owner.uid).filter(|qp| fails(qp));
    let on = words::on(failing.map(|qp| &*qp.device));
    if on.is_empty() {
        return words::on(owner.devices.iter().map(|name| &**name));
    }
    on
}

/// Work requests that ended with an error.
pub(super) fn completions(ctx: &RuleContext<'_>, out: &mut Vec<Finding>) {
    for owner in &ctx.facts.processes {
        for row in owner.traffic.by_status.iter().filter(|row| is_fault(row.status)) {
            let Some(rate) = growing(Some(row.cqes)).map(words::per_s) else {
                continue;
            };
            let (what, next) = meaning(row.status, ctx.is_on_infiniband(owner));
            let who = words::process(owner);
            let on = failing_on(ctx, owner, row.status);
            let about = About::of_process(Some(owner.uid)).part(row.status.to_string());
            out.push(Finding {
                verdict: format!("Work requests of {who}{on} fail: {what} ({})", row.status),
                evidence: vec![format!(
                    "{} such completions, {rate} when the last came",
                    row.cqes.total
                )],
                next: next.into(),
                short: row.status.to_string(),
                ..ctx.finding(FindingId::CompletionError, about)
            });
        }
    }
}

/// Processes with CQEs that found their CQ full.
pub(super) fn overflows(ctx: &RuleContext<'_>, owner: &ProcessRow) -> Option<Finding> {
    let rate = growing(owner.traffic.cq_overflows)?;
    let total = owner.traffic.cq_overflows?.total;
    Some(Finding {
        verdict: format!("{} polls too rarely: its completion queue is full and completions are lost", words::process(owner)),
        evidence: vec![format!("{total} completions lost, {} when it last happened", words::per_s(rate))],
        next: "Fix the program: create the CQ with as many entries as work requests can be outstanding, poll it more often. Then \
               restart it: what is lost does not come again."
            .into(),
        short: "CQ full".to_owned(),
        ..ctx.finding(FindingId::CqOverflow, About::of_process(owner.uid))
    })
}

/// Calls of post_send that post nothing. A call that succeeds posts at least one work request, so what the
/// doorbells exceed the posted work requests by are refused calls.
pub(super) fn full(ctx: &RuleContext<'_>, row: &ProcessRow) -> Option<Finding> {
    let traffic = &row.traffic;
    // If the posts are a lower bound, there may have been more, and fewer refused calls.
    let posted = traffic.tx_wr_posted.filter(|posted| !posted.partial)?.rate?;
    let calls = traffic.doorbells?.rate?;
    let refused = calls - posted;
    // A queue from which nothing finishes is full for another reason, which other rules name.
    let done = growing(traffic.tx_wr)?;
    let stuck = ctx.judgement.stuck_of(row.uid);
    if row.kernel
        || row.exited
        || refused < ctx.limits.full_per_s
        || refused < ctx.limits.full_share * calls
        || growing(traffic.rnr_waits).is_some()
        || stuck.is_some_and(|(_, first)| first.reason.repeats())
    {
        return None;
    }
    let (who, refused, calls) = (words::process(row), words::number(refused), words::number(calls));
    let (posted, done) = (words::per_s(posted), words::per_s(done));
    Some(Finding {
        verdict: format!(
            "{who} posts to a send queue that is full: at least {refused} of {calls} calls of post_send a second post nothing"
        ),
        evidence: vec![format!("{posted} work requests posted, {done} finished")],
        next: "Post while fewer are outstanding than max_send_wr, and poll the CQ before the next try; or create the QP with a longer \
               queue."
            .into(),
        short: "queue full".to_owned(),
        ..ctx.finding(FindingId::SendQueueFull, About::of_process(row.uid))
    })
}
