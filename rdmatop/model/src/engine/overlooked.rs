//! What the kernel skipped on kernels that do not count skips: SoftRoCE's own counters against what our
//! programs saw.
//!
//! Before Linux 6.4 rxe works in softirqs, and in a softirq that interrupts one of our programs the kernel
//! skips all the others. The driver counts each packet that it has sent (`sent_pkts`) and each receive that
//! it completes (`rdma_recvs`); our programs count the entries of the functions that do this. The two counts
//! cannot be read at the same moment, so their difference is known within bounds: the driver's count minus
//! the programs' count from before is an upper bound, minus their count from after a lower bound. When a
//! lower bound exceeds the least upper bound from earlier, the kernel has skipped at least as many runs as it
//! exceeds it by. While nothing moves both bounds are equal and the result is exact. It does not show which
//! QP lacks the count.

use std::collections::{BTreeMap, VecDeque};

use crate::input::{CountersSample, DevicesSample, RawReading, RawSource, ReadAt, SeenByPrograms};

/// The driver's counters: packets sent, receives completed.
const NAMES: [&str; 2] = ["sent_pkts", "rdma_recvs"];
/// Counts of the programs that are remembered, to find the last one before a reading of the driver's
/// counters.
const REMEMBERED: usize = 16;
/// At most so many packets or receives are counted by one side and not yet by the other while traffic flows:
/// one for each CPU.
const IN_FLIGHT: i128 = 256;

/// Counters of one port, by [`NAMES`].
#[derive(Clone, Copy, Debug)]
struct Driver {
    first: [u64; 2],
    now: [u64; 2],
    at: ReadAt,
}

/// The comparison.
#[derive(Debug, Default)]
pub(super) struct Overlooked {
    ports: BTreeMap<(u32, u32), Driver>,
    seen: VecDeque<SeenByPrograms>,
    /// Least upper bounds of what the driver has counted and the programs have not.
    most: [Option<i128>; 2],
    /// The ports have been read since the last comparison.
    fresh: bool,
}

fn value(counters: &[RawReading], name: &str) -> Option<(u64, ReadAt)> {
    // The kernel keeps what sysfs shows for 10 ms, so such a value may be from before it was read.
    let mut own = counters
        .iter()
        .filter(|counter| counter.source == RawSource::Netlink && &*counter.name == name);
    own.next().and_then(|counter| Some((counter.value?, counter.at)))
}

impl Overlooked {
    pub(super) fn devices(&mut self, sample: &DevicesSample) {
        if sample.unread {
            return;
        }
        let held = |index| {
            let mut devices = sample.devices.iter();
            devices.any(|device| device.index == index)
        };
        self.ports.retain(|(device, _), _| held(*device));
        for device in sample.devices.iter().filter(|device| !device.held) {
            for port in &device.ports {
                self.port(device.index, port.number, &port.counters);
            }
        }
    }

    /// Counters of some ports were read.
    pub(super) fn counters(&mut self, sample: &CountersSample) {
        for port in &sample.ports {
            self.port(port.device_index, port.number, &port.counters);
        }
    }

    fn port(&mut self, device: u32, number: u32, counters: &[RawReading]) {
        let [Some((packets, at)), Some((receives, _))] = NAMES.map(|name| value(counters, name)) else {
            return;
        };
        let now = [packets, receives];
        let port = self
            .ports
            .entry((device, number))
            .or_insert(Driver { first: now, now, at });
        if now.iter().zip(port.now).any(|(now, last)| *now < last) {
            // Counters of rxe never fall: this is another device.
            port.first = now;
        }
        (port.now, port.at) = (now, at);
        self.fresh = true;
    }

    /// The programs have seen so much. Returns how many more packets and receives they have not seen.
    pub(super) fn seen(&mut self, seen: SeenByPrograms) -> u64 {
        if self.seen.back().is_some_and(|last| last.session != seen.session) {
            self.seen.clear();
            self.most = [None; 2];
        }
        let found = self.compare(&seen);
        if self.seen.len() == REMEMBERED {
            self.seen.pop_front();
        }
        self.seen.push_back(seen);
        found
    }

