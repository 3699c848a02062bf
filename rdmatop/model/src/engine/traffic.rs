//! Sweeps of the counter slots: from cumulative counts of slots to totals and rates of QPs, processes and
//! ports.
//!
//! Each sweep adds what is new in a slot to its QP, to the QP's owner and to its device. So the sum of a
//! process keeps what its ended QPs did, and never goes down.

use std::num::NonZeroU32;

use rdmatop_common::counters::{QpSlot, slot_flag};

use super::{
    Engine,
    devices::Devices,
    flow::{Flow, Round},
    hash::{NumberMap, NumberSet},
    meter::is_stale,
    processes::Processes,
    qp::{Key, Owner, Slot},
    qps::QpRef,
    tally::Tally,
};
use crate::input::{Now, ReadAt, SlotsSample};

/// The QP that has a slot.
#[derive(Clone, Copy, Debug)]
struct SlotUse {
    /// Its birth. No slot has two QPs that were born at one time: the first has to end before.
    born_ns: u64,
    qp: u64,
    /// Sweep in which it was last seen.
    sweep: NonZeroU32,
}

/// The slots, and the pace of sweeps.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    in_use: NumberMap<u32, SlotUse>,
    /// QPs whose rates may change when the round is closed: idle ones cost nothing.
    pub(super) moving: Vec<u64>,
    /// Number of the last sweep; they wrap. `None` before the first.
    sweep: Option<NonZeroU32>,
    /// The last sample was not the end of its sweep.
    goes_on: bool,
    last_ns: u64,
    /// The time at which the last round was closed.
    round_ns: Option<u64>,
    elapsed_ns: u64,
    were_fresh: bool,
}

impl Traffic {
    /// The beginning of the last sweep.
    pub(super) fn last_sweep_ns(&self) -> Option<u64> {
        self.has_swept().then_some(self.last_ns)
    }

    fn this_sweep(&self) -> NonZeroU32 {
        self.sweep.unwrap_or(NonZeroU32::MIN)
    }

    pub(super) fn has_swept(&self) -> bool {
        self.sweep.is_some()
    }

    /// Whether the rates of the last round still say something about `now_ns`, and whether that has changed
    /// since it was last asked.
    pub(super) fn freshness(&mut self, now_ns: u64) -> (bool, bool) {
        let fresh = self.has_swept() && !is_stale(self.last_ns, self.elapsed_ns, now_ns);
        (fresh, std::mem::replace(&mut self.were_fresh, fresh) != fresh)
    }
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

impl Engine {
    /// Folds a sweep in.
    pub(super) fn slots(&mut self, sample: &SlotsSample, now: Now) {
        if !self.traffic.goes_on {
            if self.traffic.has_swept() && sample.mono_ns <= self.traffic.last_ns {
                return;
            }
            let sweep = self.traffic.sweep.and_then(|last| last.checked_add(1));
            self.traffic.sweep = Some(sweep.unwrap_or(NonZeroU32::MIN));
            self.traffic.last_ns = sample.mono_ns;
        }
        self.traffic.goes_on = sample.more;
        self.no_slot.swept(sample);
        for (number, slot) in &sample.slots {
            self.slot_read(*number, slot, sample, now);
        }
        for (number, head) in &sample.idle {
            self.slot_read(*number, &head.slot(), sample, now);
        }
        if sample.more {
            return;
        }
        if !sample.partial {
            self.left_slots();
        }
        self.settle_rest();
        self.close_round(sample.mono_ns);
    }

    fn slot_read(&mut self, number: u32, slot: &QpSlot, sample: &SlotsSample, now: Now) {
        if slot.qp == 0 {
            return;
        }
        let never_hit = is_never_hit(slot);
        if slot.flags & slot_flag::DESTROYED != 0 && (never_hit || slot.flags & slot_flag::LATE != 0) {
            self.left_short(slot);
        }
        if never_hit {
            return;
        }
        let at = sample.at.unwrap_or(sample.mono_ns.into());
        self.slot(number, slot, at, now);
        let over = sample.partial && slot.flags & slot_flag::DESTROYED != 0;
        if let Some(slot_use) = over.then(|| self.traffic.in_use.remove(&number)).flatten() {
            self.qps.left_slot(slot_use.qp);
        }
    }

