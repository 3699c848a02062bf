//! Pairs of QPs that transfer data on order.
//!
//! `paired-qps [--device rxe0] [--pairs 1] [--size 64]` makes PAIRS pairs and prints
//! `{"ready":true,"pid":..}`. Each line on stdin is an order; the answer `{"done":N}` counts the orders.
//! * `post FIRST COUNT N`: in COUNT pairs from pair FIRST on, the first QP sends N SENDs, one after the
//!   other, to the second;
//! * `renew FIRST COUNT`: destroys these pairs and makes new ones in their places.
//!
//! At the end of stdin it prints `{"pid":..,"qps":[{"qpn":..,"tx":..,"rx":..,"size":..,"alive":..}]}`: all
//! QPs that ever existed, with the completions that it polled.

use std::{
    io,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use rdmatop_tests::{
    args::{Args, report},
    verbs::{Context, Cq, Mr, Opcode, Pd, Qp, connect, unlimit_memlock},
};
use serde_json::{Value, json};

/// A bit in the ids of receives, which tells them from those of sends.
const RECEIVE: u64 = 1 << 32;

struct Pairs {
    pd: Arc<Pd>,
    cq: Arc<Cq>,
    size: u32,
    from: Mr,
    to: Mr,
    all: Vec<Pair>,
    gone: Vec<Value>,
}

struct Pair {
    qps: [Qp; 2],
    sent: u64,
    received: u64,
}

impl Pair {
    fn report(&self, size: u32, alive: bool) -> [Value; 2] {
        let [from, to] = &self.qps;
        [(from, self.sent, 0), (to, 0, self.received)]
            .map(|(qp, tx, rx)| json!({"qpn": qp.qpn(), "tx": tx, "rx": rx, "size": size, "alive": alive}))
    }
}

impl Pairs {
    fn make(&self) -> Result<Pair> {
        let qps = [Qp::new(&self.pd, &self.cq, 1)?, Qp::new(&self.pd, &self.cq, 1)?];
        let [from, to] = &qps;
        connect(from, to)?;
        Ok(Pair {
            qps,
            sent: 0,
            received: 0,
        })
    }

    fn post(&mut self, number: usize) -> Result<()> {
        let pair = self.all.get_mut(number).context("no such pair")?;
        let [from, to] = &pair.qps;
        to.post_recv(RECEIVE, self.size, &self.to)?;
        from.post_send(0, Opcode::Send, self.size, &self.from, &self.to)?;
        let end = Instant::now() + Duration::from_mins(1);
        for _ in 0..2 {
            let wc = loop {
                if let Some(wc) = self.cq.poll()? {
                    break wc;
                }
                ensure!(Instant::now() < end, "no completion in 60 s");
                thread::yield_now();
            };
            ensure!(wc.status == 0, "a completion has status {}", wc.status);
            if wc.wr_id == RECEIVE {
                pair.received += 1;
            } else {
                pair.sent += 1;
            }
        }
        Ok(())
    }

    fn renew(&mut self, number: usize) -> Result<()> {
        let made = self.make()?;
        let place = self.all.get_mut(number).context("no such pair")?;
        let before = std::mem::replace(place, made);
        self.gone.extend(before.report(self.size, false));
        Ok(())
    }

    fn order(&mut self, line: &str) -> Result<()> {
        let mut words = line.split_whitespace();
        let what = words.next().unwrap_or_default();
        let numbers = words.map(str::parse).collect::<Result<Vec<usize>, _>>()?;
        match (what, numbers.as_slice()) {
            ("post", [first, count, times]) => {
                for number in *first..first + count {
                    for _ in 0..*times {
                        self.post(number)?;
                    }
                }
                Ok(())
            }
            ("renew", [first, count]) => (*first..first + count).try_for_each(|number| self.renew(number)),
            _ => bail!("what is {line:?}?"),
        }
    }
}

fn main() -> Result<()> {
    let mut args = Args::from_env();
    let device: String = args.value("--device", "rxe0".into())?;
    let pairs: usize = args.value("--pairs", 1)?;
    let size: u32 = args.value("--size", 64)?;
    args.finish()?;
    unlimit_memlock()?;
    let context = Context::open(&device).with_context(|| format!("open {device}"))?;
    let pd = Pd::new(&context)?;
    let mut all = Pairs {
        cq: Cq::new(&context, 16)?,
        size,
        from: Mr::new(&pd, size as usize)?,
        to: Mr::new(&pd, size as usize)?,
        pd,
        all: Vec::with_capacity(pairs),
        gone: Vec::new(),
    };
    for _ in 0..pairs {
        let pair = all.make()?;
        all.all.push(pair);
    }
    report(&json!({"ready": true, "pid": std::process::id()}))?;
    let mut done = 0;
    for line in io::stdin().lines() {
        all.order(&line?)?;
        done += 1;
        report(&json!({ "done": done }))?;
    }
    let mut qps = std::mem::take(&mut all.gone);
    qps.extend(all.all.iter().flat_map(|pair| pair.report(size, true)));
    report(&json!({"pid": std::process::id(), "qps": qps}))
}
