//! SoftRoCE.

use super::table::{
    Carries, Entry, Role, Table,
    Unit::{Bytes, Events, Packets, Requests},
    counter as c,
};

#[rustfmt::skip] // a counter is a line or two
const COUNTERS: &[Entry] = &[
    c("sent_pkts", Packets, "packets sent").is(Role::TxPackets),
    c("rcvd_pkts", Packets, "packets received").is(Role::RxPackets),
    // Before, rxe counts no bytes at all.
    c("sent_bytes", Bytes, "bytes sent, headers too").is(Role::TxBytes),
    c("rcvd_bytes", Bytes, "bytes received, headers too").is(Role::RxBytes),
    // Rounds: each returns to the first packet without an answer. The packets are counted by QP.
    c("completer_retry_err", Events, "times that a sender returned to its first packet without an answer").is(Role::Retries),
    c("send_rnr_err", Packets, "RNR NAKs sent: a receive queue here had no buffer").is(Role::RnrNaks),
    c("rcvd_rnr_err", Packets, "RNR NAKs received: a receive queue of the peer had no buffer").is(Role::RnrNaks),
    c("duplicate_request", Packets, "requests received that were answered before"),
    c("out_of_seq_request", Packets, "requests received out of order"),
    c("rcvd_seq_err", Packets, "NAKs received: the peer missed a packet"),
    c("ack_deferred", Events, "times that the work of answers had to wait"),
    c("retry_exceeded_err", Events, "requests given up after all retries"),
    c("retry_rnr_exceeded_err", Events, "requests given up after all retries for a receiver without buffers"),
    c("link_downed", Events, "times that the port went down"),
    c("rdma_sends", Requests, "SENDs sent"),
    c("rdma_recvs", Requests, "SENDs received"),
    c("send_err", Packets, "packets that could not be sent"),
];

pub(super) const TABLE: Table = Table {
    carries: Carries::Rdma,
    pma: false,
    counters: COUNTERS,
};
