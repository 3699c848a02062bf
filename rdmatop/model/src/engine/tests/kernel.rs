//! A kernel, and rdmatop's programs in it, that reuse every address and number as soon as they may.
//!
//! An address goes to the next QP of any device, a number to the next QP of its device, a process id to the
//! next process, a slot to the next QP that is counted. A device that is added again has another index and
//! starts with the same numbers. What the sources report of all this waits in two queues, records and
//! samples, and either may lag behind.

use std::collections::{BTreeMap, VecDeque};

use super::*;

/// QP numbers that a device has.
const NUMBERS: std::ops::Range<u32> = 17..20;
/// Process ids that the machine has.
const PIDS: std::ops::Range<u32> = 300..303;
/// Addresses that a QP can have.
const ADDRESSES: std::ops::Range<u64> = 1..7;

/// A device from its registration to its removal.
#[derive(Clone, Debug)]
pub(super) struct Device {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) guid: u64,
    pub(super) lives: bool,
}

/// A process.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) pid: u32,
    pub(super) start_ns: u64,
    pub(super) lives: bool,
}

/// A QP, and what has been counted of it.
#[derive(Clone, Debug)]
pub(super) struct TrueQp {
    pub(super) device: usize,
    pub(super) task: usize,
    pub(super) qpn: u32,
    pub(super) object: u64,
    pub(super) lives: bool,
    pub(super) state: u8,
    /// The QP's key in each set of programs.
    pub(super) births: Vec<u64>,
    pub(super) counted: Work,
}

/// Finished work requests.
///
/// Sends and receives are counted apart, and have other sizes, so that a count in the other's place is wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Work {
    pub(super) sent: u64,
    pub(super) received: u64,
}

impl Work {
    /// Bytes of each send.
    pub(super) const SENT_BYTES: u64 = 100;
    /// Bytes of each receive.
    pub(super) const RECEIVED_BYTES: u64 = 7;

    /// Neither direction has more.
    pub(super) fn is_within(self, most: Self) -> bool {
        self.sent <= most.sent && self.received <= most.received
    }
}

impl std::ops::AddAssign for Work {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.received += other.received;
    }
}

impl std::iter::Sum for Work {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |mut sum, work| {
            sum += work;
            sum
        })
    }
}

/// What the programs know of a QP by its address.
#[derive(Clone, Copy, Debug)]
struct ProgramView {
    born_ns: u64,
    created: bool,
    slot: Option<u32>,
}

/// Everything there is and was.
#[derive(Debug, Default)]
pub(super) struct Kernel {
    pub(super) now: u64,
    /// How long the machine has slept since it was booted.
    pub(super) slept_ns: u64,
    pub(super) devices: Vec<Device>,
    pub(super) tasks: Vec<Task>,
    pub(super) qps: Vec<TrueQp>,
    next_index: u32,
    /// The programs are attached.
    attached: bool,
    known: BTreeMap<u64, ProgramView>,
    slots: Vec<QpSlot>,
    /// The first sweep of a session reports all slots.
    swept: bool,
    seen: BTreeMap<u32, QpSlot>,
    pub(super) records: VecDeque<Record>,
    pub(super) samples: VecDeque<Input>,
    dump: Option<QpsSample>,
    /// Processes whose end is watched for: /proc's (pid, start).
    watched: BTreeMap<u32, u64>,
}

/// One of those that are left, chosen by a random number.
pub(super) fn pick(count: usize, which: u8) -> Option<usize> {
    (count > 0).then(|| usize::from(which) % count)
}

impl Kernel {
    pub(super) fn new() -> Self {
        Self {
            now: SECOND,
            slept_ns: 7 * SECOND,
            slots: vec![QpSlot::new_zeroed(); 16],
            ..Self::default()
        }
    }

    fn tick(&mut self) -> u64 {
        self.now += 1000;
        self.now
    }

    fn living(&self) -> Vec<usize> {
        (0..self.qps.len()).filter(|qp| self.qps[*qp].lives).collect()
    }

