//! The traffic programs and the perftest harness do what they report: compared with the kernel's own counts,
//! without rdmatop. If these tests fail, the results of the other tests cannot be trusted.

use std::{process::Command, time::Duration};

use anyhow::{Context, Result};
use rdmatop_tests::{
    child::output,
    kernel,
    lab::{self, DEVICE, Lab},
    perftest::{self, Pair, Perftest},
    table::Table,
    traffic::{self, Traffic, id, number},
    wait::{self, PATIENCE},
    wire::{self, Wire},
};
use serde_json::{Value, json};

/// Returns the kernel's QPs from the `rdma` tool.
fn kernel_qps() -> Result<Vec<Value>> {
    let text = output(Command::new("rdma").args(["-j", "resource", "show", "qp"]))?;
    Ok(serde_json::from_str::<Value>(&text)?
        .as_array()
        .cloned()
        .unwrap_or_default())
}

fn kernel_qps_of(pid: u32) -> Result<Vec<Value>> {
    Ok(kernel_qps()?.into_iter().filter(|qp| qp["pid"] == pid).collect())
}

#[test]
fn idle_qps_holds_as_many_qps_as_asked_in_the_state_asked() -> Result<()> {
    let Some(_lab) = Lab::enter("idle_qps") else {
        return Ok(());
    };
    for (state, shown) in [("rts", "RTS"), ("init", "INIT")] {
        let idle = Traffic::start("idle-qps", &["--qps", "10", "--processes", "3", "--state", state])?;
        let ready = idle.ready()?;
        let pids = ready["pids"].as_array().context("no pids")?.clone();
        let held: Vec<_> = kernel_qps()?
            .into_iter()
            .filter(|qp| pids.contains(&qp["pid"]))
            .collect();
        assert_eq!(held.len(), 10);
        assert!(
            held.iter()
                .all(|qp| qp["state"] == shown && qp["comm"] == "idle-qps"),
            "{held:?}"
        );
        idle.finish()?;
        assert!(
            !kernel_qps()?.iter().any(|qp| pids.contains(&qp["pid"])),
            "QPs remain"
        );
    }
    Ok(())
}

#[test]
fn idle_qps_ends_with_its_children_when_it_is_killed() -> Result<()> {
    let Some(_lab) = Lab::enter("idle_qps killed") else {
        return Ok(());
    };
    let mut idle = Traffic::start("idle-qps", &["--qps", "4", "--processes", "2"])?;
    idle.ready()?;
    idle.child.signal(libc::SIGKILL)?;
    idle.child.wait(traffic::LIMIT)?;
    wait::until("the children's end", PATIENCE, || {
        kernel_qps().is_ok_and(|qps| !qps.iter().any(|qp| qp["comm"] == "idle-qps"))
    })
}

#[test]
fn qp_churn_says_what_it_did() -> Result<()> {
    let Some(_lab) = Lab::enter("qp_churn") else {
        return Ok(());
    };
    for args in [
        &["--count", "101", "--threads", "3"][..],
        &["--count", "50", "--fifo"][..],
    ] {
        let done = traffic::run("qp-churn", args)?;
        let count: u64 = args[1].parse()?;
        assert_eq!(number(&done, "created")?, count);
        assert_eq!(number(&done, "modified")?, 3 * count);
        assert_eq!(number(&done, "destroyed")?, count);
        assert_eq!(number(&done, "events")?, 5 * count);
        assert!(kernel_qps_of(id(&done, "pid")?)?.is_empty());
    }
    Ok(())
}

#[test]
fn timed_posts_times_every_request() -> Result<()> {
    let Some(_lab) = Lab::enter("timed_posts") else {
        return Ok(());
    };
    for op in ["write", "read", "send"] {
        let done = traffic::run("timed-posts", &["--count", "200", "--op", op])?;
        for part in ["latency", "post"] {
            let summary = &done[part];
            let buckets = summary["buckets"].as_array().context("no buckets")?;
            assert_eq!(
                buckets.iter().filter_map(Value::as_u64).sum::<u64>(),
                200,
                "{op} {part}"
            );
            assert!(number(summary, "p50_ns")? <= number(summary, "p99_ns")?);
            assert!(number(summary, "p99_ns")? <= number(summary, "max_ns")?);
        }
        let [whole, post] = ["latency", "post"].map(|part| number(&done[part], "mean_ns"));
        assert!(whole? > post?, "{op}: a request ends after its post");
    }
    Ok(())
}

