//! Mappings of memory, of which a process may have only so many.

use super::RuleContext;
use crate::facts::{Mappings, ProcessRow};
use crate::findings::{About, Finding, FindingId, words};
use rdmatop_base::step::step;
use rdmatop_base::text;

const S: u64 = 1_000_000_000;
/// How long a count is taken for the present one, ns: the process may have unmapped since.
const RECENT_NS: u64 = 600 * S;
/// The largest value of the sysctl, which is an `int`.
const MOST: u64 = 0x7fff_ffff;

/// Processes that use RDMA and have nearly as many mappings as they may.
///
/// `do_mmap` (mm/mmap.c) and `split_vma` (mm/mmap.c, later mm/vma.c) fail with ENOMEM where a process has
/// `vm.max_map_count` mappings; `do_mmap` lets it have one more. With fork support, libibverbs asks for
/// MADV_DONTFORK on each buffer before it asks the kernel to register it (`ibv_dontfork_range`), which splits
/// a mapping. From Linux 5.17 on, `madvise_vma_behavior` makes EAGAIN of that ENOMEM. In both cases no verb
/// of the kernel has failed, so `verb-fails` says nothing.
pub(super) fn nearly_all(ctx: &RuleContext<'_>, row: &ProcessRow) -> Option<Finding> {
    let uses_rdma = row.qps > 0 || row.mr_bytes.is_some_and(|bytes| bytes > 0);
    let Mappings {
        count,
        limit,
        read_ns,
    } = row.mappings.filter(|_| uses_rdma && !row.exited)?;
    let limit = limit.filter(|limit| *limit > 0)?;
    let age_ns = ctx.facts.mono_ns.saturating_sub(read_ns);
    let share = count as f64 / limit as f64;
    if age_ns > RECENT_NS || share < ctx.limits.map_share {
        return None;
    }
    let twice = limit.saturating_mul(2).min(MOST);
    let age = text::age(age_ns / S);
    Some(Finding {
        since_mono_ns: read_ns,
        verdict: format!(
            "{} had {count} of the {limit} mappings of memory that it may have (vm.max_map_count)",
            words::process(row)
        ),
        evidence: vec![
            format!("counted {age} ago, {} of the limit", words::percent(share)),
            "at the limit mmap fails with ENOMEM, and with fork support ibv_reg_mr, too (EAGAIN from Linux 5.17 on): memory itself \
             need not be short"
                .to_owned(),
            "the usual reason is many small registrations, or an allocator with many arenas".to_owned(),
        ],
        next: step!(
            "sudo sysctl -w vm.max_map_count={}   # only for a program that you trust: it lets every process take more kernel memory, until \
             the next boot; to keep it: vm.max_map_count={} in /etc/sysctl.d/90-max-map-count.conf",
            twice,
            twice
        ),
        short: format!("{count} mappings"),
        ..ctx.finding(FindingId::MapCount, About::of_process(row.uid))
    })
}
