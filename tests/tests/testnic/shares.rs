//! Bytes of processes by the ports of cards whose driver counts what a test adds, to the last byte.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::{
    child::output,
    lab::Lab,
    rdmatop::Window,
    snapshot::{Row, Snapshot},
    testnic::{TestNic, Wish},
    traffic::{Traffic, id},
};

/// What ports send and receive while the window is open, in words of 4 bytes: no two alike, and some are more
/// bytes than 32 bits hold.
const SENT: [u64; 4] = [1_003, 1_200_000_007, 70_001, 11];
const RECEIVED: [u64; 4] = [3, 1_300_000_001, 17, 13];

/// A process that holds what raw-qps makes.
struct Holder {
    traffic: Traffic,
    pid: u32,
}

/// Has a process hold QPs on some cards, and have others open.
fn hold(qps: &str, opens: &str, gid: u32) -> Result<Holder> {
    let args = ["--gid", &gid.to_string(), "--devices", qps, "--open", opens];
    let traffic = Traffic::start("raw-qps", &args)?;
    let pid = id(&traffic.ready()?, "pid")?;
    Ok(Holder { traffic, pid })
}

/// Of a process that may not have been alone on its port nothing is certain but this.
fn bound(row: Row<'_>) -> Result<()> {
    for key in ["tx_bytes", "rx_bytes"] {
        let counter = row.field(key);
        ensure!(counter["source"] == "port", "{key}: {counter}");
        ensure!(
            counter["total"].is_null() && counter["rate"].is_null() && counter["at_least"]["total"] == 0,
            "{key}: {counter}"
        );
    }
    let sent = row.field("tx_bytes");
    ensure!(sent["at_most"]["rate"].as_f64() > Some(0.0), "{sent}");
    Ok(())
}

/// The process alone has what the port counted in the window.
fn whole(sample: &Snapshot, pid: u32, port: usize) -> Result<()> {
    let row = sample.process(pid)?;
    for (key, words) in [("tx_bytes", SENT[port]), ("rx_bytes", RECEIVED[port])] {
        let counter = row.field(key);
        ensure!(
            counter["source"] == "port" && counter["total"] == 4 * words && counter["rate"].is_f64(),
            "{key} of mlx5_{port} is {}: {counter}, lost {}",
            4 * words,
            sample.losses()
        );
    }
    Ok(())
}

#[test]
fn a_process_alone_on_a_card_s_port_has_what_the_driver_counted() -> Result<()> {
    let test = "bytes by cards' ports";
    let Some(_lab) = Lab::enter(test) else {
        return Ok(());
    };
    let Some(nic) = TestNic::load(test)? else {
        return Ok(());
    };
    let card = |number: u32| {
        let wish = Wish::mlx5(&format!("mlx5_{number}")).set("uverbs", "1");
        let address = format!("10.5{number}.0.1");
        nic.add(&wish.net(&format!("rail{number}"), &address, 9000, &[]))
    };
    let ports: Vec<_> = (0..4).map(card).collect::<Result<_>>()?;
    for port in &ports {
        // What was before the window is nobody's.
        port.set("port_xmit_data", 1_000_000)?;
    }
    let gids = (0..4).zip(&ports);
    let gids = gids.map(|(number, port)| port.gid("RoCE v2", &format!("0a3{}:0001", 2 + number)));
    let gids: Vec<u32> = gids.collect::<Result<_>>()?;
    ensure!(gids == [gids[0]; 4], "GIDs are at {gids:?}");
    let all = "mlx5_0,mlx5_1,mlx5_2,mlx5_3";
    // One that was there before and has the cards open, as an agent has, and one with a QP.
    let agent = hold("", all, gids[0])?;
    let old = hold("mlx5_0", "", gids[0])?;
    let window = Window::open(&[])?;
    let alone = hold("mlx5_1", all, gids[0])?;
    let both = [hold("mlx5_2", all, gids[0])?, hold("mlx5_2", "", gids[0])?];
    let stays = hold("mlx5_3", "", gids[0])?;
    let goes = hold("mlx5_3", "", gids[0])?;
    for ((port, sent), received) in ports.iter().zip(SENT).zip(RECEIVED) {
        port.grow("port_xmit_data", sent)?;
        port.grow("port_rcv_data", received)?;
    }
    goes.traffic.finish()?;
    // The facts of all that started are read.
    window.wait_looks(10)?;
    let sample = window.close()?;
    whole(&sample, alone.pid, 1)?;
    for pid in [both[0].pid, both[1].pid, stays.pid] {
        bound(sample.process(pid)?).with_context(|| format!("process {pid}"))?;
    }
    // What it moved before the window is not known, what it moves now is: nobody else has a QP there.
    let row = sample.process(old.pid)?;
    let counter = row.field("tx_bytes");
    ensure!(
        counter["total"].is_null() && counter["rate"].as_f64() > Some(0.0),
        "{counter}"
    );
    ensure!(
        sample.process(agent.pid).is_err(),
        "a process without QPs, MRs and calls has a row"
    );
    Ok(())
}

