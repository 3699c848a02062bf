//! RDMA WRITEs as many as it is told, when it is told.
//!
//! `told-posts [--device rxe0] [--size 64] [--depth 16]` makes two QPs of this process that are connected to each other, prints
//! `{"ready":true,"pid":..,"qpn":..,"peer_qpn":..}` and reads commands from stdin, one a line: `post N` posts N requests, DEPTH of
//! them outstanding at a time, and waits for all; `reset` takes both QPs through RESET. After each it prints
//! `{"pid":..,"qpn":..,"posted":..}`, all posts so far. It ends when stdin does.

use std::{
    io,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use rdmatop_tests::{
    args::{Args, report},
    verbs::{Context, Cq, Mr, Opcode, Pd, Qp, State, connect, unlimit_memlock},
};
use serde_json::json;

struct Pair {
    qp: Qp,
    peer: Qp,
    cq: Arc<Cq>,
    from: Mr,
    to: Mr,
    size: u32,
    depth: u64,
}

fn main() -> Result<()> {
    let mut args = Args::from_env();
    let device: String = args.value("--device", "rxe0".into())?;
    let size: u32 = args.value("--size", 64)?;
    let depth: u64 = args.value("--depth", 16)?;
    args.finish()?;
    unlimit_memlock()?;
    let context = Context::open(&device).with_context(|| format!("open {device}"))?;
    let pd = Pd::new(&context)?;
    let cq = Cq::new(&context, i32::try_from(depth)?)?;
    let pair = Pair {
        qp: Qp::new(&pd, &cq, u32::try_from(depth)?)?,
        peer: Qp::new(&pd, &Cq::new(&context, 1)?, 1)?,
        from: Mr::new(&pd, size as usize)?,
        to: Mr::new(&pd, size as usize)?,
        cq,
        size,
        depth,
    };
    connect(&pair.qp, &pair.peer)?;
    let pid = std::process::id();
    let qpn = pair.qp.qpn();
    report(&json!({"ready": true, "pid": pid, "qpn": qpn, "peer_qpn": pair.peer.qpn()}))?;
    let mut posted = 0;
    for line in io::stdin().lines() {
        let line = line?;
        match line.split_once(' ') {
            Some(("post", count)) => posted += pair.post(posted, count.parse()?)?,
            None if line == "reset" => {
                for qp in [&pair.qp, &pair.peer] {
                    qp.to_state(State::Reset)?;
                }
                connect(&pair.qp, &pair.peer)?;
            }
            _ => bail!("{line:?}: post N, or reset"),
        }
        report(&json!({"pid": pid, "qpn": qpn, "posted": posted}))?;
    }
    Ok(())
}

impl Pair {
    fn post(&self, first: u64, count: u64) -> Result<u64> {
        let (mut posted, mut finished) = (0, 0);
        let mut moved = Instant::now();
        while finished < count {
            while posted < count && posted < finished + self.depth {
                let number = first + posted;
                self.qp
                    .post_send(number, Opcode::RdmaWrite, self.size, &self.from, &self.to)?;
                posted += 1;
            }
            if let Some(wc) = self.cq.poll()? {
                ensure!(wc.status == 0, "completion {} has status {}", wc.wr_id, wc.status);
                finished += 1;
                moved = Instant::now();
            } else {
                ensure!(moved.elapsed() < Duration::from_secs(20), "no completion in 20 s");
                // A guest CPU that only spins starves the worker that has to finish the request.
                thread::yield_now();
            }
        }
        Ok(count)
    }
}
