//! Cards with hardware counters, whose driver has known values: names, states, totals, rates, wraps, resets,
//! failures and slow answers on a machine with eight "mlx5" ports and no SoftRoCE.

mod counters;
mod devx;
mod doctor;
mod elsewhere;
mod others;
mod peers;
mod psn;
mod shares;
mod slow;

use std::{
    fs,
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rdmatop_tests::{
    child::{Child, output},
    faults::Switch,
    lab::Lab,
    rdmatop::{self, Window},
    snapshot::Snapshot,
    testnic::{Call, EFA, TestNic, Wish},
    wait::{PATIENCE, SOON},
};
use serde_json::Value;

use slow::with_a_slow_card;

/// Relative tolerance of a rate: the driver computes a counter at some moment of the read, whose middle
/// counts as its time.
const RATE_TOLERANCE: f64 = 0.005;

/// The row of a port.
fn port<'a>(sample: &'a Snapshot, device: &str) -> Result<&'a Value> {
    let rows = sample.value()["ports"].as_array().context("no ports")?;
    let row = rows.iter().find(|row| row["device"] == device);
    row.with_context(|| format!("no port of {device} in {rows:?}"))
}

/// The row of a device.
fn device<'a>(sample: &'a Snapshot, name: &str) -> Result<&'a Value> {
    let rows = sample.value()["devices"].as_array().context("no devices")?;
    let row = rows.iter().find(|row| row["name"] == name);
    row.with_context(|| format!("no device {name} in {rows:?}"))
}

/// Returns a counter by the driver's name.
fn named<'a>(port: &'a Value, name: &str) -> Result<&'a Value> {
    let list = port["counters"].as_array().context("no list of counters")?;
    let row = list.iter().find(|row| row["name"] == name);
    row.with_context(|| format!("no counter {name} in {port}"))
}

fn errors(sample: &Snapshot) -> String {
    sample.value()["health"]["errors"].to_string()
}

fn is_near(rate: Option<f64>, wanted: u64) -> bool {
    rate.is_some_and(|rate| (rate / wanted as f64 - 1.0).abs() <= RATE_TOLERANCE)
}

/// Opens a window of `seconds` and runs `during` in it after a short time.
fn window(seconds: u64, during: impl FnOnce() -> Result<()>) -> Result<Snapshot> {
    let window = Window::open(&[])?;
    let open = Instant::now();
    // The first reads follow the line that reports the open window.
    thread::sleep(Duration::from_millis(500));
    during()?;
    thread::sleep(Duration::from_secs(seconds).saturating_sub(open.elapsed()));
    window.close()
}

#[test]
fn eight_ports_are_named_and_described() -> Result<()> {
    let Some(_lab) = Lab::enter("eight ports") else {
        return Ok(());
    };
    let Some(nic) = TestNic::load("eight ports")? else {
        return Ok(());
    };
    output(Command::new("ip").args(["link", "add", "rail0", "mtu", "9000", "type", "dummy"]))?;
    let rail = Wish::mlx5("mlx5_0").set("netdevs", "rail0");
    let mut ports = vec![nic.add(&rail)?];
    for number in 1..8 {
        ports.push(nic.add(&Wish::mlx5(&format!("mlx5_{number}")))?);
    }
    for (port, gbit) in ports.iter().zip([400, 200, 100, 25].into_iter().cycle()) {
        port.gbit(gbit)?;
    }
    ports[5].state(1)?;
    let ib = nic.add(&Wish::mlx5("ibp1").set("ib", "1").set("ports", "2"))?;
    let sample = rdmatop::once(&[])?;
    drop(nic);
    output(Command::new("ip").args(["link", "delete", "rail0"]))?;
    let names: Vec<_> = sample.value()["devices"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|row| row["name"].as_str())
        .collect();
    ensure!(
        names
            == [
                "ibp1", "mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7"
            ],
        "{names:?}"
    );
    for (at, gbit) in (0..8).zip([400, 200, 100, 25].into_iter().cycle()) {
        let name = format!("mlx5_{at}");
        let (device, port) = (device(&sample, &name)?, port(&sample, &name)?);
        ensure!(device["driver"] == "mlx5_core", "{device}");
        ensure!(device["fw_version"] == "28.39.1002", "{device}");
        ensure!(port["rate_bps"] == gbit * 1_000_000_000_u64, "{port}");
        ensure!(port["link_layer"] == "Ethernet", "{port}");
        let state = if at == 5 { "DOWN" } else { "ACTIVE" };
        ensure!(port["state"] == state, "{port}");
    }
    let port0 = port(&sample, "mlx5_0")?;
    ensure!(
        port0["netdev"] == "rail0" && port0["netdev_mtu"] == 9000,
        "{port0}"
    );
    ensure!(port(&sample, "mlx5_1")?["netdev"].is_null());
    ensure!(port(&sample, &ib.device)?["link_layer"] == "InfiniBand");
    ensure!(errors(&sample) == "[]", "{}", errors(&sample));
    // There is neither a QP nor a process, and that is known.
    ensure!(sample.qps().next().is_none() && sample.value()["processes"] == serde_json::json!([]));
    Ok(())
}

