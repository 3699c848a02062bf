//! A driver's counters: totals, rates, wraps, resets, and sums with a missing part.

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::{
    lab::Lab,
    testnic::{Call, EFA, TestNic, Wish},
};

use super::{is_near, named, port, window};

/// Each total must be exactly the counter's value at the driver's last read.
#[test]
fn totals_are_the_drivers() -> Result<()> {
    let Some(_lab) = Lab::enter("totals") else {
        return Ok(());
    };
    let Some(nic) = TestNic::load("totals")? else {
        return Ok(());
    };
    let ports = nic.add_mlx5(8)?;
    for (number, port) in (1..).zip(&ports) {
        // At least 40 Gb/s; files of ports/N/counters count words of 4 bytes.
        port.rate("out_of_buffer", 1_000 * number)?;
        port.rate("np_cnp_sent", 7 * number)?;
        port.set("port_xmit_data", 1_000_000_007 * number)?;
        port.set("port_rcv_packets", 11 * number)?;
        port.set("port_xmit_discards", 3 * number)?;
    }
    let efa = nic.add(&Wish::new("efa_0", "efa").hw(EFA).set("pma", "0"))?;
    efa.rate("tx_bytes", 12_500_000_000)?;
    efa.set("rx_drops", 5)?;
    let sample = window(2, || Ok(()))?;
    for (number, nic_port) in (1_u64..).zip(&ports) {
        let row = port(&sample, &nic_port.device)?;
        let last = nic_port.reads(Call::Hw)?[0];
        for name in ["out_of_buffer", "np_cnp_sent"] {
            let wanted = nic_port.counter(name)?.unwrapped(last);
            ensure!(named(row, name)?["total"] == wanted, "{name}: {wanted}: {row}");
        }
        ensure!(row["tx_bytes"]["total"] == 4 * 1_000_000_007 * number, "{row}");
        ensure!(row["rx_packets"]["total"] == 11 * number, "{row}");
        let drops = nic_port.counter("out_of_buffer")?.unwrapped(last) + 3 * number;
        ensure!(row["drops"]["total"] == drops, "{drops}: {row}");
        ensure!(row["rnr_naks"]["total"] == 0, "known, and none: {row}");
    }
    let row = port(&sample, "efa_0")?;
    let wanted = efa.counter("tx_bytes")?.unwrapped(efa.reads(Call::Hw)?[0]);
    ensure!(row["tx_bytes"]["total"] == wanted, "{wanted}: {row}");
    ensure!(row["drops"]["total"] == 5, "{row}");
    ensure!(row["rnr_naks"].is_null(), "EFA has no such counter: {row}");
    Ok(())
}

#[test]
fn a_constant_rate_is_shown_as_it_is() -> Result<()> {
    let Some(_lab) = Lab::enter("constant rate") else {
        return Ok(());
    };
    let Some(nic) = TestNic::load("constant rate")? else {
        return Ok(());
    };
    let ports = nic.add_mlx5(8)?;
    for (number, port) in (1..).zip(&ports) {
        port.rate("port_xmit_data", 1_250_000_000 * number)?;
        port.rate("np_cnp_sent", 1_000 * number)?;
    }
    let sample = window(3, || Ok(()))?;
    for (number, nic_port) in (1_u64..).zip(&ports) {
        let row = port(&sample, &nic_port.device)?;
        let rate = row["tx_bytes"]["rate"].as_f64();
        ensure!(is_near(rate, 5_000_000_000 * number), "{rate:?}: {row}");
        let rate = named(row, "np_cnp_sent")?["rate"].as_f64();
        ensure!(is_near(rate, 1_000 * number), "{rate:?}: {row}");
        ensure!(row["rx_bytes"]["rate"] == 0.0, "{row}");
    }
    Ok(())
}

