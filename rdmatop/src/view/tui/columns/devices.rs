//! Ports as rails: Tx and Rx side by side, all on one scale.

use crate::model::snapshot::{DeviceRow, DeviceState, PortRow, Snapshot};
use crate::model::value::{Counter, Source};

use super::super::format;
use super::super::theme::Tone;
use super::{
    Align, Cell, Column, Ctx, Key, RowKey, Spec, Title, Value, flow, moved, no_device, spark, trouble,
};

fn row(s: &Snapshot, at: usize) -> &PortRow {
    &s.ports[at]
}

fn device(s: &Snapshot, at: usize) -> Option<&DeviceRow> {
    let uid = row(s, at).device_uid;
    s.devices.iter().find(|d| d.uid == uid)
}

fn name(p: &PortRow) -> String {
    format!("{}/{}", p.device, p.port)
}

/// The counter that bars and rates are made of: bytes, or packets where no port counts bytes.
fn sent<'a>(c: &Ctx<'a>, at: usize) -> Option<&'a Counter> {
    let p = row(c.snapshot, at);
    if c.snapshot.judgement.scale.packets {
        p.tx_packets.as_ref()
    } else {
        p.any_tx_bytes()
    }
}

fn received<'a>(c: &Ctx<'a>, at: usize) -> Option<&'a Counter> {
    let p = row(c.snapshot, at);
    if c.snapshot.judgement.scale.packets {
        p.rx_packets.as_ref()
    } else {
        p.any_rx_bytes()
    }
}

fn amount(c: &Ctx<'_>, counter: Option<&Counter>, tone: Tone) -> Cell {
    let counter = counter.filter(|counter| !says_nothing(counter));
    let text = if c.snapshot.judgement.scale.packets {
        format::rate(counter)
    } else {
        format::byte_rate(counter, c.units)
    };
    // Not all that passed the port: one-sided traffic of peers has no work request here.
    if counter.is_some_and(|counter| counter.source == Source::Ebpf && counter.rate.is_some()) {
        return flow(format!("~{text}"), counter, tone);
    }
    flow(text, counter, tone)
}

/// A 0 of what eBPF counted by work requests: others may have passed the port.
pub(in crate::view::tui) fn says_nothing(counter: &Counter) -> bool {
    counter.source == Source::Ebpf && counter.rate == Some(0.0)
}

/// Share of the link, or of the busiest direction of any port; `None` when there is no rate.
pub(in crate::view::tui) fn share(c: &Ctx<'_>, port: &PortRow, counter: Option<&Counter>) -> Option<f64> {
    let rate = counter.filter(|counter| !says_nothing(counter))?.rate?;
    let scale = &c.snapshot.judgement.scale;
    let full = if scale.link {
        port.rate_bps? as f64 / 8.0
    } else {
        scale.max
    };
    Some(if full > 0.0 { rate / full } else { 0.0 })
}

fn bar(c: &Ctx<'_>, at: usize, counter: Option<&Counter>, width: usize, tone: Tone) -> Cell {
    let Some(share) = share(c, row(c.snapshot, at), counter) else {
        return Cell::new(format::UNKNOWN, Tone::Dim);
    };
    let (full, track) = c.glyphs.bar(share, width);
    // On the link's own scale a nearly full bar is a finding; on a relative one the busiest is always full.
    let tone = if c.snapshot.judgement.scale.link && share >= 0.9 {
        Tone::Bad
    } else {
        tone
    };
    Cell::new(full, tone).and(track, Tone::Dim)
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
        // No retry is no packet.
        (None, Some(retries)) if retries.total > 0 => {
            let mut cell = trouble(Some(retries), width.saturating_sub(1));
            if let Some((text, _)) = cell.0.last_mut() {
                text.push('r');
            }
            cell
        }
        (packets, retries) => trouble(packets.as_ref().or(retries.as_ref()), width),
    }
}

