//! Provokes an asynchronous QP event: moves a QP from RTS to SQD and waits for `SQ_DRAINED`.
//!
//! `sqd [--device rxe0] [--times 1]` does so with TIMES QPs, one after another, and prints
//! `{"pid":..,"qpns":[..],"events":["SQ_DRAINED"|null|"other",..]}`.

use std::{thread, time::Duration};

use anyhow::{Context as _, Result};
use rdmatop_tests::{
    args::{Args, report},
    verbs::{Context, Cq, EVENT_SQ_DRAINED, Mr, Opcode, Pd, Qp, connect, unlimit_memlock},
};
use serde_json::json;

fn main() -> Result<()> {
    let mut args = Args::from_env();
    let device: String = args.value("--device", "rxe0".into())?;
    let times: u32 = args.value("--times", 1)?;
    args.finish()?;
    unlimit_memlock()?;
    let context = Context::open(&device).with_context(|| format!("open {device}"))?;
    let pd = Pd::new(&context)?;
    let cq = Cq::new(&context, 64)?;
    let from = Mr::new(&pd, 4096)?;
    let to = Mr::new(&pd, 4096)?;
    let (mut qpns, mut events) = (Vec::new(), Vec::new());
    for time in 0..times {
        let qp = Qp::new(&pd, &cq, 16)?;
        let peer = Qp::new(&pd, &cq, 16)?;
        connect(&qp, &peer)?;
        // Requests to drain: rxe sends the event when the queue becomes empty in SQD.
        for number in 0..4 {
            qp.post_send(number, Opcode::RdmaWrite, 4096, &from, &to)?;
        }
        // By turns the QP moves while it drains, and after everything is done.
        if time % 2 == 1 {
            thread::sleep(Duration::from_millis(10));
        }
        qp.to_sqd_with_event()?;
        let event = context.async_event(Duration::from_secs(3))?;
        let is_of_it = |(kind, number): (u32, u32)| kind == EVENT_SQ_DRAINED && number == qp.qpn();
        events.push(event.map(|event| if is_of_it(event) { "SQ_DRAINED" } else { "other" }));
        qpns.push(qp.qpn());
        while cq.poll()?.is_some() {}
    }
    report(&json!({"pid": std::process::id(), "qpns": qpns, "events": events}))
}
