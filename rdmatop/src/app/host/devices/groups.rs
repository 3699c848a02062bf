//! Counters that QPs of a device are bound to.
//!
//! The kernel asks the driver for the values of each, and the driver its firmware: once a second is enough.
//! Where no QP is bound the kernel asks nobody.

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

/// Time between two readings, ns: less than a second, because the rounds of a refresh of
/// one second may be a little less apart.
const EVERY: u64 = 900_000_000;
/// After an error the next reading is so much later, ns.
const REFUSED: u64 = 5_000_000_000;
/// What is known of the last reading.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bound {
    read_ns: Option<u64>,
    any: bool,
}

impl Bound {
    /// `last`: there is no later round to read what this one does not.
    fn is_due(self, last: bool, rests: bool, now_ns: u64) -> bool {
        let Some(read_ns) = self.read_ns else { return true };
        // Without a QP none can be bound.
        (self.any || !rests) && (last || now_ns.saturating_sub(read_ns) >= EVERY)
    }
}

/// Reads the counters that QPs of a device are bound to, if that is due. An error is ignored: kernels before
/// 5.3 and some drivers have no such counters.
pub(super) fn read<T: Transport>(
    nldev: &mut Nldev<T>,
    owners: &mut Owners,
    listed: &mut Listed,
    last: bool,
    now_ns: u64,
) -> Option<DeviceGroups> {
    if !listed.known.bound.is_due(last, listed.rests(), now_ns) {
        return None;
    }
    let device_index = listed.device().index;
    let had = listed.known.bound.any;
    listed.known.bound.read_ns = Some(now_ns);
    let (sets, span) = timed(|| nldev.counter_sets(device_index));
    let Ok(sets) = sets else {
        // A driver or kernel that refuses is not asked in each round.
        listed.known.bound.read_ns = Some(now_ns + REFUSED);
        return None;
    };
    // A list that changed while it was read may lack a counter that still exists.
    if sets.interrupted {
        return None;
    }
    listed.known.bound.any = !sets.items.is_empty();
    (had || listed.known.bound.any).then(|| DeviceGroups {
        device_index,
        at: span,
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
        counters: set.counters.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_counters_are_read_once_a_second_where_they_can_be() {
        const SECOND: u64 = 1_000_000_000;
        let at = |any| Bound {
            read_ns: Some(10 * SECOND),
            any,
        };
        let tenth = 10 * SECOND + SECOND / 10;
        assert!(Bound::default().is_due(false, true, 0), "the first look");
        for any in [false, true] {
            assert!(!at(any).is_due(false, false, tenth), "--delay 0.1");
            assert!(at(any).is_due(false, false, 11 * SECOND));
            assert!(at(any).is_due(true, false, tenth), "the last round");
        }
        assert!(!at(false).is_due(true, true, 99 * SECOND), "no QP");
        assert!(at(true).is_due(false, true, 11 * SECOND));
    }
}
