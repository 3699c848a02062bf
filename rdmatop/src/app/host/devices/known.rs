//! State of a device between rounds.

use std::collections::HashMap;

use super::{
    counters::{self, AskPort},
    dump::is_special,
    groups::Bound,
    paths::Paths,
};
use rdmatop_base::text;
use rdmatop_common::provider::Counted;
use rdmatop_model::{
    engine::has_meaning,
    input::{
        Bond, DeviceReading, NetdevDown, PortCounters, PortReading, QpReading, RawReading, RawSource, ReadAt,
    },
    snapshot::may_hide_qps,
};
use rdmatop_sources::{
    dcb,
    netlink::{
        error::NetlinkError,
        record::Device,
        sample::{DeviceSample, PortSample, RequestError},
    },
    root::Root,
    sysfs::{
        DeviceFacts, PortFacts, device_dir, is_failure, netdev_bond, netdev_down, netdev_mtu, netdev_pfc,
        read_device,
    },
};

/// A listing reads facts of sysfs again if the last reading is this old, ns: speed, MTU and the like change
/// rarely. It is less than the time between two regular listings, so that each of these reads them.
const FACTS_EVERY: u64 = 20_000_000_000;

/// What is kept of a device from listing to listing.
#[derive(Default)]
pub(super) struct Known {
    /// Facts of sysfs, and when they were read.
    facts: Option<DeviceFacts>,
    read_ns: Option<u64>,
    /// What is under ports, by port.
    under: HashMap<u32, Under>,
    ports: Vec<counters::PortCounters>,
    /// Its QPs, if they are only those that the kernel creates for every port.
    special: Option<Vec<QpReading>>,
    /// Since the last dump of its QPs.
    dumped: Rest,
    /// Numbers of its QPs in the last dump, sorted.
    pub(super) numbers: Vec<u32>,
    /// Its counters moved between the last two readings.
    moved: bool,
    /// Its counters of the last reading in one checksum.
    checksum: Option<u64>,
    /// When counters of bound QPs were read, and whether there were any.
    pub(super) bound: Bound,
    /// How its firmware answered for the peers of QPs.
    pub(super) paths: Paths,
}

/// When requests that cost the firmware of a device something last ended, and how long they took, ns. They
/// take a tenth of the time at most, or are [`Rest::MOST`] apart.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rest(Option<(u64, u64)>);

impl Rest {
    /// The longest rest, ns.
    const MOST: u64 = 10_000_000_000;
    /// After what took less it does not rest, ns: a tenth of the shortest refresh.
    const SHORT: u64 = 10_000_000;

    pub(super) fn is_over(self, now_ns: u64) -> bool {
        self.0.is_none_or(|(ended_ns, took_ns)| {
            let rest = took_ns.saturating_mul(9).min(Self::MOST);
            took_ns < Self::SHORT || now_ns.saturating_sub(ended_ns) >= rest
        })
    }

    pub(super) fn begin(&mut self, after: ReadAt) {
        self.0 = Some((after.mono_ns + after.within_ns, 2 * after.within_ns));
    }
}

/// The network interface under a port.
#[derive(Default)]
struct Under {
    /// Why it carries nothing.
    down: Option<NetdevDown>,
    mtu: Option<u32>,
    bond: Option<Bond>,
    /// Priorities with flow control, a bit for each.
    pfc: Option<u8>,
}

/// A device as it was last listed.
pub(super) struct Listed {
    /// Without lists of objects and without counters.
    sample: DeviceSample,
    errors: usize,
    /// The processes that have it open, where that is of interest.
    contexts: Option<Vec<u32>>,
    /// `contexts` has changed since it was last reported.
    reopened: bool,
    /// The last two readings had the same resource counts.
    steady: bool,
    /// Whether no counter could be read at the last reading, because the driver or its firmware failed;
    /// `None`: it has none.
    pub(super) broke: Option<bool>,
    /// What is kept of it.
    pub(super) known: Known,
}

