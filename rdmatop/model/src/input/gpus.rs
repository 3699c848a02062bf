//! GPUs: where they are, how busy they were, and who computes on them.

use std::sync::Arc;

/// What GPUs did between two readings.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuSample {
    /// The time of the reading before, ns.
    pub before_ns: u64,
    /// The time of this reading, ns.
    pub mono_ns: u64,
    /// All GPUs of the machine.
    pub gpus: Vec<GpuReading>,
    /// Whether their memory may be registered as the host's is, by its address, and not only as a DMA-BUF.
    pub takes_addresses: bool,
}

/// How old the newest reading may be to count as present, ns (our limit): there is one reading each second.
const OLD_NS: u64 = 5_000_000_000;

impl GpuSample {
    /// Whether the reading is recent enough to describe this moment.
    pub fn is_of(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.mono_ns) <= OLD_NS
    }

    /// The GPUs on which a process computes; `None` if a GPU does not list processes, or tell its place.
    pub fn of(&self, pid: u32) -> Option<Arc<[Arc<GpuPlace>]>> {
        let mut all = Vec::new();
        for gpu in &self.gpus {
            if gpu.processes.as_ref()?.contains(&pid) {
                all.push(Arc::clone(gpu.place.as_ref()?));
            }
        }
        Some(all.into())
    }
}

/// Where a GPU is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuPlace {
    /// PCI address, `DDDD:BB:DD.F`.
    pub address: String,
    /// PCI path from the host bridge (`pci0000:17`) through the root port to the function; empty if unknown.
    pub path: Vec<String>,
    /// NUMA node; `None` if the kernel knows none.
    pub node: Option<u32>,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuReading {
    /// Where it is; `None` when its driver does not tell.
    pub place: Option<Arc<GpuPlace>>,
    /// How busy it was; `None` when it does not tell.
    pub activity: Option<GpuActivity>,
    /// Processes that compute on it; `None` when they cannot be listed.
    pub processes: Option<Vec<u32>>,
}

/// How busy a GPU was, as shares of what it has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuActivity {
    /// Multiprocessors that had work, averaged over the time.
    pub sms: f64,
    /// Time in which tensor cores worked, averaged over the multiprocessors.
    pub tensor: f64,
}
