//! Ends, losses and changes while rdmatop runs: nothing stays attached, nothing blocks, gaps are shown.

use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rdmatop_tests::{
    child::{Child, output},
    kernel::{self, leaves_nothing},
    lab::{self, DEVICE, Lab},
    perftest::Perftest,
    rdmatop::{self, END, Trace},
    snapshot::Snapshot,
    traffic::{self, Traffic, id, number},
    wait::{self, PATIENCE},
};
use serde_json::Value;

#[test]
fn while_it_traces_there_are_programs_in_the_kernel() -> Result<()> {
    let Some(_lab) = Lab::enter("attached") else {
        return Ok(());
    };
    // Without this check the tests below would pass for a tracer that attaches nothing.
    let before = kernel::bpf_programs()?.len();
    let trace = Trace::start(&[])?;
    let during = kernel::bpf_programs()?.len();
    ensure!(
        during > before,
        "{before} programs before, {during} while tracing"
    );
    trace.stop().map(drop)
}

#[test]
fn ctrl_c_ends_the_trace_cleanly() -> Result<()> {
    let Some(_lab) = Lab::enter("ctrl-c") else {
        return Ok(());
    };
    leaves_nothing(|| Trace::start(&[])?.stop().map(drop))
}

#[test]
fn sigkill_leaves_nothing_attached() -> Result<()> {
    let Some(_lab) = Lab::enter("SIGKILL") else {
        return Ok(());
    };
    leaves_nothing(|| {
        let mut trace = Trace::start(&[])?;
        trace.child.signal(libc::SIGKILL)?;
        trace.child.wait(END).map(drop)
    })?;
    ensure!(
        fs::read_dir("/sys/fs/bpf")?.next().is_none(),
        "something is pinned in /sys/fs/bpf"
    );
    // The module is no longer held either.
    kernel::reload_rxe()
}

#[test]
fn a_closed_pipe_ends_the_trace_without_a_fuss() -> Result<()> {
    let Some(_lab) = Lab::enter("closed pipe") else {
        return Ok(());
    };
    leaves_nothing(|| {
        let program = rdmatop::program()?;
        let script = format!("{} --trace --json | head -n 1", program.display());
        let mut pipe = Child::spawn(Command::new("bash").args(["-o", "pipefail", "-c", &script]))?;
        rdmatop::wait_counting(&pipe)?;
        traffic::run("qp-churn", &["--count", "20"])?;
        let status = pipe.wait(END)?;
        let err = pipe.err.text();
        ensure!(!err.contains("panicked"), "{err}");
        // 141 is death by SIGPIPE, as shells report it for other programs before `head`.
        ensure!(status.success() || status.code() == Some(141), "{status}: {err}");
        ensure!(pipe.out.all().len() == 1, "{}", pipe.out.text());
        Ok(())
    })
}

#[test]
fn the_module_can_be_reloaded_under_a_trace_that_shows_any_gap() -> Result<()> {
    let Some(_lab) = Lab::enter("module reload") else {
        return Ok(());
    };
    let trace = Trace::start(&["--attach", "kprobe"])?;
    traffic::run("qp-churn", &["--count", "5"])?;
    let start = Instant::now();
    kernel::reload_rxe().context("rdmatop blocks the module")?;
    ensure!(
        start.elapsed() < PATIENCE,
        "the reload took {:?}",
        start.elapsed()
    );
    // ib_core stays loaded, so the probes of the control plane survive.
    let after = traffic::run("qp-churn", &["--count", "5"])?;
    let pid = id(&after, "pid")?;
    let traced = trace.stop()?;
    let seen = traced.events.pid(pid).kind("qp_create").len() as u64;
    ensure!(
        seen + traced.events.lost() >= 5,
        "{seen} of 5 QPs after the reload, {} reported lost",
        traced.events.lost()
    );
    Ok(())
}

