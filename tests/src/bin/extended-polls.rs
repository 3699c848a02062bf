//! Completions that are taken by `ibv_start_poll` and `ibv_next_poll`.
//!
//! `extended-polls [--device rxe0] [--count 40] [--queued 6]` makes four pairs of QPs of this process, each QP connected to the
//! other of its pair. In the first pair each QP has a CQ for its sends and one for its receives; in the second one for both; the
//! first QPs of the other two pairs share the two, and so do the second ones. It prints `{"ready":true,"pid":..,"apart":[QPN,
//! QPN],"one":[..],"shared":[QPN, QPN, QPN, QPN]}`. When stdin ends the first QP of each pair sends COUNT messages, and then QUEUED for
//! which there is no receive; at last the second ones post QUEUED receives, and all QPs go to ERR. When it has all completions it prints
//! `{"pid":..,"taken":[[QPN, wr_id, status, of a receive],..],"calls":..}`: each as it got it, and how often it called.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::{
    args::{Args, report, wait_for_stdin_end},
    verbs::{Context, Cq, ExtendedCq, Mr, Opcode, Pd, Qp, State, Wc, connect, unlimit_memlock},
};
use serde_json::{Value, json};

const SIZE: u32 = 256;
const LIMIT: Duration = Duration::from_secs(60);
/// `wr_id` of a receive; those of sends are smaller.
const RECEIVES: u64 = 1 << 20;
/// By how much `wr_id` differ from QP to QP.
const OF_QP: u64 = 1 << 32;

struct Taker {
    cqs: Vec<ExtendedCq>,
    qps: Vec<u32>,
    taken: Vec<Value>,
    calls: u64,
}

impl Taker {
    fn cq(&mut self, context: &Arc<Context>, cqe: u64) -> Result<Arc<Cq>> {
        let cq = ExtendedCq::new(context, i32::try_from(cqe)?).context("a CQ for ibv_start_poll")?;
        self.cqs.push(cq);
        Ok(self.cqs.last().context("no CQ")?.cq.clone())
    }

    /// Takes completions until there are `all`.
    fn take(&mut self, all: u64) -> Result<()> {
        let begun = Instant::now();
        while (self.taken.len() as u64) < all {
            let mut none = true;
            for cq in &self.cqs {
                let mut room = [Wc::default(); 4];
                let count = cq.take(&mut room)?;
                // One call for each, and the last one says that there is no more.
                self.calls += (count as u64 + 1).min(room.len() as u64);
                for wc in &room[..count] {
                    none = false;
                    let number = usize::try_from(wc.wr_id / OF_QP)?;
                    ensure!(
                        self.qps.get(number) == Some(&wc.qp_num),
                        "{wc:?} of {:?}",
                        self.qps
                    );
                    let of_receive = wc.wr_id % OF_QP >= RECEIVES;
                    self.taken
                        .push(json!([wc.qp_num, wc.wr_id, wc.status, of_receive]));
                }
            }
            let so_far = self.taken.len();
            ensure!(
                begun.elapsed() < LIMIT,
                "{so_far} of {all} completions in {LIMIT:?}"
            );
            if none {
                // A guest CPU that only spins starves the worker that has to finish the request.
                thread::yield_now();
            }
        }
        Ok(())
    }
}

fn main() -> Result<()> {
    let mut args = Args::from_env();
    let device: String = args.value("--device", "rxe0".into())?;
    let count: u64 = args.value("--count", 40)?;
    let queued: u64 = args.value("--queued", 6)?;
    args.finish()?;
    unlimit_memlock()?;
    let context = Context::open(&device).with_context(|| format!("open {device}"))?;
    let pd = Pd::new(&context)?;
    let mut taker = Taker {
        cqs: Vec::new(),
        qps: Vec::new(),
        taken: Vec::new(),
        calls: 0,
    };
    let mut cq = || taker.cq(&context, 4 * (count + queued));
    let apart = [[cq()?, cq()?], [cq()?, cq()?]];
    let one = [cq()?, cq()?].map(|cq| [cq.clone(), cq]);
    let shared = [[cq()?, cq()?], [cq()?, cq()?]];
    let room = u32::try_from(count + queued)?;
    let mut pairs = Vec::new();
    for [sides, peers] in [&apart, &one, &shared, &shared] {
        let made = [sides, peers].map(|[sends, receives]| Qp::of_cqs(&pd, [sends, receives], room));
        let [qp, peer] = made;
        let (qp, peer) = (qp?, peer?);
        connect(&qp, &peer)?;
        taker.qps.extend([qp.qpn(), peer.qpn()]);
        pairs.push((qp, peer));
    }
    let (from, to) = (Mr::new(&pd, SIZE as usize)?, Mr::new(&pd, SIZE as usize)?);
    let pid = std::process::id();
    let numbers = &taker.qps;
    report(&json!({
        "ready": true,
        "pid": pid,
        "apart": numbers[..2],
        "one": numbers[2..4],
        "shared": numbers[4..],
    }))?;
    wait_for_stdin_end()?;
    let mut all = 0;
    for (number, (qp, peer)) in (0..).step_by(2).zip(&pairs) {
        for nth in 0..count {
            let id = OF_QP * (number + 1) + RECEIVES + nth;
            peer.post_recv(id, SIZE, &to)?;
        }
        for nth in 0..count {
            let bytes = u32::try_from(nth % 32 + 1)?;
            qp.post_send(OF_QP * number + nth, Opcode::Send, bytes, &from, &to)?;
        }
        all += 2 * count;
    }
    taker.take(all)?;
    for (number, (qp, peer)) in (0..).step_by(2).zip(&pairs) {
        for nth in count..count + queued {
            // Nobody has posted a receive for it.
            qp.post_send(OF_QP * number + nth, Opcode::Send, 8, &from, &to)?;
        }
        qp.to_state(State::Err)?;
        for nth in count..count + queued {
            peer.post_recv(OF_QP * (number + 1) + RECEIVES + nth, SIZE, &to)?;
        }
        peer.to_state(State::Err)?;
        all += 2 * queued;
    }
    taker.take(all)?;
    report(&json!({"pid": pid, "taken": taker.taken, "calls": taker.calls}))
}