    /// Adds a device. Those with an even number come back with the identity of the one before.
    pub(super) fn add_device(&mut self, which: u8) {
        let name = format!("rxe{}", which % 3);
        if self
            .devices
            .iter()
            .any(|device| device.lives && device.name == name)
        {
            return;
        }
        self.devices.push(Device {
            index: self.next_index,
            name,
            guid: 0x10 + u64::from(which % 3),
            lives: true,
        });
        self.next_index += 1;
    }

    pub(super) fn remove_device(&mut self, which: u8) {
        let living: Vec<usize> = (0..self.devices.len())
            .filter(|at| self.devices[*at].lives)
            .collect();
        let Some(device) = pick(living.len(), which).map(|at| living[at]) else {
            return;
        };
        for qp in self.living() {
            if self.qps[qp].device == device {
                self.destroy(qp);
            }
        }
        self.devices[device].lives = false;
    }

    /// Two devices change their names.
    pub(super) fn rename(&mut self) {
        let living: Vec<usize> = (0..self.devices.len())
            .filter(|at| self.devices[*at].lives)
            .collect();
        if let [first, .., last] = living[..] {
            let name = std::mem::take(&mut self.devices[first].name);
            self.devices[first].name = std::mem::replace(&mut self.devices[last].name, name);
        }
    }

    /// `ib_core` is loaded again: indexes start at 0. That takes longer than records on their way.
    pub(super) fn reload(&mut self, out: &mut Vec<Input>) {
        // A dump keeps the module loaded.
        if self.dump.is_some() {
            self.end_dump();
        }
        while self.devices.iter().any(|device| device.lives) {
            self.remove_device(0);
        }
        self.attach(out);
        self.list_devices();
        out.extend(self.samples.drain(..));
        self.next_index = 0;
    }

    /// A process; the one that had its id before has ended. With `same_tick` it starts in the same 10 ms.
    pub(super) fn spawn(&mut self, which: u8, same_tick: bool) {
        let pid = PIDS.start + u32::from(which) % (PIDS.end - PIDS.start);
        self.exit(pid);
        if !same_tick {
            self.now += 10 * MS;
        }
        // The clock of starts goes on while the machine sleeps.
        let start_ns = self.tick() + self.slept_ns;
        self.tasks.push(Task {
            pid,
            start_ns,
            lives: true,
        });
    }

    fn exit(&mut self, pid: u32) {
        let Some(task) = self.tasks.iter().position(|task| task.lives && task.pid == pid) else {
            return;
        };
        for qp in self.living() {
            if self.qps[qp].task == task {
                self.destroy(qp);
            }
        }
        self.tasks[task].lives = false;
    }

    pub(super) fn kill(&mut self, which: u8) {
        self.exit(PIDS.start + u32::from(which) % (PIDS.end - PIDS.start));
    }

    pub(super) fn create(&mut self, device: u8, task: u8) {
        let devices: Vec<usize> = (0..self.devices.len())
            .filter(|at| self.devices[*at].lives)
            .collect();
        let tasks: Vec<usize> = (0..self.tasks.len()).filter(|at| self.tasks[*at].lives).collect();
        let (Some(device), Some(task)) = (pick(devices.len(), device), pick(tasks.len(), task)) else {
            return;
        };
        let (device, task) = (devices[device], tasks[task]);
        let is_free = |qpn: &u32| {
            !self
                .qps
                .iter()
                .any(|qp| qp.lives && qp.device == device && qp.qpn == *qpn)
        };
        let is_empty = |object: &u64| !self.qps.iter().any(|qp| qp.lives && qp.object == *object);
        let (Some(qpn), Some(object)) = ({ NUMBERS }.find(is_free), { ADDRESSES }.find(is_empty)) else {
            return;
        };
        let born_ns = self.tick();
        self.qps.push(TrueQp {
            device,
            task,
            qpn,
            object,
            lives: true,
            state: 0,
            births: Vec::new(),
            counted: Work::default(),
        });
        if self.attached {
            let qp = self.qps.len() - 1;
            self.learn(qp, born_ns, true);
            self.report(kind::QP_CREATE, qp, 0);
        }
    }

