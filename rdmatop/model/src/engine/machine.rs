//! What there is on the machine: devices, processes, QPs, and the names that they share.

use std::{collections::BTreeMap, sync::Arc};

use rdmatop_common::{
    counters::QpSlot,
    event::{Prefix, flag},
};

use super::{
    EngineConfig,
    devices::Devices,
    flow::Flow,
    names::Names,
    processes::Processes,
    programs::Programs,
    qp::{Key, Owner},
    qps::{QpRef, Qps},
    tally::Tally,
};
use crate::input::{CountersSample, DevicesSample};

/// The tables. A record, a slot or a dump of a QP concerns all of them.
#[derive(Debug, Default)]
pub(super) struct Machine {
    pub(super) names: Names,
    pub(super) devices: Devices,
    pub(super) processes: Processes,
    pub(super) qps: Qps,
}

/// A process and a device, by their uids.
type SumsOf = (Option<u64>, u64);

/// The sums that the QPs of a process on a device belong to.
pub(super) fn sums<'a>(
    processes: &'a mut Processes,
    devices: &'a mut Devices,
    (process, device): SumsOf,
) -> impl Iterator<Item = &'a mut Flow> {
    let process = process.and_then(|uid| processes.get_mut(uid));
    let process = process.map(|process| &mut process.flow);
    let device = devices.get_mut(device).map(|device| &mut device.flow);
    let flows = process.into_iter().chain(device);
    flows.map(|flow| &mut **flow.get_or_insert_default())
}

/// Adds to them what a QP counted.
pub(super) fn credit(
    processes: &mut Processes,
    devices: &mut Devices,
    of: SumsOf,
    delta: &Tally,
    at_unknown_time: bool,
) {
    sums(processes, devices, of).for_each(|sum| sum.add(delta, at_unknown_time));
}

impl Machine {
    /// Folds a reading of all devices in.
    pub(super) fn devices(&mut self, mut sample: DevicesSample, programs: &Programs) {
        if sample.unread {
            return;
        }
        if let Some(sums) = mr_bytes(&sample).filter(|_| !programs.has_foreign_pids()) {
            self.processes.registered(&sums, sample.mono_ns);
        }
        let gone = self.devices.read(&mut sample, &mut self.names);
        if gone.is_empty() {
            return;
        }
        let mut ended = Vec::new();
        for qp in self.qps.iter_mut() {
            if let Some(name) = gone.get(&qp.key.device) {
                qp.edit().device = Arc::clone(name);
                ended.push(qp.uid());
            }
        }
        for uid in ended {
            self.qps.end(uid, sample.mono_ns, &mut self.processes);
        }
    }

    /// Folds a reading of counters of ports in.
    pub(super) fn counters(&mut self, sample: CountersSample, programs: &Programs) {
        if let Some(sums) = sample.mr_bytes.as_ref().filter(|_| !programs.has_foreign_pids()) {
            self.processes.registered(sums, sample.mono_ns);
        }
        self.devices.counted(sample);
    }

    /// A process is gone from /proc.
    pub(super) fn process_gone(&mut self, pid: u32, start_ticks: Option<u64>, now_ns: u64) {
        let uid = self.processes.gone(pid, start_ticks, now_ns);
        let process = uid.and_then(|uid| self.processes.get(uid));
        if process.is_some_and(|process| !process.qps.is_empty()) {
            // Records of its last moments may be on the way, or another process holds its QPs: a dump shows
            // which.
            self.qps.want_repair(now_ns);
        }
    }

    /// From now on PIDs are those of another namespace: the PIDs known until now name no process.
    pub(super) fn renumber(&mut self, now_ns: u64) {
        let owned = self
            .qps
            .iter_mut()
            .filter(|qp| !qp.row().kernel && qp.row().pid.is_some());
        let owned: Vec<u64> = owned.map(|qp| qp.uid()).collect();
        for uid in owned {
            self.qps.set_owner(uid, Owner::default(), &mut self.processes);
        }
        self.processes.end_all(now_ns);
        self.qps.want_repair(now_ns);
    }

    /// Forgets what has been gone for long.
    pub(super) fn forget(&mut self, now_ns: u64, config: &EngineConfig, programs: &Programs) {
        let linger_ns = config.linger_ns;
        self.qps.forget(now_ns, linger_ns, config.max_ended);
        self.processes
            .forget(now_ns, linger_ns, programs.has_foreign_pids());
    }

