//! What the GPUs of a job did.
//!
//! An NCCL kernel that waits for a peer occupies a few multiprocessors, one for each channel, and no tensor
//! core. A job therefore computes when most multiprocessors have work and the tensor cores are busy too.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::input::GpuSample;

/// From this share of its multiprocessors with work, a GPU computes (our limit).
const SMS: f64 = 0.7;
/// From this share of the time its tensor cores must be busy as well (our limit): some kernels occupy all
/// multiprocessors while they wait.
const TENSOR: f64 = 0.1;
/// Shortest time, ns, on which a verdict may rest; the same as for links.
const LEAST_NS: u64 = super::LEAST_NS;

/// How busy the GPUs of a job were, on average.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GpuUse {
    /// Share of the multiprocessors that had work.
    pub sm_share: f64,
    /// Share of the time in which tensor cores worked.
    pub tensor_share: f64,
    /// Number of GPUs.
    pub gpus: u64,
    /// Length of the time over which this is the average, s.
    pub seconds: f64,
}

impl GpuUse {
    /// The activity of the GPUs on which these processes compute. `None` if one of these GPUs is shared with
    /// another process, or does not report its activity.
    pub(super) fn of(processes: &BTreeSet<u32>, samples: &[GpuSample], now_ns: u64) -> Option<Self> {
        let newest = samples.last()?;
        if !newest.is_of(now_ns) {
            return None;
        }
        let (mut ns, mut sms, mut tensor) = (0, 0.0, 0.0);
        let (own, mut end_ns) = (own(processes, newest)?, newest.mono_ns);
        for sample in samples.iter().rev() {
            // A gap, or a change of the GPUs, ends the time that is averaged over.
            if sample.mono_ns != end_ns || self::own(processes, sample).as_ref() != Some(&own) {
                break;
            }
            let Some(busy) = busy(&own, sample) else { break };
            let length = sample.mono_ns.saturating_sub(sample.before_ns);
            (sms, tensor) = (sms + busy[0] * length as f64, tensor + busy[1] * length as f64);
            (ns, end_ns) = (ns + length, sample.before_ns);
        }
        let known = ns >= LEAST_NS;
        known.then(|| Self {
            sm_share: sms / ns as f64,
            tensor_share: tensor / ns as f64,
            gpus: own.len() as u64,
            seconds: ns as f64 / 1e9,
        })
    }

    /// The GPUs work on what the job computes.
    pub(super) fn computes(&self) -> bool {
        self.sm_share >= SMS && self.tensor_share >= TENSOR
    }

    pub(super) fn line(&self) -> String {
        format!(
            "multiprocessors {:.0} % busy, tensor cores {:.0} %",
            (self.sm_share * 100.0).floor(),
            (self.tensor_share * 100.0).floor()
        )
    }
}

/// Indices of the GPUs on which only these processes compute. `None` if there is none, if another process
/// computes on one of them too, or if a GPU does not list its processes.
fn own(processes: &BTreeSet<u32>, sample: &GpuSample) -> Option<Vec<usize>> {
    let mut own = Vec::new();
    for (at, gpu) in sample.gpus.iter().enumerate() {
        // A GPU that does not list its processes may be one of theirs.
        let on = gpu.processes.as_ref()?;
        let theirs = on.iter().filter(|pid| processes.contains(pid)).count();
        if theirs > 0 {
            own.push(at);
            if theirs < on.len() {
                return None;
            }
        }
    }
    (!own.is_empty()).then_some(own)
}

/// Averages over GPUs.
fn busy(own: &[usize], sample: &GpuSample) -> Option<[f64; 2]> {
    let (mut sms, mut tensor) = (0.0, 0.0);
    for at in own {
        let activity = sample.gpus.get(*at)?.activity?;
        (sms, tensor) = (sms + activity.sms, tensor + activity.tensor);
    }
    Some([sms / own.len() as f64, tensor / own.len() as f64])
}