/// From Linux 6.10 on netlink leaves queue pairs of such types out unless it is asked for them.
#[test]
fn queue_pairs_of_a_driver_s_own_type_are_listed_and_stay() -> Result<()> {
    const OWN: u64 = 0xff;
    let test = "QPs of a driver's own type";
    let Some(_lab) = Lab::enter(test) else {
        return Ok(());
    };
    let Some(nic) = TestNic::load(test)? else {
        return Ok(());
    };
    for (name, driver, address) in [
        ("rdmap0", "efa", "10.50.0.1"),
        ("mlx5_0", "mlx5_core", "10.51.0.1"),
    ] {
        let wish = Wish::new(name, driver).set("uverbs", "1");
        nic.add(&wish.net(&format!("{name}n"), address, 9000, &[]))?;
    }
    let args = ["--type", &OWN.to_string(), "--devices", "rdmap0,rdmap0,mlx5_0"];
    let holder = Traffic::start("raw-qps", &args)?;
    let ready = holder.ready()?;
    let pid: u32 = id(&ready, "pid")?;
    let qpns = ready["qpns"].as_array().context("no numbers")?;
    // What records tell of QPs that begin later must not end with a dump that lacks them.
    let windows = [Window::open(&["--no-ebpf"])?, Window::open(&[])?];
    for window in windows {
        window.wait_looks(10)?;
        let sample = window.close()?;
        for qpn in qpns {
            let row = sample.qp(pid, u32::try_from(qpn.as_u64().context("a number")?)?)?;
            ensure!(row.field("exited") != true, "{qpn} has ended");
        }
        for (name, qps) in [("rdmap0", 2), ("mlx5_0", 1)] {
            let row = super::device(&sample, name)?;
            ensure!(row["qps"] == qps, "{name}: {row}");
        }
    }
    Ok(())
}

#[test]
fn two_ports_of_one_card_have_each_their_own_user_and_bytes() -> Result<()> {
    let test = "bytes by two ports of a card";
    let Some(_lab) = Lab::enter(test) else {
        return Ok(());
    };
    let Some(nic) = TestNic::load(test)? else {
        return Ok(());
    };
    for name in ["two0", "two1"] {
        output(Command::new("ip").args(["link", "add", name, "type", "dummy"]))?;
        output(Command::new("ip").args(["link", "set", name, "up"]))?;
    }
    let wish = Wish::mlx5("mlx5_0").set("uverbs", "1").set("ports", "2");
    let first = nic.add(&wish.set("netdevs", "two0,two1"))?;
    let ports = [first.beside(1), first.beside(2)];
    let window = Window::open(&[])?;
    // Each has the whole card open, and a QP of one port.
    let users = [hold("mlx5_0/1", "", 0)?, hold("mlx5_0/2", "", 0)?];
    for ((port, sent), received) in ports.iter().zip(SENT).zip(RECEIVED) {
        port.grow("port_xmit_data", sent)?;
        port.grow("port_rcv_data", received)?;
    }
    window.wait_looks(10)?;
    let sample = window.close()?;
    for (port, user) in users.iter().enumerate() {
        whole(&sample, user.pid, port).with_context(|| format!("port {}", port + 1))?;
    }
    drop((users, nic));
    for name in ["two0", "two1"] {
        output(Command::new("ip").args(["link", "delete", name]))?;
    }
    Ok(())
}
