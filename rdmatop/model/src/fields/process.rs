//! Processes and kernel consumers.

use std::{borrow::Cow, sync::Arc};

use super::traffic::{self, Moves as _, with_traffic};
use super::{Field, Kind, Sense, Table, Unit, Value, counter, flag, gauge, object, rate, text};
use crate::{input::GpuPlace, snapshot::ProcessRow, value::Counter};

/// Returns the sum of both; if one is unknown, the sum is a lower bound.
fn both(a: Option<Counter>, b: Option<Counter>) -> Option<Counter> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.plus(b)),
        (Some(one), None) | (None, Some(one)) => Some(one.plus_unknown()),
        (None, None) => None,
    }
}

type P = ProcessRow;

/// Returns all errors of a process. If one kind of error is unknown, zero errors of the other kind mean
/// nothing. Kernel consumers make no verb calls. A process without QPs may have had some.
pub fn errors(row: &ProcessRow) -> Option<Counter> {
    match (row.traffic.completion_errors, row.verb_errors) {
        (Some(completions), None) if row.kernel || row.pid.is_none() => Some(completions),
        (completions, verbs) => both(completions, verbs).filter(|sum| !sum.partial || sum.total > 0),
    }
}

/// Returns the addresses of GPUs, or that there is none.
fn addresses(gpus: &[Arc<GpuPlace>]) -> String {
    let all: Vec<&str> = gpus.iter().map(|gpu| gpu.address.as_str()).collect();
    if all.is_empty() {
        "none".to_owned()
    } else {
        all.join(" ")
    }
}

