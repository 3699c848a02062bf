//! This machine's sources for a plan.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use tokio::sync::{mpsc, oneshot};

use super::host::{Advice, DeviceSource, HealthSource, MapSource, ProcessSource};
use super::plan::{Mode, Plan};
use super::ring;
use super::source::{Pushing, Source, Sources, Started};
use crate::cli::AttachMode;
use crate::model::input::EbpfState;
use crate::source::ebpf::{Attach, Manager, MapSweep, Options, Scope, SharedStatus};
use crate::source::privileges;
use crate::source::root::Root;

/// Looks at the machine and makes what is needed; nothing is read from the kernel's RDMA side yet.
///
/// Gives up privileges, so it has to come before the first thread. What is missing is judged by those that were there.
pub(super) fn sources(plan: &Plan) -> Sources {
    let root = Root::default();
    let advice = Advice::new(root.clone(), plan.attach);
    privileges::shed();
    let platform = advice.platform();
    let remedies = advice.remedies();
    let no_rdma = remedies
        .iter()
        .find(|remedy| remedy.id.starts_with("no-rdma"))
        .map(ToString::to_string);
    // Records have the machine's PIDs. Without records those of netlink and /proc, which are this namespace's, are right.
    let records = plan.attach.is_some() && !remedies.iter().any(|remedy| remedy.what.starts_with("No eBPF"));
    let foreign_pids = records && platform.surroundings.initial_pid_namespace == Some(false);
    let available = platform.host.memory_available;
    // Without /sys nobody knows: netlink will tell.
    let subsystem = platform.rdma_devices.is_some() || platform.without_sys;
    let status = SharedStatus::default();
    let sweep = MapSweep::default();
    if plan.attach.is_none() {
        status.update(|status| status.state = EbpfState::Disabled);
    }
    let mut polled: Vec<Box<dyn Source>> = vec![
        Box::new(DeviceSource::new(root.clone())),
        Box::new(ProcessSource::new(root.clone())),
    ];
    if plan.attach.is_some() {
        polled.push(Box::new(MapSource::new(sweep.clone())));
    }
    polled.push(Box::new(HealthSource::new(root, status.clone(), advice)));
    Sources {
        polled,
        pushing: plan
            .attach
            .map(|attach| ebpf(Manager::new(options(plan, attach, available), status, sweep))),
        subsystem,
        foreign_pids,
        no_rdma,
    }
}

/// How to attach. RDMATOP_RING_BYTES makes the ring buffer tiny (or large), for tests of loss and for storms;
/// RDMATOP_SLOTS says how many QPs can have moved and be counted.
fn options(plan: &Plan, attach: AttachMode, available: Option<u64>) -> Options {
    let mut options = Options {
        ring_bytes: ring::bytes(plan.mode, available),
        scope: match plan.mode {
            // Nothing shows a counter there.
            Mode::Lines { .. } => Scope::Events(plan.filter.events.clone()),
            Mode::Live { .. } | Mode::Once { .. } | Mode::Probes { .. } => Scope::All,
        },
        attach: match attach {
            AttachMode::Auto => Attach::Auto,
            AttachMode::Kprobe => Attach::Kprobe,
            AttachMode::Fentry => Attach::Fentry,
        },
        verb_times: plan.verb_times,
        ..Options::default()
    };
    // The kernel wants a power of two of pages and refuses others with EINVAL.
    if let Some(bytes) = asked("RDMATOP_RING_BYTES").filter(|bytes| bytes.is_power_of_two() && *bytes >= 4096)
    {
        options.ring_bytes = bytes;
    }
    if let Some(slots) = asked("RDMATOP_SLOTS").filter(|slots| (2..=MOST_SLOTS).contains(slots)) {
        options.slots = slots;
    }
    options
}

/// Three KiB of kernel memory each.
const MOST_SLOTS: u32 = 1 << 20;

/// A number in the environment.
fn asked(name: &str) -> Option<u32> {
    std::env::var(name).ok()?.parse().ok()
}

/// The eBPF side gets a thread: the ring buffer is drained while the engine works.
fn ebpf(manager: Manager) -> Pushing {
    let (told, started) = oneshot::channel();
    let (failed, handle) = (SharedTell::new(told), manager.stop_handle());
    let tell = failed.clone();
    let (change, changes) = mpsc::unbounded_channel();
    let manager = manager
        .on_start(move |outcome| tell.once(outcome.clone()))
        // A mode that does not listen has its notes.
        .on_change(move |what| drop(change.send(what)));
    let start = move |feed| {
        let work = move || match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime.block_on(manager.run(feed)),
            Err(e) => failed.once(Err(format!("cannot start its thread: {e}"))),
        };
        // Without a thread nobody tells the start: the closure and with it the sender are dropped, which the
        // receiver sees.
        drop(thread::Builder::new().name("ebpf".to_owned()).spawn(work));
    };
    Pushing {
        start: Box::new(start),
        started,
        changes,
        stop: Box::new(move || handle.stop()),
    }
}

/// A one-shot sender that two owners share; the first to speak is heard.
#[derive(Clone)]
struct SharedTell(Arc<Mutex<Option<Tell>>>);

type Tell = oneshot::Sender<Result<Started, String>>;

impl SharedTell {
    fn new(to: Tell) -> Self {
        Self(Arc::new(Mutex::new(Some(to))))
    }

    fn once(&self, outcome: Result<Started, String>) {
        let mut to = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(to) = to.take() {
            // The mode may have ended meanwhile.
            let _ = to.send(outcome);
        }
    }
}
