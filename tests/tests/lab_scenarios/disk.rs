//! The scenario `nvme`: the kernel's counts of its disk equal rdmatop's counts of its QPs.

use std::{collections::BTreeSet, fs, process::Command};

use anyhow::{Context, Result, ensure};
use rdmatop_tests::{
    child::output,
    lab::{self, Lab},
    nvme,
    rdmatop::Window,
    snapshot::Row,
    table::Table,
    wait,
};

use super::{LIMIT, PROGRAMS, Run, json, leaves_nothing};

/// Returns the entries of the directories in which the kernel's NVMe host and target are set up.
pub(crate) fn nvme_things() -> BTreeSet<String> {
    let dirs = [
        "/sys/class/nvme",
        "/sys/kernel/config/nvmet/subsystems",
        "/sys/kernel/config/nvmet/ports",
        "/run/rdmatop",
    ];
    let entries = dirs.iter().flat_map(fs::read_dir).flatten().flatten();
    let entries = entries.map(|entry| entry.path().display().to_string());
    let modules = ["nvme_rdma", "nvmet_rdma", "nvmet", "nvme_fabrics"];
    let modules = modules.map(|name| format!("/sys/module/{name}"));
    entries
        .chain(
            modules
                .into_iter()
                .filter(|path| fs::exists(path).unwrap_or(true)),
        )
        .collect()
}

pub(crate) fn configfs() -> Result<()> {
    let mount = "modprobe configfs; mountpoint -q /sys/kernel/config || mount -t configfs configfs /sys/kernel/config";
    output(Command::new("sh").args(["-c", mount])).map(drop)
}

/// Returns the completed reads and writes of the path to the disk according to the block layer
/// (Documentation/block/stat.rst).
fn disk_commands() -> Result<(u64, u64)> {
    // With native multipath the path is hidden, and on Linux 6.1 only the path counts.
    let mut disks = Vec::new();
    for entry in fs::read_dir("/sys/block")?.flatten() {
        if entry.file_name().to_string_lossy().starts_with("nvme") {
            let hidden = fs::read_to_string(entry.path().join("hidden"))?;
            disks.push((hidden.trim() != "1", entry));
        }
    }
    disks.sort_by_key(|(seen, _)| *seen);
    if let Some((_, entry)) = disks.first() {
        let text = fs::read_to_string(entry.path().join("stat"))?;
        let numbers: Vec<u64> = text
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        let under_way = numbers.get(8).context("no number of commands under way")?;
        ensure!(*under_way == 0, "{under_way} commands under way");
        // Flushes would be commands too, but nothing requests one.
        ensure!(
            numbers.get(15).is_none_or(|flushes| *flushes == 0),
            "flushes: {text}"
        );
        return Ok((numbers[0], numbers[4]));
    }
    anyhow::bail!("no NVMe disk")
}

#[test]
fn each_disk_command_is_a_send_each_way_and_each_read_an_rdma_write() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("lab run: nvme") else {
        return Ok(());
    };
    if let Some(reason) = nvme::missing() {
        lab::skip("lab run: nvme", &reason);
        return Ok(());
    }
    configfs()?;
    let before = nvme_things();
    leaves_nothing(|| {
        let window = Window::open(&[])?;
        let run = Run::up("nvme")?;
        run.says("blocks", |line| line.contains("blocks written"))?;
        let check = json(&["check", "--json", "--for", "3"])?;
        ensure!(check["verdict"] == "ok", "{check:#}");
        let program = format!("{PROGRAMS}/disk");
        output(Command::new("pkill").args(["-STOP", "-x", "-f", &format!("{program} .*")]))?;
        wait::until("a disk at rest", LIMIT, || disk_commands().is_ok())?;
        let (reads, writes) = disk_commands()?;
        let seen = window.close()?;
        ensure!(disk_commands()? == (reads, writes), "the disk was not at rest");
        output(Command::new("pkill").args(["-CONT", "-x", "-f", &format!("{program} .*")]))?;
        let said = run.end(libc::SIGINT)?;
        let busiest = |name: &str| {
            let qps = seen.kernel_qps(name);
            qps.into_iter()
                .max_by_key(|qp| qp.total("tx_wr"))
                .context("no QP")
        };
        let (host, target) = (busiest(nvme::HOST)?, busiest(nvme::TARGET)?);
        let posted = |row: Row<'_>, opcodes: &[&str]| -> u64 {
            opcodes
                .iter()
                .filter_map(|opcode| row.opcode(opcode))
                .map(|(wr, _)| wr)
                .sum()
        };
        let sends = ["send", "send_inv"];
        let mut table = Table::default();
        // The first command of a queue connects it.
        table.equal(
            "I/O queue",
            "orders",
            1 + reads + writes,
            Some(posted(host, &sends)),
        );
        table.equal(
            "I/O queue",
            "answers",
            1 + reads + writes,
            Some(posted(target, &sends)),
        );
        table.equal(
            "I/O queue",
            "RDMA WRITEs",
            reads,
            Some(posted(target, &["rdma_write"])),
        );
        table.equal("all", "lost_events", 0, seen.lost());
        ensure!(
            reads > 20 && writes > 20,
            "{reads} reads, {writes} writes\n{said}"
        );
        table.check(&lab, "lab run nvme");
        Ok(())
    })?;
    ensure!(nvme_things() == before, "left: {:?}", nvme_things());
    Ok(())
}
