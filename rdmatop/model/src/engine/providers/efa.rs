//! EFA, of Amazon EC2.

use super::table::{
    Carries, Entry,
    Proof::TestDriver,
    Role, Table,
    Unit::{Bytes, Events, Packets, Requests},
    counter as c,
};

#[rustfmt::skip] // a counter is a line or two
const COUNTERS: &[Entry] = &[
    c("tx_bytes", Bytes, "bytes sent").is(Role::TxBytes).by(TestDriver),
    c("rx_bytes", Bytes, "bytes received").is(Role::RxBytes).by(TestDriver),
    c("tx_pkts", Packets, "packets sent").is(Role::TxPackets).by(TestDriver),
    c("rx_pkts", Packets, "packets received").is(Role::RxPackets).by(TestDriver),
    c("rx_drops", Packets, "packets dropped on receipt").is(Role::Drops).by(TestDriver),
    c("retrans_bytes", Bytes, "bytes sent again").since("6.17").by(TestDriver),
    c("retrans_pkts", Packets, "packets sent again").is(Role::Retransmits).since("6.17").by(TestDriver),
    c("retrans_timeout_events", Events, "times that no answer came in time").is(Role::Retries).since("6.17").by(TestDriver),
    c("unresponsive_remote_events", Events, "times that a peer did not answer any more").since("6.17"),
    c("impaired_remote_conn_events", Events, "times that the path to a peer was impaired").since("6.17"),
    c("send_bytes", Bytes, "payload of SENDs").by(TestDriver),
    c("send_wrs", Requests, "SENDs").by(TestDriver),
    c("recv_bytes", Bytes, "payload of receives").by(TestDriver),
    c("recv_wrs", Requests, "receives").by(TestDriver),
    c("rdma_read_wrs", Requests, "RDMA READs").by(TestDriver),
    c("rdma_read_bytes", Bytes, "payload of RDMA READs").by(TestDriver),
    c("rdma_read_wr_err", Requests, "RDMA READs that failed").by(TestDriver),
    c("rdma_read_resp_bytes", Bytes, "payload that peers read").by(TestDriver),
    c("rdma_write_wrs", Requests, "RDMA WRITEs").since("6.4").by(TestDriver),
    c("rdma_write_bytes", Bytes, "payload of RDMA WRITEs").since("6.4").by(TestDriver),
    c("rdma_write_wr_err", Requests, "RDMA WRITEs that failed").since("6.4").by(TestDriver),
    c("rdma_write_recv_bytes", Bytes, "payload that peers wrote").since("6.4").by(TestDriver),
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
    name: "EFA",
    source: "hw/efa/efa_verbs.c",
    note: "SRD has neither RNR NAKs nor marks of congestion that the driver reports.",
    carries: Carries::Rdma(
        "an EFA device has no network device: IP traffic of the instance goes through ENA",
    ),
    pma: false,
    counters: COUNTERS,
};
