//! Sweeps of the counter slots: from cumulative counts of slots to totals and rates of QPs, processes and
//! ports.
//!
//! Each sweep adds what is new in a slot to its QP, to the QP's owner and to its device. So the sum of a
//! process keeps what its ended QPs did, and never goes down.

use rdmatop_common::counters::{QpSlot, slot_flag};

use super::{
    flow::Round,
    hash::{NumberMap, NumberSet},
    losses::Losses,
    machine::{Machine, credit, sums},
    meter::{MIN_INTERVAL_NS, is_stale},
    no_slot::NoSlot,
    qp::{Key, Owner, Qp, Slot},
    qps::{QpRef, Qps},
};
use crate::{
    ib::Gid,
    input::{ReadAt, SlotsSample},
    value::Source,
};

/// The QP that has a slot.
#[derive(Clone, Copy, Debug)]
struct SlotUse {
    /// Its birth. No slot has two QPs that were born at one time: the first has to end before.
    born_ns: u64,
    qp: u64,
    /// Sweep in which it was last seen.
    sweep: u64,
}

/// The slots, and the pace of sweeps.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    in_use: NumberMap<u32, SlotUse>,
    /// QPs whose rates may change when the round is closed: idle ones cost nothing.
    pub(super) moving: Vec<u64>,
    /// Number of the last sweep, 0 before the first.
    sweep: u64,
    /// The last sample was not the end of its sweep.
    goes_on: bool,
    last_ns: u64,
    /// The time at which the last round was closed.
    round_ns: Option<u64>,
    elapsed_ns: u64,
    /// [`Sweeps::fresh`] and [`Sweeps::doubt`] of the last snapshot.
    shown: (bool, bool),
    pub(super) no_slot: NoSlot,
}

/// What sweeps say of the rows of a snapshot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sweeps {
    pub(super) now_ns: u64,
    /// The beginning of the last one.
    pub(super) last_ns: Option<u64>,
    /// The rates of the last round still say something about `now_ns`.
    pub(super) fresh: bool,
    /// See [`NoSlot::is_in_doubt`].
    pub(super) doubt: bool,
    /// One of these two has changed since the last snapshot.
    pub(super) turned: bool,
}

impl Traffic {
    pub(super) fn has_swept(&self) -> bool {
        self.sweep > 0
    }

    /// For a snapshot at `now_ns`.
    pub(super) fn look(&mut self, losses: &Losses, now_ns: u64) -> Sweeps {
        let fresh = self.has_swept() && !is_stale(self.last_ns, self.elapsed_ns, now_ns);
        let doubt = self.no_slot.is_in_doubt(losses);
        Sweeps {
            now_ns,
            last_ns: self.has_swept().then_some(self.last_ns),
            fresh,
            doubt,
            turned: std::mem::replace(&mut self.shown, (fresh, doubt)) != (fresh, doubt),
        }
    }

    /// Folds a sweep in.
    pub(super) fn apply(
        &mut self,
        sample: &SlotsSample,
        machine: &mut Machine,
        losses: &Losses,
        now_ns: u64,
    ) {
        if !self.goes_on {
            if self.has_swept() && sample.mono_ns <= self.last_ns {
                return;
            }
            self.sweep += 1;
            self.last_ns = sample.mono_ns;
        }
        self.goes_on = sample.more;
        self.no_slot.swept(sample);
        for (number, slot) in &sample.slots {
            self.slot_read(*number, slot, sample, machine, now_ns);
        }
        if sample.more {
            return;
        }
        if !sample.partial {
            self.left_slots(&mut machine.qps);
        }
        self.settle_rest(machine, losses);
        self.close_round(sample.mono_ns, machine);
    }

