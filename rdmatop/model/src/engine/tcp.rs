//! What processes move by TCP where they could use RDMA.

use std::net::SocketAddr;

use super::{
    Engine,
    meter::{Meter, Width},
};
use crate::{
    input::{TcpSample, TcpTotals},
    snapshot::TcpTraffic,
    value::Source,
};

/// The TCP traffic of one process.
#[derive(Debug)]
pub(super) struct Tcp {
    sent: Meter,
    received: Meter,
    connections: u32,
    busiest: Option<SocketAddr>,
}

impl Tcp {
    /// The traffic as a row has it.
    pub(super) fn row(&self, now_ns: u64) -> TcpTraffic {
        TcpTraffic {
            tx_bytes: self.sent.counter(Source::SockDiag, now_ns),
            rx_bytes: self.received.counter(Source::SockDiag, now_ns),
            connections: self.connections,
            busiest: self.busiest,
        }
    }
}

impl Engine {
    pub(super) fn tcp(&mut self, sample: &TcpSample) {
        let before_ns = sample.before.map(|before| before.mono_ns);
        for totals in &sample.processes {
            let uid = self.processes.caller(totals.pid, before_ns, sample.at.mono_ns);
            let min = self.config.min_interval_ns;
            if let Some(process) = self.processes.get_mut(uid) {
                let tcp = process.tcp.get_or_insert_with(|| Box::new(begin(sample)));
                tcp.read(totals, sample, min);
            }
        }
    }
}

/// Totals count from when connections were first seen, and a process that is new was not worth a search
/// before.
fn begin(sample: &TcpSample) -> Tcp {
    let zero = || Meter::new(0, sample.before.unwrap_or_default());
    Tcp {
        sent: zero(),
        received: zero(),
        connections: 0,
        busiest: None,
    }
}

impl Tcp {
    fn read(&mut self, totals: &TcpTotals, sample: &TcpSample, min_interval_ns: u64) {
        for (meter, total) in [
            (&mut self.sent, totals.sent),
            (&mut self.received, totals.received),
        ] {
            meter.read(total, sample.at, Width::Bits64, min_interval_ns);
        }
        (self.connections, self.busiest) = (totals.connections, totals.busiest);
    }
}
