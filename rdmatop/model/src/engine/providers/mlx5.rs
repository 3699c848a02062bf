//! mlx5: ConnectX-4 and later, `BlueField`.

use super::table::{
    Carries, Entry,
    Proof::TestDriver,
    Role, Table,
    Unit::{Bytes, Events, Packets, Requests},
    counter as c,
};

#[rustfmt::skip] // a counter is a line or two
const COUNTERS: &[Entry] = &[
    // Fields of 32 bits of query_q_counter_out (mlx5_ib_query_q_counters).
    c("rx_write_requests", Requests, "RDMA WRITEs received").wraps().by(TestDriver),
    c("rx_read_requests", Requests, "RDMA READs received").wraps().by(TestDriver),
    c("rx_atomic_requests", Requests, "atomics received").wraps().by(TestDriver),
    c("rx_dct_connect", Requests, "connections of dynamically connected transport received").wraps().by(TestDriver),
    c("out_of_buffer", Packets, "packets dropped because a receive queue had no buffer").is(Role::OutOfBuffer).wraps().by(TestDriver),
    c("out_of_sequence", Packets, "packets received out of order").wraps().by(TestDriver),
    c("duplicate_request", Packets, "requests received that were answered before").wraps().by(TestDriver),
    // mlx5 counts the causes of retransmission, not the packets.
    c("rnr_nak_retry_err", Packets, "RNR NAKs received: a receive queue of the peer had no buffer").is(Role::RnrNaks).wraps().by(TestDriver),
    c("packet_seq_err", Packets, "NAKs received: the peer missed a packet").is(Role::Retries).wraps().by(TestDriver),
    c("implied_nak_seq_err", Packets, "answers received out of order, which say that one is missing").is(Role::Retries).wraps().by(TestDriver),
    c("local_ack_timeout_err", Events, "times that no answer came in time").is(Role::Retries).wraps().by(TestDriver),
    c("roce_adp_retrans", Events, "adaptive retransmissions").is(Role::Retries).wraps().by(TestDriver),
    c("roce_adp_retrans_to", Events, "adaptive retransmissions that ended in a timeout").wraps().by(TestDriver),
    c("roce_slow_restart", Events, "slow restarts after retransmission").wraps().by(TestDriver),
    c("roce_slow_restart_cnps", Packets, "CNPs sent because of slow restart").wraps().by(TestDriver),
    c("roce_slow_restart_trans", Events, "times that the state of slow restart changed").wraps().by(TestDriver),
    c("resp_local_length_error", Events, "as responder: messages longer than the receive buffer").wraps().by(TestDriver),
    c("resp_cqe_error", Events, "as responder: completions with an error").wraps().by(TestDriver),
    c("req_cqe_error", Events, "as requester: completions with an error").wraps().by(TestDriver),
    c("req_remote_invalid_request", Events, "as requester: the peer called a request invalid").wraps().by(TestDriver),
    c("req_remote_access_errors", Events, "as requester: the peer denied access to its memory").wraps().by(TestDriver),
    c("resp_remote_access_errors", Events, "as responder: access of the peer to memory denied").wraps().by(TestDriver),
    c("resp_cqe_flush_error", Events, "as responder: completions flushed because their QP went to ERR").wraps().by(TestDriver),
    c("req_cqe_flush_error", Events, "as requester: completions flushed because their QP went to ERR").wraps().by(TestDriver),
    c("req_transport_retries_exceeded", Events, "as requester: requests given up after all retries").wraps(),
    c("req_rnr_retries_exceeded", Events, "as requester: requests given up after all retries for a receiver without buffers").wraps(),
    // Fields of 64 bits of query_cong_statistics_out; not on a VF.
    c("rp_cnp_ignored", Packets, "CNPs received and ignored").by(TestDriver),
    c("rp_cnp_handled", Packets, "CNPs received: a sender here was slowed down").is(Role::CnpHandled).by(TestDriver),
    c("np_ecn_marked_roce_packets", Packets, "packets received with a mark of congestion (ECN)").is(Role::EcnMarked).by(TestDriver),
    c("np_cnp_sent", Packets, "CNPs sent, to slow the peer down").is(Role::CnpSent).by(TestDriver),
    c("rx_icrc_encapsulated", Packets, "RoCE packets received with a wrong checksum (ICRC)").by(TestDriver),
    // Optional counters of flow steering: `rdma statistic set link mlx5_0/1 optional-counters NAMES`.
    c("cc_rx_ce_pkts", Packets, "packets received with a mark of congestion (ECN); optional").else_is(Role::EcnMarked).since("5.16").by(TestDriver),
    c("cc_rx_cnp_pkts", Packets, "CNPs received; optional").else_is(Role::CnpHandled).since("5.16").by(TestDriver),
    c("cc_tx_cnp_pkts", Packets, "CNPs sent; optional").else_is(Role::CnpSent).since("5.16").by(TestDriver),
    c("rdma_tx_packets", Packets, "RDMA packets sent; optional").else_is(Role::TxPackets).since("6.15"),
    c("rdma_tx_bytes", Bytes, "RDMA bytes sent; optional").else_is(Role::TxBytes).since("6.15"),
    c("rdma_rx_packets", Packets, "RDMA packets received; optional").else_is(Role::RxPackets).since("6.15"),
    c("rdma_rx_bytes", Bytes, "RDMA bytes received; optional").else_is(Role::RxBytes).since("6.15"),
];

pub(super) const TABLE: Table = Table {
    name: "mlx5",
    source: "hw/mlx5/counters.c",
    note: "Counters of a representor's port (switchdev) have `vport_` in front and the same meaning and width, and are in no sum.",
    carries: Carries::RdmaOnEthernet(
        "`port_xmit_data` and `port_rcv_data` are the RDMA octets of the function's vport (hw/mlx5/mad.c, `pma_cnt_ext_assign`); \
         InfiniBand ports also carry IP (IPoIB)",
    ),
    pma: true,
    counters: COUNTERS,
};