    fn slot_read(
        &mut self,
        number: u32,
        slot: &QpSlot,
        sample: &SlotsSample,
        machine: &mut Machine,
        now_ns: u64,
    ) {
        if slot.qp == 0 {
            return;
        }
        let never_hit = is_never_hit(slot);
        if slot.flags & slot_flag::DESTROYED != 0 && (never_hit || slot.flags & slot_flag::LATE != 0) {
            machine.left_short(slot);
        }
        if never_hit {
            return;
        }
        let at = sample.at.unwrap_or(sample.mono_ns.into());
        self.slot(number, slot, at, machine, now_ns);
        let over = sample.partial && slot.flags & slot_flag::DESTROYED != 0;
        if let Some(slot_use) = over.then(|| self.in_use.remove(&number)).flatten() {
            machine.qps.left_slot(slot_use.qp);
        }
    }

    fn slot(&mut self, number: u32, slot: &QpSlot, at: ReadAt, machine: &mut Machine, now_ns: u64) {
        let sweep = self.sweep;
        let known = self
            .in_use
            .get_mut(&number)
            .filter(|slot_use| slot_use.born_ns == slot.born_ns)
            .map(|slot_use| {
                slot_use.sweep = sweep;
                slot_use.qp
            });
        let Some(uid) = known.or_else(|| self.assign_slot(number, slot, machine)) else {
            return;
        };
        // A QP that had its slot in the last round but was not seen then: when it counted is not known.
        let round_ns = self.round_ns;
        let blurred = known.is_none() && round_ns.is_none_or(|round_ns| slot.since_ns < round_ns);
        let Some(qp) = machine.qps.get_mut(uid) else {
            return;
        };
        qp.late = slot.flags & slot_flag::LATE != 0;
        let flow = qp.flow.get_or_insert_default();
        let delta = flow.read(slot, at);
        flow.blurred |= blurred;
        if !flow.moving && (delta.is_some() || known.is_none()) {
            flow.moving = true;
            self.moving.push(uid);
        }
        if delta.is_some() {
            qp.touch();
        }
        let of = (qp.process(), qp.key.device);
        // The provider moves a QP to ERR on its own, without a modify: only a dump shows it.
        if delta.as_ref().is_some_and(|delta| delta.errors() > 0) && !qp.error_seen && qp.lives() {
            qp.error_seen = true;
            machine.qps.want_repair(now_ns);
        }
        if slot.flags & slot_flag::DESTROYED != 0 {
            machine.qps.end(uid, self.last_ns, &mut machine.processes);
        }
        if delta.is_some() || known.is_none() {
            // The owner of a newly seen QP gets even a zero: from now on it is counted.
            let delta = delta.unwrap_or_default();
            credit(&mut machine.processes, &mut machine.devices, of, &delta, blurred);
        }
    }

    /// Gives a slot to another QP and returns that QP.
    fn assign_slot(&mut self, number: u32, slot: &QpSlot, machine: &mut Machine) -> Option<u64> {
        let uid = machine.qp_of_slot(slot)?;
        let probed = slot.flags & slot_flag::provider::MASK == slot_flag::provider::USER;
        // Probes that the user asked for do not know what the kernel side counts already.
        if probed
            && let Some(qp) = machine.qps.get(uid)
            && machine.devices.is_counted(qp.key.device)
        {
            return None;
        }
        let slot_use = SlotUse {
            born_ns: slot.born_ns,
            qp: uid,
            sweep: self.sweep,
        };
        if let Some(before) = self.in_use.insert(number, slot_use) {
            machine.qps.left_slot(before.qp);
        }
        self.no_slot.got_slot(uid);
        if let Some(qp) = machine.qps.get_mut(uid) {
            if qp.row().uncounted {
                qp.edit().uncounted = false;
            }
            qp.slot = Slot::Held;
            qp.probed = probed;
            qp.blind = false;
            if let Some(flow) = &mut qp.flow {
                flow.resting = false;
                flow.begin_slot();
            }
            let row = qp.edit();
            row.since_attach |= slot.flags & slot_flag::SINCE_ATTACH != 0;
            // A modify that a program saw is newer.
            if let (None, Some(gid)) = (row.remote_gid, Gid::known(slot.dest_gid)) {
                (row.remote_gid, row.remote_gid_source) = (Some(gid), Some(Source::Ebpf));
            }
        }
        Some(uid)
    }