#[test]
fn a_wrap_of_32_bits_is_no_reset_and_a_reset_no_wrap() -> Result<()> {
    let Some(_lab) = Lab::enter("wrap") else {
        return Ok(());
    };
    let Some(nic) = TestNic::load("wrap")? else {
        return Ok(());
    };
    let ports = nic.add_mlx5(2)?;
    let before = (1 << 32) - 1_000;
    ports[0].bits("out_of_buffer", 32)?;
    ports[0].set("out_of_buffer", before)?;
    ports[1].set("port_xmit_data", 1_000_000)?;
    ports[1].set("out_of_buffer", 1_000_000)?;
    let sample = window(3, || {
        ports[0].rate("out_of_buffer", 4_000)?;
        // Like a reset of the card.
        ports[1].set("port_xmit_data", 10)?;
        ports[1].set("out_of_buffer", 20)
    })?;
    let wrapped = named(port(&sample, "mlx5_0")?, "out_of_buffer")?;
    let wanted = ports[0]
        .counter("out_of_buffer")?
        .unwrapped(ports[0].reads(Call::Hw)?[0]);
    ensure!(wanted > 1 << 32, "the window was too short: {wanted}");
    ensure!(wrapped["total"] == wanted, "{wanted}: {wrapped}");
    ensure!(
        wrapped["rate"]
            .as_f64()
            .is_some_and(|rate| rate > 0.0 && rate < 4_001.0),
        "{wrapped}"
    );
    // Lost counts are not estimated: the total goes on, and this interval has no rate.
    let row = port(&sample, "mlx5_1")?;
    for (counter, total) in [
        (&row["tx_bytes"], 4_000_040),
        (named(row, "out_of_buffer")?, 1_000_020),
    ] {
        ensure!(
            counter["total"] == total && counter["rate"].is_null(),
            "{counter}"
        );
    }
    Ok(())
}

#[test]
fn a_rate_is_that_between_the_two_reads_of_its_counter() -> Result<()> {
    let Some(_lab) = Lab::enter("exact rate") else {
        return Ok(());
    };
    let Some(nic) = TestNic::load("exact rate")? else {
        return Ok(());
    };
    let ports = nic.add_mlx5(8)?;
    for port in &ports {
        port.rate("port_xmit_data", 1_250_000_000)?;
        port.rate("np_cnp_sent", 1_000_000)?;
    }
    let sample = window(3, || Ok(()))?;
    for nic_port in &ports {
        let row = port(&sample, &nic_port.device)?;
        for (counter, wanted) in [(&row["tx_bytes"], 5e9), (named(row, "np_cnp_sent")?, 1e6)] {
            let rate = counter["rate"].as_f64().context("no rate")?;
            ensure!((rate / wanted - 1.0).abs() < 0.005, "{rate} for {wanted}: {row}");
        }
    }
    Ok(())
}

#[test]
fn a_sum_of_which_a_part_cannot_be_read_is_not_shown_as_the_whole() -> Result<()> {
    let Some(_lab) = Lab::enter("part of a sum") else {
        return Ok(());
    };
    let Some(nic) = TestNic::load("part of a sum")? else {
        return Ok(());
    };
    let ports = nic.add_mlx5(2)?;
    for port in &ports {
        port.rate("out_of_buffer", 200)?;
        port.rate("port_xmit_discards", 2)?;
    }
    let sample = window(3, || ports[1].fail(Call::Hw, libc::EIO))?;
    ensure!(!port(&sample, "mlx5_0")?["drops"].is_null());
    let row = port(&sample, "mlx5_1")?;
    // out_of_buffer is unknown; port_xmit_discards alone is only a lower bound of the port's drops.
    let drops = &row["drops"];
    ensure!(drops["total"].is_null() && drops["rate"].is_null(), "{row}");
    ensure!(drops["at_least"]["total"].as_u64().is_some(), "{row}");
    ensure!(!named(row, "port_xmit_discards")?["total"].is_null(), "{row}");
    Ok(())
}
