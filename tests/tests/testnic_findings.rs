//! Findings of cards whose ports and counters a test sets, on a machine without SoftRoCE.

use std::{fs, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::{
    check::Check,
    lab::Lab,
    rdmatop::{END, Trace},
    testnic::{Call, EFA, EFA_COMMANDS, Port, TestNic, Wish},
    traffic::Traffic,
    wait,
};
use serde_json::Value;

/// Returns the findings by device and kind, sorted by device.
fn found(check: &Check) -> Result<Vec<(String, String)>> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = check.findings()?.iter();
    let mut found: Vec<_> = all
        .map(|found| (text(&found["device"]), text(&found["id"])))
        .collect();
    found.sort();
    Ok(found)
}

/// Fails unless a check has exactly these findings.
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
        // Programs end with receives posted, which are flushed.
        port.rate("resp_cqe_error", 20)?;
        port.rate("resp_cqe_flush_error", 20)?;
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
    let trace = Trace::start(&[])?;
    await_looks(&ports)?;
    // One outage, and as many as make a flapping link, each too short to be seen in the port's state.
    seen_in_state(&ports[1], 1)?;
    ports[2].grow("link_downed", 3)?;
    for _ in 0..3 {
        seen_in_state(&ports[0], 1)?;
        seen_in_state(&ports[0], 4)?;
    }
    let wanted = [("mlx5_0", "link-flaps"), ("mlx5_2", "link-flaps")];
    await_changes(&trace, "finding_raise", &wanted)?;
    let traced = trace.stop()?;
    let raised = traced.events.kind("finding_raise");
    ensure!(raised.len() == wanted.len(), "{:?}", raised.all());
    for found in raised.all().iter().map(|event| &event["finding"]) {
        let by = found["evidence"][0].as_str().context("no evidence")?;
        // One finding is raised while the link is down; the other link works at the moment.
        let (witness, severity) = if found["device"] == "mlx5_0" {
            ("by the port's state", "critical")
        } else {
            ("by link_downed", "warning")
        };
        ensure!(by.starts_with(witness), "{found:#}");
        ensure!(found["severity"] == severity, "{found:#}");
    }
    Ok(())
}

/// Waits until rdmatop has read the counters of all these ports in two rounds, so that later growth is
/// recognised.
fn await_looks(ports: &[Port]) -> Result<()> {
    // The reads of one round are much closer together.
    const ROUND_NS: u64 = 500_000_000;
    for port in ports {
        let newest = || -> Result<Option<u64>> { Ok(port.reads(Call::Pma)?.first().copied()) };
        let first = wait::for_some("a look at the counters", END, newest)?;
        wait::for_some("another look at the counters", END, || {
            Ok(newest()?.filter(|last| *last > first + ROUND_NS))
        })?;
    }
    Ok(())
}

/// Sets the state of a port and waits until the round in which rdmatop reads it is over.
fn seen_in_state(port: &Port, state: u32) -> Result<()> {
    let newest = || -> Result<Option<u64>> { Ok(port.reads(Call::Port)?.first().copied()) };
    port.state(state)?;
    let before = newest()?;
    wait::for_some("a read of the port's state", END, || {
        Ok((newest()? > before).then_some(()))
    })?;
    thread::sleep(Duration::from_secs(1));
    Ok(())
}

