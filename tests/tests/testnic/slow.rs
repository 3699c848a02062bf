//! Cards that answer slowly, or not at all.

use std::{
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::{
    child::{Child, output},
    lab::Lab,
    rdmatop::{self, END},
    testnic::{Call, Port, TestNic},
    wait::{self, SOON},
};

use super::{device, errors, is_near, named, port, window};

/// Relative tolerance of a slow card's rate. Nobody knows when in a read of seconds the driver looked at the
/// counter; if the lengths of two reads differ by more than this part of the time between them, there is no
/// rate.
const SLOW_TOLERANCE: f64 = 0.05;

#[test]
fn a_card_that_does_not_answer_is_unknown_and_the_others_are_shown() -> Result<()> {
    let Some(_lab) = Lab::enter("failing counters") else {
        return Ok(());
    };
    let Some(nic) = TestNic::load("failing counters")? else {
        return Ok(());
    };
    let ports = nic.add_mlx5(3)?;
    for port in &ports {
        port.rate("port_xmit_data", 1_000)?;
        port.rate("out_of_buffer", 100)?;
        port.rate("rnr_nak_retry_err", 10)?;
    }
    let sample = window(3, || {
        ports[1].fail(Call::Hw, libc::EIO)?;
        ports[2].fail(Call::Pma, libc::EIO)
    })?;
    let row = port(&sample, "mlx5_1")?;
    ensure!(row["rnr_naks"].is_null() && row["retransmits"].is_null(), "{row}");
    ensure!(
        row["tx_bytes"]["rate"].as_f64().is_some_and(|rate| rate > 0.0),
        "{row}"
    );
    let said = errors(&sample);
    ensure!(said.contains("mlx5_1") && !said.contains("mlx5_0"), "{said}");
    let row = port(&sample, "mlx5_2")?;
    ensure!(row["tx_bytes"].is_null() && row["rx_packets"].is_null(), "{row}");
    ensure!(
        row["rnr_naks"]["rate"].as_f64().is_some_and(|rate| rate > 0.0),
        "{row}"
    );
    let row = port(&sample, "mlx5_0")?;
    ensure!(
        row["drops"]["rate"].as_f64().is_some_and(|rate| rate > 0.0),
        "{row}"
    );
    Ok(())
}

/// Loads cards of which one driver sleeps at each `call` and seven do not.
pub(super) fn with_a_slow_card(call: Call, ms: u32) -> Result<Option<(TestNic, Vec<Port>)>> {
    let Some(nic) = TestNic::load("slow card")? else {
        return Ok(None);
    };
    let ports = nic.add_mlx5(8)?;
    for port in &ports {
        port.rate("port_xmit_data", 1_000_000)?;
        port.rate("np_cnp_sent", 1_000)?;
    }
    ports[3].delay(call, ms)?;
    Ok(Some((nic, ports)))
}

#[test]
fn a_slow_card_ends_neither_a_sample_nor_the_program() -> Result<()> {
    let Some(_lab) = Lab::enter("slow card") else {
        return Ok(());
    };
    for call in [Call::Hw, Call::Port, Call::Firmware] {
        let Some((_nic, ports)) = with_a_slow_card(call, 700)? else {
            return Ok(());
        };
        let sample = rdmatop::once(&["--delay", "2"])?;
        for nic_port in &ports {
            let row = port(&sample, &nic_port.device)?;
            let rate = row["tx_bytes"]["rate"].as_f64();
            ensure!(rate.is_some_and(|rate| rate > 0.0), "{call:?}: {row}");
        }
        // A signal during a sleep of the driver.
        ports[3].delay(call, 4_000)?;
        let mut view = Child::spawn(&mut rdmatop::command(&["--once", "--delay", "600"])?)?;
        thread::sleep(Duration::from_secs(3));
        view.signal(libc::SIGTERM)?;
        let asked = Instant::now();
        let status = view.wait(END)?;
        ensure!(status.success(), "{call:?}: {status}: {}", view.err.text());
        ensure!(asked.elapsed() < SOON, "{call:?}: it took {:?}", asked.elapsed());
        ports[3].delay(call, 0)?;
    }
    Ok(())
}

#[test]
fn one_slow_card_makes_neither_the_others_old_nor_the_keys_dead() -> Result<()> {
    let Some(_lab) = Lab::enter("slow card, live") else {
        return Ok(());
    };
    let Some((_nic, ports)) = with_a_slow_card(Call::Hw, 15_000)? else {
        return Ok(());
    };
    let tmux = |args: &[&str]| output(Command::new("tmux").args(["-L", "rdmatop-slow"]).args(args));
    let program = rdmatop::program()?;
    let command = format!("XDG_CONFIG_HOME=/tmp/slow LC_ALL=C.UTF-8 {}", program.display());
    let size = ["-d", "-s", "v", "-x", "120", "-y", "50", &command];
    tmux(&[&["-f", "/dev/null", "new-session"], size.as_slice()].concat())?;
    let seen = (|| {
        // After the start, which loads programs.
        wait::until("the first reads", END, || {
            ports[7].read_count(Call::Hw).is_ok_and(|count| count > 2)
        })?;
        let before = ports[0].read_count(Call::Hw)?;
        thread::sleep(Duration::from_secs(12));
        let reads = ports[0].read_count(Call::Hw)? - before;
        let shown = tmux(&["capture-pane", "-p", "-t", "v"])?;
        tmux(&["send-keys", "-t", "v", "?"])?;
        // Before the card answers.
        wait::until("the help", Duration::from_secs(12), || {
            tmux(&["capture-pane", "-p", "-t", "v"]).is_ok_and(|now| now != shown)
        })?;
        Ok::<_, anyhow::Error>((reads, shown))
    })();
    let _ = tmux(&["kill-server"]);
    let (reads, shown) = seen?;
    ensure!(reads >= 6, "mlx5_0 was read {reads} times in 12 s");
    ensure!(
        shown
            .lines()
            .any(|line| line.contains("mlx5_3") && line.contains("slow")),
        "which card is slow is not said:\n{shown}"
    );
    Ok(())
}

/// A slow card's rate is over the time between its own two reads, or unknown; the others have theirs.
#[test]
fn a_slow_card_is_named_and_has_no_false_rate() -> Result<()> {
    let Some(_lab) = Lab::enter("slow card, rates") else {
        return Ok(());
    };
    for call in [Call::Hw, Call::Port, Call::Firmware] {
        let Some((_nic, ports)) = with_a_slow_card(call, 2_500)? else {
            return Ok(());
        };
        let sample = rdmatop::once(&["--delay", "3"])?;
        for nic_port in &ports {
            let row = port(&sample, &nic_port.device)?;
            let counters = [
                (&row["tx_bytes"], 4_000_000_u32),
                (named(row, "np_cnp_sent")?, 1_000),
            ];
            for (counter, wanted) in counters {
                let rate = counter["rate"].as_f64();
                let near = if nic_port.device == "mlx5_3" {
                    rate.is_none_or(|rate| (rate / f64::from(wanted) - 1.0).abs() < SLOW_TOLERANCE)
                } else {
                    is_near(rate, wanted.into())
                };
                ensure!(near, "{call:?}: {rate:?} for {wanted}: {row}");
            }
        }
        let notes = sample.value()["health"]["notes"].as_array().context("notes")?;
        // All eight cards move data without a QP, and the note about that names them.
        let notes: Vec<String> = notes
            .iter()
            .filter(|note| note["id"] != "unseen-qps")
            .map(ToString::to_string)
            .collect();
        let notes = notes.concat();
        // The firmware is asked only when devices are listed, so the reading at the end may have been fast.
        let named = matches!(call, Call::Firmware) || notes.contains("mlx5_3 is slow");
        ensure!(named, "{call:?}: {notes}");
        ensure!(
            device(&sample, "mlx5_3")?["fw_version"] == "28.39.1002",
            "{call:?}"
        );
        ensure!(!notes.contains("mlx5_0"), "{call:?}: {notes}");
    }
    Ok(())
}
