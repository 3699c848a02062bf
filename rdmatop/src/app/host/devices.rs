//! Devices, ports and QPs: RDMA netlink for what changes, sysfs for the rest.
//!
//! The identity of a device, its ports and its resources change rarely: they are listed when something shows
//! that they changed, and from time to time. In between a round reads counters only.
//!
//! Threads do the reads that may wait for a driver (`readers`, `job`). A round takes the answers that arrive
//! in time; a late one belongs to a later round (`schedule` decides), and until then the device keeps its
//! last values. `present` knows which devices there are, `readings` has them read, and `round` makes the
//! inputs. What is read in which round is decided here.

use std::{
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use self::{
    driver_log::DriverLog,
    elsewhere::Elsewhere,
    entry::Entry,
    job::{Ask, Counts, DeviceList, Open, What},
    present::Present,
    readings::Readings,
    round::Round,
    schedule::Subject,
};
use rdmatop_model::{
    cause::{Cause, CauseId, Concerns, Obstacle},
    input::Input,
};
use rdmatop_sources::seam::{Polled, Wants};
use rdmatop_sources::{
    clock::now,
    kernel_log::KernelLog,
    netlink::{client::Nldev, error::NetlinkError, transport::Transport},
    root::Root,
    sysfs::list_devices,
};

mod counters;
mod driver_log;
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
mod present;
mod readings;
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
/// Up to this number of devices, all are asked for their counts in each round that wants QPs. With more,
/// those at rest are asked only when states of ports are. There only the counts show a first QP, and the
/// counts of a device cost the kernel as much as its counters.
const FEW: usize = 8;
/// With more devices than `FEW`, one at rest is read again after this, ns: in every other round of a refresh
/// of one second. Records of the eBPF programs show a first QP at once.
const RESTED: u64 = 1_500_000_000;

/// Reads devices, and QPs when they are wanted.
pub struct DeviceSource {
    present: Present,
    readings: Readings,
    /// Why the settings of the subsystem are unknown.
    settings_error: Option<Cause>,
    /// When the devices were listed, unless that failed.
    listed_ns: Option<u64>,
    /// When states and resources were last asked for.
    states_ns: u64,
    /// What is said of devices of other network namespaces that were not found or not read.
    elsewhere: Vec<Cause>,
    /// What was last reported of devices that are slow or left alone.
    slow: Vec<Cause>,
    /// [`RESTED`], except in tests.
    rested_ns: u64,
    /// The kernel's log, which shows whether a driver logs when it is read.
    log: Option<DriverLog>,
}

impl DeviceSource {
    /// Reads under `root`; netlink is opened on the first round and again after a failure. The counters of a
    /// device whose driver logs at each reading are left alone: `log` was opened before privileges were given
    /// up.
    pub fn new(root: Root, log: KernelLog) -> Self {
        Self {
            log: Some(DriverLog::of(log)),
            ..Self::through(root, Arc::new(Nldev::open))
        }
    }

    /// Sends requests to the kernel that `open` connects to.
    fn through<T: Transport + Send + 'static>(root: Root, open: Open<T>) -> Self {
        let of_threads = root.clone();
        let elsewhere = Arc::new(Mutex::new(Elsewhere::default()));
        let work = move || job::work(of_threads.clone(), Arc::clone(&open), Arc::clone(&elsewhere));
        Self {
            present: Present::new(root),
            readings: Readings::new(work),
            settings_error: None,
            listed_ns: None,
            states_ns: 0,
            elsewhere: Vec::new(),
            slow: Vec::new(),
            rested_ns: RESTED,
            log: None,
        }
    }

    /// Whether the devices must be listed, and not only their counters read.
    fn list_is_due(&self) -> bool {
        let now_ns = now().mono_ns;
        let young = self
            .listed_ns
            .is_some_and(|at| now_ns.saturating_sub(at) < LIST_EVERY);
        // An added, removed or renamed device shows here at once, for the cost of one directory.
        // A device that is being removed shows only in these lists.
        let young = young && self.present.removals.is_empty() && self.readings.device_list.is_none();
        let dirs = &self.present.dirs;
        !young || dirs.is_none() || list_devices(&self.present.root) != *dirs
    }

    /// The list of devices, once it has arrived.
    fn device_list(&mut self, round: &mut Round) -> Option<Result<DeviceList, NetlinkError>> {
        let mut found = self.readings.device_list(&mut self.present, round);
        if let Some(Ok(found)) = &mut found {
            self.elsewhere = std::mem::take(&mut found.notes);
            self.present.mode = found.mode;
            self.settings_error = found.mode_error.take().map(|error| *error);
        }
        found
    }

    fn list(&mut self, found: &DeviceList, wants: &Wants, round: &mut Round) {
        self.present.dirs = list_devices(&self.present.root);
        self.states_ns = round.before_ns;
        let gone = self.present.update(found, round.before_ns);
        (round.complete, round.other) = (true, false);
        for at in 0..self.present.entries.len() {
            self.order_list(at, wants, round);
        }
        self.readings.wait(&mut self.present, round);
        // A list that the kernel flags as interrupted may lack a device: the next round lists again. What one
        // namespace does not tell costs the devices of others no round.
        let mut entries = self.present.entries.iter();
        let missed = entries.any(|entry| entry.missed.is_some() && !found.is_silent(entry));
        let whole = !found.interrupted && !round.other && !missed;
        self.listed_ns = whole.then_some(round.before_ns);
        if !found.interrupted {
            self.leave(gone, found, round);
        }
        self.readings.keep(&self.present);
    }

    /// Has a thread list a device, if it can be asked now.
    fn order_list(&mut self, at: usize, wants: &Wants, round: &Round) {
        let Some(entry) = self
            .present
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
        if !self.readings.schedule.is_due(subject, now().mono_ns, round.once) {
            return;
        }
        let renamed = std::mem::take(&mut entry.renamed);
        let what = What::List {
            index: entry.index,
            name: entry.name.clone(),
            before: entry.listed.take().filter(|_| !renamed),
            ask: Ask {
                counters: true,
                states: true,
                qps: entry.owes_qps.is_some(),
                counts: Counts::No,
                ..ask(entry, wants, round)
            },
        };
        let name = Arc::clone(&entry.shown);
        self.readings.order(subject, &name, &self.present, round, what);
    }

    /// Looks for devices that are being removed, and reads them. `gone` were listed the last time and are not
    /// now.
    fn leave(&mut self, gone: Vec<Entry>, found: &DeviceList, round: &mut Round) {
        let mut leaving = self
            .present
            .unlisted(self.present.dirs.as_deref().unwrap_or_default(), found);
        if leaving.iter().any(|dir| !self.present.removals.knows(dir, &gone)) {
            // A device never listed before: one that is being created looks the same for some milliseconds.
            thread::sleep(ONE_THAT_COMES);
            let dirs = list_devices(&self.present.root).unwrap_or_default();
            let found = self.device_list(round).and_then(Result::ok);
            let still = found.map_or_else(Vec::new, |found| self.present.unlisted(&dirs, &found));
            leaving.retain(|dir| self.present.removals.knows(dir, &gone) || still.contains(dir));
        }
        leaving.extend(self.present.removals.unlisted_elsewhere(&gone));
        if self.present.leave(&leaving, gone, round.before_ns) {
            self.listed_ns = None;
        }
        let mut todo = Vec::new();
        for going in self.present.removals.iter_mut() {
            let subject = Subject::Device(going.entry.id);
            if self
                .readings
                .schedule
                .is_due(subject, round.before_ns, round.once)
            {
                let what = What::Removal {
                    dir: going.dir.clone(),
                    device: going.entry.device(),
                    before: going.entry.listed.take(),
                };
                todo.push((subject, Arc::clone(&going.entry.shown), what));
            }
        }
        for (subject, name, what) in todo {
            self.readings.order(subject, &name, &self.present, round, what);
        }
        self.readings.wait(&mut self.present, round);
    }

    /// Reads the counters of the listed devices; with `resources`, also what else is due. Returns whether the
    /// devices are still those that were listed.
    fn read_listed(&mut self, wants: &Wants, resources: bool, round: &mut Round) -> bool {
        let states = resources && round.before_ns.saturating_sub(self.states_ns) >= STATES_EVERY;
        let resources = resources && (states || wants.qps || wants.objects);
        let rests = |entry: &&Entry| entry.listed.as_ref().is_some_and(|listed| listed.rests());
        let entries = &self.present.entries;
        let resting = entries.iter().filter(rests).count();
        let few = entries.len() <= FEW;
        let all = states || wants.objects || wants.repair || few;
        // Every device is read: the round is printed, or something has happened on one of them.
        let each = all || wants.once || wants.last;
        // One request for all devices costs a third less per device than one request for each.
        let all = resources && (all || entries.len() - resting > entries.len() / 2);
        let found = match all.then(|| self.device_list(round)).flatten() {
            None => None,
            Some(Ok(found)) if self.present.are_these(&found) => Some(found),
            Some(other) => {
                self.readings.device_list = Some(other);
                return false;
            }
        };
        for at in 0..self.present.entries.len() {
            let Some(entry) = self.present.entries.get_mut(at) else {
                break;
            };
            if entry.excluded || entry.missed.is_some() {
                continue;
            }
            if wants.repair {
                entry.owes_qps = Some(round.before_ns);
            }
            if entry.owes_list {
                self.order_list(at, wants, round);
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
            if !self.readings.schedule.is_due(subject, now().mono_ns, round.once) {
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
                ..ask(entry, wants, round)
            };
            let name = Arc::clone(&entry.shown);
            let what = What::Again { listed, ask };
            self.readings.order(subject, &name, &self.present, round, what);
        }
        self.readings.wait(&mut self.present, round);
        if states && found.is_some() {
            self.states_ns = round.before_ns;
        }
        !round.other
    }

    /// Sends what a round has found.
    fn send_all(&self, round: Round, out: &mut dyn FnMut(Input)) {
        if !round.is_empty() {
            round.send_all(now().mono_ns, &self.present, self.settings_error.as_ref(), out);
        }
    }

    /// Sends what drivers have logged, see [`DriverLog::look`].
    fn look_at_log(&mut self, read_ns: Option<u64>, out: &mut dyn FnMut(Input)) {
        if let Some(log) = &mut self.log {
            log.look(&mut self.present.entries, read_ns, out);
        }
    }

    /// Lists the devices. If no list arrives, reads those that are known.
    fn list_or_wait(&mut self, wants: &Wants, round: &mut Round, out: &mut dyn FnMut(Input)) {
        match self.device_list(round) {
            Some(Ok(found)) => self.list(&found, wants, round),
            Some(Err(error)) => {
                self.listed_ns = None;
                // A note reports a machine without RDMA: there this is no failure.
                let failed = error != NetlinkError::NoRdma;
                if !failed {
                    self.present.entries.clear();
                    self.readings.keep(&self.present);
                }
                let cause = failed.then(|| error.of("list of devices").cause(Concerns::Host));
                out(round::unread(now().mono_ns, cause));
            }
            None if round.once && self.present.entries.is_empty() => {
                let why = "the kernel has not answered: a driver may hold its lock of devices";
                let silence = Obstacle::new(CauseId::NoAnswer, why, "see dmesg");
                let cause = silence.takes("list of devices", Concerns::Host);
                out(round::unread(now().mono_ns, Some(cause)));
            }
            None => {
                self.read_listed(wants, false, round);
            }
        }
    }
}

/// What every reading of a device is told. What to read is added to it.
fn ask(entry: &Entry, wants: &Wants, round: &Round) -> Ask {
    Ask {
        counters: false,
        paused: !round.once && entry.harm.is_paused(now().mono_ns),
        last: wants.last,
        psns: wants.psns.get(&entry.index).cloned().unwrap_or_default(),
        paths: wants.paths.get(&entry.index).cloned().unwrap_or_default(),
        states: false,
        qps: false,
        counts: Counts::No,
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
            self.readings.collect(&mut self.present, &mut late);
        }
        self.look_at_log(None, out);
        if !reads {
            return;
        }
        let before_ns = now().mono_ns;
        let other = late.other;
        self.send_all(late, out);
        let mut round = Round::new(before_ns, wants);
        if other || self.list_is_due() || !self.read_listed(wants, true, &mut round) {
            self.list_or_wait(wants, &mut round, out);
        }
        self.send_all(round, out);
        self.look_at_log(Some(before_ns), out);
        let mut slow = self.readings.notes();
        slow.extend(self.present.pauses());
        slow.extend(self.present.left_alone());
        slow.extend(self.elsewhere.iter().cloned());
        if slow != self.slow {
            self.slow.clone_from(&slow);
            out(Input::Slow(slow));
        }
    }
}