#[test]
fn verb_errors_gets_the_errnos_it_provokes() -> Result<()> {
    let Some(_lab) = Lab::enter("verb_errors") else {
        return Ok(());
    };
    let done = traffic::run("verb-errors", &[])?;
    let got: Vec<_> = done["errors"]
        .as_array()
        .context("no errors")?
        .iter()
        .map(|e| (&e["verb"], &e["errno"]))
        .collect();
    let got: Vec<_> = got
        .into_iter()
        .map(|(verb, errno)| (verb.as_str().unwrap_or(""), errno.as_i64()))
        .collect();
    let [einval, efault] = [libc::EINVAL, libc::EFAULT].map(|errno| Some(i64::from(errno)));
    assert_eq!(
        got,
        [("create_cq", einval), ("reg_mr", efault), ("modify_qp", einval)]
    );
    Ok(())
}

#[test]
fn sqd_gets_its_event() -> Result<()> {
    let Some(_lab) = Lab::enter("sqd") else {
        return Ok(());
    };
    let done = traffic::run("sqd", &["--times", "2"])?;
    assert_eq!(done["events"], json!(["SQ_DRAINED", "SQ_DRAINED"]), "{done}");
    Ok(())
}

#[test]
fn hold_fd_makes_a_qp_without_an_owner() -> Result<()> {
    let Some(_lab) = Lab::enter("hold_fd") else {
        return Ok(());
    };
    let held = Traffic::start("hold-fd", &[])?;
    let ready = held.ready()?;
    let qpn = id(&ready, "qpn")?;
    let orphan = kernel_qps()?
        .into_iter()
        .find(|qp| qp["lqpn"] == qpn)
        .context("the QP went with its owner")?;
    assert!(orphan.get("pid").is_none(), "{orphan}");
    held.finish()?;
    assert!(
        !kernel_qps()?.iter().any(|qp| qp["lqpn"] == qpn),
        "the QP outlived its holder"
    );
    Ok(())
}

#[test]
fn perftest_pairs_give_their_account() -> Result<()> {
    let Some(lab) = Lab::enter("perftest") else {
        return Ok(());
    };
    let mut table = Table::default();
    let plain = Perftest::new;
    let cases = [
        ("send", plain("ib_send_bw"), 1, 1000),
        ("send -q 4", plain("ib_send_bw").args(&["-q", "4"]), 4, 1000),
        ("send -l 10", plain("ib_send_bw").args(&["-l", "10"]), 1, 1000),
        ("send -Q 1", plain("ib_send_bw").args(&["-Q", "1"]), 1, 1000),
        ("send -e", plain("ib_send_bw").args(&["-e"]), 1, 1000),
        ("send -R", plain("ib_send_bw").cm(), 1, 1000),
        (
            "send UD",
            plain("ib_send_bw").args(&["-c", "UD"]).size(1024),
            1,
            1000,
        ),
        ("write", plain("ib_write_bw").iterations(500), 1, 500),
        ("read", plain("ib_read_bw").iterations(500), 1, 500),
        ("atomic", plain("ib_atomic_bw").iterations(500).size(8), 1, 500),
        ("lat", plain("ib_send_lat").size(64), 1, 1000),
    ];
    for (name, case, qps, iterations) in cases {
        let sends = lab::hw_counter(DEVICE, "rdma_sends")?;
        let accounts = case.run().with_context(|| name)?;
        for side in [&accounts.server, &accounts.client] {
            assert_eq!(side.qpns.len(), qps, "{name}: {side:?}");
        }
        assert_ne!(accounts.server.pid, accounts.client.pid);
        let told = accounts.client.iterations;
        table.equal(name, "iterations told", iterations * qps as u64, Some(told));
        // The kernel counts SEND requests, in both directions in the latency test; -R adds some.
        if let (Some(before), Some(after)) = (sends, lab::hw_counter(DEVICE, "rdma_sends")?) {
            let (got, told) = (after - before, told * if name == "lat" { 2 } else { 1 });
            match name {
                "write" | "read" | "atomic" => table.equal(name, "kernel's rdma_sends", 0, Some(got)),
                "send -R" => table.rule(name, "kernel's rdma_sends", ">= told", Some(got), got >= told),
                _ => table.equal(name, "kernel's rdma_sends", told, Some(got)),
            }
        }
    }
    table.check(&lab, "perftest's account against the kernel's");
    Ok(())
}

