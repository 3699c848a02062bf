//! Words that several rules use.

use crate::facts::ProcessRow;
pub(super) use rdmatop_base::text::count;
use rdmatop_base::{order::Ordered as _, text};

/// A process: its name, its PID, its job. Or a module of the kernel that has QPs.
pub(super) fn process(row: &ProcessRow) -> String {
    let job = row
        .workload
        .as_ref()
        .map(|job| format!(", {}", short(job)))
        .unwrap_or_default();
    match row.pid {
        Some(pid) => format!("{} (PID {pid}{job})", row.comm),
        None if row.kernel => format!("{} (kernel)", row.comm),
        None => row.comm.to_string(),
    }
}

/// ` on mlx5_0 and mlx5_1`: devices, each once; empty where there is none.
pub(super) fn on<'a>(devices: impl Iterator<Item = &'a str>) -> String {
    let mut all: Vec<&str> = devices.collect();
    all.order_by(|a, b| text::natural(a, b));
    all.dedup();
    if all.is_empty() {
        return String::new();
    }
    format!(" on {}", text::names(&all))
}

/// Shortens a pod's UID to twelve digits, which tell pods apart as they do containers: with the whole UID the
/// verdict would take a line more.
fn short(job: &str) -> &str {
    const POD: &str = "pod 01234567-0123";
    match job.get(..POD.len()) {
        Some(short) if job.starts_with("pod ") => short,
        _ => job,
    }
}

/// A number with at most one decimal: none from 10 on.
pub(super) fn number(value: f64) -> String {
    if value >= 10.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.1}")
    }
}

/// A time, from nanoseconds to seconds.
pub(super) fn time(ns: f64) -> String {
    for (unit, size) in [("s", 1e9), ("ms", 1e6), ("us", 1e3)] {
        if ns >= size {
            return format!("{} {unit}", number(ns / size));
        }
    }
    format!("{ns:.0} ns")
}

pub(super) fn per_s(rate: f64) -> String {
    format!("{}/s", number(rate))
}

/// Bits per second of a rate in bytes.
pub(super) fn bits(bytes: f64) -> String {
    text::rate(bytes * 8.0, "b/s")
}

/// Bytes per second.
pub(super) fn bytes(rate: f64) -> String {
    text::rate(rate, "B/s")
}

pub(super) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if (99.5..100.0).contains(&percent) {
        // 99.6 % must not read as 100 %.
        format!("{:.1} %", (percent * 10.0).floor() / 10.0)
    } else if percent >= 10.0 {
        format!("{percent:.0} %")
    } else {
        format!("{percent:.2} %")
    }
}