impl Listed {
    /// Takes over a listing of `now_ns`, and returns the reading of the device; `before` is its last listing,
    /// and `ask` asks netlink for its counters, unless they are left alone.
    pub(super) fn list(
        root: &Root,
        mut sample: DeviceSample,
        before: Option<Self>,
        now_ns: u64,
        mut ask: Option<&mut AskPort<'_>>,
    ) -> (Self, DeviceReading) {
        let before = before.map(|before| (before.known, before.sample.summary));
        let (mut known, summary) = before.unwrap_or_default();
        known
            .ports
            .resize_with(sample.ports.len(), counters::PortCounters::default);
        let ports = known.ports.iter_mut().zip(&sample.ports);
        let listed = ports.map(|(kept, port)| kept.list(port.port, &sample.device.name, ask.as_deref_mut()));
        let (values, reopens): (Vec<_>, Vec<_>) = listed.unzip();
        known.refresh(root, &sample, &reopens, now_ns);
        known.look_at_links(root, &sample);
        let mut reading = known.reading(&sample);
        for ((kept, mut values), reading) in known.ports.iter_mut().zip(values).zip(&mut reading.ports) {
            if ask.is_some() {
                kept.add_files(root, &mut values);
            } else {
                values = kept.unread();
            }
            reading.counters = values;
        }
        let failed = known
            .ports
            .iter()
            .any(|port| port.broke() || port.refusal().is_some_and(|error| is_failure(error.errno)));
        let broke = broke(failed, reading.ports.iter().map(|port| &*port.counters));
        sample.mrs = None;
        let listed = Self {
            errors: sample.errors().count(),
            contexts: None,
            reopened: false,
            steady: summary == sample.summary,
            broke,
            known,
            sample,
        };
        (listed, reading)
    }

    /// Adds the counters of all its ports.
    pub(super) fn read(
        &mut self,
        root: &Root,
        ask: &mut AskPort<'_>,
        out: &mut Vec<PortCounters>,
    ) -> Result<(), NetlinkError> {
        let device_index = self.sample.device.index;
        let mut sum = 0_u64;
        for port in &mut self.known.ports {
            let read = port.read(root, ask);
            self.broke = Some(read.as_ref().is_err_and(|error| is_failure(error.errno())));
            let counters = read?;
            // Counters only rise, except for resets and wraps: an unchanged checksum means unchanged
            // counters. Those of the network interface rise with any traffic, also where nobody uses RDMA.
            let own = counters.iter().filter(|raw| raw.source != RawSource::Ethtool);
            for counter in own {
                sum = sum.rotate_left(1).wrapping_add(counter.value.unwrap_or(0));
            }
            out.push(PortCounters {
                device_index,
                number: port.port,
                counters,
            });
        }
        let known = &mut self.known;
        let failed = known.ports.iter().any(counters::PortCounters::broke);
        self.broke = broke(failed, out.iter().map(|port| &*port.counters));
        known.moved = known.checksum.replace(sum).is_some_and(|before| before != sum);
        Ok(())
    }

    /// Adds its counters without values, in the place of [`Self::read`]: what was read before is no longer
    /// so.
    pub(super) fn unread(&self, out: &mut Vec<PortCounters>) {
        out.extend(self.known.ports.iter().map(|port| PortCounters {
            device_index: self.sample.device.index,
            number: port.port,
            counters: port.unread(),
        }));
    }

    /// Whether the device is not in use: no process has it open, it has only the kernel's own QPs and no MR,
    /// and no counter moves.
    pub(super) fn rests(&self) -> bool {
        self.steady
            && !self.known.moved
            && self.only_special(self.count("qp")).is_some()
            && self.count("mr") == Some(0)
            // Linux 5.10 does not count contexts.
            && self.count("ctx").unwrap_or(0) == 0
    }

    /// For each port whose counters could not be read at its listing, why.
    pub(super) fn refusals(&self) -> impl Iterator<Item = &RequestError> {
        let ports = self.known.ports.iter();
        ports.filter_map(counters::PortCounters::refusal)
    }

    /// A resource count of the last reading.
    pub(super) fn count(&self, what: &str) -> Option<u64> {
        self.sample.summary.as_ref()?.as_ref().ok()?.get(what)
    }

    /// Takes over who has it open.
    pub(super) fn opened(&mut self, contexts: Option<Vec<u32>>) {
        self.reopened |= self.contexts != contexts;
        self.contexts = contexts;
    }

