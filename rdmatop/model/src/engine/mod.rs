//! The engine: folds inputs into state, hands out events and snapshots. No I/O, no clock.
//!
//! [`Engine`] has one field for each subject, and hands each input to the subject that it concerns. A subject
//! that needs another has it as a parameter.
//!
//! * Records keep the QP table (`records`); dumps are its initial sync and its repair (`dump`).
//! * Sweeps of the counter slots give traffic (`traffic`), readings of devices give ports (`ports`).
//! * Identity is apart from names, which are reused: `devices`, `qps`, `processes`, all in `machine`.

use std::{collections::BTreeMap, sync::Arc};

use rdmatop_common::event::{Record, kind};

use super::{
    event::Event,
    findings::{Change, Limits},
    input::{EbpfState, Input, Now, ProcessFacts, Timed},
    snapshot::{Facts, Snapshot},
};

mod connections;
mod devices;
mod devx;
mod driver_verbs;
mod dump;
mod flow;
mod groups;
mod hash;
mod history;
mod logged;
mod losses;
mod machine;
mod memory;
mod meter;
mod names;
mod no_slot;
mod others;
mod overlooked;
mod paths;
mod port_users;
mod ports;
mod processes;
mod programs;
mod providers;
mod psn;
mod psn_batches;
mod psn_shares;
mod qp;
mod qps;
mod readings;
mod records;
mod reused;
mod rows;
mod shares;
mod snapshots;
mod table;
mod tally;
mod tcp;
mod traffic;
mod unlisted;
mod verbs;
mod watched;
mod work;

use losses::{CHANNEL, DECODE};
use unlisted::Makers;

pub use logged::concerns;
#[cfg(any(test, feature = "testkit"))]
pub use providers::families;
pub use providers::has_meaning;

/// Latency as views show it, of the buckets of samples.
#[cfg(test)]
pub(crate) fn latency_of(buckets: &[u64]) -> crate::facts::Latency {
    tally::latency(buckets, 0, u64::MAX, 0)
}

#[cfg(test)]
mod tests;

/// What the engine lacks and the next round of reading should bring.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// The QP table may be wrong, because records were lost or because a QP went to ERR on its own: a fresh
    /// [`Input::Qps`] is wanted. True until one arrives that began later.
    pub repair: bool,
    /// Processes whose facts are wanted, each once. The answer is [`Input::Process`], or
    /// [`Input::ProcessGone`] when there is no such process any more.
    pub processes: Vec<u32>,
    /// A port moves data that no queue pair explains, or the kernel does not list who has a device open on
    /// which one process has queue pairs and others may have such: who has? The answer is [`Input::Openers`].
    pub openers: bool,
    /// Processes whose registrations of memory failed for want of it since the last answer: how much may they
    /// lock? The answer is [`Input::Locked`].
    pub locked: Vec<u32>,
    /// Queue pairs of ports that several processes share, by the index of their device: how far are their
    /// PSNs? The answer is [`Input::Psns`], with counters read just before. The same until the next snapshot.
    pub psns: Arc<BTreeMap<u32, Vec<u32>>>,
    /// Queue pairs that were connected unseen, by the index of their device: to what address? The answer is
    /// [`Input::Paths`]. The same until that or the next snapshot.
    pub paths: Arc<BTreeMap<u32, Vec<u32>>>,
}

/// Settings of the engine.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// How long rows of destroyed QPs and ended processes stay, ns. `u64::MAX` keeps all
    /// ([`EngineConfig::keep_all`]).
    pub linger_ns: u64,
    /// Rows of destroyed QPs kept at most; the oldest go first. Sums of processes keep what they did.
    pub max_ended: usize,
    /// rdmatop runs in a PID namespace of its own: records have the PIDs of the machine, dumps and /proc
    /// those of the namespace. While there are records, owners come from them alone, and no input reports the
    /// end of a process.
    pub nested_pids: bool,
    /// The state of eBPF before the first report of it.
    pub ebpf: EbpfState,
    /// What the rules of findings compare with.
    pub limits: Limits,
    /// Whether rows of QPs have the states that records report in their timelines. Nobody reads them in a
    /// trace without findings, and they take a tenth of what its events cost.
    pub timelines: bool,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            linger_ns: 5_000_000_000,
            max_ended: 4096,
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

