//! ionic: AMD Pensando. The driver asks the firmware for names, places and widths (`ionic_init_hw_stats`).

use super::table::{
    Carries, Entry, Role, Table,
    Unit::{Bytes, Events, Packets},
    counter as c,
};

#[rustfmt::skip] // a counter is a line or two
const COUNTERS: &[Entry] = &[
    c("tx_rdma_ucast_bytes", Bytes, "bytes sent to one receiver").is(Role::TxBytes),
    c("tx_rdma_mcast_bytes", Bytes, "bytes sent to multicast groups").is(Role::TxBytes),
    c("rx_rdma_ucast_bytes", Bytes, "bytes received for one receiver").is(Role::RxBytes),
    c("rx_rdma_mcast_bytes", Bytes, "bytes received of multicast groups").is(Role::RxBytes),
    c("tx_rdma_ucast_pkts", Packets, "packets sent to one receiver").is(Role::TxPackets),
    c("tx_rdma_mcast_pkts", Packets, "packets sent to multicast groups").is(Role::TxPackets),
    c("rx_rdma_ucast_pkts", Packets, "packets received for one receiver").is(Role::RxPackets),
    c("rx_rdma_mcast_pkts", Packets, "packets received of multicast groups").is(Role::RxPackets),
    c("rx_rdma_cnp_pkts", Packets, "CNPs received").is(Role::CnpHandled),
    c("tx_rdma_cnp_pkts", Packets, "CNPs sent, to slow the peer down").is(Role::CnpSent),
    c("rx_rdma_ecn_pkts", Packets, "packets received with a mark of congestion (ECN)").is(Role::EcnMarked),
    c("req_rx_pkt_seq_err", Packets, "NAKs received: the peer missed a packet").is(Role::Retries),
    c("req_rx_impl_nak_seq_err", Packets, "answers received out of order, which say that one is missing").is(Role::Retries),
    c("req_rx_rnr_retry_err", Packets, "RNR NAKs received: a receive queue of the peer had no buffer").is(Role::RnrNaks),
    c("resp_tx_rnr_retry_err", Packets, "RNR NAKs sent: a receive queue here had no buffer").is(Role::RnrNaks),
    c("resp_rx_outof_buf", Packets, "packets that found no receive buffer").is(Role::OutOfBuffer),
    c("resp_rx_outouf_seq", Packets, "requests received out of order"),
    c("resp_rx_dup_request", Packets, "requests received that were answered before"),
    c("req_rx_dup_response", Packets, "answers received twice"),
    c("req_rx_cqe_err", Events, "as requester: completions with an error"),
    c("req_rx_cqe_flush", Events, "as requester: completions flushed because their QP went to ERR"),
    c("resp_rx_cqe_err", Events, "as responder: completions with an error"),
    c("resp_rx_cqe_flush", Events, "as responder: completions flushed because their QP went to ERR"),
    c("req_rx_rmt_acc_err", Events, "as requester: the peer denied access to its memory"),
    c("req_rx_rmt_req_err", Events, "as requester: the peer called a request invalid"),
    c("req_rx_oper_err", Events, "as requester: the peer could not finish a request"),
    c("req_tx_retry_excd_err", Events, "requests given up after all retries"),
    c("req_tx_loc_acc_err", Events, "as requester: access to local memory denied"),
    c("req_tx_loc_oper_err", Events, "as requester: errors of the QP's own operation"),
    c("resp_rx_loc_len_err", Events, "as responder: messages longer than the receive buffer"),
    c("resp_tx_rmt_acc_err", Events, "as responder: access of the peer to memory denied"),
];

pub(super) const TABLE: Table = Table {
    carries: Carries::Unknown,
    pma: false,
    counters: COUNTERS,
};