    /// The new reading, if `contexts` has changed since it was last reported.
    pub(super) fn reopened(&mut self) -> Option<DeviceReading> {
        std::mem::take(&mut self.reopened).then(|| self.reading())
    }

    fn reading(&self) -> DeviceReading {
        DeviceReading {
            contexts: self.contexts.clone(),
            ..self.known.reading(&self.sample)
        }
    }

    /// Whether a process that has it open may have queue pairs that the kernel does not list.
    pub(super) fn may_hide_qps(&self) -> bool {
        may_hide_qps(self.driver().as_deref())
    }

    /// Whether its driver has types of queue pairs of its own, which the counts of all devices leave out.
    pub(super) fn has_own_qp_types(&self) -> bool {
        self.driver()
            .is_some_and(|driver| driver.starts_with("mlx5") || driver.starts_with("efa"))
    }

    fn driver(&self) -> Option<String> {
        driver(self.known.facts.as_ref()?, self.device().protocol.as_deref())
    }

    pub(super) fn device(&self) -> &Device {
        &self.sample.device
    }

    /// The kernel's own QPs of a device without a consumer, which last as long as the device: if the count is
    /// unchanged they are the same, and no dump is needed.
    pub(super) fn only_special(&self, count: Option<u64>) -> Option<&[QpReading]> {
        let special = self.known.special.as_deref()?;
        (u64::try_from(special.len()).ok() == count).then_some(special)
    }

    /// Whether its QPs may be dumped again. For each the kernel asks the driver (`fill_res_qp_entry` calls
    /// `ib_query_qp`, drivers/infiniband/core/nldev.c), and that of mlx5 its firmware.
    pub(super) fn dump_is_due(&self, now_ns: u64) -> bool {
        self.known.dumped.is_over(now_ns)
    }

    /// Records that a dump began and ended.
    pub(super) fn dump_took(&mut self, span: ReadAt) {
        self.known.dumped.begin(span);
    }

    /// What sysfs said of a port.
    pub(super) fn port_facts(&self, port: u32) -> Option<&PortFacts> {
        let mut ports = self.known.facts.iter().flat_map(|facts| &facts.ports);
        ports.find(|facts| facts.port == port)
    }

    /// Records a complete dump of a device that had `count` QPs just before.
    pub(super) fn dumped(&mut self, count: Option<u64>, qps: &[QpReading]) {
        let special = qps.iter().all(is_special) && u64::try_from(qps.len()).ok() == count;
        self.known.special = special.then(|| qps.to_vec());
    }

    /// Takes over ports and resource counts of a later reading; returns the new reading if anything changed.
    /// Fails when something that could be read at the listing cannot be read now.
    pub(super) fn again(&mut self, root: &Root, sample: &DeviceSample) -> Result<Option<DeviceReading>, ()> {
        if sample.errors().count() > self.errors {
            return Err(());
        }
        let mut changed = self.known.look_at_links(root, sample);
        for (kept, new) in self.sample.ports.iter_mut().zip(&sample.ports) {
            if new.info.is_some() && kept.info != new.info {
                kept.info.clone_from(&new.info);
                changed = true;
            }
        }
        if sample.summary.is_some() {
            self.steady = self.sample.summary == sample.summary;
            if !self.steady {
                self.sample.summary.clone_from(&sample.summary);
                changed = true;
            }
        }
        let reopened = self.reopened();
        Ok(reopened.or_else(|| changed.then(|| self.reading())))
    }
}

/// Whether a driver failed at a reading that gave these counters, so that none of them has a value; `None`
/// where there are none. Those of the network interface are read otherwise.
fn broke<'a>(failed: bool, ports: impl Iterator<Item = &'a [RawReading]>) -> Option<bool> {
    let own = ports
        .flatten()
        .filter(|counter| counter.source != RawSource::Ethtool);
    let values: Vec<bool> = own.map(|counter| counter.value.is_some()).collect();
    (failed || !values.is_empty()).then(|| failed && !values.contains(&true))
}

