//! Cards with hardware counters, by a driver whose counters are known: names, states, totals, rates, wraps,
//! resets, failures and slow answers on a machine with eight "mlx5" ports and no SoftRoCE.

use std::{
    fs,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rdmatop_tests::{
    child::{Child, output},
    lab::Lab,
    rdmatop::{self, END, Window},
    snapshot::Snapshot,
    testnic::{Call, EFA, Port, TestNic, Wish},
    wait::{self, SOON},
};
use serde_json::Value;

/// Of a rate, as a part of it. The driver computes a counter when it is asked, within the read whose middle
/// is its time.
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

/// A counter under the driver's name.
fn named<'a>(port: &'a Value, name: &str) -> Result<&'a Value> {
    let list = port["counters"].as_array().context("no list of counters")?;
    let row = list.iter().find(|row| row["name"] == name);
    row.with_context(|| format!("no counter {name} in {port}"))
}

fn errors(sample: &Snapshot) -> String {
    sample.value()["health"]["errors"].to_string()
}

/// A window of `seconds` over what `during` does after a part of it.
fn window(seconds: u64, during: impl FnOnce() -> Result<()>) -> Result<Snapshot> {
    let window = Window::open(&[])?;
    let open = Instant::now();
    // The first reads come after the line that says that the window is open.
    thread::sleep(Duration::from_millis(500));
    during()?;
    thread::sleep(Duration::from_secs(seconds).saturating_sub(open.elapsed()));
    window.close()
}

fn is_near(rate: Option<f64>, wanted: u64) -> bool {
    rate.is_some_and(|rate| (rate / wanted as f64 - 1.0).abs() <= RATE_TOLERANCE)
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

/// Bytes of bnxt_re, octets of irdma and InfiniBand ports may be of IP: nothing follows from them. mlx5's and
/// EFA's are of queue pairs.
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
    // Without eBPF a queue pair may have come and gone unseen within the window.
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

/// Each total is what the counter was when the driver was asked for it last, to the unit.
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
        // 40 Gb/s and more; files of ports/N/counters count words of 4 bytes.
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
        // As after a reset of the card.
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
    // What is lost is not made up for: it goes on from there, and this interval has no rate.
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
    // Another card in the same place is another device.
    nic.add(&Wish::mlx5("mlx5_1"))?.set("port_xmit_data", 5)?;
    let sample = rdmatop::once(&[])?;
    ensure!(port(&sample, "mlx5_1")?["tx_bytes"]["total"] == 20);
    Ok(())
}

/// Findings of this kind, by the name of their device.
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
        // What a program writes there is not the kernel's, whatever it says.
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

/// A driver that sleeps where it is asked for `call`, among seven that do not.
fn with_a_slow_card(call: Call, ms: u32) -> Result<Option<(TestNic, Vec<Port>)>> {
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
        // A signal in the middle of a sleep.
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
    // Whatever is asked of its driver is late, and a note says so.
    let sample = rdmatop::once(&["--delay", "3", "--exclude-device", "m*_3"])?;
    for left in &ports[..3] {
        let rate = port(&sample, &left.device)?["tx_bytes"]["rate"].as_f64();
        ensure!(rate.is_some_and(|rate| rate > 0.0), "{}: {rate:?}", left.device);
    }
    let row = device(&sample, "mlx5_3")?;
    ensure!(
        row["driver"].is_null() && port(&sample, "mlx5_3").is_err(),
        "{row}"
    );
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

// What follows holds only once defects are mended that these tests found.

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
    // out_of_buffer is unknown; port_xmit_discards alone is not what the port dropped, but as much at the
    // least.
    let drops = &row["drops"];
    ensure!(drops["total"].is_null() && drops["rate"].is_null(), "{row}");
    ensure!(drops["at_least"]["total"].as_u64().is_some(), "{row}");
    ensure!(!named(row, "port_xmit_discards")?["total"].is_null(), "{row}");
    Ok(())
}

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
        // Past the start, which loads programs.
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

