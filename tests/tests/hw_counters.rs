//! Counters that the kernel binds QPs to (`rdma statistic qp`): what they say is shown, and `--hw-counters` sets that up, takes it
//! back at every end, and leaves alone what others have set. With the module rxe_counters SoftRoCE has such counters; without it,
//! it is a driver that has none.

use std::{collections::BTreeMap, process::Command};

use anyhow::{Context, Result, ensure};
use rdmatop_tests::{
    child::{Child, output},
    kmod::Module,
    lab::{self, Lab},
    perftest::{Pair, Perftest},
    rdmatop::{self, END, Window},
    snapshot::Snapshot,
    table::say,
    wait::{self, PATIENCE},
};
use serde_json::Value;

const LINK: &str = "rxe0/1";
const OFF: &str = "link rxe0/1 mode qp auto off";
const BY_PID: &str = "link rxe0/1 mode qp auto pid on";
const TAKEN_BACK: &str = "counters of rxe0 port 1: mode auto,pid set by rdmatop was taken back";

/// What `rdma statistic qp mode` says of the device.
fn mode() -> Result<String> {
    let all = output(Command::new("rdma").args(["statistic", "qp", "mode", "link", LINK]))?;
    Ok(all.trim().to_owned())
}

fn set(mode: &[&str]) -> Result<()> {
    let mut command = Command::new("rdma");
    command.args(["statistic", "qp", "set", "link", LINK, "auto"]);
    output(command.args(mode)).map(drop)
}

/// What `rdma -j statistic qp show` lists.
fn bound() -> Result<Vec<Value>> {
    let text = output(Command::new("rdma").args(["-j", "statistic", "qp", "show"]))?;
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    serde_json::from_str(&text).with_context(|| text)
}

/// The driver's counters, and no mode when the test is over.
struct Counters {
    _module: Module,
}

impl Counters {
    fn load(test: &str, options: &[&str]) -> Result<Option<Self>> {
        let module = Module::load(test, "rxe_counters", options)?;
        Ok(module.map(|module| Self { _module: module }))
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        let ended = set(&["off"]).and_then(|()| {
            // The module stays while a counter is there.
            wait::for_some("the end of all counters", PATIENCE, || {
                Ok(bound()?.is_empty().then_some(()))
            })
        });
        if let Err(error) = ended {
            say(&format!("counters stay: {error:#}"));
        }
    }
}

/// A pair that has sent something, and stands still.
fn stopped_pair() -> Result<Pair> {
    let pair = Perftest::new("ib_send_bw").iterations(10_000_000).start()?;
    pair.wait_connected()?;
    wait::for_some("packets of bound QPs", PATIENCE, || {
        let sent = |row: &Value| row["sent_pkts"].as_u64().is_some_and(|sent| sent > 100);
        Ok(bound()?.iter().any(sent).then_some(()))
    })?;
    stop(&pair)?;
    Ok(pair)
}

/// Stops both sides, and waits until nothing is under way any more.
fn stop(pair: &Pair) -> Result<()> {
    for side in [&pair.client, &pair.server] {
        side.signal(libc::SIGSTOP)?;
    }
    let mut before = None;
    wait::for_some("counters that stand still", PATIENCE, || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        let now = (bound()?, lab::hw_counter(lab::DEVICE, "sent_pkts")?);
        let still = before.as_ref() == Some(&now);
        before = Some(now);
        Ok(still.then_some(()))
    })
}

/// Compares each counter of the sample with what rdma(8) says of it. Returns how many there were.
fn are_those_of_rdma(sample: &Snapshot, theirs: &[Value]) -> Result<usize> {
    let mut seen = 0;
    for wanted in theirs {
        let pid = u32::try_from(wanted["pid"].as_u64().context("no pid")?)?;
        let process = sample.process(pid)?;
        let groups = process.field("hw_counters").as_array().context("no list")?;
        let group = groups
            .iter()
            .find(|group| group["id"] == wanted["cntn"])
            .with_context(|| format!("no counter {} in {groups:?}", wanted["cntn"]))?;
        for (key, value) in [
            ("device", &wanted["ifname"]),
            ("port", &wanted["port"]),
            ("qps", &wanted["lqpn"]),
        ] {
            ensure!(group[key] == *value, "{key}: {group} is not {wanted}");
        }
        let counters = group["counters"].as_array().context("no counters")?;
        let counters: BTreeMap<&str, &Value> = counters
            .iter()
            .filter_map(|counter| Some((counter["name"].as_str()?, counter)))
            .collect();
        ensure!(counters.contains_key("sent_pkts"), "{group}");
        for (name, counter) in counters {
            ensure!(
                counter["total"] == wanted[name] && counter["source"] == "hw",
                "{name}: {counter}, and rdma says {}",
                wanted[name]
            );
            seen += 1;
        }
    }
    Ok(seen)
}

fn total(process: &Value, key: &str) -> Option<u64> {
    process[key]["total"].as_u64()
}

