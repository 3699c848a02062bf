//! QPs whose queues do not become empty in an orderly way.
//!
//! `broken-qps --case NAME [--device rxe0]`. Two QPs of this process are connected: `qp` sends and `peer`
//! answers.
//! * `flush`: `qp` goes to ERR while it has unanswered sends and posted receives, and again after RESET and a
//!   new connection, three times. Both queues of `qp` complete to one CQ, and so do those of `peer`.
//! * `reset`: like `flush`, but `qp` goes directly to RESET, so nothing is flushed.
//! * `destroy`: like `flush`, but `qp` is destroyed.
//! * `refill`: an RDMA WRITE to memory that is not the peer's breaks both QPs; then `peer` fills its receive
//!   queue, which was full before, again.
//! * `greedy`: a second thread posts a receive whenever there is room for one.
//!
//! Prints `{"pid":..,"qp":SIDE,"peer":SIDE}` with the requests posted and the CQEs polled; a SIDE is
//! `{"qpn":..,"posted":..,"bytes":..,"ok":..,"errors":..,"flushed":..,
//! "rx_posted":..,"rx_ok":..,"rx_bytes":..,"rx_flushed":..}`.

use std::{
    cell::Cell,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use rdmatop_tests::{
    args::{Args, report},
    verbs::{Context, Cq, Mr, Opcode, Pd, Qp, State, connect, unlimit_memlock},
};
use serde_json::{Value, json};

/// `IBV_WC_WR_FLUSH_ERR`.
const FLUSHED: u32 = 5;
/// Marks the `wr_id` of a receive, because a CQE with an error does not say which queue it belongs to.
const RECEIVE: u64 = 1 << 63;
const SIZE: u32 = 1000;
const LIMIT: Duration = Duration::from_secs(20);
/// Longer than the RNR timer (0.64 ms) and the retransmission timeout (67 ms) of the tests' QPs.
const TIME_WAIT: Duration = Duration::from_millis(200);

/// A QP and its counts.
struct Side {
    qp: Qp,
    cq: Arc<Cq>,
    posted: Cell<u64>,
    ok: Cell<u64>,
    errors: Cell<u64>,
    flushed: Cell<u64>,
    rx_posted: AtomicU64,
    rx_ok: Cell<u64>,
    rx_bytes: Cell<u64>,
    rx_flushed: Cell<u64>,
}

fn add(count: &Cell<u64>, more: u64) {
    count.set(count.get() + more);
}

impl Side {
    fn new(context: &Arc<Context>, pd: &Arc<Pd>, max_wr: u32) -> Result<Self> {
        let cq = Cq::new(context, 256)?;
        Ok(Self {
            qp: Qp::new(pd, &cq, max_wr)?,
            cq,
            posted: Cell::default(),
            ok: Cell::default(),
            errors: Cell::default(),
            flushed: Cell::default(),
            rx_posted: AtomicU64::default(),
            rx_ok: Cell::default(),
            rx_bytes: Cell::default(),
            rx_flushed: Cell::default(),
        })
    }

    fn send(&self, opcode: Opcode, count: u64, from: &Mr, to: &Mr) -> Result<()> {
        for _ in 0..count {
            self.qp
                .post_send(self.posted.get(), opcode, SIZE, from, to)
                .with_context(|| format!("post send {}", self.posted.get()))?;
            add(&self.posted, 1);
        }
        Ok(())
    }

    fn receive(&self, count: u64, into: &Mr) -> Result<()> {
        for _ in 0..count {
            self.qp.post_recv(RECEIVE, SIZE, into).context("post a receive")?;
            self.rx_posted.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn poll(&self) -> io::Result<()> {
        while let Some(wc) = self.cq.poll()? {
            match (wc.wr_id & RECEIVE != 0, wc.status) {
                (false, 0) => add(&self.ok, 1),
                (false, FLUSHED) => add(&self.flushed, 1),
                (true, 0) => {
                    add(&self.rx_ok, 1);
                    add(&self.rx_bytes, wc.byte_len.into());
                }
                (true, FLUSHED) => add(&self.rx_flushed, 1),
                _ => add(&self.errors, 1),
            }
        }
        Ok(())
    }

    /// Polls until `count` has reached `wanted`.
    fn await_count(&self, what: &str, count: &Cell<u64>, wanted: u64) -> Result<()> {
        let end = Instant::now() + LIMIT;
        while count.get() < wanted {
            self.poll()?;
            ensure!(
                Instant::now() < end,
                "{} of {wanted} {what} in {LIMIT:?}",
                count.get()
            );
            thread::yield_now();
        }
        Ok(())
    }

    fn account(&self) -> Value {
        json!({
            "qpn": self.qp.qpn(),
            "posted": self.posted.get(),
            "bytes": self.posted.get() * u64::from(SIZE),
            "ok": self.ok.get(),
            "errors": self.errors.get(),
            "flushed": self.flushed.get(),
            "rx_posted": self.rx_posted.load(Ordering::Relaxed),
            "rx_ok": self.rx_ok.get(),
            "rx_bytes": self.rx_bytes.get(),
            "rx_flushed": self.rx_flushed.get(),
        })
    }
}

/// The two sides and their memory.
struct Pair {
    qp: Side,
    peer: Side,
    from: Mr,
    to: Mr,
    /// Memory of another protection domain, to which no QP here may write.
    foreign: Mr,
}

impl Pair {
    /// Sends messages that are received.
    fn exchange(&self, count: u64) -> Result<()> {
        let (ok, received) = (self.qp.ok.get(), self.peer.rx_ok.get());
        self.peer.receive(count, &self.to)?;
        self.qp.send(Opcode::Send, count, &self.from, &self.to)?;
        self.qp.await_count("sends", &self.qp.ok, ok + count)?;
        self.peer
            .await_count("receives", &self.peer.rx_ok, received + count)
    }

    /// Leaves twelve SENDs waiting for a receive and sixteen receives waiting for a SEND.
    fn fill(&self) -> Result<()> {
        self.qp.receive(16, &self.to)?;
        self.qp.send(Opcode::Send, 12, &self.from, &self.to)
    }

    fn lives(&self, flush: bool) -> Result<()> {
        for life in 1..=3 {
            connect(&self.qp.qp, &self.peer.qp).with_context(|| format!("life {life}"))?;
            self.exchange(10)?;
            self.fill()?;
            if flush {
                self.qp.qp.to_state(State::Err).context("to ERR")?;
                self.qp
                    .await_count("flushed sends", &self.qp.flushed, 12 * life)?;
                self.qp
                    .await_count("flushed receives", &self.qp.rx_flushed, 16 * life)?;
            }
            for side in [&self.qp, &self.peer] {
                side.qp.to_state(State::Reset).context("to RESET")?;
            }
            // rxe's timers go on through RESET: a timer of this life that ends in the next one resends old
            // packets, whose PSNs the next life uses too.
            thread::sleep(TIME_WAIT);
            // Once on 7.2 the next step, to INIT, failed with EINVAL, so the QP had left RESET. By rxe's
            // source a task that runs during a RESET can set the QP to ERR after it (`rxe_qp_error`).
            for side in [&self.qp, &self.peer] {
                side.qp.to_state(State::Reset).context("to RESET again")?;
            }
        }
        Ok(())
    }

    fn refill(&self, depth: u64) -> Result<()> {
        connect(&self.qp.qp, &self.peer.qp)?;
        self.peer.receive(depth, &self.to)?;
        self.qp.send(Opcode::RdmaWrite, 1, &self.from, &self.foreign)?;
        self.qp.await_count("errors", &self.qp.errors, 1)?;
        self.peer
            .await_count("flushed receives", &self.peer.rx_flushed, depth)?;
        self.peer.receive(depth, &self.to)
    }

    fn greedy(&self, count: u64) -> Result<()> {
        connect(&self.qp.qp, &self.peer.qp)?;
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let (qp, into, posted) = (&self.peer.qp, &self.to, &self.peer.rx_posted);
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    if qp.post_recv(RECEIVE, SIZE, into).is_ok() {
                        posted.fetch_add(1, Ordering::Relaxed);
                    } else {
                        thread::yield_now();
                    }
                }
            });
            let done = (1..=count).try_for_each(|number| {
                self.qp.send(Opcode::Send, 1, &self.from, &self.to)?;
                self.qp.await_count("sends", &self.qp.ok, number)?;
                self.peer.poll().map_err(anyhow::Error::from)
            });
            let done = done.and_then(|()| self.peer.await_count("receives", &self.peer.rx_ok, count));
            stop.store(true, Ordering::Relaxed);
            done
        })
    }
}