#[test]
fn the_device_can_be_removed_and_added_under_the_trace() -> Result<()> {
    let Some(_lab) = Lab::enter("device re-added") else {
        return Ok(());
    };
    let netdev = lab::netdev(DEVICE)?;
    let trace = Trace::start(&[])?;
    kernel::delete_link(DEVICE)?;
    kernel::add_link(DEVICE, &netdev)?;
    let done = traffic::run("qp-churn", &["--count", "5"])?;
    let events = trace.stop()?.events.pid(id(&done, "pid")?);
    assert_eq!(events.kind("qp_create").len(), 5);
    assert!(events.all().iter().all(|event| event["device"] == DEVICE));
    Ok(())
}

#[test]
fn without_a_device_once_says_so_in_one_line_and_exits_3() -> Result<()> {
    let Some(_lab) = Lab::enter("no device") else {
        return Ok(());
    };
    let devices: Result<Vec<_>> = lab::devices()?
        .into_iter()
        .map(|name| Ok((lab::netdev(&name)?, name)))
        .collect();
    let devices = devices?;
    for (_, name) in &devices {
        kernel::delete_link(name)?;
    }
    let ended = (|| {
        let mut once = Child::spawn(&mut rdmatop::command(&["--once", "--delay", "1"])?)?;
        let status = once.wait(END)?;
        Ok::<_, anyhow::Error>((status, once.err.all()))
    })();
    for (netdev, name) in &devices {
        kernel::add_link(name, netdev)?;
    }
    let (status, err) = ended?;
    assert_eq!(status.code(), Some(3), "{err:?}");
    let said: Vec<_> = err
        .iter()
        .filter(|line| line.to_lowercase().contains("no rdma"))
        .collect();
    assert_eq!(said.len(), 1, "{err:?}");
    Ok(())
}

#[test]
fn an_ordinary_user_sees_qps_with_their_owners() -> Result<()> {
    let Some(_lab) = Lab::enter("unprivileged") else {
        return Ok(());
    };
    let idle = Traffic::start("idle-qps", &["--qps", "2"])?;
    let ready = idle.ready()?;
    let pid = idle.child.pid();
    // A copy is run, because the binary may lie below a directory that only root can enter.
    let copy = "/tmp/rdmatop-unprivileged";
    fs::copy(rdmatop::program()?, copy)?;
    fs::set_permissions(copy, fs::Permissions::from_mode(0o755))?;
    let mut command = Command::new(copy);
    command
        .args(["--once", "--json", "--delay", "1"])
        .current_dir("/")
        .uid(65_534)
        .gid(65_534);
    let mut once = Child::spawn(&mut command)?;
    once.succeed(END)?;
    let sample = Snapshot::parse(&once.out.text())?;
    for qpn in ready["qpns"].as_array().context("no qpns")? {
        let qpn = u32::try_from(qpn.as_u64().context("no number")?)?;
        let row = sample.qp(pid, qpn)?;
        assert_eq!(row.field("comm"), "idle-qps");
        assert_eq!(row.field("state"), "RTS");
        // Without eBPF, what cannot be counted is unknown, not zero.
        assert!(row.field("tx_wr").is_null(), "{row:?}");
    }
    let said = format!("{}{}", once.err.text(), sample.value()["health"]["notes"]).to_lowercase();
    assert!(
        said.contains("ebpf"),
        "it does not say that eBPF is missing: {said}"
    );
    Ok(())
}