/// The model's state, by subject.
#[derive(Debug, Default)]
pub struct Engine {
    config: EngineConfig,
    /// What there is on the machine: devices, processes, QPs.
    machine: machine::Machine,
    /// What the counter slots of QPs count.
    traffic: traffic::Traffic,
    /// Counters of NICs that QPs are bound to.
    groups: groups::Groups,
    /// Objects that processes made past ib_core.
    devx: devx::Devx,
    /// Calls of verbs, by process.
    verbs: verbs::Verbs,
    /// The state of our programs.
    programs: programs::Programs,
    /// What was lost.
    losses: losses::Losses,
    /// What readers say of themselves.
    readings: readings::Readings,
    /// The QP whose work requests the view shows.
    watched: watched::WatchedQp,
    /// What is kept from one snapshot to the next.
    snapshots: snapshots::Snapshots,
}

impl Engine {
    /// An engine that knows nothing yet.
    pub fn new(config: EngineConfig) -> Self {
        Self {
            programs: programs::Programs::new(&config),
            snapshots: snapshots::Snapshots::new(config.limits.clone()),
            config,
            ..Self::default()
        }
    }

    /// Folds one input in. Returns the events it makes, for `--trace`; most inputs make none.
    pub fn apply(&mut self, timed: Timed) -> Vec<Event> {
        let mut events = Vec::new();
        self.fold(timed, &mut |event| events.push(event));
        events
    }

    /// [`Engine::apply`] without a list: hands each event out as it is made.
    pub fn fold(&mut self, timed: Timed, out: &mut dyn FnMut(Event)) {
        let Timed { at: now, input } = timed;
        let now_ns = now.mono_ns;
        match input {
            Input::Records(records) => {
                for record in &records {
                    self.record(record, now, out);
                }
            }
            Input::WorkRequests(records) => {
                for record in &records {
                    out(self.machine.work_request(record, now));
                }
            }
            Input::WorkCounts(counts) => self.programs.work_counts(counts),
            Input::Watch(sample) => self.watched.apply(*sample, now),
            Input::Openers(sample) => {
                self.machine.devices.searched(&sample);
                self.snapshots.openers(*sample);
            }
            Input::BadRecord => self.losses.lost(DECODE, 1, &mut self.machine.qps, now, out),
            Input::Ebpf(report) => {
                self.programs.apply(*report, now_ns, &mut self.machine);
                self.readings.note(&self.programs.ebpf);
            }
            Input::Losses(counts) => self.losses.kernel(&counts, &mut self.machine.qps, now, out),
            Input::Floods(floods) => self.losses.flooded(floods, now, out),
            Input::Seen(seen) => self.losses.seen(seen),
            Input::Skipped(skipped) => self.losses.skipped(skipped),
            Input::ChannelDropped(count) => {
                let qps = &mut self.machine.qps;
                self.losses.cumulative(CHANNEL, count, qps, now, out);
            }
            Input::Devices(mut sample) => {
                self.losses.overlooked.devices(&sample);
                self.readings.devices(&mut sample);
                self.machine.devices(*sample, &self.programs);
            }
            Input::Counters(sample) => {
                self.losses.overlooked.counters(&sample);
                self.machine.counters(*sample, &self.programs);
            }
            Input::Qps(sample) => {
                self.machine.dump(&sample, &self.programs, now_ns);
                self.traffic.no_slot.shown(&self.programs.ebpf.state);
                self.readings.qps(sample.errors);
            }
            Input::Psns(read) => {
                let shares = &mut self.snapshots.shares;
                shares.psns(read, &mut self.machine.devices, now_ns);
            }
            Input::Paths(read) => self.snapshots.paths.read(&read, &mut self.machine),
            Input::Slots(sample) => self
                .traffic
                .apply(&sample, &mut self.machine, &self.losses, now_ns),
            Input::Uprobes(report) => self.programs.probes(*report, &mut self.machine),
            Input::UprobesOver => self.programs.probes_over(&mut self.machine),
            Input::Groups(read) => {
                self.groups.apply(read, &mut self.machine, &self.programs);
                let shares = &mut self.snapshots.shares;
                shares.counted(&self.groups, &self.machine.devices, now_ns);
            }
            Input::HwCounters(report) => self.groups.hw_counters = Some(report.into()),
            Input::Verbs(sample) => self.verbs.apply(&sample, &mut self.machine.processes),
            Input::Process(facts) => {
                let users = &mut self.snapshots.shares.users;
                if let Some(facts) = users.learn(*facts, &self.machine.processes) {
                    self.learn(&facts, now_ns);
                }
            }
            Input::ProcessGone { pid, start_ticks } => {
                self.snapshots.shares.users.gone(pid);
                let uid = self.machine.processes.holder(pid);
                let made = uid.is_some_and(|uid| self.devx.has(uid));
                self.machine.devices.may_be_left(pid, made);
                self.machine.process_gone(pid, start_ticks, now_ns);
            }
            Input::Logged(errors) => self.machine.devices.logged(errors, now_ns),
            Input::RdmaLimits(reached) => self.machine.processes.limited(reached),
            Input::Locked(found) => self.machine.processes.locked(found),
            Input::Mappings(sample) => self.machine.processes.mappings(sample),
            Input::Tcp(sample) => {
                self.machine.processes.tcp(&sample);
                self.readings.tcp_cut = sample.cut;
            }
            Input::Gpus(sample) => self.snapshots.gpus(*sample),
            Input::Slow(notes) => self.readings.slow = notes,
            Input::SlowProcesses(notes) => self.readings.slow_processes = notes,
            Input::RoundHangs(cause) => self.readings.hangs = cause.map(|cause| *cause),
            Input::Health(sample) => self.readings.apply(*sample, &self.programs.ebpf),
        }
    }

