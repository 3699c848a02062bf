//! The engine: folds inputs into state, hands out events and snapshots. No I/O, no clock.
//!
//! * Records keep the QP table (`records`); dumps are its initial sync and its repair (`dump`).
//! * Sweeps of the counter slots give traffic (`traffic`), readings of devices give ports (`ports`).
//! * Identity is apart from names, which are reused: `devices`, `qps`, `processes`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak},
};

use serde::{Deserialize, Serialize};

use super::{
    cause::Cause,
    event::{Event, EventKind},
    findings::{Change, Limits, Watch},
    input::{
        CountersSample, DevicesSample, EbpfReport, EbpfState, Flood, GpuSample, HealthSample,
        HwCountersReport, Input, Now, ProcessFacts, Skipped, Timed, UprobesReport,
    },
    judgement::{AllUnexplained, Judgement},
    snapshot::{Health, SCHEMA, Snapshot, WorkRequests},
    value::Shared,
    watched::Watched,
};

mod address;
mod connections;
mod devices;
mod driver_verbs;
mod dump;
mod floods;
mod groups;
mod hash;
mod history;
mod logged;
mod losses;
mod memory;
mod meter;
mod names;
mod no_slot;
mod openers;
mod overlooked;
mod ports;
mod processes;
mod programs;
mod providers;
mod psn;
mod qp;
mod qps;
mod records;
mod rows;
mod shares;
mod table;
mod tally;
mod tcp;
mod traffic;
mod uprobes;
mod verbs;
mod watched;
mod work;

pub(crate) use verbs::registers_memory;

#[cfg(test)]
mod tests;

/// What the engine lacks and the next round of reading should bring.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Needs {
    /// The QP table may be wrong, because records were lost or because a QP went to ERR on its own: a fresh
    /// [`Input::Qps`] is wanted. True until one arrives that began later.
    pub repair: bool,
    /// Processes whose facts are wanted, each once. The answer is [`Input::Process`], or
    /// [`Input::ProcessGone`] when there is no such process any more.
    pub processes: Vec<u32>,
    /// A port moves data that no queue pair explains: who has its device open? The answer is
    /// [`Input::Openers`].
    #[serde(default)]
    pub openers: bool,
    /// Processes whose registrations of memory failed for want of it since the last answer: how much may they
    /// lock? The answer is [`Input::Locked`].
    #[serde(default)]
    pub locked: Vec<u32>,
}

/// Settings of the engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineConfig {
    /// How long rows of destroyed QPs and ended processes stay, ns. `u64::MAX` keeps all
    /// ([`EngineConfig::keep_all`]).
    pub linger_ns: u64,
    /// Rows of destroyed QPs kept at most; the oldest go first. Sums of processes keep what they did.
    pub max_ended: usize,
    /// Two readings closer than this give no rate, ns: the error of the clock would be most of it.
    pub min_interval_ns: u64,
    /// rdmatop runs in a PID namespace of its own: records have the PIDs of the machine, dumps and /proc
    /// those of the namespace. While there are records, owners come from them alone, and no input reports the
    /// end of a process.
    pub nested_pids: bool,
    /// The state of eBPF before the first report of it.
    pub ebpf: EbpfState,
    /// What the rules of findings compare with.
    #[serde(default)]
    pub limits: Limits,
    /// Whether rows of QPs have the states that records report in their timelines. Nobody reads them in a
    /// trace without findings, and they take a tenth of what its events cost.
    #[serde(default = "yes")]
    pub timelines: bool,
}

fn yes() -> bool {
    true
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            linger_ns: 5_000_000_000,
            max_ended: 4096,
            min_interval_ns: 50_000_000,
            nested_pids: false,
            ebpf: EbpfState::Starting,
            limits: Limits::default(),
            timelines: true,
        }
    }
}

impl EngineConfig {
    /// For one sample over a window (`--once --delay N`): what ended within the window is still shown.
    pub fn keep_all() -> Self {
        Self {
            linger_ns: u64::MAX,
            max_ended: 100_000,
            ..Self::default()
        }
    }
}

