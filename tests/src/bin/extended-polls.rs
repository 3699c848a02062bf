//! Takes completions with `ibv_start_poll` and `ibv_next_poll`.
//!
//! `extended-polls [--device rxe0] [--count 40] [--queued 6]` makes five pairs of QPs of this process. In the
//! first pair each QP has a CQ for its sends and one for its receives; in the second pair each has one CQ for
//! both. In the third and fourth pair the first QPs share their two CQs, and so do the second QPs. The fifth
//! pair is like the first, but its CQs belonged before to a pair that was destroyed. It prints
//! `{"ready":true,"pid":..,"apart":[QPN, QPN],"one":[..],"shared":[QPN, QPN, QPN, QPN],"again":[..]}`. When
//! stdin ends, the first QP of each pair sends COUNT messages. Then the second QP posts QUEUED receives and
//! goes to ERR, and the first posts QUEUED sends and goes to ERR. After all completions it prints
//! `{"pid":..,"taken":[[QPN, wr_id, status, of a receive],..],"calls":..}`: the completions in order, and the
//! number of calls.

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
const LIMIT: Duration = Duration::from_mins(1);
/// The smallest `wr_id` of a receive; those of sends are smaller.
const RECEIVES: u64 = 1 << 20;
/// The distance between the `wr_id`s of two QPs.
const OF_QP: u64 = 1 << 32;

struct Taker {
    /// The CQs, each with the number of completions still to come.
    cqs: Vec<(ExtendedCq, u64)>,
    qps: Vec<u32>,
    taken: Vec<Value>,
    calls: u64,
}

impl Taker {
    fn cq(&mut self, context: &Arc<Context>, comes: u64) -> Result<Arc<Cq>> {
        let cqe = i32::try_from(comes.max(1))?;
        let cq = ExtendedCq::new(context, cqe).context("a CQ for ibv_start_poll")?;
        self.cqs.push((cq, comes));
        Ok(self.cqs.last().context("no CQ")?.0.cq.clone())
    }

    /// Takes `all` completions from a CQ, `at_once` per call of `ibv_start_poll`.
    fn take(&mut self, cq: usize, mut all: u64, at_once: u64) -> Result<()> {
        let begun = Instant::now();
        let (cq, left) = &mut self.cqs[cq];
        while all > 0 {
            let mut room = vec![Wc::default(); usize::try_from(all.min(at_once))?];
            let is_last = *left == room.len() as u64;
            let count = cq.take(&mut room, is_last)?;
            self.calls += (count as u64).max(1) + u64::from(is_last && count > 0);
            all -= count as u64;
            *left -= count as u64;
            for wc in &room[..count] {
                let qpn = self.qps.get(usize::try_from(wc.wr_id / OF_QP)?);
                ensure!(qpn == Some(&wc.qp_num), "{wc:?} of {:?}", self.qps);
                let of_receive = wc.wr_id % OF_QP >= RECEIVES;
                self.taken
                    .push(json!([wc.qp_num, wc.wr_id, wc.status, of_receive]));
            }
            if count == 0 {
                ensure!(
                    begun.elapsed() < LIMIT,
                    "{all} completions less than expected in {LIMIT:?}"
                );
                // A spinning guest CPU starves the worker that has to finish the request.
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
    let each = count + queued;
    let mut cq = |comes| taker.cq(&context, comes);
    let apart = [[cq(each)?, cq(0)?], [cq(0)?, cq(each)?]];
    let one = [cq(each)?, cq(each)?].map(|cq| [cq.clone(), cq]);
    let shared = [[cq(2 * each)?, cq(0)?], [cq(0)?, cq(2 * each)?]];
    let again = [[cq(each)?, cq(0)?], [cq(0)?, cq(each)?]];
    let room = u32::try_from(each)?;
    let pair = |cqs: &[[Arc<Cq>; 2]; 2]| -> Result<(Qp, Qp)> {
        let [qp, peer] = cqs
            .each_ref()
            .map(|[sends, receives]| Qp::of_cqs(&pd, [sends, receives], room));
        let (qp, peer) = (qp?, peer?);
        connect(&qp, &peer)?;
        Ok((qp, peer))
    };
    drop(pair(&again)?);
    let pairs: Vec<(Qp, Qp)> = [&apart, &one, &shared, &shared, &again]
        .into_iter()
        .map(pair)
        .collect::<Result<_>>()?;
    taker.qps = pairs
        .iter()
        .flat_map(|(qp, peer)| [qp.qpn(), peer.qpn()])
        .collect();
    let (from, to) = (Mr::new(&pd, SIZE as usize)?, Mr::new(&pd, SIZE as usize)?);
    let pid = std::process::id();
    let numbers = &taker.qps;
    report(&json!({
        "ready": true,
        "pid": pid,
        "apart": numbers[..2],
        "one": numbers[2..4],
        "shared": numbers[4..8],
        "again": numbers[8..],
    }))?;
    wait_for_stdin_end()?;
    for (number, (qp, peer)) in (0..).step_by(2).zip(&pairs) {
        for nth in 0..count {
            let id = OF_QP * (number + 1) + RECEIVES + nth;
            peer.post_recv(id, SIZE, &to)?;
        }
        for nth in 0..count {
            let bytes = u32::try_from(nth % 32 + 1)?;
            qp.post_send(OF_QP * number + nth, Opcode::Send, bytes, &from, &to)?;
        }
    }
    // In the order of their creation: the CQs of sends, and those of receives, whose completions are there
    // once the sends have ended.
    for (cq, of) in [(0, 1), (4, 1), (6, 2), (10, 1)] {
        taker.take(cq, of * count, 1)?;
    }
    for (cq, of) in [(3, 1), (5, 1), (9, 2), (13, 1)] {
        taker.take(cq, of * count, 4)?;
    }
    for (number, (qp, peer)) in (0..).step_by(2).zip(&pairs) {
        for nth in count..each {
            peer.post_recv(OF_QP * (number + 1) + RECEIVES + nth, SIZE, &to)?;
        }
        peer.to_state(State::Err)?;
        for nth in count..each {
            // The peer drops it. A receiving peer could answer after the sender has gone to ERR.
            qp.post_send(OF_QP * number + nth, Opcode::Send, 8, &from, &to)?;
        }
        qp.to_state(State::Err)?;
    }
    for cq in 0..taker.cqs.len() {
        let left = taker.cqs[cq].1;
        taker.take(cq, left, 1)?;
    }
    report(&json!({"pid": pid, "taken": taker.taken, "calls": taker.calls}))
}