    /// Folds in what /proc says of a process.
    fn learn(&mut self, facts: &ProcessFacts, now_ns: u64) {
        if let Some((from, to)) = self.machine.processes.learn(facts, now_ns) {
            self.verbs.rename(from, to);
        }
    }

    fn record(&mut self, record: &Record, now: Now, out: &mut dyn FnMut(Event)) {
        let (machine, traffic) = (&mut self.machine, &mut self.traffic);
        if let Record::Qp(record) = record
            && record.prefix.kind == kind::QP_UNCOUNTED
        {
            // Nothing that happened to the QP.
            return traffic.uncounted(record, machine);
        }
        self.programs.events += 1;
        match record {
            Record::Qp(record) => machine.qp_record(record, traffic, self.config.timelines, now, out),
            Record::Object(record) => out(machine.object_record(record, now)),
            Record::Devx(record) => {
                if let Some(event) = self.devx.apply(record, machine, now) {
                    out(event);
                }
            }
            Record::Cm(record) => out(machine.cm_record(record, now)),
            Record::Verb(record) => {
                if let Some(event) = verbs::Verbs::failure(record, machine, now) {
                    out(event);
                }
            }
        }
    }

    /// The state at `now`.
    pub fn tick(&mut self, now: Now) -> Arc<Snapshot> {
        self.forget(now);
        let now_ns = now.mono_ns;
        self.machine.processes.count_again(now_ns);
        for facts in self.snapshots.shares.users.take_met(&self.machine.processes) {
            self.learn(&facts, now_ns);
        }
        let Self {
            machine,
            programs,
            losses,
            snapshots,
            ..
        } = self;
        let sweeps = self.traffic.look(losses, now_ns);
        let qps = snapshots.rows.qps(machine, &self.groups, sweeps);
        let ebpf = &programs.ebpf.state;
        let (devices, mut ports) = machine.devices.rows(now_ns, sweeps.fresh, ebpf);
        if self.config.nested_pids {
            // The kernel does not list the QPs of other PID namespaces, and they are counted in the same
            // counters.
            for port in &mut ports {
                port.rdma_alone = false;
            }
        }
        for port in ports
            .iter_mut()
            .filter(|port| self.devx.were_used_on(port.device_uid))
        {
            port.may_overlook();
        }
        let rows = (&devices[..], &ports[..], &qps[..]);
        let makers = Makers::seen(&self.verbs, &mut self.devx, &machine.processes, programs, losses);
        let shares = snapshots
            .shares
            .apply(rows, &machine.processes, &makers, programs, losses, now_ns);
        let counts_verbs = self.verbs.are_counted(losses);
        let processes =
            snapshots
                .rows
                .processes(machine, &self.groups, (&shares, &makers), counts_verbs, sweeps);
        let credit = &mut snapshots.shares.credit;
        snapshots.paths.plan(&devices, &qps, credit);
        let uncounted = self.traffic.no_slot.notes(machine, losses);
        let hangs = self.readings.hangs.is_some();
        let interval_ns = snapshots.interval_ns(now_ns);
        snapshots.judge(Facts {
            time: now.wall_ns,
            mono_ns: now_ns,
            interval_ns,
            host: self.readings.health.host.clone(),
            health: self
                .readings
                .row(programs, losses, &machine.devices, &self.groups, uncounted),
            devices,
            ports,
            processes,
            verbs: self.verbs.rows(machine, now_ns),
            watched: self.watched.look(&qps, hangs, now_ns),
            qps,
        })
    }