#[test]
fn link_errors_congestion_and_refused_commands_are_found_on_their_cards() -> Result<()> {
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
            .hw(&[EFA, &["unresponsive_remote_events"]].concat())
            .set("commands", EFA_COMMANDS)
            .set("pma", "0"),
    )?;
    // The counters of InfiniBand are at rest on a dirty fibre of Ethernet; what FEC repairs is no error.
    let fibre = |name: &str, net: &str, address: &str| {
        let stats = [
            "rx_crc_errors_phy",
            "rx_corrected_bits_phy",
            "link_down_events_phy",
        ];
        nic.add(&Wish::mlx5(name).net(net, address, 9000, &stats))
    };
    let dirty = fibre("mlx5_8", "dirty0", "10.58.0.1")?;
    let clean = fibre("mlx5_9", "clean0", "10.59.0.1")?;
    let trace = Trace::start(&[])?;
    await_looks(&ports)?;
    dirty.rate("rx_crc_errors_phy", 20)?;
    clean.rate("rx_corrected_bits_phy", 1_000_000)?;
    efa.rate("unresponsive_remote_events", 1)?;
    ports[0].rate("symbol_error", 40)?;
    ports[1].rate("rp_cnp_ignored", 10)?;
    ports[2].rate("np_ecn_marked_roce_packets", 50)?;
    // 12.5 GB/s on four lanes are 3.1e9 symbols per lane: 2 % and 6 % of the time. The counter saturates at
    // 2^32, after 24 s.
    quiet.rate("port_xmit_wait", 60_000_000)?;
    waits.rate("port_xmit_wait", 180_000_000)?;
    // On Ethernet this counter means nothing, and says nothing about credits.
    ports[3].rate("port_xmit_wait", 120_000_000)?;
    ports[3].rate("req_remote_access_errors", 3)?;
    efa.rate("cmds_err", 2)?;
    let wanted = [
        ("efa_0", "device-command-errors"),
        ("efa_0", "requests-fail"),
        ("ib1", "ib-congestion"),
        ("mlx5_0", "link-errors"),
        ("mlx5_1", "congestion-ignored"),
        ("mlx5_2", "congestion-ignored"),
        ("mlx5_3", "requests-fail"),
        ("mlx5_8", "link-errors"),
    ];
    await_changes(&trace, "finding_raise", &wanted)?;
    // The other findings get as much time as these had, and more.
    thread::sleep(Duration::from_secs(10));
    let traced = trace.stop()?;
    let raised = traced.events.kind("finding_raise");
    ensure!(raised.len() == wanted.len(), "{:?}", raised.all());
    Ok(())
}

/// Returns a PCI function whose link is slower than possible: the one in the lab's slot.
fn slow_slot() -> Result<String> {
    for function in fs::read_dir("/sys/bus/pci/devices")? {
        let dir = function?.path();
        let value = |name: &str| fs::read_to_string(dir.join(name)).unwrap_or_default();
        let speed = |name: &str| -> Option<f64> { value(name).split(' ').next()?.parse().ok() };
        if let (Some(now), Some(able)) = (speed("current_link_speed"), speed("max_link_speed"))
            && now < able
        {
            let name = dir.file_name().context("a name")?;
            return Ok(name.to_string_lossy().into_owned());
        }
    }
    anyhow::bail!("no PCI function of this guest has a slow link")
}

/// Returns the findings that a trace raised, or cleared, by device and kind, sorted.
fn changes(trace: &Trace, event: &str) -> Result<Vec<(String, String)>> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let events = trace.events()?.kind(event);
    let mut all: Vec<_> = events
        .all()
        .iter()
        .map(|event| (text(&event["finding"]["device"]), text(&event["finding"]["id"])))
        .collect();
    all.sort();
    Ok(all)
}

/// Waits until exactly these changes have been made.
fn await_changes(trace: &Trace, event: &str, wanted: &[(&str, &str)]) -> Result<()> {
    let wanted: Vec<_> = wanted
        .iter()
        .map(|(device, id)| ((*device).to_owned(), (*id).to_owned()))
        .collect();
    wait::for_some(event, END, || {
        Ok((changes(trace, event)?.len() >= wanted.len()).then_some(()))
    })
    .with_context(|| format!("{event}: {:?}", changes(trace, event)))?;
    let all = changes(trace, event)?;
    ensure!(all == wanted, "{event}: {all:?}");
    Ok(())
}

