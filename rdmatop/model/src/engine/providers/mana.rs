//! MANA, of Microsoft Azure.

use super::table::{
    Carries, Entry, Role, Table,
    Unit::{Bytes, Events, Gauge, Packets, Requests},
    counter as c,
};

#[rustfmt::skip] // a counter is a line or two
const COUNTERS: &[Entry] = &[
    c("tx_bytes", Bytes, "bytes sent").is(Role::TxBytes),
    c("rx_bytes", Bytes, "bytes received").is(Role::RxBytes),
    c("tx_packets", Packets, "packets sent").is(Role::TxPackets),
    c("rx_packets", Packets, "packets received").is(Role::RxPackets),
    c("requester_timeout", Events, "times that no answer came in time").is(Role::Retries),
    c("requester_oos_nak", Packets, "NAKs received: the peer missed a packet").is(Role::Retries),
    c("requester_implicit_nak", Packets, "answers received out of order, which say that one is missing").is(Role::Retries),
    c("requester_rnr_nak", Packets, "RNR NAKs received: a receive queue of the peer had no buffer").is(Role::RnrNaks),
    c("responder_rnr_nak", Packets, "RNR NAKs sent: a receive queue here had no buffer").is(Role::RnrNaks),
    c("received_cnps", Packets, "CNPs received").is(Role::CnpHandled),
    c("responder_oos", Packets, "requests received out of order"),
    c("responder_dup_request", Packets, "requests received that were answered before"),
    c("requester_readresp_psn_mismatch", Packets, "answers to READs received out of order"),
    c("nak_inv_req", Packets, "NAKs: invalid request"),
    c("nak_access_error", Packets, "NAKs: access denied"),
    c("nak_opp_error", Packets, "NAKs: the peer could not finish a request"),
    c("nak_inv_read", Packets, "NAKs: invalid READ"),
    c("responder_local_len_error", Events, "as responder: messages longer than the receive buffer"),
    c("requestor_local_prot_error", Events, "as requester: local protection errors"),
    c("responder_rem_access_error", Events, "as responder: access of the peer to memory denied"),
    c("responder_local_qp_error", Events, "as responder: errors of the QP's own operation"),
    c("responder_malformed_wqe", Events, "as responder: receives of a wrong format"),
    c("general_hw_error", Events, "errors of the hardware that have no counter of their own"),
    c("requester_rnr_nak_retries_exceeded", Events, "requests given up after all retries for a receiver without buffers"),
    c("requester_retries_exceeded", Events, "requests given up after all retries"),
    c("total_fatal_error", Events, "errors that a QP did not survive"),
    c("num_qps_congested", Gauge, "QPs that congestion slows down"),
    c("rate_inc_events", Events, "times that congestion control made a QP faster"),
    c("num_qps_recovered", Gauge, "QPs that recovered from congestion"),
    c("current_rate", Gauge, "rate of congestion control"),
    c("dup_rx_requests", Packets, "requests received twice"),
    c("rx_send_requests", Requests, "SENDs received"),
    c("rx_write_requests", Requests, "RDMA WRITEs received"),
    c("rx_read_requests", Requests, "RDMA READs received"),
    // Of the device. It also has a rate_inc_events, as the port has.
    c("sent_cnps", Packets, "CNPs sent, to slow the peer down").is(Role::CnpSent),
    c("received_ecns", Packets, "packets received with a mark of congestion (ECN)").is(Role::EcnMarked),
    c("received_cnp_count", Packets, "CNPs received, as the device counts them"),
    c("qp_congested_events", Events, "times that congestion slowed a QP down"),
    c("qp_recovered_events", Events, "times that a QP recovered from congestion"),
];

pub(super) const TABLE: Table = Table {
    carries: Carries::Unknown,
    pma: false,
    counters: COUNTERS,
};