fn main() -> Result<()> {
    let mut args = Args::from_env();
    let device: String = args.value("--device", "rxe0".into())?;
    let case: String = args.value("--case", "flush".into())?;
    args.finish()?;
    unlimit_memlock()?;
    let context = Context::open(&device).with_context(|| format!("open {device}"))?;
    let pd = Pd::new(&context)?;
    // The ring of a queue of three has four places: three to use and one that stays empty.
    let depth = if matches!(case.as_str(), "refill" | "greedy") {
        3
    } else {
        63
    };
    let pair = Pair {
        qp: Side::new(&context, &pd, 63)?,
        peer: Side::new(&context, &pd, depth)?,
        from: Mr::new(&pd, SIZE as usize)?,
        to: Mr::new(&pd, SIZE as usize)?,
        foreign: Mr::new(&Pd::new(&context)?, SIZE as usize)?,
    };
    match case.as_str() {
        "flush" => pair.lives(true)?,
        "reset" => pair.lives(false)?,
        "destroy" => {
            connect(&pair.qp.qp, &pair.peer.qp)?;
            pair.exchange(10)?;
            pair.fill()?;
        }
        "refill" => pair.refill(depth.into())?,
        "greedy" => pair.greedy(3000)?,
        other => bail!("--case {other}: flush, reset, destroy, refill or greedy"),
    }
    report(&json!({
        "pid": std::process::id(),
        "qp": pair.qp.account(),
        "peer": pair.peer.account(),
    }))
}
