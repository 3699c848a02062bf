//! Devices.

use std::borrow::Cow;

use super::{Table, Unit, Value, gauge, state, text};
use crate::model::snapshot::{DeviceRow, DeviceState};

type D = DeviceRow;

/// Fields of a device. On the screen its columns stand in the table of ports.
#[rustfmt::skip] // a row of the table is a line or two
pub static DEVICE: Table<DeviceRow> = &[
    text("name", "name", |d: &D, _| Value::Text(Cow::Borrowed(&d.name))).page(0, "DEVICE"),
    gauge("qps", "queue pairs of the device", |d: &D, _| Value::number(d.qps)).unit(Unit::Count).screen("QPS", 6, (5, 5)).page(60, "QP"),
    gauge("numa", "NUMA node of the device", |d: &D, _| Value::number(d.numa_node))
        .json("numa_node").screen("NUMA", 8, (4, 4)).page(40, "NUMA"),
    text("driver", "kernel driver", |d: &D, _| Value::text(d.driver.as_ref()))
        .words(&["driver"]).screen("DRIVER", 8, (9, 12)).page(10, "DRIVER"),
    text("firmware", "firmware version", |d: &D, _| Value::text(d.fw_version.as_ref()))
        .json("fw_version").screen("FIRMWARE", 9, (10, 16)).page(20, "FIRMWARE"),
    text("pci", "PCI address", |d: &D, _| Value::text(d.pci.as_ref())).page(30, "PCI"),
    text("node_guid", "node GUID", |d: &D, _| {
        d.node_guid.as_deref().map_or(Value::Unknown, |guid| Value::Text(Cow::Borrowed(guid)))
    }).page(50, "GUID"),
    gauge("cqs", "completion queues", |d: &D, _| Value::number(d.cqs)).page(70, "CQ"),
    gauge("mrs", "memory regions", |d: &D, _| Value::number(d.mrs)).page(80, "MR"),
    gauge("pds", "protection domains", |d: &D, _| Value::number(d.pds)).page(90, "PD"),
    gauge("cm_ids", "rdma_cm ids", |d: &D, _| Value::number(d.cm_ids)).page(100, "CM_ID"),
    gauge("ctxs", "user contexts", |d: &D, _| Value::number(d.ctxs)).page(110, "CTX"),
    gauge("srqs", "shared receive queues", |d: &D, _| Value::number(d.srqs)).page(120, "SRQ"),
    text("datapath", "how the programs that count its work requests are attached", |d: &D, _| {
        d.datapath.map_or(Value::Unknown, |how| Value::Text(Cow::Borrowed(how)))
    }),
    gauge("uid", "unique in this run", |d: &D, _| Value::number(Some(d.uid))),
    gauge("index", "the kernel's index", |d: &D, _| Value::number(d.index)),
    state("state", "whether it is being removed", |d: &D, _| match d.state {
        None => Value::Unknown,
        Some(DeviceState::Registered) => Value::State(0, Cow::Borrowed("registered")),
        Some(DeviceState::Removing) => Value::State(1, Cow::Borrowed("removing")),
    }),
];
