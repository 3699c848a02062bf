//! A NIC to which programs post without entering the kernel (`cargo xtask lab --nic pvrdma`): the control
//! plane is exact, and what cannot be seen from the kernel is unknown, never 0.

use std::{process::Command, time::Duration};

use anyhow::{Context, Result, ensure};
use rdmatop_tests::{
    child::Child,
    perftest::Perftest,
    pvrdma::{DEVICE, enter},
    rdmatop::{Trace, Window},
    snapshot::{Row, Snapshot},
    wait::{self, PATIENCE},
};
use serde_json::Value;

const LIMIT: Duration = PATIENCE;

/// The states of a QP that sends.
const TO_RTS: [&str; 3] = ["INIT", "RTR", "RTS"];

/// All counters that come from work requests or completions.
const OF_WORK_REQUESTS: [&str; 15] = [
    "tx_wr",
    "tx_wr_posted",
    "rx_wr",
    "rx_wr_posted",
    "tx_bytes",
    "rx_bytes",
    "tx_packets",
    "completions",
    "completion_errors",
    "flushes",
    "retransmits",
    "rnr_waits",
    "doorbells",
    "cq_overflows",
    "latency",
];

/// Runs `ibv_rc_pingpong` with `n` round trips to its end; returns (server, client).
fn pingpong(n: u64) -> Result<(Child, Child)> {
    let command = |address: Option<&str>| {
        let mut command = Command::new("ibv_rc_pingpong");
        command.args(["-d", DEVICE, "-g", "0", "-p", "18600", "-n", &n.to_string()]);
        command.args(address);
        command
    };
    let mut server = Child::spawn(&mut command(None))?;
    wait::until("a listening ibv_rc_pingpong", LIMIT, || {
        // Port 18600 in state TCP_LISTEN.
        ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|path| {
            std::fs::read_to_string(path).is_ok_and(|text| {
                text.lines()
                    .any(|line| line.contains(":48A8 ") && line.contains(" 0A "))
            })
        })
    })?;
    let mut client = Child::spawn(&mut command(Some("127.0.0.1")))?;
    client.succeed(LIMIT)?;
    server.succeed(LIMIT)?;
    Ok((server, client))
}

/// Returns the QP number that a side printed: `  local address:  LID 0x0000, QPN 0x000012, PSN ...`.
fn qpn(side: &Child) -> Result<u32> {
    let text = side.out.text();
    let number = text.split_once("QPN 0x").map(|(_, rest)| {
        rest.split(|char: char| !char.is_ascii_hexdigit())
            .next()
            .unwrap_or_default()
    });
    u32::from_str_radix(number.context("no QPN")?, 16).with_context(|| text)
}

fn is_unknown(row: Row<'_>) -> Result<()> {
    for key in OF_WORK_REQUESTS {
        ensure!(row.field(key).is_null(), "{key} cannot be known here: {row:?}");
    }
    for key in ["by_opcode", "by_status"] {
        ensure!(
            row.field(key).as_array().is_some_and(Vec::is_empty),
            "{key}: {row:?}"
        );
    }
    Ok(())
}

/// Fails unless a QP existed in the window, went through the states `path` and is gone.
fn is_right(sample: &Snapshot, pid: u32, qpn: u32, comm: &str, path: &[&str]) -> Result<()> {
    let row = sample.qp(pid, qpn)?;
    for (key, wanted) in [("device", DEVICE), ("qp_type", "RC"), ("comm", comm)] {
        ensure!(row.field(key) == wanted, "{key} is not {wanted}: {row:?}");
    }
    ensure!(
        row.is("exited") && !row.is("since_attach") && !row.is("kernel"),
        "{row:?}"
    );
    let states: Vec<_> = row
        .field("timeline")
        .as_array()
        .into_iter()
        .flatten()
        .map(|step| step["state"].as_str().unwrap_or_default())
        .collect();
    ensure!(states.ends_with(path), "{states:?}: {row:?}");
    is_unknown(row)?;
    is_unknown(sample.process(pid)?)
}

