//! GPUs: how busy they were.

use serde::{Deserialize, Serialize};

/// What GPUs did between two readings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuSample {
    /// When the reading before was, ns.
    pub before_ns: u64,
    /// When this one was, ns.
    pub mono_ns: u64,
    /// All GPUs of the machine.
    pub gpus: Vec<GpuReading>,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuReading {
    /// How busy it was; `None` when it does not tell.
    pub activity: Option<GpuActivity>,
    /// Processes that compute on it; `None` when they cannot be listed.
    pub processes: Option<Vec<u32>>,
}

/// How busy a GPU was, as shares of what it has.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuActivity {
    /// Multiprocessors that had work, averaged over the time.
    pub sms: f64,
    /// Time in which tensor cores worked, averaged over the multiprocessors.
    pub tensor: f64,
}
