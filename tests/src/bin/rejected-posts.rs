//! Posts lists of work requests of which the provider accepts only the first part.
//!
//! `rejected-posts [--device rxe0] [--rounds 50]` connects two QPs of this process and prints
//! `{"ready":true,"pid":..,"qpn":..}`. When stdin ends, each round posts a list with a bad request in the
//! middle, one whose last requests find no room, and one that is accepted. Then it prints what the provider
//! reported: `{"posted":..,"bytes":..,"rejected":..,"receives":.., "rejected_receives":..}`.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::{
    args::{Args, report, wait_for_stdin_end},
    verbs::{Context, Cq, Mr, Pd, Qp, connect, unlimit_memlock},
};
use serde_json::json;

/// The requested size of the queues; providers give more.
const ROOM: u32 = 4;
/// More than any provider gives for [`ROOM`].
const LONG: u32 = 64;
const LENGTH: u32 = 100;

fn main() -> Result<()> {
    let mut args = Args::from_env();
    let device: String = args.value("--device", "rxe0".into())?;
    let rounds: u32 = args.value("--rounds", 50)?;
    args.finish()?;
    unlimit_memlock()?;
    let context = Context::open(&device).with_context(|| format!("open {device}"))?;
    let pd = Pd::new(&context)?;
    let cq = Cq::new(&context, 128)?;
    let qp = Qp::new(&pd, &cq, ROOM)?;
    let peer = Qp::new(&pd, &Cq::new(&context, 128)?, ROOM)?;
    let (from, to) = (Mr::new(&pd, 4096)?, Mr::new(&pd, 4096)?);
    connect(&qp, &peer)?;
    report(&json!({"ready": true, "pid": std::process::id(), "qpn": qp.qpn()}))?;
    wait_for_stdin_end()?;
    let [mut posted, mut rejected, mut bytes] = [0_u64; 3];
    for _ in 0..rounds {
        for (count, bad_at) in [(4, Some(2)), (LONG, None), (3, None)] {
            let accepted = qp.post_list(count, bad_at, LENGTH, &from, &to)?;
            ensure!(
                count == 3 || (0 < accepted && accepted < count),
                "{accepted} of {count} were accepted"
            );
            posted += u64::from(accepted);
            rejected += u64::from(count - accepted);
            bytes += (0..accepted)
                .map(|number| u64::from(LENGTH + number))
                .sum::<u64>();
            finished(&cq, accepted)?;
        }
    }
    // Nobody sends, so accepted receives stay in the queue.
    let receives = qp.post_recv_list(LONG, LENGTH, &to)?;
    ensure!(receives < LONG, "{receives} receives were accepted");
    report(&json!({
        "posted": posted,
        "bytes": bytes,
        "rejected": rejected,
        "receives": receives,
        "rejected_receives": LONG - receives,
    }))
}

/// Waits for the completions of `number` requests.
fn finished(cq: &Cq, number: u32) -> Result<()> {
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