    /// The programs see a QP for the first time.
    fn learn(&mut self, qp: usize, born_ns: u64, created: bool) {
        let slot = self.slots.iter().position(|slot| slot.qp == 0);
        let truth = &mut self.qps[qp];
        truth.births.push(born_ns);
        let (device, task) = (&self.devices[truth.device], &self.tasks[truth.task]);
        if let Some(slot) = slot {
            self.slots[slot] = QpSlot {
                qp: truth.object,
                born_ns,
                owner_start_ns: task.start_ns,
                qpn: truth.qpn,
                device_index: device.index,
                owner_pid: task.pid,
                flags: if created { 0 } else { slot_flag::SINCE_ATTACH },
                ..QpSlot::new_zeroed()
            };
        }
        let slot = slot.and_then(|slot| u32::try_from(slot).ok());
        self.known.insert(
            truth.object,
            ProgramView {
                born_ns,
                created,
                slot,
            },
        );
    }

    /// What the programs know of a QP: they look at one that they do not know.
    fn known(&mut self, qp: usize) -> ProgramView {
        let object = self.qps[qp].object;
        if !self.known.contains_key(&object) {
            let now = self.tick();
            self.learn(qp, now, false);
        }
        self.known[&object]
    }

    fn report(&mut self, kind: u16, qp: usize, duration_ns: u64) {
        let known = self.known(qp);
        let ts_ns = if kind == kind::QP_CREATE {
            known.born_ns
        } else {
            self.tick() + duration_ns
        };
        let truth = &self.qps[qp];
        let (device, task) = (&self.devices[truth.device], &self.tasks[truth.task]);
        let mut record = record(
            by(prefix(kind, ts_ns, truth.object), task.pid, "traffic"),
            truth.qpn,
        );
        record.prefix.duration_ns = duration_ns;
        record.prefix.device = bytes(&device.name);
        record.prefix.device_index = device.index;
        record.prefix.flags |= if known.created { flag::CREATED } else { 0 };
        record.born_ns = known.born_ns;
        record.owner_start_ns = task.start_ns;
        record.slot = known.slot.unwrap_or(UNKNOWN_U32);
        if kind == kind::QP_MODIFY {
            (record.attr_mask, record.to_state) = (1, truth.state);
        }
        self.records.push_back(Record::Qp(record));
    }

    pub(super) fn modify(&mut self, which: u8, state: u8) {
        let living = self.living();
        let Some(qp) = pick(living.len(), which).map(|at| living[at]) else {
            return;
        };
        self.qps[qp].state = state % 4;
        if self.attached {
            self.report(kind::QP_MODIFY, qp, 1);
        }
    }

    pub(super) fn move_data(&mut self, which: u8, work: Work) {
        let living = self.living();
        let Some(qp) = pick(living.len(), which)
            .map(|at| living[at])
            .filter(|_| self.attached)
        else {
            return;
        };
        let Some(slot) = self.known(qp).slot else { return };
        let slot = &mut self.slots[slot as usize];
        slot.tx_posted += work.sent;
        slot.tx_done += work.sent;
        slot.tx_bytes += Work::SENT_BYTES * work.sent;
        slot.rx_done += work.received;
        slot.rx_bytes += Work::RECEIVED_BYTES * work.received;
        slot.cqes += work.sent + work.received;
        self.qps[qp].counted += work;
    }

    pub(super) fn end(&mut self, which: u8) {
        let living = self.living();
        if let Some(qp) = pick(living.len(), which) {
            self.destroy(living[qp]);
        }
    }

    fn destroy(&mut self, qp: usize) {
        self.tick();
        if self.attached {
            // The call returns long after the number and the address are free.
            let slot = self.known(qp).slot;
            self.report(kind::QP_DESTROY, qp, 5 * MS);
            if let Some(slot) = slot {
                self.slots[slot as usize].flags |= slot_flag::DESTROYED;
            }
            self.known.remove(&self.qps[qp].object);
        }
        self.qps[qp].lives = false;
    }

