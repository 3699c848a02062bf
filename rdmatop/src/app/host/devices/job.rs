//! The work of a thread that reads devices. Every read that may wait for a driver is here.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    mem,
    sync::{Arc, Mutex, PoisonError},
};

use super::{
    counters::AskPort,
    dump::dump,
    elsewhere::{Elsewhere, Place},
    entry::Entry,
    groups,
    known::Listed,
    owners::Owners,
    paths, removals,
    schedule::{SharedProgress, Stage, Subject},
};
use rdmatop_model::{
    cause::{Cause, Concerns},
    input::{DeviceGroups, DeviceReading, PathReading, PortCounters, PsnReading, QpsSample, ReadAt},
};
use rdmatop_sources::{
    clock::now,
    netlink::{
        client::Nldev,
        error::NetlinkError,
        name::Name,
        record::{Device, NetnsMode, Owned, Summary},
        sampler::{self, Want},
        transport::Transport,
    },
    privileges::Raised,
    readers::Work,
    root::Root,
};

/// One reading.
pub(super) struct Job {
    /// Which device the answer is for.
    pub(super) subject: Subject,
    /// Where the thread records its progress.
    pub(super) progress: SharedProgress,
    /// When the round began, ns: nothing in the answer is older.
    pub(super) before_ns: u64,
    /// The network namespace of the device, if it is another one.
    pub(super) place: Option<Arc<Place>>,
    pub(super) what: What,
}

/// What is to be read.
pub(super) enum What {
    /// The list of devices. `mode`: where they were seen so far, which root may change at any time.
    DeviceList { mode: Option<NetnsMode> },
    /// All of one device. Its counters, too, unless they are left alone: one that is not in a listing is
    /// forgotten.
    List {
        index: u32,
        name: Name,
        before: Option<Box<Listed>>,
        ask: Ask,
    },
    /// What has changed of a listed device.
    Again { listed: Box<Listed>, ask: Ask },
    /// What sysfs has of a device that is being removed.
    Removal {
        dir: OsString,
        device: Device,
        before: Option<Box<Listed>>,
    },
}

/// What to read of a device.
pub(super) struct Ask {
    pub(super) counters: bool,
    /// The counters are left alone for now.
    pub(super) paused: bool,
    /// This is the last round.
    pub(super) last: bool,
    /// Numbers of the queue pairs whose PSNs are wanted.
    pub(super) psns: Vec<u32>,
    /// Numbers of those whose peers are wanted.
    pub(super) paths: Vec<u32>,
    pub(super) states: bool,
    pub(super) qps: bool,
    pub(super) counts: Counts,
}

/// How to get the resource counts of a device.
pub(super) enum Counts {
    /// The counts are not needed.
    No,
    /// The counts were just read.
    Known(Summary),
    /// Request them, unless the device is at rest.
    Unless,
    /// Request them.
    Asked,
}

/// The result of a job.
pub(super) enum Answer {
    DeviceList(Result<DeviceList, NetlinkError>),
    Device(Box<DeviceAnswer>),
}

#[derive(Default)]
pub(super) struct DeviceList {
    pub(super) devices: Vec<(Name, Summary)>,
    /// The list changed while it was read: a device may be missing.
    pub(super) interrupted: bool,
    /// Where devices are seen, if that is known.
    pub(super) mode: Option<NetnsMode>,
    /// Why that is not known.
    pub(super) mode_error: Option<Box<Cause>>,
    /// Network namespaces of the devices that are in another one, by index.
    pub(super) places: BTreeMap<u32, Arc<Place>>,
    /// Namespaces of whose devices some may be missing.
    pub(super) silent: Vec<Arc<Place>>,
    /// Names of devices that are in some other namespace, safe to print.
    pub(super) absent: Vec<String>,
    /// What is said of devices of other namespaces that were not found or not read.
    pub(super) notes: Vec<Cause>,
}

impl DeviceList {
    /// Counts of a device; `None` when it is not there.
    pub(super) fn counts(&self, index: u32) -> Option<&Summary> {
        let mut counts = self.devices.iter().map(|(_, counts)| counts);
        counts.find(|counts| counts.device_index == index)
    }

    /// Whether a device may be where it was although it is not in the list.
    pub(super) fn is_silent(&self, entry: &Entry) -> bool {
        entry
            .place
            .as_ref()
            .is_some_and(|place| self.silent.contains(place))
    }
}

