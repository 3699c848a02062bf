//! Counters of one port, round by round.

use rdmatop_base::order::Gather as _;
use std::{collections::BTreeSet, ffi::OsStr, sync::Arc};

use super::interfaces::Interfaces;
use rdmatop_model::input::{RawReading, RawSource, ReadAt};
use rdmatop_sources::{
    clock::timed,
    netlink::{error::NetlinkError, name::Name, sample::RequestError},
    root::Root,
    sysfs::{CounterFiles, CounterGroup, FileValue, is_failure},
};

/// Asks netlink for the counters of a port, each with its raw name.
pub(super) type AskPort<'a> = dyn FnMut(u32, &mut dyn FnMut(&[u8], u64)) -> Result<(), NetlinkError> + 'a;

/// State of a port's counters, kept so that a round allocates nothing but its list of values.
#[derive(Debug, Default)]
pub(super) struct PortCounters {
    pub(super) port: u32,
    /// Netlink served them when the devices were last listed.
    served: bool,
    /// The driver failed at the last listing, and has at each reading since.
    fails: bool,
    /// The counters were requested, and netlink does not have them.
    refused: bool,
    /// Why netlink gave none at the last listing.
    refusal: Option<RequestError>,
    /// Names that netlink gave last time, in its order.
    names: Vec<Arc<str>>,
    /// Open files: `counters/`, and `hw_counters/` where netlink does not serve them.
    files: Vec<(CounterFiles, RawSource)>,
    /// The counters of the network interface, or of the interfaces of a bond.
    pub(super) interfaces: Interfaces,
}

impl PortCounters {
    /// Asks for the counters of a listing, unless they are left alone. Returns them, and whether other files
    /// than before have to be read.
    pub(super) fn list(
        &mut self,
        port: u32,
        device: &Name,
        ask: Option<&mut AskPort<'_>>,
    ) -> (Vec<RawReading>, bool) {
        let before = (self.port, self.served, self.refused);
        self.port = port;
        let mut out = Vec::with_capacity(self.names.len());
        if let Some(ask) = ask {
            let error = self.ask(ask, &mut out).err();
            let error = error.map(|error| error.of(format!("counters of {device} port {port}")));
            // Those at which the driver fails stay those that netlink serves.
            self.fails = self.served && error.as_ref().is_some_and(|error| is_failure(error.errno));
            if self.fails {
                out.extend(self.unserved());
            } else {
                (self.served, self.refused) = (error.is_none(), error.is_some());
            }
            self.refusal = error;
        } else {
            // A listing without counters, as in a pause, says nothing of who serves them.
            self.refusal = self.refusal.take().filter(RequestError::is_absence);
        }
        (out, before != (self.port, self.served, self.refused))
    }

    /// Asks netlink; after an error there are no counters.
    fn ask(&mut self, ask: &mut AskPort<'_>, out: &mut Vec<RawReading>) -> Result<(), NetlinkError> {
        let port = self.port;
        let (read, at) = timed(|| ask(port, &mut |name, value| self.push(name, value, out)));
        for raw in out.iter_mut() {
            raw.at = at;
        }
        if read.is_err() {
            out.clear();
        }
        read
    }

    /// Opens the files of `port` of the device in `dir`. Port 1 has those of the device, too, which are read
    /// once so; of these `of_device` chooses. A device may count for all its ports what each counts: a name
    /// that the port has is the port's.
    pub(super) fn open(&mut self, root: &Root, dir: &OsStr, ports: usize, of_device: impl Fn(&str) -> bool) {
        let open = |group, wanted: &dyn Fn(&[u8]) -> bool| {
            let mut files = CounterFiles::open(root, dir, self.port, group, wanted);
            for (before, ..) in &self.files {
                files.follow(before);
            }
            files
        };
        let mut opened = vec![(open(CounterGroup::Port, &|_| true), RawSource::Pma)];
        let mut own: BTreeSet<&[u8]> = self.names.iter().map(|name| name.as_bytes()).gather();
        // A driver without the netlink statistic still has its counter files.
        let files = self.refused.then(|| open(CounterGroup::Hardware, &|_| true));
        own.extend(
            files
                .iter()
                .flat_map(CounterFiles::names)
                .map(|name| name.as_bytes()),
        );
        if self.port == 1 {
            let wanted = |name: &[u8]| !own.contains(name) && std::str::from_utf8(name).is_ok_and(&of_device);
            let source = if ports > 1 {
                RawSource::Device
            } else {
                RawSource::Sysfs
            };
            opened.push((open(CounterGroup::Device, &wanted), source));
        }
        opened.extend(files.map(|files| (files, RawSource::Sysfs)));
        self.files = opened;
    }

