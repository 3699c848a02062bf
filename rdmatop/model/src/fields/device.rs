//! Devices.

use std::borrow::Cow;

use super::{Table, Unit, Value, gauge, state, text};
use crate::snapshot::{DeviceRow, DeviceState};

type D = DeviceRow;

/// Fields of a device. On the screen they are columns of the table of ports.
#[rustfmt::skip] // a row of the table is a line or two
pub static DEVICE: Table<DeviceRow> = &[
    text("name", "name", |d: &D, _| Value::Text(Cow::Borrowed(&d.name))).page(0, "DEVICE"),
    gauge("qps", "queue pairs of the device", |d: &D, _| Value::number(d.qps)).unit(Unit::Count).screen("QPs", 6, (5, 5)).page(60, "QP").detail(60, "QPs"),
    gauge("numa", "NUMA node of the device", |d: &D, _| Value::number(d.numa_node))
        .json("numa_node").screen("NUMA", 8, (4, 4)).page(40, "NUMA").detail(40, "NUMA"),
    text("driver", "kernel driver", |d: &D, _| Value::text(d.driver.as_ref()))
        .words(&["driver"]).screen("DRIVER", 8, (9, 12)).page(10, "DRIVER").detail(10, "driver"),
    text("firmware", "firmware version", |d: &D, _| Value::text(d.fw_version.as_ref()))
        .json("fw_version").screen("FIRMWARE", 9, (10, 16)).page(20, "FIRMWARE").detail(20, "firmware"),
    text("pci", "PCI address", |d: &D, _| Value::text(d.pci.as_ref())).page(30, "PCI").detail(30, "PCI"),
    text("node_guid", "node GUID", |d: &D, _| {
        d.node_guid.as_deref().map_or(Value::Unknown, |guid| Value::Text(Cow::Borrowed(guid)))
    }).page(50, "GUID").detail(50, "GUID"),
    gauge("cqs", "completion queues", |d: &D, _| Value::number(d.cqs)).unit(Unit::Count).page(70, "CQ").detail(70, "CQs"),
    gauge("mrs", "memory regions", |d: &D, _| Value::number(d.mrs)).unit(Unit::Count).page(80, "MR").detail(80, "MRs"),
    gauge("pds", "protection domains", |d: &D, _| Value::number(d.pds)).unit(Unit::Count).page(90, "PD").detail(90, "PDs"),
    gauge("cm_ids", "rdma_cm ids", |d: &D, _| Value::number(d.cm_ids)).unit(Unit::Count).page(100, "CM_ID").detail(92, "cm ids"),
    gauge("ctxs", "user contexts", |d: &D, _| Value::number(d.ctxs)).unit(Unit::Count).page(110, "CTX").detail(94, "contexts"),
    gauge("srqs", "shared receive queues", |d: &D, _| Value::number(d.srqs)).unit(Unit::Count).page(120, "SRQ").detail(96, "SRQs"),
    gauge("max_qp", "the most queue pairs that its driver allows", |d: &D, _| Value::number(d.max_qp)).unit(Unit::Count),
    gauge("max_cq", "the most completion queues that its driver allows", |d: &D, _| Value::number(d.max_cq)).unit(Unit::Count),
    gauge("max_mr", "the most memory regions that its driver allows", |d: &D, _| Value::number(d.max_mr)).unit(Unit::Count),
    gauge("max_pd", "the most protection domains that its driver allows", |d: &D, _| Value::number(d.max_pd)).unit(Unit::Count),
    gauge("max_srq", "the most shared receive queues that its driver allows", |d: &D, _| Value::number(d.max_srq)).unit(Unit::Count),
    text("netns_holder", "whose network namespace it is in, if that is not rdmatop's own: pod, container, job, or the name of a process", |d: &D, _| Value::text(d.netns_holder.as_ref()))
        .words(&["netns"]),
    gauge("netns_pid", "a process in that namespace", |d: &D, _| Value::number(d.netns_pid)),
    gauge("netns", "number of that namespace", |d: &D, _| Value::number(d.netns)),
    gauge("driver_errors", "errors that its driver logged since rdmatop began", |d: &D, _| Value::number(d.driver_errors))
        .unit(Unit::Count).detail(42, "driver errors"),
    text("driver_error", "the last error that its driver logged", |d: &D, _| Value::text(d.driver_error.as_ref())),
    text("datapath", "how the programs that count its work requests are attached", |d: &D, _| Value::text(d.datapath.as_ref())),
    gauge("uid", "unique in this run", |d: &D, _| Value::number(Some(d.uid))),
    gauge("index", "the kernel's index", |d: &D, _| Value::number(d.index)),
    state("state", "whether it is being removed", |d: &D, _| match d.state {
        None => Value::Unknown,
        Some(DeviceState::Registered) => Value::State(0, Cow::Borrowed("registered")),
        Some(DeviceState::Removing) => Value::State(1, Cow::Borrowed("removing")),
    }),
];