/// The model's state.
#[derive(Debug, Default)]
pub struct Engine {
    config: EngineConfig,
    names: names::Names,
    verb_names: verbs::VerbNames,
    devices: devices::Devices,
    renamed_devices: BTreeSet<u64>,
    processes: processes::Processes,
    qps: qps::Qps,
    regions: memory::Regions,
    connections: connections::Connections,
    traffic: traffic::Traffic,
    /// Processes with a QP that no program counts, as of the last [`Engine::tick`]: their sums are lower
    /// bounds.
    uncounted: BTreeSet<u64>,
    verbs: verbs::Verbs,
    /// Dumps of QPs folded in.
    dumps: u32,
    shared_timelines: qp::SharedTimelines,
    losses: losses::Losses,
    overlooked: overlooked::Overlooked,
    floods: Shared<Flood>,
    skipped: Option<Shared<Skipped>>,
    /// Probes on programs.
    uprobes: Option<Arc<UprobesReport>>,
    /// Counters of NICs that QPs are bound to.
    groups: groups::Groups,
    /// Which bytes of ports are whose.
    shares: shares::Shares,
    /// What `--hw-counters` has changed.
    hw_counters: Option<Arc<HwCountersReport>>,
    no_slot: no_slot::NoSlot,
    health: HealthSample,
    ebpf: EbpfReport,
    /// What is missing on the machine, and what the programs do not see.
    notes: Shared<Cause>,
    /// Notes about devices.
    device_notes: Vec<Cause>,
    /// Devices whose drivers answer late.
    slow: Vec<Cause>,
    /// Processes whose answers are late.
    slow_processes: Vec<Cause>,
    /// Why the present round of reading has not ended, once it takes too long.
    hangs: Option<Cause>,
    /// What could not be read, by reader; each reading replaces the last.
    errors: BTreeMap<&'static str, Vec<Cause>>,
    events: u64,
    /// What became of work requests, where they are followed.
    work: Option<WorkRequests>,
    /// The QP whose work requests the view shows.
    watched: Option<Box<Watched>>,
    last_tick_ns: Option<u64>,
    /// Processes that have devices open.
    holders: openers::Holders,
    /// How busy GPUs were in the seconds that traffic is averaged over.
    gpus: Vec<GpuSample>,
    findings: Watch,
    /// The last snapshot, while a view holds it: its judgement is reused where nothing changed.
    last: Weak<Snapshot>,
    /// The rows of QPs that it has.
    rows: rows::QpRows,
}

impl Engine {
    /// An engine that knows nothing yet.
    pub fn new(config: EngineConfig) -> Self {
        Self {
            ebpf: EbpfReport {
                state: config.ebpf.clone(),
                ..EbpfReport::default()
            },
            findings: Watch::new(config.limits.clone()),
            config,
            ..Self::default()
        }
    }

    /// Folds one input in. Returns the events it makes, for `--trace`; most inputs make none.
    pub fn apply(&mut self, timed: Timed) -> Vec<Event> {
        let mut events = Vec::new();
        self.fold(timed, &mut |event| events.push(event.clone()));
        events
    }