#[derive(Default)]
pub(super) struct DeviceAnswer {
    /// The device's state for the next reading.
    pub(super) listed: Option<Box<Listed>>,
    /// The full reading, when it was listed.
    pub(super) all: Option<DeviceReading>,
    /// Changes in other values than counters.
    pub(super) changed: Option<DeviceReading>,
    pub(super) ports: Vec<PortCounters>,
    /// PSNs of its queue pairs.
    pub(super) psns: Vec<PsnReading>,
    /// Whom its queue pairs send to.
    pub(super) paths: Vec<PathReading>,
    /// Counters that its QPs are bound to.
    pub(super) groups: Option<DeviceGroups>,
    /// Bytes of its regions by process.
    pub(super) mr_bytes: Option<BTreeMap<u32, u64>>,
    /// Whether the driver or its firmware failed at the counters; `None`: they were not read.
    pub(super) broke: Option<bool>,
    /// It is at rest, and only its counters were read.
    pub(super) rests: bool,
    pub(super) qps: Option<QpsSample>,
    /// What could not be read of it, when it was listed.
    pub(super) errors: Option<Vec<Cause>>,
    /// It is not the device that was listed: the devices have to be listed again.
    pub(super) other: bool,
}

/// Opens a connection to the kernel.
pub(super) type Open<T> = Arc<dyn Fn() -> Result<Nldev<T>, NetlinkError> + Send + Sync>;

/// A thread's own connection and knowledge.
struct Reader<T> {
    root: Root,
    open: Open<T>,
    nldev: Option<Nldev<T>>,
    /// The network namespace of the device that is read, if it is another one.
    place: Option<Arc<Place>>,
    owners: Owners,
    elsewhere: Arc<Mutex<Elsewhere>>,
}

/// Makes the work of a thread that reads under `root` and sends requests through `open`.
pub(super) fn work<T: Transport + Send + 'static>(
    root: Root,
    open: Open<T>,
    elsewhere: Arc<Mutex<Elsewhere>>,
) -> Work<Job, (Subject, Answer)> {
    let mut reader = Reader {
        owners: Owners::new(root.clone()),
        root,
        open,
        nldev: None,
        place: None,
        elsewhere,
    };
    Box::new(move |job| {
        let (subject, progress) = (job.subject, job.progress.clone());
        let answer = reader.read(job);
        progress.end(now().mono_ns);
        (subject, answer)
    })
}

impl<T: Transport + Send> Reader<T> {
    fn read(&mut self, mut job: Job) -> Answer {
        let Some(place) = job.place.take() else {
            return self.read_here(job);
        };
        // The connection of this thread is one to its own namespace.
        let (nldev, root) = (self.nldev.take(), mem::replace(&mut self.root, place.root()));
        self.place = Some(Arc::clone(&place));
        let mut answer = self.read_here(job);
        // The other one has to be closed: it would keep that namespace from ending.
        (self.nldev, self.root, self.place) = (nldev, root, None);
        if let Answer::Device(answer) = &mut answer {
            for reading in [&mut answer.all, &mut answer.changed].into_iter().flatten() {
                reading.netns = Some(place.reading());
            }
        }
        answer
    }

    fn read_here(&mut self, job: Job) -> Answer {
        let Job {
            progress,
            before_ns,
            what,
            ..
        } = job;
        self.owners.forget();
        let answer = match what {
            What::DeviceList { mode } => {
                progress.enter(Stage::List, now().mono_ns);
                return Answer::DeviceList(self.everyone(mode));
            }
            What::List {
                index,
                name,
                before,
                ask,
            } => {
                let mut answer = match self.identity(&progress, index) {
                    Ok(device) => {
                        let mut answer = self.list(&progress, before_ns, device, before, &ask);
                        if let Some(nldev) = self.nldev.as_mut().filter(|_| ask.counters && !ask.paused) {
                            answer.psns = psns(nldev, index, &ask.psns);
                        }
                        answer
                    }
                    Err(error) => DeviceAnswer {
                        listed: before,
                        errors: Some(vec![error.of(format!("device {name}")).cause(of_device(&name))]),
                        other: true,
                        ..DeviceAnswer::default()
                    },
                };
                self.after(&ask, before_ns, &mut answer);
                answer
            }
            What::Again { listed, ask } => {
                let mut answer = DeviceAnswer {
                    listed: Some(listed),
                    ..DeviceAnswer::default()
                };
                answer.other = self.again(&progress, before_ns, &ask, &mut answer).is_err();
                self.after(&ask, before_ns, &mut answer);
                answer
            }
            What::Removal { dir, device, before } => {
                progress.enter(Stage::Facts, now().mono_ns);
                let (listed, reading) =
                    removals::read(&self.root, &dir, device, before.map(|b| *b), before_ns);
                DeviceAnswer {
                    listed: Some(Box::new(listed)),
                    all: Some(reading),
                    ..DeviceAnswer::default()
                }
            }
        };
        Answer::Device(Box::new(answer))
    }

