//! This machine's sources for a plan.

use std::{
    io,
    sync::{Arc, Mutex},
    thread,
};

use super::host::{self, Advice, DeviceSource, OpenerSource, ProcessSource, SharedDetails};
use super::plan::{Mode, Plan};
use super::{ring, work};
use crate::cli::{AttachMode, MOST_QPS};
use rdmatop_loader::{Manager, MapSweep, Options, Prober, Scope, not_started, reported};
use rdmatop_model::cause::{CauseId, Obstacle};
use rdmatop_model::{event::EventKind, input::EbpfState};
use rdmatop_sources::seam::{Feed, Polled, Pushing, Sources};
use rdmatop_sources::{kernel_log::KernelLog, limits, privileges, proc::Details, sysfs};

/// What can be read or opened only with rights that rdmatop then gives up.
pub(super) struct Begun {
    advice: Advice,
    log: KernelLog,
}

/// Examines the machine, and then gives up privileges, so it must run before the first thread. What is
/// missing is judged by the rights before that.
pub(super) fn begin(plan: &Plan) -> Begun {
    let begun = Begun {
        advice: Advice::new(plan.root.clone(), plan.attach),
        log: KernelLog::open(),
    };
    privileges::shed(plan.hw_counters.is_some() || sysfs::has_mlx5(&plan.root));
    begun
}

/// Begins, and creates the sources; nothing is read from the kernel's RDMA side yet.
pub(super) fn sources(plan: &Plan) -> Sources {
    with_prober(plan, begin(plan)).0
}

/// As [`sources`], with what probes programs when the user asks for it.
pub(super) fn with_prober(plan: &Plan, begun: Begun) -> (Sources, Option<Prober>) {
    let root = plan.root.clone();
    let Begun { advice, log } = begun;
    let platform = advice.platform();
    let no_rdma = advice
        .notes()
        .iter()
        .find(|cause| cause.id.denies_rdma())
        .cloned();
    let nested_pids = platform.initial_pid_namespace == Some(false);
    let available = platform.memory_available;
    // Without /sys this is unknown: netlink will show it.
    let subsystem = platform.rdma_devices.is_some() || platform.without_sys;
    let sweep = MapSweep::default();
    let mut polled: Vec<Box<dyn Polled>> = Vec::new();
    if plan.attach.is_some() {
        polled.push(Box::new(host::seen(sweep.clone())));
    }
    if let Some(hw_counters) = &plan.hw_counters {
        // This source comes before the one that reads the counters.
        polled.push(Box::new(host::hw_counters(hw_counters.clone())));
    }
    polled.push(Box::new(DeviceSource::new(root.clone(), log)));
    let read = if plan.mask { Details::masked } else { Details::new };
    let details: SharedDetails = Arc::new(Mutex::new(read(root.clone())));
    polled.push(Box::new(ProcessSource::new(root.clone(), Arc::clone(&details))));
    if plan.attach.is_some() {
        polled.push(Box::new(host::maps(sweep.clone())));
    }
    // Numbers of another PID namespace would be those of other processes.
    if !nested_pids {
        polled.push(Box::new(host::tcp(root.clone(), Arc::clone(&details))));
        polled.push(Box::new(OpenerSource::new(root.clone(), details)));
        if plan.gpus {
            polled.push(Box::new(host::gpus(&root)));
        }
    }
    polled.push(Box::new(host::health(&root, advice)));
    // With --uprobes no key has to switch probes on.
    let keys = plan.attach.is_some() && plan.uprobes.is_none();
    let prober = keys.then(|| Prober::new(sweep.clone()));
    let sources = Sources {
        polled,
        pushing: plan.attach.map(|attach| {
            pushing(
                Manager::new(options(plan, attach, available, nested_pids), sweep.clone()),
                sweep,
            )
        }),
        subsystem,
        nested_pids,
        ebpf: match plan.attach {
            Some(_) => EbpfState::Starting,
            None => EbpfState::Disabled,
        },
        no_rdma,
    };
    (sources, prober)
}

/// How to attach. For tests of loss and for storms RDMATOP_RING_BYTES makes the ring buffer tiny (or large),
/// and RDMATOP_WR_RING_BYTES that of work requests; for tests RDMATOP_SLOTS and RDMATOP_QPS set fewer slots
/// and smaller tables of QPs.
fn options(plan: &Plan, attach: AttachMode, available: Option<u64>, nested_pids: bool) -> Options {
    let mut options = Options {
        ring_bytes: ring::bytes(plan.mode, available),
        scope: match plan.mode {
            // This mode has no view that shows a counter.
            Mode::Lines => Scope::Events(needed(plan)),
            Mode::Live { .. } | Mode::Once | Mode::Check | Mode::Probes => Scope::All,
        },
        fentry: attach == AttachMode::Fentry,
        verb_times: plan.verb_times,
        max_qps: plan.max_qps,
        uprobes: plan.uprobes,
        work: plan
            .wants_work()
            .then(|| (work::filter(plan, nested_pids), ring::bytes(plan.mode, available))),
        ..Options::default()
    };
    // The kernel wants a power of two of pages and refuses others with EINVAL.
    let bytes = |name| asked(name).filter(|bytes| bytes.is_power_of_two() && *bytes >= 4096);
    options.ring_bytes = bytes("RDMATOP_RING_BYTES").unwrap_or(options.ring_bytes);
    if let Some((_, of_work)) = &mut options.work {
        *of_work = bytes("RDMATOP_WR_RING_BYTES").unwrap_or(*of_work);
    }
    options.slots = asked("RDMATOP_SLOTS").filter(|slots| (2..=MOST_QPS).contains(slots));
    options.known_qps = asked("RDMATOP_QPS").filter(|qps| (1..=MOST_QPS).contains(qps));
    // For tests: 0 leaves what the kernel side can count to the probes on programs, to compare the two.
    options.datapaths = asked("RDMATOP_DATAPATHS") != Some(0);
    options
}

/// Kinds of events that a trace needs: findings follow the states of QPs, and probes on programs the QPs
/// themselves.
fn needed(plan: &Plan) -> Vec<EventKind> {
    let mut kinds = plan.filter.events.clone();
    if !kinds.is_empty() && plan.filter.shows_findings() {
        kinds.extend([EventKind::QpModify, EventKind::QpError, EventKind::VerbError]);
    }
    if plan.wants_work() && plan.uprobes.is_some() {
        kinds.extend([EventKind::QpCreate, EventKind::QpModify, EventKind::QpDestroy]);
    }
    kinds
}

/// A number from the environment.
fn asked(name: &str) -> Option<u32> {
    std::env::var(name).ok()?.parse().ok()
}

/// The eBPF source gets a thread: it drains the ring buffer while the engine works.
fn pushing(manager: Manager, sweep: MapSweep) -> Pushing {
    let stop = manager.stop();
    let start = move |feed: Feed| {
        let report = feed.clone();
        let no_thread = move |error: io::Error| {
            let why = format!("cannot start its thread: {error}");
            let obstacle = Obstacle::new(CauseId::NoThread, why, limits::threads());
            // There is room: it is the first message in the channel, unless the engine has ended.
            let _ = report.offer(not_started(obstacle));
        };
        let failed = no_thread.clone();
        let work = move || match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => {
                let panicked = feed.clone();
                reported(|| runtime.block_on(manager.run(feed)), &sweep, &panicked);
            }
            Err(error) => failed(error),
        };
        if let Err(error) = thread::Builder::new().name("ebpf".to_owned()).spawn(work) {
            no_thread(error);
        }
    };
    Pushing {
        start: Box::new(start),
        stop: Box::new(stop),
    }
}