    /// [`Engine::apply`] without a list: hands each event out as it is made.
    pub fn fold(&mut self, timed: Timed, out: &mut dyn FnMut(&Event)) {
        let Timed { at: now, input } = timed;
        let now_ns = now.mono_ns;
        let mut lost = Vec::new();
        match input {
            Input::Records(records) => {
                for record in &records {
                    self.record(record, now, out);
                }
            }
            Input::WorkRequests(records) => {
                for record in &records {
                    out(&self.work_request(record, now));
                }
            }
            Input::WorkCounts(counts) => self.work_counts(counts),
            Input::Watch(sample) => self.watch(*sample, now),
            Input::Openers(sample) => self.openers(*sample),
            Input::BadRecord => lost.extend(self.losses.undecodable(now_ns)),
            Input::Ebpf(report) => self.programs(*report, now_ns),
            Input::Losses(counts) => lost = self.losses.kernel(&counts, now_ns),
            Input::Floods(floods) => self.floods(floods, now).iter().for_each(&mut *out),
            Input::Seen(seen) => self.losses.overlooked(self.overlooked.seen(seen)),
            Input::Skipped(programs) => self.skipped(programs),
            Input::ChannelDropped(count) => lost.extend(self.losses.channel(count, now_ns)),
            Input::Devices(sample) => self.devices(*sample),
            Input::Counters(sample) => self.port_counters(*sample),
            Input::Qps(sample) => self.dump(*sample, now),
            Input::Slots(sample) => self.slots(&sample, now),
            Input::Uprobes(report) => self.uprobes(*report),
            Input::UprobesOver => self.uprobes_over(),
            Input::Groups(sample) => self.groups(*sample),
            Input::HwCounters(report) => self.hw_counters = Some(Arc::from(report)),
            Input::Verbs(sample) => self.verbs(&sample),
            Input::Process(facts) => self.process(&facts, now_ns),
            Input::ProcessGone { pid, start_ticks } => self.process_gone(pid, start_ticks, now_ns),
            Input::Logged(errors) => self.devices.logged(errors, now_ns),
            Input::RdmaLimits(reached) => self.processes.limited(reached),
            Input::Locked(found) => self.processes.locked(found),
            Input::Mappings(sample) => self.processes.mappings(sample),
            Input::Tcp(sample) => self.tcp(&sample),
            Input::Gpus(sample) => self.gpus(*sample),
            Input::Slow(notes) => self.slow = notes,
            Input::SlowProcesses(notes) => self.slow_processes = notes,
            Input::RoundHangs(cause) => self.hangs = cause.map(|cause| *cause),
            Input::Health(sample) => self.surroundings(*sample),
        }
        for (lost_where, count) in lost {
            out(&Event {
                count: Some(count),
                lost_where: Some(lost_where),
                ..Event::new(EventKind::Lost, now.wall_ns, now_ns)
            });
        }
    }

    /// Takes over the state of rdmatop itself and of the host.
    fn surroundings(&mut self, sample: HealthSample) {
        let other = sample.notes != self.health.notes;
        self.health = sample;
        if other {
            self.note();
        }
    }

    /// The state at `now`.
    pub fn tick(&mut self, now: Now) -> Arc<Snapshot> {
        let now_ns = now.mono_ns;
        let interval_ns = self
            .last_tick_ns
            .replace(now_ns)
            .map(|last| now_ns.saturating_sub(last));
        self.forget(now);
        let (fresh, turned) = self.traffic.freshness(now_ns);
        let turned = self.doubts_turned() || turned;
        let qps = self.qp_rows(now_ns, turned, fresh);
        let (devices, mut ports) = self.devices.rows(now_ns, fresh, &self.ebpf.state);
        if self.config.nested_pids {
            // The kernel does not list the QPs of other PID namespaces, and they are counted in the same
            // counters.
            for port in &mut ports {
                port.rdma_alone = false;
            }
        }
        let shares = self.shares(&devices, &ports, &qps, now_ns);
        let processes = self.process_rows(now_ns, fresh, &shares);
        let watched = self.look_at_watched(&qps, now_ns);
        let snapshot = Snapshot {
            schema: SCHEMA,
            time: now.wall_ns,
            mono_ns: now_ns,
            interval_ns,
            host: self.health.host.clone(),
            health: self.health_row(),
            judgement: Judgement::default(),
            findings: Shared::default(),
            unexplained: AllUnexplained::default(),
            devices,
            ports,
            processes,
            qps,
            verbs: self.verb_rows(now_ns),
            watched,
        };
        let before = self.last.upgrade();
        let mut snapshot = self.judge(snapshot, before.as_deref());
        snapshot.findings = self.findings.look(&snapshot).into();
        snapshot.health.looked_ns = self.findings.looked_ns();
        let snapshot = Arc::new(snapshot);
        self.last = Arc::downgrade(&snapshot);
        snapshot
    }

    /// Forgets what has been gone for long. [`Engine::tick`] does so too; this is for a round without a
    /// snapshot.
    pub fn forget(&mut self, now: Now) {
        self.qps
            .forget(now.mono_ns, self.config.linger_ns, self.config.max_ended);
        if self.has_foreign_pids() {
            self.processes.forget_idle(now.mono_ns, self.config.linger_ns);
        }
        self.processes.forget(now.mono_ns, self.config.linger_ns);
    }

