//! What processes and QPs have in common. Priorities and places are the tables' own.

use super::{Field, Sense, Unit, Value, counter, gauge, rate};
use crate::snapshot::{ProcessRow, QpRow, Traffic};

/// A row with traffic.
pub(super) trait Moves {
    fn traffic(&self) -> &Traffic;
}

impl Moves for ProcessRow {
    fn traffic(&self) -> &Traffic {
        &self.traffic
    }
}

impl Moves for QpRow {
    fn traffic(&self) -> &Traffic {
        &self.traffic
    }
}

/// Fields of traffic that stand in JSON only.
macro_rules! with_traffic {
    ($row:ty; $($field:expr,)*) => {
        &[
            $($field,)*
            traffic::total("tx_wr_posted", "tx_wr_posted.total", "send WRs posted", |r: &$row, _| Value::total(r.traffic().tx_wr_posted)).detail(110, "send WRs posted"),
            traffic::total("rx_wr_posted", "rx_wr_posted.total", "receive WRs posted, as of the last receive completion, modify or destroy",
                |r: &$row, _| Value::total(r.traffic().rx_wr_posted)).detail(130, "receive WRs posted"),
            traffic::total("flushes", "flushes.total", "completions flushed because the QP went to ERR", |r: &$row, _| Value::total(r.traffic().flushes)).detail(190, "flushes"),
            traffic::total("rnr_waits", "rnr_waits.total", "waits for a receiver without buffers", |r: &$row, _| Value::total(r.traffic().rnr_waits)).detail(210, "RNR waits"),
            traffic::total("doorbells", "doorbells.total", "calls of post_send that reached the kernel", |r: &$row, _| Value::total(r.traffic().doorbells)).detail(220, "doorbells"),
            traffic::total("cq_overflows", "cq_overflows.total", "completions for which the CQ had no room", |r: &$row, _| Value::total(r.traffic().cq_overflows)).detail(230, "CQ overflows"),
            super::object("by_opcode", "send WRs by opcode"),
            super::object("by_status", "completions by status"),
            super::object("latency", "times from post to completion"),
        ]
    };
}

pub(super) use with_traffic;

/// A total for JSON only, under its own key.
pub(super) const fn total<R: Moves>(
    id: &'static str,
    json: &'static str,
    help: &'static str,
    get: super::Get<R>,
) -> Field<R> {
    counter(id, help, get).json(json)
}

pub(super) const fn tx_wr<R: Moves>(priority: u8, place: u8) -> Field<R> {
    rate("tx_wr", "send WRs finished per second", |r: &R, _| {
        Value::rate(r.traffic().tx_wr)
    })
    .sense(Sense::Sent)
    .json("tx_wr.rate")
    .screen("TX WR/s", priority, (7, 8))
    .page(place, "TXWR/s")
    .detail(100, "send WRs finished")
}

pub(super) const fn rx_wr<R: Moves>(priority: u8, place: u8) -> Field<R> {
    rate("rx_wr", "receive WRs completed per second", |r: &R, _| {
        Value::rate(r.traffic().rx_wr)
    })
    .sense(Sense::Received)
    .json("rx_wr.rate")
    .screen("RX WR/s", priority, (7, 8))
    .page(place, "RXWR/s")
    .detail(120, "receive WRs")
}

pub(super) const fn tx<R: Moves>(priority: u8, place: u8) -> Field<R> {
    let help = "bytes of send WRs (READ: those asked for); else of ports";
    rate("tx", help, |r: &R, _| Value::rate(r.traffic().tx_bytes))
        .unit(Unit::Bytes)
        .sense(Sense::Sent)
        .json("tx_bytes.rate")
        .screen("TX", priority, (7, 8))
        .page(place, "TX/s")
        .detail(140, "bytes of send WRs")
}

pub(super) const fn rx<R: Moves>(priority: u8, place: u8) -> Field<R> {
    rate("rx", "bytes of receive completions; else of ports", |r: &R, _| {
        Value::rate(r.traffic().rx_bytes)
    })
    .unit(Unit::Bytes)
    .sense(Sense::Received)
    .json("rx_bytes.rate")
    .screen("RX", priority, (7, 8))
    .page(place, "RX/s")
    .detail(150, "bytes of receive WRs")
}

pub(super) const fn completions<R: Moves>() -> Field<R> {
    rate("cqe", "completions per second", |r: &R, _| {
        Value::rate(r.traffic().completions)
    })
    .json("completions.rate")
    .detail(170, "completions")
}

pub(super) const fn packets<R: Moves>() -> Field<R> {
    let help = "packets sent per second: of a QP from the movement of its send PSN, of a process as the NIC counts them";
    rate("packets", help, |r: &R, _| Value::rate(r.traffic().tx_packets))
        .json("tx_packets.rate")
        .detail(160, "packets sent")
}

pub(super) const fn err<R: Moves>(priority: u8, place: u8) -> Field<R> {
    let help = "completions with an error, total";
    counter("err", help, |r: &R, _| {
        Value::total(r.traffic().completion_errors)
    })
    .sense(Sense::Fault)
    .json("completion_errors.total")
    .screen("ERR", priority, (4, 6))
    .page(place, "CQE_ERR")
    .detail(180, "completion errors")
}

pub(super) const fn retx<R: Moves>(priority: u8, place: u8) -> Field<R> {
    let help = "request packets sent again, total";
    counter("retx", help, |r: &R, _| Value::total(r.traffic().retransmits))
        .sense(Sense::Fault)
        .json("retransmits.total")
        .screen("RETX", priority, (4, 6))
        .page(place, "RETX")
        .detail(200, "retransmits")
}

pub(super) const fn p99<R: Moves>(priority: u8, place: u8) -> Field<R> {
    let help = "post to completion: 99 of 100 take less";
    gauge("p99", help, |r: &R, _| {
        Value::time(r.traffic().latency.as_ref(), |l| l.p99_ns)
    })
    .unit(Unit::UpperNanoseconds)
    .json("latency.p99_ns")
    .screen("P99", priority, (6, 7))
    .page(place, "P99")
}
