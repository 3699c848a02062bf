//! Ports.

use std::borrow::Cow;

use super::{Field, Kind, Sense, Table, Unit, Value, counter, gauge, object, rate, state, text};
use crate::{
    ib::{PhysState, PortState},
    snapshot::{PortRow, Snapshot},
};

/// Returns device and port number; sorted as in the snapshot, where mlx5_2 comes before mlx5_10, so that
/// rails have their usual order.
fn name<'a>(port: &'a PortRow, s: &'a Snapshot) -> Value<'a> {
    let is_it = |p: &PortRow| (p.device_uid, p.port) == (port.device_uid, port.port);
    let at = s.ports.iter().position(is_it).unwrap_or(s.ports.len());
    Value::State(at as u64, Cow::Owned(format!("{}/{}", port.device, port.port)))
}

/// Returns the network device, and for a bond how many of its links are up: `bond0 1/2 up`.
fn interface<'a>(port: &'a PortRow, _: &'a Snapshot) -> Value<'a> {
    match (&port.netdev, &port.bond) {
        (Some(netdev), Some(bond)) => Value::Text(Cow::Owned(format!("{netdev} {} up", bond.links_up()))),
        (netdev, _) => Value::text(netdev.as_ref()),
    }
}

/// Returns a share that may be unknown.
fn share(share: Option<f64>) -> Value<'static> {
    share.map_or(Value::Unknown, Value::Share)
}

type P = PortRow;

