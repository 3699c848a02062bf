//! Who uses RDMA: processes, kernel consumers, and QPs whose owner is gone.

use crate::model::snapshot::{ProcessRow, Snapshot};

use super::super::format;
use super::super::theme::{Tone, stuck_tone};
use super::{
    Align, Cell, Column, Ctx, Key, RowKey, Spec, Title, Value, flow, moved, no_device, spark, trouble,
};
use crate::model::judgement::STUCK_MARK;

fn row(s: &Snapshot, at: usize) -> &ProcessRow {
    &s.processes[at]
}

fn devices(p: &ProcessRow) -> String {
    match p.devices.as_slice() {
        [] => format::UNKNOWN.to_owned(),
        [one] => one.to_string(),
        [first, rest @ ..] => format!("{first}+{}", rest.len()),
    }
}

fn pid(p: &ProcessRow) -> Cell {
    match p.pid {
        Some(pid) => Cell::value(pid.to_string()),
        None if p.kernel => Cell::new("kernel", Tone::Title),
        None => Cell::new("orphan", Tone::Warn),
    }
}

fn command(p: &ProcessRow) -> Cell {
    let tone = if p.kernel { Tone::Title } else { Tone::Strong };
    let cell = Cell::new(p.comm.to_string(), tone);
    match p.cmdline.as_deref().and_then(|c| Some(c.split_once(' ')?.1)) {
        Some(arguments) => cell.and(format!(" {arguments}"), Tone::Dim),
        None => cell,
    }
}

/// What to say below the rows of kernel consumers where no process has one.
pub(in crate::view::tui) fn only_kernel(c: &Ctx<'_>) -> Option<String> {
    let rows = &c.snapshot.processes;
    if rows.is_empty() || !rows.iter().all(|p| p.kernel) {
        return None;
    }
    // The row of a consumer outlives its last device for a while.
    Some(no_device(c).unwrap_or_else(|| {
        "No process in sight has a queue pair, only the kernel: no job uses RDMA now. One that should has not \
         connected yet, or fell back to TCP; its log says which (NCCL_DEBUG=INFO: NET/IB or NET/Socket; \
         UCX_LOG_LEVEL=info)."
            .to_owned()
    }))
}

/// Queue pairs; where some are stuck, loud and marked for eyes and terminals without colours.
fn qps(c: &Ctx<'_>, at: usize, width: usize) -> Cell {
    let p = row(c.snapshot, at);
    match c.snapshot.judgement.stuck_of(p.uid) {
        Some((_, why)) => Cell::new(
            format!("{}{STUCK_MARK}", format::count_in(p.qps, width.saturating_sub(1))),
            stuck_tone(why),
        ),
        None => Cell::value(format::count_in(p.qps, width)),
    }
}