    /// What a record itself knows of the object's owner, and when that was started, ns; 0: not known.
    pub(super) fn owner_in(&mut self, prefix: &Prefix, start_ns: u64) -> Owner {
        if prefix.flags & flag::OWNER_KERNEL != 0 {
            return Owner::kernel(self.names.kernel(&prefix.owner_comm));
        }
        if prefix.flags & flag::OWNER_TASK == 0 || prefix.owner_pid == 0 {
            return Owner::default();
        }
        Owner {
            comm: Some(self.names.of(&prefix.owner_comm)).filter(|comm| !comm.is_empty()),
            ..Owner::user(prefix.owner_pid, start_ns)
        }
    }

    /// Generation and name of the device in a record, which was there at `ts_ns`.
    pub(super) fn device_in(&mut self, prefix: &Prefix, ts_ns: u64) -> Option<(u64, Arc<str>)> {
        if prefix.flags & flag::DEVICE == 0 {
            return None;
        }
        let name = Some(self.names.of(&prefix.device)).filter(|name| !name.is_empty());
        let uid = self.devices.resolve(prefix.device_index, name.as_ref(), ts_ns);
        let name = name.or_else(|| self.devices.get(uid).map(|device| Arc::clone(&device.name)))?;
        Some((uid, name))
    }

    /// The QP that a record or a slot is about, added when it is new. `None` when it cannot be identified.
    pub(super) fn saw_qp(&mut self, seen: &QpRef) -> Option<u64> {
        let uid = match self.qps.find(seen) {
            Some(uid) => uid,
            None => self.insert_qp(seen.key?, seen.at_ns(), seen.at_ns()),
        };
        self.qps.saw_qp(uid, seen, &mut self.processes);
        let device = seen.key.map_or(0, |key| key.device);
        if self.qps.set_device(uid, device, &mut self.processes)
            && let Some(flow) = self.qps.get(uid).and_then(|qp| qp.flow.as_ref())
        {
            let of = (None, device);
            credit(&mut self.processes, &mut self.devices, of, flow.total(), true);
        }
        Some(uid)
    }

    /// Adds a QP. If its device is gone already, the QP is gone too.
    pub(super) fn insert_qp(&mut self, key: Key, first_ns: u64, seen_ns: u64) -> u64 {
        let uid = self.qps.insert(key, first_ns, seen_ns, &mut self.processes);
        if let Some(ended_ns) = self.devices.ended_ns(key.device) {
            self.qps.end(uid, ended_ns, &mut self.processes);
        }
        uid
    }

    /// Gives a QP to its owner of `ts_ns`.
    pub(super) fn own(&mut self, uid: u64, owner: Owner, ts_ns: u64) {
        let owner = self.processes.of(owner, ts_ns);
        self.qps.set_owner(uid, owner, &mut self.processes);
    }

    /// The sums that a QP belongs to lack what it does now.
    pub(super) fn is_short(&mut self, uid: u64) {
        let Some(qp) = self.qps.get(uid) else { return };
        let of = (qp.process(), qp.key.device);
        sums(&mut self.processes, &mut self.devices, of).for_each(|sum| sum.short = true);
    }

    /// Once the probes are off, what their QPs do is not known any more, and neither is any sum that they
    /// belong to.
    pub(super) fn lose_probes(&mut self) {
        for qp in self.qps.iter_mut().filter(|qp| qp.probed) {
            qp.probed = false;
            qp.blind = true;
            qp.touch();
            let of = (qp.process(), qp.key.device);
            sums(&mut self.processes, &mut self.devices, of).for_each(|sum| sum.short = true);
        }
    }

    /// The last reading of a QP in whose counts something is missing, or in which nothing was counted at all
    /// although it may have posted: so it is with the sum of its process from now on.
    pub(super) fn left_short(&mut self, slot: &QpSlot) {
        let uid = self.qps.born_at(slot.qp, slot.born_ns);
        let process = if let Some(qp) = uid.and_then(|uid| self.qps.get(uid)) {
            qp.process()
        } else {
            let owner = Owner::user(slot.owner_pid, slot.owner_start_ns);
            self.processes.of(owner, slot.born_ns).process
        };
        if let Some(process) = process.and_then(|uid| self.processes.get_mut(uid)) {
            process.lacks = true;
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