impl Known {
    /// Opens files of counters where others have to be read, and reads sysfs facts when they are due.
    fn refresh(&mut self, root: &Root, sample: &DeviceSample, reopens: &[bool], now_ns: u64) {
        let due = self
            .read_ns
            .is_none_or(|at| now_ns.saturating_sub(at) >= FACTS_EVERY);
        let dir = device_dir(sample.device.name.as_bytes()).unwrap_or_default();
        if due {
            self.facts = read_device(root, &dir);
        }
        let driver = self.facts.as_ref().and_then(|facts| facts.driver.as_deref());
        let name = sample.device.name.to_string();
        let of_device = |counter: &str| has_meaning(driver, &name, counter);
        for (kept, reopens) in self.ports.iter_mut().zip(reopens) {
            if *reopens || due {
                kept.open(root, &dir, sample.ports.len(), of_device);
            }
        }
        if !due {
            return;
        }
        self.read_ns = Some(now_ns);
        for port in self.facts.iter_mut().flat_map(|facts| &mut facts.ports) {
            // GIDs name interfaces of other network namespaces, too (`print_ndev`,
            // drivers/infiniband/core/sysfs.c), and one of that name here is another one. Netlink leaves them
            // out.
            let asked = sample.ports.iter().find(|asked| asked.port == port.port);
            let info = asked.and_then(|asked| asked.info.as_ref()?.as_ref().ok());
            if info.is_some_and(|info| info.netdev.is_none()) {
                port.netdev = None;
            }
        }
        self.under.clear();
        let Some(facts) = &self.facts else { return };
        for port in &facts.ports {
            let Some(netdev) = &port.netdev else { continue };
            let under = self.under.entry(port.port).or_default();
            (under.mtu, under.bond) = (netdev_mtu(root, netdev), netdev_bond(root, netdev));
        }
        self.follow_interfaces(root);
    }

    /// Opens the counters of the network interfaces under the ports, and looks up what they have of flow
    /// control. Software devices take no part in that.
    fn follow_interfaces(&mut self, root: &Root) {
        let Some(facts) = &self.facts else { return };
        for kept in &mut self.ports {
            let port = facts.ports.iter().find(|facts| facts.port == kept.port);
            let netdev = port.and_then(|facts| facts.netdev.as_deref());
            let mut under = self.under.get_mut(&kept.port);
            let bond = under.as_ref().and_then(|under| under.bond.as_ref());
            kept.interfaces
                .follow(root, netdev, bond, facts.driver.as_deref(), facts.software);
            if facts.software {
                continue;
            }
            // In a bond the member interfaces have flow control: one value holds only if they are alike.
            let members = bond.iter().flat_map(|bond| &bond.members);
            let mut interfaces: Vec<&str> = members.map(|member| &*member.name).collect();
            if interfaces.is_empty() {
                interfaces.extend(netdev);
            }
            let mut all = interfaces.iter().map(|netdev| priorities(root, netdev));
            let first = all
                .next()
                .flatten()
                .filter(|first| all.all(|other| other == Some(*first)));
            if let Some(under) = &mut under {
                under.pfc = first;
            }
        }
    }

    /// Looks up why ports that are not ACTIVE carry nothing, as far as their states were read. Returns
    /// whether that changed.
    fn look_at_links(&mut self, root: &Root, sample: &DeviceSample) -> bool {
        let mut changed = false;
        for port in &sample.ports {
            let Some(Ok(info)) = &port.info else { continue };
            // Netlink names the interface also when it is off; the GID table may not.
            let netdev = info.netdev.as_ref().and_then(|netdev| netdev.name.as_ref());
            let netdev = netdev.filter(|_| info.state.is_some_and(|state| !state.is_active()));
            let name = netdev.and_then(|name| std::str::from_utf8(name.as_bytes()).ok());
            let down = name.and_then(|name| netdev_down(root, name));
            let under = self.under.entry(port.port).or_default();
            changed |= std::mem::replace(&mut under.down, down) != down;
        }
        changed
    }