    /// Why netlink has no counters. Where the driver has none that is no failure, but where sysfs has them it
    /// refused to read them.
    pub(super) fn refusal(&self) -> Option<&RequestError> {
        let of_driver = |files: &CounterFiles| files.group() == CounterGroup::Hardware;
        let mut files = self.files.iter().map(|(files, _)| files);
        let there = files.any(|files| of_driver(files) && files.names().next().is_some());
        self.refusal.as_ref().filter(|error| there || !error.is_absence())
    }

    /// Whether the driver or its firmware failed at the last reading, at what netlink serves or at a file.
    pub(super) fn broke(&self) -> bool {
        self.fails || self.files.iter().any(|(files, ..)| files.broke())
    }

    /// The counters that it had at the last reading, without values: nothing is read.
    pub(super) fn unread(&self) -> Vec<RawReading> {
        let files = self.files.iter().flat_map(|(files, source)| {
            let names = files.names();
            names.map(|name| unknown(name, *source))
        });
        let interfaces = self
            .interfaces
            .names()
            .map(|(name, source)| unknown(name, source));
        self.unserved().chain(files).chain(interfaces).collect()
    }

    /// What netlink serves, without values.
    fn unserved(&self) -> impl Iterator<Item = RawReading> {
        self.names.iter().map(|name| unknown(name, RawSource::Netlink))
    }

    /// Adds the present counters of the files and of the interfaces.
    pub(super) fn add_files(&mut self, root: &Root, out: &mut Vec<RawReading>) {
        self.read_files(out);
        self.interfaces.add_to(root, out);
    }

    /// The present counters.
    pub(super) fn read(
        &mut self,
        root: &Root,
        ask: &mut AskPort<'_>,
    ) -> Result<Vec<RawReading>, NetlinkError> {
        let mut out = Vec::with_capacity(self.names.len());
        if self.served {
            match self.ask(ask, &mut out) {
                Ok(()) => self.fails = false,
                // The listing has said so: there is no other in each round.
                Err(error) if self.fails && is_failure(error.errno()) => out.extend(self.unserved()),
                Err(error) => return Err(error),
            }
        }
        self.add_files(root, &mut out);
        Ok(out)
    }

    /// Adds a counter from netlink, without its time. The names arrive in the same order every time; another
    /// order makes new entries.
    fn push(&mut self, name: &[u8], value: u64, out: &mut Vec<RawReading>) {
        let at = out.len();
        if self.names.get(at).is_none_or(|known| known.as_bytes() != name) {
            self.names.truncate(at);
            self.names.push(String::from_utf8_lossy(name).into());
        }
        out.extend(self.names.get(at).map(|name| RawReading {
            name: Arc::clone(name),
            value: Some(value),
            source: RawSource::Netlink,
            at: ReadAt::default(),
        }));
    }

    fn read_files(&mut self, out: &mut Vec<RawReading>) {
        for (files, source) in &mut self.files {
            let there = files.read().filter(|(_, said, _)| *said != FileValue::Absent);
            out.extend(there.map(|(name, said, span)| RawReading {
                name: Arc::clone(name),
                value: match said {
                    FileValue::Value(value) => Some(value),
                    FileValue::Failed | FileValue::Absent => None,
                },
                source: *source,
                at: span,
            }));
        }
    }
}

