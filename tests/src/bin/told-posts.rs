//! RDMA WRITEs as many as it is told, when it is told.
//!
//! `told-posts [--device rxe0] [--size 64] [--depth 16] [--pairs 1] [--threads 1] [--extended]` makes PAIRS pairs of QPs of this process, the
//! two of a pair connected to each other, prints `{"ready":true,"pid":..,"qpn":..,"peer_qpn":..,"qpns":[..]}` with the first pair and with
//! the QPs that post, and reads commands from stdin, one a line. `post N` posts N requests to each of these QPs, DEPTH of them outstanding
//! at a time, and waits for all: THREADS threads for each QP, all at once. `lead N` posts to the first one only. `reset` takes all QPs
//! through RESET. With `--extended` requests are posted by the `ibv_wr_*` calls, and `abort N` builds N requests for each QP and aborts them.
//! After each command it prints `{"pid":..,"qpn":..,"posted":[..]}`, all posts of each QP so far. It ends when stdin does.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use rdmatop_tests::{
    args::{Args, report},
    verbs::{Context, Cq, Data, Extended, Mr, Opcode, Pd, Qp, State, connect, unlimit_memlock},
};
use serde_json::json;

enum Poster {
    Plain(Qp),
    Extended(Extended),
}

impl Poster {
    fn qp(&self) -> &Qp {
        match self {
            Self::Plain(qp) => qp,
            Self::Extended(extended) => &extended.qp,
        }
    }
}

struct Pair {
    poster: Poster,
    peer: Qp,
    cq: Arc<Cq>,
    from: Mr,
    to: Mr,
    size: u32,
    depth: u64,
    posted: AtomicU64,
    finished: AtomicU64,
}

fn main() -> Result<()> {
    let mut args = Args::from_env();
    let device: String = args.value("--device", "rxe0".into())?;
    let size: u32 = args.value("--size", 64)?;
    let depth: u64 = args.value("--depth", 16)?;
    let pairs: usize = args.value("--pairs", 1)?;
    let threads: usize = args.value("--threads", 1)?;
    let extended = args.flag("--extended");
    args.finish()?;
    unlimit_memlock()?;
    let context = Context::open(&device).with_context(|| format!("open {device}"))?;
    let pd = Pd::new(&context)?;
    let made = (0..pairs).map(|_| Pair::new(&context, &pd, (size, depth), extended));
    let pairs: Vec<Pair> = made.collect::<Result<_>>()?;
    let first = pairs.first().context("no pair")?;
    let pid = std::process::id();
    let qpn = first.poster.qp().qpn();
    let qpns: Vec<u32> = pairs.iter().map(|pair| pair.poster.qp().qpn()).collect();
    report(&json!({"ready": true, "pid": pid, "qpn": qpn, "peer_qpn": first.peer.qpn(), "qpns": qpns}))?;
    for line in io::stdin().lines() {
        let line = line?;
        match line.split_once(' ') {
            Some(("post", count)) => post(&pairs, count.parse()?, threads)?,
            Some(("lead", count)) => post(&pairs[..1], count.parse()?, threads)?,
            Some(("abort", count)) => {
                for pair in &pairs {
                    pair.abort(count.parse()?)?;
                }
            }
            None if line == "reset" => {
                for pair in &pairs {
                    for qp in [pair.poster.qp(), &pair.peer] {
                        qp.to_state(State::Reset)?;
                    }
                    connect(pair.poster.qp(), &pair.peer)?;
                }
            }
            _ => bail!("{line:?}: post N, lead N, abort N, or reset"),
        }
        let posted: Vec<u64> = pairs.iter().map(|pair| pair.posted.load(Relaxed)).collect();
        report(&json!({"pid": pid, "qpn": qpn, "posted": posted}))?;
    }
    Ok(())
}

/// Posts to each of them at once.
fn post(pairs: &[Pair], count: u64, threads: usize) -> Result<()> {
    thread::scope(|scope| {
        let mut posters = Vec::new();
        for pair in pairs {
            let to = pair.posted.load(Relaxed) + count;
            posters.extend((0..threads).map(|_| scope.spawn(move || pair.post(to))));
        }
        for poster in posters {
            poster.join().ok().context("a thread panicked")??;
        }
        Ok(())
    })
}

impl Pair {
    fn new(context: &Arc<Context>, pd: &Arc<Pd>, (size, depth): (u32, u64), extended: bool) -> Result<Self> {
        let cq = Cq::new(context, i32::try_from(depth)?)?;
        let room = u32::try_from(depth)?;
        let pair = Self {
            poster: if extended {
                Poster::Extended(Extended::new(pd, &cq, room).context("a QP with the ibv_wr_* calls")?)
            } else {
                Poster::Plain(Qp::new(pd, &cq, room)?)
            },
            peer: Qp::new(pd, &Cq::new(context, 1)?, 1)?,
            from: Mr::new(pd, size as usize)?,
            to: Mr::new(pd, size as usize)?,
            cq,
            size,
            depth,
            posted: AtomicU64::new(0),
            finished: AtomicU64::new(0),
        };
        connect(pair.poster.qp(), &pair.peer)?;
        Ok(pair)
    }

    /// Takes the number of the next request, if there is room for one.
    fn next(&self, to: u64) -> Option<u64> {
        let posted = self.posted.load(Relaxed);
        // Another thread may have finished more by now: then there is more room.
        let has_room = posted < to && posted < self.finished.load(Relaxed) + self.depth;
        let take = || {
            self.posted
                .compare_exchange(posted, posted + 1, Relaxed, Relaxed)
                .ok()
        };
        has_room.then(take).flatten()
    }

    fn add(&self, qp: &Extended, number: u64) {
        qp.add(
            number,
            Opcode::RdmaWrite,
            Data::Sge,
            self.size,
            &self.from,
            &self.to,
        );
    }

    fn post_one(&self, number: u64) -> Result<()> {
        match &self.poster {
            Poster::Plain(qp) => qp.post_send(number, Opcode::RdmaWrite, self.size, &self.from, &self.to)?,
            Poster::Extended(qp) => {
                qp.start();
                self.add(qp, number);
                qp.complete()?;
            }
        }
        Ok(())
    }

    /// Posts until so many are posted, and waits until as many have finished. Other threads may do the same.
    fn post(&self, to: u64) -> Result<()> {
        let mut moved = Instant::now();
        while self.finished.load(Relaxed) < to {
            if let Some(number) = self.next(to) {
                self.post_one(number)?;
            } else if let Some(wc) = self.cq.poll()? {
                ensure!(wc.status == 0, "completion {} has status {}", wc.wr_id, wc.status);
                self.finished.fetch_add(1, Relaxed);
            } else {
                ensure!(moved.elapsed() < Duration::from_secs(20), "no completion in 20 s");
                // A guest CPU that only spins starves the worker that has to finish the request.
                thread::yield_now();
                continue;
            }
            moved = Instant::now();
        }
        Ok(())
    }

    fn abort(&self, count: u64) -> Result<()> {
        let Poster::Extended(qp) = &self.poster else {
            bail!("abort takes --extended")
        };
        qp.start();
        for number in 0..count {
            self.add(qp, number);
        }
        qp.abort();
        Ok(())
    }
}
