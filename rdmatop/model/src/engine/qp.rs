//! One QP: what it is, and the steps of its life.

use std::sync::{Arc, LazyLock};

use super::{
    flow::Flow,
    history::{Series, no_points},
    psn::Psn,
    qps::QpRef,
};
use crate::{
    ib::QpState,
    input::QpReading,
    snapshot::{QpRow, Step, Traffic},
    value::Source,
};

/// Steps kept of a life. A QP may be modified without end.
pub(super) const TIMELINE: usize = 32;

/// Where a QP's number is unique.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Key {
    /// Generation of the device, 0 when the kernel side does not know it.
    pub(super) device: u64,
    pub(super) qpn: u32,
    /// QP 0 and QP 1 exist once a port.
    pub(super) port: u32,
}

impl Key {
    pub(super) fn new(device: u64, qpn: u32, port: Option<u32>) -> Self {
        Self {
            device,
            qpn,
            port: if qpn <= 1 { port.unwrap_or(0) } else { 0 },
        }
    }
}

/// The process or kernel consumer that created an object.
#[derive(Clone, Debug, Default)]
pub(super) struct Owner {
    pub(super) process: Option<u64>,
    pub(super) pid: Option<u32>,
    pub(super) comm: Option<Arc<str>>,
    pub(super) kernel: bool,
    /// When the process was started, `start_boottime` in ns, as the kernel side reports it; 0 when not known.
    pub(super) start_ns: u64,
}

impl Owner {
    /// A process that was started at `start_ns`; a PID of 0 is none.
    pub(super) fn user(pid: u32, start_ns: u64) -> Self {
        Self {
            pid: Some(pid).filter(|pid| *pid != 0),
            start_ns,
            ..Self::default()
        }
    }

    /// A kernel consumer.
    pub(super) fn kernel(comm: Arc<str>) -> Self {
        Self {
            comm: Some(comm),
            kernel: true,
            ..Self::default()
        }
    }

    pub(super) fn is_known(&self) -> bool {
        self.kernel || self.pid.is_some()
    }
}

/// A placeholder row, used while a QP's row is taken out to be completed.
fn nothing() -> Arc<QpRow> {
    static NOTHING: LazyLock<Arc<QpRow>> = LazyLock::new(|| {
        Arc::new(QpRow {
            device: "?".into(),
            traffic: unknown_traffic(),
            history: no_points(),
            ..QpRow::default()
        })
    });
    Arc::clone(&NOTHING)
}

/// What the rows of all QPs share whose traffic cannot be observed.
pub(super) fn unknown_traffic() -> Arc<Traffic> {
    static UNKNOWN: LazyLock<Arc<Traffic>> = LazyLock::new(Arc::default);
    Arc::clone(&UNKNOWN)
}

/// What happened to a QP's slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Slot {
    /// No slot of the QP is known.
    #[default]
    Unknown,
    /// In use, or not yet read for the last time.
    Held,
    /// Read for the last time.
    Left,
}

#[derive(Clone, Copy, Debug)]
struct End {
    at_ns: u64,
    /// The QP had ended by this time. A dump without the QP shows only that it had ended when the dump ended.
    gone_ns: u64,
}

/// A QP. There may be ten thousand, so what few of them have is stored elsewhere.
#[derive(Debug, Default)]
pub(super) struct Qp {
    /// What is known of it, as views see it: the only copy, shared with the snapshots until it changes. The
    /// names of its device and owner, its traffic and whether it has ended are as of the last
    /// [`Qp::current_row`].
    row: Arc<QpRow>,
    /// The row differs from what the next snapshot has to show.
    stale: bool,
    pub(super) key: Key,
    /// Its address, 0 when not known. A QP keeps it until it is destroyed.
    pub(super) object: u64,
    /// Its births with the addresses, one for each set of programs that saw it.
    pub(super) births: Vec<(u64, u64)>,
    /// The QP that had its number before; 0: none.
    pub(super) before: u64,
    /// The owner's name at creation, as a record had it.
    pub(super) comm: Option<Arc<str>>,
    /// The kernel side reported the owner. A dump knows only the PID, which may be another process's by now.
    pub(super) sure: bool,
    /// The owner's start time, as the kernel side reported it; 0: not known.
    pub(super) start_ns: u64,
    pub(super) state_ns: u64,
    /// Birth, or the earliest time at which it is known to have been there.
    pub(super) first_ns: u64,
    /// The time of the first sign of it: the QP existed by then. For a dump, the end of the dump.
    pub(super) seen_ns: u64,
    /// `first_ns` is its birth.
    pub(super) created: bool,
    /// Time of the last record about it.
    pub(super) event_ns: u64,
    /// `None` while it lives. Most of ten thousand do.
    end: Option<Box<End>>,
    pub(super) psn: Psn,
    pub(super) flow: Option<Flow>,
    /// While it is held the QP cannot be forgotten: its last counts are not in.
    pub(super) slot: Slot,
    /// The time for which its row is kept has passed.
    pub(super) hidden: bool,
    /// Its flow comes from probes on its program.
    pub(super) probed: bool,
    /// It did, and the probes are gone: what it does is not known.
    pub(super) blind: bool,
    /// It posted before its functions were probed, or may have.
    pub(super) late: bool,
    /// An error was counted and a dump was asked for the state.
    pub(super) error_seen: bool,
    /// Number of the last dump that it was in.
    pub(super) dump: u32,
    pub(super) series: Series,
}

