//! rdmatop's judgement of real QPs, in its text and its JSON.

use std::{thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::{
    child::Child,
    lab::{DEVICE, Lab},
    rdmatop::{self, END, Window},
    traffic::Traffic,
};
use serde_json::Value;

/// After this time QPs without a peer count as stuck, with some margin for a slow guest.
const STUCK_AFTER: Duration = Duration::from_millis(5500);

fn list<'a>(judgement: &'a Value, key: &str) -> Result<&'a Vec<Value>> {
    judgement[key]
        .as_array()
        .with_context(|| format!("no {key} in {judgement}"))
}

#[test]
fn qps_that_nobody_connects_are_stuck_in_the_text_and_in_the_json() -> Result<()> {
    let Some(_lab) = Lab::enter("stuck QPs") else {
        return Ok(());
    };
    let window = Window::open(&[])?;
    let mut text = Child::spawn(&mut rdmatop::command(&["--once", "--delay", "600"])?)?;
    rdmatop::wait_counting(&text)?;
    let idle = Traffic::start("idle-qps", &["--qps", "3", "--state", "init"])?;
    let ready = idle.ready()?;
    let moving = Traffic::start("idle-qps", &["--qps", "2"])?;
    let other = moving.ready()?;
    thread::sleep(STUCK_AFTER);
    let sample = window.close()?;
    text.signal(libc::SIGINT)?;
    text.succeed(END)?;
    let text = text.out.text();
    let judgement = &sample.value()["judgement"];

    let pids = ready["pids"].as_array().context("no pids")?;
    let mut waiting = ready["qpns"].as_array().context("no qpns")?.clone();
    let stuck = list(judgement, "stuck")?;
    let mut told: Vec<Value> = Vec::new();
    for qp in stuck.iter().filter(|qp| pids.contains(&qp["pid"])) {
        ensure!(qp["reason"] == "alone" && qp["device"] == DEVICE, "{qp}");
        ensure!(qp["since_mono_ns"].is_u64(), "{qp}");
        let why = qp["why"].as_str().context("no why")?;
        ensure!(text.contains(why), "{why} is not in {text}");
        told.push(qp["qpn"].clone());
    }
    told.sort_by_key(Value::as_u64);
    waiting.sort_by_key(Value::as_u64);
    ensure!(told == waiting, "{told:?} are told, {waiting:?} wait");
    let connected = other["pids"].as_array().context("no pids")?;
    ensure!(
        !stuck.iter().any(|qp| connected.contains(&qp["pid"])),
        "{judgement}"
    );

    let totals = &judgement["totals"];
    let head = text.lines().find(|line| line.starts_with("total "));
    let head = head.with_context(|| format!("no totals in {text}"))?;
    ensure!(
        head.contains(&format!("{} of them stuck", stuck.len())),
        "{head}, {judgement}"
    );
    ensure!(head.contains("3 INIT"), "{head}");
    ensure!(
        list(totals, "states")?
            .iter()
            .any(|row| row["state"] == "INIT" && row["qps"] == 3),
        "{totals}"
    );
    for (qpn, line) in waiting.iter().map(|qpn| (qpn, format!("{DEVICE}/{qpn}"))) {
        let row = text
            .lines()
            .find(|row| row.split_whitespace().next() == Some(&*line));
        ensure!(row.is_some_and(|row| row.contains("INIT!")), "{qpn}: {row:?}");
    }
    // What the device does not report has its reason: bytes on the wire before Linux 7.
    let port = sample.port(DEVICE, 1)?;
    let unseen = list(judgement, "unobserved")?;
    let wire = unseen
        .iter()
        .any(|row| row["device"] == DEVICE && row["what"] == "wire_bytes");
    ensure!(wire == port.field("tx_bytes").is_null(), "{judgement}");
    idle.finish()?;
    moving.finish()?;
    Ok(())
}