/// A counter that is there and was not read.
fn unknown(name: &Arc<str>, source: RawSource) -> RawReading {
    RawReading {
        name: Arc::clone(name),
        value: None,
        source,
        at: ReadAt::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmatop_model::input::{Bond, Member};
    use rdmatop_sources::fake::Fake;

    #[test]
    fn in_a_pause_each_counter_is_known_that_the_device_has_and_no_other() {
        let fake = Fake::new();
        let dir = "class/infiniband/mlx5_0/ports/1/counters";
        fake.sys(format!("{dir}/link_downed"), "N/A (no PMA)\n")
            .sys(format!("{dir}/port_xmit_data"), "5\n");
        let mut port = PortCounters {
            port: 1,
            ..PortCounters::default()
        };
        let member = Member {
            name: "eth0".into(),
            ..Member::default()
        };
        let bond = Bond {
            members: vec![member],
            ..Bond::default()
        };
        port.interfaces
            .follow(&fake.root(), None, Some(&bond), None, true);
        let mut sent = Vec::new();
        port.push(b"out_of_buffer", 7, &mut sent);
        port.open(&fake.root(), OsStr::new("mlx5_0"), 1, |_| true);
        port.read_files(&mut sent);
        port.interfaces.add_to(&fake.root(), &mut sent);
        let shown = |all: &[RawReading]| -> Vec<(String, RawSource)> {
            all.iter().map(|raw| (raw.name.to_string(), raw.source)).collect()
        };
        for _ in 0..2 {
            let unread = port.unread();
            assert_eq!(shown(&unread), shown(&sent));
            assert!(unread.iter().all(|raw| raw.value.is_none()));
            // Its files are opened anew from time to time, in a pause too.
            port.open(&fake.root(), OsStr::new("mlx5_0"), 1, |_| true);
        }
        assert_eq!(sent.len(), 4, "{sent:?}");
    }

    #[test]
    fn a_listing_without_counters_leaves_how_they_are_read() {
        let mut port = PortCounters::default();
        let none: &mut AskPort<'_> = &mut |_, _| Ok(());
        let name = Name::from("mlx5_0");
        assert!(port.list(1, &name, Some(none)).1, "its files are opened");
        assert!(!port.list(1, &name, None).1 && port.served && !port.refused);
    }

    #[test]
    fn counters_are_of_a_driver_that_fails_too_and_none_of_one_without_any() {
        let name = Name::from("mlx5_0");
        let answer = |errno| NetlinkError::Kernel { errno, message: None };
        let mut port = PortCounters::default();
        let some: &mut AskPort<'_> = &mut |_, visit| {
            visit(b"out_of_buffer", 7);
            Ok(())
        };
        assert_eq!(port.list(1, &name, Some(some)).0[0].value, Some(7));
        let mut fails = |_: u32, visit: &mut dyn FnMut(&[u8], u64)| {
            visit(b"out_of_buffer", 8);
            Err(answer(libc::EIO))
        };
        let (listed, is_other) = port.list(1, &name, Some(&mut fails));
        assert_eq!((listed.len(), listed[0].value, is_other), (1, None, false));
        assert!(port.broke() && port.refusal().is_some());
        // In a pause nothing is known of a failure.
        assert_eq!(port.list(1, &name, None).0.len(), 0);
        assert_eq!(port.refusal(), None);
        let mut without = PortCounters::default();
        let mut lacks = |_: u32, _: &mut dyn FnMut(&[u8], u64)| Err(answer(libc::EOPNOTSUPP));
        assert_eq!(without.list(1, &name, Some(&mut lacks)).0.len(), 0);
        assert!(without.refused && !without.broke() && without.refusal().is_none());
    }

    #[test]
    fn a_name_is_made_once_and_a_changed_list_is_read_as_it_is() {
        let mut port = PortCounters::default();
        let mut read = |names: &[&str]| {
            let mut out = Vec::new();
            for (name, value) in names.iter().zip(1..) {
                port.push(name.as_bytes(), value, &mut out);
            }
            out
        };
        let (first, second) = (read(&["a", "b", "c"]), read(&["a", "b", "c"]));
        assert!(
            first
                .iter()
                .zip(&second)
                .all(|(a, b)| Arc::ptr_eq(&a.name, &b.name))
        );
        let third = read(&["a", "c", "b\u{1b}"]);
        let seen: Vec<_> = third.iter().map(|c| (&*c.name, c.value)).collect();
        assert_eq!(seen, [("a", Some(1)), ("c", Some(2)), ("b\u{1b}", Some(3))]);
    }
}