#[test]
fn the_terminal_is_as_before_after_sigterm() -> Result<()> {
    let Some(_lab) = Lab::enter("terminal") else {
        return Ok(());
    };
    let tmux = |args: &[&str]| output(Command::new("tmux").args(["-L", "rdmatop-tests"]).args(args));
    tmux(&[
        "new-session",
        "-d",
        "-s",
        "t",
        "-x",
        "120",
        "-y",
        "40",
        "bash --norc",
    ])?;
    let ended = (|| -> Result<()> {
        let type_line = |line: &str| tmux(&["send-keys", "-t", "t", line, "Enter"]);
        let screen = || tmux(&["capture-pane", "-p", "-t", "t"]);
        type_line("PS1='prompt> '; clear; stty -a >/tmp/stty-before; echo BEFORE-MARK")?;
        wait::until("the shell", END, || {
            screen().is_ok_and(|text| text.contains("BEFORE-MARK"))
        })?;
        type_line(&rdmatop::program()?.display().to_string())?;
        wait::until("the live view", END, || {
            screen().is_ok_and(|text| text.contains(DEVICE))
        })?;
        let shell = tmux(&["display-message", "-p", "-t", "t", "#{pane_pid}"])?;
        let view = output(Command::new("pgrep").args(["-P", shell.trim()]))?;
        output(Command::new("kill").args(["-TERM", view.trim()]))?;
        wait::until("the shell's prompt", END, || {
            screen().is_ok_and(|text| text.trim_end().ends_with("prompt>"))
        })?;
        // It is moved into place, so that it is complete once it exists.
        type_line("stty -a >/tmp/stty-now; mv /tmp/stty-now /tmp/stty-after; echo AFTER-MARK")?;
        // Cursor, main screen and echo are restored: the old screen and the typed line are visible.
        wait::until("the typed line", END, || {
            screen().is_ok_and(|text| text.contains("echo AFTER-MARK") && text.contains("BEFORE-MARK"))
        })?;
        wait::until("stty's output", END, || {
            fs::exists("/tmp/stty-after").unwrap_or(false)
        })?;
        assert_eq!(
            fs::read_to_string("/tmp/stty-before")?,
            fs::read_to_string("/tmp/stty-after")?
        );
        let cursor = tmux(&[
            "display-message",
            "-p",
            "-t",
            "t",
            "#{cursor_flag} #{alternate_on} #{mouse_any_flag}",
        ])?;
        assert_eq!(
            cursor.trim(),
            "1 0 0",
            "cursor shown, main screen, no mouse reports"
        );
        Ok(())
    })();
    let _ = tmux(&["kill-server"]);
    ended
}

#[test]
fn two_traces_at_once_see_the_same() -> Result<()> {
    let Some(_lab) = Lab::enter("two traces") else {
        return Ok(());
    };
    let (first, second) = (Trace::start(&[])?, Trace::start(&[])?);
    let accounts = Perftest::new("ib_send_bw").iterations(100).run()?;
    let lives = |trace: Trace| -> Result<_> { Ok(trace.stop()?.events.pid(accounts.client.pid).life()) };
    let (first, second) = (lives(first)?, lives(second)?);
    assert_eq!(first, second);
    assert_eq!(first.len(), 5);
    Ok(())
}

#[test]
fn probes_names_every_program_with_a_verdict() -> Result<()> {
    let Some(_lab) = Lab::enter("probes") else {
        return Ok(());
    };
    let probes = rdmatop::probes(&[])?;
    let list = probes
        .as_array()
        .or_else(|| probes["probes"].as_array())
        .context("no list of probes")?;
    ensure!(!list.is_empty(), "an empty list");
    for probe in list {
        match probe["verdict"].as_str() {
            Some("ok") => {}
            // A program that does not work fully must give a reason.
            Some("partial" | "not_applicable" | "unsupported") => {
                ensure!(
                    probe["reason"].as_str().is_some_and(|reason| !reason.is_empty()),
                    "{probe}"
                );
            }
            _ => bail!("{probe}"),
        }
    }
    Ok(())
}