/// Bytes of bnxt_re, octets of irdma and bytes of InfiniBand ports may be IP traffic, so nothing follows from
/// them. Those of mlx5 and EFA belong to QPs.
#[test]
fn a_port_that_moves_data_without_qps_names_who_has_its_card_open() -> Result<()> {
    let Some(_lab) = Lab::enter("unexplained") else {
        return Ok(());
    };
    let Some(nic) = TestNic::load("unexplained")? else {
        return Ok(());
    };
    let mlx5 = nic.add(&Wish::mlx5("mlx5_0").set("uverbs", "1"))?;
    let still = nic.add(&Wish::mlx5("mlx5_1").set("uverbs", "1"))?;
    let ib = nic.add(&Wish::mlx5("ibp1").set("ib", "1"))?;
    let efa = nic.add(&Wish::new("efa_0", "efa").hw(EFA).set("pma", "0"))?;
    let silent = [
        ("bnxt_re0", "bnxt_en", "tx_bytes", "rx_bytes"),
        ("irdma0", "irdma", "ip4OutOctets", "ip4InOctets"),
    ];
    for (name, driver, tx, rx) in silent {
        let port = nic.add(&Wish::new(name, driver).hw(&[tx, rx]).set("pma", "0"))?;
        port.rate(tx, 5_000_000_000)?;
    }
    mlx5.rate("port_xmit_data", 1_250_000_000)?;
    still.rate("port_xmit_data", 100)?;
    ib.rate("port_xmit_data", 1_250_000_000)?;
    efa.rate("rx_bytes", 5_000_000_000)?;
    let classes = fs::read_dir("/sys/class/infiniband_verbs")?.flatten();
    let file = classes
        .map(|entry| entry.path())
        .find(|path| fs::read_to_string(path.join("ibdev")).is_ok_and(|name| name.trim() == "mlx5_0"));
    let file = file.context("mlx5_0 has no verbs file")?;
    let name = file.file_name().context("a name")?;
    let card = std::path::Path::new("/dev/infiniband").join(name);
    let open = format!("exec 3<>{}; echo open; exec sleep 600", card.display());
    let holder = Child::spawn(Command::new("sh").args(["-c", &open]))?;
    holder
        .out
        .wait_for("its card", SOON, |text| text.contains("open"))?;
    let sample = window(3, || Ok(()))?;
    let judgement = &sample.value()["judgement"];
    let list = judgement["unexplained"].as_array().context("no list")?;
    let devices: Vec<_> = list.iter().filter_map(|one| one["device"].as_str()).collect();
    ensure!(devices == ["efa_0", "mlx5_0"], "{list:?}");
    ensure!(list[0]["candidates"] == serde_json::json!([]), "{list:?}");
    let [candidate] = &list[1]["candidates"].as_array().context("no candidates")?[..] else {
        anyhow::bail!("{list:?}");
    };
    ensure!(
        candidate["pid"] == holder.pid() && candidate["comm"] == "sleep",
        "{candidate}"
    );
    ensure!(list[1]["candidates_whole"] == true, "{list:?}");
    ensure!(
        judgement["totals"]["wr"]["rate"].is_null(),
        "unknown, not 0: {judgement}"
    );
    let notes = sample.value()["health"]["notes"].to_string();
    ensure!(
        notes.contains("mlx5_0/1 moves data without a queue pair") && notes.contains("(PID "),
        "{notes}"
    );
    for name in ["mlx5_1", "ibp1", "bnxt_re0", "irdma0"] {
        ensure!(!notes.contains(name), "{name}: {notes}");
        ensure!(
            port(&sample, name)?["tx_bytes"]["rate"].as_f64() > Some(0.0),
            "{name}"
        );
    }
    drop(holder);
    // Without eBPF a QP may have existed unseen within the window.
    let sample = rdmatop::once(&["--no-ebpf"])?;
    ensure!(
        sample.value()["judgement"]["unexplained"] == serde_json::json!([]),
        "{}",
        sample.value()["judgement"]
    );
    let page = output(Command::new(rdmatop::program()?).args(["--once"]))?;
    ensure!(
        page.contains("note: efa_0/1 moves data without a queue pair"),
        "{page}"
    );
    Ok(())
}

