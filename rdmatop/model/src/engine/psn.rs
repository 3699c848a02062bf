//! What the movement of a QP's send PSN says of its packets.

use super::meter::Meter;
use crate::ib::QpState;

/// Packets estimated from the movement of the send PSN.
///
/// A PSN has 24 bits, so an interval in which it may have gone round says nothing. How far it can have gone
/// is what the port has sent and received in that time: a READ moves it by the packets of its answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Psn {
    /// When the last PSN was read or set.
    at_ns: u64,
    pub(super) meter: Option<Box<Meter>>,
    /// The last PSN, and whether the QP could send by then: before RTS the PSN is whatever the next modify
    /// makes of it.
    last: Option<(u32, bool)>,
}

/// A PSN has these 24 bits, and goes round.
pub(super) const MASK: u32 = 0xff_ffff;

/// Packets of a port, both ways, between two dumps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Passed {
    /// The beginning of the first dump.
    pub(super) since_ns: u64,
    /// The packets between the dumps.
    pub(super) packets: u64,
}

impl Psn {
    /// A modify set the PSN at which the QP starts: that is no movement.
    pub(super) fn set(&mut self, psn: u32, at_ns: u64) {
        (self.last, self.at_ns) = (Some((psn, true)), at_ns);
    }

    /// A reading, with the state that the QP had and what passed its port (`None`: that is not counted). Half
    /// the 24-bit circle or more is a step back (the QP went back to an older packet), not eight million
    /// packets forward.
    pub(super) fn read(&mut self, psn: u32, state: Option<QpState>, at_ns: u64, passed: Option<Passed>) {
        /// Of the two readings that are compared: the port's counters are read some time before the PSNs.
        const SLACK: u64 = 1 << 16;
        let since = std::mem::replace(&mut self.at_ns, at_ns);
        let ready = state.is_some_and(|state| matches!(state.0, 3 | 4));
        let last = self.last.replace((psn, ready));
        let passed = passed.filter(|passed| passed.since_ns <= since);
        let moved = last.filter(|(_, was_ready)| *was_ready && ready);
        let moved = moved.map(|(before, _)| psn.wrapping_sub(before) & MASK);
        let moved = moved.filter(|moved| {
            passed.is_some_and(|passed| {
                passed.packets < u64::from(MASK / 2)
                    && (*moved > MASK / 2 || u64::from(*moved) <= passed.packets.saturating_mul(2) + SLACK)
            })
        });
        let Some(moved) = moved else {
            if let Some(meter) = &mut self.meter {
                meter.skip(at_ns);
            }
            return;
        };
        if moved > MASK / 2 {
            return;
        }
        // A PSN that has never moved may be one that the provider does not update.
        if moved > 0 && self.meter.is_none() {
            self.meter = Some(Box::new(Meter::new(0, since)));
        }
        if let Some(meter) = &mut self.meter {
            meter.add(moved.into(), at_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::Source;

    const SECOND: u64 = 1_000_000_000;

    /// Readings of a QP that can send, a second apart, beside so many packets of its port in each.
    fn read(psn: &mut Psn, values: &[u32], packets: Option<u64>) {
        for value in values {
            let since_ns = psn.at_ns.max(SECOND);
            let passed = packets.map(|packets| Passed { since_ns: 0, packets });
            psn.read(*value, Some(QpState::RTS), since_ns + SECOND, passed);
        }
    }

    fn counted(psn: &Psn) -> (u64, Option<f64>, bool) {
        let counter = psn.meter.as_ref().unwrap().counter(Source::Est, psn.at_ns);
        (counter.total, counter.rate, counter.partial)
    }

    #[test]
    fn a_psn_that_passes_its_largest_value_is_counted_through_it() {
        let mut psn = Psn::default();
        read(&mut psn, &[0xff_fff0], Some(64));
        assert!(psn.meter.is_none());
        read(&mut psn, &[0x10], Some(64));
        assert_eq!(counted(&psn), (32, Some(32.0), false));
    }

    #[test]
    fn a_psn_that_stands_still_or_goes_back_says_nothing() {
        let mut psn = Psn::default();
        read(&mut psn, &[100, 100, 50], Some(64));
        assert!(psn.meter.is_none());
    }

    #[test]
    fn a_psn_that_can_have_gone_round_has_no_rate_and_bounds_the_total() {
        let mut psn = Psn::default();
        read(&mut psn, &[0, 1000], Some(5000));
        assert_eq!(counted(&psn), (1000, Some(1000.0), false));
        // Ten million packets passed the port, and this QP's PSN is 2000 further: or 2000 and once round.
        read(&mut psn, &[3000], Some(10_000_000));
        assert_eq!(counted(&psn), (1000, None, true));
        read(&mut psn, &[4000], Some(5000));
        assert_eq!(counted(&psn), (2000, Some(1000.0), true));
        let mut unknown = Psn::default();
        read(&mut unknown, &[0, 1000, 2000], None);
        assert!(unknown.meter.is_none(), "nobody knows how often it went round");
    }

    #[test]
    fn a_psn_that_a_modify_sets_unseen_is_no_traffic() {
        let mut psn = Psn::default();
        let passed = Some(Passed {
            since_ns: 0,
            packets: 7,
        });
        let read = |psn: &mut Psn, value, state, seconds: u64| {
            psn.read(value, Some(QpState(state)), seconds * SECOND, passed);
        };
        // To RTS with a first PSN of its own; then to RESET and to another one between two dumps.
        read(&mut psn, 0, 1, 1);
        read(&mut psn, 4_000_000, 3, 2);
        read(&mut psn, 8_000_000, 3, 3);
        assert!(psn.meter.is_none());
        read(&mut psn, 8_000_005, 3, 4);
        assert_eq!(counted(&psn), (5, Some(5.0), false));
    }
}
