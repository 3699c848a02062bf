//! What processes move by TCP where they could use RDMA.

use std::net::SocketAddr;

use super::{
    meter::{Meter, Width},
    processes::Processes,
};
use crate::{input::TcpSample, snapshot::TcpTraffic, value::Source};

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

impl Processes {
    /// Folds a reading of TCP connections in.
    pub(super) fn tcp(&mut self, sample: &TcpSample) {
        let before_ns = sample.before.map(|before| before.mono_ns);
        for totals in &sample.processes {
            let uid = self.caller(totals.pid, before_ns, sample.at.mono_ns);
            if let Some(process) = self.get_mut(uid) {
                // Totals count from when connections were first seen, and a process that is new was not worth
                // a search before.
                let zero = Meter::new(0, sample.before.unwrap_or_default());
                let tcp = process.tcp.get_or_insert_with(|| {
                    Box::new(Tcp {
                        sent: zero,
                        received: zero,
                        connections: 0,
                        busiest: None,
                    })
                });
                tcp.sent.read(totals.sent, sample.at, Width::Bits64);
                tcp.received.read(totals.received, sample.at, Width::Bits64);
                (tcp.connections, tcp.busiest) = (totals.connections, totals.busiest);
            }
        }
    }
}
