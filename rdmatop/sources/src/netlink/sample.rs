//! What was read of one device. Data only.
use rdmatop_model::cause::{Cause, Concerns, Obstacle};

use super::error::NetlinkError;
use super::record::{Device, Mr, Port, Summary};

/// The objects of a dump, and whether it is whole. Under churn the kernel lists some twice: the last reading
/// is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dump<T> {
    /// The objects, each once, by their ids.
    pub items: Vec<T>,
    /// The kernel reported twice in a row that the table changed while it was read: objects may be missing.
    pub interrupted: bool,
}

impl<T> Default for Dump<T> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            interrupted: false,
        }
    }
}

impl<T> Dump<T> {
    /// The objects, for a caller that would act on one that is missing as if it did not exist.
    ///
    /// # Errors
    ///
    /// [`NetlinkError::Interrupted`] if objects may be missing. [`Nldev`](super::client::Nldev) has then
    /// already asked again.
    pub fn whole(self) -> Result<Vec<T>, NetlinkError> {
        if self.interrupted {
            return Err(NetlinkError::Interrupted);
        }
        Ok(self.items)
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
    /// The cause, with the request as what is missing.
    pub fn cause(&self, concerns: Concerns) -> Cause {
        self.why.clone().takes(&*self.request, concerns)
    }

    /// The driver lacks what was asked for, which is no failure: for a driver without counters
    /// `stat_get_doit_default_counter` (nldev.c) returns EINVAL or EOPNOTSUPP, and some drivers return
    /// ENOENT.
    pub fn is_absence(&self) -> bool {
        matches!(self.errno, Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOENT))
    }
}

/// `None`: not asked. `Some(Err)`: asked, and the request failed. Never a made-up value.
pub type Reading<T> = Option<Result<T, RequestError>>;

/// One reading of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortSample {
    /// Port number, from 1.
    pub port: u32,
    /// State and addresses.
    pub info: Reading<Port>,
}

/// One reading of a device. A part that fails leaves the others as they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSample {
    /// The device.
    pub device: Device,
    /// Its ports, in order.
    pub ports: Vec<PortSample>,
    /// Counts of its resources.
    pub summary: Reading<Summary>,
    /// Memory regions.
    pub mrs: Reading<Dump<Mr>>,
}

impl DeviceSample {
    /// A device of which nothing else has been read.
    pub fn new(device: Device) -> Self {
        Self {
            device,
            ports: Vec::new(),
            summary: None,
            mrs: None,
        }
    }

    /// Every request about this device that failed.
    pub fn errors(&self) -> impl Iterator<Item = &RequestError> {
        fn error<T>(reading: Option<&Result<T, RequestError>>) -> Option<&RequestError> {
            reading.and_then(|reading| reading.as_ref().err())
        }
        let ports = self.ports.iter().map(|port| error(port.info.as_ref()));
        ports
            .chain([error(self.summary.as_ref()), error(self.mrs.as_ref())])
            .flatten()
    }
}
