//! The screen, `--once` and `--json` say the same of one snapshot.

use serde_json::Value;

use super::super::format;
use super::super::format::Units;
use super::super::state::Detail;
use super::*;
use crate::{json, line};
use rdmatop_model::ib::QpState;
use rdmatop_model::testkit::full;

/// Compares each of the three with what the model judged.
fn hold(snapshot: Snapshot) {
    let shown = state(snapshot, Tab::Qps, (200, 50));
    let s = Arc::clone(&shown.snapshot);
    let json: Value = serde_json::from_str(&json::snapshot(&s)).unwrap();
    let (screen, text) = (screen(&shown), line::once::page(&s));
    let judgement = &json["judgement"];

    let stuck = judgement["stuck"].as_array().unwrap();
    let count = format!(", {} of them stuck", stuck.len());
    assert_eq!(screen.contains(&count), !stuck.is_empty(), "{screen}");
    assert_eq!(text.contains(&count), !stuck.is_empty(), "{text}");
    let marked = |qpn: u64| {
        let qpn = qpn.to_string();
        let has = |all: &str, name: &str, mark: &str| {
            all.lines()
                .filter(|line| line.split_whitespace().any(|word| word == name))
                .any(|line| line.contains(mark))
        };
        let name = text.lines().find_map(|line| {
            line.split_whitespace()
                .next()
                .filter(|word| word.ends_with(&format!("/{qpn}")))
        });
        name.is_some_and(|name| has(&text, name, "!")) && has(&screen, &qpn, "!")
    };
    for qp in stuck {
        assert!(marked(qp["qpn"].as_u64().unwrap()), "{qp}\n{text}\n{screen}");
        assert!(text.contains(qp["why"].as_str().unwrap()), "{qp}\n{text}");
    }

    let totals = &judgement["totals"];
    for (key, name, once) in [("tx", "Tx", "TX"), ("rx", "Rx", "RX")] {
        let known = totals[key]["rate"].as_f64();
        // "At least 0" is shown as unknown.
        let rate = known.or(totals[key]["at_least"].as_f64().filter(|rate| *rate > 0.0));
        let bound = |sign| if known.is_none() { sign } else { "" };
        let on_screen = rate.map_or_else(
            || format!("{name} -"),
            |rate| {
                format!(
                    "{name} {}{}b/s",
                    bound("≥"),
                    format::si(Units::Bits.of_bytes(rate))
                )
            },
        );
        assert!(screen.contains(&on_screen), "{on_screen}\n{screen}");
        let in_text = rate.map_or_else(
            || format!("{once} -"),
            |rate| format!("{once} {}{}/s", bound(">="), line::units::bytes(rate)),
        );
        assert!(text.contains(&in_text), "{in_text}\n{text}");
    }
    let qps = totals["qps"].as_u64().unwrap();
    assert!(screen.contains(&format!("QPs {qps}")) && text.contains(&format!("QPs {qps}")));
    for row in totals["states"].as_array().unwrap() {
        let part = format!("{} {}", row["qps"], row["state"].as_str().unwrap_or_default());
        assert!(
            screen.contains(&part) && text.contains(&part),
            "{part}\n{text}\n{screen}"
        );
    }

    let (lost, events) = (&json["health"]["lost_events"], &json["health"]["events"]);
    assert_eq!(
        screen.contains("tracer lost 0"),
        lost.as_u64() == Some(0),
        "{screen}"
    );
    assert_eq!(screen.contains("tracer lost"), lost.is_u64(), "{lost}\n{screen}");
    // Either nothing is traced, or both are known.
    assert_eq!(lost.is_u64(), events.is_u64(), "{lost} {events}");
    let written = |count: &Value| count.as_u64().map_or_else(|| "-".to_owned(), |n| n.to_string());
    let head = format!("events {}  lost {}", written(events), written(lost));
    assert!(text.contains(&head), "{head}\n{text}");
    let losses = json["health"]["losses"].as_array().unwrap();
    let short = losses.iter().any(|loss| loss["records"] == false);
    assert_eq!(screen.contains("counts short"), short, "{screen}");
    for loss in losses {
        let part = format!("{} {}", loss["where"].as_str().unwrap(), loss["count"]);
        assert!(text.contains(&part), "{part}\n{text}");
    }
    unobserved(&s, judgement["unobserved"].as_array().unwrap(), &text);
    unknown(&s, json["qps"].as_array().unwrap());
}

/// For each QP for which JSON says that something is unknown, its page says so too.
fn unknown(s: &Snapshot, list: &[Value]) {
    for (at, row) in list.iter().enumerate() {
        let mut shown = state(s.clone(), Tab::Qps, (200, 50));
        let mut order = shown.table().order.iter();
        let place = order.position(|entry| entry.at == at).unwrap();
        shown.put_cursor(place);
        shown.detail = Detail::Full;
        let page = screen(&shown);
        let unknown = row["unknown"].as_object().unwrap();
        let says = page.contains("Traffic: not observable: ") || page.contains("work requests: ");
        assert_eq!(says, unknown.contains_key("work_requests"), "{row}\n{page}");
    }
}

