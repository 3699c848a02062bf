//! The text and the JSON of `rdmatop check`: the verdict first.

use serde::Serialize;

use rdmatop_base::text::count;
use rdmatop_model::cause::{Cause, CauseId};
use rdmatop_model::findings::{Finding, Severity, WITHOUT_EBPF};
use rdmatop_model::input::EbpfState;
use rdmatop_model::judgement::{Unobserved, looked_at_none};
use rdmatop_model::snapshot::{SCHEMA, Snapshot};

/// The worst of the findings.
pub fn worst(snapshot: &Snapshot) -> Option<Severity> {
    snapshot.findings.iter().map(|found| found.severity).max()
}

/// Whether the verdict is unknown: there is no warning, but no device was looked at, or only ports and states
/// of QPs could be judged although more was wanted.
pub fn is_unknown(snapshot: &Snapshot) -> bool {
    let severe = worst(snapshot).is_some_and(|worst| worst > Severity::Info);
    let without_ebpf = matches!(
        snapshot.health.ebpf,
        EbpfState::Starting | EbpfState::Unavailable(_)
    );
    !severe && (without_ebpf || looked_at_none(snapshot))
}

/// The verdict in one line.
fn verdict(snapshot: &Snapshot) -> String {
    let host = snapshot.host.hostname.as_deref().unwrap_or("this host");
    let totals = &snapshot.judgement.totals;
    let what = format!(
        "{host}: {}, {}{}",
        count(snapshot.devices.len(), "device"),
        if totals.qps_are_partial { "at least " } else { "" },
        count(totals.qps, "QP")
    );
    let of = |severity| {
        snapshot
            .findings
            .iter()
            .filter(|found| found.severity == severity)
            .count()
    };
    let notes = &snapshot.health.notes;
    // Findings that are left out are not among those that are counted here.
    let least = if notes.iter().any(|note| note.id == CauseId::FindingsLeftOut) {
        "at least "
    } else {
        ""
    };
    match (of(Severity::Critical), of(Severity::Warning)) {
        (0, 0) if looked_at_none(snapshot) => {
            let all = snapshot.devices.len();
            format!("unknown: looked at none of {} of {host}", count(all, "device"))
        }
        (0, 0) => {
            let seconds = snapshot.health.looked_ns.saturating_add(500_000_000) / 1_000_000_000;
            let (word, place, rest) = match &snapshot.health.ebpf {
                EbpfState::On { .. } => ("ok", String::new(), ""),
                EbpfState::Disabled => (
                    "ok",
                    format!(" in {WITHOUT_EBPF}"),
                    "; the rest was not to be judged",
                ),
                _ => (
                    "unknown",
                    format!(" in {WITHOUT_EBPF}"),
                    "; without eBPF the rest is not judged",
                ),
            };
            format!("{word}: found nothing wrong{place} in {seconds} s on {what}{rest}")
        }
        (0, warnings) => format!("warning: {least}{} on {what}", count(warnings, "warning")),
        (critical, 0) => format!(
            "critical: {least}{} on {what}",
            count(critical, "critical finding")
        ),
        (critical, warnings) => format!(
            "critical: {least}{} and {} on {what}",
            count(critical, "critical finding"),
            count(warnings, "warning")
        ),
    }
}

/// Everything, ready to print.
pub fn text(snapshot: &Snapshot) -> String {
    let mut out = verdict(snapshot);
    out.push('\n');
    super::once::findings(&mut out, snapshot);
    super::once::notes(&mut out, &snapshot.health);
    // What rdmatop could not see, it could not judge.
    if !snapshot.judgement.unobserved.is_empty() {
        out.push('\n');
        super::once::unobserved(&mut out, snapshot);
    }
    out
}

#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    time: u64,
    verdict: &'static str,
    findings: &'a [Finding],
    notes: &'a [Cause],
    errors: &'a [Cause],
    unobserved: &'a [Unobserved],
}

