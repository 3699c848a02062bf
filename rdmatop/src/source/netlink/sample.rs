//! What one refresh read. Data only.
use crate::model::cause::{Cause, Concerns, Obstacle};
use crate::source::clock::Span;

use super::record::{
    CmId, CounterSet, Cq, Ctx, Device, HwCounter, Mr, Pd, Port, Qp, Srq, Summary, SysSettings,
};

/// The objects of a dump, and how far to trust it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dump<T> {
    /// The objects, each once, in the kernel's order.
    pub items: Vec<T>,
    /// The kernel said the table changed while it was read, twice in a row: objects may be missing.
    pub interrupted: bool,
    /// Objects the kernel listed more than once (seen under churn); the last reading was kept.
    pub duplicates: usize,
}

impl<T> Default for Dump<T> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            interrupted: false,
            duplicates: 0,
        }
    }
}

/// A request that failed: what was asked and why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{request}: {why}")]
pub struct RequestError {
    /// What was asked, such as `QPs of rxe0`. Safe to print.
    pub request: Box<str>,
    /// Why there is no answer. Safe to print.
    pub why: Obstacle,
    /// The kernel's errno, when it was the kernel that refused.
    pub errno: Option<i32>,
}

impl RequestError {
    /// As the cause that what was asked for is missing.
    pub fn cause(&self, concerns: Concerns) -> Cause {
        self.why.clone().takes(&*self.request, concerns)
    }

    /// The driver has no such thing, which is no failure: `stat_get_doit_default_counter` (nldev.c) says EINVAL or
    /// EOPNOTSUPP of a driver without counters, and some drivers ENOENT.
    pub fn is_absence(&self) -> bool {
        matches!(self.errno, Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOENT))
    }
}

/// `None`: not asked in this refresh. `Some(Err)`: asked and failed. Never a value made up.
pub type Reading<T> = Option<Result<T, RequestError>>;

/// A port in one refresh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortSample {
    /// Port number, from 1.
    pub port: u32,
    /// State and addresses.
    pub info: Reading<Port>,
    /// Hardware counters by the driver's names.
    pub counters: Reading<Vec<HwCounter>>,
    /// When they were asked for.
    pub counters_at: Option<Span>,
}

/// A device in one refresh. One reading's failure leaves the others as they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSample {
    /// The device.
    pub device: Device,
    /// Its ports, in order.
    pub ports: Vec<PortSample>,
    /// Counts of its resources.
    pub summary: Reading<Summary>,
    /// Queue pairs. Also `None` when asked only on change and the count did not change.
    pub qps: Reading<Dump<Qp>>,
    /// Connection-manager ids.
    pub cm_ids: Reading<Dump<CmId>>,
    /// Completion queues.
    pub cqs: Reading<Dump<Cq>>,
    /// Memory regions.
    pub mrs: Reading<Dump<Mr>>,
    /// Protection domains.
    pub pds: Reading<Dump<Pd>>,
    /// User contexts; 5.10 does not know the request.
    pub ctxs: Reading<Dump<Ctx>>,
    /// Shared receive queues; 5.10 does not know the request.
    pub srqs: Reading<Dump<Srq>>,
    /// Counter sets bound to QPs.
    pub counter_sets: Reading<Dump<CounterSet>>,
}

impl DeviceSample {
    /// A device of which nothing else was asked yet.
    pub fn new(device: Device) -> Self {
        Self {
            device,
            ports: Vec::new(),
            summary: None,
            qps: None,
            cm_ids: None,
            cqs: None,
            mrs: None,
            pds: None,
            ctxs: None,
            srqs: None,
            counter_sets: None,
        }
    }

    /// Every request of this device that failed. Counters that the driver does not have are no failure.
    pub fn errors(&self) -> impl Iterator<Item = &RequestError> {
        fn error<T>(reading: Option<&Result<T, RequestError>>) -> Option<&RequestError> {
            reading.and_then(|reading| reading.as_ref().err())
        }
        fn counters(port: &PortSample) -> Option<&RequestError> {
            let error = error(port.counters.as_ref())?;
            (!error.is_absence()).then_some(error)
        }
        let ports = self
            .ports
            .iter()
            .flat_map(|port| [error(port.info.as_ref()), counters(port)]);
        ports
            .chain([
                error(self.summary.as_ref()),
                error(self.qps.as_ref()),
                error(self.cm_ids.as_ref()),
                error(self.cqs.as_ref()),
                error(self.mrs.as_ref()),
                error(self.pds.as_ref()),
                error(self.ctxs.as_ref()),
                error(self.srqs.as_ref()),
                error(self.counter_sets.as_ref()),
            ])
            .flatten()
    }
}

/// One refresh of RDMA netlink. The caller stamps it with its clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetlinkSample {
    /// Settings of the subsystem; asked once, on the first refresh.
    pub sys: Reading<SysSettings>,
    /// The devices there are, or why they could not be listed.
    pub devices: Result<Vec<DeviceSample>, RequestError>,
    /// Was the list of devices read while it changed, twice in a row?
    pub devices_interrupted: bool,
}

impl NetlinkSample {
    /// Every request of this refresh that failed.
    pub fn errors(&self) -> impl Iterator<Item = &RequestError> {
        let sys = self.sys.iter().filter_map(|reading| reading.as_ref().err());
        let devices = self.devices.iter().flatten().flat_map(DeviceSample::errors);
        sys.chain(self.devices.as_ref().err()).chain(devices)
    }
}