impl Qp {
    /// A QP of which only its number is known, and that it existed at `first_ns`.
    pub(super) fn new(uid: u64, key: Key, first_ns: u64, seen_ns: u64) -> Self {
        Self {
            // What it points at is shared.
            row: Arc::new(QpRow {
                uid,
                qpn: key.qpn,
                ..QpRow::clone(&nothing())
            }),
            stale: true,
            key,
            first_ns,
            seen_ns,
            ..Self::default()
        }
    }

    /// What is known of it.
    pub(super) fn row(&self) -> &QpRow {
        &self.row
    }

    /// The row, to be changed. Snapshots keep what they were given.
    pub(super) fn edit(&mut self) -> &mut QpRow {
        self.stale = true;
        Arc::make_mut(&mut self.row)
    }

    /// Something changed that the row shows but does not hold.
    pub(super) fn touch(&mut self) {
        self.stale = true;
    }

    pub(super) fn uid(&self) -> u64 {
        self.row.uid
    }

    /// Whether it has not ended.
    pub(super) fn lives(&self) -> bool {
        self.end.is_none()
    }

    /// The time at which the QP ended.
    pub(super) fn ended_ns(&self) -> Option<u64> {
        self.end.as_ref().map(|end| end.at_ns)
    }

    /// It ended at this time, and by `gone_ns` for certain.
    pub(super) fn end(&mut self, at_ns: u64, gone_ns: u64) {
        self.end = Some(Box::new(End { at_ns, gone_ns }));
        self.touch();
    }

    /// The uid of the process that owns the QP.
    pub(super) fn process(&self) -> Option<u64> {
        self.row.process_uid
    }

    pub(super) fn owner(&self) -> Owner {
        Owner {
            process: self.row.process_uid,
            pid: self.row.pid,
            comm: self.comm.clone(),
            kernel: self.row.kernel,
            start_ns: self.start_ns,
        }
    }

    pub(super) fn set_owner(&mut self, owner: Owner) {
        let row = self.edit();
        (row.process_uid, row.pid, row.kernel) = (owner.process, owner.pid, owner.kernel);
        self.comm = owner.comm;
    }

    /// The row for a snapshot; if anything has changed, `complete` first fills in what comes from other
    /// tables.
    pub(super) fn current_row(&mut self, complete: impl FnOnce(&Self, &mut QpRow)) -> Arc<QpRow> {
        // Most of ten thousand have not changed.
        if self.stale {
            self.stale = false;
            let mut row = std::mem::replace(&mut self.row, nothing());
            complete(self, Arc::make_mut(&mut row));
            self.row = row;
        }
        Arc::clone(&self.row)
    }

    /// A record has the state at `ts_ns`. Returns the row, to be changed. `timelines`: see `EngineConfig`.
    pub(super) fn step(
        &mut self,
        state: QpState,
        ts_ns: u64,
        duration_ns: Option<u64>,
        timelines: bool,
    ) -> &mut QpRow {
        if timelines {
            self.enter(state, ts_ns, Source::Ebpf, duration_ns)
        } else {
            self.turn(state, ts_ns, Source::Ebpf)
        }
    }

    /// As [`Qp::enter`], without a step in the timeline.
    fn turn(&mut self, state: QpState, ts_ns: u64, source: Source) -> &mut QpRow {
        let is_newest = ts_ns >= self.state_ns || self.row.state.is_none();
        if is_newest {
            self.state_ns = ts_ns;
        }
        let row = self.edit();
        if is_newest {
            (row.state, row.state_source) = (Some(state), Some(source));
        }
        row
    }

    /// The state at `ts_ns`; one that is older than the known state only fills the timeline. Returns the row,
    /// to be changed.
    fn enter(&mut self, state: QpState, ts_ns: u64, source: Source, duration_ns: Option<u64>) -> &mut QpRow {
        let row = self.turn(state, ts_ns, source);
        let timeline = Arc::make_mut(&mut row.timeline);
        let at = timeline.partition_point(|step| step.mono_ns <= ts_ns);
        timeline.insert(
            at,
            Step {
                mono_ns: ts_ns,
                state,
                duration_ns,
            },
        );
        if timeline.len() > TIMELINE {
            // Birth and the present are the most informative.
            timeline.remove(1);
        }
        row
    }

