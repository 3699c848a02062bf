//! Sums over a snapshot, made once for each snapshot and not for each frame.

use std::collections::BTreeMap;

use crate::model::ib::QpState;
use crate::model::input::Verdict;
use crate::model::snapshot::{PortRow, Snapshot};
use crate::model::value::{Counter, Source};

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
    /// No provider counts bytes: bars and rates are packets.
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
        // A provider without byte counters of its own (rxe): what eBPF counted by QP stands in.
        let mut by_qps: BTreeMap<u64, [Option<f64>; 2]> = BTreeMap::new();
        for device in &snapshot.devices {
            let ports = || snapshot.ports.iter().filter(|p| p.device_uid == device.uid);
            if ports().any(counts_bytes) {
                ports().for_each(|p| {
                    out.tx.add(p.tx_bytes.and_then(|c| c.rate));
                    out.rx.add(p.rx_bytes.and_then(|c| c.rate));
                });
            } else {
                by_qps.insert(device.uid, [None; 2]);
            }
        }
        for process in snapshot.processes.iter().filter(|p| p.qps > 0) {
            out.wr.add(process.traffic.tx_wr.and_then(|c| c.rate));
        }
        for qp in &snapshot.qps {
            let t = &*qp.traffic;
            // Without any traffic to tell of, a row of ten thousand is not looked at further.
            if !by_qps.is_empty()
                && (t.tx_bytes.is_some() || t.rx_bytes.is_some())
                && let Some(sums) = qp.device_uid.and_then(|uid| by_qps.get_mut(&uid))
            {
                // The bytes of a READ are asked for by a send WR, and received.
                let reads = t.by_opcode.iter().filter(|o| matches!(o.opcode.0, 4 | 11));
                let read: f64 = reads.filter_map(|o| o.bytes.rate).sum();
                let rates = [t.tx_bytes, t.rx_bytes].map(|c| c.and_then(|c| c.rate));
                let moved = [
                    rates[0].map(|tx| (tx - read).max(0.0)),
                    rates[1].map(|rx| rx + read),
                ];
                for (sum, rate) in sums.iter_mut().zip(moved) {
                    if let Some(rate) = rate {
                        *sum.get_or_insert(0.0) += rate;
                    }
                }
            }
            if qp.exited {
                continue;
            }
            out.qps += 1;
            out.stuck += u64::from(Stuck::of(qp, snapshot.mono_ns).is_some());
            match out.states.iter_mut().find(|(state, _)| *state == qp.state) {
                Some((_, count)) => *count += 1,
                None => out.states.push((qp.state, 1)),
            }
        }
        for [tx, rx] in by_qps.into_values() {
            out.tx.add(tx);
            out.rx.add(rx);
            // Reads by a peer are sent, and its writes received, without a work request here.
            (out.tx.partial, out.rx.partial) = (true, true);
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

/// Whether the port has byte counters of the provider's own, which every byte passes.
pub(super) fn counts_bytes(port: &PortRow) -> bool {
    let own = |c: Counter| c.source != Source::Ebpf;
    port.tx_bytes.is_some_and(own) || port.rx_bytes.is_some_and(own)
}

fn scale(snapshot: &Snapshot) -> Scale {
    let ports = &snapshot.ports;
    // Packets of the provider are all there were; bytes that eBPF counted are those of work requests only.
    let packets = !ports.iter().any(counts_bytes)
        && ports
            .iter()
            .any(|p| p.tx_packets.is_some() || p.rx_packets.is_some());
    let bytes = !packets && ports.iter().any(|p| p.tx_bytes.is_some() || p.rx_bytes.is_some());
    let link = bytes && ports.iter().all(|p| p.rate_bps.is_some_and(|r| r > 0));
    let counters = ports.iter().flat_map(|p| {
        if packets {
            [p.tx_packets, p.rx_packets]
        } else {
            [p.tx_bytes, p.rx_bytes]
        }
    });
    Scale {
        link,
        packets,
        max: counters.flatten().filter_map(|c| c.rate).fold(0.0, f64::max),
    }
}
