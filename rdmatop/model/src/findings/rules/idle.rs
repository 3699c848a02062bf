//! Ports that carry next to nothing while the others of their kind are full: one, some, or half of them.

use std::collections::BTreeSet;

use super::RuleContext;
use super::rails::{Load, idle_and_used, movers, names, received};
use crate::facts::{PortRow, ProcessRow};
use crate::findings::{About, Finding, FindingId, Severity, words};
use rdmatop_base::step::step;

/// Some of these ports carry next to nothing, two or more others are full, and the processes on those could
/// use the idle ones. A job with no more processes than full ports uses what it was given.
pub(super) fn rails(ctx: &RuleContext<'_>, ports: &[&PortRow], tx: &Load) -> Option<Finding> {
    let rx = received(ports)?;
    let (idle, full) = idle_and_used(ctx, ports, tx)?;
    let first = *idle.first()?;
    let is_full = |at: &usize| match ports[*at].capacity().filter(|_| tx.bytes) {
        Some(link) => tx.rates[*at].max(rx.rates[*at]) >= ctx.limits.hot_share * link,
        None => tx.rates[*at] >= tx.rates[tx.top] / 2.0,
    };
    // A slower port may serve another purpose.
    let is_alike = |at: &usize| ports[*at].rate_bps == ports[full[0]].rate_bps;
    if full.len() < 2 || !full.iter().all(is_full) || !idle.iter().all(is_alike) {
        return None;
    }
    let mut seen = BTreeSet::new();
    let mut users: Vec<&ProcessRow> = full.iter().flat_map(|at| movers(ctx, ports[*at])).collect();
    users.retain(|row| seen.insert(row.uid));
    let job = shared_job(&users, full.len());
    let who = if let Some(job) = job {
        format!(
            "{} processes of {job} share the others, which are full",
            users.len()
        )
    } else {
        let has_qps = |row: &ProcessRow, at: &usize| row.devices.contains(&ports[*at].device);
        let uses_all = |row: &&ProcessRow| {
            full.iter().filter(|at| has_qps(row, at)).count() >= 2 && idle.iter().all(|at| has_qps(row, at))
        };
        users.retain(uses_all);
        let user = words::process(users.first()?);
        format!("{user} has QPs on them, and fills the others")
    };
    let pid = users.iter().find_map(|row| row.pid)?;
    let (are_idle, all, share) = (idle.len(), ports.len(), words::percent(ctx.limits.idle_share));
    Some(Finding {
        verdict: format!(
            "{are_idle} of {all} ports are idle ({}): {who}",
            names(ports, &idle)
        ),
        evidence: vec![
            format!(
                "{} ports carry traffic, the busiest sends {}",
                full.len(),
                tx.of_port(tx.top)
            ),
            format!("{are_idle} carry less than {share} of the busiest"),
        ],
        next: step!(
            "sudo grep -zE '_HCA|_NET_DEVICES|_EFA_IFACE' /proc/{}/environ | cat -v   # names some NICs -> name all that are meant at the next start   # prints nothing -> \
             start it with NCCL_DEBUG=INFO; rdmatop nccl-log FILE then shows each rank's NIC   # the idle ones are for something else -> leave it",
            pid
        ),
        short: words::count(idle.len() as u64, "NIC") + " idle",
        victims: users.iter().map(|row| row.uid).collect(),
        // The idle NICs may be for storage, and the process has queue pairs there too.
        severity: Severity::info_if(job.is_none()),
        ..ctx.finding(FindingId::RailsIdle, About::of_port(ports[first]))
    })
}

/// The one job of all these processes, if they are more than the ports that they fill.
fn shared_job<'a>(users: &[&'a ProcessRow], full: usize) -> Option<&'a str> {
    let job = users.first()?.workload.as_deref()?;
    let is_of_it = |row: &&ProcessRow| row.workload.as_deref() == Some(job) && !row.workload_claimed;
    (users.len() > full && users.iter().all(is_of_it)).then_some(job)
}
