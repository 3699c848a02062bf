//! `rdmatop doctor`: each real fault changes one line and no other.

use std::{fs, process::Command};

use anyhow::{Context, Result, ensure};
use rdmatop_tests::{
    child::{Child, output},
    lab::Lab,
    rdmatop::{self, END},
    rxe::Rxe,
    traffic::{Traffic, id},
    wait,
};
use serde_json::Value;

const DEVICE: &str = "sick0";
const NETDEV: &str = "extra9";

/// A run of `rdmatop doctor --json`.
#[derive(Debug)]
struct Run {
    code: Option<i32>,
    value: Value,
}

/// The machine-readable part of one line: status, check, text.
type Line = (String, String, String);

impl Run {
    fn of(args: &[&str]) -> Result<Self> {
        let mut child = Child::spawn(rdmatop::command(&["doctor", "--json"])?.args(args))?;
        let code = child.wait(END)?.code();
        let value = serde_json::from_str(&child.out.text()).with_context(|| child.err.text())?;
        Ok(Self { code, value })
    }

    fn lines(&self) -> Vec<Line> {
        let text = |line: &Value, key: &str| line[key].as_str().unwrap_or_default().to_owned();
        self.value["lines"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|line| (text(line, "status"), text(line, "id"), text(line, "text")))
            .collect()
    }

    /// Returns the lines that `before` lacks. Lines that only `before` has must belong to the same checks.
    fn since(&self, before: &Self) -> Result<Vec<Line>> {
        let (old, now) = (before.lines(), self.lines());
        let new: Vec<Line> = now.iter().filter(|line| !old.contains(line)).cloned().collect();
        for gone in old.iter().filter(|line| !now.contains(line)) {
            ensure!(
                new.iter().any(|line| line.1 == gone.1),
                "{gone:?} is gone; new: {new:?}"
            );
        }
        Ok(new)
    }
}

fn line(status: &str, id: &str, text: impl Into<String>) -> Line {
    (status.to_owned(), id.to_owned(), text.into())
}

fn ip(args: &str) -> Result<String> {
    output(Command::new("ip").args(args.split(' ')))
}

/// A verbs file that a program inherited keeps alive the QPs of the process that opened it: that program is
/// named, but no process that opened the same device itself.
#[test]
fn the_processes_that_share_a_verbs_file_are_named() -> Result<()> {
    let Some(_lab) = Lab::enter("a shared verbs file") else {
        return Ok(());
    };
    let other = Traffic::start("shared-qp", &[])?;
    let alone = id(&other.ready()?, "pid")?;
    let shared = Traffic::start("shared-qp", &["--sharer"])?;
    let ready = shared.ready()?;
    let (pid, sharer) = (id(&ready, "pid")?, id(&ready, "sharer")?);
    let of = |pid: u32| -> Result<Vec<Line>> {
        let lines = Run::of(&["--pid", &pid.to_string()])?.lines();
        Ok(lines.into_iter().filter(|line| line.1 == "job.sharers").collect())
    };
    let named = |a: u32, comm: &str, b: u32, other: &str| {
        let text = format!(
            "PID {a} ({comm}) shares verbs files with PID {b} ({other}): its queue pairs last until all have closed them"
        );
        vec![line("pass", "job.sharers", text)]
    };
    let [owner, child] = [of(pid)?, of(sharer)?];
    ensure!(owner == named(pid, "shared-qp", sharer, "sleep"), "{owner:?}");
    ensure!(child == named(sharer, "sleep", pid, "shared-qp"), "{child:?}");
    let alone = of(alone)?;
    ensure!(
        alone.len() == 1 && alone[0].2.contains("shares no verbs file"),
        "{alone:?}"
    );
    shared.finish()?;
    other.finish().map(drop)
}

/// Waits until the report is as before: the kernel fills the GID table from a work queue.
fn healed(before: &Run) -> Result<()> {
    wait::until("the report is as it was", END, || {
        Run::of(&[]).is_ok_and(|now| now.lines() == before.lines())
    })
}

