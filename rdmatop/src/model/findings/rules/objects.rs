//! QPs that only become more, and devices that cannot go.

use super::Scene;
use crate::model::findings::{About, FindingId, Severity, Symptom, words};
use crate::model::snapshot::DeviceState;

/// Processes that create QPs and use few of them.
pub(super) fn leak(scene: &Scene<'_>, out: &mut Vec<Symptom>) {
    for row in scene
        .snapshot
        .processes
        .iter()
        .filter(|row| !row.exited && !row.kernel)
    {
        let Some((more, since)) = scene
            .growth
            .of(row.uid)
            .filter(|(more, _)| *more >= scene.limits.leak_qps)
        else {
            continue;
        };
        let own = || {
            scene
                .snapshot
                .qps
                .iter()
                .filter(|qp| !qp.exited && qp.process_uid == Some(row.uid))
        };
        // What is not counted may move: that is no leak then.
        let at_rest = own()
            .filter(|qp| {
                let moved = [qp.traffic.tx_wr, qp.traffic.rx_wr];
                moved.iter().any(Option::is_some) && moved.iter().flatten().all(|count| count.total == 0)
            })
            .count() as u64;
        if at_rest * 2 <= row.qps {
            continue;
        }
        let seconds = scene.snapshot.mono_ns.saturating_sub(since) / 1_000_000_000;
        out.push(Symptom {
            id: FindingId::QpLeak,
            severity: Severity::Warning,
            about: About {
                process: Some(row.uid),
                ..About::default()
            },
            since_ns: since,
            verdict: format!(
                "{} creates QPs and destroys none: {} now",
                words::process(row),
                row.qps
            ),
            evidence: vec![
                format!("{more} more within {seconds} s, never fewer"),
                format!("{at_rest} of {} have moved nothing", row.qps),
            ],
            next:
                "Look for connections that the program opens again without ibv_destroy_qp or rdma_destroy_ep."
                    .to_owned(),
            short: format!("+{more} QPs"),
            victims: Vec::new(),
        });
    }
}

/// Devices whose removal waits.
pub(super) fn removal(scene: &Scene<'_>, out: &mut Vec<Symptom>) {
    let rows = scene.snapshot.devices.iter();
    for device in rows.filter(|row| row.state == Some(DeviceState::Removing)) {
        let holder = scene.users(&device.name).next();
        let (by, next) = match holder {
            Some(row) => (
                format!(": {} holds it", words::process(row)),
                row.pid
                    .map(|pid| format!("kill {pid}   # or let it close the device")),
            ),
            None => (": a process holds it".to_owned(), None),
        };
        out.push(Symptom {
            id: FindingId::Removal,
            severity: Severity::Warning,
            about: About {
                process: holder.map(|row| row.uid),
                device: Some(device.uid),
                ..About::default()
            },
            since_ns: scene.interval_begin(),
            verdict: format!("The removal of {} waits{by}", device.name),
            evidence: vec!["RDMA netlink lists it no more, sysfs still does".to_owned()],
            next: next.unwrap_or_else(|| {
                format!(
                    "sudo fuser -v /dev/infiniband/uverbs*   # who has {} open",
                    device.name
                )
            }),
            short: "removal waits".to_owned(),
            victims: Vec::new(),
        });
    }
}
