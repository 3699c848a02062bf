//! Counters that the kernel binds QPs to (`rdma statistic qp`): their values are shown, and `--hw-counters`
//! sets the binding up, undoes it however rdmatop ends, and leaves settings of others alone. With the module
//! rxe_counters SoftRoCE has such counters; without it the driver has none.

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

/// Returns the output of `rdma statistic qp mode` for the device.
fn mode() -> Result<String> {
    let all = output(Command::new("rdma").args(["statistic", "qp", "mode", "link", LINK]))?;
    Ok(all.trim().to_owned())
}

fn set(mode: &[&str]) -> Result<()> {
    let mut command = Command::new("rdma");
    command.args(["statistic", "qp", "set", "link", LINK, "auto"]);
    output(command.args(mode)).map(drop)
}

/// Returns what `rdma -j statistic qp show` lists.
fn bound() -> Result<Vec<Value>> {
    let text = output(Command::new("rdma").args(["-j", "statistic", "qp", "show"]))?;
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    serde_json::from_str(&text).with_context(|| text)
}

/// The module with the driver's counters; drop switches the mode off.
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
            // The module stays loaded while a counter exists.
            wait::for_some("the end of all counters", PATIENCE, || {
                Ok(bound()?.is_empty().then_some(()))
            })
        });
        if let Err(error) = ended {
            say(&format!("counters stay: {error:#}"));
        }
    }
}

/// Starts a pair, lets it send something and stops it.
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

/// Stops both sides and waits until nothing is in flight.
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

/// Compares each counter of the sample with rdma(8). Returns the number of counters.
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
        // What the NIC counts is not also estimated.
        let qp = sample.qp(
            side.pid(),
            u32::try_from(counter["lqpn"][0].as_u64().unwrap_or(0))?,
        )?;
        ensure!(qp.field("tx_packets").is_null(), "{qp:?}");
    }
    // If binding is only by QP type the kernel names no process; the owner of the QPs is shown.
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

/// Starts rdmatop with the option and waits until it has set the mode.
fn with_option() -> Result<Child> {
    with_option_and(&[])
}

fn with_option_and(environment: &[(&str, &str)]) -> Result<Child> {
    let mut command =
        rdmatop::command(&["--once", "--json", "--delay", "600", "--no-ebpf", "--hw-counters"])?;
    command.envs(environment.iter().copied());
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
    // This includes what the kernel bound meanwhile, although the QPs still exist.
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
    // The next rdmatop leaves one that runs alone.
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
    // A mode that somebody has set since must stay.
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

/// Optional counters that mlx5 has and the module shows, sorted.
const OPTIONAL: [&str; 4] = [
    "rdma_rx_bytes",
    "rdma_rx_packets",
    "rdma_tx_bytes",
    "rdma_tx_packets",
];
/// The one that somebody has switched on before.
const OTHERS: &str = "rdma_rx_packets";

/// Returns the port's optional counters that rdma(8) lists, sorted: with `supported` all of them, otherwise
/// only those that count.
fn optional(supported: &[&str]) -> Result<Vec<String>> {
    let mut command = Command::new("rdma");
    command.args(["statistic", "mode"]).args(supported);
    let text = output(command.args(["link", LINK]))?;
    let list = text
        .split_whitespace()
        .skip_while(|word| !word.ends_with("optional-counters"));
    let mut names: Vec<String> = list
        .skip(1)
        .flat_map(|word| word.split(','))
        .map(str::to_owned)
        .collect();
    names.sort_unstable();
    Ok(names)
}

/// Whether the kernel also binds QPs to optional counters, as Linux does since 6.15.
fn binds_optional() -> Result<bool> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let mut numbers = release.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    Ok((numbers.next(), numbers.next()) >= (Some(6), Some(15)))
}

/// Fails unless everything is as before rdmatop.
fn is_undone(said: &str) -> Result<()> {
    ensure!(said.lines().any(|line| line.ends_with(TAKEN_BACK)), "{said}");
    let (mode, bound, optional) = (mode()?, bound()?, optional(&[])?);
    ensure!(
        mode == OFF && bound.is_empty() && optional == [OTHERS],
        "{mode} {bound:?} {optional:?}"
    );
    Ok(())
}

