//! What GPUs did in the last seconds, for the verdict on what a job waits for.

use super::Engine;
use crate::input::GpuSample;

/// Seconds that are kept, ns (ours): as many as traffic is averaged over.
const SPAN_NS: u64 = 30_000_000_000;

impl Engine {
    pub(super) fn gpus(&mut self, sample: GpuSample) {
        let since_ns = sample.mono_ns.saturating_sub(SPAN_NS);
        self.gpus.retain(|old| old.before_ns >= since_ns);
        self.gpus.push(sample);
    }
}
