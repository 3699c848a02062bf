//! Attaches and detaches probes. For each the kernel takes up to seconds.

use std::{
    collections::BTreeMap,
    fs::File,
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
    sync::mpsc,
    thread,
};

use super::{
    hooks::Function,
    monotonic,
    price::Sample,
    probed::{Full, Gone, Party, Probed},
    target::{Known, ProbePoint},
};
use crate::attach::{
    explain,
    probe::{Event, Pmu},
};
use rdmatop_model::cause::{CauseId, Obstacle};
use rdmatop_sources::uprobes::{Opened, Place};

/// The most functions to probe at a time: each takes three or five open files.
pub(super) const MOST_FUNCTIONS: usize = 128;
/// How often to look for probes that no program can hit any more, ns.
const TIDY_NS: u64 = 1_000_000_000;

/// The programs that the loader has loaded, by name.
pub(super) type Programs = BTreeMap<&'static str, OwnedFd>;

pub(super) struct Probes {
    /// The time at which the probes were attached.
    since_ns: u64,
    /// The probes at the function's entry and at its return.
    _events: Vec<Event>,
    file: File,
}

impl Probes {
    /// Whether the file has been deleted: then only processes that have mapped it can still use it.
    fn is_of_deleted_file(&self) -> bool {
        self.file.metadata().is_ok_and(|file| file.nlink() == 0)
    }
}

/// Says why the attacher does not probe a function.
pub(super) enum NotAttached {
    Full(Full),
    Refused(Obstacle),
}

pub(super) struct Attacher {
    programs: Programs,
    sample: Sample,
    pmu: Option<Pmu>,
    /// The process that is probed, or all.
    pid: Option<u32>,
    pub(super) probed: Probed<Probes>,
    /// How long a hit delays the probed program, ns; `None` while it has not been measured.
    pub(super) hit_ns: Option<u64>,
    /// Leads to the thread that detaches probes.
    remover: Option<mpsc::Sender<Vec<Gone<Probes>>>>,
    /// When [`Attacher::tidy`] last looked, ns.
    tidied_ns: u64,
}

impl Attacher {
    pub(super) fn new(programs: Programs, sample: Sample, pid: Option<u32>) -> Self {
        Self {
            programs,
            sample,
            pmu: Pmu::read("uprobe"),
            pid,
            probed: Probed::new(MOST_FUNCTIONS),
            hit_ns: None,
            remover: None,
            tidied_ns: 0,
        }
    }

    /// By which numbers a file is known of which functions are probed.
    pub(super) fn known(&self, file: &Opened, place: &Place) -> Option<Known> {
        let is_it = |probes: &Probes| file.is(&probes.file, place.offset);
        let file = self.probed.known_as(file.identity, is_it)?;
        let for_all = self.probed.has_for_all(file);
        Some(Known { file, for_all })
    }

    /// Since when a function is probed, ns, which one more QP uses from now on; `None` if it is not probed.
    pub(super) fn share(&mut self, point: &ProbePoint, of: Party) -> Option<u64> {
        self.probed.take(point, of).map(|probes| probes.since_ns)
    }

    /// Probes a function that is not probed yet. Returns since when it is, ns.
    pub(super) fn probe(&mut self, point: ProbePoint, file: Opened, of: Party) -> Result<u64, NotAttached> {
        let gone = self.probed.make_room(of).map_err(NotAttached::Full)?;
        self.unprobe(gone);
        if self.hit_ns.is_none() {
            self.hit_ns = self.measure();
        }
        let pid = point.process.map(|process| process.pid).or(self.pid);
        let events = self.attach(point.function, &file.path(), point.offset, pid);
        let events = events.map_err(NotAttached::Refused)?;
        log::info!(point:? = point; "attached");
        let since_ns = monotonic();
        let probes = Probes {
            since_ns,
            _events: events,
            file: file.into_file(),
        };
        self.probed.add(point, probes, of);
        Ok(since_ns)
    }

    /// Removes the probes that no program can hit any more.
    pub(super) fn tidy(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.tidied_ns) < TIDY_NS {
            return;
        }
        self.tidied_ns = now_ns;
        let gone = self.probed.unreachable(now_ns, Probes::is_of_deleted_file);
        self.unprobe(gone);
    }

    /// Detaches probes on a thread of its own.
    fn unprobe(&mut self, gone: Vec<Gone<Probes>>) {
        if gone.is_empty() {
            return;
        }
        let remover = self.remover.get_or_insert_with(|| {
            let (to, gone) = mpsc::channel::<Vec<Gone<Probes>>>();
            // Without a thread the receiver is dropped here; `send` then fails, and the probes are detached.
            let _ = thread::Builder::new()
                .name("unprobe".to_owned())
                .spawn(move || gone.into_iter().for_each(drop));
            to
        });
        if remover.send(gone).is_err() {
            self.remover = None;
        }
    }

    /// Attaches to the return first: an entry that is remembered would be a loss if no program sees its
    /// return.
    fn attach(
        &self,
        function: Function,
        path: &str,
        offset: u64,
        pid: Option<u32>,
    ) -> Result<Vec<Event>, Obstacle> {
        let none = || {
            Obstacle::new(
                CauseId::NoKprobes,
                "this kernel has no uprobe events: CONFIG_UPROBE_EVENTS",
                "",
            )
        };
        let pmu = self.pmu.ok_or_else(none)?;
        let (entry, back) = function.programs();
        let attach = |program: &str, at_return| {
            let program = self.programs.get(program).ok_or_else(none)?;
            pmu.at_program(program, (path, offset), pid, at_return, function.cookie())
                .map_err(|error| explain(&error))
        };
        let back = back.map(|program| attach(program, true)).transpose()?;
        Ok(std::iter::once(attach(entry, false)?).chain(back).collect())
    }

    /// Measures the cost of a hit, ns: half of what entry and return add to a call of [`Sample`].
    fn measure(&self) -> Option<u64> {
        let (file, offset) = Sample::place()?;
        let plain = self.sample.call_ns();
        let own = Some(std::process::id());
        let events = self.attach(Function::PostSend, &file.path(), offset, own).ok()?;
        let probed = self.sample.call_ns();
        drop(events);
        Some((probed.saturating_sub(plain) / 2).max(1))
    }
}