#[test]
fn a_pingpong_s_lifecycle_is_told_whole() -> Result<()> {
    let Some(_lab) = enter("lifecycle on pvrdma") else {
        return Ok(());
    };
    let trace = Trace::start(&[])?;
    let (server, client) = pingpong(200)?;
    let events = trace.stop()?.events;
    ensure!(events.lost() == 0, "{} lost", events.lost());
    for side in [&server, &client] {
        let (pid, qpn) = (side.pid(), qpn(side)?);
        let own = events.pid(pid);
        let of_qp: Vec<&Value> = own.all().iter().filter(|event| event["qpn"] == qpn).collect();
        let told: Vec<_> = of_qp
            .iter()
            .map(|event| {
                (
                    event["event"].as_str(),
                    event["to"].as_str(),
                    event["rc"].as_i64(),
                )
            })
            .collect();
        let modify = |to| (Some("qp_modify"), Some(to), Some(0));
        ensure!(
            told.len() == 5
                && told[0].0 == Some("qp_create")
                && told[1..4] == [modify("INIT"), modify("RTR"), modify("RTS")]
                && told[4].0 == Some("qp_destroy"),
            "{told:?}"
        );
        ensure!(of_qp.iter().all(|event| event["device"] == DEVICE), "{of_qp:?}");
        for event in &of_qp[1..4] {
            ensure!(event["duration_ns"].as_u64().is_some_and(|ns| ns > 0), "{event}");
        }
        ensure!(own.kind("mr_reg").len() == own.kind("mr_dereg").len());
        ensure!(!own.kind("mr_reg").is_empty());
    }
    Ok(())
}

#[test]
fn work_requests_that_bypass_the_kernel_are_unknown_and_never_none() -> Result<()> {
    let Some(_lab) = enter("unknown on pvrdma") else {
        return Ok(());
    };
    let window = Window::open(&[])?;
    let (server, client) = pingpong(200)?;
    // -Q 1: this device also completes requests that ask for no completion, and perftest would count these.
    let accounts = Perftest::new("ib_send_bw")
        .devices(DEVICE, DEVICE)
        .args(&["-x", "0", "-Q", "1", "-q", "2"])
        .run()?;
    let sample = window.close()?;
    for side in [&server, &client] {
        is_right(&sample, side.pid(), qpn(side)?, "ibv_rc_pingpong", &TO_RTS)?;
    }
    // A perftest side that only receives stays in RTR.
    for (account, path) in [(&accounts.server, &TO_RTS[..2]), (&accounts.client, &TO_RTS)] {
        ensure!(
            account.iterations == 2_000 && account.qpns.len() == 2,
            "{account:?}"
        );
        for qpn in &account.qpns {
            is_right(&sample, account.pid, *qpn, "ib_send_bw", path)?;
        }
    }
    let device = &sample.value()["devices"][0];
    ensure!(
        device["name"] == DEVICE && device["driver"] == "vmw_pvrdma",
        "{device}"
    );
    ensure!(!device["pci"].is_null(), "{device}");
    let port = &sample.value()["ports"][0];
    ensure!(port["state"] == "ACTIVE", "{port}");
    for key in [
        "tx_bytes",
        "rx_bytes",
        "tx_packets",
        "rx_packets",
        "drops",
        "retransmits",
        "congestion",
        "rnr_naks",
    ] {
        ensure!(port[key].is_null(), "{key}: the device has no counters: {port}");
    }
    ensure!(port["counters"].as_array().is_some_and(Vec::is_empty), "{port}");
    // Calls are seen, because each program created and destroyed its QPs through the kernel.
    let calls = |pid: u32, verb: &str| {
        sample
            .verbs()
            .find(|row| row.field("pid") == pid && row.field("verb") == verb)
            .and_then(|row| row.total("calls"))
    };
    for (pid, qps) in [(client.pid(), 1), (accounts.client.pid, 2)] {
        ensure!(
            calls(pid, "create_qp") == Some(qps),
            "{:?}",
            calls(pid, "create_qp")
        );
        ensure!(calls(pid, "post_send").is_none_or(|calls| calls == 0));
    }
    Ok(())
}

// Regression tests of defects that these tests found.

#[test]
fn nothing_false_is_said_of_a_nic_without_counters_and_softroce() -> Result<()> {
    let Some(_lab) = enter("notes on pvrdma") else {
        return Ok(());
    };
    let window = Window::open(&[])?;
    pingpong(10)?;
    let sample = window.close()?;
    let health = &sample.value()["health"];
    ensure!(
        health["errors"].as_array().is_some_and(Vec::is_empty),
        "{}",
        health["errors"]
    );
    let notes = health["notes"].to_string().to_lowercase();
    ensure!(!notes.contains("softroce") && !notes.contains("rxe"), "{notes}");
    let firmware = sample.value()["devices"][0]["fw_version"]
        .as_str()
        .context("no firmware")?;
    ensure!(
        firmware.chars().all(|char| char.is_ascii_digit() || char == '.'),
        "{firmware:?}"
    );
    Ok(())
}
