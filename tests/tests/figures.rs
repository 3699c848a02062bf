//! Each figure counts what its name says, on every kernel; a rate refers to the time that passed.

use std::{process::Command, thread::sleep, time::Duration};

use anyhow::{Context, Result};
use rdmatop_tests::{
    child::output,
    lab::{self, Lab},
    perftest::{Accounts, Perftest},
    rdmatop::Window,
    snapshot::{Row, Snapshot},
    table::Table,
    traffic::{self, id},
    wire::{self, Wire},
};

/// For how long rdmatop is stopped.
const STOPPED: Duration = Duration::from_secs(3);

/// Bytes on the wire must be the kernel's own count, or unknown if it has none; never the payload.
fn of_the_wire(table: &mut Table, client: Row<'_>, bytes: Option<u64>, payload: u64) {
    let told = client.total("tx_bytes");
    if let Some(bytes) = bytes {
        table.equal("client's port", "tx_bytes = sent_bytes", bytes, told);
        let more = told.is_some_and(|wire| wire > payload);
        let rule = format!("> {payload} of payload");
        table.rule("client's port", "tx_bytes, headers too", &rule, told, more);
    } else {
        let unknown = client.field("tx_bytes").is_null();
        table.rule(
            "client's port",
            "tx_bytes, not counted here",
            "null",
            told,
            unknown,
        );
    }
}

/// Checks that the statuses of CQEs add up to all CQEs.
fn statuses(table: &mut Table, sample: &Snapshot, accounts: &Accounts) -> Result<()> {
    for account in [&accounts.client, &accounts.server] {
        for row in [
            sample.process(account.pid)?,
            sample.qp(account.pid, account.qpns[0])?,
        ] {
            let all = row.total("completions").context("no completions")?;
            table.equal(
                "QP and process",
                "sum of by_status = completions",
                all,
                row.statuses(),
            );
            table.equal(
                "QP and process",
                "success = completions",
                all,
                row.status("success"),
            );
        }
    }
    Ok(())
}

#[test]
fn wire_payload_packets_and_retries_of_a_port_have_a_key_each() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("keys of a port") else {
        return Ok(());
    };
    let wire = Wire::up()?;
    let (n, size) = (1000, 4096);
    let window = Window::open(&[])?;
    let sent = || lab::hw_counter(wire::CLIENT, "sent_pkts")?.context("no sent_pkts");
    let before = sent()?;
    let loss = wire.lose("1%")?;
    let accounts = Perftest::new("ib_send_bw")
        .iterations(n)
        .size(size)
        .devices(wire::SERVER, wire::CLIENT)
        .run()?;
    drop(loss);
    let packets = sent()?;
    let retries = lab::hw_counter(wire::CLIENT, "completer_retry_err")?.context("no completer_retry_err")?;
    let bytes = lab::hw_counter(wire::CLIENT, "sent_bytes")?;
    let sample = window.close()?;
    let (client, server) = (sample.port(wire::CLIENT, 1)?, sample.port(wire::SERVER, 1)?);
    let mut table = Table::default();
    // perftest's own count, without headers and retransmissions.
    let payload = n * size;
    table.equal(
        "client's port",
        "wr_tx_bytes = perftest's bytes",
        payload,
        client.total("wr_tx_bytes"),
    );
    table.equal_unless_skipped(
        "server's port",
        "wr_rx_bytes = perftest's bytes",
        payload,
        server.total("wr_rx_bytes"),
        sample.skipped() * size,
    );
    // The kernel's own counts.
    table.equal(
        "client's port",
        "tx_packets = sent_pkts",
        packets,
        client.total("tx_packets"),
    );
    table.equal(
        "client's port",
        "retries = completer_retry_err",
        retries,
        client.total("retries"),
    );
    let first = n * size.div_ceil(1024);
    let again = packets - before - first;
    table.equal_unless_skipped(
        "client's port",
        "retransmits = sent_pkts - first ones",
        again,
        client.total("retransmits"),
        sample.skipped(),
    );
    table.rule("client's port", "packets lost", "> 0", Some(again), again > 0);
    of_the_wire(&mut table, client, bytes, payload);
    for name in ["sent_pkts", "completer_retry_err", "duplicate_request"] {
        let kernel = lab::hw_counter(wire::CLIENT, name)?.with_context(|| format!("no {name}"))?;
        table.equal(
            "client's port",
            &format!("{name} as its file"),
            kernel,
            client.named(name),
        );
    }
    statuses(&mut table, &sample, &accounts)?;
    table.check(&lab, "What a port's keys count");
    Ok(())
}

/// Steps the wall clock by this many hours.
fn step(hours: i64) -> Result<()> {
    output(Command::new("date").arg("-s").arg(format!("{hours} hours"))).map(drop)
}

#[test]
fn a_step_of_the_clock_and_a_stop_of_rdmatop_change_no_rate() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("clock step and stop") else {
        return Ok(());
    };
    let mut table = Table::default();
    for what in ["clock step", "SIGSTOP"] {
        let window = Window::open(&[])?;
        let count = 500;
        let done = traffic::run("timed-posts", &["--count", "500"])?;
        if what == "SIGSTOP" {
            window.child().signal(libc::SIGSTOP)?;
            sleep(STOPPED);
            window.child().signal(libc::SIGCONT)?;
        } else {
            step(1)?;
            // The window is long compared with one sampling, which may take half a second.
            sleep(STOPPED);
        }
        let sample = window.close();
        if what != "SIGSTOP" {
            step(-1)?;
        }
        let sample = sample?;
        let process = sample.process(id(&done, "pid")?)?;
        table.equal(what, "tx_wr", count, process.total("tx_wr"));
        let window_s = sample.value()["interval_ns"].as_f64().context("no interval")? / 1e9;
        // Everything happened within the window, so the rate is the count over the window's length, up to the
        // time of one sampling, and not over an hour or the time before the stop.
        let told = process.rate("tx_wr").map(|rate| (rate * window_s).round());
        let near = told.is_some_and(|told| (told - 500.0).abs() <= 100.0);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a small positive number"
        )]
        let shown = told.map(|told| told as u64);
        table.rule(
            what,
            "tx_wr per second times the window",
            "500 within a fifth",
            shown,
            near,
        );
        if what == "SIGSTOP" {
            let long = window_s >= STOPPED.as_secs_f64();
            table.rule(what, "window", ">= 3 s", Some(u64::from(long)), long);
        }
    }
    table.check(&lab, "Rates over a clock step and a stop");
    Ok(())
}
