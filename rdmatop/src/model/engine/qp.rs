//! One QP: what it is, and the steps of its life.

use std::sync::{Arc, LazyLock};

use super::{history::Series, meter::Meter, tally::Flow};
use crate::model::{
    ib::{Gid, QpState, QpType},
    input::QpReading,
    snapshot::{QpRow, Step},
    value::Source,
};

/// How far apart two stamps of one moment may be: a slot and a record are stamped one after the other, and
/// records of two CPUs may change places.
pub(super) const INVERSION_NS: u64 = 10_000_000;
/// Steps kept of a life. A QP may be modified without end.
pub(super) const TIMELINE: usize = 32;

/// Where a QP's number is unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    /// Generation of the device, 0 when the kernel side could not tell.
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

/// Who created an object.
#[derive(Clone, Debug, Default)]
pub(super) struct Owner {
    pub(super) process: Option<u64>,
    pub(super) pid: Option<u32>,
    pub(super) comm: Option<Arc<str>>,
    pub(super) kernel: bool,
}

impl Owner {
    pub(super) fn is_known(&self) -> bool {
        self.kernel || self.pid.is_some()
    }
}

/// Packets estimated from the movement of the send PSN.
#[derive(Clone, Debug, Default)]
pub(super) struct Psn {
    last: Option<(u32, u64)>,
    pub(super) meter: Option<Box<Meter>>,
}

impl Psn {
    /// The QP was told where to start: no movement.
    pub(super) fn set(&mut self, psn: u32, at_ns: u64) {
        self.last = Some((psn, at_ns));
    }

    /// A reading. Half the 24-bit circle or more is a step back (the QP went back to an older packet), not
    /// eight million packets forward.
    pub(super) fn read(&mut self, psn: u32, at_ns: u64, min_interval_ns: u64) {
        const MASK: u32 = 0xff_ffff;
        let Some((before, since)) = self.last.replace((psn, at_ns)) else {
            return;
        };
        let moved = psn.wrapping_sub(before) & MASK;
        if moved > MASK / 2 {
            return;
        }
        // A PSN that has never moved may be one that the provider does not update.
        if moved > 0 && self.meter.is_none() {
            self.meter = Some(Box::new(Meter::new(0, since)));
        }
        if let Some(meter) = &mut self.meter {
            meter.add(moved.into(), at_ns, min_interval_ns);
        }
    }
}

/// The timelines with which a dump lets QPs begin: one for each state, which all of them share.
#[derive(Debug, Default)]
pub(super) struct Beginnings(Vec<Arc<Vec<Step>>>);

impl Beginnings {
    fn at(&mut self, state: QpState, began_ns: u64) -> Arc<Vec<Step>> {
        self.0
            .retain(|timeline| timeline.iter().all(|step| step.mono_ns == began_ns));
        if let Some(known) = self
            .0
            .iter()
            .find(|known| known.iter().all(|step| step.state == state))
        {
            return Arc::clone(known);
        }
        let timeline = Arc::new(vec![Step {
            mono_ns: began_ns,
            state,
            duration_ns: None,
        }]);
        self.0.push(Arc::clone(&timeline));
        timeline
    }
}

/// The timeline of a QP of which nothing is known yet.
pub(super) fn no_steps() -> Arc<Vec<Step>> {
    static NONE: LazyLock<Arc<Vec<Step>>> = LazyLock::new(Arc::default);
    Arc::clone(&NONE)
}

/// A QP.
#[derive(Debug)]
#[expect(clippy::struct_field_names, reason = "qp_type is the kernel's name for it")]
pub(super) struct Qp {
    pub(super) uid: u64,
    pub(super) key: Key,
    pub(super) object: u64,
    /// Name of its device when that went away.
    pub(super) device_name: Option<Arc<str>>,
    pub(super) qp_type: Option<QpType>,
    pub(super) port: Option<u32>,
    pub(super) state: Option<(QpState, Source)>,
    pub(super) state_ns: u64,
    pub(super) owner: Owner,
    pub(super) orphan: bool,
    pub(super) born_ns: Option<u64>,
    /// Earliest time at which it is known to have been there.
    pub(super) first_ns: u64,
    /// When the engine learnt of it.
    pub(super) learnt_ns: u64,
    /// Its create record was seen.
    pub(super) created: bool,
    /// Time of the last record about it.
    pub(super) event_ns: u64,
    pub(super) ended_ns: Option<u64>,
    pub(super) since_attach: bool,
    pub(super) remote_qpn: Option<u32>,
    pub(super) remote_gid: Option<Gid>,
    pub(super) path_mtu: Option<u32>,
    pub(super) sq_psn: Option<u32>,
    pub(super) rq_psn: Option<u32>,
    pub(super) psn: Psn,
    pub(super) timeline: Arc<Vec<Step>>,
    pub(super) flow: Option<Box<Flow>>,
    /// The slot is still in use: the QP cannot be forgotten before its last counts are in.
    pub(super) in_slot: bool,
    /// Its row's time is over.
    pub(super) hidden: bool,
    /// An error was counted and the state was asked for.
    pub(super) error_seen: bool,
    /// Number of the last dump that it was in.
    pub(super) dump: u32,
    pub(super) series: Series,
    /// The last row, while nothing has changed.
    pub(super) row: Option<Arc<QpRow>>,
}

