//! Provokes an asynchronous QP event: moves a QP from RTS to SQD and waits for `SQ_DRAINED`.
//!
//! `sqd [--device rxe0]` prints `{"pid":..,"qpn":..,"event":"SQ_DRAINED"|null,"number":..}`.

use std::time::Duration;

use anyhow::{Context as _, Result};
use rdmatop_tests::{
    args::{Args, report},
    verbs::{Context, Cq, EVENT_SQ_DRAINED, Mr, Opcode, Pd, Qp, connect, unlimit_memlock},
};
use serde_json::json;

fn main() -> Result<()> {
    let mut args = Args::from_env();
    let device: String = args.value("--device", "rxe0".into())?;
    args.finish()?;
    unlimit_memlock()?;
    let context = Context::open(&device).with_context(|| format!("open {device}"))?;
    let pd = Pd::new(&context)?;
    let cq = Cq::new(&context, 64)?;
    let qp = Qp::new(&pd, &cq, 16)?;
    let peer = Qp::new(&pd, &cq, 16)?;
    let from = Mr::new(&pd, 4096)?;
    let to = Mr::new(&pd, 4096)?;
    connect(&qp, &peer)?;
    // Something to drain: on rxe the event is sent when the queue runs empty in SQD.
    for number in 0..4 {
        qp.post_send(number, Opcode::RdmaWrite, 4096, &from, &to)?;
    }
    qp.to_sqd_with_event()?;
    let event = context.async_event(Duration::from_secs(3))?;
    let name = event.map(|(kind, _)| {
        if kind == EVENT_SQ_DRAINED {
            "SQ_DRAINED"
        } else {
            "other"
        }
    });
    report(&json!({
        "pid": std::process::id(),
        "qpn": qp.qpn(),
        "event": name,
        "number": event.map(|(kind, _)| kind),
        "event_qpn": event.map(|(_, number)| number),
    }))
}
