//! Programs that post to a send queue that is full.

use super::{RuleContext, growing};
use crate::facts::ProcessRow;
use crate::findings::{About, Finding, FindingId, words};

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
