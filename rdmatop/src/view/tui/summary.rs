//! Sums over a snapshot, made once for each snapshot and not for each frame.

use crate::model::ib::QpState;
use crate::model::input::Verdict;
use crate::model::snapshot::Snapshot;
use crate::model::value::Counter;

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
            // A provider without byte counters (rxe before 7.2): what eBPF counted by QP stands in.
            let from_qps = |get: fn(&crate::model::snapshot::QpRow) -> Option<&Counter>| {
                let rates = snapshot.qps.iter().filter(|q| q.device_uid == Some(device.uid));
                rates
                    .filter_map(|q| get(q)?.rate)
                    .fold(None, |sum: Option<f64>, r| Some(sum.unwrap_or(0.0) + r))
            };
            if ports().any(|p| p.tx_bytes.is_some() || p.rx_bytes.is_some()) {
                ports().for_each(|p| {
                    out.tx.add(p.tx_bytes.and_then(|c| c.rate));
                    out.rx.add(p.rx_bytes.and_then(|c| c.rate));
                });
            } else {
                out.tx.add(from_qps(|q| q.traffic.tx_bytes.as_ref()));
                out.rx.add(from_qps(|q| q.traffic.rx_bytes.as_ref()));
            }
        }
        for process in snapshot.processes.iter().filter(|p| p.qps > 0) {
            out.wr.add(process.traffic.tx_wr.and_then(|c| c.rate));
        }
        for qp in snapshot.qps.iter().filter(|q| !q.exited) {
            out.qps += 1;
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
