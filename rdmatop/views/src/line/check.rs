//! The text and the JSON of `rdmatop check`: the verdict first.

use serde::Serialize;

use rdmatop_base::text::{self, count};
use rdmatop_model::cause::{Cause, CauseId};
use rdmatop_model::findings::{Finding, FindingId, NoFindings, Severity, WITHOUT_EBPF};
use rdmatop_model::input::EbpfState;
use rdmatop_model::judgement::{Unobserved, looked_at_none, unseen_qps};
use rdmatop_model::snapshot::{SCHEMA, Snapshot};

/// The worst of the findings.
pub fn worst(snapshot: &Snapshot) -> Option<Severity> {
    snapshot.findings.iter().map(|found| found.severity).max()
}

/// The devices that owe an answer and of whose ports no rate is known, so that no rule could judge them.
fn silent(snapshot: &Snapshot) -> Vec<&str> {
    let owes = |name: &str| snapshot.health.note_of(CauseId::SlowDevice, name).is_some();
    let is_known = |uid| {
        let mut ports = snapshot.ports.iter().filter(|port| port.device_uid == uid);
        ports.any(|port| port.counters.iter().any(|named| named.counter.rate.is_some()))
    };
    let devices = snapshot.devices.iter();
    let silent = devices.filter(|device| owes(&device.name) && !is_known(device.uid));
    silent.map(|device| &*device.name).collect()
}

/// Whether the verdict is unknown: there is no warning, but no device was looked at, one did not answer, or
/// only ports and states of QPs could be judged although more was wanted.
pub fn is_unknown(snapshot: &Snapshot) -> bool {
    let severe = worst(snapshot).is_some_and(|worst| worst > Severity::Info);
    let without_ebpf = matches!(
        snapshot.health.ebpf,
        EbpfState::Starting | EbpfState::Unavailable(_)
    );
    !severe && (without_ebpf || looked_at_none(snapshot) || !silent(snapshot).is_empty())
}

/// Rules that had less time than they need, and how many seconds they need. Where neither a data path nor a
/// process is followed no work request is timed, however long one waits.
pub(crate) fn still_looks(snapshot: &Snapshot) -> Vec<(FindingId, u64)> {
    let follows = match &snapshot.health.ebpf {
        EbpfState::On { datapaths } => {
            let mut processes = snapshot.processes.iter();
            !datapaths.is_empty() || processes.any(|row| row.traffic.latency.is_some())
        }
        _ => false,
    };
    let can = |id: FindingId| id != FindingId::LatencyRises || follows;
    let all = snapshot.still_looks.iter().copied();
    all.filter(|(id, _)| can(*id)).collect()
}