    /// The reading of the device without counters.
    fn reading(&self, sample: &DeviceSample) -> DeviceReading {
        let facts = self.facts.as_ref();
        let pci = facts.and_then(|facts| facts.pci.as_ref());
        let iwarp = sample.device.protocol.as_deref() == Some("iw");
        let port = |port| PortReading {
            // `fill_dev_info`, drivers/infiniband/core/nldev.c
            iwarp,
            ..self.port(port)
        };
        let mut reading = DeviceReading {
            index: sample.device.index,
            name: text::sanitize(sample.device.name.as_bytes()),
            node_guid: sample.device.node_guid,
            driver: facts.and_then(|facts| driver(facts, sample.device.protocol.as_deref())),
            fw_version: sample.device.firmware.as_deref().map(str::to_owned),
            pci: pci.map(|pci| pci.address.clone()),
            pci_path: pci.map(|pci| pci.path.clone()).unwrap_or_default(),
            numa_node: pci.and_then(|pci| i32::try_from(pci.numa_node?).ok()),
            pcie: pci.and_then(|pci| Some([pci.current?, pci.max?])),
            ports: sample.ports.iter().map(port).collect(),
            ..DeviceReading::default()
        };
        if let Some(Ok(summary)) = &sample.summary {
            let counts = summary.counts.iter();
            let safe = counts.map(|(name, count)| (text::sanitize(name.as_bytes()), *count));
            reading.resources = safe.collect();
        }
        reading
    }

    fn port(&self, sample: &PortSample) -> PortReading {
        let info = sample.info.as_ref().and_then(|info| info.as_ref().ok());
        let facts = self.facts.as_ref();
        let facts = facts.and_then(|f| f.ports.iter().find(|p| p.port == sample.port));
        let netdev = info.and_then(|i| i.netdev.as_ref()?.name.as_ref());
        let under = self.under.get(&sample.port);
        PortReading {
            number: sample.port,
            state: info.and_then(|i| i.state),
            phys_state: info.and_then(|i| i.phys_state),
            link_layer: facts.and_then(|f| f.link_layer.clone()),
            iwarp: false,
            netdev: netdev
                .map(|name| text::sanitize(name.as_bytes()))
                .or_else(|| facts.and_then(|f| f.netdev.clone())),
            bond: under.and_then(|under| under.bond.clone()),
            netdev_mtu: under.and_then(|under| under.mtu),
            netdev_down: under.and_then(|under| under.down),
            pfc: under.and_then(|under| under.pfc),
            rate_bps: facts.and_then(|f| f.rate.as_ref()?.bits_per_sec),
            lanes: facts.and_then(|f| f.rate.as_ref()?.lanes),
            gids: facts.and_then(|f| f.gids.clone()),
            counters: Vec::new(),
        }
    }
}

/// Priorities with flow control of an interface, a bit for each; `None` when that is not known.
fn priorities(root: &Root, netdev: &str) -> Option<u8> {
    let by_dcb = root.in_netns(|| dcb::of(netdev).ok().flatten()?.pfc);
    let on = by_dcb.or_else(|| netdev_pfc(root, netdev))?;
    Some(on.iter().fold(0, |mask, priority| mask | 1 << (priority & 7)))
}

