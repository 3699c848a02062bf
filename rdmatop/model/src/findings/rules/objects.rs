//! What a process has more and more of, or too much: QPs, registered memory, mappings. And devices that
//! cannot go.

use std::sync::Arc;

use super::RuleContext;
use crate::cause::CauseId;
use crate::facts::{DeviceRow, DeviceState, Mappings, ProcessRow, QpRow};
use crate::findings::{About, Finding, FindingId, S, words};
use rdmatop_base::step::step;
use rdmatop_base::text;

/// How long a count of mappings is taken for the present one, ns: the process may have unmapped since.
const RECENT_NS: u64 = 600 * S;
/// The largest value of `vm.max_map_count`, which is an `int`.
const MOST: u64 = 0x7fff_ffff;

/// Processes that create QPs and use few of them.
pub(super) fn leak(ctx: &RuleContext<'_>, row: &ProcessRow) -> Option<Finding> {
    let grown = ctx.history.qps.in_steps(5, row.uid);
    let (more, since) = grown.filter(|(more, _)| *more >= ctx.limits.leak_qps)?;
    // What is not counted may move: that is no leak then.
    let is_at_rest = |qp: &&Arc<QpRow>| {
        let moved = [qp.traffic.tx_wr, qp.traffic.rx_wr];
        !qp.exited
            && qp.process_uid == Some(row.uid)
            && moved
                .iter()
                .all(|count| count.is_some_and(|count| count.total == 0))
    };
    let at_rest = ctx.facts.qps.iter().filter(is_at_rest).count() as u64;
    if at_rest * 2 <= row.qps {
        return None;
    }
    let seconds = ctx.facts.mono_ns.saturating_sub(since) / S;
    Some(Finding {
        since_mono_ns: since,
        verdict: format!(
            "{} has made {more} QPs within {seconds} s and destroyed none: {} now, {at_rest} of them without a work request",
            words::process(row),
            row.qps
        ),
        evidence: vec![format!("{more} more within {seconds} s, never fewer")],
        next: row.pid.map_or_else(
            || "Fix the program: does it open connections again without ibv_destroy_qp or rdma_destroy_ep? A restart frees them.".into(),
            |pid| {
                step!(
                    "rdma resource show qp pid {}   # more than it has clients -> fix the program: it keeps QPs of clients that are gone (ibv_destroy_qp)   # as many -> no \
                     leak: clients wait, or connect again and again   # a restart frees them, and ends its connections",
                    pid
                )
            },
        ),
        short: format!("+{more} QPs"),
        ..ctx.finding(FindingId::QpLeak, About::of_process(row.uid))
    })
}

/// Devices whose removal waits.
pub(super) fn removal(ctx: &RuleContext<'_>, device: &DeviceRow) -> Option<Finding> {
    if device.state != Some(DeviceState::Removing) {
        return None;
    }
    // The source that saw it has looked for the processes that have the device open.
    let (verdict, next) = match ctx.facts.health.note_of(CauseId::RemovalWaits, &device.name) {
        Some(note) => (format!("{}: {}", note.what, note.why), note.remedy.clone()),
        None => (
            format!(
                "{} is being removed: the kernel waits until its last user closes it",
                device.name
            ),
            "end the processes that use it".into(),
        ),
    };
    Some(Finding {
        verdict,
        evidence: vec!["RDMA netlink lists it no more, sysfs still does".to_owned()],
        next,
        short: "removal waits".to_owned(),
        ..ctx.finding(FindingId::Removal, About::of_device(device.uid))
    })
}

/// Processes whose registered memory only rises.
pub(super) fn growth(ctx: &RuleContext<'_>, row: &ProcessRow) -> Option<Finding> {
    // Buffers that a program registers at its start fill one or two of eight parts of the window.
    let grown = ctx.history.memory.in_steps(6, row.uid);
    let (more, since) = grown.filter(|(more, _)| *more >= ctx.limits.mr_growth_bytes)?;
    let pid = row.pid?;
    let (who, more, now) = (words::process(row), text::bytes(more), text::bytes(row.mr_bytes?));
    let age = text::age(ctx.facts.mono_ns.saturating_sub(since) / S);
    Some(Finding {
        since_mono_ns: since,
        verdict: format!("{who} registers more and more memory: {more} in {age}, {now} now"),
        evidence: vec![format!("{more} more within {age}, and no reading had less")],
        next: step!(
            "rdma resource show mr pid {}   # more of one length each time -> the program lacks an ibv_dereg_mr   # of many lengths -> a \
             cache of its library without a bound: ucx_info -f | grep RCACHE_MAX, or FI_MR_CACHE_MAX_SIZE of libfabric, for its next start",
            pid
        ),
        short: format!("+{more} MR"),
        ..ctx.finding(FindingId::MrGrowth, About::of_process(row.uid))
    })
}

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
