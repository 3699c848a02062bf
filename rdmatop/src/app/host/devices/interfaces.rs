//! Counters of the network interface under a port: those of Ethernet flow control and of a damaged link, and
//! for each interface of a bond the bytes that passed its wire.
//!
//! To read them the kernel asks the driver for all of its statistics, under its lock of network devices, and
//! the driver asks the firmware. So they are read less often than the others.

use std::sync::Arc;

use rdmatop_base::{pause, wire_bytes, wire_errors};
use rdmatop_model::input::{Bond, RawReading, RawSource, ReadAt};
use rdmatop_sources::{
    clock::{now, timed},
    ethtool::Statistics,
    root::Root,
};

/// Time between two reads, ns.
const EVERY: u64 = 5_000_000_000;

/// The counters of the interfaces of one port.
#[derive(Debug, Default)]
pub(super) struct Interfaces {
    all: Vec<Interface>,
}

#[derive(Debug)]
struct Interface {
    netdev: String,
    /// It belongs to a bond: its name stands before those of its counters.
    member: bool,
    statistics: Option<Statistics>,
    /// If the RDMA device is software: names of the kernel's own statistics of the interface.
    software: Option<[Arc<str>; 2]>,
    read_ns: u64,
    last: Vec<RawReading>,
}

impl Interfaces {
    /// Opens the counters of `netdev`, or of the interfaces of its bond, where they are not open. `driver`:
    /// of the RDMA device's function. `software`: no hardware is behind the device.
    pub(super) fn follow(
        &mut self,
        root: &Root,
        netdev: Option<&str>,
        bond: Option<&Bond>,
        driver: Option<&str>,
        software: bool,
    ) {
        let members = bond.iter().flat_map(|bond| &bond.members);
        let mut wanted: Vec<(&str, bool)> = members.map(|member| (&*member.name, true)).collect();
        if wanted.is_empty() && !software {
            // A software device takes no part in flow control.
            wanted.extend(netdev.map(|netdev| (netdev, false)));
        }
        let is_open = |open: &Interface| open.statistics.is_some() || open.software.is_some();
        let known = self.all.iter().map(|open| (&*open.netdev, open.member));
        let same = known.eq(wanted.iter().copied());
        if same && self.all.iter().all(is_open) {
            return;
        }
        self.all = wanted
            .into_iter()
            .map(|(netdev, member)| Interface::open(root, netdev, member, driver, software))
            .collect();
    }

    /// The names of the counters that were read last.
    pub(super) fn names(&self) -> impl Iterator<Item = (&Arc<str>, RawSource)> {
        self.all.iter().flat_map(|interface| {
            let software = interface.software.iter().flatten();
            let last = interface.last.iter().map(|last| (&last.name, last.source));
            software.map(|name| (name, RawSource::Sysfs)).chain(last)
        })
    }

    /// Adds the last values, after reading them again if that is due.
    pub(super) fn add_to(&mut self, root: &Root, out: &mut Vec<RawReading>) {
        for interface in &mut self.all {
            interface.add_to(root, out);
        }
    }
}

impl Interface {
    fn open(root: &Root, netdev: &str, member: bool, driver: Option<&str>, software: bool) -> Self {
        let bytes = wire_bytes::of_driver(driver).filter(|_| member);
        let wanted = |name: &str| {
            pause::meaning(name).is_some()
                || wire_errors::is_damage(name)
                || wire_errors::is_down(name)
                || bytes.is_some_and(|bytes| bytes.contains(&name))
        };
        let of_software = || wire_bytes::SOFTWARE.map(|name| wire_bytes::of_member(netdev, name).into());
        Self {
            netdev: netdev.to_owned(),
            member,
            statistics: (!software)
                .then(|| root.in_netns(|| Statistics::open(netdev, wanted)))
                .flatten(),
            software: (software && member).then(of_software),
            read_ns: 0,
            last: Vec::new(),
        }
    }

    fn add_to(&mut self, root: &Root, out: &mut Vec<RawReading>) {
        if let Some(names) = &self.software {
            let dir = root.sys("class/net").join(&self.netdev).join("statistics");
            for (name, file) in names.iter().zip(wire_bytes::SOFTWARE) {
                let (value, span) = timed(|| root.number(&dir.join(file)));
                out.push(RawReading {
                    name: Arc::clone(name),
                    value,
                    source: RawSource::Sysfs,
                    at: span,
                });
            }
            return;
        }
        let Some(statistics) = &mut self.statistics else {
            return;
        };
        if self.read_ns == 0 || now().mono_ns.saturating_sub(self.read_ns) >= EVERY {
            let Self {
                last, member, netdev, ..
            } = self;
            last.clear();
            let (read, span) = timed(|| {
                root.in_netns(|| {
                    let read = statistics.read()?;
                    last.extend(read.map(|(name, value)| RawReading {
                        name: if *member {
                            wire_bytes::of_member(netdev, name).into()
                        } else {
                            name.clone()
                        },
                        value: Some(value),
                        source: RawSource::Ethtool,
                        at: ReadAt::default(),
                    }));
                    Some(())
                })
            });
            if read.is_none() {
                self.statistics = None;
                return;
            }
            self.last.iter_mut().for_each(|reading| reading.at = span);
            self.read_ns = span.mono_ns;
        }
        out.extend(self.last.iter().cloned());
    }
}