#[test]
fn a_running_pair_owns_the_qps_it_names() -> Result<()> {
    let Some(_lab) = Lab::enter("running pair") else {
        return Ok(());
    };
    let pair = Perftest::new("ib_send_bw").iterations(30_000).start()?;
    pair.wait_connected()?;
    let (server, client) = pair.qpns();
    for (side, qpns) in [(&pair.server, server), (&pair.client, client)] {
        let owned: Vec<_> = kernel_qps_of(side.pid())?
            .iter()
            .filter_map(|qp| qp["lqpn"].as_u64())
            .collect();
        assert_eq!(owned, qpns.into_iter().map(u64::from).collect::<Vec<_>>());
    }
    let Pair {
        mut client,
        mut server,
        ..
    } = pair;
    client.succeed(traffic::LIMIT)?;
    server.succeed(traffic::LIMIT)
}

#[test]
fn the_wire_carries_traffic_and_loses_packets_when_told_to() -> Result<()> {
    let Some(_lab) = Lab::enter("wire") else {
        return Ok(());
    };
    let wire = Wire::up()?;
    let pair = Perftest::new("ib_send_bw").devices(wire::SERVER, wire::CLIENT);
    let retries = || -> Result<u64> {
        let names = ["rcvd_seq_err", "completer_retry_err"];
        let values: Result<Vec<_>> = names
            .iter()
            .map(|name| lab::hw_counter(wire::CLIENT, name))
            .collect();
        Ok(values?.into_iter().flatten().sum())
    };
    assert_eq!(pair.run()?.client.iterations, 1000);
    let sent = lab::hw_counter(wire::CLIENT, "sent_pkts")?.context("no sent_pkts")?;
    assert!(
        sent >= 4000,
        "{sent} packets on the wire for 1000 messages of 4 packets"
    );
    let before = retries()?;
    let loss = wire.lose("2%")?;
    assert_eq!(pair.run()?.client.iterations, 1000);
    drop(loss);
    assert!(retries()? > before, "no retry although packets were lost");
    Ok(())
}

#[test]
fn a_stopped_receiver_makes_the_sender_wait_and_nothing_is_lost() -> Result<()> {
    let Some(_lab) = Lab::enter("stopped receiver") else {
        return Ok(());
    };
    let naks = || lab::hw_counter(DEVICE, "rcvd_rnr_err").map(Option::unwrap_or_default);
    let before = naks()?;
    let accounts = perftest::with_stopped_receiver(20_000, 1024, Duration::from_secs(3))?.finish()?;
    assert_eq!(accounts.client.iterations, 20_000);
    assert!(naks()? > before, "no RNR NAK although the receiver stood still");
    Ok(())
}

#[test]
fn a_client_whose_server_is_killed_ends_with_a_retry_error() -> Result<()> {
    let Some(_lab) = Lab::enter("killed server") else {
        return Ok(());
    };
    let pair = perftest::with_killed_server()?;
    assert_eq!(perftest::printed_status(&pair.client)?, 12);
    Ok(())
}

#[test]
fn a_reloaded_module_gives_the_devices_back() -> Result<()> {
    let Some(_lab) = Lab::enter("reload") else {
        return Ok(());
    };
    let before = lab::devices()?;
    kernel::reload_rxe()?;
    assert_eq!(lab::devices()?, before);
    assert_eq!(
        Perftest::new("ib_send_bw")
            .iterations(100)
            .run()?
            .client
            .iterations,
        100
    );
    assert!(
        kernel::probes()?.is_empty(),
        "someone traces: {:?}",
        kernel::probes()?
    );
    kernel::bpf_programs().map(drop)
}