#[test]
fn a_card_that_runs_out_of_queue_pairs_is_named_with_who_has_them() -> Result<()> {
    let Some(_lab) = Lab::enter("findings of cards: headroom") else {
        return Ok(());
    };
    let Some(nic) = TestNic::load("findings of cards: headroom")? else {
        return Ok(());
    };
    let card = |number: u32, max_qp: &str| {
        let wish = Wish::mlx5(&format!("mlx5_{number}"))
            .set("uverbs", "1")
            .set("max_qp", max_qp);
        let (net, address) = (format!("rail{number}"), format!("10.5{number}.0.1"));
        nic.add(&wish.net(&net, &address, 9000, &[]))
    };
    // The neighbour has as many queue pairs, each with a PD, and may have one more.
    let (small, neighbour) = (card(0, "10")?, card(1, "11")?);
    let gids = [
        small.gid("RoCE v2", "0a32:0001")?,
        neighbour.gid("RoCE v2", "0a33:0001")?,
    ];
    let trace = Trace::start(&[])?;
    let hold = |device: usize, qps: usize| -> Result<(Traffic, Value)> {
        let devices = vec![format!("mlx5_{device}"); qps].join(",");
        let args = ["--devices", &devices, "--gid", &gids[device].to_string()];
        let traffic = Traffic::start("raw-qps", &args)?;
        let pid = traffic.ready()?["pid"].clone();
        Ok((traffic, pid))
    };
    let (_eight, pid) = hold(0, 8)?;
    let _nine_of_eleven = hold(1, 9)?;
    // Two looks of a trace at states.
    thread::sleep(Duration::from_secs(5));
    let _ninth = hold(0, 1)?;
    await_changes(&trace, "finding_raise", &[("mlx5_0", "headroom"); 2])?;
    let raised = trace.events()?.kind("finding_raise");
    let findings: Vec<&Value> = raised.all().iter().map(|event| &event["finding"]).collect();
    let of = |what| {
        move |finding: &&&Value| {
            finding["verdict"]
                .as_str()
                .is_some_and(|text| text.contains(what))
        }
    };
    let finding = findings.iter().find(of("QPs")).context("QPs")?;
    let of_pds = findings.iter().find(of("PDs")).context("PDs")?;
    ensure!(
        of_pds["verdict"] == "mlx5_0 has 9 of the 10 PDs that it may have",
        "{of_pds:#}"
    );
    ensure!(
        finding["severity"] == "warning"
            && finding["verdict"] == "mlx5_0 has 9 of the 10 QPs that it may have"
            && finding["evidence"][1]
                .as_str()
                .is_some_and(|most| most.contains(&format!("raw-qps (PID {pid}) 8, "))),
        "{finding:#}"
    );
    thread::sleep(Duration::from_secs(5));
    let traced = trace.stop()?;
    ensure!(traced.events.kind("finding_raise").len() == 2);
    Ok(())
}

/// Some of the statistics of mlx5's network device that rdmatop reads.
const STATS: &[&str] = &[
    "rx_packets",
    "rx_prio3_pause",
    "rx_prio3_pause_duration",
    "tx_prio0_bytes",
    "tx_prio3_bytes",
];

