//! `hfi1`: Omni-Path.

use super::table::{
    Carries, Entry, Role, Table,
    Unit::{Events, Packets, Ticks, Words},
    counter as c,
};

/// Counters of 32 bits have this behind their names (init_cntrs, hw/hfi1/chip.c).
const BITS_32: &str = ",32";

#[rustfmt::skip] // a counter is a line or two
const COUNTERS: &[Entry] = &[
    c("TxWords", Words, "data sent").else_is(Role::TxBytes),
    c("RxWords", Words, "data received").else_is(Role::RxBytes),
    c("TxPkt", Packets, "packets sent").else_is(Role::TxPackets),
    c("RxPkt", Packets, "packets received").else_is(Role::RxPackets),
    c("TxDropped,32", Packets, "packets to be sent that were dropped").else_is(Role::Drops).wraps(),
    c("RcResend", Packets, "packets of RC sent again").is(Role::Retransmits),
    c("RcTimeOut", Events, "times that no answer came in time").is(Role::Retries),
    c("RcSeqNak", Packets, "NAKs received: the peer missed a packet").is(Role::Retries),
    c("RnrNak", Packets, "RNR NAKs received: a receive queue of the peer had no buffer").is(Role::RnrNaks),
    c("TxUnVLErr,32", Packets, "packets on a virtual lane that the port does not have").wraps(),
    c("TxInvalLen,32", Packets, "packets of a wrong length that were to be sent").wraps(),
    c("TxMMLenErr,32", Packets, "packets too short or too long that were to be sent").wraps(),
    c("TxUnderrun,32", Packets, "packets whose data came too late to be sent").wraps(),
    c("TxFlowStall,32", Ticks, "time in which no credit to send was there").wraps(),
    c("TxHdrErr,32", Packets, "packets with a wrong header that were to be sent").wraps(),
    c("TxWait", Ticks, "time in which the port had data to send and could not"),
    c("TxFlitVL", Ticks, "data sent on a virtual lane, in flits of 8 bytes"),
    c("TxPktVL", Packets, "packets sent on a virtual lane"),
    c("TxWaitVL", Ticks, "time in which a virtual lane had data to send and could not"),
    // The driver makes 64 bits of these, in spite of the name (CNTR_SYNTH, read_dev_port_cntr).
    c("SwLinkDown,32", Events, "times that the link went down"),
    c("SwLinkUp,32", Events, "times that the link came up"),
    c("XmitDscd,32", Packets, "packets discarded that were to be sent"),
    c("XmitDscdVl,32", Packets, "packets discarded that were to be sent on a virtual lane"),
    c("UnknownFrame", Packets, "packets received of a kind that is not known"),
    c("XmitCstrErr", Packets, "packets not sent: partition or kind not permitted"),
    c("RcvCstrErr", Packets, "packets discarded on receipt: partition or kind not permitted"),
    c("LoopPkts", Packets, "packets that a QP of this port sent to another one of it"),
    c("OtherNak", Packets, "NAKs received of another kind"),
    c("PktDrop", Packets, "packets dropped by the driver"),
    c("DmaWait", Events, "times that a QP waited for DMA"),
    c("RcDupRew", Packets, "requests received that were answered before"),
    c("RdmaSeq", Packets, "answers received out of order"),
    c("Unaligned", Packets, "packets received that are not aligned"),
    c("SeqNak", Packets, "NAKs sent: a packet is missing"),
    c("RcCrWait", Events, "times that a QP waited for credits of its peer"),
    c("RcAcks", Packets, "acknowledgements of RC sent"),
    c("RcQacks", Packets, "acknowledgements of RC that had to wait"),
    c("RcDelayComp", Events, "completions of RC that were late"),
    c("RcvHdrOvr", Packets, "packets dropped because a receive context had no room for their header"),
];

pub(super) const TABLE: Table = Table {
    carries: Carries::More,
    pma: true,
    counters: COUNTERS,
};

/// The name that the table has for a counter of a lane or a context: without its number.
pub(super) fn without_number(name: &str) -> Option<String> {
    let (name, bits) = name
        .strip_suffix(BITS_32)
        .map_or((name, ""), |name| (name, BITS_32));
    let bare = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (bare != name).then(|| format!("{bare}{bits}"))
}