/// Switches the interface off, of an unused port and of a port with a QP.
fn switched_off(healthy: &Run) -> Result<()> {
    ip(&format!("link set {NETDEV} down"))?;
    let run = Run::of(&[])?;
    let spare = format!(
        "1 of 2 up: Ethernet (SoftRoCE has no speed of its own); {DEVICE} is down and taken for a spare: nothing uses it"
    );
    let wanted = line("pass", "port.state", spare);
    ensure!(run.since(healthy)? == [wanted], "{:?}", run.since(healthy)?);
    ensure!(run.code == healthy.code, "{run:?}");
    ip(&format!("link set {NETDEV} up"))?;
    healed(healthy)?;

    let traffic = Traffic::start("idle-qps", &["--device", DEVICE, "--qps", "1"])?;
    traffic.ready()?;
    let held = Run::of(&[])?;
    ip(&format!("link set {NETDEV} down"))?;
    let run = Run::of(&[])?;
    let wanted = line(
        "fail",
        "port.state",
        format!("{DEVICE} is down: its interface {NETDEV} is switched off"),
    );
    ensure!(run.since(&held)? == [wanted], "{:?}", run.since(&held)?);
    ensure!(run.code == Some(2), "{run:?}");
    let remedy = run.value["lines"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|line| line["id"] == "port.state")
        .and_then(|line| line["remedy"].as_str())
        .context("a remedy")?
        .to_owned();
    // The remedy is a command; running it must heal the fault.
    output(Command::new("sh").args(["-c", remedy.trim_start_matches("sudo ")]))?;
    healed(&held)?;
    traffic.finish()?;
    healed(healthy)
}

#[test]
fn what_is_broken_is_one_line_and_no_other_changes() -> Result<()> {
    let Some(_lab) = Lab::enter("doctor") else {
        return Ok(());
    };
    let without = Run::of(&[])?;
    let device = Rxe::up(DEVICE, 9)?;
    let healthy = Run::of(&[])?;
    // The lab is healthy, but what a kernel lacks for rdmatop itself may be a warning.
    for (status, id, text) in healthy.lines() {
        ensure!(
            status == "pass" || id.starts_with("rdmatop."),
            "{status} {id}: {text}"
        );
    }
    let expected = healthy.lines().iter().any(|line| line.0 == "warn");
    ensure!(healthy.code == Some(i32::from(expected)), "{healthy:?}");

    switched_off(&healthy)?;

    // A smaller MTU of its interface.
    ip(&format!("link set {NETDEV} mtu 1000"))?;
    let run = Run::of(&[])?;
    let wanted = line(
        "warn",
        "port.mtu",
        format!("packets of {DEVICE} carry 512 bytes: {NETDEV} has MTU 1000"),
    );
    ensure!(run.since(&healthy)? == [wanted], "{:?}", run.since(&healthy)?);
    ip(&format!("link set {NETDEV} mtu 1500"))?;
    healed(&healthy)?;

    // The device is removed while a process holds it.
    let traffic = Traffic::start("idle-qps", &["--device", DEVICE, "--qps", "1"])?;
    let ready = traffic.ready()?;
    let pid = ready["pids"][0].as_u64().context("a PID")?;
    let held = Run::of(&[])?;
    let mut removal = Child::spawn(Command::new("rdma").args(["link", "delete", DEVICE]))?;
    wait::until("the device is no longer listed", END, || {
        output(Command::new("rdma").arg("dev")).is_ok_and(|list| !list.contains(DEVICE))
    })?;
    let run = Run::of(&[])?;
    let wanted = format!("{DEVICE} is being removed, and the removal waits: held by {pid} (idle-qps)");
    let new = run.since(&held)?;
    ensure!(new.contains(&line("fail", "device.removal", wanted)), "{new:?}");
    ensure!(
        new.iter()
            .all(|line| line.1 == "device.removal" || (line.0 == "pass" && line.1 == "limit.devices")),
        "{new:?}"
    );
    ensure!(run.code == Some(2), "{run:?}");
    traffic.finish()?;
    removal.wait(END)?;
    drop(device);
    healed(&without)
}

/// Starts a process of another user with these limits and settings.
fn process(memlock_kib: u32, settings: &[(&str, &str)]) -> Result<Child> {
    let script =
        format!("ulimit -l {memlock_kib}; exec setpriv --reuid=65534 --regid=65534 --clear-groups sleep 600");
    let mut command = Command::new("sh");
    command
        .args(["-c", &script])
        .env_clear()
        .env("PATH", "/usr/bin:/bin");
    let child = Child::spawn(command.envs(settings.iter().copied()))?;
    let comm = format!("/proc/{}/comm", child.pid());
    wait::until("the process stands", END, || {
        fs::read_to_string(&comm).is_ok_and(|comm| comm.trim() == "sleep")
    })?;
    Ok(child)
}

