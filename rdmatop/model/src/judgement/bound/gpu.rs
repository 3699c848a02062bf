//! What the GPUs of a job did.
//!
//! An NCCL kernel that waits for a peer occupies a few multiprocessors, one for each channel, and no tensor
//! core. A job therefore computes when most multiprocessors have work and the tensor cores are busy too.

use std::collections::BTreeSet;

use crate::{facts::GpuUse, input::GpuSample};

/// From this share of its multiprocessors with work, a GPU computes (our limit).
const SMS: f64 = 0.7;
/// From this share of the time its tensor cores must be busy as well (our limit): some kernels occupy all
/// multiprocessors while they wait.
const TENSOR: f64 = 0.1;
/// Shortest time, ns, on which a verdict may rest; the same as for links.
const LEAST_NS: u64 = super::LEAST_NS;

/// The activity of the GPUs on which these processes compute. `None` if one of these GPUs is shared with
/// another process, or does not report its activity.
pub(super) fn use_of(processes: &BTreeSet<u32>, samples: &[GpuSample], now_ns: u64) -> Option<GpuUse> {
    let newest = samples.last()?;
    if !newest.is_of(now_ns) {
        return None;
    }
    let (mut ns, mut sms, mut tensor) = (0, 0.0, 0.0);
    let (own, mut end_ns) = (own_of(processes, newest)?, newest.mono_ns);
    for sample in samples.iter().rev() {
        // A gap, or a change of the GPUs, ends the time that is averaged over.
        if sample.mono_ns != end_ns || own_of(processes, sample).as_ref() != Some(&own) {
            break;
        }
        let Some(busy) = busy(&own, sample) else { break };
        let length = sample.mono_ns.saturating_sub(sample.before_ns);
        (sms, tensor) = (sms + busy[0] * length as f64, tensor + busy[1] * length as f64);
        (ns, end_ns) = (ns + length, sample.before_ns);
    }
    let known = ns >= LEAST_NS;
    known.then(|| GpuUse {
        sm_share: sms / ns as f64,
        tensor_share: tensor / ns as f64,
        gpus: own.len() as u64,
        seconds: ns as f64 / 1e9,
    })
}

/// Whether the GPUs work on what the job computes.
pub(super) fn computes(gpus: GpuUse) -> bool {
    gpus.sm_share >= SMS && gpus.tensor_share >= TENSOR
}

/// Indices of the GPUs on which only these processes compute. `None` if there is none, if another process
/// computes on one of them too, or if a GPU does not list its processes.
fn own_of(processes: &BTreeSet<u32>, sample: &GpuSample) -> Option<Vec<usize>> {
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
