//! The fields that processes and QPs have in common. Each table sets its own priorities and places.

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

/// Makes a table of the given fields and those of traffic that no column shows.
macro_rules! with_traffic {
    ($row:ty; [$($field:expr,)*] $($place:literal $name:ident $label:literal: $help:literal,)*) => {
        &[
            $($field,)*
            $(counter(stringify!($name), $help, |r: &$row, _| Value::total(r.traffic().$name))
                .json(concat!(stringify!($name), ".total")).detail($place, $label),)*
            super::object("by_opcode", "send WRs by opcode"),
            super::object("by_status", "completions by status"),
            super::object("latency", "times from post to completion"),
        ]
    };
    ($row:ty; $($field:expr,)*) => {
        with_traffic![$row; [$($field,)*]
            110 tx_wr_posted "send WRs posted": "send WRs posted",
            130 rx_wr_posted "receive WRs posted": "receive WRs posted, as of the last receive completion, modify or destroy",
            190 flushes "flushes": "completions flushed because the QP went to ERR",
            210 rnr_waits "RNR waits": "waits for a receiver without buffers",
            220 doorbells "doorbells": "calls of post_send that reached the kernel",
            230 cq_overflows "CQ overflows": "completions for which the CQ had no room",
        ]
    };
}

pub(super) use with_traffic;

/// Makes a function for each common field; each table gives its own priority and place.
macro_rules! fields {
    ($($name:ident($($own:ident),*) = $kind:ident($id:literal, $help:literal, $get:ident $counter:ident)
        $(.$with:ident($($value:expr),*))*;)*) => {$(
        pub(super) const fn $name<R: Moves>($($own: u8),*) -> Field<R> {
            $kind($id, $help, |r: &R, _| Value::$get(r.traffic().$counter))$(.$with($($value),*))*
        }
    )*};
}

fields! {
    tx_wr(priority, place) = rate("tx_wr", "send WRs finished per second", rate tx_wr)
        .sense(Sense::Sent).json("tx_wr.rate").screen("TX WR/s", priority, (7, 8)).page(place, "TXWR/s").detail(100, "send WRs finished");
    rx_wr(priority, place) = rate("rx_wr", "receive WRs completed per second", rate rx_wr)
        .sense(Sense::Received).json("rx_wr.rate").screen("RX WR/s", priority, (7, 8)).page(place, "RXWR/s").detail(120, "receive WRs");
    tx(priority, place) = rate("tx", "bytes of send WRs (READ: those asked for); else of ports", rate tx_bytes)
        .unit(Unit::Bytes).sense(Sense::Sent)
        .json("tx_bytes.rate").screen("TX", priority, (7, 8)).page(place, "TX/s").detail(140, "bytes of send WRs");
    rx(priority, place) = rate("rx", "bytes of receive completions; else of ports", rate rx_bytes)
        .unit(Unit::Bytes).sense(Sense::Received)
        .json("rx_bytes.rate").screen("RX", priority, (7, 8)).page(place, "RX/s").detail(150, "bytes of receive WRs");
    packets() = rate("packets", "packets sent per second: of a QP from the movement of its send PSN, of a process as the NIC counts them, or by those PSNs",
        rate tx_packets).json("tx_packets.rate").detail(160, "packets sent");
    completions() = rate("cqe", "completions per second", rate completions).json("completions.rate").detail(170, "completions");
    err(priority, place) = counter("err", "completions with an error, total", total completion_errors)
        .sense(Sense::Fault).json("completion_errors.total").screen("ERR", priority, (4, 6)).page(place, "CQE_ERR").detail(180, "completion errors");
    retx(priority, place) = counter("retx", "request packets sent again, total", total retransmits)
        .sense(Sense::Fault).json("retransmits.total").screen("RETX", priority, (4, 6)).page(place, "RETX").detail(200, "retransmits");
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
