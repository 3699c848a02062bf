//! Verbs that fail, and memory that is registered over and over.

use super::growth::{CONNECTIONS, REGIONS, RecentCalls};
use super::{RuleContext, growing};
use crate::facts::{VerbRow, registers_memory};
use crate::findings::{About, Finding, FindingId, words};
use crate::input::{LimitReached, LockedMemory};
use crate::value::Counter;
use rdmatop_base::step::{NextStep, step};
use rdmatop_base::{errno, locked, text};

const EPERM: u32 = 1;
const EIO: u32 = 5;
const EAGAIN: u32 = 11;
const ENOMEM: u32 = 12;
const ENODEV: u32 = 19;
pub(super) const ENOSPC: u32 = 28;
const ENODATA: u32 = 61;
const ETIMEDOUT: u32 = 110;

/// Bytes of locked memory that are enough for the buffers of most jobs: a limit above this, of which half is
/// free, need not be what a registration failed for.
const AMPLE: u64 = 1 << 30;

/// What an errno of a verb means, and what to do; `None` for those that programs ask for, such as EINVAL of a
/// try.
fn meaning(verb: &str, errno: u32, pid: u32, cgroup: Option<&str>) -> Option<(&'static str, NextStep)> {
    const USED_UP: &str = "rdma resource show   # a count that is huge -> end or mend the program that makes so many   \
                           # else fewer QPs and MRs in all: ibv_devinfo -v shows max_qp, max_mr";
    Some(match errno {
        ENOMEM if registers_memory(verb) => (
            "the locked-memory limit or memory is exhausted",
            step!(
                "sudo prlimit --memlock --pid {}   # not unlimited -> sudo prlimit --memlock=unlimited --pid {}; else free -h   \
                 # for its next start: {}",
                pid,
                pid,
                locked::raise(cgroup)
            ),
        ),
        ENOMEM => ("memory or the NIC's resources are exhausted", USED_UP.into()),
        ENODATA if verb == "modify_qp" => (
            "the GID table is empty at the index that it asks for",
            step!(
                "sudo rdmatop doctor --pid {}   # lists GIDs that exist -> start it with such a one: \
                 UCX_IB_GID_INDEX, perftest -x; NCCL from 2.21 on without NCCL_IB_GID_INDEX",
                pid
            ),
        ),
        EAGAIN => (
            "a limit is reached, as a rule that of the RDMA cgroup",
            step!(
                "cat \"/sys/fs/cgroup$(cut -d: -f3- /proc/{}/cgroup)/rdma.max\"   # a number -> lift that limit of the whole cgroup: echo \
                 'DEVICE hca_object=max' | sudo tee that file",
                pid
            ),
        ),
        EPERM => (
            "a right is missing",
            step!(
                "capsh --decode=$(awk '/^CapEff:/{print $2}' /proc/{}/status)   # lacks cap_ipc_lock, cap_net_raw -> option \
                 --cap-add of the container, or capabilities.add of the pod   # has both -> a device cgroup forbids it",
                pid
            ),
        ),
        ENOSPC => ("the NIC's resources are exhausted", USED_UP.into()),
        // The core resolves the address that is to go into the QP (`rdma_addr_find_l2_eth_by_grh`), and waits
        // a second.
        ETIMEDOUT if matches!(verb, "modify_qp" | "create_ah") => (
            "no answer from the peer's address (ARP on RoCE), or from the NIC's firmware",
            "ip neigh | grep -E 'INCOMPLETE|FAILED'   # an address -> ping it: its host, cable or VLAN   # none -> \
             sudo dmesg | tail -50: errors of the driver"
                .into(),
        ),
        EIO | ETIMEDOUT => (
            "the NIC or its firmware does not answer",
            "sudo dmesg | tail -50   # errors of the driver -> keep them for the vendor, then reset the NIC or reboot; again -> firmware, vendor".into(),
        ),
        ENODEV => (
            "the device is gone",
            "sudo dmesg | tail -50   # reset or removed -> start the program anew when rdma link lists it".into(),
        ),
        _ => return None,
    })
}

/// Whether a failure of this verb is no way to find out what there is: libraries probe, and resolve addresses
/// and routes by the connection manager on each device that may lead to the peer.
fn is_no_try(row: &VerbRow) -> bool {
    !row.probe && !row.verb.starts_with("cm_")
}

/// Calls of modify_qp by a process that failed with one errno.
pub(super) struct FailedSteps {
    /// The number of failed calls.
    pub(super) total: u64,
    pub(super) errno: &'static str,
    /// Whether [`fail`] names such a failure now, of this errno or another.
    pub(super) go_on: bool,
}