#[test]
fn counters_that_somebody_else_bound_are_shown_as_rdma_shows_them() -> Result<()> {
    let Some(_lab) = Lab::enter("counters of others") else {
        return Ok(());
    };
    let Some(_counters) = Counters::load("counters of others", &["bytes=1"])? else {
        return Ok(());
    };
    set(&["pid", "on"])?;
    let pair = stopped_pair()?;
    let theirs = bound()?;
    ensure!(theirs.len() == 2, "{theirs:?}");
    let sample = rdmatop::once(&["--no-ebpf"])?;
    ensure!(bound()? == theirs, "they did not stand still");
    ensure!(mode()? == BY_PID, "{}", mode()?);
    ensure!(are_those_of_rdma(&sample, &theirs)? > 20, "{theirs:?}");
    ensure!(sample.value()["health"]["hw_counters"].is_null());
    let rows = sample.value()["processes"].as_array().context("no processes")?;
    for (side, key) in [(&pair.client, "tx_bytes"), (&pair.server, "rx_bytes")] {
        let row = rows
            .iter()
            .find(|row| row["pid"] == side.pid())
            .context("no row")?;
        let counter = theirs
            .iter()
            .find(|row| row["pid"] == side.pid())
            .context("no counter")?;
        let wanted = counter[format!("rdma_{key}").as_str()].as_u64();
        ensure!(wanted > Some(0) && total(row, key) == wanted, "{key}: {row}");
        ensure!(row[key]["source"] == "hw", "{row}");
        ensure!(
            total(row, "tx_packets") == counter["rdma_tx_packets"].as_u64(),
            "{row}"
        );
        // What the NIC counts is not estimated beside that.
        let qp = sample.qp(
            side.pid(),
            u32::try_from(counter["lqpn"][0].as_u64().unwrap_or(0))?,
        )?;
        ensure!(qp.field("tx_packets").is_null(), "{qp:?}");
    }
    // By type alone the kernel names no process: the owner of the QPs is it.
    drop(pair);
    wait::for_some("the end of the QPs", PATIENCE, || {
        Ok(bound()?.is_empty().then_some(()))
    })?;
    set(&["off"])?;
    set(&["type,pid", "on"])?;
    let pair = stopped_pair()?;
    let sample = rdmatop::once(&["--no-ebpf"])?;
    ensure!(are_those_of_rdma(&sample, &bound()?)? > 20);
    let groups = sample.process(pair.client.pid())?;
    ensure!(
        groups.field("hw_counters")[0]["mode"] == "auto type,pid",
        "{groups:?}"
    );
    drop(pair);
    Ok(())
}

/// rdmatop with the option, once it has set the mode.
fn with_option() -> Result<Child> {
    let mut command =
        rdmatop::command(&["--once", "--json", "--delay", "600", "--no-ebpf", "--hw-counters"])?;
    let child = Child::spawn(&mut command)?;
    rdmatop::wait_counting(&child)?;
    ensure!(mode()? == BY_PID, "{}: {}", mode()?, child.err.text());
    Ok(child)
}

#[test]
fn the_option_sets_shows_and_takes_back_at_each_end() -> Result<()> {
    let Some(_lab) = Lab::enter("--hw-counters") else {
        return Ok(());
    };
    let Some(_counters) = Counters::load("--hw-counters", &["bytes=1"])? else {
        return Ok(());
    };
    ensure!(mode()? == OFF, "{}", mode()?);
    let mut child = with_option()?;
    let pair = stopped_pair()?;
    let theirs = bound()?;
    child.signal(libc::SIGINT)?;
    child.succeed(END)?;
    let said = child.err.text();
    ensure!(said.lines().any(|line| line.ends_with(TAKEN_BACK)), "{said}");
    // Also what the kernel bound meanwhile, although the QPs are still there.
    ensure!(
        mode()? == OFF && bound()?.is_empty(),
        "{} {:?}",
        mode()?,
        bound()?
    );
    let sample = Snapshot::parse(&child.out.text())?;
    ensure!(are_those_of_rdma(&sample, &theirs)? > 20, "{theirs:?}");
    let sent = sample.process(pair.client.pid())?;
    ensure!(sent.source("tx_bytes") == Some("hw"), "{sent:?}");
    let port = &sample.value()["health"]["hw_counters"]["ports"][0];
    ensure!(
        port["device"] == "rxe0" && port["set"] == true && port["why"].is_null(),
        "{port}"
    );
    let notes = sample.value()["health"]["notes"].to_string();
    ensure!(
        notes.contains("counters-set") && notes.contains("rxe0/1"),
        "{notes}"
    );
    drop(pair);
    for signal in [libc::SIGTERM, libc::SIGHUP] {
        let mut child = with_option()?;
        child.signal(signal)?;
        child.wait(END)?;
        ensure!(mode()? == OFF, "{signal}: {}", mode()?);
        ensure!(
            child.err.text().contains(TAKEN_BACK),
            "{signal}: {}",
            child.err.text()
        );
    }
    Ok(())
}