/// The page of a device says why something of it cannot be observed.
fn unobserved(s: &Snapshot, list: &[Value], text: &str) {
    let lines = text.lines().filter(|line| line.starts_with("not observable: "));
    assert_eq!(lines.clone().next().is_none(), list.is_empty(), "{text}");
    for row in list {
        let (device, why) = (row["device"].as_str().unwrap(), row["why"].as_str().unwrap());
        // A long list names its first devices and how many more there are, or its first and its last.
        let in_list = |line: &str| line.contains(" more: ") || line.contains(" to ");
        let says = |line: &str| (line.contains(device) || in_list(line)) && line.ends_with(why);
        assert!(lines.clone().any(says), "{row}\n{text}");
    }
    for (at, port) in s.ports.iter().enumerate() {
        let mut shown = state(s.clone(), Tab::Devices, (200, 50));
        shown.put_cursor(at);
        shown.detail = Detail::Full;
        let page = screen(&shown);
        for row in list.iter().filter(|row| row["device"] == *port.device) {
            let why = row["why"].as_str().unwrap();
            assert!(
                page.contains("Not observable: ") && page.contains(why),
                "{row}\n{page}"
            );
        }
    }
}

#[test]
fn a_qp_that_may_be_used_past_the_probes_says_so_on_page_and_in_text() {
    let mut s = testkit::one_row();
    (s.devices[0].driver, s.devices[0].followed) = (Some("mlx5_core".into()), false);
    s.devices[0].datapath = None;
    s.health.uprobes = Some(Arc::default());
    let qp = Arc::make_mut(&mut s.qps[0]);
    qp.traffic = Arc::default();
    s.processes[0].libraries = Some(vec!["libuct.so.0".to_owned()].into());
    let says = "UCX is loaded, which may post to mlx5";
    let mut shown = state(s, Tab::Qps, (200, 50));
    let text = line::once::page(&shown.snapshot);
    let line = format!("not observable: rxe0: work requests of 1 QP: {says}");
    assert!(text.contains(&line), "{text}");
    shown.detail = Detail::Full;
    let page = screen(&shown);
    assert!(
        page.contains(&format!("Traffic: not observable: {says}")),
        "{page}"
    );
}

#[test]
fn the_screen_the_text_and_the_json_agree() {
    let mut waiting = testkit::busy();
    let now_ns = waiting.mono_ns;
    for (at, state) in [(0, 1), (1, 4)] {
        let qp = Arc::make_mut(&mut waiting.qps[at]);
        (qp.state, qp.qp_type) = (Some(QpState(state)), Some(rdmatop_model::ib::QpType(2)));
        qp.timeline = Arc::new(vec![rdmatop_model::snapshot::Step {
            mono_ns: now_ns,
            state: QpState(state),
            duration_ns: None,
        }]);
    }
    waiting.mono_ns += 60_000_000_000;
    let mut short = testkit::one_row();
    short.health.losses.push(rdmatop_model::snapshot::Loss {
        at: "walk",
        count: 5,
        records: false,
    });
    for snapshot in [
        short,
        testkit::empty(),
        testkit::one_row(),
        testkit::busy(),
        testkit::degraded(),
        full::snapshot(),
        waiting,
    ] {
        hold(snapshot);
    }
}

/// The line above the tables, the row of the process, the page of the finding, and `--once`.
#[test]
fn all_say_the_same_of_when_a_finding_was_so() {
    const S: u64 = 1_000_000_000;
    for (age, quiet, long, short) in [
        (21, 0, "for 21s", "21s"),
        (21, 20, "over: ended 20s ago", "over"),
        (40, 16, "over: lasted 24s, ended 16s ago", "over"),
    ] {
        let mut s = full::snapshot();
        let mut found = s.findings[0].clone();
        s.mono_ns = 100 * S;
        (found.since_mono_ns, found.seen_mono_ns) = ((100 - age) * S, (100 - quiet) * S);
        let (verdict, words) = (found.verdict.clone(), format!("{short} {}", found.short));
        s.findings = vec![found].into();
        let mut shown = state(s, Tab::Processes, (200, 50));
        let tables = screen(&shown);
        assert!(
            tables.contains(&format!(
                "critical{} {long}: {verdict}",
                if quiet > 0 { "," } else { "" }
            )),
            "{tables}"
        );
        assert!(tables.contains(&words), "{words}\n{tables}");
        let text = line::once::page(&shown.snapshot);
        assert!(text.contains(&format!("critical: {verdict} ({long})")), "{text}");
        shown = state((*shown.snapshot).clone(), Tab::Findings, (200, 50));
        shown.detail = Detail::Full;
        let page = screen(&shown);
        assert!(page.contains(&format!("when  {long} (critical)")), "{page}");
    }
}
