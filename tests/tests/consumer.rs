//! Kernel consumers: NVMe over RDMA is counted under its own name, and both ends agree.

use std::process::Command;

use anyhow::{Context, Result};
use rdmatop_tests::{
    child::output,
    lab::{self, Lab},
    nvme::{self, HOST, NvmeTarget, TARGET},
    rdmatop::Window,
    snapshot::{Row, Snapshot},
    table::Table,
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
    disk.disconnect()?;
    // The target frees its QPs in a worker after the initiator has gone.
    wait::until("the end of the consumers' QPs", PATIENCE, || {
        let left = output(Command::new("rdma").args(["resource", "show", "qp"]));
        left.is_ok_and(|text| !text.contains("type RC"))
    })?;
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
