//! Posts RDMA WRITEs until told to end, with a pause of 5 ms whenever none has completed.
//!
//! `steady-posts [--device rxe0] [--size 1024] [--depth 16] [--nccl 1]` keeps DEPTH requests outstanding
//! between two QPs of this process. It prints `{"ready":true,"pid":..,"qpn":..,"peer_qpn":..}` after the
//! first DEPTH. When stdin ends, it waits for the outstanding ones and prints
//! `{"pid":..,"qpn":..,"posted":..}`. With `--nccl 1` it maps a library named like NCCL's.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::{
    args::{Args, report, wait_for_stdin_end},
    library,
    verbs::{Context, Cq, Mr, Opcode, Pd, Qp, connect, unlimit_memlock},
};
use serde_json::json;

/// The pause when there is no completion.
const PAUSE: Duration = Duration::from_millis(5);

fn main() -> Result<()> {
    let mut args = Args::from_env();
    let device: String = args.value("--device", "rxe0".into())?;
    let size: u32 = args.value("--size", 1024)?;
    let depth: u64 = args.value("--depth", 16)?;
    let nccl = args.value("--nccl", 0)? == 1;
    args.finish()?;
    if nccl {
        library::map_nccl()?;
    }
    unlimit_memlock()?;
    let context = Context::open(&device).with_context(|| format!("open {device}"))?;
    let pd = Pd::new(&context)?;
    let room = u32::try_from(depth)?;
    let cq = Cq::new(&context, i32::try_from(depth)?)?;
    let qp = Qp::new(&pd, &cq, room)?;
    let peer = Qp::new(&pd, &Cq::new(&context, 1)?, 1)?;
    let from = Mr::new(&pd, size as usize)?;
    let to = Mr::new(&pd, size as usize)?;
    connect(&qp, &peer)?;
    let over = Arc::new(AtomicBool::new(false));
    let told = over.clone();
    thread::spawn(move || {
        // Without stdin nobody can tell it to end.
        let _ = wait_for_stdin_end();
        told.store(true, Ordering::Relaxed);
    });
    let (mut posted, mut finished) = (0, 0);
    let mut moved = Instant::now();
    loop {
        let ending = over.load(Ordering::Relaxed);
        if ending && finished == posted {
            break;
        }
        while !ending && posted < finished + depth {
            qp.post_send(posted, Opcode::RdmaWrite, size, &from, &to)?;
            posted += 1;
        }
        if let Some(wc) = cq.poll()? {
            ensure!(wc.status == 0, "completion {} has status {}", wc.wr_id, wc.status);
            finished += 1;
            moved = Instant::now();
            if finished == depth {
                report(&json!({
                    "ready": true,
                    "pid": std::process::id(),
                    "qpn": qp.qpn(),
                    "peer_qpn": peer.qpn(),
                }))?;
            }
        } else {
            ensure!(moved.elapsed() < Duration::from_secs(20), "no completion in 20 s");
            // On a spinning guest CPU everything else in a test would take longer.
            thread::sleep(PAUSE);
        }
    }
    report(&json!({"pid": std::process::id(), "qpn": qp.qpn(), "posted": posted}))
}
