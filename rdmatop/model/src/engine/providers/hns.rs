//! hns: Huawei Kunpeng.

use super::table::{
    Carries, Entry, Role, Table,
    Unit::{Events, Packets},
    counter as c,
};

#[rustfmt::skip] // a counter is a line or two
const COUNTERS: &[Entry] = &[
    c("tx_pkt", Packets, "packets sent").is(Role::TxPackets),
    c("rx_pkt", Packets, "packets received").is(Role::RxPackets),
    c("rx_cnp_pkt", Packets, "CNPs received").is(Role::CnpHandled),
    c("tx_cnp_pkt", Packets, "CNPs sent, to slow the peer down").is(Role::CnpSent),
    c("rx_err_pkt", Packets, "packets received with an error"),
    c("tx_err_pkt", Packets, "packets with an error that were to be sent"),
    c("rx_rc_pkt", Packets, "packets of RC received"),
    c("rx_uc_pkt", Packets, "packets of UC received"),
    c("rx_ud_pkt", Packets, "packets of UD received"),
    c("rx_xrc_pkt", Packets, "packets of XRC received"),
    c("tx_rc_pkt", Packets, "packets of RC sent"),
    c("tx_uc_pkt", Packets, "packets of UC sent"),
    c("tx_ud_pkt", Packets, "packets of UD sent"),
    c("tx_xrc_pkt", Packets, "packets of XRC sent"),
    c("ecn_doorbell", Events, "doorbells of congestion control"),
    c("rx_buffer", Events, "not described in the source"),
    c("trp_get_mpt_err_pkt", Packets, "packets whose memory region could not be read"),
    c("trp_get_irrl_err_pkt", Packets, "packets whose list of outstanding READs could not be read"),
    c("trp_rx_sof", Packets, "not described in the source"),
    c("cq_cqe", Events, "completions"),
    c("cq_poe", Events, "not described in the source"),
    c("cq_notify", Events, "notifications of completion queues"),
];

pub(super) const TABLE: Table = Table {
    carries: Carries::Unknown,
    pma: false,
    counters: COUNTERS,
};
