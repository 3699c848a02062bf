//! Queue pairs that programs make past ib_core, on cards whose driver says that it is mlx5's: who has them,
//! and whose the port's bytes are.

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::{
    lab::Lab,
    rdmatop::{Trace, Window},
    testnic::{TestNic, Wish},
    traffic::{Traffic, id},
};
use serde_json::{Value, json};

use super::port;

const RDMA_DRIVER_MLX5: &str = "1";
/// What passes a port while its program is there, in words of 4 bytes.
const SENT: u64 = 1_000_003;

fn wish(name: &str) -> Wish {
    Wish::mlx5(name)
        .set("uverbs", "1")
        .set("driver_id", RDMA_DRIVER_MLX5)
}

/// Starts a program that makes three QPs and a CQ there, or what is asked, and destroys as many of them.
fn start(device: &str, make: &str, destroy: &str) -> Result<(Traffic, u32)> {
    let args = ["--device", device, "--make", make, "--destroy", destroy];
    let traffic = Traffic::start("devx-objects", &args)?;
    let pid = id(&traffic.ready()?, "pid")?;
    Ok((traffic, pid))
}

#[test]
fn queue_pairs_past_the_kernel_have_an_owner() -> Result<()> {
    let Some(_lab) = Lab::enter("DEVX") else {
        return Ok(());
    };
    let Some(nic) = TestNic::load("DEVX")? else {
        return Ok(());
    };
    let ports = [nic.add(&wish("mlx5_0"))?, nic.add(&wish("mlx5_1"))?];
    let before = start("mlx5_1", "500", "0")?;
    let window = Window::open(&[])?;
    let owner = start("mlx5_0", "500,500,500,400", "1")?;
    let keys = start("mlx5_0", "200,400,a00", "1")?;
    let ended = start("mlx5_1", "710,904,70c", "2")?;
    ports[0].grow("port_xmit_data", SENT)?;
    // The facts of all that started are read: of one that ends before, nobody knows when it began.
    window.wait_looks(10)?;
    ended.0.finish()?;
    window.wait_looks(10)?;
    let sample = window.close()?;
    let made = |pid: u32| -> Result<Value> { Ok(sample.process(pid)?.field("devx").clone()) };
    let of = |device: &str, whole: bool, made: Value, destroyed: Value, now: Value| json!([{"device": device, "whole": whole, "made": made, "destroyed": destroyed, "now": now}]);
    let is = |pid, wanted: Value| -> Result<()> {
        let devx = made(pid)?;
        ensure!(
            devx == wanted,
            "{devx} and not {wanted}; lost {}",
            sample.losses()
        );
        Ok(())
    };
    is(
        owner.1,
        of(
            "mlx5_0",
            true,
            json!({"qp": 3, "cq": 1}),
            json!({"qp": 1}),
            json!({"qp": 2, "cq": 1}),
        ),
    )?;
    is(
        keys.1,
        of(
            "mlx5_0",
            true,
            json!({"cq": 1, "other": 2}),
            json!({"other": 1}),
            json!({"cq": 1, "other": 1}),
        ),
    )?;
    is(
        ended.1,
        of(
            "mlx5_1",
            true,
            json!({"dct": 1, "sq": 1, "other": 1}),
            json!({"dct": 1, "sq": 1}),
            json!({}),
        ),
    )?;
    ensure!(
        sample.process(before.1).is_err(),
        "it made its objects before, and nothing else is known of it"
    );
    let row = sample.process(owner.1)?;
    let sent = row.field("tx_bytes");
    ensure!(
        sent["source"] == "port" && sent["total"] == 4 * SENT && row.field("devices") == &json!(["mlx5_0"]),
        "the port's bytes are its: {sent}"
    );
    ensure!(
        sample.process(keys.1)?.field("tx_bytes").is_null(),
        "what has no queue pair moves nothing"
    );
    for key in ["out_of_buffer", "drops", "retries"] {
        let faults = &port(&sample, "mlx5_0")?[key];
        ensure!(
            faults["total"].is_null() && faults["at_least"]["total"] == 0,
            "{key}: {faults}"
        );
    }
    ensure!(sample.value()["judgement"]["unexplained"] == json!([]));
    Ok(())
}