#[test]
fn a_process_is_judged_by_its_own_limits_and_settings() -> Result<()> {
    let Some(_lab) = Lab::enter("doctor --pid") else {
        return Ok(());
    };
    let enough = 4 << 20;
    let of = |child: &Child| Run::of(&["--pid", &child.pid().to_string()]);
    let words = |run: &Run, child: &Child| -> Vec<Line> {
        // PIDs differ from process to process.
        let pid = format!("PID {}", child.pid());
        let same = |(status, id, text): Line| (status, id, text.replace(&pid, "PID"));
        run.lines().into_iter().map(same).collect()
    };
    let well = process(enough, &[])?;
    let healthy = words(&of(&well)?, &well);
    ensure!(
        healthy.contains(&line(
            "pass",
            "limit.memlock",
            "PID (sleep) may lock enough memory"
        )),
        "{healthy:?}"
    );
    for (memlock, settings, wanted) in [
        (
            64,
            vec![],
            line("fail", "limit.memlock", "PID (sleep) may lock 64 KiB of memory"),
        ),
        (
            8192,
            vec![],
            line("warn", "limit.memlock", "PID (sleep) may lock 8 MiB of memory"),
        ),
        (
            enough,
            vec![("NCCL_IB_HCA", "mlx5_9")],
            line(
                "fail",
                "job.devices",
                "PID (sleep): NCCL_IB_HCA=mlx5_9 takes no RDMA device that the job finds",
            ),
        ),
        (
            enough,
            vec![("NCCL_IB_DISABLE", "1")],
            line(
                "fail",
                "job.rdma",
                "PID (sleep): NCCL_IB_DISABLE=1 turns RDMA off",
            ),
        ),
        (
            enough,
            vec![("NCCL_SOCKET_IFNAME", "ib0")],
            line(
                "fail",
                "job.interface",
                "PID (sleep): NCCL_SOCKET_IFNAME=ib0 names no network interface that it has",
            ),
        ),
        (
            enough,
            vec![("NCCL_IB_HCA", "=rxe0"), ("NCCL_IB_GID_INDEX", "0")],
            line(
                "warn",
                "job.gid",
                "PID (sleep): NCCL_IB_GID_INDEX=0 is a link-local address (GID) of rxe0",
            ),
        ),
    ] {
        let child = process(memlock, &settings)?;
        let run = of(&child)?;
        let lines = words(&run, &child);
        let new: Vec<_> = lines
            .iter()
            .filter(|line| !(healthy.contains(line) || line.0 == "pass" && line.1 == "job.devices"))
            .collect();
        ensure!(new == [&wanted], "{settings:?}: {new:?}");
        let gone = healthy.iter().filter(|line| !lines.contains(line));
        ensure!(
            gone.clone().all(|line| line.1 == wanted.1),
            "{:?}",
            gone.collect::<Vec<_>>()
        );
        ensure!(
            run.code == Some(if wanted.0 == "fail" { 2 } else { 1 }),
            "{run:?}"
        );
    }
    Ok(())
}

#[test]
fn a_container_that_was_given_no_device_lacks_its_file() -> Result<()> {
    let Some(_lab) = Lab::enter("doctor of a container") else {
        return Ok(());
    };
    // A container's /dev is a tmpfs.
    let script = "mount -t tmpfs none /dev/infiniband && exec sleep 600";
    let child = Child::spawn(Command::new("unshare").args(["-m", "sh", "-c", script]))?;
    let comm = format!("/proc/{}/comm", child.pid());
    wait::until("the process stands", END, || {
        fs::read_to_string(&comm).is_ok_and(|comm| comm.trim() == "sleep")
    })?;
    let run = Run::of(&["--pid", &child.pid().to_string()])?;
    let found = run.lines().into_iter().find(|line| line.0 == "fail");
    ensure!(
        found
            .as_ref()
            .is_some_and(|line| line.1 == "limit.devices" && line.2.contains("for rxe0 (uverbs0)")),
        "{run:?}"
    );
    Ok(())
}

#[test]
fn what_a_user_may_not_see_is_a_check_that_was_not_made() -> Result<()> {
    let Some(_lab) = Lab::enter("doctor without root") else {
        return Ok(());
    };
    let traffic = Traffic::start("idle-qps", &["--qps", "1"])?;
    let pid = id(&serde_json::json!({"pid": traffic.ready()?["pids"][0]}), "pid")?;
    let run = Run::of(&[])?;
    ensure!(
        run.lines()
            .iter()
            .any(|line| line.1 == "limit.memlock" && line.2.contains(&pid.to_string())),
        "{run:?}"
    );
    let program = rdmatop::program()?;
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(program)
        .args(["doctor", "--json"]);
    let mut child = Child::spawn(&mut command)?;
    let code = child.wait(END)?.code();
    let run = Run {
        code,
        value: serde_json::from_str(&child.out.text())?,
    };
    ensure!(run.code == Some(3), "{run:?}");
    let not_passed: Vec<String> = run
        .lines()
        .into_iter()
        .filter(|line| line.0 != "pass")
        .map(|line| format!("{} {}", line.0, line.1))
        .collect();
    ensure!(
        not_passed == ["unknown job.hidden", "skip rdmatop.ebpf"],
        "{not_passed:?}"
    );
    traffic.finish().map(drop)
}