    fn left_slots(&mut self, qps: &mut Qps) {
        let sweep = self.sweep;
        let mut held = NumberSet::default();
        self.in_use.retain(|_, slot_use| {
            if slot_use.sweep == sweep {
                held.insert(slot_use.qp);
            }
            slot_use.sweep == sweep
        });
        // Also slots that only a record has named.
        let is_left = |qp: &&Qp| qp.slot == Slot::Held && !held.contains(&qp.uid());
        let left: Vec<u64> = qps.iter().filter(is_left).map(Qp::uid).collect();
        for uid in left {
            qps.left_slot(uid);
        }
    }

    /// Makes rates of what was counted since the last round, unless that is too short a time.
    fn close_round(&mut self, sweep_ns: u64, machine: &mut Machine) {
        let elapsed = self.round_ns.map(|round_ns| sweep_ns - round_ns);
        if elapsed.is_some_and(|elapsed| elapsed < MIN_INTERVAL_NS) {
            return;
        }
        self.round_ns = Some(sweep_ns);
        self.elapsed_ns = elapsed.unwrap_or(0);
        let round = Round {
            from_ns: elapsed.map(|elapsed| sweep_ns - elapsed),
            to_ns: sweep_ns,
        };
        let Machine {
            qps,
            processes,
            devices,
            ..
        } = machine;
        self.moving.retain(|uid| {
            let Some(qp) = qps.get_mut(*uid) else { return false };
            let of = (qp.process(), qp.key.device);
            let Some(flow) = &mut qp.flow else { return false };
            let changed = flow.close(round);
            flow.moving = flow.gives_news();
            let moving = flow.moving;
            sums(processes, devices, of).for_each(|sum| sum.gather(flow));
            if changed {
                qp.touch();
            }
            moving
        });
        let of_processes = processes.iter_mut().filter_map(|process| process.flow.as_mut());
        let of_devices = devices.iter_mut().filter_map(|device| device.flow.as_mut());
        for sum in of_processes.chain(of_devices) {
            sum.close_sum(elapsed.is_some());
        }
    }
}

impl Machine {
    /// The QP of a slot that belongs to another QP than before.
    fn qp_of_slot(&mut self, slot: &QpSlot) -> Option<u64> {
        let uid = if let Some(uid) = self.qps.born_at(slot.qp, slot.born_ns) {
            uid
        } else {
            let device = self.devices.resolve(slot.device_index, None, slot.born_ns);
            let is_user = slot.owner_pid != 0 && slot.flags & slot_flag::KERNEL == 0;
            self.saw_qp(&QpRef {
                object: slot.qp,
                born_ns: slot.born_ns,
                created: slot.flags & slot_flag::SINCE_ATTACH == 0,
                key: Some(Key::new(device, slot.qpn, None)),
                ts_ns: slot.born_ns,
                owner: is_user.then_some((slot.owner_pid, slot.owner_start_ns)),
            })?
        };
        self.own_by_slot(uid, slot);
        Some(uid)
    }

    fn own_by_slot(&mut self, uid: u64, slot: &QpSlot) {
        let unsure = self.qps.get(uid).is_some_and(|qp| !qp.sure);
        if slot.flags & slot_flag::KERNEL != 0 {
            if let Some(qp) = self.qps.get_mut(uid) {
                // The slot does not name the consumer; a record or a dump will.
                qp.edit().kernel = true;
            }
            return;
        }
        if !unsure || slot.owner_pid == 0 {
            return;
        }
        let owner = Owner::user(slot.owner_pid, slot.owner_start_ns);
        self.own(uid, owner, slot.born_ns);
        if let Some(qp) = self.qps.get_mut(uid) {
            (qp.sure, qp.start_ns) = (true, slot.owner_start_ns);
        }
    }
}

/// A slot of probes on a program that never called what is probed. It may post in another way (UCX on mlx5,
/// libfabric on EFA), so nothing is known of its QP.
fn is_never_hit(slot: &QpSlot) -> bool {
    let by_probes = slot.flags & slot_flag::provider::MASK == slot_flag::provider::USER;
    by_probes && slot.tx_posted == 0 && slot.rx_posted == 0
}
