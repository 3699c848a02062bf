//! Dumps of QPs: initial sync, and repair after loss. Records are the truth about what is newer than the
//! dump.

use rdmatop_base::order::Gather as _;
use std::collections::{BTreeMap, BTreeSet};

use super::{
    hash::NumberMap,
    machine::Machine,
    programs::Programs,
    psn::Passed,
    qp::{Key, Owner, Qp},
};
use crate::{
    ib::QpState,
    input::{QpReading, QpsSample},
    snapshot::NO_NUMBER,
};

/// Values that are the same for all QPs of a dump.
struct Dump {
    began_ns: u64,
    now_ns: u64,
    number: u32,
    /// Packets of the ports, since the dump before.
    passed: BTreeMap<(u64, u32), Passed>,
    foreign_pids: bool,
    /// The table of QPs may be wrong ([`super::qps::Qps::wants_repair`]).
    repairs: bool,
}

impl Dump {
    /// The number now has another owner than at the last dump: between the two it was given to another QP.
    /// Records report that more exactly, unless some were lost.
    fn is_of_another(&self, reading: &QpReading, qp: &Qp) -> bool {
        let reported = reading.pid.filter(|pid| *pid != 0 && !self.foreign_pids);
        let differ = reported
            .zip(qp.row().pid)
            .is_some_and(|(reported, known)| reported != known);
        differ && (!qp.sure || self.repairs)
    }
}

impl Machine {
    pub(super) fn dump(&mut self, sample: &QpsSample, programs: &Programs, now_ns: u64) {
        let began_ns = sample.mono_ns;
        self.qps.dumps = self.qps.dumps.wrapping_add(1);
        let mut device = None;
        let mut keys = Vec::with_capacity(sample.qps.len());
        for reading in &sample.qps {
            let uid = match device {
                Some((index, uid)) if index == reading.device_index => uid,
                _ => self.devices.resolve(reading.device_index, None, began_ns),
            };
            device = Some((reading.device_index, uid));
            keys.push(Key::new(uid, reading.qpn, reading.port));
        }
        let dump = Dump {
            began_ns,
            now_ns,
            number: self.qps.dumps,
            passed: self.passed(sample, &keys),
            foreign_pids: programs.has_foreign_pids(),
            repairs: self.qps.wants_repair(),
        };
        // The kernel's order, in which QP 0 and QP 1 come last.
        if keys.is_sorted_by_key(|key| (key.device, key.port, key.qpn)) && !has_twins(&keys) {
            for (key, reading) in keys.iter().zip(&sample.qps) {
                self.dumped(*key, reading, &dump);
            }
        } else {
            // A dump under churn lists some QPs twice; the later reading is the fresher one.
            let mut latest: NumberMap<Key, &QpReading> = keys.iter().copied().zip(&sample.qps).collect();
            for key in &keys {
                if let Some(reading) = latest.remove(key) {
                    self.dumped(*key, reading, &dump);
                }
            }
        }
        let complete: BTreeSet<u64> = sample
            .complete
            .iter()
            .map(|index| self.devices.resolve(*index, None, began_ns))
            .gather();
        let gone: Vec<u64> = self
            .qps
            .iter()
            .filter(|qp| {
                qp.dump != dump.number
                    && qp.lives()
                    && qp.row().number().is_some()
                    && complete.contains(&qp.key.device)
                    && qp.is_older_than(began_ns)
            })
            .map(Qp::uid)
            .collect();
        for uid in gone {
            self.qps.end_by(uid, began_ns, now_ns, &mut self.processes);
        }
        self.qps.repaired(began_ns);
        if self.qps.forgotten_ns > began_ns {
            // The dump may have brought back a QP that ended after the dump began and is forgotten already.
            self.qps.want_repair(now_ns);
        }
    }

    /// Packets of the ports of a dump, since the dump before.
    fn passed(&mut self, sample: &QpsSample, keys: &[Key]) -> BTreeMap<(u64, u32), Passed> {
        let ports = keys.iter().zip(&sample.qps);
        let mut ports: Vec<_> = ports
            .map(|(key, reading)| (key.device, reading.port.unwrap_or(1)))
            .collect();
        // They are mostly in order.
        ports.dedup();
        let ports: BTreeSet<(u64, u32)> = ports.into_iter().gather();
        let mut passed =
            |port: (u64, u32)| Some((port, self.devices.passed(port.0, port.1, sample.mono_ns)?));
        ports.into_iter().filter_map(&mut passed).gather()
    }