#[test]
fn after_a_kill_the_next_start_takes_it_back() -> Result<()> {
    let Some(_lab) = Lab::enter("--hw-counters and SIGKILL") else {
        return Ok(());
    };
    let Some(_counters) = Counters::load("--hw-counters and SIGKILL", &[])? else {
        return Ok(());
    };
    let mut child = with_option()?;
    // One that runs is left alone by the next.
    let mut next = Child::spawn(&mut rdmatop::command(&["--once", "--no-ebpf"])?)?;
    next.succeed(END)?;
    ensure!(
        mode()? == BY_PID && !next.err.text().contains("taken back"),
        "{}",
        next.err.text()
    );
    child.signal(libc::SIGKILL)?;
    child.wait(END)?;
    ensure!(mode()? == BY_PID, "{}", mode()?);
    let mut next = Child::spawn(&mut rdmatop::command(&["--once", "--no-ebpf"])?)?;
    next.succeed(END)?;
    let said = next.err.text();
    ensure!(
        said.contains("of an earlier rdmatop that was killed") && said.contains(TAKEN_BACK),
        "{said}"
    );
    ensure!(mode()? == OFF, "{}", mode()?);
    // What somebody has set since is not ours.
    let mut child = with_option()?;
    child.signal(libc::SIGKILL)?;
    child.wait(END)?;
    set(&["off"])?;
    set(&["type", "on"])?;
    let others = mode()?;
    let mut next = Child::spawn(&mut rdmatop::command(&["--once", "--no-ebpf"])?)?;
    next.succeed(END)?;
    ensure!(mode()? == others, "{}: {}", mode()?, next.err.text());
    Ok(())
}

#[test]
fn what_others_have_set_and_a_driver_without_such_counters_are_left_alone() -> Result<()> {
    let Some(_lab) = Lab::enter("--hw-counters refuses") else {
        return Ok(());
    };
    // SoftRoCE as it is binds nothing.
    let notes = |sample: &Snapshot| sample.value()["health"]["notes"].to_string();
    let sample = rdmatop::once(&["--no-ebpf", "--hw-counters"])?;
    ensure!(notes(&sample).contains("no-binding"), "{}", notes(&sample));
    ensure!(mode()? == OFF, "{}", mode()?);
    let Some(_counters) = Counters::load("--hw-counters refuses", &[])? else {
        return Ok(());
    };
    set(&["type", "on"])?;
    let others = mode()?;
    let sample = rdmatop::once(&["--no-ebpf", "--hw-counters"])?;
    let port = &sample.value()["health"]["hw_counters"]["ports"][0];
    ensure!(
        port["set"] == false && port["why"]["id"] == "counters-taken",
        "{port}"
    );
    ensure!(notes(&sample).contains("auto,type"), "{}", notes(&sample));
    ensure!(mode()? == others, "{}", mode()?);
    Ok(())
}

/// The send PSN of a QP, by rdma(8).
fn sq_psn(qpn: u32) -> Result<u32> {
    let text = output(Command::new("rdma").args(["-j", "resource", "show", "qp"]))?;
    let rows: Vec<Value> = serde_json::from_str(&text).with_context(|| text)?;
    let row = rows.iter().find(|row| row["lqpn"] == qpn).context("no such QP")?;
    u32::try_from(row["sq-psn"].as_u64().context("no PSN")?).map_err(Into::into)
}

#[test]
fn without_ebpf_packets_of_a_qp_are_what_its_psn_moved() -> Result<()> {
    let Some(_lab) = Lab::enter("packets from PSNs") else {
        return Ok(());
    };
    let pair = Perftest::new("ib_send_bw").iterations(10_000_000).start()?;
    pair.wait_connected()?;
    let (_, qpns) = pair.qpns();
    let qpn = *qpns.first().context("no QP")?;
    wait::for_some("a PSN that moves", PATIENCE, || {
        let before = sq_psn(qpn)?;
        std::thread::sleep(std::time::Duration::from_millis(100));
        Ok((sq_psn(qpn)? != before).then_some(()))
    })?;
    stop(&pair)?;
    let before = sq_psn(qpn)?;
    let window = Window::open(&["--no-ebpf"])?;
    for side in [&pair.client, &pair.server] {
        side.signal(libc::SIGCONT)?;
    }
    wait::for_some("some packets", PATIENCE, || {
        Ok((sq_psn(qpn)?.wrapping_sub(before) & 0xff_ffff > 2000).then_some(()))
    })?;
    stop(&pair)?;
    let moved = sq_psn(qpn)?.wrapping_sub(before) & 0xff_ffff;
    let sample = window.close()?;
    let row = sample.qp(pair.client.pid(), qpn)?;
    ensure!(row.source("tx_packets") == Some("est"), "{row:?}");
    ensure!(
        row.total("tx_packets") == Some(u64::from(moved)),
        "{moved}: {row:?}"
    );
    drop(pair);
    Ok(())
}