    /// Forgets what has been gone for long. [`Engine::tick`] does so too; this is for a round without a
    /// snapshot.
    pub fn forget(&mut self, now: Now) {
        self.machine.forget(now.mono_ns, &self.config, &self.programs);
        self.devx.forget(&self.machine, &self.programs);
    }

    /// Findings that snapshots raised and cleared since the last call.
    pub fn take_changes(&mut self) -> Vec<Change> {
        self.snapshots.findings.take_changes()
    }

    /// What the engine lacks and the next round of reading should bring. Each process is in one answer only.
    pub fn needs(&mut self) -> Needs {
        let mut processes = self.machine.processes.take_wanted();
        processes.extend(self.snapshots.shares.users.take_wanted());
        processes.sort_unstable();
        processes.dedup();
        let mut locked = self.verbs.take_short_of_memory(&self.machine.processes);
        if self.programs.has_foreign_pids() {
            processes.clear();
            locked.clear();
        }
        Needs {
            repair: self.wants_repair(),
            processes,
            openers: self.needs_openers()
                || self.snapshots.shares.wants_contexts
                    && self.machine.devices.lacks_contexts()
                    && self.snapshots.may_search(),
            locked,
            psns: self.psns(),
            paths: Arc::clone(&self.snapshots.paths.plan),
        }
    }

    /// As [`Needs::psns`].
    pub fn psns(&self) -> Arc<BTreeMap<u32, Vec<u32>>> {
        Arc::clone(&self.snapshots.shares.batches.plan)
    }

    /// As [`Needs::repair`], for a round that asks for no processes.
    pub fn wants_repair(&self) -> bool {
        self.machine.qps.wants_repair()
    }

    /// As [`Needs::openers`], for a port whose data no queue pair explains.
    pub fn needs_openers(&self) -> bool {
        self.snapshots.needs_openers()
    }

    /// The last snapshot, which has all rows, again with the candidates that were found since; `None` where
    /// none were looked for.
    pub fn with_openers(&self, latest: &Snapshot) -> Option<Snapshot> {
        self.snapshots.with_openers(latest)
    }

    /// Whether a QP is watched: snapshots then come more often.
    pub fn is_watching(&self) -> bool {
        self.watched.is_there()
    }

    /// The last snapshot with the watched QP as it looks now. Nothing is read for it.
    pub fn glance(&self, latest: &Snapshot, now: Now) -> Option<Snapshot> {
        let picture = self.watched.picture(now.mono_ns)?;
        let mut again = latest.clone();
        again.facts.watched = Some(picture);
        Some(again)
    }
}
