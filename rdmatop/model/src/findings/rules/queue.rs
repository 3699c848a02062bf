//! Programs that post to a send queue that is full.

use super::{RuleContext, growing, live};
use crate::findings::{About, FindingId, Severity, Symptom, words};

/// Calls of post_send that post nothing. A call that succeeds posts at least one work request, so what the
/// doorbells exceed the posted work requests by are refused calls.
pub(super) fn full(ctx: &RuleContext<'_>, out: &mut Vec<Symptom>) {
    for row in live(ctx.facts) {
        let traffic = &row.traffic;
        let (Some(calls), Some(posted)) = (traffic.doorbells, traffic.tx_wr_posted) else {
            continue;
        };
        // If the posts are a lower bound, there may have been more, and fewer refused calls.
        let (Some(calls), Some(posted), false) = (calls.rate, posted.rate, posted.partial) else {
            continue;
        };
        let refused = calls - posted;
        let much = refused >= ctx.limits.full_per_s && refused >= ctx.limits.full_share * calls;
        // A queue from which nothing finishes is full for another reason, which other rules name.
        let Some(done) = growing(traffic.tx_wr).filter(|_| much) else {
            continue;
        };
        let stuck = ctx.judgement.stuck_of(row.uid);
        if growing(traffic.rnr_waits).is_some() || stuck.is_some_and(|(_, first)| first.reason.repeats()) {
            continue;
        }
        out.push(Symptom {
            verdict: format!(
                "{} posts to a send queue that is full: at least {} of {} calls of post_send a second post nothing",
                words::process(row),
                words::number(refused),
                words::number(calls)
            ),
            evidence: vec![format!(
                "{} work requests posted, {} finished",
                words::per_s(posted),
                words::per_s(done)
            )],
            next: "Post while fewer are outstanding than max_send_wr, and poll the CQ before the next try; or create the QP with a longer \
                   queue."
                .into(),
            short: "queue full".to_owned(),
            ..ctx.symptom(
                FindingId::SendQueueFull,
                Severity::Warning,
                About::of_process(row.uid),
            )
        });
    }
}