/// Of the rate of a slow card, as a part of it. Where in a read of seconds the driver looked at the counter
/// nobody knows; of two reads whose lengths differ by more than this part of the time between them there is
/// no rate.
const SLOW_TOLERANCE: f64 = 0.05;

/// The rate of a slow card is over the time between its own two reads, or unknown; the others have theirs.
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
        // All eight move data without a queue pair, and the note about that names them.
        let notes: Vec<String> = notes
            .iter()
            .filter(|note| note["id"] != "unseen-qps")
            .map(ToString::to_string)
            .collect();
        let notes = notes.concat();
        // The firmware is asked only when devices are listed: the reading at the end may not have been slow.
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

/// `rdmatop doctor --json`: lines by check, and the exit code.
fn doctor() -> Result<(Option<i32>, Vec<Value>)> {
    doctor_of(&[])
}

/// As [`doctor`], with more variables in its environment.
fn doctor_of(env: &[(&str, &str)]) -> Result<(Option<i32>, Vec<Value>)> {
    let mut command = rdmatop::command(&["doctor", "--json"])?;
    let mut child = Child::spawn(command.envs(env.iter().copied()))?;
    let code = child.wait(END)?.code();
    let value: Value = serde_json::from_str(&child.out.text()).with_context(|| child.err.text())?;
    Ok((code, value["lines"].as_array().cloned().unwrap_or_default()))
}

#[test]
fn doctor_names_the_slow_the_downed_and_the_silent_port_and_no_softroce() -> Result<()> {
    let Some(_lab) = Lab::enter("doctor of cards") else {
        return Ok(());
    };
    let Some(nic) = TestNic::load("doctor of cards")? else {
        return Ok(());
    };
    let ports: Vec<Port> = (0..4)
        .map(|number| {
            nic.add(
                &Wish::mlx5(&format!("mlx5_{number}"))
                    .set("ib", "1")
                    .set("uverbs", "1"),
            )
        })
        .collect::<Result<_>>()?;
    ports.iter().try_for_each(|port| port.gbit(400))?;
    let bad = |lines: &[Value]| -> Vec<String> {
        let bad = lines
            .iter()
            .filter(|line| line["status"] == "warn" || line["status"] == "fail");
        bad.filter(|line| !line["id"].as_str().is_some_and(|id| id.starts_with("rdmatop.")))
            .map(|line| format!("{} {}", line["id"], line["text"]).replace('"', ""))
            .collect()
    };
    let (_, lines) = doctor()?;
    ensure!(bad(&lines) == [""; 0], "{lines:?}");
    let text = serde_json::to_string(&lines)?.to_lowercase();
    ensure!(!text.contains("softroce") && !text.contains("rxe"), "{text}");

    ports[2].gbit(100)?;
    let (code, lines) = doctor()?;
    ensure!(
        bad(&lines) == ["port.rate mlx5_2 runs at 100 Gb/s, others of its kind at 400 Gb/s"]
            && code == Some(1),
        "{lines:?}"
    );
    ports[2].gbit(400)?;

    ports[1].state(1)?;
    let (code, lines) = doctor()?;
    let found = bad(&lines);
    ensure!(
        found.len() == 1 && found[0].starts_with("port.state mlx5_1 is down") && code == Some(2),
        "{lines:?}"
    );
    ports[1].state(4)?;

    // A driver that sleeps: the page says so, and has what the others answered.
    ports[3].delay(Call::Port, 12_000)?;
    // Six seconds, and not the lab's minute.
    let (code, lines) = doctor_of(&[("RDMATOP_PATIENCE", "2")])?;
    ports[3].delay(Call::Port, 0)?;
    ensure!(
        bad(&lines) == ["device.present mlx5_3 does not answer"] && code == Some(2),
        "{lines:?}"
    );
    ensure!(
        lines.iter().any(|line| line["id"] == "port.state"
            && line["text"]
                .as_str()
                .is_some_and(|text| text.starts_with("3 of 3 up"))),
        "{lines:?}"
    );
    Ok(())
}