    /// Findings that snapshots raised and cleared since the last call.
    pub fn take_changes(&mut self) -> Vec<Change> {
        self.findings.take_changes()
    }

    /// What the engine lacks and the next round of reading should bring. Each process is in one answer only.
    pub fn needs(&mut self) -> Needs {
        let mut processes = self.processes.take_wanted();
        let mut locked = self.verbs.take_short_of_memory();
        if self.has_foreign_pids() {
            processes.clear();
            locked.clear();
        }
        Needs {
            repair: self.wants_repair(),
            processes,
            openers: self.needs_openers(),
            locked,
        }
    }

    /// As [`Needs::repair`], for a round that asks for no processes.
    pub fn wants_repair(&self) -> bool {
        self.losses.wants_repair()
    }

    fn gpus(&mut self, sample: GpuSample) {
        let since_ns = sample.mono_ns.saturating_sub(history::SPAN_NS);
        self.gpus.retain(|old| old.before_ns >= since_ns);
        self.gpus.push(sample);
    }

    fn port_counters(&mut self, sample: CountersSample) {
        self.overlooked.counters(&sample);
        if let Some(sums) = &sample.mr_bytes {
            self.registered(sums, sample.mono_ns);
        }
        self.devices.counted(sample, self.config.min_interval_ns);
    }

    fn devices(&mut self, mut sample: DevicesSample) {
        self.overlooked.devices(&sample);
        let errors = std::mem::take(&mut sample.errors);
        self.errors.insert("devices", errors);
        if sample.unread {
            return;
        }
        self.device_notes = std::mem::take(&mut sample.notes);
        if let Some(sums) = mr_bytes(&sample) {
            self.registered(&sums, sample.mono_ns);
        }
        let min = self.config.min_interval_ns;
        let changes = self.devices.read(&mut sample, min, &mut self.names);
        self.renamed_devices.extend(changes.renamed);
        if changes.gone.is_empty() {
            return;
        }
        let mut gone = Vec::new();
        for qp in self.qps.iter_mut() {
            if let Some(name) = changes.gone.get(&qp.key.device) {
                qp.edit().device = Arc::clone(name);
                gone.push(qp.uid());
            }
        }
        for uid in gone {
            self.qps.end(uid, sample.mono_ns, &mut self.processes);
        }
    }

    /// MR bytes by owner, of all devices.
    fn registered(&mut self, sums: &BTreeMap<u32, u64>, mono_ns: u64) {
        if self.has_foreign_pids() {
            return;
        }
        let owners: BTreeMap<u32, u64> = sums
            .keys()
            .filter(|pid| **pid != 0)
            .map(|pid| (*pid, self.processes.user(*pid, None, mono_ns)))
            .collect();
        let uids: BTreeSet<u64> = owners.values().copied().collect();
        for process in self.processes.iter_mut().filter(|process| !process.kernel) {
            if !uids.contains(&process.uid) && process.ended_ns.is_none() {
                process.memory.dumped(0, mono_ns);
            }
        }
        for (pid, uid) in owners {
            if let (Some(process), Some(bytes)) = (self.processes.get_mut(uid), sums.get(&pid)) {
                process.memory.dumped(*bytes, mono_ns);
            }
        }
    }

    /// The QP that a record or a slot is about, added when it is new. `None` when it cannot be identified.
    fn saw_qp(&mut self, seen: &qps::QpRef) -> Option<u64> {
        let uid = match self.qps.find(seen) {
            Some(uid) => uid,
            None => self.insert_qp(seen.key?, seen.at_ns(), seen.at_ns()),
        };
        self.qps.saw_qp(uid, seen, &mut self.processes);
        let device = seen.key.map_or(0, |key| key.device);
        if self.qps.set_device(uid, device, &mut self.processes)
            && let Some(flow) = self.qps.get(uid).and_then(|qp| qp.flow.as_ref())
        {
            traffic::credit(
                &mut self.processes,
                &mut self.devices,
                (None, device),
                flow.total(),
                true,
            );
        }
        Some(uid)
    }

