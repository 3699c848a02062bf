//! QPs that only become more, and devices that cannot go.

use std::sync::Arc;

use super::{RuleContext, live};
use crate::cause::{CauseId, Concerns};
use crate::facts::{DeviceState, QpRow};
use crate::findings::{About, FindingId, Severity, Symptom, words};
use rdmatop_base::step::step;

/// Processes that create QPs and use few of them.
pub(super) fn leak(ctx: &RuleContext<'_>, out: &mut Vec<Symptom>) {
    for row in live(ctx.facts) {
        let grown = ctx.history.of(row.uid);
        let Some((more, since)) = grown.filter(|(more, _)| *more >= ctx.limits.leak_qps) else {
            continue;
        };
        // What is not counted may move: that is no leak then.
        let is_at_rest = |qp: &&Arc<QpRow>| {
            let moved = [qp.traffic.tx_wr, qp.traffic.rx_wr];
            !qp.exited
                && qp.process_uid == Some(row.uid)
                && moved.iter().any(Option::is_some)
                && moved.iter().flatten().all(|count| count.total == 0)
        };
        let at_rest = ctx.facts.qps.iter().filter(is_at_rest).count() as u64;
        if at_rest * 2 <= row.qps {
            continue;
        }
        let seconds = ctx.facts.mono_ns.saturating_sub(since) / 1_000_000_000;
        let about = About::of_process(row.uid);
        out.push(Symptom {
            since_ns: since,
            verdict: format!(
                "{} has made {more} QPs within {seconds} s and destroyed none: {} now, {at_rest} of them never used",
                words::process(row),
                row.qps
            ),
            evidence: vec![format!("{more} more within {seconds} s, never fewer")],
            next: row.pid.map_or_else(
                || "Fix the program: does it open connections again without ibv_destroy_qp or rdma_destroy_ep? A restart frees them.".into(),
                |pid| {
                    step!(
                        "rdma resource show qp pid {}   # more than it has clients -> fix the program: it reconnects without ibv_destroy_qp   # until then a \
                         restart frees them, and ends its connections",
                        pid
                    )
                },
            ),
            short: format!("+{more} QPs"),
            ..ctx.symptom(FindingId::QpLeak, Severity::Warning, about)
        });
    }
}

/// Devices whose removal waits.
pub(super) fn removal(ctx: &RuleContext<'_>, out: &mut Vec<Symptom>) {
    let rows = ctx.facts.devices.iter();
    for device in rows.filter(|row| row.state == Some(DeviceState::Removing)) {
        // The source that saw it has looked for the processes that have the device open.
        let mut notes = ctx.facts.health.notes.iter();
        let concerns = Concerns::Device(device.name.to_string());
        let note = notes.find(|note| note.id == CauseId::RemovalWaits && note.concerns == concerns);
        let verdict = note.map_or_else(
            || {
                format!(
                    "{} is being removed: the kernel waits until its last user closes it",
                    device.name
                )
            },
            |note| format!("{}: {}", note.what, note.why),
        );
        let next = note.map_or_else(
            || "end the processes that use it".into(),
            |note| note.remedy.clone(),
        );
        let about = About::of_device(device.uid);
        out.push(Symptom {
            verdict,
            evidence: vec!["RDMA netlink lists it no more, sysfs still does".to_owned()],
            next,
            short: "removal waits".to_owned(),
            ..ctx.symptom(FindingId::Removal, Severity::Warning, about)
        });
    }
}
