//! Devices, ports and QPs: RDMA netlink for what changes, sysfs for the rest.
//!
//! The identity of a device, its ports and its resources change rarely: they are listed when something shows
//! that they changed, and from time to time. In between a round reads counters only.
//!
//! Threads do the reads that may wait for a driver (`readers`, `job`). A round takes the answers that arrive
//! in time; a late one belongs to a later round (`schedule` decides), and until then the device keeps its
//! last values.

use std::{
    ffi::{OsStr, OsString},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use self::{
    elsewhere::Elsewhere,
    entry::{Entry, held},
    groups::Pace,
    job::{Answer, Ask, Counts, DeviceAnswer, DeviceList, Job, Open, What},
    removals::{Gone, Removals},
    round::{Context, Round},
    schedule::{MOST, Schedule, Step, Subject},
};
use crate::app::source::{Polled, Wants};
use rdmatop_base::text;
use rdmatop_model::{
    cause::{Cause, CauseId, Concerns, Obstacle},
    engine::concerns,
    input::{DeviceReading, Input, LoggedError, UNLISTED},
};
use rdmatop_sources::{
    clock::now,
    kernel_log::KernelLog,
    netlink::{client::Nldev, enums::NetnsMode, error::NetlinkError, transport::Transport},
    readers::Readers,
    removal,
    root::Root,
    sysfs::{device_dir, list_devices},
};

mod counters;
mod dump;
mod elsewhere;
mod entry;
mod groups;
mod harm;
mod interfaces;
mod job;
mod known;
mod owners;
mod paths;
mod removals;
mod round;
mod schedule;
#[cfg(test)]
mod tests;

/// Devices are listed again after this, ns, even if nothing shows a change. Only a listing reads facts of
/// sysfs and the attributes that a driver sets when it registers a device; states and counts are read more
/// often.
const LIST_EVERY: u64 = 30_000_000_000;
/// States of ports and counts of resources are asked for again after this, ns.
const STATES_EVERY: u64 = 5_000_000_000;
/// A device that is being created is in sysfs some milliseconds before netlink lists it.
const ONE_THAT_COMES: Duration = if cfg!(test) {
    Duration::from_millis(1)
} else {
    Duration::from_millis(250)
};
/// In mode exclusive a device that no list has is kept for this long, ns: while the kernel moves it, no
/// network namespace has it.
const MOVES: u64 = 3_000_000_000;
/// The same for a device that is in some namespace by its verbs file: a search finds it there, once a process
/// is in that namespace.
const COMES: u64 = 15_000_000_000;
/// Up to this number of devices, all are asked for their counts in each round that wants QPs. With more,
/// those at rest are asked only when states of ports are. There only the counts show a first QP, and the
/// counts of a device cost the kernel as much as its counters.
const FEW: usize = 8;
/// With more devices than `FEW`, one at rest is read again after this, ns: in every other round of a refresh
/// of one second. Records of the eBPF programs show a first QP at once.
const RESTED: u64 = 1_500_000_000;

/// Only what is logged within this time, ns, is taken for a result of reading: where reading takes most of
/// the time, whatever a driver logs comes while it is read.
const AMID: u64 = 100_000_000;

/// Reads devices, and QPs when they are wanted.
pub struct DeviceSource {
    root: Root,
    readers: Readers<Job, (Subject, Answer)>,
    schedule: Schedule,
    entries: Vec<Entry>,
    /// Numbers given to devices so far.
    ids: u64,
    /// A list of devices that arrived late.
    everyone: Option<Result<DeviceList, NetlinkError>>,
    /// Why the settings of the subsystem are unknown.
    settings_error: Option<Cause>,
    /// When the devices were listed, unless that failed.
    listed_ns: Option<u64>,
    /// When states and resources were last asked for.
    states_ns: u64,
    /// Directories of devices at the last listing.
    dirs: Option<Vec<OsString>>,
    /// Devices that are being removed.
    removals: Removals,
    /// Where devices are seen, if that is known.
    mode: Option<NetnsMode>,
    /// What is said of devices of other network namespaces that were not found or not read.
    elsewhere: Vec<Cause>,
    /// Which slow devices were reported last.
    slow: Vec<Cause>,
    /// [`RESTED`], except in tests.
    rested_ns: u64,
    /// The kernel's log, which shows whether a driver logs when it is read.
    log: Option<KernelLog>,
    /// Whether the log could be read at the last look; `None` before the first.
    logs: Option<bool>,
    /// QPs are being bound to counters: they are looked for on each device in each round.
    counting: bool,
}

impl DeviceSource {
    /// Reads under `root`; netlink is opened on the first round and again after a failure.
    pub fn new(root: Root) -> Self {
        Self::through(root, Arc::new(Nldev::open))
    }

    /// Sends requests to the kernel that `open` connects to.
    fn through<T: Transport + Send + 'static>(root: Root, open: Open<T>) -> Self {
        let of_threads = root.clone();
        let elsewhere = Arc::new(Mutex::new(Elsewhere::default()));
        let work = move || job::work(of_threads.clone(), Arc::clone(&open), Arc::clone(&elsewhere));
        Self {
            readers: Readers::new(MOST, 1, work),
            root,
            schedule: Schedule::default(),
            entries: Vec::new(),
            ids: 0,
            everyone: None,
            settings_error: None,
            listed_ns: None,
            states_ns: 0,
            dirs: None,
            removals: Removals::default(),
            mode: None,
            elsewhere: Vec::new(),
            slow: Vec::new(),
            rested_ns: RESTED,
            log: None,
            logs: None,
            counting: false,
        }
    }

    /// Reads `log`, too, which was opened before privileges were given up, and leaves alone the counters of a
    /// device whose driver logs at each reading.
    #[must_use]
    pub fn watching(mut self, log: KernelLog) -> Self {
        self.log = Some(log);
        self
    }

    /// With `counting`, counters that QPs are bound to are looked for on each device all the time, and
    /// otherwise now and then.
    #[must_use]
    pub fn counting(mut self, counting: bool) -> Self {
        self.counting = counting;
        self
    }

    /// Whether the devices must be listed, and not only their counters read.
    fn list_is_due(&self) -> bool {
        let now_ns = now().mono_ns;
        let young = self
            .listed_ns
            .is_some_and(|at| now_ns.saturating_sub(at) < LIST_EVERY);
        // An added, removed or renamed device shows here at once, for the cost of one directory.
        // A device that is being removed shows only in these lists.
        let young = young && self.removals.is_empty() && self.everyone.is_none();
        !young || self.dirs.is_none() || list_devices(&self.root) != self.dirs
    }

    /// Gives a thread something to read.
    fn order(&mut self, subject: Subject, name: &Arc<str>, round: &Round, what: What) {
        let progress = self.schedule.ask(subject, name, now().mono_ns, round.once);
        let entries = self.entries.iter().map(|entry| (entry.id, &entry.place));
        let removals = self.removals.iter().map(|going| (going.id, &going.place));
        let of_it = entries
            .chain(removals)
            .find(|(id, _)| Subject::Device(*id) == subject);
        self.readers.push(Job {
            subject,
            progress,
            before_ns: round.before_ns,
            place: of_it.and_then(|(_, place)| place.clone()),
            what,
        });
    }

    /// Takes answers for as long as the round waits for any.
    fn wait(&mut self, round: &mut Round) {
        let mut refused = false;
        loop {
            let step = self
                .schedule
                .step(now().mono_ns, self.readers.free(), !refused, round.once);
            match step {
                Step::Done => break,
                Step::Wait(ns) => {
                    self.readers
                        .wait_for(self.schedule.awaited(), Duration::from_nanos(ns));
                    self.collect(round);
                }
                Step::Grow if self.readers.grow() => {}
                Step::Grow if self.readers.threads() == 0 => {
                    if let Some((subject, answer)) = self.readers.work_here() {
                        self.take(subject, answer, round);
                    }
                }
                Step::Grow => refused = true,
            }
        }
        self.schedule.give_up();
    }

    /// Takes the answers that have arrived.
    fn collect(&mut self, round: &mut Round) {
        while let Some((subject, answer)) = self.readers.answer() {
            self.take(subject, answer, round);
        }
    }

    fn take(&mut self, subject: Subject, answer: Answer, round: &mut Round) {
        if !self.schedule.answered(subject, now().mono_ns) {
            return;
        }
        match (subject, answer) {
            (_, Answer::DeviceList(found)) => self.everyone = Some(found),
            (Subject::Device(id), Answer::Device(answer)) => self.device_answered(id, *answer, round),
            (Subject::DeviceList, Answer::Device(_)) => {}
        }
    }

    fn device_answered(&mut self, id: u64, mut answer: DeviceAnswer, round: &mut Round) {
        if let Some(going) = self.removals.iter_mut().find(|going| going.id == id) {
            going.listed = answer.listed;
            // An answer of another kind is from the time when netlink still listed the device.
            let all = answer.all.filter(|reading| reading.removing);
            return round.add(DeviceAnswer {
                all,
                ..DeviceAnswer::default()
            });
        }
        let Some(entry) = self.entries.iter_mut().find(|entry| entry.id == id) else {
            return;
        };
        if let Some(broke) = answer.broke {
            entry.harm.counted(broke, now().mono_ns);
        }
        entry.answered(&mut answer);
        round.add(answer);
    }

    /// The list of devices, once it has arrived.
    fn everyone(&mut self, round: &mut Round) -> Option<Result<DeviceList, NetlinkError>> {
        if self.everyone.is_none() {
            if !self.schedule.is_asked(Subject::DeviceList) {
                let what = What::DeviceList { mode: self.mode };
                self.order(
                    Subject::DeviceList,
                    &"the list of RDMA devices".into(),
                    round,
                    what,
                );
            }
            self.wait(round);
        }
        let mut found = self.everyone.take();
        if let Some(Ok(found)) = &mut found {
            self.elsewhere = std::mem::take(&mut found.notes);
            self.mode = found.mode;
            self.settings_error = found.mode_error.take().map(|error| *error);
        }
        found
    }

    /// Records which devices netlink lists. Returns those that it no longer lists.
    fn update(&mut self, found: &DeviceList, now_ns: u64) -> Vec<Gone> {
        let mut gone = Vec::new();
        if !found.interrupted {
            let dirs = self.dirs.as_deref().unwrap_or_default();
            for mut entry in std::mem::take(&mut self.entries) {
                let listed = found.counts(entry.index).is_some();
                let missed_ns = *entry.missed.get_or_insert(now_ns);
                let comes = found.absent.iter().any(|name| **name == *entry.shown);
                let moves = self.mode == Some(NetnsMode::Exclusive)
                    && now_ns.saturating_sub(missed_ns) < if comes { COMES } else { MOVES }
                    && !entry.is_in_sysfs(dirs);
                if listed || found.is_silent(&entry) || moves {
                    self.entries.push(entry);
                } else {
                    gone.push(entry.into());
                }
            }
        }
        for (name, counts) in &found.devices {
            let index = counts.device_index;
            if !self.entries.iter().any(|entry| entry.index == index) {
                self.ids += 1;
                self.entries.push(Entry::new(self.ids, index, name, &self.root));
            }
            for entry in self.entries.iter_mut().filter(|entry| entry.index == index) {
                if entry.name != *name {
                    entry.rename(name, &self.root);
                }
                entry.missed = None;
                entry.is_at(found.places.get(&index));
            }
        }
        gone
    }

    /// Lists everything.
    fn list(&mut self, found: &DeviceList, wants: &Wants, round: &mut Round) {
        self.dirs = list_devices(&self.root);
        self.states_ns = round.before_ns;
        let gone = self.update(found, round.before_ns);
        (round.complete, round.other) = (true, false);
        for at in 0..self.entries.len() {
            self.order_list(at, Some(found), wants, round);
        }
        self.wait(round);
        // A list that the kernel flags as interrupted may lack a device: the next round lists again. What one
        // namespace does not tell costs the devices of others no round.
        let mut entries = self.entries.iter();
        let missed = entries.any(|entry| entry.missed.is_some() && !found.is_silent(entry));
        let whole = !found.interrupted && !round.other && !missed;
        self.listed_ns = whole.then_some(round.before_ns);
        if !found.interrupted {
            self.leave(gone, found, round);
        }
        self.keep();
    }

    /// Forgets what was asked of devices that are gone.
    fn keep(&mut self) {
        let Self {
            schedule,
            removals,
            entries,
            ..
        } = self;
        schedule.keep(|id| removals.has(id) || entries.iter().any(|entry| entry.id == id));
    }

    /// Has a thread list a device, if it can be asked now.
    fn order_list(&mut self, at: usize, found: Option<&DeviceList>, wants: &Wants, round: &Round) {
        let Some(entry) = self
            .entries
            .get_mut(at)
            .filter(|entry| !entry.excluded && entry.missed.is_none())
        else {
            return;
        };
        // The list stays due until the device has answered.
        entry.owes_list = true;
        if wants.qps {
            entry.owes_qps = Some(round.before_ns);
        }
        let subject = Subject::Device(entry.id);
        if !self.schedule.is_due(subject, now().mono_ns, round.once) {
            return;
        }
        let renamed = std::mem::take(&mut entry.renamed);
        let counts = found.and_then(|found| found.counts(entry.index));
        let what = What::List {
            index: entry.index,
            name: entry.name.clone(),
            before: entry.listed.take().filter(|_| !renamed),
            ask: Ask {
                counters: true,
                paused: !round.once && entry.harm.is_paused(now().mono_ns),
                pace: Pace {
                    always: self.counting,
                    last: wants.last,
                },
                psns: wants.psns.get(&entry.index).cloned().unwrap_or_default(),
                paths: wants.paths.get(&entry.index).cloned().unwrap_or_default(),
                states: true,
                qps: entry.owes_qps.is_some(),
                counts: counts.map_or(Counts::No, |counts| Counts::Known(counts.clone())),
            },
        };
        let name = Arc::clone(&entry.shown);
        self.order(subject, &name, round, what);
    }

    /// Those of the directories of devices that a list of netlink's lacks.
    fn unlisted(&self, dirs: &[OsString], found: &DeviceList) -> Vec<OsString> {
        let is = |dir: &OsStr| {
            let mut names = found.devices.iter();
            names.any(|(name, _)| device_dir(name.as_bytes()).is_some_and(|name| name == dir))
        };
        removal::unlisted(&self.root, dirs, is, self.mode == Some(NetnsMode::Shared))
    }

    /// Looks for devices that are being removed, and reads them. `gone` were listed the last time and are not
    /// now.
    fn leave(&mut self, gone: Vec<Gone>, found: &DeviceList, round: &mut Round) {
        let mut leaving = self.unlisted(self.dirs.as_deref().unwrap_or_default(), found);
        if leaving.iter().any(|dir| !self.removals.knows(dir, &gone)) {
            // A device never listed before: one that is being created looks the same for some milliseconds.
            thread::sleep(ONE_THAT_COMES);
            let dirs = list_devices(&self.root).unwrap_or_default();
            let found = self.everyone(round).and_then(Result::ok);
            let still = found.map_or_else(Vec::new, |found| self.unlisted(&dirs, &found));
            leaving.retain(|dir| self.removals.knows(dir, &gone) || still.contains(dir));
        }
        leaving.extend(self.removals.unlisted_elsewhere(&gone));
        let ids = &mut self.ids;
        let over = self
            .removals
            .update(&self.root, &leaving, gone, round.before_ns, || {
                *ids += 1;
                *ids
            });
        // Until its directory moves, a device on its way to another network namespace looks the same.
        for going in over
            .into_iter()
            .filter(|_| self.mode == Some(NetnsMode::Exclusive))
        {
            let is_new = self.entries.iter().all(|entry| entry.index != going.device.index);
            if is_new && going.device.index < UNLISTED {
                self.listed_ns = None;
                self.entries.push(Entry {
                    listed: going.listed,
                    place: going.place,
                    missed: Some(round.before_ns),
                    ..Entry::new(going.id, going.device.index, &going.device.name, &self.root)
                });
            }
        }
        let mut todo = Vec::new();
        for going in self.removals.iter_mut() {
            let subject = Subject::Device(going.id);
            if self.schedule.is_due(subject, round.before_ns, round.once) {
                let what = What::Removal {
                    dir: going.dir.clone(),
                    device: going.device.clone(),
                    before: going.listed.take(),
                };
                todo.push((subject, text::sanitize(going.device.name.as_bytes()).into(), what));
            }
        }
        for (subject, name, what) in todo {
            self.order(subject, &name, round, what);
        }
        self.wait(round);
    }

    /// Reads the counters of the listed devices; with `resources`, also what else is due. Returns whether the
    /// devices are still those that were listed.
    fn again(&mut self, wants: &Wants, resources: bool, round: &mut Round) -> bool {
        let states = resources && round.before_ns.saturating_sub(self.states_ns) >= STATES_EVERY;
        let resources = resources && (states || wants.qps || wants.objects);
        let rests = |entry: &&Entry| entry.listed.as_ref().is_some_and(|listed| listed.rests());
        let resting = self.entries.iter().filter(rests).count();
        let few = self.entries.len() <= FEW;
        let all = states || wants.objects || wants.repair || few;
        // Every device is read: the round is printed, or something has happened on one of them.
        let each = all || wants.once || wants.last;
        // One request for all devices costs a third less per device than one request for each.
        let all = resources && (all || self.entries.len() - resting > self.entries.len() / 2);
        let found = match all.then(|| self.everyone(round)).flatten() {
            None => None,
            Some(Ok(found)) if self.are_these(&found) => Some(found),
            Some(other) => {
                self.everyone = Some(other);
                return false;
            }
        };
        for at in 0..self.entries.len() {
            let Some(entry) = self.entries.get_mut(at) else {
                break;
            };
            if entry.excluded || entry.missed.is_some() {
                continue;
            }
            if wants.repair {
                entry.owes_qps = Some(round.before_ns);
            }
            if entry.owes_list {
                self.order_list(at, found.as_ref(), wants, round);
                continue;
            }
            let rests = !each
                && entry.owes_qps.is_none()
                && entry.listed.as_ref().is_some_and(|listed| listed.rests());
            if rests && round.before_ns.saturating_sub(entry.asked_ns) < self.rested_ns {
                round.rests();
                continue;
            }
            let subject = Subject::Device(entry.id);
            if !self.schedule.is_due(subject, now().mono_ns, round.once) {
                continue;
            }
            let Some(listed) = entry.listed.take() else {
                continue;
            };
            entry.asked_ns = round.before_ns;
            // What is owed stays owed.
            let dump = wants.last || round.once || listed.dump_is_due(now().mono_ns);
            let counts = found.as_ref().and_then(|found| found.counts(entry.index));
            let ask = Ask {
                counters: wants.counters,
                paused: !round.once && entry.harm.is_paused(now().mono_ns),
                pace: Pace {
                    always: self.counting,
                    last: wants.last,
                },
                psns: wants.psns.get(&entry.index).cloned().unwrap_or_default(),
                paths: wants.paths.get(&entry.index).cloned().unwrap_or_default(),
                states: states && counts.is_some(),
                qps: dump && (wants.qps || entry.owes_qps.is_some()),
                counts: match counts {
                    Some(counts) => Counts::Known(counts.clone()),
                    // The device was late when its QPs were wanted, and was not asked then.
                    None if entry.owes_qps.is_some_and(|since_ns| since_ns < round.before_ns) => {
                        Counts::Asked
                    }
                    None if resources && !all => Counts::Unless,
                    None => Counts::No,
                },
            };
            let name = Arc::clone(&entry.shown);
            self.order(subject, &name, round, What::Again { listed, ask });
        }
        self.wait(round);
        if states && found.is_some() {
            self.states_ns = round.before_ns;
        }
        !round.other
    }

    /// Whether the devices are those that were listed.
    fn are_these(&self, found: &DeviceList) -> bool {
        let is = |entry: &Entry| {
            let mut names = found.devices.iter();
            names.any(|(name, counts)| counts.device_index == entry.index && *name == entry.name)
                && found.places.get(&entry.index) == entry.place.as_ref()
        };
        let listed = || self.entries.iter().filter(|entry| entry.missed.is_none());
        found.devices.len() == listed().count() && listed().all(is)
    }

    /// Sends what a round has found.
    fn send_all(&mut self, round: Round, out: &mut dyn FnMut(Input)) {
        if round.is_empty() {
            return;
        }
        let mono_ns = now().mono_ns;
        let settings = self.settings_error.clone().filter(|_| round.complete);
        let entries = || self.entries.iter();
        let beside = Context {
            held: if round.lists() { self.held() } else { Vec::new() },
            devices: self.entries.len(),
            errors: settings
                .into_iter()
                .chain(entries().flat_map(|entry| entry.errors.iter().cloned()))
                .collect(),
            qp_errors: entries()
                .flat_map(|entry| entry.qp_errors.iter().cloned())
                .collect(),
            notes: self.removals.notes(),
        };
        round.send_all(mono_ns, beside, out);
    }

    /// Sends what drivers have logged; `read_ns`: since just before the devices were read, which was then.
    fn look_at_log(&mut self, read_ns: Option<u64>, out: &mut dyn FnMut(Input)) {
        let now_ns = now().mono_ns;
        let Some(log) = &mut self.log else { return };
        // Lines that the last look left may be older than the reading.
        let amid = !log.is_behind() && read_ns.is_some_and(|read_ns| now_ns.saturating_sub(read_ns) < AMID);
        let mut errors = log.errors();
        let lines = errors.as_deref_mut().unwrap_or_default();
        for entry in &mut self.entries {
            let of_it = |error: &LoggedError| concerns(error, &entry.shown, entry.pci.as_deref());
            let logged = lines.iter().any(of_it);
            if entry.harm.logged(amid, logged, now_ns) {
                // What is critical stays a finding: that a reading shows it does not make the device work.
                for error in &mut *lines {
                    error.ours |= of_it(error) && !error.critical;
                }
            }
        }
        let is_new = self.logs.replace(errors.is_ok()) != Some(errors.is_ok());
        if is_new || errors.as_ref().is_ok_and(|errors| !errors.is_empty()) {
            out(Input::Logged(errors.map_err(|cause| Box::new(cause.clone()))));
        }
    }

    /// The devices whose counters are left alone for now.
    fn pauses(&self) -> impl Iterator<Item = Cause> {
        let now_ns = now().mono_ns;
        let paused = self
            .entries
            .iter()
            .filter(move |entry| entry.harm.is_paused(now_ns));
        paused.map(|entry| harm::pause(&entry.shown))
    }

    /// Which devices are left alone.
    fn left_alone(&self) -> Option<Cause> {
        let entries = self.entries.iter().filter(|entry| entry.excluded);
        let names: Vec<&str> = entries.map(|entry| &*entry.shown).collect();
        (!names.is_empty()).then(|| Cause {
            id: CauseId::Excluded,
            concerns: Concerns::Host,
            what: text::names(&names),
            why: "not read, as --exclude-device or the settings say".into(),
            remedy: "".into(),
        })
    }

    /// All devices, unread.
    fn held(&self) -> Vec<DeviceReading> {
        let listed = self.entries.iter().map(|entry| DeviceReading {
            left_alone: entry.excluded,
            ..held(entry.index, &entry.shown)
        });
        let going = self.removals.iter().map(|going| DeviceReading {
            removing: true,
            ..held(going.device.index, &text::sanitize(going.device.name.as_bytes()))
        });
        listed.chain(going).collect()
    }

    /// Lists the devices. If no list arrives, reads those that are known.
    fn list_or_wait(&mut self, wants: &Wants, round: &mut Round, out: &mut dyn FnMut(Input)) {
        match self.everyone(round) {
            Some(Ok(found)) => self.list(&found, wants, round),
            Some(Err(error)) => {
                self.listed_ns = None;
                // A note reports a machine without RDMA: there this is no failure.
                let failed = error != NetlinkError::NoRdma;
                if !failed {
                    self.entries.clear();
                    self.keep();
                }
                let cause = failed.then(|| error.of("list of devices").cause(Concerns::Host));
                out(round::unread(now().mono_ns, cause));
            }
            None if round.once && self.entries.is_empty() => {
                let why = "the kernel has not answered: a driver may hold its lock of devices";
                let silence = Obstacle::new(CauseId::NoAnswer, why, "see dmesg");
                let cause = silence.takes("list of devices", Concerns::Host);
                out(round::unread(now().mono_ns, Some(cause)));
            }
            None => {
                self.again(wants, false, round);
            }
        }
    }
}

impl Polled for DeviceSource {
    fn name(&self) -> &'static str {
        "RDMA devices"
    }

    fn poll(&mut self, wants: &Wants, out: &mut dyn FnMut(Input)) {
        let reads = wants.is_sample();
        // Answers since the last round go first: they are older, and so are the lines that came with them.
        let mut late = Round::late(now().mono_ns);
        if reads {
            self.collect(&mut late);
        }
        self.look_at_log(None, out);
        if !reads {
            return;
        }
        let before_ns = now().mono_ns;
        let other = late.other;
        self.send_all(late, out);
        let mut round = Round::new(before_ns, wants);
        if other || self.list_is_due() || !self.again(wants, true, &mut round) {
            self.list_or_wait(wants, &mut round, out);
        }
        self.send_all(round, out);
        self.readers.calm(self.schedule.is_calm());
        self.look_at_log(Some(before_ns), out);
        let mut slow = self.schedule.notes(now().mono_ns, self.readers.threads());
        slow.extend(self.pauses());
        slow.extend(self.left_alone());
        slow.extend(self.elsewhere.iter().cloned());
        if slow != self.slow {
            self.slow.clone_from(&slow);
            out(Input::Slow(slow));
        }
    }
}