/// The commonest failure of modify_qp by a process, among those that [`fail`] names; `None` for none.
pub(super) fn failed_steps(ctx: &RuleContext<'_>, process: u64) -> Option<FailedSteps> {
    let mut rows = ctx.calls_of("modify_qp");
    let row = rows.find(|row| row.process_uid == Some(process) && is_no_try(row))?;
    let is_named = |number: u32| meaning(&row.verb, number, row.pid, None).is_some();
    let named: Vec<_> = row
        .errnos
        .iter()
        .filter(|(number, _)| is_named(*number))
        .collect();
    let (number, total) = named.iter().max_by_key(|(_, total)| *total)?;
    let grows = |number| ctx.history.of_errno(row, number).is_some();
    Some(FailedSteps {
        total: *total,
        errno: errno::name(*number).unwrap_or("an error"),
        go_on: growing(row.errors).is_some() && named.iter().any(|(number, _)| grows(*number)),
    })
}

/// Verbs that fail for want of something.
pub(super) fn fail(ctx: &RuleContext<'_>, out: &mut Vec<Finding>) {
    let rows = ctx.facts.verbs.iter();
    for row in rows.filter(|row| is_no_try(row) && growing(row.errors).is_some()) {
        let errnos = row.errnos.iter();
        out.extend(errnos.filter_map(|(number, total)| failure(ctx, row, *number, *total)));
    }
}

fn failure(ctx: &RuleContext<'_>, row: &VerbRow, number: u32, total: u64) -> Option<Finding> {
    let more = ctx.history.of_errno(row, number)?;
    let owner = ctx.owner(row.process_uid);
    let cgroup = owner.and_then(|row| Some(locked::believed(row.cgroup.as_deref()?, row.workload_claimed)));
    // There it is the NIC that is late.
    let is_late = number == ETIMEDOUT && owner.is_some_and(|owner| ctx.is_on_infiniband(owner));
    let (what, next) = meaning(&row.verb, if is_late { EIO } else { number }, row.pid, cgroup)?;
    let limit = owner.and_then(|owner| owner.limited.as_deref());
    let locked = owner.and_then(|owner| owner.locked.as_deref());
    let (id, (what, next)) = match (number, limit, locked) {
        (EAGAIN, Some(limit), _) => (FindingId::CgroupLimit, (used_up(limit), raise(limit))),
        (ENOMEM, _, Some(locked)) if registers_memory(&row.verb) => {
            (FindingId::VerbFails, short_of_memory(locked, cgroup))
        }
        _ => (FindingId::VerbFails, (what.to_owned(), next)),
    };
    let (verb, name) = (&row.verb, errno::name(number).unwrap_or("an error"));
    let who = owner.map_or_else(|| nameless(row), words::process);
    let about = About::of_process(row.process_uid).part(format!("{verb} {name} {}", row.pid));
    Some(Finding {
        verdict: format!("{verb} of {who} fails with {name}: {what}"),
        evidence: vec![format!(
            "{total} of {} calls failed so, {more} of them in the last interval that had any",
            row.calls.total
        )],
        next,
        short: format!("{verb} {name}"),
        ..ctx.finding(id, about)
    })
}

/// Whether the limit of locked memory alone explains that a registration has no memory.
pub(super) fn explains(locked: &LockedMemory) -> bool {
    locked.exempt == Some(false)
        && locked
            .limit
            .is_some_and(|limit| limit <= AMPLE || locked.pinned.is_none_or(|pinned| pinned >= limit / 2))
}

/// Why a registration has no memory, and what to do: `ib_umem_get` compares what drivers hold for the process
/// with its limit, and pins nothing where memory itself is short.
fn short_of_memory(locked: &LockedMemory, cgroup: Option<&str>) -> (String, NextStep) {
    let Some(limit) = locked.limit.filter(|_| locked.exempt != Some(true)) else {
        return (
            "its locked memory has no limit: memory itself or the NIC's resources are exhausted".to_owned(),
            step!(
                "free -h   # little available -> end what uses it, or register less   # else cat \
                 \"/sys/fs/cgroup$(cut -d: -f3- /proc/{}/cgroup)/memory.max\"; ibv_devinfo -v shows max_mr",
                locked.pid
            ),
        );
    };
    let held = locked
        .pinned
        .map_or_else(String::new, |pinned| format!(" ({} in use)", text::bytes(pinned)));
    let what = format!("its locked-memory limit is {}{held}", text::bytes(limit));
    let raise = step!("sudo prlimit --memlock=unlimited --pid {}", locked.pid);
    let later = step!("next start: {}", locked::raise(cgroup));
    if !explains(locked) {
        let unless = if locked.exempt.is_none() {
            ", unless CAP_IPC_LOCK counts for it"
        } else {
            ""
        };
        return (
            format!("{what}{unless}, or memory or the NIC's resources are exhausted"),
            step!(
                "free -h   # much available -> ibv_devinfo -v shows max_mr; or {}   # little available -> end what uses it, or \
                 register less   # {}",
                raise,
                later
            ),
        );
    }
    (what, step!("{}   # from now on; {}", raise, later))
}

fn used_up(limit: &LimitReached) -> String {
    let what = locked::counted_as(&limit.resource);
    format!(
        "its cgroup {} has all {} {what} of {} that it may have",
        limit.cgroup, limit.max, limit.device
    )
}

/// How to get more.
fn raise(limit: &LimitReached) -> NextStep {
    step!(
        "{}   # or let the program destroy what it does not use",
        locked::without_rdma_limit(&limit.device, &limit.resource, &limit.cgroup)
    )
}