    /// Adds a QP. If its device is gone already, the QP is gone too.
    fn insert_qp(&mut self, key: qp::Key, first_ns: u64, seen_ns: u64) -> u64 {
        let uid = self.qps.insert(key, first_ns, seen_ns, &mut self.processes);
        if let Some(ended_ns) = self.devices.ended_ns(key.device) {
            self.qps.end(uid, ended_ns, &mut self.processes);
        }
        uid
    }

    fn process_gone(&mut self, pid: u32, start_ticks: Option<u64>, now_ns: u64) {
        let uid = self.processes.gone(pid, start_ticks, now_ns);
        let holds = uid
            .and_then(|uid| self.processes.get(uid))
            .is_some_and(|process| !process.qps.is_empty());
        if holds {
            // Records of its last moments may be on the way, or another process holds its QPs: a dump shows
            // which.
            self.losses.want_repair(now_ns);
        }
    }

    /// Folds in facts about a process, by which two rows may turn out to be one.
    fn process(&mut self, facts: &ProcessFacts, now_ns: u64) {
        let Some((from, to)) = self.processes.learn(facts, now_ns) else {
            return;
        };
        for qp in self.qps.iter_mut().filter(|qp| qp.process() == Some(from)) {
            qp.edit().process_uid = Some(to);
        }
        self.regions.rename(from, to);
        self.groups.rename(from, to);
        self.shares.rename(from, to);
        self.join_verbs(from, to);
    }

    /// Takes a list unless a newer one has arrived before it: two threads read the counts of skips, which
    /// only grow.
    fn skipped(&mut self, programs: Option<Vec<Skipped>>) {
        let sum = |list: &[Skipped]| list.iter().map(|program| program.count).sum::<u64>();
        let newer = match (&self.skipped, &programs) {
            (Some(known), Some(seen)) => sum(seen) >= sum(known),
            _ => true,
        };
        if newer {
            self.skipped = programs.map(Shared::from);
        }
    }

    fn health_row(&mut self) -> Health {
        let uncounted = self.uncounted_notes();
        let slow = self.slow.iter().chain(&self.slow_processes);
        let mut first: Vec<Cause> = self.device_notes.iter().chain(slow).cloned().collect();
        first.extend(uncounted);
        first.extend(self.uprobe_notes().cloned());
        first.extend(self.hw_counters_notes());
        // Without programs a 0 would say that nothing happened. What was counted before they went stays.
        let on = self.ebpf.state.is_on();
        let traced = |count: u64| (on || count > 0).then_some(count);
        Health {
            ebpf: self.ebpf.state.clone(),
            lost_events: traced(self.losses.records()),
            losses: self.losses.rows(),
            floods: self.floods.clone(),
            skipped: self.skipped.clone(),
            uprobes: self.uprobes.clone(),
            hw_counters: self.hw_counters.clone(),
            events: traced(self.events),
            work: self.work,
            probes: self.ebpf.probes.clone(),
            follows_qps: self.ebpf.state.is_on() && self.ebpf.follows_qps,
            looked_ns: 0,
            notes: if first.is_empty() && self.devices.log_note().is_none() {
                self.notes.clone()
            } else {
                let last = self.notes.iter().chain(self.devices.log_note());
                first.into_iter().chain(last.cloned()).collect()
            },
            errors: self
                .errors
                .values()
                .flatten()
                .chain(&self.hangs)
                .cloned()
                .collect(),
            self_cpu: self.health.self_cpu,
            self_rss: self.health.self_rss,
        }
    }
}

/// MR bytes by owner. Only when every device was asked is a process's sum whole.
fn mr_bytes(sample: &DevicesSample) -> Option<BTreeMap<u32, u64>> {
    let mut sums: BTreeMap<u32, u64> = BTreeMap::new();
    for device in &sample.devices {
        for (pid, bytes) in device.mr_bytes.as_ref()? {
            let sum = sums.entry(*pid).or_default();
            *sum = sum.saturating_add(*bytes);
        }
    }
    (!sample.devices.is_empty()).then_some(sums)
}
