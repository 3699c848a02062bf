//! `iw_cxgb4`: Chelsio T4 to T6, which speak iWARP.

use super::table::{Carries, Entry, Table, Unit::Packets, counter as c};

#[rustfmt::skip] // a counter is a line or two
const COUNTERS: &[Entry] = &[
    // Of all TCP of the adapter: cxgb4_get_tcp_stats. Resets have 32 bits (struct tp_tcp_stats).
    c("ip4InSegs", Packets, "TCP segments received in IPv4, of the whole adapter"),
    c("ip4OutSegs", Packets, "TCP segments sent in IPv4, of the whole adapter"),
    c("ip4RetransSegs", Packets, "TCP segments sent again in IPv4, of the whole adapter"),
    c("ip4OutRsts", Packets, "TCP resets sent in IPv4, of the whole adapter").wraps(),
    c("ip6InSegs", Packets, "TCP segments received in IPv6, of the whole adapter"),
    c("ip6OutSegs", Packets, "TCP segments sent in IPv6, of the whole adapter"),
    c("ip6RetransSegs", Packets, "TCP segments sent again in IPv6, of the whole adapter"),
    c("ip6OutRsts", Packets, "TCP resets sent in IPv6, of the whole adapter").wraps(),
];

pub(super) const TABLE: Table = Table {
    carries: Carries::Unknown,
    pma: false,
    counters: COUNTERS,
};
