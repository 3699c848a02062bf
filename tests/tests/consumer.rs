//! Kernel consumers: NVMe over RDMA is counted under its own name, and both ends agree.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use rdmatop_tests::{
    child::output,
    lab::{self, Lab},
    links::{Links, device},
    nvme::{self, Disk, HOST, NvmeTarget, TARGET},
    rdmatop::Window,
    snapshot::{Row, Snapshot},
    table::Table,
    uprobes,
    wait::{self, PATIENCE},
};

/// Commands each way.
const BLOCKS: u64 = 64;

/// Returns the WRs and bytes of `opcodes` in a row.
fn posted_as(row: Row<'_>, opcodes: &[&str]) -> (u64, u64) {
    let found = opcodes.iter().filter_map(|opcode| row.opcode(opcode));
    found.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

const SENDS: [&str; 2] = ["send", "send_inv"];

#[test]
fn nvme_over_rdma_is_counted_under_its_name_and_both_ends_agree() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("NVMe over RDMA") else {
        return Ok(());
    };
    if let Some(reason) = nvme::missing() {
        lab::skip("NVMe over RDMA", &reason);
        return Ok(());
    }
    let target = NvmeTarget::up()?;
    let window = Window::open(&[])?;
    let disk = target.connect()?;
    disk.copy(true, BLOCKS)?;
    disk.copy(false, BLOCKS)?;
    ends(disk)?;
    let sample = window.close()?;
    let mut table = Table::default();
    for name in [HOST, TARGET] {
        by_itself(&mut table, &sample, name)?;
    }
    against_each_other(&mut table, &sample)?;
    table.equal("all", "lost_events", 0, sample.lost());
    table.check(&lab, "NVMe over RDMA, a kernel consumer");
    Ok(())
}

/// Ends the connection, and waits until the QPs of both sides are gone.
fn ends(disk: Disk<'_>) -> Result<()> {
    disk.disconnect()?;
    // The target frees its QPs in a worker after the initiator has gone.
    wait::until("the end of the consumers' QPs", PATIENCE, || {
        let left = output(Command::new("rdma").args(["resource", "show", "qp"]));
        left.is_ok_and(|text| !text.contains("type RC"))
    })
}

const BYTES: [(&str, &str); 2] = [("tx_bytes", "sent_bytes"), ("rx_bytes", "rcvd_bytes")];

/// What the driver has counted at these devices, sent and received.
fn counted(devices: &[String; 2]) -> Result<[[u64; 2]; 2]> {
    let mut all = [[0; 2]; 2];
    for (device, counts) in devices.iter().zip(&mut all) {
        for ((_, name), count) in BYTES.iter().zip(counts) {
            *count = lab::hw_counter(device, name)?.with_context(|| format!("no {name} of {device}"))?;
        }
    }
    Ok(all)
}

/// Where no program of ours counts its requests, as on a NIC.
#[test]
fn a_kernel_consumer_has_its_port_s_bytes_and_a_bound_beside_another() -> Result<()> {
    let test = "bytes of kernel consumers by ports";
    let Some(lab) = Lab::enter(test) else {
        return Ok(());
    };
    if lab::hw_counter(lab::DEVICE, "sent_bytes")?.is_none() {
        lab::skip(
            test,
            &format!("SoftRoCE of Linux {} counts no bytes", lab.release),
        );
        return Ok(());
    }
    if let Some(reason) = nvme::missing() {
        lab::skip(test, &reason);
        return Ok(());
    }
    let payload = BLOCKS * 4096;
    let mut table = Table::default();
    // Alone: each end on a device of its own.
    let _links = Links::up(1)?;
    let devices = [device(0, 0), device(0, 1)];
    let [host, serves] = devices.each_ref().map(|device| format!("v{device}"));
    let target = NvmeTarget::up_at(format!("{}%{serves}", link_local(&serves)?))?;
    let before = counted(&devices)?;
    let window = Window::open_with(&[], &uprobes::ENV)?;
    let disk = target.connect_by(&format!("{}%{host}", link_local(&serves)?))?;
    disk.copy(true, BLOCKS)?;
    disk.copy(false, BLOCKS)?;
    ends(disk)?;
    let sample = window.close()?;
    let after = counted(&devices)?;
    for (end, name) in [HOST, TARGET].into_iter().enumerate() {
        let row = sample.kernel_process(name)?;
        for (way, (key, counter)) in BYTES.into_iter().enumerate() {
            ensure!(row.source(key) == Some("port"), "{name}: {}", row.field(key));
            let moved = after[end][way] - before[end][way];
            ensure!(moved > payload, "{name}: {moved} bytes for {payload}");
            table.equal(name, counter, moved, row.total(key));
        }
    }
    drop(target);
    // Both on one: what one sends is what the other receives, and each has a part of the port's bytes.
    let target = NvmeTarget::up()?;
    let device = [lab::DEVICE, lab::DEVICE].map(str::to_owned);
    let [before, _] = counted(&device)?;
    let window = Window::open_with(&[], &uprobes::ENV)?;
    let disk = target.connect()?;
    disk.copy(true, BLOCKS)?;
    disk.copy(false, BLOCKS)?;
    ends(disk)?;
    let sample = window.close()?;
    let [after, _] = counted(&device)?;
    for name in [HOST, TARGET] {
        for (way, (key, _)) in BYTES.into_iter().enumerate() {
            let shown = sample.kernel_process(name)?.field(key);
            ensure!(
                shown["total"].is_null() && shown["rate"].is_null(),
                "{name}: {shown}"
            );
            let rate = sample.port(lab::DEVICE, 1)?.rate(key).context("no rate")?;
            let seconds = (after[way] - before[way]) as f64 / rate;
            let most = shown["at_most"]["rate"].as_f64().context("no bound")? * seconds;
            ensure!(most >= payload as f64, "{name}: {most} of {payload}: {shown}");
            ensure!(
                shown["at_least"]["total"].as_u64() <= Some(payload * 2),
                "{name}: {shown}"
            );
        }
    }
    drop(target);
    table.check(&lab, test);
    Ok(())
}

