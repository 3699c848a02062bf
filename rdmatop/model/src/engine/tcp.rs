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
        for totals in &sample.processes {
            let uid = self.at_ticks(totals.pid, totals.start_ticks, sample.at.mono_ns);
            if let Some(process) = self.get_mut(uid) {
                // What it had moved before the last interval makes no rate, however late its row is.
                let [sent, received] = [0, 1].map(|way| {
                    let before = totals.moved[way].saturating_sub(totals.lately[way]);
                    Meter::new(before, sample.before.unwrap_or_default())
                });
                let tcp = process.tcp.get_or_insert_with(|| {
                    Box::new(Tcp {
                        sent,
                        received,
                        connections: 0,
                        busiest: None,
                    })
                });
                tcp.sent.read(totals.moved[0], sample.at, Width::Bits64);
                tcp.received.read(totals.moved[1], sample.at, Width::Bits64);
                (tcp.connections, tcp.busiest) = (totals.connections, totals.busiest);
            }
        }
    }
}