/// A process that has no row of its own.
fn nameless(row: &VerbRow) -> String {
    let comm = row.comm.as_deref().unwrap_or("a process");
    format!("{comm} (PID {})", row.pid)
}

/// Memory regions that are registered for each transfer: many, or few that take long.
pub(super) fn churn(ctx: &RuleContext<'_>, row: &VerbRow) -> Option<Finding> {
    let limits = ctx.limits;
    let owner = ctx.owner(row.process_uid);
    let who = owner.map_or_else(|| nameless(row), words::process);
    let lately = ctx.history.lately(REGIONS, row.pid);
    let time = lately.as_ref().and_then(RecentCalls::time);
    let mut evidence = vec![format!("{} calls of reg_mr in all", row.calls.total)];
    evidence.extend(lately.map(|lately| {
        let time = after_comma(time.as_ref().map(|time| format!("{time} in reg_mr and dereg_mr")));
        // Of a registration whose length is not known only the call is.
        let bytes = (lately.bytes > 0.0).then(|| format!("{} registered", words::bytes(lately.bytes)));
        format!(
            "lately {} calls a second{time}{}",
            lately.rate(),
            after_comma(bytes)
        )
    }));
    // At most, because the comparison below says that it is little.
    let moved = owner.and_then(|owner| {
        let most = |bytes: Option<Counter>| bytes.and_then(Counter::most_rate);
        Some(most(owner.traffic.tx_bytes)? + most(owner.traffic.rx_bytes)?)
    });
    let is_much = lately.is_some_and(|it| it.share >= Some(limits.mr_share));
    let does = if let Some(rate) = growing(Some(row.calls)).filter(|rate| *rate > limits.mr_per_s) {
        format!(
            "registers memory {} times a second{}",
            words::number(rate),
            // A share that is small would say that it does not matter: the evidence has it.
            in_brackets(time.filter(|_| is_much))
        )
    } else if let Some((lately, time)) = lately.zip(time).filter(|_| is_much) {
        let each = lately
            .each()
            .map(|each| format!("{} a call", words::time(each * 1e9)));
        format!("spends {time} on registering memory{}", in_brackets(each))
    } else {
        let bytes = lately?.bytes;
        if bytes < limits.mr_bytes_per_s.max(moved?) {
            return None;
        }
        format!(
            "registers {} of memory, as much as it moves or more,",
            words::bytes(bytes)
        )
    };
    Some(Finding {
        verdict: format!("{who} {does} instead of reusing its regions"),
        evidence,
        next: step!(
            "sudo grep -zE 'UCX_RCACHE|FI_MR_CACHE' /proc/{}/environ | cat -v   # =n, =disabled or =0 -> restart it without that   # prints nothing -> its author: \
             keep buffers registered; only speed and CPU time are lost",
            row.pid
        ),
        short: "MR churn".to_owned(),
        ..ctx.finding(FindingId::MrChurn, About::of_process(row.process_uid))
    })
}

/// What is known, after a space and in brackets.
fn in_brackets(known: Option<String>) -> String {
    known.map_or_else(String::new, |known| format!(" ({known})"))
}

fn after_comma(known: Option<String>) -> String {
    known.map_or_else(String::new, |known| format!(", {known}"))
}

/// Connections that are made for each transfer.
pub(super) fn reconnects(ctx: &RuleContext<'_>, row: &VerbRow) -> Option<Finding> {
    let calls = |row: &VerbRow| growing(Some(row.calls)).filter(|rate| *rate > ctx.limits.qp_per_s);
    let made = calls(row)?;
    // Who only makes them starts a job, or leaks them.
    let ended = calls(ctx.calls_of("destroy_qp").find(|other| other.pid == row.pid)?)?;
    let owner = ctx.owner(row.process_uid);
    let lately = ctx.history.lately(CONNECTIONS, row.pid);
    let time = lately.as_ref().and_then(RecentCalls::time);
    let mut evidence = vec![format!("{} calls of create_qp in all", row.calls.total)];
    evidence.extend(lately.zip(time.as_ref()).map(|(lately, time)| {
        let each = lately
            .each()
            .map(|each| format!("{} for each QP", words::time(each * 1e9)));
        format!(
            "lately {} QPs a second, {time} in create_qp, modify_qp and destroy_qp{}",
            lately.rate(),
            after_comma(each)
        )
    }));
    Some(Finding {
        verdict: format!(
            "{} makes {} QPs a second and destroys {}{} instead of keeping its connections",
            owner.map_or_else(|| nameless(row), words::process),
            words::number(made),
            words::number(ended),
            in_brackets(time)
        ),
        evidence,
        next: step!(
            "sudo rdmatop --trace --pid {} --event qp_modify,qp_destroy   # shows to which peer each connection goes -> fix the program: it has \
             to keep one QP for each peer",
            row.pid
        ),
        short: "QP churn".to_owned(),
        ..ctx.finding(FindingId::QpChurn, About::of_process(row.process_uid))
    })
}
