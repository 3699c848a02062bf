//! Counters of Ethernet flow control, of the network interface under a port.
//!
//! To read them the kernel asks the driver for all of its statistics, under its lock of network devices, and
//! the driver asks the firmware. So they are read less often than the others.

use crate::{
    model::input::{RawReading, RawSource, ReadAt},
    pause,
    source::{
        clock::{now, timed},
        ethtool::Statistics,
        root::Root,
    },
};

/// Time between two reads, ns.
const EVERY: u64 = 5_000_000_000;

/// Those of one interface.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    netdev: String,
    statistics: Option<Statistics>,
    read_ns: u64,
    last: Vec<RawReading>,
}

impl Pauses {
    /// Opens the counters of `netdev`, where they are not open.
    pub(super) fn follow(&mut self, root: &Root, netdev: Option<&str>) {
        let Some(netdev) = netdev.filter(|_| root.is_live()) else {
            *self = Self::default();
            return;
        };
        if self.netdev == netdev && self.statistics.is_some() {
            return;
        }
        *self = Self {
            netdev: netdev.to_owned(),
            statistics: Statistics::open(netdev, |name| pause::meaning(name).is_some()),
            ..Self::default()
        };
    }

    /// Adds what was read last, which is read again when it is due.
    pub(super) fn add_to(&mut self, out: &mut Vec<RawReading>) {
        let Some(statistics) = &mut self.statistics else {
            return;
        };
        if self.read_ns == 0 || now().mono_ns.saturating_sub(self.read_ns) >= EVERY {
            let last = &mut self.last;
            last.clear();
            let (read, span) = timed(|| {
                let read = statistics.read()?;
                last.extend(read.map(|(name, value)| RawReading {
                    name: name.clone(),
                    value: Some(value),
                    source: RawSource::Ethtool,
                    at: ReadAt::default(),
                }));
                Some(())
            });
            if read.is_none() {
                self.statistics = None;
                return;
            }
            let at = ReadAt::between(span.before_ns, span.after_ns);
            self.last.iter_mut().for_each(|reading| reading.at = at);
            self.read_ns = span.after_ns;
        }
        out.extend(self.last.iter().cloned());
    }
}
