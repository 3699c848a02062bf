//! Findings of cards whose ports and counters are what a test says, on a machine without SoftRoCE.

use std::{thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::{
    check::{Check, Looking},
    lab::Lab,
    testnic::{EFA, EFA_COMMANDS, TestNic, Wish},
};
use serde_json::Value;

/// Longer than attaching programs takes, so that what comes then is seen to come.
const FIRST: Duration = Duration::from_secs(10);

/// Findings by device and kind, in the order of devices.
fn found(check: &Check) -> Result<Vec<(String, String)>> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = check.findings()?.iter();
    let mut found: Vec<_> = all
        .map(|found| (text(&found["device"]), text(&found["id"])))
        .collect();
    found.sort();
    Ok(found)
}

/// There are these, and no others.
fn are_all(check: &Check, wanted: &[(&str, &str)], code: i32) -> Result<()> {
    let all = found(check)?;
    let all: Vec<_> = all.iter().map(|(device, id)| (&**device, &**id)).collect();
    ensure!(
        all == wanted && check.code == Some(code),
        "{:?} {:#}",
        check.code,
        check.document
    );
    Ok(())
}

#[test]
fn cards_that_are_well_have_no_findings() -> Result<()> {
    let Some(_lab) = Lab::enter("findings of cards: none") else {
        return Ok(());
    };
    let Some(nic) = TestNic::load("findings of cards: none")? else {
        return Ok(());
    };
    for port in nic.add_mlx5(8)? {
        port.rate("port_xmit_data", 2_000_000_000)?;
        port.rate("port_rcv_data", 2_000_000_000)?;
        port.rate("port_xmit_packets", 2_000_000)?;
        port.rate("np_ecn_marked_roce_packets", 200)?;
        port.rate("np_cnp_sent", 100)?;
        port.rate("rp_cnp_handled", 100)?;
    }
    let efa = nic.add(
        &Wish::new("efa_0", "efa")
            .hw(EFA)
            .set("commands", EFA_COMMANDS)
            .set("pma", "0"),
    )?;
    efa.rate("tx_bytes", 2_000_000_000)?;
    efa.rate("submitted_cmds", 300)?;
    efa.rate("completed_cmds", 300)?;
    efa.grow("cmds_err", 7)?;
    are_all(&Check::of("20")?, &[], 0)
}

#[test]
fn links_that_go_down_again_and_again_flap_by_state_or_by_counter() -> Result<()> {
    let Some(_lab) = Lab::enter("findings of cards: flaps") else {
        return Ok(());
    };
    let Some(nic) = TestNic::load("findings of cards: flaps")? else {
        return Ok(());
    };
    let ports = nic.add_mlx5(4)?;
    let looking = Looking::begin("80")?;
    thread::sleep(FIRST);
    // One outage, and as many as make a flapping link, each too short to be seen by the state of the port.
    ports[1].state(1)?;
    ports[2].grow("link_downed", 3)?;
    for _ in 0..3 {
        // States are at most 5 s old.
        ports[0].state(1)?;
        thread::sleep(Duration::from_secs(8));
        ports[0].state(4)?;
        thread::sleep(Duration::from_secs(8));
    }
    let check = looking.end()?;
    are_all(&check, &[("mlx5_0", "link-flaps"), ("mlx5_2", "link-flaps")], 1)?;
    for (found, by) in check
        .findings()?
        .iter()
        .map(|found| (found, &found["evidence"][0]))
    {
        let by = by.as_str().context("no evidence")?;
        let witness = if found["device"] == "mlx5_0" {
            "by the port's state"
        } else {
            "by link_downed"
        };
        ensure!(by.starts_with(witness), "{found:#}");
    }
    Ok(())
}

#[test]
fn errors_of_links_congestion_and_refused_commands_are_found_on_their_cards() -> Result<()> {
    let Some(_lab) = Lab::enter("findings of cards: counters") else {
        return Ok(());
    };
    let Some(nic) = TestNic::load("findings of cards: counters")? else {
        return Ok(());
    };
    let ports = nic.add_mlx5(4)?;
    let ib = [0, 1].map(|number| nic.add(&Wish::mlx5(&format!("ib{number}")).set("ib", "1")));
    let [quiet, waits] = ib;
    let (quiet, waits) = (quiet?, waits?);
    let efa = nic.add(
        &Wish::new("efa_0", "efa")
            .hw(EFA)
            .set("commands", EFA_COMMANDS)
            .set("pma", "0"),
    )?;
    let looking = Looking::begin("30")?;
    thread::sleep(FIRST);
    ports[0].rate("symbol_error", 40)?;
    ports[1].rate("rp_cnp_ignored", 10)?;
    ports[2].rate("np_ecn_marked_roce_packets", 50)?;
    // Of 12.5 GB/s by four lanes, 3.1e9 symbols of one: 2 % and 6 % of the time. The counter ends at 2^32, after 24 s.
    quiet.rate("port_xmit_wait", 60_000_000)?;
    waits.rate("port_xmit_wait", 180_000_000)?;
    // No link without credits: on Ethernet it means nothing.
    ports[3].rate("port_xmit_wait", 120_000_000)?;
    efa.rate("create_qp_err", 2)?;
    let check = looking.end()?;
    are_all(
        &check,
        &[
            ("efa_0", "device-command-errors"),
            ("ib1", "ib-congestion"),
            ("mlx5_0", "link-errors"),
            ("mlx5_1", "congestion-ignored"),
            ("mlx5_2", "congestion-ignored"),
        ],
        2,
    )
}