    fn slot(&mut self, number: u32, slot: &QpSlot, at: ReadAt, now: Now) {
        let sweep = self.traffic.this_sweep();
        let known = self
            .traffic
            .in_use
            .get_mut(&number)
            .filter(|slot_use| slot_use.born_ns == slot.born_ns)
            .map(|slot_use| {
                slot_use.sweep = sweep;
                slot_use.qp
            });
        let Some(uid) = known.or_else(|| self.assign_slot(number, slot)) else {
            return;
        };
        // A QP that had its slot in the last round but was not seen then: when it counted is not known.
        let round_ns = self.traffic.round_ns;
        let blurred = known.is_none() && round_ns.is_none_or(|round_ns| slot.since_ns < round_ns);
        let Some(qp) = self.qps.get_mut(uid) else { return };
        qp.late = slot.flags & slot_flag::LATE != 0;
        let flow = qp.flow.get_or_insert_default();
        let delta = flow.read(slot, at);
        flow.blurred |= blurred;
        if !flow.moving && (delta.is_some() || known.is_none()) {
            flow.moving = true;
            self.traffic.moving.push(uid);
        }
        if let Some(delta) = &delta {
            qp.touch();
            // The provider moves a QP to ERR on its own, without a modify: only a dump shows it.
            if delta.errors() > 0 && !qp.error_seen && qp.lives() {
                qp.error_seen = true;
                self.losses.want_repair(now.mono_ns);
            }
        }
        let of = (qp.process(), qp.key.device);
        if slot.flags & slot_flag::DESTROYED != 0 {
            self.qps.end(uid, self.traffic.last_ns, &mut self.processes);
        }
        if delta.is_some() || known.is_none() {
            // The owner of a newly seen QP gets even a zero: from now on it is counted.
            let delta = delta.unwrap_or_default();
            credit(&mut self.processes, &mut self.devices, of, &delta, blurred);
        }
    }

    /// Gives a slot to another QP and returns that QP.
    fn assign_slot(&mut self, number: u32, slot: &QpSlot) -> Option<u64> {
        let uid = self.qp_of_slot(slot)?;
        let probed = slot.flags & slot_flag::provider::MASK == slot_flag::provider::USER;
        // Probes that the user asked for do not know what the kernel side counts already.
        if probed
            && self
                .qps
                .get(uid)
                .is_some_and(|qp| self.devices.is_counted(qp.key.device))
        {
            return None;
        }
        let slot_use = SlotUse {
            born_ns: slot.born_ns,
            qp: uid,
            sweep: self.traffic.this_sweep(),
        };
        if let Some(before) = self.traffic.in_use.insert(number, slot_use) {
            self.qps.left_slot(before.qp);
        }
        self.got_slot(uid);
        if let Some(qp) = self.qps.get_mut(uid) {
            qp.slot = Slot::Held;
            qp.probed = probed;
            qp.blind = false;
            if let Some(flow) = &mut qp.flow {
                flow.begin_slot();
            }
            qp.edit().since_attach |= slot.flags & slot_flag::SINCE_ATTACH != 0;
        }
        Some(uid)
    }

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
        let owner = Owner {
            pid: Some(slot.owner_pid),
            start_ns: slot.owner_start_ns,
            ..Owner::default()
        };
        let owner = self.processes.of(owner, slot.born_ns);
        self.qps.set_owner(uid, owner, &mut self.processes);
        if let Some(qp) = self.qps.get_mut(uid) {
            (qp.sure, qp.start_ns) = (true, slot.owner_start_ns);
        }
    }

    fn left_slots(&mut self) {
        let sweep = self.traffic.sweep;
        let qps = &mut self.qps;
        let mut held = NumberSet::default();
        self.traffic.in_use.retain(|_, slot_use| {
            if Some(slot_use.sweep) == sweep {
                held.insert(slot_use.qp);
            }
            Some(slot_use.sweep) == sweep
        });
        // Also slots that only a record has named.
        for uid in qps.in_slots() {
            if !held.contains(&uid) {
                qps.left_slot(uid);
            }
        }
    }

    /// Makes rates of what was counted since the last round, unless that is too short a time.
    fn close_round(&mut self, sweep_ns: u64) {
        let elapsed = self.traffic.round_ns.map(|round_ns| sweep_ns - round_ns);
        if elapsed.is_some_and(|elapsed| elapsed < self.config.min_interval_ns.max(1)) {
            return;
        }
        self.traffic.round_ns = Some(sweep_ns);
        self.traffic.elapsed_ns = elapsed.unwrap_or(0);
        let round = Round {
            from_ns: elapsed.map(|elapsed| sweep_ns - elapsed),
            to_ns: sweep_ns,
        };
        let (qps, processes, devices) = (&mut self.qps, &mut self.processes, &mut self.devices);
        self.traffic.moving.retain(|uid| {
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
        // At the start all QPs are on it for a moment.
        let moving = &mut self.traffic.moving;
        if moving.capacity() > 1024 && moving.len() < moving.capacity() / 4 {
            moving.shrink_to(moving.len() * 2);
        }
        let of_processes = processes.iter_mut().filter_map(|process| process.flow.as_mut());
        let of_devices = devices.iter_mut().filter_map(|device| device.flow.as_mut());
        for sum in of_processes.chain(of_devices) {
            sum.close_sum(elapsed.is_some());
        }
    }
}

/// A slot of probes on a program that never called what is probed. It may post in another way (UCX on mlx5,
/// libfabric on EFA), so nothing is known of its QP.
fn is_never_hit(slot: &QpSlot) -> bool {
    let by_probes = slot.flags & slot_flag::provider::MASK == slot_flag::provider::USER;
    by_probes && slot.tx_posted == 0 && slot.rx_posted == 0
}