    fn nldev(&mut self) -> Result<&mut Nldev<T>, NetlinkError> {
        let nldev = match self.nldev.take() {
            Some(nldev) => nldev,
            None => self.connect()?,
        };
        Ok(self.nldev.insert(nldev))
    }

    fn connect(&self) -> Result<Nldev<T>, NetlinkError> {
        match &self.place {
            None => (self.open)(),
            Some(place) => place.open(&self.open),
        }
    }

    /// Reads what comes after all else of the device: counters that QPs are bound to, so that each bound QP
    /// of the list of QPs has its counter; and by the firmware, which may be slow, whom queue pairs send to.
    fn after(&mut self, ask: &Ask, before_ns: u64, answer: &mut DeviceAnswer) {
        if !ask.counters || ask.paused || answer.other {
            return;
        }
        let Some(listed) = &mut answer.listed else { return };
        if let Some(nldev) = &mut self.nldev {
            answer.groups = groups::read(nldev, &mut self.owners, listed, ask.last, before_ns);
        }
        if ask.paths.is_empty() || !paths::may_ask(listed, now().mono_ns) {
            return;
        }
        // The kernel asks for the right of who opened the socket, and of who sends.
        let raised = Raised::for_net_admin();
        let admin = self.connect();
        if let (Some(nldev), Ok(mut admin)) = (&mut self.nldev, admin) {
            answer.paths = paths::read((nldev, &mut admin), listed, &ask.paths);
        }
        drop(raised);
    }

    fn everyone(&mut self, before: Option<NetnsMode>) -> Result<DeviceList, NetlinkError> {
        let nldev = self.nldev()?;
        let (mode, mode_error) = match nldev.netns_mode() {
            Ok(mode) => (mode, None),
            Err(_) if before.is_some() => (before, None),
            Err(error) => (None, Some(error.of("subsystem settings").cause(Concerns::Host))),
        };
        match nldev.named_summaries() {
            Ok(list) => {
                let mut list = DeviceList {
                    devices: list.items,
                    interrupted: list.interrupted,
                    mode,
                    mode_error: mode_error.map(Box::new),
                    ..DeviceList::default()
                };
                if mode == Some(NetnsMode::Exclusive) {
                    let mut elsewhere = self.elsewhere.lock().unwrap_or_else(PoisonError::into_inner);
                    elsewhere.add_to(&mut list, &self.root, &self.open);
                }
                Ok(list)
            }
            Err(error) => {
                self.nldev = None;
                Err(error)
            }
        }
    }

    fn identity(&mut self, progress: &SharedProgress, index: u32) -> Result<Device, NetlinkError> {
        progress.enter(Stage::Identity, now().mono_ns);
        self.nldev()?.device(index)
    }

    /// Reads everything of a device; its QPs and MRs when QPs are wanted.
    fn list(
        &mut self,
        progress: &SharedProgress,
        before_ns: u64,
        device: Device,
        before: Option<Box<Listed>>,
        ask: &Ask,
    ) -> DeviceAnswer {
        let Some(nldev) = &mut self.nldev else {
            return DeviceAnswer::default();
        };
        progress.enter(Stage::Ports, now().mono_ns);
        let want = Want {
            ports: true,
            // Sizes of the MRs that are older than rdmatop: read once, and again with each repair.
            mrs: ask.qps,
        };
        let sample = sampler::sample(nldev, device, want, None);
        let concerns = of_device(&sample.device.name);
        let mut errors: Vec<Cause> = sample
            .errors()
            .map(|error| error.cause(concerns.clone()))
            .collect();
        let mr_bytes = self.owners.mr_bytes(&sample);
        progress.enter(Stage::Facts, now().mono_ns);
        // Another generation is another device.
        let before = before.filter(|before| before.device().is(&sample.device));
        let index = sample.device.index;
        let mut of_port = |port, visit: &mut dyn FnMut(&[u8], u64)| {
            progress.enter(Stage::Counters, now().mono_ns);
            let read = nldev.each_counter(index, port, visit);
            progress.enter(Stage::Facts, now().mono_ns);
            read
        };
        let counters: Option<&mut AskPort<'_>> = if ask.paused { None } else { Some(&mut of_port) };
        let (mut listed, mut reading) =
            Listed::list(&self.root, sample, before.map(|b| *b), before_ns, counters);
        reading.contexts = contexts(nldev, &mut self.owners, &listed);
        listed.opened(reading.contexts.clone());
        let _ = listed.reopened();
        errors.extend(listed.refusals().map(|error| error.cause(concerns.clone())));
        let qps = want.mrs.then(|| {
            progress.enter(Stage::Objects, now().mono_ns);
            let count = listed.count("qp");
            let dumped = dump(nldev, &mut self.owners, &mut listed, count, before_ns);
            dumped.unwrap_or_else(|error| QpsSample {
                mono_ns: before_ns,
                errors: vec![
                    error
                        .of(format!("QPs of {}", listed.device().name))
                        .cause(concerns),
                ],
                ..QpsSample::default()
            })
        });
        DeviceAnswer {
            all: Some(DeviceReading { mr_bytes, ..reading }),
            broke: listed.broke.filter(|_| !ask.paused),
            listed: Some(Box::new(listed)),
            qps,
            errors: Some(errors),
            ..DeviceAnswer::default()
        }
    }

