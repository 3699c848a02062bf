//! Counts must belong to the right process when QPs of several devices come and go with the same numbers and
//! at the same addresses.
//!
//! The kernel gives a freed QP's memory at once to the next QP of any device, and each device numbers its QPs
//! independently. Everything happens in one `rdmatop --once` window, which reads the counters when it closes:
//! by then each number and each address has had many QPs.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use rdmatop_tests::{
    device::Device,
    lab::Lab,
    rdmatop::Window,
    snapshot::{Row, Snapshot},
    table::{Table, say},
    traffic::{self, id, number},
};

/// Two new devices, which therefore give the same numbers.
const FIRST: &str = "rxe1";
const SECOND: &str = "rxe2";

/// What one process reports that it did.
#[derive(Clone, Copy, Debug)]
struct Did {
    device: &'static str,
    pid: u32,
    qpn: u32,
    peer_qpn: u32,
    messages: u64,
    bytes: u64,
}

/// Runs a process that sends `messages` from one of its two QPs on `device` to the other. Their number and
/// length distinguish the process from all others.
fn run(device: &'static str, messages: u64) -> Result<Did> {
    let (count, size) = (messages.to_string(), (8 * messages).to_string());
    let args = [
        "--device", device, "--op", "send", "--count", &count, "--size", &size,
    ];
    let done = traffic::run("timed-posts", &args).with_context(|| device)?;
    Ok(Did {
        device,
        pid: id(&done, "pid")?,
        qpn: id(&done, "qpn")?,
        peer_qpn: id(&done, "peer_qpn")?,
        messages,
        bytes: number(&done, "bytes")?,
    })
}

/// Returns the messages and bytes, sent and received.
fn counts(row: Row<'_>) -> [Option<u64>; 4] {
    ["tx_wr", "tx_bytes", "rx_wr", "rx_bytes"].map(|counter| row.total(counter))
}

/// Returns what is wrong about a process.
fn faults(sample: &Snapshot, did: &Did) -> Vec<String> {
    let mut faults = Vec::new();
    let (messages, bytes) = (Some(did.messages), Some(did.bytes));
    let whole = [messages, bytes, messages, bytes];
    match sample.process(did.pid) {
        Ok(row) if counts(row) == whole => {}
        Ok(row) => faults.push(format!("counts {:?} for {whole:?}", counts(row))),
        Err(_) => faults.push("no row".into()),
    }
    let none = Some(0);
    for (qpn, expected) in [
        (did.qpn, [messages, bytes, none, none]),
        (did.peer_qpn, [none, none, messages, bytes]),
    ] {
        match sample.qp(did.pid, qpn) {
            Ok(row) if counts(row) != expected => {
                faults.push(format!("QP {qpn}: {:?} for {expected:?}", counts(row)));
            }
            Ok(row) if row.field("device") != did.device => {
                faults.push(format!("QP {qpn}: on {}", row.field("device")));
            }
            Ok(row) if row.field("qp_type") != "RC" || row.field("state").is_null() || !row.is("exited") => {
                faults.push(format!("QP {qpn}: {row:?}"));
            }
            Ok(_) => {}
            Err(_) => faults.push(format!("QP {qpn}: no row")),
        }
    }
    let rows = sample.qps().filter(|row| row.field("pid") == did.pid).count();
    if rows != 2 {
        faults.push(format!("{rows} QPs for 2"));
    }
    faults
}

/// Compares the results of all processes with the sample. `alive`: devices whose ports must have all of it.
fn compare(table: &mut Table, sample: &Snapshot, all: &[Did], alive: &[&str]) {
    let mut wrong = 0;
    for did in all {
        let faults = faults(sample, did);
        if !faults.is_empty() {
            wrong += 1;
            say(&format!(
                "  pid {} on {}: {}",
                did.pid,
                did.device,
                faults.join("; ")
            ));
        }
    }
    let title = format!("{} processes", all.len());
    table.equal(&title, "processes with a wrong count", 0, Some(wrong));
    let unknown = |row: &Row<'_>| row.field("qp_type").is_null() || row.field("state").is_null();
    let ghosts = sample.qps().filter(unknown).count() as u64;
    table.equal(&title, "QPs without a type or a state", 0, Some(ghosts));
    let mut bytes: BTreeMap<&str, u64> = BTreeMap::new();
    for did in all {
        *bytes.entry(did.device).or_default() += did.bytes;
    }
    for device in alive {
        let bytes = bytes.get(device).copied().unwrap_or(0);
        let port = sample.port(device, 1).ok();
        for counter in ["wr_tx_bytes", "wr_rx_bytes"] {
            table.equal(device, counter, bytes, port.and_then(|port| port.total(counter)));
        }
    }
    table.equal("all", "lost_events", 0, sample.lost());
}

#[test]
fn counts_stay_with_their_process_where_two_devices_use_the_same_numbers() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("two devices") else {
        return Ok(());
    };
    let _devices = (Device::add(FIRST, 1)?, Device::add(SECOND, 2)?);
    let window = Window::open(&[])?;
    let mut all = Vec::new();
    for round in 0..8 {
        all.push(run(FIRST, 2 * round + 1)?);
        all.push(run(SECOND, 2 * round + 2)?);
    }
    let sample = window.close()?;
    let mut table = Table::default();
    compare(&mut table, &sample, &all, &[FIRST, SECOND]);
    table.check(&lab, "Two devices with the same numbers");
    Ok(())
}

#[test]
fn a_device_that_is_added_again_takes_nothing_over_from_the_one_before() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("device added again") else {
        return Ok(());
    };
    let device = Device::add(FIRST, 1)?;
    let window = Window::open(&[])?;
    let mut all = Vec::new();
    for round in 0..4 {
        if round > 0 {
            device.add_again()?;
        }
        all.push(run(FIRST, round + 1)?);
    }
    let sample = window.close()?;
    let mut table = Table::default();
    compare(&mut table, &sample, &all, &[]);
    // Only the last process did anything on the device that exists now.
    let last = all.last().map_or(0, |did| did.bytes);
    let port = sample.port(FIRST, 1)?;
    table.equal(FIRST, "wr_tx_bytes", last, port.total("wr_tx_bytes"));
    table.check(&lab, "A device that is added again");
    Ok(())
}
