//! Probes that are attached and detached while a process posts, and a driver that is unloaded in between. The
//! guest has one CPU: the traffic runs through the code that is then patched, and QEMU's translator may go on
//! with the old code on another CPU.

use std::{process::Command, thread, time::Duration};

use anyhow::{Context as _, Result};
use rdmatop_tests::{
    case::two_sided,
    child::output,
    kernel,
    lab::Lab,
    perftest::Perftest,
    rdmatop::{END, Window},
    snapshot::Row,
    table::Table,
    traffic::{Traffic, id, number},
    wait,
};

/// Longer than one session takes to take over from another, also on a slow machine.
const TAKEOVER: Duration = Duration::from_secs(3);

#[test]
fn traffic_that_runs_at_attach_is_counted_from_there_without_a_gap() -> Result<()> {
    const SIZE: u64 = 1024;
    let Some(lab) = Lab::enter_data_path("running at attach") else {
        return Ok(());
    };
    let posts = Traffic::start("steady-posts", &["--size", &SIZE.to_string()])?;
    posts.ready()?;
    let window = Window::open(&[])?;
    thread::sleep(Duration::from_millis(500));
    let done = posts.finish()?;
    let sample = window.close()?;
    let qp = sample.qp(id(&done, "pid")?, id(&done, "qpn")?)?;
    let all = number(&done, "posted")?;
    let mut table = Table::default();
    let posted = qp.total("tx_wr_posted").context("no tx_wr_posted")?;
    let fits = (1..all).contains(&posted);
    table.rule("sender", "tx_wr_posted", &format!("1..{all}"), Some(posted), fits);
    // Requests that were on the queue at attach count as posted, and everything posted has finished.
    table.equal("sender", "tx_wr", posted, qp.total("tx_wr"));
    table.equal("sender", "tx_bytes", posted * SIZE, qp.total("tx_bytes"));
    let (wr, bytes) = qp.opcode("rdma_write").unzip();
    table.equal("sender", "rdma_write wr", posted, wr);
    table.equal("sender", "rdma_write bytes", posted * SIZE, bytes);
    assert!(qp.is("since_attach"), "{qp:?}");
    table.check(&lab, "Running when rdmatop attaches");
    Ok(())
}

#[test]
fn work_requests_are_counted_before_and_after_the_driver_was_reloaded() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("driver reloaded") else {
        return Ok(());
    };
    let others = kernel::bpf_programs()?;
    let window = Window::open(&[])?;
    let cases = [
        two_sided("before", Perftest::new("ib_send_bw"), 500, 4096),
        two_sided("after", Perftest::new("ib_send_bw"), 700, 2048),
    ];
    let first = cases[0].pair.run()?;
    let before = kernel::bpf_programs()?;
    let before: Vec<u32> = before.into_iter().filter(|id| !others.contains(id)).collect();
    kernel::reload_rxe()?;
    // A probe in an unloaded module never runs again: another session takes over, perhaps after one that
    // found the module gone and has fewer programs. During a takeover the programs of both exist, at some
    // moment as many as before; the next look then sees other programs.
    let mut last = Vec::new();
    wait::until(
        "as many programs as before, all of them new, for a while",
        END,
        || {
            thread::sleep(TAKEOVER);
            let now = kernel::bpf_programs().unwrap_or_default();
            let ours: Vec<u32> = now.into_iter().filter(|id| !others.contains(id)).collect();
            let anew = ours.len() == before.len() && !ours.iter().any(|id| before.contains(id));
            let stays = ours == last;
            last = ours;
            anew && stays
        },
    )?;
    let second = cases[1].pair.run()?;
    let sample = window.close()?;
    let mut table = Table::default();
    for (case, accounts) in cases.iter().zip([&first, &second]) {
        case.compare(&mut table, &sample, accounts, sample.skipped())?;
    }
    table.check(&lab, "The driver reloaded in between");
    Ok(())
}

#[test]
fn counts_go_on_when_programs_are_attached_anew() -> Result<()> {
    const SIZE: u64 = 1024;
    const PAUSE: Duration = Duration::from_millis(700);
    let Some(lab) = Lab::enter_data_path("attached anew") else {
        return Ok(());
    };
    output(Command::new("modprobe").arg("rdma_ucm"))?;
    let others = kernel::bpf_programs()?;
    let window = Window::open(&[])?;
    let posts = Traffic::start("steady-posts", &["--size", &SIZE.to_string()])?;
    posts.ready()?;
    thread::sleep(PAUSE);
    for change in ["rmmod", "modprobe"] {
        // Nothing is posted during a takeover, because it would not be counted.
        posts.child.signal(libc::SIGSTOP)?;
        thread::sleep(PAUSE);
        let before = kernel::bpf_programs()?;
        let before: Vec<u32> = before.into_iter().filter(|id| !others.contains(id)).collect();
        output(Command::new(change).arg("rdma_ucm"))?;
        wait::until("the end of the programs before", END, || {
            kernel::bpf_programs().is_ok_and(|now| !before.iter().any(|id| now.contains(id)))
        })?;
        posts.child.signal(libc::SIGCONT)?;
        thread::sleep(PAUSE);
    }
    let done = posts.finish()?;
    let sample = window.close()?;
    let (pid, posted) = (id(&done, "pid")?, number(&done, "posted")?);
    let qp = sample.qp(pid, id(&done, "qpn")?)?;
    let mut table = Table::default();
    for counter in ["tx_wr_posted", "tx_wr"] {
        table.equal("sender", counter, posted, qp.total(counter));
    }
    // These counts stay wrong if the kernel skips a program.
    let skipped = sample.skipped();
    let completions = qp.total("completions");
    table.equal_unless_skipped("sender", "completions", posted, completions, skipped);
    table.equal("sender", "tx_bytes", posted * SIZE, qp.total("tx_bytes"));
    let process = sample.process(pid)?;
    table.equal("process", "tx_wr", posted, process.total("tx_wr"));
    let calls = |verb: &str| {
        let of = |row: &Row<'_>| row.field("verb") == verb && row.field("pid") == pid;
        sample.verbs().find(of).and_then(|row| row.total("calls"))
    };
    let rung = calls("post_send");
    table.equal_unless_skipped("process", "post_send calls", posted, rung, skipped);
    // The program created these in the first session and never again.
    table.equal("process", "create_qp calls", 2, calls("create_qp"));
    table.check(&lab, "Attached anew twice");
    Ok(())
}
