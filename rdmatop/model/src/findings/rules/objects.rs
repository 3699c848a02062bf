//! QPs that only become more, and devices that cannot go.

use std::sync::Arc;

use super::RuleContext;
use crate::cause::{CauseId, Concerns};
use crate::facts::{DeviceRow, DeviceState, ProcessRow, QpRow};
use crate::findings::{About, Finding, FindingId, words};
use rdmatop_base::step::step;

/// Processes that create QPs and use few of them.
pub(super) fn leak(ctx: &RuleContext<'_>, row: &ProcessRow) -> Option<Finding> {
    let grown = ctx.history.qps.in_steps(5, row.uid);
    let (more, since) = grown.filter(|(more, _)| *more >= ctx.limits.leak_qps)?;
    // What is not counted may move: that is no leak then.
    let is_at_rest = |qp: &&Arc<QpRow>| {
        let moved = [qp.traffic.tx_wr, qp.traffic.rx_wr];
        !qp.exited
            && qp.process_uid == Some(row.uid)
            && moved
                .iter()
                .all(|count| count.is_some_and(|count| count.total == 0))
    };
    let at_rest = ctx.facts.qps.iter().filter(is_at_rest).count() as u64;
    if at_rest * 2 <= row.qps {
        return None;
    }
    let seconds = ctx.facts.mono_ns.saturating_sub(since) / 1_000_000_000;
    Some(Finding {
        since_mono_ns: since,
        verdict: format!(
            "{} has made {more} QPs within {seconds} s and destroyed none: {} now, {at_rest} of them without a work request",
            words::process(row),
            row.qps
        ),
        evidence: vec![format!("{more} more within {seconds} s, never fewer")],
        next: row.pid.map_or_else(
            || "Fix the program: does it open connections again without ibv_destroy_qp or rdma_destroy_ep? A restart frees them.".into(),
            |pid| {
                step!(
                    "rdma resource show qp pid {}   # more than it has clients -> fix the program: it keeps QPs of clients that are gone (ibv_destroy_qp)   # as many -> no \
                     leak: clients wait, or connect again and again   # a restart frees them, and ends its connections",
                    pid
                )
            },
        ),
        short: format!("+{more} QPs"),
        ..ctx.finding(FindingId::QpLeak, About::of_process(row.uid))
    })
}

/// Devices whose removal waits.
pub(super) fn removal(ctx: &RuleContext<'_>, device: &DeviceRow) -> Option<Finding> {
    if device.state != Some(DeviceState::Removing) {
        return None;
    }
    // The source that saw it has looked for the processes that have the device open.
    let mut notes = ctx.facts.health.notes.iter();
    let concerns = Concerns::Device(device.name.to_string());
    let note = notes.find(|note| note.id == CauseId::RemovalWaits && note.concerns == concerns);
    let (verdict, next) = match note {
        Some(note) => (format!("{}: {}", note.what, note.why), note.remedy.clone()),
        None => (
            format!(
                "{} is being removed: the kernel waits until its last user closes it",
                device.name
            ),
            "end the processes that use it".into(),
        ),
    };
    Some(Finding {
        verdict,
        evidence: vec!["RDMA netlink lists it no more, sysfs still does".to_owned()],
        next,
        short: "removal waits".to_owned(),
        ..ctx.finding(FindingId::Removal, About::of_device(device.uid))
    })
}