#[test]
fn a_port_that_goes_down_a_new_name_and_a_pulled_card_are_seen() -> Result<()> {
    let Some(_lab) = Lab::enter("unplug") else {
        return Ok(());
    };
    let Some(nic) = TestNic::load("unplug")? else {
        return Ok(());
    };
    let ports = nic.add_mlx5(4)?;
    for port in &ports {
        port.rate("port_xmit_data", 1_000)?;
    }
    let sample = window(3, || {
        nic.remove("mlx5_1")?;
        output(Command::new("rdma").args(["dev", "set", "mlx5_2", "name", "rail2"]))?;
        ports[3].state(1)
    })?;
    ensure!(device(&sample, "mlx5_1").is_err() && device(&sample, "mlx5_2").is_err());
    ensure!(errors(&sample) == "[]", "{}", errors(&sample));
    let renamed = port(&sample, "rail2")?;
    ensure!(
        renamed["tx_bytes"]["rate"]
            .as_f64()
            .is_some_and(|rate| rate > 0.0),
        "it is the same port: {renamed}"
    );
    let down = port(&sample, "mlx5_3")?;
    ensure!(down["state"] == "DOWN", "{down}");
    // Another card in the same slot is another device.
    nic.add(&Wish::mlx5("mlx5_1"))?.set("port_xmit_data", 5)?;
    let sample = rdmatop::once(&[])?;
    ensure!(port(&sample, "mlx5_1")?["tx_bytes"]["total"] == 20);
    Ok(())
}

/// Returns the findings of this kind by device name.
fn logged(sample: &Snapshot) -> Vec<String> {
    let all = sample.value()["findings"].as_array().into_iter().flatten();
    let found = all.filter(|found| found["id"] == "driver-errors");
    found
        .filter_map(|found| Some(found["device"].as_str()?.to_owned()))
        .collect()
}

#[test]
fn an_error_that_a_driver_logs_is_a_finding_of_its_device() -> Result<()> {
    let Some(_lab) = Lab::enter("driver errors") else {
        return Ok(());
    };
    let Some(nic) = TestNic::load("driver errors")? else {
        return Ok(());
    };
    let ports = nic.add_mlx5(3)?;
    ports[2].log("before the start")?;
    let sample = window(3, || {
        ports[0].log("REG_MR failed, err -12")?;
        ports[0].log("no answer of the firmware")?;
        // A program's text in /dev/kmsg is not the kernel's, whatever it says.
        fs::write("/dev/kmsg", "<3>infiniband mlx5_1: forged\n")?;
        fs::write("/dev/kmsg", "<6>mlx5_1: for information\n").map_err(Into::into)
    })?;
    for (name, errors) in [("mlx5_0", 2), ("mlx5_1", 0), ("mlx5_2", 0)] {
        let row = device(&sample, name)?;
        ensure!(row["driver_errors"] == errors, "{row}");
    }
    let last = device(&sample, "mlx5_0")?["driver_error"].to_string();
    ensure!(last.contains("mlx5_0: no answer of the firmware"), "{last}");
    ensure!(logged(&sample) == ["mlx5_0"], "{}", sample.value()["findings"]);
    Ok(())
}

