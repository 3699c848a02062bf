//! Posts work requests with the `ibv_wr_*` calls.
//!
//! `extended-posts [--device rxe0] [--rounds 100] [--then-exec]` connects two QPs of this process and prints
//! `{"ready":true,"pid":..,"qpn":..}`. When stdin ends, each round posts two batches, waits for them, and
//! aborts a third; finally it posts one that the provider refuses. Then it prints its own counts:
//! `{"posted":..,"bytes":..,"rejected":..,"opcodes":[[opcode, work requests, bytes],..]}`. With `--then-exec`
//! the posts begin at a line on stdin, and afterwards the process becomes `cat`.

use std::{
    collections::BTreeMap,
    os::unix::process::CommandExt as _,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::{
    args::{Args, report, wait_for_stdin_end},
    verbs::{Context, Cq, Data, Extended, Mr, Opcode, Pd, Qp, connect, unlimit_memlock},
};
use serde_json::json;

/// The size of the send queue; a larger batch is refused.
const ROOM: u32 = 16;
const TOO_MANY: u64 = 200;

const FIRST: [(Opcode, Data, u32); 4] = [
    (Opcode::RdmaWrite, Data::Sge, 1000),
    (Opcode::Send, Data::Sge, 40),
    (Opcode::RdmaRead, Data::List, 600),
    (Opcode::SendWithImm, Data::List, 200),
];
const SECOND: [(Opcode, Data, u32); 3] = [
    (Opcode::FetchAndAdd, Data::Sge, 8),
    (Opcode::RdmaWrite, Data::List, 30),
    (Opcode::CmpAndSwp, Data::Sge, 8),
];

fn main() -> Result<()> {
    let mut args = Args::from_env();
    let device: String = args.value("--device", "rxe0".into())?;
    let rounds: u32 = args.value("--rounds", 100)?;
    let then_exec = args.flag("--then-exec");
    args.finish()?;
    unlimit_memlock()?;
    let context = Context::open(&device).with_context(|| format!("open {device}"))?;
    let pd = Pd::new(&context)?;
    let (cq, peers) = (Cq::new(&context, 32)?, Cq::new(&context, 32)?);
    let qp = Extended::new(&pd, &cq, ROOM).context("a QP with the ibv_wr_* calls")?;
    let peer = Qp::new(&pd, &peers, 4)?;
    let (from, to) = (Mr::new(&pd, 4096)?, Mr::new(&pd, 4096)?);
    connect(&qp.qp, &peer)?;
    report(&json!({"ready": true, "pid": std::process::id(), "qpn": qp.qp.qpn()}))?;
    if then_exec {
        std::io::stdin().read_line(&mut String::new())?;
    } else {
        wait_for_stdin_end()?;
    }
    let mut opcodes: BTreeMap<u32, [u64; 2]> = BTreeMap::new();
    for round in 0..rounds {
        for id in 0..2 {
            peer.post_recv(id, 1024, &to)?;
        }
        for batch in [&FIRST[..], &SECOND[..]] {
            qp.start();
            for (opcode, how, length) in batch {
                qp.add(0, *opcode, *how, *length, &from, &to);
                let sums = opcodes.entry(*opcode as u32).or_default();
                *sums = [sums[0] + 1, sums[1] + u64::from(*length)];
            }
            qp.complete()?;
            wait_for(&cq, batch.len())
                .with_context(|| format!("batch of {} in round {round}", batch.len()))?;
        }
        wait_for(&peers, 2).with_context(|| format!("receives of round {round}"))?;
        qp.start();
        // Inline data is only in the aborted batch: librxe 44 tells the kernel a length of 0 for it if these
        // calls post it.
        qp.add(0, Opcode::RdmaWrite, Data::Inline, 40, &from, &to);
        qp.add(0, Opcode::RdmaWrite, Data::InlineList, 30, &from, &to);
        qp.abort();
    }
    qp.start();
    for _ in 0..TOO_MANY {
        qp.add(0, Opcode::RdmaWrite, Data::Sge, 1000, &from, &to);
    }
    ensure!(qp.complete().is_err(), "{TOO_MANY} work requests were accepted");
    let sum = |number: usize| opcodes.values().map(|sums| sums[number]).sum::<u64>();
    let rows: Vec<_> = opcodes
        .iter()
        .map(|(opcode, sums)| (opcode, sums[0], sums[1]))
        .collect();
    report(&json!({"posted": sum(0), "bytes": sum(1), "rejected": TOO_MANY, "opcodes": rows}))?;
    if then_exec {
        return Err(Command::new("cat").exec().into());
    }
    Ok(())
}

fn wait_for(cq: &Cq, number: usize) -> Result<()> {
    let begun = Instant::now();
    let mut left = number;
    while left > 0 {
        if let Some(wc) = cq.poll()? {
            ensure!(wc.status == 0, "completion {} has status {}", wc.wr_id, wc.status);
            left -= 1;
        } else {
            ensure!(begun.elapsed() < Duration::from_secs(20), "no completion in 20 s");
            // A spinning guest CPU starves the worker that has to finish the request.
            thread::yield_now();
        }
    }
    Ok(())
}
