//! Holds N RC QPs, spread over P processes, in RTS (or INIT) and does nothing with them.
//!
//! `idle-qps [--device rxe0] [--qps 100] [--processes 1] [--state rts|init|reset]
//! [--says own|write|exchanged] [--behind BYTES]`
//! With `--says` the program claims that its QPs post with the code this many bytes behind their own
//! function, or behind `write` of the C library, or (`exchanged`) that they send by the function for receives
//! and receive by the one for sends. It prints `{"ready":true,"qps":N,"pids":[..],"qpns":[..]}`
//! when all QPs exist, and ends when stdin is closed or by a signal.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::{
    args::{Args, report, wait_for_stdin_end},
    verbs::{Context, Cq, Pd, Qp, unlimit_memlock},
};
use serde_json::{Value, json};

fn main() -> Result<()> {
    let mut args = Args::from_env();
    let device: String = args.value("--device", "rxe0".into())?;
    let qps: usize = args.value("--qps", 100)?;
    let processes: usize = args.value("--processes", 1)?;
    let state: String = args.value("--state", "rts".into())?;
    let says: String = args.value("--says", String::new())?;
    let behind: usize = args.value("--behind", 0)?;
    args.finish()?;
    ensure!(
        ["rts", "init", "reset"].contains(&state.as_str()),
        "--state is rts, init or reset"
    );
    ensure!(processes > 0, "--processes is at least 1");
    if processes == 1 {
        hold(&device, qps, &state, (&says, behind))
    } else {
        spread(&device, qps, processes, &state)
    }
}

fn hold(device: &str, qps: usize, state: &str, (says, behind): (&str, usize)) -> Result<()> {
    unlimit_memlock()?;
    let context = Context::open(device).with_context(|| format!("open {device}"))?;
    match says {
        "" => {}
        "exchanged" => context.exchange_posts(),
        _ => context.say_posts(says == "own", behind),
    }
    let pd = Pd::new(&context)?;
    let cq = Cq::new(&context, 16)?;
    let mut held = Vec::with_capacity(qps);
    for number in 0..qps {
        let qp = Qp::new(&pd, &cq, 1).with_context(|| format!("create QP {} of {qps}", number + 1))?;
        if state != "reset" {
            qp.to_init()?;
        }
        if state == "rts" {
            // Connected to itself, because an idle QP needs no peer.
            qp.to_rtr(qp.qpn())?;
            qp.to_rts(7)?;
        }
        held.push(qp);
    }
    let qpns: Vec<u32> = held.iter().map(Qp::qpn).collect();
    report(&json!({"ready": true, "qps": qps, "pids": [std::process::id()], "qpns": qpns}))?;
    wait_for_stdin_end()
}

fn spread(device: &str, qps: usize, processes: usize, state: &str) -> Result<()> {
    let program = std::env::current_exe()?;
    let mut children: Vec<Child> = Vec::new();
    for index in 0..processes {
        let share = qps / processes + usize::from(index < qps % processes);
        children.push(
            Command::new(&program)
                .args(["--device", device, "--state", state, "--qps", &share.to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?,
        );
    }
    let (mut pids, mut qpns) = (Vec::new(), Vec::<Value>::new());
    for child in &mut children {
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("no stdout")?).read_line(&mut line)?;
        let ready: Value = serde_json::from_str(&line).context("a child did not get ready")?;
        pids.push(child.id());
        qpns.extend(ready["qpns"].as_array().into_iter().flatten().cloned());
    }
    report(&json!({"ready": true, "qps": qps, "pids": pids, "qpns": qpns}))?;
    wait_for_stdin_end()?;
    // The children end with their stdin. If a signal ends this process, the kernel closes those pipes too.
    for mut child in children {
        drop(child.stdin.take());
        child.wait()?;
    }
    Ok(())
}