    /// Programs take over from those before, if there were any, whose counts were read to the end.
    pub(super) fn attach(&mut self, out: &mut Vec<Input>) {
        if self.attached {
            self.sweep();
        }
        out.extend(self.samples.drain(..));
        out.push(Input::Records(self.records.drain(..).collect()));
        out.push(super::anew());
        self.attached = true;
        self.swept = false;
        self.known.clear();
        self.seen.clear();
        self.slots.fill(QpSlot::new_zeroed());
    }

    /// Sweeps the slots as `rdmatop_loader::slots` does.
    pub(super) fn sweep(&mut self) {
        let mut sample = SlotsSample {
            mono_ns: self.tick(),
            partial: self.swept,
            ..SlotsSample::default()
        };
        self.swept = true;
        for (number, slot) in (0..).zip(&mut self.slots) {
            if slot.qp == 0 {
                continue;
            }
            let is_last = slot.flags & slot_flag::DESTROYED != 0;
            let is_new = self.seen.get(&number).is_none_or(|seen| {
                let changing = |slot: &QpSlot| (slot.born_ns, slot.flags, slot.tx_done, slot.rx_done);
                changing(seen) != changing(slot)
            });
            if is_new {
                sample.slots.push((number, *slot));
                self.seen.insert(number, *slot);
            }
            if is_last {
                *slot = QpSlot::new_zeroed();
                self.seen.remove(&number);
            }
        }
        self.samples.push_back(Input::Slots(Box::new(sample)));
    }

    fn read_qps(&self, device: usize) -> Vec<QpReading> {
        let on = self.qps.iter().filter(|qp| qp.lives && qp.device == device);
        on.map(|qp| QpReading {
            device_index: self.devices[device].index,
            ..dumped(qp.qpn, Some(self.tasks[qp.task].pid), qp.state)
        })
        .collect()
    }

    /// A dump begins: it reads some of the devices now.
    pub(super) fn begin_dump(&mut self) {
        let mut sample = QpsSample {
            mono_ns: self.tick(),
            ..QpsSample::default()
        };
        for device in (0..self.devices.len())
            .step_by(2)
            .filter(|device| self.devices[*device].lives)
        {
            sample.complete.push(self.devices[device].index);
            sample.qps.extend(self.read_qps(device));
        }
        self.dump = Some(sample);
    }

    /// The dump reads the QPs that are left, and ends.
    pub(super) fn end_dump(&mut self) {
        if self.dump.is_none() {
            self.begin_dump();
        }
        let Some(mut sample) = self.dump.take() else {
            return;
        };
        for device in (1..self.devices.len())
            .step_by(2)
            .filter(|device| self.devices[*device].lives)
        {
            sample.complete.push(self.devices[device].index);
            sample.qps.extend(self.read_qps(device));
        }
        self.samples.push_back(Input::Qps(Box::new(sample)));
    }

    pub(super) fn list_devices(&mut self) {
        let mono_ns = self.tick();
        let living = self.devices.iter().filter(|device| device.lives);
        let devices = living.map(|device| DeviceReading {
            node_guid: Some(device.guid),
            ..rxe(device.index, &device.name)
        });
        let sample = DevicesSample {
            mono_ns,
            devices: devices.collect(),
            ..DevicesSample::default()
        };
        self.samples.push_back(Input::Devices(Box::new(sample)));
    }

    /// Reads processes as `app::host::processes` does.
    pub(super) fn look_at_processes(&mut self, wanted: Vec<u32>) {
        for pid in wanted {
            self.watched.entry(pid).or_insert(0);
        }
        let holder = |pid: u32| self.tasks.iter().find(|task| task.lives && task.pid == pid);
        for (pid, seen) in &mut self.watched {
            let start = holder(*pid).map_or(0, |task| task.start_ns);
            if start == *seen {
                continue;
            }
            if *seen != 0 {
                self.samples.push_back(Input::ProcessGone {
                    pid: *pid,
                    start_ticks: Some(*seen / (10 * MS)),
                });
            }
            *seen = start;
            if start != 0 {
                let facts = ProcessFacts {
                    pid: *pid,
                    start_ticks: start / (10 * MS),
                    comm: Some("traffic".into()),
                    ..ProcessFacts::default()
                };
                self.samples.push_back(Input::Process(Box::new(facts)));
            }
        }
    }
}