/// Fields of a port.
#[rustfmt::skip] // a row of the table is a line or two
pub static PORT: Table<PortRow> = &[
    state("port", "device and port number", name).json("").screen("PORT", 0, (9, 16)).page(0, "PORT"),
    state("state", "logical state of the port; REMOVING: the removal of its device waits until no process holds it",
        |p: &P, _| Value::word(p.state, |s| s.0.into(), |s| PortState::name(*s)))
        .words(&["link"]).screen("STATE", 1, (8, 12)).page(10, "STATE").detail(0, "state"),
    text("finding", "what is wrong with it and since when; 7 says more", super::finding::of_port)
        .json("").words(&["finding"]).screen("FINDING", 1, (14, 26)),
    gauge("link", "link rate, bits per second; -: the provider has no true one", |p: &P, _| Value::number(p.rate_bps))
        .unit(Unit::BitsPerSecond).json("rate_bps").screen("LINK", 4, (4, 5)).page(60, "RATE").detail(20, "link"),
    text("netdev", "network device of the port; bond0 1/2 up: a bond, and how many of its links are up", interface)
        .words(&["netdev"]).json("").screen("NETDEV", 6, (8, 15)).page(40, "NETDEV").detail(40, "netdev"),
    text("netdev_name", "name of the network device", |p: &P, _| Value::text(p.netdev.as_ref())).json("netdev"),
    object("bond", "links of the bond under the port, and what passes each"),
    rate("tx", "sent per second on the wire, headers too; ~: payload of work requests, where the driver counts no bytes",
        |p: &P, s| Value::rate(s.judgement.scale.sent(p)))
        .unit(Unit::BytesOrPackets).sense(Sense::Sent).json("").screen("TX", 0, (8, 8)),
    Field::new(Kind::Share, "tx_bar", "sent, against the link, or against the busiest port where a rate is unknown",
        |p: &P, s| share(s.judgement.scale.share(p, s.judgement.scale.sent(p))))
        .sense(Sense::Sent).json("").screen("TX", 4, (10, 30)),
    rate("rx", "received per second on the wire, headers too; ~: payload of receives, where the driver counts no bytes",
        |p: &P, s| Value::rate(s.judgement.scale.received(p)))
        .unit(Unit::BytesOrPackets).sense(Sense::Received).json("").screen("RX", 0, (8, 8)),
    Field::new(Kind::Share, "rx_bar", "received, on the same scale",
        |p: &P, s| share(s.judgement.scale.share(p, s.judgement.scale.received(p))))
        .sense(Sense::Received).json("").screen("RX", 4, (10, 30)),
    counter("drops", "packets dropped, those that found no receive buffer too, total", |p: &P, _| Value::total(p.drops))
        .sense(Sense::Fault).json("drops.total").screen("DROP", 1, (5, 6)),
    counter("retx", "packets sent again, total (of SoftRoCE since attach); 12r: retries, where the driver counts only those",
        |p: &P, _| Value::total(p.retransmits.or(p.retries))).sense(Sense::Fault).json("").screen("RETX", 3, (5, 6)),
    counter("congestion", "signs of congestion received, ECN marks and CNPs together, total", |p: &P, _| Value::total(p.congestion))
        .sense(Sense::Fault).json("congestion.total").screen("CONG", 5, (5, 6)),
    counter("rnr", "RNR NAKs in both directions, total", |p: &P, _| Value::total(p.rnr_naks))
        .sense(Sense::Fault).json("rnr_naks.total").screen("RNR", 3, (4, 6)),
    Field::new(Kind::History, "history", "Tx and Rx together, newest right, each row to its own maximum",
        |p: &P, _| Value::History(&p.history)).json("").screen("HISTORY", 9, (10, 40)),
    rate("tx_bytes", "bytes sent on the wire per second", |p: &P, _| Value::rate(p.tx_bytes))
        .unit(Unit::Bytes).json("tx_bytes.rate").page(70, "TX/s").detail(100, "wire bytes sent"),
    rate("rx_bytes", "bytes received on the wire per second", |p: &P, _| Value::rate(p.rx_bytes))
        .unit(Unit::Bytes).json("rx_bytes.rate").page(80, "RX/s").detail(110, "wire bytes received"),
    rate("wr_tx_bytes", "payload of send WRs per second", |p: &P, _| Value::rate(p.wr_tx_bytes))
        .unit(Unit::Bytes).json("wr_tx_bytes.rate").page(90, "WRTX/s").detail(120, "payload bytes of send WRs"),
    rate("wr_rx_bytes", "payload of receive completions per second", |p: &P, _| Value::rate(p.wr_rx_bytes))
        .unit(Unit::Bytes).json("wr_rx_bytes.rate").page(100, "WRRX/s").detail(130, "payload bytes of receives"),
    rate("tx_packets", "packets sent per second", |p: &P, _| Value::rate(p.tx_packets))
        .json("tx_packets.rate").page(110, "TXPKT/s").detail(140, "packets sent"),
    rate("rx_packets", "packets received per second", |p: &P, _| Value::rate(p.rx_packets))
        .json("rx_packets.rate").page(120, "RXPKT/s").detail(150, "packets received"),
    rate("drop_rate", "packets dropped per second", |p: &P, _| Value::rate(p.drops)).json("drops.rate").page(130, "DROP/s").detail(160, "packets dropped"),
    rate("retx_rate", "packets sent again per second", |p: &P, _| Value::rate(p.retransmits))
        .json("retransmits.rate").page(140, "RETX/s").detail(170, "packets sent again"),
    rate("retry_rate", "times per second that a sender started again", |p: &P, _| Value::rate(p.retries))
        .json("retries.rate").page(150, "RETRY/s").detail(180, "retries"),
    rate("out_of_buffer", "packets per second that found no receive buffer, a part of the packets dropped", |p: &P, _| Value::rate(p.out_of_buffer))
        .json("out_of_buffer.rate").detail(165, "no receive buffer"),
    rate("congestion_rate", "signs of congestion received per second, ECN marks and CNPs together", |p: &P, _| Value::rate(p.congestion))
        .json("congestion.rate").page(160, "CONG/s").detail(190, "congestion marks"),
    rate("ecn_marked", "packets per second received with a mark of congestion (ECN)", |p: &P, _| Value::rate(p.ecn_marked))
        .json("ecn_marked.rate").detail(192, "ECN marks received"),
    rate("cnp_handled", "notifications of congestion (CNP) received per second: they slow a sender down", |p: &P, _| Value::rate(p.cnp_handled))
        .json("cnp_handled.rate").detail(194, "CNPs received"),
    rate("cnp_sent", "notifications of congestion (CNP) sent per second, to slow the peer down", |p: &P, _| Value::rate(p.cnp_sent))
        .json("cnp_sent.rate").detail(196, "CNPs sent"),
    rate("rnr_rate", "RNR NAKs per second, both directions", |p: &P, _| Value::rate(p.rnr_naks))
        .json("rnr_naks.rate").page(170, "RNR/s").detail(200, "RNR NAKs"),
    gauge("device_uid", "uid of its device", |p: &P, _| Value::number(Some(p.device_uid))),
    text("device", "device name", |p: &P, _| Value::Text(Cow::Borrowed(&p.device))).words(&["dev", "device"]),
    gauge("number", "port number", |p: &P, _| Value::number(Some(p.port))).json("port"),
    state("phys_state", "physical state", |p: &P, _| Value::word(p.phys_state, |s| s.0.into(), |s| PhysState::name(*s)))
        .page(20, "PHYS").detail(10, "phys"),
    text("link_layer", "Ethernet or InfiniBand", |p: &P, _| Value::text(p.link_layer.as_ref())).page(30, "LINK").detail(30, "layer"),
    gauge("netdev_mtu", "MTU of the network device, bytes", |p: &P, _| Value::number(p.netdev_mtu)).page(50, "MTU").detail(50, "netdev MTU"),
    object("counters", "every counter of the driver"),
    object("gauges", "every number of the driver that may fall"),
];
