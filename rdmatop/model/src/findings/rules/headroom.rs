//! Devices that have nearly as many QPs, CQs, MRs, PDs or SRQs as they may have.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::RuleContext;
use super::verbs::{ENOSPC, explains};
use crate::facts::{DeviceRow, VerbRow};
use crate::findings::{About, Finding, FindingId, Severity, words};
use rdmatop_base::order::Ordered as _;
use rdmatop_base::step::{ShellWord, step};

/// How many of those who have most of them are named.
const NAMED: usize = 3;

/// Devices that run out of objects.
///
/// A driver says how many it allows when it registers the device (`ib_device.attrs`), and refuses what is
/// beyond that with ENOMEM or ENOSPC. It may refuse earlier: functions of one NIC share what the NIC has, and
/// EFA has limits for each type of QP.
pub(super) fn devices(ctx: &RuleContext<'_>, out: &mut Vec<Finding>) {
    for device in &ctx.facts.devices {
        let all = device.headroom().into_iter();
        out.extend(all.filter_map(|(what, count, limit)| nearly_all(ctx, device, what, count?, limit?)));
    }
}

fn nearly_all(
    ctx: &RuleContext<'_>,
    device: &DeviceRow,
    what: &'static str,
    count: u64,
    limit: u64,
) -> Option<Finding> {
    let share = count as f64 / limit as f64;
    if share < ctx.limits.device_share {
        return None;
    }
    let refused = ctx.facts.verbs.iter().find(|row| {
        makes(&row.verb, what)
            && ctx.history.ran_short(row)
            && !ran_short_of_locked(ctx, row)
            && may_be_on(ctx, row, device)
    });
    let (name, share) = (&device.name, words::percent(share));
    let mut verdict = format!("{name} has {count} of the {limit} {what} that it may have");
    let mut evidence = vec![format!("{share} of what its driver allows")];
    let holders = holders(ctx, device);
    if what == "QPs" && !holders.is_empty() {
        evidence.push(format!("most of them: {}", holders.join(", ")));
    }
    if let Some(row) = refused {
        let owner = ctx.owner(row.process_uid);
        let who = owner.map_or_else(|| format!("PID {}", row.pid), words::process);
        let verb = &row.verb;
        verdict = format!("{verdict}, and {verb} of {who} failed");
        evidence.push(format!("{verb} failed with ENOMEM or ENOSPC within the last minute: this limit may be why, or one that the driver does not tell"));
    }
    let kind = what.trim_end_matches('s').to_lowercase();
    Some(Finding {
        verdict,
        evidence,
        next: step!(
            "rdma resource show {} | grep -w {} | grep -oE '(pid|comm) .*' | sort | uniq -c | sort -n | tail   # a line for each \
             process, the last one has the most -> end or mend the program that makes so many   # all are needed -> fewer of them \
             for each peer, or other NICs for some of the processes",
            ShellWord::new(&kind, "KIND"),
            ShellWord::device(&device.name)
        ),
        short: format!("{count} of {limit} {what}"),
        victims: refused.and_then(|row| row.process_uid).into_iter().collect(),
        since_mono_ns: ctx.facts.mono_ns,
        severity: Severity::critical_if(refused.is_some()),
        ..ctx.finding(FindingId::Headroom, About::of_device(device.uid).part(what))
    })
}

/// Whether a verb makes objects of this kind.
fn makes(verb: &str, what: &str) -> bool {
    match what {
        "QPs" => verb.starts_with("create_qp"),
        "CQs" => verb.starts_with("create_cq"),
        "PDs" => verb.starts_with("alloc_pd"),
        "SRQs" => verb.starts_with("create_srq") || verb.starts_with("create_xsrq"),
        _ => verb.contains("mr") && verb.contains("reg") && !verb.starts_with("de"),
    }
}

/// Whether the limit of locked memory may be why a call failed: the queues of QPs and CQs are memory of the
/// program, too, which drivers pin.
fn ran_short_of_locked(ctx: &RuleContext<'_>, row: &VerbRow) -> bool {
    let owner = ctx.owner(row.process_uid);
    let locked = owner.and_then(|owner| owner.locked.as_deref());
    let full = row.errnos.iter().any(|(number, _)| *number == ENOSPC);
    !full && locked.is_some_and(explains)
}

/// Whether a call can have been of this device: its process has QPs there, or none anywhere.
fn may_be_on(ctx: &RuleContext<'_>, row: &VerbRow, device: &DeviceRow) -> bool {
    let owner = ctx.owner(row.process_uid);
    owner.is_none_or(|owner| owner.devices.is_empty() || owner.devices.contains(&device.name))
}

/// Who has most of the QPs. CQs and MRs are not listed by process.
fn holders(ctx: &RuleContext<'_>, device: &DeviceRow) -> Vec<String> {
    let mut held: BTreeMap<u64, u64> = BTreeMap::new();
    let there = ctx.qps_on(device.uid).filter(|qp| !qp.exited);
    for uid in there.filter_map(|qp| qp.process_uid) {
        *held.entry(uid).or_default() += 1;
    }
    let mut held: Vec<(u64, u64)> = held.into_iter().collect();
    held.order_by_key(|(uid, number)| (Reverse(*number), *uid));
    let named = held.into_iter().take(NAMED);
    let named = named.filter_map(|(uid, number)| {
        let process = ctx.process(uid)?;
        Some(format!("{} {number}", words::process(process)))
    });
    named.collect()
}
