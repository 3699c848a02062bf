//! `bnxt_re`: Broadcom NetXtreme-E.

use super::table::{
    Carries, Entry,
    Proof::TestDriver,
    Role, Table,
    Unit::{Bytes, Events, Gauge, Packets, Requests},
    counter as c,
};

/// Until this kernel version counters have the driver's own names, from the next on those that mlx5 has for the same.
const OWN: &str = "6.17";
const AS_MLX5: &str = "6.18";

#[rustfmt::skip] // a counter is a line or two
const COUNTERS: &[Entry] = &[
    c("tx_bytes", Bytes, "bytes sent").is(Role::TxBytes).by(TestDriver),
    c("rx_bytes", Bytes, "bytes received").is(Role::RxBytes),
    c("tx_pkts", Packets, "packets sent").is(Role::TxPackets),
    c("rx_pkts", Packets, "packets received").is(Role::RxPackets),
    c("tx_roce_errors", Packets, "packets with an error that were to be sent"),
    c("tx_roce_discards", Packets, "packets dropped that were to be sent"),
    c("rx_roce_errors", Packets, "packets received with an error"),
    c("rx_roce_discards", Packets, "packets dropped on receipt").is(Role::Drops),
    c("rx_out_of_buffer", Packets, "packets dropped because a receive queue had no buffer").is(Role::OutOfBuffer).until(OWN),
    c("out_of_buffer", Packets, "packets dropped because a receive queue had no buffer").is(Role::OutOfBuffer).since(AS_MLX5),
    c("to_retransmits", Events, "times that no answer came in time").is(Role::Retries).until(OWN),
    c("local_ack_timeout_err", Events, "times that no answer came in time").else_is(Role::Retries).since(AS_MLX5),
    c("seq_err_naks_rcvd", Packets, "NAKs received: the peer missed a packet").is(Role::Retries).until(OWN),
    c("packet_seq_err", Packets, "NAKs received: the peer missed a packet").else_is(Role::Retries).since(AS_MLX5),
    c("missing_resp", Packets, "answers that did not come").until(OWN),
    c("implied_nak_seq_err", Packets, "answers that did not come").since(AS_MLX5),
    c("rnr_naks_rcvd", Packets, "RNR NAKs received: a receive queue of the peer had no buffer").is(Role::RnrNaks).until(OWN),
    c("rnr_nak_retry_err", Packets, "RNR NAKs received: a receive queue of the peer had no buffer").else_is(Role::RnrNaks).since(AS_MLX5),
    c("rx_ecn_marked_pkts", Packets, "packets received with a mark of congestion (ECN)").is(Role::EcnMarked).until(OWN),
    c("np_ecn_marked_roce_packets", Packets, "packets received with a mark of congestion (ECN)").else_is(Role::EcnMarked).since(AS_MLX5),
    c("rx_cnp_pkts", Packets, "CNPs received").is(Role::CnpHandled).until(OWN),
    c("rp_cnp_handled", Packets, "CNPs received").else_is(Role::CnpHandled).since(AS_MLX5),
    c("tx_cnp_pkts", Packets, "CNPs sent, to slow the peer down").is(Role::CnpSent).until(OWN),
    c("np_cnp_pkts", Packets, "CNPs sent, to slow the peer down").else_is(Role::CnpSent).since(AS_MLX5),
    c("oos_drop_count", Packets, "packets dropped because they came out of order").until(OWN),
    c("out_of_sequence", Packets, "packets dropped because they came out of order").since(AS_MLX5),
    c("max_retry_exceeded", Events, "requests given up after all retries"),
    c("unrecoverable_err", Events, "errors that a QP did not survive"),
    c("recoverable_errors", Events, "errors that QPs survived"),
    c("bad_resp_err", Events, "bad responses received"),
    c("local_qp_op_err", Events, "errors of a QP's own operation"),
    c("local_protection_err", Events, "local protection errors"),
    c("mem_mgmt_op_err", Events, "errors of memory management"),
    c("remote_op_err", Events, "the peer could not finish a request"),
    c("remote_invalid_req_err", Events, "the peer called a request invalid").until(OWN),
    c("req_remote_invalid_request", Events, "the peer called a request invalid").since(AS_MLX5),
    c("remote_access_err", Events, "the peer denied access to its memory").until(OWN),
    c("req_remote_access_errors", Events, "the peer denied access to its memory").since(AS_MLX5),
    c("dup_req", Packets, "requests received that were answered before").until(OWN),
    c("duplicate_request", Packets, "requests received that were answered before").since(AS_MLX5),
    c("res_length_mismatch", Events, "as responder: messages longer than the receive buffer").until(OWN),
    c("resp_local_length_error", Events, "as responder: messages longer than the receive buffer").since(AS_MLX5),
    c("tx_read_req", Requests, "RDMA READs sent"),
    c("tx_write_req", Requests, "RDMA WRITEs sent"),
    c("tx_send_req", Requests, "SENDs sent"),
    c("tx_atomic_req", Requests, "atomics sent"),
    c("rx_send_req", Requests, "SENDs received"),
    c("tx_roce_only_bytes", Bytes, "RoCE bytes sent"),
    c("rx_roce_only_bytes", Bytes, "RoCE bytes received"),
    c("tx_roce_only_pkts", Packets, "RoCE packets sent"),
    c("rx_roce_only_pkts", Packets, "RoCE packets received"),
    c("rx_roce_good_pkts", Packets, "RoCE packets received without an error"),
    c("rx_roce_good_bytes", Bytes, "RoCE bytes received without an error"),
    c("active_qps", Gauge, "QPs that exist").until(OWN),
];

pub(super) const TABLE: Table = Table {
    name: "bnxt_re",
    source: "hw/bnxt_re/hw_counters.c",
    note: "Linux 6.18 gave names that mlx5 has to many of them; of each pair only one is there.",
    carries: Carries::Unknown(
        "`tx_bytes` and `rx_bytes` are the unicast bytes of a statistics context of the NIC, beside counters of RoCE alone: whether \
         other packets pass it is not verified",
    ),
    pma: false,
    counters: COUNTERS,
};