/// The driver's name. Software devices have no driver link, but their protocol identifies the driver.
fn driver(facts: &DeviceFacts, protocol: Option<&str>) -> Option<String> {
    let counted = || Counted::of_software(protocol, facts.parent_netdev.is_some());
    let of_software = || facts.software.then(counted).flatten();
    facts
        .driver
        .clone()
        .or_else(|| Some(of_software()?.driver.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;
    use rdmatop_model::cause::{CauseId, Obstacle};
    use rdmatop_model::ib::QpType;
    use rdmatop_sources::fake::Fake;

    fn listed() -> Listed {
        let device = Device {
            index: 3,
            name: "rxe0".into(),
            port_count: 1,
            node_guid: None,
            firmware: None,
            protocol: None,
        };
        Listed::list(&Fake::new().root(), DeviceSample::new(device), None, 0, None).0
    }

    fn qp(qpn: u32) -> QpReading {
        QpReading {
            device_index: 3,
            port: Some(1),
            qpn,
            qp_type: None,
            state: None,
            remote_qpn: None,
            sq_psn: None,
            rq_psn: None,
            pid: None,
            kern_name: None,
        }
    }

    #[test]
    fn special_qps_need_no_dump_until_there_are_more() {
        let mut listed = listed();
        assert!(listed.only_special(Some(1)).is_none(), "never dumped");
        listed.dumped(Some(1), &[qp(1)]);
        assert_eq!(listed.only_special(Some(1)).map(<[_]>::len), Some(1));
        assert!(listed.only_special(Some(2)).is_none());
        assert!(listed.only_special(None).is_none());
        listed.dumped(Some(2), &[qp(17), qp(1)]);
        assert!(
            listed.only_special(Some(2)).is_none(),
            "a user's may change its state"
        );
        listed.dumped(Some(2), &[qp(1)]);
        assert!(
            listed.only_special(Some(1)).is_none(),
            "the count was of another moment"
        );
        let users = QpReading {
            pid: Some(7),
            ..qp(1)
        };
        let kernels = QpReading {
            qp_type: Some(QpType(2)),
            ..qp(1)
        };
        for first_of_iwarp in [users, kernels] {
            listed.dumped(Some(1), &[first_of_iwarp]);
            assert!(
                listed.only_special(Some(1)).is_none(),
                "it has this number because the device has no other"
            );
        }
    }

    #[test]
    fn a_changed_count_is_reported_and_a_new_error_asks_for_a_listing() {
        use rdmatop_sources::netlink::record::Summary;
        let mut listed = listed();
        let mut sample = DeviceSample::new(listed.device().clone());
        assert!(
            listed
                .again(&Fake::new().root(), &sample)
                .is_ok_and(|changed| changed.is_none())
        );
        sample.summary = Some(Ok(Summary {
            device_index: 3,
            counts: [("qp".into(), 2)].into(),
        }));
        let seen = listed.again(&Fake::new().root(), &sample).unwrap().unwrap();
        assert_eq!(seen.resources.get("qp"), Some(&2));
        assert!(
            listed.again(&Fake::new().root(), &sample).unwrap().is_none(),
            "reported once"
        );
        sample.summary = Some(Err(RequestError {
            request: "resource counts of rxe0".into(),
            why: Obstacle::new(CauseId::ReadFailed, "Invalid argument", ""),
            errno: Some(22),
        }));
        assert!(listed.again(&Fake::new().root(), &sample).is_err());
    }

    #[test]
    fn an_interface_that_netlink_does_not_name_is_another_of_that_name() {
        use rdmatop_sources::netlink::record::{NetdevRef, Port};
        let fake = Fake::new();
        let dir = "class/infiniband/mlx5_2/ports/1";
        fake.sys(format!("{dir}/gid_attrs/ndevs/0"), "eth0\n")
            .sys(format!("{dir}/link_layer"), "Ethernet\n")
            .sys("class/net/eth0/mtu", "9000\n");
        let of = |info| {
            let mut sample = DeviceSample::new(Device {
                name: "mlx5_2".into(),
                ..listed().device().clone()
            });
            sample.ports = vec![PortSample { port: 1, info }];
            let (_, reading) = Listed::list(&fake.root(), sample, None, 0, None);
            let port = &reading.ports[0];
            (port.netdev.clone(), port.netdev_mtu)
        };
        let told = |netdev| {
            Some(Ok(Port {
                port: 1,
                state: None,
                phys_state: None,
                netdev,
            }))
        };
        let here = (Some("eth0".to_owned()), Some(9000));
        let name = Some("eth0".into());
        assert_eq!(of(told(Some(NetdevRef { index: 2, name }))), here);
        assert_eq!(of(None), here, "it did not answer");
        assert_eq!(of(told(None)), (None, None));
    }

    #[test]
    fn siw_is_not_called_rxe_and_hardware_keeps_its_drivers_name() {
        let fake = Fake::new();
        for name in ["rxe0", "siw0"] {
            fake.sys(format!("class/infiniband/{name}/parent"), "eth0\n");
        }
        let facts = |name: &str| read_device(&fake.root(), OsStr::new(name)).unwrap();
        let (rxe, siw) = (facts("rxe0"), facts("siw0"));
        assert_eq!(driver(&rxe, Some("roce")).as_deref(), Some("rdma_rxe"));
        assert_eq!(driver(&siw, Some("iw")).as_deref(), Some("siw"));
        assert_eq!(driver(&siw, None), None, "not known is not guessed");
        let hardware = DeviceFacts {
            software: false,
            driver: Some("mlx5_core".to_owned()),
            ..rxe
        };
        assert_eq!(driver(&hardware, Some("roce")).as_deref(), Some("mlx5_core"));
    }
}