    fn compare(&mut self, after: &SeenByPrograms) -> u64 {
        let begun = |port: &Driver| port.at.mono_ns.saturating_sub(port.at.within_ns);
        let ended = |port: &Driver| port.at.mono_ns.saturating_add(port.at.within_ns);
        let (Some(begun_ns), Some(ended_ns)) = (
            self.ports.values().map(begun).min(),
            self.ports.values().map(ended).max(),
        ) else {
            return 0;
        };
        if !self.fresh || ended_ns > after.mono_ns {
            return 0;
        }
        self.fresh = false;
        let before = self.seen.iter().rev().find(|seen| seen.mono_ns <= begun_ns);
        let kinds = |seen: &SeenByPrograms| [seen.packets, seen.receives];
        let mut found = 0;
        for kind in 0..NAMES.len() {
            let Some(after) = kinds(after)[kind] else {
                continue;
            };
            let before = before.and_then(|before| kinds(before)[kind]);
            let still = before == Some(after);
            let doubt = if still { 0 } else { IN_FLIGHT };
            let driver: i128 = self
                .ports
                .values()
                .map(|port| i128::from(port.now[kind]) - i128::from(port.first[kind]))
                .sum();
            let least = driver - i128::from(after) - doubt;
            if let Some(most) = &mut self.most[kind]
                && least > *most
            {
                found += u64::try_from(least - *most).unwrap_or(u64::MAX);
                *most = least;
            }
            if let Some(before) = before {
                let most = driver - i128::from(before) + doubt;
                self.most[kind] = Some(self.most[kind].map_or(most, |known| known.min(most)));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::PortCounters;

    const SECOND: u64 = 1_000_000_000;

    /// A driver and programs that see what it does.
    #[derive(Default)]
    struct Host {
        overlooked: Overlooked,
        now_ns: u64,
        session: u64,
        driver: [u64; 2],
        programs: [u64; 2],
    }

    impl Host {
        fn see(&mut self) -> u64 {
            self.now_ns += 1000;
            self.overlooked.seen(SeenByPrograms {
                session: self.session,
                mono_ns: self.now_ns,
                packets: Some(self.programs[0]),
                receives: Some(self.programs[1]),
            })
        }

        fn read(&mut self) {
            self.now_ns += 1000;
            let at = ReadAt::between(self.now_ns, self.now_ns + 500);
            self.now_ns += 500;
            let counters = NAMES
                .iter()
                .zip(self.driver)
                .map(|(name, value)| RawReading {
                    name: (*name).into(),
                    value: Some(value),
                    source: RawSource::Netlink,
                    at,
                })
                .collect();
            self.overlooked.counters(&CountersSample {
                ports: vec![PortCounters {
                    device_index: 0,
                    number: 1,
                    counters,
                }],
                ..CountersSample::default()
            });
        }

        /// A round in which nothing moves.
        fn round(&mut self) -> u64 {
            let found = self.see();
            self.read();
            let found = found + self.see();
            self.now_ns += SECOND;
            found
        }

        fn traffic(&mut self, packets: u64, receives: u64) {
            for side in [&mut self.driver, &mut self.programs] {
                side[0] += packets;
                side[1] += receives;
            }
        }
    }

    #[test]
    fn what_was_skipped_between_two_quiet_rounds_is_counted_exactly_and_once() {
        let mut host = Host {
            driver: [1_000_000, 4000],
            ..Host::default()
        };
        assert_eq!(host.round(), 0);
        host.traffic(8000, 2000);
        host.driver[0] += 184;
        host.driver[1] += 23;
        assert_eq!(host.round(), 184 + 23);
        assert_eq!(host.round(), 0);
        host.driver[1] += 1;
        assert_eq!(host.round(), 1);
    }

    #[test]
    fn what_moves_while_it_is_read_is_no_loss() {
        let mut host = Host::default();
        assert_eq!(host.round(), 0);
        for _ in 0..20 {
            let found = host.see();
            // A packet that a program has seen and that the driver has not yet sent.
            host.programs[0] += 1;
            host.traffic(500, 100);
            host.read();
            host.driver[0] += 1;
            host.traffic(700, 300);
            assert_eq!(found + host.see(), 0);
            host.now_ns += SECOND;
        }
        assert_eq!(host.round(), 0);
        host.driver[0] += 3;
        assert_eq!(host.round(), 3);
    }

    #[test]
    fn packets_that_the_driver_could_not_send_hide_no_later_loss() {
        let mut host = Host::default();
        assert_eq!(host.round(), 0);
        host.programs[0] += 50;
        assert_eq!(host.round(), 0);
        host.driver[0] += 2;
        assert_eq!(host.round(), 2);
    }

    #[test]
    fn a_new_session_and_a_device_that_leaves_are_no_loss() {
        let mut host = Host::default();
        host.traffic(700, 70);
        assert_eq!(host.round(), 0);
        (host.session, host.programs) = (1, [0, 0]);
        assert_eq!(host.round(), 0);
        host.traffic(10, 10);
        assert_eq!(host.round(), 0);
        host.overlooked.devices(&DevicesSample::default());
        assert_eq!(host.round(), 0);
        host.driver = [5, 5];
        assert_eq!(host.round(), 0);
        host.driver[1] += 4;
        assert_eq!(host.round(), 4);
    }

    #[test]
    fn what_no_program_counts_and_what_sysfs_shows_is_not_compared() {
        let mut host = Host::default();
        assert_eq!(host.round(), 0);
        host.driver[0] += 9;
        host.read();
        host.now_ns += 1000;
        let none = SeenByPrograms {
            mono_ns: host.now_ns,
            ..SeenByPrograms::default()
        };
        assert_eq!(host.overlooked.seen(none), 0);
        let old = RawReading {
            name: "sent_pkts".into(),
            value: Some(1),
            source: RawSource::Sysfs,
            at: ReadAt::from(0),
        };
        assert_eq!(value(&[old], "sent_pkts"), None);
    }
}