/// What is not settled yet, for the end of the verdict, empty where all is, and whether rules of bursts are
/// among it. Those that compare with minutes before would leave no run of usual length without it.
fn so_far(snapshot: &Snapshot) -> (String, bool) {
    let all = still_looks(snapshot);
    let bursts = all.iter().any(|(_, seconds)| *seconds <= NoFindings::ENOUGH_S);
    let words = bursts.then(|| format!("what comes in bursts ({} s)", NoFindings::ENOUGH_S));
    let others = all.iter().filter(|(_, seconds)| *seconds > NoFindings::ENOUGH_S);
    let others = others.map(|(id, seconds)| format!("{} ({seconds} s)", id.name()));
    let list: Vec<_> = words.into_iter().chain(others).collect();
    if list.is_empty() {
        return (String::new(), false);
    }
    let needs = list.join(", ");
    (format!("; too short for {needs}: --for SECS"), bursts)
}

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
        let found = snapshot.findings.iter();
        found.filter(|found| found.severity == severity).count()
    };
    // Findings that are left out are not among those that are counted here.
    let some_left_out = snapshot.health.note(CauseId::FindingsLeftOut).is_some();
    let least = if some_left_out { "at least " } else { "" };
    match (of(Severity::Critical), of(Severity::Warning)) {
        (0, 0) if looked_at_none(snapshot) => {
            let all = snapshot.devices.len();
            format!("unknown: looked at none of {} of {host}", count(all, "device"))
        }
        (0, 0) => {
            let seconds = snapshot.health.looked_ns.saturating_add(500_000_000) / 1_000_000_000;
            let silent = silent(snapshot);
            let (word, place, rest) = match &snapshot.health.ebpf {
                _ if !silent.is_empty() => (
                    "unknown",
                    String::new(),
                    format!("; no answer of {}", text::names(&silent)),
                ),
                EbpfState::On { .. } => ("ok", String::new(), String::new()),
                EbpfState::Disabled => (
                    "ok",
                    format!(" in {WITHOUT_EBPF}"),
                    "; the rest was not to be judged".to_owned(),
                ),
                _ => (
                    "unknown",
                    format!(" in {WITHOUT_EBPF}"),
                    "; without eBPF the rest is not judged".to_owned(),
                ),
            };
            let (later, bursts) = match word {
                "ok" => so_far(snapshot),
                _ => (String::new(), false),
            };
            let word = if bursts { "ok so far" } else { word };
            let unseen = unseen_qps(snapshot);
            let unseen = unseen.map(|words| format!("; {words}")).unwrap_or_default();
            format!("{word}: found nothing wrong{place} in {seconds} s on {what}{rest}{unseen}{later}")
        }
        (critical, warnings) => {
            let word = if critical > 0 { "critical" } else { "warning" };
            let all = [(critical, "critical finding"), (warnings, "warning")].into_iter();
            let all = all
                .filter(|(found, _)| *found > 0)
                .map(|(found, one)| count(found, one));
            format!(
                "{word}: {least}{} on {what}",
                all.collect::<Vec<_>>().join(" and ")
            )
        }
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

/// A rule that had less time than it needs.
#[derive(Serialize)]
struct StillLooks {
    id: FindingId,
    seconds: u64,
}

#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    time: u64,
    verdict: &'static str,
    still_looks: Vec<StillLooks>,
    findings: &'a [Finding],
    notes: &'a [Cause],
    errors: &'a [Cause],
    unobserved: &'a [Unobserved],
}