/// Fields of a process.
#[rustfmt::skip] // a row of the table is a line or two
pub static PROCESS: Table<ProcessRow> = with_traffic![ProcessRow;
    gauge("pid", "process id; kernel: a kernel consumer; orphan: the creator is gone", |p: &P, _| Value::number(p.pid))
        .words(&["pid"]).up().screen("PID", 0, (7, 7)).page(0, "PID"),
    text("user", "user of the process", |p: &P, _| Value::text(p.user.as_ref()))
        .words(&["user"]).up().screen("USER", 5, (8, 10)).page(20, "USER").detail(0, "user"),
    text("command", "name and arguments", |p: &P, _| Value::Text(Cow::Borrowed(&p.comm)))
        .json("comm").words(&["comm", "name"]).sort(&["comm"]).up().screen("COMMAND", 0, (16, 70)).page(10, "COMM"),
    text("finding", "what is wrong with it and since when; tab 7 says more", super::finding::words_of_process)
        .json("").words(&["finding"]).screen("FINDING", 1, (18, 27)),
    text("job", "container, pod or job; ?: a user may have made it up", |p: &P, _| Value::text(p.workload.as_ref()))
        .json("workload").words(&["job", "container", "pod"]).up().screen("JOB", 8, (12, 24)).page(30, "WORKLOAD").detail(40, "job"),
    text("device", "device it has QPs on; +n: and n more", |p: &P, _| Value::List(&p.devices))
        .json("devices").words(&["dev", "device"]).up().screen("DEVICE", 2, (7, 14)).page(40, "DEVICES").detail(30, "devices"),
    gauge("qps", "queue pairs now; ! some are stuck, Enter shows why", |p: &P, _| Value::number(Some(p.qps)))
        .unit(Unit::Count).screen("QPs", 1, (4, 5)).page(50, "QPs").detail(10, "QPs"),
    Field::new(Kind::Object, "devx", "objects that it made past the kernel (DEVX), which no list of the kernel has",
        |p: &P, _| p.devx_words().map_or(Value::Unknown, |words| Value::Text(Cow::Owned(words)))),
    gauge("mr", "bytes registered now", |p: &P, _| Value::number(p.mr_bytes))
        .unit(Unit::Memory).json("mr_bytes").screen("MR B", 4, (6, 7)).page(60, "MR").detail(20, "MRs"),
    traffic::tx_wr(2, 90),
    traffic::rx_wr(6, 100),
    traffic::tx(0, 70),
    traffic::rx(0, 80),
    traffic::completions().sort(&["completions"]).screen("CQE/s", 6, (6, 7)).page(110, "CQE/s"),
    traffic::err(9, 120).screen("CQERR", 9, (5, 6)).off(),
    counter("errors", "completions with an error and failed verb calls, total", |p: &P, _| Value::total(errors(p)))
        .sense(Sense::Fault).json("").screen("ERR", 1, (4, 6)),
    traffic::retx(3, 130),
    counter("verb_err", "verb calls that failed, total; probes by libraries not counted", |p: &P, _| Value::total(p.verb_errors))
        .sense(Sense::Fault).json("verb_errors.total").screen("VERR", 9, (4, 6)).page(140, "VERB_ERR").detail(25, "failed verbs"),
    traffic::p99(3, 150),
    Field::new(Kind::History, "history", "Tx and Rx together, newest right, each row to its own maximum",
        |p: &P, _| Value::History(&p.history)).json("").screen("HISTORY", 7, (7, 40)),
    rate("wr", "work requests finished per second, sent and received",
        |p: &P, _| Value::rate(both(p.traffic.tx_wr, p.traffic.rx_wr))).json("").screen("WR/s", 9, (7, 8)).off(),
    gauge("uid", "unique in this run", |p: &P, _| Value::number(Some(p.uid))),
    gauge("ppid", "parent", |p: &P, _| Value::number(p.ppid)).detail(5, "parent"),
    flag("kernel", "a kernel consumer", |p: &P, _| Value::Flag(p.kernel)),
    flag("workload_claimed", "a user may have made up the name of its job", |p: &P, _| Value::Flag(p.workload_claimed)),
    flag("exited", "it ended, its objects or counters remain", |p: &P, _| Value::Flag(p.exited)),
    text("cmdline", "command line", |p: &P, _| Value::text(p.cmdline.as_ref())).words(&["cmd", "command"]).detail(60, "command"),
    text("cgroup", "cgroup path", |p: &P, _| Value::text(p.cgroup.as_ref())).words(&["cgroup"]).detail(50, "cgroup"),
    traffic::packets(),
    object("hw_counters", "counters of the NIC that its QPs are bound to"),
    Field::new(Kind::Object, "gpus", "PCI addresses of the GPUs that it computes on",
        |p: &P, _| p.gpus.as_deref().map_or(Value::Unknown, |gpus| Value::Text(Cow::Owned(addresses(gpus))))).detail(33, "GPUs"),
    Field::new(Kind::Object, "bound", "how busy the links and the GPUs of its job are, and which of them it waits for (communication-bound, compute-bound)",
        |p: &P, _| p.bound.map_or(Value::Unknown, |bound| Value::Text(Cow::Owned(bound.line())))).detail(35, "links"),
    object("psn_explains", "part of its ports' packets that PSNs explain, where its bytes are shares by PSN"),
    object("tcp", "what it moves by TCP although it could use RDMA"),
    object("libraries", "mapped libraries of interest"),
    object("environ", "RDMA-relevant environment"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::{Known, RateIs, Source};

    #[test]
    fn beside_an_unknown_part_nothing_is_exact_or_an_upper_bound() {
        let known = |rate_is| {
            let one = Counter {
                rate_is,
                ..Counter::whole(7, Some(100.0), Source::Port)
            };
            let sum = both(Some(one), None).unwrap();
            assert_eq!(both(None, Some(one)), Some(sum));
            (sum.rate, sum.rate_known(), sum.total_known())
        };
        for rate_is in [RateIs::AsTotal, RateIs::Exact] {
            assert_eq!(known(rate_is), (Some(100.0), Known::AtLeast, Known::AtLeast));
        }
        assert_eq!(known(RateIs::AtMost), (None, Known::AtLeast, Known::AtLeast));
    }
}
