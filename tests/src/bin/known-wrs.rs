//! Work requests with known numbers, order and completions.
//!
//! `known-wrs [--device rxe0] [--count 20] [--queued 5] [--wrapped]` makes three pairs of QPs, prints
//! `{"ready":true,..}` and waits for a line on stdin. With `--wrapped` it posts and polls by functions of its
//! own, which call the provider's; it then connects the pairs anew and polls an empty CQ 1,000 times. On the
//! first pair it posts COUNT requests by turns: a SEND, an unsignaled WRITE, a SEND with immediate data and a
//! READ, each with its own `wr_id`. It waits for the signaled ones and ends with a signaled SEND. On the
//! others it posts QUEUED SENDs for which nobody posts receives; then it sets the second QP to ERR, which
//! flushes them, and destroys the third. Finally it prints `{"pid":..,"qpn":..,"peer_qpn":..,"posts":[[wr_id,
//! opcode, bytes, signaled],..],"receives":[[wr_id, bytes],..],
//! "flushed_qpn":..,"flushed":[wr_id,..],"destroyed_qpn":..,"destroyed":[wr_id,..], "wrapped_calls":..}`.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::{
    args::{Args, report, wait_for_stdin_end},
    verbs::{Context, Cq, Mr, Opcode, Pd, Qp, State, Wc, connect, unlimit_memlock, wrapped_calls},
};
use serde_json::json;

const SIZE: u32 = 4096;
const LIMIT: Duration = Duration::from_mins(2);
/// `IBV_WC_WR_FLUSH_ERR`.
const FLUSHED: u32 = 5;

fn wait(cq: &Cq) -> Result<Wc> {
    let begin = Instant::now();
    loop {
        if let Some(wc) = cq.poll()? {
            return Ok(wc);
        }
        ensure!(begin.elapsed() < LIMIT, "no completion in {LIMIT:?}");
        thread::yield_now();
    }
}

/// A QP and its peer, each with a CQ of its own.
struct Pair {
    qp: Qp,
    cq: Arc<Cq>,
    peer: Qp,
    peer_cq: Arc<Cq>,
}

fn pair(context: &Arc<Context>, pd: &Arc<Pd>, room: u32) -> Result<Pair> {
    let cqes = i32::try_from(2 * room)?;
    let (cq, peer_cq) = (Cq::new(context, cqes)?, Cq::new(context, cqes)?);
    let (qp, peer) = (Qp::new(pd, &cq, room)?, Qp::new(pd, &peer_cq, room)?);
    connect(&qp, &peer)?;
    Ok(Pair {
        qp,
        cq,
        peer,
        peer_cq,
    })
}

fn main() -> Result<()> {
    let mut args = Args::from_env();
    let device: String = args.value("--device", "rxe0".into())?;
    let count: u64 = args.value("--count", 20)?;
    let queued: u64 = args.value("--queued", 5)?;
    let wrapped = args.flag("--wrapped");
    args.finish()?;
    unlimit_memlock()?;
    let context = Context::open(&device).with_context(|| format!("open {device}"))?;
    if wrapped {
        context.wrap();
    }
    let pd = Pd::new(&context)?;
    let room = u32::try_from(count + queued + 1)?;
    let (from, to) = (Mr::new(&pd, SIZE as usize)?, Mr::new(&pd, SIZE as usize)?);
    let first = pair(&context, &pd, room)?;
    let second = pair(&context, &pd, room)?;
    let third = pair(&context, &pd, room)?;
    report(&json!({
        "ready": true,
        "pid": std::process::id(),
        "qpn": first.qp.qpn(),
    }))?;
    wait_for_stdin_end()?;
    if wrapped {
        for Pair { qp, peer, .. } in [&first, &second, &third] {
            qp.to_state(State::Reset)?;
            peer.to_state(State::Reset)?;
            connect(qp, peer)?;
        }
        for _ in 0..1000 {
            ensure!(first.cq.poll()?.is_none(), "a completion of nothing");
        }
    }
    let mut sends: u64 = 0;
    let mut signaled: u64 = 0;
    let (mut posts, mut receives) = (Vec::new(), Vec::new());
    for number in 0..=count {
        let (opcode, name, tell) = match number % 4 {
            _ if number == count => (Opcode::Send, "send", true),
            0 => (Opcode::Send, "send", true),
            1 => (Opcode::RdmaWrite, "rdma_write", false),
            2 => (Opcode::SendWithImm, "send_imm", false),
            _ => (Opcode::RdmaRead, "rdma_read", true),
        };
        let bytes = 8 * u32::try_from(number % 64 + 1)?;
        let wr_id = 1_000_000_007 * (number + 1);
        if matches!(opcode, Opcode::Send | Opcode::SendWithImm) {
            first.peer.post_recv(5_000 + sends, SIZE, &to)?;
            receives.push(json!([5_000 + sends, bytes]));
            sends += 1;
        }
        let imm = u32::try_from(number)?;
        first
            .qp
            .post_as(wr_id, (opcode, tell, imm), bytes, (&from, &to))?;
        posts.push(json!([wr_id, name, bytes, tell]));
        signaled += u64::from(tell);
    }
    for _ in 0..signaled {
        let wc = wait(&first.cq)?;
        ensure!(wc.status == 0, "completion {} has status {}", wc.wr_id, wc.status);
    }
    for _ in 0..sends {
        let wc = wait(&first.peer_cq)?;
        ensure!(wc.status == 0, "receive {} has status {}", wc.wr_id, wc.status);
    }
    let numbers: Vec<u64> = (0..queued).map(|number| 7_000 + number).collect();
    for number in &numbers {
        for qp in [&second.qp, &third.qp] {
            qp.post_as(*number, (Opcode::Send, number % 2 == 0, 0), 64, (&from, &to))?;
        }
    }
    second.qp.to_state(State::Err)?;
    for number in &numbers {
        let wc = wait(&second.cq)?;
        ensure!(
            (wc.wr_id, wc.status) == (*number, FLUSHED),
            "completion {} has status {}",
            wc.wr_id,
            wc.status
        );
    }
    let said = json!({
        "pid": std::process::id(),
        "qpn": first.qp.qpn(),
        "peer_qpn": first.peer.qpn(),
        "posts": posts,
        "receives": receives,
        "flushed_qpn": second.qp.qpn(),
        "flushed": numbers,
        "destroyed_qpn": third.qp.qpn(),
        "destroyed": numbers,
        "wrapped_calls": wrapped_calls(),
    });
    drop(third);
    report(&said)
}