    /// Whether a first sign of a QP with this number can be of this one: see `qps.rs`.
    pub(super) fn may_be(&self, seen: &QpRef) -> bool {
        let other_object = self.object != 0 && seen.object != 0 && self.object != seen.object;
        if other_object || self.is_anothers(seen) {
            return false;
        }
        let at_ns = seen.at_ns();
        let was_there = if seen.created {
            // What was seen by then was seen of an earlier QP.
            !self.created && at_ns <= self.seen_ns
        } else {
            !self.created || self.first_ns <= at_ns
        };
        // A QP that a dump misses ended between the dump's beginning and its end. In that time the number may
        // have been given to another QP.
        let is_itself = self.object != 0 && self.object == seen.object;
        let had_ended_by = |end: &End| if is_itself { end.gone_ns } else { end.at_ns };
        was_there && self.end.as_ref().is_none_or(|end| at_ns <= had_ended_by(end))
    }

    /// No dump has named another owner. A dump that did may have named a thread that had ended.
    pub(super) fn is_owned_as(&self, seen: &QpRef) -> bool {
        let pids = self.row.pid.zip(seen.owner);
        pids.is_none_or(|(known, (reported, _))| known == reported)
    }

    /// Another process is known to own it.
    fn is_anothers(&self, seen: &QpRef) -> bool {
        let Some((pid, other_ns)) = seen.owner.filter(|_| self.sure) else {
            return false;
        };
        let start_ns = self.start_ns;
        self.row.pid != Some(pid) || start_ns != 0 && other_ns != 0 && start_ns != other_ns
    }

    /// Whether a reading has nothing new.
    pub(super) fn is_as(&self, reading: &QpReading) -> bool {
        fn same<T: PartialEq + Copy>(reported: Option<T>, known: Option<T>) -> bool {
            reported.is_none() || reported == known
        }
        let owner = match (&reading.kern_name, reading.pid) {
            (Some(_), _) => false,
            (None, Some(pid @ 1..)) => self.row.pid == Some(pid) && !self.row.orphan,
            (None, _) => self.row.kernel || self.row.orphan,
        };
        owner
            && same(reading.state, self.row.state)
            && same(reading.qp_type, self.row.qp_type)
            && same(reading.port, self.row.port)
            && same(reading.remote_qpn, self.row.remote_qpn)
            && same(reading.sq_psn, self.row.sq_psn)
            && same(reading.rq_psn, self.row.rq_psn)
    }

    /// The kernel side saw it for the first time after `ts_ns`: what a dump saw before may have been another
    /// QP.
    pub(super) fn is_born_after(&self, ts_ns: u64) -> bool {
        self.births.iter().any(|(_, born_ns)| *born_ns > ts_ns)
    }

    /// Nothing about it is newer than a dump that began at `began_ns`.
    pub(super) fn is_older_than(&self, began_ns: u64) -> bool {
        self.first_ns <= began_ns
            && self.event_ns <= began_ns
            && !self.is_born_after(began_ns)
            && self.row.born_mono_ns.is_none_or(|born| born <= began_ns)
    }

    /// A state from a dump that began at `began_ns`: wins over what is older.
    ///
    /// QPs that are first seen in one state by one dump share their `timeline`: a list for each of ten
    /// thousand would take 1.8 MB, which goal G10 does not have.
    pub(super) fn observe(&mut self, state: QpState, began_ns: u64, timeline: &mut Arc<Vec<Step>>) {
        if self.row.state.is_some_and(|_| began_ns < self.state_ns) || self.row.state == Some(state) {
            return;
        }
        if !self.row.timeline.is_empty() {
            self.enter(state, began_ns, Source::Netlink, None);
            return;
        }
        let first = Step {
            mono_ns: began_ns,
            state,
            duration_ns: None,
        };
        if **timeline != [first] {
            *timeline = Arc::new(vec![first]);
        }
        self.turn(state, began_ns, Source::Netlink).timeline = Arc::clone(timeline);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_dump_finds_in_one_state_shares_its_timeline() {
        let found = |qpn, state, began_ns, timeline: &mut Arc<Vec<Step>>| {
            let mut qp = Qp::new(1, Key::new(1, qpn, None), began_ns, began_ns);
            qp.observe(QpState(state), began_ns, timeline);
            Arc::clone(&qp.row().timeline)
        };
        let mut shared = Arc::default();
        let first = found(5, 3, 7, &mut shared);
        assert!(Arc::ptr_eq(&first, &found(6, 3, 7, &mut shared)));
        assert_eq!(found(7, 1, 7, &mut shared)[0].state, QpState(1));
        assert_eq!(found(8, 1, 8, &mut shared)[0].mono_ns, 8);
        assert_eq!((first[0].mono_ns, first[0].state), (7, QpState(3)));
    }

    #[test]
    fn two_ports_have_two_general_service_qps() {
        assert_ne!(Key::new(1, 1, Some(1)), Key::new(1, 1, Some(2)));
        assert_eq!(Key::new(1, 17, Some(1)), Key::new(1, 17, None));
    }
}