    fn dumped(&mut self, key: Key, reading: &QpReading, dump: &Dump) {
        if self.devices.qp_number(key.device, reading.qpn, reading.qp_type) == NO_NUMBER {
            // The kernel's list has room for one of them.
            return;
        }
        let began_ns = dump.began_ns;
        let passed = dump.passed.get(&(key.device, reading.port.unwrap_or(1))).copied();
        // Nearly all of ten thousand QPs have not changed.
        if let Some(qp) = self.qps.live_mut(key)
            && qp.is_as(reading)
        {
            qp.dump = dump.number;
            if let Some(psn) = reading.sq_psn.filter(|_| qp.event_ns <= began_ns) {
                qp.psn.read(psn, reading.state, began_ns, passed);
            }
            return;
        }
        let uid = self.changed(key, reading, passed, dump);
        if let Some(qp) = uid.and_then(|uid| self.qps.get_mut(uid)) {
            qp.dump = dump.number;
        }
    }

    /// A QP of a dump that is new or has changed; returns it unless it has ended since.
    fn changed(&mut self, key: Key, reading: &QpReading, passed: Option<Passed>, dump: &Dump) -> Option<u64> {
        let (began_ns, now_ns) = (dump.began_ns, dump.now_ns);
        if let Some(qp) = self.qps.live(key).and_then(|uid| self.qps.get(uid)) {
            let uid = qp.uid();
            if qp.is_born_after(began_ns) {
                // The dump may have seen an earlier QP with this number; the records are about this one.
                return Some(uid);
            }
            if dump.is_of_another(reading, qp) {
                self.qps.end_by(uid, began_ns, now_ns, &mut self.processes);
            }
        }
        let uid = match self.qps.live(key) {
            Some(uid) => uid,
            None if self.qps.ended_at(key).is_some_and(|ended| ended > began_ns) => return None,
            None => self.insert_qp(key, began_ns, now_ns),
        };
        self.qps.set_device(uid, key.device, &mut self.processes);
        self.own_by_dump(uid, reading, dump);
        let qp = self.qps.all.get_mut(uid)?;
        let known = qp.row();
        let before = (
            known.qp_type,
            known.port,
            known.remote_qpn,
            known.sq_psn,
            known.rq_psn,
        );
        let (mut remote_qpn, mut sq_psn, mut rq_psn) = (known.remote_qpn, known.sq_psn, known.rq_psn);
        let known_peer = remote_qpn;
        let (qp_type, port) = (reading.qp_type.or(known.qp_type), reading.port.or(known.port));
        if let Some(state) = reading.state {
            qp.observe(state, began_ns, &mut self.qps.timeline);
        }
        // An attribute that a record has set since is newer.
        if qp.event_ns <= began_ns {
            remote_qpn = reading.remote_qpn.or(remote_qpn);
            // Another connection, or none, since the address was seen.
            let is_another =
                remote_qpn != known_peer || reading.state.is_some_and(|state| state.0 < QpState::RTR.0);
            if is_another && qp.row().remote_gid.is_some() {
                let row = qp.edit();
                (row.remote_gid, row.remote_gid_source, row.sgid_index) = (None, None, None);
            }
            rq_psn = reading.rq_psn.or(rq_psn);
            if let Some(psn) = reading.sq_psn {
                sq_psn = Some(psn);
                qp.psn.read(psn, reading.state, began_ns, passed);
            }
        }
        if before != (qp_type, port, remote_qpn, sq_psn, rq_psn) {
            let row = qp.edit();
            (row.qp_type, row.port) = (qp_type, port);
            (row.remote_qpn, row.sq_psn, row.rq_psn) = (remote_qpn, sq_psn, rq_psn);
        }
        Some(uid)
    }

    fn own_by_dump(&mut self, uid: u64, reading: &QpReading, dump: &Dump) {
        let Some(qp) = self.qps.get_mut(uid) else { return };
        let had_process = qp.process().is_some();
        let born_ns = qp.row().born_mono_ns.unwrap_or(dump.began_ns);
        if let Some(name) = &reading.kern_name {
            // A record holds only the start of the name; the dump has all of it. But rdma_cm makes QPs for
            // its callers, and only a record has the caller's name.
            let better = name != "rdma_cm" || !qp.row().kernel || qp.comm.is_none();
            let name = self.names.kernel(name.as_bytes());
            if better && qp.comm.as_ref() != Some(&name) {
                self.own(uid, Owner::kernel(name), born_ns);
            }
        } else if dump.foreign_pids {
            // Another process has the number, or no owner is given because the owner is outside of this
            // namespace.
        } else if let Some(pid) = reading.pid.filter(|pid| *pid != 0) {
            if qp.row().orphan {
                qp.edit().orphan = false;
            }
            if !had_process {
                self.own(uid, Owner::user(pid, 0), born_ns);
            }
        } else if !qp.row().kernel {
            // The kernel leaves the PID out once the task that made the QP is dead: a process, whose QP
            // others hold, or one thread of a process that goes on. A process that was never seen may be
            // either.
            let orphan = self.processes.has_ended(qp.process());
            if qp.row().orphan != orphan {
                qp.edit().orphan = orphan;
            }
        }
    }
}

/// Whether a sorted list holds a key twice.
fn has_twins(keys: &[Key]) -> bool {
    keys.iter().zip(keys.iter().skip(1)).any(|(a, b)| a == b)
}
