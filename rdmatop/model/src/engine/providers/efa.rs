//! EFA, of Amazon EC2.

use super::table::{
    Carries, Entry, Role, Table,
    Unit::{Bytes, Events, Packets, Requests},
    counter as c,
};

#[rustfmt::skip] // a counter is a line or two
const COUNTERS: &[Entry] = &[
    c("tx_bytes", Bytes, "bytes sent").is(Role::TxBytes),
    c("rx_bytes", Bytes, "bytes received").is(Role::RxBytes),
    c("tx_pkts", Packets, "packets sent").is(Role::TxPackets),
    c("rx_pkts", Packets, "packets received").is(Role::RxPackets),
    c("rx_drops", Packets, "packets dropped on receipt").is(Role::Drops),
    c("retrans_bytes", Bytes, "bytes sent again"),
    c("retrans_pkts", Packets, "packets sent again").is(Role::Retransmits),
    c("retrans_timeout_events", Events, "times that no answer came in time").is(Role::Retries),
    c("unresponsive_remote_events", Events, "times that a peer did not answer any more"),
    c("impaired_remote_conn_events", Events, "times that the path to a peer was impaired"),
    c("send_bytes", Bytes, "payload of SENDs"),
    c("send_wrs", Requests, "SENDs"),
    c("recv_bytes", Bytes, "payload of receives"),
    c("recv_wrs", Requests, "receives"),
    c("rdma_read_wrs", Requests, "RDMA READs"),
    c("rdma_read_bytes", Bytes, "payload of RDMA READs"),
    c("rdma_read_wr_err", Requests, "RDMA READs that failed"),
    c("rdma_read_resp_bytes", Bytes, "payload that peers read"),
    c("rdma_write_wrs", Requests, "RDMA WRITEs"),
    c("rdma_write_bytes", Bytes, "payload of RDMA WRITEs"),
    c("rdma_write_wr_err", Requests, "RDMA WRITEs that failed"),
    c("rdma_write_recv_bytes", Bytes, "payload that peers wrote"),
    c("submitted_cmds", Requests, "commands to the device"),
    c("completed_cmds", Requests, "commands that the device answered"),
    c("cmds_err", Requests, "commands that failed"),
    c("no_completion_cmds", Requests, "commands that the device did not answer"),
    c("keep_alive_rcvd", Events, "signs of life of the device"),
    c("alloc_pd_err", Requests, "protection domains that could not be made"),
    c("create_qp_err", Requests, "QPs that could not be made"),
    c("create_cq_err", Requests, "CQs that could not be made"),
    c("reg_mr_err", Requests, "memory regions that could not be registered"),
    c("alloc_ucontext_err", Requests, "contexts of processes that could not be made"),
    c("create_ah_err", Requests, "addresses of peers that could not be made"),
    c("mmap_err", Requests, "mappings of the device that failed"),
];

pub(super) const TABLE: Table = Table {
    carries: Carries::Rdma,
    pma: false,
    counters: COUNTERS,
};