/// What a program does depends on what is asked for, and so do the frames that the kernel adds up: with work
/// requests and probes together one was too large for Linux 6.1 alone.
#[test]
fn no_program_is_refused_by_the_kernel_whatever_is_asked_for() -> Result<()> {
    let Some(_lab) = Lab::enter("programs in all modes") else {
        return Ok(());
    };
    let log = std::env::temp_dir().join("rdmatop-all-modes.log");
    let log_to = log.display().to_string();
    for mode in [
        &["--verb-times"][..],
        &["--event", "wr", "--uprobes", "--verb-times"],
        &["--attach", "fentry", "--verb-times"],
    ] {
        drop(fs::remove_file(&log));
        Trace::start_with(mode, &[("RDMATOP_LOG", &log_to)])?.stop()?;
        let said = fs::read_to_string(&log)?;
        let verdicts: Vec<_> = said.lines().filter(|line| line.contains(" verdict=")).collect();
        ensure!(verdicts.len() > 5, "{mode:?}: {said}");
        let refused: Vec<_> = verdicts.iter().filter(|line| line.contains("Broken")).collect();
        ensure!(refused.is_empty(), "{mode:?}: {refused:#?}");
    }
    fs::remove_file(&log).map_err(Into::into)
}

#[test]
fn calls_whose_returns_were_missed_give_their_places_back() -> Result<()> {
    let Some(_lab) = Lab::enter("missed returns") else {
        return Ok(());
    };
    // A dummy interface asks nobody, so that nothing would wait for an answer.
    let netdev = lab::netdev(DEVICE)?;
    output(Command::new("ip").args(["link", "set", "dev", &netdev, "arp", "on"]))?;
    let trace = Trace::start(&["--attach", "kprobe"])?;
    let made = traffic::run("missed-returns", &[])?;
    // No more threads at a time than a kretprobe has instances, which would miss returns of theirs too.
    let churn = || -> Result<Vec<Value>> {
        let once = |_| traffic::run("qp-churn", &["--count", "8", "--threads", "4"]);
        (0..8).map(once).collect()
    };
    let before = churn()?;
    // A place is free for others when its call is a minute old.
    thread::sleep(Duration::from_secs(61));
    let after = churn()?;
    let traced = trace.stop()?;
    let seen = |all: &[Value]| -> Result<(u64, u64)> {
        let (mut seen, mut done) = (0, 0);
        for of in all {
            seen += traced.events.pid(id(of, "pid")?).kind("qp_modify").len() as u64;
            done += number(of, "modified")?;
        }
        Ok((seen, done))
    };
    let (missed, all) = (
        traced.events.pid(id(&made, "pid")?).kind("qp_modify").len(),
        number(&made, "calls")?,
    );
    let ((few, many), (again, done)) = (seen(&before)?, seen(&after)?);
    let told = format!("{missed} of {all}, then {few} of {many}, at last {again} of {done}");
    println!("{told}");
    ensure!(few < many, "the places were not full: {told}");
    ensure!(again == done, "{told}");
    Ok(())
}

#[test]
fn lab_up_makes_devices_and_lab_down_removes_just_those() -> Result<()> {
    let Some(_lab) = Lab::enter("lab up and down") else {
        return Ok(());
    };
    let say = |args: &[&str]| -> Result<String> { output(&mut rdmatop::command(args)?) };
    let before = lab::devices()?;
    // rxe0 belongs to the lab: up leaves it alone, says so, and makes the second device.
    let up = say(&["lab", "up", "--devices", "2"])?;
    let made: Vec<_> = lab::devices()?
        .into_iter()
        .filter(|name| !before.contains(name))
        .collect();
    ensure!(made.len() == 1, "made {made:?}: {up}");
    let status = say(&["lab", "status"])?;
    ensure!(
        made.iter()
            .chain(&before)
            .all(|name| status.contains(name.as_str())),
        "{status}"
    );
    say(&["lab", "up", "--devices", "2"])?;
    ensure!(lab::devices()?.len() == before.len() + 1, "a second up made more");
    say(&["lab", "down"])?;
    assert_eq!(lab::devices()?, before, "down removed more or less than up made");
    say(&["lab", "down"])?;
    Ok(())
}
