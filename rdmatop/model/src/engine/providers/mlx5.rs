//! mlx5: ConnectX-4 and later, `BlueField`.

use super::table::{
    Carries, Entry, Role, Table,
    Unit::{Bytes, Events, Packets, Requests},
    counter as c,
};

#[rustfmt::skip] // a counter is a line or two
const COUNTERS: &[Entry] = &[
    // Fields of 32 bits of query_q_counter_out (mlx5_ib_query_q_counters).
    c("rx_write_requests", Requests, "RDMA WRITEs received").wraps(),
    c("rx_read_requests", Requests, "RDMA READs received").wraps(),
    c("rx_atomic_requests", Requests, "atomics received").wraps(),
    c("rx_dct_connect", Requests, "connections of dynamically connected transport received").wraps(),
    c("out_of_buffer", Packets, "packets dropped because a receive queue had no buffer").is(Role::OutOfBuffer).wraps(),
    c("out_of_sequence", Packets, "packets received out of order").wraps(),
    c("duplicate_request", Packets, "requests received that were answered before").wraps(),
    // mlx5 counts the causes of retransmission, not the packets.
    c("rnr_nak_retry_err", Packets, "RNR NAKs received: a receive queue of the peer had no buffer").is(Role::RnrNaks).wraps(),
    c("packet_seq_err", Packets, "NAKs received: the peer missed a packet").is(Role::Retries).wraps(),
    c("implied_nak_seq_err", Packets, "answers received out of order, which say that one is missing").is(Role::Retries).wraps(),
    c("local_ack_timeout_err", Events, "times that no answer came in time").is(Role::Retries).wraps(),
    c("roce_adp_retrans", Events, "adaptive retransmissions").is(Role::Retries).wraps(),
    c("roce_adp_retrans_to", Events, "adaptive retransmissions that ended in a timeout").wraps(),
    c("roce_slow_restart", Events, "slow restarts after retransmission").wraps(),
    c("roce_slow_restart_cnps", Packets, "CNPs sent because of slow restart").wraps(),
    c("roce_slow_restart_trans", Events, "times that the state of slow restart changed").wraps(),
    c("resp_local_length_error", Events, "as responder: messages longer than the receive buffer").wraps(),
    c("resp_cqe_error", Events, "as responder: completions with an error").wraps(),
    c("req_cqe_error", Events, "as requester: completions with an error").wraps(),
    c("req_remote_invalid_request", Events, "as requester: the peer called a request invalid").wraps(),
    c("req_remote_access_errors", Events, "as requester: the peer denied access to its memory").wraps(),
    c("resp_remote_access_errors", Events, "as responder: access of the peer to memory denied").wraps(),
    c("resp_cqe_flush_error", Events, "as responder: completions flushed because their QP went to ERR").wraps(),
    c("req_cqe_flush_error", Events, "as requester: completions flushed because their QP went to ERR").wraps(),
    c("req_transport_retries_exceeded", Events, "as requester: requests given up after all retries").wraps(),
    c("req_rnr_retries_exceeded", Events, "as requester: requests given up after all retries for a receiver without buffers").wraps(),
    // Fields of 64 bits of query_cong_statistics_out; not on a VF.
    c("rp_cnp_ignored", Packets, "CNPs received and ignored"),
    c("rp_cnp_handled", Packets, "CNPs received: a sender here was slowed down").is(Role::CnpHandled),
    c("np_ecn_marked_roce_packets", Packets, "packets received with a mark of congestion (ECN)").is(Role::EcnMarked),
    c("np_cnp_sent", Packets, "CNPs sent, to slow the peer down").is(Role::CnpSent),
    c("rx_icrc_encapsulated", Packets, "RoCE packets received with a wrong checksum (ICRC)"),
    // Optional counters of flow steering: `rdma statistic set link mlx5_0/1 optional-counters NAMES`.
    c("cc_rx_ce_pkts", Packets, "packets received with a mark of congestion (ECN); optional").else_is(Role::EcnMarked),
    c("cc_rx_cnp_pkts", Packets, "CNPs received; optional").else_is(Role::CnpHandled),
    c("cc_tx_cnp_pkts", Packets, "CNPs sent; optional").else_is(Role::CnpSent),
    c("rdma_tx_packets", Packets, "RDMA packets sent; optional").else_is(Role::TxPackets),
    c("rdma_tx_bytes", Bytes, "RDMA bytes sent; optional").else_is(Role::TxBytes),
    c("rdma_rx_packets", Packets, "RDMA packets received; optional").else_is(Role::RxPackets),
    c("rdma_rx_bytes", Bytes, "RDMA bytes received; optional").else_is(Role::RxBytes),
];

pub(super) const TABLE: Table = Table {
    carries: Carries::RdmaOnEthernet,
    pma: true,
    counters: COUNTERS,
};