/// The table.
pub(super) static SPEC: Spec = Spec {
    columns: &[
        Column {
            id: "port",
            title: Title::Plain("PORT"),
            about: "device and port number",
            priority: 0,
            width: (9, 16),
            align: Align::Left,
            on: true,
            cell: |c, i, _| Cell::new(name(row(c.snapshot, i)), Tone::Strong),
            // The model's natural order: mlx5_2 before mlx5_10, rails where people expect them.
            key: Some(|_, i| Key::Num(i as f64)),
        },
        Column {
            id: "state",
            title: Title::Plain("STATE"),
            about: "logical state of the port; REMOVING: the removal of its device waits for who holds it",
            priority: 1,
            width: (8, 12),
            align: Align::Left,
            on: true,
            cell: |c, i, _| state(c.snapshot, i),
            key: Some(|c, i| Key::num(row(c.snapshot, i).state.map(|s| s.0))),
        },
        Column {
            id: "link",
            title: Title::Plain("LINK"),
            about: "link rate, bits per second; -: the provider has no true one",
            priority: 4,
            width: (4, 5),
            align: Align::Right,
            on: true,
            cell: |c, i, _| Cell::value(format::known(row(c.snapshot, i).rate_bps, format::link)),
            key: Some(|c, i| Key::num(row(c.snapshot, i).rate_bps.map(|b| b as f64))),
        },
        Column {
            id: "netdev",
            title: Title::Plain("NETDEV"),
            about: "network device of the port",
            priority: 6,
            width: (8, 15),
            align: Align::Left,
            on: true,
            cell: |c, i, _| Cell::value(row(c.snapshot, i).netdev.as_deref().unwrap_or("-")),
            key: Some(|c, i| Key::text(row(c.snapshot, i).netdev.as_ref())),
        },
        Column {
            id: "tx",
            title: Title::Ports("TX"),
            about: "sent per second on the wire, headers too; ~: payload of work requests, where the driver counts no bytes",
            priority: 0,
            width: (8, 8),
            align: Align::Right,
            on: true,
            cell: |c, i, _| amount(c, sent(c, i), Tone::Tx),
            key: Some(|c, i| Key::rate(sent(c, i))),
        },
        Column {
            id: "tx_bar",
            title: Title::Bar("TX"),
            about: "sent, against the link, or against the busiest port where a rate is unknown",
            priority: 2,
            width: (10, 30),
            align: Align::Left,
            on: true,
            cell: |c, i, width| bar(c, i, sent(c, i), width, Tone::Tx),
            key: Some(|c, i| Key::num(share(c, row(c.snapshot, i), sent(c, i)))),
        },
        Column {
            id: "rx",
            title: Title::Ports("RX"),
            about: "received per second on the wire, headers too; ~: payload of receives, where the driver counts no bytes",
            priority: 0,
            width: (8, 8),
            align: Align::Right,
            on: true,
            cell: |c, i, _| amount(c, received(c, i), Tone::Rx),
            key: Some(|c, i| Key::rate(received(c, i))),
        },
        Column {
            id: "rx_bar",
            title: Title::Bar("RX"),
            about: "received, on the same scale",
            priority: 2,
            width: (10, 30),
            align: Align::Left,
            on: true,
            cell: |c, i, width| bar(c, i, received(c, i), width, Tone::Rx),
            key: Some(|c, i| Key::num(share(c, row(c.snapshot, i), received(c, i)))),
        },
        Column {
            id: "drops",
            title: Title::Plain("DROP"),
            about: "packets dropped, total",
            priority: 1,
            width: (5, 6),
            align: Align::Right,
            on: true,
            cell: |c, i, w| trouble(row(c.snapshot, i).drops.as_ref(), w),
            key: Some(|c, i| Key::total(row(c.snapshot, i).drops.as_ref())),
        },
        Column {
            id: "retx",
            title: Title::Plain("RETX"),
            about: "packets sent again, total (of SoftRoCE since attach); 12r: retries, where the driver counts only those",
            priority: 3,
            width: (5, 6),
            align: Align::Right,
            on: true,
            cell: |c, i, w| again(row(c.snapshot, i), w),
            key: Some(|c, i| {
                let port = row(c.snapshot, i);
                Key::total(port.retransmits.as_ref().or(port.retries.as_ref()))
            }),
        },
        Column {
            id: "congestion",
            title: Title::Plain("CONG"),
            about: "congestion marks or pauses, total",
            priority: 5,
            width: (5, 6),
            align: Align::Right,
            on: true,
            cell: |c, i, w| trouble(row(c.snapshot, i).congestion.as_ref(), w),
            key: Some(|c, i| Key::total(row(c.snapshot, i).congestion.as_ref())),
        },
        Column {
            id: "rnr",
            title: Title::Plain("RNR"),
            about: "RNR NAKs in both directions, total",
            priority: 4,
            width: (4, 6),
            align: Align::Right,
            on: true,
            cell: |c, i, w| trouble(row(c.snapshot, i).rnr_naks.as_ref(), w),
            key: Some(|c, i| Key::total(row(c.snapshot, i).rnr_naks.as_ref())),
        },
        Column {
            id: "qps",
            title: Title::Plain("QPS"),
            about: "queue pairs of the device",
            priority: 6,
            width: (5, 5),
            align: Align::Right,
            on: true,
            cell: |c, i, _| {
                Cell::value(format::known(
                    device(c.snapshot, i).and_then(|d| d.qps),
                    format::count,
                ))
            },
            key: Some(|c, i| Key::num(device(c.snapshot, i).and_then(|d| d.qps).map(|n| n as f64))),
        },
        Column {
            id: "numa",
            title: Title::Plain("NUMA"),
            about: "NUMA node of the device",
            priority: 8,
            width: (4, 4),
            align: Align::Right,
            on: true,
            cell: |c, i, _| {
                Cell::value(format::known(
                    device(c.snapshot, i).and_then(|d| d.numa_node),
                    |n| n.to_string(),
                ))
            },
            key: Some(|c, i| Key::num(device(c.snapshot, i).and_then(|d| d.numa_node))),
        },
        Column {
            id: "driver",
            title: Title::Plain("DRIVER"),
            about: "kernel driver",
            priority: 8,
            width: (9, 12),
            align: Align::Left,
            on: true,
            cell: |c, i, _| {
                Cell::value(
                    device(c.snapshot, i)
                        .and_then(|d| d.driver.as_deref())
                        .unwrap_or("-"),
                )
            },
            key: Some(|c, i| Key::text(device(c.snapshot, i).and_then(|d| d.driver.as_ref()))),
        },
        Column {
            id: "firmware",
            title: Title::Plain("FIRMWARE"),
            about: "firmware version",
            priority: 9,
            width: (10, 16),
            align: Align::Left,
            on: true,
            cell: |c, i, _| {
                Cell::value(
                    device(c.snapshot, i)
                        .and_then(|d| d.fw_version.as_deref())
                        .unwrap_or("-"),
                )
            },
            key: Some(|c, i| Key::text(device(c.snapshot, i).and_then(|d| d.fw_version.as_ref()))),
        },
        Column {
            id: "history",
            title: Title::Plain("HISTORY"),
            about: "Tx and Rx together, newest right, each row to its own maximum",
            priority: 9,
            width: (10, 40),
            align: Align::Left,
            on: true,
            cell: |c, i, width| spark(c, &row(c.snapshot, i).history, width),
            key: Some(|c, i| moved(&row(c.snapshot, i).history)),
        },
    ],
    sort: ("port", false),
    len: |c| c.snapshot.ports.len(),
    row: |c, i| {
        let p = row(c.snapshot, i);
        RowKey::Port(p.device_uid, p.port)
    },
    fields: |c, i, visit| {
        let p = row(c.snapshot, i);
        let _ = visit("dev", Value::Text(&p.device))
            && p.netdev.as_ref().is_none_or(|n| visit("netdev", Value::Text(n)))
            && p.state
                .is_none_or(|s| visit("link", Value::Text(s.name().unwrap_or("?"))))
            && device(c.snapshot, i)
                .and_then(|d| d.driver.as_ref())
                .is_none_or(|d| visit("driver", Value::Text(d)));
    },
    field_names: &["dev", "netdev", "link", "driver"],
    faded: |_, _| false,
    empty: |c| no_device(c).unwrap_or_else(|| "No device has told of a port yet.".to_owned()),
};
