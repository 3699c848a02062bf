//! Devices that are not SoftRoCE, that disappear or that appear: what rdmatop says is true at that moment.

use std::{fs, process::Command};

use anyhow::{Context, Result, ensure};
use rdmatop_tests::{
    child::{Child, output},
    faults::{behind, notes_of},
    kernel,
    lab::{self, DEVICE, Lab},
    rdmatop::{self, END, Window},
    snapshot::Snapshot,
    traffic::{Traffic, id, number},
    wait,
};
use serde_json::Value;

/// Removes the device of most tests; drop makes it again.
struct Without {
    netdev: String,
}

impl Without {
    fn device() -> Result<Self> {
        let netdev = lab::netdev(DEVICE)?;
        kernel::delete_link(DEVICE)?;
        Ok(Self { netdev })
    }
}

impl Drop for Without {
    fn drop(&mut self) {
        let _ = Command::new("modprobe").arg("rdma_rxe").status();
        if !lab::devices().is_ok_and(|devices| devices.iter().any(|name| name == DEVICE)) {
            kernel::add_link(DEVICE, &self.netdev).expect("the device is made again");
        }
    }
}

#[test]
fn with_rdma_and_without_soft_roce_nobody_speaks_of_soft_roce() -> Result<()> {
    let Some(_lab) = Lab::enter("no SoftRoCE") else {
        return Ok(());
    };
    ensure!(
        lab::devices()? == [DEVICE],
        "the other devices need the module too"
    );
    let _without = Without::device()?;
    output(Command::new("rmmod").arg("rdma_rxe"))?;
    ensure!(fs::exists("/sys/module/ib_core")? && fs::exists("/sys/module/ib_uverbs")?);
    let (_, child) = behind(&["env"], &["probes", "--json"])?;
    let told: Value = serde_json::from_str(&child.out.text()).with_context(|| child.err.text())?;
    let programs = told["probes"].as_array().context("no programs")?;
    let program = |name: &str| programs.iter().find(|row| row["program"] == name);
    ensure!(program("restrack_add").is_some_and(|row| row["verdict"] != "not_applicable"));
    for name in ["query_qp", "kp_post_send", "kp_completer"] {
        let row = program(name).with_context(|| format!("no {name}"))?;
        ensure!(row["verdict"] == "not_applicable", "{row}");
    }
    let reasons = programs
        .iter()
        .filter_map(|row| row["reason"].as_str().map(str::to_owned));
    let (_, trace) = behind(&["env"], &["--trace", "--for", "0.3"])?;
    // Without any RDMA device, a SoftRoCE device is a remedy.
    let lines = notes_of(&told["notes"])
        .into_iter()
        .chain(trace.err.all())
        .filter(|line| !line.contains("No RDMA device"))
        .chain(reasons);
    for line in lines {
        let small = line.to_lowercase();
        ensure!(!small.contains("rxe") && !small.contains("softroce"), "{line}");
    }
    Ok(())
}

/// Starts `rdma link delete` of a held device: it hangs and ignores signals until the device is released.
fn start_removal() -> Result<Child> {
    let removal = Child::spawn(Command::new("rdma").args(["link", "delete", DEVICE]))?;
    wait::until("the device is no longer listed", END, || {
        output(Command::new("rdma").arg("dev")).is_ok_and(|list| !list.contains(DEVICE))
    })?;
    ensure!(lab::devices()? == [DEVICE], "the removal did not wait");
    Ok(removal)
}

#[test]
fn a_removal_that_waits_names_who_holds_the_device_and_its_counts_go_on() -> Result<()> {
    let Some(lab) = Lab::enter("a removal that waits") else {
        return Ok(());
    };
    let counts = fs::exists("/sys/kernel/btf/rdma_rxe")?;
    let netdev = lab::netdev(DEVICE)?;
    let _again = Without { netdev };
    // Dropped after the traffic, for which it waits.
    let mut removal;
    let window = Window::open(&[])?;
    let traffic = Traffic::start("steady-posts", &[])?;
    let ready = traffic.ready()?;
    let (pid, qpn) = (id(&ready, "pid")?, id(&ready, "qpn")?);
    removal = start_removal()?;
    let holder = format!("{pid} (steady-posts)");

    let (code, text) = behind(&["env"], &["--once", "--delay", "0.2"])?;
    let text = text.out.text();
    ensure!(code == Some(0), "{code:?}: {text}");
    ensure!(text.contains(&format!("{DEVICE} (removing)")), "{text}");
    let note = text.lines().find(|line| line.contains("is being removed"));
    ensure!(note.is_some_and(|note| note.contains(&holder)), "{text}");
    ensure!(!text.contains("No RDMA") && !text.contains("#0"), "{text}");

    let (code, status) = behind(&["env"], &["lab", "status"])?;
    let status = status.out.text();
    ensure!(
        code == Some(0) && status.contains("being removed") && status.contains(&holder),
        "{status}"
    );
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let (_, status) = behind(&nobody, &["lab", "status"])?;
    let status = status.out.text();
    ensure!(
        status.contains("being removed") && status.contains("sudo"),
        "{status}"
    );

    let sample = rdmatop::once(&["--delay", "0.5"])?;
    let device = device(&sample)?;
    ensure!(
        device["state"] == "removing" && device["name"] == DEVICE,
        "{device}"
    );
    if counts {
        let row = sample
            .qp(pid, qpn)
            .with_context(|| sample.value()["health"].to_string())?;
        ensure!(
            row.field("device") == DEVICE && row.total("tx_wr") > Some(0),
            "{row:?}"
        );
    }
    let done = traffic.finish()?;
    removal.succeed(END)?;
    ensure!(
        !lab::devices()?.iter().any(|name| name == DEVICE),
        "it is still there"
    );
    let sample = window.close()?;
    let row = sample.qp(pid, qpn)?;
    ensure!(row.field("device") == DEVICE, "{row:?}");
    if counts {
        let posted = number(&done, "posted")?;
        // If the kernel skipped programs, this shows whether rdmatop reported it.
        let missed = sample.skipped();
        ensure!(
            row.total("tx_wr") == Some(posted),
            "{posted} posted, {missed} runs of programs missed: {row:?}"
        );
    } else {
        lab::skip(
            "counts through a removal",
            &format!("Linux {} has no BTF of rdma_rxe", lab.release),
        );
    }
    Ok(())
}

fn device(sample: &Snapshot) -> Result<Value> {
    let devices = sample.value()["devices"].as_array().context("no devices")?;
    ensure!(devices.len() == 1, "{devices:?}");
    Ok(devices[0].clone())
}