/// Starts a process with a connected QP on a device.
fn hold(device: &str) -> Result<(Traffic, u32)> {
    let traffic = Traffic::start("raw-qps", &["--devices", device])?;
    let pid = id(&traffic.ready()?, "pid")?;
    Ok((traffic, pid))
}

#[test]
fn who_changes_or_inherits_queue_pairs_past_the_kernel_is_a_user() -> Result<()> {
    let test = "changes past the kernel";
    let Some(_lab) = Lab::enter(test) else {
        return Ok(());
    };
    let Some(nic) = TestNic::load(test)? else {
        return Ok(());
    };
    let card = |number: u32| {
        let address = format!("10.6{number}.0.1");
        let wish = wish(&format!("mlx5_{number}"));
        nic.add(&wish.net(&format!("rail{number}"), &address, 9000, &[]))
    };
    let ports: Vec<_> = (0..3).map(card).collect::<Result<_>>()?;
    let window = Window::open(&[])?;
    let holders = ["mlx5_0", "mlx5_1", "mlx5_2"].map(hold);
    let pids = holders.iter().map(|holder| holder.as_ref().map(|(_, pid)| *pid));
    let pids: Vec<u32> = pids.flatten().collect();
    // A CQ alone; one that asks for a change, by a call that fails; and a QP that passes to a child.
    let keys = start("mlx5_0", "400", "0")?;
    let args = ["--device", "mlx5_1", "--make", "400", "--modify", "1"];
    let changes = Traffic::start("devx-objects", &args)?;
    changes.ready()?;
    let args = ["--device", "mlx5_2", "--make", "500", "--heir", "yes"];
    let heir = Traffic::start("devx-objects", &args)?;
    heir.ready()?;
    // Nobody counts the parent any more.
    window.wait_looks(20)?;
    for port in &ports {
        port.grow("port_xmit_data", SENT)?;
    }
    window.wait_looks(10)?;
    let sample = window.close()?;
    let sent = |at: usize| -> Result<Value> { Ok(sample.process(pids[at])?.field("tx_bytes").clone()) };
    ensure!(
        sent(0)?["total"] == 4 * SENT,
        "{} lost {}",
        sent(0)?,
        sample.losses()
    );
    for at in [1, 2] {
        let sent = sent(at)?;
        ensure!(
            sent["source"] == "port" && sent["total"].is_null() && sent["at_least"]["total"] == 0,
            "mlx5_{at}: {sent}"
        );
    }
    drop((keys, changes, heir, holders));
    Ok(())
}

#[test]
fn each_object_past_the_kernel_is_an_event() -> Result<()> {
    let Some(_lab) = Lab::enter("DEVX events") else {
        return Ok(());
    };
    let Some(nic) = TestNic::load("DEVX events")? else {
        return Ok(());
    };
    nic.add(&wish("mlx5_0"))?;
    // Another driver's methods may have the same numbers.
    let other = nic.add(&Wish::new("hns_0", "hns3").set("uverbs", "1"))?;
    let trace = Trace::start(&["--event", "devx"])?;
    let (made, pid) = start("mlx5_0", "500,500,500,400", "1")?;
    ensure!(start(&other.device, "500", "0").is_err(), "it has no such method");
    made.finish()?;
    let traced = trace.stop()?;
    let events = traced.whole();
    let told: Vec<Value> = events
        .all()
        .iter()
        .map(|event| {
            json!([
                event["event"],
                event["devx"],
                event["device"],
                event["pid"],
                event["rc"]
            ])
        })
        .collect();
    let create = |kind: &str| json!(["devx_create", kind, "mlx5_0", pid, 0]);
    let destroy = json!(["devx_destroy", "qp", "mlx5_0", pid, 0]);
    let wanted = [create("qp"), create("qp"), create("qp"), create("cq"), destroy];
    ensure!(told == wanted, "{told:?}");
    let last = events.all().last().context("an event")?;
    ensure!(
        last["comm"] == "devx-objects" && last["duration_ns"].as_u64() > Some(0),
        "{last}"
    );
    Ok(())
}
