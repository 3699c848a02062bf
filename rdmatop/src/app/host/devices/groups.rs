//! Counters that QPs of a device are bound to.
//!
//! The kernel asks the driver for the values of each, and the driver its firmware: once a second is enough.
//! Where no QP is bound the kernel asks nobody, and rdmatop looks every five seconds, because anybody may
//! bind some.

use super::{known::Listed, owners::Owners};
use rdmatop_model::input::{DeviceGroups, GroupReading};
use rdmatop_sources::{
    clock::timed,
    netlink::{
        client::Nldev,
        record::{CounterSet, Mode, Owner},
        transport::Transport,
    },
};

/// Time between two readings where QPs are bound, ns: less than a second, because the rounds of a refresh of
/// one second may be a little less apart.
const EVERY: u64 = 900_000_000;
/// Time between two looks where none is bound, ns.
const LOOK_EVERY: u64 = 5_000_000_000;

/// What is known of the last reading.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bound {
    read_ns: Option<u64>,
    any: bool,
}

/// How often to read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// QPs are being bound.
    pub(super) always: bool,
    /// This is the last round: there is no later one to read what this one does not.
    pub(super) last: bool,
}

impl Bound {
    fn is_due(self, pace: Pace, rests: bool, now_ns: u64) -> bool {
        let Some(read_ns) = self.read_ns else { return true };
        let passed = now_ns.saturating_sub(read_ns);
        if self.any {
            return pace.last || passed >= EVERY;
        }
        // Without a QP none can be bound.
        !rests && (pace.last || passed >= if pace.always { EVERY } else { LOOK_EVERY })
    }
}

/// Reads the counters that QPs of a device are bound to, if that is due. An error is ignored: kernels before
/// 5.3 and some drivers have no such counters.
pub(super) fn read<T: Transport>(
    nldev: &mut Nldev<T>,
    owners: &mut Owners,
    listed: &mut Listed,
    pace: Pace,
    now_ns: u64,
) -> Option<DeviceGroups> {
    if !listed.known.bound.is_due(pace, listed.rests(), now_ns) {
        return None;
    }
    let device_index = listed.device().index;
    let had = listed.known.bound.any;
    listed.known.bound.read_ns = Some(now_ns);
    let (sets, span) = timed(|| nldev.counter_sets(device_index));
    let sets = sets.ok()?;
    // A list that changed while it was read may lack a counter that still exists.
    if sets.interrupted {
        return None;
    }
    listed.known.bound.any = !sets.items.is_empty();
    (had || listed.known.bound.any).then(|| DeviceGroups {
        device_index,
        at: span.into(),
        groups: sets.items.iter().map(|set| reading(owners, set)).collect(),
    })
}

fn reading(owners: &mut Owners, set: &CounterSet) -> GroupReading {
    GroupReading {
        id: set.id,
        port: set.port,
        mode: match set.mode {
            Some(Mode::Auto) => format!("auto {}", set.mask().words()),
            Some(Mode::Manual) => "manual".to_owned(),
            Some(Mode::None) | None => "none".to_owned(),
            Some(Mode::Other(number)) => format!("?{number}"),
        },
        pid: set
            .owner
            .as_ref()
            .and_then(Owner::pid)
            .map(|tid| owners.process(tid)),
        qp_type: set.qp_type,
        qps: set.qps.clone(),
        counters: set
            .counters
            .iter()
            .map(|counter| (counter.name.to_string(), counter.value))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_counters_are_read_once_a_second_and_looked_for_now_and_then() {
        const SECOND: u64 = 1_000_000_000;
        let pace = |always, last| Pace { always, last };
        let at = |any| Bound {
            read_ns: Some(10 * SECOND),
            any,
        };
        let tenth = 10 * SECOND + SECOND / 10;
        assert!(
            Bound::default().is_due(pace(false, false), true, 0),
            "the first look"
        );
        assert!(!at(true).is_due(pace(true, false), false, tenth), "--delay 0.1");
        assert!(at(true).is_due(pace(false, false), false, 11 * SECOND));
        assert!(at(true).is_due(pace(false, true), false, tenth), "the last round");
        assert!(!at(false).is_due(pace(false, false), false, 11 * SECOND));
        assert!(at(false).is_due(pace(true, false), false, 11 * SECOND));
        assert!(at(false).is_due(pace(false, false), false, 15 * SECOND));
        assert!(!at(false).is_due(pace(true, true), true, 99 * SECOND), "no QP");
    }
}