    /// Fails when the device is not the one that was listed.
    fn again(
        &mut self,
        progress: &SharedProgress,
        before_ns: u64,
        ask: &Ask,
        answer: &mut DeviceAnswer,
    ) -> Result<(), ()> {
        let Some(listed) = &mut answer.listed else {
            return Err(());
        };
        self.nldev().map_err(|_| ())?;
        let Some(nldev) = &mut self.nldev else {
            return Err(());
        };
        if ask.counters {
            progress.enter(Stage::Counters, now().mono_ns);
            if ask.paused {
                listed.unread(&mut answer.ports);
            } else {
                let index = listed.device().index;
                let mut of_port =
                    |port, visit: &mut dyn FnMut(&[u8], u64)| nldev.each_counter(index, port, visit);
                let read = listed.read(&self.root, &mut of_port, &mut answer.ports);
                answer.broke = listed.broke;
                read.map_err(|_| ())?;
                answer.psns = psns(nldev, index, &ask.psns);
            }
            let contexts = contexts(nldev, &mut self.owners, listed);
            listed.opened(contexts);
        }
        let stage = if ask.states { Stage::Ports } else { Stage::Objects };
        let counts = match &ask.counts {
            Counts::No => {
                answer.changed = listed.reopened();
                return Ok(());
            }
            Counts::Unless if listed.rests() => {
                answer.rests = true;
                return Ok(());
            }
            Counts::Known(counts) if !listed.has_own_qp_types() => {
                progress.enter(stage, now().mono_ns);
                counts.clone()
            }
            Counts::Unless | Counts::Asked | Counts::Known(_) => {
                progress.enter(stage, now().mono_ns);
                nldev.summary(listed.device().index).map_err(|_| ())?
            }
        };
        let count = counts.get("qp");
        let want = Want {
            ports: ask.states,
            mrs: ask.qps,
        };
        let sample = sampler::sample(nldev, listed.device().clone(), want, Some(counts));
        answer.changed = listed.again(&self.root, &sample)?;
        answer.mr_bytes = self.owners.mr_bytes(&sample);
        if ask.qps {
            progress.enter(Stage::Objects, now().mono_ns);
            let qps = dump(nldev, &mut self.owners, listed, count, before_ns);
            answer.qps = Some(qps.map_err(|_| ())?);
        }
        Ok(())
    }
}

fn of_device(name: &Name) -> Concerns {
    Concerns::Device(name.to_string())
}

/// The PSNs of queue pairs, each asked for by its number: the driver is asked about no other. One that is
/// gone is left out, and when the kernel refuses, the rest is too.
fn psns<T: Transport>(nldev: &mut Nldev<T>, device_index: u32, numbers: &[u32]) -> Vec<PsnReading> {
    let mut out = Vec::with_capacity(numbers.len());
    for qpn in numbers {
        let before_ns = now().mono_ns;
        let Ok(read) = nldev.qp(device_index, *qpn) else {
            break;
        };
        out.extend(read.map(|qp| PsnReading {
            device_index,
            port: qp.port,
            qpn: qp.lqpn,
            state: qp.state,
            sq_psn: qp.sq_psn,
            rq_psn: qp.rq_psn,
            at_ns: ReadAt::between(before_ns, now().mono_ns).mono_ns,
        }));
    }
    out
}

/// The processes that have a device open, if it may have queue pairs that the kernel does not list. `None`
/// for other devices; before Linux 5.14, which does not list contexts; and if the kernel does not name the
/// process of a context, because that is in another PID namespace. No driver is asked.
fn contexts<T: Transport>(nldev: &mut Nldev<T>, owners: &mut Owners, listed: &Listed) -> Option<Vec<u32>> {
    if !listed.may_hide_qps() {
        return None;
    }
    let list = nldev
        .ctxs(listed.device().index)
        .ok()
        .filter(|list| !list.interrupted)?;
    let process = |ctx: &Owned| Some(owners.process(ctx.owner.as_ref()?.pid()?));
    let mut processes: Vec<u32> = list.items.iter().map(process).collect::<Option<_>>()?;
    processes.sort_unstable();
    processes.dedup();
    Some(processes)
}