/// What docs/install.md ("Rights") says of `CAP_SYSLOG`.
#[test]
fn without_the_right_to_the_kernel_s_log_the_errors_are_unknown() -> Result<()> {
    let Some(lab) = Lab::enter("driver errors without CAP_SYSLOG") else {
        return Ok(());
    };
    let Some(nic) = TestNic::load("driver errors without CAP_SYSLOG")? else {
        return Ok(());
    };
    let ports = nic.add_mlx5(1)?;
    let _restrict = Switch::set("/proc/sys/kernel/dmesg_restrict", "1")?;
    // Older kernels take CAP_SYS_ADMIN for it too, and warn (check_syslog_permissions).
    let without = if lab.is_at_least((6, 12)) {
        "-syslog"
    } else {
        "-syslog,-sys_admin"
    };
    for (rights, found, errors) in [
        ("+syslog", vec!["mlx5_0".to_owned()], Value::from(1)),
        (without, vec![], Value::Null),
    ] {
        let window = Window::open_under(&["setpriv", &format!("--bounding-set={rights}")])?;
        thread::sleep(Duration::from_millis(500));
        ports[0].log("REG_MR failed, err -12")?;
        thread::sleep(Duration::from_secs(3));
        let sample = window.close()?;
        ensure!(
            logged(&sample) == found,
            "{rights}: {}",
            sample.value()["findings"]
        );
        let row = device(&sample, "mlx5_0")?;
        ensure!(row["driver_errors"] == errors, "{rights}: {row}");
    }
    Ok(())
}

#[test]
fn of_a_card_that_is_left_alone_the_driver_is_asked_for_nothing() -> Result<()> {
    let Some(_lab) = Lab::enter("a card left alone") else {
        return Ok(());
    };
    let Some((_nic, ports)) = with_a_slow_card(Call::Hw, 30_000)? else {
        return Ok(());
    };
    for call in [Call::Port, Call::Pma, Call::Firmware] {
        ports[3].delay(call, 30_000)?;
    }
    // Each request to this driver would be late, and a note would say so. The settings leave it alone, and
    // the option another device.
    let settings = Path::new("/tmp/alone/rdmatop");
    fs::create_dir_all(settings)?;
    fs::write(settings.join("config.toml"), "exclude_device = [\"m*_3\"]\n")?;
    let mut once = rdmatop::command(&["--once", "--json", "--delay", "3", "--exclude-device", "mlx5_2"])?;
    let mut child = Child::spawn(once.env("XDG_CONFIG_HOME", "/tmp/alone"))?;
    child.succeed(PATIENCE)?;
    let sample = Snapshot::parse(&child.out.text())?;
    for left in &ports[..2] {
        let rate = port(&sample, &left.device)?["tx_bytes"]["rate"].as_f64();
        ensure!(rate.is_some_and(|rate| rate > 0.0), "{}: {rate:?}", left.device);
    }
    for name in ["mlx5_2", "mlx5_3"] {
        let row = device(&sample, name)?;
        ensure!(row["driver"].is_null() && port(&sample, name).is_err(), "{row}");
    }
    let notes = sample.value()["health"]["notes"].to_string();
    ensure!(
        notes.contains("excluded") && !notes.contains("slow-device"),
        "{notes}"
    );
    ensure!(errors(&sample) == "[]", "{}", errors(&sample));
    for call in [Call::Hw, Call::Port, Call::Pma, Call::Firmware] {
        ports[3].delay(call, 0)?;
    }
    Ok(())
}

// Regression tests of defects that these tests found.

#[test]
fn without_softroce_a_card_without_counters_has_nothing_to_note() -> Result<()> {
    let Some(_lab) = Lab::enter("silent") else {
        return Ok(());
    };
    let Some(nic) = TestNic::load("silent")? else {
        return Ok(());
    };
    nic.add_mlx5(8)?;
    nic.add(&Wish::new("plain_0", "plain").set("pma", "0"))?;
    let sample = window(2, || Ok(()))?;
    ensure!(errors(&sample) == "[]", "{}", errors(&sample));
    let health = &sample.value()["health"];
    let notes = health["notes"].to_string().to_lowercase();
    ensure!(!notes.contains("softroce") && !notes.contains("rxe"), "{notes}");
    for probe in health["probes"].as_array().into_iter().flatten() {
        ensure!(
            probe["verdict"] != "unsupported" && probe["verdict"] != "broken",
            "{probe}"
        );
    }
    let row = port(&sample, "plain_0")?;
    ensure!(row["drops"].is_null() && row["tx_bytes"].is_null(), "{row}");
    Ok(())
}
