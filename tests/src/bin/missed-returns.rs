//! Has the kernel miss the returns of modify calls, of which a kretprobe remembers a limited number.
//!
//! `missed-returns [--device rxe0] [--calls 2000]`: while more threads than that wait in a modify to RTR,
//! whose peer answers no ARP, CALLS other threads modify a QP once each, and end.
//! Prints `{"pid":..,"calls":N}`.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use anyhow::{Context as _, Result, anyhow};
use rdmatop_tests::{
    args::{Args, report},
    verbs::{Context, Cq, IPV4_GID, Pd, Qp, unlimit_memlock},
};
use serde_json::json;

/// Threads that wait: a kretprobe of the kernel's default has 10 instances, or two for each CPU.
const WAITING: usize = 64;

fn main() -> Result<()> {
    let mut args = Args::from_env();
    let device: String = args.value("--device", "rxe0".into())?;
    let calls: u64 = args.value("--calls", 2000)?;
    args.finish()?;
    unlimit_memlock()?;
    let context = Context::open(&device).with_context(|| format!("open {device}"))?;
    let (pd, cq) = (Pd::new(&context)?, Cq::new(&context, 16)?);
    let mut nobody = context.gid(IPV4_GID)?;
    nobody[15] ^= 0x60;
    let waiting = (0..WAITING)
        .map(|_| {
            let qp = Qp::new(&pd, &cq, 1)?;
            qp.to_init()?;
            Ok(qp)
        })
        .collect::<Result<Vec<_>>>()?;
    let called = Qp::new(&pd, &cq, 1)?;
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for qp in &waiting {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    // It fails when nobody has answered for a second.
                    drop(qp.to_rtr_at(1, &nobody));
                }
            });
        }
        let called = (0..calls).try_for_each(|_| -> Result<()> {
            let call = scope.spawn(|| called.to_init());
            Ok(call.join().map_err(|_| anyhow!("a thread panicked"))??)
        });
        over.store(true, Ordering::Relaxed);
        called
    })?;
    report(&json!({"pid": std::process::id(), "calls": calls}))
}
