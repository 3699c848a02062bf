//! Memory that a process registers and never deregisters.

use super::RuleContext;
use crate::facts::ProcessRow;
use crate::findings::{About, Finding, FindingId, words};
use rdmatop_base::step::step;
use rdmatop_base::text;

/// Processes whose registered memory only rises.
pub(super) fn growth(ctx: &RuleContext<'_>, row: &ProcessRow) -> Option<Finding> {
    // Buffers that a program registers at its start fill one or two of eight parts of the window.
    let grown = ctx.history.memory.in_steps(6, row.uid);
    let (more, since) = grown.filter(|(more, _)| *more >= ctx.limits.mr_growth_bytes)?;
    let pid = row.pid?;
    let (who, more, now) = (words::process(row), text::bytes(more), text::bytes(row.mr_bytes?));
    let age = text::age(ctx.facts.mono_ns.saturating_sub(since) / 1_000_000_000);
    Some(Finding {
        since_mono_ns: since,
        verdict: format!("{who} registers more and more memory: {more} in {age}, {now} now"),
        evidence: vec![format!("{more} more within {age}, and no reading had less")],
        next: step!(
            "rdma resource show mr pid {}   # more of one length each time -> the program lacks an ibv_dereg_mr   # of many lengths -> a \
             cache of its library without a bound: ucx_info -f | grep RCACHE_MAX, or FI_MR_CACHE_MAX_SIZE of libfabric, for its next start",
            pid
        ),
        short: format!("+{more} MR"),
        ..ctx.finding(FindingId::MrGrowth, About::of_process(row.uid))
    })
}
