//! Ports side by side: Tx and Rx of each, all on one scale.

use std::sync::LazyLock;

use rdmatop_model::fields::{DEVICE, PORT};
use rdmatop_model::judgement::says_nothing;
use rdmatop_model::snapshot::{DeviceRow, DeviceState, PortRow, Snapshot};
use rdmatop_model::value::{Counter, Source};

use super::super::format;
use super::super::theme::Tone;
use super::{Cell, Ctx, Fields, Of, Row, RowKey, Spec, flow, no_device, trouble};

fn device<'a>(s: &'a Snapshot, port: &PortRow) -> Option<&'a DeviceRow> {
    s.devices.iter().find(|d| d.uid == port.device_uid)
}

fn name(p: &PortRow) -> String {
    format!("{}/{}", p.device, p.port)
}

const ROW: Row<PortRow> = |c, i| c.snapshot.ports.get(i);

/// Fields of the port, then those of its device; the history comes last.
fn fields() -> Vec<Of> {
    let mut ports = Of::all(PORT, ROW);
    let history = ports.iter().position(|of| of.meta.id == "history");
    let history = history.map(|at| ports.remove(at));
    // Only fields with a column; the detail pane and filters have the device's other fields.
    let devices = Of::all(DEVICE, |c, i| device(c.snapshot, ROW(c, i)?));
    let devices = devices.into_iter().filter(|of| of.meta.screen.is_some());
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
    // Work requests miss a part of the port's traffic: what peers read and write here.
    let part = counter.is_some_and(|counter| counter.source == Source::Ebpf && counter.rate.is_some());
    flow(format!("{}{text}", if part { "~" } else { "" }), counter, tone)
}

fn state(s: &Snapshot, p: &PortRow) -> Cell {
    if device(s, p).is_some_and(|d| d.state == Some(DeviceState::Removing)) {
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

/// Packets sent again; or, with an `r`, how often a sender started again, each time with one packet or many.
fn again(port: &PortRow, width: usize) -> Cell {
    match (&port.retransmits, &port.retries) {
        // Only if there were retries: 0 retries mean that no packet was sent again.
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
        Fields::of(
            fields(),
            ROW,
            &[
                ("port", |_, p, _| Cell::new(name(p), Tone::Strong)),
                ("state", |c, p, _| state(c.snapshot, p)),
                ("tx", |c, p, _| {
                    amount(c, c.snapshot.judgement.scale.sent(p), Tone::Tx)
                }),
                ("rx", |c, p, _| {
                    amount(c, c.snapshot.judgement.scale.received(p), Tone::Rx)
                }),
                ("retx", |_, p, width| again(p, width)),
            ],
        )
    }),
    sort: ("port", false),
    len: |c| c.snapshot.ports.len(),
    row: |c, i| {
        let p = &c.snapshot.ports[i];
        RowKey::Port(p.device_uid, p.port)
    },
    empty: |c| no_device(c).unwrap_or_else(|| "No device has reported a port yet.".to_owned()),
};
