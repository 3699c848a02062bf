//! Overruns a CQ without a connection: posts more receives than it has room for, then breaks the QP.
//!
//! `flushed-receives [--device siw0] [--extra 8]` posts the CQ's capacity and EXTRA more. The driver flushes
//! them until one finds no room, sends `CQ_ERR` for that one and leaves the rest. Prints
//! `{"pid":..,"qpn":..,"posted":..,"capacity":..,"flushed":..,"cq_errors":..}`.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::{
    args::{Args, report},
    verbs::{Context, Cq, EVENT_CQ_ERR, Mr, Pd, Qp, State, unlimit_memlock},
};
use serde_json::json;

const SIZE: u32 = 64;
/// `IBV_WC_WR_FLUSH_ERR`.
const FLUSHED: u32 = 5;

fn main() -> Result<()> {
    let mut args = Args::from_env();
    let device: String = args.value("--device", "siw0".into())?;
    let extra: u64 = args.value("--extra", 8)?;
    args.finish()?;
    unlimit_memlock()?;
    let context = Context::open(&device).with_context(|| format!("open {device}"))?;
    let pd = Pd::new(&context)?;
    let cq = Cq::new(&context, 16)?;
    let capacity = cq.capacity()?;
    let posts = capacity + extra;
    let qp = Qp::new(&pd, &cq, u32::try_from(posts)?)?;
    let into = Mr::new(&pd, SIZE as usize)?;
    for number in 0..posts {
        qp.post_recv(number, SIZE, &into)?;
    }
    qp.to_state(State::Err)?;
    let mut cq_errors = 0;
    let mut patience = Duration::from_secs(20);
    // All events are there once the QP is broken, so only the first needs waiting.
    while let Some((kind, _)) = context.async_event(patience)? {
        ensure!(kind == EVENT_CQ_ERR, "event {kind} while waiting for CQ_ERR");
        cq_errors += 1;
        patience = Duration::ZERO;
    }
    let mut flushed = 0;
    while let Some(wc) = cq.poll()? {
        ensure!(
            wc.status == FLUSHED,
            "completion {} has status {}",
            wc.wr_id,
            wc.status
        );
        flushed += 1;
    }
    report(&json!({
        "pid": std::process::id(),
        "qpn": qp.qpn(),
        "posted": posts,
        "capacity": capacity,
        "flushed": flushed,
        "cq_errors": cq_errors,
    }))
}