/// The table.
pub(super) static SPEC: Spec = Spec {
    columns: &[
        Column {
            id: "pid",
            title: Title::Plain("PID"),
            about: "process id; kernel: a kernel consumer; orphan: the creator is gone",
            priority: 0,
            width: (7, 7),
            align: Align::Right,
            on: true,
            cell: |c, i, _| pid(row(c.snapshot, i)),
            key: Some(|c, i| Key::num(row(c.snapshot, i).pid)),
        },
        Column {
            id: "user",
            title: Title::Plain("USER"),
            about: "user of the process",
            priority: 5,
            width: (8, 10),
            align: Align::Left,
            on: true,
            cell: |c, i, _| Cell::value(row(c.snapshot, i).user.as_deref().unwrap_or("-")),
            key: Some(|c, i| Key::text(row(c.snapshot, i).user.as_ref())),
        },
        Column {
            id: "command",
            title: Title::Plain("COMMAND"),
            about: "name and arguments",
            priority: 0,
            width: (16, 70),
            align: Align::Left,
            on: true,
            cell: |c, i, _| command(row(c.snapshot, i)),
            key: Some(|c, i| Key::Text(&row(c.snapshot, i).comm)),
        },
        Column {
            id: "job",
            title: Title::Plain("JOB"),
            about: "container, pod or job",
            priority: 8,
            width: (12, 24),
            align: Align::Left,
            on: true,
            cell: |c, i, _| Cell::value(row(c.snapshot, i).workload.as_deref().unwrap_or("-")),
            key: Some(|c, i| Key::text(row(c.snapshot, i).workload.as_ref())),
        },
        Column {
            id: "device",
            title: Title::Plain("DEVICE"),
            about: "device it has QPs on; +n: and n more",
            priority: 2,
            width: (7, 14),
            align: Align::Left,
            on: true,
            cell: |c, i, _| Cell::value(devices(row(c.snapshot, i))),
            key: Some(|c, i| Key::text(row(c.snapshot, i).devices.first())),
        },
        Column {
            id: "qps",
            title: Title::Plain("QPS"),
            about: "queue pairs now; ! some are stuck, Enter says why",
            priority: 1,
            width: (4, 5),
            align: Align::Right,
            on: true,
            cell: qps,
            key: Some(|c, i| Key::Num(row(c.snapshot, i).qps as f64)),
        },
        Column {
            id: "mr",
            title: Title::Plain("MR B"),
            about: "bytes registered now",
            priority: 4,
            width: (6, 7),
            align: Align::Right,
            on: true,
            cell: |c, i, _| Cell::value(format::known(row(c.snapshot, i).mr_bytes, format::memory)),
            key: Some(|c, i| Key::num(row(c.snapshot, i).mr_bytes.map(|b| b as f64))),
        },
        Column {
            id: "tx_wr",
            title: Title::Plain("TX WR/s"),
            about: "send WRs finished per second",
            priority: 2,
            width: (7, 8),
            align: Align::Right,
            on: true,
            cell: |c, i, _| {
                let wr = row(c.snapshot, i).traffic.tx_wr.as_ref();
                flow(format::rate(wr), wr, Tone::Tx)
            },
            key: Some(|c, i| Key::rate(row(c.snapshot, i).traffic.tx_wr.as_ref())),
        },
        Column {
            id: "rx_wr",
            title: Title::Plain("RX WR/s"),
            about: "receive WRs completed per second",
            priority: 6,
            width: (7, 8),
            align: Align::Right,
            on: true,
            cell: |c, i, _| {
                let wr = row(c.snapshot, i).traffic.rx_wr.as_ref();
                flow(format::rate(wr), wr, Tone::Rx)
            },
            key: Some(|c, i| Key::rate(row(c.snapshot, i).traffic.rx_wr.as_ref())),
        },
        Column {
            id: "tx",
            title: Title::Traffic("TX"),
            about: "traffic of send-side WRs; of an RDMA READ what it asks for",
            priority: 0,
            width: (7, 8),
            align: Align::Right,
            on: true,
            cell: |c, i, _| {
                let bytes = row(c.snapshot, i).traffic.tx_bytes.as_ref();
                flow(format::byte_rate(bytes, c.units), bytes, Tone::Tx)
            },
            key: Some(|c, i| Key::rate(row(c.snapshot, i).traffic.tx_bytes.as_ref())),
        },
        Column {
            id: "rx",
            title: Title::Traffic("RX"),
            about: "traffic of receive completions",
            priority: 0,
            width: (7, 8),
            align: Align::Right,
            on: true,
            cell: |c, i, _| {
                let bytes = row(c.snapshot, i).traffic.rx_bytes.as_ref();
                flow(format::byte_rate(bytes, c.units), bytes, Tone::Rx)
            },
            key: Some(|c, i| Key::rate(row(c.snapshot, i).traffic.rx_bytes.as_ref())),
        },
        Column {
            id: "cqe",
            title: Title::Plain("CQE/s"),
            about: "completions per second",
            priority: 6,
            width: (6, 7),
            align: Align::Right,
            on: true,
            cell: |c, i, _| Cell::value(format::rate(row(c.snapshot, i).traffic.completions.as_ref())),
            key: Some(|c, i| Key::rate(row(c.snapshot, i).traffic.completions.as_ref())),
        },
        Column {
            id: "err",
            title: Title::Plain("ERR"),
            about: "completions with an error, total",
            priority: 1,
            width: (4, 6),
            align: Align::Right,
            on: true,
            cell: |c, i, w| trouble(row(c.snapshot, i).traffic.completion_errors.as_ref(), w),
            key: Some(|c, i| Key::total(row(c.snapshot, i).traffic.completion_errors.as_ref())),
        },
        Column {
            id: "retx",
            title: Title::Plain("RETX"),
            about: "request packets sent again, total",
            priority: 3,
            width: (4, 6),
            align: Align::Right,
            on: true,
            cell: |c, i, w| trouble(row(c.snapshot, i).traffic.retransmits.as_ref(), w),
            key: Some(|c, i| Key::total(row(c.snapshot, i).traffic.retransmits.as_ref())),
        },
        Column {
            id: "verb_err",
            title: Title::Plain("VERR"),
            about: "verb calls that failed, total; probes by libraries not counted",
            priority: 9,
            width: (4, 6),
            align: Align::Right,
            on: true,
            cell: |c, i, w| trouble(row(c.snapshot, i).verb_errors.as_ref(), w),
            key: Some(|c, i| Key::total(row(c.snapshot, i).verb_errors.as_ref())),
        },
        Column {
            id: "p99",
            title: Title::Plain("P99"),
            about: "post to completion: 99 of 100 take less",
            priority: 3,
            width: (6, 7),
            align: Align::Right,
            on: true,
            cell: |c, i, _| {
                Cell::value(format::below(
                    row(c.snapshot, i).traffic.latency.as_ref().and_then(|l| l.p99_ns),
                ))
            },
            key: Some(|c, i| {
                let p99 = row(c.snapshot, i).traffic.latency.as_ref().and_then(|l| l.p99_ns);
                Key::num(p99.map(|ns| ns as f64))
            }),
        },
        Column {
            id: "history",
            title: Title::Plain("HISTORY"),
            about: "Tx and Rx together, newest right, each row to its own maximum",
            priority: 7,
            width: (7, 40),
            align: Align::Left,
            on: true,
            cell: |c, i, width| spark(c, &row(c.snapshot, i).history, width),
            key: Some(|c, i| moved(&row(c.snapshot, i).history)),
        },
    ],
    sort: ("tx", true),
    len: |c| c.snapshot.processes.len(),
    row: |c, i| RowKey::Process(row(c.snapshot, i).uid),
    fields: |c, i, visit| {
        let p = row(c.snapshot, i);
        let _ = p.pid.is_none_or(|pid| visit("pid", Value::Num(pid.into())))
            && visit("comm", Value::Text(&p.comm))
            && p.devices.iter().all(|d| visit("dev", Value::Text(d)))
            && p.user.as_ref().is_none_or(|u| visit("user", Value::Text(u)))
            && p.workload.as_ref().is_none_or(|w| visit("job", Value::Text(w)))
            && p.cgroup.as_ref().is_none_or(|g| visit("cgroup", Value::Text(g)))
            && p.cmdline.as_ref().is_none_or(|l| visit("cmd", Value::Text(l)));
    },
    field_names: &["pid", "comm", "dev", "user", "job", "cgroup", "cmd"],
    faded: |c, i| row(c.snapshot, i).exited,
    empty: |c| {
        no_device(c)
            .unwrap_or_else(|| "No process uses RDMA now. A row appears when one creates a QP.".to_owned())
    },
};