impl Qp {
    /// Something in the row changed.
    pub(super) fn touch(&mut self) {
        self.row = None;
    }

    /// The state at `ts_ns`; an older one than known only fills the timeline.
    pub(super) fn enter(&mut self, state: QpState, ts_ns: u64, source: Source, duration_ns: Option<u64>) {
        if ts_ns >= self.state_ns || self.state.is_none() {
            self.state = Some((state, source));
            self.state_ns = ts_ns;
        }
        let timeline = Arc::make_mut(&mut self.timeline);
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
            // Birth and the present say most.
            timeline.remove(1);
        }
        self.touch();
    }

    /// Born after `ts_ns`: what is told of that time is about another.
    pub(super) fn is_younger_than(&self, ts_ns: u64) -> bool {
        self.born_ns
            .is_some_and(|born_ns| ts_ns.saturating_add(INVERSION_NS) < born_ns)
    }

    /// Whether a reading tells nothing new.
    pub(super) fn is_as(&self, reading: &QpReading) -> bool {
        fn same<T: PartialEq + Copy>(told: Option<T>, known: Option<T>) -> bool {
            told.is_none() || told == known
        }
        let owner = match (&reading.kern_name, reading.pid) {
            (Some(_), _) => false,
            (None, Some(1..)) => self.owner.process.is_some() && !self.orphan,
            (None, _) => self.owner.kernel || self.orphan,
        };
        owner
            && same(reading.state, self.state.map(|(state, _)| state))
            && same(reading.qp_type, self.qp_type)
            && same(reading.port, self.port)
            && same(reading.remote_qpn, self.remote_qpn)
            && same(reading.sq_psn, self.sq_psn)
            && same(reading.rq_psn, self.rq_psn)
    }

    /// Nothing about it is newer than a dump that began at `began_ns`.
    pub(super) fn is_older_than(&self, began_ns: u64) -> bool {
        self.first_ns <= began_ns
            && self.event_ns <= began_ns
            && self.born_ns.is_none_or(|born| born <= began_ns)
    }

    /// A state from a dump that began at `began_ns`: wins over what is older.
    pub(super) fn observe(&mut self, state: QpState, began_ns: u64, beginnings: &mut Beginnings) {
        if self.state.is_none_or(|_| began_ns >= self.state_ns)
            && self.state.map(|(known, _)| known) != Some(state)
        {
            if self.timeline.is_empty() {
                self.timeline = beginnings.at(state, began_ns);
                (self.state, self.state_ns) = (Some((state, Source::Netlink)), began_ns);
                return self.touch();
            }
            self.enter(state, began_ns, Source::Netlink, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_psn_that_wraps_is_counted_through_the_wrap() {
        let mut psn = Psn::default();
        psn.read(0xff_fff0, SECOND, 1);
        assert!(psn.meter.is_none());
        psn.read(0x10, 2 * SECOND, 1);
        let counter = psn.meter.unwrap().counter(Source::Est, 2 * SECOND);
        assert_eq!((counter.total, counter.rate), (32, Some(32.0)));
    }

    #[test]
    fn a_psn_that_stands_still_or_goes_back_says_nothing() {
        let mut psn = Psn::default();
        psn.read(100, SECOND, 1);
        psn.read(100, 2 * SECOND, 1);
        psn.read(50, 3 * SECOND, 1);
        assert!(psn.meter.is_none());
    }

    #[test]
    fn what_a_dump_found_in_one_state_shares_its_beginning() {
        let mut beginnings = Beginnings::default();
        let first = beginnings.at(QpState(3), SECOND);
        assert!(Arc::ptr_eq(&first, &beginnings.at(QpState(3), SECOND)));
        assert_eq!(beginnings.at(QpState(1), SECOND)[0].state, QpState(1));
        assert!(Arc::ptr_eq(&first, &beginnings.at(QpState(3), SECOND)));
        assert_eq!(beginnings.at(QpState(3), 2 * SECOND)[0].mono_ns, 2 * SECOND);
        assert_eq!(first[0].mono_ns, SECOND);
    }

    #[test]
    fn two_ports_have_two_general_service_qps() {
        assert_ne!(Key::new(1, 1, Some(1)), Key::new(1, 1, Some(2)));
        assert_eq!(Key::new(1, 17, Some(1)), Key::new(1, 17, None));
    }
}
