//! `ports/N/counters` of the InfiniBand specification, `PortCounters` and `PortCountersExtended`: names,
//! units and widths are those of the specification with every driver that has them.

use super::table::{
    Carries, Entry, Role, Table,
    Unit::{Events, Packets, Ticks, Words},
    counter as c,
};

#[rustfmt::skip] // a counter is a line or two
const COUNTERS: &[Entry] = &[
    // Where the device has the extended ones, data and packets have 64 bits and pass the largest value of 32.
    c("port_xmit_data", Words, "data sent").is(Role::TxBytes).stops(32),
    c("port_rcv_data", Words, "data received").is(Role::RxBytes).stops(32),
    c("port_xmit_packets", Packets, "packets sent").is(Role::TxPackets).stops(32),
    c("port_rcv_packets", Packets, "packets received").is(Role::RxPackets).stops(32),
    c("unicast_xmit_packets", Packets, "of the packets sent those to one receiver"),
    c("unicast_rcv_packets", Packets, "of the packets received those to one receiver"),
    c("multicast_xmit_packets", Packets, "of the packets sent those to a multicast group"),
    c("multicast_rcv_packets", Packets, "of the packets received those to a multicast group"),
    c("port_xmit_discards", Packets, "packets to be sent that the port discarded: it was down, or they waited too long")
        .is(Role::Drops).stops(16),
    // It counts ticks, not marks of congestion.
    c("port_xmit_wait", Ticks, "time in which the port had data to send and no credit of the other end").stops(32),
    c("symbol_error", Events, "errors of the line code").stops(16),
    c("link_error_recovery", Events, "times that the link recovered from errors by itself").stops(8),
    c("link_downed", Events, "times that the link went down because recovery failed").stops(8),
    c("port_rcv_errors", Packets, "packets received with an error").stops(16),
    c("port_rcv_remote_physical_errors", Packets, "packets that a switch marked as bad on the way").stops(16),
    c("port_rcv_switch_relay_errors", Packets, "packets that a switch could not forward").stops(16),
    c("port_xmit_constraint_errors", Packets, "packets not sent: partition or kind not permitted").stops(8),
    c("port_rcv_constraint_errors", Packets, "packets discarded on receipt: partition or kind not permitted").stops(8),
    c("local_link_integrity_errors", Events, "times that errors of the physical link passed their limit").stops(4),
    c("excessive_buffer_overrun_errors", Events, "times that buffers overran in several flow-control periods in a row").stops(4),
    c("VL15_dropped", Packets, "management packets dropped for want of a buffer").stops(16),
];

pub(super) const TABLE: Table = Table {
    carries: Carries::More,
    pma: true,
    counters: COUNTERS,
};
