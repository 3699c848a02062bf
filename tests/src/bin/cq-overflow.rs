//! Overruns a CQ: posts more signalled RDMA WRITEs than it has room for, and polls only after all have
//! finished.
//!
//! `cq-overflow [--device rxe0] [--extra 20]` posts the CQ's capacity and EXTRA more. The kernel sends
//! `CQ_ERR` for each CQE without room; after the last of these, all CQEs that had room are there. Prints
//! `{"pid":..,"qpn":..,"peer_qpn":..,"posted":..,"capacity":..,"polled":..,"cq_errors":..,"bytes":..}`.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::{
    args::{Args, report},
    verbs::{Context, Cq, EVENT_CQ_ERR, Mr, Opcode, Pd, Qp, connect, unlimit_memlock},
};
use serde_json::json;

const SIZE: u32 = 64;

fn main() -> Result<()> {
    let mut args = Args::from_env();
    let device: String = args.value("--device", "rxe0".into())?;
    let extra: u64 = args.value("--extra", 20)?;
    args.finish()?;
    unlimit_memlock()?;
    let context = Context::open(&device).with_context(|| format!("open {device}"))?;
    let pd = Pd::new(&context)?;
    let cq = Cq::new(&context, 16)?;
    let peer_cq = Cq::new(&context, 16)?;
    let capacity = cq.capacity()?;
    let posts = capacity + extra;
    let qp = Qp::new(&pd, &cq, u32::try_from(posts)?)?;
    let peer = Qp::new(&pd, &peer_cq, 1)?;
    let from = Mr::new(&pd, SIZE as usize)?;
    let to = Mr::new(&pd, SIZE as usize)?;
    connect(&qp, &peer)?;
    for number in 0..posts {
        qp.post_send(number, Opcode::RdmaWrite, SIZE, &from, &to)?;
    }
    let mut cq_errors = 0;
    while cq_errors < extra {
        let event = context.async_event(Duration::from_secs(20))?;
        let (kind, _) = event.with_context(|| format!("{cq_errors} of {extra} CQ_ERR events came"))?;
        ensure!(kind == EVENT_CQ_ERR, "event {kind} while waiting for CQ_ERR");
        cq_errors += 1;
    }
    let mut polled = 0;
    while let Some(wc) = cq.poll()? {
        ensure!(wc.status == 0, "completion {} has status {}", wc.wr_id, wc.status);
        ensure!(
            wc.wr_id == polled,
            "completion of {} in the place of {polled}",
            wc.wr_id
        );
        polled += 1;
    }
    report(&json!({
        "pid": std::process::id(),
        "qpn": qp.qpn(),
        "peer_qpn": peer.qpn(),
        "posted": posts,
        "capacity": capacity,
        "polled": polled,
        "cq_errors": cq_errors,
        "bytes": posts * u64::from(SIZE),
    }))
}
