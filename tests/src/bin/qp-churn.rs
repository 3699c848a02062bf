//! Makes and destroys QPs as fast as it can: create, INIT, RTR, RTS, destroy.
//!
//! `qp-churn [--device rxe0] [--count 1000] [--laps 1] [--threads 1] [--receives 0] [--fifo] [--wait]` makes
//! COUNT QPs, of all threads together. The first of a thread posts no receive, each next one more than the
//! one before it, and after RECEIVES none again. With LAPS above 1 a QP goes to RESET and to RTS again before
//! its end: many events without the cost of a create. `--fifo` runs the threads under `SCHED_FIFO`, which
//! leaves a reader on the same CPU no time; `--wait` waits for a line on stdin, or its end. Prints what was
//! really done,
//! `{"pid":..,"created":..,"modified":..,"destroyed":..,"events":..,"laps":..,"cqs":..,"elapsed_ns":..,
//! "receives":[[qpn,posted],..]}`; each thread also makes and destroys a CQ.

use std::{
    io,
    sync::{Arc, Barrier},
    thread,
    time::Instant,
};

use anyhow::{Context as _, Result, anyhow};
use rdmatop_tests::{
    args::{Args, report},
    verbs::{Context, Cq, IPV4_GID, Mr, Pd, Qp, State, unlimit_memlock},
};
use serde_json::json;

#[derive(Default)]
struct Done {
    created: u64,
    modified: u64,
    destroyed: u64,
    /// QPN and number of receives.
    receives: Vec<(u32, u64)>,
}

/// What each thread is told to do.
#[derive(Clone, Copy)]
struct Order {
    laps: u64,
    receives: u64,
    fifo: bool,
}

fn main() -> Result<()> {
    let mut args = Args::from_env();
    let device: String = args.value("--device", "rxe0".into())?;
    let count: u64 = args.value("--count", 1000)?;
    let laps: u64 = args.value("--laps", 1)?;
    let threads: u64 = args.value("--threads", 1)?;
    let receives: u64 = args.value("--receives", 0)?;
    let fifo = args.flag("--fifo");
    let wait = args.flag("--wait");
    args.finish()?;
    unlimit_memlock()?;
    let context = Context::open(&device).with_context(|| format!("open {device}"))?;
    if wait {
        report(&json!({"ready": true, "pid": std::process::id()}))?;
        io::stdin().read_line(&mut String::new())?;
    }
    let order = Order { laps, receives, fifo };
    let barrier = Arc::new(Barrier::new(usize::try_from(threads)? + 1));
    let workers: Vec<_> = (0..threads)
        .map(|index| {
            let share = count / threads + u64::from(index < count % threads);
            let (context, barrier) = (context.clone(), barrier.clone());
            thread::spawn(move || {
                barrier.wait();
                churn(&context, share, order)
            })
        })
        .collect();
    barrier.wait();
    let start = Instant::now();
    let mut all = Done::default();
    for worker in workers {
        let done = worker.join().map_err(|_| anyhow!("a thread panicked"))??;
        all.created += done.created;
        all.modified += done.modified;
        all.destroyed += done.destroyed;
        all.receives.extend(done.receives);
    }
    let elapsed = start.elapsed();
    report(&json!({
        "pid": std::process::id(),
        "created": all.created,
        "modified": all.modified,
        "destroyed": all.destroyed,
        "events": all.created + all.modified + all.destroyed,
        "laps": laps,
        "cqs": threads,
        "elapsed_ns": u64::try_from(elapsed.as_nanos())?,
        "receives": all.receives,
    }))
}

fn churn(context: &Arc<Context>, count: u64, order: Order) -> Result<Done> {
    const SIZE: u32 = 64;
    let Order { laps, receives, fifo } = order;
    let pd = Pd::new(context)?;
    // Who counts the events of QPs and CQs expects none of memory.
    let into = (receives > 0).then(|| Mr::new(&pd, SIZE as usize)).transpose()?;
    let room = u32::try_from(receives)?.max(1);
    let cq = Cq::new(context, 16)?;
    let gid = context.gid(IPV4_GID)?;
    if fifo {
        run_fifo().context("SCHED_FIFO")?;
    }
    let mut done = Done::default();
    for number in 0..count {
        let qp = Qp::new(&pd, &cq, room)?;
        done.created += 1;
        for lap in 0..laps {
            if lap > 0 {
                qp.to_state(State::Reset)?;
                done.modified += 1;
            }
            qp.to_init()?;
            qp.to_rtr_at(qp.qpn(), &gid)?;
            qp.to_rts(7)?;
            done.modified += 3;
        }
        let posted = number % (receives + 1);
        for (receive, into) in (0..posted).zip(into.iter().cycle()) {
            qp.post_recv(receive, SIZE, into)?;
        }
        done.receives.push((qp.qpn(), posted));
        drop(qp);
        done.destroyed += 1;
    }
    Ok(done)
}

fn run_fifo() -> io::Result<()> {
    let param = libc::sched_param { sched_priority: 1 };
    // SAFETY: pid 0 is the calling thread; `param` is a whole structure and only read.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const param) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