/// With the mode, only those optional counters are switched on that were off, and at each end only these are
/// switched off again.
#[test]
fn optional_counters_and_the_mode_are_set_together_and_undone_exactly() -> Result<()> {
    let Some(_lab) = Lab::enter("--hw-counters with optional counters") else {
        return Ok(());
    };
    let Some(_counters) = Counters::load("--hw-counters with optional counters", &["optional=1"])? else {
        return Ok(());
    };
    wait::for_some("optional counters", PATIENCE, || {
        // The module offers them after a reading.
        lab::hw_counter(lab::DEVICE, "sent_pkts")?;
        Ok((optional(&["supported"])? == OPTIONAL).then_some(()))
    })?;
    let mut set = Command::new("rdma");
    set.args(["statistic", "set", "link", LINK, "optional-counters", OTHERS]);
    output(&mut set)?;
    ensure!(optional(&[])? == [OTHERS], "{:?}", optional(&[])?);

    let mut child = with_option()?;
    ensure!(optional(&[])? == OPTIONAL, "{:?}", optional(&[])?);
    let pair = stopped_pair()?;
    let theirs = bound()?;
    child.signal(libc::SIGINT)?;
    child.succeed(END)?;
    is_undone(&child.err.text())?;
    let sample = Snapshot::parse(&child.out.text())?;
    ensure!(are_those_of_rdma(&sample, &theirs)? > 10, "{theirs:?}");
    let row = sample.process(pair.client.pid())?;
    let sent = theirs.iter().find(|row| row["pid"] == pair.client.pid());
    let sent = sent.context("no counter")?["rdma_tx_bytes"].as_u64();
    ensure!(
        sent.is_some_and(|sent| sent > 0) == binds_optional()?,
        "{theirs:?}"
    );
    let hw = row.source("tx_bytes") == Some("hw");
    ensure!(
        hw == sent.is_some() && (!hw || row.total("tx_bytes") == sent),
        "{sent:?}: {row:?}"
    );
    println!("QPs bound to optional counters: {hw}, bytes sent {sent:?}");
    let port = &sample.value()["health"]["hw_counters"]["ports"][0];
    let named = port["optional"].as_array().context("no names")?;
    let mut named: Vec<&str> = named.iter().filter_map(Value::as_str).collect();
    named.sort_unstable();
    let wanted: Vec<&str> = OPTIONAL.into_iter().filter(|name| *name != OTHERS).collect();
    ensure!(named == wanted, "{port}");
    drop(pair);

    let mut child = with_option()?;
    child.signal(libc::SIGKILL)?;
    child.wait(END)?;
    ensure!(
        mode()? == BY_PID && optional(&[])? == OPTIONAL,
        "{:?}",
        optional(&[])?
    );
    let next = next_start()?;
    ensure!(next.contains("of an earlier rdmatop that was killed"), "{next}");
    is_undone(&next)
}

/// Returns what the next rdmatop reports on stderr.
fn next_start() -> Result<String> {
    let mut next = Child::spawn(&mut rdmatop::command(&["--once", "--no-ebpf"])?)?;
    next.succeed(END)?;
    Ok(next.err.text())
}

#[test]
fn a_panic_leaves_neither_the_mode_nor_optional_counters() -> Result<()> {
    let Some(_lab) = Lab::enter("--hw-counters and a panic") else {
        return Ok(());
    };
    let Some(_counters) = Counters::load("--hw-counters and a panic", &["optional=1"])? else {
        return Ok(());
    };
    lab::hw_counter(lab::DEVICE, "sent_pkts")?;
    let mut set = Command::new("rdma");
    set.args(["statistic", "set", "link", LINK, "optional-counters", OTHERS]);
    output(&mut set)?;
    let mut child = with_option_and(&[("RDMATOP_PANIC", "30")])?;
    ensure!(optional(&[])? == OPTIONAL, "{:?}", optional(&[])?);
    // The QPs of this pair are bound when the panic comes.
    let pair = stopped_pair()?;
    let status = child.wait(PATIENCE)?;
    let said = child.err.text();
    ensure!(
        status.code() == Some(101) && said.contains("RDMATOP_PANIC is set"),
        "{status}: {said}"
    );
    is_undone(&said)?;
    drop(pair);
    let next = next_start()?;
    ensure!(!next.contains("taken back"), "{next}");
    Ok(())
}

#[test]
fn what_others_have_set_and_a_driver_without_such_counters_are_left_alone() -> Result<()> {
    let Some(_lab) = Lab::enter("--hw-counters refuses") else {
        return Ok(());
    };
    // Plain SoftRoCE binds nothing.
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

/// Returns the send PSN of a QP from rdma(8).
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
