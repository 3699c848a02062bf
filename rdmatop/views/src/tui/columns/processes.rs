//! The users of RDMA: processes, kernel consumers, and QPs whose owner is gone.

use std::sync::LazyLock;

use rdmatop_model::fields::{PROCESS, finding_of};
use rdmatop_model::findings::Severity;
use rdmatop_model::judgement::STUCK_MARK;
use rdmatop_model::snapshot::{DeviceRow, ProcessRow, Snapshot};

use super::super::format;
use super::super::theme::{Tone, stuck_tone};
use super::{Cell, Ctx, Fields, RowKey, Spec, finding_tone, no_device};

fn devices(p: &ProcessRow) -> String {
    match p.devices.as_slice() {
        [] => format::UNKNOWN.to_owned(),
        [one] => one.to_string(),
        // `NICs`, as in FINDING: the column has only eight places.
        many => format!("{} NICs", many.len()),
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

/// A text below the rows of kernel consumers that says so when no process has a row.
pub(in crate::tui) fn only_kernel(c: &Ctx<'_>) -> Option<String> {
    let rows = &c.snapshot.processes;
    if rows.is_empty() || !rows.iter().all(|p| p.kernel) {
        return None;
    }
    // A consumer's row stays for a while after its last device is gone.
    Some(no_device(c).unwrap_or_else(|| {
        let what = unlisted(c.snapshot)
            .unwrap_or("No visible process has a queue pair, only the kernel: no job uses RDMA now.");
        format!(
            "{what} A job that should has not connected yet, or fell back to TCP; its log shows which \
             (NCCL_DEBUG=INFO: NET/IB or NET/Socket; UCX_LOG_LEVEL=info)."
        )
    }))
}

/// What can be said of processes where a device may have queue pairs that the kernel does not list.
fn unlisted(snapshot: &Snapshot) -> Option<&'static str> {
    let hides = snapshot.devices.iter().any(DeviceRow::may_hide_qps);
    hides.then_some(
        "No visible process has a queue pair that the kernel lists. A library may make some past it (mlx5's DEVX): if \
         ports in 3:Devices carry data, a job uses RDMA all the same.",
    )
}

/// The number of QPs; if some are stuck, it is coloured and marked with a sign.
fn qps(c: &Ctx<'_>, p: &ProcessRow, width: usize) -> Cell {
    match c.snapshot.judgement.stuck_of(p.uid) {
        Some((_, why)) => Cell::new(
            format!("{}{STUCK_MARK}", format::count_in(p.qps, width.saturating_sub(1))),
            stuck_tone(why),
        ),
        None => Cell::value(format::count_in(p.qps, width)),
    }
}

/// The number of the finding and the sign of a cause, of a victim or of what may be one; then what is wrong.
fn finding(c: &Ctx<'_>, p: &ProcessRow) -> Cell {
    let Some(mark) = finding_of(p, c.snapshot) else {
        // An empty cell: a dash would say that it is not known.
        return Cell::default();
    };
    let number = mark.number.map_or_else(String::new, |number| number.to_string());
    let sign = c.glyphs.sign(mark.severity, mark.role);
    // The sign of information is a letter, which needs a space before the age.
    let gap = if mark.severity == Severity::Info { " " } else { "" };
    Cell::new(format!("{number}{sign}{gap}"), finding_tone(mark.severity)).and(mark.words, Tone::Normal)
}

/// The table.
pub(super) static SPEC: Spec = Spec {
    fields: LazyLock::new(|| {
        Fields::new(
            PROCESS,
            |c, i| c.snapshot.processes.get(i),
            &[
                ("pid", |_, p, _| pid(p)),
                ("command", |_, p, _| command(p)),
                ("device", |_, p, _| Cell::value(devices(p))),
                ("qps", qps),
                ("finding", |c, p, _| finding(c, p)),
            ],
        )
    }),
    sort: ("tx", true),
    len: |c| c.snapshot.processes.len(),
    row: |c, i| RowKey::Process(c.snapshot.processes[i].uid),
    empty: |c| {
        no_device(c).unwrap_or_else(|| {
            let none = "No process uses RDMA now. A row appears when one creates a QP.";
            unlisted(c.snapshot).unwrap_or(none).to_owned()
        })
    },
};