/// The findings as one JSON object.
pub fn json(snapshot: &Snapshot) -> String {
    let document = Document {
        schema: SCHEMA,
        time: snapshot.time,
        verdict: match worst(snapshot) {
            _ if is_unknown(snapshot) => "unknown",
            Some(worst) if worst > Severity::Info => worst.name(),
            // There is no RDMA.
            _ if snapshot.devices.is_empty() => "unknown",
            _ => "ok",
        },
        still_looks: still_looks(snapshot)
            .into_iter()
            .map(|(id, seconds)| StillLooks { id, seconds })
            .collect(),
        findings: &snapshot.findings,
        notes: &snapshot.health.notes,
        errors: &snapshot.health.errors,
        unobserved: &snapshot.judgement.unobserved,
    };
    crate::json::line(&document)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmatop_model::cause::{Concerns, Obstacle};
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
            let json: serde_json::Value = serde_json::from_str(&json(snapshot)).unwrap();
            (json["verdict"].as_str().unwrap().to_owned(), text(snapshot))
        };
        snapshot.health.ebpf = EbpfState::Disabled;
        let (word, _) = verdict(&snapshot);
        assert_eq!(word, "unknown", "there is nothing to look at");
        snapshot.devices = full::snapshot().facts.devices;
        let (word, line) = verdict(&snapshot);
        snapshot.devices.clear();
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
    fn a_device_that_does_not_answer_is_not_found_to_be_well() {
        let mut snapshot = full::snapshot();
        snapshot.findings = Vec::new().into();
        snapshot.health.ebpf = EbpfState::On {
            datapaths: DataPaths::default(),
        };
        let device = snapshot.devices[0].clone();
        let note = Cause {
            id: CauseId::SlowDevice,
            concerns: Concerns::Device(device.name.to_string()),
            what: format!("{} is slow", device.name),
            why: "no answer about counters for 12 s".into(),
            remedy: "".into(),
        };
        snapshot.health.notes = vec![note].into();
        assert!(!is_unknown(&snapshot), "its rates are known: it is slow");
        let ports = snapshot.ports.iter_mut();
        for port in ports.filter(|port| port.device_uid == device.uid) {
            let mut counters: Vec<_> = port.counters.iter().cloned().collect();
            for named in &mut counters {
                named.counter.rate = None;
            }
            port.counters = counters.into();
        }
        assert!(is_unknown(&snapshot));
        let words = format!("; no answer of {}", device.name);
        let line = verdict(&snapshot);
        assert!(
            line.starts_with("unknown: found nothing wrong") && line.contains(&words),
            "{line}"
        );
        snapshot.health.notes = Vec::new().into();
        assert!(!is_unknown(&snapshot));
    }

    #[test]
    fn what_had_too_little_time_is_named_and_changes_no_word_of_the_json() {
        let mut snapshot = full::empty();
        snapshot.health.notes = Vec::new().into();
        snapshot.health.ebpf = EbpfState::On {
            datapaths: DataPaths::default().and("rdma_rxe", "kprobe"),
        };
        snapshot.health.looked_ns = 12_000_000_000;
        snapshot.still_looks = vec![
            (FindingId::HotPort, 25),
            (FindingId::RailsIdle, 30),
            (FindingId::QpLeak, 60),
            (FindingId::LatencyRises, 90),
        ];
        assert_eq!(
            text(&snapshot),
            "ok so far: found nothing wrong in 12 s on this host: 0 devices, 0 QPs; too short for what comes in bursts (30 s), \
             qp-leak (60 s), latency-rises (90 s): --for SECS\n"
        );
        let document = |snapshot: &Snapshot| -> serde_json::Value {
            let mut there = snapshot.clone();
            there.devices = full::snapshot().facts.devices;
            serde_json::from_str(&json(&there)).unwrap()
        };
        let said = document(&snapshot);
        assert_eq!(said["verdict"], "ok", "scripts ask for this word");
        assert_eq!(
            said["still_looks"][2],
            serde_json::json!({"id": "qp-leak", "seconds": 60})
        );
        snapshot.still_looks.drain(..2);
        assert_eq!(
            text(&snapshot),
            "ok: found nothing wrong in 12 s on this host: 0 devices, 0 QPs; too short for qp-leak (60 s), latency-rises (90 s): --for SECS\n"
        );
        snapshot.health.ebpf = EbpfState::On {
            datapaths: DataPaths::default(),
        };
        let said = text(&snapshot);
        assert!(
            said.ends_with("; too short for qp-leak (60 s): --for SECS\n"),
            "no work request is timed: {said}"
        );
        snapshot.still_looks.insert(0, (FindingId::HotPort, 25));
        snapshot.health.ebpf = EbpfState::Disabled;
        assert_eq!(document(&snapshot)["still_looks"].as_array().unwrap().len(), 2);
        let said = text(&snapshot);
        assert!(
            said.starts_with("ok so far: ") && said.ends_with("bursts (30 s), qp-leak (60 s): --for SECS\n"),
            "{said}"
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
        let json: serde_json::Value = serde_json::from_str(&json(&snapshot)).unwrap();
        assert_eq!(json["verdict"], "unknown");
        snapshot.devices[0].driver = Some("mlx5_core".into());
        snapshot.health.ebpf = EbpfState::Disabled;
        assert!(!is_unknown(&snapshot), "one was looked at");
    }

    #[test]
    fn the_verdict_is_that_of_the_worst() {
        let snapshot = full::snapshot();
        insta::assert_snapshot!(text(&snapshot));
        let json: serde_json::Value = serde_json::from_str(&json(&snapshot)).unwrap();
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
        assert!(text.contains("3 findings left out: at most 128 "), "{text}");
    }
}