/// The address of an interface that is of its link alone.
fn link_local(netdev: &str) -> Result<String> {
    let text = output(Command::new("ip").args(["-j", "-6", "address", "show", "dev", netdev]))?;
    let list: serde_json::Value = serde_json::from_str(&text)?;
    let address = list[0]["addr_info"][0]["local"].as_str();
    Ok(address
        .with_context(|| format!("{netdev} has no address: {text}"))?
        .to_owned())
}

/// Checks what must hold for each consumer alone.
fn by_itself(table: &mut Table, sample: &Snapshot, name: &str) -> Result<()> {
    let process = sample.kernel_process(name)?;
    assert!(process.field("pid").is_null(), "{process:?}");
    let qps = sample.kernel_qps(name);
    table.equal(name, "QPs", 2, Some(qps.len() as u64));
    for counter in [
        "tx_wr",
        "tx_wr_posted",
        "tx_bytes",
        "rx_wr",
        "completions",
        "flushes",
    ] {
        let sum: Option<u64> = qps.iter().map(|qp| qp.total(counter)).sum();
        table.equal(
            name,
            &format!("{counter}, sum of QPs"),
            sum.context("unknown")?,
            process.total(counter),
        );
    }
    for qp in &qps {
        assert!(qp.is("exited") && !qp.is("since_attach"), "{qp:?}");
        assert!(qp.field("pid").is_null(), "{qp:?}");
        let posted = qp.total("tx_wr_posted").context("no tx_wr_posted")?;
        table.rule(name, "tx_wr_posted", "> 0", Some(posted), posted > 0);
        // Finished and flushed requests together equal the posted ones: none is left when a QP is destroyed.
        table.equal(name, "tx_wr, finished or flushed", posted, qp.total("tx_wr"));
        let list = qp.field("by_opcode").as_array().context("no by_opcode")?;
        let by_opcode = list.iter().filter_map(|row| row["wr"]["total"].as_u64()).sum();
        table.equal(name, "sum of opcodes", posted, Some(by_opcode));
        table.equal(name, "completion_errors", 0, qp.total("completion_errors"));
        // Every CQE is a success or a flush.
        let (all, flushes) = qp
            .total("completions")
            .zip(qp.total("flushes"))
            .context("unknown")?;
        table.rule(
            name,
            "flushes",
            &format!("<= {all}"),
            Some(flushes),
            flushes <= all,
        );
    }
    Ok(())
}

/// Checks that each end received what the other sent.
fn against_each_other(table: &mut Table, sample: &Snapshot) -> Result<()> {
    let skipped = sample.skipped();
    // The I/O queue is the busier of the two.
    let busiest = |name: &str| {
        let qps = sample.kernel_qps(name);
        qps.into_iter()
            .max_by_key(|qp| qp.total("tx_wr"))
            .context("no QP")
    };
    let (host, target_qp) = (busiest(HOST)?, busiest(TARGET)?);
    let (commands, command_bytes) = posted_as(host, &SENDS);
    let (answers, answer_bytes) = posted_as(target_qp, &SENDS);
    table.rule(
        "I/O queue",
        "commands sent",
        &format!(">= {}", 2 * BLOCKS),
        Some(commands),
        commands >= 2 * BLOCKS,
    );
    table.equal(
        "I/O queue",
        "answers sent = commands sent",
        commands,
        Some(answers),
    );
    for (what, row, wrs, bytes) in [
        ("commands", target_qp, commands, command_bytes),
        ("answers", host, answers, answer_bytes),
    ] {
        table.equal_unless_skipped(
            "I/O queue",
            &format!("{what} received"),
            wrs,
            row.total("rx_wr"),
            skipped,
        );
        let each = bytes.div_ceil(wrs.max(1)).max(4096 + 64);
        table.equal_unless_skipped(
            "I/O queue",
            &format!("{what} received, bytes"),
            bytes,
            row.total("rx_bytes"),
            skipped * each,
        );
    }
    // A disk read is an RDMA WRITE of the target; there are those of dd and those of the kernel itself.
    let (writes, written) = posted_as(target_qp, &["rdma_write"]);
    table.rule(
        "I/O queue",
        "target's RDMA WRITEs",
        &format!(">= {BLOCKS}"),
        Some(writes),
        writes >= BLOCKS,
    );
    let least = BLOCKS * 4096;
    table.rule(
        "I/O queue",
        "bytes of them",
        &format!(">= {least}"),
        Some(written),
        written >= least,
    );
    Ok(())
}
