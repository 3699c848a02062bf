//! mlx4: ConnectX-3.

use super::table::{
    Carries, Entry, Role, Table,
    Unit::{Events, Packets},
    counter as c,
};

#[rustfmt::skip] // a counter is a line or two
const COUNTERS: &[Entry] = &[
    // diag_basic, diag_ext and diag_device_only, of 32 bits each (mlx4_query_diag_counters).
    c("rq_num_lle", Events, "as responder: messages longer than the receive buffer").wraps(),
    c("sq_num_lle", Events, "as requester: answers longer than their buffer").wraps(),
    c("rq_num_lqpoe", Events, "as responder: errors of the QP's own operation").wraps(),
    c("sq_num_lqpoe", Events, "as requester: errors of the QP's own operation").wraps(),
    c("rq_num_lpe", Events, "as responder: local protection errors").wraps(),
    c("sq_num_lpe", Events, "as requester: local protection errors").wraps(),
    c("rq_num_wrfe", Events, "as responder: completions flushed because their QP went to ERR").wraps(),
    c("sq_num_wrfe", Events, "as requester: completions flushed because their QP went to ERR").wraps(),
    c("sq_num_mwbe", Events, "memory windows that could not be bound").wraps(),
    c("sq_num_bre", Events, "bad responses received").wraps(),
    c("sq_num_rire", Events, "as requester: the peer called a request invalid").wraps(),
    c("rq_num_rire", Events, "as responder: invalid requests received").wraps(),
    c("sq_num_rae", Events, "as requester: the peer denied access to its memory").wraps(),
    c("rq_num_rae", Events, "as responder: access of the peer to memory denied").wraps(),
    c("sq_num_roe", Events, "as requester: the peer could not finish a request").wraps(),
    c("sq_num_tree", Events, "requests given up after all retries").wraps(),
    c("sq_num_rree", Events, "requests given up after all retries for a receiver without buffers").wraps(),
    c("rq_num_rnr", Packets, "RNR NAKs sent: a receive queue here had no buffer").is(Role::RnrNaks).wraps(),
    c("sq_num_rnr", Packets, "RNR NAKs received: a receive queue of the peer had no buffer").is(Role::RnrNaks).wraps(),
    c("rq_num_oos", Packets, "requests received out of order").wraps(),
    c("sq_num_oos", Packets, "NAKs received: the peer missed a packet").is(Role::Retries).wraps(),
    c("rq_num_dup", Packets, "requests received that were answered before").wraps(),
    c("sq_num_to", Events, "times that no answer came in time").is(Role::Retries).wraps(),
    c("num_cqovf", Events, "completion queues that overflowed").wraps(),
    c("rq_num_udsdprd", Packets, "datagrams dropped because a receive queue had no buffer").is(Role::OutOfBuffer).wraps(),
];

pub(super) const TABLE: Table = Table {
    carries: Carries::More,
    pma: true,
    counters: COUNTERS,
};
