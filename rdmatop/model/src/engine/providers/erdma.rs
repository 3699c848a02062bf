//! erdma, of Alibaba Cloud.

use super::table::{
    Carries, Entry, Role, Table,
    Unit::{Bytes, Events, Packets, Requests},
    counter as c,
};

#[rustfmt::skip] // a counter is a line or two
const COUNTERS: &[Entry] = &[
    c("tx_bytes_cnt", Bytes, "bytes sent").is(Role::TxBytes),
    c("rx_bytes_cnt", Bytes, "bytes received").is(Role::RxBytes),
    c("tx_packets_cnt", Packets, "packets sent").is(Role::TxPackets),
    c("rx_packets_cnt", Packets, "packets received").is(Role::RxPackets),
    c("tx_reqs_cnt", Requests, "requests sent"),
    c("tx_disable_drop_cnt", Packets, "packets not sent: the device is disabled").is(Role::Drops),
    c("tx_bps_limit_drop_cnt", Packets, "packets not sent: the instance's limit of bytes").is(Role::Drops),
    c("tx_pps_limit_drop_cnt", Packets, "packets not sent: the instance's limit of packets").is(Role::Drops),
    c("rx_disable_drop_cnt", Packets, "packets not received: the device is disabled").is(Role::Drops),
    c("rx_bps_limit_drop_cnt", Packets, "packets not received: the instance's limit of bytes").is(Role::Drops),
    c("rx_pps_limit_drop_cnt", Packets, "packets not received: the instance's limit of packets").is(Role::Drops),
    // The driver outside Linux, of Alibaba Cloud, has the same under other names.
    c("hw_tx_bytes_cnt", Bytes, "bytes sent").else_is(Role::TxBytes),
    c("hw_rx_bytes_cnt", Bytes, "bytes received").else_is(Role::RxBytes),
    c("hw_tx_packets_cnt", Packets, "packets sent").else_is(Role::TxPackets),
    c("hw_rx_packets_cnt", Packets, "packets received").else_is(Role::RxPackets),
    c("hw_tx_reqs_cnt", Requests, "requests sent"),
    c("hw_disable_drop_cnt", Packets, "packets not sent: the device is disabled").else_is(Role::Drops),
    c("hw_bps_limit_drop_cnt", Packets, "packets not sent: the instance's limit of bytes").else_is(Role::Drops),
    c("hw_pps_limit_drop_cnt", Packets, "packets not sent: the instance's limit of packets").else_is(Role::Drops),
    c("hw_rx_disable_drop_cnt", Packets, "packets not received: the device is disabled").else_is(Role::Drops),
    c("hw_rx_bps_limit_drop_cnt", Packets, "packets not received: the instance's limit of bytes").else_is(Role::Drops),
    c("hw_rx_pps_limit_drop_cnt", Packets, "packets not received: the instance's limit of packets").else_is(Role::Drops),
    c("connect_timeout_cnt", Events, "connections that timed out"),
    c("connect_failed_cnt", Events, "connections that failed"),
    c("connect_reset_cnt", Events, "connections that were reset"),
];

pub(super) const TABLE: Table = Table {
    carries: Carries::Unknown,
    pma: false,
    counters: COUNTERS,
};
