//! The bytes of a process by its ports, where no program counts its work requests (`RDMATOP_DATAPATHS=0`), as
//! on a NIC. Since Linux 7.2 SoftRoCE counts bytes: every packet of a QP and nothing else.

use std::{collections::BTreeMap, process::Command};

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::{
    child::output,
    lab::{self, Lab, skip},
    perftest::{Accounts, Pair, Perftest},
    rdmatop::Window,
    snapshot::{Row, Snapshot},
    table::{Table, say},
    uprobes,
    wait::{self, PATIENCE},
    wire::{CLIENT, SERVER, Wire},
};
use serde_json::Value;

const COUNTERS: [(&str, &str); 2] = [("tx_bytes", "sent_bytes"), ("rx_bytes", "rcvd_bytes")];

/// The path MTU of queue pairs whose shares are looked at.
const MTU: f64 = 4096.0;

/// Values of the driver's counters, by device and name.
type Counted = BTreeMap<(&'static str, &'static str), u64>;

/// Returns the driver's counters of both ends of the wire.
fn counted() -> Result<Counted> {
    let mut all = Counted::new();
    for device in [CLIENT, SERVER] {
        for (_, name) in COUNTERS {
            let value = lab::hw_counter(device, name)?.with_context(|| format!("no {name} of {device}"))?;
            all.insert((device, name), value);
        }
    }
    Ok(all)
}

/// Returns a sample of a window in which these pairs ran, their own accounts, and the ports' counts.
fn watched(pairs: &[Perftest]) -> Result<(Snapshot, Vec<Accounts>, Counted)> {
    let window = Window::open_with(&[], &uprobes::ENV)?;
    let before = counted()?;
    let running: Vec<_> = pairs
        .iter()
        .map(|pair| pair.clone().devices(SERVER, CLIENT).start())
        .collect::<Result<_>>()?;
    let accounts = running.into_iter().map(Pair::finish).collect::<Result<_>>()?;
    let mut moved = counted()?;
    for (key, value) in &mut moved {
        *value -= before[key];
    }
    Ok((window.close()?, accounts, moved))
}

#[test]
fn a_process_alone_on_a_port_has_its_bytes_to_the_last() -> Result<()> {
    let Some(lab) = Lab::enter("bytes by ports") else {
        return Ok(());
    };
    if lab::hw_counter(lab::DEVICE, "sent_bytes")?.is_none() {
        skip(
            "bytes by ports",
            &format!("SoftRoCE of Linux {} counts no bytes", lab.release),
        );
        return Ok(());
    }
    let _wire = Wire::up()?;
    let mut table = Table::default();
    for (program, iterations, size) in [("ib_write_bw", 30, 65_536), ("ib_read_bw", 60, 8192)] {
        let pair = Perftest::new(program).iterations(iterations).size(size);
        let (sample, accounts, moved) = watched(&[pair])?;
        for (account, device) in [(&accounts[0].client, CLIENT), (&accounts[0].server, SERVER)] {
            let row = sample.process(account.pid)?;
            for (key, name) in COUNTERS {
                ensure!(row.source(key) == Some("port"), "{program}: {}", row.field(key));
                let what = format!("{program} {device} {name}");
                table.equal(&what, key, moved[&(device, name)], row.total(key));
            }
        }
        // The payload went one way, and headers add less than a tenth.
        let most = moved.values().copied().max().unwrap_or(0);
        let payload = iterations * size;
        ensure!(
            (payload..payload + payload / 10).contains(&most),
            "{program}: {most} bytes for {payload}"
        );
    }
    // Two processes share each port at the same time: neither has a total, but each has a bound.
    let pairs = [100, 300].map(|iterations| Perftest::new("ib_send_bw").iterations(iterations).size(4096));
    let (sample, accounts, _) = watched(&pairs)?;
    for account in accounts.iter().flat_map(|pair| [&pair.client, &pair.server]) {
        let row = sample.process(account.pid)?;
        bound(row, account.iterations * account.size)?;
    }
    table.check(&lab, "bytes by ports");
    Ok(())
}