/// The findings of a card with QPs, a network device and a slot: a slow link, pauses, a class without flow
/// control, GIDs of RoCE v1, a small MTU of the network device or of the path, and a slow slot.
#[test]
fn what_a_card_with_qps_can_have_is_found_and_over_when_mended() -> Result<()> {
    let Some(_lab) = Lab::enter("findings of cards: used") else {
        return Ok(());
    };
    let Some(nic) = TestNic::load("findings of cards: used")? else {
        return Ok(());
    };
    let card = |wish: Wish, number: u32, mtu: u32| {
        let (net, address) = (format!("rail{number}"), format!("10.5{number}.0.1"));
        nic.add(&wish.set("uverbs", "1").net(&net, &address, mtu, STATS))
    };
    let mut ports = Vec::new();
    for number in 0..4 {
        let wish = Wish::mlx5(&format!("mlx5_{number}")).set("v1", "1");
        ports.push(card(wish, number, 9000)?);
    }
    let narrow = card(Wish::new("bnxt_re0", "bnxt_en"), 4, 1500)?;
    let asked = card(Wish::new("irdma0", "irdma"), 5, 9000)?;
    let slot = card(Wish::new("slot0", "").set("pci", &slow_slot()?), 6, 9000)?;
    let hold = |devices: &str, gid: u32, mtu: &str| {
        let args = ["--devices", devices, "--gid", &gid.to_string(), "--mtu", mtu];
        let traffic = Traffic::start("raw-qps", &args)?;
        let pid = traffic.ready()?["pid"].clone();
        Ok::<_, anyhow::Error>((traffic, pid))
    };
    // One process has a QP on each card, with the GID at the same index.
    let places = (2..).zip(&ports);
    let places = places.map(|(number, port)| port.gid("RoCE v2", &format!("0a3{number}:0001")));
    let places: Vec<u32> = places.collect::<Result<_>>()?;
    let v2 = places[0];
    ensure!(places == [v2; 4], "GIDs are at {places:?}");
    let v1 = ports[2].gid("IB/RoCE v1", "0a34:0001")?;
    // Rates and flow control are read when the trace begins and every 30 s.
    ports[3].gbit(25)?;
    ports[1..3].iter().try_for_each(|port| port.pfc(1 << 3))?;
    let trace = Trace::start(&[])?;
    let (job, job_pid) = hold("mlx5_0,mlx5_1,mlx5_2,mlx5_3", v2, "4096")?;
    let (old, old_pid) = hold("mlx5_2", v1, "4096")?;
    let (first, second) = (
        narrow.gid("RoCE v2", "0a36:0001")?,
        asked.gid("RoCE v2", "0a37:0001")?,
    );
    let (small, _) = hold("bnxt_re0", first, "1024")?;
    let (path, path_pid) = hold("irdma0", second, "1024")?;
    let (slow, slow_pid) = hold("slot0", slot.gid("RoCE v2", "0a38:0001")?, "4096")?;
    ports[0].rate("rx_prio3_pause", 5_000)?;
    // The neighbour is paused only a little.
    ports[1].rate("rx_prio3_pause", 50)?;
    // The slow port carries its part: one with idle queue pairs slows nobody.
    for port in &ports[1..] {
        port.rate("port_xmit_data", 125_000_000)?;
    }
    ports[1].rate("tx_prio0_bytes", 500_000_000)?;
    ports[2].rate("tx_prio3_bytes", 500_000_000)?;
    let wanted = [
        ("bnxt_re0", "small-mtu"),
        ("irdma0", "small-mtu"),
        ("mlx5_0", "pause-storm"),
        ("mlx5_1", "traffic-class"),
        ("mlx5_2", "roce-v1"),
        ("mlx5_3", "port-slow"),
        ("slot0", "pcie-slow"),
    ];
    await_changes(&trace, "finding_raise", &wanted)?;
    for (id, pid) in [
        ("port-slow", &job_pid),
        ("roce-v1", &old_pid),
        ("pcie-slow", &slow_pid),
        ("small-mtu", &path_pid),
    ] {
        let raised = trace.events()?.kind("finding_raise");
        let named = raised
            .all()
            .iter()
            .map(|event| &event["finding"])
            .filter(|finding| finding["id"] == id)
            .any(|finding| {
                let says = |text: &Value| {
                    text.as_str()
                        .is_some_and(|text| text.contains(&format!("PID {pid}")))
                };
                finding["pid"] == *pid || says(&finding["verdict"])
            });
        ensure!(named, "{id} of PID {pid}: {:?}", raised.all());
    }
    ports[0].rate("rx_prio3_pause", 0)?;
    ports[1].rate("tx_prio0_bytes", 0)?;
    ports[1].rate("tx_prio3_bytes", 500_000_000)?;
    ports[3].gbit(100)?;
    for traffic in [old, small, path, slow] {
        traffic.finish()?;
    }
    await_changes(&trace, "finding_clear", &wanted)?;
    job.finish()?;
    let traced = trace.stop()?;
    let raised = traced.events.kind("finding_raise");
    ensure!(raised.len() == wanted.len(), "{:?}", raised.all());
    Ok(())
}
