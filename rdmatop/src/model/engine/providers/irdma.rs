//! irdma: Intel E810, X722 and IPU.

use super::table::{
    Carries, Entry,
    Proof::TestDriver,
    Role, Table,
    Unit::{Bytes, Events, Packets, Requests},
    counter as c,
};

/// Until this kernel version some names have `tcp` or `iw` in front, from the next on they have none.
const OLD: &str = "6.17";
const NEW: &str = "6.18";

#[rustfmt::skip] // a counter is a line or two
const COUNTERS: &[Entry] = &[
    // The driver adds up what the hardware counts in 24, 32 or 48 bits (irdma_update_stats), so that these do not wrap.
    c("ip4OutOctets", Bytes, "bytes sent in IPv4 packets").is(Role::TxBytes).by(TestDriver),
    c("ip6OutOctets", Bytes, "bytes sent in IPv6 packets").is(Role::TxBytes),
    c("ip4InOctets", Bytes, "bytes received in IPv4 packets").is(Role::RxBytes),
    c("ip6InOctets", Bytes, "bytes received in IPv6 packets").is(Role::RxBytes),
    c("ip4OutPkts", Packets, "IPv4 packets sent").is(Role::TxPackets),
    c("ip6OutPkts", Packets, "IPv6 packets sent").is(Role::TxPackets),
    c("ip4InPkts", Packets, "IPv4 packets received").is(Role::RxPackets),
    c("ip6InPkts", Packets, "IPv6 packets received").is(Role::RxPackets),
    c("ip4InDiscards", Packets, "IPv4 packets dropped on receipt").is(Role::Drops),
    c("ip6InDiscards", Packets, "IPv6 packets dropped on receipt").is(Role::Drops),
    c("RetransSegs", Packets, "packets sent again").is(Role::Retransmits).since(NEW),
    c("tcpRetransSegs", Packets, "packets sent again").else_is(Role::Retransmits).until(OLD),
    c("RxECNMrkd", Packets, "packets received with a mark of congestion (ECN)").is(Role::EcnMarked),
    c("cnpHandled", Packets, "CNPs received: a sender here was slowed down").is(Role::CnpHandled),
    c("cnpIgnored", Packets, "CNPs received and ignored"),
    c("cnpSent", Packets, "CNPs sent, to slow the peer down").is(Role::CnpSent),
    c("RNR sent", Packets, "RNR NAKs sent: a receive queue here had no buffer").is(Role::RnrNaks).since(NEW),
    c("RNR received", Packets, "RNR NAKs received: a receive queue of the peer had no buffer").is(Role::RnrNaks).since(NEW),
    c("Nak Sequence Error", Packets, "NAKs received: the peer missed a packet").is(Role::Retries).since(NEW),
    c("Nak Sequence Error Implied", Packets, "answers received out of order, which say that one is missing").is(Role::Retries).since(NEW),
    c("RTO", Events, "times that no answer came in time").is(Role::Retries).since(NEW),
    c("Rcvd Out of order packets", Packets, "packets received out of order").since(NEW),
    c("CRC errors", Packets, "packets received with a wrong checksum (ICRC)").since(NEW),
    c("ip4InTruncatedPkts", Packets, "IPv4 packets received that were cut off"),
    c("ip6InTruncatedPkts", Packets, "IPv6 packets received that were cut off"),
    c("ip4OutNoRoutes", Packets, "IPv4 packets not sent: the next hop was not known"),
    c("ip6OutNoRoutes", Packets, "IPv6 packets not sent: the next hop was not known"),
    c("rxVlanErrors", Packets, "packets received with a wrong VLAN"),
    c("InOptErrors", Packets, "segments received with an option that is not supported").since(NEW),
    c("tcpInOptErrors", Packets, "segments received with an option that is not supported").until(OLD),
    c("InProtoErrors", Packets, "packets received that break the protocol").since(NEW),
    c("tcpInProtoErrors", Packets, "packets received that break the protocol").until(OLD),
    c("InSegs", Packets, "segments received (iWARP)").since(NEW),
    c("tcpInSegs", Packets, "segments received (iWARP)").until(OLD),
    c("OutSegs", Packets, "segments sent (iWARP)").since(NEW),
    c("tcpOutSegs", Packets, "segments sent (iWARP)").until(OLD),
    c("RxUDP", Packets, "RoCE packets received"),
    c("TxUDP", Packets, "RoCE packets sent"),
    c("InRdmaReads", Requests, "RDMA READs received").since(NEW),
    c("iwInRdmaReads", Requests, "RDMA READs received").until(OLD),
    c("InRdmaSends", Requests, "SENDs received").since(NEW),
    c("iwInRdmaSends", Requests, "SENDs received").until(OLD),
    c("InRdmaWrites", Requests, "RDMA WRITEs received").since(NEW),
    c("iwInRdmaWrites", Requests, "RDMA WRITEs received").until(OLD),
    c("OutRdmaReads", Requests, "RDMA READs sent").since(NEW),
    c("iwOutRdmaReads", Requests, "RDMA READs sent").until(OLD),
    c("OutRdmaSends", Requests, "SENDs sent").since(NEW),
    c("iwOutRdmaSends", Requests, "SENDs sent").until(OLD),
    c("OutRdmaWrites", Requests, "RDMA WRITEs sent").since(NEW),
    c("iwOutRdmaWrites", Requests, "RDMA WRITEs sent").until(OLD),
];

pub(super) const TABLE: Table = Table {
    name: "irdma",
    source: "hw/irdma/verbs.c",
    note: "In Linux 5.10 the driver of X722 is i40iw, with the older names. IPU (GEN3) alone has RNR, NAK and RTO counters.",
    carries: Carries::Unknown(
        "octets of IP: whether packets of the network device are among them is not verified",
    ),
    pma: false,
    counters: COUNTERS,
};
