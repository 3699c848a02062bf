//! One outstanding work request at a time, timed from before the post to the poll that finds it complete.
//!
//! `timed-posts [--device rxe0] [--count 1000] [--size 64] [--op write|read|send] [--before N] [--wait]
//! [--hold]` connects two QPs of this process. With `--before N` it first does N requests; then, or with
//! `--wait`, it prints `{"ready":true,"pid":..,"qpn":..,"peer_qpn":..}` and waits for a line on stdin: a
//! tracer attached there must count COUNT, not N + COUNT. With `--hold` the QPs stay until stdin ends. The
//! printed times are of the COUNT requests: log2 buckets (`i` holds `[2^i, 2^(i+1))` ns), mean, median, 99th
//! percentile and maximum, and the same for the call of `ibv_post_send`.

use std::{
    io,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use rdmatop_tests::{
    args::{Args, report, wait_for_stdin_end},
    verbs::{Context, Cq, Mr, Opcode, Pd, Qp, Wc, connect, unlimit_memlock},
};
use serde_json::{Value, json};

const WC_RECV: u32 = 128;

struct Pair {
    cq: std::sync::Arc<Cq>,
    peer_cq: std::sync::Arc<Cq>,
    qp: Qp,
    peer: Qp,
    from: Mr,
    to: Mr,
    size: u32,
    op: Opcode,
}

fn main() -> Result<()> {
    let mut args = Args::from_env();
    let device: String = args.value("--device", "rxe0".into())?;
    let count: u64 = args.value("--count", 1000)?;
    let size: u32 = args.value("--size", 64)?;
    let op: String = args.value("--op", "write".into())?;
    let before: u64 = args.value("--before", 0)?;
    let wait = args.flag("--wait") || before > 0;
    let hold = args.flag("--hold");
    args.finish()?;
    let op = match op.as_str() {
        "write" => Opcode::RdmaWrite,
        "read" => Opcode::RdmaRead,
        "send" => Opcode::Send,
        other => bail!("--op {other}: write, read or send"),
    };
    unlimit_memlock()?;
    let context = Context::open(&device).with_context(|| format!("open {device}"))?;
    let pd = Pd::new(&context)?;
    let cq = Cq::new(&context, 16)?;
    let peer_cq = Cq::new(&context, 16)?;
    let pair = Pair {
        qp: Qp::new(&pd, &cq, 8)?,
        peer: Qp::new(&pd, &peer_cq, 8)?,
        from: Mr::new(&pd, size as usize)?,
        to: Mr::new(&pd, size as usize)?,
        cq,
        peer_cq,
        size,
        op,
    };
    connect(&pair.qp, &pair.peer)?;
    for number in 0..before {
        pair.one(number)?;
    }
    if wait {
        report(&json!({
            "ready": true,
            "pid": std::process::id(),
            "qpn": pair.qp.qpn(),
            "peer_qpn": pair.peer.qpn(),
        }))?;
        io::stdin().read_line(&mut String::new())?;
    }
    let mut whole = Vec::new();
    let mut post = Vec::new();
    for number in 0..count {
        let (posted, finished) = pair.one(number)?;
        post.push(nanos(posted));
        whole.push(nanos(finished));
    }
    report(&json!({
        "pid": std::process::id(),
        "qpn": pair.qp.qpn(),
        "peer_qpn": pair.peer.qpn(),
        "count": count,
        "bytes": count * u64::from(size),
        "latency": summary(&mut whole),
        "post": summary(&mut post),
    }))?;
    if hold {
        wait_for_stdin_end()?;
    }
    Ok(())
}

impl Pair {
    /// Returns the time in the post, and the time from before the post to the completion.
    fn one(&self, number: u64) -> Result<(Duration, Duration)> {
        if self.op == Opcode::Send {
            self.peer.post_recv(number, self.size, &self.to)?;
        }
        let start = Instant::now();
        self.qp
            .post_send(number, self.op, self.size, &self.from, &self.to)?;
        let posted = start.elapsed();
        let wc = wait(&self.cq)?;
        let finished = start.elapsed();
        ensure!(wc.status == 0, "completion {number} has status {}", wc.status);
        ensure!(
            wc.wr_id == number,
            "completion of {} while waiting for {number}",
            wc.wr_id
        );
        if self.op == Opcode::Send {
            let received = wait(&self.peer_cq)?;
            ensure!(
                received.opcode == WC_RECV && received.byte_len == self.size,
                "wrong receive {received:?}"
            );
        }
        Ok((posted, finished))
    }
}

fn wait(cq: &Cq) -> Result<Wc> {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(wc) = cq.poll()? {
            return Ok(wc);
        }
        ensure!(Instant::now() < end, "no completion in 20 s");
        // A spinning guest CPU starves the worker that has to finish the request.
        std::thread::yield_now();
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn summary(times: &mut [u64]) -> Value {
    times.sort_unstable();
    let Some(&max) = times.last() else {
        return Value::Null;
    };
    let mut buckets = vec![0_u64; 32];
    for time in times.iter() {
        buckets[(time.max(&1).ilog2() as usize).min(31)] += 1;
    }
    json!({
        "count": times.len(),
        "mean_ns": times.iter().sum::<u64>() / times.len() as u64,
        "p50_ns": times[times.len() / 2],
        "p99_ns": times[times.len() * 99 / 100],
        "max_ns": max,
        "buckets": buckets,
    })
}
