//! Ports as rails: Tx and Rx side by side, all on one scale.

use std::cmp::Ordering;
use std::sync::LazyLock;

use rdmatop_model::fields::{DEVICE, PORT};
use rdmatop_model::judgement::says_nothing;
use rdmatop_model::snapshot::{DeviceRow, DeviceState, PortRow, Snapshot};
use rdmatop_model::value::{Counter, Source};

use super::super::format;
use super::super::theme::Tone;
use super::{Cell, Ctx, Fields, Of, RowKey, Spec, all, flow, no_device, trouble};

fn row(s: &Snapshot, at: usize) -> &PortRow {
    &s.ports[at]
}

/// The device of the port in row `at`.
pub(super) fn device(s: &Snapshot, at: usize) -> Option<&DeviceRow> {
    let uid = s.ports.get(at)?.device_uid;
    s.devices.iter().find(|d| d.uid == uid)
}

fn name(p: &PortRow) -> String {
    format!("{}/{}", p.device, p.port)
}

/// Fields of the port, those of its device, the history last.
fn fields() -> Vec<Of> {
    let mut ports = all(PORT, Of::Port);
    let history = ports.iter().position(|of| of.meta().id == "history");
    let history = history.map(|at| ports.remove(at));
    // The other fields of a device are on its page, and in the words of a filter.
    let devices = all(DEVICE, Of::Device);
    let devices = devices.into_iter().filter(|of| of.meta().screen.is_some());
    ports.into_iter().chain(devices).chain(history).collect()
}

fn amount(c: &Ctx<'_>, counter: Option<Counter>, tone: Tone) -> Cell {
    let counter = counter.filter(|counter| !says_nothing(counter));
    let counter = counter.as_ref();
    let text = if c.snapshot.judgement.scale.packets {
        format::rate(counter)
    } else {
        format::byte_rate(counter, c.units)
    };
    // Not all of the port's traffic: one-sided traffic of peers has no work request here.
    if counter.is_some_and(|counter| counter.source == Source::Ebpf && counter.rate.is_some()) {
        return flow(format!("~{text}"), counter, tone);
    }
    flow(text, counter, tone)
}

fn state(s: &Snapshot, at: usize) -> Cell {
    let p = row(s, at);
    if device(s, at).is_some_and(|d| d.state == Some(DeviceState::Removing)) {
        return Cell::new("REMOVING", Tone::Bad);
    }
    let Some(state) = p.state else {
        return Cell::value("-");
    };
    let tone = match state.name() {
        Some("ACTIVE") => Tone::Good,
        Some("DOWN") => Tone::Bad,
        _ => Tone::Warn,
    };
    Cell::new(state.to_string(), tone)
}

/// Packets sent again, or the times that a sender started again: each of those is one packet or many.
fn again(port: &PortRow, width: usize) -> Cell {
    match (&port.retransmits, &port.retries) {
        // No retry means no packet sent again.
        (None, Some(retries)) if retries.total > 0 => {
            let mut cell = trouble(Some(retries), width.saturating_sub(1));
            if let Some((text, _)) = cell.0.last_mut() {
                text.to_mut().push('r');
            }
            cell
        }
        (packets, retries) => trouble(packets.as_ref().or(retries.as_ref()), width),
    }
}

/// The table.
pub(super) static SPEC: Spec = Spec {
    fields: LazyLock::new(|| {
        Fields::new(
            fields(),
            &[
                ("port", |c, i, _| {
                    Cell::new(name(row(c.snapshot, i)), Tone::Strong)
                }),
                ("state", |c, i, _| state(c.snapshot, i)),
                ("tx", |c, i, _| {
                    amount(c, c.snapshot.judgement.scale.sent(row(c.snapshot, i)), Tone::Tx)
                }),
                ("rx", |c, i, _| {
                    amount(
                        c,
                        c.snapshot.judgement.scale.received(row(c.snapshot, i)),
                        Tone::Rx,
                    )
                }),
                ("retx", |c, i, w| again(row(c.snapshot, i), w)),
            ],
        )
    }),
    sort: ("port", false),
    ties: |_, _, _| Ordering::Equal,
    len: |c| c.snapshot.ports.len(),
    row: |c, i| {
        let p = row(c.snapshot, i);
        RowKey::Port(p.device_uid, p.port)
    },
    faded: |_, _| false,
    empty: |c| no_device(c).unwrap_or_else(|| "No device has reported a port yet.".to_owned()),
};
