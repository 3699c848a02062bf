//! Sums over a snapshot, made once for each snapshot and not for each frame.

use crate::model::ib::QpState;
use crate::model::input::Verdict;
use crate::model::snapshot::Snapshot;
use crate::model::value::Counter;

use super::stuck::Stuck;

/// A sum of rates of which some may be unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sum {
    /// The sum of what is known; `None` when nothing is.
    pub rate: Option<f64>,
    /// Something is missing from it.
    pub partial: bool,
}

impl Sum {
    fn add(&mut self, rate: Option<f64>) {
        match rate {
            Some(rate) => *self.rate.get_or_insert(0.0) += rate,
            None => self.partial = true,
        }
    }
}

/// What a full bar means on the Devices tab: one scale for all rows, so that bars compare.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scale {
    /// Every port's true rate is known: full is the link.
    pub link: bool,
    /// No port counts bytes: bars and rates are packets.
    pub packets: bool,
    /// Otherwise full is the busiest direction of any port: its rate.
    pub max: f64,
}

impl Scale {
    /// What a full bar is called.
    pub fn name(&self) -> &'static str {
        if self.link { "of link" } else { "of max" }
    }
}

/// Sums over a snapshot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Bytes sent per second.
    pub tx: Sum,
    /// Bytes received per second.
    pub rx: Sum,
    /// Send WRs per second.
    pub wr: Sum,
    /// Live QPs by state, in numeric order; `None` is a state nobody told us.
    pub states: Vec<(Option<QpState>, u64)>,
    /// Live QPs.
    pub qps: u64,
    /// Live QPs that wait for someone who has to act.
    pub stuck: u64,
    /// Scale of the bars.
    pub scale: Scale,
    /// Probes that are on, partly on, broken, and off for a reason.
    pub probes: [usize; 4],
}

impl Summary {
    /// Sums over `snapshot`.
    pub fn of(snapshot: &Snapshot) -> Self {
        let mut out = Self {
            scale: scale(snapshot),
            ..Self::default()
        };
        for device in &snapshot.devices {
            let ports = || snapshot.ports.iter().filter(|p| p.device_uid == device.uid);
            if ports().any(|p| p.tx_bytes.is_some() || p.rx_bytes.is_some()) {
                ports().for_each(|p| {
                    out.tx.add(p.tx_bytes.and_then(|c| c.rate));
                    out.rx.add(p.rx_bytes.and_then(|c| c.rate));
                });
            } else {
                let [tx, rx] = by_qps(snapshot, device.uid);
                out.tx.add(tx);
                out.rx.add(rx);
                // Reads by a peer are sent, and its writes received, without a work request here.
                (out.tx.partial, out.rx.partial) = (true, true);
            }
        }
        for process in snapshot.processes.iter().filter(|p| p.qps > 0) {
            out.wr.add(process.traffic.tx_wr.and_then(|c| c.rate));
        }
        for qp in snapshot.qps.iter().filter(|q| !q.exited) {
            out.qps += 1;
            out.stuck += u64::from(Stuck::of(qp, snapshot.mono_ns).is_some());
            match out.states.iter_mut().find(|(state, _)| *state == qp.state) {
                Some((_, count)) => *count += 1,
                None => out.states.push((qp.state, 1)),
            }
        }
        out.states
            .sort_by_key(|(state, _)| state.map_or(u16::MAX, |s| u16::from(s.0)));
        for probe in &snapshot.health.probes {
            let at = match probe.verdict {
                Verdict::Ok => 0,
                Verdict::Partial => 1,
                Verdict::Broken => 2,
                Verdict::NotApplicable | Verdict::Unsupported => 3,
            };
            out.probes[at] += 1;
        }
        out
    }
}

/// Sent and received bytes per second by what eBPF counted by QP: what stands in where a provider has no byte
/// counters (rxe before 7.2). The bytes of an RDMA READ are asked for by a send WR, and received.
fn by_qps(snapshot: &Snapshot, device: u64) -> [Option<f64>; 2] {
    let mut sum: [Option<f64>; 2] = [None; 2];
    for qp in snapshot.qps.iter().filter(|q| q.device_uid == Some(device)) {
        let t = &qp.traffic;
        let reads = t
            .by_opcode
            .iter()
            .filter(|o| o.opcode.name().is_some_and(|n| n.starts_with("rdma_read")));
        let read: f64 = reads.filter_map(|o| o.bytes.rate).sum();
        let rate = |c: &Option<Counter>| c.as_ref().and_then(|c| c.rate);
        if let Some(tx) = rate(&t.tx_bytes) {
            *sum[0].get_or_insert(0.0) += (tx - read).max(0.0);
        }
        if let Some(rx) = rate(&t.rx_bytes) {
            *sum[1].get_or_insert(0.0) += rx + read;
        }
    }
    sum
}

fn scale(snapshot: &Snapshot) -> Scale {
    let ports = &snapshot.ports;
    let bytes = ports.iter().any(|p| p.tx_bytes.is_some() || p.rx_bytes.is_some());
    let link = bytes && ports.iter().all(|p| p.rate_bps.is_some_and(|r| r > 0));
    let counters = ports.iter().flat_map(|p| {
        if bytes {
            [p.tx_bytes, p.rx_bytes]
        } else {
            [p.tx_packets, p.rx_packets]
        }
    });
    Scale {
        link,
        packets: !bytes && !ports.is_empty(),
        max: counters.flatten().filter_map(|c| c.rate).fold(0.0, f64::max),
    }
}