/// How many queue pairs of the active end can send.
fn able() -> Result<usize> {
    let list = output(Command::new("rdma").args(["resource", "show", "qp", "link", CLIENT]))?;
    let sends = |line: &&str| line.contains("type RC") && line.contains("state RTS");
    Ok(list.lines().filter(sends).count())
}

/// What senders that share a port sent, a second: as shown by PSN, and as counted by the kernel's own data
/// path in another session at the same time, with the headers that the port counts. They have `qps` queue
/// pairs in all.
fn shares(pairs: [(Perftest, f64); 2], qps: usize) -> Result<[(Value, f64); 2]> {
    let [one, other] = pairs.map(|(pair, size)| {
        let pair = pair.iterations(1_000_000).devices(SERVER, CLIENT).start()?;
        Ok((pair, size))
    });
    let (one, other): (Result<_>, Result<_>) = (one, other);
    let running = [one?, other?];
    wait::for_some("queue pairs that send", PATIENCE, || {
        Ok((able()? == qps).then_some(()))
    })?;
    let by_psn = Window::open_with(&[], &uprobes::ENV)?;
    let counted = Window::open(&[])?;
    counted.wait_looks(120)?;
    let (by_psn, counted) = (by_psn.close()?, counted.close()?);
    // The windows are not quite of one time, but both saw the port.
    let moved = |sample: &Snapshot| sample.port(CLIENT, 1)?.rate("tx_bytes").context("no rate");
    let other_time = moved(&by_psn)? / moved(&counted)?;
    let found = running.map(|(pair, size)| {
        let pid = pair.client.pid();
        let counted = counted.process(pid)?.rate("tx_bytes");
        let share = by_psn.process(pid)?;
        // Of IPv4, UDP, BTH and ICRC in each packet, and of RETH in the first.
        let headers = (size / MTU).ceil() * 44.0 + 16.0;
        let truth = counted.context("nothing is counted")? * (size + headers) / size * other_time;
        let explains = share.field("psn_explains");
        say(&format!(
            "{pid}: {} of {truth}, {explains}",
            share.field("tx_bytes")
        ));
        Ok((share.field("tx_bytes").clone(), truth))
    });
    let [one, other]: [Result<_>; 2] = found;
    Ok([one?, other?])
}

#[test]
fn senders_that_share_a_port_have_shares_by_psn() -> Result<()> {
    let Some(lab) = Lab::enter("shares by PSN") else {
        return Ok(());
    };
    if lab::hw_counter(lab::DEVICE, "sent_bytes")?.is_none() {
        skip(
            "shares by PSN",
            &format!("SoftRoCE of Linux {} counts no bytes", lab.release),
        );
        return Ok(());
    }
    let _wire = Wire::up()?;
    for end in ["va", "vb"] {
        output(Command::new("ip").args(["link", "set", end, "mtu", "9000"]))?;
    }
    let of = |size: u64| {
        let pair = Perftest::new("ib_write_bw").size(size);
        (pair.args(&["-m", "4096"]), size as f64)
    };
    // Their path MTUs were set before the window, so each acknowledgement may be some answer to a READ: here
    // one comes for 64 packets.
    for (share, truth) in shares([of(1 << 18), of(1 << 18)], 2)? {
        ensure!(share["source"] == "psn", "{share}");
        let rate = share["rate"]
            .as_f64()
            .with_context(|| format!("a bound: {share}"))?;
        ensure!((rate - truth).abs() <= truth * 0.05, "{rate} of {truth}");
    }
    // Packets of 64 bytes beside full ones.
    for (share, truth) in shares([of(64), of(4096)], 2)? {
        ensure!(share["rate"].is_null(), "{share} of {truth}");
        let most = share["at_most"]["rate"].as_f64().context("no bound")?;
        ensure!(most >= truth * 0.95, "{most} of {truth}");
    }
    Ok(())
}

/// What is shown of a process that shared its port must not be more than it moved.
fn bound(row: Row<'_>, payload: u64) -> Result<()> {
    for (key, _) in COUNTERS {
        let counter = row.field(key);
        ensure!(
            counter["total"].is_null() && counter["rate"].is_null(),
            "{counter}"
        );
        let least = counter["at_least"]["total"].as_u64().context("no at_least")?;
        ensure!(least <= payload + payload / 10, "{counter} of {payload}");
    }
    Ok(())
}
