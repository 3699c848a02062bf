//! A process that computes on a GPU and moves data, none of which can come from the GPU's memory.

use super::{RuleContext, growing};
use crate::facts::ProcessRow;
use crate::findings::{About, Finding, FindingId, words};
use rdmatop_base::step::step;

/// A process whose regions are all of the host's memory. It may have nothing of the GPU to send.
pub(super) fn none(ctx: &RuleContext<'_>, row: &ProcessRow) -> Option<Finding> {
    let regions = row.host_regions.filter(|regions| *regions > 0)?;
    let gpu = row.gpus.as_deref()?.first()?;
    let traffic = &row.traffic;
    let ways = [traffic.tx_bytes, traffic.rx_bytes]
        .into_iter()
        .filter_map(growing);
    let moves: f64 = ways.sum();
    if moves < ctx.limits.staged_bytes_per_s {
        return None;
    }
    Some(Finding {
        verdict: format!(
            "{} computes on GPU {} and moves {} by RDMA with {} and none of GPU memory: whatever it sends from its GPU is copied to the \
             host's memory first",
            words::process(row),
            gpu.address,
            words::bits(moves),
            words::count(regions, "memory region"),
        ),
        evidence: vec![
            format!(
                "{} of reg_mr since it began, and no DMA-BUF",
                words::count(regions, "call")
            ),
            "no peer memory module (nvidia_peermem) is loaded".to_owned(),
        ],
        next: step!(
            "rdmatop doctor   # gpu.direct warns -> do what it says, then start the program anew   # passes -> start it next with \
             NCCL_DEBUG=INFO: rdmatop nccl-log FILE says whether NCCL uses GPUDirect, and why not   # it only loads data -> leave it"
        ),
        short: "no GPUDirect".to_owned(),
        ..ctx.finding(FindingId::NoGpuDirect, About::of_process(row.uid))
    })
}
