//! A storm of QP events in which the printed and the lost events must add up to those that happened.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::{events::Events, rdmatop::Traced, table::say, traffic::number};

/// Returns each step of a QP of `qp-churn` with `laps`, and how often it happens.
fn life(laps: u64) -> [(&'static str, u64); 6] {
    [
        ("create", 1),
        ("->RESET", laps - 1),
        ("->INIT", laps),
        ("->RTR", laps),
        ("->RTS", laps),
        ("destroy", 1),
    ]
}

/// The number of examples to print.
const EXAMPLES: usize = 10;

/// What a trace reported about a run of `qp-churn`, and what that run did.
#[derive(Debug)]
pub struct Storm {
    /// Events printed, of QPs and CQs.
    pub printed: u64,
    /// Events reported as lost.
    pub lost: u64,
    /// Events that happened.
    pub happened: u64,
    /// A report, made only if something is lost or missing.
    report: Option<String>,
}

impl Storm {
    /// Compares the trace and the result of one run.
    pub fn of(traced: &Traced, done: &Value) -> Result<Self> {
        let pid = done["pid"].as_u64();
        // Each thread also creates and destroys one CQ.
        let happened = number(done, "events")? + 2 * number(done, "cqs")?;
        let counted = |event: &&Value| {
            let kind = event["event"].as_str().unwrap_or("");
            event["pid"].as_u64() == pid && (kind.starts_with("qp_") || kind.starts_with("cq_"))
        };
        let printed = traced.events.all().iter().filter(counted).count() as u64;
        let lost = traced.events.lost();
        let report = (lost > 0 || printed != happened)
            .then(|| {
                report(
                    traced,
                    &traced.events.filter(|event| event["pid"].as_u64() == pid),
                    done,
                )
            })
            .transpose()?;
        Ok(Self {
            printed,
            lost,
            happened,
            report,
        })
    }

    /// Prints the result; fails, with the missing events, if printed and lost events are not all.
    pub fn check(&self, what: &str) -> Result<()> {
        let Self {
            printed,
            lost,
            happened,
            report,
        } = self;
        say(&format!(
            "{what}: {printed} printed + {lost} lost = {}, {happened} happened",
            printed + lost
        ));
        let report = report.as_deref().unwrap_or_default();
        if *lost > 0 {
            say(report);
        }
        ensure!(
            printed + lost == *happened,
            "{what}: {printed} printed + {lost} lost are not the {happened} that happened\n{report}"
        );
        Ok(())
    }
}

/// Reports every cause of loss, what is missing by kind, and whether whole QPs or single events are missing.
fn report(traced: &Traced, own: &Events, done: &Value) -> Result<String> {
    let mut causes = BTreeMap::<String, u64>::new();
    for event in traced.events.kind("lost").all() {
        let cause = event["where"].as_str().unwrap_or("unknown");
        *causes.entry(cause.into()).or_default() += number(event, "count")?;
    }
    let mut lives = BTreeMap::<u64, Events>::new();
    for event in own.all() {
        if let Some(uid) = event["qp_uid"].as_u64() {
            lives.entry(uid).or_default().push(event.clone());
        }
    }
    let whole_life = life(number(done, "laps")?.max(1));
    let mut missing = BTreeMap::<&str, u64>::new();
    let mut examples = Vec::new();
    let mut broken = 0;
    for qp in lives.values() {
        let life = qp.life();
        let gone: Vec<(&str, u64)> = whole_life
            .iter()
            // If the step before was lost, the state before a modify is unknown.
            .map(|(step, times)| {
                (
                    *step,
                    times,
                    life.iter().filter(|one| one.ends_with(step)).count(),
                )
            })
            .filter(|(_, times, seen)| **times != *seen as u64)
            .map(|(step, times, seen)| (step, times.saturating_sub(seen as u64)))
            .collect();
        for (step, times) in &gone {
            *missing.entry(step).or_default() += times;
        }
        if !gone.is_empty() {
            broken += 1;
            if examples.len() < EXAMPLES {
                let first = &qp.all()[0];
                let (qpn, at) = (&first["qpn"], &first["mono_ns"]);
                examples.push(format!("  QP {qpn}, first event at {at} ns: without {gone:?}"));
            }
        }
    }
    let created = number(done, "created")?;
    let whole = created.saturating_sub(lives.len() as u64);
    let cqs = [own.kind("cq_create").len(), own.kind("cq_destroy").len()];
    let expected_cqs = number(done, "cqs")?;
    let last = traced.stderr.last().map_or("", String::as_str);
    Ok(format!(
        "lost by cause: {causes:?}\n\
         {created} QPs: {whole} without any event, {broken} with a broken life; steps missing in those: {missing:?}\n\
         CQs created and destroyed: {cqs:?} of {expected_cqs}\n{}\nlast word: {last}",
        examples.join("\n")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt as _;

    fn traced(lines: &[&str]) -> Traced {
        let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
        Traced {
            events: Events::parse(&lines).unwrap(),
            stderr: vec!["rdmatop: 3 events".into()],
            status: std::process::ExitStatus::from_raw(0),
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let done = serde_json::json!({"pid": 5, "events": 10, "created": 2, "laps": 1, "cqs": 0});
        let told = traced(&[
            r#"{"event":"qp_create","pid":5,"qpn":17,"qp_uid":1}"#,
            r#"{"event":"qp_modify","pid":5,"qpn":17,"qp_uid":1,"from":"INIT","to":"RTR"}"#,
            r#"{"event":"qp_destroy","pid":5,"qpn":17,"qp_uid":1}"#,
            r#"{"event":"qp_create","pid":6,"qpn":18,"qp_uid":2}"#,
            r#"{"event":"lost","where":"ring","count":6}"#,
        ]);
        let account = Storm::of(&told, &done).unwrap();
        assert_eq!((account.printed, account.lost, account.happened), (3, 6, 10));
        let error = account.check("test").unwrap_err().to_string();
        for part in [
            r#"{"ring": 6}"#,
            "2 QPs: 1 without any event, 1 with a broken life",
            r#"{"->INIT": 1, "->RTS": 1}"#,
            "QP 17",
        ] {
            assert!(error.contains(part), "no {part} in {error}");
        }
    }
}