/// The findings as one JSON object.
pub fn json(snapshot: &Snapshot) -> serde_json::Result<String> {
    let document = Document {
        schema: SCHEMA,
        time: snapshot.time,
        verdict: match worst(snapshot) {
            _ if is_unknown(snapshot) => "unknown",
            None | Some(Severity::Info) => "ok",
            Some(worst) => worst.name(),
        },
        findings: &snapshot.findings,
        notes: &snapshot.health.notes,
        errors: &snapshot.health.errors,
        unobserved: &snapshot.judgement.unobserved,
    };
    serde_json::to_string(&document).map(|line| line + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmatop_model::cause::Obstacle;
    use rdmatop_model::findings::LeftOut;
    use rdmatop_model::input::DataPaths;
    use rdmatop_model::testkit::full;

    #[test]
    fn a_healthy_machine_is_ok_in_one_line() {
        let mut snapshot = full::empty();
        snapshot.health.notes = Vec::new().into();
        snapshot.health.ebpf = EbpfState::On {
            datapaths: DataPaths::default(),
        };
        assert_eq!(
            text(&snapshot),
            "ok: found nothing wrong in 60 s on this host: 0 devices, 0 QPs\n"
        );
        let verdict = |snapshot: &Snapshot| {
            let json: serde_json::Value = serde_json::from_str(&json(snapshot).unwrap()).unwrap();
            (json["verdict"].as_str().unwrap().to_owned(), text(snapshot))
        };
        snapshot.health.ebpf = EbpfState::Disabled;
        let (word, line) = verdict(&snapshot);
        assert!(
            word == "ok" && line.ends_with("; the rest was not to be judged\n"),
            "{line}"
        );
        snapshot.health.ebpf = EbpfState::unavailable(Obstacle::new(CauseId::NoCapability, "no CAP_BPF", ""));
        let (word, line) = verdict(&snapshot);
        assert_eq!(
            (&*word, &*line),
            (
                "unknown",
                "unknown: found nothing wrong in ports and states of QPs in 60 s on this host: 0 devices, 0 QPs; without eBPF the \
                 rest is not judged\n"
            )
        );
    }

    #[test]
    fn nothing_is_known_where_all_devices_are_left_alone() {
        let mut snapshot = full::snapshot();
        (snapshot.findings, snapshot.ports) = (Vec::new().into(), Vec::new());
        for device in &mut snapshot.devices {
            device.driver = None;
        }
        assert!(is_unknown(&snapshot));
        let said = text(&snapshot);
        let devices = snapshot.devices.len();
        assert!(
            said.starts_with(&format!("unknown: looked at none of {devices} device")),
            "{said}"
        );
        let json: serde_json::Value = serde_json::from_str(&json(&snapshot).unwrap()).unwrap();
        assert_eq!(json["verdict"], "unknown");
        snapshot.devices[0].driver = Some("mlx5_core".into());
        snapshot.health.ebpf = EbpfState::Disabled;
        assert!(!is_unknown(&snapshot), "one was looked at");
    }

    #[test]
    fn the_verdict_is_that_of_the_worst() {
        let snapshot = full::snapshot();
        insta::assert_snapshot!(text(&snapshot));
        let json: serde_json::Value = serde_json::from_str(&json(&snapshot).unwrap()).unwrap();
        assert_eq!(json["verdict"], "critical");
        assert_eq!(
            json["findings"].as_array().unwrap().len(),
            snapshot.findings.len()
        );
    }
    #[test]
    fn the_number_of_findings_is_a_bound_where_some_are_left_out() {
        let mut snapshot = full::snapshot();
        let left_out = LeftOut {
            findings: 3,
            symptoms: 0,
        };
        snapshot.health.notes = left_out.note().into_iter().collect();
        let text = text(&snapshot);
        assert!(
            text.starts_with("critical: at least 1 critical finding "),
            "{text}"
        );
        assert!(
            text.contains("3 findings left out: rdmatop keeps the worst"),
            "{text}"
        );
    }
}
